//! What a volume's owner has in memory, under one lock that is never held across an await.

use std::ops::Range;

use blocker::{Epoch, Version};

use super::BIRTHS_RESERVED;
use super::drops::Drops;
use crate::error::{Error, Result};
use crate::format::entry::{BIRTH_MAX, Entry, Kind, VolumeId};
use crate::format::map::{Map, page_of};

use super::overlay::Overlays;

/// As many births are reserved at least when a change begins.
pub(super) const BIRTHS_MIN: u64 = 512;

/// Which birth a new object has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Births {
    /// The current one. The caller has the object alone, so nothing else of its place has it.
    Current,
    /// One that no other object has.
    Apart,
}

/// Whether a volume can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Status {
    Open,
    Closed,
    /// Closed, for another owner.
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
    /// The map of the snapshot that the volume comes after; holes if there is none in this volume.
    pub(super) parent: Map,
    /// The birth of objects born now.
    pub(super) birth: u64,
    /// Births from here on must be reserved in the head first.
    pub(super) birth_limit: u64,
    /// Objects that no map has any more, removed once that is stored.
    pub(super) drops: Drops,
    /// A head whose write was not seen to end. As long as there is one, nothing is promised: what the volume
    /// has in memory may not be what is stored.
    pub(super) in_flight: Option<Vec<u8>>,
    /// Whether it is being written just now. Whether it or the one before comes to be stored, both lead to what is
    /// acknowledged meanwhile: what could undo that has the turn.
    pub(super) is_sending: bool,
    /// How many births met an object of their name. None should.
    pub(super) births_met: u64,
    /// The version of the head, as the recorder has it.
    pub(super) head_version: Version,
    /// What was written over objects that are not copied yet.
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

    /// Returns whether `entry` at `index` is this volume's alone. Nodes that share an entry are a connected
    /// part of the tree, and the live volume is a leaf: so none has it if the one before has not. What came
    /// from another volume is shared with the snapshot there.
    pub(super) fn owns(&self, index: u32, entry: Entry) -> bool {
        entry.volume() == self.volume && self.parent.get(index) != entry
    }

    /// Returns the birth of the object at `index` if it may be written in place.
    pub(super) fn own_birth(&self, index: u32) -> Option<u64> {
        let entry = self.live.get(index);
        // What was written over it comes first, also where the snapshot that shared it is gone.
        (self.owns(index, entry) && !self.overlays.is_over(index)).then(|| entry.birth())
    }

    /// Returns whether nothing more is promised until it is known what became of a head.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.in_flight.is_some() && !self.is_sending
    }

    /// Ends the logging of changes of objects whose entries are stored by now.
    pub(super) fn forget_recorded(&mut self) {
        let recorded = &self.recorded;
        self.overlays.logs.forget_recorded(|index| recorded.get(index));
    }

    /// Returns over what changes of an own object are logged as well, until its entry is stored.
    pub(super) fn logged_base(&self, index: u32) -> Option<Entry> {
        self.overlays.logs.base_of_replaced(index, self.live.get(index))
    }

    /// Returns pages of the map with other entries where there are overlays: entries that no map has.
    pub(super) fn live_with_overlays(&self, pages: Range<usize>) -> Map {
        let mut map = self.live.within(pages.clone());
        for index in self.overlays.indices().filter(|index| pages.contains(&page_of(*index))) {
            map.set(index, Entry::new(self.volume, (self.birth + 1).min(BIRTH_MAX)));
        }
        map
    }

    /// Sets whether the volume can be used.
    pub(super) fn set_status(&mut self, status: Status) {
        self.status = status;
        self.overlays.wake();
    }

    /// Returns whether the entry of a place is stored.
    pub(super) fn is_recorded(&self, index: u32) -> bool {
        self.live.get(index) == self.recorded.get(index)
    }

    /// Returns whether there is something that a flush has to record, or to find out.
    pub(super) fn has_unrecorded(&self) -> bool {
        let mut pages = 0..self.live.pages.len();
        !self.drops.is_empty()
            || self.in_flight.is_some()
            || pages.any(|page| !self.live.shares_page(&self.recorded, page))
    }

    /// Makes an entry that of an object born now.
    pub(super) fn set_born(&mut self, index: u32, birth: u64) {
        let entry = Entry::new(self.volume, birth);
        self.overlays.forget(index, entry);
        self.live.set(index, entry);
    }

    /// Gives the volume a copy in place of what it was made of.
    pub(super) fn set_copied(&mut self, index: u32, birth: u64) {
        let base = self.live.get(index);
        if self.owns(index, base) {
            // A snapshot that shared it is gone, or was not made.
            self.drops.push(Kind::Data(base.birth(), index));
        }
        self.set_born(index, birth);
    }

    /// Makes a place a hole. Its object is removed later if no other node has it.
    pub(super) fn set_hole(&mut self, index: u32) {
        self.overlays.forget(index, Entry::HOLE);
        let old = self.live.get(index);
        if old.is_hole() {
            return;
        }
        if self.owns(index, old) {
            self.drops.push(Kind::Data(old.birth(), index));
            // The name is not used again: its removal may come late.
            if old.birth() == self.birth {
                self.birth += 1;
            }
        }
        self.live.set(index, Entry::HOLE);
    }

    /// Returns the birth for an object to be born now.
    pub(super) fn current_birth(&self) -> Result<u64> {
        self.check()?;
        if self.birth < self.birth_limit {
            return Ok(self.birth);
        }
        Err(Error::Io(blocker::Error::Retryable("too many births failed at once".into())))
    }

    /// Has logs removed that the head does not name any more: their births, and how many parts each has.
    pub(super) fn drop_logs(&mut self, logs: Vec<(u64, u32)>) {
        let parts = logs.into_iter().flat_map(|(birth, parts)| (0..parts).map(move |part| (birth, part)));
        self.drops.extend(parts.map(|(birth, part)| Kind::Overlay(birth, part)));
    }

    /// Returns whether no births can be reserved any more.
    pub(super) fn has_used_up_births(&self) -> bool {
        !self.has_births() && next_limit(self.birth.max(self.birth_limit)).is_err()
    }

    /// Returns whether enough births are reserved for a change.
    pub(super) fn has_births(&self) -> bool {
        self.birth + BIRTHS_MIN <= self.birth_limit
    }

    /// Returns the birth for an object to be born now, as [`Births`] has it.
    pub(super) fn next_birth(&mut self, births: Births) -> Result<u64> {
        let birth = self.current_birth()?;
        if births == Births::Current {
            return Ok(birth);
        }
        // The current one may be that of an object of the same place that is being made.
        self.birth += 1;
        let birth = self.current_birth()?;
        self.birth += 1;
        Ok(birth)
    }
}

/// Returns the limit to store so that births from `birth` on can be used.
pub(crate) fn next_limit(birth: u64) -> Result<u64> {
    if birth + BIRTHS_RESERVED > BIRTH_MAX {
        return Err(Error::Limit(
            "the volume has used up its births: export it and import it as a new one".into(),
        ));
    }
    Ok(birth + BIRTHS_RESERVED)
}
