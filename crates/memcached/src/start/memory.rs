//! Memory at startup: the sum of all limits, which is the maximum that the server uses, and a store
//! whose memory is in a file, from which the items of an earlier process are recovered. The log,
//! the probes, the service manager and a metric report the progress of the recovery. During the
//! recovery, clients can connect, and wait.

use crate::connections::ConnInfo;
use crate::settings::Settings;
use crate::stream::{COPY_BYTES_MAX, FULL_BYTES, INPUT_BUFFERS_BYTES, TLS_BUFFERS_BYTES};
use crate::telemetry::insight::hot_keys_bytes_max;
use crate::worker::{BUNDLE_BYTES, ConnectionSlot, ring_bytes_max, udp_bytes_max};
use blocker::executor::block_on_for;
use cached_admin::{AdminServer, Health};
use cached_core::arena::{ArenaFile, RestartProgress};
use cached_core::insight;
use cached_core::kv::{Kv, KvConfig, KvConfigError, KvLimits, Restart};
use cached_metrics::{Collect, Families, Registration, Registry};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, thread};
use tokio::sync::oneshot;

/// The interval between log lines while a file is being taken over.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// The progress of taking over a memory file: one line, and a metric. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct TakingOver {
    progress: Arc<RestartProgress>,
}

/// A function that reports progress. It is called on a separate thread when the takeover of a
/// memory file begins, and once a second until the takeover has ended. The startup waits until it
/// returns.
pub type OnTakingOver<'a> = dyn Fn(&TakingOver) + Sync + 'a;

impl TakingOver {
    pub(crate) fn new(progress: Arc<RestartProgress>) -> TakingOver {
        TakingOver { progress }
    }

    /// Returns the number of regions read and the number of regions to read; 0 of 0 while the file
    /// is being opened.
    #[must_use]
    pub fn regions(&self) -> (u32, u32) {
        (self.progress.regions.load(Ordering::Relaxed), self.progress.regions_max.load(Ordering::Relaxed))
    }

    /// Returns the number of items found so far.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.progress.items.load(Ordering::Relaxed)
    }
}

impl fmt::Display for TakingOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (regions, regions_max) = self.regions();
        match regions_max {
            0 => f.write_str("opening the memory file"),
            _ => {
                let items = self.items();
                write!(f, "taking over the memory file: {regions} of {regions_max} regions, {items} items")
            }
        }
    }
}

impl Collect for TakingOver {
    fn collect(&self, into: &mut Families) {
        let (regions, regions_max) = self.regions();
        into.measure("cached_restart_regions", "Regions of the memory file that have been read.", &regions);
        let help = "Regions of the memory file to be read.";
        into.measure("cached_restart_regions_max", help, &regions_max);
    }
}

/// Creates the store, in `file` if there is one.
pub(crate) fn make_store(
    config: KvConfig,
    file: Option<ArenaFile>,
    on_taking_over: &OnTakingOver<'_>,
) -> Result<Kv, KvConfigError> {
    let Some(file) = file else { return Kv::new(config) };
    let taking_over = TakingOver::new(file.progress());
    let (done, waits) = oneshot::channel();
    let kv = thread::scope(|scope| {
        let report = move || report_progress(&taking_over, waits, on_taking_over);
        // If no thread can be created, there are no reports.
        let reporter = thread::Builder::new().name("cached-restart".into()).spawn_scoped(scope, report);
        let kv = Kv::new(KvConfig { file: Some(file), ..config });
        drop(done);
        if let Ok(reporter) = reporter {
            // A panic of the thread has been recorded.
            let _ = reporter.join();
        }
        kv
    })?;
    if let (Some(restart), Some(path)) = (kv.restart(), kv.memory_file()) {
        log_result(restart, path);
    }
    Ok(kv)
}

/// Reports the progress immediately and once a second, until the other end of the channel is
/// dropped.
fn report_progress(
    taking_over: &TakingOver,
    mut done: oneshot::Receiver<()>,
    on_taking_over: &OnTakingOver<'_>,
) {
    on_taking_over(taking_over);
    while block_on_for(&mut done, LINE_EVERY).is_none() {
        let ((regions, regions_max), items) = (taking_over.regions(), taking_over.items());
        tracing::info!(regions, regions_max, items, "taking over the memory file");
        on_taking_over(taking_over);
    }
}

