//! `stats cachedump`: items of one size class.

use crate::shared::Shared;
use cached_core::clock::Expiry;
use cached_core::kv::ScanCursor;
use cached_proto::number::write_u64;
use cached_proto::reply;
use std::io::Write as _;

/// The longest reply, as in memcached.
const REPLY_BYTES_MAX: usize = 2 << 20;

/// The number of hash buckets that one report reads at most, which takes about a millisecond: it must not
/// keep a worker busy for long.
const HASH_BUCKETS_MAX: usize = 20_000;

/// `stats cachedump class limit`: at most `limit` items of one size class; 0 is without limit.
pub(super) fn write(shared: &Shared, out: &mut Vec<u8>, class: u32, limit: u32) {
    let limit = if limit == 0 { usize::MAX } else { limit as usize };
    let (start, mut shown) = (out.len(), 0);
    let mut cursor = Some(ScanCursor::default());
    let mut hash_buckets = 0;
    while let Some(at) = cursor
        && shown < limit
        && hash_buckets < HASH_BUCKETS_MAX
        && out.len() - start < REPLY_BYTES_MAX
    {
        hash_buckets += 1;
        cursor = shared.kv.scan(at, |item| {
            if shown == limit || item.key_binary() || shared.class_of(item) != class {
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
            // Writing to a vector cannot fail.
            let _ = write!(out, " b; {exp} s]\r\n");
            shown += 1;
        });
    }
    out.extend_from_slice(reply::END);
}
