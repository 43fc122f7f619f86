//! Tests of the whole store: against a model, under memory pressure, and with threads.

mod behaviour;
mod events;
mod flight;
mod full;
mod import;
mod interleaving;
mod model;
mod prefixes;
mod pressure;
mod read_many;
mod reservations;
#[cfg(not(miri))]
mod restart;
mod threads;

use super::{Kv, KvConfig};
use crate::clock::TickClock;
use std::sync::Arc;
use std::time::Duration;

fn secs(secs: u32) -> Duration {
    Duration::from_secs(secs.into())
}

/// Creates a small store with a clock that the test advances.
fn store(arena_bytes: usize, item_bytes_max: usize) -> (Kv, Arc<TickClock>) {
    store_with(KvConfig { arena_bytes, item_bytes_max, ..KvConfig::default() })
}

fn store_with(config: KvConfig) -> (Kv, Arc<TickClock>) {
    let clock = Arc::new(TickClock::new());
    (Kv::new(KvConfig { clock: clock.clone(), ..config }).unwrap(), clock)
}

/// Returns bytes that depend on the seed and on their position.
fn value_of(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ (at as u8) ^ ((at >> 8) as u8))
        .collect()
}
