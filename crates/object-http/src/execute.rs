//! Operations on a blocker.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use blocker::{
    Blocker, Change as Operand, ChangeReply, Clock, Condition, Error, InfoRequest, ListRequest, ObjectId,
    ReadReply, ReadRequest, Segments, SystemClock, Timestamp, Version,
};
use bytes::Bytes;
use cached_http::ResponseBody;
use cached_http::values::ByteRange;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;
use tokio::time::timeout;

use crate::memory::Charge;
use crate::request::{Change, List, Read, Require, Verdict};
use crate::response::{Failure, changed, content, empty, etag, finish_content, set};
use crate::server::Connection;

/// The maximum number of attempts to read or change an object that other clients change at the same
/// time.
const TRIES: u32 = 8;

/// The memory of an entry of a listing, in bytes: its name, every byte of which may be escaped as
/// `\u0000`, its number and its version.
const ENTRY_BYTES: u64 = 255 * 6 + 120;

const OCTETS: &str = "application/octet-stream";

fn stale() -> Failure {
    Failure::Store(Error::Retryable("the object changes faster than it can be read; read it again".into()))
}

fn never() -> Failure {
    Failure::Condition("no object has the ETag that If-Match requires")
}

impl Connection {
    /// Returns the time at which the blocker gives up on a call that begins now.
    fn deadline(&self) -> Timestamp {
        SystemClock.now() + self.shared.config.request_timeout
    }

    fn blocker(&self) -> &Arc<dyn Blocker> {
        &self.shared.blocker
    }

    async fn charge(&self, bytes: u64) -> Result<Charge, Failure> {
        let charged = timeout(self.shared.config.request_timeout, self.memory.charge(bytes)).await;
        charged.map_err(|_| Failure::Busy)
    }

    async fn info(&self, object: &ObjectId) -> Result<(Version, u64), Error> {
        let request = InfoRequest::new(object.clone()).deadline(self.deadline());
        let info = self.blocker().info(request).await?;
        Ok((info.version, info.size_bytes))
    }

