//! What all threads of one server see.

use crate::clock::ServerClock;
use crate::conn::info::{Connections, Ends};
use crate::locks::{BASELINE, Lock};
use crate::logging::Logging;
use crate::objects::Figures;
use crate::settings::{NotedSettings, Settings};
use crate::stats::classes::Classes;
use crate::stats::counters::{Counters, Totals};
use crate::stats::detail::Detail;
use crate::trials::Trials;
use crate::watch::Watch;
use crate::worker::Pulse;
use cached_core::kv::{Kv, KvStats};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// The server's shared state. Everything in it may be used from any thread.
pub(crate) struct Shared {
    pub(crate) kv: Kv,
    pub(crate) clock: ServerClock,
    pub(crate) settings: Settings,
    pub(crate) logging: Logging,
    pub(crate) connections: Connections,
    pub(crate) detail: Detail,
    pub(crate) noted: Noted,
    pub(crate) classes: Classes,
    /// What somebody wants to hear of, so that requests look at one word only.
    pub(crate) observed: Arc<AtomicU32>,
    pub(crate) watch: Arc<Watch>,
    pub(crate) stop: Stop,
    /// The first defect that has shown itself: why the server ends.
    pub(crate) defect: Defect,
    /// Defects that tests have asked for.
    pub(crate) trials: Trials,
    /// Beats once a second.
    pub(crate) acceptor_pulse: Pulse,
    /// Whether new connections are being accepted.
    pub(crate) accepting: AtomicBool,
    /// Times that accepting had to pause for lack of descriptors.
    pub(crate) listen_disabled: AtomicU64,
    /// How long those pauses were in all.
    pub(crate) listen_disabled_micros: AtomicU64,
    /// Connections closed for being idle.
    idle_kicks: AtomicU64,
    /// The listening sockets, set once they are open.
    pub(crate) listeners: OnceLock<Vec<ListenerInfo>>,
    /// Figures of the object cache, if there is one; set before anyone is served.
    pub(crate) objects: OnceLock<Figures>,
    /// One set of counters per worker.
    counters: Box<[Counters]>,
    /// What had been counted at the last `stats reset`.
    baseline: Lock<Baseline>,
}

/// A listening socket, for `stats conns`.
#[derive(Debug)]
pub(crate) struct ListenerInfo {
    pub(crate) fd: RawFd,
    pub(crate) ends: Ends,
}

#[derive(Debug, Default, Clone, Copy)]
struct Baseline {
    totals: Totals,
    kv: KvStats,
    connections: u64,
    rejected: u64,
}

/// Settings that clients may change and that change nothing here: memcached's LRU and crawler.
#[derive(Debug)]
pub(crate) struct Noted {
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

impl Noted {
    fn new(settings: &NotedSettings) -> Self {
        Noted {
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

/// Asks the server to stop, from anywhere.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    notify: Notify,
}

impl Stop {
    /// Asks. The first ask counts, also if nobody waits yet.
    pub(crate) fn request(&self) {
        self.notify.notify_one();
    }

    /// Waits for somebody to ask. For one waiter.
    pub(crate) async fn requested(&self) {
        self.notify.notified().await;
    }
}

/// Why the server cannot go on, remembered until it has ended because of it.
#[derive(Debug, Default)]
pub(crate) struct Defect(OnceLock<String>);

impl Defect {
    /// The first one, if there is any.
    pub(crate) fn first(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

impl Shared {
    /// Notes that a thread has panicked.
    pub(crate) fn fail_by_panic(&self, thread: &str, payload: &(dyn std::any::Any + Send)) {
        let words = payload.downcast_ref::<&str>().copied();
        let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        self.fail(format!("{thread} has panicked: {}", words.unwrap_or("no reason is given")));
    }

    /// Notes what keeps a part of the server from working, and asks it to stop: it is not to go on without that part.
    pub(crate) fn fail(&self, text: String) {
        tracing::error!("{text}; the server ends");
        // The first one is the cause of what follows.
        let _ = self.defect.0.set(text);
        self.stop.request();
    }

    pub(crate) fn new(
        kv: Kv,
        clock: ServerClock,
        settings: Settings,
        logging: Logging,
        watch: Arc<Watch>,
    ) -> Shared {
        let observed = watch.observed();
        Shared {
            kv,
            clock,
            logging,
            connections: Connections::default(),
            detail: Detail::new(settings.prefix_delimiter, observed.clone()),
            noted: Noted::new(&settings.noted),
            classes: Classes::new(&settings.classes),
            observed,
            watch,
            stop: Stop::default(),
            defect: Defect::default(),
            trials: Trials::default(),
            acceptor_pulse: Pulse::default(),
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

    /// The counters of one worker.
    pub(crate) fn counters(&self, worker: usize) -> &Counters {
        &self.counters[worker]
    }

    /// Descriptors in use besides clients': listeners, and what the runtimes need.
    pub(crate) fn reserved_descriptors(&self) -> usize {
        // Two for each worker's event loop, and what the acceptor's runtime needs for itself and the signals.
        self.listeners.get().map_or(0, Vec::len) + 2 * self.settings.threads + 8
    }

    /// Whether as many clients are connected as may be.
    pub(crate) fn is_full(&self) -> bool {
        self.connections.count() >= self.settings.connections_max
    }

    fn sum(&self) -> Totals {
        let mut totals = Totals::default();
        self.counters.iter().for_each(|worker| totals.add(worker));
        totals
    }

    /// Counts of all workers since the last reset.
    pub(crate) fn totals(&self) -> Totals {
        self.sum().since(&self.baseline().totals)
    }

    /// The engine's figures, its events counted since the last reset.
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

    pub(crate) fn connections_total(&self) -> u64 {
        self.connections.total.load(Ordering::Relaxed) - self.baseline().connections
    }

    /// Connections closed for being idle.
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
        for info in self.connections.snapshot() {
            if matches!(info.ends, Ends::Tcp { .. }) && info.close_if_idle(since) {
                self.idle_kicks.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn connections_rejected(&self) -> u64 {
        self.connections.rejected.load(Ordering::Relaxed) - self.baseline().rejected
    }

    /// `stats reset`.
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
        self.detail.clear();
    }

    fn baseline(&self) -> Baseline {
        *self.baseline.lock()
    }
}
