//! The log of a cache's changes, in a journal on a local disk: logged changes survive a crash. This
//! chapter has the records, the log's condition, and the records that a start has found; the code
//! that waits, flushes or claims is in later chapters: `shared/log_waits.rs`, `write/log_space.rs`
//! and `recovery/`.
//!
//! A change of a journaled namespace is logged in the exclusive section of its object, once it is
//! certain to be applied and before it is applied. So the log has the changes in the order of the
//! cache. The record is held until the change is stored ([`KeptHold`], in the dirty queue). A flush
//! contacts the store only after the records of its data are durable: the store never has a change
//! that the log has lost. A change that reaches the store without the log is preceded by a durable
//! mark, so that nothing older is replayed over it.

mod append;
mod condition;
mod names;
pub mod recorded;
pub(crate) mod records;
pub(crate) mod unapplied;

use blocker::metrics::{Collect, Counter, Families, counters};
use blocker::{Clock, Durability, Namespace, ObjectId, Scope, WriteMode, WriterId};
use cached_journal::{Environment, Head, Hold, Journal, JournalConfig, OpenError, Position, Record, Replay};
use names::Names;
use serde::{Deserialize, Serialize};

pub(crate) use append::{Entry, Full, KeptHold, Logged, Refusal, Room};
pub(crate) use condition::Events;
pub use condition::{JournalHealth, JournalState};
pub(crate) use names::{Forwarded, NamespaceLog};

use super::config::{ConfigError, NamespaceConfig, ObjectCacheConfig, Writer, ensure};
use super::tasks::wait_queue::Permits;
use crate::sync::Arc;

/// The log of a cache's changes.
pub(crate) struct ChangeLog {
    pub(crate) journal: Arc<Journal>,
    pub(crate) events: Arc<Events>,
    pub(crate) options: JournalOptions,
    pub(crate) names: Names,
    pub(crate) leave: Leave,
    /// Allows a single request at a time to make forwarded changes stored.
    pub(crate) storing_forwarded: Permits,
    pub(crate) counts: LogCounts,
}

counters! {
    #[derive(Default)]
    pub(crate) struct LogCounts {
        /// Changes that waited for room in the journal, or for it to work again.
        pub(crate) waits: Counter => "cached_journal_waits_total",
        /// Objects that were logged again because the store did not accept them.
        pub(crate) logged_again: Counter => "cached_journal_logged_again_total",
    }
}

