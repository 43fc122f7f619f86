//! Map entries. An entry is the volume and the allocation ID of an object, which form the object's
//! name.

use std::fmt;

use blocker::Name;

/// The number of bits of an allocation ID.
const ALLOCATION_BITS: u32 = 36;
/// The highest allocation ID.
pub(crate) const ALLOCATION_MAX: u64 = (1 << ALLOCATION_BITS) - 1;
/// The highest number of a volume.
pub(crate) const VOLUME_MAX: u32 = (1 << (64 - ALLOCATION_BITS)) - 1;

/// The number of a volume, never reused in a catalog. 0 is not a volume.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct VolumeId(pub(crate) u32);

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:07x}", self.0)
    }
}

/// One entry of a map: a hole, or an object's allocation ID and the volume in whose namespace the
/// object lies. 28 bits are the volume and 36 the allocation ID; all zero is a hole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Entry(u64);

impl Entry {
    pub(crate) const HOLE: Self = Self(0);

    pub(crate) fn new(volume: VolumeId, allocation: u64) -> Self {
        debug_assert!((1..=ALLOCATION_MAX).contains(&allocation) && (1..=VOLUME_MAX).contains(&volume.0));
        Self(u64::from(volume.0) << ALLOCATION_BITS | allocation)
    }

    pub(crate) fn is_hole(self) -> bool {
        self == Self::HOLE
    }

    pub(crate) fn volume(self) -> VolumeId {
        // The shift leaves 28 bits.
        VolumeId((self.0 >> ALLOCATION_BITS) as u32)
    }

    pub(crate) fn allocation(self) -> u64 {
        self.0 & ALLOCATION_MAX
    }

    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// Returns the entry with these bits, or `None` if they have a volume without an allocation ID,
    /// or an allocation ID without a volume.
    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let entry = Self(bits);
        (entry.is_hole() || (entry.volume().0 != 0 && entry.allocation() != 0)).then_some(entry)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hole() {
            f.write_str("hole")
        } else {
            write!(f, "{}:{:x}", self.volume(), self.allocation())
        }
    }
}

/// The kind of an object in a volume's namespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Kind {
    /// The volume's head.
    Head,
    /// The root of the snapshot with this number.
    Root(u64),
    /// A page of a map: its allocation ID and number.
    Page(u64, u32),
    /// Data: its allocation ID and index in the volume.
    Data(u64, u32),
    /// A part of an overlay log: the allocation ID of the log, and the number of the part.
    Overlay(u64, u32),
}

impl Kind {
    /// Returns the object's name. Indexes come last and have a fixed length, so that a cache can
    /// read ahead.
    pub(crate) fn name(self) -> Name {
        let text = match self {
            Self::Head => "head".into(),
            Self::Root(node) => format!("r/{node:09x}").into_bytes(),
            Self::Page(allocation, page) => in_place(b'm', allocation, page),
            Self::Data(allocation, index) => in_place(b'd', allocation, index),
            Self::Overlay(allocation, part) => in_place(b'o', allocation, part),
        };
        Name::new(text).expect("less than 255 bytes")
    }

    /// Returns the kind of the object with this name, or `None` if the name is not that of a
    /// volume's object.
    pub(crate) fn of(name: &Name) -> Option<Self> {
        let text = std::str::from_utf8(name.as_bytes()).ok()?;
        let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
        let place = |text: &str| u32::from_str_radix(text, 16).ok();
        let mut parts = text.split('/');
        let kind = match (parts.next()?, parts.next(), parts.next()) {
            ("head", None, None) => Self::Head,
            ("r", Some(node), None) => Self::Root(hexadecimal(node)?),
            ("m", Some(id), Some(page)) => Self::Page(hexadecimal(id)?, place(page)?),
            ("d", Some(id), Some(index)) => Self::Data(hexadecimal(id)?, place(index)?),
            ("o", Some(id), Some(part)) => Self::Overlay(hexadecimal(id)?, place(part)?),
            _ => return None,
        };
        (kind.name() == *name).then_some(kind)
    }
}

/// Returns `kind`, a slash, the allocation ID in 9 or more digits, a slash, and the index in 8
/// digits. Written without `format!`, because every request needs such a name.
fn in_place(kind: u8, allocation: u64, place: u32) -> Vec<u8> {
    let id_digits = (u64::BITS - allocation.leading_zeros()).div_ceil(4).max(9) as usize;
    let mut digits = [0; 16];
    digits[..8].copy_from_slice(&hex((allocation >> 32) as u32));
    digits[8..].copy_from_slice(&hex(allocation as u32));
    let mut text = Vec::with_capacity(id_digits + 11);
    text.extend_from_slice(&[kind, b'/']);
    text.extend_from_slice(&digits[16 - id_digits..]);
    text.push(b'/');
    text.extend_from_slice(&hex(place));
    text
}

/// Returns a number in 8 hexadecimal digits.
fn hex(number: u32) -> [u8; 8] {
    // One digit in each byte, the highest first.
    let mut digits = u64::from(number);
    digits = (digits | digits << 16) & 0x0000_ffff_0000_ffff;
    digits = (digits | digits << 8) & 0x00ff_00ff_00ff_00ff;
    digits = (digits | digits << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let are_letters = ((digits + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    // There are 39 other characters between "9" and "a".
    (digits + 0x3030_3030_3030_3030 + are_letters * 39).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_no_other_names() {
        let last = Kind::Data(ALLOCATION_MAX, u32::MAX);
        for kind in [Kind::Head, Kind::Root(7), Kind::Page(1, 2), last, Kind::Overlay(7, 15)] {
            assert_eq!(Kind::of(&kind.name()), Some(kind));
        }
        let text = |kind: Kind| kind.name().to_string();
        assert_eq!(text(Kind::Data(0x1_2345_6789, 0xab)), "d/123456789/000000ab");
        assert_eq!(text(Kind::Page(1, u32::MAX)), "m/000000001/ffffffff");
        // No volume reaches this allocation ID.
        assert_eq!(text(Kind::Data(u64::MAX, 7)), "d/ffffffffffffffff/00000007");
        for other in ["heads", "r/7", "m/000000001", "d/000000001/00000001/", "d/00000000A/00000001", "x"] {
            assert_eq!(Kind::of(&other.parse().unwrap()), None, "{other}");
        }
    }

    #[test]
    fn digits_are_those_that_formatting_makes() {
        for number in
            (0..1000).map(|at: u32| at.wrapping_mul(0x9e37_79b9)).chain([0, 9, 10, 15, 16, u32::MAX])
        {
            assert_eq!(hex(number), *format!("{number:08x}").as_bytes());
        }
    }

    #[test]
    fn half_an_entry_is_none() {
        assert_eq!(Entry::from_bits(0), Some(Entry::HOLE));
        assert_eq!(Entry::from_bits(1), None);
        assert_eq!(Entry::from_bits(1 << ALLOCATION_BITS), None);
        let entry = Entry::new(VolumeId(VOLUME_MAX), ALLOCATION_MAX);
        assert_eq!(Entry::from_bits(entry.to_bits()), Some(entry));
    }
}
