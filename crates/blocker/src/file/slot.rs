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
//!      44           48           56     60           64
//!      | crc of name | size       | zero | crc of all |
//! ```
//!
//! Earlier programs write zeros to the last 20 bytes, and ignore them when reading. The checksum of
//! the name (see [`name_sum`]) detects a file that was moved to another path; the size, in bytes,
//! one that was truncated or extended. The size is the file's size when the header was last
//! written; the version shows whether a later change has modified the data (see `Object::load`).
//!
//! A small object's data are stored directly after its header, so that it takes one block of 4 096
//! bytes; a larger object's data begin at the next block, where they are aligned for the page cache
//! and for O_DIRECT. The file's length determines the number of bytes.
//!
//! Both copies are written by one write. Of two valid copies the one with the higher count is in
//! force: they differ only if the power failed in the middle of a write, because a sector is
//! written as a whole or not at all. Both copies have every synced header; so if one is damaged the
//! other equals it, and damage to one sector never restores an older header. A file with two blank
//! slots was never stored: the object does not exist.
//!
//! *Lost* is written when a sync has failed. The page cache then shows content that the disk does
//! not have, and a later sync would claim success. The flag is in the same cache, so a process that
//! finds the flag also finds such content, and rewrites the file before it serves the object.

use crate::{ObjectId, Stamp, Version};

/// The bytes of the header, both copies.
pub(super) const HEADER_BYTES: u64 = 1024;
/// Where the data of an unpacked object begin.
pub(super) const UNPACKED_AT: u64 = 4096;
/// The largest object that can be packed.
pub(super) const PACKED_BYTES_MAX: u64 = UNPACKED_AT - HEADER_BYTES;
/// The distance between the two copies, each of which has its own sector.
const COPY_STRIDE_BYTES: usize = 512;
/// The length of a slot without name and size.
const CORE_BYTES: usize = 44;
pub(super) const SLOT_BYTES: usize = 64;
const MAGIC: [u8; 4] = *b"cSLT";
pub(super) const FORMAT: u16 = 2;
const FLAG_TOMBSTONE: u8 = 1;
const FLAG_STAMP: u8 = 2;
const FLAG_PACKED: u8 = 4;
const FLAG_LOST: u8 = 8;

/// The content of an object's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Slot {
    /// A count that rises with every slot written.
    pub(super) count: u64,
    pub(super) version: Version,
    pub(super) stamp: Option<Stamp>,
    /// The object was deleted: this is a remembered deletion.
    pub(super) tombstone: bool,
    /// The data begin right behind the header.
    pub(super) packed: bool,
    /// Whether a sync of the file has failed: the readable content may differ from the stored one.
    pub(super) lost: bool,
    /// The object's size when the slot was written; `None` in a slot of an earlier program.
    pub(super) size_bytes: Option<u64>,
}

/// The result of reading a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// This slot is in force.
    Slot {
        slot: Slot,
        /// Only one copy passes its checks; the next write of the header repairs the other.
        one_damaged: bool,
    },
    /// The header was never stored.
    Blank,
    /// Both copies fail their checks.
    Damaged,
    /// The header belongs to an object of another name.
    Misplaced,
    /// Another version of this program wrote the header.
    Foreign(u16),
}

/// Returns the file offset at which data begin.
pub(super) fn data_at(packed: bool) -> u64 {
    if packed { HEADER_BYTES } else { UNPACKED_AT }
}

/// Returns the checksum of a name by which a slot identifies its object.
pub(super) fn name_sum(id: &ObjectId) -> u32 {
    let namespace = id.namespace.as_bytes();
    let mut sum = crc32fast::Hasher::new();
    // The length is at most 255.
    sum.update(&[namespace.len() as u8]);
    sum.update(namespace);
    sum.update(id.name.as_bytes());
    sum.finalize()
}

