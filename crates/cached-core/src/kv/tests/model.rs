//! The store compared with a plain map under random operations.
//!
//! Without memory pressure, the two agree exactly. Under pressure, the store may have evicted items
//! that the map still has, but the items in the store must be correct: never an old value, another
//! key's value, or one that expired, was deleted or flushed.

#[cfg(not(miri))]
use super::restart::{Lab, open_with, set_wall_clock};
use super::{store_with, value_of};
use crate::clock::{Clock, Expiry, TickClock};
use crate::kv::policy::Lru;
use crate::kv::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug, Clone)]
enum Op {
    Get(u8),
    Store { key: u8, mode: StoreMode, size: Size, flags: u32, ttl: Option<u8>, stale_cas: bool },
    Reserve { key: u8, size: Size, chunk: u16, give_up: bool },
    Delete { key: u8, invalidate: bool, clear: bool, wrong_cas: bool },
    Count { key: u8, decrement: bool, delta: u64, vivify: Option<u64> },
    SetNumber { key: u8, number: u64 },
    Touch { key: u8, ttl: Option<u8> },
    Vivify { key: u8, ttl: u8 },
    Flush,
    FlushPrefix { key: u8, alone: bool },
    Sweep(u8),
    FlushIn(u8),
    Advance(u8),
    Maintain,
    Pin(u8),
    Unpin,
    Scan,
    Reopen { clean: bool },
}

/// Value sizes: most are small, some straddle the inline limit, a few are huge.
#[derive(Debug, Clone, Copy)]
struct Size(usize);

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        8 => (0usize..200).prop_map(Size),
        3 => (200usize..5_000).prop_map(Size),
        1 => (3_800usize..4_300).prop_map(Size),
        2 => (5_000usize..70_000).prop_map(Size),
        1 => (70_000usize..300_000).prop_map(Size),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let key = 0u8..40;
    let mode = prop_oneof![
        6 => Just(StoreMode::Set), 1 => Just(StoreMode::Add), 1 => Just(StoreMode::Replace),
        1 => Just(StoreMode::Cas), 1 => Just(StoreMode::Append), 1 => Just(StoreMode::Prepend),
    ];
    let ttl = || proptest::option::weighted(0.4, 1u8..60);
    prop_oneof![
        10 => key.clone().prop_map(Op::Get),
        14 => (key.clone(), mode, size(), prop_oneof![Just(0u32), any::<u32>()], ttl(), any::<bool>())
            .prop_map(|(key, mode, size, flags, ttl, stale_cas)| Op::Store { key, mode, size, flags, ttl, stale_cas }),
        4 => (key.clone(), size(), 1u16.., proptest::bool::weighted(0.2))
            .prop_map(|(key, size, chunk, give_up)| Op::Reserve { key, size, chunk, give_up }),
        3 => (key.clone(), any::<bool>(), any::<bool>(), proptest::bool::weighted(0.2))
            .prop_map(|(key, invalidate, clear, wrong_cas)| Op::Delete { key, invalidate, clear, wrong_cas }),
        2 => (key.clone(), any::<bool>(), any::<u64>(), proptest::option::of(any::<u64>()))
            .prop_map(|(key, decrement, delta, vivify)| Op::Count { key, decrement, delta, vivify }),
        2 => (key.clone(), any::<u64>()).prop_map(|(key, number)| Op::SetNumber { key, number }),
        2 => (key.clone(), ttl()).prop_map(|(key, ttl)| Op::Touch { key, ttl }),
        1 => (key.clone(), 1u8..60).prop_map(|(key, ttl)| Op::Vivify { key, ttl }),
        1 => Just(Op::Flush),
        3 => (key.clone(), proptest::bool::weighted(0.3)).prop_map(|(key, alone)| Op::FlushPrefix { key, alone }),
        4 => (1u8..).prop_map(Op::Sweep),
        1 => (1u8..20).prop_map(Op::FlushIn),
        3 => (1u8..30).prop_map(Op::Advance),
        1 => Just(Op::Maintain),
        1 => key.prop_map(Op::Pin),
        1 => Just(Op::Unpin),
        1 => Just(Op::Scan),
        1 => any::<bool>().prop_map(|clean| Op::Reopen { clean }),
    ]
}

#[derive(Debug, Clone)]
struct Expected {
    value: Vec<u8>,
    flags: u32,
    expiry: Expiry,
    cas: u64,
    stale: bool,
}

