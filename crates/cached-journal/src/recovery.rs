//! Opening a journal: creates a new journal, or recovers the log of an earlier process.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Condvar, Mutex};

use crate::append::AlignedBuffer;
use crate::commit::{Committer, Gather};
use crate::config::{Environment, JournalConfig};
use crate::disk::Disk;
use crate::durability::Durability;
use crate::error::{Corruption, DiskError, OpenError};
use crate::format::{BLOCK_BYTES, SEGMENT_DATA_AT, Superblock};
use crate::replay::Replay;
use crate::segments::{NEW_SUFFIX, Segment, SegmentTable, make_segment};
use crate::shared::{Counters, Shared, State};
use crate::survey::{
    DISCARDED_NAME, SUPERBLOCK_NAME, Survey, check_empty, put_superblock, read_superblock, segment_index,
};

/// The number of segments of a new journal that are created before it is open. The others are
/// created in the background.
const SEGMENTS_AT_ONCE: u32 = 2;

/// Takes the lock of a journal's directory.
pub(crate) fn lock(disk: &dyn Disk) -> Result<Box<dyn Send + Sync>, OpenError> {
    disk.lock().map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => OpenError::Locked,
        _ => DiskError::new("lock", "lock", error).into(),
    })
}

/// Removes all segments of a journal, and leaves a new, empty one. The superblock is renamed first,
/// so that a later call, or the next open, completes an interrupted discard.
pub(crate) fn discard(disk: &dyn Disk) -> Result<(), OpenError> {
    let names = disk.names().map_err(DiskError::in_file(".", "list"))?;
    // A damaged journal can be discarded as well.
    let segment_bytes = match read_superblock(disk) {
        Ok(Some(superblock)) => superblock.segment_bytes,
        Ok(None) | Err(OpenError::Corrupt(_)) => JournalConfig::new("").segment_bytes,
        Err(error) => return Err(error),
    };
    if names.iter().any(|name| name == SUPERBLOCK_NAME) {
        disk.rename(SUPERBLOCK_NAME, DISCARDED_NAME)
            .map_err(DiskError::in_file(SUPERBLOCK_NAME, "rename"))?;
        disk.sync_names().map_err(DiskError::in_file(".", "sync"))?;
    }
    for name in names.iter().filter(|name| segment_index(name.trim_end_matches(NEW_SUFFIX)).is_some()) {
        disk.remove(name).map_err(DiskError::in_file(name, "remove"))?;
    }
    disk.sync_names().map_err(DiskError::in_file(".", "sync"))?;
    write_superblock(disk, segment_bytes)?;
    match disk.remove(DISCARDED_NAME) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(DiskError::new(DISCARDED_NAME, "remove", error).into())
        }
        _ => Ok(disk.sync_names().map_err(DiskError::in_file(".", "sync"))?),
    }
}

/// Creates a journal in an empty directory.
pub(crate) fn create(disk: &dyn Disk, segment_bytes: u64) -> Result<Superblock, OpenError> {
    check_empty(disk)?;
    write_superblock(disk, segment_bytes)
}

/// Writes the superblock of a new journal without segments.
fn write_superblock(disk: &dyn Disk, segment_bytes: u64) -> Result<Superblock, OpenError> {
    let journal = disk.random().map_err(DiskError::in_file(SUPERBLOCK_NAME, "draw a number for"))?;
    let superblock = Superblock { journal, segment_bytes };
    put_superblock(disk, &superblock)?;
    Ok(superblock)
}

/// Rewrites the log's last batch and last header unchanged, and syncs them.
///
/// After `kill -9` they may have been read from the page cache without being on the disk; the
/// previous process's sync of them may even have failed. Rewritten bytes are on the disk when the
/// sync succeeds. All earlier batches were synced before the last one was begun.
fn make_durable(survey: &Survey) -> Result<(), OpenError> {
    let Some(last) = survey.log.last() else { return Ok(()) };
    let segment = &last.segment;
    let header_run = ((last.header_block * BLOCK_BYTES) as u64, BLOCK_BYTES as u64);
    let batch_run = survey.last_batch.map(|(offset, header)| (offset, header.layout().total));
    for (offset, bytes) in [Some(header_run), batch_run].into_iter().flatten() {
        let mut buffer = AlignedBuffer::default();
        buffer.extend_zeros(bytes as usize);
        let read = segment.read(offset, buffer.as_mut_slice())?;
        if (read as u64) < bytes {
            return Err(Corruption::new(&segment.name, offset + read as u64, "the file ends here").into());
        }
        let written = segment.file.write_at(offset, &[buffer.as_slice()]);
        written.map_err(DiskError::in_file(&segment.name, "write"))?;
    }
    segment.file.sync().map_err(DiskError::in_file(&segment.name, "sync"))?;
    Ok(())
}

