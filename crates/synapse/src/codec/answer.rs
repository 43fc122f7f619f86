//! An answer of the contract, as frames carry it: [`Answer::encode`] beside [`Answer::decode`].

use blocker::*;
use bytes::{Buf, Bytes};

use super::frame::{Attached, Head, encode};
use super::header::{Flags, Header, RequestId};
use super::hello::{decode_capabilities, durability_bytes, durability_of, encode_capabilities};
use super::names::Names;
use super::op::Op;
use super::request::{CONTROL_ENTRIES_MAX, invalid, policy_code, policy_of, protect, put_scope, take_scope};
use super::status::{self, Status};

/// Everything that a server can answer when it worked.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a read.
    Read(ReadReply),
    /// To every change but a delete.
    Change(ChangeReply),
    /// To a delete.
    Delete(DeleteReply),
    /// To an info.
    Info(Info),
    /// To a listing.
    List(ListReply),
    /// To a flush.
    Flush(FlushReply),
    /// To a claim.
    Claim(ClaimReply),
    /// To an invalidation.
    Invalidate(InvalidateReply),
    /// To an attach.
    Attach(Attachment),
    /// To a detach, and to changes of policy and quota.
    Done,
    /// To a question about a policy.
    Policy(Policy),
    /// To a question about a quota.
    Quota(Quota),
    /// To a question about figures: name and value.
    Statistics(Vec<(String, u64)>),
    /// To a question about namespaces: a page of at most [`CONTROL_ENTRIES_MAX`], and whether there may be
    /// more.
    Namespaces(Vec<Namespace>, bool),
}

/// What became of a request, as it goes over the wire.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It was answered.
    Answered(Answer),
    /// It failed.
    Failed(Error),
    /// Its caller had gone.
    Cancelled,
}

impl From<Result<Answer, Error>> for Outcome {
    fn from(result: Result<Answer, Error>) -> Self {
        match result {
            Ok(answer) => Self::Answered(answer),
            Err(error) => Self::Failed(error),
        }
    }
}

impl Outcome {
    /// Appends the head of the reply to `out`; the payload to send after it is returned.
    #[must_use]
    pub fn encode(self, op: Op, id: RequestId, has_crc: bool, out: &mut Vec<u8>) -> Segments {
        let mut header = Header::new(op, id);
        header.flags.put(Flags::REPLY, true);
        let payload = match self {
            Self::Answered(answer) => answer.put(&mut header),
            Self::Failed(error) => {
                let reason = status::put_error(&mut header, &error);
                Bytes::copy_from_slice(reason.as_bytes()).into()
            }
            Self::Cancelled => {
                header.status = Status::Cancelled;
                Segments::new()
            }
        };
        let payload_crc = protect(&mut header, &payload, has_crc);
        // Below the byte credit, which is far below 4 GiB.
        let payload_bytes = payload.len_bytes() as u32;
        encode(out, &header, &Attached { payload_bytes, payload_crc, ..Attached::default() });
        payload
    }

    /// What a reply's head and payload stand for.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the server makes no sense: close the connection.
    pub fn decode(head: &Head<'_>, payload: Segments) -> Result<Self, Error> {
        let header = &head.header;
        match header.status {
            Status::Ok => Answer::take(header, payload).map(Self::Answered),
            Status::Cancelled => Ok(Self::Cancelled),
            _ => {
                let error = status::take_error(header, &payload.to_bytes());
                error.map(Self::Failed).ok_or_else(|| invalid("not the status of a request"))
            }
        }
    }
}

