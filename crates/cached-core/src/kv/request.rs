//! What may be asked of the store, and what it answers: plain values, shared by every door.

use crate::clock::Expiry;

/// How a store command treats an item that is there, or is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreMode {
    /// Stores in any case.
    #[default]
    Set,
    /// Stores only if there is no item; an item that is there counts as used.
    Add,
    /// Stores only if there is an item.
    Replace,
    /// Stores only if there is an item with the CAS value [`StoreOptions::compare`].
    Cas,
    /// Puts the value behind the one that is there; its flags and expiry stay.
    Append,
    /// Puts the value in front of the one that is there; its flags and expiry stay.
    Prepend,
}

/// The options of a store command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreOptions {
    /// What is required of an existing item.
    pub mode: StoreMode,
    /// Kept with the item, for the client's use.
    pub client_flags: u32,
    /// When the item is gone.
    pub expiry: Expiry,
    /// The client wrote the key in base64 (meta commands); the mark is kept for echoes.
    pub key_binary: bool,
    /// The CAS value expected; 0 for none. [`StoreMode::Cas`] with 0 never matches; appending and
    /// prepending check it when it is not 0; the other modes ignore it.
    pub compare: u64,
    /// With [`StoreMode::Cas`]: an older CAS value is good enough, but then the item keeps its
    /// expiry and is marked stale (meta set with `I`).
    pub allow_stale: bool,
    /// The item's new CAS value, instead of one from the store's own counter (meta `E`).
    pub new_cas: Option<u64>,
    /// With append and prepend: a missing item is created with this expiry (meta `N`).
    pub vivify: Option<Expiry>,
}

/// What became of a store command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreOutcome {
    /// Stored.
    Stored {
        /// The item's new CAS value; 0 when the store keeps none.
        cas: u64,
        /// Bytes of the whole value now (of the joined one after append and prepend).
        value_bytes: usize,
    },
    /// The mode's condition does not hold.
    NotStored,
    /// There is an item with another CAS value.
    Exists,
    /// A CAS value was expected, and there is no item.
    NotFound,
    /// Key and value are larger than an item may be. What was there is untouched.
    TooLarge,
    /// No memory could be freed for it. What was there is untouched.
    OutOfMemory,
}

/// The options of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FetchOptions {
    /// Give the item this expiry.
    pub touch: Option<Expiry>,
    /// Do not count the fetch as a use of the item.
    pub no_bump: bool,
    /// Create an empty item with this expiry if there is none (meta `N`): whoever creates it wins. What is created is not touched.
    pub vivify: Option<Expiry>,
    /// The caller wins the right to refresh an item that is gone before this (meta `R`), unless another has won it.
    pub recache_below: Option<Expiry>,
    /// Judge that by the expiry that the item has been given, not by the one it had (meta `R` behind `T`).
    pub recache_after_touch: bool,
    /// The CAS value of a created item, instead of one from the counter (meta `E`).
    pub new_cas: Option<u64>,
    /// The mark of a created item's key (see [`StoreOptions::key_binary`]).
    pub key_binary: bool,
    /// Look after stale marks and win tokens, as meta commands do; without it they stay untouched.
    pub tokens: bool,
}

/// What a fetch found out beside the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fetched {
    /// The item was created by this fetch.
    pub created: bool,
    /// This caller is to refresh the item.
    pub won: bool,
    /// Somebody was told so before.
    pub token_sent: bool,
    /// The item is marked stale.
    pub stale: bool,
    /// The item had been read before this fetch.
    pub fetched_before: bool,
    /// Seconds since the last use before this fetch.
    pub idle_secs: u32,
    /// The expiry before this fetch.
    pub expiry_before: Expiry,
}

/// Why a key has no item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// There is none.
    Absent,
    /// Its time was over; it has been removed now.
    Expired,
    /// It was stored before the last flush; it has been removed now.
    Flushed,
    /// There is none, and none could be created for lack of memory.
    OutOfMemory,
}

/// The options of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Delete only an item with this CAS value.
    pub compare: Option<u64>,
    /// Do not delete: mark the item stale, give it a new CAS value and forget who won (meta `I`).
    pub invalidate: bool,
    /// The expiry of an item that stays (with `invalidate` or `clear_value`).
    pub expiry: Option<Expiry>,
    /// The CAS value of an item that stays, instead of one from the counter (meta `E`).
    pub new_cas: Option<u64>,
    /// Keep the item, but empty its value and client flags (meta `x`).
    pub clear_value: bool,
}

/// What became of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// Done: deleted, marked or emptied.
    Done,
    /// There is no item.
    NotFound,
    /// The item has another CAS value.
    Exists,
    /// An item that stays needed memory, and there was none.
    OutOfMemory,
}

/// The options of an arithmetic command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArithmeticOptions {
    /// Subtract, stopping at 0, instead of adding, wrapping at 2^64.
    pub decrement: bool,
    /// By how much.
    pub delta: u64,
    /// Only on an item with this CAS value; 0 for any.
    pub compare: u64,
    /// The item's new CAS value, instead of one from the counter.
    pub new_cas: Option<u64>,
    /// Give the item this expiry.
    pub touch: Option<Expiry>,
    /// Create a missing item with this value and expiry.
    pub vivify: Option<(u64, Expiry)>,
    /// The mark of a created item's key (see [`StoreOptions::key_binary`]).
    pub key_binary: bool,
}

/// What became of an arithmetic command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArithmeticOutcome {
    /// The item holds `value` now.
    Done {
        /// The number.
        value: u64,
        /// The item's new CAS value.
        cas: u64,
        /// The item's expiry now.
        expiry: Expiry,
        /// It was created by this command.
        created: bool,
    },
    /// There is no item.
    NotFound,
    /// The item has another CAS value.
    Exists,
    /// The value is not a decimal number below 2^64.
    NonNumeric,
    /// The new number needed memory, and there was none.
    OutOfMemory,
}
