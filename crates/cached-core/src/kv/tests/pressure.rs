//! More data than memory: which items stay, and which are evicted.

use super::{secs, store, store_with, value_of};
use crate::kv::*;
use crate::policy::{Candidate, Policy, QueueId, Verdict};

fn fill(kv: &Kv, tag: u8, items: u32, bytes: usize) {
    for n in 0..items {
        kv.set(&[&[tag][..], &n.to_le_bytes()].concat(), &vec![tag; bytes]).unwrap();
    }
}

fn count(kv: &Kv, tag: u8, items: u32) -> u32 {
    (0..items)
        .filter(|n| {
            kv.peek(
                &[&[tag][..], &n.to_le_bytes()].concat(),
                kv.hash(&[&[tag][..], &n.to_le_bytes()].concat()),
                |_| (),
            )
            .is_ok()
        })
        .count() as u32
}

#[test]
fn memory_follows_the_sizes_in_use() {
    let fresh = {
        let (kv, _) = store(16 << 20, 1 << 20);
        fill(&kv, 3, 100_000, 300);
        count(&kv, 3, 100_000)
    };
    let (kv, _) = store(16 << 20, 1 << 20);
    fill(&kv, 1, 300_000, 100);
    fill(&kv, 2, 20_000, 2_048);
    fill(&kv, 3, 100_000, 300);
    let shifted = count(&kv, 3, 100_000);
    println!("300-byte items held: {fresh} fresh, {shifted} after two shifts");
    assert!(shifted * 100 >= fresh * 97);
    kv.validate();
}

#[test]
fn more_than_93_percent_of_the_arena_holds_items() {
    let (kv, _) = store(64 << 20, 1 << 20);
    fill(&kv, 1, 600_000, 100);
    let stats = kv.stats();
    println!("{} of {} bytes are items", stats.item_bytes, stats.arena_bytes);
    assert!(stats.item_bytes * 100 > stats.arena_bytes as u64 * 93);
}

#[test]
fn used_items_stay() {
    let (kv, _) = store(4 << 20, 1 << 20);
    let hot: Vec<_> = (0..2_000u32).map(|n| [b"hot".as_slice(), &n.to_le_bytes()].concat()).collect();
    for key in &hot {
        kv.set(key, &[9; 100]).unwrap();
    }
    for n in 0..100_000u32 {
        kv.set(&n.to_le_bytes(), &[1; 100]).unwrap();
        assert_eq!(
            kv.read(&hot[n as usize % hot.len()], kv.hash(&hot[n as usize % hot.len()]), |_| ()),
            Ok(()),
            "at {n}"
        );
    }
    assert!(kv.stats().evictions > 60_000);
    kv.validate();
}

#[test]
fn a_scan_does_not_displace_items_in_use() {
    let (kv, _) = store(4 << 20, 1 << 20);
    let asked = |kv: &Kv| {
        let before = kv.stats().items_stored;
        for n in 0..15_000u32 {
            let key = [&[1][..], &n.to_le_bytes()].concat();
            if kv.get(&key).is_none() {
                kv.set(&key, &[1; 100]).unwrap();
            }
        }
        kv.stats().items_stored - before
    };
    // These items are used often enough to stay, and not at all while twice the memory is stored.
    for _ in 0..6 {
        asked(&kv);
    }
    assert_eq!(asked(&kv), 0, "it fits");
    fill(&kv, 2, 60_000, 100);
    let lost = asked(&kv);
    println!("{lost} of 15000 used items were lost to a scan");
    assert!(lost < 5_000);
    kv.validate();
}

/// Counts the misses when every item is read once more after `distance` others have been stored.
fn misses_of_second_uses(policy: &str, distance: u32) -> u32 {
    let policy = policy::by_name(policy).unwrap();
    let (kv, _) = store_with(KvConfig { arena_bytes: 4 << 20, policy, ..KvConfig::default() });
    let mut misses = 0;
    for n in 0..200_000u32 {
        kv.set(&n.to_le_bytes(), &[1; 100]).unwrap();
        if let Some(first) = n.checked_sub(distance).map(u32::to_le_bytes)
            && kv.get(&first).is_none()
        {
            kv.set(&first, &[1; 100]).unwrap();
            misses += 1;
        }
    }
    kv.validate();
    misses
}

#[test]
fn the_balance_keeps_what_lru_would_keep() {
    // Between two uses, items that fill most of the memory are stored, far more than a fifth.
    let [balanced, fixed, lru] = ["balanced", "s3fifo", "lru"].map(|name| misses_of_second_uses(name, 9_000));
    println!("misses of 200000: balanced {balanced}, fixed {fixed}, lru {lru}");
    assert!(fixed > 150_000 && lru < 20_000);
    // The policy has to adapt first.
    assert!(balanced < 60_000);
}

