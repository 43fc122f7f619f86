//! Which edition of the layout a bucket has.
//!
//! | edition | |
//! |---|---|
//! | 1 | names are never cut, however long |
//! | 2 | long names are cut (`layout.rs`) |
//!
//! A key that is written otherwise is another key, so all programs that use a bucket must agree, and a bucket keeps the
//! edition that it has. An object in it states which that is. Where there is none, the bucket is new and gets edition 2,
//! or it has heads of a program that knew no editions, and gets 1 (unless a key of them is cut). Of several programs that find none at the same time
//! one puts it, and the others go by what it has put. Heads that a program finds after it has found no such object
//! may be those of the one that has put it meanwhile; but then its own is refused.

use blocker::{Error, Result};
use bytes::Bytes;

use crate::object::Core;
use crate::object::bounds::Progress;
use crate::server::requests::{Got, Put};

/// How often the object is put without a clear answer.
const TRIES: u32 = 4;
/// No edition's object is larger.
const BYTES_MAX: u64 = 256;
/// How many keys are listed at once.
const KEYS_AT_ONCE: usize = 1000;

/// An edition of the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edition {
    Whole,
    Cut,
}

impl Edition {
    /// The body of the object that states it: a word, a number, and the rest for people.
    fn body(self) -> &'static str {
        match self {
            Self::Whole => "layout 1 of blocker-s3: names are never cut\n",
            Self::Cut => "layout 2 of blocker-s3: long names are cut\n",
        }
    }

    /// Returns the edition that a body states, or its number where this program does not know it; `None` if it states
    /// none.
    pub(crate) fn decode(body: &[u8]) -> Option<std::result::Result<Self, u32>> {
        let text = std::str::from_utf8(body).ok()?;
        match text.strip_prefix("layout ")?.split(' ').next()?.parse().ok()? {
            1 => Some(Ok(Self::Whole)),
            2 => Some(Ok(Self::Cut)),
            later => Some(Err(later)),
        }
    }
}

impl Core {
    /// Finds out which edition the bucket has, and gives it one where it has none.
    ///
    /// # Errors
    /// One line: `Unsupported` where a later program has chosen an edition that this one does not know, `Corrupt` where
    /// the object states none; those of reads and changes.
    pub(crate) async fn settle_edition(&self, progress: &Progress) -> Result<()> {
        let path = self.layout.edition();
        let mut last = Error::Retryable("the layout's edition is changed by others all the time".into());
        for retry in 0..TRIES {
            match self.requests.get(&path, None, BYTES_MAX).await? {
                Got::Missing => {}
                Got::Found(body, _) => {
                    let edition = match Edition::decode(&body) {
                        Some(Ok(edition)) => edition,
                        Some(Err(number)) => {
                            let text =
                                format!("the bucket has layout {number}, and this program knows up to 2");
                            return Err(Error::Unsupported(text.into()));
                        }
                        None => {
                            return Err(Error::Corrupt(
                                format!("{path} states no edition of the layout").into(),
                            ));
                        }
                    };
                    self.layout.set_cuts(edition == Edition::Cut);
                    return Ok(());
                }
                Got::Same => {
                    return Err(Error::Corrupt("the server answers 304 to what has no condition".into()));
                }
            }
            let edition = self.edition_of_heads(progress).await?;
            match self.requests.create(&path, &Bytes::from_static(edition.body().as_bytes())).await {
                Put::Done(_) => {
                    self.layout.set_cuts(edition == Edition::Cut);
                    return Ok(());
                }
                Put::Lost => {}
                Put::Refused(error) => return Err(error),
                Put::Unknown(error) => last = error,
            }
            self.requests.delay(retry).await;
        }
        Err(last)
    }

