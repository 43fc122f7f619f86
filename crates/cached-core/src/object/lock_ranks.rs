//! The order of the object cache's locks, checked by every build with debug assertions.
//!
//! ```text
//!  settings of namespaces ─> what they change
//!  shares of the memory ─> eviction queue
//!  index shard ─> (exclusive section, only tried) ─> one of: eviction queue, dirty queue, free stack ─> fresh buckets
//!                                                           or a leaf
//! ```
//! An exclusive section is not a lock: the thread inside may take any lock that ranks after it, but
//! never an index shard. The leaves protect only what they cover, and no lock is taken under them.

use crate::lock_order::Rank;

pub(super) static SETTINGS: Rank = Rank::new("objects: settings of namespaces", 90);
pub(super) static INDEX: Rank = Rank::new("objects: index shard", 100);
pub(super) static MEMORY_SHARES: Rank = Rank::new("objects: shares of the memory", 110);
pub(super) static QUEUE: Rank = Rank::new("objects: eviction queue", 120);
pub(super) static DIRTY_QUEUE: Rank = Rank::new("objects: dirty queue", 120);
pub(super) static FREE_STACK: Rank = Rank::new("objects: stack of free buckets", 120);
pub(super) static FRESH: Rank = Rank::new("objects: buckets never used", 125);
pub(super) static WAITERS: Rank = Rank::new("objects: tasks that wait", 130);
pub(super) static QUOTAS: Rank = Rank::new("objects: quotas", 130);
pub(super) static GATE: Rank = Rank::new("objects: gate to the store", 130);
pub(super) static DIRTY_ROOM: Rank = Rank::new("objects: room for dirty data", 130);
pub(super) static VERSIONS: Rank = Rank::new("objects: versions of what has been evicted", 130);
pub(super) static CLAIMS: Rank = Rank::new("objects: claims", 130);
pub(super) static ATTACHING: Rank = Rank::new("objects: the way in or out of the path of requests", 128);
pub(super) static NAMESPACE_NUMBERS: Rank = Rank::new("objects: a number that a namespace gets", 129);
pub(super) static WRITE_PHASES: Rank = Rank::new("objects: changes under way in each write mode", 130);
pub(super) static NAMESPACES: Rank = Rank::new("objects: records of namespaces", 130);
pub(super) static LOSSES: Rank = Rank::new("objects: losses", 130);
pub(super) static BACKGROUND: Rank = Rank::new("objects: work for the background", 130);
pub(super) static TICKET: Rank = Rank::new("objects: a flush that is waited for", 130);
pub(super) static JOURNAL_CONDITION: Rank = Rank::new("objects: condition of the journal", 130);
pub(super) static JOURNAL_EVENTS: Rank = Rank::new("objects: events of the journal", 130);
pub(super) static READ_AHEAD: Rank = Rank::new("objects: what is read in order", 130);
pub(super) static RECOVERY: Rank = Rank::new("objects: what is to be recovered", 130);