#[test]
fn ghosts_are_part_of_the_memory() {
    for (name, share) in [("lru", 0), ("balanced", 64)] {
        let policy = policy::by_name(name).unwrap();
        let (kv, _) = store_with(KvConfig { arena_bytes: 32 << 20, policy, ..KvConfig::default() });
        let limits = kv.limits();
        assert!(limits.arena_bytes + limits.policy_bytes <= 32 << 20);
        assert_eq!(limits.policy_bytes, (32usize << 20).checked_div(share).unwrap_or(0));
        assert_eq!(kv.stats().arena_bytes, limits.arena_bytes);
    }
    // Without evictions there are no ghosts.
    let (kv, _) = store_with(KvConfig { evict: false, ..KvConfig::default() });
    assert_eq!(kv.limits().policy_bytes, 0);
}

#[test]
fn every_policy_accepts_new_items_and_bounds_its_work() {
    for name in policy::NAMES {
        let policy = policy::by_name(name).unwrap();
        let (kv, _) = store_with(KvConfig { arena_bytes: 4 << 20, policy, ..KvConfig::default() });
        let before = kv.stats().regions_reclaimed;
        for n in 0..100_000u32 {
            kv.set(&n.to_le_bytes(), &[1; 100]).unwrap();
            kv.get(&(n - n % 7).to_le_bytes());
            kv.get(&(n / 2).to_le_bytes());
        }
        let stored = 100_000 * 130;
        let walked = (kv.stats().regions_reclaimed - before) * (64 << 10);
        println!("{name}: {walked} bytes were walked for {stored} stored");
        assert!(walked < stored * 4, "{name}: a byte freed costs three copied at most");
        kv.validate();
    }
}

#[test]
fn expired_items_are_evicted_before_live_ones() {
    let (kv, clock) = store(8 << 20, 1 << 20);
    fill(&kv, 1, 20_000, 100);
    for n in 0..25_000u32 {
        kv.set_for(&[b"short".as_slice(), &n.to_le_bytes()].concat(), &[2; 100], secs(2)).unwrap();
    }
    assert_eq!(kv.stats().evictions, 0, "everything fits so far");
    clock.advance(10);
    // Stores as much as has expired.
    fill(&kv, 3, 22_000, 100);
    assert_eq!(kv.stats().evictions, 0, "there was enough garbage");
    assert_eq!(count(&kv, 1, 20_000), 20_000);
    kv.validate();
}

/// A policy that keeps every item as long as it can.
struct KeepEverything;

impl Policy for KeepEverything {
    fn name(&self) -> &'static str {
        "keep everything"
    }
    fn hit(&self, bits: u8) -> u8 {
        bits
    }
    fn victim(&self, _: [u64; policy::QUEUES_MAX]) -> QueueId {
        QueueId(0)
    }
    fn decide(&self, _: &Candidate) -> Verdict {
        Verdict::Keep { queue: QueueId(0), bits: 0 }
    }
}

#[test]
fn a_store_takes_new_items_whatever_the_policy_would_keep() {
    let config = KvConfig { arena_bytes: 4 << 20, policy: Box::new(KeepEverything), ..KvConfig::default() };
    let (kv, _) = store_with(config);
    let items = 100_000;
    fill(&kv, 1, items, 50);
    let (walked, fresh) = (kv.stats().regions_reclaimed, u64::from(items) * 80 / (64 << 10));
    // The reclaimer starts with a credit of 32 regions.
    assert!(walked < 4 * fresh + 32, "{walked} regions were walked for {fresh}");
    assert!(count(&kv, 1, items) > 30_000);
    kv.validate();
}

#[test]
fn a_cache_in_which_every_item_is_hit_accepts_new_ones() {
    let (kv, _) = store(4 << 20, 1 << 20);
    fill(&kv, 1, 60_000, 50);
    for n in 0..60_000u32 {
        kv.get(&[&[1][..], &n.to_le_bytes()].concat());
    }
    let before = kv.stats().regions_reclaimed;
    kv.set(b"new", &[0; 100]).unwrap();
    let walked = kv.stats().regions_reclaimed - before;
    assert!(walked <= 8, "{walked} regions were walked for one item");
    // These items need less memory than the smallest share of new items.
    fill(&kv, 2, 4_000, 50);
    assert!(count(&kv, 2, 4_000) > 3_600);
    kv.validate();
}

