//! The object cache: objects at the speed of memory, in front of a slower store.
//!
//! An [`ObjectCache`] keeps the storage contract ([`Blocker`](blocker::Blocker)) over any store that keeps it
//! too: a directory, RADOS, a server behind the network, another cache. Objects are cached by buckets of 4
//! KiB, and written in the write mode of their namespace:
//!
//! | mode | acknowledged | readable from memory afterwards | lost with the process |
//! |---|---|---|---|
//! | write-back | from memory | yes | what is not flushed: bounded in bytes and age |
//! | write-through | by the store | yes | nothing of its own |
//! | write-around | by the store | no | nothing of its own |
//!
//! ```
//! use std::sync::Arc;
//! use blocker::{Blocker, BlockerExt, FlushRequest, Memory, ObjectId, Scope, WriteMode, WriteRequest};
//! use cached_core::object::ObjectCache;
//!
//! let store = Arc::new(Memory::default());
//! let cache = ObjectCache::builder(store).memory_bytes(64 << 20).write_mode(WriteMode::Back).start()?;
//!
//! let disk: ObjectId = "vm/disk.0".parse()?;
//! blocker::executor::block_on(async {
//!     // Acknowledged from memory.
//!     cache.write(WriteRequest::new(disk.clone(), 0, b"hello")).await?;
//!     assert_eq!(cache.read_range(&disk, 1..4).await?, b"ell"[..]);
//!     // What is dirty is lost with the process: store it before the end.
//!     cache.flush(FlushRequest::new(Scope::All)).await?;
//!     Ok::<_, blocker::Error>(())
//! })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # The background
//! A cache comes with a [`Background`]: the future that flushes, acts on the store's events, and finishes the
//! work of operations whose callers have given up. [`ObjectCacheBuilder::start`] runs it on a thread;
//! [`ObjectCacheBuilder::build`] and [`ObjectCache::new`] return it, to be spawned on an executor. Operations
//! that need it fail once it has been dropped.
//!
//! # Where things are
//! To follow one read, open the files in this order: `blocker_impl.rs` (the operation), `index/` (name →
//! object), `serial/` (the object's exclusive section), `state/read.rs` (slots → bytes), `slots.rs` and
//! `pool/` (what slots and buckets are); on a miss `read.rs`, `ranges.rs` (one load for all readers),
//! `load.rs` (the store); what is read before it is asked for: `read_ahead/` (what, and when), `fetch_ahead.rs`.
//!
//! To follow one write: `write_back.rs` (applied here, acknowledged as *cached*), then, later,
//! `dirty_queue.rs` (what waits to be stored), `background.rs` (when), `state/flush.rs` (what), `flush.rs`
//! and `flush_send.rs` (sent). Or `write_through.rs`: the store first. Eviction: `queue/` (which bucket)
//! and `evict.rs`.

mod background;
mod blocker_impl;
mod builder;
mod cache;
mod config;
mod control;
mod control_impl;
mod copied_content;
mod counters;
mod detach;
mod insight;
mod journal;
mod lending;
mod lock_ranks;
mod memory;
mod memory_moves;
mod mutation;
mod namespace_control;
mod namespace_counters;
mod namespace_numbers;
mod namespace_removal;
mod read;
mod shared;
mod store;
mod tasks;
mod write;

mod read_ahead;
mod recovery;
mod settings_in_force;
mod share;
mod state;

pub use background::Background;
pub use blocker::{DirtyData, RemovedNamespace as Removed};
pub use builder::ObjectCacheBuilder;
pub use cache::{ObjectCache, WeakObjectCache};
pub use config::{
    ConfigError, MEMORY_BYTES_MIN, MEMORY_WEIGHT_MAX, NamespaceConfig, OBJECT_BYTES_LIMIT, ObjectCacheConfig,
    Writer,
};
pub use control::attach_state::{AttachState, AttachStatus};
pub use control::namespace_settings::{SettingSource, SettingsInForce};
pub use control::quotas::QuotaUse;
pub use control::store_metrics::StoreCounters;
pub use counters::Counters;
pub use journal::recorded as journal_records;
pub use journal::unapplied::RecoveryProgress;
pub use journal::{AtLimit, JournalHealth, JournalOptions, JournalState, OpenJournal};
pub use namespace_counters::{DURABILITIES, NamespaceCounters};
pub use recovery::RecoveryError;
pub use settings_in_force::LiveSettings;
pub use share::MEMORY_SHARES_MAX;
pub use state::losses::{LostObject, LostWrites};
pub use store::StoreTerms;
pub use write::receive::ReceiveBuffer;
