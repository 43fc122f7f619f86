//! Replay of a full journal, and recovery into a cache, compared with a sequential read of its
//! files, all from the disk.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use blocker::executor::block_on;
use blocker::{Blocker, BlockerExt, Memory, Name, Namespace, ObjectId, WriteMode, WriteRequest};
use cached_journal::{Journal, JournalConfig};
use futures_util::future::try_join_all;

use crate::disk::BLOCK_BYTES;
use crate::{Arguments, cache, median, verdict};

/// The number of writes in flight while the journal is filled.
const WRITERS: usize = 16;

pub(crate) fn run(arguments: &Arguments, dir: &Path) -> Result<()> {
    let directory = dir.join("replay");
    let config = JournalConfig { limit_bytes: 2 << 30, ..JournalConfig::new(&directory) };
    let bytes = fill(&config, arguments.replay_mib << 20)?;
    let (mut replays, mut recoveries) = (vec![], vec![]);
    for round in 0..arguments.rounds {
        // Recovered data stay in the log because they are not stored, so each round uses a copy.
        let copy = dir.join(format!("replay-{round}"));
        let files = copy_journal(&directory, &copy)?;
        let read_seconds = read(&files, bytes)?;
        forget(&files)?;
        let verified_seconds = replay(&config, &directory, &dir.join(format!("verify-{round}")))?;
        forget(&files)?;
        let begun = Instant::now();
        let store: Arc<dyn Blocker> = Arc::new(Memory::default());
        let config = JournalConfig { directory: copy.clone(), ..config.clone() };
        let cache = cache::cache(store, WriteMode::Back, Some(&config))?;
        let records = cache.recovery().records;
        while !cache.recovery().is_done {
            std::thread::sleep(Duration::from_micros(200));
        }
        let recovery_seconds = begun.elapsed().as_secs_f64();
        println!(
            "{records} records, {} MiB: files read in {read_seconds:.3} s, replayed in {verified_seconds:.3} s, applied \
             to the cache in {recovery_seconds:.3} s",
            bytes >> 20
        );
        replays.push(read_seconds / verified_seconds);
        recoveries.push(read_seconds / recovery_seconds);
        drop(cache);
        std::fs::remove_dir_all(&copy)?;
    }
    println!("recovery in the background, requests served / sequential read: {:.2}", median(recoveries));
    verdict("replay, all records verified / sequential read of the same bytes", median(replays), 0.7, true);
    Ok(())
}

/// Opens a copy of a journal, and reads and verifies all of its records. Returns the time in
/// seconds.
fn replay(config: &JournalConfig, directory: &Path, copy: &Path) -> Result<f64> {
    let files = copy_journal(directory, copy)?;
    forget(&files)?;
    let begun = Instant::now();
    let config = JournalConfig { directory: copy.to_owned(), ..config.clone() };
    let (journal, replay) = Journal::open(&config, Arc::new(|_| {}))?;
    let mut reader = replay.reader();
    let mut bytes = 0;
    while let Some(read) = reader.next()? {
        bytes += read.payload.map_err(|damage| anyhow!("{damage:?}"))?.len();
    }
    let seconds = begun.elapsed().as_secs_f64();
    ensure!(bytes > 0, "the journal has no payload");
    drop((reader, replay, journal));
    std::fs::remove_dir_all(copy)?;
    Ok(seconds)
}

/// Logs `payload_bytes` of payload and leaves them in the journal. Returns the size of its used
/// segments.
fn fill(config: &JournalConfig, payload_bytes: u64) -> Result<u64> {
    // The store accepts nothing, so the logged data stay in the journal.
    let cache = cache::cache(Arc::new(Memory::default()), WriteMode::Back, Some(config))?;
    let object = |index| {
        let name = Name::new(format!("volume.{index:08}")).expect("a proper name");
        ObjectId::new(Namespace::new("bench").expect("a proper name"), name)
    };
    let data = vec![0x5a_u8; BLOCK_BYTES];
    let blocks = payload_bytes / BLOCK_BYTES as u64;
    let each = load_blocks();
    for first in (0..blocks).step_by(WRITERS) {
        // The batches are like those of that many writers: each writer appends before the disk has
        // finished the previous batch.
        let last = blocks.min(first + WRITERS as u64);
        let writes = (first..last).map(|block| {
            let offset = block % each * BLOCK_BYTES as u64;
            cache.write(WriteRequest::new(object(block / each), offset, data.clone())).into_future()
        });
        block_on(try_join_all(writes))?;
    }
    let copied = config.directory.with_extension("full");
    copy_journal(&config.directory, &copied)?;
    drop(cache);
    // The cache's shutdown may have marked what it has stored, so the copy serves as the journal
    // after a crash.
    std::fs::remove_dir_all(&config.directory)?;
    std::fs::rename(&copied, &config.directory)?;
    let disk = cached_journal::disk::RealDisk::open(&config.directory, false)?;
    let inspection = cached_journal::tools::inspect(&disk)?;
    ensure!(inspection.problem.is_none(), "{:?}", inspection.problem);
    ensure!(inspection.records.is_some_and(|records| records >= blocks), "{inspection:?}");
    Ok(inspection.segments.iter().filter(|segment| segment.is_in_log).map(|segment| segment.used_bytes).sum())
}

fn load_blocks() -> u64 {
    crate::load::OBJECT_BYTES / BLOCK_BYTES as u64
}

/// Copies the files of a journal durably. Returns the segments.
fn copy_journal(from: &Path, to: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir(to)?;
    let mut files = Vec::new();
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let path = to.join(entry.file_name());
        let name = entry.file_name().to_string_lossy().into_owned();
        // A segment that is being prepared is not needed, and an open journal may rename it at any
        // moment.
        let is_segment = name.starts_with("segment-") && !name.ends_with(".new");
        if !is_segment && name != "journal" {
            continue;
        }
        std::fs::copy(entry.path(), &path)?;
        File::open(&path)?.sync_all()?;
        if is_segment {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Removes the files from the page cache.
fn forget(files: &[PathBuf]) -> Result<()> {
    for file in files {
        let file = File::open(file)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads `bytes` bytes of the files, one after the other, in pieces of 1 MiB. Returns the time in
/// seconds.
fn read(files: &[PathBuf], mut bytes: u64) -> Result<f64> {
    forget(files)?;
    let (begun, mut buffer) = (Instant::now(), vec![0; 1 << 20]);
    for file in files {
        let mut file = File::open(file)?;
        while bytes > 0 {
            let read = file.read(&mut buffer)? as u64;
            if read == 0 {
                break;
            }
            bytes = bytes.saturating_sub(read);
        }
    }
    Ok(begun.elapsed().as_secs_f64())
}
