//! Which volumes are attached, and for how many connections.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::{Mutex, OwnedMutexGuard};
use volumes::Volume;

/// The volumes that are attached. The lock of a name is held while its volume is opened or given up, so that
/// neither happens in the middle of the other.
#[derive(Default)]
pub(crate) struct Table {
    places: parking_lot::Mutex<HashMap<String, Place>>,
}

type Place = Arc<Mutex<Option<Held>>>;

/// An attached volume, and its connections.
pub(crate) struct Held {
    pub(crate) volume: Volume,
    users: Weak<Attached>,
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

    /// Gives up all volumes. Returns those that could not be, with the reason.
    pub(crate) async fn close_all(self: &Arc<Self>) -> Vec<(String, volumes::Error)> {
        let names: Vec<_> = self.places.lock().keys().cloned().collect();
        let mut failed = Vec::new();
        for name in names {
            let mut turn = self.turn(&name).await;
            if let Err(error) = turn.close().await {
                failed.push((name, error));
            }
        }
        failed
    }
}

/// The turn of one volume.
pub(crate) struct Turn {
    table: Arc<Table>,
    name: String,
    held: OwnedMutexGuard<Option<Held>>,
}

impl Turn {
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
        *self.held = Some(Held { volume, users: Arc::downgrade(&users) });
        users
    }

    /// Gives the volume up. One that another owner has taken over is given up already.
    pub(crate) async fn close(&mut self) -> volumes::Result<()> {
        if let Some(held) = self.held.as_ref() {
            match held.volume.close().await {
                Ok(()) => {}
                // There is nothing left to give up.
                Err(volumes::Error::Fenced { .. }) => {
                    tracing::warn!(volume = self.name, "another owner has taken the volume over");
                }
                Err(error) => return Err(error),
            }
        }
        *self.held = None;
        Ok(())
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
            let mut turn = table.turn(&name).await;
            // Another connection may have come meanwhile.
            if turn.users() > 0 {
                return;
            }
            match turn.close().await {
                Ok(()) => tracing::debug!(volume = name, "volume detached"),
                Err(error) => {
                    tracing::warn!(
                        volume = name, cause = %error,
                        "a volume without connections stays attached",
                    );
                }
            }
        });
    }
}
