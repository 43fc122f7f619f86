//! The store that a configuration names, opened and closed in order.

use crate::backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
use crate::error::ConfigError;
use blocker::file::FileConfig;
use blocker::memory::MemoryConfig;
use blocker::{Blocker, Control, FileStore, Memory, SystemClock};
use std::fs::DirBuilder;
use std::sync::Arc;
use std::time::Duration;
use synapse::{Secret, SynapseBlocker};

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The configuration cannot work, as it turned out only now.
    #[error("{0}")]
    Config(ConfigError),
    /// What the store says.
    #[error("{0}")]
    Store(#[from] blocker::Error),
}

/// An open store.
pub struct Store {
    backend: Arc<dyn Blocker>,
    control: Option<Arc<dyn Control>>,
    memory_bytes_max: u64,
    open: Open,
}

/// What has to be closed in order.
enum Open {
    Nothing,
    File(Arc<FileStore>),
    #[cfg(feature = "rados")]
    Rados(Arc<blocker_rados::RadosStore>),
}

impl Store {
    /// Opens it, for objects of at most so many bytes; blocks until it is there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(
        table: &BackendTable,
        object_bytes_max: u64,
        secret: Option<Secret>,
    ) -> Result<Store, StoreError> {
        match table {
            BackendTable::Memory(table) => Ok(memory(table, object_bytes_max)),
            BackendTable::File(table) => file(table, object_bytes_max),
            BackendTable::Rados(table) => rados(table, object_bytes_max),
            BackendTable::Synapse(table) => remote(table, secret),
        }
    }

    /// Its data path.
    #[must_use]
    pub fn backend(&self) -> Arc<dyn Blocker> {
        Arc::clone(&self.backend)
    }

    /// What is not data path, if it has that.
    #[must_use]
    pub fn control(&self) -> Option<Arc<dyn Control>> {
        self.control.clone()
    }

    /// What its content or its buffers may take of this process's memory.
    #[must_use]
    pub fn memory_bytes_max(&self) -> u64 {
        self.memory_bytes_max
    }

    /// Closes it in order, once nobody uses it any more; blocks. A connection that does not close within `patience` is
    /// left to the end of the process.
    ///
    /// # Errors
    /// Something may not be stored.
    pub fn close(self, patience: Duration) -> blocker::Result<()> {
        drop((self.backend, self.control));
        #[cfg(not(feature = "rados"))]
        let _ = patience;
        match self.open {
            Open::Nothing => Ok(()),
            Open::File(file) => file.close(),
            #[cfg(feature = "rados")]
            Open::Rados(rados) => {
                // Everything acknowledged is stored; closing is only tidy.
                if let Some(rados) = Arc::into_inner(rados) {
                    rados.close(patience);
                }
                Ok(())
            }
        }
    }
}

fn memory(table: &MemoryTable, object_bytes_max: u64) -> Store {
    let config = MemoryConfig { object_bytes_max, bytes_max: table.bytes_max.0 };
    let memory = Arc::new(Memory::new(config, Arc::new(SystemClock)));
    Store {
        backend: Arc::clone(&memory) as _,
        control: Some(memory),
        memory_bytes_max: table.bytes_max.0,
        open: Open::Nothing,
    }
}

fn file(table: &FileTable, object_bytes_max: u64) -> Result<Store, StoreError> {
    let config = FileConfig {
        object_bytes_max,
        direct: table.direct,
        threads: table.threads,
        open_files_max: table.open_files_max,
        ..FileConfig::default()
    };
    // Here it is the path that is wrong, not what lies behind it.
    DirBuilder::new().recursive(true).create(&table.path).map_err(|error| {
        let why = format!("{} is not there, and cannot be made: {error}", table.path.display());
        StoreError::Config(ConfigError { key: "objects.backend.path".into(), why })
    })?;
    let file = Arc::new(FileStore::open_with(&table.path, config, Arc::new(SystemClock))?);
    Ok(Store {
        backend: Arc::clone(&file) as _,
        control: Some(Arc::clone(&file) as _),
        memory_bytes_max: 0,
        open: Open::File(file),
    })
}

#[cfg(feature = "rados")]
fn rados(table: &RadosTable, object_bytes_max: u64) -> Result<Store, StoreError> {
    /// What `blocker-rados` says that a remembered head takes.
    const HEAD_BYTES: u64 = 150;
    let config = table.store(object_bytes_max);
    let memory_bytes_max = config.bytes_in_flight_max + config.heads_remembered_max as u64 * HEAD_BYTES;
    let rados = Arc::new(blocker_rados::RadosStore::open(config)?);
    Ok(Store {
        backend: Arc::clone(&rados) as _,
        control: Some(Arc::clone(&rados) as _),
        memory_bytes_max,
        open: Open::Rados(rados),
    })
}

#[cfg(not(feature = "rados"))]
fn rados(_: &RadosTable, _: u64) -> Result<Store, StoreError> {
    let why = "is \"rados\", which this program was built without".into();
    Err(StoreError::Config(ConfigError { key: "objects.backend.kind".into(), why }))
}

fn remote(table: &RemoteTable, secret: Option<Secret>) -> Result<Store, StoreError> {
    let mut config = table.client().map_err(StoreError::Config)?;
    config.secret = secret;
    let in_flight = u64::from(config.connections) * config.bytes;
    let memory_bytes_max = in_flight + config.payload_pool_bytes_max as u64;
    let backend = Arc::new(SynapseBlocker::connect_on_thread(config)?);
    Ok(Store { backend, control: None, memory_bytes_max, open: Open::Nothing })
}
