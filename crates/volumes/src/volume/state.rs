//! The state that a volume's owner has in memory, under one lock that is never held across an
//! await.

use std::collections::VecDeque;
use std::ops::Range;

use blocker::{Epoch, Error as Store, Version};

use super::overlay::Overlays;
use super::{ALLOCATIONS_RESERVED, Inner};
use crate::error::{Error, Result};
use crate::format::entry::{ALLOCATION_MAX, Entry, Kind, VolumeId};
use crate::format::map::{Map, page_of};

/// The minimum number of reserved allocation IDs when a change begins.
pub(super) const ALLOCATIONS_MIN: u64 = 512;

/// The kind of allocation ID that a new object gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NewId {
    /// The current ID. The caller holds the object exclusively, so no other object with its index
    /// has this ID.
    Current,
    /// An ID that no other object has.
    Apart,
}

/// Whether a volume can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Open,
    Closed,
    /// The volume was closed and handed over to another owner.
    HandedOver,
    Fenced(Epoch),
    Interrupted,
}

pub(super) struct State {
    pub(super) volume: VolumeId,
    pub(super) status: Status,
    pub(super) size_bytes: u64,
    /// The map as the volume's user sees it.
    pub(super) live: Map,
    /// The map as it is stored.
    pub(super) recorded: Map,
    /// The map of the volume's last snapshot; holes if it has none.
    pub(super) parent: Map,
    /// The allocation ID of objects that are allocated now.
    pub(super) allocation: u64,
    /// The first allocation ID that must be reserved in the head before it is used.
    pub(super) allocation_limit: u64,
    /// Objects that no map names any more, removed once that is stored.
    pub(super) drops: Drops,
    /// A head whose write has an unknown outcome. As long as there is one, no further guarantees
    /// are given, because the state in memory may not match the store.
    pub(super) in_flight: Option<Vec<u8>>,
    /// Whether the head is being written now. Whichever of the old and the new head is in force
    /// afterwards, it leads to the changes acknowledged in the meantime, because operations that
    /// could undo them hold the barrier.
    pub(super) is_sending: bool,
    /// The number of allocations that met an existing object with their name. It should be 0.
    pub(super) births_met: u64,
    /// The version of the recorder's head.
    pub(super) head_version: Version,
    /// The overlays of objects that are not copied yet.
    pub(super) overlays: Overlays,
}

impl State {
    /// Checks that the volume can be used.
    pub(super) fn check(&self) -> Result<()> {
        match self.status {
            Status::Open => Ok(()),
            Status::Closed => Err(Error::Closed),
            Status::HandedOver => Err(Error::HandedOver),
            Status::Fenced(epoch) => Err(Error::Fenced { epoch }),
            Status::Interrupted => Err(Error::Interrupted),
        }
    }

