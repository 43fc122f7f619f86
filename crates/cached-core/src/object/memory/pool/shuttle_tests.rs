use std::collections::HashSet;

use super::*;
use crate::arena::MemoryRange;

const BUCKETS: u32 = 15;

fn pool() -> Arc<Pool> {
    let pool = Pool::new(PoolMemory::fixed(REGION_BYTES_MIN as u64)).unwrap();
    assert_eq!(pool.count(), BUCKETS);
    Arc::new(pool)
}

fn all_free(pool: &Pool) {
    let free: HashSet<u32> = pool.free_list().into_iter().collect();
    assert_eq!((free.len() as u32, pool.free_list().len() as u32, pool.free()), (BUCKETS, BUCKETS, BUCKETS));
}

/// However reservations, uses and returns interleave, no bucket has two holders, and in the end all are
/// free.
#[test]
fn no_bucket_has_two_holders() {
    shuttle::check_random(
        || {
            let pool = pool();
            let held = Arc::new(std::sync::Mutex::new(HashSet::new()));
            let threads: Vec<_> = (1..=3)
                .map(|wanted| {
                    let (pool, held) = (Arc::clone(&pool), Arc::clone(&held));
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            let mut reserved = pool.reserve_up_to(4 * wanted);
                            // One bucket is returned unused.
                            let taken: Vec<u32> = (1..reserved.count())
                                .filter_map(|_| reserved.take(|bytes| bytes[0] = wanted as u8))
                                .collect();
                            for bucket in &taken {
                                assert!(held.lock().unwrap().insert(*bucket), "{bucket} has two holders");
                            }
                            drop(reserved);
                            shuttle::thread::yield_now();
                            for bucket in &taken {
                                assert_eq!(pool.bytes(*bucket)[0], wanted as u8);
                                assert!(held.lock().unwrap().remove(bucket));
                                pool.release(*bucket);
                            }
                        }
                    })
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            all_free(&pool);
        },
        1_000,
    );
}

/// The holder of a pin, or of a clone of one, sees the same bytes until it drops it, whatever becomes of
/// the slot.
#[test]
fn a_pinned_bucket_does_not_change() {
    shuttle::check_random(
        || {
            let pool = pool();
            let bucket = pool.reserve_up_to(1).take(|bytes| bytes.fill(1)).unwrap();
            let pins = [pool.pin(bucket, 0..10).unwrap(), pool.pin(bucket, 5..15).unwrap()];
            let mut threads: Vec<_> = pins
                .into_iter()
                .map(|pin| {
                    shuttle::thread::spawn(move || {
                        let part = pin.slice(2..6);
                        assert_eq!(pin.as_slice(), [1; 10]);
                        drop(pin);
                        shuttle::thread::yield_now();
                        assert_eq!(part.as_slice(), [1; 4]);
                    })
                })
                .collect();
            let own = Arc::clone(&pool);
            threads.push(shuttle::thread::spawn(move || own.release(bucket)));
            let own = Arc::clone(&pool);
            // Another thread takes whatever is free, and writes to it.
            threads.push(shuttle::thread::spawn(move || {
                let mut reserved = own.reserve_up_to(BUCKETS);
                let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(2))).collect();
                taken.into_iter().for_each(|bucket| own.release(bucket));
            }));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            all_free(&pool);
        },
        1_000,
    );
}

/// While a thread gives buckets up and takes them back, no bucket that is in use loses its bytes, and none is
/// lost.
#[test]
fn buckets_that_go_and_come_back_have_no_holder() {
    shuttle::check_random(
        || {
            let bytes = REGION_BYTES_MIN as u64;
            let range = MemoryRange { bytes_min: bytes / 4, bytes_max: bytes };
            let pool = Arc::new(
                Pool::new(PoolMemory { bytes, range: Some(range), huge_pages: false, lends: false }).unwrap(),
            );
            let mut threads: Vec<_> = (1..=2)
                .map(|own| {
                    let pool = Arc::clone(&pool);
                    shuttle::thread::spawn(move || {
                        for _ in 0..2 {
                            let mut reserved = pool.reserve_up_to(5);
                            let taken: Vec<u32> =
                                std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(own))).collect();
                            shuttle::thread::yield_now();
                            for bucket in taken {
                                assert_eq!(pool.bytes(bucket), [own; BUCKET]);
                                pool.release(bucket);
                            }
                        }
                    })
                })
                .collect();
            let moving = Arc::clone(&pool);
            threads.push(shuttle::thread::spawn(move || {
                for _ in 0..2 {
                    let fresh = moving.give_fresh(2);
                    let given = moving.give_up(moving.reserve_up_to(6)).unwrap();
                    assert_eq!(moving.take_back(fresh + given), fresh + given);
                }
            }));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let absent = pool.absent_list().unwrap().len() as u32;
            assert_eq!((absent, pool.free_list().len() as u32, pool.free()), (0, BUCKETS, BUCKETS));
        },
        1_000,
    );
}
