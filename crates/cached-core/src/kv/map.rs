//! The map-like interface for programs that embed the store: owned values, durations, ordinary
//! errors, and iteration over items. Its functions are inlined or generic, so that programs compile
//! those that they call.

use std::time::Duration;

use super::config::{CasError, CountError, StoreError};
use super::{
    ArithmeticOptions, ArithmeticOutcome, DeleteOptions, DeleteOutcome, FetchOptions, ItemView, Kv,
    ScanCursor, StoreMode, StoreOptions, StoreOutcome,
};
use crate::clock::Expiry;

#[inline]
fn is_stored(outcome: StoreOutcome) -> Result<bool, StoreError> {
    match outcome {
        StoreOutcome::Stored { .. } => Ok(true),
        StoreOutcome::NotStored | StoreOutcome::Exists | StoreOutcome::NotFound => Ok(false),
        StoreOutcome::TooLarge => Err(StoreError::TooLarge),
        StoreOutcome::OutOfMemory => Err(StoreError::OutOfMemory),
    }
}

impl Kv {
    #[inline]
    fn put(&self, mode: StoreMode, key: &[u8], value: &[u8], expiry: Expiry) -> Result<bool, StoreError> {
        let options = StoreOptions { mode, expiry, ..StoreOptions::default() };
        is_stored(self.store(key, self.hash(key), value, &options))
    }

