//! Header fields shared by several operations, in both directions: object, call, change, scope,
//! policy.

use std::time::Duration;

use blocker::*;
use bytes::{Buf, BufMut, Bytes};

use super::frame::{Head, invalid};
use super::header::{Flags, Header};

pub(super) fn put_object<'a>(names: &mut [&'a [u8]; 4], object: &'a ObjectId) {
    (names[0], names[1]) = (object.namespace.as_bytes(), object.name.as_bytes());
}

pub(super) fn object(head: &Head<'_>, names: &mut Names) -> Result<ObjectId, Error> {
    Ok(ObjectId::new(names.namespace(head.namespace)?, names.name(head.name)?))
}

/// The hint that a change stores data that were acknowledged before.
const SETTLES: u32 = 1 << 3;
/// The hint that an invalidation accepts no losses. Earlier versions know only those that do.
pub(super) const KEEPS_LOSSES: u32 = 1 << 4;
/// The hints that are not the caller's.
const RESERVED: u32 = SETTLES | KEEPS_LOSSES;

pub(super) fn put_call(header: &mut Header, call: &Call, now: Timestamp) {
    if let Some(deadline) = call.deadline {
        header.flags.put(Flags::DEADLINE, true);
        // The time is rounded up, because the caller's own timer decides.
        header.deadline_us = deadline.0.saturating_sub(now.0).div_ceil(1000);
    }
    header.hints = call.hints.bits() & !RESERVED;
    header.priority = match call.priority {
        Priority::Low => 0,
        Priority::Normal => 1,
        Priority::Urgent => 2,
    };
}

pub(super) fn take_call(header: &Header, now: Timestamp) -> Call {
    let mut call = Call::default();
    if header.flags.has(Flags::DEADLINE) {
        call.deadline = Some(now + Duration::from_micros(header.deadline_us));
    }
    call.hints = Hints::from_bits(header.hints & !RESERVED);
    call.priority = match header.priority {
        0 => Priority::Low,
        2 => Priority::Urgent,
        _ => Priority::Normal,
    };
    call
}

pub(super) fn put_change<'a>(
    header: &mut Header,
    names: &mut [&'a [u8]; 4],
    object: &'a ObjectId,
    terms: &ChangeTerms,
) {
    put_object(names, object);
    (header.durability, header.replicas) = durability_bytes(terms.durability);
    if let Some(stamp) = terms.stamp {
        header.flags.put(Flags::STAMP, true);
        (header.epoch, header.sequence) = (stamp.epoch.0, stamp.sequence);
    }
    if let Some(domain) = terms.domain {
        header.flags.put(Flags::DOMAIN, true);
        header.domain = domain.0;
    }
    (header.condition, header.version) = condition_bytes(terms.condition);
    if terms.settles {
        header.hints |= SETTLES;
    }
}

pub(super) fn take_change(header: &Header) -> Result<ChangeTerms, Error> {
    let mut terms = ChangeTerms::default();
    let durability = durability_of(header.durability, header.replicas);
    terms.durability = durability.ok_or_else(|| invalid("no such durability"))?;
    if header.flags.has(Flags::STAMP) {
        terms.stamp = Some(Stamp::new(header.epoch, header.sequence));
    }
    if header.flags.has(Flags::DOMAIN) {
        terms.domain = Some(OrderDomain(header.domain));
    }
    terms.condition = condition_of(header.condition, header.version)?;
    terms.settles = header.hints & SETTLES != 0;
    Ok(terms)
}

pub(super) fn condition_bytes(condition: Condition) -> (u8, u64) {
    match condition {
        Condition::Absent => (1, 0),
        Condition::Present => (2, 0),
        Condition::Version(version) => (3, version.0),
        _ => (0, 0),
    }
}

pub(super) fn condition_of(code: u8, version: u64) -> Result<Condition, Error> {
    Ok(match code {
        0 => Condition::None,
        1 => Condition::Absent,
        2 => Condition::Present,
        3 => Condition::Version(Version(version)),
        _ => return Err(invalid("no such condition")),
    })
}