impl ChangeLog {
    /// Creates the log of a cache.
    ///
    /// # Errors
    /// A [`ConfigError`] if the configuration does not fit the journal.
    pub(crate) fn new(
        journal: Arc<Journal>,
        events: Arc<Events>,
        options: JournalOptions,
        config: &ObjectCacheConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConfigError> {
        let sizes = Sizes::of(&journal);
        check(sizes, &options, config)?;
        // A claim at the start always finds room.
        let leave = Leave { ordinary: sizes.limit / 10, privileged: sizes.limit / 80 };
        events.condition.set_clock(clock);
        events.set_level(journal.level());
        Ok(Self {
            journal,
            events,
            options,
            names: Names::new(config),
            leave,
            storing_forwarded: Permits::new(1),
            counts: LogCounts::default(),
        })
    }

    /// Checks a changed configuration against the journal.
    ///
    /// # Errors
    /// The first invalid key.
    pub(crate) fn check(&self, config: &ObjectCacheConfig) -> Result<(), ConfigError> {
        check(Sizes::of(&self.journal), &self.options, config)
    }

    /// Counts something as logged until the guard is dropped: until then, the log is not declared
    /// void.
    pub(crate) fn count_logged(&self) -> Logged {
        Logged::new(&self.events)
    }

    /// Records that an object's state has been logged again, up to `last`.
    pub(crate) fn note_state(&self, object: &ObjectId, last: Position) {
        self.names.number(&object.namespace).note_record(last);
    }

    /// Keeps the log from the position of `hold` on.
    pub(crate) fn keep(&self, hold: Hold) -> KeptHold {
        KeptHold::new(hold, self.count_logged())
    }

    /// Returns the writer ID of the cache's claims: a cache that is restarted with the same journal
    /// is the same writer, and may repeat its own claims.
    pub(crate) fn writer(&self) -> WriterId {
        WriterId(u128::from(self.journal.id()) << 64 | u128::from(u64::from_le_bytes(*b"cachedjn")))
    }
}

/// The space, in bytes, that a record must leave free for more important records.
pub(crate) struct Leave {
    /// For the record of a change.
    ordinary: u64,
    /// For a mark, an epoch, or a state that is logged again.
    pub(crate) privileged: u64,
}

/// The sizes of a journal, in bytes.
#[derive(Clone, Copy)]
struct Sizes {
    limit: u64,
    segment: u64,
    payload_max: u64,
}

impl Sizes {
    fn of(journal: &Journal) -> Self {
        let (limit, segment) = journal.limit_bytes();
        Self { limit, segment, payload_max: journal.payload_bytes_max() }
    }
}

impl JournalOptions {
    /// Checks that a cache with the configuration `config` can use a new journal with the
    /// configuration `journal`, without opening it. An existing journal keeps its own segment size,
    /// which [`ObjectCacheBuilder::build`](super::ObjectCacheBuilder::build) checks again.
    ///
    /// # Errors
    /// The first invalid key.
    pub fn check(&self, journal: &JournalConfig, config: &ObjectCacheConfig) -> Result<(), ConfigError> {
        let sizes = Sizes {
            limit: journal.limit_bytes / journal.segment_bytes.max(1) * journal.segment_bytes,
            segment: journal.segment_bytes,
            payload_max: journal.payload_bytes_max(),
        };
        check(sizes, self, config)
    }
}

/// Checks a configuration against the journal.
///
/// # Errors
/// The first invalid key.
fn check(sizes: Sizes, options: &JournalOptions, config: &ObjectCacheConfig) -> Result<(), ConfigError> {
    ensure(config.writer != Writer::Callers, "writer", || {
        "must be Cache or Elected with a journal: replaying the journal must not undo changes of other writers"
            .into()
    })?;
    let Sizes { limit, segment, payload_max } = sizes;
    let least = config.dirty_bytes_max.saturating_mul(2).saturating_add(segment.saturating_mul(4));
    ensure(limit >= least, "journal.limit_bytes", || {
        format!(
            "must be at least {least}, twice dirty_bytes_max ({}) and four segments; the journal has {limit}",
            config.dirty_bytes_max
        )
    })?;
    ensure((1..=payload_max).contains(&options.journaled_bytes_max), "journal.journaled_bytes_max", || {
        format!("must be between 1 and {payload_max}, the largest payload of a record in this journal")
    })?;
    let object = config.object_bytes_max;
    ensure(config.dirty_bytes_max >= object, "dirty_bytes_max", || {
        format!(
            "must be at least object_bytes_max, {object}, with a journal: all of an object may be replayed at once"
        )
    })?;
    ensure(config.memory_bytes_min() / 4 >= object, "memory_bytes_max", || {
        format!("must be at least four times object_bytes_max, {object}, with a journal")
    })?;
    let own =
        |each: &NamespaceConfig| (each.journal, each.durability, each.settings.write.unwrap_or(config.write));
    let all = std::iter::once((config.journal, config.durability, config.write));
    for (journal, durability, write) in all.chain(config.namespaces.iter().map(own)) {
        let is_journaled = journal.unwrap_or(write == WriteMode::Back);
        ensure(durability != Durability::Journaled || is_journaled, "durability", || {
            "journaled needs changes to be logged: set journal = true, or write = back".into()
        })?;
        let is_kept = durability != Durability::Journaled || config.writer != Writer::Elected;
        ensure(is_kept, "durability", || {
            "must be cached with an elected writer: the next leader does not have the journal".into()
        })?;
        ensure(matches!(durability, Durability::Cached | Durability::Journaled), "durability", || {
            format!(
                "must be cached or journaled, not {durability}; use write-through to store changes at once"
            )
        })?;
    }
    Ok(())
}

/// Checks that a configuration does not need a journal.
///
/// # Errors
/// The first key that needs a journal.
pub(crate) fn check_without_journal(config: &ObjectCacheConfig) -> Result<(), ConfigError> {
    let own = |each: &NamespaceConfig| (each.journal, each.durability);
    let all = std::iter::once((config.journal, config.durability)).chain(config.namespaces.iter().map(own));
    for (journal, durability) in all {
        ensure(journal != Some(true), "journal", || {
            "needs a journal, and the cache has none: configure one, or omit this key".into()
        })?;
        ensure(durability == Durability::Cached, "durability", || {
            format!("{durability} needs a journal, and the cache has none: configure one")
        })?;
    }
    Ok(())
}

impl ChangeLog {
    /// Writes the journal's metrics.
    pub(crate) fn collect(&self, into: &mut Families) {
        let metrics = self.journal.metrics();
        metrics.collect(into);
        metrics.counts.collect(into);
        self.counts.collect(into);
        let help = "The state of the journal: 0 in order, 1 draining (the disk has failed; what was logged is being \
                    stored), 2 void (changes are not logged), 3 resuming.";
        into.gauge("cached_journal_state", help, self.events.condition.state() as u64);
    }

