//! Replays a trace through the engine itself: a real `Kv` in a small arena, with its regions,
//! sharded index, reserve of free regions, and the policy's ghosts in the same memory.
//!
//! All items have the same size. The number of objects that correspond to an arena is measured, not
//! calculated: under LRU the arena is filled with keys that are never requested again, and the
//! average number of items held then is its *capacity*, with which exact LRU and the optimum are
//! run for comparison. Every policy gets the same arena, so a policy with ghosts has less memory
//! for items. An arena has at least 1 MiB and an inline item takes at most a sixteenth of a region,
//! so the minimum capacity is about 170 objects: smaller sizes are compared at this capacity.

use anyhow::{Context, Result};
use cached_core::insight::Sampling;
use cached_core::kv::policy::by_name;
use cached_core::kv::{ARENA_BYTES_MIN, Kv, KvConfig};

use crate::decode::Trace;

/// The approximate size of an arena: 256 regions of the minimum size.
const ARENA_BYTES: u64 = 16 << 20;
/// The range of entry sizes, from 100 bytes of key and value to the largest entry in one piece.
const ENTRY_BYTES_MIN: u64 = 128;
const ENTRY_BYTES_MAX: u64 = 4 << 10;
/// Header of an item without CAS and expiry, and the key.
const HEADER_BYTES: u64 = 9 + 4;
/// An arbitrary constant, so that runs are repeatable.
const HASH_SEED: u64 = 5;

/// An arena, and the corresponding number of objects of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scale {
    arena_bytes: usize,
    value_bytes: usize,
    /// The average number of objects held under LRU.
    pub(crate) capacity: u64,
}

impl Scale {
    /// Returns the arena whose capacity is closest to the wanted number of objects.
    pub(crate) fn for_capacity(objects: u64) -> Result<Scale> {
        let entry_bytes = (ARENA_BYTES / objects.max(1)).clamp(ENTRY_BYTES_MIN, ENTRY_BYTES_MAX) & !3;
        let value_bytes = (entry_bytes - HEADER_BYTES - 3) as usize;
        let mut scale = Scale { arena_bytes: 0, value_bytes, capacity: objects };
        let mut arena_bytes = (objects * entry_bytes) as usize;
        for _ in 0..4 {
            let tried = scale.with_arena(arena_bytes.max(ARENA_BYTES_MIN))?;
            let better = tried.capacity.abs_diff(objects) < scale.capacity.abs_diff(objects);
            if scale.arena_bytes == 0 || better {
                scale = tried;
            }
            // Half of a small difference is added, because the arena consists of whole regions.
            arena_bytes = (tried.arena_bytes as u64 * objects / tried.capacity.max(1)) as usize;
        }
        Ok(scale)
    }

    fn with_arena(self, arena_bytes: usize) -> Result<Scale> {
        let mut scale = Scale { arena_bytes, capacity: 0, ..self };
        let kv = scale.store("lru", 1.0, false)?;
        let value = vec![0; scale.value_bytes];
        let keys_max = (arena_bytes / scale.value_bytes) as u32;
        let (mut held, mut looks) = (0, 0);
        for key in 0..keys_max * 4 {
            kv.set(&key.to_be_bytes(), &value).context("storing")?;
            if key >= keys_max * 2 && key % 61 == 0 {
                held += kv.stats().items;
                looks += 1;
            }
        }
        scale.capacity = held / looks.max(1);
        Ok(scale)
    }

    /// Returns the value of every object.
    pub(crate) fn value(&self) -> Vec<u8> {
        vec![0; self.value_bytes]
    }

    /// Returns a store with `factor` times the memory.
    pub(crate) fn store(&self, policy: &str, factor: f64, insight: bool) -> Result<Kv> {
        let policy = by_name(policy).with_context(|| format!("the engine has no policy `{policy}`"))?;
        let config = KvConfig {
            arena_bytes: (self.arena_bytes as f64 * factor) as usize,
            item_bytes_max: 64 << 10,
            lanes: 1,
            cas: false,
            policy,
            hash_seed: Some(HASH_SEED),
            insight: if insight { Sampling::Share(1.0) } else { Sampling::Off },
            ..KvConfig::default()
        };
        Ok(Kv::new(config)?)
    }
}

/// The results of a replay.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Replay {
    pub(crate) misses: u64,
    /// The number of regions scanned by the reclaimer.
    pub(crate) regions_walked: u64,
}

/// Replays a trace, and stores an object after each miss. The function is never inlined, so that a
/// profiler shows it separately.
#[inline(never)]
pub(crate) fn replay(trace: &Trace, scale: &Scale, policy: &str) -> Result<Replay> {
    let kv = scale.store(policy, 1.0, false)?;
    let misses = replay_into(&kv, trace, scale, |_, _| ())?;
    Ok(Replay { misses, regions_walked: kv.stats().regions_reclaimed })
}

/// Replays a trace into a store, and calls `each` with the numbers of requests and of misses after each
/// request. Returns the number of misses.
#[inline(always)]
pub(crate) fn replay_into(
    kv: &Kv,
    trace: &Trace,
    scale: &Scale,
    mut each: impl FnMut(u64, u64),
) -> Result<u64> {
    let value = vec![0; scale.value_bytes];
    let mut misses = 0;
    for (at, object) in trace.requests.iter().enumerate() {
        let key = object.to_be_bytes();
        if kv.read(&key, kv.hash(&key), |_| ()).is_err() {
            misses += 1;
            kv.set(&key, &value).context("storing")?;
        }
        each(at as u64 + 1, misses);
    }
    Ok(misses)
}

/// Returns a hash of the same quality as the engine's, for policies outside the engine.
pub(crate) fn hash(object: u32) -> u64 {
    let mixed = (u64::from(object) + 1).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(32);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xa076_1d64_78bd_642f);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arena_stands_for_what_it_holds() {
        let scale = Scale::for_capacity(2_000).unwrap();
        assert!(scale.capacity.abs_diff(2_000) <= 60, "{scale:?}");
        let tiny = Scale::for_capacity(1).unwrap();
        assert_eq!(tiny.arena_bytes, ARENA_BYTES_MIN);
        assert!((100..256).contains(&tiny.capacity), "{tiny:?}");
    }

    #[test]
    fn what_fits_is_missed_once() {
        let requests: Vec<u32> = (0..10_000).map(|n| n * 7 % 1_000).collect();
        let trace = Trace { name: String::new(), requests, object_bytes: None, objects: 1_000 };
        let scale = Scale::for_capacity(2_000).unwrap();
        for policy in ["lru", "balanced"] {
            assert_eq!(replay(&trace, &scale, policy).unwrap().misses, 1_000, "{policy}");
        }
        assert!(replay(&trace, &scale, "none").is_err());
    }
}
