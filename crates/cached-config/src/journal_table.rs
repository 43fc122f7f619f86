//! `[objects.journal]`: the journal, with which write-back loses no data. It is off unless the
//! table is present.

use std::io::ErrorKind;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use blocker::Durability;
use cached_core::object::{AtLimit, JournalOptions, OpenJournal, Writer};
use cached_journal::{DiskError, JournalConfig, OpenError, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
use cached_process::Exit;
use serde::{Deserialize, Serialize};

use crate::config_file::{ConfigError, invalid, require, within};
use crate::config_keys;
use crate::lifecycle::{StartError, Waiting};
use crate::objects::ObjectsTable;
use crate::quantity::Size;

config_keys! {
    /// The table `[objects.journal]`.
    pub struct JournalTable over JournalConfig = JournalConfig::new("");

    /// The directory of the journal; required. It is used for nothing else.
    pub directory: PathBuf = same(directory);
    /// Whether the startup creates a missing journal, and its directory if the parent exists.
    /// Without this, a directory whose disk is not mounted is not mistaken for a new journal.
    pub create: bool = same(create) or false;
    /// The size of a segment file.
    pub segment_bytes: Size = size(segment_bytes), in SEGMENT_BYTES;
    /// The maximum disk space of the journal.
    pub limit_bytes: Size = size(limit_bytes);
    /// Whether to bypass the page cache.
    pub direct: bool = same(direct);
    /// The maximum number of bytes in memory that wait for the disk.
    pub unsynced_bytes_max: Size = size(unsynced_bytes_max);
    /// The maximum time for the disk to confirm a batch, in seconds; beyond it, the disk counts as
    /// failed.
    pub commit_timeout_secs: u64 = secs(commit_timeout), in 1..=COMMIT_TIMEOUT_SECS_MAX;
    /// The behaviour of writers while the journal is nearly full.
    pub at_limit: AtLimit = own(JournalOptions::default().at_limit);
    /// The maximum size of a logged payload; larger payloads are stored before they are
    /// acknowledged. The default is 512 KiB, or the maximum payload that segments of this size can
    /// hold.
    pub journaled_bytes_max: Option<Size> = own(None);
}

/// The minimum durability of an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DurabilityName {
    /// The durability that the request asks for.
    Cached,
    /// *Journaled*, even if the request asks for less.
    Journaled,
}

impl From<DurabilityName> for Durability {
    fn from(name: DurabilityName) -> Durability {
        match name {
            DurabilityName::Cached => Durability::Cached,
            DurabilityName::Journaled => Durability::Journaled,
        }
    }
}

const KEY: &str = "objects.journal";

fn key(name: &str) -> String {
    format!("{KEY}.{name}")
}

impl JournalTable {
    /// Returns the configuration of the journal.
    #[must_use]
    pub fn config(&self) -> JournalConfig {
        let mut config = JournalConfig::new("");
        self.apply(&mut config);
        config
    }

    /// Returns how the cache uses the journal.
    #[must_use]
    pub fn options(&self) -> JournalOptions {
        JournalOptions { at_limit: self.at_limit, journaled_bytes_max: self.journaled_bytes_max().0 }
    }

    fn journaled_bytes_max(&self) -> Size {
        let usual = JournalOptions::default().journaled_bytes_max;
        self.journaled_bytes_max.unwrap_or(Size(usual.min(self.config().payload_bytes_max())))
    }

    /// Returns the table, with the values filled in that follow from other keys.
    pub(crate) fn filled_in(self) -> JournalTable {
        JournalTable { journaled_bytes_max: Some(self.journaled_bytes_max()), ..self }
    }