fn log_result(restart: &Restart, path: &Path) {
    let path = path.display();
    if let Some(reason) = &restart.cold {
        tracing::warn!(%path, %reason, "starting empty: nothing is taken over from the memory file");
        return;
    }
    let Restart { items, expired_items, flushed_items, replaced_items, was_clean, .. } = *restart;
    let took_ms = restart.took.as_millis();
    tracing::info!(
        %path, items, expired_items, flushed_items, replaced_items, was_clean, took_ms,
        "the memory file is taken over"
    );
    if restart.damaged_items + restart.damaged_regions > 0 {
        let Restart { damaged_items, damaged_regions, .. } = *restart;
        tracing::warn!(%path, damaged_items, damaged_regions, "damaged parts of the memory file are skipped");
    }
}

/// The time requested from a service manager while the file is being opened, which may include
/// allocating and clearing it.
const OPENING_TIME: Duration = Duration::from_secs(600);

/// The time requested each time the takeover of a memory file has made progress.
const TAKING_OVER_TIME: Duration = Duration::from_secs(60);

/// Shows the progress of taking over a memory file on the admin listener and to the service
/// manager. The metrics stay until this value is dropped.
#[derive(Debug)]
pub struct MemoryFileStart {
    admin: Option<(Health, Registry)>,
    metrics: OnceLock<Registration>,
    /// The progress at the last call, as a number from [`place`].
    place: AtomicU32,
}

impl MemoryFileStart {
    /// Returns a reporter that shows nothing yet.
    #[must_use]
    pub fn new(admin: Option<&AdminServer>) -> MemoryFileStart {
        let admin = admin.map(|admin| (admin.health().clone(), admin.registry().clone()));
        MemoryFileStart { admin, metrics: OnceLock::new(), place: AtomicU32::new(u32::MAX) }
    }

    /// Shows the progress. If there is progress since the last call, requests more time from the
    /// service manager.
    pub fn show(&self, now: &TakingOver) {
        if let Some((health, registry)) = &self.admin {
            let none = std::iter::empty::<(&str, &str)>;
            self.metrics.get_or_init(|| registry.register(Arc::new(now.clone()), none()));
            health.set_starting(now.to_string());
        }
        cached_config::notify(&self.note(now));
    }

    fn note(&self, now: &TakingOver) -> String {
        let place = place(now);
        if self.place.swap(place, Ordering::Relaxed) == place {
            // The service manager ends a startup that makes no progress.
            return format!("STATUS=Starting: {now}");
        }
        let time = if place == 0 { OPENING_TIME } else { TAKING_OVER_TIME };
        format!("STATUS=Starting: {now}\nEXTEND_TIMEOUT_USEC={}", time.as_micros())
    }
}

/// Numbers the progress of the takeover: 0 while the file is being opened, then 1 plus the number
/// of regions read.
fn place(now: &TakingOver) -> u32 {
    match now.regions() {
        (_, 0) => 0,
        (regions, _) => regions + 1,
    }
}

/// The memory use of a connection without buffers: its state, its entry in the table, and its
/// socket in the kernel.
const CONNECTION_BYTES: usize = 2048;

/// The additional memory of a TLS connection without buffers: keys, and the state of rustls.
const TLS_CONNECTION_BYTES: usize = 6 << 10;

const _: () = assert!(size_of::<ConnInfo>() + size_of::<ConnectionSlot>() < CONNECTION_BYTES);

/// The maximum memory use of each part, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The memory of `-m`: keys, values and their headers, and the eviction policy's ghosts.
    pub arena: usize,
    /// The index for an arena full of items of minimum size, and the marks of keys while a flushed
    /// prefix is swept.
    pub index: usize,
    /// Unfinished input and unsent output of all connections.
    pub connection_buffers: usize,
    /// The connections themselves.
    pub connections: usize,
    /// Buffers of the worker threads.
    pub workers: usize,
    /// Connections to and from other nodes of the ring; 0 without a ring.
    pub ring: usize,
    /// Samples of requests, simulated caches and sketches; 0 if requests are not sampled.
    pub insight: usize,
    /// The object cache and the buffers of its store; 0 without an object cache.
    pub objects: usize,
    /// The listeners of objects and volumes; 0 without any.
    pub object_listener: usize,
    /// The sidecar in front of an S3 endpoint; 0 without one.
    pub s3: usize,
    /// The admin listener; 0 without one.
    pub admin: usize,
}

