//! The root of a map: where each of its pages lies.

use super::PAGES_MAX;
use super::reader::{Reader, sealed};
use crate::format::entry::Entry;

const MAGIC: &[u8; 8] = b"cvolroot";
const VERSION: u32 = 1;

/// Appends the pages of a map.
pub(super) fn put_pages(into: &mut Vec<u8>, pages: &[Entry]) {
    let count = u32::try_from(pages.len()).expect("at most 65 536 pages");
    into.extend_from_slice(&count.to_le_bytes());
    pages.iter().for_each(|page| into.extend_from_slice(&page.to_bits().to_le_bytes()));
}

/// Reads what [`put_pages`] has written.
pub(super) fn pages(reader: &mut Reader<'_>) -> Result<Vec<Entry>, String> {
    let count = reader.count(PAGES_MAX, 8)?;
    let page = |_| Entry::from_bits(reader.u64()?).ok_or_else(|| "an entry in it is impossible".to_owned());
    (0..count).map(page).collect()
}

/// Returns the object of a snapshot's root.
pub(crate) fn encode_root(pages: &[Entry]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    put_pages(&mut bytes, pages);
    sealed(bytes)
}

/// Reads what [`encode_root`] has written.
pub(crate) fn decode_root(bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let mut reader = Reader::open(bytes, MAGIC, VERSION)?;
    let pages = pages(&mut reader)?;
    reader.end()?;
    Ok(pages)
}