/// Removes files that an earlier process did not finish creating.
fn remove_unfinished(disk: &dyn Disk) -> Result<(), OpenError> {
    let names = disk.names().map_err(DiskError::in_file(".", "list"))?;
    for name in names.iter().filter(|name| name.ends_with(NEW_SUFFIX)) {
        disk.remove(name).map_err(DiskError::in_file(name, "remove"))?;
    }
    Ok(())
}

/// Opens the journal in a directory, or creates it if requested.
pub(crate) fn open(
    config: &JournalConfig,
    environment: Environment,
) -> Result<(Arc<Shared>, Replay), OpenError> {
    let disk = &*environment.disk;
    let lock = lock(disk)?;
    let names = disk.names().map_err(DiskError::in_file(".", "list"))?;
    if names.iter().any(|name| name == DISCARDED_NAME) {
        discard(disk)?;
    }
    let is_unused = !names.iter().any(|name| segment_index(name).is_some());
    let superblock = match read_superblock(disk)? {
        // The journal is unused, so its segments get the requested size.
        Some(superblock) if is_unused && superblock.segment_bytes != config.segment_bytes => {
            write_superblock(disk, config.segment_bytes)?
        }
        Some(superblock) => superblock,
        None if config.create => create(disk, config.segment_bytes)?,
        None => {
            check_empty(disk)?;
            return Err(OpenError::Missing);
        }
    };
    let survey = Survey::new(disk, superblock)?;
    make_durable(&survey)?;
    // The directory may also show names that are not durable.
    remove_unfinished(disk)?;
    disk.sync_names().map_err(DiskError::in_file(".", "sync"))?;

    let segment_bytes = superblock.segment_bytes;
    let segments_max = (config.limit_bytes / segment_bytes).max(crate::config::SEGMENTS_MIN);
    let now = environment.clock.now();
    let mut table = SegmentTable { segment_bytes, ..SegmentTable::default() };
    for log in &survey.log {
        let found = &survey.found[log.at];
        let mut segment = Segment::fresh(found.index, Arc::clone(&found.file));
        segment.header_block = log.header_block;
        segment.life = log.segment.header.life;
        segment.is_started = true;
        segment.first_position = log.segment.header.first_position;
        segment.end = log.end;
        segment.begun = now;
        // The replay holds the segment until the records in it have been applied.
        segment.holds.store(1, Ordering::Relaxed);
        table.live.push_back(segment);
    }
    for (at, found) in survey.found.iter().enumerate() {
        if survey.log.iter().any(|log| log.at == at) {
            continue;
        }
        if (table.live.len() + table.free.len()) as u64 >= segments_max {
            // The limit has been lowered. The segment is not part of the log, so it does not matter
            // when its name disappears.
            disk.remove(&found.name).map_err(DiskError::in_file(&found.name, "remove"))?;
            continue;
        }
        let mut segment = Segment::fresh(found.index, Arc::clone(&found.file));
        if let Some((header, block)) = found.header() {
            (segment.life, segment.header_block) = (header.life, block);
        }
        table.free.push_back(segment);
    }
    let mut index = 0;
    while table.live.len() + table.free.len() < SEGMENTS_AT_ONCE as usize {
        let is_used = |segment: &Segment| segment.index == index;
        if !table.live.iter().chain(&table.free).any(is_used) {
            let file = make_segment(disk, index, segment_bytes, &|| true)?;
            table.free.push_back(Segment::fresh(index, file));
        }
        index += 1;
    }

    let committer = Committer {
        next_number: survey.next_number,
        last_check: survey.last_check,
        last_life: survey.log.last().map_or(0, |log| log.segment.header.life),
        next_life: survey.life_max + 1,
        gather: Gather::default(),
    };
    let next_position = survey.next_position;
    let state = State { table, next_position, durable_tail: survey.tail, ..State::default() };
    let Environment { disk, clock, observer } = environment;
    let shared = Arc::new(Shared {
        disk,
        clock,
        observer,
        journal: superblock.journal,
        unsynced_bytes_max: config.unsynced_bytes_max.max(1),
        commit_timeout: config.commit_timeout,
        segments_max,
        segment_bytes,
        durability: Arc::new(Durability::new(next_position)),
        state: Mutex::new(state),
        committer: Mutex::new(committer),
        counters: Counters::default(),
        work: Condvar::new(),
        prepare: Condvar::new(),
        watch: Condvar::new(),
        ended: Condvar::new(),
        lock: Mutex::new(Some(lock)),
    });
    shared.counters.counts.replay_records.add(survey.records);
    let replay = Replay::new(Arc::clone(&shared), survey);
    Ok((shared, replay))
}

const _: () = assert!(SEGMENT_DATA_AT >= 2 * BLOCK_BYTES as u64);
