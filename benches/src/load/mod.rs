//! The load generator: the requests ([`LoadSpec`]), sending them ([`run`], [`preload`]), and the
//! results ([`LoadReport`]).
//!
//! There is one thread per core, each with its own epoll set and its own connections; nothing is
//! shared during a run. Every reply is checked against the key space: wrong order, length or
//! content ends the run with an error.
//!
//! - **Closed loop**: each connection sends `pipeline` requests, waits for all replies, and sends
//!   the next requests. Latency is counted from just before the send. This loop shows the maximum
//!   rate of a server, and the cost of a request.
//! - **Open loop**: requests are due at times drawn in advance, whatever the server does. Latency
//!   is counted from the due time, so that a stall shows in every request that it delayed (no
//!   coordinated omission).

mod connection;
mod replies;
mod report;
mod requests;
mod schedule;
mod stream;
mod tally;
mod worker;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

pub use report::{Latency, LoadReport};
pub use schedule::ArrivalKind;
pub use stream::Stream;

use crate::cpu;
use crate::keyspace::{KeySpace, Verify};
use crate::process::{CpuClock, Resident};
use crate::protocol::Protocol;
use connection::Connection;
use requests::RequestMaker;
use worker::{Outcome, Worker};

/// The maximum number of connections in a run.
pub const CONNECTIONS_MAX: usize = 50_000;
/// The maximum number of requests in progress on one connection.
pub const PIPELINE_MAX: usize = 1_024;
/// The maximum number of keys in a get.
pub const KEYS_PER_GET_MAX: usize = 1_000;
/// The maximum size of requests or replies in progress on all connections together.
const BYTES_UNDER_WAY_MAX: usize = 4 << 30;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket's path.
    Unix(PathBuf),
    /// A TCP address of a server with TLS.
    Tls(SocketAddr),
}

/// The choice of the requested keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyChoice {
    /// Every key equally often.
    Uniform,
    /// Zipf: rank k has a frequency of k to the power of minus this exponent; ranks are scattered
    /// over the indexes.
    Zipf(f64),
    /// Sequential, each thread in its own part.
    Sequential,
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// After the previous requests on the same connection have been answered.
    Closed,
    /// At this many requests per second, all connections together, however fast the server
    /// responds.
    Open {
        /// Requests per second.
        requests_per_s: f64,
        /// The distribution of the arrivals.
        kind: ArrivalKind,
    },
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// After a warm-up that is not counted and a span that is.
    Time {
        /// The duration of the warm-up.
        warmup: Duration,
        /// The counted duration.
        measured: Duration,
    },
    /// After this many requests, all counted.
    Requests(u64),
}

/// Expiry times of the sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Seconds to live; 0 means that items do not expire.
    pub seconds: u32,
    /// Whether only keys with an odd index expire.
    pub odd_only: bool,
}

/// Nothing expires.
pub const EXPIRY_NEVER: Expiry = Expiry { seconds: 0, odd_only: false };

/// The complete description of a load.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    /// The server.
    pub target: Target,
    /// The protocol.
    pub protocol: Protocol,
    /// The existing keys and values.
    pub keys: KeySpace,
    /// The choice of the requested keys.
    pub key_choice: KeyChoice,
    /// Share of requests that are sets, 0 to 1; the others are gets.
    pub set_share: f64,
    /// The number of keys in each get.
    pub keys_per_get: usize,
    /// The number of requests sent together.
    pub pipeline: usize,
    /// The number of connections of all threads together.
    pub connections: usize,
    /// Threads.
    pub threads: usize,
    /// The cores to which the threads are pinned, in turn; empty for no pinning.
    pub cpus: Vec<usize>,
    /// When requests are sent.
    pub arrival: Arrival,
    /// The end of the run.
    pub limit: Limit,
    /// The expiry of stored items.
    pub expiry: Expiry,
    /// How thoroughly values are checked.
    pub verify: Verify,
    /// The seed of keys, operations and arrivals.
    pub seed: u64,
    /// The processes that serve, whose CPU time and memory are measured together.
    pub server_pids: Vec<u32>,
    /// The maximum time without any reply before the run fails.
    pub stall_limit: Duration,
}