struct World {
    kv: Kv,
    clock: Arc<TickClock>,
    map: HashMap<Vec<u8>, Expected>,
    flush_at: Option<u32>,
    pinned: Vec<(PinnedValue, Vec<u8>)>,
    versions: u64,
    /// Whether no item may be missing.
    exact: bool,
    /// The directory of memory files, and the function that opens another store.
    #[cfg(not(miri))]
    files: Option<(Lab, fn() -> KvConfig)>,
}

impl World {
    fn key(key: u8) -> Vec<u8> {
        // Lengths from 2 to 250, so that every alignment of the fields after the key occurs. Eight
        // keys share a prefix.
        let mut bytes = vec![key / 8, key];
        bytes.resize(2 + usize::from(key) * 248 / 39, b'k');
        bytes
    }

    fn now(&self) -> u32 {
        self.clock.now_secs()
    }

    fn expire(&mut self) {
        let now = self.now();
        if self.flush_at.is_some_and(|at| at <= now) {
            self.flush_at = None;
            self.map.clear();
        }
        self.map.retain(|_, expected| !expected.expiry.is_past(now));
    }

    fn ttl(&self, ttl: Option<u8>) -> Expiry {
        ttl.map_or(Expiry::NEVER, |secs| Expiry::after(self.now(), u32::from(secs)))
    }

    /// Compares the store's item of a key with the map's, and removes an evicted item from the map.
    fn check(&mut self, key: &[u8]) -> bool {
        let hash = self.kv.hash(key);
        let seen = self.kv.peek(key, hash, |item| {
            let mut value = Vec::new();
            item.copy_value_to(&mut value);
            assert_eq!(item.key(), key);
            Expected {
                value,
                flags: item.client_flags(),
                expiry: item.expiry(),
                cas: item.cas(),
                stale: item.stale(),
            }
        });
        match (seen, self.map.get(key)) {
            (Ok(seen), Some(expected)) => {
                assert!(
                    seen.value == expected.value,
                    "wrong value ({} bytes for {})",
                    seen.value.len(),
                    expected.value.len()
                );
                assert_eq!(
                    (seen.flags, seen.expiry, seen.cas, seen.stale),
                    (expected.flags, expected.expiry, expected.cas, expected.stale)
                );
                true
            }
            (Ok(_), None) => panic!("an item that must be gone is still there"),
            (Err(miss), Some(_)) => {
                assert!(!self.exact, "an item is missing without pressure: {miss:?}");
                self.map.remove(key);
                false
            }
            (Err(_), None) => false,
        }
    }

    fn stored(&mut self, key: &[u8], outcome: StoreOutcome, mut expected: Expected) {
        match outcome {
            StoreOutcome::Stored { cas, value_bytes } => {
                assert_eq!(value_bytes, expected.value.len());
                let before = self.map.get(key).map_or(0, |old| old.cas);
                assert!(cas > before, "CAS values of a key must rise");
                expected.cas = cas;
                if !expected.expiry.is_past(self.now()) {
                    self.map.insert(key.to_vec(), expected);
                } else {
                    self.map.remove(key);
                }
            }
            StoreOutcome::OutOfMemory => assert!(!self.exact, "out of memory without pressure"),
            other => panic!("{other:?} where storing was right"),
        }
    }

