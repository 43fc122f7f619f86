//! The walk over every invariant, for tests: nothing else may use the store meanwhile.

use super::Kv;
use super::extent::{List, PIECE_HEADER_BYTES};
use super::item::KEY_BYTES_MAX;
use super::queues::QUEUES;
use crate::arena::{RegionId, RegionState};
use crate::clock::Expiry;
use crate::sync::{Ordering, lock};

impl Kv {
    /// Checks that index, items, regions, queues and counters agree.
    ///
    /// # Panics
    /// When they do not, with what is wrong.
    pub fn validate(&self) {
        let inner = &self.inner;
        let regions = inner.arena.region_count();
        let mut live = vec![0u64; regions as usize];
        let mut expiring = std::collections::HashMap::new();
        let mut items = 0;
        let mut locations = std::collections::HashSet::new();
        for shard in inner.index.shards() {
            let mut bytes = 0;
            shard.validate(|bucket, location| {
                items += 1;
                assert!(locations.insert(location), "location {location} twice in the index");
                let item = inner.item_at(location);
                let key = item.key();
                assert!((1..=KEY_BYTES_MAX).contains(&key.len()), "a key of {} bytes", key.len());
                let hash = inner.hasher.hash(key);
                assert!(std::ptr::eq(inner.index.shard(hash), shard), "key in the wrong shard");
                assert!(shard.belongs(bucket, hash), "key in the wrong bucket");
                bytes += inner.item_bytes(item);
                if item.expiry() != Expiry::NEVER {
                    inner.each_entry(item, location, |location, bytes| {
                        let region = inner.region_of(location);
                        let span = inner.arena.expiry_span(region, item.expiry());
                        *expiring.entry((region.0, span)).or_insert(0) += bytes;
                    });
                }
                live[inner.region_of(location).0 as usize] +=
                    u64::from(inner.padded(item.shape().entry_bytes()));
                if item.shape().fields().extents {
                    let list = List::new(item.payload());
                    let mut value_bytes = 0;
                    for piece in list.pieces() {
                        assert!(locations.insert(piece.location), "a piece in two lists");
                        value_bytes += piece.bytes as usize;
                        live[inner.region_of(piece.location).0 as usize] +=
                            u64::from(inner.padded(PIECE_HEADER_BYTES + piece.bytes as usize));
                    }
                    assert_eq!(value_bytes, list.value_bytes(), "pieces do not add up to the value");
                }
            });
            assert_eq!(bytes, shard.item_bytes(), "bytes counted and found in a shard");
        }
        let queues = lock(&inner.queues);
        let mut queued = 0;
        for queue in 0..QUEUES {
            let mut last = 0;
            for region in queues.oldest_first(queue) {
                queued += 1;
                let sequence = inner.arena.region(region).sequence();
                assert!(last <= sequence, "queue {queue} is not in age order");
                last = sequence;
                assert_eq!(inner.arena.region(region).state(), RegionState::Sealed);
            }
        }
        for id in (0..regions).map(RegionId) {
            let record = inner.arena.region(id);
            match record.state() {
                RegionState::Free => assert_eq!(live[id.0 as usize], 0, "live items in free region {}", id.0),
                RegionState::Sealed => {
                    queued -= 1;
                    assert!(queues.queue_of(id).is_some(), "a sealed region in no queue");
                    check_live(record.live_bytes(), live[id.0 as usize], id);
                }
                RegionState::Active | RegionState::Reclaiming => {
                    check_live(record.live_bytes(), live[id.0 as usize], id);
                }
            }
            assert_eq!(record.pins(), 0, "a pin is left on region {}", id.0);
            assert_eq!(record.writers(), 0, "a writer is left in region {}", id.0);
            if record.state() != RegionState::Free {
                let header = inner.arena.read_header(id).expect("a region in use has a header");
                assert_eq!(u32::from(header.granule_shift), inner.granule_shift);
            }
        }
        for id in (0..regions).map(RegionId) {
            if inner.arena.region(id).state() != RegionState::Free {
                inner.arena.for_each_expiring(id, |span, bytes| {
                    let found = expiring.remove(&(id.0, span)).unwrap_or(0);
                    assert_eq!(bytes, found, "bytes noted and found in span {span} of region {}", id.0);
                });
            }
        }
        assert!(expiring.is_empty(), "bytes that expire were not noted: {expiring:?}");
        assert_eq!(queued, 0, "regions in queues that are not sealed");
        assert_eq!(inner.reserved_bytes.load(Ordering::Relaxed), 0, "bytes of values under way are left");
        assert_eq!(inner.reserved_regions.load(Ordering::Relaxed), 0, "regions of values under way are left");
    }
}

fn check_live(counted: u32, found: u64, id: RegionId) {
    assert_eq!(u64::from(counted), found, "live bytes counted and found in region {}", id.0);
}
