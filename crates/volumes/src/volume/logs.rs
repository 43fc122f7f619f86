//! The logs of a volume: which there are, where the next record goes, and which are needed no more.
//!
//! A volume has the logs that its head names, in the order in which they were begun; records are appended to the last.
//! A log goes once what its records were written over is in the stored map no more.

use std::collections::BTreeMap;
use std::sync::Arc;

use blocker::Capabilities;

use crate::format::entry::Entry;
use crate::format::{LOGS_MAX, OverlayLog, Place};

/// The most parts of all logs of a volume together.
pub(crate) const PARTS_MAX: u32 = 16;
/// Full parts of a log after which another one is begun.
const PARTS_LONG: u32 = 1;
/// The largest part of a log, in bytes.
pub(super) const PART_BYTES_MAX: u64 = 4 << 20;
/// The smallest: a store with smaller objects has no logs.
const PART_BYTES_MIN: u64 = 64 << 10;

/// The logs of an open volume.
#[derive(Default)]
pub(super) struct Logs {
    /// `None` if nothing can be appended.
    own: Option<Log>,
    /// Those that nothing is appended to any more, the oldest first.
    before: Vec<Before>,
    /// The number of logs that there were.
    count: u64,
    /// Objects whose records in a log count as long as the stored map has what they were written over, which the volume
    /// has no more.
    unrecorded: BTreeMap<u32, Unrecorded>,
}

/// The log that is appended to.
struct Log {
    id: OverlayLog,
    number: u64,
    part_bytes: u64,
    parts_max: u32,
    next: Place,
    /// Records on their way have it, too.
    users: Arc<()>,
}

struct Before {
    id: OverlayLog,
    number: u64,
    parts: u32,
    users: Arc<()>,
}

#[derive(Clone, Copy)]
struct Unrecorded {
    base: Entry,
    /// What the volume had first in place of it.
    by: Entry,
    /// The first log with a record of it.
    since: u64,
}

/// A place in a log, for a record that is on its way as long as this lives.
pub(super) struct Taken {
    pub(super) log: OverlayLog,
    pub(super) place: Place,
    pub(super) number: u64,
    _user: Arc<()>,
}

/// What the head is to name, and what goes once it does.
pub(super) struct Renewal {
    pub(super) logs: Vec<OverlayLog>,
    /// The names of the logs that go, and of how many parts they have.
    pub(super) gone: Vec<(u64, u32)>,
    gone_to: u64,
    own: Option<OverlayLog>,
}

/// Returns the size of the parts of a log in bytes; `None` if the objects of the store are too small for one.
pub(crate) fn part_bytes(can: &Capabilities) -> Option<u64> {
    let bytes = can.object_bytes_max.min(can.request_bytes_max).min(PART_BYTES_MAX);
    (bytes >= PART_BYTES_MIN).then_some(bytes)
}

impl Logs {
    /// Adds a log that an owner before has left, with the number of its parts. Returns its number.
    pub(super) fn add_before(&mut self, id: OverlayLog, parts: u32) -> u64 {
        self.count += 1;
        self.before.push(Before { id, number: self.count, parts, users: Arc::default() });
        self.count
    }

    /// Begins a log, of which nothing is used yet, after the one that there was.
    pub(super) fn begin(&mut self, id: OverlayLog, can: &Capabilities) {
        self.end();
        self.count += 1;
        let used: u32 = self.before.iter().map(|log| log.parts).sum();
        let next = Place { part: 0, offset: 0 };
        self.own = part_bytes(can).map(|part_bytes| Log {
            id,
            number: self.count,
            part_bytes,
            parts_max: PARTS_MAX.saturating_sub(used),
            next,
            users: Arc::default(),
        });
    }

    /// Lets nothing be appended any more.
    pub(super) fn end(&mut self) {
        if let Some(Log { id, number, next, users, .. }) = self.own.take() {
            self.before.push(Before { id, number, parts: next.part + u32::from(next.offset > 0), users });
        }
    }

    /// Returns whether records are appended.
    pub(super) fn is_open(&self) -> bool {
        self.own.is_some()
    }

    /// Returns whether nothing can be appended and there can be another log. Else one has to go first.
    pub(super) fn is_due(&self) -> bool {
        self.own.is_none() && self.before.len() < LOGS_MAX
    }

    /// Returns whether there is a part that nothing was appended to.
    pub(super) fn has_room(&self) -> bool {
        self.own.as_ref().is_some_and(|log| log.next.part < log.parts_max)
    }

    /// Returns whether there is a log.
    pub(super) fn is_any(&self) -> bool {
        self.own.is_some() || !self.before.is_empty()
    }

    /// Returns whether a record was ever placed in one.
    pub(super) fn is_used(&self) -> bool {
        !self.before.is_empty()
            || self.own.as_ref().is_some_and(|log| log.next != Place { part: 0, offset: 0 })
    }

    /// Takes a place for a record of so many bytes, if there is room.
    pub(super) fn place(&mut self, bytes: u64) -> Option<Taken> {
        let log = self.own.as_mut()?;
        if bytes > log.part_bytes {
            return None;
        }
        if u64::from(log.next.offset) + bytes > log.part_bytes {
            log.next = Place { part: log.next.part + 1, offset: 0 };
        }
        if log.next.part >= log.parts_max {
            return None;
        }
        let place = log.next;
        // A part has at most 4 MiB.
        log.next.offset += bytes as u32;
        Some(Taken { log: log.id, place, number: log.number, _user: Arc::clone(&log.users) })
    }

