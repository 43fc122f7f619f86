//! Flushes of a prefix: which items end, which stay, and the sweep.

use super::{store, store_with, value_of};
use crate::kv::request::{Change, ChangeHook};
use crate::kv::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

fn key(prefix: &str, number: u64) -> Vec<u8> {
    format!("{prefix}{number}").into_bytes()
}

fn fill(kv: &Kv, prefix: &str, items: u64) {
    (0..items).for_each(|number| kv.set(&key(prefix, number), b"value").unwrap());
}

fn present(kv: &Kv, prefix: &str, items: u64) -> u64 {
    (0..items).filter(|number| kv.get(&key(prefix, *number)).is_some()).count() as u64
}

#[test]
fn items_of_the_prefix_end_at_once_and_others_stay() {
    let (kv, _) = store(64 << 20, 1 << 20);
    fill(&kv, "a:", 5_000);
    fill(&kv, "b:", 5_000);
    kv.set(b"a", b"shorter than the prefix").unwrap();
    kv.set(b"a:large", &value_of(1, 300_000)).unwrap();
    let (pin, pinned) = kv.peek(b"a:large", kv.hash(b"a:large"), |item| (item.pin(), item.to_vec())).unwrap();
    kv.flush_prefix(b"a:").unwrap();
    // These checks run before any sweep, and reach an item in every possible way.
    let hash = kv.hash(b"a:1");
    assert_eq!(kv.peek(b"a:1", hash, |_| ()), Err(Miss::Flushed));
    assert_eq!(kv.fetch(b"a:2", kv.hash(b"a:2"), &FetchOptions::default(), |_, _| ()), Err(Miss::Flushed));
    assert_eq!(kv.get(b"a:large"), None);
    assert!(
        !kv.replace(b"a:3", b"new").unwrap() && !kv.append(b"a:4", b"new").unwrap() && !kv.remove(b"a:5")
    );
    assert_eq!(kv.increment(b"a:6", 1), Err(CountError::NotFound));
    assert!(kv.add(b"a:7", b"new").unwrap());
    let mut found = Vec::new();
    let keys: [&[u8]; 3] = [b"a:8", b"b:8", b"a:7"];
    kv.read_many(&keys, &mut found, |found, _, _| found.push(true), |found, _, _| found.push(false));
    assert_eq!(found, [false, true, true]);
    assert_eq!(kv.keys().filter(|key| key.starts_with(b"a:")).count(), 1, "walks pass over them");
    assert_eq!((present(&kv, "a:", 5_000), present(&kv, "b:", 5_000)), (1, 5_000));
    assert!(kv.get(b"a").is_some());
    while kv.sweep_prefixes() {}
    assert_eq!((kv.stats().items, present(&kv, "a:", 5_000)), (5_002, 1));
    assert_eq!(kv.peek(b"a:1", hash, |_| ()), Err(Miss::Absent), "the sweep leaves no trace of an item");
    let stats = kv.prefix_flushes();
    assert_eq!((stats.flushes, stats.pending, stats.sweeps, stats.swept_share), (1, 0, 1, 1.0));
    assert_eq!((stats.items_removed, stats.marks), (5_001, 0));
    assert!(stats.bytes_removed > 300_000);
    assert!(!kv.sweep_prefixes() && kv.prefix_flushes().sweeps == 1, "there is nothing to sweep");
    assert_eq!(pin.to_vec(), pinned, "a reader keeps what it has");
    drop(pin);
    kv.validate();
}

#[test]
fn what_is_stored_again_survives_the_sweep_and_the_next_flush_ends_it() {
    let (kv, _) = store(64 << 20, 1 << 20);
    fill(&kv, "a:", 2_000);
    kv.flush_prefix(b"a:").unwrap();
    let mut stored = 0;
    loop {
        // Some items are stored before the sweep passes them, some afterwards, and each twice, so
        // that items are replaced too.
        for number in stored..(stored + 40).min(2_000) {
            kv.set(&key("a:", number), b"new").unwrap();
            kv.set(&key("a:", number), b"newer than new").unwrap();
        }
        stored = (stored + 40).min(2_000);
        assert_eq!(present(&kv, "a:", stored), stored);
        if !kv.sweep_buckets(16) {
            break;
        }
    }
    assert!(stored > 400, "the sweep was done after {stored} stores");
    assert_eq!(present(&kv, "a:", 2_000), stored);
    // Flushes the same prefix twice in the middle of the next sweep; the second flush covers the
    // first.
    kv.flush_prefix(b"a:").unwrap();
    assert_eq!(present(&kv, "a:", 2_000), 0);
    fill(&kv, "a:", 1_000);
    assert!(kv.sweep_buckets(64));
    let share = kv.prefix_flushes().swept_share;
    assert!(share > 0.0 && share < 0.5, "{share}");
    kv.flush_prefix(b"a:1").unwrap();
    kv.flush_prefix(b"a:").unwrap();
    assert_eq!(kv.prefix_flushes().pending, 2);
    assert_eq!(present(&kv, "a:", 1_000), 0);
    fill(&kv, "a:", 500);
    let sweeps = kv.prefix_flushes().sweeps;
    while kv.sweep_buckets(64) {
        assert_eq!(present(&kv, "a:", 1_000), 500);
    }
    assert_eq!((kv.prefix_flushes().sweeps - sweeps, kv.prefix_flushes().marks), (2, 0));
    assert_eq!((present(&kv, "a:", 1_000), kv.stats().items), (500, 500));
    kv.validate();
}

