//! Slots: the unit in which keys are assigned to nodes.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// The number of slots of a ring.
pub const SLOTS: usize = 1 << 14;

/// One of the [`SLOTS`] slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u16);

impl Slot {
    /// Returns the slot with this number; `None` if there is no such slot.
    #[inline]
    #[must_use]
    pub const fn new(number: u16) -> Option<Slot> {
        if (number as usize) < SLOTS { Some(Slot(number)) } else { None }
    }

    /// Returns all slots in the order of their numbers.
    pub fn all() -> impl DoubleEndedIterator<Item = Slot> + ExactSizeIterator {
        (0..SLOTS as u16).map(Slot)
    }

    /// Returns the number of the slot, below [`SLOTS`].
    #[inline]
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0
    }
}

/// A set of slots. As a text it is its runs, as in `0-63,128`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct SlotSet(Box<[u64; SLOTS / 64]>);

impl SlotSet {
    /// Returns the set without slots.
    #[must_use]
    pub fn new() -> SlotSet {
        SlotSet(Box::new([0; SLOTS / 64]))
    }

    /// Returns whether the slot is in the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, slot: Slot) -> bool {
        self.0[usize::from(slot.0) / 64] & (1 << (slot.0 % 64)) != 0
    }

    /// Adds a slot. Returns whether it was not in the set.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let word = &mut self.0[usize::from(slot.0) / 64];
        let before = std::mem::replace(word, *word | 1 << (slot.0 % 64));
        before != *word
    }

    /// Removes a slot. Returns whether it was in the set.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let word = &mut self.0[usize::from(slot.0) / 64];
        let before = std::mem::replace(word, *word & !(1 << (slot.0 % 64)));
        before != *word
    }

    /// Returns the number of slots.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns whether the set has no slots.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Returns the slots in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        Slot::all().filter(|slot| self.contains(*slot))
    }

    /// Returns the first and the last slot of each run, in the order of their numbers.
    pub fn runs(&self) -> impl Iterator<Item = (Slot, Slot)> + '_ {
        let mut slots = self.iter().peekable();
        std::iter::from_fn(move || {
            let first = slots.next()?;
            let mut last = first;
            while let Some(next) = slots.next_if(|next| next.0 == last.0 + 1) {
                last = next;
            }
            Some((first, last))
        })
    }
}

impl Default for SlotSet {
    fn default() -> Self {
        Self::new()
    }
}

impl Extend<Slot> for SlotSet {
    fn extend<I: IntoIterator<Item = Slot>>(&mut self, slots: I) {
        for slot in slots {
            self.insert(slot);
        }
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::new();
        set.extend(slots);
        set
    }
}

impl fmt::Display for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.runs().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{}", first.0)?,
                false => write!(f, "{comma}{}-{}", first.0, last.0)?,
            }
        }
        Ok(())
    }
}

/// A text is not a run of slots.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a run; expected FIRST-LAST, slots from 0 to {last}", last = SLOTS - 1)]
pub struct NotARun(String);

impl FromStr for SlotSet {
    type Err = NotARun;

    /// Reads a text of runs, at least one.
    fn from_str(text: &str) -> Result<SlotSet, NotARun> {
        let mut set = SlotSet::new();
        for text in text.split(',') {
            let (first, last) = run(text)?;
            set.extend((first.0..=last.0).map(Slot));
        }
        Ok(set)
    }
}

impl fmt::Debug for SlotSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlotSet({self})")
    }
}

/// Returns the slot of a key: bits 16 to 29 of its CRC-32 (IEEE 802.3).
///
/// ```
/// assert_eq!(cached_ring::slot_of(b"123456789").number(), 0xcbf4_3926_u32.wrapping_shr(16) as u16 & 0x3fff);
/// ```
#[inline]
#[must_use]
pub fn slot_of(key: &[u8]) -> Slot {
    Slot((crc32fast::hash(key) >> 16) as u16 & (SLOTS as u16 - 1))
}

/// Returns the first and the last slot of a run, `FIRST-LAST` or one slot.
pub(crate) fn run(text: &str) -> Result<(Slot, Slot), NotARun> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let slot = |text: &str| text.parse().ok().and_then(Slot::new);
    let run = slot(first).zip(slot(last)).filter(|(first, last)| first <= last);
    run.ok_or_else(|| NotARun(text.to_owned()))
}
