//! `delete`, `incr`, `decr`, `flush_all` and `flush_prefix`, in all protocols.

use super::Executor;
use super::meta::{Expiries, ttl_left};
use cached_core::clock::Expiry;
use cached_core::kv::{
    ArithmeticOptions, ArithmeticOutcome, DeleteOptions, DeleteOutcome, PrefixError, StoreMode, StoreOutcome,
};
use cached_proto::binary::{self, Head, encode_done, encode_error, encode_error_text};
use cached_proto::meta::{self, Flag, KeyBuffer, MetaItem, Status, encode_status};
use cached_proto::{reply, text};

impl Executor<'_> {
    fn delete(&self, key: &[u8], options: &DeleteOptions, command: &str) -> DeleteOutcome {
        let kv = self.kv();
        let item = if self.is_observed() { self.observe_before_delete(key) } else { None };
        let outcome = kv.delete(key, kv.hash(key), options);
        if let Some(item) = item
            && outcome == DeleteOutcome::Done
            && !(options.invalidate || options.clear_value)
        {
            self.observe_delete(key, item, command);
        }
        outcome
    }
}

/// Executes `delete`.
pub(super) fn delete(executor: &mut Executor<'_>, command: &text::Delete<'_>) {
    let words = match executor.delete(command.key, &DeleteOptions::default(), "delete") {
        DeleteOutcome::Done => {
            executor.counters.delete_hits.bump();
            reply::DELETED
        }
        _ => {
            executor.counters.delete_misses.bump();
            reply::NOT_FOUND
        }
    };
    executor.reply_unless(command.noreply, words);
}

/// Executes `md`.
pub(super) fn meta_delete(executor: &mut Executor<'_>, command: &meta::Delete<'_>) {
    let (key, flags) = (&command.key, &command.flags);
    let mut buffer = KeyBuffer::new();
    let invalidate = flags.has(Flag::Invalidate);
    let clear_value = flags.has(Flag::RemoveValue);
    let ttl = flags.ttl().map(|exptime| executor.shared.clock.expiry(exptime));
    let options = DeleteOptions {
        compare: flags.compare_cas(),
        invalidate,
        // An item whose value is cleared is stored anew: without `T` it never expires.
        expiry: if clear_value { Some(ttl.unwrap_or_default()) } else { ttl },
        new_cas: flags.new_cas(),
        clear_value,
        client_flags: flags.client_flags(),
    };
    let outcome = executor.delete(key.bytes(&mut buffer), &options, "md");
    let status = match outcome {
        DeleteOutcome::Done => {
            if !invalidate {
                executor.counters.delete_hits.bump();
            }
            if flags.quiet() {
                return;
            }
            Status::Done
        }
        DeleteOutcome::Exists => {
            executor.counters.delete_misses.bump();
            Status::Exists
        }
        DeleteOutcome::NotFound => {
            executor.counters.delete_misses.bump();
            Status::NotFound
        }
        DeleteOutcome::OutOfMemory => return executor.reply(reply::OUT_OF_MEMORY),
    };
    encode_status(&mut executor.out.bytes, status, flags, key);
}

/// Executes a binary DELETE.
pub(super) fn binary_delete(executor: &mut Executor<'_>, head: &Head, key: &[u8]) {
    let compare = (head.cas != 0).then_some(head.cas);
    let outcome = executor.delete(key, &DeleteOptions { compare, ..DeleteOptions::default() }, "delete");
    let out = &mut executor.out.bytes;
    match outcome {
        DeleteOutcome::Done => {
            executor.counters.delete_hits.bump();
            encode_done(out, head, 0);
        }
        DeleteOutcome::NotFound => {
            executor.counters.delete_misses.bump();
            encode_error(out, head, binary::Status::NotFound);
        }
        DeleteOutcome::Exists => encode_error(out, head, binary::Status::Exists),
        DeleteOutcome::OutOfMemory => encode_error(out, head, binary::Status::OutOfMemory),
    }
}

impl Executor<'_> {
    /// Increments or decrements a number, and counts the outcome.
    fn arithmetic(&self, key: &[u8], options: &ArithmeticOptions) -> ArithmeticOutcome {
        let kv = self.kv();
        let outcome = kv.arithmetic(key, kv.hash(key), options);
        let counters = self.counters;
        match (outcome, options.decrement) {
            // As in memcached, the creation of a number counts neither as a hit nor as a miss.
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

/// Executes `incr` or `decr`.
pub(super) fn arithmetic(executor: &mut Executor<'_>, command: &text::Arithmetic<'_>) {
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

/// Executes `ma`.
pub(super) fn meta_arithmetic(executor: &mut Executor<'_>, command: &meta::Arithmetic<'_>) {
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
    // Flags apply in the order in which they were written: `t` before `T` shows the previous
    // expiry.
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

/// Executes a binary INCREMENT or DECREMENT.
pub(super) fn binary_arithmetic(executor: &mut Executor<'_>, head: &Head, command: &binary::Arithmetic<'_>) {
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

impl Executor<'_> {
    /// Expires all items that are present, immediately or at a future second.
    fn flush(&self, delay: Expiry) {
        match delay.as_secs() {
            0 | 1 => self.kv().flush_all(),
            // As in memcached, the old items live until the second before.
            at if at - 1 <= self.shared.clock.now_secs() => self.kv().flush_all(),
            at => self.kv().flush_at(at - 1),
        }
    }
}

/// Executes `flush_all`.
pub(super) fn flush_all(executor: &mut Executor<'_>, command: &text::FlushAll) {
    executor.counters.flushes.bump();
    if !executor.shared.live.flush_command() {
        return executor.reply_unless(command.noreply, reply::FLUSH_NOT_ALLOWED);
    }
    match command.delay {
        Some(delay) => {
            executor.flush(executor.shared.clock.expiry(delay.max(0)));
            executor.reply_unless(command.noreply, reply::OK);
        }
        None => executor.reply_unless(command.noreply, reply::INVALID_EXPTIME),
    }
}

/// Executes a binary FLUSH.
pub(super) fn binary_flush(executor: &mut Executor<'_>, head: &Head, exptime: u32) {
    if !executor.shared.live.flush_command() {
        return encode_error(&mut executor.out.bytes, head, binary::Status::AuthError);
    }
    executor.flush(executor.shared.clock.expiry_unsigned(exptime));
    executor.counters.flushes.bump();
    encode_done(&mut executor.out.bytes, head, 0);
}

fn end_prefix(executor: &mut Executor<'_>, prefix: &[u8]) -> Result<(), PrefixError> {
    if executor.kv().memory_file().is_some() {
        // The flush walks over the whole index.
        executor.work.use_up();
    }
    executor.shared.flush_prefix(prefix)
}

/// Executes `flush_prefix`.
pub(super) fn flush_prefix(executor: &mut Executor<'_>, command: &text::FlushPrefix<'_>) {
    let words = match executor.shared.live.flush_command() {
        false => reply::FLUSH_PREFIX_NOT_ALLOWED,
        true => match end_prefix(executor, command.prefix) {
            Ok(()) => reply::OK,
            Err(PrefixError::TooMany) => reply::TOO_MANY_PREFIXES,
            Err(PrefixError::Length) => reply::BAD_FORMAT,
        },
    };
    executor.reply_unless(command.noreply, words);
}
