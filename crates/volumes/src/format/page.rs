//! A page of a map: 64 sectors of 512 bytes, each with 63 entries and a checksum.
//!
//! A store may write one sector of a page and not another. Each is checked by itself, so a torn page is a mix
//! of old and new entries, all of them valid. The checksum includes the page's name and the sector's place:
//! a sector that lies in another place is refused.

use crate::format::entry::{Entry, VolumeId};

/// Bytes of a sector: what every store writes wholly or not at all.
pub(crate) const SECTOR_BYTES: usize = 512;
/// Entries of a sector.
pub(crate) const SECTOR_ENTRIES: usize = 63;
const SECTORS: usize = 64;
/// Entries of a page: 15.75 GiB of a volume with objects of 4 MiB.
pub(crate) const PAGE_ENTRIES: usize = SECTORS * SECTOR_ENTRIES;
/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = SECTORS * SECTOR_BYTES;
/// In the checksum of each sector; another layout of pages needs another one.
const FORMAT: u32 = 0x6d61_7001;

/// The entries of a page.
pub(crate) type Page = [Entry; PAGE_ENTRIES];

/// Which page it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageName {
    pub(crate) volume: VolumeId,
    pub(crate) birth: u64,
    pub(crate) page: u32,
}

fn checksum(name: PageName, sector: usize, entries: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for number in
        [u64::from(FORMAT), u64::from(name.volume.0), name.birth, u64::from(name.page), sector as u64]
    {
        sum.update(&number.to_le_bytes());
    }
    sum.update(entries);
    sum.finalize()
}

/// Returns one sector of a page.
pub(crate) fn encode_sector(name: PageName, page: &Page, sector: usize) -> [u8; SECTOR_BYTES] {
    let mut bytes = [0; SECTOR_BYTES];
    let entries = &page[sector * SECTOR_ENTRIES..][..SECTOR_ENTRIES];
    for (place, entry) in bytes.chunks_exact_mut(8).zip(entries) {
        place.copy_from_slice(&entry.to_bits().to_le_bytes());
    }
    let sum = checksum(name, sector, &bytes[..SECTOR_ENTRIES * 8]);
    bytes[SECTOR_BYTES - 8..SECTOR_BYTES - 4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// Returns the entries of a page.
///
/// # Errors
/// The reason why the bytes are no page of this name.
pub(crate) fn decode_page(name: PageName, bytes: &[u8]) -> Result<Box<Page>, String> {
    if bytes.len() != PAGE_BYTES {
        return Err(format!("it has {} bytes, and a page has {PAGE_BYTES}", bytes.len()));
    }
    let mut page = Box::new([Entry::HOLE; PAGE_ENTRIES]);
    for (sector, bytes) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
        let (entries, seal) = bytes.split_at(SECTOR_ENTRIES * 8);
        let mut wanted = [0; 8];
        wanted[..4].copy_from_slice(&checksum(name, sector, entries).to_le_bytes());
        if seal != wanted {
            return Err(format!("the checksum of its sector {sector} is wrong"));
        }
        for (place, bits) in page[sector * SECTOR_ENTRIES..].iter_mut().zip(entries.chunks_exact(8)) {
            let bits = u64::from_le_bytes(bits.try_into().expect("chunks of 8"));
            *place = Entry::from_bits(bits)
                .ok_or_else(|| format!("its sector {sector} has an impossible entry"))?;
        }
    }
    Ok(page)
}
