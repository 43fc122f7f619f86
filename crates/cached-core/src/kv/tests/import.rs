//! Items that come from another store.

use super::{secs, store_with, value_of};
use crate::clock::{Clock, Expiry, TickClock};
use crate::kv::*;
use crate::policy;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Returns the item of a key, with all attributes.
fn export(kv: &Kv, key: &[u8]) -> Option<(Vec<u8>, ImportOptions)> {
    let item = kv.peek(key, kv.hash(key), |item| {
        let options = ImportOptions {
            client_flags: item.client_flags(),
            cas: item.cas(),
            expiry: item.expiry(),
            idle_secs: item.now() - item.last_access(),
            fetched: item.fetched(),
            stale: item.stale(),
            token_sent: item.token_sent(),
            key_binary: item.key_binary(),
        };
        (item.to_vec(), options)
    });
    item.ok()
}

#[test]
fn an_imported_item_has_all_attributes() {
    let mut rng = SmallRng::seed_from_u64(7);
    for evict in [true, false] {
        let config = || KvConfig { item_bytes_max: 1 << 20, evict, ..KvConfig::default() };
        let ((kv, clock), (other, other_clock)) = (store_with(config()), store_with(config()));
        clock.advance(1000);
        other_clock.advance(1000);
        for n in 0..if cfg!(miri) { 20 } else { 400u32 } {
            let key = n.to_le_bytes();
            let bytes = if n % 50 == 0 { 300_000 } else { rng.random_range(0..5000) };
            let options = ImportOptions {
                client_flags: if rng.random() { rng.random() } else { 0 },
                cas: rng.random(),
                expiry: if rng.random() { Expiry::after(kv.now_secs(), 100) } else { Expiry::NEVER },
                idle_secs: rng.random_range(0..900),
                fetched: rng.random(),
                stale: rng.random(),
                token_sent: rng.random(),
                key_binary: rng.random(),
            };
            let (value, hash) = (value_of(n.into(), bytes), kv.hash(&key));
            if rng.random() {
                kv.set(&key, b"earlier").unwrap();
            }
            assert_eq!(kv.import(&key, hash, &value, &options), Ok(Imported::Stored));
            let exported = export(&kv, &key).unwrap();
            assert!(exported == (value, options), "{:?} instead of {options:?}", exported.1);
            // The same again in another store.
            other.import(&key, other.hash(&key), &exported.0, &exported.1).unwrap();
            assert!(export(&other, &key) == Some(exported));
        }
        kv.validate();
        clock.advance(100);
        assert_eq!(other.get(&0u32.to_le_bytes()).map(|value| value.len()), Some(300_000));
    }
}

#[test]
fn an_item_that_cannot_be_stored_removes_the_earlier_one() {
    let (kv, _) = store_with(KvConfig { arena_bytes: 2 << 20, evict: false, ..KvConfig::default() });
    let hash = kv.hash(b"k");
    let never = ImportOptions::default();
    for (value, options, outcome) in [
        (vec![], ImportOptions { expiry: Expiry::at(kv.now_secs()), ..never }, Ok(Imported::Expired)),
        (vec![0; 2 << 20], never, Err(StoreError::TooLarge)),
    ] {
        kv.set(b"k", b"earlier").unwrap();
        assert_eq!(kv.import(b"k", hash, &value, &options), outcome);
        assert_eq!(kv.get(b"k"), None);
    }
    kv.set(b"k", b"earlier").unwrap();
    let mut n = 0u64;
    let full = loop {
        n += 1;
        if let Err(error) = kv.import(&n.to_le_bytes(), kv.hash(&n.to_le_bytes()), &[7; 3000], &never) {
            break error;
        }
    };
    assert_eq!((full, kv.get(b"k").is_some()), (StoreError::OutOfMemory, true));
    assert_eq!(kv.import(b"k", hash, &[7; 3000], &never), Err(StoreError::OutOfMemory));
    assert_eq!(kv.get(b"k"), None);
    kv.validate();
}

