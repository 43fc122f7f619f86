//! The object cache: objects at the speed of memory, in front of a slower store.
//!
//! An [`ObjectCache`] implements the storage contract ([`Blocker`](blocker::Blocker)) on top of any
//! other implementation: a directory, RADOS, a server on the network, another cache. It caches
//! objects in buckets of 4 KiB, and writes in the write mode of the object's namespace:
//!
//! | mode | acknowledged | readable from memory afterwards | lost with the process |
//! |---|---|---|---|
//! | write-back | from memory | yes | dirty data: bounded in bytes and age |
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
//!     // Dirty data are lost with the process: store them before the end.
//!     cache.flush(FlushRequest::new(Scope::All)).await?;
//!     Ok::<_, blocker::Error>(())
//! })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! # The background
//! A cache comes with a [`Background`]: the future that flushes, handles the store's events, and
//! completes operations whose callers have given up. [`ObjectCacheBuilder::start`] runs it on a
//! thread; [`ObjectCacheBuilder::build`] and [`ObjectCache::new`] return it, to be spawned on an
//! executor. Once the background has been dropped, operations that need it fail.
//!
//! # Structure
//! Each chapter uses only the chapters before it, so it can be read without the later ones:
//!
//! | chapter | |
//! |---|---|
//! | `tasks` | wait queues, the executor of exclusive sections, deadlines, background work |
//! | `store` | the gate through which requests reach the store; epochs and claims |
//! | `memory` | buckets, eviction queues, slots |
//! | `control` | namespaces: records, settings, limits, quotas, memory shares |
//! | `read_ahead` | the detection of sequential reads, and the choice of data to load in advance |
//! | `journal` | the log of changes, and the records of an earlier process |
//! | `state` | one object, the index, the dirty queue |
//! | `shared` | the state that all operations share: the cache's parts, objects in use, waits, claims |
//! | `read` | reads that miss, loads, lists |
//! | `write` | write-back, write-through, copies, flushes |
//! | `recovery` | the replay of an earlier process's changes |
//!
//! The files next to the chapters are the cache's public interface (`cache.rs`, `blocker_impl.rs`,
//! `control_impl.rs`), the background (`background.rs`), and the changes of a running cache
//! (`settings_in_force.rs`, `detach.rs`).
//!
//! A read goes through `blocker_impl.rs` (the operation), `state/index` (name → object),
//! `tasks/serial` (the object's exclusive section), `state/read.rs` (slots → bytes) and `memory/`
//! (slots and buckets). On a miss it continues in `read/mod.rs`, `state/ranges.rs` (a single load
//! for all readers) and `read/load.rs` (the store).
//!
//! A write-back goes through `write/back.rs` (applied in memory, acknowledged as *cached*) and
//! later through `state/dirty_queue.rs` (the queue of dirty objects), `background.rs` (when to
//! flush), `state/flush.rs` (what to flush) and `write/flush.rs` (the requests). A write-through
//! uses `write/through.rs`: it asks the store first. Eviction is in `memory/queue.rs` (the choice
//! of a bucket) and `shared/resources.rs`.

mod background;
mod blocker_impl;
mod builder;
mod cache;
mod config;
mod control;
mod control_impl;
mod counters;
mod detach;
mod journal;
mod memory;
mod mutation;
mod read;
mod read_ahead;
mod recovery;
mod settings_in_force;
mod shared;
mod state;
mod store;
mod tasks;
mod write;

pub use background::Background;
pub use blocker::{DirtyData, RemovedNamespace as Removed};
pub use builder::ObjectCacheBuilder;
pub use cache::{ObjectCache, WeakObjectCache};
pub use config::{
    ConfigError, Leadership, MEMORY_BYTES_MIN, MEMORY_SHARES_MAX, MEMORY_WEIGHT_MAX, NamespaceConfig,
    OBJECT_BYTES_LIMIT, ObjectCacheConfig, Writer,
};
pub use control::Counters;
pub use control::attach_state::{AttachState, AttachStatus};
pub use control::quotas::QuotaUse;
pub use control::records::StoreCounters;
pub use control::settings::{SettingSource, SettingsInForce};
pub use counters::{DURABILITIES, NamespaceCounters};
pub use journal::unapplied::RecoveryProgress;
pub use journal::{
    AtLimit, JournalHealth, JournalOptions, JournalState, OpenJournal, recorded as journal_records,
};
pub use recovery::RecoveryError;
pub use settings_in_force::LiveSettings;
pub use state::losses::{LostObject, LostWrites};
pub use store::StoreTerms;
pub use write::receive::ReceiveBuffer;

/// The order of the object cache's locks, checked by every build with debug assertions.
///
/// ```text
///  namespace settings ─> the state that the settings change
///  memory shares ─> eviction queue
///  index shard ─> (exclusive section, only tried) ─> one of: eviction queue, dirty queue, free stack ─> fresh buckets
///                                                           or a leaf
/// ```
/// An exclusive section is not a lock: the thread inside may take any lock that ranks after it, but
/// never an index shard. A leaf protects only its own data, and a thread that holds a leaf takes no
/// lock.
mod lock_ranks {
    use crate::lock_order::Rank;

    pub(super) static SETTINGS: Rank = Rank::new("objects: namespace settings", 90);
    pub(super) static INDEX: Rank = Rank::new("objects: index shard", 100);
    pub(super) static MEMORY_SHARES: Rank = Rank::new("objects: memory shares", 110);
    pub(super) static QUEUE: Rank = Rank::new("objects: eviction queue", 120);
    pub(super) static DIRTY_QUEUE: Rank = Rank::new("objects: dirty queue", 120);
    pub(super) static FREE_STACK: Rank = Rank::new("objects: free bucket stack", 120);
    pub(super) static FRESH: Rank = Rank::new("objects: unused buckets", 125);
    pub(super) static WAITERS: Rank = Rank::new("objects: waiting tasks", 130);
    pub(super) static QUOTAS: Rank = Rank::new("objects: quotas", 130);
    pub(super) static GATE: Rank = Rank::new("objects: gate to the store", 130);
    pub(super) static DIRTY_ROOM: Rank = Rank::new("objects: dirty data limits", 130);
    pub(super) static VERSIONS: Rank = Rank::new("objects: versions of evicted objects", 130);
    pub(super) static CLAIMS: Rank = Rank::new("objects: claims", 130);
    pub(super) static ATTACHING: Rank = Rank::new("objects: attach state", 128);
    pub(super) static NAMESPACE_NUMBERS: Rank = Rank::new("objects: namespace number assignment", 129);
    pub(super) static WRITE_PHASES: Rank = Rank::new("objects: changes in flight by write mode", 130);
    pub(super) static NAMESPACES: Rank = Rank::new("objects: namespace records", 130);
    pub(super) static LOSSES: Rank = Rank::new("objects: losses", 130);
    pub(super) static BACKGROUND: Rank = Rank::new("objects: background work", 130);
    pub(super) static TICKET: Rank = Rank::new("objects: flush ticket", 130);
    pub(super) static JOURNAL_CONDITION: Rank = Rank::new("objects: journal condition", 130);
    pub(super) static JOURNAL_EVENTS: Rank = Rank::new("objects: journal events", 130);
    pub(super) static READ_AHEAD: Rank = Rank::new("objects: read ahead", 130);
    pub(super) static RECOVERY: Rank = Rank::new("objects: recovery", 130);
}
