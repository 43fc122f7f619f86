//! The one place every change passes: watchers, warm restart and replication hang here.

use crate::clock::Expiry;

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A value was stored or replaced, wholly or in part.
    Stored,
    /// Only attributes changed: expiry, stale mark, CAS value.
    Touched,
    /// Deleted on request.
    Deleted,
    /// Removed because its time was over.
    Expired,
    /// Removed because of a flush of everything.
    Flushed,
    /// Removed to make room.
    Evicted,
}

/// Hears of changes, in the order in which they happen to each key.
pub trait ChangeHook: Send + Sync + 'static {
    /// Called while the key's bucket is locked: be quick, do not call the store, do not block.
    /// `version` is the item's CAS value (the last one, for a removal); 0 without CAS.
    fn on_change(&self, change: Change, key: &[u8], version: u64);
}

/// An item that is about to be removed to make room.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct EvictedItem<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Bytes of its value.
    pub value_bytes: usize,
    /// The client's flags.
    pub client_flags: u32,
    /// When it would have gone by itself.
    pub expiry: Expiry,
    /// The clock's second of its last use.
    pub last_access: u32,
    /// Whether it was ever read.
    pub fetched: bool,
    /// The clock's second now.
    pub now: u32,
}

/// Hears of items that are removed to make room.
pub trait EvictionHook: Send + Sync + 'static {
    /// Called while the key's bucket is locked: be quick, do not call the store, do not block.
    fn on_eviction(&self, evicted: &EvictedItem<'_>);
}
