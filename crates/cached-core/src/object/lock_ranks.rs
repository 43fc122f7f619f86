//! The order of the object cache's locks, checked by every build with debug assertions.
//!
//! ```text
//!  index shard ─> (exclusive section, only tried) ─> one of: eviction queue, dirty queue, free stack ─> fresh buckets
//!                                                           or a leaf
//! ```
//! An exclusive section is no lock: the thread inside may take any lock that comes after it, never an index
//! shard. The leaves are held to read or change what they cover, and nothing is locked under them.

use lock_order::Rank;

pub(super) static INDEX: Rank = Rank::new("objects: index shard", 100);
pub(super) static QUEUE: Rank = Rank::new("objects: eviction queue", 120);
pub(super) static DIRTY_QUEUE: Rank = Rank::new("objects: dirty queue", 120);
pub(super) static FREE_STACK: Rank = Rank::new("objects: stack of free buckets", 120);
pub(super) static FRESH: Rank = Rank::new("objects: buckets never used", 125);
pub(super) static WAITERS: Rank = Rank::new("objects: tasks that wait", 130);
pub(super) static VERSIONS: Rank = Rank::new("objects: versions of what has been evicted", 130);
pub(super) static CLAIMS: Rank = Rank::new("objects: claims", 130);
pub(super) static LOSSES: Rank = Rank::new("objects: losses", 130);
pub(super) static BACKGROUND: Rank = Rank::new("objects: work for the background", 130);
pub(super) static TICKET: Rank = Rank::new("objects: a flush that is waited for", 130);
