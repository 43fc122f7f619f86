//! Letting the store go, so that another process can open it.
//!
//! It loses nothing that was acknowledged, and refuses no client:
//! 1. What is dirty is stored, while clients are served: if the store does not take it, nothing has happened.
//! 2. The listeners end: they answer what they have begun, and volumes are given up. The sockets of the synapse listener
//!    stay open; its clients that connect wait. Those of volumes are closed; their clients connect again until they can.
//! 3. What has become dirty since is stored. If the store does not take that, the cache goes on as it is, with other
//!    listeners, which clients cannot tell from those before.
//! 4. The journal is closed with nothing to replay, and the store's record has that this instance ended in order.
//! 5. Cache and store are dropped, with claims and locks.
//!
//! A process that has opened the store then, and fails before it serves, has acknowledged nothing: a new cache over the
//! same store and journal has all.

use super::ObjectsError;
use super::control::{Wanted, other_than};
use super::listener::ObjectListener;
use super::open::Parts;
use super::shutdown;
use super::thread::ObjectThread;
use super::volumes::VolumeService;
use cached_admin::sources::Shown;
use cached_config::{close_stored_journal, flush_all};
use synapse::codec::InstanceId;
use tokio::runtime::Handle;
use tokio::sync::watch;

impl ObjectThread {
    /// Stores everything, and ends the listeners. The cache must not be used any more.
    ///
    /// # Errors
    /// Why it cannot, as a part of a line; the cache is served as before.
    pub(super) async fn store_everything(
        &self,
        parts: &mut Parts,
        shown: &mut Vec<Shown>,
        wanted: &watch::Receiver<Wanted>,
    ) -> Result<(), String> {
        let unstored = |error: blocker::Error| format!("the store does not take what is dirty: {error}");
        let mut wanted = wanted.clone();
        tokio::select! {
            flushed = flush_all(&parts.cache, self.flush_max.get()) => flushed.map_err(unstored)?,
            _ = other_than(Wanted::Release, &mut wanted) => return Err("this process ends".into()),
        }
        let instance = parts.listener.as_ref().map(|listener| listener.server().instance());
        let (listener, volumes) = (parts.listener.take(), parts.volumes.take());
        let kept = volumes.as_ref().map(VolumeService::kept);
        let (drain, flush) = (&self.drain_timeout, &self.flush_max);
        let given_up = shutdown::end_listeners(listener, volumes, drain, flush).await;
        let stored = match given_up {
            Ok(()) => flush_all(&parts.cache, self.flush_max.get()).await.map_err(unstored),
            Err(why) => Err(why),
        };
        if let Err(why) = stored {
            shown.clear();
            match self.listen_again(parts, instance) {
                Ok(listener) => parts.listener = listener,
                Err(error) => tracing::error!(cause = %error, "object clients are not served any more"),
            }
            match self.reload.opening().volumes(&parts.cache, &Handle::current(), kept).await {
                Ok(volumes) => parts.volumes = volumes,
                Err(error) => tracing::error!(cause = %error, "volumes are not served any more"),
            }
            // What it returns runs for as long as the runtime does.
            parts.volumes.iter().for_each(|volumes| drop(volumes.serve()));
            *shown = self.show(parts);
            return Err(why);
        }
        close_stored_journal(&parts.cache).await;
        if let Some(instance) = instance {
            parts.store.record_end(instance, Some(&parts.cache)).await;
        }
        Ok(())
    }

    /// Returns a listener that goes on for one that has ended as `instance`.
    fn listen_again(
        &self,
        parts: &Parts,
        instance: Option<InstanceId>,
    ) -> Result<Option<ObjectListener>, ObjectsError> {
        let listener = self.reload.opening().listener(parts.record.as_ref(), &parts.cache, instance)?;
        listener.iter().try_for_each(|own| own.listen(self.control.listening()))?;
        Ok(listener)
    }
}
