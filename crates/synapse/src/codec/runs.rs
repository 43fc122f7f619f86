//! The payload of a write of several ranges: a table of them, then the bytes of those that have any.
//!
//! ```text
//! +------------+------------+-- for each run --+----------------------------+
//! | u64 offset | u64 length |       ...        | bytes of the first, second |
//! +------------+------------+------------------+----------------------------+
//!                └ bit 63: zeros, which are not sent
//! ```

use blocker::{Error, Run, RunContent, Segments};
use bytes::{Buf, BufMut};

use super::error::invalid;

/// The length of a run in the table.
pub const RUN_BYTES: usize = 16;
/// The most runs of one request, whatever the backend's limit.
pub const RUNS_MAX: u32 = 4096;

const ZEROES: u64 = 1 << 63;

/// Returns the length of the payload for these runs.
pub(super) fn payload_bytes(runs: &[Run]) -> usize {
    let data: u64 = runs.iter().map(Run::payload_bytes).sum();
    // Below the limit of a request, or refused before it is sent.
    runs.len() * RUN_BYTES + usize::try_from(data).unwrap_or(usize::MAX / 2)
}

pub(super) fn encode(runs: &[Run]) -> Segments {
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
/// [`Error::Invalid`] if table and bytes do not add up.
pub(super) fn decode(count: u64, payload: &Segments) -> Result<Vec<Run>, Error> {
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

    fn sample() -> Vec<Run> {
        vec![Run::data(5, vec![1, 2, 3]), Run::zeroes(100, 1 << 40), Run::data(u64::MAX, vec![4])]
    }

    #[test]
    fn runs_arrive_as_they_were_sent() {
        let payload = encode(&sample());
        assert_eq!(payload.len_bytes(), payload_bytes(&sample()));
        let runs = decode(3, &payload).unwrap();
        assert_eq!(format!("{runs:?}"), format!("{:?}", sample()));
        let RunContent::Data(data) = &runs[2].content else { panic!("zeros") };
        assert_eq!(data.to_vec(), [4]);
        assert!(decode(0, &Segments::new()).unwrap().is_empty());
    }

    #[test]
    fn a_table_that_does_not_add_up_is_refused() {
        let bytes = encode(&sample()).to_vec();
        let refused = |count: u64, bytes: &[u8]| {
            assert!(matches!(decode(count, &bytes.to_vec().into()), Err(Error::Invalid(_))), "{count}");
        };
        refused(4, &bytes);
        refused(2, &bytes);
        refused(3, &bytes[..bytes.len() - 1]);
        refused(3, &[&bytes[..], &[0]].concat());
        refused(u64::MAX, &bytes);
        refused(u64::from(RUNS_MAX) + 1, &vec![0; (RUNS_MAX as usize + 1) * RUN_BYTES]);
    }
}
