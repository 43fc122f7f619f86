//! Opening a store: the probe of the server's features, and the edition of the bucket's layout.
//!
//! All guarantees about racing writers and fencing depend on two conditions of a put:
//! `If-None-Match: *` and `If-Match`. Some servers accept such headers and ignore them; two writers
//! would overwrite each other without an error, so these servers are refused. Some (radosgw before
//! 17) compare the ETag as text with their own, which has no quotes, although the response to a put
//! has them: for those the quotes are removed. Reads depend on ranges, and claims on consistent
//! listings. Nothing depends on conditions of removals, copies and multipart uploads, which more
//! servers ignore.

use std::sync::atomic::Ordering;

use blocker::conditional::Progress;
use blocker::{Error, Result};
use bytes::Bytes;

use crate::format::layout::{EDITION, HEADS, PROBES};
use crate::object::Core;
use crate::random;
use crate::server::requests::{Got, Put};

/// The maximum number of attempts of a request that probes the server or determines the edition,
/// and gets no clear response.
const TRIES: u32 = 4;

/// The text with which the probe object's body begins when it is read.
const FOURTH: &str = "fourth";

fn unfit(what: &str, needed: &str) -> Error {
    let text = format!(
        "the server {what}; a store needs {needed}, which this server, or a proxy in front of it, does not support"
    );
    Error::Unsupported(text.into())
}

fn refuse(what: &str) -> Error {
    unfit(what, "conditional puts (If-None-Match: * and If-Match)")
}

impl Core {
    /// Checks that the server honours conditional puts.
    ///
    /// # Errors
    /// Each error has a one-line message: `Unsupported` if the server ignores a condition, `Denied`
    /// if access is refused or the bucket does not exist, `Retryable` if the server does not
    /// respond.
    pub(crate) async fn probe(&self) -> Result<()> {
        let mut last = Error::Retryable("the server does not respond".into());
        for retry in 0..TRIES {
            // Each attempt uses a new key, because an earlier attempt without a response may still
            // be applied to the previous key.
            let nonce = random::number().max(1);
            let probed = self.probe_at(nonce).await;
            let removed = self.requests.delete(&self.layout.probe(nonce)).await;
            match probed {
                Ok(()) => return removed,
                Err(error @ Error::Retryable(_)) => last = error,
                Err(error) => return Err(error),
            }
            self.requests.delay(retry).await;
        }
        Err(last)
    }

