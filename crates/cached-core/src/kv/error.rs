//! The errors of the map-like interface.

/// The reason why a value was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key is empty or has more than [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) bytes, or key and value
    /// together exceed [`KvConfig::item_bytes_max`](super::KvConfig::item_bytes_max).
    #[error("the key or the value exceeds the store's limits")]
    TooLarge,
    /// No memory could be freed: the store does not evict and is full, or everything in it is pinned.
    #[error("no memory could be freed for the item")]
    OutOfMemory,
}

/// The reason why a compare-and-set did not store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CasError {
    /// The item has changed since the CAS value was read.
    #[error("the item has changed since its CAS value was read")]
    Changed,
    /// There is no item.
    #[error("there is no item with this key")]
    NotFound,
    /// The value cannot be stored at all.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason why the items of a prefix were not flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The prefix is empty or has more than [`KEY_BYTES_MAX`](super::KEY_BYTES_MAX) bytes.
    #[error("a prefix has 1 to 250 bytes")]
    Length,
    /// As many prefixes are pending as may be: their items have ended, but not all have been removed.
    #[error("too many flushes of prefixes are pending")]
    TooMany,
}

/// The reason why a number was not changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CountError {
    /// There is no item.
    #[error("there is no item with this key")]
    NotFound,
    /// The value is not a decimal number below 2^64.
    #[error("the value is not a decimal number below 2^64")]
    NonNumeric,
    /// No memory could be freed for a longer number.
    #[error("no memory could be freed for the item")]
    OutOfMemory,
}
