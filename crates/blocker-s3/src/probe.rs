//! What the server must be able to do, tried out when a store is opened.
//!
//! All that is promised about racing writers and fencing rests on two conditions of a put: `If-None-Match: *`
//! and `If-Match`. Some servers take such headers and ignore them; on them two writers would overwrite each
//! other without an error, so they are refused. Some (radosgw before 17) compare the ETag as text with their
//! own, which has no quotes, while the answer to a put has them: for those the quotes are taken off. Reads rest on
//! ranges, and claims on listings that show at once what is there. Nothing
//! rests on conditions of removals, copies and multipart uploads, which more servers ignore.

use std::sync::atomic::Ordering;

use blocker::{Error, Result};
use bytes::Bytes;

use crate::object::Core;
use crate::server::requests::{Got, Put};

/// How often a request of the probe is tried that gets no clear answer.
const TRIES: u32 = 4;

/// What the body of the probe's object begins with when it is read.
const FOURTH: &str = "fourth";

fn unfit(what: &str, needed: &str) -> Error {
    let text = format!(
        "the server {what}; a store needs {needed}, which this server or a proxy before it does not keep"
    );
    Error::Unsupported(text.into())
}

fn refuse(what: &str) -> Error {
    unfit(what, "conditional puts (If-None-Match: * and If-Match)")
}

impl Core {
    /// Tries out the conditions of puts.
    ///
    /// # Errors
    /// One line: `Unsupported` where a condition is ignored, `Denied` without rights or bucket, `Retryable` if
    /// the server does not answer.
    pub(crate) async fn probe(&self) -> Result<()> {
        let mut last = Error::Retryable("the server does not answer".into());
        for retry in 0..TRIES {
            // A fresh key each time: an attempt without an answer may still land on the one before.
            let nonce = rand::random_range(1..=u64::MAX);
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

    /// One try. `Retryable` where an answer left it open.
    async fn probe_at(&self, nonce: u64) -> Result<()> {
        let path = &self.layout.probe(nonce);
        let body = |text: String| Bytes::from(format!("{text} {:016x}", rand::random::<u64>()));
        let requests = &self.requests;
        let first = match requests.create(path, &body("first".into())).await {
            Put::Done(Some(etag)) => etag,
            Put::Done(None) => return Err(refuse("names no ETag in its answer to a put")),
            Put::Lost => return Err(refuse("refuses to create an object that does not exist")),
            Put::Refused(error) => return Err(error),
            Put::Unknown(error) => return Err(error),
        };
        match requests.create(path, &body("second".into())).await {
            Put::Done(_) => return Err(refuse("ignores If-None-Match: * in a put")),
            Put::Lost => {}
            Put::Refused(error) => return Err(error),
            Put::Unknown(error) => return Err(error),
        }
        // An ETag that the object never had.
        let wrong: String = first.chars().map(|c| if c == '0' { '1' } else { '0' }).collect();
        let wrong = if first.starts_with('"') {
            format!("\"{}\"", wrong.get(1..wrong.len() - 1).unwrap_or("0"))
        } else {
            wrong
        };
        match requests.replace(path, &body("third".into()), &wrong).await {
            Put::Done(_) => return Err(refuse("ignores If-Match in a put")),
            Put::Lost => {}
            Put::Refused(error) => return Err(error),
            Put::Unknown(error) => return Err(error),
        }
        let mut etag = None;
        for bare in [false, true] {
            requests.bare_etags.store(bare, Ordering::Relaxed);
            match requests.replace(path, &body(format!("{FOURTH} {bare}")), &first).await {
                Put::Done(new) => {
                    etag = new;
                    break;
                }
                Put::Lost => {}
                Put::Refused(error) => return Err(error),
                Put::Unknown(error) => return Err(error),
            }
        }
        let Some(etag) = etag else {
            return Err(refuse("refuses If-Match with the ETag that it has named itself"));
        };
        self.probe_reads(nonce).await?;
        // The ETag of a get must be good for a put as well, and a stale one must not.
        match requests.get(path, None, 4096).await? {
            Got::Found(_, Some(read)) if read.trim_matches('"') == etag.trim_matches('"') => {}
            _ => return Err(refuse("names another ETag to a get than to a put")),
        }
        let (one, two) = (body("one".into()), body("two".into()));
        let racing = futures_util::future::join(
            requests.replace(path, &one, &etag),
            requests.replace(path, &two, &etag),
        );
        match racing.await {
            (Put::Done(_), Put::Done(_)) => {
                Err(refuse("lets two puts with the same If-Match through at the same time"))
            }
            // Some (radosgw 16) have an error for one that comes second. It must not be there.
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

    /// Tries out a range, and a listing, on which claims rest: what is there is listed at once, behind the key that comes
    /// before it.
    async fn probe_reads(&self, nonce: u64) -> Result<()> {
        let path = self.layout.probe(nonce);
        match self.requests.get_range(&path, 2..6).await {
            Ok(Some(bytes)) if bytes[..] == FOURTH.as_bytes()[2..6] => {}
            Ok(_) | Err(Error::Corrupt(_)) => {
                return Err(unfit("sends other bytes than those of a range", "ranges"));
            }
            Err(error) => return Err(error),
        }
        let before = self.layout.probe(nonce - 1);
        let listed = self.requests.list(&self.layout.all_probes(), Some(&before), 1).await?;
        if listed.first().is_none_or(|first| first.location != path) {
            return Err(unfit(
                "does not list an object that it has stored",
                "listings that are complete and in order",
            ));
        }
        Ok(())
    }
}