    /// The edition that the keys of heads are of: one that is cut shows it, even if what states the edition was removed.
    async fn edition_of_heads(&self, progress: &Progress) -> Result<Edition> {
        let (under, mut is_used, mut after) = (self.layout.all_heads(), false, None);
        loop {
            let page = self.requests.list(&under, after.as_ref(), KEYS_AT_ONCE).await?;
            is_used |= !page.is_empty();
            if page.iter().any(|meta| self.layout.is_cut(&meta.location)) {
                return Ok(Edition::Cut);
            }
            if page.len() < KEYS_AT_ONCE {
                return Ok(if is_used { Edition::Whole } else { Edition::Cut });
            }
            after = page.last().map(|last| last.location.clone());
            progress.step();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blocker::executor::block_on;
    use blocker::{Blocker, Name, Namespace, ObjectId, ReadRequest, SystemClock, WriteRequest};
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};

    use super::*;
    use crate::{S3Config, S3Store};

    fn open(server: &Arc<InMemory>) -> Result<S3Store> {
        let server = Arc::clone(server) as Arc<dyn ObjectStore>;
        S3Store::open_over(&S3Config::new("bucket"), server, Arc::new(SystemClock))
    }

    fn long() -> ObjectId {
        ObjectId::new(Namespace::new("vm").unwrap(), Name::new(vec![b'a'; 255]).unwrap())
    }

    fn state(server: &InMemory, body: &'static str) {
        block_on(server.put(&"s/layout".into(), body.into())).unwrap();
    }

    #[test]
    fn each_edition_is_known_by_its_body() {
        for edition in [Edition::Whole, Edition::Cut] {
            assert_eq!(Edition::decode(edition.body().as_bytes()), Some(Ok(edition)));
        }
        assert_eq!(Edition::decode(b"layout 3 of blocker-s3: what comes later"), Some(Err(3)));
        for none in [&b""[..], b"layout", b"layout x", b"layout -1 of", b"\xff\xff"] {
            assert_eq!(Edition::decode(none), None);
        }
    }

    /// A bucket of a program that knew no editions: what it has written is found where it is.
    #[test]
    fn a_bucket_keeps_the_edition_that_it_has() {
        let server = Arc::new(InMemory::new());
        state(&server, Edition::Whole.body());
        let store = open(&server).unwrap();
        block_on(store.write(WriteRequest::new(long(), 0, b"old"))).unwrap();
        block_on(server.delete(&"s/layout".into())).unwrap();
        let reopened = open(&server).unwrap();
        let read = block_on(reopened.read(ReadRequest::new(long(), 0, 3))).unwrap();
        assert_eq!(read.data.to_vec(), b"old");
        let stated = block_on(server.get(&"s/layout".into())).unwrap();
        assert_eq!(block_on(stated.bytes()).unwrap(), Edition::Whole.body());
    }

    #[test]
    fn a_bucket_that_has_lost_what_states_its_edition_is_known_by_its_keys() {
        let server = Arc::new(InMemory::new());
        let store = open(&server).unwrap();
        block_on(store.write(WriteRequest::new(long(), 0, b"new"))).unwrap();
        block_on(server.delete(&"s/layout".into())).unwrap();
        let read = block_on(open(&server).unwrap().read(ReadRequest::new(long(), 0, 3))).unwrap();
        assert_eq!(read.data.to_vec(), b"new");
    }

    #[test]
    fn a_new_bucket_gets_the_last_edition() {
        let server = Arc::new(InMemory::new());
        let store = open(&server).unwrap();
        block_on(store.write(WriteRequest::new(long(), 0, b"new"))).unwrap();
        let stated = block_on(server.get(&"s/layout".into())).unwrap();
        assert_eq!(block_on(stated.bytes()).unwrap(), Edition::Cut.body());
        let key = format!("h/n.vm/n/{}_/_{}", "a".repeat(200), "a".repeat(55));
        block_on(server.head(&key.into())).unwrap();
    }

    #[test]
    fn an_edition_that_is_not_known_stops_the_start() {
        for (body, kind) in [("layout 3 of blocker-s3", "unsupported"), ("what", "corrupt")] {
            let server = Arc::new(InMemory::new());
            state(&server, body);
            let error = open(&server).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}
