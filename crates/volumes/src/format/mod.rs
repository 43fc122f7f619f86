//! The stored format: `docs/volume-format.md` in code. Bytes from the store are decoded or refused,
//! never trusted: a decoder does not allocate more memory than its input has.

pub(crate) mod entry;
mod head;
pub(crate) mod map;
mod overlay;

use std::ops::RangeInclusive;

pub(crate) use head::{
    Head, Node, Origin, OverlayLog, Owner, decode_number, decode_root, encode_number, encode_root,
};
pub(crate) use map::{
    PAGE_BYTES, PAGE_ENTRIES, Page, PageName, SECTOR_BYTES, SECTOR_ENTRIES, decode_page, encode_sector,
};
pub(crate) use overlay::{OverlayRecord, Place, overlay_records};

/// The maximum number of pages of a map, enough for about 1 PiB with objects of 4 MiB.
pub(crate) const PAGES_MAX: usize = 1 << 16;
/// The maximum number of snapshots of a volume, with and without a name.
pub(crate) const NODES_MAX: usize = 4096;
/// The maximum number of overlay logs of a volume.
pub(crate) const LOGS_MAX: usize = 8;
/// The maximum length of the name of a volume, a snapshot or an owner, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 200;

/// Returns the number of pages of a volume's map.
pub(crate) fn pages_of(size_bytes: u64, object_bytes: u64) -> usize {
    let objects = size_bytes.div_ceil(object_bytes);
    usize::try_from(objects.div_ceil(PAGE_ENTRIES as u64)).unwrap_or(usize::MAX)
}

/// The part of checksummed bytes that has not been read yet.
struct Reader<'a> {
    rest: &'a [u8],
}

/// Returns `bytes` with their checksum appended.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// Appends a string, preceded by its length.
fn put_text(into: &mut Vec<u8>, text: &str) {
    let len = u16::try_from(text.len()).expect("names have at most 200 bytes");
    into.extend_from_slice(&len.to_le_bytes());
    into.extend_from_slice(text.as_bytes());
}

impl<'a> Reader<'a> {
    /// Returns a reader for bytes that [`sealed`] has made, positioned after the magic number and
    /// the version.
    fn open(bytes: &'a [u8], magic: &[u8; 8], version: u32) -> Result<Self, String> {
        Self::open_one_of(bytes, magic, version..=version).map(|(reader, _)| reader)
    }