    /// Checks the values as far as this is possible without opening the journal.
    ///
    /// # Errors
    /// Returns the first key with an invalid value.
    pub(crate) fn check(&self, objects: &ObjectsTable) -> Result<(), ConfigError> {
        if self.directory.as_os_str().is_empty() {
            return invalid(key("directory"), "is missing; it must name a directory on a local disk");
        }
        require(objects.writer != Writer::Callers, "objects.writer", || {
            "is \"callers\"; a journal requires writer = \"cache\" or \"elected\": only exclusive claims guarantee, \
             after a crash, that no other writer has changed the data that the journal replays"
                .into()
        })?;
        self.check_ranges(KEY)?;
        let segment = self.segment_bytes;
        require(segment.0.is_multiple_of(blocker::BUCKET_BYTES), &key("segment_bytes"), || {
            format!("is {segment}; it must be a multiple of {}", Size(blocker::BUCKET_BYTES))
        })?;
        let segment = segment.0;
        let dirty = objects.dirty_bytes_max();
        let least = dirty.0.saturating_mul(2).saturating_add(segment.saturating_mul(4));
        require(self.limit_bytes.0 >= least, &key("limit_bytes"), || {
            format!(
                "is {}; it must be at least {}: twice dirty_bytes_max ({dirty}) and four segments ({})",
                self.limit_bytes,
                Size(least),
                self.segment_bytes
            )
        })?;
        require(self.unsynced_bytes_max.0 >= UNSYNCED_BYTES_MIN, &key("unsynced_bytes_max"), || {
            format!("is {}; it must be at least {}", self.unsynced_bytes_max, Size(UNSYNCED_BYTES_MIN))
        })?;
        let longest = Size(self.config().payload_bytes_max());
        within(
            &key("journaled_bytes_max"),
            self.journaled_bytes_max(),
            Size(blocker::BUCKET_BYTES)..=longest,
        )?;
        let checked = self.options().check(&self.config(), &objects.cache()?);
        checked.map_err(ConfigError::from)
    }

    /// Checks that the path is a directory or, with `create`, that the directory can be created.
    ///
    /// # Errors
    /// Fails if the path is not a directory, or its parent is missing.
    pub(crate) fn check_place(&self) -> Result<(), ConfigError> {
        let (directory, parent) = (&self.directory, self.directory.parent());
        let shown = directory.display();
        if directory.exists() {
            return require(directory.is_dir(), &key("directory"), || format!("{shown} is not a directory"));
        }
        if !self.create {
            // As with a store, whether the disk is mounted is known only at startup.
            return Ok(());
        }
        let parent = parent.filter(|parent| !parent.as_os_str().is_empty());
        require(parent.is_none_or(Path::is_dir), &key("directory"), || {
            format!("{shown}: No such file or directory; its parent directory must exist")
        })
    }

    /// Returns the directories of the journals that were set aside because another writer had taken
    /// over.
    #[must_use]
    pub fn overtaken(&self) -> Vec<PathBuf> {
        cached_journal::kept_aside(&self.directory)
    }

    /// Opens the journal on a separate thread, because opening reads the heads of all records that
    /// an earlier process left. While the journal's disk fails, retries every second.
    ///
    /// # Cancel safety
    /// The same as for [`Store::open_when_available`](crate::Store::open_when_available).
    ///
    /// # Errors
    /// Returns one line that names the directory, the problem and the remedy.
    pub async fn open(&self, waiting: &mut Waiting<'_>) -> Result<OpenJournal, StartError> {
        let directory = self.directory.display();
        let what = format!("the disk of the journal in {directory}");
        let wrong = |why: String| StartError::Config(ConfigError::new(key("directory"), why));
        let refused =
            |why: String| ConfigError { exit: Exit::Refused, ..ConfigError::new(key("directory"), why) };
        waiting.step(format_args!("opening the journal in {directory}"));
        loop {
            let config = self.config();
            let opened = waiting.blocking(&what, move || OpenJournal::open(&config)).await;
            let why = match opened {
                Some(Ok(journal)) => return Ok(journal),
                Some(Err(OpenError::Disk(error))) if !named_file::is_mistake(&error.error) => {
                    waiting.pause(&what, trouble(&error)).await;
                    continue;
                }
                Some(Err(OpenError::Locked)) => {
                    return Err(StartError::Locked(refused(format!(
                        "{directory}: another process has this journal open; stop it, or name another directory"
                    ))));
                }
                Some(Err(OpenError::Config(why))) => why,
                Some(Err(OpenError::Missing)) => return Err(refused(missing(&self.directory)).into()),
                Some(Err(error @ OpenError::Foreign { .. })) => format!("{directory}: {error}"),
                Some(Err(OpenError::Corrupt(corruption))) => format!(
                    "{directory}: {corruption}; cachectl journal verify {directory} lists all damage, export saves \
                     what is readable, discard starts anew"
                ),
                Some(Err(OpenError::Disk(error))) => disk_mistake(&self.directory, &error),
                None => format!("{directory}: opening the journal has panicked"),
            };
            return Err(wrong(why));
        }
    }
}

