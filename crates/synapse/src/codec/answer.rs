//! An answer of the contract as a frame: [`Outcome::encode`] and [`Outcome::decode`].

use blocker::metrics::Families;
use blocker::*;
use bytes::{Buf, Bytes};

use super::control::{
    LOSSES_MAX, decode_losses, decode_metrics, decode_states, encode_losses, encode_metrics, encode_states,
};
use super::fields::{durability_bytes, durability_of, policy_code, policy_of, protect};
use super::frame::{Attached, Head, encode, invalid};
use super::header::{Flags, Header, RequestId, Status};
use super::notice::{put_error, take_error};
use super::op::{CONTROL_ENTRIES_MAX, Op};

/// The answer to a request that succeeded.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The answer to a read.
    Read(ReadReply),
    /// The answer to a change.
    Change(ChangeReply),
    /// The answer to an info.
    Info(Info),
    /// The answer to a listing.
    List(ListReply),
    /// The answer to a flush.
    Flush(FlushReply),
    /// The answer to a claim.
    Claim(ClaimReply),
    /// The answer to an invalidation.
    Invalidate(InvalidateReply),
    /// The answer to an attach.
    Attach(Attachment),
    /// The answer to a detach, and to a change of a policy, a quota or settings.
    Done,
    /// The answer to a policy query.
    Policy(Policy),
    /// The answer to a quota query.
    Quota(Quota),
    /// The answer to a statistics query, which contains names and values.
    Statistics(Vec<(String, u64)>),
    /// The answer to a query for namespaces: a page of at most [`super::CONTROL_ENTRIES_MAX`], and
    /// whether there may be more.
    Namespaces(Vec<Namespace>, bool),
    /// The answer to a query for metrics: a page (see [`super::metrics_page`]), and whether there
    /// are more.
    Metrics(Families, bool),
    /// The answer to a query for losses: a page of at most [`super::LOSSES_MAX`].
    Losses(LossPage),
    /// The answer to a query of one namespace's state.
    NamespaceState(NamespaceState),
    /// The answer to a query of namespaces' states: a page of as many as fit into one answer.
    NamespaceStates(NamespacePage),
    /// The answer to the removal of a namespace.
    RemoveNamespace(RemovedNamespace),
}

/// The outcome of a request, as sent.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The request succeeded.
    Answered(Answer),
    /// The request failed.
    Failed(Error),
    /// The caller had cancelled the request.
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
        // The payload is within the grant, which is far below 4 GiB.
        let payload_bytes = payload.len_bytes() as u32;
        encode(out, &header, &Attached { payload_bytes, payload_crc, ..Attached::default() });
        payload
    }

    /// Reads the outcome of a reply's head and payload.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the answer is malformed: the caller must close the connection.
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
            return Err(invalid("this answer must have no payload"));
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
            Op::Delete => Self::Change(ChangeReply::removed(durability()?)),
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

// ---- The payloads of list-valued answers: entries of a listing, namespaces, names with values.

/// ```text
/// +--------+----------------+----------------+----------------+
/// | u8 len |      name      |    u64 size    |  u64 version   |  for each entry
/// +--------+----------------+----------------+----------------+
/// ```
pub(super) fn encode_list(entries: &[ListEntry]) -> Vec<u8> {
    let names: usize = entries.iter().map(|entry| entry.name.as_bytes().len()).sum();
    let mut bytes = Vec::with_capacity(names + entries.len() * 17);
    for entry in entries {
        put_name(&mut bytes, entry.name.as_bytes());
        bytes.extend_from_slice(&entry.size_bytes.to_le_bytes());
        bytes.extend_from_slice(&entry.version.0.to_le_bytes());
    }
    bytes
}

pub(super) fn decode_list(mut bytes: Bytes) -> Result<Vec<ListEntry>, Error> {
    let mut entries = Vec::new();
    while !bytes.is_empty() {
        // The name is copied, so that a retained entry does not keep the whole payload.
        let name = Name::copy_from(&take_name(&mut bytes)?)?;
        let size_bytes = take_u64(&mut bytes)?;
        let version = Version(take_u64(&mut bytes)?);
        entries.push(ListEntry::new(name, size_bytes, version));
    }
    Ok(entries)
}

