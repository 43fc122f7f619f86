//! An opened journal before its cache exists, and the options of a cache's journal.

use cached_journal::{Environment, Journal, JournalConfig, OpenError, Replay};
use serde::{Deserialize, Serialize};

use super::condition::Events;
use crate::sync::Arc;

/// An open journal with the records that an earlier process left in it, to be passed to the cache
/// that will use it.
///
/// ```no_run
/// use std::sync::Arc;
/// use blocker::{Memory, WriteMode};
/// use cached_core::object::{JournalOptions, ObjectCache, OpenJournal, Writer};
/// use cached_journal::JournalConfig;
///
/// let journal = OpenJournal::open(&JournalConfig::new("/var/lib/cached/journal"))?;
/// println!("{} records to replay", journal.records());
/// let cache = ObjectCache::builder(Arc::new(Memory::default()))
///     .write_mode(WriteMode::Back)
///     .writer(Writer::Cache)
///     .journal(journal, JournalOptions::default())
///     .start()?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct OpenJournal {
    pub(crate) journal: Arc<Journal>,
    pub(crate) replay: Replay,
    pub(crate) events: Arc<Events>,
    /// Whether a test does the work of the journal's threads.
    pub(crate) is_stepped: bool,
}

impl OpenJournal {
    /// Opens the journal in a directory, or creates one if the directory is empty or missing.
    ///
    /// # Errors
    /// The same as for [`Journal::open`].
    pub fn open(config: &JournalConfig) -> Result<Self, OpenError> {
        Self::with(|observer| Journal::open(config, observer))
    }

    /// Opens the journal as [`Self::open`] does, on the given disk and clock. The observer of
    /// `environment` is not called.
    ///
    /// # Errors
    /// The same as for [`Journal::open_in`].
    pub fn open_in(config: &JournalConfig, environment: Environment) -> Result<Self, OpenError> {
        Self::with(|observer| Journal::open_in(config, Environment { observer, ..environment }))
    }

    /// Opens the journal as [`Self::open_in`] does, but starts no threads: the test does their work
    /// through [`Self::journal`].
    ///
    /// # Errors
    /// The same as for [`Journal::open_in`].
    #[doc(hidden)]
    pub fn open_stepped(config: &JournalConfig, environment: Environment) -> Result<Self, OpenError> {
        let open =
            Self::with(|observer| Journal::open_stepped(config, Environment { observer, ..environment }));
        open.map(|open| Self { is_stepped: true, ..open })
    }

    fn with(
        open: impl FnOnce(cached_journal::Observer) -> Result<(Journal, Replay), OpenError>,
    ) -> Result<Self, OpenError> {
        let events = Arc::<Events>::default();
        let own = Arc::clone(&events);
        let (journal, replay) = open(std::sync::Arc::new(move |event| own.observe(event)))?;
        Ok(Self { journal: Arc::new(journal), replay, events, is_stepped: false })
    }

    /// Returns the number of records to replay.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.replay.len()
    }

    /// Returns the payload to replay, in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        self.replay.payload_bytes()
    }

    /// Returns the journal itself.
    #[doc(hidden)]
    #[must_use]
    pub fn journal(&self) -> Arc<Journal> {
        Arc::clone(&self.journal)
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Events").field("health", &self.condition.health()).finish_non_exhaustive()
    }
}

/// The treatment of changes when nine tenths of the journal are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AtLimit {
    /// The change waits for room, which is freed as objects are stored.
    #[default]
    Wait,
    /// The change goes to the store at once, as in write-through mode.
    Through,
}

/// The options of a cache's journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalOptions {
    /// The treatment of changes when nine tenths of the journal are in use.
    pub at_limit: AtLimit,
    /// The maximum payload of a logged change, in bytes: a larger change goes to the store at once,
    /// which takes large changes about as fast. Default: 512 KiB.
    pub journaled_bytes_max: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { at_limit: AtLimit::Wait, journaled_bytes_max: 512 << 10 }
    }
}
