//! `[volumes]`: disks that lie in the object cache. Without this table there are none.

use super::error::{ConfigError, invalid, require};
use blocker::WriteMode;
use blocker::{Durability, NAME_BYTES_MAX};
use cached_config::ObjectsTable;
use serde::{Deserialize, Serialize};

/// The longest name of a namespace's begin, or of an owner, in bytes.
const TEXT_BYTES_MAX: usize = 200;
const _: () = assert!(TEXT_BYTES_MAX < NAME_BYTES_MAX);

/// The table. An empty string means none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a table")]
pub struct VolumesTable {
    /// The namespace of the volumes' names, and the begin of the names of the volumes' own namespaces.
    pub prefix: String,
    /// What this program calls itself in the volumes that it has attached; empty for the host's name.
    pub owner: String,
    /// What a flush of a client, and a write that it demands to be durable, hold; `None`: *journaled* where there is a
    /// journal, and *stored* elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fua: Option<FuaName>,
    /// Whether a write is answered only once the volume's map has its object, so that it survives a kill of the process
    /// as far as the cache's acknowledgements do; `None`: where there is a journal, and where writes are not write-back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_at_once: Option<bool>,
}

/// What a flush holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FuaName {
    /// The journal has it.
    Journaled,
    /// The store has it.
    Stored,
}

impl From<FuaName> for Durability {
    fn from(name: FuaName) -> Durability {
        match name {
            FuaName::Journaled => Durability::Journaled,
            FuaName::Stored => Durability::Stored,
        }
    }
}

impl Default for VolumesTable {
    fn default() -> Self {
        VolumesTable { prefix: "volumes".into(), owner: String::new(), fua: None, record_at_once: None }
    }
}

impl VolumesTable {
    /// Returns what a flush holds over the object cache of this table.
    #[must_use]
    pub fn fua(&self, objects: &ObjectsTable) -> FuaName {
        self.fua.unwrap_or(match objects.journal {
            Some(_) => FuaName::Journaled,
            None => FuaName::Stored,
        })
    }

    /// Returns whether a write is answered only once the volume's map has its object.
    #[must_use]
    pub fn record_at_once(&self, objects: &ObjectsTable) -> bool {
        self.record_at_once.unwrap_or(objects.journal.is_some() || objects.write != WriteMode::Back)
    }

    /// Returns the table with the values that follow from other keys filled in.
    #[must_use]
    pub(crate) fn filled_in(self, objects: Option<&ObjectsTable>) -> VolumesTable {
        let Some(objects) = objects else { return self };
        let (fua, record_at_once) = (self.fua(objects), self.record_at_once(objects));
        VolumesTable { fua: Some(fua), record_at_once: Some(record_at_once), ..self }
    }

    /// Checks the table beside the one of the object cache.
    ///
    /// # Errors
    /// The first key whose value cannot work.
    pub(crate) fn check(&self, objects: Option<&ObjectsTable>) -> Result<(), ConfigError> {
        let Some(objects) = objects else {
            return invalid("volumes", "lie in the object cache; an [objects] table must say what that is");
        };
        require((1..=TEXT_BYTES_MAX).contains(&self.prefix.len()), "volumes.prefix", || {
            format!("has {} bytes; it must have 1 to {TEXT_BYTES_MAX}", self.prefix.len())
        })?;
        require(!self.prefix.starts_with('.'), "volumes.prefix", || {
            format!(
                "\"{}\" is reserved: names that begin with a dot are those of servers' records",
                self.prefix
            )
        })?;
        require(self.owner.len() <= TEXT_BYTES_MAX, "volumes.owner", || {
            format!("has {} bytes; it must have at most {TEXT_BYTES_MAX}", self.owner.len())
        })?;
        let is_possible = self.fua != Some(FuaName::Journaled) || objects.journal.is_some();
        require(is_possible, "volumes.fua", || {
            "is \"journaled\" without a journal; add [objects.journal], or write \"stored\"".into()
        })
    }
}