    fn apply(&mut self, op: Op) {
        self.expire();
        match op {
            Op::Get(key) => {
                let key = Self::key(key);
                self.check(&key);
                let _ = self.kv.read(&key, self.kv.hash(&key), |_| ());
            }
            Op::Store { key, mode, size, flags, ttl, stale_cas } => {
                let key = Self::key(key);
                let present = self.check(&key);
                self.versions += 1;
                let value = value_of(self.versions, size.0);
                let old = self.map.get(&key).cloned();
                let compare = match mode {
                    StoreMode::Cas => old.as_ref().map_or(7, |old| old.cas + u64::from(stale_cas)),
                    _ => 0,
                };
                let options = StoreOptions {
                    mode,
                    client_flags: flags,
                    expiry: self.ttl(ttl),
                    compare,
                    ..StoreOptions::default()
                };
                let outcome = self.kv.store(&key, self.kv.hash(&key), &value, &options);
                let fresh =
                    Expected { value: value.clone(), flags, expiry: options.expiry, cas: 0, stale: false };
                match (mode, old) {
                    (StoreMode::Add, Some(_))
                    | (StoreMode::Replace | StoreMode::Append | StoreMode::Prepend, None) => {
                        assert_eq!(outcome, StoreOutcome::NotStored);
                    }
                    (StoreMode::Cas, None) => assert_eq!(outcome, StoreOutcome::NotFound),
                    (StoreMode::Cas, Some(_)) if stale_cas => assert_eq!(outcome, StoreOutcome::Exists),
                    (StoreMode::Append | StoreMode::Prepend, Some(old)) => {
                        let value = match mode {
                            StoreMode::Append => [old.value, value].concat(),
                            _ => [value, old.value].concat(),
                        };
                        if outcome == StoreOutcome::NotStored {
                            let too_large = key.len() + value.len() > self.kv.item_bytes_max();
                            assert!(too_large || !self.exact, "a joined value that fits was refused");
                        } else {
                            self.stored(&key, outcome, Expected { value, stale: false, ..old });
                        }
                    }
                    _ => self.stored(&key, outcome, fresh),
                }
                let _ = present;
            }
            Op::Reserve { key, size, chunk, give_up } => {
                let key = Self::key(key);
                self.versions += 1;
                let value = value_of(self.versions, size.0);
                let options = StoreOptions::default();
                let Ok(mut reservation) = self.kv.reserve(&key, self.kv.hash(&key), value.len(), &options)
                else {
                    assert!(!self.exact);
                    return;
                };
                for chunk in value.chunks(usize::from(chunk)) {
                    if !reservation.write(chunk) {
                        assert!(!self.exact);
                        return;
                    }
                }
                if give_up {
                    return;
                }
                self.check(&key);
                let outcome = reservation.commit();
                let fresh = Expected { value, flags: 0, expiry: Expiry::NEVER, cas: 0, stale: false };
                self.stored(&key, outcome, fresh);
            }
            Op::Delete { key, invalidate, clear, wrong_cas } => {
                let key = Self::key(key);
                let present = self.check(&key);
                let cas = self.map.get(&key).map_or(1, |old| old.cas);
                let options = DeleteOptions {
                    compare: Some(cas + u64::from(wrong_cas)),
                    invalidate,
                    clear_value: clear,
                    ..DeleteOptions::default()
                };
                let outcome = self.kv.delete(&key, self.kv.hash(&key), &options);
                match outcome {
                    DeleteOutcome::NotFound => assert!(!present),
                    DeleteOutcome::Exists => assert!(present && wrong_cas),
                    DeleteOutcome::OutOfMemory => assert!(!self.exact && (clear || invalidate)),
                    DeleteOutcome::Done => {
                        assert!(present && !wrong_cas);
                        let kv = self.kv.clone();
                        let now_cas = kv.peek(&key, kv.hash(&key), |item| item.cas());
                        if !invalidate && !clear {
                            self.map.remove(&key);
                        } else if let Some(old) = self.map.get_mut(&key) {
                            if clear {
                                (old.value, old.flags, old.expiry) = (Vec::new(), 0, Expiry::NEVER);
                                old.stale = false;
                            }
                            old.stale |= invalidate;
                            if invalidate {
                                old.cas = now_cas.unwrap_or(0);
                                assert!(old.cas > cas, "marking stale makes a new CAS value");
                            }
                        }
                    }
                }
            }
            Op::SetNumber { key, number } => {
                let key = Self::key(key);
                self.check(&key);
                let value = number.to_string().into_bytes();
                let outcome = self.kv.store(&key, self.kv.hash(&key), &value, &StoreOptions::default());
                self.stored(
                    &key,
                    outcome,
                    Expected { value, flags: 0, expiry: Expiry::NEVER, cas: 0, stale: false },
                );
            }
            Op::Count { key, decrement, delta, vivify } => {
                let key = Self::key(key);
                self.check(&key);
                let options = ArithmeticOptions {
                    decrement,
                    delta,
                    vivify: vivify.map(|n| (n, Expiry::NEVER)),
                    ..ArithmeticOptions::default()
                };
                let outcome = self.kv.arithmetic(&key, self.kv.hash(&key), &options);
                // The number consists of digits up to a blank or the end: bytes appended after a
                // blank are ignored.
                let number = |value: &[u8]| {
                    let digits = value.split(u8::is_ascii_whitespace).next()?;
                    std::str::from_utf8(digits).ok()?.parse::<u64>().ok()
                };
                match (self.map.get_mut(&key), outcome) {
                    (None, ArithmeticOutcome::NotFound) => assert!(vivify.is_none()),
                    (None, ArithmeticOutcome::Done { value, cas, created, .. }) => {
                        assert!(created && Some(value) == vivify);
                        let value = value.to_string().into_bytes();
                        self.map.insert(
                            key,
                            Expected { value, flags: 0, expiry: Expiry::NEVER, cas, stale: false },
                        );
                    }
                    (Some(old), ArithmeticOutcome::NonNumeric) => {
                        // As in memcached, a value in pieces never counts as a number.
                        let may_be_large = old.value.len() > 4000;
                        assert!(may_be_large || number(&old.value).is_none(), "a number was refused");
                    }
                    (Some(old), ArithmeticOutcome::Done { value, cas, created, .. }) => {
                        let before = number(&old.value).expect("text was counted");
                        let sum =
                            if decrement { before.saturating_sub(delta) } else { before.wrapping_add(delta) };
                        assert!(value == sum && cas > old.cas && !created);
                        // A number changed in place keeps its length; one written to a new entry
                        // has the length of its digits.
                        let found =
                            self.kv.peek(&key, self.kv.hash(&key), |item| item.value_bytes()).unwrap();
                        let width = old.value.len();
                        let anew = value.to_string().len().max(width.min(20));
                        assert!(found == width || found == anew, "{found} bytes for a number in {width}");
                        old.value = format!("{value:<found$}").into_bytes();
                        old.cas = cas;
                    }
                    (_, ArithmeticOutcome::OutOfMemory) => assert!(!self.exact),
                    (old, outcome) => panic!("{outcome:?} for {old:?}"),
                }
            }
            Op::Touch { key, ttl } => {
                let key = Self::key(key);
                let present = self.check(&key);
                let expiry = self.ttl(ttl);
                match self.kv.touch(&key, self.kv.hash(&key), expiry) {
                    Ok(()) => {
                        assert!(present);
                        self.map.get_mut(&key).unwrap().expiry = expiry;
                    }
                    Err(Miss::OutOfMemory) => assert!(!self.exact),
                    // Freeing memory for the expiry may itself evict the item.
                    Err(_) => {
                        assert!(!present || !self.exact);
                        self.map.remove(&key);
                    }
                }
            }
            Op::Vivify { key, ttl } => {
                let key = Self::key(key);
                let present = self.check(&key);
                let expiry = self.ttl(Some(ttl));
                let options = FetchOptions { vivify: Some(expiry), tokens: true, ..FetchOptions::default() };
                let kv = self.kv.clone();
                let fetched = kv.fetch(&key, kv.hash(&key), &options, |item, fetched| (*fetched, item.cas()));
                match fetched {
                    Ok((fetched, cas)) => {
                        assert_eq!(fetched.created, !present);
                        if fetched.created {
                            assert!(fetched.won);
                            let fresh = Expected { value: Vec::new(), flags: 0, expiry, cas, stale: false };
                            self.map.insert(key, fresh);
                        }
                    }
                    Err(miss) => assert!(!self.exact, "{miss:?} without pressure"),
                }
            }
            Op::Flush => {
                self.flush_at = None;
                self.kv.flush_all();
                self.map.clear();
            }
            Op::FlushPrefix { key, alone } => {
                let prefix = &[key / 8, key][..1 + usize::from(alone)];
                self.kv.flush_prefix(prefix).unwrap();
                self.map.retain(|key, _| !key.starts_with(prefix));
            }
            Op::Sweep(buckets) => {
                self.kv.sweep_buckets(u64::from(buckets));
            }
            Op::FlushIn(secs) => {
                let at = self.now() + u32::from(secs);
                self.kv.flush_at(at);
                self.flush_at = Some(at);
            }
            Op::Advance(secs) => self.clock.advance(u32::from(secs)),
            Op::Maintain => {
                self.kv.maintain();
            }
            Op::Pin(key) => {
                let key = Self::key(key);
                if self.check(&key) && self.pinned.len() < 4 {
                    let pin = self.kv.peek(&key, self.kv.hash(&key), |item| item.pin()).unwrap();
                    self.pinned.push((pin, self.map[&key].value.clone()));
                }
            }
            Op::Unpin => {
                self.pinned.pop();
            }
            Op::Reopen { clean } => self.reopen(clean),
            Op::Scan => {
                let seen: HashMap<_, _> = self.kv.iter().collect();
                for (key, value) in &seen {
                    assert!(
                        self.map.get(key).is_some_and(|e| &e.value == value),
                        "a scan returns an item that does not exist"
                    );
                }
                if self.exact {
                    assert_eq!(seen.len(), self.map.len(), "a scan misses items");
                }
            }
        }
        for (pin, value) in &self.pinned {
            assert!(&pin.to_vec() == value, "a pinned value changed");
        }
    }

