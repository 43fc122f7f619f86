//! The removal of items whose slots are not this node's.

use cached_core::kv::{DeleteOptions, Kv, ScanCursor};
use cached_ring::{Slot, slot_of};

/// The number of hash buckets that are looked through at once: some ten thousand items, a few
/// milliseconds.
const SLICE_BUCKETS: usize = 1024;

/// Removes the items of some hash buckets whose slots `leaves` names. Returns the position of the next
/// bucket (`None` at the end), and the number of items.
pub(crate) fn remove_items(
    kv: &Kv,
    from: ScanCursor,
    leaves: impl Fn(Slot) -> bool,
) -> (Option<ScanCursor>, u64) {
    let (mut cursor, mut removed, mut keys) = (Some(from), 0, Vec::new());
    for _ in 0..SLICE_BUCKETS {
        let Some(at) = cursor else { break };
        cursor = kv.scan(at, |item| {
            if leaves(slot_of(item.key())) {
                keys.push(item.key().to_vec());
            }
        });
        removed += keys.len() as u64;
        for key in keys.drain(..) {
            kv.delete(&key, kv.hash(&key), &DeleteOptions::default());
        }
    }
    (cursor, removed)
}
