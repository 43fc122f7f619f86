//! Kills after every single write to memory: for each operation, the memory is copied after each of
//! its writes, and the copy is opened.

use super::*;
use crate::kv::tests::value_of;
use crate::kv::{ArithmeticOptions, DeleteOptions, FetchOptions, StoreMode, StoreOptions};
use crate::stores;
use std::cell::RefCell;
use std::rc::Rc;

/// What may be visible of the item that an operation changes, besides its state before and after.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Between {
    /// Nothing else.
    Neither,
    /// The item may be missing, because it is changed in place.
    Missing,
    /// Several attributes of the item change one after the other.
    Attributes,
}

/// Runs an operation that changes `key` (`None`: any key), and opens the memory that a process
/// killed after every `step`th of its writes would leave. Returns the number of copies.
fn kill_at_every_store(
    config: fn() -> KvConfig,
    prepare: impl FnOnce(&Kv, &TickClock),
    operation: impl FnOnce(&Kv, &TickClock),
    key: Option<&[u8]>,
    between: Between,
    step: usize,
) -> usize {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, clock) = open_with(&path, config());
    set_wall_clock(&clock);
    prepare(&kv, &clock);
    let before = state(&kv);
    let copies: Rc<RefCell<Vec<State>>> = Rc::default();
    let look = {
        let (copies, copy, path) = (copies.clone(), lab.path(), path.clone());
        let wall = ZERO_UNIX_SECS + u64::from(clock.now_secs());
        move || copies.borrow_mut().push(state_if_killed(&path, &copy, config, wall))
    };
    let last_look = look.clone();
    let mut stores_seen = 0;
    let hook = move || {
        if stores_seen % step == 0 {
            look();
        }
        stores_seen += 1;
    };
    stores::observe(hook, || operation(&kv, &clock));
    let during = copies.borrow().len();
    last_look();
    let after = state(&kv);
    kv.validate();
    let copies = copies.borrow();
    assert_eq!(copies.last(), Some(&after), "after the operation");
    for (n, seen) in copies.iter().enumerate() {
        let keys = before.keys().chain(after.keys()).chain(seen.keys());
        for name in keys {
            let (old, new, found) = (before.get(name), after.get(name), seen.get(name));
            let is_right = found == old || found == new;
            let may_differ = key.is_none_or(|key| key == name);
            let between = match between {
                Between::Neither => false,
                Between::Missing => found.is_none(),
                Between::Attributes => found.is_some_and(|found| {
                    let [old, new] = [old, new].map(Option::unwrap);
                    found.value == old.value
                        && [old.cas, new.cas].contains(&found.cas)
                        && [old.expiry, new.expiry].contains(&found.expiry)
                        && (!found.stale || found.cas == new.cas)
                }),
            };
            assert!(
                is_right && (may_differ || found == old) || may_differ && between,
                "after store {} of {during}: {:?} was {old:?}, becomes {new:?}, is {found:?}",
                n * step,
                String::from_utf8_lossy(name),
            );
        }
    }
    during
}

/// Returns the visible items if the process were killed at this moment, with its memory at `path`.
/// The copy is created at `copy`.
pub(super) fn state_if_killed(path: &Path, copy: &Path, config: fn() -> KvConfig, wall: u64) -> State {
    copy_file(path, copy);
    let look = || {
        test_time::set(wall);
        let (kv, _) = open_with(copy, config());
        let restart = kv.restart().unwrap();
        assert_eq!(restart.cold, None);
        assert_eq!((restart.damaged_items, restart.damaged_regions), (0, 0));
        kv.validate();
        kv.end_as_killed();
        state(&kv)
    };
    // The check runs in a separate thread, because this one may hold locks.
    std::thread::scope(|scope| scope.spawn(look).join().unwrap())
}

/// Stores items of every kind, among them the one to be changed.
pub(super) fn some_items(kv: &Kv) {
    for n in 0..20u32 {
        kv.set(&n.to_le_bytes(), &value_of(n.into(), 10 * n as usize)).unwrap();
    }
    kv.set(b"large", &value_of(3, 10_000)).unwrap();
    kv.set(b"number", b"99").unwrap();
    kv.set(b"small", b"12345").unwrap();
    kv.set_for(b"short", b"lived", std::time::Duration::from_secs(50)).unwrap();
}

pub(super) fn without_cas() -> KvConfig {
    KvConfig { cas: false, ..small() }
}