    /// Ends the store or kills its process, and opens another one with its memory.
    #[cfg(not(miri))]
    fn reopen(&mut self, clean: bool) {
        let Some((lab, config)) = &self.files else { return };
        self.pinned.clear();
        self.kv.validate();
        set_wall_clock(&self.clock);
        let path = if clean {
            let path = self.kv.memory_file().unwrap().to_owned();
            self.kv =
                store_with(KvConfig { arena_bytes: 1 << 20, item_bytes_max: 1 << 10, ..KvConfig::default() })
                    .0;
            path
        } else {
            self.kv.maintain();
            let path = lab.copy(&self.kv);
            self.kv.end_as_killed();
            let old = self.kv.memory_file().unwrap().to_owned();
            std::fs::remove_file(old).unwrap();
            path
        };
        let now = self.clock.now_secs();
        (self.kv, self.clock) = open_with(&path, config());
        let restart = self.kv.restart().unwrap();
        assert_eq!((restart.cold.as_deref(), restart.was_clean), (None, clean));
        assert_eq!((restart.damaged_items, restart.damaged_regions, restart.replaced_items), (0, 0, 0));
        assert_eq!(self.clock.now_secs(), now);
        self.kv.validate();
        for key in self.map.keys().cloned().collect::<Vec<_>>() {
            self.expire();
            self.check(&key);
        }
    }