#[test]
fn imports_into_a_full_store_evict() {
    let (kv, clock) = store_with(KvConfig { arena_bytes: 2 << 20, ..KvConfig::default() });
    for n in 0..if cfg!(miri) { 100 } else { 20_000u32 } {
        let (key, options) = (n.to_le_bytes(), ImportOptions { stale: true, ..ImportOptions::default() });
        assert_eq!(kv.import(&key, kv.hash(&key), &[n as u8; 500], &options), Ok(Imported::Stored));
        assert_eq!(export(&kv, &key), Some((vec![n as u8; 500], options)), "at {}", clock.now_secs());
    }
    assert!(cfg!(miri) || kv.stats().evictions > 10_000);
    kv.validate();
}

#[test]
fn an_item_that_is_colder_than_what_would_be_evicted_is_left_out() {
    for name in ["balanced", "lru", "s3fifo", "mru"] {
        let policy = policy::by_name(name).unwrap();
        let (kv, clock) = store_with(KvConfig { arena_bytes: 2 << 20, policy, ..KvConfig::default() });
        clock.advance(10_000);
        let import = |n: u32, idle_secs| {
            let options = ImportOptions { idle_secs, ..ImportOptions::default() };
            kv.import(&n.to_le_bytes(), kv.hash(&n.to_le_bytes()), &[3; 500], &options)
        };
        kv.set(&7u32.to_le_bytes(), b"earlier").unwrap();
        assert_eq!((import(7, 9_000), kv.is_full()), (Ok(Imported::Stored), false));
        // Each item is evicted some hundred seconds after it was stored.
        for n in 1_000..if cfg!(miri) { 1_100 } else { 20_000u32 } {
            kv.set(&n.to_le_bytes(), &[1; 500]).unwrap();
            if n.is_multiple_of(10) {
                clock.advance(1);
            }
        }
        if cfg!(miri) {
            return;
        }
        for n in 0..100u32 {
            kv.set(&n.to_le_bytes(), b"earlier").unwrap();
            if name == "mru" {
                // It evicts what was used last.
                assert_eq!((import(n, 5_000), kv.is_full()), (Ok(Imported::Stored), true));
                continue;
            }
            assert_eq!((import(n, 5_000), kv.is_full()), (Ok(Imported::Colder), true));
            assert_eq!(kv.get(&n.to_le_bytes()), None, "an earlier item may be out of date");
            assert_eq!(import(n, 3), Ok(Imported::Stored));
        }
        // Memory is free again.
        kv.flush_all();
        while kv.maintain() {}
        assert_eq!(import(7, 9_000), Ok(Imported::Stored));
        kv.validate();
    }
}

/// Keys by the share of uses that they have, those of a Zipf distribution.
struct Uses(Vec<f64>);

impl Uses {
    fn new(keys: usize) -> Uses {
        let weights = (1..=keys).map(|rank| (rank as f64).powf(-0.8));
        Uses(weights.scan(0.0, |sum, weight| Some(*sum + weight).inspect(|next| *sum = *next)).collect())
    }

    /// Uses keys, and stores those that are missing. Returns how many were found.
    fn play(&self, kv: &Kv, clock: &TickClock, rng: &mut SmallRng, uses: u32) -> u32 {
        let mut hits = 0;
        for n in 0..uses {
            if n.is_multiple_of(1_000) {
                clock.advance(1);
            }
            let at = rng.random_range(0.0..self.0[self.0.len() - 1]);
            let key = (self.0.partition_point(|sum| *sum < at) as u64).to_le_bytes();
            match kv.get(&key) {
                Some(_) => hits += 1,
                None => kv.set(&key, &[1; 100]).unwrap(),
            }
        }
        hits
    }
}

