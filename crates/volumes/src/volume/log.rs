//! The logs of a volume: which there are, where the next record goes, and which are needed no more.
//!
//! A volume has the logs that its head names, in the order in which they were begun; records are appended to the last.
//! A log goes once what its records were written over is in the stored map no more.

use std::collections::BTreeMap;
use std::sync::Arc;

use blocker::{Capabilities, ChangeReply, Condition, Durability, Scope, Segments, WriteRequest};
use futures_util::{StreamExt, TryStreamExt};

use super::overlay::Order;
use super::state::State;
use super::write::{Content, Plan, WRITE_BYTES_MAX, is_short};
use super::{Inner, Piece};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{LOGS_MAX, OverlayLog, OverlayRecord, Place, SECTOR_BYTES, overlay_records};
use crate::space::Pool;

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
            gone: gone.iter().map(|log| (log.id.allocation, log.parts)).collect(),
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
        std::mem::take(&mut self.before).into_iter().map(|log| (log.id.allocation, log.parts)).collect()
    }
}

// ---- appending
//
// A record has the bytes, where they belong, and over which object. It counts as long as the stored map has that object
// in its place. So the entry of the copy voids the records, and nothing is removed for that; but until it is stored,
// changes of the copy are logged as well.

/// How often a record is written whose outcome is unknown, each time in a new place.
const TRIES: u32 = 3;

impl Inner {
    /// Logs a short change of a part of an object that is not the volume's own, and keeps it in memory. Returns the
    /// durability of the record, and whether what is stored leads to it; `None` if nothing was done. The caller shares
    /// the barrier and the object.
    pub(super) async fn log_in_overlay(
        &self,
        piece: &Piece,
        content: &Content,
        durability: Durability,
    ) -> Result<Option<(Durability, bool)>> {
        if !is_short(piece, content, self.object_bytes) {
            return Ok(None);
        }
        let base = {
            let state = self.state.lock();
            match self.plan(&state, piece)? {
                Plan::Overlay { base } if state.is_recorded(piece.index) => base,
                _ => return Ok(None),
            }
        };
        let record = record_of(piece, base, content);
        let place = |state: &mut State| state.overlays.place(&record);
        let Some((durability, order)) = self.append(&record, content, durability, place).await? else {
            return Ok(None);
        };
        let data = content.data();
        let mut state = self.state.lock();
        state.overlays.add(piece.index, (piece.within, piece.length), data, order);
        Ok(Some((durability, is_reached(&state, piece.index, base))))
    }

    /// Changes a part of an own object whose entry is not stored yet, and logs it over `base`, which the stored map has.
    /// As [`Self::log_in_overlay`].
    pub(super) async fn write_and_log(
        &self,
        piece: &Piece,
        (allocation, base): (u64, Entry),
        content: &Content,
        durability: Durability,
    ) -> Result<(Durability, bool)> {
        let record = record_of(piece, base, content);
        let place = |state: &mut State| state.overlays.place_beside(&record);
        let in_place = self.write_in_place(piece, allocation, content, durability);
        let logged = self.append(&record, content, durability, place);
        let (in_place, logged) = futures_util::future::join(in_place, logged).await;
        let ((is, is_recorded), logged) = (in_place?, logged?);
        let Some((logged, _)) = logged else { return Ok((is, is_recorded)) };
        let is_reached = is_reached(&self.state.lock(), piece.index, base);
        Ok((is.min(logged), is_recorded || is_reached))
    }

    /// Appends a record at a place that `place` takes. Returns its durability, and its order among all changes; `None` if
    /// there is no room.
    async fn append(
        &self,
        record: &OverlayRecord,
        content: &Content,
        durability: Durability,
        place: impl Fn(&mut State) -> Option<(Taken, Order)>,
    ) -> Result<Option<(Durability, Order)>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let Some((taken, order)) = place(&mut self.state.lock()) else { return Ok(None) };
            let (log, place) = (taken.log, taken.place);
            let mut bytes = Segments::from(record.encode(log, self.space.volume, place).to_vec());
            bytes.append(content.data().cloned().unwrap_or_default());
            // Less than a sector.
            bytes.append(Segments::zeros((record.log_bytes() - bytes.len_bytes() as u64) as usize));
            let object = self.space.object(Kind::Overlay(log.allocation, place.part));
            let request = WriteRequest::new(object, place.offset.into(), bytes);
            let request = request.change(self.space.change(durability, Condition::None));
            match self.space.store().write(request).await {
                Ok(ChangeReply { durability, .. }) => return Ok(Some((durability, order))),
                // If it comes later, it has the same bytes, and does not count beside what is behind it.
                Err(blocker::Error::OutcomeUnknown(_) | blocker::Error::Superseded { .. })
                    if tries < TRIES => {}
                // It may count after a crash. So the object has its overlay all the same, until a copy of it is recorded.
                Err(error) => return Err(self.noted(error)),
            }
        }
    }
}

