//! Items that come from another store, with all their attributes.

use crate::KeyHash;
use crate::clock::Expiry;
use crate::kv::inner::Inner;
use crate::kv::item::{Usage, state};
use crate::kv::{DeleteOptions, Kv, StoreError, StoreOptions, StoreOutcome};

/// The longest time since the last use that an item records: most of a year.
const IDLE_SECS_MAX: u32 = 1 << 24;

/// The attributes of an item that comes from another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImportOptions {
    /// The client's flags.
    pub client_flags: u32,
    /// The CAS value, which the item keeps. See [`Kv::raise_cas`].
    pub cas: u64,
    /// The expiry of the item, by this store's clock.
    pub expiry: Expiry,
    /// Seconds since the last use.
    pub idle_secs: u32,
    /// Whether the item has been read since it was stored.
    pub fetched: bool,
    /// Whether the item is marked stale.
    pub stale: bool,
    /// Whether a client has won the right to refresh the item.
    pub token_sent: bool,
    /// Whether the key counts as base64 (see [`StoreOptions::key_binary`]).
    pub key_binary: bool,
}

/// What became of an item that comes from another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Imported {
    /// It is stored.
    Stored,
    /// It has expired.
    Expired,
    /// It was left out: memory is full, and the item has not been used for longer than those that would be
    /// evicted for it.
    Colder,
}

impl Kv {
    /// Stores an item of another store, in place of the key's earlier item. An item that was read there
    /// counts as hit for the eviction policy. An item that is not stored only removes the earlier one. A
    /// full store evicts, as it does for other stores, but not what was used later than the item.
    ///
    /// No client may use the key during the call: for a moment the item lacks its marks.
    ///
    /// ```
    /// use cached_core::kv::{ImportOptions, Imported, Kv};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let options = ImportOptions { cas: 77, stale: true, ..ImportOptions::default() };
    /// assert_eq!(kv.import(b"k", kv.hash(b"k"), b"v", &options), Ok(Imported::Stored));
    /// assert_eq!(kv.peek(b"k", kv.hash(b"k"), |item| (item.cas(), item.stale())), Ok((77, true)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`StoreError`]. The key then has no item, because an earlier one may be out of date.
    pub fn import(
        &self,
        key: &[u8],
        hash: KeyHash,
        value: &[u8],
        options: &ImportOptions,
    ) -> Result<Imported, StoreError> {
        let store = StoreOptions {
            client_flags: options.client_flags,
            expiry: options.expiry,
            key_binary: options.key_binary,
            new_cas: Some(options.cas),
            ..StoreOptions::default()
        };
        let outcome = if options.expiry.is_past(self.now_secs()) {
            Ok(Imported::Expired)
        } else if self.inner.log.is_colder(options.fetched, options.idle_secs, self.now_secs()) {
            Ok(Imported::Colder)
        } else {
            match self.store(key, hash, value, &store) {
                StoreOutcome::Stored { .. } => Ok(Imported::Stored),
                StoreOutcome::TooLarge => Err(StoreError::TooLarge),
                _ => Err(StoreError::OutOfMemory),
            }
        };
        if outcome == Ok(Imported::Stored) {
            self.inner.set_imported(key, hash, options);
        } else {
            self.delete(key, hash, &DeleteOptions::default());
        }
        outcome
    }

    /// Returns whether memory is full, so that more items are stored in the place of others, or not at all.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.inner.log.is_full()
    }

    /// From now on, assigns only CAS values above `at_least` to items. Items that were
    /// [imported](Kv::import) keep theirs.
    pub fn raise_cas(&self, at_least: u64) {
        self.inner.index.shards().iter().for_each(|shard| shard.raise_cas(at_least));
    }

    /// Returns the lowest number above every CAS value that the store has assigned so far.
    #[must_use]
    pub fn cas_ahead(&self) -> u64 {
        self.inner.index.cas_ahead()
    }
}

impl Inner {
    /// Sets the marks and the time of the last use of an item that has just been stored.
    fn set_imported(&self, key: &[u8], hash: KeyHash, options: &ImportOptions) {
        let mark = |is_set: bool, mark| if is_set { mark } else { 0 };
        let marks = mark(options.fetched, state::FETCHED)
            | mark(options.stale, state::STALE)
            | mark(options.token_sent, state::TOKEN_SENT);
        let now = self.now();
        let locked = self.index.shard(hash).lock(hash);
        // The item may have been evicted already.
        if let Some(found) = self.find_any(&locked, hash, key) {
            let used = now.wrapping_sub(options.idle_secs.min(IDLE_SECS_MAX));
            let mut bits = found.item.state() | marks;
            if options.fetched {
                bits = bits & !state::POLICY | self.log.policy.hit_elsewhere() << state::POLICY_SHIFT;
            }
            found.item.set_usage(Usage::new(bits, used));
        }
    }
}
