//! How one head is replaced by another, and what is done when the answer is lost.
//!
//! A put whose answer is lost may have been applied, and if not, it may still be. [`Core::swap`] repeats it,
//! with the same body and condition: that changes nothing if it was applied, and if it was not, at most one
//! of the two can be, because no ETag comes back (each body has a nonce of its own). Then it reads the head,
//! which shows whether the body has been there. Where it is not there and its base still is, the object is
//! *unsettled*: the next call of this store that looks at it puts another body in place of the base, which
//! shuts the late one out.

use std::sync::Arc;

use blocker::{Error, ObjectId, Result};
use object_store::path::Path;

use crate::format::head::{HEAD_BYTES_MAX, Head};
use crate::object::Core;
use crate::object::heads::Seen;
use crate::server::requests::{Got, Put};

/// How often a put without an answer is repeated.
const REPEATS: u32 = 3;
/// How often a late put is shut out while others change the object at the same time.
const SETTLES: u32 = 20;

/// What became of a head that was to be put in place of another.
pub(crate) enum Swap {
    Done(Seen),
    /// The base was not there any more.
    Lost,
    /// Nothing was done.
    Failed(Error),
    /// It may have been done, or be done later.
    Unknown(Error),
}

impl Core {
    /// Returns the head of an object as it is now; `None` if there is none. Shuts out what may still land on
    /// it.
    ///
    /// # Errors
    /// Those of reads, but `Missing`.
    pub(crate) async fn look(&self, object: &ObjectId) -> Result<Option<Seen>> {
        let path = self.layout.head(object);
        for _ in 0..SETTLES {
            let seen = self.look_at(object, &path).await?;
            let Some(base) = self.heads.unsettled(object) else { return Ok(seen) };
            let Some(seen) = seen.filter(|seen| base.is_none_or(|base| base == seen.etag)) else {
                // What was to land waits for a head that is not there any more, and none comes back.
                self.heads.settled(object);
                continue;
            };
            match self.swap(object, &seen, seen.head.next()).await {
                Swap::Done(_) => self.heads.settled(object),
                Swap::Lost => {}
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::Retryable(error.to_string().into())),
            }
        }
        Err(Error::Retryable("the object is changed by others all the time".into()))
    }

    /// Returns the head as it is now, whatever may still land on it.
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
                    Error::Corrupt(format!("{path} is no head as this program writes it").into())
                })?;
                let etag = etag.ok_or_else(|| Error::Corrupt("the server names no ETag".into()))?;
                let seen = Seen { head: Arc::new(head), etag: etag.into() };
                self.heads.remember(object, seen.clone());
                Ok(Some(seen))
            }
        }
    }

    /// Puts a ghost where there is no head.
    pub(crate) async fn create(&self, object: &ObjectId) -> Swap {
        let ghost = Head::ghost();
        let (path, body) = (self.layout.head(object), ghost.encode());
        for repeat in 0.. {
            match self.requests.create(&path, &body).await {
                Put::Done(Some(etag)) => return self.swapped(object, ghost, etag),
                Put::Unknown(_) if repeat < REPEATS => self.requests.delay(repeat).await,
                // A ghost that comes late is one all the same: nothing can land on it but what has seen it.
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

    /// Puts `next`, made by [`Head::next`] of `base`, in place of `base`.
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
                Put::Done(None) => {
                    self.heads.forget(object);
                    return Swap::Failed(Error::Unsupported("the server names no ETag".into()));
                }
                // Also of the first attempt: what lies between may have sent it twice.
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
                    // It was there, and others have come after it.
                    Some(true) => Swap::Done(Seen { head: Arc::new(next), etag: "".into() }),
                    Some(false) => Swap::Lost,
                    None => lost_or(unknown),
                };
            }
            // Its base is gone, so it is refused whenever it comes.
            Ok(None) => return Swap::Lost,
            // Whether it is this body that has made the condition false was not to be seen.
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
