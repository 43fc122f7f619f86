//! The configuration of an object cache and its store, and opening what it names.
//!
//! `cached`, `synapsed` and `cachectl` share this crate. A store is one of five kinds ([`BackendTable`]),
//! written as a table of a configuration file or in one line (`file:/var/lib/objects`); [`Store::open`] opens
//! it and [`Store::close`] closes it in order. [`ObjectsTable`] has the keys of the object cache;
//! [`begin_recovery`] begins what a cache with a journal has to recover, [`store_all`] stores what is dirty at
//! the end. [`read_config`] and [`parse_config`] read a whole file, and
//! every error is one line that names the key, what is wrong with its value, and what would be right.
//!
//! Listeners and threads belong to the programs.
//!
//! ```
//! use blocker::BlockerExt;
//! use blocker::executor::block_on;
//! use cached_config::{BackendTable, OpenOptions, Store};
//!
//! let table: BackendTable = "memory:".parse()?;
//! let store = Store::open(&table, &OpenOptions::default())?;
//! block_on(store.backend().put(&"vm/disk.0".parse()?, b"hello"))?;
//! store.close(std::time::Duration::from_secs(5))?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_debug_implementations)]

mod addresses;
mod backend;
mod backend_text;
mod config_file;
mod descriptors;
mod drain_times;
mod error;
mod event_log;
mod insight_table;
mod live_objects;
mod objects;
mod open_wait;
mod receive;
mod recovery;
mod s3_table;
mod shutdown;
mod size;
mod store;
mod sweep;
mod synapse_table;
mod tls_table;
mod waiting;

pub use addresses::{Listening, check_addresses, exposure};
pub use backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
pub use cached_process::notify;
pub use config_file::{ConfigFileError, parse_config, read_config};
pub use descriptors::raise_descriptor_limit;
pub use drain_times::DrainTimes;
pub use error::{
    ConfigError, eviction_policy, invalid, is_mistake, reading_trouble, require, secret, secret_warning,
    within,
};
pub use event_log::log_events;
pub use insight_table::InsightTable;
pub use live_objects::{LIVE_KEYS, LiveObjects, Secrets};
pub use objects::journal::{AtLimitName, DurabilityName, JournalTable};
pub use objects::{NamespaceTable, ObjectsTable, WriterName};
pub use receive::CacheReceiveBuffers;
pub use recovery::{begin_recovery, log_recovery};
pub use s3_table::S3Table;
pub use shutdown::{ShutdownError, close_stored_journal, flush_all, store_all};
pub use size::Size;
pub use store::{OpenError, OpenOptions, Store};
pub use sweep::{SweepCounts, SweepOptions};
pub use synapse_table::{SynapseTable, unix_mode};
pub use tls_table::{ClientCertificatesName, KeyFormatName, MinVersionName, TlsTable};
pub use waiting::{StartError, Waiting};
