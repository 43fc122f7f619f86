use super::*;

#[test]
fn every_bucket_is_handed_out_once_and_comes_back() {
    let pool = Pool::new(1 << 20, false).unwrap();
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
fn the_bucket_used_last_is_used_next_and_headers_name_the_owner() {
    let pool = Pool::new(1 << 20, false).unwrap();
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