#[test]
fn the_index_may_grow_during_the_sweep() {
    let (kv, _) = store(64 << 20, 1 << 20);
    fill(&kv, "a:", 20_000);
    kv.flush_prefix(b"a:").unwrap();
    let mut round = 0;
    while kv.sweep_buckets(32) {
        round += 1;
        // Stores every key again, and three times as many others, so that the table doubles twice.
        fill(&kv, &format!("b:{round}:"), 600);
        (0..200).for_each(|number| kv.set(&key("a:", 20_000 + round * 200 + number), b"new").unwrap());
    }
    assert!(round > 50, "{round}");
    assert_eq!(present(&kv, "a:", 20_000), 0);
    let new = (20_200..20_200 + round * 200).filter(|number| kv.get(&key("a:", *number)).is_some()).count();
    assert_eq!(new as u64, round * 200);
    assert_eq!(kv.stats().items, round * 800, "no old item is left in the index");
    kv.validate();
}

#[test]
fn the_memory_comes_back_where_nothing_is_evicted() {
    let (kv, _) = store_with(KvConfig { arena_bytes: 8 << 20, evict: false, ..KvConfig::default() });
    let value = value_of(1, 20_000);
    let fill =
        |prefix: &str| (0..).take_while(|number| kv.set(&key(prefix, *number), &value).is_ok()).count();
    let first = fill("a:");
    assert!(first > 300, "{first}");
    assert_eq!(fill("b:"), 0);
    kv.flush_prefix(b"a:").unwrap();
    while kv.sweep_prefixes() {}
    assert_eq!(kv.stats().items, 0);
    let again = fill("b:");
    assert!(again + 20 > first, "{again} of {first}");
    assert_eq!(present(&kv, "b:", again as u64), again as u64);
}

#[test]
fn prefixes_and_marks_are_bounded() {
    let (kv, _) = store(ARENA_BYTES_MIN, 64 << 10);
    assert_eq!(kv.flush_prefix(b""), Err(PrefixError::Length));
    assert_eq!(kv.flush_prefix(&[b'k'; 251]), Err(PrefixError::Length));
    kv.flush_prefix(&[b'k'; 250]).unwrap();
    kv.set(b"p255", b"v").unwrap();
    (1..256).for_each(|number| kv.flush_prefix(&key("p", number)).unwrap());
    assert_eq!(kv.flush_prefix(b"q"), Err(PrefixError::TooMany));
    assert_eq!((kv.prefix_flushes().pending, kv.prefix_flushes().refused), (256, 1));
    // A prefix that covers others replaces them.
    kv.flush_prefix(b"p").unwrap();
    assert_eq!(kv.prefix_flushes().pending, 2);
    assert_eq!(kv.get(b"p255"), None);
    let max = kv.prefix_flushes().marks_max;
    assert_eq!(max, 1024);
    // Keys with the prefix are marked, others are not.
    let refused = |prefix: &str| {
        let stored = |number| kv.set(&key(prefix, number), b"v") == Err(StoreError::OutOfMemory);
        (0..max + 100).filter(|number| stored(*number)).count()
    };
    assert_eq!(refused("other"), 0);
    assert_eq!(refused("p:"), 100, "each refused store would have been lost");
    assert_eq!(kv.get(&key("p:", max + 1)), None);
    assert_eq!(kv.prefix_flushes().marks, max);
    while kv.sweep_prefixes() {}
    assert_eq!(refused("p:"), 0);
    kv.validate();
}

