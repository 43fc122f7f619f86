//! The namespaces of a cache by name, with their numbers.
//!
//! An object's node stores its namespace's number, so no operation on an object looks up its
//! namespace by name.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use blocker::{Durability, Namespace, WriteMode};
use dashmap::DashMap;

use super::records::{NamespaceRecord, NamespaceTable};
use super::write_phases::WritePhases;
use crate::ensure;
use crate::hash::{KeyHasher, SeededState};
use crate::object::config::{NAMESPACES_MAX, NamespaceConfig, OTHERS, ObjectCacheConfig};
use crate::object::lock_ranks;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The namespaces of a cache by name.
pub(crate) struct Namespaces {
    table: NamespaceTable,
    /// A leaf in the lock order: no other lock is taken while one of its shards is locked.
    numbers: DashMap<Namespace, u16, SeededState>,
    /// Whether the background must complete changes that were made in earlier write modes.
    pub(crate) asks_to_settle: AtomicBool,
    /// Whether any namespace is in write-back mode. If none is, a change need not check its own
    /// namespace.
    has_back: AtomicBool,
    /// Whether all numbers have been assigned: then unknown names need not be looked up again.
    is_full: AtomicBool,
    /// Whether changes bypass the cache, whatever the write modes. Written while `changing` is
    /// held.
    is_in_transit: AtomicBool,
    /// Held while a number is assigned or a mode is set.
    changing: Mutex<()>,
}

impl Deref for Namespaces {
    type Target = NamespaceTable;
    fn deref(&self) -> &NamespaceTable {
        &self.table
    }
}

impl Namespaces {
    /// Assigns the first numbers to the configured namespaces.
    pub(crate) fn new(config: &ObjectCacheConfig) -> Self {
        let namespaces = Self {
            table: NamespaceTable::new(WritePhases::new(config.write, config.write)),
            asks_to_settle: AtomicBool::new(false),
            has_back: AtomicBool::new(false),
            numbers: DashMap::with_hasher(KeyHasher::new(config.hash_seed).seeded_state()),
            is_full: AtomicBool::new(false),
            is_in_transit: AtomicBool::new(false),
            changing: Mutex::ranked((), &lock_ranks::NAMESPACE_NUMBERS),
        };
        // The configuration was validated: there are enough numbers.
        let _ = namespaces.set_modes(config, &config.namespaces);
        namespaces
    }

    /// Returns the number of `namespace`, and assigns one if it has none; [`OTHERS`] if all numbers
    /// have been assigned.
    pub(crate) fn of(&self, namespace: &Namespace) -> u16 {
        if let Some(number) = self.known(namespace) {
            return number;
        }
        if self.is_full.load(Ordering::Relaxed) {
            return OTHERS;
        }
        let _changing = lock(&self.changing);
        if let Some(number) = self.known(namespace) {
            return number;
        }
        self.add(namespace, self.record(OTHERS).write_phases.set_mode())
    }

    /// Assigns a number to a namespace whose configured write mode is `set`; [`OTHERS`] if all have
    /// been assigned. The caller holds `changing`.
    fn add(&self, namespace: &Namespace, set: WriteMode) -> u16 {
        let number = self.table.add(namespace.clone(), WritePhases::new(set, self.in_force(set, false)));
        if number == OTHERS {
            self.is_full.store(true, Ordering::Relaxed);
        } else {
            self.numbers.insert(namespace.clone(), number);
        }
        number
    }

    /// Returns the configured write mode of a namespace.
    pub(crate) fn set_mode_of(&self, namespace: &Namespace) -> WriteMode {
        self.record(self.known(namespace).unwrap_or(OTHERS)).write_phases.set_mode()
    }

    /// Returns the effective write mode of a namespace.
    pub(crate) fn write_mode(&self, namespace: &Namespace) -> WriteMode {
        self.record(self.known(namespace).unwrap_or(OTHERS)).write_phases.mode()
    }

    /// Returns whether any namespace is in write-back mode.
    #[inline]
    pub(crate) fn has_back(&self) -> bool {
        self.has_back.load(Ordering::Relaxed)
    }

