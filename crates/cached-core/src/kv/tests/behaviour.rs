//! Single behaviours of the store, pinned values, and a scheduled flush that becomes due during
//! other operations.

use super::{secs, store, store_with, value_of};
use crate::clock::{Clock, Expiry, TickClock};
use crate::kv::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

#[test]
fn the_map_like_methods_do_what_they_document() {
    let (kv, clock) = store(8 << 20, 1 << 20);
    assert_eq!(kv.get(b"a"), None);
    kv.set(b"a", b"1").unwrap();
    assert!(!kv.add(b"a", b"2").unwrap());
    assert!(kv.replace(b"a", b"2").unwrap());
    assert!(!kv.replace(b"b", b"2").unwrap());
    assert!(kv.append(b"a", b"0").unwrap() && kv.prepend(b"a", b"1").unwrap());
    assert_eq!(kv.get(b"a").unwrap(), b"120");
    assert_eq!(kv.increment(b"a", 5), Ok(125));
    assert_eq!(kv.decrement(b"a", 100), Ok(25));
    assert_eq!(kv.get(b"a").unwrap(), b"25 ");
    let (_, cas) = kv.get_with_cas(b"a").unwrap();
    assert!(kv.compare_and_set(b"a", b"x", cas).is_ok());
    assert!(kv.compare_and_set(b"a", b"y", cas).is_err());
    kv.set_for(b"t", b"1", secs(10)).unwrap();
    assert!(kv.touch_for(b"a", secs(10)));
    clock.advance(9);
    assert!(kv.get(b"a").is_some() && kv.get(b"t").is_some());
    clock.advance(1);
    assert!(kv.get(b"a").is_none() && kv.get(b"t").is_none());
    kv.set(b"d", b"1").unwrap();
    assert!(kv.remove(b"d") && !kv.remove(b"d"));
    kv.validate();
}

#[test]
fn keys_outside_their_limits_are_refused() {
    let (kv, _) = store(8 << 20, 1 << 20);
    assert!(kv.set(b"", b"x").is_err());
    assert!(kv.set(&[b'k'; 251], b"x").is_err());
    assert!(kv.set(&[b'k'; 250], b"x").is_ok());
    assert!(kv.get(b"").is_none());
    assert!(kv.set(b"k", &vec![0; 1 << 20]).is_err(), "key and value exceed the item limit together");
    kv.validate();
}

#[test]
fn large_values_are_read_back_whole() {
    let (kv, _) = store(64 << 20, 32 << 20);
    for bytes in [16_000, 16_384, 17_000, 262_000, 262_144, 1 << 20, 20 << 20] {
        let value = value_of(bytes as u64, bytes);
        kv.set(b"large", &value).unwrap();
        assert!(kv.get(b"large").unwrap() == value, "{bytes} bytes");
        kv.validate();
    }
    kv.set(b"large", b"small").unwrap();
    assert_eq!(kv.stats().item_bytes, 17 + 5 + 5 + 1);
    kv.validate();
}

#[test]
fn one_reader_of_a_stale_item_wins_its_refresh() {
    let (kv, _) = store(8 << 20, 1 << 20);
    kv.set(b"k", b"v").unwrap();
    let hash = kv.hash(b"k");
    let invalidate =
        DeleteOptions { invalidate: true, expiry: Some(Expiry::at(100)), ..DeleteOptions::default() };
    assert_eq!(kv.delete(b"k", hash, &invalidate), DeleteOutcome::Done);
    let options = FetchOptions { tokens: true, ..FetchOptions::default() };
    let tokens = || kv.fetch(b"k", hash, &options, |_, f| (f.stale, f.won, f.token_sent)).unwrap();
    assert_eq!(tokens(), (true, true, false));
    assert_eq!(tokens(), (true, false, true));
    kv.set(b"k", b"new").unwrap();
    assert_eq!(tokens(), (false, false, false));
    assert_eq!(kv.peek(b"k", hash, |item| item.expiry()), Ok(Expiry::NEVER));
}

#[test]
fn an_older_cas_value_may_store_a_stale_item() {
    let (kv, _) = store(8 << 20, 1 << 20);
    let hash = kv.hash(b"k");
    let set = |cas| StoreOptions { new_cas: Some(cas), expiry: Expiry::at(500), ..StoreOptions::default() };
    kv.store(b"k", hash, b"v", &set(100));
    let cas = |compare| StoreOptions {
        mode: StoreMode::Cas,
        compare,
        allow_stale: true,
        ..StoreOptions::default()
    };
    assert_eq!(kv.store(b"k", hash, b"w", &cas(101)), StoreOutcome::Exists);
    assert!(matches!(kv.store(b"k", hash, b"w", &cas(50)), StoreOutcome::Stored { .. }));
    assert_eq!(kv.peek(b"k", hash, |item| (item.stale(), item.expiry())), Ok((true, Expiry::at(500))));
}

