//! A record of an overlay log: a write to a part of an object that is not copied yet.
//!
//! A record is a sector of 512 bytes, then the data, padded to whole sectors. Records are written
//! concurrently, so after a crash one may be missing between two others, and a reader looks for the
//! next one sector by sector. A record states its own place and the key of its log, which no client
//! knows, so a client's data are never taken for a record.

use super::entry::{Entry, VolumeId};
use super::{OverlayLog, SECTOR_BYTES};

const MAGIC: &[u8; 8] = b"cvolover";
const VERSION: u32 = 1;
/// The length of the header before its checksum.
const HEADER_BYTES: usize = 84;
const ZEROES: u32 = 0;
const DATA: u32 = 1;

/// The position of a record: the part of the log, and the offset in that part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) part: u32,
    pub(crate) offset: u32,
}

/// A record of an overlay log; see the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OverlayRecord {
    /// The entry of the overwritten object. The record is valid while the map has this entry.
    pub(crate) base: Entry,
    /// The object's index in the volume.
    pub(crate) index: u32,
    /// The offset of the data in the object.
    pub(crate) within: u64,
    pub(crate) length: u64,
    /// The checksum of the data, or `None` for zeros, which the log does not contain.
    pub(crate) data_sum: Option<u32>,
}

impl OverlayRecord {
    /// Returns the length of the record in the log.
    pub(crate) fn log_bytes(&self) -> u64 {
        (SECTOR_BYTES as u64 + self.data_bytes()).next_multiple_of(SECTOR_BYTES as u64)
    }

    /// Returns the number of data bytes after the header.
    pub(crate) fn data_bytes(&self) -> u64 {
        if self.data_sum.is_some() { self.length } else { 0 }
    }

    pub(crate) fn encode(&self, log: OverlayLog, volume: VolumeId, place: Place) -> [u8; SECTOR_BYTES] {
        let mut bytes = Vec::with_capacity(SECTOR_BYTES);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&volume.0.to_le_bytes());
        bytes.extend_from_slice(&log.key.to_le_bytes());
        bytes.extend_from_slice(&log.allocation.to_le_bytes());
        bytes.extend_from_slice(&place.part.to_le_bytes());
        bytes.extend_from_slice(&place.offset.to_le_bytes());
        bytes.extend_from_slice(&self.base.to_bits().to_le_bytes());
        bytes.extend_from_slice(&self.index.to_le_bytes());
        bytes.extend_from_slice(&if self.data_sum.is_some() { DATA } else { ZEROES }.to_le_bytes());
        bytes.extend_from_slice(&self.within.to_le_bytes());
        bytes.extend_from_slice(&self.length.to_le_bytes());
        bytes.extend_from_slice(&self.data_sum.unwrap_or(0).to_le_bytes());
        debug_assert_eq!(bytes.len(), HEADER_BYTES);
        let sum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes.resize(SECTOR_BYTES, 0);
        bytes.try_into().expect("one sector")
    }

    /// Returns the record at the beginning of `bytes`, if there is a complete record of this log
    /// for this place.
    pub(crate) fn decode(bytes: &[u8], log: OverlayLog, volume: VolumeId, place: Place) -> Option<Self> {
        let header = bytes.get(..SECTOR_BYTES)?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(header.get(at..at + 8)?.try_into().ok()?));
        if &header[..8] != MAGIC || u32_at(HEADER_BYTES)? != crc32fast::hash(&header[..HEADER_BYTES]) {
            return None;
        }
        let data_sum = match u32_at(60)? {
            ZEROES => None,
            DATA => Some(u32_at(80)?),
            _ => return None,
        };
        let base = Entry::from_bits(u64_at(48)?)?;
        let record = Self { base, index: u32_at(56)?, within: u64_at(64)?, length: u64_at(72)?, data_sum };
        // The header is encoded again from the fields read above, so this also compares version,
        // volume, key and place.
        if record.encode(log, volume, place) != header {
            return None;
        }
        let data_bytes = usize::try_from(record.data_bytes()).ok()?;
        let data = bytes[SECTOR_BYTES..].get(..data_bytes)?;
        record.data_sum.is_none_or(|sum| sum == crc32fast::hash(data)).then_some(record)
    }
}

/// Returns the records in a part of a log, with their places, in order.
pub(crate) fn overlay_records(
    bytes: &[u8],
    log: OverlayLog,
    volume: VolumeId,
    part: u32,
) -> Vec<(Place, OverlayRecord)> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let Ok(offset) = u32::try_from(at) else { break };
        let place = Place { part, offset };
        match OverlayRecord::decode(&bytes[at..], log, volume, place) {
            Some(record) => {
                // The record fits, so it is shorter than the part.
                at += record.log_bytes() as usize;
                all.push((place, record));
            }
            None => at += SECTOR_BYTES,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: OverlayLog = OverlayLog { allocation: 9, key: 77 << 100 };
    const VOLUME: VolumeId = VolumeId(5);

    fn record(index: u32, data: Option<&[u8]>) -> OverlayRecord {
        let base = Entry::new(VolumeId(3), 4);
        let length = data.map_or(100, |data| data.len() as u64);
        OverlayRecord { base, index, within: 7, length, data_sum: data.map(crc32fast::hash) }
    }

    /// Appends a record in the log's format.
    fn put(bytes: &mut Vec<u8>, record: &OverlayRecord, data: &[u8]) -> Place {
        let place = Place { part: 2, offset: bytes.len() as u32 };
        bytes.extend_from_slice(&record.encode(LOG, VOLUME, place));
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(SECTOR_BYTES), 0);
        place
    }

    #[test]
    fn records_are_found_behind_one_that_is_missing_and_damage_is_passed_over() {
        let mut bytes = Vec::new();
        let (one, two, three) = (record(1, Some(&[1; 700])), record(2, None), record(3, Some(&[3; 5])));
        let first = put(&mut bytes, &one, &[1; 700]);
        let second = put(&mut bytes, &two, &[]);
        let third = put(&mut bytes, &three, &[3; 5]);
        let found = |bytes: &[u8]| overlay_records(bytes, LOG, VOLUME, 2);
        assert_eq!(bytes.len() as u64, one.log_bytes() + two.log_bytes() + three.log_bytes());
        assert_eq!(found(&bytes), [(first, one), (second, two.clone()), (third, three.clone())]);
        for at in 0..SECTOR_BYTES + 700 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(found(&damaged).len(), 2, "byte {at}");
        }
        bytes[..1536].fill(0);
        assert_eq!(found(&bytes), [(second, two), (third, three)]);
        for cut in 0..bytes.len() {
            found(&bytes[..cut]);
        }
    }

    #[test]
    fn what_another_log_or_place_has_is_no_record() {
        let mut bytes = Vec::new();
        put(&mut bytes, &record(1, Some(&[1; 700])), &[1; 700]);
        for log in [OverlayLog { allocation: 8, ..LOG }, OverlayLog { key: 1, ..LOG }] {
            assert_eq!(overlay_records(&bytes, log, VOLUME, 2), []);
        }
        assert_eq!(overlay_records(&bytes, LOG, VolumeId(6), 2), []);
        assert_eq!(overlay_records(&bytes, LOG, VOLUME, 3), []);
        let moved = [&[0; SECTOR_BYTES], &bytes[..]].concat();
        assert_eq!(overlay_records(&moved, LOG, VOLUME, 2), []);
    }
}
