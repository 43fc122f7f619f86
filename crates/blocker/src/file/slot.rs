//! The header of an object's file: 1 024 bytes, one *slot* in two identical copies, a sector each.
//!
//! ```text
//! byte 0              512             1024                      4096
//! packed    | slot | 0… | slot | 0… | data, up to 3 072 bytes |
//! unpacked  | slot | 0… | slot | 0… | zeros                   | data
//!
//! a slot, little-endian:
//!      0        4        6       7       8        16       24        32         40      44
//!      | "cSLT" | format | flags | zero  | count  | version | epoch  | sequence | crc   |
//!        flags: 1 tombstone, 2 has a stamp, 4 packed, 8 lost
//! ```
//!
//! A small object's data lie behind its header, so that it takes one block of 4 096 bytes; any other's begin
//! at the next block, where they are aligned for the page cache and for O_DIRECT. The length of the file
//! tells how many there are.
//!
//! Both copies are written by one write. Of two valid ones the higher count is in force: they differ only
//! where the power went in the middle of a write, for a sector is written whole or not at all. What has been
//! synced is in both; so when one is damaged the other has the same, and damage of one sector never brings
//! back an older header. A file with two blank slots was never stored: it does not exist.
//!
//! *Lost* is written when a sync has failed. The page cache then shows content that the disk does not have,
//! and a later sync would claim success. The flag lies in the same cache, so a process that finds it finds
//! such content, and writes the file anew before it serves anything.

use crate::order::{Stamp, Version};

/// The bytes of the header, both copies.
pub(super) const HEADER_BYTES: u64 = 1024;
/// Where the data of an unpacked object begin.
pub(super) const UNPACKED_AT: u64 = 4096;
/// The largest object that can be packed.
pub(super) const PACKED_BYTES_MAX: u64 = UNPACKED_AT - HEADER_BYTES;
/// How far the copies are apart: a sector each.
const COPY_STRIDE_BYTES: usize = 512;
pub(super) const SLOT_BYTES: usize = 44;
const MAGIC: [u8; 4] = *b"cSLT";
pub(super) const FORMAT: u16 = 2;
const FLAG_TOMBSTONE: u8 = 1;
const FLAG_STAMP: u8 = 2;
const FLAG_PACKED: u8 = 4;
const FLAG_LOST: u8 = 8;

/// The content of an object's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    /// Rises with every slot written.
    pub(super) count: u64,
    pub(super) version: Version,
    pub(super) stamp: Option<Stamp>,
    /// There is no object: this is the memory of its deletion.
    pub(super) tombstone: bool,
    /// The data begin right behind the header.
    pub(super) packed: bool,
    /// A sync of the file has failed: what is read of it may not be what is stored.
    pub(super) lost: bool,
}

/// What was found in a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// This slot is in force.
    Slot {
        slot: Slot,
        /// Only one copy passes its checks; the next write of the header mends the other.
        one_damaged: bool,
    },
    /// Nothing was ever stored here.
    Blank,
    /// Something was, but both copies fail their checks.
    Damaged,
    /// Another version of this program wrote this.
    Foreign(u16),
}

/// Where data begin.
pub(super) fn data_at(packed: bool) -> u64 {
    if packed { HEADER_BYTES } else { UNPACKED_AT }
}

impl Slot {
    /// Both copies of the slot, which go to the beginning of the file.
    pub(super) fn encode(&self) -> Vec<u8> {
        let stamp = self.stamp.unwrap_or(Stamp::new(0, 0));
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(self.tombstone, FLAG_TOMBSTONE)
            | flag(self.stamp.is_some(), FLAG_STAMP)
            | flag(self.packed, FLAG_PACKED)
            | flag(self.lost, FLAG_LOST);
        let mut bytes = Vec::with_capacity(HEADER_BYTES as usize);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend([flags, 0]);
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.version.0.to_le_bytes());
        bytes.extend(stamp.epoch.0.to_le_bytes());
        bytes.extend(stamp.sequence.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes.resize(COPY_STRIDE_BYTES, 0);
        bytes.extend_from_within(..);
        bytes
    }

    /// The slot in force in the first bytes of a file, however many there are.
    pub(super) fn find(header: &[u8]) -> Found {
        let copy = |index: usize| {
            let from = (index * COPY_STRIDE_BYTES).min(header.len());
            Self::decode(&header[from..(from + COPY_STRIDE_BYTES).min(header.len())])
        };
        match (copy(0), copy(1)) {
            (Found::Foreign(format), _) | (_, Found::Foreign(format)) => Found::Foreign(format),
            (Found::Slot { slot: one, .. }, Found::Slot { slot: two, .. }) => {
                match one.count.cmp(&two.count) {
                    std::cmp::Ordering::Equal if one != two => Found::Damaged,
                    std::cmp::Ordering::Less => Found::Slot { slot: two, one_damaged: false },
                    _ => Found::Slot { slot: one, one_damaged: false },
                }
            }
            // A creation of which the power left one sector looks like this as well.
            (Found::Slot { slot, .. }, Found::Blank) | (Found::Blank, Found::Slot { slot, .. }) => {
                Found::Slot { slot, one_damaged: slot.count > 1 }
            }
            (Found::Slot { slot, .. }, _) | (_, Found::Slot { slot, .. }) => {
                Found::Slot { slot, one_damaged: true }
            }
            (Found::Blank, Found::Blank) => Found::Blank,
            _ => Found::Damaged,
        }
    }