    /// Notes that the volume has `by` in the place of `base`, whose records begin in the log `since`.
    pub(super) fn note_replaced(&mut self, index: u32, (base, by): (Entry, Entry), since: u64) {
        self.unrecorded.entry(index).or_insert(Unrecorded { base, by, since });
    }

    /// Returns over what changes of an own object with the entry `live` are logged as well, until that is stored. Not where
    /// the volume has had a third object in this place: the second one's entry may be on its way to the store, and would
    /// void the record.
    pub(super) fn base_of_replaced(&self, index: u32, live: Entry) -> Option<Entry> {
        let object = self.unrecorded.get(&index).filter(|object| object.by == live)?;
        self.is_open().then_some(object.base)
    }

    /// Forgets the objects of which the stored map has not what they were written over any more.
    pub(super) fn forget_recorded(&mut self, recorded: impl Fn(u32) -> Entry) {
        self.unrecorded.retain(|index, object| recorded(*index) == object.base);
    }

    /// Returns what the head is to name if it is to be written for that: without the logs that are needed no more, of
    /// those from `first_needed` on, and with `new` if another one is due.
    pub(super) fn renewal(&self, first_needed: Option<u64>, new: Option<OverlayLog>) -> Option<Renewal> {
        let first = self.unrecorded.values().map(|object| object.since).chain(first_needed).min();
        let is_needed = |log: &Before| {
            first.is_some_and(|first| log.number >= first) || Arc::strong_count(&log.users) > 1
        };
        // In order, so that none is kept after one that goes.
        let gone = self.before.iter().take_while(|log| !is_needed(log)).count();
        let is_long = self.own.as_ref().is_none_or(|log| log.next.part >= PARTS_LONG.min(log.parts_max));
        let kept = self.before.len() - gone + usize::from(self.own.is_some());
        let own = new.filter(|_| is_long && kept < LOGS_MAX);
        if gone == 0 && own.is_none() {
            return None;
        }
        let (gone, kept) = self.before.split_at(gone);
        let logs = kept.iter().map(|log| log.id).chain(self.own.as_ref().map(|log| log.id)).chain(own);
        Some(Renewal {
            logs: logs.collect(),
            gone: gone.iter().map(|log| (log.id.birth, log.parts)).collect(),
            gone_to: gone.last().map_or(0, |log| log.number),
            own,
        })
    }

    /// Returns whether `logs` are all that are needed, of those from `first_needed` on.
    pub(super) fn are_enough(&self, first_needed: Option<u64>, logs: &[OverlayLog]) -> bool {
        let first = self.unrecorded.values().map(|object| object.since).chain(first_needed).min();
        let before = self.before.iter().filter(|log| first.is_some_and(|first| log.number >= first));
        before.map(|log| log.id).chain(self.own.as_ref().map(|log| log.id)).all(|id| logs.contains(&id))
    }

    /// Notes that the head names what a renewal has.
    pub(super) fn renewed(&mut self, renewal: &Renewal, can: &Capabilities) {
        self.before.retain(|log| log.number > renewal.gone_to);
        if let Some(own) = renewal.own {
            self.begin(own, can);
        }
    }

    /// Ends all logs. Returns the names of their parts.
    pub(super) fn end_all(&mut self) -> Vec<(u64, u32)> {
        self.end();
        self.unrecorded.clear();
        std::mem::take(&mut self.before).into_iter().map(|log| (log.id.birth, log.parts)).collect()
    }
}

#[cfg(test)]
mod tests {
    use blocker::{Blocker, Memory};

    use super::*;
    use crate::format::entry::VolumeId;

    fn log(birth: u64) -> OverlayLog {
        OverlayLog { birth, key: 7 }
    }

    #[test]
    fn a_log_stays_as_long_as_a_stored_map_leads_to_its_records_or_one_is_on_its_way() {
        let can = Memory::default().capabilities();
        let [base, copy] = [1, 2].map(|birth| Entry::new(VolumeId(5), birth));
        let mut logs = Logs::default();
        logs.begin(log(10), &can);
        assert!(logs.renewal(None, Some(log(20))).is_none(), "it is short");
        let taken: Vec<Taken> = (0..3).map(|_| logs.place(2 << 20).unwrap()).collect();
        assert_eq!(taken[2].place, Place { part: 1, offset: 0 });
        let renewal = logs.renewal(None, Some(log(20))).unwrap();
        assert_eq!((&renewal.logs[..], &renewal.gone[..]), (&[log(10), log(20)][..], &[][..]));
        logs.renewed(&renewal, &can);
        let goes = |logs: &Logs, first_needed: Option<u64>| {
            let renewal = logs.renewal(first_needed, None)?;
            assert_eq!(renewal.logs, [log(20)]);
            Some(renewal.gone)
        };
        assert_eq!(goes(&logs, None), None, "records are on their way");
        drop(taken);
        assert_eq!(goes(&logs, Some(1)), None, "an overlay has a record in it");
        logs.note_replaced(3, (base, copy), 1);
        assert_eq!(goes(&logs, None), None, "a copy is not recorded");
        assert_eq!(goes(&logs, Some(2)), None, "a copy is not recorded");
        assert!(!logs.are_enough(None, &[log(20)]) && logs.are_enough(None, &[log(10), log(20)]));
        logs.forget_recorded(|_| base);
        assert_eq!(goes(&logs, None), None, "a copy is not recorded");
        logs.forget_recorded(|_| copy);
        assert_eq!(goes(&logs, Some(2)), Some(vec![(10, 2)]));
        assert!(logs.are_enough(None, &[log(20)]));
    }
}