#[test]
fn cas_values_are_unique_and_rise() {
    let (kv, _) = store(8 << 20, 1 << 20);
    let mut seen = std::collections::HashSet::new();
    for round in 0..3 {
        for n in 0..2_000u32 {
            let before = kv.get_with_cas(&n.to_le_bytes()).map(|(_, cas)| cas);
            kv.set(&n.to_le_bytes(), &[round; 10]).unwrap();
            let (_, cas) = kv.get_with_cas(&n.to_le_bytes()).unwrap();
            assert!(cas > before.unwrap_or(0), "{cas} after {before:?}");
            assert!(seen.insert(cas), "two keys had {cas}");
        }
    }
}

#[test]
fn a_refused_add_counts_as_use_but_not_as_read() {
    let (kv, clock) = store(8 << 20, 1 << 20);
    let seen = || kv.peek(b"k", kv.hash(b"k"), |item| (item.fetched(), item.last_access())).unwrap();
    kv.set(b"k", b"1").unwrap();
    clock.advance(5);
    assert!(!kv.add(b"k", b"2").unwrap());
    assert_eq!(seen(), (false, kv.now_secs()));
    kv.get(b"k");
    assert!(!kv.add(b"k", b"2").unwrap());
    assert!(seen().0);
}

#[test]
fn without_cas_items_are_eight_bytes_smaller() {
    let (with, _) = store(8 << 20, 1 << 20);
    let (without, _) = store_with(KvConfig { arena_bytes: 8 << 20, cas: false, ..KvConfig::default() });
    for kv in [&with, &without] {
        kv.set(b"0123456789", b"0123456789").unwrap();
    }
    assert_eq!(with.stats().item_bytes - without.stats().item_bytes, 8);
    assert_eq!(without.get_with_cas(b"0123456789").unwrap().1, 0);
}

#[test]
fn without_eviction_a_full_store_refuses() {
    let (kv, _) = store_with(KvConfig { arena_bytes: 2 << 20, evict: false, ..KvConfig::default() });
    let mut stored = 0u32;
    while kv.set(&stored.to_le_bytes(), &[1; 100]).is_ok() {
        stored += 1;
    }
    assert!(stored > 8_000, "only {stored} items fit");
    assert_eq!(kv.stats().evictions, 0);
    assert!((0..stored).all(|n| kv.get(&n.to_le_bytes()).is_some()));
    // Deleting frees space again.
    (0..stored).for_each(|n| assert!(kv.remove(&n.to_le_bytes())));
    assert!(kv.set(b"again", &[1; 1000]).is_ok());
    kv.validate();
}

#[derive(Default)]
struct Recorder(Mutex<Vec<(Change, Vec<u8>, u64)>>);

impl ChangeHook for Recorder {
    fn on_change(&self, change: Change, key: &[u8], version: u64) {
        self.0.lock().unwrap().push((change, key.to_vec(), version));
    }
}

#[test]
fn the_hook_is_called_at_every_change_in_order() {
    let recorder = Arc::new(Recorder::default());
    let (kv, clock) = store_with(KvConfig { change_hook: Some(recorder.clone()), ..KvConfig::default() });
    kv.set(b"k", b"1").unwrap();
    kv.increment(b"k", 1).unwrap();
    kv.append(b"k", b"0").unwrap();
    kv.touch_for(b"k", secs(5));
    clock.advance(5);
    assert!(kv.get(b"k").is_none());
    kv.set(b"k", b"1").unwrap();
    kv.remove(b"k");
    let recorded = recorder.0.lock().unwrap();
    let changes: Vec<_> = recorded.iter().map(|(change, _, _)| *change).collect();
    use Change::{Deleted, Expired, Stored, Touched};
    assert_eq!(changes, [Stored, Stored, Stored, Touched, Expired, Stored, Deleted]);
    assert!(recorded.iter().all(|(_, key, _)| key == b"k"));
    let versions: Vec<_> = recorded.iter().map(|(_, _, version)| *version).collect();
    assert!(versions.is_sorted(), "versions rise: {versions:?}");
}

