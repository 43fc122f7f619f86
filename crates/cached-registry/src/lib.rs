//! Small documents that a group of hosts shares, and the election of one writer among the hosts.
//!
//! A [`Registry`] holds documents of a few KiB: who leads, which hosts there are, who owns what. It
//! is not a store of data. Documents are changed by compare-and-set, several of them in one step if
//! necessary; [leases](Lease) bind documents to a living host, and the identity of a lease
//! distinguishes the incarnations of the host; a [`Watch`] reports changes, continues after an
//! interruption, and says so if changes are no longer known. The table `[registry]` of a
//! configuration file ([`RegistryTable`]) selects one of four *bodies*, which are the
//! implementations of the registry:
//!
//! | `kind` | place | changes and leases | agreement among hosts |
//! |---|---|---|---|
//! | `file` | a file that a person writes; read again by a reload | no | by whoever copies the file |
//! | `store` | one object of any store with conditional changes | yes | the store's |
//! | `etcd` | an etcd cluster, through its HTTP gateway | yes | etcd's |
//! | `disk` | a block device that the hosts share, or a file on one host | yes | an agreement on plain blocks |
//!
//! ```
//! use std::sync::Arc;
//! use blocker::Memory;
//! use cached_registry::{Change, Expect, Key, Registry, RegistryTable};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! let table: RegistryTable = toml::from_str("kind = \"store\"")?;
//! let registry = Registry::open(&table, Some(Arc::new(Memory::default())))?;
//! let key = Key::new("nodes/a")?;
//! let revision = registry.change_if(&[Change::put(key.clone(), Expect::Absent, "10.0.0.1")]).await?;
//! registry.change_if(&[Change::put(key.clone(), Expect::At(revision), "10.0.0.2")]).await?;
//! let late = registry.change_if(&[Change::remove(key.clone(), revision)]).await;
//! assert!(late.is_err());
//! assert_eq!(registry.get(&key).await?.unwrap().value, "10.0.0.2");
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! [`election`] elects one writer, by a document of a registry or by the blocks of its disk.
#![warn(missing_debug_implementations)]

mod agreement;
mod clock;
mod config;
mod disk;
mod document;
pub mod election;
mod error;
mod etcd;
mod file;
mod registry;
mod store;
mod table;

pub use config::{DiskKeys, EtcdKeys, FileKeys, RegistryTable, StoreKeys};
pub use disk::NODES_MAX;
pub use document::{
    CHANGES_MAX, Change, Changes, Document, Event, Expect, KEY_BYTES_MAX, Key, LEASE_MAX, Lease, LeaseId,
    Listing, Revision, VALUE_BYTES_MAX,
};
pub use error::{Error, Reason, Result};
pub use file::documents;
pub use registry::{Registry, Watch};
