//! The one place every mutation passes: watchers, warm restart and replication hang here.

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
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

/// Hears of mutations, in the order in which they happen to each key.
pub trait MutationHook: Send + Sync + 'static {
    /// Called while the key's bucket is locked: be quick, do not call the store, do not block.
    /// `version` is the item's CAS value (the last one, for a removal); 0 without CAS.
    fn on_mutation(&self, mutation: Mutation, key: &[u8], version: u64);
}
