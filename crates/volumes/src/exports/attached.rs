//! The attached volumes, and the number of connections of each.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::volume::Volume;
use futures_util::future::{BoxFuture, join_all};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;

/// The pause before the release of an unused volume is retried.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The pause before a failed merge is retried.
const MERGE_PAUSE: Duration = Duration::from_secs(1);

/// The attached volumes. The lock of a volume's name is held while the volume is opened or
/// released, so that the two never overlap.
#[derive(Default)]
pub(crate) struct Table {
    places: parking_lot::Mutex<HashMap<String, Place>>,
    /// Whether attaching is closed.
    is_closed: AtomicBool,
    /// Tasks that hold volumes, each of which keeps the store below alive.
    tasks: parking_lot::Mutex<JoinSet<()>>,
}

type Place = Arc<Mutex<Option<Held>>>;

/// An attached volume, and its connections.
pub(crate) struct Held {
    pub(crate) volume: Volume,
    users: Weak<Attached>,
    /// Alive while a task releases the volume, or waits to retry the release.
    releaser: Weak<()>,
}

/// The use of an attached volume by one or more connections. The volume is released when the last
/// reference is dropped.
pub(crate) struct Attached {
    table: Arc<Table>,
    name: String,
    runtime: Handle,
    /// Held while the volume is compared with a snapshot. Only one comparison runs at a time,
    /// because each may hold a snapshot's map in memory.
    pub(crate) comparing: Mutex<()>,
}

impl Table {
    /// Waits for the lock of the volume of this name.
    pub(crate) async fn lock(self: &Arc<Self>, name: &str) -> VolumeLock {
        let place = {
            let mut places = self.places.lock();
            // Removes entries that neither a connection nor an operation uses.
            places.retain(|_, place| {
                Arc::strong_count(place) > 1 || place.try_lock().is_ok_and(|held| held.is_some())
            });
            Arc::clone(places.entry(name.into()).or_default())
        };
        VolumeLock { table: Arc::clone(self), name: name.into(), held: place.lock_owned().await }
    }

    /// Allows volumes to be attached again.
    pub(crate) fn reopen(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }

    /// Releases all volumes concurrently, and refuses to attach any from now on. Returns the
    /// volumes that could not be released, with the reasons.
    pub(crate) async fn close_all(self: &Arc<Self>) -> Vec<(String, Error)> {
        // Set before the table is read: a volume whose lock was taken earlier is already in the
        // table, and is waited for.
        self.is_closed.store(true, Ordering::SeqCst);
        let names: Vec<_> = self.places.lock().keys().cloned().collect();
        let closing = names.into_iter().map(|name| async move {
            let closed = self.lock(&name).await.close().await;
            closed.err().map(|error| (name, error))
        });
        let mut failed: Vec<_> = join_all(closing).await.into_iter().flatten().collect();
        failed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        if failed.is_empty() {
            // Ends the tasks, which have nothing left to do, so that the caller can open the store
            // again.
            let mut tasks = std::mem::take(&mut *self.tasks.lock());
            tasks.shutdown().await;
        }
        failed
    }

    /// Runs a task that holds a volume.
    fn spawn(&self, runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        let task: BoxFuture<'static, ()> = Box::pin(task);
        tasks.spawn_on(task, runtime);
    }
}

/// Copies objects that are overwritten after snapshots, in the background, until the volume is
/// released.
async fn keep_merging(volume: Volume, name: String) {
    while volume.merge_due().await.is_ok() {
        let Err(error) = volume.merge().await else { continue };
        // A volume that was released or fenced off has nothing to merge any more.
        if volume.merge_due().await.is_ok() {
            tracing::warn!(volume = name, cause = %error, "copying objects of a volume failed, and is tried again");
            tokio::time::sleep(MERGE_PAUSE).await;
        }
    }
}

/// The held lock of one volume.
pub(crate) struct VolumeLock {
    table: Arc<Table>,
    name: String,
    held: OwnedMutexGuard<Option<Held>>,
}

