//! Reads of several keys in one call.

use super::{secs, store, value_of};
use crate::kv::{Kv, KvConfig, Miss};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns a key of any length, which differs from others at its start, in its middle or at its end.
fn key_of(n: usize) -> Vec<u8> {
    let mut key = vec![b'k'; 1 + n % 250];
    let at = n % key.len();
    key[at] = (n / 250) as u8;
    key
}

#[test]
fn a_batch_reads_the_same_as_single_reads() {
    let seed = 11;
    println!("seed {seed}");
    let mut random = SmallRng::seed_from_u64(seed);
    let (kv, clock) = store(8 << 20, 1 << 20);
    let keys: Vec<_> = (0..4000).map(key_of).collect();
    for round in 0..200 {
        // The reads run while the table grows, and while items are removed, expire and are evicted.
        for _ in 0..200 {
            let key = keys.choose(&mut random).expect("there are keys");
            match random.random_range(0..8) {
                0 => drop(kv.remove(key)),
                1 => kv.set_for(key, &value_of(round, 10), secs(3)).unwrap(),
                _ => kv.set(key, &value_of(round, random.random_range(0..3000))).unwrap(),
            }
        }
        clock.advance(1);
        let count = random.random_range(0..50);
        let batch: Vec<&[u8]> =
            (0..count).map(|_| keys.choose(&mut random).expect("there are keys").as_slice()).collect();
        let mut seen = Vec::new();
        kv.read_many(
            &batch,
            &mut seen,
            |seen, key, item| {
                assert_eq!(item.key(), key);
                let mut value = Vec::new();
                item.copy_value_to(&mut value);
                seen.push((key.to_vec(), Some(value)));
            },
            |seen, key, _| seen.push((key.to_vec(), None)),
        );
        let one_by_one: Vec<_> = batch.iter().map(|key| (key.to_vec(), kv.get(key))).collect();
        assert!(seen == one_by_one, "round {round}");
    }
    kv.validate();
}

#[test]
fn a_batch_counts_as_use_and_reports_the_reasons_of_misses() {
    let (kv, clock) = store(1 << 20, 1 << 10);
    kv.set(b"there", b"1").unwrap();
    kv.set_for(b"expired", b"2", secs(5)).unwrap();
    clock.advance(6);
    let mut misses = Vec::new();
    let keys: [&[u8]; 3] = [b"there", b"expired", b"never"];
    kv.read_many(
        &keys,
        &mut misses,
        |_, _, item| assert!(item.fetched()),
        |misses, key, why| {
            misses.push((key.to_vec(), why));
        },
    );
    assert_eq!(misses, [(b"expired".to_vec(), Miss::Expired), (b"never".to_vec(), Miss::Absent)]);
    kv.peek(b"there", kv.hash(b"there"), |item| assert_eq!(item.last_access(), kv.now_secs())).unwrap();
}

/// An item that stays is found, whatever changes in the table between prefetch and read.
#[test]
fn batches_find_items_while_the_table_grows() {
    let kv = Kv::new(KvConfig { arena_bytes: 64 << 20, ..KvConfig::default() }).unwrap();
    let stay: Vec<_> = (0..64u32).map(|n| format!("stays {n}")).collect();
    for key in &stay {
        kv.set(key.as_bytes(), key.as_bytes()).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..200_000u32 {
                kv.set(&n.to_le_bytes(), b"").unwrap();
            }
            done.store(true, Ordering::Release);
        });
        let keys: Vec<&[u8]> = stay.iter().map(|key| key.as_bytes()).collect();
        while !done.load(Ordering::Acquire) {
            let mut hits = 0;
            kv.read_many(
                &keys,
                &mut hits,
                |hits, key, item| {
                    assert_eq!(item.inline_value(), Some(key));
                    *hits += 1;
                },
                |_, key, why| panic!("{} is missed: {why:?}", key.escape_ascii()),
            );
            assert_eq!(hits, keys.len());
        }
    });
}
