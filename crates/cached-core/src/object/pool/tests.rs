use super::*;
use crate::arena::MemoryRange;

#[test]
fn every_bucket_is_handed_out_once_and_comes_back() {
    let pool = Pool::new(PoolMemory::fixed(1 << 20)).unwrap();
    assert_eq!(pool.count(), 16 * 15, "the header takes the first of 16 in each region");
    let mut reserved = pool.reserve_up_to(u32::MAX);
    assert_eq!((reserved.count(), pool.free()), (240, 0));
    let mut taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(1))).collect();
    assert!(taken.is_sorted(), "in order of address");
    taken.dedup();
    assert_eq!(taken.len(), 240);
    let segment = pool.pin(taken[7], 10..20).unwrap();
    taken.iter().for_each(|bucket| pool.release(*bucket));
    assert_eq!(pool.free(), 239, "one is pinned");
    assert_eq!(segment.as_slice(), [1; 10]);
    drop(segment);
    assert_eq!(pool.free(), 240);
    assert_eq!(pool.free_list().len(), 240);
}

#[test]
fn a_reservation_takes_up_released_buckets_and_gives_back_all_at_once() {
    let pool = Pool::new(PoolMemory::fixed(1 << 20)).unwrap();
    let mut reserved = pool.reserve_up_to(6);
    let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(1))).take(5).collect();
    let segment = pool.pin(taken[1], 0..10).unwrap();
    taken[..4].iter().for_each(|bucket| reserved.release(*bucket));
    assert_eq!((reserved.count(), pool.free()), (4, 234), "one is pinned");
    assert_eq!(reserved.take(|_| ()), Some(taken[3]));
    drop(reserved);
    assert_eq!(pool.free(), 237);
    pool.reserve_up_to(0).release(taken[3]);
    drop(segment);
    pool.release(taken[4]);
    let mut free = pool.free_list();
    free.sort_unstable();
    free.dedup();
    assert_eq!((free.len(), pool.free()), (240, 240));
    let mut again = pool.reserve_up_to(u32::MAX);
    assert_eq!(std::iter::from_fn(|| again.take(|_| ())).count(), 240);
}

#[test]
fn the_bucket_used_last_is_used_next_and_headers_name_the_owner() {
    let pool = Pool::new(PoolMemory::fixed(1 << 20)).unwrap();
    let mut reserved = pool.reserve_up_to(16);
    let (first, second) = (reserved.take(|_| ()).unwrap(), reserved.take(|_| ()).unwrap());
    drop(reserved);
    pool.release(first);
    assert_eq!(pool.reserve_up_to(1).take(|_| ()), Some(first));
    pool.release(second);
    pool.release(first);
    for region in &pool.core.regions[..2] {
        assert_eq!(pool.core.arena.read_header(*region).unwrap().owner, Owner::Objects as u8);
    }
    assert!(pool.core.arena.read_header(pool.core.regions[2]).is_err(), "never used");
}

#[test]
fn buckets_go_and_come_back_within_the_range_and_are_zero_then() {
    let range = MemoryRange { bytes_min: 1 << 20, bytes_max: 4 << 20 };
    let memory = PoolMemory { bytes: 2 << 20, range: Some(range), huge_pages: false };
    let pool = Pool::new(memory).unwrap();
    // In 16 regions, each with a header whose memory stays.
    assert_eq!((pool.count_min(), pool.count(), pool.count_max()), (240, 496, 1008));
    assert_eq!(pool.free(), 496);
    assert_eq!(pool.give_fresh(1000), 256, "down to the fewest");
    assert_eq!((pool.count(), pool.take_back(u32::MAX)), (240, 768));
    let mut reserved = pool.reserve_up_to(u32::MAX);
    let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(7))).collect();
    assert_eq!((taken.len(), pool.give_fresh(1), pool.free()), (1008, 0, 0));
    taken[..800].iter().for_each(|bucket| pool.release(*bucket));
    assert_eq!(pool.give_up(pool.reserve_up_to(800)).unwrap(), 768, "what is left are the fewest");
    assert_eq!((pool.count(), pool.free(), pool.free_list().len()), (240, 32, 32));
    let absent = pool.absent_list().unwrap();
    assert_eq!(absent.len(), 768);
    assert!(absent.iter().all(|bucket| pool.bytes(*bucket) == [0; BUCKET]));
    assert_eq!((pool.take_back(700), pool.count()), (700, 940));
    let mut reserved = pool.reserve_up_to(u32::MAX);
    assert_eq!(reserved.count(), 732);
    while let Some(bucket) = reserved.take(|_| ()) {
        assert!(!taken[800..].contains(&bucket), "bucket {bucket} is in use");
        pool.release(bucket);
    }
    taken[800..].iter().for_each(|bucket| pool.release(*bucket));
    assert_eq!((pool.free(), pool.absent_list().unwrap().len()), (940, 68));
}