impl Answer {
    fn put(self, header: &mut Header) -> Segments {
        match self {
            Self::Read(reply) => {
                (header.length, header.version) = (reply.size_bytes, reply.version.0);
                return reply.data;
            }
            Self::Change(reply) => {
                (header.length, header.version) = (reply.size_bytes, reply.version.0);
                (header.durability, header.replicas) = durability_bytes(reply.durability);
            }
            Self::Delete(reply) => (header.durability, header.replicas) = durability_bytes(reply.durability),
            Self::Flush(reply) => (header.durability, header.replicas) = durability_bytes(reply.durability),
            Self::Info(info) => {
                (header.length, header.version) = (info.size_bytes, info.version.0);
                if let Some(stamp) = info.stamp {
                    header.flags.put(Flags::STAMP, true);
                    (header.epoch, header.sequence) = (stamp.epoch.0, stamp.sequence);
                }
            }
            Self::List(reply) => {
                header.flags.put(Flags::MORE, reply.has_more);
                return encode_list(&reply.entries).into();
            }
            Self::Claim(reply) => header.epoch = reply.epoch.0,
            Self::Invalidate(reply) => header.length = reply.dropped_bytes,
            Self::Attach(attachment) => {
                header.epoch = attachment.epoch.0;
                return Bytes::copy_from_slice(&encode_capabilities(&attachment.capabilities)).into();
            }
            Self::Done => {}
            Self::Policy(policy) => header.length = policy_code(&policy),
            Self::Quota(quota) => {
                header.flags.put(Flags::LIMIT, quota.bytes_max.is_some());
                header.length = quota.bytes_max.unwrap_or(0);
                header.offset = quota.used_bytes;
            }
            Self::Statistics(figures) => return encode_figures(&figures).into(),
            Self::Namespaces(namespaces, has_more) => {
                header.flags.put(Flags::MORE, has_more);
                let mut bytes = Vec::new();
                for namespace in &namespaces {
                    put_name(&mut bytes, namespace.as_bytes());
                }
                return bytes.into();
            }
        }
        Segments::new()
    }

    fn take(header: &Header, payload: Segments) -> Result<Self, Error> {
        let durability =
            || durability_of(header.durability, header.replicas).ok_or_else(|| invalid("no such durability"));
        let has_payload =
            matches!(header.op, Op::Read | Op::List | Op::Attach | Op::Statistics | Op::Namespaces);
        if !has_payload && !payload.is_empty() {
            return Err(invalid("this answer has no payload"));
        }
        Ok(match header.op {
            Op::Read => Self::Read(ReadReply::new(payload, header.length, Version(header.version))),
            Op::Write
            | Op::WriteZeroes
            | Op::WriteRuns
            | Op::Discard
            | Op::CompareAndWrite
            | Op::WriteFull
            | Op::Truncate
            | Op::Copy => {
                Self::Change(ChangeReply::new(Version(header.version), header.length, durability()?))
            }
            Op::Delete => Self::Delete(DeleteReply::new(durability()?)),
            Op::Flush => Self::Flush(FlushReply::new(durability()?)),
            Op::Info => {
                let stamp = header.flags.has(Flags::STAMP).then(|| Stamp::new(header.epoch, header.sequence));
                Self::Info(Info::new(header.length, Version(header.version), stamp))
            }
            Op::List => {
                let entries = decode_list(payload.to_bytes())?;
                Self::List(ListReply::new(entries, header.flags.has(Flags::MORE)))
            }
            Op::Claim => Self::Claim(ClaimReply::new(Epoch(header.epoch))),
            Op::Invalidate => Self::Invalidate(InvalidateReply::new(header.length)),
            Op::Attach => {
                let capabilities = decode_capabilities(&payload.to_bytes());
                let capabilities = capabilities.ok_or_else(|| invalid("no capabilities"))?;
                Self::Attach(Attachment::new(capabilities, Epoch(header.epoch)))
            }
            Op::Detach | Op::SetPolicy | Op::SetQuota => Self::Done,
            Op::Policy => Self::Policy(policy_of(header.length)?),
            Op::Quota => {
                let mut quota = Quota::default();
                quota.bytes_max = header.flags.has(Flags::LIMIT).then_some(header.length);
                quota.used_bytes = header.offset;
                Self::Quota(quota)
            }
            Op::Statistics => Self::Statistics(decode_figures(payload.to_bytes())?),
            Op::Namespaces => {
                let mut bytes = payload.to_bytes();
                let mut namespaces = Vec::new();
                while !bytes.is_empty() {
                    namespaces.push(Namespace::new(take_name(&mut bytes)?)?);
                }
                Self::Namespaces(namespaces, header.flags.has(Flags::MORE))
            }
            Op::Hello | Op::Prove | Op::Ping | Op::Cancel | Op::Goodbye | Op::Event | Op::Credit => {
                return Err(invalid("not an answer"));
            }
        })
    }
}

