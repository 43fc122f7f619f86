//! The slots of one object: what each of its buckets is, in 4 bytes.
//!
//! ```text
//!  31   29 28                             0
//! ┌───────┬────────────────────────────────┐
//! │ state │ bucket (for the last four)     │
//! └───────┴────────────────────────────────┘
//! ```
//! State belongs to the slot, not to the bucket: after a copy one bucket can be clean for one object and
//! dirty for another. Slots come in chunks of 64, made when one of them is used and dropped with the
//! last, so that an object of one bucket is small and a full one costs little more than its slots.

/// Buckets that 29 bits can name.
pub(crate) const BUCKETS_MAX: u32 = 1 << 29;
/// Sectors of a bucket, a bit each in its masks.
pub(crate) const SECTOR_BYTES: usize = 512;

const CHUNK_SLOTS: usize = 64;
const STATE_SHIFT: u32 = 29;
/// How many states there are.
pub(crate) const STATES: usize = 8;

/// What is known of the bytes of one slot.
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
    /// Nothing is known: ask the store, as far as its content reaches; zeros beyond.
    Absent = 0,
    /// Zeros, here and in the store.
    ZeroClean = 1,
    /// Zeros that the store does not know of.
    ZeroDirty = 2,
    /// Zeros on their way to the store.
    ZeroWriting = 3,
    /// The valid sectors of the bucket are what the store has.
    Clean = 4,
    /// The dirty sectors of the bucket are newer than the store.
    Dirty = 5,
    /// All valid sectors of the bucket, which may be another object's, are newer than the store.
    DirtyWhole = 6,
    /// The bucket is on its way to the store.
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

    /// Whether there is a bucket.
    pub(crate) fn has_bucket(self) -> bool {
        self as u8 >= State::Clean as u8
    }

    /// Whether it waits for a flush to begin.
    pub(crate) fn is_dirty(self) -> bool {
        matches!(self, State::ZeroDirty | State::Dirty | State::DirtyWhole)
    }
}

/// One slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(u32);

impl Slot {
    pub(crate) const ABSENT: Slot = Slot(0);

    /// A slot without a bucket.
    pub(crate) fn bare(state: State) -> Slot {
        debug_assert!(!state.has_bucket());
        Slot((state as u32) << STATE_SHIFT)
    }

    /// A slot with one.
    pub(crate) fn of(state: State, bucket: u32) -> Slot {
        debug_assert!(state.has_bucket() && bucket < BUCKETS_MAX);
        Slot((state as u32) << STATE_SHIFT | bucket)
    }

    #[inline]
    pub(crate) fn state(self) -> State {
        State::ALL[(self.0 >> STATE_SHIFT) as usize]
    }

    /// Its bucket; of no meaning without one.
    #[inline]
    pub(crate) fn bucket(self) -> u32 {
        self.0 & (BUCKETS_MAX - 1)
    }
}

struct Chunk {
    used: u32,
    slots: [Slot; CHUNK_SLOTS],
}

/// All slots of one object.
#[derive(Default)]
pub(crate) struct Slots {
    chunks: Vec<Option<Box<Chunk>>>,
    counts: [u32; STATES],
}

impl Slots {
    #[inline]
    pub(crate) fn get(&self, at: u32) -> Slot {
        let at = at as usize;
        match self.chunks.get(at / CHUNK_SLOTS) {
            Some(Some(chunk)) => chunk.slots[at % CHUNK_SLOTS],
            _ => Slot::ABSENT,
        }
    }

    /// Sets a slot; tells what it was.
    pub(crate) fn set(&mut self, at: u32, slot: Slot) -> Slot {
        let (index, within) = (at as usize / CHUNK_SLOTS, at as usize % CHUNK_SLOTS);
        if self.chunks.len() <= index {
            if slot == Slot::ABSENT {
                return Slot::ABSENT;
            }
            self.chunks.reserve_exact(index + 1 - self.chunks.len());
            self.chunks.resize_with(index + 1, || None);
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
        self.count(before, u32::wrapping_sub);
        self.count(slot, u32::wrapping_add);
        before
    }

    fn count(&mut self, slot: Slot, by: fn(u32, u32) -> u32) {
        if slot != Slot::ABSENT {
            let count = &mut self.counts[slot.state() as usize];
            *count = by(*count, 1);
        }
    }

    /// How many slots are in `state`; those that are absent are not counted.
    pub(crate) fn count_of(&self, state: State) -> u32 {
        self.counts[state as usize]
    }

    /// How many wait for a flush to begin.
    pub(crate) fn dirty_count(&self) -> u32 {
        State::ALL.iter().filter(|state| state.is_dirty()).map(|state| self.count_of(*state)).sum()
    }

    /// Whether nothing is known of any.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.iter().all(|count| *count == 0)
    }

    /// The slots from `from` on of which something is known, in order.
    pub(crate) fn known_from(&self, from: u32) -> impl Iterator<Item = (u32, Slot)> + '_ {
        let chunks = self.chunks.iter().enumerate().skip(from as usize / CHUNK_SLOTS);
        let chunks = chunks.filter_map(|(index, chunk)| Some((index, chunk.as_deref()?)));
        chunks.flat_map(move |(index, chunk)| {
            let first = (index * CHUNK_SLOTS) as u32;
            let slots = (first..).zip(chunk.slots);
            slots.filter(move |(at, slot)| *at >= from && *slot != Slot::ABSENT)
        })
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
        assert_eq!((slots.count_of(State::Clean), slots.dirty_count()), (1, 1));
        assert_eq!(slots.known_from(4).map(|(at, _)| at).collect::<Vec<_>>(), [1000]);
        assert_eq!(slots.set(1000, Slot::of(State::Dirty, 8)).state(), State::Clean);
        assert_eq!(slots.dirty_count(), 2);
        slots.set(3, Slot::ABSENT);
        slots.set(1000, Slot::ABSENT);
        assert!(slots.is_empty() && slots.chunks.iter().all(Option::is_none));
    }

    #[test]
    fn every_state_survives_its_slot() {
        for state in State::ALL {
            let slot = if state.has_bucket() { Slot::of(state, 12345) } else { Slot::bare(state) };
            assert_eq!(slot.state(), state);
        }
    }
}
