//! The state that all threads of one server share.
//!
//! This state consists of parts that do not depend on each other: the store, the clock, the table
//! of connections, counters, watchers. Listeners, workers, requests and reports use the shared
//! state, which uses none of them.

pub(crate) mod clock;
pub(crate) mod faults;
pub(crate) mod live;

use crate::connections::{Attempts, CommandQueue, Connections, Endpoints, ListenerCounts, UdpSocket};
use crate::locks::{BASELINE, CHANGES, INERT, Lock};
use crate::process::Logging;
use crate::ring::Ring;
use crate::settings::size_classes::SizeClasses;
use crate::settings::{InertSettings, RingSettings, Settings};
use crate::telemetry::counters::{Counters, Totals};
use crate::telemetry::heartbeat::Heartbeat;
use crate::telemetry::insight::{HotKeys, Insight};
use crate::telemetry::prefixes::PrefixCounts;
use crate::telemetry::watch::Watch;
use blocker::trace::Tracer;
use cached_admin::insight::ObjectStatistics;
use cached_admin::insight::slow::{SlowLog, SlowReport};
use cached_core::arbiter::ArbiterMetrics;
use cached_core::insight;
use cached_core::kv::{ItemView, Kv, KvStats, PrefixError};
use cached_process::Drain;
use cached_tls::ServerTls;
use clock::ServerClock;
use faults::InjectedFaults;
use live::Live;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// The server's shared state. Every part may be used from any thread.
pub(crate) struct Shared {
    pub(crate) kv: Kv,
    pub(crate) clock: ServerClock,
    /// The settings at startup; those in `live` may have changed since.
    pub(crate) settings: Settings,
    pub(crate) live: Live,
    /// The TLS configuration, if a listener uses TLS.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// The request for an orderly shutdown.
    pub(crate) drain: Drain,
    pub(crate) logging: Logging,
    pub(crate) connections: Connections,
    pub(crate) prefixes: PrefixCounts,
    pub(crate) insight: Insight,
    /// Settings without effect; clients may change those of memcached's LRU and crawler.
    pub(crate) inert: Lock<InertSettings>,
    pub(crate) size_classes: SizeClasses,
    /// The kinds of events that watchers or `stats detail` observe. Requests read only this word.
    pub(crate) observed_events: Arc<AtomicU32>,
    pub(crate) watch: Arc<Watch>,
    /// The request to stop the server, without the delay of `drain`. Only one task may wait for it.
    pub(crate) stop: Notify,
    /// The first reason why the server cannot continue, kept until the server has ended.
    pub(crate) defect: OnceLock<String>,
    /// Defects that tests have requested.
    pub(crate) faults: InjectedFaults,
    /// The heartbeat of the acceptor, which changes once a second.
    pub(crate) acceptor_heartbeat: Heartbeat,
    /// The number of seconds for which each worker, and after them the acceptor, has made no
    /// progress. The watchdog writes the numbers.
    pub(crate) stalled_secs: Box<[AtomicU32]>,
    /// Whether new connections are being accepted.
    pub(crate) accepting: AtomicBool,
    /// The number of times that accepting was paused, for lack of descriptors or because of the
    /// connection limit.
    pub(crate) listen_disabled: AtomicU64,
    /// The total duration of the pauses in accepting, in microseconds.
    pub(crate) listen_disabled_micros: AtomicU64,
    /// The addresses that have sent wrong passwords.
    pub(crate) attempts: Attempts,
    /// The number of connections closed because they were idle.
    pub(crate) idle_kicks: AtomicU64,
    /// The listening sockets, set once they are open.
    pub(crate) listeners: OnceLock<Vec<ListenerInfo>>,
    /// The UDP sockets, set once they are open.
    pub(crate) udp: OnceLock<Arc<[UdpSocket]>>,
    /// The metrics of the object cache, if there is one; set before clients are served.
    pub(crate) objects: OnceLock<ObjectStatistics>,
    /// The metrics of the arbiter between items and objects, if they share memory.
    pub(crate) arbiter: OnceLock<Arc<ArbiterMetrics>>,
    /// The thread that sweeps prefixes, set once the thread runs.
    pub(crate) sweeper: OnceLock<Thread>,
    /// The ring to which the server belongs, if it belongs to one.
    pub(crate) ring: Option<Ring>,
    /// The tracer, if requests are traced.
    pub(crate) tracer: OnceLock<Tracer>,
    /// One set of counters per worker.
    counters: Box<[Arc<Counters>]>,
    /// The counts at the last `stats reset`.
    baseline: Lock<Baseline>,
    /// Held by threads other than workers while they change the store or read its items; true once
    /// another process has the store.
    pub(crate) is_handed_over: Lock<bool>,
    /// The requested upgrade, in which another process takes over.
    pub(crate) upgrade: Upgrader,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("listeners", &self.listeners).finish_non_exhaustive()
    }
}

