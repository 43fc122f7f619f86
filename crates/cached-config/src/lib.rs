//! Checks the configuration of an object cache and its store, and opens the journal and the store.
//!
//! `cached`, `synapsed` and `cachectl` share this crate. A store is one of five kinds
//! ([`BackendTable`]), written as a table of a configuration file or as a single line
//! (`file:/var/lib/objects`); [`Store::open`] opens the store and [`Store::close`] closes it in
//! order. [`ObjectsTable`] contains the keys of the object cache; [`begin_recovery`] starts the
//! recovery of a cache with a journal, and [`store_all`] stores dirty data at shutdown.
//! [`read_config`] and [`parse_config`] read a whole file. Every error is one line that names the
//! key, the problem with its value, and the remedy.
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

mod backend;
mod config_file;
mod election_table;
mod http_table;
mod journal_table;
mod keys;
mod kind;
mod lifecycle;
mod listeners;
mod nearest;
mod objects;
mod quantity;
mod running;
mod s3_table;
mod store;
mod tables;

pub use backend::{BackendTable, FileTable, MemoryTable, RadosTable, RemoteTable};
pub use cached_process::notify;
pub use config_file::{
    ConfigError, eviction_policy, invalid, parse_config, read_config, require, secret, secret_warning, within,
};
pub use election_table::ElectionTable;
pub use http_table::HttpTable;
pub use journal_table::{DurabilityName, JournalTable};
pub use keys::units;
pub use kind::{OtherKeys, of_kind};
pub use lifecycle::{
    ShutdownError, StartError, Waiting, begin_recovery, close_stored_journal, flush_all, log_events,
    log_recovery, store_all,
};
pub use listeners::{Listening, SynapseTable, check_addresses, exposure, restrict_socket, unix_mode};
pub use nearest::suggestion;
pub use objects::{NamespaceTable, ObjectsTable};
pub use quantity::{Size, TimeUnit, parse_number};
pub use running::{LIVE_KEYS, LiveObjects, Secrets, descriptors_max, raise_descriptor_limit};
pub use s3_table::S3Table;
pub use store::{OpenOptions, Store, SweepCounts};
pub use tables::{DrainTimes, InsightTable, check_tls, load_peer_tls, load_tls};