/// Returns the payload of names and values, each of which is a name and a `u64`. Entries beyond
/// [`CONTROL_ENTRIES_MAX`] are left out.
pub(super) fn encode_values(values: &[(String, u64)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in values.iter().take(CONTROL_ENTRIES_MAX) {
        put_name(&mut bytes, &name.as_bytes()[..name.floor_char_boundary(NAME_BYTES_MAX)]);
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes
}

pub(super) fn decode_values(mut bytes: Bytes) -> Result<Vec<(String, u64)>, Error> {
    let mut values = Vec::new();
    while !bytes.is_empty() {
        let name = String::from_utf8(take_name(&mut bytes)?.into());
        let name = name.map_err(|_| invalid("the name of a value is not UTF-8"))?;
        if values.len() == CONTROL_ENTRIES_MAX {
            return Err(invalid("more values than one answer may have"));
        }
        values.push((name, take_u64(&mut bytes)?));
    }
    Ok(values)
}

pub(super) fn put_name(bytes: &mut Vec<u8>, name: &[u8]) {
    // The name has at most 255 bytes, by its type or because the caller has cut it.
    bytes.push(name.len() as u8);
    bytes.extend_from_slice(name);
}

pub(super) fn take_name(bytes: &mut Bytes) -> Result<Bytes, Error> {
    let length = bytes.try_get_u8().map(usize::from).map_err(|_| invalid("a name is truncated"))?;
    if bytes.len() < length {
        return Err(invalid("a name is truncated"));
    }
    Ok(bytes.split_to(length))
}

pub(super) fn take_u64(bytes: &mut Bytes) -> Result<u64, Error> {
    bytes.try_get_u64_le().map_err(|_| invalid("a number is truncated"))
}

// ---- A backend's capabilities as bytes, in the welcome and in the answer to an attach.

/// The length of the first version of the capabilities: six `u64`, then bytes.
const CAPABILITY_BYTES_MIN: usize = 6 * 8 + 10;
/// The length of the capabilities as sent, including `runs_max`. Later versions may be longer.
const CAPABILITY_BYTES: usize = CAPABILITY_BYTES_MIN + 4;

pub(super) fn encode_capabilities(capabilities: &Capabilities) -> [u8; CAPABILITY_BYTES] {
    let mut bytes = [0; CAPABILITY_BYTES];
    let longs = [
        capabilities.object_bytes_max,
        capabilities.request_bytes_max,
        capabilities.compare_bytes_max,
        u64::from(capabilities.list_entries_max),
        capabilities.atomic_bytes,
        capabilities.crash_atomic_bytes,
    ];
    for (at, long) in bytes.chunks_exact_mut(8).zip(longs) {
        at.copy_from_slice(&long.to_le_bytes());
    }
    let (durability, replicas) = durability_bytes(capabilities.durability_max);
    let survives = match capabilities.survives {
        Survives::Nothing => 0,
        Survives::ProcessKill => 1,
        Survives::PowerLoss => 2,
    };
    let bools = [
        capabilities.write_full_atomic,
        capabilities.conditions,
        capabilities.fencing,
        capabilities.tombstones,
        capabilities.order_domains,
        capabilities.copy_native,
        capabilities.holes_native,
    ];
    for (at, is) in bytes[48..55].iter_mut().zip(bools) {
        *at = u8::from(is);
    }
    bytes[55..58].copy_from_slice(&[durability, replicas, survives]);
    bytes[CAPABILITY_BYTES_MIN..].copy_from_slice(&capabilities.runs_max.to_le_bytes());
    bytes
}

pub(super) fn decode_capabilities(bytes: &[u8]) -> Option<Capabilities> {
    let fixed = bytes.first_chunk::<CAPABILITY_BYTES_MIN>()?;
    let long = |index: usize| {
        let at = &fixed[index * 8..index * 8 + 8];
        at.try_into().map(u64::from_le_bytes).unwrap_or_default()
    };
    let is = |index: usize| fixed[48 + index] != 0;
    let mut capabilities = Capabilities::full(long(0));
    // The first servers of this protocol version do not send `runs_max`.
    let runs_max = bytes.get(CAPABILITY_BYTES_MIN..CAPABILITY_BYTES).and_then(|runs| runs.try_into().ok());
    capabilities.runs_max = runs_max.map_or(0, u32::from_le_bytes);
    capabilities.request_bytes_max = long(1);
    capabilities.compare_bytes_max = long(2);
    capabilities.list_entries_max = u32::try_from(long(3)).ok()?;
    capabilities.atomic_bytes = long(4);
    capabilities.crash_atomic_bytes = long(5);
    capabilities.write_full_atomic = is(0);
    capabilities.conditions = is(1);
    capabilities.fencing = is(2);
    capabilities.tombstones = is(3);
    capabilities.order_domains = is(4);
    capabilities.copy_native = is(5);
    capabilities.holes_native = is(6);
    capabilities.durability_max = durability_of(fixed[55], fixed[56])?;
    capabilities.survives = match fixed[57] {
        0 => Survives::Nothing,
        1 => Survives::ProcessKill,
        2 => Survives::PowerLoss,
        _ => return None,
    };
    Some(capabilities)
}