    /// Checks that a range lies within the volume.
    pub(super) fn check_range(&self, offset: u64, length: u64) -> Result<()> {
        self.check()?;
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes => Ok(()),
            _ => Err(Error::OutOfRange { offset, length, size_bytes: self.size_bytes }),
        }
    }

    /// Returns whether only this volume refers to `entry`, its entry at `index`. Checking the
    /// parent is enough: the nodes that share an entry are connected in the tree, and the live
    /// volume is a leaf. An entry allocated by another volume is still shared with that volume's
    /// snapshot.
    pub(super) fn owns(&self, index: u32, entry: Entry) -> bool {
        entry.volume() == self.volume && self.parent.get(index) != entry
    }

    /// Returns the allocation ID of the object at `index` if it may be written in place.
    pub(super) fn own_allocation(&self, index: u32) -> Option<u64> {
        let entry = self.live.get(index);
        // An object with an overlay is not written in place, even if the snapshot that shared it is
        // gone.
        (self.owns(index, entry) && !self.overlays.has_overlay(index)).then(|| entry.allocation())
    }

    /// Returns whether no further guarantees may be given until the outcome of a head is known.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_flight.is_some() && !self.is_sending
    }

    /// Ends the logging of changes of objects whose entries are now stored.
    pub(super) fn forget_recorded(&mut self) {
        let recorded = &self.recorded;
        self.overlays.logs.forget_recorded(|index| recorded.get(index));
    }

    /// Returns the entry over which changes of an own object are also logged, until its own entry
    /// is stored.
    pub(super) fn logged_base(&self, index: u32) -> Option<Entry> {
        self.overlays.logs.base_of_replaced(index, self.live.get(index))
    }

    /// Returns pages of the map, in which each object with an overlay has an entry that occurs in
    /// no map.
    pub(super) fn live_with_overlays(&self, pages: Range<usize>) -> Map {
        let mut map = self.live.within(pages.clone());
        for index in self.overlays.indices().filter(|index| pages.contains(&page_of(*index))) {
            map.set(index, Entry::new(self.volume, (self.allocation + 1).min(ALLOCATION_MAX)));
        }
        map
    }

    /// Sets whether the volume can be used.
    pub(super) fn set_status(&mut self, status: Status) {
        self.status = status;
        self.overlays.wake();
    }

    /// Returns whether the entry at an index is stored.
    pub(super) fn is_recorded(&self, index: u32) -> bool {
        self.live.get(index) == self.recorded.get(index)
    }

    /// Returns whether a flush has anything to record or to resolve.
    pub(super) fn has_unrecorded(&self) -> bool {
        let mut pages = 0..self.live.pages.len();
        !self.drops.queue.is_empty()
            || self.in_flight.is_some()
            || pages.any(|page| !self.live.shares_page(&self.recorded, page))
    }

    /// Sets the entry of a newly allocated object at an index.
    pub(super) fn set_allocated(&mut self, index: u32, allocation: u64) {
        let entry = Entry::new(self.volume, allocation);
        self.overlays.forget(index, entry);
        self.live.set(index, entry);
    }

    /// Replaces an object by its copy.
    pub(super) fn set_copied(&mut self, index: u32, allocation: u64) {
        let base = self.live.get(index);
        if self.owns(index, base) {
            // The snapshot that shared the object is gone, or was not taken.
            self.drops.queue.push_back(Kind::Data(base.allocation(), index));
        }
        self.set_allocated(index, allocation);
    }

    /// Makes an index a hole. Its object is removed later if no other node has it.
    pub(super) fn set_hole(&mut self, index: u32) {
        self.overlays.forget(index, Entry::HOLE);
        let old = self.live.get(index);
        if old.is_hole() {
            return;
        }
        if self.owns(index, old) {
            self.drops.queue.push_back(Kind::Data(old.allocation(), index));
            // The name is not reused, because its removal may come late.
            if old.allocation() == self.allocation {
                self.allocation += 1;
            }
        }
        self.live.set(index, Entry::HOLE);
    }

    /// Returns the current allocation ID.
    pub(super) fn current_allocation(&self) -> Result<u64> {
        self.check()?;
        if self.allocation < self.allocation_limit {
            return Ok(self.allocation);
        }
        Err(Error::Io(blocker::Error::Retryable("too many allocations failed at the same time".into())))
    }

    /// Replaces the volume's content, and schedules the removal of the objects, pages and logs that
    /// only this content has.
    pub(super) fn replace(&mut self, pages: Vec<Kind>, live: Map, parent: Map) {
        let own = self.live.objects().filter(|(index, entry)| self.owns(*index, *entry));
        let own: Vec<_> = own.map(|(index, entry)| Kind::Data(entry.allocation(), index)).collect();
        self.drops.queue.extend(own.into_iter().chain(pages));
        let logs = self.overlays.clear();
        self.drop_logs(logs);
        (self.live, self.recorded, self.parent) = (live.clone(), live, parent);
    }

    /// Schedules the removal of logs that the head no longer names. `logs` has the allocation ID of
    /// each log and the number of its parts.
    pub(super) fn drop_logs(&mut self, logs: Vec<(u64, u32)>) {
        for (allocation, parts) in logs {
            self.drops.queue.extend((0..parts).map(|part| Kind::Overlay(allocation, part)));
        }
    }

    /// Returns whether no allocation IDs can be reserved any more.
    pub(super) fn has_used_up_allocations(&self) -> bool {
        !self.has_allocations() && next_limit(self.allocation.max(self.allocation_limit)).is_err()
    }

    /// Returns whether enough allocation IDs are reserved for a change.
    pub(super) fn has_allocations(&self) -> bool {
        self.allocation + ALLOCATIONS_MIN <= self.allocation_limit
    }

    /// Returns the allocation ID for a new object.
    pub(super) fn next_allocation(&mut self, new_id: NewId) -> Result<u64> {
        let allocation = self.current_allocation()?;
        if new_id == NewId::Current {
            return Ok(allocation);
        }
        // The current id may belong to an object of the same index that is being created.
        self.allocation += 1;
        let allocation = self.current_allocation()?;
        self.allocation += 1;
        Ok(allocation)
    }
}

