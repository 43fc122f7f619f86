//! Tests of the whole store: a model beside it, pressure, threads.

mod arriving;
mod behaviour;
mod between;
mod flight;
mod full;
mod model;
mod pins;
mod pressure;
mod read_many;
mod threads;
mod time;

use super::{Kv, KvConfig};
use crate::clock::TickClock;
use std::sync::Arc;
use std::time::Duration;

fn secs(secs: u32) -> Duration {
    Duration::from_secs(secs.into())
}

/// A small store on a clock that the test moves.
fn store(arena_bytes: usize, item_bytes_max: usize) -> (Kv, Arc<TickClock>) {
    store_with(KvConfig { arena_bytes, item_bytes_max, ..KvConfig::default() })
}

fn store_with(config: KvConfig) -> (Kv, Arc<TickClock>) {
    let clock = Arc::new(TickClock::new());
    (Kv::new(KvConfig { clock: clock.clone(), ..config }).unwrap(), clock)
}

/// Bytes that tell key, version and length apart at every place.
fn value_of(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|at| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ (at as u8) ^ ((at >> 8) as u8))
        .collect()
}
