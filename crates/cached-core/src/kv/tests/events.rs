//! Change hooks: whatever changes what a reader may see of a key is reported.

use super::{store_with, value_of};
use crate::clock::{Clock, Expiry};
use crate::kv::*;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Recorder(Mutex<Vec<(Change, Vec<u8>)>>);

impl ChangeHook for Recorder {
    fn on_change(&self, change: Change, key: &[u8], _version: u64) {
        self.0.lock().unwrap().push((change, key.to_vec()));
    }
}

impl Recorder {
    fn take(&self) -> Vec<(Change, Vec<u8>)> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// What a reader may see of an item.
#[derive(Debug, PartialEq)]
struct Seen {
    value: Vec<u8>,
    client_flags: u32,
    cas: u64,
    expiry: Expiry,
    stale: bool,
    token_sent: bool,
    key_binary: bool,
}

fn see(kv: &Kv, key: &[u8]) -> Option<Seen> {
    let seen = kv.peek(key, kv.hash(key), |item| Seen {
        value: item.to_vec(),
        client_flags: item.client_flags(),
        cas: item.cas(),
        expiry: item.expiry(),
        stale: item.stale(),
        token_sent: item.token_sent(),
        key_binary: item.key_binary(),
    });
    seen.ok()
}

struct Ops {
    kv: Kv,
    rng: SmallRng,
}

impl Ops {
    fn chance(&mut self, ratio: f64) -> bool {
        self.rng.random_bool(ratio)
    }

    fn expiry(&mut self) -> Expiry {
        let now = self.kv.now_secs();
        match self.rng.random_range(0..8) {
            0 => Expiry::PAST,
            1..4 => Expiry::after(now, self.rng.random_range(1..60)),
            _ => Expiry::NEVER,
        }
    }

    fn maybe_expiry(&mut self) -> Option<Expiry> {
        self.chance(0.4).then(|| self.expiry())
    }

    fn new_cas(&mut self) -> Option<u64> {
        self.chance(0.1).then(|| self.rng.random())
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..16) {
            0 => value_of(self.rng.random(), self.rng.random_range(5_000..40_000)),
            1..5 => self.rng.random::<u64>().to_string().into_bytes(),
            5..8 => b"9".to_vec(),
            _ => value_of(self.rng.random(), self.rng.random_range(0..300)),
        }
    }

    /// The item's CAS value, or one that does not match.
    fn compare(&mut self, key: &[u8]) -> u64 {
        let cas = see(&self.kv, key).map_or(7, |seen| seen.cas);
        if self.chance(0.7) { cas } else { cas.wrapping_sub(1) }
    }

    /// Executes a random operation. Returns whether a deletion was acknowledged.
    fn execute(&mut self, key: &[u8]) -> bool {
        let (kv, hash) = (self.kv.clone(), self.kv.hash(key));
        match self.rng.random_range(0..12) {
            0..5 => {
                let modes = [StoreMode::Set, StoreMode::Set, StoreMode::Add, StoreMode::Replace];
                let others = [StoreMode::Cas, StoreMode::Append, StoreMode::Prepend];
                let mode = *modes.iter().chain(&others).nth(self.rng.random_range(0..7)).unwrap();
                let options = StoreOptions {
                    mode,
                    client_flags: if self.chance(0.5) { self.rng.random() } else { 0 },
                    expiry: self.expiry(),
                    key_binary: self.chance(0.2),
                    compare: if mode == StoreMode::Cas { self.compare(key) } else { 0 },
                    allow_stale: mode == StoreMode::Cas && self.chance(0.5),
                    new_cas: self.new_cas(),
                    vivify: self.maybe_expiry(),
                };
                let value = self.value();
                if self.chance(0.3) && !matches!(mode, StoreMode::Append | StoreMode::Prepend) {
                    if let Ok(mut reservation) = kv.reserve(key, hash, value.len(), &options)
                        && reservation.write(&value)
                    {
                        let _ = reservation.commit();
                    }
                } else {
                    kv.store(key, hash, &value, &options);
                }
            }
            5..8 => {
                let options = FetchOptions {
                    touch: self.maybe_expiry(),
                    no_bump: self.chance(0.2),
                    vivify: self.maybe_expiry(),
                    recache_below: self.maybe_expiry(),
                    recache_after_touch: self.chance(0.2),
                    new_cas: self.new_cas(),
                    key_binary: self.chance(0.2),
                    tokens: self.chance(0.7),
                };
                let _ = kv.fetch(key, hash, &options, |_, _| ());
            }
            8 => {
                let _ = kv.read(key, hash, |_| ());
            }
            9 => {
                let options = DeleteOptions {
                    compare: self.chance(0.3).then(|| self.compare(key)),
                    invalidate: self.chance(0.4),
                    expiry: self.maybe_expiry(),
                    new_cas: self.new_cas(),
                    clear_value: self.chance(0.3),
                    client_flags: if self.chance(0.5) { self.rng.random() } else { 0 },
                };
                let outcome = kv.delete(key, hash, &options);
                return matches!(outcome, DeleteOutcome::Done | DeleteOutcome::NotFound);
            }
            10 => {
                let options = ArithmeticOptions {
                    decrement: self.chance(0.3),
                    delta: self.rng.random_range(0..1000),
                    compare: if self.chance(0.2) { self.compare(key) } else { 0 },
                    new_cas: self.new_cas(),
                    touch: self.maybe_expiry(),
                    vivify: self.chance(0.3).then(|| (self.rng.random(), self.expiry())),
                    key_binary: self.chance(0.2),
                };
                kv.arithmetic(key, hash, &options);
            }
            _ => {
                let options = ImportOptions { cas: self.rng.random(), ..ImportOptions::default() };
                let _ = kv.import(key, hash, &self.value(), &options);
            }
        }
        false
    }
}

