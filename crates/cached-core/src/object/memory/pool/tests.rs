use blocker::Segments;

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
#[cfg(all(target_os = "linux", not(miri)))]
fn fresh_buckets_that_are_taken_together_have_their_memory() {
    // A pool that lends buckets has small pages, whatever the host prefers.
    let pool = Pool::new(PoolMemory { lends: true, ..PoolMemory::fixed(1 << 20) }).unwrap();
    let is_there = |bucket: u32| {
        let mut page = 0_u8;
        // SAFETY: the bucket is a page of the pool, and `page` has room for the answer about one page.
        let code = unsafe { libc::mincore(pool.at(bucket).cast(), BUCKET, &raw mut page) };
        assert_eq!(code, 0);
        page & 1 == 1
    };
    let one = pool.reserve_up_to(1).pop().unwrap();
    let mut more = pool.reserve_up_to(20);
    let taken: Vec<u32> = std::iter::from_fn(|| more.pop()).collect();
    assert_eq!(taken.len(), 20, "of two regions");
    assert!(!is_there(one) && taken.into_iter().all(is_there) && !is_there(30));
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
    for region in [0, 1].map(RegionId) {
        assert_eq!(pool.core.arena.read_header(region).unwrap().owner, Owner::Objects as u8);
    }
    assert!(pool.core.arena.read_header(RegionId(2)).is_none(), "never used");
}

#[test]
fn buckets_go_and_come_back_within_the_range_and_are_zero_then() {
    let range = MemoryRange { bytes_min: 1 << 20, bytes_max: 4 << 20 };
    let memory = PoolMemory { bytes: 2 << 20, range: Some(range), huge_pages: false, lends: false };
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

#[test]
fn lent_memory_is_never_written_again_and_its_neighbours_keep_theirs() {
    let memory = PoolMemory { bytes: 1 << 20, range: None, huge_pages: false, lends: true };
    let pool = Pool::new(memory).unwrap();
    assert!(pool.lends());
    let mut reserved = pool.reserve_up_to(u32::MAX);
    let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(1))).collect();
    // Neighbours, one alone, the last of a region, and the first of the next one.
    let lent = [taken[3], taken[4], taken[5], taken[9], taken[14], taken[15]];
    for bucket in lent {
        let segment = pool.pin(bucket, 10..20).unwrap();
        assert!(!pool.has_lent(segment.as_slice()) && pool.lend(segment.as_slice()));
        assert!(pool.has_lent(segment.as_slice()) && pool.has_lent(&pool.bytes(bucket)[100..]));
    }
    assert!(taken.iter().all(|bucket| pool.is_lent(*bucket) == lent.contains(bucket)));
    // The mark stays when the bucket is free.
    taken[..20].iter().for_each(|bucket| pool.release(*bucket));
    assert!(lent.iter().all(|bucket| pool.is_lent(*bucket)));
    let mut again = pool.reserve_up_to(4);
    let kept: Vec<u32> =
        std::iter::from_fn(|| again.take(|bytes| assert_eq!(bytes[..20], [1; 20]))).collect();
    assert_eq!(kept.len(), 4, "those that were not lent are used as they are");
    let mut again = pool.reserve_up_to(u32::MAX);
    for _ in 0..16 {
        let mut byte = 9;
        let bucket = again.take(|bytes| byte = bytes[0]).unwrap();
        assert_eq!(byte, u8::from(!lent.contains(&bucket)), "bucket {bucket}");
        assert!(!pool.is_lent(bucket));
        pool.release(bucket);
    }
    assert_eq!((again.count(), pool.free()), (0, 16));
    assert!(taken[20..].iter().all(|bucket| pool.bytes(*bucket) == [1; BUCKET]));
}

