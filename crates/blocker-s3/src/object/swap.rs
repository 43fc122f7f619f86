//! The replacement of one head by another, and the handling of lost responses.
//!
//! A put with a lost response may have been applied, or may still be. [`Core::swap`] repeats it,
//! with the same body and condition: that changes nothing if the first was applied, and otherwise
//! at most one of both can be, because no ETag recurs (each body has its own nonce). Then it reads
//! the head, which shows whether the body was stored. If it was not and its base is still there,
//! the object is *unsettled*: the next call of this store that reads the object replaces the base
//! by another body, which shuts out the late put.
//!
//! Heads are remembered between changes. A remembered head may be outdated: puts based on it are
//! conditional on it, so that costs a round trip, never correctness. A refusal (*missing*, *fenced*
//! …) is based only on a head that was just read.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use blocker::conditional::Known;
use blocker::{Clock, Error, ObjectId, Result};
use futures_util::future::{Either, select};
use object_store::path::Path;
use tokio::sync::OwnedMutexGuard;

use super::Core;
use crate::format::head::{HEAD_BYTES_MAX, Head};
use crate::server::requests::{Got, Put};

/// The maximum number of times that a put without a response is repeated.
const REPEATS: u32 = 3;
/// The maximum number of attempts to shut out a late put while others change the object.
const SETTLES: u32 = 20;

/// The outcome of replacing a head.
pub(crate) enum Swap {
    Done(Seen),
    /// The base had already been replaced.
    Lost,
    /// Nothing was done.
    Failed(Error),
    /// The put may have been applied, or may still be applied.
    Unknown(Error),
}

