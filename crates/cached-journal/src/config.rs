//! A journal's environment: the configuration, which an operator chooses, and the disk, the clock
//! and the event handler, which the caller provides.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Clock, SystemClock};

use crate::disk::Disk;
use crate::format::{BLOCK_BYTES, SEGMENT_DATA_AT, record_payload_max};

/// The minimum size of a segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 1 << 20;
/// The maximum size of a segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// The minimum number of segments: one that is being filled, one that is being emptied, and one
/// that is ready.
pub const SEGMENTS_MIN: u64 = 3;

/// The configuration of a journal.
#[derive(Clone, Debug)]
pub struct JournalConfig {
    /// The directory, which only the journal uses.
    pub directory: PathBuf,
    /// Whether to create a missing journal, and its directory if that is missing; the directory's
    /// parent must exist. Default: true. If false, an empty directory is refused: its disk may not
    /// be mounted, and a journal found again later would be out of date.
    pub create: bool,
    /// The size of a segment file, from 1 MiB to 1 GiB, a multiple of 4 KiB. Default: 64 MiB. An
    /// existing journal keeps its segment size, unless it has never been used.
    pub segment_bytes: u64,
    /// The disk space of the journal, at least three segments. Default: 4 GiB. The whole space is
    /// allocated and zeroed in the background after the first open, so that a full disk is detected
    /// at that time.
    pub limit_bytes: u64,
    /// Whether writes bypass the page cache (`O_DIRECT`), which some file systems do not support.
    /// Default: true.
    pub direct: bool,
    /// The maximum number of bytes that wait in memory for the disk. Default: 32 MiB.
    pub unsynced_bytes_max: u64,
    /// The maximum time for the write and the sync of a batch. If it is exceeded, the disk counts
    /// as failed, and its later responses are ignored. Default: 30 s.
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

    /// Returns the maximum length, in bytes, of a record's payload in segments of this size.
    ///
    /// An existing journal keeps the size of its segments. For such a journal use
    /// [`Journal::payload_bytes_max`].
    ///
    /// [`Journal::payload_bytes_max`]: crate::Journal::payload_bytes_max
    #[must_use]
    pub fn payload_bytes_max(&self) -> u64 {
        record_payload_max(self.segment_bytes)
    }

    /// Checks the configuration. The error message names the valid values.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let Self { segment_bytes, limit_bytes, .. } = *self;
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
            || !segment_bytes.is_multiple_of(BLOCK_BYTES as u64)
        {
            return Err(format!(
                "segment_bytes is {segment_bytes}; it must be a multiple of 4096 from {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            ));
        }
        if self.commit_timeout.is_zero() {
            return Err("commit_timeout is 0; it must exceed the time of the slowest disk operation".into());
        }
        self.validate_ratios().map_err(|reason| format!("limit_bytes is {limit_bytes}: {reason}"))
    }

    /// Checks the configuration as [`validate`](Self::validate) does, for segments of any size.
    pub(crate) fn validate_ratios(&self) -> Result<(), String> {
        let least = self.segment_bytes.saturating_mul(SEGMENTS_MIN);
        if self.limit_bytes < least {
            return Err(format!("at least three segments, {least} bytes, are needed"));
        }
        debug_assert!(SEGMENT_DATA_AT + record_payload_max(self.segment_bytes) < self.segment_bytes);
        Ok(())
    }
}

/// The dependencies of a journal.
pub struct Environment {
    /// The disk on which the journal is stored.
    pub disk: Box<dyn Disk>,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// Receives events.
    pub observer: Observer,
}

impl Environment {
    /// Returns an environment with the operating system's clock and an observer that ignores
    /// events.
    pub fn new(disk: impl Disk + 'static) -> Self {
        Self { disk: Box::new(disk), clock: Arc::new(SystemClock), observer: Arc::new(|_| {}) }
    }
}

/// The fill level of a journal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Level {
    /// Less than half of the space is in use.
    #[default]
    Low,
    /// At least half of the space is in use: store the oldest objects first, whatever their age.
    Half,
    /// At least nine tenths of the space are in use: delay writers, or write through.
    NineTenths,
}

/// A change of the journal's state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The fill level has changed, upwards or downwards.
    Level(Level),
    /// There is space again, after an append or a reservation was refused with `Full` or `Busy`.
    Room,
    /// A write or sync failed, or took too long. Records that were not durable are lost, and
    /// appends are refused.
    Failed {
        /// The name of the file.
        file: String,
        /// `write`, `sync`, `commit` if the disk has not answered, or `find` or `lock` if a file
        /// was removed, replaced or unmounted.
        operation: &'static str,
        /// The operating system's message.
        error: String,
    },
    /// A new segment works, and appends are accepted again.
    Restarted,
    /// A new segment could not be created. The creation is retried after 5 s, and the journal
    /// continues with its existing segments.
    PrepareFailed {
        /// The name of the file.
        file: String,
        /// The operating system's message.
        error: String,
    },
}

/// The function that receives events. It is called without locks held, from any thread that uses
/// the journal, even from the drop of a hold; it must not block.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;
