//! `lru_crawler metadump` and `mgdump`: lists of all keys.
//!
//! A dump walks the index one hash bucket at a time and stops whenever the output buffer is full, so a client
//! that does not read holds nothing but its cursor. It lists every item that is present throughout; items
//! that come or go meanwhile may be in it or not.

use super::{Executor, Next};
use cached_core::clock::Expiry;
use cached_core::kv::{ItemView, ScanCursor};
use cached_proto::meta::encode_key;
use cached_proto::reply;
use std::io::Write as _;

/// A dump that has not reached its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dump {
    pub(crate) kind: DumpKind,
    pub(crate) cursor: ScanCursor,
}

/// The format of a dump's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpKind {
    /// `key=… exp=… la=… cas=… fetch=… cls=… size=… flags=…`
    Attributes,
    /// `mg …`: requests that can be sent to a server as they are.
    Requests,
}

/// Continues a dump until it is complete or the output is full.
pub(crate) fn resume(executor: &mut Executor<'_>, mut dump: Dump) -> Next {
    let shared = executor.shared;
    let clock = &shared.clock;
    let kv = &executor.shared.kv;
    let out = &mut executor.out.bytes;
    loop {
        let next = kv.scan(dump.cursor, |item| match dump.kind {
            DumpKind::Attributes => {
                let class = shared.class_of(item);
                write_attributes(out, item, class, |secs| clock.unix_secs_of(secs));
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
        });
        match next {
            None => break,
            Some(cursor) => dump.cursor = cursor,
        }
        if out.len() >= crate::stream::FULL_BYTES {
            return Next::Dump(dump);
        }
    }
    out.extend_from_slice(match dump.kind {
        DumpKind::Attributes => reply::END,
        DumpKind::Requests => b"EN\r\n",
    });
    Next::Continue
}

fn write_attributes(out: &mut Vec<u8>, item: &ItemView<'_>, class: u32, unix_secs_of: impl Fn(u32) -> i64) {
    out.extend_from_slice(b"key=");
    write_escaped(out, item.key());
    let size = item.bytes();
    let exp = if item.expiry() == Expiry::NEVER { -1 } else { unix_secs_of(item.expiry().as_secs()) };
    // Writing to a vector cannot fail.
    let _ = writeln!(
        out,
        " exp={exp} la={} cas={} fetch={} cls={} size={size} flags={} ",
        unix_secs_of(item.last_access()),
        item.cas(),
        if item.fetched() { "yes" } else { "no" },
        class,
        item.client_flags(),
    );
}

/// Writes a key, percent-encoded as in a URI.
fn write_escaped(out: &mut Vec<u8>, key: &[u8]) {
    for byte in key {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(*byte),
            _ => {
                // Writing to a vector cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_escaped_as_in_a_uri() {
        let mut out = Vec::new();
        write_escaped(&mut out, b"a-Z_.~0 :%\x01\xff");
        assert_eq!(out, b"a-Z_.~0%20%3A%25%01%FF");
    }
}