/// Returns whether what is stored leads to a record over `base`, or to what it was merged into.
fn is_reached(state: &State, index: u32, base: Entry) -> bool {
    state.recorded.get(index) == base || state.is_recorded(index)
}

fn record_of(piece: &Piece, base: Entry, content: &Content) -> OverlayRecord {
    let data_sum = content.data().map(|data| {
        let mut sum = crc32fast::Hasher::new();
        data.iter().for_each(|segment| sum.update(segment.as_slice()));
        sum.finalize()
    });
    let &Piece { index, within, length, .. } = piece;
    OverlayRecord { base, index, within, length, data_sum }
}

const _: () = assert!(SECTOR_BYTES as u64 + WRITE_BYTES_MAX <= PART_BYTES_MAX);

// ---- replay: what an owner finds in the logs of an earlier owner that has not released the volume

/// Parts that are read at once.
const LOADS_MAX: usize = 4;

/// The records of a log with their bytes, in order.
pub(crate) struct Loaded {
    id: OverlayLog,
    records: Vec<(OverlayRecord, Segments)>,
    /// Behind the last part that is there.
    parts: u32,
}

impl Inner {
    /// Takes over what the logs of the owner before have, and appends to `own` from now on, if that is a log. Nothing is
    /// written: the head names all of them.
    pub(crate) fn take_over_logs(&self, before: Vec<Loaded>, own: Option<OverlayLog>) {
        let mut state = self.state.lock();
        for Loaded { id, records, parts } in before {
            let number = state.overlays.logs.add_before(id, parts);
            for (record, data) in records {
                if counts(&state.live, &record, self.object_bytes) {
                    let data = record.data_sum.map(|_| data);
                    state.overlays.take_over(&record, data.as_ref(), number);
                }
            }
        }
        if let Some(own) = own {
            state.overlays.logs.begin(own, &self.space.pool.capabilities);
        }
    }
}

/// Returns whether a record is over what `map` has in its place.
fn counts(map: &Map, record: &OverlayRecord, object_bytes: u64) -> bool {
    // An object whose copy is recorded has all that its records have, and perhaps what is newer.
    let is_current = !record.base.is_hole() && map.get(record.index) == record.base;
    let fits = record.within.checked_add(record.length).is_some_and(|end| end <= object_bytes);
    is_current && fits && record.length > 0
}

/// Returns `map` as it is with the overlays in logs: an object with an overlay is another one than any map has.
pub(crate) async fn overlaid(
    pool: &Pool,
    volume: VolumeId,
    logs: &[OverlayLog],
    (map, object_bytes): (Map, u64),
) -> Result<Map> {
    let mut all = map.clone();
    for log in logs {
        for (record, _) in load(pool, volume, *log).await?.records {
            if counts(&map, &record, object_bytes) {
                // A log has an allocation id of its own.
                all.set(record.index, Entry::new(volume, log.allocation));
            }
        }
    }
    Ok(all)
}

/// Reads logs, in the order in which they were begun.
pub(crate) async fn load_logs(pool: &Pool, volume: VolumeId, logs: &[OverlayLog]) -> Result<Vec<Loaded>> {
    let mut all = Vec::new();
    for log in logs {
        all.push(load(pool, volume, *log).await?);
    }
    Ok(all)
}

async fn load(pool: &Pool, volume: VolumeId, log: OverlayLog) -> Result<Loaded> {
    // Parts are written side by side: one may be missing before another.
    let parts = (0..PARTS_MAX).map(|part| {
        let (pool, object) = (pool.clone(), pool.object(volume, Kind::Overlay(log.allocation, part)));
        async move {
            // Another owner may have appended to it since a cache below has read it.
            pool.invalidate(Scope::Object(object.clone())).await?;
            match pool.get(object).await {
                Ok((bytes, _)) => Ok(Some((part, bytes))),
                Err(blocker::Error::Missing) => Ok(None),
                Err(error) => Err(Error::from(error)),
            }
        }
    });
    let found: Vec<_> = futures_util::stream::iter(parts).buffered(LOADS_MAX).try_collect().await?;
    let mut loaded = Loaded { id: log, records: Vec::new(), parts: 0 };
    for (part, bytes) in found.into_iter().flatten() {
        loaded.parts = part + 1;
        let whole = bytes.to_bytes();
        for (place, record) in overlay_records(&whole, log, volume, part) {
            let begin = place.offset as usize + SECTOR_BYTES;
            // A record is there with all of its bytes.
            let data = bytes.slice(begin..begin + record.data_bytes() as usize);
            loaded.records.push((record, data));
        }
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use blocker::{Blocker, Memory};

    use super::*;
    use crate::format::entry::VolumeId;

    fn log(allocation: u64) -> OverlayLog {
        OverlayLog { allocation, key: 7 }
    }

    #[test]
    fn a_log_stays_as_long_as_a_stored_map_leads_to_its_records_or_one_is_on_its_way() {
        let can = Memory::default().capabilities();
        let [base, copy] = [1, 2].map(|allocation| Entry::new(VolumeId(5), allocation));
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
