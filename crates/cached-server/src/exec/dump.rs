//! `lru_crawler metadump` and `mgdump`, `stats cachedump`: telling which keys there are.
//!
//! A dump walks the index a bucket at a time and stops whenever the output buffer is full, so a client that does not read
//! holds nothing but its place. It sees what is there throughout; what comes and goes meanwhile may be in it or not.

use super::{Executor, Next};
use crate::shared::Shared;
use cached_core::clock::Expiry;
use cached_core::kv::{ItemView, ScanCursor};
use cached_proto::meta::encode_key;
use cached_proto::number::write_u64;
use cached_proto::reply;
use std::io::Write as _;

/// The longest answer to `stats cachedump`, as in memcached.
const CACHEDUMP_BYTES_MAX: usize = 2 << 20;

/// A dump under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dump {
    pub(crate) kind: DumpKind,
    pub(crate) cursor: ScanCursor,
}

/// How a dump's lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DumpKind {
    /// `key=… exp=… la=… cas=… fetch=… cls=… size=… flags=…`
    Attributes,
    /// `mg …`: to be sent to a server as it is.
    Requests,
}

/// Goes on with a dump until it is done or the output is full.
pub(crate) fn resume(executor: &mut Executor<'_>, mut dump: Dump) -> Next {
    let shared = executor.shared;
    let clock = &shared.clock;
    let kv = &executor.shared.kv;
    let out = &mut executor.out.bytes;
    loop {
        let next = kv.scan(dump.cursor, |item| match dump.kind {
            DumpKind::Attributes => {
                let class = class_of(shared, item);
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
        if out.len() >= crate::conn::output::FULL_BYTES {
            return Next::Dump(dump);
        }
    }
    out.extend_from_slice(match dump.kind {
        DumpKind::Attributes => reply::END,
        DumpKind::Requests => b"EN\r\n",
    });
    Next::Go
}

fn class_of(shared: &Shared, item: &ItemView<'_>) -> u32 {
    let (key, value) = (item.key().len(), item.value_bytes());
    shared.classes.class_of_item(key, value, item.client_flags(), shared.settings.cas)
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

/// Writes a key as in a URI.
fn write_escaped(out: &mut Vec<u8>, key: &[u8]) {
    for byte in key {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(*byte),
            _ => {
                // As above.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
}

/// `stats cachedump class limit`: items of one size class, no more than fit 2 MiB, and no more than so many
/// buckets are looked at.
pub(crate) fn cachedump(shared: &Shared, out: &mut Vec<u8>, class: u32, limit: u32) {
    /// A report must not keep a worker busy for long: about a millisecond's worth.
    const BUCKETS_MAX: usize = 20_000;
    let limit = if limit == 0 { usize::MAX } else { limit as usize };
    let (start, mut shown) = (out.len(), 0);
    let mut cursor = Some(ScanCursor::default());
    let mut buckets = 0;
    while let Some(at) = cursor
        && shown < limit
        && buckets < BUCKETS_MAX
        && out.len() - start < CACHEDUMP_BYTES_MAX
    {
        buckets += 1;
        cursor = shared.kv.scan(at, |item| {
            if shown == limit || item.key_binary() || class_of(shared, item) != class {
                return;
            }
            out.extend_from_slice(b"ITEM ");
            out.extend_from_slice(item.key());
            out.extend_from_slice(b" [");
            write_u64(out, item.value_bytes() as u64);
            let exp = match item.expiry() {
                Expiry::NEVER => 0,
                expiry => shared.clock.unix_secs_of(expiry.as_secs()),
            };
            let _ = write!(out, " b; {exp} s]\r\n");
            shown += 1;
        });
    }
    out.extend_from_slice(reply::END);
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