/// A listening socket, for `stats conns` and metrics.
#[derive(Debug)]
pub(crate) struct ListenerInfo {
    pub(crate) fd: RawFd,
    pub(crate) endpoints: Endpoints,
    pub(crate) counts: Arc<ListenerCounts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Baseline {
    totals: Totals,
    kv: KvStats,
    connections: u64,
    rejected: u64,
}

impl Shared {
    /// Waits until an orderly shutdown has been requested and its delay, during which clients are
    /// still served, has passed.
    pub(crate) async fn drained(&self) {
        self.drain.requested().await;
        tokio::time::sleep(self.live.drain_delay.get()).await;
    }

    /// Records that a thread has panicked, and requests the stop.
    pub(crate) fn fail_by_panic(&self, thread: &str, payload: &(dyn std::any::Any + Send)) {
        let words = payload.downcast_ref::<&str>().copied();
        let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        self.fail(format!("{thread} has panicked: {}", words.unwrap_or("no reason is given")));
    }

    /// Records why a part of the server cannot work, and requests the stop, because the server does
    /// not continue without that part.
    pub(crate) fn fail(&self, text: String) {
        tracing::error!("{text}; the server ends");
        // Records why a part of the server cannot work, and requests the stop: the server does not
        // continue without that part.
        let _ = self.defect.set(text);
        self.stop.notify_one();
    }

    /// Returns the state of a node of a ring.
    pub(crate) fn ring_of(ring: &RingSettings, settings: &Settings) -> Ring {
        Ring::new(ring, settings.threads, Duration::from_secs(settings.upgrade_timeout_secs))
    }

    /// Returns the state of a server with one command queue for each worker.
    pub(crate) fn new(
        kv: Kv,
        clock: ServerClock,
        settings: Settings,
        logging: Logging,
        watch: Arc<Watch>,
        queues: Arc<[CommandQueue]>,
    ) -> Shared {
        let observed_events = watch.observed_events();
        let counters: Box<[Arc<Counters>]> =
            (0..settings.threads).map(|worker| Arc::new(Counters::of_worker(worker))).collect();
        let insight = Insight {
            is_on: settings.insight.enabled,
            hot: HotKeys::new(
                if settings.insight.enabled { settings.threads } else { 0 },
                settings.prefix_delimiter.unwrap_or(b':'),
            ),
            slow: Arc::new(SlowLog::new(settings.insight.slow_threshold())),
        };
        if settings.insight.enabled {
            counters.iter().for_each(|worker| worker.next_sample.start());
        }
        let ring = settings.ring.as_deref().map(|ring| Shared::ring_of(ring, &settings));
        Shared {
            kv,
            clock,
            logging,
            connections: Connections::new(queues),
            prefixes: PrefixCounts::new(settings.prefix_delimiter, observed_events.clone()),
            insight,
            inert: Lock::ranked(settings.inert.clone(), &INERT),
            size_classes: SizeClasses::new(&settings.classes),
            observed_events,
            watch,
            stop: Notify::new(),
            defect: OnceLock::new(),
            faults: InjectedFaults::default(),
            acceptor_heartbeat: Heartbeat::default(),
            stalled_secs: (0..=settings.threads).map(|_| AtomicU32::new(0)).collect(),
            accepting: AtomicBool::new(true),
            listen_disabled: AtomicU64::new(0),
            listen_disabled_micros: AtomicU64::new(0),
            attempts: Attempts::default(),
            idle_kicks: AtomicU64::new(0),
            listeners: OnceLock::new(),
            udp: OnceLock::new(),
            objects: OnceLock::new(),
            arbiter: OnceLock::new(),
            sweeper: OnceLock::new(),
            ring,
            tracer: OnceLock::new(),
            counters,
            baseline: Lock::ranked(Baseline::default(), &BASELINE),
            is_handed_over: Lock::ranked(false, &CHANGES),
            upgrade: Upgrader::default(),
            live: Live::new(&settings),
            tls: None,
            drain: Drain::default(),
            settings,
        }
    }

