//! The start of a store whose memory is in a file: the items of an earlier process are taken over. The log, the probes,
//! the service manager and a metric state the progress. Clients can connect meanwhile, and wait.

use cached_admin::{AdminServer, Health};
use cached_core::arena::{ArenaFile, RestartProgress};
use cached_core::kv::{Kv, KvConfig, KvConfigError, Restart};
use cached_metrics::{Collect, Families, Registration, Registry};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use std::{fmt, thread};

/// How often the log has a line while a file is taken over.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// How far a start is with taking over a memory file: one line, and a metric. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TakingOver {
    progress: Arc<RestartProgress>,
}

/// A function called, on a thread of its own, when a memory file begins to be taken over and once a second until that has
/// ended. The start waits until it returns.
pub type OnTakingOver<'a> = dyn Fn(&TakingOver) + Sync + 'a;

impl TakingOver {
    pub(crate) fn new(progress: Arc<RestartProgress>) -> TakingOver {
        TakingOver { progress }
    }

    /// Returns the regions that have been read, and all that are to be read; 0 of 0 while the file is being opened.
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
        let help = "Regions of the memory file that are to be read.";
        into.measure("cached_restart_regions_max", help, &regions_max);
    }
}

/// Makes the store, in `file` if there is one.
pub(crate) fn make_store(
    config: KvConfig,
    file: Option<ArenaFile>,
    on_taking_over: &OnTakingOver<'_>,
) -> Result<Kv, KvConfigError> {
    let Some(file) = file else { return Kv::new(config) };
    let taking_over = TakingOver::new(file.progress());
    let (done, waits) = mpsc::channel();
    let kv = thread::scope(|scope| {
        let report = move || report_progress(&taking_over, &waits, on_taking_over);
        // Where no thread can be had, there are no reports.
        let reporter = thread::Builder::new().name("cached-restart".into()).spawn_scoped(scope, report);
        let kv = Kv::new(KvConfig { file: Some(file), ..config });
        drop(done);
        if let Ok(reporter) = reporter {
            // A panic has been recorded.
            let _ = reporter.join();
        }
        kv
    })?;
    if let (Some(restart), Some(path)) = (kv.restart(), kv.memory_file()) {
        log_result(restart, path);
    }
    Ok(kv)
}

/// Reports the progress at once and once a second, until the other end of the channel is gone.
fn report_progress(taking_over: &TakingOver, done: &mpsc::Receiver<()>, on_taking_over: &OnTakingOver<'_>) {
    on_taking_over(taking_over);
    while let Err(RecvTimeoutError::Timeout) = done.recv_timeout(LINE_EVERY) {
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
        tracing::warn!(%path, damaged_items, damaged_regions, "part of the memory file is damaged and left out");
    }
}

/// The time requested from a service manager while the file is opened, which may reserve and clear it.
const OPENING_TIME: Duration = Duration::from_secs(600);

/// The time requested whenever a memory file has been taken over a little further.
const TAKING_OVER_TIME: Duration = Duration::from_secs(60);

/// Shows on the admin listener and to the service manager how far the start is with taking over a memory file. The metrics
/// stay until it is dropped.
#[derive(Debug)]
pub struct MemoryFileStart {
    admin: Option<(Health, Registry)>,
    metrics: OnceLock<Registration>,
    /// How far it was at the last call, as [`place`] numbers it.
    place: AtomicU32,
}

impl MemoryFileStart {
    /// Shows nothing yet.
    #[must_use]
    pub fn new(admin: Option<&AdminServer>) -> MemoryFileStart {
        let admin = admin.map(|admin| (admin.health().clone(), admin.registry().clone()));
        MemoryFileStart { admin, metrics: OnceLock::new(), place: AtomicU32::new(u32::MAX) }
    }

    /// Shows how far the start is. A service manager is asked for more time if it has come further since the last call.
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
            // A start that stands still ends in time.
            return format!("STATUS=Starting: {now}");
        }
        let time = if place == 0 { OPENING_TIME } else { TAKING_OVER_TIME };
        format!("STATUS=Starting: {now}\nEXTEND_TIMEOUT_USEC={}", time.as_micros())
    }
}

/// Numbers the progress of a start: 0 while the file is opened, then 1 plus the number of regions read.
fn place(now: &TakingOver) -> u32 {
    match now.regions() {
        (_, 0) => 0,
        (regions, _) => regions + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cached_core::arena::RestartProgress;

    /// A start that stands still gets none: the service manager ends it in time.
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
