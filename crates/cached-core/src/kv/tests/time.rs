//! A scheduled flush that becomes due during other operations.

use super::store_with;
use crate::clock::{Clock, TickClock};
use crate::kv::hook::{EvictedItem, EvictionHook};
use crate::kv::*;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

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

/// Makes a full store of items of a size, whose clock advances by ten seconds after some evictions.
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

/// The evicting thread holds a lane, the reclaimer and a hash bucket when the flush becomes due; it flushes
/// when it has released them.
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

/// Until a flush that is due has run, every operation that begins finds it due, and waits.
#[test]
fn no_operation_overtakes_a_flush_that_is_due() {
    let (kv, clock) = store_with(KvConfig { arena_bytes: 4 << 20, ..KvConfig::default() });
    kv.set(b"key", b"value").unwrap();
    kv.flush_at(kv.now_secs() + 5);
    // The flush takes every lane, and this one is held.
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
