//! Iteration over items.

use super::{Kv, ScanCursor};

/// An iterator over copies of a store's keys and values: see [`Kv::iter`].
#[derive(Debug)]
#[must_use = "iterators do nothing unless they are consumed"]
pub struct Iter<'a> {
    kv: &'a Kv,
    cursor: Option<ScanCursor>,
    bucket: std::vec::IntoIter<(Vec<u8>, Vec<u8>)>,
}

/// An iterator over copies of a store's keys: see [`Kv::keys`].
#[derive(Debug)]
#[must_use = "iterators do nothing unless they are consumed"]
pub struct Keys<'a> {
    kv: &'a Kv,
    cursor: Option<ScanCursor>,
    bucket: std::vec::IntoIter<Vec<u8>>,
}

impl Kv {
    /// Returns an iterator over copies of all keys and values, in no particular order.
    ///
    /// The store may change meanwhile: an item that exists from the first step to the last is returned at
    /// least once (twice, if the index grows past it); others may be. Expired items are left out, and no item
    /// counts as used.
    ///
    /// Each step copies at most the items of one hash bucket, about ten, and locks it only for that; where
    /// many items have been removed it may pass over empty hash buckets. The iterator holds no lock between
    /// steps, so the store may be used.
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
    pub fn iter(&self) -> Iter<'_> {
        Iter { kv: self, cursor: Some(ScanCursor::default()), bucket: Vec::new().into_iter() }
    }

    /// Returns an iterator over copies of all keys. What [`Kv::iter`] says of a store that changes holds here
    /// too.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// kv.set(b"user:1", b"Ann")?;
    /// kv.set(b"page:1", b"...")?;
    /// assert_eq!(kv.keys().filter(|key| key.starts_with(b"user:")).count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keys(&self) -> Keys<'_> {
        Keys { kv: self, cursor: Some(ScanCursor::default()), bucket: Vec::new().into_iter() }
    }
}

impl<'a> IntoIterator for &'a Kv {
    type Item = (Vec<u8>, Vec<u8>);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Iterator for Iter<'_> {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        loop {
            if let Some(item) = self.bucket.next() {
                return Some(item);
            }
            let mut items = Vec::new();
            self.cursor = self.kv.scan(self.cursor?, |item| items.push((item.key().to_vec(), item.to_vec())));
            self.bucket = items.into_iter();
        }
    }
}

impl Iterator for Keys<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(key) = self.bucket.next() {
                return Some(key);
            }
            let mut keys = Vec::new();
            self.cursor = self.kv.scan(self.cursor?, |item| keys.push(item.key().to_vec()));
            self.bucket = keys.into_iter();
        }
    }
}
