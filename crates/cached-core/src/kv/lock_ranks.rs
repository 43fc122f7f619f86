//! The order in which a thread takes the store's locks. Every build with debug assertions checks it.
//!
//! ```text
//!  a flush that is due ─> lanes, in their order ─> reclaimer ─> a shard's growth ─> hash bucket ─> one leaf: overflow pool,
//!                                                                                      queues or free regions
//! ```
//! While a hash bucket is locked, a lane is only ever *tried*. The hooks run under all of these but the
//! leaves, so the locks that they take rank above.

use crate::lock_order::Rank;

/// The lowest level of the store's locks.
pub(super) const LOWEST: u32 = 10;

/// Taken while no other lock is held: operations that begin meanwhile wait until the flush is done.
pub(super) static FLUSH: Rank = Rank::new("kv: a flush that is due", 9);
pub(super) static LANE: Rank = Rank::new("kv: lane", LOWEST);
pub(super) static RECLAIMER: Rank = Rank::new("kv: reclaimer", 20);
pub(super) static GROWTH: Rank = Rank::new("kv: growth of an index shard", 30);
/// The sweep of flushed prefixes, and the table of these; both held while hash buckets are locked or copies of
/// the table are replaced.
pub(super) static SWEEP: Rank = Rank::new("kv: sweep of flushed prefixes", 25);
pub(super) static PREFIX_TABLE: Rank = Rank::new("kv: table of flushed prefixes", 35);
pub(super) static BUCKET: Rank = Rank::new("kv: hash bucket", 40);
/// Taken under a hash bucket's lock, by operations while a prefix is pending.
pub(super) static PREFIXES: Rank = Rank::new("kv: copy of the table of flushed prefixes", 44);
pub(super) static MARKS: Rank = Rank::new("kv: marks of keys stored again", 46);
pub(super) static OVERFLOW: Rank = Rank::new("kv: overflow pool of an index shard", 50);
/// Taken while no other lock is held, and held for moments.
pub(super) static FLIGHTS: Rank = Rank::new("kv: table of flights", 8);
pub(super) static FLIGHT: Rank = Rank::new("kv: flight", 9);
pub(super) static QUEUES: Rank = Rank::new("kv: queues of regions", 50);