/// Returns the limit to store so that ids from `allocation` on can be used.
pub(crate) fn next_limit(allocation: u64) -> Result<u64> {
    if allocation + ALLOCATIONS_RESERVED > ALLOCATION_MAX {
        return Err(Error::Limit(
            "the volume has used up its allocation ids: export it and import it as a new one".into(),
        ));
    }
    Ok(allocation + ALLOCATIONS_RESERVED)
}

// ---- objects that no map names any more; they are removed once a record without them is stored
// (`record.rs`)

/// The number of concurrent removals.
const REMOVALS_MAX: usize = 32;
/// The maximum number of objects that a flush removes, because a guest waits for it. The rest is
/// left to later flushes.
pub(super) const FLUSH_REMOVALS_MAX: usize = 256;
/// The number of objects waiting to be removed at which a discard waits for their removal, because
/// they take space in the store.
pub(super) const DROPS_MAX: usize = 1024;

/// The objects to be removed, in the order in which the maps dropped them.
#[derive(Default)]
pub(super) struct Drops {
    pub(super) queue: VecDeque<Kind>,
    /// The number of objects taken from the front of the queue.
    taken: u64,
    /// The number of objects ever queued that no stored map names.
    covered: u64,
}

impl Drops {
    /// Returns the number of objects ever queued: for [`Self::cover`], once the current maps are
    /// stored.
    pub(super) fn mark(&self) -> u64 {
        self.taken + self.queue.len() as u64
    }

    /// Records that no stored map names the objects queued before this mark.
    pub(super) fn cover(&mut self, mark: u64) {
        self.covered = self.covered.max(mark);
    }

    /// Takes at most `max` objects that no stored map names.
    fn take(&mut self, max: usize) -> Vec<Kind> {
        let covered = self.covered.saturating_sub(self.taken).min(self.queue.len() as u64);
        // At most `max`.
        let count = covered.min(max as u64) as usize;
        self.taken += count as u64;
        self.queue.drain(..count).collect()
    }
}

/// Objects whose removal has begun. When the batch is dropped, the objects that were not removed
/// return to the queue.
struct Batch<'a> {
    inner: &'a Inner,
    kinds: Vec<Kind>,
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // The queue gets back at most as many objects as were taken from it.
        self.inner.state.lock().drops.queue.extend(self.kinds.drain(..));
    }
}

impl Inner {
    /// Removes at most `max` objects that no stored map names. A failed removal is not an error,
    /// because the object only takes space. The caller need not hold the recorder, because the
    /// names are not reused.
    pub(super) async fn remove_drops(&self, max: usize) {
        let _removing = self.removing.read().await;
        let mut left = max;
        while left > 0 && self.is_open() {
            let kinds = self.state.lock().drops.take(left.min(REMOVALS_MAX));
            if kinds.is_empty() {
                return;
            }
            left -= kinds.len();
            let mut batch = Batch { inner: self, kinds };
            let objects = batch.kinds.iter().map(|kind| self.space.object(*kind)).collect();
            let mut answers = self.space.remove_each(objects).await.into_iter();
            batch.kinds.retain(|_| match answers.next() {
                None | Some(Ok(())) => false,
                // Another attempt would fail as well; a check will report the object.
                Some(Err(
                    Store::Corrupt(_) | Store::Denied(_) | Store::Invalid(_) | Store::Unsupported(_),
                )) => false,
                Some(Err(error)) => {
                    self.noted(error);
                    true
                }
            });
            if !batch.kinds.is_empty() {
                return;
            }
        }
    }

    /// Records everything, and removes all objects that no map names any more. The caller holds no
    /// lock.
    pub(super) async fn clear_drops(&self) -> crate::error::Result<()> {
        if self.state.lock().drops.queue.is_empty() {
            return Ok(());
        }
        {
            let mut recorder = self.recorder().await?;
            self.record(&mut recorder).await?;
        }
        self.remove_drops(usize::MAX).await;
        Ok(())
    }

    /// Waits until no removal is in progress. The caller holds the recorder and the barrier, so
    /// that no new removal begins.
    pub(super) async fn removals_ended(&self) {
        drop(self.removing.write().await);
    }
}
