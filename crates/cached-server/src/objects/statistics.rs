//! The statistics of the object cache, its store and its listener.

use super::listener::ObjectListener;
use blocker::metrics::{Collect, render};
use cached_admin::insight::slow::{SlowLog, SlowReport};
use cached_core::insight::MissRatioCurve;
use cached_core::object::{JournalHealth, ObjectCache, RecoveryProgress, WeakObjectCache};
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The cache and the listener that are open, if any are. Keeps none of them open.
#[derive(Default)]
pub(super) struct Present {
    cache: Option<WeakObjectCache>,
    server: Option<Weak<synapse::Server>>,
}

/// The statistics of an object cache, its store and its listener.
///
/// It keeps none of them: whatever shows the statistics, the store can be closed. Of a cache that is gone there are none.
#[derive(Clone)]
pub struct ObjectStatistics {
    present: Arc<Mutex<Present>>,
    slow: Arc<SlowLog>,
}

impl ObjectStatistics {
    pub(super) fn new(slow: Arc<SlowLog>) -> ObjectStatistics {
        ObjectStatistics { present: Arc::default(), slow }
    }

    /// Shows this cache from now on.
    pub(super) fn set(&self, cache: &ObjectCache, listener: Option<&ObjectListener>) {
        let server = listener.map(|listener| Arc::downgrade(listener.server()));
        *self.present.lock() = Present { cache: Some(cache.downgrade()), server };
    }

    /// Changes from how long on a request to the store is slow; 0 for none.
    pub(crate) fn set_slow_threshold(&self, threshold: Duration) {
        self.slow.set_threshold(threshold);
    }

    /// Returns all metrics as names and values.
    pub fn metrics(&self) -> Vec<render::Pair> {
        let Some(cache) = self.cache() else { return Vec::new() };
        let mut families = cache.families();
        let server = self.present.lock().server.as_ref().and_then(Weak::upgrade);
        server.iter().for_each(|server| server.collect(&mut families));
        render::pairs(&families)
    }

    /// Simulates other amounts of memory with what has been sampled. Returns the number of samples.
    pub(crate) fn take_samples(&self) -> usize {
        self.cache().map_or(0, |cache| cache.take_samples())
    }

    /// Returns a handle of the cache, for a moment: it keeps the store from being closed.
    pub(crate) fn cache(&self) -> Option<ObjectCache> {
        self.present.lock().cache.as_ref().and_then(WeakObjectCache::upgrade)
    }

    /// Returns the miss ratios that other amounts of memory would give; `None` if requests are not sampled.
    pub fn miss_ratio_curve(&self) -> Option<MissRatioCurve> {
        self.cache()?.miss_ratio_curve()
    }

    /// Returns the last slow requests to the store.
    pub fn slow_requests(&self) -> SlowReport {
        self.slow.report()
    }

    /// Returns the state of the journal, if there is one: also for whether the server is ready.
    pub fn journal_health(&self) -> Option<JournalHealth> {
        self.cache()?.journal_health()
    }

    /// Returns how far the recovery of what the journal held is.
    pub fn recovery(&self) -> RecoveryProgress {
        self.cache().map_or_else(RecoveryProgress::default, |cache| cache.recovery())
    }

    /// Returns the objects with acknowledged changes that are lost and not repaired: the name of each, and
    /// how much is lost for what reason. If there are more than the cache lists, the last entry has their
    /// number.
    pub fn lost(&self) -> Vec<(String, String)> {
        let Some(cache) = self.cache() else { return Vec::new() };
        let lost = cache.lost();
        let listed = lost.objects.iter().map(|object| {
            let text = format!("{} bytes in {} changes: {}", object.bytes, object.changes, object.why);
            (object.object.to_string(), text)
        });
        let unlisted = (lost.unlisted_objects > 0).then(|| {
            (
                "others".to_owned(),
                format!("{} bytes in {} objects", lost.unlisted_bytes, lost.unlisted_objects),
            )
        });
        listed.chain(unlisted).collect()
    }
}
