//! The logs of a volume: the existing logs, the position of the next record, and the logs that are
//! no longer needed.
//!
//! A volume has the logs that its head names, in the order in which they were created; records are
//! appended to the last one. A log is removed once the stored map has none of the entries that its
//! records overwrite.

use std::collections::HashMap;
use std::sync::Arc;

use blocker::{
    BlockerExt, Capabilities, ChangeReply, Condition, Durability, Error as Store, Scope, Segments,
    WriteRequest,
};
use futures_util::{StreamExt, TryStreamExt};

use super::overlay::Order;
use super::state::State;
use super::write::{Plan, WRITE_BYTES_MAX, Write, Written};
use super::{Inner, Piece};
use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{LOGS_MAX, OverlayLog, OverlayRecord, Place, SECTOR_BYTES, overlay_records};
use crate::space::Pool;

/// The maximum number of parts of all logs of a volume together.
pub(crate) const PARTS_MAX: u32 = 16;
/// The number of full parts after which another log is created.
const PARTS_LONG: u32 = 1;
/// The maximum size of a part of a log, in bytes.
pub(super) const PART_BYTES_MAX: u64 = 4 << 20;
/// The minimum size of a part of a log, in bytes. A volume in a store with smaller objects has no
/// logs.
const PART_BYTES_MIN: u64 = 64 << 10;

/// The logs of an open volume.
#[derive(Default)]
pub(super) struct Logs {
    /// The log to which records are appended, or `None` if nothing can be appended.
    own: Option<Log>,
    /// Earlier logs, to which nothing is appended any more, the oldest first.
    before: Vec<Before>,
    /// The number of logs that the volume has had while open.
    count: u64,
    /// Copied objects whose records are still valid, because the stored map has the entry of the
    /// overwritten object and not yet that of the copy.
    unrecorded: HashMap<u32, Unrecorded>,
}

/// The log to which records are appended.
struct Log {
    id: OverlayLog,
    number: u64,
    part_bytes: u64,
    parts_max: u32,
    next: Place,
    /// Shared by records being written.
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
    /// The entry with which the volume first replaced the overwritten object.
    by: Entry,
    /// The number of the first log with a record of the object.
    since: u64,
}

/// A place in a log. While this value exists, a record is being written there.
pub(super) struct Taken {
    pub(super) log: OverlayLog,
    pub(super) place: Place,
    pub(super) number: u64,
    _user: Arc<()>,
}

/// The logs for a new head, and the logs to remove after the head is written.
pub(super) struct Renewal {
    pub(super) logs: Vec<OverlayLog>,
    /// The logs to remove: the allocation ID of each, and the number of its parts.
    pub(super) gone: Vec<(u64, u32)>,
    gone_to: u64,
    own: Option<OverlayLog>,
}

/// Returns the size of a log's parts in bytes, or `None` if the store's objects are too small for a
/// part.
pub(crate) fn part_bytes(can: &Capabilities) -> Option<u64> {
    let bytes = can.object_bytes_max.min(can.request_bytes_max).min(PART_BYTES_MAX);
    (bytes >= PART_BYTES_MIN).then_some(bytes)
}

impl Logs {
    /// Adds a log of the previous owner, with the number of its parts. Returns its number.
    pub(super) fn add_before(&mut self, id: OverlayLog, parts: u32) -> u64 {
        self.count += 1;
        self.before.push(Before { id, number: self.count, parts, users: Arc::default() });
        self.count
    }

    /// Adds an unused log after the current one. Records are appended to it from now on.
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

    /// Stops appending to the current log.
    pub(super) fn end(&mut self) {
        if let Some(Log { id, number, next, users, .. }) = self.own.take() {
            self.before.push(Before { id, number, parts: next.part + u32::from(next.offset > 0), users });
        }
    }

    /// Returns whether records can be appended.
    pub(super) fn is_open(&self) -> bool {
        self.own.is_some()
    }

    /// Returns whether another log should be created: nothing can be appended, and another log is
    /// allowed. If no other log is allowed, one has to be removed first.
    pub(super) fn is_due(&self) -> bool {
        self.own.is_none() && self.before.len() < LOGS_MAX
    }

    /// Returns whether an unused part is left.
    pub(super) fn has_room(&self) -> bool {
        self.own.as_ref().is_some_and(|log| log.next.part < log.parts_max)
    }

    /// Returns whether there is a log.
    pub(super) fn is_any(&self) -> bool {
        self.own.is_some() || !self.before.is_empty()
    }

    /// Returns whether a record was ever placed in a log.
    pub(super) fn is_used(&self) -> bool {
        !self.before.is_empty()
            || self.own.as_ref().is_some_and(|log| log.next != Place { part: 0, offset: 0 })
    }

    /// Allocates a place for a record of this many bytes, if there is space.
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

    /// Records that the volume has replaced `base` by `by`, and that records over `base` begin in
    /// the log `since`.
    pub(super) fn note_replaced(&mut self, index: u32, (base, by): (Entry, Entry), since: u64) {
        self.unrecorded.entry(index).or_insert(Unrecorded { base, by, since });
    }