#[test]
fn a_flush_removes_earlier_items_and_no_later_ones() {
    let (kv, clock) = store(8 << 20, 1 << 20);
    for n in 0..1000u32 {
        kv.set(&n.to_le_bytes(), &[7; 50]).unwrap();
    }
    kv.flush_all();
    assert_eq!((kv.stats().items, kv.stats().item_bytes), (0, 0), "before anything is cleaned up");
    kv.set(&1u32.to_le_bytes(), b"new").unwrap();
    assert_eq!(kv.stats().items, 1);
    assert!(kv.get(&0u32.to_le_bytes()).is_none());
    assert_eq!(kv.get(&1u32.to_le_bytes()).unwrap(), b"new");
    while kv.maintain() {}
    assert_eq!(kv.stats().items, 1);
    kv.flush_at(clock_now(&kv) + 10);
    kv.set(b"later", b"1").unwrap();
    clock.advance(9);
    assert!(kv.get(b"later").is_some());
    clock.advance(1);
    assert!(kv.get(b"later").is_none());
    kv.set(b"after", b"1").unwrap();
    assert!(kv.get(b"after").is_some());
    kv.validate();
}

fn clock_now(kv: &Kv) -> u32 {
    kv.now_secs()
}

// Pinned values: their bytes neither change nor move.

fn pin(kv: &Kv, key: &[u8]) -> PinnedValue {
    kv.read(key, kv.hash(key), |item| item.pin()).unwrap()
}

/// Returns where the bytes of the key's value are.
fn place(kv: &Kv, key: &[u8]) -> *const u8 {
    kv.peek(key, kv.hash(key), |item| item.inline_value().unwrap().as_ptr()).unwrap()
}

/// A clock that stands still, and notes whether the region of an entry is pinned when the time is asked for.
#[derive(Default)]
struct PinWatch {
    entry: OnceLock<(std::sync::Weak<crate::kv::inner::Inner>, u32)>,
    pinned: AtomicU32,
}

impl Clock for PinWatch {
    fn now_secs(&self) -> u32 {
        if let Some((inner, location)) = self.entry.get()
            && let Some(inner) = inner.upgrade()
            && inner.log.is_pinned(*location)
        {
            self.pinned.fetch_add(1, Ordering::Relaxed);
        }
        crate::clock::FIRST_SECOND
    }
}

/// Without CAS values only its place shows that the item is still the one whose value was read. A flush
/// would free the region otherwise, and another item of the key could be stored in the same place.
#[test]
fn an_append_keeps_the_place_of_a_large_item_from_being_reused() {
    for mode in [StoreMode::Append, StoreMode::Prepend] {
        let clock = Arc::new(PinWatch::default());
        let ticks = clock.clone();
        let config = KvConfig { cas: false, arena_bytes: 8 << 20, clock: ticks, ..KvConfig::default() };
        let kv = Kv::new(config).unwrap();
        kv.set(b"k", &value_of(1, 600_000)).unwrap();
        let location = kv.peek(b"k", kv.hash(b"k"), |item| item.location).unwrap();
        assert!(clock.entry.set((Arc::downgrade(&kv.inner), location)).is_ok());
        let options = StoreOptions { mode, ..StoreOptions::default() };
        assert!(matches!(kv.store(b"k", kv.hash(b"k"), b"!", &options), StoreOutcome::Stored { .. }));
        assert!(clock.pinned.load(Ordering::Relaxed) > 0);
        assert!(!kv.inner.log.is_pinned(location));
        kv.validate();
    }
}

#[test]
fn a_store_over_a_pinned_value_uses_another_entry() {
    for (evict, cas) in [(true, true), (true, false), (false, true)] {
        let (kv, _) = store_with(KvConfig { arena_bytes: 4 << 20, evict, cas, ..KvConfig::default() });
        kv.set(b"k", b"first").unwrap();
        let before = place(&kv, b"k");
        let pinned = pin(&kv, b"k");
        kv.set(b"k", b"other").unwrap();
        assert_eq!(pinned.to_vec(), b"first");
        assert_eq!(kv.get(b"k").unwrap(), b"other");
        assert_ne!(place(&kv, b"k"), before);
        drop(pinned);
        // If no value is pinned, the new value is stored at the same location.
        let before = place(&kv, b"k");
        kv.set(b"k", b"third").unwrap();
        assert_eq!((kv.get(b"k").unwrap(), place(&kv, b"k")), (b"third".to_vec(), before));
        kv.validate();
    }
}

