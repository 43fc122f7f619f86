//! The format: encoded values decode to the same, other bytes never panic, and batches of other
//! histories are refused.

use std::sync::Arc;

use proptest::prelude::*;

use super::kit::{SEGMENT_BYTES, head, payload};
use crate::append::{Batch, Buffers, Measured};
use crate::disk::Disk;
use crate::disk::simulated::SimulatedDisk;
use crate::format::{BatchHeader, HeaderBlock, SEGMENT_DATA_AT, SegmentHeader, Superblock, salt};
use crate::scan::{OpenSegment, Scanner};
use crate::{Record, check};

const HEADER: SegmentHeader = SegmentHeader {
    journal: 77,
    life: 5,
    previous_life: 4,
    tail: 3,
    first_number: 10,
    first_position: 100,
    previous_check: 1234,
};

/// Writes a batch of one record; returns its bytes and its check.
fn batch(life: u64, number: u64, previous_check: u32, record: u64) -> (Vec<u8>, u32) {
    let mut batch = Batch::new(Buffers::default(), 0, 100 + number - 10);
    let payload = payload(record, 5000);
    let record = Record { head: head(record), payload: &[&payload] };
    batch.push(&record, &Measured::new(&record));
    let header = BatchHeader { number, previous_check, life, tail: 3, ..BatchHeader::default() };
    let check = batch.finish(salt(HEADER.journal, life), header);
    (batch.parts().concat(), check)
}

/// Returns how many batches are read from a segment with these bytes.
fn batches_in(batches: &[&[u8]]) -> usize {
    let disk = SimulatedDisk::new();
    let mut bytes = [vec![0; SEGMENT_DATA_AT as usize], batches.concat()].concat();
    bytes.resize(SEGMENT_BYTES as usize, 0);
    disk.set_content("segment-000000", &bytes);
    let file = disk.open("segment-000000").unwrap();
    let segment = OpenSegment {
        name: "segment-000000".into(),
        file: Arc::clone(&file),
        header: HEADER,
        segment_bytes: SEGMENT_BYTES,
    };
    let mut scanner = Scanner::new(&segment);
    std::iter::from_fn(|| scanner.next().expect("the disk does not fail")).count()
}

#[test]
fn batches_that_follow_each_other_are_read() {
    let (first, check) = batch(5, 10, 1234, 1);
    let (second, _) = batch(5, 11, check, 2);
    assert_eq!(batches_in(&[&first, &second]), 2);
}

#[test]
fn a_batch_of_an_earlier_life_of_the_segment_is_not_read() {
    let (first, check) = batch(5, 10, 1234, 1);
    let (second, _) = batch(4, 11, check, 2);
    assert_eq!(batches_in(&[&first, &second]), 1);
}

#[test]
fn a_batch_that_follows_another_history_is_not_read() {
    let (first, _) = batch(5, 10, 1234, 1);
    let (_, other_check) = batch(5, 10, 1234, 3);
    let (second, _) = batch(5, 11, other_check, 2);
    assert_eq!(batches_in(&[&first, &second]), 1);
}

#[test]
fn a_batch_with_a_gap_before_it_is_not_read() {
    let (first, check) = batch(5, 10, 1234, 1);
    let (third, _) = batch(5, 12, check, 2);
    assert_eq!(batches_in(&[&first, &third]), 1);
}

#[test]
fn headers_are_read_as_they_were_written() {
    assert_eq!(HeaderBlock::decode(&HEADER.encode()), HeaderBlock::Valid(HEADER));
    assert_eq!(HeaderBlock::decode(&[0; 4096]), HeaderBlock::Unused);
    let superblock = Superblock { journal: 9, segment_bytes: SEGMENT_BYTES };
    assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
}

#[test]
fn another_version_is_refused_by_its_number() {
    let mut block = Superblock { journal: 9, segment_bytes: SEGMENT_BYTES }.encode();
    block[8] = 2;
    let check = crate::format::checksum(0, &[&block[..28]]);
    block[28..32].copy_from_slice(&check.to_le_bytes());
    assert_eq!(Superblock::decode(&block).unwrap_err(), "format version 2; this program reads version 1");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_a_journal_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        check::any_bytes(&bytes);
    }
}

#[test]
fn the_committed_corpus_is_a_journal_or_an_error() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/journal");
    let mut files = 0;
    for entry in std::fs::read_dir(corpus).unwrap() {
        check::any_bytes(&std::fs::read(entry.unwrap().path()).unwrap());
        files += 1;
    }
    assert!(files >= 5);
}
