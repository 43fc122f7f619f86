//! The namespaces of a cache, by name: which has which number.
//!
//! An object's node keeps the number, so that what concerns an object's namespace costs no look-up by name.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use blocker::{Durability, Namespace, WriteMode};
use dashmap::DashMap;

use super::records::{NamespaceRecord, NamespaceTable};
use super::write_phases::WritePhases;
use crate::hash::{KeyHasher, SeededState};
use crate::object::config::{NAMESPACES_MAX, NamespaceConfig, OTHERS, ObjectCacheConfig};
use crate::object::lock_ranks;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// See the module.
pub(crate) struct Namespaces {
    table: NamespaceTable,
    /// A leaf: nothing is locked while a shard of it is.
    numbers: DashMap<Namespace, u16, SeededState>,
    /// Whether the background is to settle what is left of earlier write modes.
    pub(crate) asks_to_settle: AtomicBool,
    /// Whether any namespace is written back: where none is, no change need look whether its own is.
    has_back: AtomicBool,
    /// All numbers have been given: names that are not known need not be looked for again.
    is_full: AtomicBool,
    /// Whether changes go around the cache, whatever the modes. Written while `changing` is held.
    is_in_transit: AtomicBool,
    /// Held while a number is given, or a mode set.
    changing: Mutex<()>,
}

impl Deref for Namespaces {
    type Target = NamespaceTable;
    fn deref(&self) -> &NamespaceTable {
        &self.table
    }
}

impl Namespaces {
    /// The configured ones get the first numbers.
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
        // The configuration was checked: there are enough numbers.
        let _ = namespaces.set_modes(config, &config.namespaces);
        namespaces
    }

    /// Returns the number of `namespace`, which it gets if it has none; [`OTHERS`] if all have been given.
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

    /// Gives a namespace a number, of which `set` is the write mode; [`OTHERS`] if all have been given. The caller
    /// holds `changing`.
    fn add(&self, namespace: &Namespace, set: WriteMode) -> u16 {
        let number = self.table.add(namespace.clone(), WritePhases::new(set, self.in_force(set, false)));
        if number == OTHERS {
            self.is_full.store(true, Ordering::Relaxed);
        } else {
            self.numbers.insert(namespace.clone(), number);
        }
        number
    }

    /// Returns the write mode that has been set for a namespace.
    pub(crate) fn set_mode_of(&self, namespace: &Namespace) -> WriteMode {
        self.record(self.known(namespace).unwrap_or(OTHERS)).write_phases.set_mode()
    }

    /// Returns the write mode that is in force for a namespace.
    pub(crate) fn write_mode(&self, namespace: &Namespace) -> WriteMode {
        self.record(self.known(namespace).unwrap_or(OTHERS)).write_phases.mode()
    }

    /// Whether any namespace is written back.
    #[inline]
    pub(crate) fn has_back(&self) -> bool {
        self.has_back.load(Ordering::Relaxed)
    }

    /// Puts the write modes of a configuration in force, with numbers for the namespaces that are new; those in `named`
    /// count as configured.
    ///
    /// # Errors
    /// The first namespace for which no number is left; then nothing has changed.
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
            // With its mode from the start on: nothing of another one is left.
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

    /// Puts the mode of a namespace in force again, after `discards_dirty` of its record has changed.
    pub(crate) fn refresh(&self, record: &NamespaceRecord) {
        let _changing = lock(&self.changing);
        self.put(record, record.write_phases.set_mode());
        self.note_back();
    }

    /// Lets the changes that begin from now on go around the cache, or puts the modes that were set in force
    /// again.
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

    /// Returns the mode that is in force where `set` has been set: while what is dirty is discarded, none that
    /// changes anything, and in transit none that keeps something in the cache.
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

    /// Checks the modes against the configuration in force.
    pub(crate) fn validate(&self, config: &ObjectCacheConfig) -> Result<(), String> {
        let _changing = lock(&self.changing);
        for record in self.records() {
            let set = record.name.as_ref().map_or(config.write, |name| config.write_mode(name));
            let mode = self.in_force(set, record.discards_dirty.load(Ordering::SeqCst));
            let found = (record.write_phases.set_mode(), record.write_phases.mode());
            if found != (set, mode) {
                return Err(format!(
                    "namespace {} has modes {found:?}, not {:?}",
                    record.number,
                    (set, mode)
                ));
            }
            if mode == WriteMode::Back && !self.has_back() {
                return Err(format!("namespace {} is written back, and none is noted", record.number));
            }
        }
        Ok(())
    }

    /// Returns the number of a namespace that has one.
    pub(crate) fn known(&self, namespace: &Namespace) -> Option<u16> {
        self.numbers.get(namespace).map(|number| *number)
    }
}

/// Returns why a namespace cannot have settings of its own.
pub(crate) fn too_many(namespace: &Namespace) -> String {
    format!(
        "\"{namespace}\" cannot get settings of its own while the cache runs: {NAMESPACES_MAX} namespaces have been \
         used before it, the most that are counted apart; configured, it gets a place at a restart"
    )
}

/// Returns the place of a durability among the kinds of it, least first.
pub(crate) fn rank(durability: Durability) -> usize {
    match durability {
        Durability::Cached => 0,
        Durability::Journaled => 1,
        Durability::Replicated(_) => 2,
        Durability::Stored => 3,
    }
}
