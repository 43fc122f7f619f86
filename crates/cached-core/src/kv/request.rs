//! The options and outcomes of the operations, which are the same for every protocol, and the hooks
//! that the store calls at changes and evictions.

use crate::clock::Expiry;

/// The condition and the effect of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// Stores unconditionally.
    #[default]
    Set,
    /// Stores only if there is no item. An existing item counts as used.
    Add,
    /// Stores only if the item exists.
    Replace,
    /// Stores only if the item exists and has the CAS value [`StoreOptions::compare`].
    Cas,
    /// Appends to the item's value; its flags and expiry stay.
    Append,
    /// Prepends to the item's value; its flags and expiry stay.
    Prepend,
}

/// The options of [`Kv::store`](super::Kv::store).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreOptions {
    /// The condition and the effect.
    pub mode: StoreMode,
    /// The client's flags, kept with the item.
    pub client_flags: u32,
    /// The expiry of the item.
    pub expiry: Expiry,
    /// Whether the client sent the key in base64 (meta commands); kept for replies.
    pub key_binary: bool,
    /// The expected CAS value; 0 means none. [`StoreMode::Cas`] with 0 never matches. Append and
    /// prepend check the value unless it is 0; the other modes ignore it.
    pub compare: u64,
    /// With [`StoreMode::Cas`]: an older CAS value is accepted too, but then the item keeps its
    /// expiry and is marked as stale (meta set with `I`).
    pub allow_stale: bool,
    /// The item's new CAS value, instead of one from the store's own counter (meta `E`).
    pub new_cas: Option<u64>,
    /// With append and prepend: a missing item is created with this expiry (meta `N`).
    pub vivify: Option<Expiry>,
}

/// The outcome of [`Kv::store`](super::Kv::store).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOutcome {
    /// Stored.
    Stored {
        /// The item's new CAS value; 0 if the store has no CAS values.
        cas: u64,
        /// The length of the whole value (the joined one after append and prepend).
        value_bytes: usize,
    },
    /// The mode's condition is not met.
    NotStored,
    /// The item has another CAS value.
    Exists,
    /// The item to compare with does not exist.
    NotFound,
    /// Key and value exceed the limits of an item. The old item is unchanged.
    TooLarge,
    /// No memory could be freed. The old item is unchanged.
    OutOfMemory,
}

/// The options of [`Kv::fetch`](super::Kv::fetch).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FetchOptions {
    /// The expiry to be set for the item.
    pub touch: Option<Expiry>,
    /// Whether the fetch does not count as a use of the item.
    pub no_bump: bool,
    /// Creates an empty item with this expiry if there is none (meta `N`). The caller that creates
    /// it wins the right to refresh it. A created item is not touched; one that expires immediately
    /// is returned only to its creator.
    pub vivify: Option<Expiry>,
    /// Lets the caller win the right to refresh an item that expires before this time (meta `R`),
    /// unless another caller has won it.
    pub recache_below: Option<Expiry>,
    /// Compares the item's new expiry rather than its previous one (meta `R` after `T`).
    pub recache_after_touch: bool,
    /// The CAS value of a created item, instead of one from the counter (meta `E`).
    pub new_cas: Option<u64>,
    /// Whether a created item's key counts as base64 (see [`StoreOptions::key_binary`]).
    pub key_binary: bool,
    /// Assigns the right to refresh stale items, as meta commands do; otherwise the marks are
    /// ignored.
    pub tokens: bool,
}

/// The report of [`Kv::fetch`](super::Kv::fetch) apart from the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fetched {
    /// Whether the item was created by this fetch.
    pub created: bool,
    /// Whether this caller has won the right to refresh the item.
    pub won: bool,
    /// Whether another caller had won the right before.
    pub token_sent: bool,
    /// Whether the item is marked stale.
    pub stale: bool,
    /// Whether the item had been read before this fetch.
    pub fetched_before: bool,
    /// Seconds since the last use before this fetch.
    pub idle_secs: u32,
    /// The expiry before this fetch.
    pub expiry_before: Expiry,
}

/// The reason why a key has no item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// The item does not exist.
    Absent,
    /// The item had expired, and has been removed.
    Expired,
    /// The item was stored before the last flush, and has been removed.
    Flushed,
    /// The item does not exist, and could not be created (or the item could not be changed) for
    /// lack of memory.
    OutOfMemory,
}

