//! The volumes of a store as exports of an NBD server, each under its name.
//!
//! A volume is attached when the first connection selects it. After the last one ends, everything
//! is stored and the volume is released, so that another host can attach it. Its snapshots are
//! contexts: `qemu:dirty-bitmap:NAME` shows the changes since the snapshot of that name.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::Memory;
//! use nbd::{Server, ServerConfig};
//! use volumes::exports::VolumeExports;
//! use volumes::{Options, Settings, Volumes};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let volumes = Arc::new(Volumes::new(Arc::new(Memory::default()), Options::new("volumes"))?);
//! volumes.create("disk", 1 << 30, Settings::default()).await?;
//! let exports = VolumeExports::new(volumes);
//! let server = Server::new(Arc::new(exports.clone()), ServerConfig::default())?;
//! let address = server.listen(&"127.0.0.1:0".parse()?).await?;
//! println!("nbd://{address}/disk");
//! server.shutdown(std::time::Duration::from_secs(10)).await;
//! assert!(exports.close().await.is_empty(), "every volume was released");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod attached;
mod export;

use std::fmt;
use std::sync::Arc;

use attached::{Table, VolumeLock};
use blocker::{Durability, Epoch, Error as StoreError, Name, ObjectId, ReceiveBuffers};
use export::VolumeExport;
use nbd::protocol::{Context, Description, NoExport};
use nbd::{Export, Exports, Lookup};

use crate::error::{Error, Result};
use crate::manage::Volumes;
use crate::settings::{OpenOptions, SnapshotInfo};

/// The maximum number of snapshots that are contexts; a volume with more shows the latest ones.
const CONTEXTS_MAX: usize = 1024;

/// The volumes of a store, as exports.
#[derive(Clone)]
pub struct VolumeExports {
    volumes: Arc<Volumes>,
    table: Arc<Table>,
    /// The durability of writes with FUA: *journaled* suffices if the cache below has a journal.
    /// Default: *stored*.
    pub fua_durability: Durability,
    /// A source of memory for the payloads of large writes: memory of a cache below, which then need
    /// not copy the payload. Of the object's name, only the namespace is certain to be that of the
    /// write.
    pub receive_buffers: Option<ReceiveBuffers>,
}

impl VolumeExports {
    /// Returns the volumes as exports.
    #[must_use]
    pub fn new(volumes: Arc<Volumes>) -> Self {
        Self { volumes, table: Arc::default(), fua_durability: Durability::Stored, receive_buffers: None }
    }

    /// Runs `operation` while no connection uses the volume with this name; new connections wait.
    /// If the volume is attached without a connection, it is released first.
    ///
    /// # Errors
    /// [`Refused`] if `operation` was not run, or has failed.
    pub async fn while_unused<T>(
        &self,
        name: &str,
        operation: impl Future<Output = Result<T>>,
    ) -> Result<T, Refused> {
        let mut lock = self.table.lock(name).await;
        match lock.users() {
            0 => {
                lock.close().await?;
                Ok(operation.await?)
            }
            connections => Err(Refused::Used { connections }),
        }
    }

    /// Stores everything that is acknowledged in a volume. A volume that is not attached here has
    /// nothing to store.
    ///
    /// # Errors
    /// See [`crate::Volume`]; `NoSuchVolume`; `Closed` if the volume is released meanwhile, which does
    /// not always store everything (after `Interrupted` it does not). An error loses nothing.
    pub async fn store(&self, name: &str) -> Result<()> {
        // Not under the lock, because storing may take long.
        let attached = self.table.lock(name).await.volume().cloned();
        match attached {
            Some(volume) => volume.store().await,
            None => self.volumes.info(name).await.map(drop),
        }
    }

    /// Stores everything and releases a volume for another owner, even while connections use it.
    /// Pending and later requests of these connections fail, because another server has the export.
    /// Afterwards only the owner named `to` can attach the volume, and can do so at once.
    ///
    /// # Errors
    /// The errors of [`crate::Volume::hand_over`], and those of attaching the volume. A repeated call
    /// for the same owner completes an earlier one.
    pub async fn hand_over(&self, name: &str, to: &str) -> Result<()> {
        let mut lock = self.table.lock(name).await;
        let volume = match lock.volume().filter(|volume| volume.is_handed_over()) {
            // An earlier call has failed after the release; this one completes it.
            Some(volume) => volume.clone(),
            // Returns the open volume if it is attached already.
            None => self.volumes.open(name, OpenOptions::default()).await?,
        };
        match volume.hand_over(to).await {
            Ok(()) => {
                lock.forget();
                tracing::info!(volume = name, to, "volume handed over");
                Ok(())
            }
            Err(error) => {
                // The volume was attached only for the handover.
                match lock.volume() {
                    None if volume.is_handed_over() => lock.keep(volume),
                    None => volume.close().await?,
                    Some(_) => {}
                }
                Err(error)
            }
        }
    }

    /// Stores and releases every attached volume, and refuses to attach any from now on. Call it
    /// after the server has stopped. Returns the volumes that could not be released, with the
    /// reasons; a second call retries them.
    pub async fn close(&self) -> Vec<(String, Error)> {
        self.table.close_all().await
    }

    /// Allows volumes to be attached again after [`Self::close`], for another server. This includes
    /// the volumes that could not be released.
    pub fn reopen(&self) {
        self.table.reopen();
    }
}