    /// Applies the write modes of a configuration, and assigns numbers to new namespaces. The
    /// namespaces in `named` count as configured.
    ///
    /// # Errors
    /// The first namespace for which no number is left; in this case nothing has changed.
    pub(crate) fn set_modes(
        &self,
        config: &ObjectCacheConfig,
        named: &[NamespaceConfig],
    ) -> Result<(), Namespace> {
        let _changing = lock(&self.changing);
        let new = config.namespaces.iter().filter(|each| self.known(&each.namespace).is_none());
        let new: Vec<&NamespaceConfig> = new.collect();
        if let Some(each) = new.get(NAMESPACES_MAX + 1 - self.count() as usize) {
            return Err(each.namespace.clone());
        }
        for each in new {
            // A new namespace has its mode from the start, so nothing of an earlier mode is left.
            self.add(&each.namespace, each.settings.write.unwrap_or(config.write));
        }
        let own = config.namespaces.iter().filter_map(|each| Some((&each.namespace, each.settings.write?)));
        let own: HashMap<&Namespace, WriteMode> = own.collect();
        let named: HashSet<&Namespace> = named.iter().map(|each| &each.namespace).collect();
        for record in self.records() {
            let mode = record.name.as_ref().and_then(|name| own.get(name)).copied();
            self.put(record, mode.unwrap_or(config.write));
            let is_named = record.name.as_ref().is_some_and(|name| named.contains(name));
            record.is_configured.store(is_named, Ordering::SeqCst);
        }
        self.note_back();
        Ok(())
    }

    /// Recomputes the effective mode of a namespace after its record's `discards_dirty` has
    /// changed.
    pub(crate) fn refresh(&self, record: &NamespaceRecord) {
        let _changing = lock(&self.changing);
        self.put(record, record.write_phases.set_mode());
        self.note_back();
    }

    /// Makes all new changes bypass the cache, or restores the configured modes.
    pub(crate) fn set_in_transit(&self, is_in_transit: bool) {
        let _changing = lock(&self.changing);
        self.is_in_transit.store(is_in_transit, Ordering::Relaxed);
        self.records().for_each(|record| self.put(record, record.write_phases.set_mode()));
        self.note_back();
    }

    fn put(&self, record: &NamespaceRecord, set: WriteMode) {
        let mode = self.in_force(set, record.discards_dirty.load(Ordering::SeqCst));
        record.write_phases.set(set, mode);
    }

    /// Returns the effective mode for the configured mode `set`: read-only while dirty data are
    /// being discarded, and in transit a mode that leaves nothing in the cache.
    fn in_force(&self, set: WriteMode, discards_dirty: bool) -> WriteMode {
        match set {
            _ if discards_dirty => WriteMode::ReadOnly,
            WriteMode::Back | WriteMode::Through if self.is_in_transit.load(Ordering::Relaxed) => {
                WriteMode::Around
            }
            set => set,
        }
    }

    fn note_back(&self) {
        let has_back = self.records().any(|record| record.write_phases.mode() == WriteMode::Back);
        self.has_back.store(has_back, Ordering::Relaxed);
    }

    /// Checks the modes against the current configuration.
    #[inline]
    pub(crate) fn validate(&self, config: &ObjectCacheConfig) -> Result<(), String> {
        let _changing = lock(&self.changing);
        for record in self.records() {
            let set = record.name.as_ref().map_or(config.write, |name| config.write_mode(name));
            let mode = self.in_force(set, record.discards_dirty.load(Ordering::SeqCst));
            let found = (record.write_phases.set_mode(), record.write_phases.mode());
            let number = record.number;
            ensure(found == (set, mode), || {
                format!("namespace {number} has modes {found:?}, not {:?}", (set, mode))
            })?;
            ensure(mode != WriteMode::Back || self.has_back(), || {
                format!("namespace {number} is written back, but no namespace is recorded as such")
            })?;
        }
        Ok(())
    }

    /// Returns the number of a namespace, if it has one.
    pub(crate) fn known(&self, namespace: &Namespace) -> Option<u16> {
        self.numbers.get(namespace).map(|number| *number)
    }
}

/// Returns the error text for a namespace that cannot have its own settings.
pub(crate) fn too_many(namespace: &Namespace) -> String {
    format!(
        "\"{namespace}\" cannot get settings of its own while the cache runs: {NAMESPACES_MAX} namespaces have been \
         used before it, and no more can have their own; if it is configured, it gets them at a restart"
    )
}

/// Returns the rank of a durability level, from the lowest.
pub(crate) fn rank(durability: Durability) -> usize {
    match durability {
        Durability::Cached => 0,
        Durability::Journaled => 1,
        Durability::Replicated(_) => 2,
        Durability::Stored => 3,
    }
}