impl Core {
    /// Returns the current head of an object, or `None` if there is no head. Puts that may still be
    /// applied to the object are shut out.
    ///
    /// # Errors
    /// Returns any error of a read, except `Missing`.
    pub(crate) async fn look(&self, object: &ObjectId) -> Result<Option<Seen>> {
        let path = self.layout.head(object);
        for _ in 0..SETTLES {
            // Before the head: an answer from before a late put says nothing about it.
            let doubt = self.heads.unsettled(object);
            let seen = self.look_at(object, &path).await?;
            let Some(doubt) = doubt else { return Ok(seen) };
            let may_come = |seen: &Seen| doubt.base.as_ref().is_none_or(|base| *base == seen.etag);
            let Some(seen) = seen.filter(may_come) else {
                // The late put requires a head that no longer exists and never recurs.
                self.heads.settled(object, &doubt);
                continue;
            };
            match self.swap(object, &seen, seen.head.next()).await {
                Swap::Done(_) => self.heads.settled(object, &doubt),
                Swap::Lost => {}
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::Retryable(error.to_string().into())),
            }
        }
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }

    /// Settles an unsettled object, if there are too many. Called before each change begins.
    ///
    /// # Errors
    /// Returns `Retryable` if the server does not allow that now.
    pub(crate) async fn settle_overdue(&self) -> Result<()> {
        let Some(object) = self.heads.overdue() else { return Ok(()) };
        self.look(&object).await.map(drop).map_err(|error| {
            let text = format!(
                "{} changes have unknown outcomes, and that of {object} cannot be read: {error}",
                self.heads.unsettled_count()
            );
            Error::Retryable(text.into())
        })
    }

    /// Returns the current head, even if a late put may still be applied to it.
    async fn look_at(&self, object: &ObjectId, path: &Path) -> Result<Option<Seen>> {
        let known = self.heads.recall(object);
        let etag = known.as_ref().map(|seen| &*seen.etag);
        match self.requests.get(path, etag, HEAD_BYTES_MAX).await? {
            Got::Same => Ok(known),
            Got::Missing => {
                self.heads.forget(object);
                Ok(None)
            }
            Got::Found(bytes, etag) => {
                let head = Head::decode(&bytes).ok_or_else(|| {
                    Error::Corrupt(format!("{path} is not a head that this program writes").into())
                })?;
                let etag = etag.ok_or_else(|| Error::Corrupt("the server returns no ETag".into()))?;
                let seen = Seen { head: Arc::new(head), etag: etag.into() };
                self.heads.remember(object, seen.clone());
                Ok(Some(seen))
            }
        }
    }

    /// Puts a ghost if there is no head.
    pub(crate) async fn create(&self, object: &ObjectId) -> Swap {
        let ghost = Head::ghost();
        let (path, body) = (self.layout.head(object), ghost.encode());
        for repeat in 0.. {
            match self.requests.create(&path, &body).await {
                Put::Done(Some(etag)) => return self.swapped(object, ghost, etag),
                Put::Unknown(_) if repeat < REPEATS => self.requests.delay(repeat).await,
                // A late ghost is still a ghost: only a change that has seen it can replace it.
                Put::Done(None) | Put::Lost => return Swap::Lost,
                Put::Refused(error) | Put::Unknown(error) => return Swap::Failed(error),
            }
        }
        Swap::Lost
    }

    fn swapped(&self, object: &ObjectId, head: Head, etag: String) -> Swap {
        let seen = Seen { head: Arc::new(head), etag: etag.into() };
        self.heads.remember(object, seen.clone());
        Swap::Done(seen)
    }

    /// Replaces `base` with `next`, which [`Head::next`] has made from `base`.
    pub(crate) async fn swap(&self, object: &ObjectId, base: &Seen, next: Head) -> Swap {
        let path = self.layout.head(object);
        let body = next.encode();
        let mut unknown = None;
        for repeat in 0..=REPEATS {
            if repeat > 0 {
                self.requests.delay(repeat - 1).await;
            }
            match self.requests.replace(&path, &body, &base.etag).await {
                Put::Done(Some(etag)) => return self.swapped(object, next, etag),
                // The base has been replaced, so nothing that the new head names may be removed.
                Put::Done(None) => {
                    unknown = Some(Error::Unsupported("the server returns no ETag".into()));
                    break;
                }
                // This can happen even at the first attempt, because a proxy may have sent the put
                // twice.
                Put::Lost => break,
                Put::Refused(error) if unknown.is_none() => return Swap::Failed(error),
                Put::Refused(error) | Put::Unknown(error) => unknown = Some(error),
            }
        }
        self.heads.forget(object);
        let found = self.look_at(object, &path).await;
        let lost_or = |unknown: Option<Error>| unknown.map_or(Swap::Lost, Swap::Unknown);
        match found {
            Ok(Some(seen)) if seen.etag == base.etag => {}
            Ok(Some(seen)) => {
                return match seen.head.has_been(next.nonce, next.serial) {
                    Some(true) if seen.head.nonce == next.nonce => Swap::Done(seen),
                    // The body was stored, and others have replaced it since.
                    Some(true) => Swap::Done(Seen { head: Arc::new(next), etag: "".into() }),
                    Some(false) => Swap::Lost,
                    None => lost_or(unknown),
                };
            }
            // The base is gone, so a late put will be refused.
            Ok(None) => return Swap::Lost,
            // An error has prevented the read that shows whether this very body caused the
            // conflict.
            Err(error) => {
                unknown.get_or_insert(error);
            }
        }
        if unknown.is_some() {
            self.heads.unsettle(object, Some(Arc::clone(&base.etag)));
        }
        lost_or(unknown)
    }
}

// ---- remembered heads

/// The approximate memory use of a remembered head, in addition to its names and its content. The
/// head is in a map, whose capacity may be twice the number of its entries.
const HEAD_BYTES: usize = 600;
/// The number of unsettled objects from which on each change first settles one.
const UNSETTLED_MAX: usize = 16 * 1024;

/// A head and its ETag.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: Arc<Head>,
    pub(crate) etag: Arc<str>,
}

impl Seen {
    /// Returns the approximate memory use of this head while it is remembered under its object's
    /// name.
    fn bytes(&self, object: &ObjectId) -> usize {
        let content = &self.head.content;
        let names = object.namespace.as_bytes().len() + object.name.as_bytes().len();
        let pieces = std::mem::size_of_val(&content.blobs[..]) + std::mem::size_of_val(&content.extents[..]);
        HEAD_BYTES + names + pieces + content.inline.len() + 16 * self.head.domains.len()
    }
}

/// Remembered heads, and the objects with a put that may still be applied, each with the ETag that
/// the put expects, or `None` if the ETag is unknown.
pub(crate) type Heads = Known<Seen, Option<Arc<str>>>;

/// Returns a memory of at most `bytes_max` for heads.
pub(crate) fn heads(bytes_max: u64) -> Heads {
    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    Known::new(bytes_max, |object, seen| seen.bytes(object), UNSETTLED_MAX)
}

// ---- locks of objects

/// The maximum time that a caller waits for the lock.
const WAIT_MAX: Duration = Duration::from_secs(10);

