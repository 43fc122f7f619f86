//! The last lines of the log, in memory of bounded size.

use super::Record;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// The most lines that are kept.
pub const TAIL_LINES: usize = 512;
/// The most bytes of texts that are kept.
pub const TAIL_BYTES_MAX: usize = 256 << 10;

/// The last lines.
#[derive(Debug, Default)]
pub(super) struct Tail(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    records: VecDeque<Record>,
    bytes: usize,
    count: u64,
}

impl Tail {
    /// Gives a line its number and keeps it. Older ones make room.
    pub(super) fn keep(&self, mut record: Record) -> Record {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.count += 1;
        record.id = kept.count;
        kept.bytes += record.text_bytes();
        kept.records.push_back(record.clone());
        while kept.records.len() > TAIL_LINES || kept.bytes > TAIL_BYTES_MAX {
            let Some(oldest) = kept.records.pop_front() else { break };
            kept.bytes -= oldest.text_bytes();
        }
        record
    }

    /// Returns the kept lines with numbers above `after`, the oldest first; `None` for all.
    pub(super) fn after(&self, after: Option<u64>) -> Vec<Record> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.records.iter().filter(|record| after.is_none_or(|after| record.id > after)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn the_last_lines_are_kept_within_both_limits() {
        let tail = Tail::default();
        let line = |bytes| Record { message: "x".repeat(bytes), ..Record::new(Level::Info, "here") };
        for number in 1..=(TAIL_LINES as u64 + 10) {
            assert_eq!(tail.keep(line(1)).id, number);
        }
        let all = tail.after(None);
        assert_eq!((all.len(), all[0].id), (TAIL_LINES, 11));
        let newest = all[TAIL_LINES - 1].id;
        assert_eq!(
            tail.after(Some(newest - 2)).iter().map(|line| line.id).collect::<Vec<_>>(),
            [newest - 1, newest]
        );
        for _ in 0..100 {
            tail.keep(line(TAIL_BYTES_MAX / 10));
        }
        assert!((9..=10).contains(&tail.after(None).len()));
        tail.keep(line(2 * TAIL_BYTES_MAX));
        assert_eq!(tail.after(None).len(), 0);
        assert_eq!(tail.0.lock().unwrap().bytes, 0);
    }
}