    /// Opens bytes as [`Self::open`] does, but accepts several versions; also returns the version
    /// found.
    fn open_one_of(
        bytes: &'a [u8],
        magic: &[u8; 8],
        versions: RangeInclusive<u32>,
    ) -> Result<(Self, u32), String> {
        let (content, sum) = bytes.split_last_chunk::<4>().ok_or("it is too short")?;
        let (found, rest) = content.split_first_chunk::<8>().ok_or("it is too short")?;
        if found != magic {
            return Err("its first bytes are wrong".into());
        }
        let mut reader = Self { rest };
        let found = reader.u32()?;
        if !versions.contains(&found) {
            return Err(format!(
                "its format is {found}; this program supports formats up to {}",
                versions.end()
            ));
        }
        if crc32fast::hash(content) != u32::from_le_bytes(*sum) {
            return Err("its checksum is wrong".into());
        }
        Ok((reader, found))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or("it ends too early")?;
        self.rest = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, String> {
        Ok(self.take::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }

    fn u128(&mut self) -> Result<u128, String> {
        self.take().map(u128::from_le_bytes)
    }

    /// Returns a string of at most `NAME_BYTES_MAX` bytes.
    fn text(&mut self) -> Result<String, String> {
        let len = usize::from(u16::from_le_bytes(self.take()?));
        if len > NAME_BYTES_MAX || len > self.rest.len() {
            return Err("a name in it is too long".into());
        }
        let (text, rest) = self.rest.split_at(len);
        self.rest = rest;
        String::from_utf8(text.to_vec()).map_err(|_| "a name in it is not UTF-8".into())
    }

    /// Reads a count. The count is at most `max`, and each counted element takes at least
    /// `bytes_min` of the following bytes.
    fn count(&mut self, max: usize, bytes_min: usize) -> Result<usize, String> {
        let count = self.u32()? as usize;
        if count > max || count.saturating_mul(bytes_min) > self.rest.len() {
            return Err("a count in it exceeds its length".into());
        }
        Ok(count)
    }

    /// Checks that no bytes are left.
    fn end(self) -> Result<(), String> {
        if self.rest.is_empty() { Ok(()) } else { Err("it has bytes after its end".into()) }
    }
}

#[cfg(test)]
mod tests {
    use blocker::WriteMode;

    use super::*;
    use crate::format::entry::{Entry, VolumeId};
    use crate::settings::Settings;

    fn head() -> Head {
        let node = |id, parent, name: &str| Node {
            id,
            parent,
            size_bytes: 1 << 30,
            made_unix_seconds: 1_700_000_000,
            name: name.to_owned(),
        };
        Head {
            volume: VolumeId(5),
            sequence: 9,
            size_bytes: 40 << 30,
            object_bytes: 4 << 20,
            allocation_limit: 5000,
            owner: Some(Owner { epoch: 3, writer: 1 << 100, name: "host:1".into() }),
            is_deleted: false,
            origin: Some(Origin { volume: VolumeId(2), node: 8 }),
            parent: 12,
            settings: Settings {
                write: Some(WriteMode::Back),
                quota_bytes_max: Some(7),
                object_bytes: Some(4 << 20),
                ..Settings::default()
            },
            nodes: vec![node(4, 0, "monday"), node(12, 4, "")],
            root: vec![Entry::new(VolumeId(5), 17), Entry::HOLE, Entry::new(VolumeId(2), 1)],
            logs: Vec::new(),
        }
    }

    /// Decodes every truncation and every change of one bit: sealed bytes are refused, and nothing
    /// panics.
    fn refuses_damage<T>(bytes: &[u8], decode: impl Fn(&[u8]) -> Result<T, String>) {
        assert!(decode(bytes).is_ok());
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err(), "cut to {len}");
        }
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= 1 << bit;
                assert!(decode(&damaged).is_err(), "bit {bit} of byte {at}");
            }
        }
        assert!(decode(&[bytes, &[0]].concat()).is_err());
    }

    #[test]
    fn records_are_read_back_and_damage_is_refused() {
        let head = head();
        assert_eq!(Head::decode(&head.encode()), Ok(head.clone()));
        refuses_damage(&head.encode(), Head::decode);
        let mut limited = head.clone();
        limited.settings.rates.store_requests_per_second_max = Some(500);
        limited.settings.rates.store_burst_ms = Some(0);
        assert_eq!(Head::decode(&limited.encode()), Ok(limited.clone()));
        refuses_damage(&limited.encode(), Head::decode);
        for mut open in [head.clone(), limited] {
            open.logs =
                vec![OverlayLog { allocation: 7, key: 0 }, OverlayLog { allocation: 4999, key: 1 << 99 }];
            assert_eq!(Head::decode(&open.encode()), Ok(open.clone()));
            refuses_damage(&open.encode(), Head::decode);
        }
        assert_eq!(decode_root(&encode_root(&head.root)), Ok(head.root.clone()));
        refuses_damage(&encode_root(&head.root), decode_root);
        let number = encode_number(VolumeId(77));
        assert_eq!(decode_number(&number), Ok(VolumeId(77)));
        refuses_damage(&number, decode_number);
    }

    #[test]
    fn a_head_that_contradicts_itself_is_refused_though_its_checksum_is_right() {
        let wrong: [fn(&mut Head); 13] = [
            |head| head.root.push(Entry::HOLE),
            |head| head.object_bytes = 5000,
            |head| head.object_bytes = 0,
            |head| head.parent = 13,
            |head| head.nodes[0].parent = 12,
            |head| head.nodes[1].id = 4,
            |head| head.nodes[1].id = 5000,
            |head| head.allocation_limit = 0,
            |head| head.volume = VolumeId(0),
            |head| head.logs = vec![OverlayLog { allocation: 0, key: 1 }],
            |head| head.logs = vec![OverlayLog { allocation: 5000, key: 1 }],
            |head| head.logs = vec![OverlayLog { allocation: 9, key: 1 }; 2],
            |head| head.logs = (1..10).map(|allocation| OverlayLog { allocation, key: 1 }).collect(),
        ];
        for (at, wrong) in wrong.iter().enumerate() {
            let mut head = head();
            wrong(&mut head);
            assert!(Head::decode(&head.encode()).is_err(), "{at}");
        }
        let sealed = |content: &[u8]| {
            let sum = crc32fast::hash(content);
            [content, &sum.to_le_bytes()].concat()
        };
        // Any content with a correct checksum is refused or read, without a panic or a large
        // allocation.
        let bytes = head().encode();
        let content = &bytes[..bytes.len() - 4];
        for at in 12..content.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut changed = content.to_vec();
                changed[at] = byte;
                let _ = Head::decode(&sealed(&changed));
                let _ = Head::decode(&sealed(&changed[..at]));
            }
        }
    }

    #[test]
    fn a_torn_page_is_a_mix_of_sectors_and_a_sector_elsewhere_is_refused() {
        let name = PageName { volume: VolumeId(5), allocation: 17, page: 2 };
        let pages = [1, 2].map(|allocation| [Entry::new(VolumeId(5), allocation); PAGE_ENTRIES]);
        let sectors = |page: &Page| -> Vec<_> { (0..64).map(|at| encode_sector(name, page, at)).collect() };
        let (old, new) = (sectors(&pages[0]), sectors(&pages[1]));
        let mut torn = old.clone();
        torn[7] = new[7];
        let page = decode_page(name, &torn.concat()).unwrap();
        assert_eq!(page[7 * SECTOR_ENTRIES - 1], pages[0][0]);
        assert_eq!(page[7 * SECTOR_ENTRIES], pages[1][0]);
        let mut moved = old.clone();
        moved[7] = old[8];
        assert!(decode_page(name, &moved.concat()).is_err());
        for other in [
            PageName { volume: VolumeId(6), ..name },
            PageName { allocation: 18, ..name },
            PageName { page: 3, ..name },
        ] {
            assert!(decode_page(other, &old.concat()).is_err(), "{other:?}");
        }
        assert!(decode_page(name, &old.concat()[1..]).is_err());
        assert!(decode_page(name, &[0; PAGE_BYTES]).is_err());
    }
}
