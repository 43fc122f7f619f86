//! What is shown of the start with a memory file, before there is a server: the probes' reason, metrics, and what the
//! service manager is notified of.

use crate::start::memory_file::TakingOver;
use cached_admin::{AdminServer, Health};
use cached_metrics::{Registration, Registry};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

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

/// Numbers what a start goes through: 0 while the file is opened, then 1 and the regions that have been read.
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
