//! The header of an object's file: 4 096 bytes before the data, two of its sectors in use.
//!
//! ```text
//! byte 0              512             1024                     4096
//!      | slot 0 | ... | slot 1 | ...  | zeros                  | data: the object's bytes
//!
//! a slot, little-endian:
//!      0        4        6       7       8        16       24        32         40      44
//!      | magic  | format | flags | zero  | count  | version | epoch  | sequence | crc   |
//! ```
//!
//! The slots are written in turn; the valid one with the higher count is in force. So a write that was
//! cut off leaves the one before. A file with two blank slots was never stored: it does not exist.

use crate::order::{Stamp, Version};

/// Where the object's bytes begin in its file.
pub(super) const HEADER_BYTES: u64 = 4096;
/// How far the slots are apart: a sector each, so that no crash can hurt both.
const SLOT_STRIDE_BYTES: usize = 512;
const SLOT_BYTES: usize = 44;
const MAGIC: [u8; 4] = *b"cSLT";
const FORMAT: u16 = 1;
const FLAG_TOMBSTONE: u8 = 1;
const FLAG_STAMP: u8 = 2;

/// What the header says about an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    /// Rises with every slot written.
    pub(super) count: u64,
    pub(super) version: Version,
    pub(super) stamp: Option<Stamp>,
    /// There is no object: this is the memory of its deletion.
    pub(super) tombstone: bool,
}

/// What was found in a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// This slot is in force.
    Slot(Slot),
    /// Nothing was ever stored here.
    Blank,
    /// Something was, but it fails its checks.
    Damaged,
    /// A newer program wrote this.
    Newer(u16),
}

impl Slot {
    /// Where in the file this slot goes.
    pub(super) fn offset(&self) -> u64 {
        (self.count % 2) * SLOT_STRIDE_BYTES as u64
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let stamp = self.stamp.unwrap_or(Stamp::new(0, 0));
        let tombstone = if self.tombstone { FLAG_TOMBSTONE } else { 0 };
        let stamped = if self.stamp.is_some() { FLAG_STAMP } else { 0 };
        let mut bytes = Vec::with_capacity(SLOT_STRIDE_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend([tombstone | stamped, 0]);
        bytes.extend(self.count.to_le_bytes());
        bytes.extend(self.version.0.to_le_bytes());
        bytes.extend(stamp.epoch.0.to_le_bytes());
        bytes.extend(stamp.sequence.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes.resize(SLOT_STRIDE_BYTES, 0);
        bytes
    }

    /// The slot in force in the first bytes of a file, however many there are.
    pub(super) fn find(header: &[u8]) -> Found {
        let sector = |index: usize| {
            let from = (index * SLOT_STRIDE_BYTES).min(header.len());
            &header[from..(from + SLOT_STRIDE_BYTES).min(header.len())]
        };
        let found = [Self::decode(sector(0)), Self::decode(sector(1))];
        if let Some(newer) = found.iter().find(|found| matches!(found, Found::Newer(_))) {
            return *newer;
        }
        let slots = found.iter().filter_map(|found| match found {
            Found::Slot(slot) => Some(*slot),
            _ => None,
        });
        match slots.max_by_key(|slot| slot.count) {
            Some(slot) => Found::Slot(slot),
            None if found == [Found::Blank; 2] => Found::Blank,
            None => Found::Damaged,
        }
    }

    fn decode(sector: &[u8]) -> Found {
        if sector.iter().all(|byte| *byte == 0) {
            return Found::Blank;
        }
        let Some((fields, crc)) = sector.get(..SLOT_BYTES).and_then(|slot| slot.split_last_chunk::<4>())
        else {
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
        if format > FORMAT {
            return Found::Newer(format);
        }
        let flags = fields[6];
        if flags & !(FLAG_TOMBSTONE | FLAG_STAMP) != 0 {
            return Found::Damaged;
        }
        if number(8) == u64::MAX {
            // No store gets so far, and none could go on from there.
            return Found::Damaged;
        }
        Found::Slot(Slot {
            count: number(8),
            version: Version(number(16)),
            stamp: (flags & FLAG_STAMP != 0).then(|| Stamp::new(number(24), number(32))),
            tombstone: flags & FLAG_TOMBSTONE != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slot(count: u64) -> Slot {
        Slot { count, version: Version(9), stamp: Some(Stamp::new(3, 4)), tombstone: count.is_multiple_of(3) }
    }

    fn header(slots: &[Slot]) -> Vec<u8> {
        let mut header = vec![0; HEADER_BYTES as usize];
        for slot in slots {
            let at = slot.offset() as usize;
            header[at..at + SLOT_STRIDE_BYTES].copy_from_slice(&slot.encode());
        }
        header
    }

    #[test]
    fn the_newest_valid_slot_is_in_force() {
        assert_eq!(Slot::find(&header(&[slot(4), slot(5)])), Found::Slot(slot(5)));
        let mut torn = header(&[slot(4), slot(5)]);
        torn[SLOT_STRIDE_BYTES + 20] ^= 1;
        assert_eq!(Slot::find(&torn), Found::Slot(slot(4)));
        torn[3] ^= 1;
        assert_eq!(Slot::find(&torn), Found::Damaged);
        assert_eq!(Slot::find(&[]), Found::Blank);
        assert_eq!(Slot::find(&header(&[])), Found::Blank);
    }

    #[test]
    fn a_newer_format_is_refused_even_beside_a_known_slot() {
        let mut newer = header(&[slot(4), slot(5)]);
        newer[4] = 2;
        let crc = crc32fast::hash(&newer[..SLOT_BYTES - 4]);
        newer[SLOT_BYTES - 4..SLOT_BYTES].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(Slot::find(&newer), Found::Newer(2));
    }

    proptest! {
        #[test]
        fn a_slot_comes_back(count in 0..u64::MAX, version: u64, stamp: Option<(u64, u64)>, tombstone: bool) {
            let stamp = stamp.map(|(epoch, sequence)| Stamp::new(epoch, sequence));
            let slot = Slot { count, version: Version(version), stamp, tombstone };
            prop_assert_eq!(Slot::find(&header(&[slot])), Found::Slot(slot));
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            Slot::find(&bytes);
        }

        #[test]
        fn no_flipped_bit_passes(byte in 0..SLOT_BYTES, bit in 0..8) {
            let mut header = header(&[slot(2)]);
            header[byte] ^= 1_u8 << bit;
            prop_assert_eq!(Slot::find(&header), Found::Damaged);
        }
    }
}