impl LoadSpec {
    /// Returns a closed loop of single uniform gets for one second over 50 connections, on which
    /// most scenarios are based.
    pub fn new(target: Target, keys: KeySpace) -> Self {
        Self {
            target,
            protocol: Protocol::Text,
            keys,
            key_choice: KeyChoice::Uniform,
            set_share: 0.0,
            keys_per_get: 1,
            pipeline: 1,
            connections: 50,
            threads: 1,
            cpus: Vec::new(),
            arrival: Arrival::Closed,
            limit: Limit::Time { warmup: Duration::from_millis(200), measured: Duration::from_secs(1) },
            expiry: EXPIRY_NEVER,
            verify: Verify::Ends,
            seed: 1,
            server_pids: Vec::new(),
            stall_limit: Duration::from_secs(10),
        }
    }

    /// Checks every bound.
    fn check(&self) -> Result<()> {
        ensure!((1..=CONNECTIONS_MAX).contains(&self.connections), "1 to {CONNECTIONS_MAX} connections");
        ensure!((1..=PIPELINE_MAX).contains(&self.pipeline), "a pipeline of 1 to {PIPELINE_MAX}");
        ensure!((1..=KEYS_PER_GET_MAX).contains(&self.keys_per_get), "1 to {KEYS_PER_GET_MAX} keys per get");
        ensure!((1..=self.connections).contains(&self.threads), "1 thread to as many as connections");
        ensure!((0.0..=1.0).contains(&self.set_share), "a share of sets between 0 and 1");
        if let KeyChoice::Zipf(exponent) = self.key_choice {
            ensure!(exponent > 0.0 && exponent <= 10.0, "a Zipf exponent above 0, at most 10");
        }
        if let Arrival::Open { requests_per_s, .. } = self.arrival {
            ensure!((0.01..=1e9).contains(&requests_per_s), "a rate of 0.01 to 1e9 requests per second");
            ensure!(matches!(self.limit, Limit::Time { .. }), "an open loop runs for a time, not a count");
        }
        let item_bytes = self.keys.key_bytes() + self.keys.value_bytes_bounds().max + 64;
        let bytes = item_bytes * self.connections * self.pipeline * self.keys_per_get;
        ensure!(
            bytes <= BYTES_UNDER_WAY_MAX,
            "connections x pipeline x keys x size is {bytes} bytes under way, above {BYTES_UNDER_WAY_MAX}"
        );
        Ok(cpu::reserve_descriptors(self.connections as u64 + 64)?)
    }
}

/// Runs a load to completion.
///
/// # Errors
/// Fails if a bound is exceeded, or the server cannot be reached, closes the connection, stalls, or
/// sends a wrong reply.
pub fn run(spec: &LoadSpec) -> Result<LoadReport> {
    spec.check()?;
    let clocks = spec.server_pids.iter().map(|&pid| CpuClock::of(pid)).collect::<Result<Vec<_>>>()?;
    let failed = AtomicBool::new(false);
    let mut workers = Vec::with_capacity(spec.threads);
    for thread in 0..spec.threads {
        let connections = (part(spec.connections as u64, thread, spec.threads)).count();
        let connections = (0..connections)
            .map(|_| Connection::open(spec).with_context(|| format!("connecting to {:?}", spec.target)))
            .collect::<Result<Vec<_>>>()?;
        workers.push((thread, connections));
    }
    let base = Instant::now();
    let cpu_before_ns = CpuClock::sum_ns(&clocks)?;
    let mut outcomes: Vec<Outcome> = thread::scope(|scope| {
        let (failed, clocks) = (&failed, &clocks);
        let handles: Vec<_> = workers
            .into_iter()
            .map(|(thread, connections)| {
                let clocks = if thread == 0 { clocks.as_slice() } else { &[] };
                scope.spawn(move || {
                    let outcome = run_worker(spec, thread, connections, base, clocks, failed);
                    if outcome.is_err() {
                        failed.store(true, Ordering::Relaxed);
                    }
                    outcome
                })
            })
            .collect();
        // A worker that stopped because another one failed has no error of its own, so the error of
        // the other worker is reported.
        let results: Vec<_> = handles.into_iter().map(|handle| handle.join()).collect();
        let mut outcomes = Vec::new();
        for result in results {
            match result {
                Ok(outcome) => outcomes.push(outcome?),
                Err(_) => bail!("a load thread panicked"),
            }
        }
        Ok(outcomes)
    })?;
    if let (Limit::Requests(_), Some(before_ns)) = (spec.limit, cpu_before_ns) {
        // All threads have ended, so the whole run is the window.
        outcomes[0].server_cpu_ns = CpuClock::sum_ns(&clocks)?.map(|now_ns| now_ns.saturating_sub(before_ns));
    }
    let resident = Resident::of_all(&spec.server_pids)?;
    Ok(LoadReport::new(spec, outcomes, resident))
}