#[test]
fn a_flush_of_everything_and_one_of_a_prefix_go_together() {
    let (kv, _) = store(64 << 20, 1 << 20);
    fill(&kv, "a:", 1_000);
    kv.flush_prefix(b"a:").unwrap();
    kv.sweep_buckets(64);
    fill(&kv, "b:", 1_000);
    kv.flush_all();
    assert_eq!((present(&kv, "a:", 10), present(&kv, "b:", 10), kv.stats().items), (0, 0, 0));
    // Stored after both flushes, so the sweep must not remove it.
    fill(&kv, "a:", 100);
    while kv.sweep_prefixes() {}
    assert_eq!(present(&kv, "a:", 100), 100);
    kv.flush_prefix(b"a:").unwrap();
    fill(&kv, "a:", 50);
    while kv.sweep_prefixes() {}
    // Items ended by the flush of everything are still in the index, but are not counted.
    assert_eq!((present(&kv, "a:", 100), kv.stats().items), (50, 50));
    while kv.maintain() {}
    assert_eq!((present(&kv, "a:", 100), kv.stats().items), (50, 50));
    kv.flush_prefix(b"a:").unwrap();
    while kv.maintain() {}
    assert_eq!((kv.prefix_flushes().pending, kv.stats().items), (0, 0), "upkeep sweeps as well");
    kv.validate();
}

#[test]
fn a_prefix_stays_pending_when_a_flush_of_everything_is_done() {
    let (kv, _) = store(64 << 20, 1 << 20);
    fill(&kv, "b:", 30_000);
    kv.flush_all();
    // Each call of `maintain` sweeps a part of the index, and one of them completes the flush of
    // everything.
    for round in 0..30 {
        fill(&kv, &format!("a:{round}:"), 20);
        kv.flush_prefix(b"a:").unwrap();
        kv.maintain();
        assert_eq!(present(&kv, &format!("a:{round}:"), 20), 0, "round {round}");
    }
    while kv.maintain() {}
    assert_eq!(kv.stats().items, 0);
    kv.validate();
}

#[test]
fn the_hook_is_told_of_each_item_once() {
    #[derive(Default)]
    struct Flushed(AtomicU64);
    impl ChangeHook for Flushed {
        fn on_change(&self, change: Change, key: &[u8], _version: u64) {
            if change == Change::Flushed {
                assert!(key.starts_with(b"a:"));
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    let hook = Arc::new(Flushed::default());
    let (kv, _) = store_with(KvConfig { change_hook: Some(hook.clone()), ..KvConfig::default() });
    fill(&kv, "a:", 100);
    fill(&kv, "b:", 100);
    kv.flush_prefix(b"a:").unwrap();
    assert_eq!(present(&kv, "a:", 30), 0);
    assert_eq!(hook.0.load(Ordering::Relaxed), 30);
    while kv.sweep_prefixes() {}
    assert_eq!(hook.0.load(Ordering::Relaxed), 100);
}

/// Some threads own several keys each, one thread flushes their prefix, and one sweeps.
#[test]
fn a_reader_never_sees_what_was_stored_before_a_flush_that_is_done() {
    const FLUSHES: u64 = if cfg!(miri) { 2 } else { 300 };
    const KEYS: usize = 500;
    let (kv, _) = store(4 << 20, 64 << 10);
    fill(&kv, "b:", 3_000);
    // The number of flushes that have begun, and of those that have finished.
    let (begun, done, end) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for owner in 0..2u64 {
            let (kv, begun, done, end) = (&kv, &begun, &done, &end);
            scope.spawn(move || {
                // For each key, the number of flushes that had begun when its store was complete.
                let mut stored = [0; KEYS];
                let mut round = 0;
                while !end.load(Ordering::Acquire) {
                    round += 7;
                    let at = round % KEYS;
                    let key = key("a:", owner * 1_000_000 + at as u64);
                    let before = done.load(Ordering::Acquire);
                    let is_there = kv.get(&key).is_some();
                    assert!(!is_there || stored[at] >= before, "it was stored before flush {before} began");
                    let (first, complete) = (begun.load(Ordering::Acquire), done.load(Ordering::Acquire));
                    kv.set(&key, b"value").unwrap();
                    stored[at] = begun.load(Ordering::Acquire);
                    let is_there = kv.get(&key).is_some();
                    // There is space for all keys, so only a flush that had not finished before the
                    // store may end it.
                    let no_flush = complete == first && begun.load(Ordering::Acquire) == first;
                    assert!(is_there || !no_flush, "lost without a flush after {first}");
                }
            });
        }
        scope.spawn(|| {
            while !end.load(Ordering::Acquire) {
                kv.sweep_buckets(8);
            }
        });
        for flush in 1..=FLUSHES {
            begun.store(flush, Ordering::Release);
            kv.flush_prefix(b"a:").unwrap();
            done.store(flush, Ordering::Release);
            (0..50).for_each(|number| assert!(kv.get(&key("b:", number * 60)).is_some()));
        }
        end.store(true, Ordering::Release);
    });
    while kv.sweep_prefixes() {}
    kv.validate();
    assert_eq!(present(&kv, "b:", 3_000), 3_000);
}
