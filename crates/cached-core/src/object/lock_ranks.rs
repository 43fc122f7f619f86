//! The order of the object cache's locks, checked by every build with debug assertions.
//!
//! ```text
//!  namespace settings ─> the state that the settings change
//!  memory shares ─> eviction queue
//!  index shard ─> (exclusive section, only tried) ─> one of: eviction queue, dirty queue, free stack ─> fresh buckets
//!                                                           or a leaf
//! ```
//! An exclusive section is not a lock: the thread inside may take any lock that ranks after it, but
//! never an index shard. The leaves protect only what they cover, and no lock is taken under them.

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
