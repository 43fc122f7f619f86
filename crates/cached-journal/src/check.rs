//! Treats arbitrary bytes as damage to a journal, for tests and the fuzz target. The functions are inlined,
//! so that only these compile them.

use crate::disk::simulated::SimulatedDisk;
use crate::format::{BLOCK_BYTES, BatchHeader, SEGMENT_DATA_AT, SegmentHeader, Superblock, checksum, salt};
use crate::{Environment, Journal, JournalConfig, tools};

const SEGMENT_BYTES: u64 = 64 * 1024;
const JOURNAL: u64 = 1;

/// Opens, inspects, verifies and exports a journal made of `bytes`. Any outcome except a panic is
/// correct.
///
/// The first byte selects the kind of the other bytes: the superblock, a segment's header, or
/// batches. Its bits select which magic numbers and checksums are corrected, because random bytes
/// never match them.
///
/// # Panics
/// If a returned record could not have been stored.
#[inline]
pub fn any_bytes(bytes: &[u8]) {
    let Some((choice, rest)) = bytes.split_first() else { return };
    let disk = SimulatedDisk::new();
    let mut superblock = Superblock { journal: JOURNAL, segment_bytes: SEGMENT_BYTES }.encode();
    let header = SegmentHeader {
        journal: JOURNAL,
        life: 3,
        previous_life: 2,
        tail: 3,
        first_number: 7,
        first_position: 50,
        previous_check: 9,
    };
    let mut header = header.encode();
    let mut batches = vec![0; (SEGMENT_BYTES - SEGMENT_DATA_AT) as usize];
    let is_mended = choice & 4 > 0;
    match choice & 3 {
        0 => put(&mut superblock, rest, is_mended.then_some((8, 28))),
        1 => put(&mut header, rest, is_mended.then_some((8, 72))),
        _ => {
            let len = rest.len().min(batches.len());
            batches[..len].copy_from_slice(&rest[..len]);
            if is_mended {
                mend_batch(&mut batches, choice & 8 > 0);
            }
        }
    }
    disk.set_content("journal", &superblock);
    disk.set_content("segment-000000", &[header, vec![0; BLOCK_BYTES], batches].concat());
    disk.set_content("segment-000001", &vec![0; SEGMENT_BYTES as usize]);

    let inspected = tools::inspect(&disk);
    let verified = tools::verify(&disk);
    let exported = tools::export(&disk, |_, _| Ok(()));
    let config = JournalConfig {
        segment_bytes: SEGMENT_BYTES,
        limit_bytes: 3 * SEGMENT_BYTES,
        ..JournalConfig::new("any bytes")
    };
    let opened = Journal::open_stepped(&config, Environment::new(disk));
    if let Ok((_journal, replay)) = &opened {
        for record in replay.all_records().take(10_000) {
            let record = record.expect("a survey has read it before");
            assert!(record.payload_bytes() <= SEGMENT_BYTES);
            let _ = record.payload();
        }
        assert!(
            inspected.is_ok_and(|inspection| inspection.problem.is_none()),
            "opened, so nothing is wrong"
        );
        assert!(verified.is_ok() && exported.is_ok());
    }
}

/// Writes bytes over a block. With `mend`, the magic number is kept and the checksum is recomputed.
#[inline]
fn put(block: &mut [u8], bytes: &[u8], mend: Option<(usize, usize)>) {
    let start = mend.map_or(0, |(magic, _)| magic);
    let len = bytes.len().min(block.len() - start);
    block[start..start + len].copy_from_slice(&bytes[..len]);
    if let Some((_, check_at)) = mend {
        let check = checksum(0, &[&block[..check_at]]);
        block[check_at..check_at + 4].copy_from_slice(&check.to_le_bytes());
    }
}

/// Turns the first batch into one that continues the chain, as far as its lengths allow.
#[inline]
fn mend_batch(batches: &mut [u8], is_rechecked: bool) {
    batches[..4].copy_from_slice(b"CJB1");
    batches[8..16].copy_from_slice(&7_u64.to_le_bytes());
    batches[16..20].copy_from_slice(&9_u32.to_le_bytes());
    if is_rechecked && let Ok(header) = BatchHeader::peek(batches, batches.len() as u64) {
        let heads_end = header.layout().heads_end as usize;
        let check = checksum(salt(JOURNAL, 3), &[&batches[..4], &batches[8..heads_end]]);
        batches[4..8].copy_from_slice(&check.to_le_bytes());
    }
}
