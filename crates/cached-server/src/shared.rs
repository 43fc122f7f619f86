//! The state that all threads of one server share.
//!
//! It consists of parts that know nothing of each other: the store, the clock, the table of connections,
//! counters, watchers. Listeners, workers, requests and reports use it; it uses none of them.

use crate::clock::ServerClock;
use crate::connections::{CommandQueue, Connections, Endpoints};
use crate::counters::{Counters, Totals};
use crate::faults::InjectedFaults;
use crate::heartbeat::Heartbeat;
use crate::locks::{BASELINE, Lock};
use crate::logging::Logging;
use crate::objects::ObjectStatistics;
use crate::prefixes::PrefixCounts;
use crate::settings::{InertSettings, Settings};
use crate::size_classes::SizeClasses;
use crate::watch::Watch;
use cached_core::kv::{ItemView, Kv, KvStats};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// The server's shared state. Every part may be used from any thread.
pub(crate) struct Shared {
    pub(crate) kv: Kv,
    pub(crate) clock: ServerClock,
    pub(crate) settings: Settings,
    pub(crate) logging: Logging,
    pub(crate) connections: Connections,
    pub(crate) prefixes: PrefixCounts,
    pub(crate) inert: InertValues,
    pub(crate) size_classes: SizeClasses,
    /// The kinds of events that are observed, by watchers or by `stats detail`: the one word that requests
    /// read.
    pub(crate) observed_events: Arc<AtomicU32>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) stop: Stop,
    /// Why the server has to end, if it has to.
    pub(crate) defect: Defect,
    /// Defects that tests have requested.
    pub(crate) faults: InjectedFaults,
    /// Changes once a second.
    pub(crate) acceptor_heartbeat: Heartbeat,
    /// Whether new connections are being accepted.
    pub(crate) accepting: AtomicBool,
    /// The number of pauses in accepting, for lack of descriptors or of room.
    pub(crate) listen_disabled: AtomicU64,
    /// The length of those pauses together.
    pub(crate) listen_disabled_micros: AtomicU64,
    /// The number of connections closed for being idle.
    idle_kicks: AtomicU64,
    /// The listening sockets, set once they are open.
    pub(crate) listeners: OnceLock<Vec<ListenerInfo>>,
    /// The metrics of the object cache, if there is one; set before clients are served.
    pub(crate) objects: OnceLock<ObjectStatistics>,
    /// One set of counters per worker.
    counters: Box<[Counters]>,
    /// The counts at the last `stats reset`.
    baseline: Lock<Baseline>,
}

/// A listening socket, for `stats conns`.
#[derive(Debug)]
pub(crate) struct ListenerInfo {
    pub(crate) fd: RawFd,
    pub(crate) endpoints: Endpoints,
}

#[derive(Debug, Default, Clone, Copy)]
struct Baseline {
    totals: Totals,
    kv: KvStats,
    connections: u64,
    rejected: u64,
}

/// Settings of memcached's LRU and crawler, which clients may change and which have no effect.
#[derive(Debug)]
pub(crate) struct InertValues {
    pub(crate) lru_segmented: AtomicBool,
    pub(crate) hot_lru_pct: AtomicU32,
    pub(crate) warm_lru_pct: AtomicU32,
    /// The bits of an `f64`.
    pub(crate) hot_max_factor: AtomicU64,
    /// The bits of an `f64`.
    pub(crate) warm_max_factor: AtomicU64,
    pub(crate) temp_lru: AtomicBool,
    pub(crate) temporary_ttl: AtomicU32,
    pub(crate) lru_crawler: AtomicBool,
    pub(crate) lru_crawler_sleep: AtomicU32,
    pub(crate) lru_crawler_tocrawl: AtomicU32,
}

impl InertValues {
    fn new(settings: &InertSettings) -> Self {
        InertValues {
            lru_segmented: AtomicBool::new(settings.lru_segmented),
            hot_lru_pct: AtomicU32::new(settings.hot_lru_pct),
            warm_lru_pct: AtomicU32::new(settings.warm_lru_pct),
            hot_max_factor: AtomicU64::new(settings.hot_max_factor.to_bits()),
            warm_max_factor: AtomicU64::new(settings.warm_max_factor.to_bits()),
            temp_lru: AtomicBool::new(settings.temp_lru),
            temporary_ttl: AtomicU32::new(settings.temporary_ttl),
            lru_crawler: AtomicBool::new(settings.lru_crawler),
            lru_crawler_sleep: AtomicU32::new(settings.lru_crawler_sleep),
            lru_crawler_tocrawl: AtomicU32::new(settings.lru_crawler_tocrawl),
        }
    }
}

/// The request to stop the server.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    notify: Notify,
}