/// A region that is mostly in use is kept in place, and loses only its unused items.
#[test]
fn large_values_in_use_stay_among_unused_ones() {
    let (kv, clock) = store(16 << 20, 1 << 20);
    // A region holds more than nine items, of which at most two are unused, so most of every region
    // is in use.
    let value = value_of(1, 7_000);
    let set = |n: u32| kv.set(&n.to_le_bytes(), &value).unwrap();
    (0..2_500).for_each(set);
    assert!(kv.stats().evictions > 50);
    clock.advance(2);
    let is_there = |n: &u32| kv.read(&n.to_le_bytes(), kv.hash(&n.to_le_bytes()), |_| ()).is_ok();
    let used: Vec<_> = (0..2_500).filter(|n| n % 9 != 0 && is_there(n)).collect();
    assert!(used.len() > 1_500);
    let (walked, evicted) = (kv.stats().regions_reclaimed, kv.stats().evictions);
    (2_500..2_512).for_each(set);
    let (walked, evicted) = (kv.stats().regions_reclaimed - walked, kv.stats().evictions - evicted);
    println!("{walked} regions were walked, {evicted} values evicted");
    assert!(evicted > 0);
    let lost = used.iter().filter(|n| !is_there(n)).count();
    assert_eq!(lost, 0, "of {} that were used, {lost} were evicted", used.len());
    kv.validate();
}

#[test]
fn large_and_small_values_displace_each_other() {
    let (kv, _) = store(16 << 20, 4 << 20);
    for round in 0..3u8 {
        for n in 0..20u32 {
            let value = value_of(u64::from(n), 1 << 20);
            kv.set(&n.to_le_bytes(), &value).unwrap();
            assert!(kv.get(&n.to_le_bytes()).unwrap() == value);
        }
        assert!((17..20u32).all(|n| kv.get(&n.to_le_bytes()).is_some()), "the newest stay");
        kv.validate();
        fill(&kv, 10 + round, 150_000, 100);
        assert!(count(&kv, 10 + round, 150_000) > 90_000);
        kv.validate();
    }
}

#[test]
fn a_pinned_value_survives_replacement_eviction_and_flush() {
    let (kv, _) = store(4 << 20, 1 << 20);
    let value = value_of(1, 300_000);
    kv.set(b"pinned", &value).unwrap();
    let pin = kv.peek(b"pinned", kv.hash(b"pinned"), |item| item.pin()).unwrap();
    kv.set(b"pinned", b"other").unwrap();
    fill(&kv, 1, 200_000, 100);
    kv.flush_all();
    while kv.maintain() && kv.stats().items > 0 {}
    fill(&kv, 2, 200_000, 100);
    assert!(pin.to_vec() == value);
    drop(pin);
    fill(&kv, 3, 100_000, 100);
    kv.validate();
}

#[test]
fn a_store_full_of_pinned_values_refuses_and_recovers() {
    let (kv, _) = store(2 << 20, 512 << 10);
    let mut pins = Vec::new();
    for n in 0..200u32 {
        if kv.set(&n.to_le_bytes(), &value_of(u64::from(n), 100_000)).is_err() {
            break;
        }
        pins.push(kv.peek(&n.to_le_bytes(), kv.hash(&n.to_le_bytes()), |item| item.pin()).unwrap());
    }
    assert!(pins.len() >= 15 && pins.len() < 40, "{} values of 100 kB were pinned in 2 MiB", pins.len());
    assert!(pins.iter().enumerate().all(|(n, pin)| pin.to_vec() == value_of(n as u64, 100_000)));
    pins.clear();
    kv.set(b"again", &value_of(0, 100_000)).unwrap();
    kv.validate();
}

#[test]
fn overwriting_with_the_same_size_makes_no_garbage() {
    let (kv, _) = store(8 << 20, 1 << 20);
    for round in 0..20u8 {
        for n in 0..40_000u32 {
            kv.set(&n.to_le_bytes(), &[round; 100]).unwrap();
        }
    }
    assert_eq!(kv.stats().evictions, 0);
    assert_eq!(kv.stats().items, 40_000);
    assert_eq!(kv.stats().regions_reclaimed, 0);
    kv.validate();
}

#[test]
fn reservations_are_limited() {
    let (kv, _) =
        store_with(KvConfig { arena_bytes: 16 << 20, item_bytes_max: 1 << 20, ..KvConfig::default() });
    let mut under_way = Vec::new();
    let refused = (0..1000u32).find(|n| {
        let key = n.to_le_bytes();
        let Ok(mut reservation) = kv.reserve(&key, kv.hash(&key), 900_000, &StoreOptions::default()) else {
            return true;
        };
        let has_room = reservation.spare().is_some();
        under_way.push(reservation);
        !has_room
    });
    let reserved = kv.stats().reserved_bytes;
    println!("{} values under way hold {reserved} bytes", under_way.len());
    assert!(refused.is_some() && reserved <= kv.limits().reserved_bytes_max);
    kv.set(b"small", b"still goes").unwrap();
    under_way.clear();
    kv.validate();
}