#[test]
#[cfg(not(miri))]
fn a_smaller_store_keeps_what_is_used_most() {
    let hits = |knows_use: bool| {
        let (uses, mut rng) = (Uses::new(50_000), SmallRng::seed_from_u64(7));
        let store = |arena_bytes| store_with(KvConfig { arena_bytes, ..KvConfig::default() });
        let ((source, source_clock), (target, target_clock)) = (store(8 << 20), store(2 << 20));
        uses.play(&source, &source_clock, &mut rng, 300_000);
        target_clock.advance(source_clock.now_secs());
        let (mut items, mut cursor) = (Vec::new(), Some(ScanCursor::default()));
        while let Some(at) = cursor {
            cursor = source.scan(at, |item| items.push(item.key().to_vec()));
        }
        let mut items: Vec<_> = items.iter().map(|key| (key, export(&source, key).unwrap())).collect();
        if knows_use {
            // As a move sends them: those that were used last come first.
            let mut idle: Vec<u32> = items.iter().map(|(_, (_, options))| options.idle_secs).collect();
            idle.sort_unstable();
            items.sort_by_key(|(_, (_, options))| options.idle_secs > idle[idle.len() / 4]);
        }
        for (key, (value, mut options)) in items {
            if !knows_use {
                (options.idle_secs, options.fetched) = (0, false);
            }
            target.import(key, target.hash(key), &value, &options).unwrap();
        }
        target.validate();
        uses.play(&target, &target_clock, &mut rng, 10_000)
    };
    let [with, without] = [true, false].map(hits);
    println!("{with} of 10000 uses are hits, {without} if all items count as new");
    assert!(with > without + 800, "{with} and {without}");
}

#[test]
fn cas_values_rise_above_those_of_another_store() {
    let (kv, _) = store_with(KvConfig::default());
    let all = |kv: &Kv| {
        let mut values: Vec<u64> = (0..500u32)
            .map(|n| {
                kv.set(&n.to_le_bytes(), b"").unwrap();
                kv.get_with_cas(&n.to_le_bytes()).unwrap().1
            })
            .collect();
        values.sort_unstable();
        values
    };
    let before = all(&kv);
    assert!(before[499] < kv.cas_ahead());
    for at_least in [0, 77_777, 77_777, 1 << 40] {
        kv.raise_cas(at_least);
        let mut values = all(&kv);
        assert!(values[0] > at_least && values[0] > before[499] || at_least == 0);
        values.dedup();
        assert_eq!(values.len(), 500, "each is used once");
    }
    kv.raise_cas(u64::MAX);
    assert!(all(&kv)[499] < u64::MAX / 2 + (1 << 20));
}

#[test]
fn a_flush_is_counted() {
    let (kv, clock) = store_with(KvConfig::default());
    let before = kv.flushes().unwrap();
    kv.set_for(b"k", b"v", secs(3)).unwrap();
    assert_eq!(kv.flushes(), Some(before));
    kv.flush_all();
    kv.flush_prefix(b"p").unwrap();
    assert_eq!(kv.flushes(), Some(before + 2));
    kv.flush_at(kv.now_secs() + 5);
    assert_eq!(kv.flushes(), None, "one is scheduled");
    clock.advance(5);
    assert_eq!(kv.get(b"k"), None);
    assert_eq!(kv.flushes(), Some(before + 3));
}

#[test]
fn a_flush_in_progress_is_noticed() {
    let (kv, _) = store_with(KvConfig::default());
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..if cfg!(miri) { 20 } else { 3000 }).for_each(|_| kv.flush_all());
            end.store(true, std::sync::atomic::Ordering::Release);
        });
        while !end.load(std::sync::atomic::Ordering::Acquire) {
            let before = kv.flushes();
            kv.set(b"k", b"v").unwrap();
            let is_there = kv.get(b"k").is_some();
            assert!(is_there || before.is_none() || kv.flushes() != before, "a flush was not counted");
        }
    });
    assert!(kv.flushes().is_some());
}
