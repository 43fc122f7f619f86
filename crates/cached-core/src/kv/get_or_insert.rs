//! Reads that make the value on a miss, with one flight per key.

use super::flight::Role;
use super::{Kv, StoreOptions};
use crate::clock::Expiry;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

/// A value to be stored, and how long it stays. Byte strings convert into one that does not expire.
///
/// ```
/// use cached_core::kv::NewValue;
/// use std::time::Duration;
///
/// let value: NewValue = "for ever".into();
/// let value = NewValue::new("for a minute").ttl(Duration::from_secs(60));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a new value is stored when it is returned to the store"]
pub struct NewValue {
    bytes: Vec<u8>,
    ttl: Option<Duration>,
}

impl NewValue {
    /// A value that does not expire.
    pub fn new(bytes: impl Into<Vec<u8>>) -> NewValue {
        NewValue { bytes: bytes.into(), ttl: None }
    }

    /// Makes the value expire after `ttl`, as [`Kv::set_for`] does.
    pub fn ttl(mut self, ttl: Duration) -> NewValue {
        self.ttl = Some(ttl);
        self
    }
}

impl<T: Into<Vec<u8>>> From<T> for NewValue {
    fn from(bytes: T) -> NewValue {
        NewValue::new(bytes)
    }
}

impl Kv {
    /// Returns a copy of a key's value. If there is none, calls `make` and stores what it returns.
    ///
    /// Of the threads and tasks that miss a key at the same time, one calls `make`; the others wait for its
    /// value. If `make` panics, one of them calls its own. `make` runs without a lock and may use the store,
    /// but must not ask for the same key with this family of methods: it would wait for itself.
    ///
    /// The value is returned even if it cannot be stored because it is too large or no memory can be freed.
    ///
    /// ```
    /// # use cached_core::kv::{Kv, NewValue};
    /// # use std::time::Duration;
    /// # fn render(_page: &str) -> String { "<html>".to_owned() }
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let page = kv.get_or_insert_with(b"page:home", || render("home"));
    /// let page = kv.get_or_insert_with(b"page:news", || {
    ///     NewValue::new(render("news")).ttl(Duration::from_secs(30))
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// If `make` does.
    pub fn get_or_insert_with<V: Into<NewValue>>(&self, key: &[u8], make: impl FnOnce() -> V) -> Vec<u8> {
        match self.try_get_or_insert_with(key, || Ok::<V, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// As [`get_or_insert_with`](Kv::get_or_insert_with), for a `make` that may fail.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let hosts = kv.try_get_or_insert_with(b"hosts", || std::fs::read("/etc/hosts"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The error of `make`. Nothing is stored then, and one of the callers that waited calls its own `make`.
    ///
    /// # Panics
    /// If `make` does.
    pub fn try_get_or_insert_with<V: Into<NewValue>, E>(
        &self,
        key: &[u8],
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Vec<u8>, E> {
        loop {
            if let Some(value) = self.get(key) {
                return Ok(value);
            }
            match self.inner.flights.join(key, self.hash(key)) {
                Role::Leader(leader) => {
                    // An earlier flight may have ended between the look-up and the join.
                    let value = match self.get(key) {
                        Some(value) => value,
                        None => self.insert_new(key, make()?.into()),
                    };
                    leader.complete(&value);
                    return Ok(value);
                }
                Role::Follower(follower) => {
                    if let Some(value) = follower.wait() {
                        return Ok(value.to_vec());
                    }
                }
            }
        }
    }

    /// As [`get_or_insert_with`](Kv::get_or_insert_with), with a future in place of a closure. It needs no
    /// particular runtime.
    ///
    /// `make` is polled only by the task that makes the value. Tasks and threads that ask for the same key
    /// wait for one another whichever method they use.
    ///
    /// # Cancel safety
    /// If the returned future is dropped while it makes the value, nothing is stored, and one of the callers
    /// that waited makes it instead. If it is dropped while it waits, the others are not affected.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// # blocker::executor::block_on(async {
    /// # async fn fetch(_user: u32) -> String { "Ann".to_owned() }
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let name = kv.get_or_insert_async(b"user:7", fetch(7)).await;
    /// assert_eq!(name, b"Ann");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn get_or_insert_async<V: Into<NewValue>>(
        &self,
        key: &[u8],
        make: impl Future<Output = V>,
    ) -> Vec<u8> {
        match self.try_get_or_insert_async(key, async { Ok::<V, Infallible>(make.await) }).await {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// As [`get_or_insert_async`](Kv::get_or_insert_async), for a future that may fail.
    ///
    /// # Errors
    /// The error of `make`. Nothing is stored then, and one of the callers that waited makes the value
    /// instead.
    pub async fn try_get_or_insert_async<V: Into<NewValue>, E>(
        &self,
        key: &[u8],
        make: impl Future<Output = Result<V, E>>,
    ) -> Result<Vec<u8>, E> {
        loop {
            if let Some(value) = self.get(key) {
                return Ok(value);
            }
            // The table of flights is not locked across the await below: a role is only a reference into it.
            match self.inner.flights.join(key, self.hash(key)) {
                Role::Leader(leader) => {
                    let value = match self.get(key) {
                        Some(value) => value,
                        None => self.insert_new(key, make.await?.into()),
                    };
                    leader.complete(&value);
                    return Ok(value);
                }
                Role::Follower(follower) => {
                    if let Some(value) = follower.await {
                        return Ok(value.to_vec());
                    }
                }
            }
        }
    }

    /// Stores a value that has been made, if it can be stored, and returns it.
    fn insert_new(&self, key: &[u8], value: NewValue) -> Vec<u8> {
        let expiry = match value.ttl {
            Some(ttl) => Expiry::after_duration(self.now_secs(), ttl),
            None => Expiry::NEVER,
        };
        let options = StoreOptions { expiry, ..StoreOptions::default() };
        // A value that cannot be stored is still the caller's.
        let _ = self.store(key, self.hash(key), &value.bytes, &options);
        value.bytes
    }
}