    /// Returns the counters of one worker.
    pub(crate) fn counters(&self, worker: usize) -> &Arc<Counters> {
        &self.counters[worker]
    }

    /// Requests that each worker measure its next loop iteration. This is called once a second.
    pub(crate) fn request_timings(&self) {
        self.counters.iter().for_each(|worker| worker.next_timed.request());
    }

    /// Evaluates the samples taken so far. Returns whether there were any.
    pub(crate) fn take_samples(&self) -> bool {
        if !self.insight.is_on {
            return false;
        }
        let totals = self.sum();
        let gets = insight::Totals {
            requests: totals.gets,
            misses: totals.get_misses,
            expired: totals.get_expired,
            flushed: totals.get_flushed,
        };
        let keys = self.insight.hot.take(totals.gets, Instant::now());
        let objects = self.objects.get().map_or(0, ObjectStatistics::take_samples);
        self.kv.take_samples(Some(gets)) + keys + objects > 0
    }

    /// Removes all items whose keys begin with `prefix`, and wakes the thread that frees their
    /// memory.
    ///
    /// # Errors
    /// Returns [`PrefixError`]. In that case nothing is removed.
    pub(crate) fn flush_prefix(&self, prefix: &[u8]) -> Result<(), PrefixError> {
        self.kv.flush_prefix(prefix)?;
        if let Some(sweeper) = self.sweeper.get() {
            sweeper.unpark();
        }
        Ok(())
    }

    /// Returns the reasons for which keys were missed, from all samples so far; `None` without
    /// samples.
    pub(crate) fn misses_by_reason(&self) -> Option<insight::MissesByReason> {
        self.take_samples();
        self.kv.misses_by_reason()
    }

    /// Returns the slow requests of all listeners, the latest first.
    pub(crate) fn slow_requests(&self) -> SlowReport {
        let mut report = self.insight.slow.report();
        if let Some(objects) = self.objects.get() {
            report.append(objects.slow().report());
        }
        report
    }

    /// Returns the address of the client with this descriptor, if it is connected.
    pub(crate) fn client_of(&self, fd: u64) -> Option<String> {
        let all = self.connections.snapshot();
        let info = all.into_iter().find(|info| u64::try_from(info.fd).is_ok_and(|own| own == fd))?;
        Some(info.client())
    }

    /// Returns the number of descriptors in use besides those of clients: for listeners, event
    /// loops and the acceptor's runtime.
    pub(crate) fn reserved_descriptors(&self) -> usize {
        // The sum has two descriptors for each listener, one of which is for a new process, two for
        // each worker's event loop, and eight for the acceptor's runtime and the signals.
        2 * self.listeners.get().map_or(0, Vec::len) + 2 * self.settings.threads + 8
    }

    /// Returns the counts of the listener with this descriptor.
    pub(crate) fn listener_counts(&self, fd: RawFd) -> Arc<ListenerCounts> {
        let known = self.listeners.get().and_then(|all| all.iter().find(|listener| listener.fd == fd));
        known.map(|listener| listener.counts.clone()).unwrap_or_default()
    }

    /// Returns the counts of the listener that accepted a connection with these endpoints.
    pub(crate) fn counts_for(&self, connection: &Endpoints) -> Arc<ListenerCounts> {
        let is_of = |listener: &&ListenerInfo| match (&listener.endpoints, connection) {
            (Endpoints::Tcp { peer: own, .. }, Endpoints::Tcp { local: Some(local), .. }) => {
                own.port() == local.port() && (own.ip().is_unspecified() || own.ip() == local.ip())
            }
            (Endpoints::Unix { path: own }, Endpoints::Unix { path }) => own == path,
            _ => false,
        };
        let known = self.listeners.get().and_then(|all| all.iter().find(is_of));
        known.map(|listener| listener.counts.clone()).unwrap_or_default()
    }

