//! What an operator chooses.

use std::path::PathBuf;
use std::time::Duration;

use crate::format::{BLOCK_BYTES, SEGMENT_DATA_AT, record_payload_max};

/// The smallest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// The largest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// The fewest segments that work: one that fills, one that is emptied, one that is ready.
pub const SEGMENTS_MIN: u64 = 3;

/// The configuration of a journal.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// The journal's directory, for itself alone.
    pub directory: PathBuf,
    /// Whether a journal is made where there is none, and its directory if that is missing; the directory's parent
    /// must exist. Default: yes. Without it an empty directory is refused: its disk may not be mounted, and a
    /// journal that is found again later would be out of date.
    pub create: bool,
    /// The size of a segment file, 1 MiB to 1 GiB, a multiple of 4 KiB. Default: 64 MiB. An existing journal
    /// keeps its size, unless nothing was ever logged in it.
    pub segment_bytes: u64,
    /// The most bytes of disk that the journal takes, at least three segments. Default: 4 GiB. All of it is
    /// allocated and zeroed in the background after the first open, so that a full disk is found out then.
    pub limit_bytes: u64,
    /// Whether writes bypass the page cache (`O_DIRECT`). Default: yes. Not every file system can.
    pub direct: bool,
    /// The most bytes that wait in memory for the disk. Default: 32 MiB.
    pub unsynced_bytes_max: u64,
    /// How long the write and the sync of a batch may take: beyond it the disk counts as failed, and what it may
    /// still do is not believed. Default: 30 s.
    pub commit_timeout: Duration,
}

impl JournalConfig {
    /// Returns the default configuration for a directory.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            create: true,
            segment_bytes: 64 << 20,
            limit_bytes: 4 << 30,
            direct: true,
            unsynced_bytes_max: 32 << 20,
            commit_timeout: Duration::from_secs(30),
        }
    }

    /// Returns the longest payload, in bytes, that a record may have in segments of this size.
    ///
    /// An existing journal keeps the size of its segments: [`Journal::payload_bytes_max`] is what holds there.
    ///
    /// [`Journal::payload_bytes_max`]: crate::Journal::payload_bytes_max
    #[must_use]
    pub fn payload_bytes_max(&self) -> u64 {
        record_payload_max(self.segment_bytes)
    }

    /// Checks what an operator may have got wrong, and returns what would be right.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let Self { segment_bytes, limit_bytes, .. } = *self;
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
            || !segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
        {
            return Err(format!(
                "segment_bytes is {segment_bytes}: a multiple of 4096 from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX} is needed"
            ));
        }
        if self.commit_timeout.is_zero() {
            return Err(
                "commit_timeout is 0: the time that a disk may take, 30 s for example, is needed".into()
            );
        }
        self.validate_ratios().map_err(|reason| format!("limit_bytes is {limit_bytes}: {reason}"))
    }

    /// As [`validate`](Self::validate), for segments of any size.
    pub(crate) fn validate_ratios(&self) -> Result<(), String> {
        let least = self.segment_bytes.saturating_mul(SEGMENTS_MIN);
        if self.limit_bytes < least {
            return Err(format!("at least three segments, {least} bytes, are needed"));
        }
        debug_assert!(SEGMENT_DATA_AT + record_payload_max(self.segment_bytes) < self.segment_bytes);
        Ok(())
    }
}