fn run_worker(
    spec: &LoadSpec,
    thread: usize,
    connections: Vec<Connection>,
    base: Instant,
    server_clocks: &[CpuClock],
    failed: &AtomicBool,
) -> Result<Outcome> {
    if !spec.cpus.is_empty() {
        let cpu = spec.cpus[thread % spec.cpus.len()];
        cpu::pin_current_thread(cpu).with_context(|| format!("pinning a load thread to core {cpu}"))?;
    }
    let requests = RequestMaker::new(spec, thread);
    Worker::new(spec, thread, connections, requests, base, server_clocks, failed)?.run()
}

/// The results of a preload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PreloadReport {
    /// The number of acknowledged sets.
    pub stored: u64,
    /// The number of sets that the server refused.
    pub refused: u64,
    /// The number of keys that still had the correct value when all keys were read afterwards.
    pub found: u64,
    /// The number of keys that were not found.
    pub missing: u64,
}

/// Sets every key of `spec` once, in order; then gets every key once, and checks each value.
///
/// # Errors
/// Returns the errors of [`run`]. A missing key is not an error here, because only the caller knows
/// whether all of them should fit.
pub fn preload(spec: &LoadSpec) -> Result<PreloadReport> {
    let stored = run(&sweep(spec, true))?;
    let found = run(&sweep(spec, false))?;
    Ok(PreloadReport {
        stored: stored.sets - stored.refused,
        refused: stored.refused,
        found: found.hits.min(spec.keys.count()),
        missing: found.misses,
    })
}

/// Sets every key once, without reading the values back.
///
/// # Errors
/// Returns the errors of [`run`].
pub fn store_all(spec: &LoadSpec) -> Result<LoadReport> {
    run(&sweep(spec, true))
}

/// Gets every key once.
///
/// # Errors
/// Returns the errors of [`run`].
pub fn read_all(spec: &LoadSpec) -> Result<LoadReport> {
    run(&sweep(spec, false))
}

/// Returns a load that makes one pass over all keys in order, in batches of up to 256 KiB.
fn sweep(spec: &LoadSpec, is_set: bool) -> LoadSpec {
    const BATCH_BYTES: usize = 256 << 10;
    let item_bytes = spec.keys.key_bytes() + spec.keys.value_bytes_bounds().max + 64;
    // memcached 1.6.18 does not read requests that share a TLS record with an earlier one.
    let pipeline_max = if matches!(spec.target, Target::Tls(_)) { 1 } else { 64 };
    let pipeline = (BATCH_BYTES / item_bytes).clamp(1, pipeline_max);
    LoadSpec {
        key_choice: KeyChoice::Sequential,
        set_share: if is_set { 1.0 } else { 0.0 },
        keys_per_get: 1,
        pipeline,
        connections: spec.threads * 4,
        arrival: Arrival::Closed,
        limit: Limit::Requests(spec.keys.count()),
        ..spec.clone()
    }
}

/// Returns the part of `thread` in a division of `count` among `threads`. The parts are
/// consecutive, and as equal as possible.
fn part(count: u64, thread: usize, threads: usize) -> std::ops::Range<u64> {
    let (thread, threads) = (thread as u128, threads as u128);
    let cut = |place: u128| (u128::from(count) * place / threads) as u64;
    cut(thread)..cut(thread + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_everything_once() {
        for (count, threads) in [(10, 3), (1, 4), (0, 2), (1_000_003, 7)] {
            let mut next = 0;
            for thread in 0..threads {
                let range = part(count, thread, threads);
                assert_eq!(range.start, next);
                next = range.end;
            }
            assert_eq!(next, count);
        }
    }
}
