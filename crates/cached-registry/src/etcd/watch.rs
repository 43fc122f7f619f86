//! A watch on etcd: a stream of events over one connection, resumed where it has ended.

use std::fmt;
use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::client::{Body, is_login};
use super::{EtcdBody, number, revision_of};
use crate::document::{Changes, Event, Revision};
use crate::error::{Error, Result};

/// The longest message, in bytes.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The time without an event after which the stream is replaced: nothing else would reveal that the
/// other side has disappeared.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The time without an event after which the keys are counted.
const SILENCE_MIN: Duration = Duration::from_secs(10);

/// The delay before a stream is opened after failures, which doubles up to the maximum.
const DELAY_MIN: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(5);

/// The state of a watch.
#[derive(Default)]
pub(crate) struct EtcdWatch {
    stream: Option<Body>,
    /// The beginning of the next message.
    buffer: Vec<u8>,
    /// The number of failures since the last message.
    failures: u32,
    has_logged_in_again: bool,
    /// The number of keys with the prefix after the changes of this revision.
    counted: Option<(Revision, u64)>,
    /// Two revisions between which there is no change.
    quiet: Option<(Revision, Revision)>,
}

impl fmt::Debug for EtcdWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdWatch")
            .field("failures", &self.failures)
            .field("is_open", &self.stream.is_some())
            .finish_non_exhaustive()
    }
}

impl EtcdWatch {
    /// Waits for changes after `after` of documents with this prefix.
    ///
    /// # Errors
    /// Returns [`Error::Unavailable`] after each failure; the next call opens the stream again.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub(crate) async fn next(&mut self, etcd: &EtcdBody, prefix: &str, after: Revision) -> Result<Changes> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let message: Vec<u8> = self.buffer.drain(..=end).collect();
                if let Some(changes) = self.take(etcd, &message, prefix, after).await? {
                    return Ok(changes);
                }
            }
            let Some(stream) = &mut self.stream else {
                self.open(etcd, prefix, after).await?;
                continue;
            };
            let is_counted = self.counted.is_some_and(|(at, _)| at == after);
            let silence = if is_counted { SILENCE_MAX } else { SILENCE_MIN };
            match tokio::time::timeout(silence, stream.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let data = frame.into_data().unwrap_or_default();
                    if self.buffer.len() + data.len() > MESSAGE_BYTES_MAX {
                        return Err(self.fail(etcd, format!("a message exceeds {MESSAGE_BYTES_MAX} bytes")));
                    }
                    self.buffer.extend_from_slice(&data);
                }
                Ok(Some(Err(why))) => return Err(self.fail(etcd, why)),
                Ok(None) => return Err(self.fail(etcd, "etcd has ended the watch".into())),
                Err(_) if is_counted => self.close(),
                Err(_) => self.count(etcd, prefix, after).await,
            }
        }
    }

    /// Counts the keys with the prefix. Without their number, a compaction would be reported even
    /// if nothing has changed.
    async fn count(&mut self, etcd: &EtcdBody, prefix: &str, after: Revision) {
        if self.counted.is_none_or(|(at, _)| at != after) {
            self.counted = etcd.count(prefix, after).await.ok().map(|count| (after, count));
        }
    }

    async fn open(&mut self, etcd: &EtcdBody, prefix: &str, after: Revision) -> Result<()> {
        if self.failures > 0 {
            tokio::time::sleep((DELAY_MIN * (1 << (self.failures - 1).min(10))).min(DELAY_MAX)).await;
        }
        let (first, end) = etcd.range(prefix);
        self.count(etcd, prefix, after).await;
        let last = self.quiet.filter(|(from, _)| *from == after).map_or(after, |(_, to)| to);
        let from = last.0.saturating_add(1).to_string();
        let request = json!({ "create_request": { "key": first, "range_end": end, "start_revision": from } });
        match etcd.client.stream("watch", &request).await {
            Ok(stream) => {
                self.stream = Some(stream);
                Ok(())
            }
            Err(error) => {
                self.failures += 1;
                Err(error)
            }
        }
    }

    /// Handles one message of the stream.
    async fn take(
        &mut self,
        etcd: &EtcdBody,
        message: &[u8],
        prefix: &str,
        after: Revision,
    ) -> Result<Option<Changes>> {
        let Ok(message) = serde_json::from_slice::<Value>(message) else {
            return Err(self.fail(etcd, "a message is not JSON".into()));
        };
        let result = &message["result"];
        if result["canceled"] == true || !result.is_object() {
            return self.cancelled(etcd, &message, prefix, after).await.map(|()| None);
        }
        // The registry was created anew, or this member lags behind; a listing shows which.
        if result["created"] == true && revision_of(result) < after {
            self.close();
            return Err(Error::Compacted { after });
        }
        (self.failures, self.has_logged_in_again) = (0, false);
        let changes = changes(etcd, result, prefix, after).inspect_err(|_| self.close())?;
        Ok((!changes.events.is_empty()).then_some(changes))
    }

    /// Determines why etcd has ended the watch.
    async fn cancelled(
        &mut self,
        etcd: &EtcdBody,
        message: &Value,
        prefix: &str,
        after: Revision,
    ) -> Result<()> {
        self.close();
        let result = &message["result"];
        if number(&result["compact_revision"]) > 0 {
            let Some((_, count)) = self.counted.filter(|(at, _)| *at == after) else {
                return Err(Error::Compacted { after });
            };
            // Other keys have changed. If none was changed or created below the prefix, and there
            // are as many as before, none was removed either.
            return match etcd.changed_after(prefix, after).await? {
                (false, found, revision) if found == count => {
                    self.quiet = Some((after, revision));
                    Ok(())
                }
                _ => Err(Error::Compacted { after }),
            };
        }
        let reason = result["cancel_reason"].as_str().or(message["error"]["message"].as_str());
        let reason = reason.unwrap_or("etcd has ended the watch").to_owned();
        if is_login(0, &reason) && !self.has_logged_in_again && etcd.client.forget_token() {
            self.has_logged_in_again = true;
            return Ok(());
        }
        if is_login(0, &reason) || reason.contains("PermissionDenied") {
            return Err(Error::Denied(format!("etcd refuses the request: {reason}").into()));
        }
        Err(self.fail(etcd, reason))
    }

    /// Ends the stream, so that the next one is opened at another endpoint.
    fn fail(&mut self, etcd: &EtcdBody, why: String) -> Error {
        self.close();
        self.failures += 1;
        etcd.client.skip_current();
        Error::Unavailable(why.into())
    }

    fn close(&mut self) {
        self.stream = None;
        self.buffer.clear();
    }
}

/// Returns the events of a message.
fn changes(etcd: &EtcdBody, result: &Value, prefix: &str, after: Revision) -> Result<Changes> {
    let mut changes = Changes { events: Vec::new(), revision: after };
    for found in result["events"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let revision = Revision(number(&found["kv"]["mod_revision"]));
        changes.revision = changes.revision.max(revision);
        let event = match found["type"] == "DELETE" {
            true => etcd.key(&found["kv"])?.map(Event::Removed),
            false => etcd.document(&found["kv"])?.map(Event::Changed),
        };
        changes.events.extend(event.filter(|event| event.key().as_str().starts_with(prefix)));
    }
    Ok(changes)
}
