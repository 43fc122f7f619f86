//! The order of the store's locks, checked by every build with debug assertions.
//!
//! ```text
//!  a flush that is due ─> lanes, in their order ─> reclaimer ─> a shard's growth ─> bucket ─> one leaf: overflow pool, queues or free regions
//! ```
//! A lane is only ever *tried* while a bucket is held. The hooks run under all but the leaves, so what they lock ranks above.

use lock_order::Rank;

/// The lowest level of the store's locks.
pub(super) const LOWEST: u32 = 10;

/// Taken with nothing held: what comes next waits until the flush has happened.
pub(super) static FLUSH: Rank = Rank::new("kv: a flush that is due", 9);
pub(super) static LANE: Rank = Rank::new("kv: lane", LOWEST);
pub(super) static RECLAIMER: Rank = Rank::new("kv: reclaimer", 20);
pub(super) static GROWTH: Rank = Rank::new("kv: growth of an index shard", 30);
pub(super) static BUCKET: Rank = Rank::new("kv: bucket", 40);
pub(super) static OVERFLOW: Rank = Rank::new("kv: overflow pool of an index shard", 50);
pub(super) static QUEUES: Rank = Rank::new("kv: queues of regions", 50);
