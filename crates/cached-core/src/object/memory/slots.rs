//! The slots of an object: a state and a bucket number for each of its buckets, in 4 bytes.
//!
//! ```text
//!  31   29 28                             0
//! ┌───────┬────────────────────────────────┐
//! │ state │ bucket (for the last four)     │
//! └───────┴────────────────────────────────┘
//! ```
//! The state belongs to the slot, not to the bucket: after a copy the same bucket can be clean for
//! one object and dirty for another. The first four slots are in the object itself, so that a small
//! object needs no more. The others are in chunks of 64, which are allocated when one of their
//! slots is used and dropped with the last, so that a full object costs little more than its slots.

/// The number of buckets that 29 bits can address.
pub(crate) const BUCKETS_MAX: u32 = 1 << 29;
/// The size of a sector of a bucket; each sector has a bit in the bucket's masks.
pub(crate) const SECTOR_BYTES: usize = 512;

const FEW_SLOTS: usize = 4;
const CHUNK_SLOTS: usize = 64;
const STATE_SHIFT: u32 = 29;
/// The number of states.
pub(crate) const STATES: usize = 8;

/// The state of a slot's bytes.
///
/// ```text
///            load                 write                  flush begins
///  Absent ─────────> Clean ───────────────> Dirty ──────────────────────> Writing
///    ^  │ hole         │ evicted              ^  copied to another object:    │ stored: Clean
///    │  └────> ZeroClean                      │  DirtyWhole there             │ failed: Dirty
///    └─────────────────┘   discard: ZeroDirty ──flush begins──> ZeroWriting ──┘ (or ZeroClean, ZeroDirty)
/// ```
/// A write to a slot that is *writing* goes to a new bucket: the store still reads the old one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum State {
    /// The bytes are unknown: within the store's content they must be read from the store; beyond
    /// the content they are zeros.
    Absent = 0,
    /// Zeros, both in the cache and in the store.
    ZeroClean = 1,
    /// Zeros that the store does not have yet.
    ZeroDirty = 2,
    /// Zeros in flight to the store.
    ZeroWriting = 3,
    /// The valid sectors of the bucket are the same as in the store.
    Clean = 4,
    /// The dirty sectors of the bucket are newer than the store.
    Dirty = 5,
    /// All valid sectors of the bucket, which may be another object's, are newer than the store.
    DirtyWhole = 6,
    /// The bucket is in flight to the store.
    Writing = 7,
}

impl State {
    pub(crate) const ALL: [State; STATES] = [
        State::Absent,
        State::ZeroClean,
        State::ZeroDirty,
        State::ZeroWriting,
        State::Clean,
        State::Dirty,
        State::DirtyWhole,
        State::Writing,
    ];

    /// Returns whether a slot in this state has a bucket.
    #[inline]
    pub(crate) fn has_bucket(self) -> bool {
        self as u8 >= State::Clean as u8
    }

    /// Returns whether a slot in this state waits for a flush to begin.
    #[inline]
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, State::ZeroDirty | State::Dirty | State::DirtyWhole)
    }
}

/// A slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Slot(u32);

impl Slot {
    pub(crate) const ABSENT: Slot = Slot(0);

    /// Returns a slot without a bucket.
    pub(crate) fn bare(state: State) -> Slot {
        debug_assert!(!state.has_bucket());
        Slot((state as u32) << STATE_SHIFT)
    }

    /// Returns a slot with a bucket.
    pub(crate) fn of(state: State, bucket: u32) -> Slot {
        debug_assert!(state.has_bucket() && bucket < BUCKETS_MAX);
        Slot((state as u32) << STATE_SHIFT | bucket)
    }

    #[inline]
    pub(crate) fn state(self) -> State {
        State::ALL[(self.0 >> STATE_SHIFT) as usize]
    }

    /// Returns the slot's bucket; the result is meaningless if it has none.
    #[inline]
    pub(crate) fn bucket(self) -> u32 {
        self.0 & (BUCKETS_MAX - 1)
    }
}

struct Chunk {
    used: u32,
    slots: [Slot; CHUNK_SLOTS],
}

/// All slots of an object.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Slots {
    /// The first slots; their places in the first chunk stay empty.
    few: [Slot; FEW_SLOTS],
    chunks: Box<[Option<Box<Chunk>>]>,
    dirty: u32,
    held: u32,
}

