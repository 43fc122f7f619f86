//! Compares the journal's group commit with an ideal one: the same bytes by `pwrite` and
//! `fdatasync`, on the same disk, in one run.
//!
//! ```text
//! cargo run --release -p cached-journal --example group_commit -- DIRECTORY [SECONDS]
//! ```
//!
//! The ideal log has no headers, checksums or copies: one thread writes as many 4 KiB blocks as
//! there are writers, into a zeroed file, and syncs. Rounds of both alternate.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cached_journal::{AppendError, Head, Journal, JournalConfig, Kind, Object, Record};

const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;

/// Blocks per second, and CPU microseconds of the process per block.
type Rate = (f64, f64);

fn cpu_micros() -> f64 {
    // All threads: user and system time, in clock ticks of 10 ms.
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) * 10_000.0
}

fn measure(run: impl FnOnce() -> u64) -> Rate {
    let (begun, cpu) = (Instant::now(), cpu_micros());
    let blocks = run() as f64;
    (blocks / begun.elapsed().as_secs_f64(), (cpu_micros() - cpu) / blocks)
}

fn ideal(file: &std::fs::File, writers: usize, time: Duration) -> u64 {
    let mut memory = vec![7_u8; (writers + 1) * BLOCK_BYTES];
    let skip = memory.as_ptr().align_offset(BLOCK_BYTES);
    let bytes = &mut memory[skip..skip + writers * BLOCK_BYTES];
    let (begun, mut at, mut blocks) = (Instant::now(), 0, 0);
    while begun.elapsed() < time {
        file.write_all_at(bytes, at).expect("a write");
        file.sync_data().expect("a sync");
        at = (at + bytes.len() as u64) % (FILE_BYTES - bytes.len() as u64);
        at -= at % BLOCK_BYTES as u64;
        blocks += writers as u64;
    }
    blocks
}

fn journaled(journal: &Journal, writers: usize, time: Duration) -> u64 {
    let (stop, blocks) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..writers as u64 {
            let (stop, blocks) = (&stop, &blocks);
            scope.spawn(move || {
                let payload = [7_u8; BLOCK_BYTES];
                while !stop.load(Ordering::Relaxed) {
                    let record =
                        Record { head: Head::new(Kind(1), Object::Number(writer)), payload: &[&payload] };
                    match journal.append(&record) {
                        Ok(appended) => {
                            journal.wait_blocking(appended.position).expect("a disk that works");
                            blocks.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(AppendError::Full | AppendError::Busy) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    blocks.into_inner()
}

/// Only the appends: no thread waits for the disk, but the work of writing is included.
fn appended(journal: &Journal, time: Duration) -> u64 {
    let payload = [7_u8; BLOCK_BYTES];
    let (begun, mut blocks) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let record = Record { head: Head::new(Kind(1), Object::Number(1)), payload: &[&payload] };
        match journal.append(&record) {
            Ok(_) => blocks += 1,
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
    blocks
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().expect("a directory on the disk to measure");
    let seconds: f64 = arguments.next().map_or(1.0, |seconds| seconds.parse().expect("seconds"));
    let time = Duration::from_secs_f64(seconds);
    let directory = Path::new(&directory);
    let path = directory.join("ideal");
    let options = || OpenOptions::new().create(true).truncate(false).write(true).to_owned();
    let zeros = options().open(&path).expect("a file");
    for at in (0..FILE_BYTES).step_by(1 << 20) {
        zeros.write_all_at(&[0; 1 << 20], at).expect("a write");
    }
    zeros.sync_all().expect("a sync");
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = options().custom_flags(direct).open(&path).expect("a file opened with O_DIRECT");
    let config = JournalConfig { limit_bytes: 256 << 20, ..JournalConfig::new(directory.join("journal")) };
    let (journal, _) = Journal::open(&config, Arc::new(|_| {})).expect("a journal");
    while journal.metrics().capacity_bytes < config.limit_bytes {
        std::thread::sleep(Duration::from_millis(50));
    }

    println!("writers  ideal blocks/s  journal blocks/s  ratio  batch records  CPU us/block: ideal  journal");
    for writers in [1, 4, 16, 64] {
        let (mut ideals, mut journals) = (Vec::new(), Vec::new());
        let before = journal.metrics();
        for _ in 0..3 {
            ideals.push(measure(|| ideal(&file, writers, time)));
            journals.push(measure(|| journaled(&journal, writers, time)));
        }
        let metrics = journal.metrics();
        let records = metrics.batch_records.sum - before.batch_records.sum;
        let batches = metrics.batch_records.count - before.batch_records.count;
        let bytes = metrics.counts.written_bytes - before.counts.written_bytes;
        let mean =
            |rates: &[Rate], of: fn(&Rate) -> f64| rates.iter().map(of).sum::<f64>() / rates.len() as f64;
        let (ideal, journal) = (mean(&ideals, |rate| rate.0), mean(&journals, |rate| rate.0));
        println!(
            "{writers:>7}  {ideal:>14.0}  {journal:>16.0}  {:>5.2}  {:>13.1}  {:>19.1}  {:>7.1}  written/payload {:.3}",
            journal / ideal,
            records as f64 / batches as f64,
            mean(&ideals, |rate| rate.1),
            mean(&journals, |rate| rate.1),
            bytes as f64 / (records * BLOCK_BYTES as u64) as f64,
        );
    }
    let (rate, cpu) = measure(|| appended(&journal, time));
    println!(
        "appends without waiting: {rate:.0} blocks/s, {cpu:.2} us of CPU each, the commit thread's included"
    );
}