    /// Returns whether the maximum number of connections is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.connections.count() >= self.live.connections_max()
    }

    /// Returns the size class that an item would have in memcached.
    pub(crate) fn class_of(&self, item: &ItemView<'_>) -> u32 {
        let (key, value) = (item.key().len(), item.value_bytes());
        self.size_classes.class_of_item(key, value, item.client_flags(), self.settings.cas)
    }

    /// Returns the counts of all workers since the start.
    pub(crate) fn sum(&self) -> Totals {
        let mut totals = Totals::default();
        self.counters.iter().for_each(|worker| totals.add(worker));
        totals
    }

    /// Returns the counts of all workers since the last reset.
    pub(crate) fn totals(&self) -> Totals {
        self.sum().since(&self.baseline().totals)
    }

    /// Returns the statistics of the store, with events counted since the last reset.
    pub(crate) fn engine_stats(&self) -> KvStats {
        let before = self.baseline().kv;
        let mut stats = self.kv.stats();
        stats.items_stored = stats.items_stored.saturating_sub(before.items_stored);
        stats.evictions = stats.evictions.saturating_sub(before.evictions);
        stats.evicted_unfetched = stats.evicted_unfetched.saturating_sub(before.evicted_unfetched);
        stats.expired_unfetched = stats.expired_unfetched.saturating_sub(before.expired_unfetched);
        stats.reclaimed = stats.reclaimed.saturating_sub(before.reclaimed);
        stats
    }

    /// Returns the number of connections accepted since the last reset.
    pub(crate) fn connections_total(&self) -> u64 {
        self.connections.total.load(Ordering::Relaxed) - self.baseline().connections
    }

    /// Closes TCP connections that have been idle for too long. Called once a second.
    pub(crate) fn close_idle(&self) {
        if let Some(since) = self.idle_since() {
            self.connections.close_idle(since);
        }
    }

    /// Returns the second before which an idle connection was last active; `None` without a limit.
    pub(crate) fn idle_since(&self) -> Option<u32> {
        let timeout = self.live.idle_timeout_secs();
        (timeout > 0).then(|| self.clock.now_secs().saturating_sub(timeout))
    }

    /// Returns the number of connections refused since the last reset.
    pub(crate) fn connections_rejected(&self) -> u64 {
        self.connections.rejected.load(Ordering::Relaxed) - self.baseline().rejected
    }

    /// Resets the counts to zero (`stats reset`).
    pub(crate) fn reset_stats(&self) {
        let now = Baseline {
            totals: self.sum(),
            kv: self.kv.stats(),
            connections: self.connections.total.load(Ordering::Relaxed),
            rejected: self.connections.rejected.load(Ordering::Relaxed),
        };
        *self.baseline.lock() = now;
        self.listen_disabled.store(0, Ordering::Relaxed);
        self.listen_disabled_micros.store(0, Ordering::Relaxed);
        self.idle_kicks.store(0, Ordering::Relaxed);
        self.watch.counts.reset();
        self.prefixes.clear();
    }

    fn baseline(&self) -> Baseline {
        *self.baseline.lock()
    }
}

/// Requests that a new process take over from this one. Does not keep the server alive.
#[derive(Debug, Clone, Default)]
pub struct Upgrader {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    requested: Notify,
    /// The ID of the process that serves instead of this one; 0 if there is none.
    successor: AtomicU32,
}

impl Upgrader {
    /// Requests the upgrade. The outcome is logged.
    pub fn request(&self) {
        self.state.requested.notify_one();
    }

    /// Returns whether another process serves instead of this one.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.successor().is_some()
    }

    /// Returns the ID of the process that serves instead of this one, if there is one.
    #[must_use]
    pub fn successor(&self) -> Option<u32> {
        Some(self.state.successor.load(Ordering::Acquire)).filter(|pid| *pid != 0)
    }

    pub(crate) fn set_done(&self, pid: u32) {
        self.state.successor.store(pid, Ordering::Release);
    }

    /// Waits for a request. Only one task may wait.
    pub(crate) async fn requested(&self) {
        self.state.requested.notified().await;
    }
}