impl VolumeLock {
    /// Returns whether no volume may be attached any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.table.is_closed.load(Ordering::SeqCst)
    }

    /// Returns the volume, if it is attached.
    pub(crate) fn volume(&self) -> Option<&Volume> {
        self.held.as_ref().map(|held| &held.volume)
    }

    /// Records that the volume is attached, and returns a use for one more connection.
    pub(crate) fn attach(&mut self, volume: Volume) -> Arc<Attached> {
        let users = self.held.as_ref().and_then(|held| held.users.upgrade());
        let users = users.unwrap_or_else(|| {
            Arc::new(Attached {
                table: Arc::clone(&self.table),
                name: self.name.clone(),
                runtime: Handle::current(),
                comparing: Mutex::default(),
            })
        });
        let releaser = self.held.as_ref().map(|held| held.releaser.clone()).unwrap_or_default();
        if self.volume().is_none_or(|before| !before.is_same(&volume)) {
            self.table.spawn(&users.runtime, keep_merging(volume.clone(), self.name.clone()));
        }
        *self.held = Some(Held { volume, users: Arc::downgrade(&users), releaser });
        users
    }

    /// Keeps a volume without a connection whose handover has failed after the release, so that
    /// another call completes the handover.
    pub(crate) fn keep(&mut self, volume: Volume) {
        *self.held = Some(Held { volume, users: Weak::new(), releaser: Weak::new() });
    }

    /// Forgets a released volume.
    pub(crate) fn forget(&mut self) {
        *self.held = None;
    }

    /// Releases the volume. A volume that another owner has taken over counts as released.
    pub(crate) async fn close(&mut self) -> Result<()> {
        if let Some(held) = self.held.as_ref() {
            match held.volume.close().await {
                Err(Error::Fenced { .. }) => tracing::warn!(
                    volume = self.name,
                    "another owner has taken over the volume: changes that were not stored yet are lost",
                ),
                closed => closed?,
            }
        }
        *self.held = None;
        Ok(())
    }

    /// Returns the volume if the task of `releaser` must release it: no connection uses it, and no
    /// other task releases it.
    fn begin_release(&mut self, releaser: &Arc<()>) -> Option<Volume> {
        let is_used = self.users() > 0;
        let held = self.held.as_mut()?;
        let is_others = held.releaser.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, releaser));
        if is_others {
            return None;
        }
        // If the volume is in use, a later task will release it, and may begin before this one has
        // ended.
        held.releaser = if is_used { Weak::new() } else { Arc::downgrade(releaser) };
        (!is_used).then(|| held.volume.clone())
    }

    /// Releases the volume, after the caller has tried to store it, unless a connection has arrived
    /// in the meantime. Returns false if the caller must retry later.
    async fn release_unused(&mut self, stored: Result<()>) -> bool {
        let is_used = self.users() > 0;
        let Some(held) = &mut *self.held else { return true };
        // A volume is kept if its handover has yet to be completed by another call.
        if is_used || held.volume.is_handed_over() {
            held.releaser = Weak::new();
            return true;
        }
        let released = match stored {
            Err(error @ Error::Io(_)) => Err(error),
            _ => self.close().await,
        };
        let Err(error) = released else {
            tracing::debug!(volume = self.name, "volume detached");
            return true;
        };
        tracing::warn!(
            volume = self.name, cause = %error,
            "a volume without connections could not be released, and stays attached; this is tried again later",
        );
        false
    }

    /// Returns the number of connections that use the volume.
    pub(crate) fn users(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.users.strong_count())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let (table, name) = (Arc::clone(&self.table), std::mem::take(&mut self.name));
        self.table.spawn(&self.runtime, async move {
            let releaser = Arc::new(());
            loop {
                let Some(volume) = table.lock(&name).await.begin_release(&releaser) else { return };
                // Without the lock, so that a client that reconnects need not wait until everything
                // is stored.
                let stored = volume.store().await;
                if table.lock(&name).await.release_unused(stored).await {
                    return;
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        });
    }
}
