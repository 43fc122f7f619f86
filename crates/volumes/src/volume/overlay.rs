//! Overlays: writes to an object that is not the volume's own, before the object is copied.
//!
//! Without overlays, the first write to an object after a snapshot would have to wait for a copy of
//! the whole object. Instead the written bytes are kept in memory, and reads apply them on top of
//! the object. The copy is made in the background: the object is *merged*, and from then on the map
//! names the copy.
//!
//! So an overlay is only as durable as *cached* requires. A flush first merges all objects, as does
//! a snapshot, whose map has no overlays, and the release of the volume. A change that must be more
//! durable waits for the copy.
//!
//! If every acknowledged change must survive the process, a change is also appended to a *log*
//! before it is acknowledged. The head names the log, which has the change until the copy's entry
//! is stored.
//!
//! This file has the overlays and decides which changes go there; `log.rs` appends to the logs, and
//! `merge.rs` makes the copies.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use blocker::{Durability, Error as Store, Quota, Reply, Segments, WriteMode};

use super::log::{Logs, Renewal, Taken};
use super::runs::{Run, Runs, Source};
use super::write::{Plan, Write};
use super::{Inner, Piece};
use crate::error::Result;
use crate::format::entry::Entry;
use crate::format::{OverlayLog, OverlayRecord};
use crate::space::OverlayMemory;

/// The approximate memory use of one object's overlay, in addition to its runs.
const OBJECT_BYTES: u64 = 512;

/// The overlays of a volume.
pub(super) struct Overlays {
    memory: Arc<OverlayMemory>,
    objects: BTreeMap<u32, Overlay>,
    /// The number of further objects that may get an overlay before the quota is checked again.
    /// When a change is acknowledged, the quota must have space for the object's copy.
    allowance: u32,
    /// Whether the quota limits the allowance.
    is_limited: bool,
    /// The number of operations in progress that prevent new overlays.
    pub(super) kept_out: u32,
    /// Whether the last copy failed. Changes then wait for the next copy, and fail with its error.
    pub(super) is_failing: bool,
    /// The number of runs and overlays ever created.
    serial: u64,
    /// The waker of the task that waits for objects to merge. It is woken when an object gets an
    /// overlay, or when waiting has become pointless.
    pub(super) waker: Option<Waker>,
    pub(super) logs: Logs,
}

/// The position of a change in the order of all changes. If two changes overlap, the later one
/// takes precedence, even after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Order(u64);

/// The overlay of one object.
struct Overlay {
    /// A unique number.
    id: u64,
    /// The entry of the overwritten object, which is in the map as long as the overlay exists.
    base: Entry,
    runs: Runs,
    /// The number of the first log with a record of the object, or `None`.
    since: Option<u64>,
}

