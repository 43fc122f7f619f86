//! Overlays: what was written over an object that is not the volume's own, before there is a copy of the object.
//!
//! The first write to an object after a snapshot would have to wait for a copy of the whole object. Instead what it
//! writes is kept in memory, and reads lay it over the object. The copy is made later, beside the writes: the object is
//! *merged*, and the volume has the copy from then on.
//!
//! So what an overlay has is as durable as what was acknowledged as *cached* has to be. A flush merges all objects first;
//! so does a snapshot, whose map has no overlays, and the end of an owner. A change that promises more waits for the copy.
//!
//! What has overlays is here; `over.rs` puts changes into them, and `merge.rs` makes the copies.

mod runs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Waker};

use blocker::Segments;

use runs::Runs;
pub(super) use runs::{Run, Source};

use crate::entry::Entry;
use crate::room::Room;

/// The memory that one object's overlay takes beside its runs, about.
const OBJECT_BYTES: u64 = 512;

/// The overlays of a volume.
pub(super) struct Overlays {
    room: Arc<Room>,
    objects: BTreeMap<u32, Overlay>,
    /// The number of operations under way during which no object gets an overlay.
    kept_out: u32,
    /// Whether the last copy failed: then changes wait for the next one, and learn what became of it.
    pub(super) is_failing: bool,
    /// The number of runs and overlays that were ever made.
    serial: u64,
    /// Of the one that waits for something to merge.
    waker: Option<Waker>,
}

/// What was written over one object.
struct Overlay {
    /// No other overlay has it.
    id: u64,
    /// The object that was written over: what the map has as long as there is the overlay.
    base: Entry,
    runs: Runs,
}

impl Overlays {
    pub(super) fn new(room: Arc<Room>) -> Self {
        Self { room, objects: BTreeMap::new(), kept_out: 0, is_failing: false, serial: 0, waker: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns whether something was written over an object.
    pub(super) fn is_over(&self, index: u32) -> bool {
        self.objects.contains_key(&index)
    }

    /// Returns the number of the overlay in a place, and the object below, if there is one.
    pub(super) fn of(&self, index: u32) -> Option<(u64, Entry)> {
        self.objects.get(&index).map(|overlay| (overlay.id, overlay.base))
    }

    /// Returns what was written over an object since `serial`, which becomes what is to be given the next time.
    pub(super) fn runs_after(&self, index: u32, serial: &mut u64) -> Vec<(u64, Run)> {
        let after = std::mem::replace(serial, self.serial);
        self.objects.get(&index).map(|overlay| overlay.runs.after(after)).unwrap_or_default()
    }

    /// Adds a change over `base`, zeros without data, if there is room. Returns whether it did.
    pub(super) fn insert(
        &mut self,
        (index, base): (u32, Entry),
        (within, length): (u64, u64),
        data: Option<&Segments>,
    ) -> bool {
        let is_new = !self.is_over(index);
        if self.is_failing || (is_new && self.kept_out > 0) {
            return false;
        }
        if !self.room.has(Runs::needed_bytes(length, data.is_some()) + OBJECT_BYTES) {
            return false;
        }
        self.serial += 1;
        let serial = self.serial;
        let new = || Overlay { id: serial, base, runs: Runs::default() };
        let overlay = self.objects.entry(index).or_insert_with(new);
        let before = if is_new { 0 } else { overlay.held_bytes() };
        overlay.runs.insert(within, length, data, (serial, serial));
        self.room.note(before, overlay.held_bytes());
        if is_new {
            self.wake();
        }
        true
    }

    /// Lets no object have an overlay that has none, until [`Self::let_in`] was called as often.
    pub(super) fn keep_out(&mut self) {
        self.kept_out += 1;
    }

    pub(super) fn let_in(&mut self) {
        self.kept_out -= 1;
    }

    /// Has the task of `context` woken once an object has an overlay, or nothing is to be waited for any more.
    pub(super) fn wait(&mut self, context: &Context<'_>) {
        self.waker = Some(context.waker().clone());
    }

    /// Returns the places with an overlay.
    pub(super) fn indices(&self) -> impl Iterator<Item = u32> + '_ {
        self.objects.keys().copied()
    }

    /// Returns where the bytes of an object with an overlay are; `None` if it has none.
    pub(super) fn parts(&self, index: u32, within: u64, length: u64) -> Option<Vec<(u64, Source)>> {
        Some(self.objects.get(&index)?.runs.parts(within, length))
    }

    /// Forgets what was written over an object: all of it was replaced, or is in a copy.
    pub(super) fn forget(&mut self, index: u32) {
        if let Some(overlay) = self.objects.remove(&index) {
            self.room.note(overlay.held_bytes(), 0);
        }
    }

    /// Forgets everything that was written over objects.
    pub(super) fn clear(&mut self) {
        let indices: Vec<u32> = self.indices().collect();
        indices.into_iter().for_each(|index| self.forget(index));
    }

    /// Wakes the one that waits for something to merge.
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
