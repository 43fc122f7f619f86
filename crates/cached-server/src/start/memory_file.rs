//! The start of a store whose memory is in a file: what an earlier process has left is taken over, and the log, the
//! probes, the service manager and a metric state how far that is. Clients can connect meanwhile, and wait.

use cached_core::arena::{ArenaFile, RestartProgress};
use cached_core::kv::{Kv, KvConfig, KvConfigError, Restart};
use cached_metrics::{Collect, Families, Value};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// How often the log has a line while a file is taken over.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// How far a start is with taking over a memory file: one line, and a metric. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TakingOver {
    progress: Arc<RestartProgress>,
}

/// What is called, on a thread of its own, when a memory file begins to be taken over and once a second until that has
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
        for (name, help, value) in [
            ("cached_restart_regions", "Regions of the memory file that have been read.", self.regions().0),
            (
                "cached_restart_regions_max",
                "Regions of the memory file that are to be read.",
                self.regions().1,
            ),
        ] {
            into.sample(name, help, Vec::new(), Value::Gauge(f64::from(value)));
        }
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
