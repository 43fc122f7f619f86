//! Hooks: calls from the store at every change of an item, and at every eviction.

use crate::clock::Expiry;

/// What happened to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A value was stored or replaced, wholly or in part.
    Stored,
    /// Only attributes changed: expiry, stale mark, CAS value.
    Touched,
    /// The item was deleted on request.
    Deleted,
    /// The item was removed because it had expired.
    Expired,
    /// The item was removed because it had been flushed.
    Flushed,
    /// The item was removed to make room.
    Evicted,
}

/// Called at every change of an item, in the order in which the changes happen to each key.
///
/// ```
/// use cached_core::kv::Kv;
/// use cached_core::kv::hook::{Change, ChangeHook};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// #[derive(Default)]
/// struct Count(AtomicU64);
///
/// impl ChangeHook for Count {
///     fn on_change(&self, change: Change, _key: &[u8], _version: u64) {
///         if change == Change::Stored {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let count = Arc::new(Count::default());
/// let kv = Kv::builder().change_hook(count.clone()).build()?;
/// kv.set(b"k", b"v")?;
/// assert_eq!(count.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ChangeHook: Send + Sync + 'static {
    /// Called while the key's hash bucket is locked: must be quick, and must neither block nor call the
    /// store. `version` is the item's CAS value (for a removal, its last one), or 0 in a store without CAS
    /// values.
    fn on_change(&self, change: Change, key: &[u8], version: u64);
}

/// An item that is about to be removed to make room.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct EvictedItem<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The length of the value.
    pub value_bytes: usize,
    /// The client's flags.
    pub client_flags: u32,
    /// When the item would have expired.
    pub expiry: Expiry,
    /// The clock's second of the last use.
    pub last_access: u32,
    /// Whether the item was ever read.
    pub fetched: bool,
    /// The current second of the clock.
    pub now: u32,
}

/// Called for items that are removed to make room.
pub trait EvictionHook: Send + Sync + 'static {
    /// Called while the key's hash bucket is locked: must be quick, and must neither block nor call the
    /// store.
    fn on_eviction(&self, evicted: &EvictedItem<'_>);
}