/// The options of [`Kv::delete`](super::Kv::delete).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Deletes only an item with this CAS value.
    pub compare: Option<u64>,
    /// Instead of deleting the item, marks it as stale, gives it a new CAS value and lets the next
    /// client win the right to refresh it (meta `I`).
    pub invalidate: bool,
    /// The expiry of an item that stays (with `invalidate` or `clear_value`).
    pub expiry: Option<Expiry>,
    /// The CAS value of an item that stays, instead of one from the counter (meta `E`).
    pub new_cas: Option<u64>,
    /// Keeps the item, but empties its value and gives it `client_flags` (meta `x`).
    pub clear_value: bool,
    /// The client flags of an item that is emptied (meta `F`).
    pub client_flags: u32,
}

/// The outcome of [`Kv::delete`](super::Kv::delete).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// The item was deleted, marked or emptied.
    Done,
    /// The item does not exist.
    NotFound,
    /// The item has another CAS value.
    Exists,
    /// No memory could be freed for an item that stays.
    OutOfMemory,
}

/// The options of [`Kv::arithmetic`](super::Kv::arithmetic).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArithmeticOptions {
    /// Subtracts down to 0, instead of adding modulo 2^64.
    pub decrement: bool,
    /// The amount.
    pub delta: u64,
    /// Changes only an item with this CAS value; 0 means any.
    pub compare: u64,
    /// The item's new CAS value, instead of one from the counter.
    pub new_cas: Option<u64>,
    /// The expiry to be set for the item.
    pub touch: Option<Expiry>,
    /// Creates a missing item with this value and expiry.
    pub vivify: Option<(u64, Expiry)>,
    /// Whether a created item's key counts as base64 (see [`StoreOptions::key_binary`]).
    pub key_binary: bool,
}

/// The outcome of [`Kv::arithmetic`](super::Kv::arithmetic).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArithmeticOutcome {
    /// The item holds `value`.
    Done {
        /// The number.
        value: u64,
        /// The item's new CAS value.
        cas: u64,
        /// The item's expiry.
        expiry: Expiry,
        /// Whether the item was created.
        created: bool,
    },
    /// The item does not exist.
    NotFound,
    /// The item has another CAS value.
    Exists,
    /// The value is not a decimal number below 2^64.
    NonNumeric,
    /// No memory could be freed for the new number.
    OutOfMemory,
}

// The store calls the hooks at every change of an item and at every eviction.

/// A change of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A value was stored or replaced, as a whole or in part.
    Stored,
    /// Only attributes changed: expiry, CAS value, stale mark, the right to refresh the item.
    Touched,
    /// The item was deleted on request.
    Deleted,
    /// The key was to be deleted, and had no item.
    Absent,
    /// The item was removed because it had expired.
    Expired,
    /// The item was removed because it had been flushed.
    Flushed,
    /// The item was evicted to free memory.
    Evicted,
}

/// A hook that the store calls at every change of an item; for each key, in the order of its
/// changes. [`Kv::add_change_hook`](super::Kv::add_change_hook) adds one to a store in use.
///
/// ```
/// use cached_core::kv::{Change, ChangeHook, Kv, KvConfig};
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
/// let kv = Kv::new(KvConfig { change_hook: Some(count.clone()), ..KvConfig::default() })?;
/// kv.set(b"k", b"v")?;
/// assert_eq!(count.0.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ChangeHook: Send + Sync + 'static {
    /// Reports a change. This is called while the key's hash bucket is locked, so it must be quick,
    /// and must neither block nor call the store. `version` is the item's CAS value (for a removal,
    /// its last one), or 0 without an item or in a store without CAS values.
    fn on_change(&self, change: Change, key: &[u8], version: u64);
}

/// An item that is about to be evicted.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct EvictedItem<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The length of the value.
    pub value_bytes: usize,
    /// The client's flags.
    pub client_flags: u32,
    /// The time at which the item would have expired.
    pub expiry: Expiry,
    /// The time of the last use, in the clock's seconds.
    pub last_access: u32,
    /// Whether the item was ever read.
    pub fetched: bool,
    /// The current time, in the clock's seconds.
    pub now: u32,
}

/// A hook that the store calls for evicted items.
pub trait EvictionHook: Send + Sync + 'static {
    /// Reports an eviction. This is called while the key's hash bucket is locked, so it must be
    /// quick, and must neither block nor call the store.
    fn on_eviction(&self, evicted: &EvictedItem<'_>);
}
