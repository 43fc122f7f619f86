//! Splits of a hash bucket: without space for the new chain, during a look-up, and under a
//! scheduler that tries many interleavings.

use super::Shard;
use crate::KeyHash;

#[cfg(not(shuttle))]
mod split {
    use super::*;

    /// Every location belongs to hash bucket 0 until this bucket is split; then the odd locations
    /// belong to the new bucket.
    fn hash_of(location: u32) -> KeyHash {
        KeyHash(u64::from(location) * 16)
    }

    fn add(shard: &Shard, location: u32) -> bool {
        shard.lock(hash_of(location)).insert(hash_of(location), location, 1)
    }

    fn holds(shard: &Shard, location: u32) -> bool {
        let hash = hash_of(location);
        shard.lock(hash).find(hash, |found| found == location).is_some()
    }

    fn remove(shard: &Shard, location: u32) {
        let hash = hash_of(location);
        let guard = shard.lock(hash);
        let slot = guard.find(hash, |found| found == location).unwrap();
        guard.remove(slot, 1);
    }

    #[test]
    fn a_split_without_room_for_its_chain_leaves_the_table_unchanged() {
        for lines_free in [0, 3] {
            let shard = Shard::new(1000, 0, 1).unwrap();
            let buckets = shard.bucket_count();
            let filled = (1..).find(|location| !add(&shard, *location)).unwrap() - 1;
            (filled - lines_free * 12 + 1..=filled).for_each(|location| remove(&shard, location));
            let left = filled - lines_free * 12;
            shard.grow(hash_of);
            assert_eq!(
                shard.bucket_count(),
                buckets,
                "half of {left} items would take more lines than are left"
            );
            assert!((1..=left).all(|location| holds(&shard, location)));
            shard.validate(|bucket, _| assert_eq!(bucket, 0));
            // With space for it, the new hash bucket gets its items, and nothing remains of the
            // first attempt.
            (1..=left)
                .filter(|n| n % 2 == 1 && *n > 1 || *n > 400)
                .for_each(|location| remove(&shard, location));
            shard.grow(hash_of);
            assert_eq!(shard.bucket_count(), buckets + 1);
            let mut found: Vec<_> = Vec::new();
            shard.validate(|bucket, location| {
                assert!(shard.belongs(bucket, hash_of(location)), "location {location} in bucket {bucket}");
                found.push(location);
            });
            found.sort_unstable();
            assert!(found.into_iter().eq((1..=400).filter(|n| n % 2 == 0 || *n == 1)));
        }
    }

    #[test]
    fn a_look_up_that_began_before_a_split_finds_moved_items() {
        let shard = Shard::new(1000, 0, 1).unwrap();
        assert!((1..=200).all(|location| add(&shard, location)));
        let references = [1, 2].map(|location| (location, shard.locate(hash_of(location))));
        let buckets = shard.bucket_count();
        shard.grow(hash_of);
        assert_eq!(shard.bucket_count(), buckets + 1);
        for (location, reference) in references {
            let guard = reference.lock(hash_of(location));
            assert!(
                guard.find(hash_of(location), |found| found == location).is_some(),
                "location {location}"
            );
        }
    }
}

#[cfg(shuttle)]
mod interleavings {
    use super::*;
    use crate::sync::Arc;

    fn hash_of(location: u32) -> KeyHash {
        KeyHash(u64::from(location).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn holds(shard: &Shard, location: u32) -> bool {
        let hash = hash_of(location);
        shard.lock(hash).find(hash, |found| found == location).is_some()
    }

    /// While hash buckets are split, existing and added items are found, and removed ones are not.
    #[test]
    fn a_split_loses_no_item() {
        shuttle::check_random(
            || {
                let shard = Arc::new(Shard::new(1000, 0, 1).unwrap());
                let add = |shard: &Shard, location: u32| {
                    let hash = hash_of(location);
                    assert!(shard.lock(hash).insert(hash, location, 1));
                };
                (1..=165).for_each(|location| add(&shard, location));
                let writer = {
                    let shard = shard.clone();
                    shuttle::thread::spawn(move || {
                        for location in 200..206 {
                            add(&shard, location);
                            shard.grow(hash_of);
                            assert!(holds(&shard, location));
                        }
                    })
                };
                let remover = {
                    let shard = shard.clone();
                    shuttle::thread::spawn(move || {
                        for location in 1..5 {
                            let hash = hash_of(location);
                            {
                                let locked = shard.lock(hash);
                                let slot = locked.find(hash, |found| found == location).unwrap();
                                locked.remove(slot, 1);
                            }
                            shard.grow(hash_of);
                            assert!(!holds(&shard, location));
                        }
                    })
                };
                // These items are in the hash buckets that are split, and half of them move.
                for location in (6..=165).filter(|location| hash_of(*location).low() % 16 < 2) {
                    assert!(holds(&shard, location), "{location} was lost");
                }
                writer.join().unwrap();
                remover.join().unwrap();
                assert!(shard.bucket_count() > u64::from(super::super::shard::BUCKETS_INITIAL));
                let mut seen = 0;
                shard.validate(|bucket, location| {
                    assert!(shard.belongs(bucket, hash_of(location)));
                    seen += 1;
                });
                assert_eq!(seen, 165 + 6 - 4);
            },
            300,
        );
    }
}
