//! Two threads killed at the same time. While the first one is stopped after one of its operation's
//! writes to memory, the second one runs whole operations, and the memory is copied and opened
//! after each of its writes. So for each pair of operations, every combination of their progress is
//! tried. Both append to the same region.

use super::points::{Between, some_items, state_if_killed, without_cas, without_eviction};
use super::*;
use crate::kv::tests::value_of;
use crate::kv::{ItemView, StoreMode, StoreOptions};
use crate::stores;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread;

/// An operation of the second thread, repeated for each write of the first one.
struct Second {
    /// The key is in another shard than the first thread's, so that neither thread waits for the
    /// other's hash bucket.
    key: Vec<u8>,
    operation: fn(&Kv, &[u8], u32),
    /// Whether the operation allocates an entry, and would therefore wait for the first thread
    /// while that thread allocates.
    allocates: bool,
    /// Whether the item may be missing during the operation.
    may_miss: bool,
}

fn replace(kv: &Kv, key: &[u8], n: u32) {
    // The new value never has the size of the present one.
    kv.set(key, &value_of(n.into(), 40 + 40 * (n as usize % 2))).unwrap();
}

fn overwrite(kv: &Kv, key: &[u8], n: u32) {
    kv.set(key, &value_of(n.into(), 50)).unwrap();
}

fn count(kv: &Kv, key: &[u8], n: u32) {
    assert_eq!(kv.increment(key, 1), Ok(u64::from(n) + 101));
}

fn touch(kv: &Kv, key: &[u8], n: u32) {
    kv.touch(key, kv.hash(key), Expiry::at(1_000 + n)).unwrap();
}

fn remove_and_add(kv: &Kv, key: &[u8], n: u32) {
    assert!(kv.remove(key));
    assert!(kv.add(key, &value_of(n.into(), 30)).unwrap());
}

/// Returns the visible properties of a key's item.
fn seen(kv: &Kv, key: &[u8]) -> Option<Seen> {
    let see = |item: &ItemView<'_>| Seen {
        value: item.to_vec(),
        client_flags: item.client_flags(),
        expiry: item.expiry(),
        cas: item.cas(),
        stale: item.stale(),
    };
    kv.peek(key, kv.hash(key), see).ok()
}