impl Slot {
    /// Returns the first slot of a new object.
    pub(super) fn first(version: Version, stamp: Option<Stamp>, packed: bool, size_bytes: u64) -> Self {
        Self { count: 0, version, stamp, tombstone: false, packed, lost: false, size_bytes: Some(size_bytes) }
    }

    /// Returns the slot of a remembered deletion.
    pub(super) fn tombstone(version: Version, stamp: Option<Stamp>) -> Self {
        Self { tombstone: true, ..Self::first(version, stamp, true, 0) }
    }

    /// Encodes both copies of the slot, for the beginning of the file of the object with this
    /// [`name_sum`].
    pub(super) fn encode(&self, name_sum: u32) -> Vec<u8> {
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
        if let Some(size_bytes) = self.size_bytes {
            bytes.extend(name_sum.to_le_bytes());
            bytes.extend(size_bytes.to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        }
        bytes.resize(COPY_STRIDE_BYTES, 0);
        bytes.extend_from_within(..);
        bytes
    }

    /// Finds the slot in force in the first bytes of a file (which may be fewer than a header), for
    /// the object with this [`name_sum`].
    pub(super) fn find(header: &[u8], name_sum: u32) -> Found {
        let copy = |index: usize| {
            let from = (index * COPY_STRIDE_BYTES).min(header.len());
            Self::decode(&header[from..(from + COPY_STRIDE_BYTES).min(header.len())], name_sum)
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
            // A creation of which a power loss has left one sector looks the same.
            (Found::Slot { slot, .. }, Found::Blank) | (Found::Blank, Found::Slot { slot, .. }) => {
                Found::Slot { slot, one_damaged: slot.count > 1 }
            }
            (Found::Slot { slot, .. }, _) | (_, Found::Slot { slot, .. }) => {
                Found::Slot { slot, one_damaged: true }
            }
            (Found::Misplaced, _) | (_, Found::Misplaced) => Found::Misplaced,
            (Found::Blank, Found::Blank) => Found::Blank,
            _ => Found::Damaged,
        }
    }

    fn decode(copy: &[u8], name_sum: u32) -> Found {
        let slot = &copy[..SLOT_BYTES.min(copy.len())];
        if slot.iter().all(|byte| *byte == 0) {
            return Found::Blank;
        }
        let is_sealed = |bytes: &[u8]| {
            let sealed = bytes.split_last_chunk::<4>();
            sealed.is_some_and(|(fields, crc)| crc32fast::hash(fields) == u32::from_le_bytes(*crc))
        };
        if slot.len() < SLOT_BYTES {
            return Found::Damaged;
        }
        let (fields, seal) = slot.split_at(CORE_BYTES);
        if fields[..4] != MAGIC || !is_sealed(fields) {
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
            // No store reaches this count, because it could not be incremented any more.
            return Found::Damaged;
        }
        let mut size_bytes = None;
        if seal.iter().any(|byte| *byte != 0) {
            if !is_sealed(slot) {
                return Found::Damaged;
            }
            if seal[..4] != name_sum.to_le_bytes() {
                return Found::Misplaced;
            }
            let mut size = [0; 8];
            size.copy_from_slice(&seal[4..12]);
            size_bytes = Some(u64::from_le_bytes(size));
        }
        let slot = Self {
            count: number(8),
            version: Version(number(16)),
            stamp: (flags & FLAG_STAMP != 0).then(|| Stamp::new(number(24), number(32))),
            tombstone: flags & FLAG_TOMBSTONE != 0,
            packed: flags & FLAG_PACKED != 0,
            lost: flags & FLAG_LOST != 0,
            size_bytes,
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
            size_bytes: Some(100 * count),
        }
    }

    const NAME: u32 = 77;

    fn find(header: &[u8]) -> Found {
        Slot::find(header, NAME)
    }

    /// Returns a header whose copies are from different writes.
    fn header(one: Slot, two: Slot) -> Vec<u8> {
        [&one.encode(NAME)[..COPY_STRIDE_BYTES], &two.encode(NAME)[COPY_STRIDE_BYTES..]].concat()
    }

    fn whole(slot: Slot) -> Found {
        Found::Slot { slot, one_damaged: false }
    }

    #[test]
    fn the_newest_copy_is_in_force() {
        assert_eq!(find(&header(slot(4), slot(5))), whole(slot(5)));
        assert_eq!(find(&header(slot(5), slot(4))), whole(slot(5)));
        assert_eq!(find(&slot(5).encode(NAME)), whole(slot(5)));
        assert_eq!(find(&[]), Found::Blank);
        assert_eq!(find(&[0; 4096]), Found::Blank);
        let mut differing = slot(5);
        differing.version = Version(1);
        assert_eq!(find(&header(slot(5), differing)), Found::Damaged);
    }

    #[test]
    fn damage_of_one_sector_brings_nothing_older_back() {
        for (from, fill) in [(0, 0), (COPY_STRIDE_BYTES, 0), (0, 0xff), (COPY_STRIDE_BYTES, 0xff)] {
            let mut header = slot(5).encode(NAME);
            header[from..from + COPY_STRIDE_BYTES].fill(fill);
            assert_eq!(find(&header), Found::Slot { slot: slot(5), one_damaged: true });
        }
        let mut both = slot(5).encode(NAME);
        both[3] ^= 1;
        both[COPY_STRIDE_BYTES + 20] ^= 1;
        assert_eq!(find(&both), Found::Damaged);
    }

    #[test]
    fn a_header_in_another_place_is_told() {
        let header = slot(5).encode(NAME);
        assert_eq!(Slot::find(&header, NAME + 1), Found::Misplaced);
        // An earlier program's slot does not have the name.
        let earlier = Slot { size_bytes: None, ..slot(5) };
        assert_eq!(Slot::find(&earlier.encode(NAME), NAME + 1), whole(earlier));
        let id = |namespace: &str, name: &str| format!("{namespace}/{name}").parse::<ObjectId>().unwrap();
        assert_ne!(name_sum(&id("a", "bc")), name_sum(&id("ab", "c")));
        // The value is part of the stored format.
        assert_eq!(name_sum(&id("vm", "disk")), crc32fast::hash(b"\x02vmdisk"));
    }

    #[test]
    fn half_a_creation_is_no_damage() {
        let mut header = slot(1).encode(NAME);
        header[..COPY_STRIDE_BYTES].fill(0);
        assert_eq!(find(&header), whole(slot(1)));
        assert_eq!(find(&slot(1).encode(NAME)[..COPY_STRIDE_BYTES]), whole(slot(1)));
    }

    #[test]
    fn another_format_is_refused_even_beside_a_known_slot() {
        for format in [1, 3] {
            let mut foreign = slot(5).encode(NAME);
            foreign[4] = format;
            let crc = crc32fast::hash(&foreign[..CORE_BYTES - 4]);
            foreign[CORE_BYTES - 4..CORE_BYTES].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(find(&foreign), Found::Foreign(format.into()));
        }
    }

    proptest! {
        #[test]
        fn a_slot_comes_back(
            count in 0..u64::MAX, version: u64, stamp: Option<(u64, u64)>, tombstone: bool, packed: bool,
            lost: bool, size_bytes: Option<u64>,
        ) {
            let stamp = stamp.map(|(epoch, sequence)| Stamp::new(epoch, sequence));
            let slot = Slot { count, version: Version(version), stamp, tombstone, packed, lost, size_bytes };
            prop_assert_eq!(find(&slot.encode(NAME)), whole(slot));
        }

        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = find(&bytes);
        }

        #[test]
        fn no_flipped_bit_passes(byte in 0..SLOT_BYTES, bit in 0..8, second: bool) {
            let mut header = slot(2).encode(NAME);
            header[byte + if second { COPY_STRIDE_BYTES } else { 0 }] ^= 1_u8 << bit;
            prop_assert_eq!(find(&header), Found::Slot { slot: slot(2), one_damaged: true });
        }
    }
}
