//! One flight per key: if several callers miss a key at the same time, the first one creates the
//! value and the others wait for it.
//!
//! A flight is in the table while its *leader* creates the value. Callers that find it there are
//! *followers*. The leader stores the value, removes the flight from the table and passes the value
//! to its followers. A leader that is dropped without a value (an error, a panic, a cancelled
//! future) abandons the flight: its followers look the key up again, and the first of them that
//! finds nothing leads the next flight.
//!
//! None of this code runs on a hit.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Kv, StoreMode, StoreOptions, StoreOutcome, lock_ranks};
use crate::KeyHash;
use crate::clock::Expiry;
use crate::sync::{Arc, Mutex, block_on, lock};

const SHARDS: usize = 16;

/// The flights in progress.
pub(super) struct Flights {
    shards: [Mutex<Shard>; SHARDS],
}

/// The flights of some keys.
type Shard = HashMap<Box<[u8]>, Arc<Flight>>;

struct Flight {
    state: Mutex<State>,
}

struct State {
    outcome: Outcome,
    /// The wakers of the waiting followers, each at its own index.
    wakers: Vec<Option<Waker>>,
}

enum Outcome {
    Pending,
    Made(Arc<[u8]>),
    Abandoned,
}

/// A caller's role in a flight.
pub(super) enum Role<'a> {
    Leader(Leader<'a>),
    Follower(Follower),
}

/// The caller that creates the value.
pub(super) struct Leader<'a> {
    flights: &'a Flights,
    key: Box<[u8]>,
    shard: usize,
    flight: Arc<Flight>,
}

/// A caller that waits for the value. It resolves to `None` if the flight is abandoned.
pub(super) struct Follower {
    flight: Arc<Flight>,
    /// The index of the follower's waker.
    place: Option<usize>,
}

impl Flights {
    pub(super) fn new() -> Flights {
        Flights { shards: std::array::from_fn(|_| Mutex::ranked(HashMap::new(), &lock_ranks::FLIGHTS)) }
    }

    /// Joins the flight of a key, or starts one.
    pub(super) fn join(&self, key: &[u8], hash: KeyHash) -> Role<'_> {
        let shard = hash.shard_bits() % SHARDS;
        let mut flights = lock(&self.shards[shard]);
        if let Some(flight) = flights.get(key) {
            return Role::Follower(Follower { flight: flight.clone(), place: None });
        }
        let state = State { outcome: Outcome::Pending, wakers: Vec::new() };
        let flight = Arc::new(Flight { state: Mutex::ranked(state, &lock_ranks::FLIGHT) });
        let key = Box::<[u8]>::from(key);
        flights.insert(key.clone(), flight.clone());
        Role::Leader(Leader { flights: self, key, shard, flight })
    }
}

/// Inspection of flights by tests.
#[cfg(all(test, not(shuttle)))]
impl Flights {
    fn find(&self, key: &[u8], hash: KeyHash) -> Option<Arc<Flight>> {
        lock(&self.shards[hash.shard_bits() % SHARDS]).get(key).cloned()
    }

    pub(super) fn is_under_way(&self, key: &[u8], hash: KeyHash) -> bool {
        self.find(key, hash).is_some()
    }

    /// Returns the number of callers that wait for the value of a key.
    pub(super) fn followers(&self, key: &[u8], hash: KeyHash) -> usize {
        self.find(key, hash).map_or(0, |flight| lock(&flight.state).wakers.iter().flatten().count())
    }
}

impl Leader<'_> {
    /// Ends the flight, and passes the value to its followers.
    pub(super) fn complete(self, value: &[u8]) {
        self.leave_table();
        // The table has dropped its reference, so no caller can join any more. All other references
        // belong to followers.
        if Arc::strong_count(&self.flight) > 1 {
            self.flight.end(Outcome::Made(value.into()));
        }
    }

    /// Removes the flight from the table, if it is still there.
    fn leave_table(&self) {
        let mut flights = lock(&self.flights.shards[self.shard]);
        if flights.get(&self.key).is_some_and(|flight| Arc::ptr_eq(flight, &self.flight)) {
            flights.remove(&self.key);
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        self.leave_table();
        self.flight.end(Outcome::Abandoned);
    }
}

