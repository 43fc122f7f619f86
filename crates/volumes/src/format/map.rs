//! The map of a volume: the entry of each of its objects.
//!
//! In the store the map is cut into pages of 64 sectors of 512 bytes, each with 63 entries and a
//! checksum. A store may write one sector of a page and not another. Each sector is checked
//! separately, so a torn page is a mix of old and new entries, all of them valid. The checksum
//! covers the page's name and the sector's number, so a misplaced sector is refused.
//!
//! In memory the map takes 2 MiB per TiB. Maps of one tree share equal pages.

use std::ops::Range;
use std::sync::Arc;

use super::entry::{Entry, VolumeId};

/// The entries of a volume, page by page; `None` is a page of holes. A clone of a map shares each
/// page until the page changes.
#[derive(Clone, Default)]
pub(crate) struct Map {
    pub(crate) pages: Vec<Option<Arc<Page>>>,
}

impl Map {
    /// Returns a map with only holes.
    pub(crate) fn of_holes(pages: usize) -> Self {
        Self { pages: vec![None; pages] }
    }

    /// Returns the entry at an index. Beyond the end it is a hole.
    pub(crate) fn get(&self, index: u32) -> Entry {
        let (page, at) = place(index);
        self.pages.get(page).and_then(Option::as_ref).map_or(Entry::HOLE, |page| page[at])
    }

    /// Sets the entry at an index within the map.
    pub(crate) fn set(&mut self, index: u32, entry: Entry) {
        let (page, at) = place(index);
        let page = self.pages[page].get_or_insert_with(|| Arc::new([Entry::HOLE; PAGE_ENTRIES]));
        Arc::make_mut(page)[at] = entry;
    }

    /// Returns a map with the given pages of this one, and holes in all other pages.
    pub(crate) fn within(&self, pages: Range<usize>) -> Self {
        let kept = self.pages.iter().enumerate().take(pages.end);
        Self { pages: kept.map(|(at, page)| page.clone().filter(|_| pages.contains(&at))).collect() }
    }

    /// Returns whether both maps share a page's memory, or both have holes there.
    pub(crate) fn shares_page(&self, other: &Self, page: usize) -> bool {
        match (self.page(page), other.page(page)) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (None, None) => true,
            _ => false,
        }
    }

    pub(crate) fn page(&self, page: usize) -> Option<&Arc<Page>> {
        self.pages.get(page).and_then(Option::as_ref)
    }

    /// Returns the indexes of all objects, with their entries.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        static HOLES: Map = Map { pages: Vec::new() };
        self.objects_not_in(&HOLES)
    }

    /// Returns the objects of this map that `other` does not have, with their indexes.
    pub(crate) fn objects_not_in<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = (u32, Entry)> + 'a {
        let pages = self.pages.iter().enumerate().filter(|(at, _)| !self.shares_page(other, *at));
        let pages = pages.filter_map(|(at, page)| Some((at, page.as_ref()?)));
        pages.flat_map(move |(at, page)| {
            let entries = page.iter().enumerate().filter(|(_, entry)| !entry.is_hole());
            let entries = entries.map(move |(in_page, entry)| (index_of(at, in_page), *entry));
            entries.filter(move |(index, entry)| other.get(*index) != *entry)
        })
    }
}

/// Returns the page that holds the entry at an index.
pub(crate) fn page_of(index: u32) -> usize {
    place(index).0
}

fn place(index: u32) -> (usize, usize) {
    (index as usize / PAGE_ENTRIES, index as usize % PAGE_ENTRIES)
}

fn index_of(page: usize, in_page: usize) -> u32 {
    // A map has at most 65 536 pages of 4 032 entries.
    (page * PAGE_ENTRIES + in_page) as u32
}

/// The length of a sector, which every store writes as a whole or not at all.
pub(crate) const SECTOR_BYTES: usize = 512;
/// The number of entries in a sector.
pub(crate) const SECTOR_ENTRIES: usize = 63;
const SECTORS: usize = 64;
/// The number of entries in a page, which cover 15.75 GiB of a volume with objects of 4 MiB.
pub(crate) const PAGE_ENTRIES: usize = SECTORS * SECTOR_ENTRIES;
/// The length of a page in bytes.
pub(crate) const PAGE_BYTES: usize = SECTORS * SECTOR_BYTES;
/// Included in each sector's checksum; a different page layout needs a different value.
const FORMAT: u32 = 0x6d61_7001;

/// The entries of a page.
pub(crate) type Page = [Entry; PAGE_ENTRIES];

/// The identity of a page, which its checksums cover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageName {
    pub(crate) volume: VolumeId,
    pub(crate) allocation: u64,
    pub(crate) page: u32,
}

fn checksum(name: PageName, sector: usize, entries: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for number in
        [u64::from(FORMAT), u64::from(name.volume.0), name.allocation, u64::from(name.page), sector as u64]
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
/// The reason why the bytes are not the page with this name.
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