#[test]
fn an_increment_of_a_pinned_number_uses_another_entry() {
    for cas in [true, false] {
        let (kv, _) = store_with(KvConfig { arena_bytes: 4 << 20, cas, ..KvConfig::default() });
        kv.set(b"n", b"5").unwrap();
        let before = place(&kv, b"n");
        let pinned = pin(&kv, b"n");
        assert_eq!(kv.increment(b"n", 1), Ok(6));
        assert_eq!(pinned.to_vec(), b"5");
        assert_eq!(kv.get(b"n").unwrap(), b"6");
        assert_ne!(place(&kv, b"n"), before);
        drop(pinned);
        // If no value is pinned, the number is changed in place.
        let before = place(&kv, b"n");
        assert_eq!(kv.decrement(b"n", 2), Ok(4));
        assert_eq!((kv.get(b"n").unwrap(), place(&kv, b"n")), (b"4".to_vec(), before));
        kv.validate();
    }
}

/// A pinned region's memory cannot be reused before the pin is released, so a walk would free
/// nothing and copy all of it.
#[test]
fn a_region_with_a_pinned_value_is_not_walked_while_others_can_be() {
    let (kv, _) = store(4 << 20, 1 << 20);
    kv.set(b"pinned", &[7; 100]).unwrap();
    kv.set(b"beside", &[8; 100]).unwrap();
    let places = [place(&kv, b"pinned"), place(&kv, b"beside")];
    let pinned = pin(&kv, b"pinned");
    for n in 0..100_000u32 {
        kv.set(&n.to_le_bytes(), &[1; 100]).unwrap();
    }
    assert!(kv.stats().evictions > 50_000);
    assert_eq!([place(&kv, b"pinned"), place(&kv, b"beside")], places, "nothing of it was copied or evicted");
    drop(pinned);
    for n in 0..100_000u32 {
        kv.set(&n.to_le_bytes(), &[2; 100]).unwrap();
    }
    assert!(kv.peek(b"beside", kv.hash(b"beside"), |_| ()).is_err(), "it is walked like any other then");
    kv.validate();
}

// This models a scheduled flush that becomes due during other operations.

/// Advances the clock past a scheduled flush while an item is being evicted.
struct Mover {
    clock: OnceLock<Arc<TickClock>>,
    evictions: AtomicU32,
}

impl EvictionHook for Mover {
    fn on_eviction(&self, evicted: &EvictedItem<'_>) {
        assert!(evicted.now <= self.clock.get().unwrap().now_secs());
        if self.evictions.fetch_add(1, Ordering::Relaxed) == 100 {
            self.clock.get().unwrap().advance(10);
        }
    }
}

/// Fills a store with items of a size. Its clock advances by ten seconds after some evictions.
fn evicting(bytes: usize) -> Kv {
    let mover = Arc::new(Mover { clock: OnceLock::new(), evictions: AtomicU32::new(0) });
    let (kv, clock) = store_with(KvConfig {
        arena_bytes: 4 << 20,
        eviction_hook: Some(mover.clone()),
        ..KvConfig::default()
    });
    mover.clock.set(clock).unwrap();
    for n in 0..u32::MAX {
        if mover.evictions.load(Ordering::Relaxed) > 0 {
            break;
        }
        kv.set(&n.to_le_bytes(), &vec![1; bytes]).unwrap();
    }
    kv
}

/// The evicting thread holds a lane, the reclaimer and a hash bucket when the flush becomes due; it
/// flushes once it has released them.
#[test]
fn a_flush_that_becomes_due_during_evictions_waits_for_the_evicting_thread() {
    for bytes in [100, 20_000] {
        let kv = evicting(bytes);
        kv.set(b"before", b"1").unwrap();
        kv.flush_at(kv.now_secs() + 5);
        let end = 1_000_000 + (40 << 20) / bytes as u32;
        for n in 1_000_000..end {
            kv.set(&n.to_le_bytes(), &vec![2; bytes]).unwrap();
        }
        assert!(kv.get(b"before").is_none());
        assert!(kv.get(&(end - 1).to_le_bytes()).is_some());
        while kv.maintain() {}
        kv.validate();
    }
}

/// Until a due flush has run, every operation that starts finds the flush due, and waits for it.
#[test]
fn no_operation_overtakes_a_flush_that_is_due() {
    let (kv, clock) = store_with(KvConfig { arena_bytes: 4 << 20, ..KvConfig::default() });
    kv.set(b"key", b"value").unwrap();
    kv.flush_at(kv.now_secs() + 5);
    // A flush takes every lane's lock. The test holds one of them, so the flush waits.
    let lane = kv.inner.log.lock_a_lane();
    clock.advance(10);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| kv.get(b"key"));
        while !kv.inner.flush.is_running() {
            std::thread::yield_now();
        }
        assert_ne!(kv.inner.flush.due(), 0, "another operation would overtake it");
        drop(lane);
        assert!(reader.join().unwrap().is_none());
    });
    assert_eq!(kv.inner.flush.due(), 0);
}