/// Creates the second thread's keys.
fn seconds(kv: &Kv, first: &[u8]) -> Vec<Second> {
    let shard = |key: &[u8]| kv.inner.index.shard_number(kv.hash(key));
    /// The name, the action, whether the action allocates, and whether its key may be missing.
    type Operation = (&'static str, fn(&Kv, &[u8], u32), bool, bool);
    let operations: [Operation; 5] = [
        ("replaced", replace, true, false),
        // These two also allocate if the region is pinned.
        ("overwritten", overwrite, true, true),
        ("counted", count, true, true),
        ("touched", touch, false, false),
        ("removed", remove_and_add, true, true),
    ];
    let of = |(name, operation, allocates, may_miss): (&str, _, _, _)| {
        let keys = (0..).map(|n| format!("{name} {n}").into_bytes());
        let key = keys.into_iter().find(|key| shard(key) != shard(first)).unwrap();
        let value = if name == "counted" { b"100".to_vec() } else { value_of(0, 50) };
        let expiry = if name == "touched" { Expiry::at(900) } else { Expiry::NEVER };
        kv.store(&key, kv.hash(&key), &value, &StoreOptions { expiry, ..StoreOptions::default() });
        Second { key, operation, allocates, may_miss }
    };
    operations.into_iter().map(of).collect()
}

/// Runs the second thread's operations once for each message, and then replies. Returns what would
/// be visible after a kill, except for this thread's keys, which are checked here.
fn run_second(
    kv: &Kv,
    seconds: &[Second],
    look: impl Fn() -> State + Clone + 'static,
    turns: &mpsc::Receiver<()>,
    done: &mpsc::Sender<()>,
) -> Vec<State> {
    let mut all = Vec::new();
    let mut rounds = vec![0; seconds.len()];
    while turns.recv().is_ok() {
        for (second, round) in seconds.iter().zip(&mut rounds) {
            if second.allocates && !kv.inner.log.is_a_lane_free() {
                continue;
            }
            let before: Vec<_> = seconds.iter().map(|second| seen(kv, &second.key)).collect();
            let shots: Rc<RefCell<Vec<State>>> = Rc::default();
            let hook = {
                let (look, shots) = (look.clone(), shots.clone());
                move || shots.borrow_mut().push(look())
            };
            stores::observe(hook, || (second.operation)(kv, &second.key, *round));
            *round += 1;
            let after = seen(kv, &second.key);
            let shots = shots.take();
            assert!(!shots.is_empty(), "an operation that stores nothing");
            for mut shot in shots {
                for (other, before) in seconds.iter().zip(&before) {
                    let found = shot.remove(&other.key);
                    let is_changed =
                        other.key == second.key && (found == after || found.is_none() && second.may_miss);
                    assert!(
                        found == *before || is_changed,
                        "{} was {before:?}, becomes {after:?}, is {found:?}",
                        String::from_utf8_lossy(&other.key)
                    );
                }
                all.push(shot);
            }
        }
        done.send(()).unwrap();
    }
    all
}

/// Returns the number of copies.
fn two_at_once(config: fn() -> KvConfig, first: fn(&Kv), key: &[u8], between: Between) -> usize {
    let lab = Lab::new();
    let path = lab.path();
    let (kv, clock) = open_with(&path, config());
    set_wall_clock(&clock);
    some_items(&kv);
    let seconds = seconds(&kv, key);
    let without_seconds = |mut state: State| {
        seconds.iter().for_each(|second| drop(state.remove(&second.key)));
        state
    };
    let before = without_seconds(state(&kv));
    let (turn, turns) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    let wall = ZERO_UNIX_SECS + u64::from(clock.now_secs());
    let look = {
        let (path, copy) = (path.clone(), lab.path());
        move || state_if_killed(&path, &copy, config, wall)
    };
    let (kv, seconds) = (&kv, &seconds);
    let found = thread::scope(|scope| {
        let second = scope.spawn(move || {
            test_time::set(wall);
            run_second(kv, seconds, look, &turns, &done)
        });
        let hook = move || {
            turn.send(()).unwrap();
            is_done.recv().expect("the second thread goes on");
        };
        // The hook is dropped at the end, which closes the channel.
        stores::observe(hook, || first(kv));
        second.join().unwrap()
    });
    kv.validate();
    let after = without_seconds(state(kv));
    for seen in &found {
        for name in before.keys().chain(after.keys()).chain(seen.keys()) {
            let (old, new, found) = (before.get(name), after.get(name), seen.get(name));
            let may_miss = between == Between::Missing && found.is_none();
            assert!(
                found == old || name == key && (found == new || may_miss),
                "{:?} was {old:?}, becomes {new:?}, is {found:?}",
                String::from_utf8_lossy(name),
            );
        }
    }
    found.len()
}

fn one_configuration(config: fn() -> KvConfig, first: fn(&Kv), key: &[u8], between: Between) {
    let copies = two_at_once(config, first, key, between);
    assert!(copies > 10, "only {copies} copies: the two were hardly under way at once");
}

fn all_configurations(first: fn(&Kv), key: &[u8], between: Between) {
    [small, without_cas, without_eviction]
        .into_iter()
        .for_each(|config| one_configuration(config, first, key, between));
}

#[test]
fn a_new_item() {
    one_configuration(small, |kv| kv.set(b"new", b"value").unwrap(), b"new", Between::Neither);
}

#[test]
fn a_replaced_item() {
    let first = |kv: &Kv| kv.set(b"small", b"of another length").unwrap();
    all_configurations(first, b"small", Between::Neither);
}

#[test]
fn an_overwritten_item() {
    all_configurations(|kv| kv.set(b"small", b"54321").unwrap(), b"small", Between::Missing);
}

#[test]
fn a_joined_item() {
    let first = |kv: &Kv| assert!(kv.append(b"small", b"678").unwrap());
    one_configuration(small, first, b"small", Between::Neither);
}

#[test]
fn a_number() {
    all_configurations(|kv| assert_eq!(kv.decrement(b"number", 1), Ok(98)), b"number", Between::Missing);
}

#[test]
fn a_removed_item() {
    one_configuration(without_eviction, |kv| assert!(kv.remove(b"small")), b"small", Between::Neither);
}

#[test]
fn a_large_item() {
    let first = |kv: &Kv| kv.set(b"large", &value_of(2, 9_000)).unwrap();
    one_configuration(small, first, b"large", Between::Neither);
}

/// The second thread allocates entries after one that is being filled.
#[test]
fn a_reservation() {
    let first = |kv: &Kv| {
        let options = StoreOptions { mode: StoreMode::Set, ..StoreOptions::default() };
        let mut reservation = kv.reserve(b"small", kv.hash(b"small"), 3_000, &options).unwrap();
        assert!(reservation.write(&value_of(6, 3_000)));
        reservation.commit();
    };
    one_configuration(without_cas, first, b"small", Between::Neither);
}
