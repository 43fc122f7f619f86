//! A walk over every invariant, for tests.

use super::Kv;
use super::extent::List;
use super::item::KEY_BYTES_MAX;
use crate::clock::Expiry;
use std::collections::{HashMap, HashSet};

impl Kv {
    /// Checks that index, items, regions, queues and counters agree. No other thread may use the store during
    /// the call.
    ///
    /// # Panics
    /// If they do not; the message names what is wrong.
    pub fn validate(&self) {
        let inner = &self.inner;
        let log = &inner.log;
        let mut live = vec![0u64; log.arena().region_count() as usize];
        let mut expiring = HashMap::new();
        let mut locations = HashSet::new();
        for shard in inner.index.shards() {
            let mut bytes = 0;
            shard.validate(|bucket, location| {
                assert!(locations.insert(location), "location {location} twice in the index");
                let item = inner.item_at(location);
                let key = item.key();
                assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
                let hash = inner.hasher.hash(key);
                assert!(std::ptr::eq(inner.index.shard(hash), shard), "key in the wrong shard");
                assert!(shard.belongs(bucket, hash), "key in the wrong hash bucket");
                bytes += inner.item_bytes(item);
                inner.each_entry(item, location, |place, entry_bytes| {
                    let region = log.region_of(place);
                    live[region.0 as usize] += u64::from(entry_bytes);
                    if item.expiry() != Expiry::NEVER {
                        let span = log.arena().expiry_span(region, item.expiry());
                        *expiring.entry((region.0, span)).or_insert(0) += entry_bytes;
                    }
                });
                if item.shape().fields().extents {
                    let list = List::new(item.payload());
                    let mut value_bytes = 0;
                    for piece in list.pieces() {
                        assert!(locations.insert(piece.location), "a piece in two lists");
                        value_bytes += piece.bytes as usize;
                    }
                    assert_eq!(value_bytes, list.value_bytes(), "pieces do not add up to the value");
                }
            });
            assert_eq!(bytes, shard.item_bytes(), "bytes counted and found in a shard");
        }
        log.validate(&live, expiring);
    }
}
