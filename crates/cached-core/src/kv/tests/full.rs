//! Full memory: which operations free space in a store that does not evict, and which need no
//! space.

use super::{secs, store, store_with, value_of};
use crate::clock::{Expiry, TickClock};
use crate::kv::*;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use std::collections::HashMap;
use std::sync::Arc;

fn without_eviction(arena_bytes: usize) -> (Kv, Arc<TickClock>) {
    store_with(KvConfig { arena_bytes, evict: false, hash_seed: Some(7), ..KvConfig::default() })
}

fn seed() -> u64 {
    let seed = std::env::var("CACHED_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0xcac4ed);
    println!("CACHED_TEST_SEED={seed}");
    seed
}

/// The items that the store should hold, and the lengths of their values.
struct Model {
    kv: Kv,
    rng: SmallRng,
    sizes: std::ops::RangeInclusive<usize>,
    keys: Vec<u64>,
    values: HashMap<u64, usize>,
    next: u64,
    life_secs: Option<u32>,
}

impl Model {
    fn new(kv: &Kv, sizes: std::ops::RangeInclusive<usize>) -> Model {
        let rng = SmallRng::seed_from_u64(seed());
        let (keys, values) = (Vec::new(), HashMap::new());
        Model { kv: kv.clone(), rng, sizes, keys, values, next: 0, life_secs: None }
    }

    /// Stores until the memory is full. Returns the bytes of the values stored.
    fn fill(&mut self) -> usize {
        let mut stored = 0;
        loop {
            let (key, bytes) = (self.next, self.rng.random_range(self.sizes.clone()));
            let name = key.to_le_bytes();
            let expiry = match self.life_secs {
                Some(secs) => Expiry::after(self.kv.now_secs(), secs),
                None => Expiry::NEVER,
            };
            let options = StoreOptions { expiry, ..StoreOptions::default() };
            match self.kv.store(&name, self.kv.hash(&name), &value_of(key, bytes), &options) {
                StoreOutcome::Stored { .. } => {}
                outcome => {
                    assert_eq!(outcome, StoreOutcome::OutOfMemory);
                    return stored;
                }
            }
            self.keys.push(key);
            self.values.insert(key, bytes);
            self.next += 1;
            stored += bytes;
        }
    }

    /// Deletes a random share of the items. Returns the bytes of their values.
    fn delete(&mut self, permille: usize) -> usize {
        let mut bytes = 0;
        for _ in 0..self.keys.len() * permille / 1000 {
            let key = self.keys.swap_remove(self.rng.random_range(0..self.keys.len()));
            assert!(self.kv.remove(&key.to_le_bytes()));
            bytes += self.values.remove(&key).unwrap();
        }
        bytes
    }

    fn check(&self) {
        for (key, bytes) in &self.values {
            let value = self.kv.get(&key.to_le_bytes());
            assert!(value.is_some_and(|value| value == value_of(*key, *bytes)), "key {key} of {bytes} bytes");
        }
        assert_eq!(self.kv.stats().items, self.values.len() as u64);
        assert_eq!(self.kv.stats().evictions, 0);
        self.kv.validate();
    }
}

/// Deletes random shares of the items repeatedly. Each time, the same number of bytes can be stored
/// again, except for two regions.
#[test]
fn deleted_items_make_room() {
    for (arena, sizes) in
        [(16 << 20, 100..=100), (16 << 20, 10..=1_000), (64 << 20, 1_000..=15_000), (64 << 20, 100..=60_000)]
    {
        let (kv, _) = without_eviction(arena);
        let mut model = Model::new(&kv, sizes.clone());
        model.fill();
        let region = kv.stats().arena_bytes / kv.stats().regions as usize;
        for permille in [10, 50, 100, 10, 500, 20, 1000, 30] {
            let deleted = model.delete(permille);
            let stored = model.fill();
            println!("{sizes:?}: {permille} permille, {deleted} bytes deleted, {stored} stored again");
            assert!(
                stored + 2 * region >= deleted,
                "{permille} permille of {sizes:?}: {stored} of {deleted}"
            );
        }
        model.check();
    }
}

/// Garbage is found regardless of the number of regions and of their age.
#[test]
fn deleted_items_make_room_in_many_regions() {
    let (kv, _) = store_with(KvConfig {
        arena_bytes: 192 << 20,
        evict: false,
        hash_seed: Some(7),
        region_bytes: Some(64 << 10),
        ..KvConfig::default()
    });
    assert!(kv.stats().regions > 3_000);
    let mut model = Model::new(&kv, 4_000..=4_000);
    model.fill();
    // Every other item of the newest eighth is deleted.
    let newest = model.keys.len() * 7 / 8;
    let goes: Vec<u64> = model.keys[newest..].iter().copied().step_by(2).collect();
    model.keys.retain(|key| !goes.contains(key));
    for key in &goes {
        assert!(kv.remove(&key.to_le_bytes()));
        model.values.remove(key);
    }
    let stored = model.fill();
    assert!(stored + (128 << 10) >= goes.len() * 4_000, "{stored} of {}", goes.len() * 4_000);
}

/// Expired items free their space in the second in which they expire: short and long lifetimes,
/// small and large values.
#[test]
fn expired_items_make_room_for_every_lifetime_and_size() {
    for life_secs in [1, 100, 5_000, 36_000, 40 * 86_400] {
        for sizes in [100..=100, 1_000..=100_000, 500_000..=1_000_000] {
            let (kv, clock) = without_eviction(16 << 20);
            let mut model = Model::new(&kv, sizes.clone());
            model.life_secs = Some(life_secs);
            let first = model.fill();
            assert_eq!(model.fill(), 0);
            clock.advance(life_secs);
            let second = model.fill();
            println!("{life_secs} s, {sizes:?}: {first} bytes, then {second}");
            assert!(second * 100 >= first * 90, "{life_secs} s, {sizes:?}: {first} bytes, then {second}");
            kv.validate();
        }
    }
}

/// If a few items expire among others that stay, their bytes can be reused.
#[test]
fn a_few_expired_items_make_room() {
    let (kv, clock) = without_eviction(16 << 20);
    let mut rng = SmallRng::seed_from_u64(seed());
    let mut mortal = Vec::new();
    for n in 0.. {
        let key = u32::to_le_bytes(n);
        let is_mortal = rng.random_bool(0.05);
        let set = if is_mortal { kv.set_for(&key, &[1; 200], secs(7_000)) } else { kv.set(&key, &[1; 200]) };
        if set.is_err() {
            break;
        }
        if is_mortal {
            mortal.push(n);
        }
    }
    clock.advance(6_999);
    assert!(kv.set(b"early", &[2; 200]).is_err());
    clock.advance(1);
    let stored =
        (0..).take_while(|n| kv.set(&[&b"new"[..], &u32::to_le_bytes(*n)].concat(), &[3; 200]).is_ok());
    let stored = stored.count();
    println!("{} expired, {stored} found room", mortal.len());
    assert!(stored + 2 * 300 >= mortal.len(), "{stored} of {}", mortal.len());
    assert!(mortal.iter().all(|n| kv.get(&n.to_le_bytes()).is_none()));
    kv.validate();
}

/// An expiry set by a touch, a fetch or an invalidation has the same effect as one set by the
/// store; the earlier expiry no longer counts.
#[test]
fn items_that_expire_by_a_touch_make_room() {
    let (kv, clock) = without_eviction(16 << 20);
    let mut model = Model::new(&kv, 100..=30_000);
    let first = model.fill();
    let half = model.keys.len() / 2;
    for (n, key) in model.keys.iter().enumerate() {
        let name = key.to_le_bytes();
        let hash = kv.hash(&name);
        let expiry = Expiry::after(kv.now_secs(), if n < half { 5_000 } else { 50_000 });
        match n % 3 {
            0 => kv.touch(&name, hash, expiry).unwrap(),
            1 => {
                let gat = FetchOptions { touch: Some(expiry), ..FetchOptions::default() };
                kv.fetch(&name, hash, &gat, |_, _| ()).unwrap();
            }
            _ => {
                let stale =
                    DeleteOptions { invalidate: true, expiry: Some(expiry), ..DeleteOptions::default() };
                assert_eq!(kv.delete(&name, hash, &stale), DeleteOutcome::Done);
            }
        }
    }
    kv.validate();
    clock.advance(5_000);
    let second = model.fill();
    println!("{first} bytes, half of which expired, then {second}");
    assert!(second * 100 >= first * 42, "{second} of {first}");
    let left = |keys: &[u64]| keys.iter().filter(|key| kv.get(&key.to_le_bytes()).is_some()).count();
    assert_eq!(left(&model.keys[..half]), 0);
    assert_eq!(left(&model.keys[half..]), model.keys.len() - half);
    kv.validate();
}

#[test]
fn a_touch_needs_no_memory() {
    for bytes in [100, 3_000, 100_000] {
        let (kv, _) = without_eviction(8 << 20);
        let mut model = Model::new(&kv, bytes..=bytes);
        model.fill();
        for key in &model.keys {
            assert!(kv.touch_for(&key.to_le_bytes(), secs(1_000)));
            assert!(kv.touch_for(&key.to_le_bytes(), secs(5_000)));
        }
        // Storing a value of the same size needs no space either, whether or not its expiry
        // changes.
        for key in &model.keys {
            if bytes < 4_000 {
                kv.set_for(&key.to_le_bytes(), &value_of(*key, bytes), secs(100)).unwrap();
                kv.set(&key.to_le_bytes(), &value_of(*key, bytes)).unwrap();
            }
        }
        model.check();
    }
}

/// A touch that frees memory by evicting does not evict the touched item.
#[test]
fn a_touched_item_is_not_evicted_for_the_touch() {
    for name in policy::NAMES {
        for bytes in [100, 30_000] {
            let policy = policy::by_name(name).unwrap();
            let (kv, _) = store_with(KvConfig { arena_bytes: 8 << 20, policy, ..KvConfig::default() });
            let count = (16 << 20) / bytes as u32;
            (0..count).for_each(|n| kv.set(&n.to_le_bytes(), &vec![1; bytes]).unwrap());
            let mut touched = 0;
            for n in 0..count {
                let key = n.to_le_bytes();
                if kv.peek(&key, kv.hash(&key), |_| ()).is_ok() {
                    let expiry = Expiry::after(kv.now_secs(), 1_000);
                    assert_eq!(kv.touch(&key, kv.hash(&key), expiry), Ok(()), "{name}: {n}");
                    touched += 1;
                }
            }
            assert!(touched > count / 4, "{name}: only {touched} were there");
            kv.validate();
        }
    }
}

/// No live item is evicted as long as no more is stored than has expired.
#[test]
fn expired_items_of_any_lifetime_are_evicted_before_live_ones() {
    for life_secs in [60, 3_600, 5_000, 7_200, 86_400] {
        for late_secs in [1, 1_000] {
            let (kv, clock) = store(32 << 20, 1 << 20);
            let live = |n: u32| [&b"live"[..], &n.to_le_bytes()].concat();
            // 14 MB that stay and 8 MB that expire, alternating.
            for n in 0..60_000u32 {
                kv.set(&live(n), &[1; 200]).unwrap();
                if n % 2 == 0 {
                    kv.set_for(&n.to_le_bytes(), &[2; 200], secs(life_secs)).unwrap();
                }
            }
            assert_eq!(kv.stats().evictions, 0);
            clock.advance(life_secs + late_secs);
            for n in 0..65_000u32 {
                kv.set(&[&b"new"[..], &n.to_le_bytes()].concat(), &[3; 200]).unwrap();
            }
            let gone =
                (0..60_000).filter(|n| kv.peek(&live(*n), kv.hash(&live(*n)), |_| ()).is_err()).count();
            println!(
                "a life of {life_secs} s, {late_secs} s after its end: {gone} of 60000 live items evicted"
            );
            assert_eq!(gone, 0, "a life of {life_secs} s, {late_secs} s after its end");
            kv.validate();
        }
    }
}