type Lock = Arc<tokio::sync::Mutex<()>>;

/// Locks that serialise the changes of one object by callers of one store.
///
/// Without these locks, all callers would put their heads concurrently, one would win, and all
/// others would start over: the more callers there are, and the slower the server is, the longer
/// the last one would wait. The server decides, not the locks. Therefore a caller that has waited
/// long continues without the lock, and a holder that is not polled blocks no other call.
#[derive(Default)]
pub(crate) struct ObjectLocks {
    objects: parking_lot::Mutex<HashMap<ObjectId, Lock>>,
}

/// A held lock, or the mark of a caller that continues without the lock. Dropping this value
/// releases the lock.
pub(crate) struct ObjectLock<'a> {
    locks: &'a ObjectLocks,
    object: &'a ObjectId,
    lock: Option<Lock>,
    guard: Option<OwnedMutexGuard<()>>,
}

impl ObjectLocks {
    /// Waits for the lock of `object`, in order.
    pub(crate) async fn lock<'a>(&'a self, object: &'a ObjectId, clock: &dyn Clock) -> ObjectLock<'a> {
        let lock = Arc::clone(self.objects.lock().entry(object.clone()).or_default());
        // From here on the entry is removed even if the caller is cancelled.
        let mut held = ObjectLock { locks: self, object, lock: Some(Arc::clone(&lock)), guard: None };
        held.guard = match Arc::clone(&lock).try_lock_owned() {
            Ok(guard) => Some(guard),
            Err(_) => match select(Box::pin(lock.lock_owned()), clock.sleep(WAIT_MAX)).await {
                Either::Left((guard, _)) => Some(guard),
                Either::Right(_) => None,
            },
        };
        held
    }
}

impl Drop for ObjectLock<'_> {
    fn drop(&mut self) {
        self.guard = None;
        let mut objects = self.locks.objects.lock();
        // Handles are created and dropped under this mutex, so the last handle knows that it is the
        // last.
        self.lock = None;
        if objects.get(self.object).is_some_and(|lock| Arc::strong_count(lock) == 1) {
            objects.remove(self.object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{S3Config, S3Store};
    use blocker::executor::{block_on, poll_times};
    use blocker::{BlockerExt, ManualClock, Name, Namespace, SystemClock, WriteRequest};
    use object_store::memory::InMemory;

    fn name(text: String) -> ObjectId {
        ObjectId::new(Namespace::new("vm").unwrap(), Name::new(text).unwrap())
    }

    #[test]
    fn a_change_first_settles_an_object_if_too_many_are_unsettled() {
        let (config, clock) = (S3Config::new("bucket"), Arc::new(SystemClock));
        let store = S3Store::open_over(&config, Arc::new(InMemory::new()), clock).unwrap();
        let heads = &store.core.heads;
        for number in 0..=UNSETTLED_MAX {
            heads.unsettle(&name(format!("late-{number}")), None);
        }
        assert!(heads.is_unsettled(&name(format!("late-{UNSETTLED_MAX}"))));
        for left in [UNSETTLED_MAX, UNSETTLED_MAX - 1, UNSETTLED_MAX - 1] {
            block_on(store.write(WriteRequest::new(name("new".into()), 0, b"x"))).unwrap();
            assert_eq!(heads.unsettled_count(), left);
        }
    }

    #[test]
    fn locks_are_taken_in_order_and_leave_nothing_behind() {
        let (locks, clock) = (ObjectLocks::default(), ManualClock::new());
        let (one, two) = (name("one".into()), name("two".into()));
        let first = block_on(locks.lock(&one, &clock));
        let other = block_on(locks.lock(&two, &clock));
        let mut waiting = Box::pin(locks.lock(&one, &clock));
        assert!(poll_times(&mut waiting, 1, Duration::ZERO).is_none());
        {
            let mut given_up = Box::pin(locks.lock(&one, &clock));
            assert!(poll_times(&mut given_up, 1, Duration::ZERO).is_none());
        }
        drop(first);
        let second = block_on(waiting);
        assert!(second.guard.is_some());
        let mut late = Box::pin(locks.lock(&one, &clock));
        assert!(poll_times(&mut late, 1, Duration::ZERO).is_none());
        clock.advance(WAIT_MAX);
        let late = block_on(late);
        assert!(late.guard.is_none(), "it goes ahead without");
        drop((second, other, late));
        assert!(locks.objects.lock().is_empty());
    }
}
