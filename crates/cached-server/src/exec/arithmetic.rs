//! `incr`, `decr`, `ma`, INCREMENT, DECREMENT.

use super::Executor;
use super::meta::{Expiries, ttl_left};
use cached_core::kv::{ArithmeticOptions, ArithmeticOutcome, StoreMode, StoreOutcome};
use cached_proto::binary::{self, Head, encode_error, encode_error_text};
use cached_proto::meta::{self, KeyBuffer, MetaItem, Status, encode_status};
use cached_proto::{reply, text};

impl Executor<'_> {
    /// Increments or decrements, and counts the outcome.
    fn arithmetic(&self, key: &[u8], options: &ArithmeticOptions) -> ArithmeticOutcome {
        let kv = self.kv();
        let outcome = kv.arithmetic(key, kv.hash(key), options);
        let counters = self.counters;
        match (outcome, options.decrement) {
            // memcached counts a number that is created neither as a hit nor as a miss.
            (ArithmeticOutcome::Done { created: true, cas, .. }, _) if self.is_observed() => {
                self.observe_store(key, 0, StoreMode::Add, StoreOutcome::Stored { cas, value_bytes: 0 });
            }
            (ArithmeticOutcome::Done { created: true, .. }, _) => {}
            (ArithmeticOutcome::Done { .. }, false) => counters.incr_hits.bump(),
            (ArithmeticOutcome::Done { .. }, true) => counters.decr_hits.bump(),
            (ArithmeticOutcome::NotFound, false) => counters.incr_misses.bump(),
            (ArithmeticOutcome::NotFound, true) => counters.decr_misses.bump(),
            _ => {}
        }
        outcome
    }
}

/// `incr`, `decr`.
pub(super) fn text(executor: &mut Executor<'_>, command: &text::Arithmetic<'_>) {
    let options = ArithmeticOptions {
        decrement: command.decrement,
        delta: command.delta,
        ..ArithmeticOptions::default()
    };
    let outcome = executor.arithmetic(command.key, &options);
    if command.noreply {
        return;
    }
    match outcome {
        ArithmeticOutcome::Done { value, .. } => text::encode_number(&mut executor.out.bytes, value),
        ArithmeticOutcome::NonNumeric => executor.reply(reply::NON_NUMERIC),
        ArithmeticOutcome::OutOfMemory => executor.reply(reply::OUT_OF_MEMORY),
        ArithmeticOutcome::NotFound | ArithmeticOutcome::Exists => executor.reply(reply::NOT_FOUND),
    }
}

/// `ma`.
pub(super) fn meta(executor: &mut Executor<'_>, command: &meta::Arithmetic<'_>) {
    let (key, flags) = (&command.key, &command.flags);
    let clock = &executor.shared.clock;
    let touch = flags.ttl().map(|exptime| clock.expiry(exptime));
    let expiries = Expiries { touch, vivify: flags.vivify().map(|exptime| clock.expiry(exptime)) };
    let options = ArithmeticOptions {
        decrement: command.decrement,
        delta: flags.delta(),
        compare: flags.compare_cas().unwrap_or(0),
        new_cas: flags.new_cas(),
        touch,
        vivify: expiries.of_created(flags).map(|expiry| (flags.initial(), expiry)),
        key_binary: false,
    };
    let mut buffer = KeyBuffer::new();
    let key_bytes = key.bytes(&mut buffer);
    // Flags act in the order in which they were written: `t` before `T` shows what was there before.
    let before = match touch {
        Some(_) if flags.shows_ttl_before_update() => {
            let kv = executor.kv();
            kv.peek(key_bytes, kv.hash(key_bytes), |item| item.expiry()).ok()
        }
        _ => None,
    };
    let outcome = executor.arithmetic(key_bytes, &options);
    let out = &mut executor.out.bytes;
    let status = match outcome {
        ArithmeticOutcome::Done { .. } if flags.quiet() => return,
        ArithmeticOutcome::Done { value, cas, expiry, created } => {
            let expiry = expiries.shown(flags, created, before.unwrap_or(expiry));
            let ttl = ttl_left(expiry, clock.now_secs());
            return command.encode_number(out, value, &MetaItem { cas, ttl, ..MetaItem::default() });
        }
        ArithmeticOutcome::NonNumeric => return executor.reply(reply::NON_NUMERIC),
        ArithmeticOutcome::OutOfMemory if flags.vivify().is_some() => {
            return executor.reply(reply::META_OUT_OF_MEMORY_NEW_ITEM);
        }
        ArithmeticOutcome::OutOfMemory => return executor.reply(reply::OUT_OF_MEMORY),
        ArithmeticOutcome::NotFound => Status::NotFound,
        ArithmeticOutcome::Exists => Status::Exists,
    };
    encode_status(out, status, flags, key);
}

/// INCREMENT, DECREMENT.
pub(super) fn binary(executor: &mut Executor<'_>, head: &Head, command: &binary::Arithmetic<'_>) {
    let vivify =
        command.exptime.map(|exptime| (command.initial, executor.shared.clock.expiry_unsigned(exptime)));
    let options = ArithmeticOptions {
        decrement: command.decrement,
        delta: command.delta,
        compare: head.cas,
        vivify,
        ..ArithmeticOptions::default()
    };
    let outcome = executor.arithmetic(command.key, &options);
    let out = &mut executor.out.bytes;
    match outcome {
        ArithmeticOutcome::Done { value, cas, .. } => binary::encode_number(out, head, cas, value),
        ArithmeticOutcome::NotFound => encode_error(out, head, binary::Status::NotFound),
        ArithmeticOutcome::Exists => encode_error(out, head, binary::Status::Exists),
        ArithmeticOutcome::NonNumeric => encode_error(out, head, binary::Status::NonNumeric),
        ArithmeticOutcome::OutOfMemory => {
            let words = if vivify.is_some() {
                "Out of memory allocating new item"
            } else {
                "Out of memory incrementing value"
            };
            encode_error_text(out, head, binary::Status::OutOfMemory, words);
        }
    }
}
