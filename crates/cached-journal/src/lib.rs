//! A journal on local disk.
//!
//! A writer appends a record, gets a [`Position`], and waits for the position before it
//! acknowledges. Records that arrive while the disk is busy become durable together, by one write
//! and one sync. After a crash, [`Journal::open`] returns the records from the oldest one still
//! needed up to the first one that did not become durable: always a prefix of the appended records,
//! without torn ones or gaps.
//!
//! The journal does not interpret its records. By [`Hold`]s the caller states which positions are
//! still needed; the journal reuses the space before the oldest hold.
//!
//! ```
//! use std::sync::Arc;
//! use cached_journal::{Head, Journal, JournalConfig, Kind, Object, Record};
//!
//! # let directory = std::env::temp_dir().join(format!("journal-{}", std::process::id()));
//! let config = JournalConfig {
//!     segment_bytes: 1 << 20,
//!     limit_bytes: 3 << 20,
//!     direct: false,
//!     ..JournalConfig::new(&directory)
//! };
//! let (journal, replay) = Journal::open(&config, Arc::new(|event| eprintln!("{event:?}")))?;
//! assert!(replay.is_empty());
//!
//! let head = Head { offset: 4096, len: 5, sequence: 1, ..Head::new(Kind(1), Object::Number(7)) };
//! let appended = journal.append(&Record { head, payload: &[b"he", b"llo"] })?;
//! journal.wait_blocking(appended.position)?;
//! // The process may crash here: the record is durable.
//! drop((journal, replay, appended));
//!
//! let (journal, replay) = Journal::open(&config, Arc::new(|_| {}))?;
//! for record in replay.records() {
//!     let record = record?;
//!     assert_eq!((record.head.offset, record.payload()?), (4096, b"hello".to_vec()));
//! }
//! # drop((journal, replay));
//! # std::fs::remove_dir_all(directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! - A record whose wait succeeded is found by every later recovery as long as it is held: after
//!   `kill -9` or power loss, even during a recovery or the reuse of segments.
//! - Recovery finds a prefix: with a record it finds all held records before it.
//! - After a failed write or sync, only records that were durable before count: the others get
//!   [`NotDurable`], their segment is not written any more, and a new one is tried every 5 s.
//! - A disk that has not answered within [`commit_timeout`](JournalConfig::commit_timeout) has
//!   failed. Its later answer about that batch is ignored; a new segment is tried once it has
//!   answered.
//! - Damage that no crash explains is refused at open, with file, offset and reason, or found when
//!   the payload is read. The one exception: damage to the last batch of a journal that was not
//!   closed looks like a torn write.
//!
//! # What the caller owes
//!
//! - A change that goes to the store without the journal needs a mark: see [`Head::mark`].
//! - While appends are refused with [`AppendError::Failed`], no mark can be written. Changes that
//!   go to the store then must not be overwritten by older records if the process ends before
//!   [`Event::Restarted`]: the store has to recognise them by their sequence.
//! - Holds: data that are not stored need a hold of their oldest record.
//!
//! `docs/journal-format.md` describes the bytes on disk.

#![forbid(unsafe_code)]

mod append;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod check;
mod commit;
mod config;
pub mod disk;
mod durability;
mod error;
mod format;
mod journal;
mod record;
mod recovery;
mod replay;
mod scan;
mod segments;
mod shared;
mod survey;
#[cfg(test)]
mod tests;
pub mod tools;

pub use append::{Appended, Hold, Reservation};
pub use blocker::ManualClock;
pub use config::{
    Environment, Event, JournalConfig, Level, Observer, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_MIN,
};
pub use durability::Wait;
pub use error::{AppendError, Corruption, DiskError, NotDurable, OpenError, ReadError};
pub use journal::Journal;
pub use record::{Epochs, Head, Kind, Marks, NAME_BYTES_MAX, Object, Position, Record, Scope};
pub use replay::{Read, Reader, RecordPlace, Records, Recovered, Replay, Source};
pub use shared::{BUCKETS, Counts, Histogram, Metrics};
pub use survey::{KEPT_ASIDE_MAX, kept_aside};
