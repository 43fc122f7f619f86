//! `flush_all`, FLUSH, `flush_prefix`.

use super::Executor;
use cached_core::clock::Expiry;
use cached_core::kv::PrefixError;
use cached_proto::binary::{Head, Status, encode_done, encode_error};
use cached_proto::{reply, text};

impl Executor<'_> {
    /// Expires all items that are present, at once or at a future second.
    fn flush(&self, delay: Expiry) {
        match delay.as_secs() {
            0 | 1 => self.kv().flush_all(),
            // In memcached the old items live until the second before.
            at if at - 1 <= self.shared.clock.now_secs() => self.kv().flush_all(),
            at => self.kv().flush_at(at - 1),
        }
    }
}

/// `flush_all`.
pub(super) fn text(executor: &mut Executor<'_>, command: &text::FlushAll) {
    executor.counters.flush_cmds.bump();
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

/// FLUSH.
pub(super) fn binary(executor: &mut Executor<'_>, head: &Head, exptime: u32) {
    if !executor.shared.live.flush_command() {
        return encode_error(&mut executor.out.bytes, head, Status::AuthError);
    }
    executor.flush(executor.shared.clock.expiry_unsigned(exptime));
    executor.counters.flush_cmds.bump();
    encode_done(&mut executor.out.bytes, head, 0);
}

fn flush_prefix(executor: &mut Executor<'_>, prefix: &[u8]) -> Result<(), PrefixError> {
    if executor.kv().memory_file().is_some() {
        // It walks over the whole index.
        executor.work.use_up();
    }
    executor.shared.flush_prefix(prefix)
}

/// `flush_prefix`.
pub(super) fn prefix(executor: &mut Executor<'_>, command: &text::FlushPrefix<'_>) {
    let words = match executor.shared.live.flush_command() {
        false => reply::FLUSH_PREFIX_NOT_ALLOWED,
        true => match flush_prefix(executor, command.prefix) {
            Ok(()) => reply::OK,
            Err(PrefixError::TooMany) => reply::TOO_MANY_PREFIXES,
            Err(PrefixError::Length) => reply::BAD_FORMAT,
        },
    };
    executor.reply_unless(command.noreply, words);
}