    /// Returns the entry over which changes of an own object with the entry `live` are also logged,
    /// until the entry `live` is stored. Returns `None` if the volume has had a third object at
    /// this index: the entry of the second one may be in flight to the store, and would invalidate
    /// the record.
    pub(super) fn base_of_replaced(&self, index: u32, live: Entry) -> Option<Entry> {
        let object = self.unrecorded.get(&index).filter(|object| object.by == live)?;
        self.is_open().then_some(object.base)
    }

    /// Forgets objects whose overwritten entry the stored map no longer has.
    pub(super) fn forget_recorded(&mut self, recorded: impl Fn(u32) -> Entry) {
        self.unrecorded.retain(|index, object| recorded(*index) == object.base);
    }

    /// Returns the logs for a new head, if a new head must be written: without the logs that are no
    /// longer needed (those before `first_needed`), and with `new` if another log is due.
    pub(super) fn renewal(&self, first_needed: Option<u64>, new: Option<OverlayLog>) -> Option<Renewal> {
        let first = self.unrecorded.values().map(|object| object.since).chain(first_needed).min();
        let is_needed = |log: &Before| {
            first.is_some_and(|first| log.number >= first) || Arc::strong_count(&log.users) > 1
        };
        // In order, so that no log is kept after a removed one.
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

    /// Returns whether `logs` include all logs that are needed, from `first_needed` on.
    pub(super) fn are_enough(&self, first_needed: Option<u64>, logs: &[OverlayLog]) -> bool {
        let first = self.unrecorded.values().map(|object| object.since).chain(first_needed).min();
        let before = self.before.iter().filter(|log| first.is_some_and(|first| log.number >= first));
        before.map(|log| log.id).chain(self.own.as_ref().map(|log| log.id)).all(|id| logs.contains(&id))
    }

    /// Records that the stored head names the logs of a renewal.
    pub(super) fn renewed(&mut self, renewal: &Renewal, can: &Capabilities) {
        self.before.retain(|log| log.number > renewal.gone_to);
        if let Some(own) = renewal.own {
            self.begin(own, can);
        }
    }

    /// Ends all logs. Returns the allocation ID of each, and the number of its parts.
    pub(super) fn end_all(&mut self) -> Vec<(u64, u32)> {
        self.end();
        self.unrecorded.clear();
        std::mem::take(&mut self.before).into_iter().map(|log| (log.id.allocation, log.parts)).collect()
    }
}

// ---- appending
//
// A record has the bytes, their position, and the entry of the overwritten object. The record is
// valid while the stored map has that entry at the object's index. So storing the copy's entry
// invalidates the records without removing them. Until then, changes of the copy are logged as
// well.

/// The maximum number of attempts to write a record while the outcome is unknown, each at a new
/// place.
const TRIES: u32 = 3;

impl Inner {
    /// Logs a short change of a part of an object that is not the volume's own, and keeps the
    /// change in memory. Returns the record's durability and whether the stored state leads to the
    /// record, or `None` if nothing was done. The caller holds the barrier and the object shared.
    pub(super) async fn log_in_overlay(&self, write: &Write) -> Result<Option<Written>> {
        let piece = &write.piece;
        if !write.is_short(self.object_bytes) {
            return Ok(None);
        }
        let base = {
            let state = self.state.lock();
            match self.plan(&state, piece)? {
                Plan::Overlay { base } if state.is_recorded(piece.index) => base,
                _ => return Ok(None),
            }
        };
        let record = record_of(write, base);
        let place = |state: &mut State| state.overlays.place(&record);
        let Some((durability, order)) = self.append(&record, write, place).await? else { return Ok(None) };
        let data = write.content.data();
        let mut state = self.state.lock();
        state.overlays.add(piece.index, (piece.within, piece.length), data, order);
        Ok(Some((durability, is_reached(&state, piece.index, base))))
    }

    /// Changes a part of an own object whose entry is not stored yet, and logs the change over
    /// `base`, the entry in the stored map. Returns the same as [`Self::log_in_overlay`].
    pub(super) async fn write_and_log(&self, write: &Write, allocation: u64, base: Entry) -> Result<Written> {
        let record = record_of(write, base);
        let place = |state: &mut State| state.overlays.place_beside(&record);
        let in_place = self.write_in_place(write, allocation);
        let logged = self.append(&record, write, place);
        let (in_place, logged) = futures_util::future::join(in_place, logged).await;
        let ((is, is_recorded), logged) = (in_place?, logged?);
        let Some((logged, _)) = logged else { return Ok((is, is_recorded)) };
        let is_reached = is_reached(&self.state.lock(), write.piece.index, base);
        Ok((is.min(logged), is_recorded || is_reached))
    }