impl Flight {
    /// Sets the outcome and wakes the followers. Only the first call has an effect.
    fn end(&self, outcome: Outcome) {
        let wakers = {
            let mut state = lock(&self.state);
            if !matches!(state.outcome, Outcome::Pending) {
                return;
            }
            state.outcome = outcome;
            std::mem::take(&mut state.wakers)
        };
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}

impl Future for Follower {
    type Output = Option<Arc<[u8]>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Arc<[u8]>>> {
        let follower = &mut *self;
        let mut state = lock(&follower.flight.state);
        match &state.outcome {
            Outcome::Made(value) => return Poll::Ready(Some(value.clone())),
            Outcome::Abandoned => return Poll::Ready(None),
            Outcome::Pending => {}
        }
        let place = *follower.place.get_or_insert_with(|| {
            state.wakers.push(None);
            state.wakers.len() - 1
        });
        match &mut state.wakers[place] {
            Some(waker) => waker.clone_from(context.waker()),
            empty => *empty = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let Some(place) = self.place else { return };
        let waker = lock(&self.flight.state).wakers.get_mut(place).and_then(Option::take);
        // The waker is dropped outside the lock, because it may run code of its executor.
        drop(waker);
    }
}

/// A value to be stored, and its time to live. Byte strings convert into a value that does not
/// expire.
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
    /// Returns a value that does not expire.
    pub fn new(bytes: impl Into<Vec<u8>>) -> NewValue {
        NewValue { bytes: bytes.into(), ttl: None }
    }

    /// Makes the value expire after `ttl`, as in [`Kv::set_for`].
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
    /// Returns a copy of a key's value. If the key has no value, calls `make` and stores the
    /// result.
    ///
    /// If several threads and tasks miss a key simultaneously, one calls `make` and the others wait
    /// for its value. If `make` panics, one of the others calls its own. `make` runs without a lock
    /// and may use the store, but must not request the same key with any of these methods, because
    /// it would wait for itself.
    ///
    /// The value is returned even if it cannot be stored because it is too large or no memory can
    /// be freed. If the key gets a value while `make` runs, that value stays and is returned.
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
    /// Panics if `make` panics.
    pub fn get_or_insert_with<V: Into<NewValue>>(&self, key: &[u8], make: impl FnOnce() -> V) -> Vec<u8> {
        let Ok(value) = self.try_get_or_insert_with(key, || Ok::<V, Infallible>(make()));
        value
    }

    /// Does the same as [`get_or_insert_with`](Kv::get_or_insert_with), with a `make` that may
    /// fail.
    ///
    /// ```
    /// # use cached_core::kv::Kv;
    /// let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let hosts = kv.try_get_or_insert_with(b"hosts", || std::fs::read("/etc/hosts"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns the error of `make`. In that case nothing is stored, and one of the callers that
    /// waited calls its own `make`.
    ///
    /// # Panics
    /// Panics if `make` panics.
    pub fn try_get_or_insert_with<V: Into<NewValue>, E>(
        &self,
        key: &[u8],
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<Vec<u8>, E> {
        block_on(self.try_get_or_insert_async(key, async { make() }))
    }

    /// Does the same as [`get_or_insert_with`](Kv::get_or_insert_with), with a future in place of a
    /// closure. It needs no particular runtime.
    ///
    /// `make` is polled only by the task that creates the value. Tasks and threads that ask for the
    /// same key wait for one another whichever method they use.
    ///
    /// # Cancel safety
    /// If the returned future is dropped while it creates the value, nothing is stored, and one of
    /// the callers that waited creates it instead. If it is dropped while it waits, the others are
    /// not affected.
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
        let make = async { Ok::<V, Infallible>(make.await) };
        let Ok(value) = self.try_get_or_insert_async(key, make).await;
        value
    }

    /// Does the same as [`get_or_insert_async`](Kv::get_or_insert_async), with a future that may
    /// fail.
    ///
    /// # Errors
    /// Returns the error of `make`. In that case nothing is stored, and one of the callers that
    /// waited creates the value instead.
    pub async fn try_get_or_insert_async<V: Into<NewValue>, E>(
        &self,
        key: &[u8],
        make: impl Future<Output = Result<V, E>>,
    ) -> Result<Vec<u8>, E> {
        loop {
            if let Some(value) = self.get(key) {
                return Ok(value);
            }
            // The table of flights is not locked during the await below: a role is only a reference
            // into it.
            match self.inner.flights.join(key, self.hash(key)) {
                Role::Leader(leader) => {
                    // An earlier flight may have ended between the look-up and the join.
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

    /// Stores a new value, if possible, and returns it. If the key has got a value in the meantime, returns
    /// that one: it is newer than what `make` may have read.
    fn insert_new(&self, key: &[u8], value: NewValue) -> Vec<u8> {
        let expiry = match value.ttl {
            Some(ttl) => Expiry::after_duration(self.now_secs(), ttl),
            None => Expiry::NEVER,
        };
        let options = StoreOptions { mode: StoreMode::Add, expiry, ..StoreOptions::default() };
        match self.store(key, self.hash(key), &value.bytes, &options) {
            StoreOutcome::NotStored => self.get(key).unwrap_or(value.bytes),
            // The caller gets the value even if it cannot be stored.
            _ => value.bytes,
        }
    }
}
