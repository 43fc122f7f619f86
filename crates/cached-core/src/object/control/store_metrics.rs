//! What is counted of the requests of one namespace to the store.

use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

/// See the module. Each request takes a store's time, so plain atomics do.
#[derive(Default)]
pub(crate) struct StoreMetrics {
    requests: AtomicU64,
    bytes: AtomicU64,
    latency_nanos: AtomicU64,
    waits: AtomicU64,
    wait_nanos: AtomicU64,
}

/// The requests to the store of one namespace since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreCounters {
    /// Requests that have ended.
    pub requests: u64,
    /// What they carried, read and written, in bytes.
    pub bytes: u64,
    /// How long the store took for them, all together.
    pub latency: Duration,
    /// Requests that waited before the store was asked, because of rates, weights or the number under way.
    pub waits: u64,
    /// How long they waited, all together.
    pub waited: Duration,
}

impl std::ops::AddAssign for StoreCounters {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.latency += other.latency;
        self.waits += other.waits;
        self.waited += other.waited;
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl StoreMetrics {
    /// Counts a request that has ended.
    pub(crate) fn count(&self, bytes: u64, latency: Duration) {
        add(&self.requests, 1);
        add(&self.bytes, bytes);
        add(&self.latency_nanos, nanos(latency));
    }

    /// Counts a request that has waited at the gate.
    pub(crate) fn count_wait(&self, waited: Duration) {
        add(&self.waits, 1);
        add(&self.wait_nanos, nanos(waited));
    }

    pub(crate) fn counters(&self) -> StoreCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreCounters {
            requests: read(&self.requests),
            bytes: read(&self.bytes),
            latency: Duration::from_nanos(read(&self.latency_nanos)),
            waits: read(&self.waits),
            waited: Duration::from_nanos(read(&self.wait_nanos)),
        }
    }
}