    /// Returns the position of the last appended record. An object that has a record up to this
    /// position, and has not been stored since, is in the dirty queue.
    pub(crate) fn last_position(&self) -> Position {
        Position(self.journal.next_position().0.saturating_sub(1))
    }

    /// Appends a mark of an object. Returns `Ok(None)` if the journal has failed.
    pub(crate) fn mark_object(
        &self,
        namespace: &NamespaceLog,
        id: &ObjectId,
        up_to: Position,
    ) -> Result<Option<Position>, Full> {
        records::encode_object_mark(namespace.number, id, up_to, |record| {
            self.append_privileged(record, None)
        })
    }

    /// Appends a mark of a scope other than a single object. Returns `Ok(None)` if there is nothing
    /// to mark, or the journal has failed.
    ///
    /// An order domain gets no mark: an object may have older records of another domain, which would
    /// be replayed over the changes of this one.
    pub(crate) fn mark_scope(&self, scope: &Scope, up_to: Position) -> Result<Option<Position>, Full> {
        let mark = |scope| Head::mark(scope, up_to);
        let head = match scope {
            Scope::Namespace(namespace) => {
                let known = self.names.get(namespace).filter(|it| it.has_unmarked());
                let mark = mark(cached_journal::Scope::Namespace);
                known.map(|known| Head { namespace: known.number, ..mark })
            }
            Scope::All => self.names.has_unmarked().then(|| mark(cached_journal::Scope::All)),
            _ => None,
        };
        head.map_or(Ok(None), |head| self.append_privileged(&Record { head, payload: &[] }, None))
    }

    /// Appends a mark of all namespaces, in any condition of the log.
    ///
    /// # Errors
    /// Errors of the journal.
    pub(crate) fn mark_all(&self, up_to: Position) -> Result<Position, cached_journal::AppendError> {
        let head = Head::mark(cached_journal::Scope::All, up_to);
        Ok(self.journal.append(&Record { head, payload: &[] })?.position)
    }

    /// Appends the record of an epoch with which a namespace is about to be claimed, in `room` if
    /// the caller has waited for it. Returns `Ok(None)` if the journal has failed.
    pub(crate) fn append_epoch(
        &self,
        namespace: &Namespace,
        epoch: u64,
        room: Option<Room>,
    ) -> Result<Option<Position>, Full> {
        let number = self.names.number(namespace).number;
        records::encode_epoch(number, namespace, epoch, |record| self.append_privileged(record, room))
    }
}

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