    pub(crate) async fn read(&self, read: Read) -> Result<Response<ResponseBody>, Failure> {
        let knows_range = matches!(read.range, None | Some(ByteRange::From(..)));
        for _ in 0..TRIES {
            // The range depends on the object's size or version.
            let known = if read.is_head || read.is_conditional() || !knows_range {
                Some(self.info(&read.object).await?)
            } else {
                None
            };
            if let Some((version, size)) = known {
                let verdict = read.verdict(&etag(version));
                if verdict == Verdict::Failed {
                    return Err(Failure::Condition("the object has another ETag than If-Match requires"));
                }
                if verdict == Verdict::NotModified {
                    let mut response = empty(StatusCode::NOT_MODIFIED);
                    set(&mut response, ETAG, &etag(version));
                    return Ok(response);
                }
                if read.is_head {
                    let mut response = empty(StatusCode::OK);
                    response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(size));
                    finish_content(&mut response, OCTETS);
                    finish(&mut response, version);
                    return Ok(response);
                }
            }
            match self.read_version(&read, known).await {
                // The object has changed, or was removed, between two steps.
                Err(Failure::Store(Error::ConditionFailed { .. })) => {}
                Err(Failure::Store(Error::Missing)) if known.is_some() => {}
                done => return done,
            }
        }
        Err(stale())
    }

    /// Reads the requested bytes. They are all of one version, which is `known` if that is given.
    async fn read_version(
        &self,
        read: &Read,
        known: Option<(Version, u64)>,
    ) -> Result<Response<ResponseBody>, Failure> {
        let as_range = match known {
            None => true,
            Some((version, _)) => read.verdict(&etag(version)) == Verdict::Send { as_range: true },
        };
        let asked = read.range.filter(|_| as_range);
        // Small objects are read in one piece, into the memory that every connection has.
        let share_bytes = self.shared.budget.share_bytes().min(self.shared.limit_bytes);
        let (offset, first_bytes) = match (asked, known) {
            (Some(asked), Some((_, size))) => {
                let range = asked.within(size).ok_or(Failure::Range(size))?;
                (range.start, (range.end - range.start).min(share_bytes))
            }
            (Some(ByteRange::From(first, last)), None) => {
                let len = last.map_or(u64::MAX, |last| (last - first).saturating_add(1));
                (first, len.min(share_bytes))
            }
            _ => (0, share_bytes),
        };
        let mut charge = self.charge(first_bytes).await?;
        let first =
            self.read_part(&read.object, offset, first_bytes, known.map(|(version, _)| version)).await?;
        let ReadReply { mut data, size_bytes, version, .. } = first;
        let range = match asked {
            None => 0..size_bytes,
            Some(asked) => asked.within(size_bytes).ok_or(Failure::Range(size_bytes))?,
        };
        let wanted_bytes = range.end - range.start;
        if wanted_bytes > self.shared.limit_bytes {
            let limit = self.shared.limit_bytes;
            let line =
                format!("the object is larger than a response can be; read ranges of at most {limit} bytes");
            return Err(Error::Unsupported(line.into()).into());
        }
        if wanted_bytes > data.len_bytes() as u64 {
            let grown = timeout(self.shared.config.request_timeout, charge.grow(wanted_bytes)).await;
            grown.map_err(|_| Failure::Busy)?;
        }
        while (data.len_bytes() as u64) < wanted_bytes {
            let at = range.start + data.len_bytes() as u64;
            let len = (range.end - at).min(self.shared.request_bytes_max);
            let next = self.read_part(&read.object, at, len, Some(version)).await?;
            if next.data.is_empty() {
                // Without this error, a blocker that returned no bytes before the end would keep
                // the loop running forever.
                return Err(Error::ConditionFailed { version }.into());
            }
            data.append(next.data);
        }
        let is_part = asked.is_some();
        let status = if is_part { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let mut response = content(status, OCTETS, data, charge, &self.shared.sent_bytes);
        finish(&mut response, version);
        if is_part {
            let text = format!("bytes {}-{}/{size_bytes}", range.start, range.end - 1);
            set(&mut response, CONTENT_RANGE, &text);
        }
        Ok(response)
    }

    async fn read_part(
        &self,
        object: &ObjectId,
        offset: u64,
        len_bytes: u64,
        version: Option<Version>,
    ) -> Result<ReadReply, Error> {
        let mut request = ReadRequest::new(object.clone(), offset, len_bytes).deadline(self.deadline());
        if let Some(version) = version.filter(|_| self.shared.has_conditions) {
            request = request.if_version(version);
        }
        let reply = self.blocker().read(request).await?;
        match version {
            Some(version) if version != reply.version => {
                Err(Error::ConditionFailed { version: reply.version })
            }
            _ => Ok(reply),
        }
    }

    /// Receives the body of a PUT, and makes it the content of the object. If `client_waits`, the
    /// client sends the body only when the server begins to read it.
    pub(crate) async fn put(
        &self,
        change: Change,
        mut body: Incoming,
        client_waits: bool,
    ) -> Result<Response<ResponseBody>, Failure> {
        let received = match self.charge_for(body.size_hint().exact()).await {
            Ok(charge) => self.receive(&mut body, charge).await,
            // The client has not begun to send the body.
            Err(failure) if client_waits => return Err(failure),
            Err(failure) => Err(failure),
        };
        let (data, charge) = match received {
            Err(failure @ (Failure::Store(_) | Failure::Busy)) => {
                self.drain(body).await;
                return Err(failure);
            }
            received => received?,
        };
        self.shared.counts.received_bytes.add(data.len() as u64);
        let operand = Operand::WriteFull { data: Segments::from(data) };
        let (reply, is_new) = self.replace(change, operand, charge).await?;
        let status = if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
        Ok(changed(status, Some(reply.version), reply.durability))
    }

    /// Waits for the memory for a body of `len_bytes`, if its length is known.
    async fn charge_for(&self, len_bytes: Option<u64>) -> Result<Charge, Failure> {
        let limit_bytes = self.shared.limit_bytes;
        match len_bytes {
            Some(len) if len > limit_bytes => Err(Error::TooLarge { limit_bytes }.into()),
            Some(len) => self.charge(len).await,
            // The body may become as long as allowed. If such bodies grew step by step, two of them
            // could wait for each other.
            None => self.charge(limit_bytes).await,
        }
    }

    /// Receives a body for which memory has been reserved.
    async fn receive(&self, body: &mut Incoming, mut charge: Charge) -> Result<(Bytes, Charge), Failure> {
        let _receiving = self.memory.receiving(charge.bytes());
        let most = usize::try_from(charge.bytes()).unwrap_or(usize::MAX);
        // Pages that are never written take no memory.
        let mut bytes = Vec::with_capacity(most);
        loop {
            match timeout(self.shared.config.stall_timeout, body.frame()).await {
                Err(_) => return Err(Failure::Slow),
                Ok(None) => break,
                Ok(Some(Err(_))) => return Err(Failure::Broken),
                Ok(Some(Ok(frame))) => {
                    let Some(data) = frame.data_ref() else { continue };
                    if data.len() > most - bytes.len() {
                        return Err(Error::TooLarge { limit_bytes: charge.bytes() }.into());
                    }
                    bytes.extend_from_slice(data);
                }
            }
        }
        bytes.shrink_to_fit();
        charge.shrink(bytes.len() as u64);
        Ok((bytes.into(), charge))
    }

    pub(crate) async fn delete(&self, change: Change) -> Result<Response<ResponseBody>, Failure> {
        let condition = self.condition(change.condition, &change.object).await?;
        let reply = self.change(&change, Operand::Delete, condition, None).await?;
        Ok(changed(StatusCode::NO_CONTENT, None, reply.durability))
    }

    /// Returns the condition of a change that needs an existing `object`. If no version can meet it, a
    /// missing object is still reported as missing.
    async fn condition(&self, required: Require, object: &ObjectId) -> Result<Condition, Failure> {
        match required.condition() {
            Some(condition) => Ok(condition),
            None => {
                self.info(object).await?;
                Err(never())
            }
        }
    }

    pub(crate) async fn copy(
        &self,
        from: ObjectId,
        from_condition: Require,
        to: Change,
    ) -> Result<Response<ResponseBody>, Failure> {
        let from_condition = match from_condition {
            // Only an object that exists can be copied.
            Require::Present => Condition::None,
            other => self.condition(other, &from).await?,
        };
        if from == to.object {
            // The object can have only one condition, and it exists if it can be copied.
            if to.condition == Require::Absent {
                self.info(&from).await?;
                return Err(Error::Exists.into());
            }
            let reply =
                self.change(&to, Operand::Copy { from, from_condition }, Condition::None, None).await?;
            return Ok(changed(StatusCode::NO_CONTENT, Some(reply.version), reply.durability));
        }
        let charge = self.charge(0).await?;
        let (reply, is_new) = self.replace(to, Operand::Copy { from, from_condition }, charge).await?;
        let status = if is_new { StatusCode::CREATED } else { StatusCode::NO_CONTENT };
        Ok(changed(status, Some(reply.version), reply.durability))
    }

    /// Replaces the content of an object. Also returns whether there was no object before.
    async fn replace(
        &self,
        change: Change,
        operand: Operand,
        charge: Charge,
    ) -> Result<(ChangeReply, bool), Failure> {
        let charge = Arc::new(charge);
        match change.condition {
            Require::Never => return Err(never()),
            Require::Any => {}
            required => {
                let condition = required.condition().unwrap_or_default();
                let is_new = required == Require::Absent;
                let is_put = matches!(operand, Operand::WriteFull { .. });
                return match self.change(&change, operand, condition, Some(charge)).await {
                    // For a copy, it is the source that is missing.
                    Err(Error::Missing) if is_put => {
                        Err(Failure::Condition("there is no object, and If-Match requires one"))
                    }
                    reply => Ok((reply?, is_new)),
                };
            }
        }
        if !self.shared.has_conditions {
            let is_new = self.info(&change.object).await.is_err_and(|error| error == Error::Missing);
            let reply = self.change(&change, operand, Condition::None, Some(charge)).await?;
            return Ok((reply, is_new));
        }
        // The response states whether the object is new, so the change is conditional on what was
        // found. Otherwise two clients could both create it.
        for _ in 0..TRIES {
            let is_new = match self.info(&change.object).await {
                Ok(_) => false,
                Err(Error::Missing) => true,
                // A damaged object can be replaced nevertheless.
                Err(Error::Corrupt(_)) => false,
                Err(error) => return Err(error.into()),
            };
            let condition = if is_new { Condition::Absent } else { Condition::Present };
            match self.change(&change, operand.clone(), condition, Some(Arc::clone(&charge))).await {
                Err(Error::Exists) if is_new => {}
                Err(Error::Missing) if !is_new => {
                    // Either the object or the source of a copy is missing.
                    if let Operand::Copy { from, .. } = &operand {
                        self.info(from).await?;
                    }
                }
                reply => return Ok((reply?, is_new)),
            }
        }
        Err(Error::Retryable("others create and remove the object all the time; try again".into()).into())
    }

    /// Makes a change. It runs to its end even if the client closes its connection.
    async fn change(
        &self,
        change: &Change,
        operand: Operand,
        condition: Condition,
        charge: Option<Arc<Charge>>,
    ) -> Result<ChangeReply, Error> {
        let request = operand
            .request(change.object.clone())
            .condition(condition)
            .durability(change.durability)
            .deadline(self.deadline());
        let reply = self.blocker().change(request);
        self.to_its_end(async move {
            let reply = reply.await;
            drop(charge);
            reply
        })
        .await
    }

    pub(crate) async fn list(&self, list: List) -> Result<Response<ResponseBody>, Failure> {
        let List { namespace, prefix, after, entries_max } = list;
        let charge = self.charge(u64::from(entries_max) * ENTRY_BYTES).await?;
        let mut request = ListRequest::new(namespace)
            .prefix(prefix)
            .entries_max(entries_max.min(self.blocker().capabilities().list_entries_max))
            .deadline(self.deadline());
        request.after = after;
        let page = self.blocker().list(request).await?;
        let last = page.entries.last().filter(|_| page.has_more).map(|entry| entry.name.as_bytes().to_vec());
        let objects = page.entries.iter().map(|entry| Entry {
            name: Text::of(entry.name.as_bytes()),
            size_bytes: entry.size_bytes,
            etag: etag(entry.version),
        });
        let last = last.as_deref().map(Text::of);
        let document = Document {
            objects: objects.collect(),
            next: last.as_ref().and_then(|last| last.name),
            next_base64: last.as_ref().and_then(|last| last.name_base64.clone()),
        };
        // Every value can be serialized.
        let mut text = serde_json::to_vec(&document).unwrap_or_default();
        text.push(b'\n');
        // Until the client has received it, only the text itself is counted.
        text.shrink_to_fit();
        let text = Segments::from(Bytes::from(text));
        Ok(content(StatusCode::OK, "application/json", text, charge, &self.shared.sent_bytes))
    }
}

fn finish(response: &mut Response<ResponseBody>, version: Version) {
    set(response, ETAG, &etag(version));
    response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
}

/// A listing.
#[derive(Serialize)]
struct Document<'a> {
    objects: Vec<Entry<'a>>,
    next: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_base64: Option<String>,
}

#[derive(Serialize)]
struct Entry<'a> {
    #[serde(flatten)]
    name: Text<'a>,
    size_bytes: u64,
    etag: String,
}

/// A name, encoded in Base64 if it is not UTF-8.
#[derive(Serialize)]
struct Text<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
}

impl<'a> Text<'a> {
    fn of(name: &'a [u8]) -> Text<'a> {
        match std::str::from_utf8(name) {
            Ok(text) => Text { name: Some(text), name_base64: None },
            Err(_) => Text { name: None, name_base64: Some(BASE64_STANDARD.encode(name)) },
        }
    }
}