impl Overlays {
    pub(super) fn new(memory: Arc<OverlayMemory>) -> Self {
        let (objects, logs) = (BTreeMap::new(), Logs::default());
        Self {
            memory,
            objects,
            allowance: 0,
            is_limited: false,
            kept_out: 0,
            is_failing: false,
            serial: 0,
            waker: None,
            logs,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns whether an object has an overlay.
    pub(super) fn has_overlay(&self, index: u32) -> bool {
        self.objects.contains_key(&index)
    }

    /// Returns the number of the overlay at an index, and the entry of the object below it, or
    /// `None`.
    pub(super) fn of(&self, index: u32) -> Option<(u64, Entry)> {
        self.objects.get(&index).map(|overlay| (overlay.id, overlay.base))
    }

    /// Returns an object's runs inserted since `serial`, and advances `serial` for the next call.
    pub(super) fn runs_after(&self, index: u32, serial: &mut u64) -> Vec<(u64, Run)> {
        let after = std::mem::replace(serial, self.serial);
        self.objects.get(&index).map(|overlay| overlay.runs.after(after)).unwrap_or_default()
    }

    /// Adds a change over `base`, if there is space; a change without data is zeros. Returns
    /// whether the change was added.
    pub(super) fn insert(
        &mut self,
        (index, base): (u32, Entry),
        range: (u64, u64),
        data: Option<&Segments>,
    ) -> bool {
        if !self.may_add(index, range.1, data.is_some()) {
            return false;
        }
        self.begin(index, base, None);
        self.serial += 1;
        self.add(index, range, data, Order(self.serial));
        true
    }

    /// Allocates a place in the log for a record of a change, or returns `None` if there is no
    /// space. The object has an overlay from now on: whatever the outcome of writing the record, it
    /// is valid until the object's copy is recorded.
    pub(super) fn place(&mut self, record: &OverlayRecord) -> Option<(Taken, Order)> {
        if !self.may_add(record.index, record.length, record.data_sum.is_some()) {
            return None;
        }
        let taken = self.logs.place(record.log_bytes())?;
        self.begin(record.index, record.base, Some(taken.number));
        self.serial += 1;
        Some((taken, Order(self.serial)))
    }

    /// Allocates a place in the log for a record of a change that is also made in an own object.
    pub(super) fn place_beside(&mut self, record: &OverlayRecord) -> Option<(Taken, Order)> {
        self.serial += 1;
        Some((self.logs.place(record.log_bytes())?, Order(self.serial)))
    }

    /// Adds the content of a record from the previous owner's log that has this number.
    pub(super) fn take_over(&mut self, record: &OverlayRecord, data: Option<&Segments>, log: u64) {
        self.begin(record.index, record.base, Some(log));
        self.serial += 1;
        self.add(record.index, (record.within, record.length), data, Order(self.serial));
    }

    fn may_add(&self, index: u32, length: u64, is_data: bool) -> bool {
        let may_begin = self.kept_out == 0 && self.allowance > 0 || self.has_overlay(index);
        may_begin && !self.is_failing && self.memory.has(Runs::needed_bytes(length, is_data) + OBJECT_BYTES)
    }

    /// Creates an empty overlay at an index, unless there is one.
    fn begin(&mut self, index: u32, base: Entry, since: Option<u64>) {
        if let Some(overlay) = self.objects.get_mut(&index) {
            overlay.since = overlay.since.or(since);
            return;
        }
        self.allowance = self.allowance.saturating_sub(1);
        self.serial += 1;
        let overlay = Overlay { id: self.serial, base, runs: Runs::default(), since };
        self.memory.note(0, overlay.held_bytes());
        self.objects.insert(index, overlay);
        self.wake();
    }

    /// Adds a change to the existing overlay of its object.
    pub(super) fn add(
        &mut self,
        index: u32,
        (within, length): (u64, u64),
        data: Option<&Segments>,
        Order(order): Order,
    ) {
        self.serial += 1;
        let Some(overlay) = self.objects.get_mut(&index) else { return };
        let before = overlay.held_bytes();
        overlay.runs.insert(within, length, data, (order, self.serial));
        self.memory.note(before, overlay.held_bytes());
    }

    /// Returns the logs for a new head, if a new head must be written because of the logs: with
    /// `new` if another log is due.
    pub(super) fn renewal(&self, new: Option<OverlayLog>) -> Option<Renewal> {
        self.logs.renewal(self.first_needed(), new)
    }

    /// Returns whether `logs` include all logs that are needed.
    pub(super) fn are_enough(&self, logs: &[OverlayLog]) -> bool {
        self.logs.are_enough(self.first_needed(), logs)
    }

    fn first_needed(&self) -> Option<u64> {
        self.objects.values().filter_map(|overlay| overlay.since).min()
    }

    /// Returns whether the quota must be checked before another object gets an overlay.
    pub(super) fn lacks_allowance(&self) -> bool {
        self.allowance == 0 && self.kept_out == 0 && self.memory.is_any()
    }

    /// Sets how many more objects may get an overlay. `is_limited` states that the quota does not
    /// have space for more.
    pub(super) fn allow(&mut self, objects: u32, is_limited: bool) {
        (self.allowance, self.is_limited) = (objects, is_limited);
    }

    /// Returns whether objects wait for their copies and the quota has no space for further copies.
    pub(super) fn are_scarce(&self) -> bool {
        self.allowance == 0 && self.is_limited && !self.is_empty()
    }

    /// Returns the number of objects with an overlay.
    pub(super) fn count(&self) -> usize {
        self.objects.len()
    }

    /// Returns the indexes with an overlay.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.objects.keys().copied()
    }

    /// Returns the sources of a range of an object with an overlay, or `None` if the object has no
    /// overlay.
    pub(super) fn parts(&self, index: u32, within: u64, length: u64) -> Option<Vec<(u64, Source)>> {
        Some(self.objects.get(&index)?.runs.parts(within, length))
    }

    /// Removes the overlay at an index, where the volume now has the entry `by`.
    pub(super) fn forget(&mut self, index: u32, by: Entry) {
        if let Some(overlay) = self.objects.remove(&index) {
            self.memory.note(overlay.held_bytes(), 0);
            if let Some(since) = overlay.since {
                self.logs.note_replaced(index, (overlay.base, by), since);
            }
        }
    }

    /// Removes all overlays and logs. Returns the allocation ID of each log, and the number of its
    /// parts.
    pub(super) fn clear(&mut self) -> Vec<(u64, u32)> {
        for overlay in std::mem::take(&mut self.objects).into_values() {
            self.memory.note(overlay.held_bytes(), 0);
        }
        self.logs.end_all()
    }

    /// Wakes the task that waits for objects to merge.
    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Overlay {
    fn held_bytes(&self) -> u64 {
        OBJECT_BYTES + self.runs.held_bytes()
    }
}

impl Drop for Overlays {
    fn drop(&mut self) {
        self.clear();
    }
}

// ---- which changes go to an overlay: short ones that would otherwise wait for a copy of the
// object, while the quota has space for the copies

/// The maximum number of objects that get an overlay between two checks of a quota. If there are
/// other writes in the meantime, the copies may exceed the quota.
const OBJECTS_MAX: u32 = 64;
/// The same maximum without a quota.
const OBJECTS_MAX_UNLIMITED: u32 = 4096;

impl Inner {
    /// Checks how many objects may get an overlay, if no further object may get one as far as is
    /// known. The caller holds only the locks of a change.
    pub(super) async fn look_at_quota(&self, piece: &Piece) {
        if self.is_quota_wanted(piece) {
            let quota = self.space.quota().await;
            self.note_quota(quota);
        }
    }

    /// Checks in advance whether there is a quota, so that no change waits only to learn that there
    /// is none. The free space of a quota is checked when it is needed, because it may change until
    /// then.
    pub(crate) async fn look_ahead_at_quota(&self) {
        // Volumes with stamps have no overlays.
        if self.space.is_stamped() || !self.state.lock().overlays.lacks_allowance() {
            return;
        }
        match self.space.quota().await {
            Ok(Quota { bytes_max: Some(_), .. }) => {}
            Err(error) if !matches!(error, Store::Unsupported(_)) => {}
            quota => self.note_quota(quota),
        }
    }

    /// Checks as [`Self::look_at_quota`] does, but only if the store answers at once.
    pub(super) fn try_look_at_quota(&self, piece: &Piece) {
        if self.is_quota_wanted(piece)
            && let Reply::Ready(quota) = self.space.quota()
        {
            self.note_quota(quota);
        }
    }

    fn is_quota_wanted(&self, piece: &Piece) -> bool {
        let state = self.state.lock();
        state.overlays.lacks_allowance() && !state.live.get(piece.index).is_hole()
    }

    /// Allows as many new overlays as the quota has space for copies. If the quota is unknown,
    /// changes make their copies themselves.
    fn note_quota(&self, quota: Result<Quota, Store>) {
        let mut state = self.state.lock();
        let bytes_max = match quota {
            Ok(Quota { bytes_max: Some(bytes_max), used_bytes, .. }) => bytes_max.saturating_sub(used_bytes),
            Ok(_) | Err(Store::Unsupported(_)) => return state.overlays.allow(OBJECTS_MAX_UNLIMITED, false),
            Err(_) => return state.overlays.allow(0, false),
        };
        // Copies still to be made are not counted by the store yet.
        let due = state.overlays.count() as u64 * self.object_bytes;
        let allowed = bytes_max.saturating_sub(due) / self.object_bytes;
        // At most 64.
        state.overlays.allow(allowed.min(OBJECTS_MAX.into()) as u32, allowed < OBJECTS_MAX.into());
    }

    /// Called before a change: makes all due copies if the quota has no space for further ones, so
    /// that the change is refused only if there is no space for the change itself. The caller holds
    /// no lock.
    pub(super) async fn merge_if_scarce(&self) {
        if self.state.lock().overlays.are_scarce() {
            // A failed merge is retried; the change itself may have space.
            let _ = self.merge_overlays().await;
        }
    }

    /// Keeps a change in memory if possible: a short change of a part of an object that is not the
    /// volume's own, which need only be *cached* in this process. Returns whether the change was
    /// kept. The caller holds the barrier and the object shared, or the object exclusively.
    pub(super) fn keep_in_overlay(&self, write: &Write) -> Result<bool> {
        let Write { piece, content, durability } = write;
        // A cache that writes this volume through would acknowledge a write only once the store has
        // it.
        let is_cached = matches!(self.settings.write, None | Some(WriteMode::Back));
        let is_enough = *durability == Durability::Cached && is_cached && !self.promises.records_at_once;
        if !is_enough || !write.is_short(self.object_bytes) {
            return Ok(false);
        }
        let mut state = self.state.lock();
        match self.plan(&state, piece)? {
            Plan::Overlay { base } => {
                let range = (piece.within, piece.length);
                Ok(state.overlays.insert((piece.index, base), range, content.data()))
            }
            Plan::InPlace { .. } | Plan::New => Ok(false),
        }
    }
}