    #[cfg(miri)]
    fn reopen(&mut self, _clean: bool) {}

    /// Runs the operations on a store in a file.
    #[cfg(not(miri))]
    fn run_in_file(exact: bool, config: fn() -> KvConfig, ops: Vec<Op>) {
        let lab = Lab::new();
        let (kv, clock) = open_with(&lab.path(), config());
        set_wall_clock(&clock);
        World::run_with(kv, clock, exact, Some((lab, config)), ops);
    }

    fn run(arena_bytes: usize, exact: bool, cas: bool, ops: Vec<Op>) {
        let (kv, clock) = store_with(KvConfig {
            arena_bytes,
            item_bytes_max: 512 << 10,
            cas,
            policy: Box::new(Lru::default()),
            ..KvConfig::default()
        });
        #[cfg(not(miri))]
        World::run_with(kv, clock, exact, None, ops);
        #[cfg(miri)]
        World::run_with(kv, clock, exact, ops);
    }

    fn run_with(
        kv: Kv,
        clock: Arc<TickClock>,
        exact: bool,
        #[cfg(not(miri))] files: Option<(Lab, fn() -> KvConfig)>,
        ops: Vec<Op>,
    ) {
        let mut world = World {
            kv,
            clock,
            map: HashMap::new(),
            flush_at: None,
            pinned: Vec::new(),
            versions: 0,
            exact,
            #[cfg(not(miri))]
            files,
        };
        for op in ops {
            world.apply(op);
        }
        world.pinned.clear();
        world.kv.validate();
        world.expire();
        for key in world.map.keys().cloned().collect::<Vec<_>>() {
            world.check(&key);
        }
        world.kv.flush_all();
        while world.kv.maintain() {}
        world.kv.validate();
        assert_eq!(world.kv.stats().items, 0);
        assert_eq!(world.kv.stats().item_bytes, 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 48 }, ..ProptestConfig::default() })]

    /// 40 keys of at most 300 kB always fit into 64 MiB, so store and map agree exactly.
    #[test]
    fn the_store_agrees_with_a_map(ops in proptest::collection::vec(op(), 1..400)) {
        World::run(64 << 20, true, true, ops);
    }

    /// The keys do not fit into 2 MiB, so items are evicted.
    #[test]
    fn the_store_agrees_with_a_map_under_pressure(ops in proptest::collection::vec(op(), 1..600)) {
        World::run(2 << 20, false, true, ops);
    }
}

/// The same with stores in files, which are reopened after clean ends and kills.
#[cfg(not(miri))]
mod in_files {
    use super::*;

    fn partial() -> KvConfig {
        KvConfig { arena_bytes: 32 << 20, item_bytes_max: 512 << 10, ..KvConfig::default() }
    }

    fn tight() -> KvConfig {
        KvConfig { arena_bytes: 2 << 20, item_bytes_max: 512 << 10, ..KvConfig::default() }
    }

    fn tight_lru() -> KvConfig {
        KvConfig { policy: Box::new(Lru::default()), ..tight() }
    }

    fn without_eviction() -> KvConfig {
        KvConfig { evict: false, ..tight() }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn the_store_agrees_with_a_map_across_restarts(ops in proptest::collection::vec(op(), 1..300)) {
            World::run_in_file(true, partial, ops);
        }

        #[test]
        fn the_store_agrees_with_a_map_across_restarts_under_pressure(
            ops in proptest::collection::vec(op(), 1..500),
        ) {
            World::run_in_file(false, tight, ops.clone());
            World::run_in_file(false, tight_lru, ops);
        }

        #[test]
        fn a_store_that_does_not_evict_agrees_with_a_map_across_restarts(
            ops in proptest::collection::vec(op(), 1..500),
        ) {
            World::run_in_file(false, without_eviction, ops);
        }
    }
}
