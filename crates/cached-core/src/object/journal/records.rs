//! Encodes changes as journal records, and decodes them. Decoding never panics, whatever the bytes
//! are.
//!
//! A record's object consists of the length of its namespace's name in one byte, that name, and the
//! object's name. So a record identifies its object by itself; the namespace's number is used only
//! by marks. `sequence` is the version that the change gave to the object, `epoch` the epoch under
//! which the change was made. An order domain `d` is stored as `d + 1`, modulo 2^64, with bit 0 of
//! `generation` set; without a domain both are 0. Bit 1 of `generation` is set if the object
//! existed before the change; in a state, if the store had the object.
//!
//! | kind | offset | len | payload |
//! |---|---|---|---|
//! | write | where | bytes | the bytes |
//! | zero, discard | where | bytes | |
//! | runs | where the first begins | to the end of the last | table of runs, then their bytes |
//! | replace | 0 | bytes | all bytes of the object |
//! | truncate | the new end | 0 | |
//! | delete | 0 | 0 | |
//! | state | the part's number | number of parts | a part of what an object has pending |
//! | epoch | 0 | 0 | |
//!
//! A table of runs is the number of runs, then the offset and length of each, with the highest bit
//! of the length set for zeros; all are 64-bit little-endian numbers.
//!
//! A *state* replaces all changes of its object that are not stored when it is appended. It is a
//! single byte string, split into as many records as necessary; a state with a missing part is
//! ignored. An empty state says that the pending changes of the object could not be read.

use std::borrow::Cow;

use blocker::{Change, Name, Namespace, ObjectId, OrderDomain, Run, RunContent, Segments};
use bytes::{Buf, BufMut, Bytes};
use cached_journal::{Head, Kind, Object, Record};

use crate::object::mutation::{CopiedContent, Mutation};

pub(crate) const WRITE: Kind = Kind(1);
pub(crate) const ZERO: Kind = Kind(2);
pub(crate) const DISCARD: Kind = Kind(3);
pub(crate) const RUNS: Kind = Kind(4);
pub(crate) const REPLACE: Kind = Kind(5);
pub(crate) const TRUNCATE: Kind = Kind(6);
pub(crate) const DELETE: Kind = Kind(7);
pub(crate) const STATE: Kind = Kind(8);
pub(crate) const EPOCH: Kind = Kind(9);

/// The namespace and the name, each of up to 255 bytes.
const KEY_BYTES_MAX: usize = 1 + 2 * blocker::NAME_BYTES_MAX;
/// This bit is set in the length of a run of zeros.
const ZEROS: u64 = 1 << 63;
/// Bits of `generation`.
const HAS_DOMAIN: u64 = 1;
const WAS_PRESENT: u64 = 2;
/// The number of payload segments that need no allocation.
const SLICES: usize = 12;

/// The object that a record changes, and the context of the change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    /// The number of the namespace in this journal.
    pub(crate) namespace: u64,
    pub(crate) id: &'a ObjectId,
    pub(crate) domain: Option<OrderDomain>,
    pub(crate) version: u64,
    pub(crate) epoch: u64,
    /// Whether the object existed before the change.
    pub(crate) was_present: bool,
}

/// A record whose head or payload this program cannot have written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("malformed journal record: {0}")]
pub struct Malformed(pub(crate) &'static str);

/// The subject of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Subject {
    pub(crate) namespace: Namespace,
    /// The object's name; `None` in the record of an epoch.
    pub(crate) name: Option<Name>,
    pub(crate) domain: Option<OrderDomain>,
    /// Whether the object existed before the change.
    pub(crate) was_present: bool,
}

/// The content of a record.
#[derive(Debug)]
pub(crate) enum Replayed {
    Change(Change),
    /// A part of a [`PendingState`]: the part's number, from 0, the number of parts, and the part's
    /// bytes.
    StatePart(u64, u64, Vec<u8>),
    /// The namespace was about to be claimed with the epoch of the record's head.
    Epoch,
}

