//! An answer of the contract as a frame: [`Outcome::encode`] beside [`Outcome::decode`].

use blocker::metrics::Families;
use blocker::*;
use bytes::Bytes;

use super::capabilities::{decode_capabilities, encode_capabilities};
use super::error::invalid;
use super::failure::{put_error, take_error};
use super::fields::{durability_bytes, durability_of, policy_code, policy_of, protect};
use super::frame::{Attached, Head, encode};
use super::header::{Flags, Header, RequestId};
use super::metrics::{LOSSES_MAX, decode_losses, decode_metrics, encode_losses, encode_metrics};
use super::namespaces::{decode_states, encode_states};
use super::op::Op;
use super::page::{decode_list, decode_values, encode_list, encode_values, put_name, take_name};
use super::status::Status;

/// The answer to a request that succeeded.
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
    /// To a detach, and to changes of policy, quota and settings.
    Done,
    /// To a policy query.
    Policy(Policy),
    /// To a quota query.
    Quota(Quota),
    /// To a statistics query: names and values.
    Statistics(Vec<(String, u64)>),
    /// To a namespaces query: a page of at most [`super::CONTROL_ENTRIES_MAX`], and whether there may be
    /// more.
    Namespaces(Vec<Namespace>, bool),
    /// To a metrics query: a page of them, see [`super::metrics_page`], and whether there are more.
    Metrics(Families, bool),
    /// To a losses query: a page of at most [`super::LOSSES_MAX`].
    Losses(LossPage),
    /// To a query of one namespace's state.
    NamespaceState(NamespaceState),
    /// To a query of namespaces' states: a page of as many as one answer can have.
    NamespaceStates(NamespacePage),
    /// To the removal of a namespace.
    RemoveNamespace(RemovedNamespace),
}

/// The outcome of a request, as it is sent.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It succeeded.
    Answered(Answer),
    /// It failed.
    Failed(Error),
    /// Its caller had cancelled it.
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
    /// Appends the head of the reply to `out`, and returns the payload to send after it.
    #[must_use]
    pub fn encode(self, op: Op, id: RequestId, has_crc: bool, out: &mut Vec<u8>) -> Segments {
        let mut header = Header::new(op, id);
        header.flags.put(Flags::REPLY, true);
        let payload = match self {
            Self::Answered(answer) => answer.put(&mut header),
            Self::Failed(error) => {
                let reason = put_error(&mut header, &error);
                Bytes::copy_from_slice(reason.as_bytes()).into()
            }
            Self::Cancelled => {
                header.status = Status::Cancelled;
                Segments::new()
            }
        };
        let payload_crc = protect(&mut header, &payload, has_crc);
        // Below the granted bytes, which are far below 4 GiB.
        let payload_bytes = payload.len_bytes() as u32;
        encode(out, &header, &Attached { payload_bytes, payload_crc, ..Attached::default() });
        payload
    }

    /// Reads the outcome of a reply's head and payload.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it makes no sense: close the connection.
    pub fn decode(head: &Head<'_>, payload: Segments) -> Result<Self, Error> {
        let header = &head.header;
        match header.status {
            Status::Ok => Answer::take(header, payload).map(Self::Answered),
            Status::Cancelled => Ok(Self::Cancelled),
            _ => {
                let error = take_error(header, &payload.to_bytes());
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
            Self::Statistics(values) => return encode_values(&values).into(),
            Self::Metrics(families, has_more) => {
                header.flags.put(Flags::MORE, has_more);
                return encode_metrics(&families).into();
            }
            Self::Losses(page) => {
                header.flags.put(Flags::MORE, page.has_more || page.losses.len() > LOSSES_MAX);
                (header.offset, header.length) = (page.unlisted_objects, page.unlisted_bytes);
                return encode_losses(&page.losses).into();
            }
            Self::NamespaceState(state) => return encode_states(&[state]).0.into(),
            Self::NamespaceStates(page) => {
                let (bytes, count) = encode_states(&page.states);
                header.flags.put(Flags::MORE, page.has_more || count < page.states.len());
                return bytes.into();
            }
            Self::RemoveNamespace(removed) => {
                (header.length, header.offset) = (removed.dropped_bytes, removed.discarded_bytes);
            }
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
        let has_payload = matches!(
            header.op,
            Op::Read
                | Op::List
                | Op::Attach
                | Op::Statistics
                | Op::Namespaces
                | Op::Metrics
                | Op::Losses
                | Op::NamespaceState
                | Op::NamespaceStates
        );
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
            Op::Detach | Op::SetPolicy | Op::SetQuota | Op::ChangeNamespace => Self::Done,
            Op::RemoveNamespace => {
                let mut removed = RemovedNamespace::default();
                (removed.dropped_bytes, removed.discarded_bytes) = (header.length, header.offset);
                Self::RemoveNamespace(removed)
            }
            Op::NamespaceState => {
                let mut states = decode_states(payload.to_bytes())?.into_iter();
                match (states.next(), states.next()) {
                    (Some(state), None) => Self::NamespaceState(state),
                    _ => return Err(invalid("not the state of one namespace")),
                }
            }
            Op::NamespaceStates => {
                let mut page = NamespacePage::default();
                page.states = decode_states(payload.to_bytes())?;
                page.has_more = header.flags.has(Flags::MORE);
                Self::NamespaceStates(page)
            }
            Op::Policy => Self::Policy(policy_of(header.length)?),
            Op::Quota => {
                let mut quota = Quota::default();
                quota.bytes_max = header.flags.has(Flags::LIMIT).then_some(header.length);
                quota.used_bytes = header.offset;
                Self::Quota(quota)
            }
            Op::Statistics => Self::Statistics(decode_values(payload.to_bytes())?),
            Op::Metrics => {
                let families = decode_metrics(payload.to_bytes())?;
                Self::Metrics(families, header.flags.has(Flags::MORE))
            }
            Op::Losses => {
                let mut page = LossPage::default();
                page.losses = decode_losses(payload.to_bytes())?;
                page.has_more = header.flags.has(Flags::MORE);
                (page.unlisted_objects, page.unlisted_bytes) = (header.offset, header.length);
                Self::Losses(page)
            }
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
