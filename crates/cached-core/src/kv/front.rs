//! The plain front for a program that embeds the store: owned values, ordinary errors.

use super::{
    ArithmeticOptions, ArithmeticOutcome, DeleteOptions, DeleteOutcome, FetchOptions, Kv, ScanCursor,
    StoreMode, StoreOptions, StoreOutcome,
};
use crate::clock::Expiry;

/// Why a value was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The key has no byte or more than 250, or key and value exceed the item limit.
    #[error("key or value exceeds the store's limits")]
    TooLarge,
    /// No memory could be freed.
    #[error("no memory could be freed for the item")]
    OutOfMemory,
}

/// Why a compare-and-set did not store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CasError {
    /// The item has changed since the CAS value was read.
    #[error("the item has changed")]
    Changed,
    /// There is no item.
    #[error("there is no item with this key")]
    NotFound,
    /// The value cannot be stored at all.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a number was not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CountError {
    /// There is no item.
    #[error("there is no item with this key")]
    NotFound,
    /// The value is not a decimal number below 2^64.
    #[error("the value is not a number")]
    NonNumeric,
    /// No memory could be freed for a longer number.
    #[error("no memory could be freed for the item")]
    OutOfMemory,
}

fn stored(outcome: StoreOutcome) -> Result<bool, StoreError> {
    match outcome {
        StoreOutcome::Stored { .. } => Ok(true),
        StoreOutcome::NotStored | StoreOutcome::Exists | StoreOutcome::NotFound => Ok(false),
        StoreOutcome::TooLarge => Err(StoreError::TooLarge),
        StoreOutcome::OutOfMemory => Err(StoreError::OutOfMemory),
    }
}

impl Kv {
    fn put(&self, mode: StoreMode, key: &[u8], value: &[u8], expiry: Expiry) -> Result<bool, StoreError> {
        let options = StoreOptions { mode, expiry, ..StoreOptions::default() };
        stored(self.store(key, self.hash(key), value, &options))
    }

    /// A copy of the value, if there is one.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get_with_cas(key).map(|(value, _)| value)
    }

    /// A copy of the value, and the CAS value to give to [`Kv::compare_and_set`].
    pub fn get_with_cas(&self, key: &[u8]) -> Option<(Vec<u8>, u64)> {
        self.read(key, self.hash(key), |item| {
            let mut value = Vec::with_capacity(item.value_bytes());
            item.copy_value_to(&mut value);
            (value, item.cas())
        })
        .ok()
    }

    /// Stores a value that lives until it is evicted.
    ///
    /// # Errors
    /// [`StoreError`]; the old value stays then.
    pub fn set(&self, key: &[u8], value: &[u8]) -> Result<(), StoreError> {
        self.put(StoreMode::Set, key, value, Expiry::NEVER).map(drop)
    }

    /// Stores a value for `secs` seconds.
    ///
    /// # Errors
    /// [`StoreError`]; the old value stays then.
    pub fn set_for(&self, key: &[u8], value: &[u8], secs: u32) -> Result<(), StoreError> {
        self.put(StoreMode::Set, key, value, Expiry::after(self.now_secs(), secs)).map(drop)
    }

    /// Stores a value if there is none; tells whether it did.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn add(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Add, key, value, Expiry::NEVER)
    }

    /// Stores a value if there is one already; tells whether it did.
    ///
    /// # Errors
    /// [`StoreError`]; the old value stays then.
    pub fn replace(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Replace, key, value, Expiry::NEVER)
    }

    /// Puts bytes behind a value; false if there is none, or the joined value would not fit.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn append(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Append, key, value, Expiry::NEVER)
    }

    /// Puts bytes in front of a value; false if there is none, or the joined value would not fit.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn prepend(&self, key: &[u8], value: &[u8]) -> Result<bool, StoreError> {
        self.put(StoreMode::Prepend, key, value, Expiry::NEVER)
    }

    /// Stores a value if the item still has the CAS value read before; tells the new one.
    ///
    /// ```
    /// # use cached_core::kv::{CasError, Kv, KvConfig};
    /// # let kv = Kv::new(KvConfig::default())?;
    /// kv.set(b"list", b"a")?;
    /// let (mut list, cas) = kv.get_with_cas(b"list").expect("just set");
    /// list.extend_from_slice(b",b");
    /// kv.compare_and_set(b"list", &list, cas)?;
    /// assert_eq!(kv.compare_and_set(b"list", b"too late", cas), Err(CasError::Changed));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CasError`].
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

    fn count(&self, key: &[u8], decrement: bool, delta: u64) -> Result<u64, CountError> {
        let options = ArithmeticOptions { decrement, delta, ..ArithmeticOptions::default() };
        match self.arithmetic(key, self.hash(key), &options) {
            ArithmeticOutcome::Done { value, .. } => Ok(value),
            ArithmeticOutcome::NotFound => Err(CountError::NotFound),
            ArithmeticOutcome::NonNumeric => Err(CountError::NonNumeric),
            // Without a CAS value to compare, `Exists` cannot come.
            ArithmeticOutcome::OutOfMemory | ArithmeticOutcome::Exists => Err(CountError::OutOfMemory),
        }
    }

    /// Adds to a decimal number, wrapping at 2^64; tells the sum.
    ///
    /// # Errors
    /// [`CountError`].
    pub fn increment(&self, key: &[u8], delta: u64) -> Result<u64, CountError> {
        self.count(key, false, delta)
    }

    /// Subtracts from a decimal number, stopping at 0; tells the difference.
    ///
    /// # Errors
    /// [`CountError`].
    pub fn decrement(&self, key: &[u8], delta: u64) -> Result<u64, CountError> {
        self.count(key, true, delta)
    }

    /// Lets an item live `secs` seconds from now; tells whether there is one.
    pub fn touch_for(&self, key: &[u8], secs: u32) -> bool {
        let touch = Some(Expiry::after(self.now_secs(), secs));
        self.fetch(key, self.hash(key), &FetchOptions { touch, ..FetchOptions::default() }, |_, _| ()).is_ok()
    }

    /// Deletes an item; tells whether there was one.
    pub fn remove(&self, key: &[u8]) -> bool {
        self.delete(key, self.hash(key), &DeleteOptions::default()) == DeleteOutcome::Done
    }

    /// Shows `f` every item: key and value, copied. See [`Kv::scan`] for what it may miss or repeat.
    pub fn for_each(&self, mut f: impl FnMut(&[u8], &[u8])) {
        let mut cursor = Some(ScanCursor::default());
        let mut items: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        while let Some(at) = cursor {
            cursor = self.scan(at, |item| {
                let mut value = Vec::new();
                item.copy_value_to(&mut value);
                items.push((item.key().to_vec(), value));
            });
            // Outside the bucket's lock, so that `f` may use the store.
            items.drain(..).for_each(|(key, value)| f(&key, &value));
        }
    }
}