impl Slots {
    #[inline]
    pub(crate) fn get(&self, at: u32) -> Slot {
        let at = at as usize;
        if let Some(slot) = self.few.get(at) {
            return *slot;
        }
        match self.chunks.get(at / CHUNK_SLOTS) {
            Some(Some(chunk)) => chunk.slots[at % CHUNK_SLOTS],
            _ => Slot::ABSENT,
        }
    }

    /// Sets a slot; returns the previous one.
    pub(crate) fn set(&mut self, at: u32, slot: Slot) -> Slot {
        let before = match self.few.get_mut(at as usize) {
            Some(place) => std::mem::replace(place, slot),
            None => self.set_far(at as usize, slot),
        };
        self.dirty -= u32::from(before.state().is_dirty());
        self.dirty += u32::from(slot.state().is_dirty());
        self.held -= u32::from(before.state().has_bucket());
        self.held += u32::from(slot.state().has_bucket());
        before
    }

    fn set_far(&mut self, at: usize, slot: Slot) -> Slot {
        let (index, within) = (at / CHUNK_SLOTS, at % CHUNK_SLOTS);
        if self.chunks.len() <= index {
            if slot == Slot::ABSENT {
                return Slot::ABSENT;
            }
            let mut more = Vec::with_capacity(index + 1);
            more.append(&mut std::mem::take(&mut self.chunks).into_vec());
            more.resize_with(index + 1, || None);
            self.chunks = more.into();
        }
        let place = &mut self.chunks[index];
        if place.is_none() && slot == Slot::ABSENT {
            return Slot::ABSENT;
        }
        let chunk =
            place.get_or_insert_with(|| Box::new(Chunk { used: 0, slots: [Slot::ABSENT; CHUNK_SLOTS] }));
        let before = std::mem::replace(&mut chunk.slots[within], slot);
        chunk.used += u32::from(slot != Slot::ABSENT);
        chunk.used -= u32::from(before != Slot::ABSENT);
        if chunk.used == 0 {
            *place = None;
        }
        before
    }

    /// Returns the number of slots with a bucket.
    pub(crate) fn held_count(&self) -> u32 {
        self.held
    }

    /// Returns the number of slots that wait for a flush to begin.
    pub(crate) fn dirty_count(&self) -> u32 {
        self.dirty
    }

    /// Returns the known slots from `from` on, in order.
    pub(crate) fn known_from(&self, from: u32) -> impl Iterator<Item = (u32, Slot)> + '_ {
        let chunks = self.chunks.iter().enumerate().skip(from as usize / CHUNK_SLOTS);
        let chunks = chunks.filter_map(|(index, chunk)| Some((index, chunk.as_deref()?)));
        let far = chunks.flat_map(|(index, chunk)| ((index * CHUNK_SLOTS) as u32..).zip(chunk.slots));
        let all = (0..).zip(self.few).chain(far);
        all.filter(move |(at, slot)| *at >= from && *slot != Slot::ABSENT)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_and_chunks_come_and_go() {
        let mut slots = Slots::default();
        assert_eq!(slots.get(70_000), Slot::ABSENT);
        assert_eq!(slots.set(1000, Slot::ABSENT), Slot::ABSENT);
        assert!(slots.chunks.is_empty());
        slots.set(1000, Slot::of(State::Clean, 7));
        slots.set(3, Slot::bare(State::ZeroDirty));
        assert_eq!(slots.get(1000).bucket(), 7);
        assert_eq!((slots.held_count(), slots.dirty_count()), (1, 1));
        assert_eq!(slots.known_from(4).map(|(at, _)| at).collect::<Vec<_>>(), [1000]);
        assert_eq!(slots.set(1000, Slot::of(State::Dirty, 8)).state(), State::Clean);
        assert_eq!(slots.dirty_count(), 2);
        slots.set(65, Slot::bare(State::ZeroClean));
        assert_eq!(slots.known_from(0).map(|(at, _)| at).collect::<Vec<_>>(), [3, 65, 1000]);
        slots.set(65, Slot::ABSENT);
        slots.set(3, Slot::ABSENT);
        slots.set(1000, Slot::ABSENT);
        assert_eq!((slots.held_count(), slots.dirty_count(), slots.known_from(0).count()), (0, 0, 0));
        assert!(slots.chunks.iter().all(Option::is_none));
    }

    #[test]
    fn every_state_survives_its_slot() {
        for state in State::ALL {
            let slot = if state.has_bucket() { Slot::of(state, 12345) } else { Slot::bare(state) };
            assert_eq!(slot.state(), state);
        }
    }
}
