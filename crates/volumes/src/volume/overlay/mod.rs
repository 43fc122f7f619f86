//! Overlays: what is written over an object that is not the volume's own, before there is a copy of the object.
//!
//! The first write to an object after a snapshot would have to wait for a copy of the whole object, and for its entry
//! in the map. Instead its bytes are appended to the *log of overlays*, with a record of where they belong, and that is
//! all it waits for: the log holds what the map will. The copy is made later, beside the writes: the object is *merged*.
//!
//! | file | |
//! |---|---|
//! | `runs.rs` | what one object's overlay has |
//! | `append.rs` | writing to the log |
//! | `merge.rs` | making the copies, and beginning a new log |
//! | `replay.rs` | what an owner finds in the log of the one before |
//!
//! A record counts as long as the stored map has the object that it was written over. So once the copy's entry is stored
//! the records of the object are void, and no one has to remove them. What can bring an old entry back (a rollback), or
//! needs all that a volume has in its map (a snapshot, a resize, a close), merges all objects first, and the head gets
//! a log of another name ([`Inner::without_overlays`](super::Inner::without_overlays)).

mod append;
mod merge;
mod replay;
mod runs;

use std::collections::HashMap;
use std::task::Waker;

pub(super) use append::Way;
pub(super) use merge::WithoutOverlays;
pub(crate) use replay::overlaid;
use runs::Runs;
pub(super) use runs::Source;

use blocker::Capabilities;

use crate::entry::Entry;
use crate::format::{OverlayLog, OverlayRecord, Place};

/// The most parts of a log.
const PARTS_MAX: u32 = 16;
/// The largest part of a log, in bytes.
const PART_BYTES_MAX: u64 = 4 << 20;
/// The smallest: a store with smaller objects has no overlays.
const PART_BYTES_MIN: u64 = 64 << 10;
/// The longest write that goes to the log, in bytes. What a longer one has to wait for is little beside its own bytes.
const WRITE_BYTES_MAX: u64 = 256 << 10;

/// The overlays of a volume, and the place in the log.
#[derive(Default)]
pub(super) struct Overlays {
    /// `None` if nothing can be appended.
    log: Option<Log>,
    objects: HashMap<u32, Overlay>,
    /// The number of operations under way during which no object gets an overlay.
    kept_out: u32,
    /// The number of runs that were ever inserted.
    inserted: u64,
    /// Of the one that waits for something to merge.
    waker: Option<Waker>,
}

/// A log of overlays, and where its next record goes.
#[derive(Clone, Copy)]
struct Log {
    id: OverlayLog,
    part_bytes: u64,
    next: Place,
}

struct Overlay {
    /// The object that was written over.
    base: Entry,
    runs: Runs,
    /// Whether a copy is being made.
    is_merging: bool,
    /// Whether the volume has the object by now, and its entry is not stored yet. Writes go to both.
    is_merged: bool,
}

/// Returns the size of the parts of a log in bytes; `None` if the objects of the store are too small for one.
pub(crate) fn part_bytes(can: &Capabilities) -> Option<u64> {
    let bytes = can.object_bytes_max.min(can.request_bytes_max).min(PART_BYTES_MAX);
    (bytes >= PART_BYTES_MIN).then_some(bytes)
}

impl Overlays {
    /// Begins a log, of which nothing is used yet. `None` if there is to be none.
    pub(super) fn begin(&mut self, id: Option<OverlayLog>, can: &Capabilities) {
        let next = Place { part: 0, offset: 0 };
        self.log = id.zip(part_bytes(can)).map(|(id, part_bytes)| Log { id, part_bytes, next });
    }

    /// Returns whether a record was ever placed in the log.
    fn is_used(&self) -> bool {
        self.log.is_some_and(|log| log.next != Place { part: 0, offset: 0 })
    }

    /// Returns the number of parts of the log that may be there.
    fn parts_used(&self) -> u32 {
        match self.log {
            // One that was ended without another one.
            None => PARTS_MAX,
            Some(Log { next: Place { part, offset }, .. }) => (part + u32::from(offset > 0)).min(PARTS_MAX),
        }
    }

    /// Returns whether so much of the log is used that a new one is due.
    fn is_long(&self) -> bool {
        self.log.is_some_and(|log| log.next.part >= PARTS_MAX / 4)
    }

    /// Returns whether what the object has is in its overlay.
    pub(super) fn is_over(&self, index: u32) -> bool {
        // Most volumes have none most of the time.
        !self.objects.is_empty() && self.objects.get(&index).is_some_and(|overlay| !overlay.is_merged)
    }

    /// Returns whether writes to an object that the volume has go to the log as well.
    pub(super) fn is_merged(&self, index: u32) -> bool {
        !self.objects.is_empty() && self.objects.get(&index).is_some_and(|overlay| overlay.is_merged)
    }

    /// Returns whether an object is merged whose entry is not stored yet, and writes to it are logged.
    fn has_merged(&self) -> bool {
        self.objects.values().any(|overlay| overlay.is_merged)
    }

    /// Returns the places with an overlay.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.objects.iter().filter(|(_, overlay)| !overlay.is_merged).map(|(index, _)| *index)
    }

    /// Returns where the bytes of an object with an overlay are; `None` if it has none.
    pub(super) fn parts(&self, index: u32, within: u64, length: u64) -> Option<Vec<(u64, Source)>> {
        let overlay = self.objects.get(&index).filter(|overlay| !overlay.is_merged)?;
        Some(overlay.runs.parts(within, length))
    }

    /// Returns the log, for a read of it.
    pub(super) fn log_birth(&self) -> Option<u64> {
        self.log.map(|log| log.id.birth)
    }

    /// Returns a place for a record, if there is room.
    fn place(&mut self, record: &OverlayRecord) -> Option<(OverlayLog, Place)> {
        let log = self.log.as_mut()?;
        let bytes = record.log_bytes();
        if u64::from(log.next.offset) + bytes > log.part_bytes {
            log.next = Place { part: log.next.part + 1, offset: 0 };
        }
        if log.next.part >= PARTS_MAX || bytes > log.part_bytes {
            return None;
        }
        let place = log.next;
        // A part has at most 4 MiB.
        log.next.offset += bytes as u32;
        Some((log.id, place))
    }

    /// Adds what a record has that is in the log.
    fn insert(&mut self, record: &OverlayRecord, place: Place) {
        self.inserted += 1;
        let new =
            || Overlay { base: record.base, runs: Runs::default(), is_merging: false, is_merged: false };
        let overlay = self.objects.entry(record.index).or_insert_with(new);
        if overlay.is_merged {
            return;
        }
        let is_data = record.data_sum.is_some();
        overlay.runs.insert(record.within, record.length, place, is_data, self.inserted);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// Forgets what an object has: all of it was replaced.
    pub(super) fn forget(&mut self, index: u32) {
        self.objects.remove(&index);
    }

    /// Forgets the objects whose entries are stored.
    pub(super) fn forget_recorded(&mut self, is_recorded: impl Fn(u32) -> bool) {
        self.objects.retain(|index, overlay| !overlay.is_merged || !is_recorded(*index));
    }

    /// Wakes the one that waits for something to merge.
    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