#[test]
fn only_bytes_of_the_pool_are_lent_and_only_where_that_is_wanted() {
    let memory = PoolMemory { bytes: 1 << 20, range: None, huge_pages: false, lends: true };
    let [pool, other] = [(); 2].map(|()| Pool::new(memory).unwrap());
    let mut reserved = pool.reserve_up_to(3);
    let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(1))).collect();
    let bytes = pool.bytes(taken[0]);
    // SAFETY: the buckets follow each other, and none of them is written.
    let both = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), 2 * BUCKET) };
    assert!(!pool.lend(&[]) && !pool.lend(&bytes[..0]) && !pool.lend(&[1; 10]));
    assert!(!other.lend(bytes) && !other.has_lent(bytes));
    assert!(taken.iter().all(|bucket| !pool.is_lent(*bucket)));
    assert!(pool.lend(&both[..BUCKET]) && !pool.has_lent(both) && pool.lend(both) && pool.has_lent(both));
    assert!(pool.is_lent(taken[0]) && pool.is_lent(taken[1]) && !pool.is_lent(taken[2]));
    let pool = Pool::new(PoolMemory::fixed(1 << 20)).unwrap();
    let bucket = pool.reserve_up_to(1).take(|_| ()).unwrap();
    assert!(!pool.lends() && !pool.lend(pool.bytes(bucket)) && !pool.is_lent(bucket));
}

#[test]
fn adjacent_buckets_are_one_segment_where_buckets_are_lent() {
    for lends in [true, false] {
        let pool = Pool::new(PoolMemory { bytes: 1 << 20, range: None, huge_pages: false, lends }).unwrap();
        let mut reserved = pool.reserve_up_to(u32::MAX);
        let taken: Vec<u32> = (0..20).map_while(|byte| reserved.take(|bytes| bytes.fill(byte))).collect();
        let read = |parts: &[(usize, std::ops::Range<usize>)]| {
            let (mut run, mut data) = (Run::none(&pool), Segments::new());
            for (at, range) in parts {
                assert!(run.add(taken[*at], range.clone(), &mut data));
            }
            run.end(&mut data);
            data
        };
        let data = read(&[(0, 4000..BUCKET), (1, 0..BUCKET), (2, 0..10), (3, 0..BUCKET), (5, 1..2)]);
        let lens: Vec<usize> = data.iter().map(Segment::len_bytes).collect();
        let joined = [96 + BUCKET + 10, BUCKET, 1];
        assert_eq!(lens, if lends { &joined[..] } else { &[96, BUCKET, 10, BUCKET, 1] });
        let expected = [vec![0; 96], vec![1; BUCKET], vec![2; 10], vec![3; BUCKET], vec![5; 1]].concat();
        assert!(data == *expected.as_slice());
        let part = data.slice(90..100);
        assert_eq!(taken[..6].iter().map(|at| pool.meta(*at).refs()).collect::<Vec<_>>(), {
            let more = if lends { 3 } else { 2 };
            [3, 3, more, 2, 1, 2]
        });
        drop(data);
        assert_eq!(part.to_vec(), [[0; 6].as_slice(), &[1; 4]].concat());
        drop(part);
        let across = read(&[(14, 0..BUCKET), (15, 0..BUCKET)]);
        assert_eq!(across.iter().count(), 2, "a region's header is between them");
        drop((across, read(&[(0, 0..BUCKET)])));
        // A run that does not become a segment returns its references.
        let mut run = Run::none(&pool);
        assert!(
            run.add(taken[0], 0..BUCKET, &mut Segments::new())
                && run.add(taken[1], 0..1, &mut Segments::new())
        );
        drop(run);
        assert!(taken.iter().all(|at| pool.meta(*at).refs() == 1));
    }
}

#[test]
fn a_lent_bucket_that_goes_comes_back_with_other_memory() {
    let range = MemoryRange { bytes_min: 1 << 20, bytes_max: 2 << 20 };
    let memory = PoolMemory { bytes: 2 << 20, range: Some(range), huge_pages: false, lends: true };
    let pool = Pool::new(memory).unwrap();
    let mut reserved = pool.reserve_up_to(u32::MAX);
    let taken: Vec<u32> = std::iter::from_fn(|| reserved.take(|bytes| bytes.fill(1))).collect();
    assert!(taken.iter().all(|bucket| pool.lend(pool.bytes(*bucket))));
    taken.iter().for_each(|bucket| pool.release(*bucket));
    let given = pool.give_up(pool.reserve_up_to(100)).unwrap();
    assert_eq!(given, 100);
    assert!(pool.absent_list().unwrap().iter().all(|bucket| !pool.is_lent(*bucket)));
}
