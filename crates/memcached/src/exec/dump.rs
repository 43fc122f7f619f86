//! `lru_crawler metadump` and `mgdump`, which list all keys, and `stats cachedump`, which lists the
//! keys of a size class.
//!
//! A dump walks the index one hash bucket at a time. It pauses whenever the output buffer is full
//! or the work of this iteration is used up: a client that does not read holds nothing but its
//! cursor, and other clients are served during the pause. The dump lists every item that is present
//! throughout; items stored or removed during the dump may or may not appear.

use super::{Executor, Next};
use crate::settings::size_classes::CLASS_MAX;
use crate::telemetry::watch::escaped;
use cached_core::clock::Expiry;
use cached_core::kv::{ItemView, ScanCursor};
use cached_proto::meta::encode_key;
use cached_proto::text::Tokens;
use cached_proto::{number, reply};
use std::io::Write as _;

/// The maximum length of the reply to `stats cachedump` in bytes, as in memcached.
const CLASS_BYTES_MAX: u32 = 2 << 20;

/// A dump in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dump {
    pub(crate) kind: DumpKind,
    pub(crate) cursor: ScanCursor,
}

/// The format of a dump's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpKind {
    /// Lines of the form `key=… exp=… la=… cas=… fetch=… cls=… size=… flags=…`.
    Attributes,
    /// Lines of the form `mg …`, which can be sent to a server unchanged.
    Requests,
    /// Lines of the form `ITEM key [bytes b; exp s]`, for the items of one size class.
    Class {
        class: u32,
        /// The number of items still to be listed.
        items_left: u32,
        /// The number of reply bytes still allowed.
        bytes_left: u32,
    },
}

impl Dump {
    /// Returns whether the dump lists items of all classes.
    pub(crate) fn is_of_all(&self) -> bool {
        !matches!(self.kind, DumpKind::Class { .. })
    }

    /// Returns whether the dump has reached its limit of items or bytes.
    fn is_full(&self) -> bool {
        matches!(self.kind, DumpKind::Class { items_left: 0, .. } | DumpKind::Class { bytes_left: 0, .. })
    }
}

/// Begins `stats cachedump class limit`: lists at most `limit` items of one size class; a limit of
/// 0 means no limit.
pub(super) fn class(executor: &mut Executor<'_>, tokens: &Tokens<'_>) -> Next {
    let number = |index| tokens.get(index).and_then(number::token_u32);
    let words: &[u8] = match (number(2), number(3)) {
        _ if !executor.shared.live.dump_commands() => b"CLIENT_ERROR stats cachedump not allowed\r\n",
        _ if tokens.len() < 4 => b"CLIENT_ERROR bad command line\r\n",
        (Some(class), Some(_)) if class > CLASS_MAX => b"CLIENT_ERROR Illegal slab id\r\n",
        (Some(class), Some(limit)) => {
            let items_left = if limit == 0 { u32::MAX } else { limit };
            let kind = DumpKind::Class { class, items_left, bytes_left: CLASS_BYTES_MAX };
            return Next::Dump(Dump { kind, cursor: ScanCursor::default() });
        }
        _ => reply::BAD_FORMAT,
    };
    executor.reply(words);
    Next::Continue
}

/// Continues a dump until it is complete, the output is full, or other connections must be served.
pub(crate) fn resume(executor: &mut Executor<'_>, mut dump: Dump) -> Next {
    let Executor { shared, out, work, .. } = executor;
    let out = &mut out.bytes;
    loop {
        if out.len() >= crate::stream::FULL_BYTES || work.is_used_up() {
            return Next::Dump(dump);
        }
        work.take(1);
        let next = shared.kv.scan(dump.cursor, |item| match &mut dump.kind {
            DumpKind::Attributes => {
                let class = shared.class_of(item);
                write_attributes(out, item, class, |secs| shared.clock.unix_secs_of(secs));
            }
            DumpKind::Requests => {
                out.extend_from_slice(b"mg ");
                if item.key_binary() {
                    encode_key(out, item.key());
                    out.extend_from_slice(b" b");
                } else {
                    out.extend_from_slice(item.key());
                }
                out.extend_from_slice(b"\r\n");
            }
            DumpKind::Class { class, items_left, bytes_left } => {
                if *items_left > 0 && !item.key_binary() && shared.class_of(item) == *class {
                    let before = out.len();
                    write_size(out, item, |secs| shared.clock.unix_secs_of(secs));
                    *items_left -= 1;
                    *bytes_left = bytes_left.saturating_sub((out.len() - before) as u32);
                }
            }
        });
        let Some(cursor) = next.filter(|_| !dump.is_full()) else { break };
        dump.cursor = cursor;
    }
    out.extend_from_slice(match dump.kind {
        DumpKind::Attributes | DumpKind::Class { .. } => reply::END,
        DumpKind::Requests => b"EN\r\n",
    });
    Next::Continue
}

fn write_size(out: &mut Vec<u8>, item: &ItemView<'_>, unix_secs_of: impl Fn(u32) -> i64) {
    let exp = match item.expiry() {
        Expiry::NEVER => 0,
        expiry => unix_secs_of(expiry.as_secs()),
    };
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(item.key());
    // Writing to a vector cannot fail.
    let _ = write!(out, " [{} b; {exp} s]\r\n", item.value_bytes());
}

fn write_attributes(out: &mut Vec<u8>, item: &ItemView<'_>, class: u32, unix_secs_of: impl Fn(u32) -> i64) {
    let size = item.bytes();
    let exp = if item.expiry() == Expiry::NEVER { -1 } else { unix_secs_of(item.expiry().as_secs()) };
    // Writing to a vector cannot fail.
    let _ = writeln!(
        out,
        "key={} exp={exp} la={} cas={} fetch={} cls={} size={size} flags={} ",
        escaped(item.key()),
        unix_secs_of(item.last_access()),
        item.cas(),
        if item.fetched() { "yes" } else { "no" },
        class,
        item.client_flags(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped_as_in_a_uri() {
        assert_eq!(escaped(b"a-Z_.~0 :%\x01\xff").to_string(), "a-Z_.~0%20%3A%25%01%FF");
    }
}