    /// Appends a record at a place that `place` allocates. Returns the record's durability and its
    /// order among all changes, or `None` if there is no space.
    async fn append(
        &self,
        record: &OverlayRecord,
        write: &Write,
        place: impl Fn(&mut State) -> Option<(Taken, Order)>,
    ) -> Result<Option<(Durability, Order)>> {
        let mut tries = 0;
        loop {
            tries += 1;
            let Some((taken, order)) = place(&mut self.state.lock()) else { return Ok(None) };
            let (log, place) = (taken.log, taken.place);
            let mut bytes = Segments::from(record.encode(log, self.space.volume, place).to_vec());
            bytes.append(write.content.data().cloned().unwrap_or_default());
            // Less than a sector.
            bytes.append(Segments::zeros((record.log_bytes() - bytes.len_bytes() as u64) as usize));
            let object = self.space.object(Kind::Overlay(log.allocation, place.part));
            let request = WriteRequest::new(object, place.offset.into(), bytes);
            let request = request.terms(self.space.terms(write.durability, Condition::None));
            match self.space.store().write(request).await {
                Ok(ChangeReply { durability, .. }) => return Ok(Some((durability, order))),
                // A late write has the same bytes, and later records take precedence over it.
                Err(Store::OutcomeUnknown(_) | Store::Superseded { .. }) if tries < TRIES => {}
                // The record may be valid after a crash, so the object has an overlay in any case,
                // until the copy of the object is recorded.
                Err(error) => return Err(self.noted(error)),
            }
        }
    }
}

/// Returns whether the stored state leads to a record over `base`, or to the object into which the
/// record was merged.
fn is_reached(state: &State, index: u32, base: Entry) -> bool {
    state.recorded.get(index) == base || state.is_recorded(index)
}

fn record_of(write: &Write, base: Entry) -> OverlayRecord {
    let data_sum = write.content.data().map(|data| {
        let mut sum = crc32fast::Hasher::new();
        data.iter().for_each(|segment| sum.update(segment.as_slice()));
        sum.finalize()
    });
    let Piece { index, within, length, .. } = write.piece;
    OverlayRecord { base, index, within, length, data_sum }
}

const _: () = assert!(SECTOR_BYTES as u64 + WRITE_BYTES_MAX <= PART_BYTES_MAX);

// ---- replay: an owner reads the logs of an earlier owner that has not released the volume

/// The number of parts read concurrently.
const LOADS_MAX: usize = 4;

/// The records of a log with their data, in order.
pub(crate) struct Loaded {
    id: OverlayLog,
    records: Vec<(OverlayRecord, Segments)>,
    /// The number of parts up to the last existing one.
    parts: u32,
}

impl Inner {
    /// Adopts the records of the previous owner's logs, and appends to `own` from now on, if there
    /// is one. Nothing is written, because the head already names all of these logs.
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

/// Returns whether a record is valid, that is, whether `map` has the entry of the overwritten
/// object at the record's index.
fn counts(map: &Map, record: &OverlayRecord, object_bytes: u64) -> bool {
    // An object whose copy is recorded already has all data of its records, and perhaps newer data.
    let is_current = !record.base.is_hole() && map.get(record.index) == record.base;
    let fits = record.within.checked_add(record.length).is_some_and(|end| end <= object_bytes);
    is_current && fits && record.length > 0
}

/// Returns `map` with the overlays of the logs: each object with an overlay gets an entry that no
/// stored map has.
pub(crate) async fn overlaid(
    pool: &Pool,
    volume: VolumeId,
    logs: &[OverlayLog],
    (map, object_bytes): (Map, u64),
) -> Result<Map> {
    let mut all = map.clone();
    for log in logs {
        for (record, _) in load(pool, volume, *log, false).await?.records {
            if counts(&map, &record, object_bytes) {
                // A log's allocation ID is never that of an object.
                all.set(record.index, Entry::new(volume, log.allocation));
            }
        }
    }
    Ok(all)
}

/// Reads logs, in the order in which they were begun, for the owner who takes them over.
pub(crate) async fn load_logs(pool: &Pool, volume: VolumeId, logs: &[OverlayLog]) -> Result<Vec<Loaded>> {
    let mut all = Vec::new();
    for log in logs {
        all.push(load(pool, volume, *log, true).await?);
    }
    Ok(all)
}

/// Reads a log. Its records are checked, so an owner takes over those that it reads.
async fn load(pool: &Pool, volume: VolumeId, log: OverlayLog, is_owner: bool) -> Result<Loaded> {
    // Parts are written concurrently, so one may be missing before another.
    let parts = (0..PARTS_MAX).map(|part| {
        let (pool, object) = (pool.clone(), pool.object(volume, Kind::Overlay(log.allocation, part)));
        async move {
            // Another owner may have appended to the part since a cache below read it.
            let scope = Scope::Object(object.clone());
            if is_owner {
                pool.take_as_is(scope).await?;
            } else {
                pool.invalidate(scope).await?;
            }
            match pool.get(object).await {
                Ok((bytes, _)) => Ok(Some((part, bytes))),
                Err(Store::Missing) => Ok(None),
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
            // A record is complete, with all of its bytes.
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
