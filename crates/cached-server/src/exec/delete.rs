//! `delete`, `md`, DELETE.

use super::Executor;
use cached_core::kv::{DeleteOptions, DeleteOutcome};
use cached_proto::binary::{self, Head, encode_done, encode_error};
use cached_proto::meta::{self, Flag, KeyBuffer, Status, encode_status};
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

/// `delete`.
pub(super) fn text(executor: &mut Executor<'_>, command: &text::Delete<'_>) {
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

/// `md`.
pub(super) fn meta(executor: &mut Executor<'_>, command: &meta::Delete<'_>) {
    let (key, flags) = (&command.key, &command.flags);
    let mut buffer = KeyBuffer::new();
    let invalidate = flags.has(Flag::Invalidate);
    let clear_value = flags.has(Flag::RemoveValue);
    let ttl = flags.ttl().map(|exptime| executor.shared.clock.expiry(exptime));
    let options = DeleteOptions {
        compare: flags.compare_cas(),
        invalidate,
        // An emptied item is stored anew: without `T` it never expires.
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

/// DELETE.
pub(super) fn binary(executor: &mut Executor<'_>, head: &Head, key: &[u8]) {
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
