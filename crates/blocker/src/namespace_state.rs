//! The part of the control plane that manages the namespaces of a cache: their settings, and what it has of them.

use crate::name::Namespace;
use crate::namespace_settings::NamespaceSettings;
use crate::write_mode::WriteMode;

/// What a cache has of a namespace, and how it treats it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NamespaceState {
    /// The namespace.
    pub namespace: Namespace,
    /// How writes are treated.
    pub write: WriteMode,
    /// Whether something of an earlier write mode is left: a change under way, or data to be stored.
    pub is_changing: bool,
    /// Whether the configuration file names it.
    pub is_configured: bool,
    /// Its settings in force, beside the write mode.
    pub settings: NamespaceSettings,
    /// What the cache has of it, and what has been done with it, by name.
    pub counts: Vec<(String, u64)>,
}

impl NamespaceState {
    /// Returns the state of a namespace without settings and counts.
    #[must_use]
    pub fn new(namespace: Namespace, write: WriteMode) -> Self {
        Self {
            namespace,
            write,
            is_changing: false,
            is_configured: false,
            settings: NamespaceSettings::default(),
            counts: Vec::new(),
        }
    }
}

/// One page of the namespaces that a cache knows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NamespacePage {
    /// Their states, in bytewise order of the names.
    pub states: Vec<NamespaceState>,
    /// Whether there may be more after the last of them.
    pub has_more: bool,
}

/// What becomes of a namespace's data that are not stored when it is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DirtyData {
    /// They are a reason to refuse.
    #[default]
    Refuse,
    /// They are stored first.
    Store,
    /// They are dropped. What was acknowledged as *cached* or *journaled*, and is not stored, is gone.
    Discard,
}

/// What has left a cache with a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RemovedNamespace {
    /// Data that the store has, in bytes.
    pub dropped_bytes: u64,
    /// Acknowledged data that the store does not have, in bytes, by whole buckets.
    pub discarded_bytes: u64,
}
