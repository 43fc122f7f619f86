//! A shard under a scheduler that tries many interleavings.

use super::*;
use crate::sync::Arc;

fn hash_of(location: u32) -> KeyHash {
    KeyHash(u64::from(location).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn holds(shard: &Shard, location: u32) -> bool {
    let hash = hash_of(location);
    shard.lock(hash).find(hash, |found| found == location).is_some()
}

/// While hash buckets are split, items that are there or added are found, and removed ones are gone.
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
            // Those in the hash buckets that are split: half of them move.
            for location in (6..=165).filter(|location| hash_of(*location).low() % 16 < 2) {
                assert!(holds(&shard, location), "{location} was lost");
            }
            writer.join().unwrap();
            remover.join().unwrap();
            assert!(shard.bucket_count() > u64::from(BUCKETS_INITIAL));
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
