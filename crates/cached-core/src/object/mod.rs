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
//! To follow one read, open the files in this order: `blocker_impl.rs` (the operation), `index.rs` (name →
//! object), `serial.rs` (the object's exclusive section), `state/read.rs` (slots → bytes), `slots.rs` and
//! `pool.rs` (what slots and buckets are); on a miss `read.rs`, `ranges.rs` (one load for all readers),
//! `load.rs` (the store).
//!
//! To follow one write: `write_back.rs` (applied here, acknowledged as *cached*), then, later,
//! `dirty_queue.rs` (what waits to be stored), `background.rs` (when), `state/flush.rs` (what), `flush.rs`
//! and `flush_send.rs` (sent). Or `write_through.rs`: the store first. Eviction: `queue.rs` (which bucket)
//! and `evict.rs`.

mod background;
mod background_queue;
mod blocker_impl;
mod builder;
mod cache;
mod claim;
mod config;
mod control_impl;
mod copied_content;
mod copy;
mod counters;
mod deadline;
mod dirty_queue;
mod epochs;
mod evict;
mod flush;
mod flush_send;
mod flush_ticket;
mod forward;
mod geometry;
mod handle;
mod hooks;
mod index;
mod invalidate;
mod known_claims;
mod list;
mod load;
mod lock_ranks;
mod losses;
mod metrics;
mod mutation;

mod owned_resources;
mod packed_name;
mod pool;
mod queue;
mod ranges;
mod read;
mod receive;
mod restore;
mod scope_ops;
mod serial;
mod shared;
mod shield;
mod slots;
mod state;
mod store_pending;
mod validate;
mod versions;
mod wait_queue;
mod write_back;
mod write_modes;
mod write_through;

pub use background::Background;
pub use builder::ObjectCacheBuilder;
pub use cache::ObjectCache;
pub use config::{
    ConfigError, MEMORY_BYTES_MIN, NamespaceConfig, OBJECT_BYTES_LIMIT, ObjectCacheConfig, Writer,
};
pub use counters::Counters;
pub use hooks::Hooks;
pub use losses::{LostObject, LostWrites};
pub use receive::ReceiveBuffer;