/// ```text
/// +--------+----------------+----------------+----------------+
/// | u8 len |      name      |    u64 size    |  u64 version   |  for each entry
/// +--------+----------------+----------------+----------------+
/// ```
fn encode_list(entries: &[ListEntry]) -> Vec<u8> {
    let names: usize = entries.iter().map(|entry| entry.name.as_bytes().len()).sum();
    let mut bytes = Vec::with_capacity(names + entries.len() * 17);
    for entry in entries {
        put_name(&mut bytes, entry.name.as_bytes());
        bytes.extend_from_slice(&entry.size_bytes.to_le_bytes());
        bytes.extend_from_slice(&entry.version.0.to_le_bytes());
    }
    bytes
}

fn decode_list(mut bytes: Bytes) -> Result<Vec<ListEntry>, Error> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        // A copy: an entry that someone keeps must not keep the whole page.
        let name = Name::copy_from(&take_name(&mut bytes)?)?;
        let size_bytes = take_u64(&mut bytes)?;
        let version = Version(take_u64(&mut bytes)?);
        entries.push(ListEntry::new(name, size_bytes, version));
    }
    Ok(entries)
}

/// Each a name and a `u64`; what is beyond [`CONTROL_ENTRIES_MAX`] is left out.
fn encode_figures(figures: &[(String, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in figures.iter().take(CONTROL_ENTRIES_MAX) {
        put_name(&mut bytes, &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES_MAX)]);
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn decode_figures(mut bytes: Bytes) -> Result<Vec<(String, u64)>, Error> {
    let mut figures = Vec::new();
    while !bytes.is_empty() {
        let name = String::from_utf8(take_name(&mut bytes)?.into());
        let name = name.map_err(|_| invalid("the name of a figure is not UTF-8"))?;
        if figures.len() == CONTROL_ENTRIES_MAX {
            return Err(invalid("more figures than one answer may have"));
        }
        figures.push((name, take_u64(&mut bytes)?));
    }
    Ok(figures)
}

fn put_name(bytes: &mut Vec<u8>, name: &[u8]) {
    // At most 255, by the name's type or just cut.
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name);
}

fn take_name(bytes: &mut Bytes) -> Result<Bytes, Error> {
    let length = bytes.try_get_u8().map(usize::from).map_err(|_| invalid("a name is cut off"))?;
    if bytes.len() < length {
        return Err(invalid("a name is cut off"));
    }
    Ok(bytes.split_to(length))
}

fn take_u64(bytes: &mut Bytes) -> Result<u64, Error> {
    bytes.try_get_u64_le().map_err(|_| invalid("a number is cut off"))
}

/// Appends news.
pub fn encode_event(out: &mut Vec<u8>, event: &Event) {
    let mut header = Header::new(Op::Event, RequestId::default());
    let mut names: [&[u8]; 4] = [&[]; 4];
    let mut reason: &[u8] = &[];
    header.length = match event {
        Event::Changed(scope) => {
            put_scope(&mut header, &mut names, scope);
            1
        }
        Event::Fenced(scope, epoch) => {
            put_scope(&mut header, &mut names, scope);
            header.epoch = epoch.0;
            2
        }
        Event::Full => 3,
        Event::Degraded(text) => {
            reason = status::cut(text).as_bytes();
            4
        }
        Event::Recovered => 5,
        // Missed, and what a later version has: treat everything as changed.
        _ => 6,
    };
    let attached = Attached { names, payload_bytes: reason.len() as u32, ..Attached::default() };
    encode(out, &header, &attached);
    out.extend_from_slice(reason);
}

/// Reads news.
///
/// # Errors
/// [`Error::Invalid`] if they make no sense.
pub fn decode_event(head: &Head<'_>, payload: &[u8], names: &mut Names) -> Result<Event, Error> {
    Ok(match head.header.length {
        1 => Event::Changed(take_scope(head, names)?),
        2 => Event::Fenced(take_scope(head, names)?, Epoch(head.header.epoch)),
        3 => Event::Full,
        4 => Event::Degraded(status::read_reason(payload)),
        5 => Event::Recovered,
        6 => Event::Missed,
        _ => return Err(invalid("no such news")),
    })
}
