//! The end of the object cache: no more requests, everything stored, the store closed; or an error that
//! states what is lost.

use super::listener::ObjectListener;
use super::volumes::VolumeService;
use blocker::metrics::Collect;
use cached_config::{Store, store_all};
use cached_core::object::{ObjectCache, WeakObjectCache};
use cached_process::reload::LiveSecs;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};

pub use cached_config::ShutdownError;

/// How long the store has to close.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Ends the listeners, whose clients have `drain_timeout` to take their replies, gives volumes up, then stores dirty data
/// for at most `flush_max`.
pub(super) async fn shut_down(
    cache: &ObjectCache,
    store: &Store,
    listener: Option<ObjectListener>,
    volumes: Option<VolumeService>,
    drain_timeout: &LiveSecs,
    flush_max: &LiveSecs,
) -> Result<(), ShutdownError> {
    let instance = listener.as_ref().map(|listener| listener.server().instance());
    let given_up = end_listeners(listener, volumes, drain_timeout, flush_max).await;
    store_all(cache, flush_max.get()).await?;
    if let Some(instance) = instance {
        store.record_end(instance, Some(cache)).await;
    }
    given_up.map_err(|why| ShutdownError { dirty_bytes: 0, why })
}

/// Ends what serves clients, together, and gives volumes up.
///
/// # Errors
/// The volumes that could not be given up, as a part of a line.
pub(super) async fn end_listeners(
    listener: Option<ObjectListener>,
    volumes: Option<VolumeService>,
    drain_timeout: &LiveSecs,
    flush_max: &LiveSecs,
) -> Result<(), String> {
    let objects = async {
        if let Some(listener) = listener {
            listener.end(drain_timeout.get()).await;
        }
    };
    let volumes = async {
        match volumes {
            Some(volumes) => volumes.end(drain_timeout.get(), flush_max.get()).await,
            None => Ok(()),
        }
    };
    tokio::join!(objects, volumes).1
}

/// Closes the store, whatever the result of the shutdown.
pub(super) fn close(result: Result<(), ShutdownError>, store: Store) -> Result<(), ShutdownError> {
    let closed = store.close(STEP_TIMEOUT);
    result?;
    closed.map_err(|error| ShutdownError { dirty_bytes: 0, why: format!("closing the store: {error}") })
}

/// Waits until nothing uses a cache and a store that have been dropped: threads that are about to end, and whatever is
/// being shown, may do so for a moment.
pub(super) fn wait_until_unused(cache: &WeakObjectCache, store: &Weak<dyn Collect>) {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !(cache.is_gone() && store.strong_count() == 0) {
        if Instant::now() >= deadline {
            tracing::warn!("the store is still used; another process may be unable to open it");
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}
