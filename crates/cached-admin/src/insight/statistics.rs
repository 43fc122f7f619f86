//! The statistics of the current object cache of a program, which may have no cache, or several in
//! succession.

use std::fmt;
use std::sync::{Arc, Weak};

use blocker::metrics::{Collect, render};
use cached_core::object::{ObjectCache, WeakObjectCache};
use parking_lot::Mutex;

use super::slow::SlowLog;

/// The open cache and listener, if there are any. This does not keep them open.
#[derive(Default)]
struct Present {
    cache: Option<WeakObjectCache>,
    listener: Option<Weak<dyn Collect>>,
}

/// The statistics of an object cache, its store and its listener.
///
/// The statistics keep none of these alive, so whatever shows the statistics does not keep the
/// store from being closed. A cache that no longer exists has no statistics.
#[derive(Clone)]
pub struct ObjectStatistics {
    present: Arc<Mutex<Present>>,
    /// The slow requests to the store.
    slow: Arc<SlowLog>,
}

impl ObjectStatistics {
    /// Returns the statistics of no cache, with the slow requests in `slow`.
    #[must_use]
    pub fn new(slow: Arc<SlowLog>) -> ObjectStatistics {
        ObjectStatistics { present: Arc::default(), slow }
    }

    /// Shows the statistics of this cache, and the metrics of its listener, from now on.
    pub fn set(&self, cache: &ObjectCache, listener: Option<Weak<dyn Collect>>) {
        *self.present.lock() = Present { cache: Some(cache.downgrade()), listener };
    }

    /// Returns the log of slow requests to the store.
    #[must_use]
    pub fn slow(&self) -> &Arc<SlowLog> {
        &self.slow
    }

    /// Returns all metrics as names and values.
    #[must_use]
    pub fn metrics(&self) -> Vec<render::Pair> {
        let Some(cache) = self.cache() else { return Vec::new() };
        let mut families = cache.families();
        let listener = self.present.lock().listener.as_ref().and_then(Weak::upgrade);
        listener.iter().for_each(|listener| listener.collect(&mut families));
        render::pairs(&families)
    }

    /// Evaluates the samples taken so far, simulating other amounts of memory. Returns the number
    /// of samples.
    pub fn take_samples(&self) -> usize {
        self.cache().map_or(0, |cache| cache.take_samples())
    }

    /// Returns a handle of the cache for brief use: the handle keeps the store from being closed.
    #[must_use]
    pub fn cache(&self) -> Option<ObjectCache> {
        self.present.lock().cache.as_ref().and_then(WeakObjectCache::upgrade)
    }

    /// Returns the objects with acknowledged changes that are lost and not repaired: the name of
    /// each, with the amount lost and the reason. If there are more objects than the cache lists,
    /// the last entry states their number.
    #[must_use]
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

impl fmt::Debug for ObjectStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectStatistics").field("slow", &self.slow).finish_non_exhaustive()
    }
}
