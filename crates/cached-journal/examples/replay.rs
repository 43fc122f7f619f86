//! Compares a replay with a sequential read of the same files, in one run.
//!
//! ```text
//! cargo run --release -p cached-journal --example replay -- DIRECTORY [MIB]
//! ```
//!
//! Writes a journal of records of 4 KiB, then reads it in rounds: its files by reads of 1 MiB, and
//! its records, verified, by the reader of a replay. Each round once with the files in the page
//! cache, and once after the kernel was asked to forget them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use cached_journal::{AppendError, Head, Journal, JournalConfig, Kind, Object, Record, Replay};

const RECORD_BYTES: usize = 4096;
const PIECE_BYTES: usize = 1 << 20;

fn fill(config: &JournalConfig, records: u64) {
    let (journal, _) = Journal::open(config, Arc::new(|_| {})).expect("a journal");
    let payload = [7_u8; RECORD_BYTES];
    let mut holds = Vec::new();
    for number in 0..records {
        let name = format!("volume-1/object-{:08}", number % 1000).into_bytes();
        let head = Head { offset: number * 4096, len: 4096, ..Head::new(Kind(1), Object::Name(name.into())) };
        loop {
            match journal.append(&Record { head: head.clone(), payload: &[&payload] }) {
                Ok(appended) => break holds.push(appended.hold),
                Err(AppendError::Full | AppendError::Busy) => {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                }
                Err(error) => panic!("{error}"),
            }
        }
        // Batches of about 64 KiB, as 16 writers make them.
        if number % 16 == 15 {
            let last = holds.last().expect("appended").position();
            journal.wait_blocking(last).expect("durable");
        }
    }
    // The guards that hold the records are leaked, because the records must stay.
    std::mem::forget(holds);
    journal.close().expect("closed");
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> = paths.filter(|path| path.to_string_lossy().contains("segment-")).collect();
    paths.sort();
    paths
}

fn forget(paths: &[PathBuf]) {
    for path in paths {
        let file = File::open(path).expect("a segment");
        file.sync_all().expect("synced");
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    }
}

/// Reads the first `bytes` of the segments.
fn read_files(paths: &[PathBuf], bytes: u64) -> u64 {
    let mut piece = vec![0; PIECE_BYTES];
    let mut left = bytes;
    for path in paths {
        let file = File::open(path).expect("a segment");
        let mut at = 0;
        while left > 0 {
            let read = file.read_at(&mut piece, at).expect("a read");
            if read == 0 {
                break;
            }
            at += read as u64;
            left = left.saturating_sub(read as u64);
        }
    }
    bytes - left
}

fn read_records(replay: &Replay) -> u64 {
    let mut reader = replay.reader();
    let mut bytes = 0;
    while let Some(read) = reader.next().expect("an intact journal") {
        bytes += read.payload.expect("an intact payload").len() as u64;
    }
    bytes
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().expect("a directory on the disk to measure"));
    let mib: u64 = arguments.next().map_or(512, |mib| mib.parse().expect("MiB"));
    let config =
        JournalConfig { limit_bytes: (mib + 256) << 20, ..JournalConfig::new(directory.join("journal")) };
    fill(&config, (mib << 20) / RECORD_BYTES as u64);
    let opened = Instant::now();
    let (journal, replay) = Journal::open(&config, Arc::new(|_| {})).expect("a journal");
    println!("opened in {:?}: {} records", opened.elapsed(), replay.len());
    let paths = segments(&config.directory);
    let bytes = journal.metrics().fill_bytes;
    println!("           files MiB/s  records MiB/s (of the files)  ratio");
    for is_cold in [false, true] {
        let (mut files, mut records) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            for is_replay in [false, true] {
                if is_cold {
                    forget(&paths);
                }
                let begun = Instant::now();
                if is_replay {
                    assert_eq!(read_records(&replay), replay.payload_bytes());
                } else {
                    read_files(&paths, bytes);
                }
                let rate = bytes as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64();
                if is_replay { records.push(rate) } else { files.push(rate) }
            }
        }
        let mean = |rates: &[f64]| rates.iter().sum::<f64>() / rates.len() as f64;
        let (files, records) = (mean(&files), mean(&records));
        let from = if is_cold { "disk" } else { "page cache" };
        println!("{from:>10} {files:>12.0} {records:>14.0} {:>22.2}", records / files);
    }
}
