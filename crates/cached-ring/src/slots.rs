//! Slots: the unit in which keys are assigned to nodes.

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