    /// Makes one attempt. Fails with `Retryable` if a response left the outcome open.
    async fn probe_at(&self, nonce: u64) -> Result<()> {
        let path = &self.layout.probe(nonce);
        let body = |text: String| Bytes::from(format!("{text} {:016x}", random::number()));
        let requests = &self.requests;
        let first = match requests.create(path, &body("first".into())).await.known()? {
            Put::Done(Some(etag)) => etag,
            Put::Done(None) => return Err(refuse("returns no ETag in its response to a put")),
            _ => return Err(refuse("refuses a put with If-None-Match: * of an object that does not exist")),
        };
        if let Put::Done(_) = requests.create(path, &body("second".into())).await.known()? {
            return Err(refuse("ignores If-None-Match: * in a put"));
        }
        // The ETag is one that the object never had.
        let wrong: String = first.chars().map(|c| if c == '0' { '1' } else { '0' }).collect();
        let wrong = if first.starts_with('"') {
            format!("\"{}\"", wrong.get(1..wrong.len() - 1).unwrap_or("0"))
        } else {
            wrong
        };
        if let Put::Done(_) = requests.replace(path, &body("third".into()), &wrong).await.known()? {
            return Err(refuse("ignores If-Match in a put"));
        }
        let mut etag = None;
        for bare in [false, true] {
            requests.bare_etags.store(bare, Ordering::Relaxed);
            let put = requests.replace(path, &body(format!("{FOURTH} {bare}")), &first).await;
            if let Put::Done(new) = put.known()? {
                etag = new;
                break;
            }
        }
        let Some(etag) = etag else {
            return Err(refuse("refuses If-Match with the ETag that it has returned"));
        };
        self.probe_reads(nonce).await?;
        // The ETag from a get must be valid for a put as well, and a stale ETag must not be.
        match requests.get(path, None, 4096).await? {
            Got::Found(_, Some(read)) if read.trim_matches('"') == etag.trim_matches('"') => {}
            _ => return Err(refuse("returns different ETags for a get and a put of the same object")),
        }
        let (one, two) = (body("one".into()), body("two".into()));
        let racing = futures_util::future::join(
            requests.replace(path, &one, &etag),
            requests.replace(path, &two, &etag),
        );
        match racing.await {
            (Put::Done(_), Put::Done(_)) => Err(refuse("accepts two concurrent puts with the same If-Match")),
            // Some servers (radosgw 16) respond to the losing put with an error. The loser's body
            // must not be stored.
            (Put::Done(Some(won)), Put::Unknown(error)) | (Put::Unknown(error), Put::Done(Some(won))) => {
                match requests.get(path, None, 4096).await? {
                    Got::Found(_, Some(read)) if read.trim_matches('"') == won.trim_matches('"') => Ok(()),
                    _ => Err(error),
                }
            }
            (Put::Refused(error) | Put::Unknown(error), _)
            | (_, Put::Refused(error) | Put::Unknown(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Probes a range read, and the listing on which claims depend: an existing object must be
    /// listed immediately, after the key that precedes it.
    async fn probe_reads(&self, nonce: u64) -> Result<()> {
        let path = self.layout.probe(nonce);
        match self.requests.get_range(&path, 2..6).await {
            Ok(Some(bytes)) if bytes[..] == FOURTH.as_bytes()[2..6] => {}
            Ok(_) | Err(Error::Corrupt(_)) => {
                return Err(unfit("returns wrong bytes for a range", "ranges"));
            }
            Err(error) => return Err(error),
        }
        let before = self.layout.probe(nonce - 1);
        let listed = self.requests.list(&self.layout.path(PROBES), Some(&before), 1).await?;
        if listed.first().is_none_or(|first| first.location != path) {
            return Err(unfit(
                "does not list an object that it has stored",
                "listings that are complete and in order",
            ));
        }
        Ok(())
    }
}

/// The maximum size of the body of an edition's object.
const BYTES_MAX: u64 = 256;

/// The edition of a bucket's layout, which decides how long names become keys.
///
/// | edition | |
/// |---|---|
/// | 1 | names are never cut, however long |
/// | 2 | long names are cut (`format/layout.rs`) |
///
/// All programs that use a bucket must agree on its keys. Therefore a bucket keeps its edition,
/// which an object in it states. Without that object, the bucket is either new, and gets edition 2,
/// or it has heads of a program that knew no editions, and gets edition 1 (unless one of their keys
/// is cut). If several programs find no such object simultaneously, one of them puts it, and the
/// others follow it. A program that has missed the object may find heads of the program that has
/// put the object since; then its own put is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edition {
    Whole,
    Cut,
}

impl Edition {
    /// Returns the body of the object that states the edition: a word, a number, and a sentence for
    /// users.
    fn body(self) -> &'static str {
        match self {
            Self::Whole => "layout 1 of blocker-s3: names are never cut\n",
            Self::Cut => "layout 2 of blocker-s3: long names are cut\n",
        }
    }

    /// Returns the edition that a body states, or the edition's number if this program does not
    /// know it. Returns `None` if the body states no edition.
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
    /// Determines the bucket's edition, and sets one if the bucket has none.
    ///
    /// # Errors
    /// Each error has a one-line message: `Unsupported` if the edition is from a later program and
    /// unknown here, `Corrupt` if the object states no edition; also the errors of the reads and
    /// changes that this needs.
    pub(crate) async fn resolve_edition(&self, progress: &Progress) -> Result<()> {
        let path = self.layout.path(EDITION);
        let mut last = Error::Retryable("too many concurrent changes to the layout's edition".into());
        for retry in 0..TRIES {
            match self.requests.get(&path, None, BYTES_MAX).await? {
                Got::Missing => {}
                Got::Found(body, _) => {
                    let none =
                        || Error::Corrupt(format!("{path} does not state an edition of the layout").into());
                    let edition = Edition::decode(&body).ok_or_else(none)?.map_err(|number| {
                        let text = format!("the bucket has layout {number}, and this program knows up to 2");
                        Error::Unsupported(text.into())
                    })?;
                    self.layout.set_cuts(edition == Edition::Cut);
                    return Ok(());
                }
                Got::Same => {
                    return Err(Error::Corrupt(
                        "the server returns 304 for a request without a condition".into(),
                    ));
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

    /// Returns the edition that the keys of heads follow. A cut key shows the edition even if the
    /// object that states it was removed.
    async fn edition_of_heads(&self, progress: &Progress) -> Result<Edition> {
        let (mut listing, mut is_used) = (self.requests.pages(self.layout.path(HEADS)), false);
        while let Some(page) = listing.next().await? {
            if page.iter().any(|meta| self.layout.is_cut(&meta.location)) {
                return Ok(Edition::Cut);
            }
            is_used |= !page.is_empty();
            progress.step();
        }
        Ok(if is_used { Edition::Whole } else { Edition::Cut })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blocker::executor::block_on;
    use blocker::{Blocker, BlockerExt, Name, Namespace, ObjectId, ReadRequest, SystemClock, WriteRequest};
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

    /// A bucket of a program that knew no editions keeps its keys, so that its objects are found.
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
