//! The operations of the clients, and their effects on an object's content.

use blocker::*;
use cached_core::object::ObjectCache;
use test_kit::BUCKET;
use test_kit::rng::Rng;

use super::model::Content;

/// One operation.
#[derive(Clone, Debug)]
pub enum Operation {
    Write(u64, Vec<u8>),
    Zeroes(u64, u64),
    Runs(Vec<(u64, u64, Option<u8>)>),
    Discard(u64, u64),
    Compare(u64, Vec<u8>, Vec<u8>),
    Full(Vec<u8>),
    Truncate(u64),
    Delete,
    /// A copy from the object with this number.
    Copy(usize),
    Touch,
}

/// The response of the store and the cache to a change.
pub struct Answer {
    pub version: Option<u64>,
    pub durability: Durability,
}

/// The length of the longest object.
pub const OBJECT_BYTES: u64 = 4 * BUCKET;

fn range(rng: &mut Rng) -> (u64, u64) {
    let unit = *rng.pick(&[BUCKET, 512, 100]);
    let units = OBJECT_BYTES / unit;
    let from = rng.below(units);
    let len = rng.within(1, (units - from).min(if unit == BUCKET { 4 } else { 12 }));
    (from * unit, len * unit)
}

fn resized(bytes: &mut Vec<u8>, end: u64) {
    bytes.resize(bytes.len().max(end as usize), 0);
}

impl Operation {
    /// Draws an operation. The written bytes are `value`.
    pub fn draw(rng: &mut Rng, current: &Content, value: u8, others: &[usize]) -> Self {
        let (offset, len) = range(rng);
        let data = vec![value; len as usize];
        match rng.weighted(&[30, 8, 10, 6, 6, 8, 8, 5, 8, 2]) {
            0 => Self::Write(offset, data),
            1 => Self::Zeroes(offset, len),
            2 => {
                let (mut at, mut runs) = (rng.below(4) * 512, Vec::new());
                for number in 0..rng.within(1, 4) {
                    let len = *rng.pick(&[100, 512, 1024, BUCKET]);
                    if at + len > OBJECT_BYTES {
                        break;
                    }
                    runs.push((at, len, (!rng.permille(300)).then_some(value ^ number as u8)));
                    at += len + rng.below(3) * 512 + 512;
                }
                match runs.is_empty() {
                    true => Self::Write(offset, data),
                    false => Self::Runs(runs),
                }
            }
            3 => Self::Discard(offset, len),
            4 => match current {
                Some(bytes) if !bytes.is_empty() => {
                    let from = rng.index(bytes.len());
                    let to = (from + 1 + rng.index(600)).min(bytes.len());
                    let mut expected = bytes[from..to].to_vec();
                    if rng.permille(100) {
                        expected[0] ^= 1;
                    }
                    Self::Compare(from as u64, expected, vec![value; to - from])
                }
                _ => Self::Write(offset, data),
            },
            5 => Self::Full(vec![value; rng.below(OBJECT_BYTES + 1) as usize]),
            6 => Self::Truncate(rng.below(OBJECT_BYTES / 256 + 1) * 256),
            7 => Self::Delete,
            8 if !others.is_empty() => Self::Copy(*rng.pick(others)),
            8 => Self::Write(offset, data),
            _ => Self::Touch,
        }
    }

    /// Returns the content after the operation; `None` if it must fail, and changes nothing.
    pub fn apply(&self, before: &Content, source: &Content) -> Option<Content> {
        let needs_present = matches!(
            self,
            Self::Discard(..) | Self::Compare(..) | Self::Truncate(_) | Self::Delete | Self::Touch
        );
        if needs_present && before.is_none() {
            return None;
        }
        let mut bytes = before.clone().unwrap_or_default();
        match self {
            Self::Write(offset, data) => put(&mut bytes, *offset, data),
            Self::Zeroes(offset, len) => put(&mut bytes, *offset, &vec![0; *len as usize]),
            Self::Runs(runs) => runs.iter().for_each(|(offset, len, value)| {
                put(&mut bytes, *offset, &vec![value.unwrap_or(0); *len as usize]);
            }),
            Self::Discard(offset, len) => {
                let size = bytes.len() as u64;
                let (from, to) = ((*offset).min(size), (offset + len).min(size));
                bytes[from as usize..to as usize].fill(0);
            }
            Self::Compare(offset, expected, data) => {
                if bytes[*offset as usize..][..expected.len()] != expected[..] {
                    return None;
                }
                put(&mut bytes, *offset, data);
            }
            Self::Full(data) => bytes.clone_from(data),
            Self::Truncate(size) => bytes.resize(*size as usize, 0),
            Self::Delete => return Some(None),
            Self::Copy(_) => return source.clone().map(Some),
            Self::Touch => {}
        }
        Some(Some(bytes))
    }

    /// Requests the operation from the cache.
    pub async fn ask(
        self,
        cache: ObjectCache,
        ids: Vec<ObjectId>,
        object: usize,
        change: ChangeTerms,
    ) -> Result<Answer> {
        let id = ids[object].clone();
        let reply = match self {
            Self::Write(offset, data) => cache.write(WriteRequest::new(id, offset, data).terms(change)).await,
            Self::Zeroes(offset, len) => {
                cache.write_zeroes(WriteZeroesRequest::new(id, offset, len).terms(change)).await
            }
            Self::Runs(runs) => {
                let run = |(offset, len, value): (u64, u64, Option<u8>)| match value {
                    Some(value) => Run::data(offset, vec![value; len as usize]),
                    None => Run::zeroes(offset, len),
                };
                let runs = runs.into_iter().map(run).collect();
                cache.write_runs(WriteRunsRequest::new(id, runs).terms(change)).await
            }
            Self::Discard(offset, len) => {
                cache.discard(DiscardRequest::new(id, offset, len).terms(change)).await
            }
            Self::Compare(offset, expected, data) => {
                let request = CompareAndWriteRequest::new(id, offset, expected, data).terms(change);
                cache.compare_and_write(request).await
            }
            Self::Full(data) => cache.write_full(WriteFullRequest::new(id, data).terms(change)).await,
            Self::Truncate(size) => cache.truncate(TruncateRequest::new(id, size).terms(change)).await,
            Self::Delete => {
                let reply = cache.delete(DeleteRequest::new(id).terms(change)).await?;
                return Ok(Answer { version: None, durability: reply.durability });
            }
            Self::Copy(from) => cache.copy(CopyRequest::new(ids[from].clone(), id).terms(change)).await,
            Self::Touch => cache.copy(CopyRequest::new(id.clone(), id).terms(change)).await,
        }?;
        Ok(Answer { version: Some(reply.version.0), durability: reply.durability })
    }
}

fn put(bytes: &mut Vec<u8>, offset: u64, data: &[u8]) {
    if !data.is_empty() {
        resized(bytes, offset + data.len() as u64);
        bytes[offset as usize..][..data.len()].copy_from_slice(data);
    }
}