#[test]
fn every_change_of_a_key_is_reported() {
    let (partial, full) = (64 << 20, 1 << 20);
    for (evict, arena_bytes) in [(true, partial), (true, full), (false, partial), (false, full)] {
        let config = KvConfig { arena_bytes, item_bytes_max: 64 << 10, evict, ..KvConfig::default() };
        let (kv, clock) = store_with(KvConfig { hash_seed: Some(7), ..config });
        let recorder = Arc::new(Recorder::default());
        let added = kv.add_change_hook(recorder.clone());
        let mut ops = Ops { kv: kv.clone(), rng: SmallRng::seed_from_u64(arena_bytes as u64) };
        let (mut changes, mut keys_changed) = (0, 0);
        for step in 0..if cfg!(miri) { 100 } else { 12_000u32 } {
            let key = ops.rng.random_range(0..200u32).to_le_bytes();
            let pin =
                if ops.chance(0.2) { kv.peek(&key, kv.hash(&key), |item| item.pin()).ok() } else { None };
            let before = see(&kv, &key);
            recorder.take();
            let is_deleted = ops.execute(&key);
            let events = recorder.take();
            let after = see(&kv, &key);
            drop(pin);
            let of_key = || events.iter().filter(|(_, changed)| *changed == key).map(|(change, _)| *change);
            let is_told =
                of_key().any(|change| !matches!(change, Change::Evicted | Change::Expired | Change::Flushed));
            let is_gone =
                before.is_some() && after.is_none() && of_key().any(|change| change == Change::Evicted);
            assert!(
                is_told || before == after && !is_deleted || is_gone && !is_deleted,
                "step {step}: {before:?} became {after:?}, reported as {events:?}"
            );
            changes += usize::from(is_told);
            keys_changed += usize::from(before != after);
            if step % 64 == 0 {
                clock.advance(1);
            }
        }
        assert!(changes >= keys_changed && keys_changed > if cfg!(miri) { 10 } else { 3000 });
        drop(added);
        kv.set(b"unobserved", b"").unwrap();
        assert_eq!(recorder.take(), []);
        kv.validate();
        assert!(clock.now_secs() > 2);
    }
}

/// A hook that is added and removed again and again, beside the configured one.
#[test]
fn hooks_are_added_and_removed_while_threads_change_items() {
    let configured = Arc::new(Recorder::default());
    let (kv, _) = store_with(KvConfig { change_hook: Some(configured.clone()), ..KvConfig::default() });
    let steps = if cfg!(miri) { 20 } else { 2000u32 };
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            let kv = kv.clone();
            scope.spawn(move || (0..steps).for_each(|n| kv.set(&[thread as u8], &n.to_le_bytes()).unwrap()));
        }
        for round in 0..steps / 10 {
            let recorder = Arc::new(Recorder::default());
            let added = kv.add_change_hook(recorder.clone());
            kv.set(b"own", &round.to_le_bytes()).unwrap();
            drop(added);
            assert!(Arc::strong_count(&recorder) == 1, "no thread uses a hook that was removed");
            assert!(recorder.take().iter().any(|(_, key)| key == b"own"));
        }
    });
    assert_eq!(configured.take().len() as u32, 2 * steps + steps / 10);
}