/// Returns the memory, in bytes, of the samples of items and objects, and of the hot keys, for
/// `threads` workers.
fn insight_bytes_max(threads: usize) -> usize {
    2 * insight::bytes_max(threads.max(8)) + insight::hot_objects_bytes_max() + hot_keys_bytes_max(threads)
}

impl Limits {
    /// Returns the limits of a server with these settings and this store.
    pub fn new(settings: &Settings, store: &KvLimits) -> Limits {
        let tls = settings.tls.as_ref();
        let bundle_bytes = if settings.io_uring_sockets_min > 0 { BUNDLE_BYTES } else { 0 };
        let worker_bytes = INPUT_BUFFERS_BYTES + bundle_bytes + 8 * FULL_BYTES + COPY_BYTES_MAX;
        let udp_bytes = match settings.udp_listen.is_empty() {
            true => 0,
            false => udp_bytes_max(settings.udp_reply_bytes_max),
        };
        Limits {
            arena: store.arena_bytes + store.policy_bytes,
            index: store.index_bytes_max + store.prefix_flush_bytes_max,
            connection_buffers: settings.connection_bytes_max,
            connections: settings.connections_max
                * (CONNECTION_BYTES + tls.map_or(0, |_| TLS_CONNECTION_BYTES)),
            workers: settings.threads * (worker_bytes + tls.map_or(0, |_| TLS_BUFFERS_BYTES) + udp_bytes),
            ring: ring_bytes_max(settings),
            insight: if settings.insight.enabled { insight_bytes_max(settings.threads) } else { 0 },
            objects: 0,
            object_listener: 0,
            s3: 0,
            admin: 0,
        }
    }

    /// Returns the name and the limit of each part.
    fn parts(&self) -> [(&'static str, usize); 11] {
        [
            ("items", self.arena),
            ("index", self.index),
            ("connection buffers", self.connection_buffers),
            ("connections", self.connections),
            ("workers", self.workers),
            ("ring", self.ring),
            ("insight", self.insight),
            ("objects", self.objects),
            ("object listener", self.object_listener),
            ("S3 sidecar", self.s3),
            ("admin listener", self.admin),
        ]
    }

    /// Returns the sum of all limits, in bytes.
    pub fn sum(&self) -> usize {
        self.parts().into_iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Shows the sum and the parts that are not 0.
impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let parts = self.parts().into_iter().filter(|(_, bytes)| *bytes > 0);
        let parts: Vec<String> = parts.map(|(name, bytes)| format!("{name} {}", mib(bytes))).collect();
        write!(f, "{} MiB at most = {}", mib(self.sum()), parts.join(" + "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cached_core::arena::RestartProgress;

    /// A startup without progress gets no more time, so that the service manager ends it.
    #[test]
    fn only_progress_gets_more_time() {
        let progress = Arc::new(RestartProgress::default());
        let start = MemoryFileStart::new(None);
        let now = TakingOver::new(progress.clone());
        assert_eq!(
            start.note(&now),
            "STATUS=Starting: opening the memory file\nEXTEND_TIMEOUT_USEC=600000000"
        );
        assert_eq!(start.note(&now), "STATUS=Starting: opening the memory file");
        progress.regions_max.store(400, Ordering::Relaxed);
        let begun = "STATUS=Starting: taking over the memory file: 0 of 400 regions, 0 items";
        assert_eq!(start.note(&now), format!("{begun}\nEXTEND_TIMEOUT_USEC=60000000"));
        progress.regions.store(12, Ordering::Relaxed);
        progress.items.store(3456, Ordering::Relaxed);
        let status = "STATUS=Starting: taking over the memory file: 12 of 400 regions, 3456 items";
        assert_eq!(start.note(&now), format!("{status}\nEXTEND_TIMEOUT_USEC=60000000"));
        assert_eq!(start.note(&now), status);
    }
}