impl Stop {
    /// Requests the stop. May be called before [`requested`](Self::requested), and more than once.
    pub(crate) fn request(&self) {
        self.notify.notify_one();
    }

    /// Waits until the stop is requested. For one waiter.
    pub(crate) async fn requested(&self) {
        self.notify.notified().await;
    }
}

/// Why the server cannot continue, kept until it has ended.
#[derive(Debug, Default)]
pub(crate) struct Defect(OnceLock<String>);

impl Defect {
    /// Returns the first defect, if there is one.
    pub(crate) fn first(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

impl Shared {
    /// Records that a thread has panicked, and requests the stop.
    pub(crate) fn fail_by_panic(&self, thread: &str, payload: &(dyn std::any::Any + Send)) {
        let words = payload.downcast_ref::<&str>().copied();
        let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        self.fail(format!("{thread} has panicked: {}", words.unwrap_or("no reason is given")));
    }

    /// Records why a part of the server cannot work, and requests the stop: the server does not continue
    /// without the part.
    pub(crate) fn fail(&self, text: String) {
        tracing::error!("{text}; the server ends");
        // The first one is the cause of those that follow.
        let _ = self.defect.0.set(text);
        self.stop.request();
    }

    /// Returns the state of a server with one command queue for each worker.
    pub(crate) fn new(
        kv: Kv,
        clock: ServerClock,
        settings: Settings,
        logging: Logging,
        watch: Arc<Watch>,
        queues: Box<[CommandQueue]>,
    ) -> Shared {
        let observed_events = watch.observed_events();
        Shared {
            kv,
            clock,
            logging,
            connections: Connections::new(queues),
            prefixes: PrefixCounts::new(settings.prefix_delimiter, observed_events.clone()),
            inert: InertValues::new(&settings.inert),
            size_classes: SizeClasses::new(&settings.classes),
            observed_events,
            watch,
            stop: Stop::default(),
            defect: Defect::default(),
            faults: InjectedFaults::default(),
            acceptor_heartbeat: Heartbeat::default(),
            accepting: AtomicBool::new(true),
            listen_disabled: AtomicU64::new(0),
            listen_disabled_micros: AtomicU64::new(0),
            idle_kicks: AtomicU64::new(0),
            listeners: OnceLock::new(),
            objects: OnceLock::new(),
            counters: (0..settings.threads).map(|_| Counters::default()).collect(),
            baseline: Lock::new(&BASELINE, Baseline::default()),
            settings,
        }
    }

    /// Returns the counters of one worker.
    pub(crate) fn counters(&self, worker: usize) -> &Counters {
        &self.counters[worker]
    }

    /// Returns the number of descriptors in use besides those of clients: listeners, event loops, the
    /// acceptor's runtime.
    pub(crate) fn reserved_descriptors(&self) -> usize {
        // Two for each worker's event loop, and eight for the acceptor's runtime and the signals.
        self.listeners.get().map_or(0, Vec::len) + 2 * self.settings.threads + 8
    }

    /// Returns whether there are as many connections as allowed.
    pub(crate) fn is_full(&self) -> bool {
        self.connections.count() >= self.settings.connections_max
    }

    /// Returns the class that an item would have in memcached.
    pub(crate) fn class_of(&self, item: &ItemView<'_>) -> u32 {
        let (key, value) = (item.key().len(), item.value_bytes());
        self.size_classes.class_of_item(key, value, item.client_flags(), self.settings.cas)
    }

    fn sum(&self) -> Totals {
        let mut totals = Totals::default();
        self.counters.iter().for_each(|worker| totals.add(worker));
        totals
    }

    /// Returns the counts of all workers since the last reset.
    pub(crate) fn totals(&self) -> Totals {
        self.sum().since(&self.baseline().totals)
    }

    /// Returns the statistics of the store, its events counted since the last reset.
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

    /// Returns the number of connections closed for being idle.
    pub(crate) fn idle_kicks(&self) -> u64 {
        self.idle_kicks.load(Ordering::Relaxed)
    }

    /// Closes TCP connections that have been idle for too long. Called once a second.
    pub(crate) fn close_idle(&self) {
        let timeout = self.settings.idle_timeout_secs;
        if timeout == 0 {
            return;
        }
        let since = self.clock.now_secs().saturating_sub(timeout);
        self.idle_kicks.fetch_add(self.connections.close_idle(since), Ordering::Relaxed);
    }

    /// Returns the number of connections refused since the last reset.
    pub(crate) fn connections_rejected(&self) -> u64 {
        self.connections.rejected.load(Ordering::Relaxed) - self.baseline().rejected
    }

    /// Sets the counts to zero (`stats reset`).
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