    fn decode(copy: &[u8]) -> Found {
        let slot = &copy[..SLOT_BYTES.min(copy.len())];
        if slot.iter().all(|byte| *byte == 0) {
            return Found::Blank;
        }
        let Some((fields, crc)) = slot.split_last_chunk::<4>().filter(|_| slot.len() == SLOT_BYTES) else {
            return Found::Damaged;
        };
        if fields[..4] != MAGIC || crc32fast::hash(fields) != u32::from_le_bytes(*crc) {
            return Found::Damaged;
        }
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&fields[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let format = u16::from_le_bytes([fields[4], fields[5]]);
        if format != FORMAT {
            return Found::Foreign(format);
        }
        let flags = fields[6];
        if flags & !(FLAG_TOMBSTONE | FLAG_STAMP | FLAG_PACKED | FLAG_LOST) != 0 {
            return Found::Damaged;
        }
        if number(8) == u64::MAX {
            // No store gets so far, and none could go on from there.
            return Found::Damaged;
        }
        let slot = Self {
            count: number(8),
            version: Version(number(16)),
            stamp: (flags & FLAG_STAMP != 0).then(|| Stamp::new(number(24), number(32))),
            tombstone: flags & FLAG_TOMBSTONE != 0,
            packed: flags & FLAG_PACKED != 0,
            lost: flags & FLAG_LOST != 0,
        };
        Found::Slot { slot, one_damaged: false }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(count: u64) -> Slot {
        Slot {
            count,
            version: Version(9 + count),
            stamp: Some(Stamp::new(3, 4)),
            tombstone: count.is_multiple_of(3),
            packed: count.is_multiple_of(2),
            lost: count.is_multiple_of(5),
        }
    }

    /// A header whose copies are of two writes.
    fn header(one: Slot, two: Slot) -> Vec<u8> {
        [&one.encode()[..COPY_STRIDE_BYTES], &two.encode()[COPY_STRIDE_BYTES..]].concat()
    }

    fn whole(slot: Slot) -> Found {
        Found::Slot { slot, one_damaged: false }
    }

    #[test]
    fn the_newest_copy_is_in_force() {
        assert_eq!(Slot::find(&header(slot(4), slot(5))), whole(slot(5)));
        assert_eq!(Slot::find(&header(slot(5), slot(4))), whole(slot(5)));
        assert_eq!(Slot::find(&slot(5).encode()), whole(slot(5)));
        assert_eq!(Slot::find(&[]), Found::Blank);
        assert_eq!(Slot::find(&[0; 4096]), Found::Blank);
        let mut differing = slot(5);
        differing.version = Version(1);
        assert_eq!(Slot::find(&header(slot(5), differing)), Found::Damaged);
    }

    #[test]
    fn damage_of_one_sector_brings_nothing_older_back() {
        for (from, fill) in [(0, 0), (COPY_STRIDE_BYTES, 0), (0, 0xff), (COPY_STRIDE_BYTES, 0xff)] {
            let mut header = slot(5).encode();
            header[from..from + COPY_STRIDE_BYTES].fill(fill);
            assert_eq!(Slot::find(&header), Found::Slot { slot: slot(5), one_damaged: true });
        }
        let mut both = slot(5).encode();
        both[3] ^= 1;
        both[COPY_STRIDE_BYTES + 20] ^= 1;
        assert_eq!(Slot::find(&both), Found::Damaged);
    }

    #[test]
    fn half_a_creation_is_no_damage() {
        let mut header = slot(1).encode();
        header[..COPY_STRIDE_BYTES].fill(0);
        assert_eq!(Slot::find(&header), whole(slot(1)));
        assert_eq!(Slot::find(&slot(1).encode()[..COPY_STRIDE_BYTES]), whole(slot(1)));
    }

    #[test]
    fn another_format_is_refused_even_beside_a_known_slot() {
        for format in [1, 3] {
            let mut foreign = slot(5).encode();
            foreign[4] = format;
            let crc = crc32fast::hash(&foreign[..SLOT_BYTES - 4]);
            foreign[SLOT_BYTES - 4..SLOT_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(Slot::find(&foreign), Found::Foreign(format.into()));
        }
    }

    proptest! {
        #[test]
        fn a_slot_comes_back(
            count in 0..u64::MAX, version: u64, stamp: Option<(u64, u64)>, tombstone: bool, packed: bool,
            lost: bool,
        ) {
            let stamp = stamp.map(|(epoch, sequence)| Stamp::new(epoch, sequence));
            let slot = Slot { count, version: Version(version), stamp, tombstone, packed, lost };
            prop_assert_eq!(Slot::find(&slot.encode()), whole(slot));
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            Slot::find(&bytes);
        }

        #[test]
        fn no_flipped_bit_passes(byte in 0..SLOT_BYTES, bit in 0..8, second: bool) {
            let mut header = slot(2).encode();
            header[byte + if second { COPY_STRIDE_BYTES } else { 0 }] ^= 1_u8 << bit;
            prop_assert_eq!(Slot::find(&header), Found::Slot { slot: slot(2), one_damaged: true });
        }
    }
}