/// Returns a line that states that a directory contains no journal, and the remedy.
fn missing(directory: &Path) -> String {
    let shown = directory.display();
    format!(
        "{shown} contains no journal; `cachectl journal init {shown}` or create = true in [objects.journal] creates \
         one; if the journal's disk is not mounted, mount it"
    )
}

/// Returns a line about an operation in a directory that failed because of a mistake in the
/// configuration, and about the remedy.
fn disk_mistake(directory: &Path, DiskError { file, operation, error }: &DiskError) -> String {
    let shown = directory.display();
    let place = match directory.join(file) {
        // The directory itself could not be opened.
        place if place == directory => format!("{shown}: {operation} failed: {error}"),
        place => format!("{}: {operation} failed: {error}", place.display()),
    };
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            format!("{place}; the program's user needs read and write permission")
        }
        ErrorKind::NotFound => format!("{place}; its parent directory must exist"),
        _ => place,
    }
}

/// Returns a description of the failure of the journal's disk.
fn trouble(error: &DiskError) -> String {
    match error.error.kind() {
        ErrorKind::StorageFull => format!("{error}; the start needs space for two segments"),
        _ => error.to_string(),
    }
}

/// The permitted sizes of a segment.
const SEGMENT_BYTES: RangeInclusive<Size> = Size(SEGMENT_BYTES_MIN)..=Size(SEGMENT_BYTES_MAX);

/// The maximum of the commit timeout. A disk that takes longer is of no use to writers.
const COMMIT_TIMEOUT_SECS_MAX: u64 = 3600;

/// The minimum number of bytes that may wait for the disk: a batch of typical size.
const UNSYNCED_BYTES_MIN: u64 = 1 << 20;

/// Checks the durability keys of `[objects]` and its namespaces.
///
/// # Errors
/// Fails if a key requires a journal, or another write mode.
pub(crate) fn check_durability(objects: &ObjectsTable) -> Result<(), ConfigError> {
    let needs_journal = |is_asked: bool, key: &str, value: &str| {
        require(!is_asked || objects.journal.is_some(), key, || {
            format!("is {value} without a journal; add [objects.journal] with its directory")
        })
    };
    let is_journaled = |durability| durability == Some(DurabilityName::Journaled);
    needs_journal(is_journaled(Some(objects.durability)), "objects.durability", "\"journaled\"")?;
    for (index, table) in objects.namespaces.iter().enumerate() {
        let key = |name| format!("objects.namespaces[{index}].{name}");
        needs_journal(table.journal == Some(true), &key("journal"), "true")?;
        needs_journal(is_journaled(table.durability), &key("durability"), "\"journaled\"")?;
        let is_unlogged = table.journal == Some(false);
        require(!(is_unlogged && is_journaled(table.durability)), &key("durability"), || {
            "is \"journaled\" with journal = false; without a journal it must be \"cached\", or \"stored\" if the \
             request asks for that"
                .into()
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_any_size_need_no_other_key() {
        for (segment_mib, longest_kib) in [(1, 256), (2, 512), (64, 512)] {
            let segment_bytes = Size(segment_mib << 20);
            let table = JournalTable { directory: "j".into(), segment_bytes, ..JournalTable::default() };
            let objects = ObjectsTable { writer: Writer::Cache, ..ObjectsTable::default() };
            table.check(&objects).unwrap();
            assert_eq!(table.options().journaled_bytes_max, longest_kib << 10);
            // A setting that an operator asks for explicitly is refused if it is impossible.
            let table = JournalTable { journaled_bytes_max: Some(Size(2 << 20)), ..table };
            assert_eq!(table.check(&objects).unwrap_err().key, "objects.journal.journaled_bytes_max");
        }
    }
}