/// Puts a scope into a header. It is encoded by the names that are present and by the flag of a
/// domain.
pub(super) fn put_scope<'a>(header: &mut Header, names: &mut [&'a [u8]; 4], scope: &'a Scope) {
    match scope {
        Scope::Object(object) => put_object(names, object),
        Scope::Domain(namespace, domain) => {
            names[0] = namespace.as_bytes();
            header.flags.put(Flags::DOMAIN, true);
            header.domain = domain.0;
        }
        Scope::Namespace(namespace) => names[0] = namespace.as_bytes(),
        // `All`, and scopes of later versions, become the wider scope, which is safe.
        _ => {}
    }
}

pub(super) fn take_scope(head: &Head<'_>, names: &mut Names) -> Result<Scope, Error> {
    let is_domain = head.header.flags.has(Flags::DOMAIN);
    Ok(match (head.namespace.is_empty(), head.name.is_empty(), is_domain) {
        (true, true, false) => Scope::All,
        (false, true, false) => Scope::Namespace(names.namespace(head.namespace)?),
        (false, true, true) => {
            Scope::Domain(names.namespace(head.namespace)?, OrderDomain(head.header.domain))
        }
        (false, false, false) => Scope::Object(object(head, names)?),
        _ => return Err(invalid("no such scope")),
    })
}

pub(super) fn policy_code(policy: &Policy) -> u64 {
    write_code(policy.write)
}

pub(super) fn write_code(write: WriteMode) -> u64 {
    match write {
        WriteMode::Back => 0,
        WriteMode::Through => 1,
        WriteMode::Around => 2,
        WriteMode::ReadOnly => 3,
    }
}

pub(super) fn policy_of(code: u64) -> Result<Policy, Error> {
    let mut policy = Policy::default();
    policy.write = write_of(code)?;
    Ok(policy)
}

pub(super) fn write_of(code: u64) -> Result<WriteMode, Error> {
    Ok(match code {
        0 => WriteMode::Back,
        1 => WriteMode::Through,
        2 => WriteMode::Around,
        3 => WriteMode::ReadOnly,
        _ => return Err(invalid("no such policy")),
    })
}

pub(super) fn dirty_data_code(dirty_data: DirtyData) -> u64 {
    match dirty_data {
        DirtyData::Refuse => 0,
        DirtyData::Store => 1,
        DirtyData::Discard => 2,
    }
}

pub(super) fn dirty_data_of(code: u64) -> Result<DirtyData, Error> {
    Ok(match code {
        0 => DirtyData::Refuse,
        1 => DirtyData::Store,
        2 => DirtyData::Discard,
        _ => return Err(invalid("unknown handling of dirty data")),
    })
}

/// Sets the flag and returns the CRC, if the payload is to be protected.
pub(super) fn protect(header: &mut Header, payload: &Segments, has_crc: bool) -> u32 {
    if !has_crc || payload.is_empty() {
        return 0;
    }
    header.flags.put(Flags::PAYLOAD_CRC, true);
    payload_crc(payload)
}

/// Returns the CRC-32 of a payload.
#[must_use]
pub fn payload_crc(payload: &Segments) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    payload.iter().for_each(|segment| crc.update(segment.as_slice()));
    crc.finalize()
}

pub(super) fn durability_bytes(durability: Durability) -> (u8, u8) {
    match durability {
        Durability::Cached => (0, 0),
        Durability::Journaled => (1, 0),
        Durability::Replicated(count) => (2, count),
        Durability::Stored => (3, 0),
    }
}

pub(super) fn durability_of(code: u8, replicas: u8) -> Option<Durability> {
    Some(match code {
        0 => Durability::Cached,
        1 => Durability::Journaled,
        2 => Durability::Replicated(replicas),
        3 => Durability::Stored,
        _ => return None,
    })
}