/// The pending changes of an object. To replay them: if the object is absent, it is removed;
/// otherwise its content is discarded if `is_replaced`, the object is truncated to `truncate_to`,
/// the runs are written, and its size is set.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingState {
    pub(crate) is_present: bool,
    pub(crate) is_replaced: bool,
    /// The smallest size that the object has had.
    pub(crate) truncate_to: Option<u64>,
    /// The object's size, if the store may have another.
    pub(crate) size: Option<u64>,
    pub(crate) runs: Vec<Run>,
}

/// The bytes in which a record names its object.
struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    len: usize,
}

impl Key {
    fn new(namespace: &Namespace, name: &[u8]) -> Self {
        let mut bytes = [0; KEY_BYTES_MAX];
        let space = namespace.as_bytes();
        let len = 1 + space.len() + name.len();
        // A namespace has at most 255 bytes.
        bytes[0] = space.len() as u8;
        bytes[1..1 + space.len()].copy_from_slice(space);
        bytes[1 + space.len()..len].copy_from_slice(name);
        Self { bytes, len }
    }

    fn object(&self) -> Object<'_> {
        Object::Name(Cow::Borrowed(&self.bytes[..self.len]))
    }
}

impl Origin<'_> {
    fn head<'a>(&self, kind: Kind, key: &'a Key) -> Head<'a> {
        Head {
            namespace: self.namespace,
            domain: domain_number(self.domain),
            sequence: self.version,
            epoch: self.epoch,
            generation: if self.domain.is_some() { HAS_DOMAIN } else { 0 }
                | if self.was_present { WAS_PRESENT } else { 0 },
            ..Head::new(kind, key.object())
        }
    }
}

/// Returns the number that encodes an order domain in a record head. [`OrderDomain`]`(u64::MAX)`
/// has the same number as no domain.
fn domain_number(domain: Option<OrderDomain>) -> u64 {
    domain.map_or(0, |domain| domain.0.wrapping_add(1))
}

/// Returns the payload size of a change's record, or an upper bound.
pub(crate) fn payload_bytes(mutation: Mutation<'_>) -> u64 {
    match mutation.change {
        Change::Write { data, .. } | Change::CompareAndWrite { data, .. } | Change::WriteFull { data } => {
            data.len_bytes() as u64
        }
        Change::WriteRuns { runs } => {
            table_bytes(runs.len()) + runs.iter().map(Run::payload_bytes).sum::<u64>()
        }
        Change::Copy { .. } => mutation.copied.map_or(0, CopiedContent::size),
        Change::WriteZeroes { .. } | Change::Discard { .. } | Change::Truncate { .. } | Change::Delete => 0,
    }
}

