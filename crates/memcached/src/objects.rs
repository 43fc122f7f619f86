//! The memcached listener's view of the object cache: the statistics that it shows, and the
//! steps of a hand-over to another process, which takes the objects together with the items.

use blocker::metrics::{Collect, render};
use cached_admin::insight::slow::SlowLog;
use cached_core::object::{ObjectCache, WeakObjectCache};
use parking_lot::Mutex;
use std::fmt::Debug;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

/// An object cache whose store and sockets another process can take over.
pub trait ObjectHandOver: Debug + Send + Sync {
    /// Returns copies of the listener's sockets for another process, each with its configured
    /// address.
    ///
    /// # Errors
    /// If the system has no descriptor.
    fn sockets(&self) -> io::Result<Vec<(String, OwnedFd)>>;

    /// Makes the cache store everything and release the store. Blocks until that is done; clients
    /// wait meanwhile, and are served again when [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// The reason why the cache continues to serve instead, as a part of a line.
    fn release(&self) -> Result<(), String>;

    /// Ends the cache, because another process has the store and the sockets.
    fn hand_over(&self);

    /// Makes the cache serve again, because the other process has ended. If the store was released,
    /// the cache reopens it.
    fn serve(&self);
}

/// The open cache and listener, if there are any. Keeps neither of them open.
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
    pub(crate) slow: Arc<SlowLog>,
}

impl ObjectStatistics {
    /// Returns the statistics of no cache, with the slow requests in `slow`.
    pub fn new(slow: Arc<SlowLog>) -> ObjectStatistics {
        ObjectStatistics { present: Arc::default(), slow }
    }

    /// Shows the statistics of this cache, and the metrics of its listener, from now on.
    pub fn set(&self, cache: &ObjectCache, listener: Option<Weak<dyn Collect>>) {
        *self.present.lock() = Present { cache: Some(cache.downgrade()), listener };
    }

    /// Returns all metrics as names and values.
    pub(crate) fn metrics(&self) -> Vec<render::Pair> {
        let Some(cache) = self.cache() else { return Vec::new() };
        let mut families = cache.families();
        let listener = self.present.lock().listener.as_ref().and_then(Weak::upgrade);
        listener.iter().for_each(|listener| listener.collect(&mut families));
        render::pairs(&families)
    }

    /// Evaluates the samples taken so far, simulating other amounts of memory. Returns the number
    /// of samples.
    pub(crate) fn take_samples(&self) -> usize {
        self.cache().map_or(0, |cache| cache.take_samples())
    }

    /// Returns a handle of the cache for brief use: the handle keeps the store from being closed.
    pub fn cache(&self) -> Option<ObjectCache> {
        self.present.lock().cache.as_ref().and_then(WeakObjectCache::upgrade)
    }

    /// Returns the objects with acknowledged changes that are lost and not repaired: the name of
    /// each, with the amount lost and the reason. If there are more objects than the cache lists,
    /// the last entry states their number.
    pub(crate) fn lost(&self) -> Vec<(String, String)> {
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