/// Returns the bytes of a flush's durability. In a flush, 0 means *stored*: earlier versions send
/// 0, and are answered with *stored*.
pub(super) fn flush_durability_bytes(durability: Durability) -> (u8, u8) {
    match durability {
        Durability::Stored => (0, 0),
        // There is no code for a flush that guarantees nothing, so a stronger one is requested.
        Durability::Cached => durability_bytes(Durability::Journaled),
        other => durability_bytes(other),
    }
}

pub(super) fn flush_durability_of(code: u8, replicas: u8) -> Option<Durability> {
    if code == 0 { Some(Durability::Stored) } else { durability_of(code, replicas) }
}

// ---- Interned names: a request for a recently named object allocates nothing, and a retained name
// does not keep a receive buffer alive.
//
// The table is direct-mapped: a new name replaces the one in its place.

/// The number of names that are kept.
const KEPT_COUNT: usize = 256;

/// The names that a connection has seen recently. They take at most about 64 KiB.
#[derive(Debug)]
pub struct Names {
    kept: Vec<Bytes>,
    namespace: Bytes,
}

impl Default for Names {
    fn default() -> Self {
        Self { kept: vec![Bytes::new(); KEPT_COUNT], namespace: Bytes::new() }
    }
}

impl Names {
    /// Returns the object's name with these bytes.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if `bytes` is empty or longer than 255.
    pub fn name(&mut self, bytes: &[u8]) -> Result<Name, Error> {
        let kept = &mut self.kept[place(bytes)];
        if kept != bytes {
            *kept = Bytes::copy_from_slice(bytes);
        }
        Name::new(kept.clone())
    }

    /// Returns the namespace with these bytes.
    ///
    /// # Errors
    /// Returns the errors of [`Self::name`].
    pub fn namespace(&mut self, bytes: &[u8]) -> Result<Namespace, Error> {
        if self.namespace != bytes {
            let kept = &mut self.kept[place(bytes)];
            if kept != bytes {
                *kept = Bytes::copy_from_slice(bytes);
            }
            self.namespace = kept.clone();
        }
        Namespace::new(self.namespace.clone())
    }
}

/// Returns the index of a name. The hash does not resist attacks: in the worst case, a name costs
/// an allocation.
fn place(bytes: &[u8]) -> usize {
    let mut mixed = bytes.len() as u64;
    let mut mix = |word: u64| mixed = (mixed.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (words, rest) = bytes.as_chunks();
    words.iter().for_each(|word| mix(u64::from_le_bytes(*word)));
    mix(rest.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)));
    (mixed >> 56) as usize
}

const _: () = assert!(KEPT_COUNT == 1 << 8);

// ---- The payload of a write of several ranges: a table of ranges, then their bytes, except those
// of zeros.
//
// ```text
// +------------+------------+-- for each run --+----------------------------+
// | u64 offset | u64 length |       ...        | bytes of the first, second |
// +------------+------------+------------------+----------------------------+
//                └ bit 63: zeros, which are not sent
// ```

/// The length of a run in the table.
pub const RUN_BYTES: usize = 16;
/// The maximum number of runs of one request, regardless of the backend's limit.
pub const RUNS_MAX: u32 = 4096;

const ZEROES: u64 = 1 << 63;

/// Returns the length of the payload for these runs.
pub(super) fn runs_payload_bytes(runs: &[Run]) -> usize {
    let data: u64 = runs.iter().map(Run::payload_bytes).sum();
    // The sum is below the limit of a request, or the request is refused before it is sent.
    runs.len() * RUN_BYTES + usize::try_from(data).unwrap_or(usize::MAX / 2)
}

