//! The store behind the cache, as `[objects.backend]` names it.

use super::ObjectsError;
use crate::config::{BackendTable, FileTable, MemoryTable, ObjectsTable, RadosTable, RemoteTable};
use blocker::file::FileConfig;
use blocker::memory::MemoryConfig;
use blocker::{Blocker, FileStore, Memory, SystemClock};
use std::sync::Arc;
use synapse::{Secret, SynapseBlocker};

/// An open store.
pub(super) struct Store {
    backend: Arc<dyn Blocker>,
    /// Has to be closed in order.
    file: Option<Arc<FileStore>>,
    memory_bytes_max: u64,
}

impl Store {
    /// Opens it; blocks until it is there.
    pub(super) fn open(objects: &ObjectsTable, secret: Option<Secret>) -> Result<Store, ObjectsError> {
        let object_bytes_max = objects.object_bytes_max.0;
        match &objects.backend {
            None => Err(ObjectsError::Config("objects.backend: is missing".into())),
            Some(BackendTable::Memory(table)) => Ok(memory(table, object_bytes_max)),
            Some(BackendTable::File(table)) => file(table, object_bytes_max),
            Some(BackendTable::Rados(table)) => rados(table, object_bytes_max),
            Some(BackendTable::Synapse(table)) => remote(table, secret),
        }
    }

    pub(super) fn backend(&self) -> Arc<dyn Blocker> {
        self.backend.clone()
    }

    /// What its content or its buffers may take of this process's memory.
    pub(super) fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Closes it in order.
    pub(super) fn close(self) -> blocker::Result<()> {
        drop(self.backend);
        self.file.map_or(Ok(()), |file| file.close())
    }
}

fn memory(table: &MemoryTable, object_bytes_max: u64) -> Store {
    tracing::warn!("objects are kept in memory: all of them are gone when this process ends");
    let config = MemoryConfig { object_bytes_max, bytes_max: table.bytes_max.0 };
    let backend = Arc::new(Memory::new(config, Arc::new(SystemClock)));
    Store { backend, file: None, memory_bytes_max: table.bytes_max.0 }
}

fn file(table: &FileTable, object_bytes_max: u64) -> Result<Store, ObjectsError> {
    let config = FileConfig {
        object_bytes_max,
        direct: table.direct,
        threads: table.threads,
        open_files_max: table.open_files_max,
        ..FileConfig::default()
    };
    let file = Arc::new(FileStore::open_with(&table.path, config, Arc::new(SystemClock))?);
    Ok(Store { backend: file.clone(), file: Some(file), memory_bytes_max: 0 })
}

#[cfg(feature = "rados")]
fn rados(table: &RadosTable, object_bytes_max: u64) -> Result<Store, ObjectsError> {
    let config = table.store(object_bytes_max);
    let memory_bytes_max = config.bytes_in_flight_max + config.heads_remembered_max as u64 * RADOS_HEAD_BYTES;
    let backend = Arc::new(blocker_rados::RadosStore::open(config)?);
    Ok(Store { backend, file: None, memory_bytes_max })
}

/// What `blocker-rados` says that a remembered head takes.
#[cfg(feature = "rados")]
const RADOS_HEAD_BYTES: u64 = 150;

#[cfg(not(feature = "rados"))]
fn rados(_: &RadosTable, _: u64) -> Result<Store, ObjectsError> {
    Err(ObjectsError::Config("objects.backend.kind: this cached was built without RADOS".into()))
}

fn remote(table: &RemoteTable, secret: Option<Secret>) -> Result<Store, ObjectsError> {
    let mut config = table.client()?;
    config.secret = secret;
    let in_flight = u64::from(config.connections) * config.bytes;
    let memory_bytes_max = in_flight + config.payload_pool_bytes_max as u64;
    let backend = Arc::new(SynapseBlocker::connect_on_thread(config)?);
    Ok(Store { backend, file: None, memory_bytes_max })
}
