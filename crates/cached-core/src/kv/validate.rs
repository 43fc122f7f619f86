//! Checks of all invariants, for tests.

use super::Kv;
use super::item::KEY_BYTES_MAX;
use super::item::extent::{List, PIECE_HEADER_BYTES, Piece};
use super::rebuild::{Kind, Scan};
use crate::arena::{RegionId, RegionState};
use crate::clock::Expiry;
use std::collections::{HashMap, HashSet};

impl Kv {
    /// Checks that index, items, regions, queues and counters agree. No other thread may use the
    /// store during the call.
    ///
    /// # Panics
    /// If they do not; the message names the contradiction.
    pub fn validate(&self) {
        let inner = &self.inner;
        let log = &inner.log;
        let mut live = vec![0u64; log.arena.region_count() as usize];
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
                        let span = log.arena.expiring.span_in(region, item.expiry());
                        *expiring.entry((region.0, span)).or_insert(0) += entry_bytes;
                    }
                });
                if item.shape().fields().extents {
                    let list = List::new(item.payload());
                    let mut value_bytes = 0;
                    for piece in list.pieces() {
                        assert!(locations.insert(piece.location), "a piece in two lists");
                        value_bytes += piece.bytes as usize;
                        self.validate_piece(piece);
                    }
                    assert_eq!(value_bytes, list.value_bytes(), "pieces do not add up to the value");
                }
            });
            assert_eq!(bytes, shard.item_bytes(), "bytes counted and found in a shard");
        }
        self.validate_marks(&locations);
        log.validate(&live, expiring);
    }

    fn validate_piece(&self, piece: Piece) {
        let log = &self.inner.log;
        let bytes = log.padded(PIECE_HEADER_BYTES + piece.bytes as usize);
        assert!(
            !log.has_checksums() || log.matches_piece_checksum(piece.location, piece.bytes, bytes),
            "a piece without its checksum"
        );
    }

    /// Checks that exactly the items in the index are marked live, and that every region can be walked over.
    fn validate_marks(&self, locations: &HashSet<u32>) {
        let log = &self.inner.log;
        let mut live = 0;
        for id in (0..log.arena.region_count()).map(RegionId) {
            if log.arena.region(id).state() == RegionState::Free {
                continue;
            }
            let mut scan = Scan::new(log, id);
            for entry in scan.by_ref() {
                if let Kind::Item(item) = entry.kind
                    && item.is_live()
                {
                    live += 1;
                    assert!(
                        locations.contains(&entry.location),
                        "a live item to which the index does not lead"
                    );
                    assert!(
                        !log.has_checksums() || item.matches_checksum(entry.bytes),
                        "an item without its checksum"
                    );
                }
            }
            assert!(scan.is_complete(), "region {} cannot be walked over", id.0);
        }
        let (_, items) = self.inner.index.stored_and_items();
        assert_eq!(live, items, "live items and items in the index");
    }
}