pub(super) fn encode_runs(runs: &[Run]) -> Segments {
    let mut table = Vec::with_capacity(runs.len() * RUN_BYTES);
    let mut data = Segments::new();
    for run in runs {
        table.put_u64_le(run.offset);
        match &run.content {
            RunContent::Data(bytes) => {
                table.put_u64_le(bytes.len_bytes() as u64);
                data.append(bytes.clone());
            }
            RunContent::Zeroes(len_bytes) => table.put_u64_le(len_bytes | ZEROES),
        }
    }
    let mut payload = Segments::from(table);
    payload.append(data);
    payload
}

/// Reads the runs of a payload. The backend checks their order and limits.
///
/// # Errors
/// Returns [`Error::Invalid`] if the table does not match the bytes.
pub(super) fn decode_runs(count: u64, payload: &Segments) -> Result<Vec<Run>, Error> {
    let all = payload.len_bytes();
    let table_bytes = usize::try_from(count).ok().filter(|_| count <= u64::from(RUNS_MAX));
    let table_bytes = table_bytes.map(|count| count * RUN_BYTES).filter(|bytes| *bytes <= all);
    let table_bytes = table_bytes.ok_or_else(|| invalid("more runs are announced than were sent"))?;
    let mut table = payload.slice(0..table_bytes).to_bytes();
    let mut runs = Vec::with_capacity(table_bytes / RUN_BYTES);
    let mut at = table_bytes;
    while table.has_remaining() {
        let (offset, length) = (table.get_u64_le(), table.get_u64_le());
        if length & ZEROES != 0 {
            runs.push(Run::zeroes(offset, length & !ZEROES));
            continue;
        }
        let length = usize::try_from(length).ok().filter(|length| *length <= all - at);
        let length = length.ok_or_else(|| invalid("the runs are longer than what was sent"))?;
        runs.push(Run::data(offset, payload.slice(at..at + length)));
        at += length;
    }
    if at != all {
        return Err(invalid("more was sent than the runs have"));
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_seen_before_is_the_same_memory() {
        let mut names = Names::default();
        let first = names.name(b"disk/0000001").unwrap();
        let again = names.name(b"disk/0000001").unwrap();
        assert_eq!(first.as_bytes().as_ptr(), again.as_bytes().as_ptr());
        let space = names.namespace(b"vm").unwrap();
        assert_eq!(space.as_bytes().as_ptr(), names.namespace(b"vm").unwrap().as_bytes().as_ptr());
        for n in 0..1000 {
            let text = format!("name {n}");
            assert_eq!(names.name(text.as_bytes()).unwrap().as_bytes(), text.as_bytes());
        }
        assert!(names.name(b"").is_err());
        assert!(names.name(&[1; 256]).is_err());
    }

    fn sample() -> Vec<Run> {
        vec![Run::data(5, vec![1, 2, 3]), Run::zeroes(100, 1 << 40), Run::data(u64::MAX, vec![4])]
    }

    #[test]
    fn runs_arrive_as_they_were_sent() {
        let payload = encode_runs(&sample());
        assert_eq!(payload.len_bytes(), runs_payload_bytes(&sample()));
        let runs = decode_runs(3, &payload).unwrap();
        assert_eq!(format!("{runs:?}"), format!("{:?}", sample()));
        let RunContent::Data(data) = &runs[2].content else { panic!("zeros") };
        assert_eq!(data.to_vec(), [4]);
        assert!(decode_runs(0, &Segments::new()).unwrap().is_empty());
    }

    #[test]
    fn a_table_that_does_not_add_up_is_refused() {
        let bytes = encode_runs(&sample()).to_vec();
        let refused = |count: u64, bytes: &[u8]| {
            assert!(matches!(decode_runs(count, &bytes.to_vec().into()), Err(Error::Invalid(_))), "{count}");
        };
        refused(4, &bytes);
        refused(2, &bytes);
        refused(3, &bytes[..bytes.len() - 1]);
        refused(3, &[&bytes[..], &[0]].concat());
        refused(u64::MAX, &bytes);
        refused(u64::from(RUNS_MAX) + 1, &vec![0; (RUNS_MAX as usize + 1) * RUN_BYTES]);
    }
}