    /// Returns a copy of a key's value. The item counts as used. [`Kv::read`] reads the value without a copy.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"greeting", b"hello")?;
    /// assert_eq!(kv.get(b"greeting").as_deref(), Some(&b"hello"[..]));
    /// assert_eq!(kv.get(b"other"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get_with_cas(key).map(|(value, _)| value)
    }

    /// Returns a copy of a key's value, and the CAS value for [`Kv::compare_and_set`]. The item counts as
    /// used.
    #[inline]
    pub fn get_with_cas(&self, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        self.read(key, self.hash(key), |item| (item.to_vec(), item.cas())).ok()
    }

    /// Stores a value until it is removed or evicted.
    ///
    /// # Errors
    /// Returns [`StoreError`]. The old value, if there is one, then stays.
    #[inline]
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.put(StoreMode::Set, key, value, Expiry::NEVER).map(drop)
    }

    /// Stores a value that expires after `ttl`. The clock counts whole seconds: part of a second counts as
    /// one, and a value may expire up to one second early.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// use std::time::Duration;
    ///
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set_for(b"session:42", b"{}", Duration::from_secs(300))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`StoreError`]. The old value, if there is one, then stays.
    #[inline]
    pub fn set_for(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<(), StoreError> {
        self.put(StoreMode::Set, key, value, Expiry::after_duration(self.now_secs(), ttl)).map(drop)
    }

    /// Stores a value if the key has no value. Returns whether it was stored.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// assert!(kv.add(b"leader", b"node 1")?);
    /// assert!(!kv.add(b"leader", b"node 2")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`StoreError`].
    #[inline]
    pub fn add(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Add, key, value, Expiry::NEVER)
    }

    /// Stores a value if the key has one already. Returns whether it was stored.
    ///
    /// # Errors
    /// Returns [`StoreError`]. The old value then stays.
    #[inline]
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Replace, key, value, Expiry::NEVER)
    }

    /// Appends bytes to a value. Returns false if there is no value, or the joined value would be
    /// too large.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    #[inline]
    pub fn append(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Append, key, value, Expiry::NEVER)
    }

    /// Prepends bytes to a value. Returns false if there is no value, or the joined value would be
    /// too large.
    ///
    /// # Errors
    /// Returns [`StoreError`].
    #[inline]
    pub fn prepend(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Prepend, key, value, Expiry::NEVER)
    }

    /// Stores a value if the item still has the CAS value that was read. Returns the new CAS value.
    ///
    /// ```
    /// # use cached_core::kv::{CasError, Kv};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"list", b"a")?;
    /// let (mut list, cas) = kv.get_with_cas(b"list").expect("just set");
    /// list.extend_from_slice(b",b");
    /// kv.compare_and_set(b"list", &list, cas)?;
    /// assert_eq!(kv.compare_and_set(b"list", b"too late", cas), Err(CasError::Changed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`CasError`]. A store without CAS values ([`KvConfig::cas`](super::KvConfig::cas))
    /// always returns [`CasError::Changed`] for an item that exists.
    #[inline]
    pub fn compare_and_set(&self, key: &[u8], value: &[u8], cas: u64) -> Result<u64, CasError> {
        let options = StoreOptions { mode: StoreMode::Cas, compare: cas, ..StoreOptions::default() };
        match self.store(key, self.hash(key), value, &options) {
            StoreOutcome::Stored { cas, .. } => Ok(cas),
            StoreOutcome::NotFound => Err(CasError::NotFound),
            StoreOutcome::TooLarge => Err(StoreError::TooLarge.into()),
            StoreOutcome::OutOfMemory => Err(StoreError::OutOfMemory.into()),
            StoreOutcome::Exists | StoreOutcome::NotStored => Err(CasError::Changed),
        }
    }

    #[inline]
    fn count(&self, key: &[u8], decrement: bool, delta: u64) -> Result<u64, CountError> {
        let options = ArithmeticOptions { decrement, delta, ..ArithmeticOptions::default() };
        match self.arithmetic(key, self.hash(key), &options) {
            ArithmeticOutcome::Done { value, .. } => Ok(value),
            ArithmeticOutcome::NotFound => Err(CountError::NotFound),
            ArithmeticOutcome::NonNumeric => Err(CountError::NonNumeric),
            // Without a CAS value to compare, `Exists` cannot occur.
            ArithmeticOutcome::OutOfMemory | ArithmeticOutcome::Exists => Err(CountError::OutOfMemory),
        }
    }

    /// Adds to the decimal number in a value, modulo 2^64. Returns the sum.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"visits", b"41")?;
    /// assert_eq!(kv.increment(b"visits", 1), Ok(42));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns [`CountError`].
    #[inline]
    pub fn increment(&self, key: &[u8], delta: u64) -> Result<u64, CountError> {
        self.count(key, false, delta)
    }

    /// Subtracts from the decimal number in a value, down to 0. Returns the difference.
    ///
    /// # Errors
    /// Returns [`CountError`].
    #[inline]
    pub fn decrement(&self, key: &[u8], delta: u64) -> Result<u64, CountError> {
        self.count(key, true, delta)
    }

    /// Sets an item's expiry to `ttl` from now, as in [`Kv::set_for`]. Returns whether the item
    /// exists.
    #[inline]
    pub fn touch_for(&self, key: &[u8], ttl: Duration) -> bool {
        let touch = Some(Expiry::after_duration(self.now_secs(), ttl));
        self.fetch(key, self.hash(key), &FetchOptions { touch, ..FetchOptions::default() }, |_, _| ()).is_ok()
    }

    /// Removes an item. Returns whether the item existed.
    #[inline]
    pub fn remove(&self, key: &[u8]) -> bool {
        self.delete(key, self.hash(key), &DeleteOptions::default()) == DeleteOutcome::Done
    }

    /// Returns an iterator over copies of all keys and values, in no particular order.
    ///
    /// The store may change during the iteration: an item that exists throughout is returned at
    /// least once (twice, if the index grows past it); other items may be returned. Expired items
    /// are left out, and no item counts as used.
    ///
    /// Each step copies at most the items of one hash bucket, about ten, and locks it only for that
    /// time; if many items have been removed, it may skip empty hash buckets. The iterator holds no
    /// lock between steps, so the store may be used.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"a", b"1")?;
    /// kv.set(b"b", b"2")?;
    /// let mut items: Vec<_> = kv.iter().collect();
    /// items.sort();
    /// assert_eq!(items, [(b"a".to_vec(), b"1".to_vec()), (b"b".to_vec(), b"2".to_vec())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        self.copies(|item| (item.key().to_vec(), item.to_vec()))
    }

    /// Returns an iterator over copies of all keys. The remarks of [`Kv::iter`] about a changing
    /// store apply here too.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"user:1", b"Ann")?;
    /// kv.set(b"page:1", b"...")?;
    /// assert_eq!(kv.keys().filter(|key| key.starts_with(b"user:")).count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        self.copies(|item| item.key().to_vec())
    }

    /// Returns an iterator over the results of `copy`, which reads the items of one hash bucket at a
    /// time.
    fn copies<T>(&self, copy: impl Fn(&ItemView<'_>) -> T) -> impl Iterator<Item = T> {
        let mut cursor = Some(ScanCursor::default());
        let next_bucket = move || {
            let mut copies = Vec::new();
            cursor = self.scan(cursor?, |item| copies.push(copy(item)));
            Some(copies)
        };
        std::iter::from_fn(next_bucket).flatten()
    }
}
