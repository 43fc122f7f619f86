//! The ideal log: one thread, without headers, checksums or copies. It writes several blocks in one
//! call into a zeroed file, then syncs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::OFlags;

pub(crate) const BLOCK_BYTES: usize = 4096;
const FILE_BYTES: u64 = 64 << 20;

/// A file of zeros, opened with O_DIRECT.
pub(crate) struct Ideal {
    file: File,
    memory: Vec<u8>,
}

impl Ideal {
    pub(crate) fn new(directory: &Path) -> Result<Self> {
        let path = directory.join("ideal");
        let options = || OpenOptions::new().create(true).truncate(false).write(true).to_owned();
        let zeros = options().open(&path)?;
        for at in (0..FILE_BYTES).step_by(1 << 20) {
            zeros.write_all_at(&[0; 1 << 20], at)?;
        }
        zeros.sync_all()?;
        let flags = OFlags::DIRECT.bits() as i32;
        let file = options()
            .custom_flags(flags)
            .open(&path)
            .context("a file opened with O_DIRECT: name a directory on a disk that can")?;
        Ok(Self { file, memory: vec![7; 65 * BLOCK_BYTES] })
    }

    /// Writes and syncs for `time`. Returns the number of blocks.
    pub(crate) fn run(&self, blocks: usize, time: Duration) -> Result<u64> {
        let skip = self.memory.as_ptr().align_offset(BLOCK_BYTES);
        let bytes = &self.memory[skip..skip + blocks * BLOCK_BYTES];
        let (begun, mut at, mut count) = (Instant::now(), 0, 0);
        while begun.elapsed() < time {
            self.file.write_all_at(bytes, at)?;
            self.file.sync_data()?;
            at = (at + bytes.len() as u64) % (FILE_BYTES - bytes.len() as u64);
            at -= at % BLOCK_BYTES as u64;
            count += blocks as u64;
        }
        Ok(count)
    }
}