pub(super) fn without_eviction() -> KvConfig {
    KvConfig { evict: false, ..small() }
}

fn one(operation: fn(&Kv, &TickClock), key: &[u8], between: Between) {
    for config in [small, without_cas, without_eviction] {
        let prepare = |kv: &Kv, _: &TickClock| some_items(kv);
        let copies = kill_at_every_store(config, prepare, operation, Some(key), between, 1);
        assert!(copies > 0, "the operation stores nothing");
    }
}

fn store(kv: &Kv, key: &[u8], value: &[u8], options: &StoreOptions) {
    kv.store(key, kv.hash(key), value, options);
}

#[test]
fn stores() {
    one(|kv, _| kv.set(b"new", b"value").unwrap(), b"new", Between::Neither);
    one(|kv, _| assert!(kv.add(b"new", b"value").unwrap()), b"new", Between::Neither);
    one(|kv, _| kv.set(b"small", b"54321").unwrap(), b"small", Between::Missing);
    one(|kv, _| kv.set(b"small", b"of another length").unwrap(), b"small", Between::Neither);
    one(|kv, _| assert!(kv.append(b"small", b"678").unwrap()), b"small", Between::Neither);
    one(|kv, _| assert!(kv.prepend(b"small", b"678").unwrap()), b"small", Between::Neither);
    let flags = |kv: &Kv, _: &TickClock| {
        let options = StoreOptions { client_flags: 77, expiry: Expiry::at(500), ..StoreOptions::default() };
        store(kv, b"small", b"with attributes", &options);
    };
    one(flags, b"small", Between::Neither);
    let cas = |kv: &Kv, _: &TickClock| {
        let (_, cas) = kv.get_with_cas(b"number").unwrap();
        let options = StoreOptions { mode: StoreMode::Cas, compare: cas, ..StoreOptions::default() };
        store(kv, b"number", b"another length", &options);
    };
    kill_at_every_store(small, |kv, _| some_items(kv), cas, Some(b"number"), Between::Neither, 1);
    // This is the same with an unchanged CAS value, which a client may set.
    let same_cas = |kv: &Kv, _: &TickClock| {
        let (_, cas) = kv.get_with_cas(b"number").unwrap();
        store(
            kv,
            b"number",
            b"another length",
            &StoreOptions { new_cas: Some(cas), ..StoreOptions::default() },
        );
    };
    kill_at_every_store(small, |kv, _| some_items(kv), same_cas, Some(b"number"), Between::Neither, 1);
}

#[test]
fn large_values() {
    one(|kv, _| kv.set(b"new", &value_of(1, 9_000)).unwrap(), b"new", Between::Neither);
    one(|kv, _| kv.set(b"large", &value_of(2, 10_000)).unwrap(), b"large", Between::Neither);
    one(|kv, _| kv.set(b"large", b"small").unwrap(), b"large", Between::Neither);
    one(|kv, _| kv.set(b"small", &value_of(4, 70_000)).unwrap(), b"small", Between::Neither);
    one(|kv, _| assert!(kv.append(b"large", b"tail").unwrap()), b"large", Between::Neither);
    one(
        |kv, _| assert!(kv.touch_for(b"large", std::time::Duration::from_secs(9))),
        b"large",
        Between::Neither,
    );
    one(|kv, _| assert!(kv.remove(b"large")), b"large", Between::Neither);
}

#[test]
fn numbers() {
    one(|kv, _| assert_eq!(kv.decrement(b"number", 1), Ok(98)), b"number", Between::Missing);
    one(|kv, _| assert_eq!(kv.increment(b"number", 1), Ok(100)), b"number", Between::Neither);
    let create = |kv: &Kv, _: &TickClock| {
        let options = ArithmeticOptions { vivify: Some((7, Expiry::NEVER)), ..ArithmeticOptions::default() };
        kv.arithmetic(b"new", kv.hash(b"new"), &options);
    };
    one(create, b"new", Between::Neither);
}

