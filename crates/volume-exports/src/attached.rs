//! Which volumes are attached, and for how many connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;
use volumes::{Error, Volume};

/// The pause after which a volume without connections is given up again that could not be.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// The pause after which objects are copied again that could not be.
const MERGE_PAUSE: Duration = Duration::from_secs(1);

/// The volumes that are attached. The lock of a name is held while its volume is opened or given up, so that
/// neither happens in the middle of the other.
#[derive(Default)]
pub(crate) struct Table {
    places: parking_lot::Mutex<HashMap<String, Place>>,
    /// Whether no volume is attached any more.
    is_closed: AtomicBool,
}

type Place = Arc<Mutex<Option<Held>>>;

/// An attached volume, and its connections.
pub(crate) struct Held {
    pub(crate) volume: Volume,
    users: Weak<Attached>,
    /// Whether a task tries again and again to give it up.
    is_retried: bool,
}

/// One use of an attached volume by some connections. When it is dropped, the volume is given up.
pub(crate) struct Attached {
    table: Arc<Table>,
    name: String,
    runtime: tokio::runtime::Handle,
}

impl Table {
    /// Waits for the turn of the volume of this name.
    pub(crate) async fn turn(self: &Arc<Self>, name: &str) -> Turn {
        let place = {
            let mut places = self.places.lock();
            // What no connection and no operation uses.
            places.retain(|_, place| {
                Arc::strong_count(place) > 1 || place.try_lock().is_ok_and(|held| held.is_some())
            });
            Arc::clone(places.entry(name.into()).or_default())
        };
        Turn { table: Arc::clone(self), name: name.into(), held: place.lock_owned().await }
    }

    /// Lets volumes be attached again.
    pub(crate) fn reopen(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
    }

    /// Gives up all volumes, side by side, and lets none be attached from now on. Returns those that could not
    /// be given up, with the reason.
    pub(crate) async fn close_all(self: &Arc<Self>) -> Vec<(String, volumes::Error)> {
        // In this order: what had its turn before has its place in the table, and is waited for.
        self.is_closed.store(true, Ordering::SeqCst);
        let names: Vec<_> = self.places.lock().keys().cloned().collect();
        let mut closing = JoinSet::new();
        for name in names {
            let table = Arc::clone(self);
            closing.spawn(async move {
                let closed = table.turn(&name).await.close().await;
                closed.err().map(|error| (name, error))
            });
        }
        let mut failed: Vec<_> = closing.join_all().await.into_iter().flatten().collect();
        failed.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        failed
    }
}

/// Copies what is written to after snapshots, beside the requests of clients, until the volume is given up.
async fn keep_merging(volume: Volume, name: String) {
    while volume.merge_due().await.is_ok() {
        let Err(error) = volume.merge().await else { continue };
        // One that is given up meanwhile, or fenced off, has nothing to merge any more.
        if volume.merge_due().await.is_ok() {
            tracing::warn!(volume = name, cause = %error, "copying objects of a volume failed, and is tried again");
            tokio::time::sleep(MERGE_PAUSE).await;
        }
    }
}

/// The turn of one volume.
pub(crate) struct Turn {
    table: Arc<Table>,
    name: String,
    held: OwnedMutexGuard<Option<Held>>,
}

impl Turn {
    /// Returns whether no volume may be attached any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.table.is_closed.load(Ordering::SeqCst)
    }

    /// Returns the volume, if it is attached.
    pub(crate) fn volume(&self) -> Option<&Volume> {
        self.held.as_ref().map(|held| &held.volume)
    }

    /// Records that the volume is attached, and returns its use by one more connection.
    pub(crate) fn attach(&mut self, volume: Volume) -> Arc<Attached> {
        let users = self.held.as_ref().and_then(|held| held.users.upgrade());
        let users = users.unwrap_or_else(|| {
            Arc::new(Attached {
                table: Arc::clone(&self.table),
                name: self.name.clone(),
                runtime: tokio::runtime::Handle::current(),
            })
        });
        let is_retried = self.held.as_ref().is_some_and(|held| held.is_retried);
        if self.volume().is_none_or(|before| !before.is_same(&volume)) {
            users.runtime.spawn(keep_merging(volume.clone(), self.name.clone()));
        }
        *self.held = Some(Held { volume, users: Arc::downgrade(&users), is_retried });
        users
    }

    /// Forgets a volume that is given up.
    pub(crate) fn forget(&mut self) {
        *self.held = None;
    }

    /// Gives the volume up. One that another owner has taken over is gone already.
    pub(crate) async fn close(&mut self) -> volumes::Result<()> {
        if let Some(held) = self.held.as_ref() {
            match held.volume.close().await {
                Err(Error::Fenced { .. }) => tracing::warn!(
                    volume = self.name,
                    "another owner has taken the volume over: what was not stored here is lost",
                ),
                closed => closed?,
            }
        }
        *self.held = None;
        Ok(())
    }

    /// Gives the volume up unless a connection uses it. Returns false if that is to be tried again later, by the
    /// caller; `is_retry` says whether the caller does so already.
    async fn give_up_unused(&mut self, is_retry: bool) -> bool {
        // Another connection may have come meanwhile.
        let is_used = self.users() > 0;
        if let Some(held) = &mut *self.held
            && (is_used || (held.is_retried && !is_retry))
        {
            held.is_retried &= !is_retry;
            return true;
        }
        let Err(error) = self.close().await else {
            tracing::debug!(volume = self.name, "volume detached");
            return true;
        };
        tracing::warn!(
            volume = self.name, cause = %error,
            "a volume without connections stays attached, and is to be given up later",
        );
        if let Some(held) = &mut *self.held {
            held.is_retried = true;
        }
        false
    }

    /// Returns the number of connections that have the volume.
    pub(crate) fn users(&self) -> usize {
        self.held.as_ref().map_or(0, |held| held.users.strong_count())
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let (table, name) = (Arc::clone(&self.table), std::mem::take(&mut self.name));
        self.runtime.spawn(async move {
            let mut is_retry = false;
            while !table.turn(&name).await.give_up_unused(is_retry).await {
                is_retry = true;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        });
    }
}