/// Calls `append` with the record of a change; returns `None` if the change requires no record.
pub(crate) fn encode<R>(
    origin: &Origin<'_>,
    mutation: Mutation<'_>,
    append: impl FnOnce(&Record<'_>) -> R,
) -> Option<R> {
    let key = Key::new(&origin.id.namespace, origin.id.name.as_bytes());
    let head = |kind| origin.head(kind, &key);
    let bare = |kind, offset, len| Record { head: Head { offset, len, ..head(kind) }, payload: &[] };
    Some(match mutation.change {
        Change::Write { offset, data } | Change::CompareAndWrite { offset, data, .. } => {
            let head = Head { offset: *offset, len: data.len_bytes() as u64, ..head(WRITE) };
            with_slices(data, |payload| append(&Record { head, payload }))
        }
        Change::WriteFull { data } => {
            let head = Head { len: data.len_bytes() as u64, ..head(REPLACE) };
            with_slices(data, |payload| append(&Record { head, payload }))
        }
        Change::Copy { .. } => {
            let bytes = mutation.copied?.to_vec();
            let head = Head { len: bytes.len() as u64, ..head(REPLACE) };
            append(&Record { head, payload: &[&bytes] })
        }
        Change::WriteRuns { runs } => {
            let mut table = Vec::with_capacity(table_bytes(runs.len()) as usize);
            put_table(&mut table, runs);
            let offset = runs.first().map_or(0, |run| run.offset);
            let end = runs.last().map_or(0, Run::end);
            let head = Head { offset, len: end.saturating_sub(offset), ..head(RUNS) };
            let slices: Vec<&[u8]> = std::iter::once(&table[..]).chain(data_of(runs)).collect();
            append(&Record { head, payload: &slices })
        }
        Change::WriteZeroes { offset, len_bytes } => append(&bare(ZERO, *offset, *len_bytes)),
        Change::Discard { offset, len_bytes } => append(&bare(DISCARD, *offset, *len_bytes)),
        Change::Truncate { size_bytes } => append(&bare(TRUNCATE, *size_bytes, 0)),
        Change::Delete => append(&bare(DELETE, 0, 0)),
    })
}

/// Calls `append` with the records of a state, in order, until it fails.
pub(crate) fn encode_state<E>(
    origin: &Origin<'_>,
    state: &[u8],
    part_bytes_max: u64,
    mut append: impl FnMut(&Record<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let key = Key::new(&origin.id.namespace, origin.id.name.as_bytes());
    let parts = state.chunks(part_bytes_max.max(1) as usize);
    let count = parts.len() as u64;
    for (number, part) in parts.enumerate() {
        let head = Head { offset: number as u64, len: count, ..origin.head(STATE, &key) };
        append(&Record { head, payload: &[part] })?;
    }
    Ok(())
}

/// Calls `append` with a record saying that the pending changes of an object cannot be read.
pub(crate) fn encode_unreadable<R>(origin: &Origin<'_>, append: impl FnOnce(&Record<'_>) -> R) -> R {
    let key = Key::new(&origin.id.namespace, origin.id.name.as_bytes());
    append(&Record { head: Head { len: 1, ..origin.head(STATE, &key) }, payload: &[] })
}

/// Calls `append` with the record of an epoch with which a namespace is about to be claimed.
pub(crate) fn encode_epoch<R>(
    number: u64,
    namespace: &Namespace,
    epoch: u64,
    append: impl FnOnce(&Record<'_>) -> R,
) -> R {
    let key = Key::new(namespace, &[]);
    let head = Head { namespace: number, epoch, ..Head::new(EPOCH, key.object()) };
    append(&Record { head, payload: &[] })
}

/// Calls `append` with a mark of an object: its records up to `up_to` are not replayed.
pub(crate) fn encode_object_mark<R>(
    number: u64,
    id: &ObjectId,
    up_to: cached_journal::Position,
    append: impl FnOnce(&Record<'_>) -> R,
) -> R {
    let key = Key::new(&id.namespace, id.name.as_bytes());
    let mark = Head::mark(cached_journal::Scope::Object, up_to);
    append(&Record { head: Head { namespace: number, object: key.object(), ..mark }, payload: &[] })
}

/// Returns the subject of a record.
///
/// # Errors
/// [`Malformed`] if the record does not name a valid object or namespace.
pub(crate) fn subject(head: &Head<'_>) -> Result<Subject, Malformed> {
    let Object::Name(key) = &head.object else { return Err(Malformed("it does not name an object")) };
    let (len, rest) = key.split_first().ok_or(Malformed("its name is empty"))?;
    let (namespace, name) =
        rest.split_at_checked(usize::from(*len)).ok_or(Malformed("its namespace is truncated"))?;
    let namespace =
        Namespace::copy_from(namespace).map_err(|_| Malformed("its namespace has no valid name"))?;
    let name = match head.kind {
        EPOCH => None,
        _ => Some(Name::copy_from(name).map_err(|_| Malformed("its object has no valid name"))?),
    };
    let domain = (head.generation & HAS_DOMAIN != 0).then(|| OrderDomain(head.domain.wrapping_sub(1)));
    let was_present = head.generation & WAS_PRESENT != 0;
    Ok(Subject { namespace, name, domain, was_present })
}

/// Returns the content of a record.
///
/// # Errors
/// [`Malformed`] if this program cannot have written the record.
pub(crate) fn decode(head: &Head<'_>, payload: Vec<u8>) -> Result<Replayed, Malformed> {
    let (offset, len) = (head.offset, head.len);
    offset.checked_add(len).ok_or(Malformed("its range ends beyond 2^64"))?;
    let has_payload = matches!(head.kind, WRITE | RUNS | REPLACE | STATE);
    if !has_payload && !payload.is_empty() {
        return Err(Malformed("it has a payload, but its kind has none"));
    }
    if matches!(head.kind, WRITE | REPLACE) && payload.len() as u64 != len {
        return Err(Malformed("the length of its payload differs from the one in its head"));
    }
    let change = match head.kind {
        WRITE => Change::Write { offset, data: payload.into() },
        ZERO => Change::WriteZeroes { offset, len_bytes: len },
        DISCARD => Change::Discard { offset, len_bytes: len },
        RUNS => {
            let mut rest = Bytes::from(payload);
            let runs = take_runs(&mut rest)?;
            if runs.is_empty() || !rest.is_empty() {
                return Err(Malformed("its runs do not match its payload"));
            }
            Change::WriteRuns { runs }
        }
        REPLACE => Change::WriteFull { data: payload.into() },
        TRUNCATE => Change::Truncate { size_bytes: offset },
        DELETE => Change::Delete,
        STATE if offset < len => return Ok(Replayed::StatePart(offset, len, payload)),
        EPOCH => return Ok(Replayed::Epoch),
        STATE => return Err(Malformed("the number of its part exceeds the number of parts")),
        _ => return Err(Malformed("its kind is unknown")),
    };
    Ok(Replayed::Change(change))
}

impl PendingState {
    /// Returns the changes that bring an object to this state from the state that the store has.
    pub(crate) fn into_changes(self) -> Vec<Change> {
        if !self.is_present {
            return vec![Change::Delete];
        }
        let truncate = |size: Option<u64>| size.map(|size_bytes| Change::Truncate { size_bytes });
        let replaced = self.is_replaced.then(|| Change::WriteFull { data: Segments::new() });
        let written = (!self.runs.is_empty()).then_some(Change::WriteRuns { runs: self.runs });
        [replaced, truncate(self.truncate_to), written, truncate(self.size)].into_iter().flatten().collect()
    }

    /// Returns the number of bytes that [`Self::encode`] returns.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        let data = self.runs.iter().map(Run::payload_bytes).sum::<u64>();
        17 + table_bytes(self.runs.len()) + data
    }

    /// Encodes the state.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_bytes() as usize);
        let has = |it: Option<u64>, flag: u8| if it.is_some() { flag } else { 0 };
        let flags = u8::from(self.is_present) | u8::from(self.is_replaced) << 1;
        out.push(flags | has(self.truncate_to, 4) | has(self.size, 8));
        out.put_u64_le(self.truncate_to.unwrap_or(0));
        out.put_u64_le(self.size.unwrap_or(0));
        put_table(&mut out, &self.runs);
        data_of(&self.runs).for_each(|slice| out.extend_from_slice(slice));
        out
    }

    /// Decodes the concatenation of all parts.
    ///
    /// # Errors
    /// [`Malformed`] if [`Self::encode`] cannot have returned these bytes.
    pub(crate) fn decode(state: Vec<u8>) -> Result<Self, Malformed> {
        let mut rest = Bytes::from(state);
        if rest.is_empty() {
            return Err(Malformed("an earlier recovery could not read the object's pending changes"));
        }
        let flags = rest.get_u8();
        let (truncate_to, size) = (take(&mut rest)?, take(&mut rest)?);
        let runs = take_runs(&mut rest)?;
        if flags > 15 || !rest.is_empty() {
            return Err(Malformed("the state does not match its length"));
        }
        let has = |flag: u8| flags & flag != 0;
        Ok(Self {
            is_present: has(1),
            is_replaced: has(2),
            truncate_to: has(4).then_some(truncate_to),
            size: has(8).then_some(size),
            runs,
        })
    }
}

/// Calls `job` with the segments of a payload as slices.
fn with_slices<R>(data: &Segments, job: impl FnOnce(&[&[u8]]) -> R) -> R {
    let segments = data.as_slice();
    let mut few: [&[u8]; SLICES] = [&[]; SLICES];
    match few.get_mut(..segments.len()) {
        Some(few) => {
            few.iter_mut().zip(segments).for_each(|(slice, segment)| *slice = segment.as_slice());
            job(few)
        }
        None => job(&segments.iter().map(blocker::Segment::as_slice).collect::<Vec<_>>()),
    }
}

fn table_bytes(runs: usize) -> u64 {
    8 + 16 * runs as u64
}

fn put_table(out: &mut Vec<u8>, runs: &[Run]) {
    out.put_u64_le(runs.len() as u64);
    for run in runs {
        let zeros = if matches!(run.content, RunContent::Zeroes(_)) { ZEROS } else { 0 };
        out.put_u64_le(run.offset);
        out.put_u64_le(run.len_bytes() | zeros);
    }
}

/// Returns the bytes of all runs that contain data.
fn data_of(runs: &[Run]) -> impl Iterator<Item = &[u8]> {
    runs.iter()
        .filter_map(|run| match &run.content {
            RunContent::Data(data) => Some(data),
            RunContent::Zeroes(_) => None,
        })
        .flat_map(|data| data.iter().map(blocker::Segment::as_slice))
}

fn take(rest: &mut Bytes) -> Result<u64, Malformed> {
    rest.try_get_u64_le().map_err(|_| Malformed("its payload is truncated"))
}

/// Decodes a table of runs and their bytes, and removes them from the front.
fn take_runs(rest: &mut Bytes) -> Result<Vec<Run>, Malformed> {
    let count = take(rest)?;
    if count > rest.len() as u64 / 16 {
        return Err(Malformed("its payload is too short for its number of runs"));
    }
    let mut table = rest.split_to(16 * count as usize);
    let mut runs = Vec::with_capacity(count as usize);
    let mut end = 0_u64;
    for _ in 0..count {
        let (offset, len) = (take(&mut table)?, take(&mut table)?);
        let (is_zeros, len) = (len & ZEROS != 0, len & !ZEROS);
        if offset < end || len == 0 {
            return Err(Malformed("its runs are not in order"));
        }
        end = offset.checked_add(len).ok_or(Malformed("a run ends beyond 2^64"))?;
        if is_zeros {
            runs.push(Run::zeroes(offset, len));
            continue;
        }
        if len > rest.len() as u64 {
            return Err(Malformed("the bytes of a run are truncated"));
        }
        runs.push(Run::data(offset, rest.split_to(len as usize)));
    }
    Ok(runs)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::Condition;

    use super::*;

    fn id() -> ObjectId {
        ObjectId::new(Namespace::new("vm").unwrap(), Name::new("disk.0").unwrap())
    }

    fn origin(id: &ObjectId) -> Origin<'_> {
        Origin { namespace: 3, id, domain: Some(OrderDomain(0)), version: 77, epoch: 5, was_present: true }
    }

    fn recorded(change: &Change) -> (Head<'static>, Vec<u8>) {
        let record = |record: &Record<'_>| (record.head.clone().into_owned(), record.payload.concat());
        encode(&origin(&id()), change.into(), record).unwrap()
    }

    fn many(len: usize) -> Segments {
        let mut data = Segments::new();
        (0..len).for_each(|at| data.push(Bytes::from(vec![at as u8; 3]).into()));
        data
    }

    #[test]
    fn every_change_comes_back_as_it_was_made() {
        let runs = vec![Run::data(5, many(2)), Run::zeroes(40, 4), Run::data(100, many(1))];
        let changes = [
            Change::Write { offset: 9, data: many(1) },
            Change::Write { offset: 9, data: many(40) },
            Change::Write { offset: 0, data: Segments::new() },
            Change::WriteZeroes { offset: 1, len_bytes: 2 },
            Change::Discard { offset: 1, len_bytes: 2 },
            Change::WriteRuns { runs },
            Change::WriteFull { data: many(4) },
            Change::Truncate { size_bytes: 12 },
            Change::Delete,
        ];
        for change in changes {
            let (head, payload) = recorded(&change);
            assert_eq!((head.namespace, head.sequence, head.epoch), (3, 77, 5));
            assert!(payload.len() as u64 <= payload_bytes((&change).into()));
            let about = subject(&head).unwrap();
            assert_eq!((about.namespace, about.name), (id().namespace, Some(id().name)));
            assert_eq!(about.domain, Some(OrderDomain(0)));
            let Ok(Replayed::Change(back)) = decode(&head, payload) else { panic!("{change:?}") };
            assert_eq!(text(&back), text(&change));
        }
    }

    /// The comparison ignores how the bytes are split into segments.
    fn text(change: &Change) -> String {
        let bytes = |data: &Segments| Segments::from(data.to_vec());
        let run = |run: &Run| match &run.content {
            RunContent::Data(data) => Run::data(run.offset, bytes(data)),
            RunContent::Zeroes(_) => run.clone(),
        };
        format!(
            "{:?}",
            match change {
                Change::Write { offset, data } => Change::Write { offset: *offset, data: bytes(data) },
                Change::WriteFull { data } => Change::WriteFull { data: bytes(data) },
                Change::WriteRuns { runs } => Change::WriteRuns { runs: runs.iter().map(run).collect() },
                other => other.clone(),
            }
        )
    }

    #[test]
    fn a_comparison_is_logged_as_the_write_it_became() {
        let change = Change::CompareAndWrite { offset: 8, expected: many(1), data: many(2) };
        let (head, payload) = recorded(&change);
        assert_eq!((head.kind, head.offset, head.len, payload), (WRITE, 8, 6, many(2).to_vec()));
        let nothing = encode(
            &origin(&id()),
            (&Change::Copy { from: id(), from_condition: Condition::None }).into(),
            |_| (),
        );
        assert!(nothing.is_none());
    }

    #[test]
    fn no_domain_and_every_domain_differ() {
        for domain in [None, Some(OrderDomain(0)), Some(OrderDomain(7)), Some(OrderDomain(u64::MAX))] {
            let id = id();
            let origin = Origin { domain, ..origin(&id) };
            let head = encode(&origin, (&Change::Delete).into(), |it| it.head.clone().into_owned()).unwrap();
            assert_eq!(subject(&head).unwrap().domain, domain);
        }
    }

    #[test]
    fn an_epoch_names_its_namespace() {
        let head = encode_epoch(4, &id().namespace, 9, |record| record.head.clone().into_owned());
        assert_eq!((head.namespace, head.epoch), (4, 9));
        assert_eq!(subject(&head).unwrap().name, None);
        assert!(matches!(decode(&head, Vec::new()), Ok(Replayed::Epoch)));
    }

    #[test]
    fn a_state_comes_back_from_its_parts() {
        let state = PendingState {
            is_present: true,
            is_replaced: false,
            truncate_to: Some(0),
            size: Some(4000),
            runs: vec![Run::data(0, many(30)), Run::zeroes(512, 512)],
        };
        for part_bytes_max in [1, 7, 64, 1000] {
            let (mut all, mut parts) = (Vec::new(), 0);
            let append = |record: &Record<'_>| {
                let head = record.head.clone();
                let Ok(Replayed::StatePart(part, of, bytes)) = decode(&head, record.payload.concat()) else {
                    panic!("{head:?}")
                };
                assert_eq!(part, parts);
                (parts, all) = (part + 1, [std::mem::take(&mut all), bytes].concat());
                assert!(parts <= of && (parts == of) == (all.len() == state.encode().len()));
                Ok::<(), ()>(())
            };
            encode_state(&origin(&id()), &state.encode(), part_bytes_max, append).unwrap();
            let back = PendingState::decode(all).unwrap();
            assert_eq!((back.is_present, back.is_replaced), (true, false));
            assert_eq!((back.truncate_to, back.size), (Some(0), Some(4000)));
            assert_eq!(back.encode(), state.encode());
        }
    }

    #[test]
    fn no_bytes_panic() {
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 33
        };
        let whole = PendingState { runs: vec![Run::data(0, many(9))], ..PendingState::default() }.encode();
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            bytes.truncate(next() as usize % (whole.len() + 1));
            for _ in 0..next() % 4 {
                let at = next() as usize % bytes.len().max(1);
                bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte = next() as u8);
            }
            let head = Head {
                offset: [0, 5, u64::MAX][next() as usize % 3],
                len: [0, bytes.len() as u64, u64::MAX][next() as usize % 3],
                generation: next(),
                ..Head::new(Kind(next() as u8 % 12), Object::Name(bytes.clone().into()))
            };
            let _ = (subject(&head), decode(&head, bytes.clone()), PendingState::decode(bytes));
        }
        assert!(subject(&Head::new(WRITE, Object::None)).is_err());
    }
}