#[test]
fn removals_and_attributes() {
    one(|kv, _| assert!(kv.remove(b"small")), b"small", Between::Neither);
    let stale = |kv: &Kv, _: &TickClock| {
        let options =
            DeleteOptions { invalidate: true, expiry: Some(Expiry::at(900)), ..DeleteOptions::default() };
        kv.delete(b"short", kv.hash(b"short"), &options);
    };
    kill_at_every_store(small, |kv, _| some_items(kv), stale, Some(b"short"), Between::Attributes, 1);
    let empty = |kv: &Kv, _: &TickClock| {
        let options = DeleteOptions { clear_value: true, ..DeleteOptions::default() };
        kv.delete(b"small", kv.hash(b"small"), &options);
    };
    one(empty, b"small", Between::Neither);
    one(|kv, _| kv.touch(b"short", kv.hash(b"short"), Expiry::at(777)).unwrap(), b"short", Between::Neither);
    one(|kv, _| kv.touch(b"small", kv.hash(b"small"), Expiry::at(777)).unwrap(), b"small", Between::Neither);
    let vivify = |kv: &Kv, _: &TickClock| {
        let options = FetchOptions { vivify: Some(Expiry::at(800)), tokens: true, ..FetchOptions::default() };
        kv.fetch(b"new", kv.hash(b"new"), &options, |_, _| ()).unwrap();
    };
    one(vivify, b"new", Between::Neither);
    one(|kv, _| assert!(kv.get(b"small").is_some()), b"small", Between::Neither);
    let expires = |kv: &Kv, clock: &TickClock| {
        clock.advance(100);
        assert_eq!(kv.get(b"short"), None);
    };
    one(expires, b"short", Between::Neither);
}

#[test]
fn reservations() {
    let commit = |kv: &Kv, _: &TickClock| {
        let options = StoreOptions::default();
        let mut reservation = kv.reserve(b"small", kv.hash(b"small"), 12_000, &options).unwrap();
        assert!(reservation.write(&value_of(6, 12_000)));
        reservation.commit();
        let mut dropped = kv.reserve(b"number", kv.hash(b"number"), 12_000, &options).unwrap();
        assert!(dropped.write(&value_of(6, 11_000)));
    };
    one(commit, b"small", Between::Neither);
}

#[test]
fn flushes() {
    for config in [small, without_eviction] {
        let prepare = |kv: &Kv, _: &TickClock| some_items(kv);
        kill_at_every_store(config, prepare, |kv, _| kv.flush_all(), None, Between::Neither, 1);
        let and_reclaim = |kv: &Kv, _: &TickClock| {
            kv.flush_all();
            while kv.maintain() {}
        };
        kill_at_every_store(config, prepare, and_reclaim, None, Between::Neither, 1);
        let later = |kv: &Kv, clock: &TickClock| {
            kv.flush_at(clock.now_secs() + 5);
            clock.advance(5);
            assert_eq!(kv.get(b"small"), None);
        };
        kill_at_every_store(config, prepare, later, None, Between::Neither, 1);
    }
}

/// A full store frees memory: items are evicted or kept and moved, and their regions freed.
#[test]
fn evictions() {
    let fill = |kv: &Kv, _: &TickClock| {
        for n in 0..1_500u32 {
            kv.set(&n.to_le_bytes(), &value_of(n.into(), 300 + n as usize % 900)).unwrap();
            kv.get(&(n / 2).to_le_bytes());
        }
    };
    let more = |kv: &Kv, _: &TickClock| {
        for n in 5_000..5_100u32 {
            kv.set(&n.to_le_bytes(), &value_of(n.into(), 900)).unwrap();
        }
    };
    assert!(kill_at_every_store(small, fill, more, None, Between::Neither, 5) > 100);
}

/// Without eviction, garbage is compacted, and every item is present at every moment.
#[test]
fn compactions() {
    let fill = |kv: &Kv, _: &TickClock| {
        for n in 0..700u32 {
            kv.set(&n.to_le_bytes(), &value_of(n.into(), 900)).unwrap();
            if n % 100 == 99 {
                kv.set(format!("large {n}").as_bytes(), &value_of(n.into(), 15_000)).unwrap();
            }
        }
        (0..700u32).filter(|n| n % 2 == 0).for_each(|n| assert!(kv.remove(&n.to_le_bytes())));
        kv.remove(b"large 199");
        kv.remove(b"large 399");
    };
    let more = |kv: &Kv, _: &TickClock| {
        for n in 5_000..5_200u32 {
            kv.set(&n.to_le_bytes(), &value_of(n.into(), 900)).unwrap();
        }
    };
    assert!(kill_at_every_store(without_eviction, fill, more, None, Between::Neither, 3) > 100);
}