impl Exports for VolumeExports {
    fn list(&self) -> Lookup<Vec<String>> {
        let volumes = Arc::clone(&self.volumes);
        Box::pin(async move {
            let all = volumes.list().await.map_err(no_export)?;
            Ok(all.volumes.into_iter().map(|volume| volume.name).collect())
        })
    }

    fn describe(&self, name: &str) -> Lookup<Description> {
        let (volumes, name) = (Arc::clone(&self.volumes), name.to_owned());
        Box::pin(async move {
            let info = volumes.info(&name).await.map_err(no_export)?;
            let snapshots = volumes.snapshots(&name).await.map_err(no_export)?;
            Ok(description(info.size_bytes, info.object_bytes, info.settings.is_read_only, &snapshots))
        })
    }

    fn open(&self, name: &str) -> Lookup<Arc<dyn Export>> {
        let (this, name) = (self.clone(), name.to_owned());
        Box::pin(async move {
            let lock = this.table.lock(&name).await;
            if lock.is_closed() {
                return Err(NoExport::ShuttingDown);
            }
            // In a separate task, because a client that disconnects in the middle must not leave
            // the volume half attached. The task owns the only lock, so clients that come and go
            // while the store stalls do not accumulate tasks.
            let opening = tokio::spawn(async move { this.attach(lock, &name).await });
            match opening.await {
                Ok(opened) => opened.map(|export| Arc::new(export) as Arc<dyn Export>).map_err(no_export),
                Err(error) => Err(NoExport::Refused(format!("opening the volume failed: {error}"))),
            }
        })
    }
}

impl VolumeExports {
    async fn attach(&self, mut lock: VolumeLock, name: &str) -> Result<VolumeExport> {
        let is_attached = lock.volume().is_some();
        // An attached, working volume is returned again; one that was fenced off or interrupted is
        // opened again.
        let volume = self.volumes.open(name, OpenOptions::default()).await?;
        let attached = lock.attach(volume.clone());
        if !is_attached {
            tracing::debug!(volume = name, "volume attached");
        }
        let snapshots = self.volumes.snapshots(name).await?;
        let settings = volume.settings();
        let description =
            description(volume.size_bytes(), volume.object_bytes(), settings.is_read_only, &snapshots);
        let object = Name::new("any").ok().map(|name| ObjectId::new(volume.namespace(), name));
        let buffers = self.receive_buffers.clone().zip(object);
        let fua_durability = self.fua_durability;
        Ok(VolumeExport { volume, description, fua_durability, buffers, attached })
    }
}

fn description(
    size_bytes: u64,
    object_bytes: u64,
    is_read_only: bool,
    snapshots: &[SnapshotInfo],
) -> Description {
    let mut description = Description::new(size_bytes);
    description.read_only = is_read_only;
    description.text = format!("a volume of cached, in objects of {object_bytes} bytes");
    let latest = &snapshots[snapshots.len().saturating_sub(CONTEXTS_MAX)..];
    description.contexts.extend(latest.iter().map(|snapshot| Context::ChangedSince(snapshot.name.clone())));
    description
}

impl fmt::Debug for VolumeExports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeExports").field("volumes", &self.volumes).finish_non_exhaustive()
    }
}

// ---- errors

/// Converts an error to the reason for which a volume cannot be exported.
fn no_export(error: Error) -> NoExport {
    match error {
        Error::NoSuchVolume(_) => NoExport::Unknown,
        error => NoExport::Refused(error.to_string()),
    }
}

/// Converts an error of a volume to the error of a request.
fn of_request(error: Error) -> StoreError {
    match error {
        Error::Io(error) => error,
        Error::Fenced { epoch } => StoreError::Fenced { epoch },
        // For a client both errors mean that another server has the volume.
        Error::HandedOver => StoreError::Fenced { epoch: Epoch(0) },
        // The guest can wait until an operator frees space.
        Error::NoSpace(why) | Error::Limit(why) => StoreError::OutOfSpace(why.into()),
        Error::ReadOnly => StoreError::Denied("the volume is read-only".into()),
        Error::NotFast => StoreError::Unsupported("zeros are no faster than data here".into()),
        error @ (Error::Closed | Error::Interrupted) => StoreError::Retryable(error.to_string().into()),
        error @ Error::Damaged(_) => StoreError::Corrupt(error.to_string().into()),
        error => StoreError::Invalid(error.to_string().into()),
    }
}

/// The reason for which an operation on an unused volume was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Connections use the volume.
    #[error("{connections} NBD {} the volume; end {} first", are(*.connections).0, are(*.connections).1)]
    Used {
        /// The number of these connections.
        connections: usize,
    },
    /// The volume could not be released, or the operation failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Returns the verb and the pronoun for a number of connections.
fn are(connections: usize) -> (&'static str, &'static str) {
    if connections == 1 { ("connection uses", "it") } else { ("connections use", "them") }
}

#[cfg(test)]
mod tests {
    use super::Refused;

    #[test]
    fn one_connection_is_one() {
        let text = |connections| Refused::Used { connections }.to_string();
        assert_eq!(text(1), "1 NBD connection uses the volume; end it first");
        assert_eq!(text(2), "2 NBD connections use the volume; end them first");
    }
}
