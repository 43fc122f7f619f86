//! The namespaces of a cache, by name: which has which number.
//!
//! An object's node keeps the number, so that what concerns an object's namespace costs no look-up by name.

use std::collections::HashMap;
use std::ops::Deref;

use blocker::{Durability, Namespace, WriteMode};
use dashmap::DashMap;

use super::config::ObjectCacheConfig;
use super::lock_ranks;
use super::namespace_numbers::{NAMESPACES_MAX, OTHERS};
use super::namespace_table::{NamespaceRecord, NamespaceTable};
use crate::hash::{KeyHasher, SeededState};
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
    /// Held while a number is given, or a mode set: a new record gets the mode of the others.
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
            table: NamespaceTable::new(config.write),
            asks_to_settle: AtomicBool::new(false),
            has_back: AtomicBool::new(false),
            numbers: DashMap::with_hasher(KeyHasher::new(config.hash_seed).seeded_state()),
            is_full: AtomicBool::new(false),
            is_in_transit: AtomicBool::new(false),
            changing: Mutex::ranked((), &lock_ranks::NAMESPACE_NUMBERS),
        };
        for each in &config.namespaces {
            let number = namespaces.of(&each.namespace);
            namespaces.set_own(number, Some(each.write));
        }
        namespaces.note_back();
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
        let number = self.table.add(namespace.clone());
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

    /// Gives a namespace a write mode of its own, or that of the others; with the number of the others, sets
    /// theirs.
    pub(crate) fn set_mode(&self, number: u16, mode: Option<WriteMode>) {
        let _changing = lock(&self.changing);
        self.set_own(number, mode);
        self.note_back();
    }

    fn set_own(&self, number: u16, mode: Option<WriteMode>) {
        let of_others = self.record(OTHERS).write_phases.set_mode();
        let is_in_transit = self.is_in_transit.load(Ordering::Relaxed);
        if number != OTHERS {
            let record = self.record(number);
            record.has_own_mode.store(mode.is_some(), Ordering::Relaxed);
            record.write_phases.set(mode.unwrap_or(of_others), is_in_transit);
        } else if let Some(mode) = mode {
            let without_own = |record: &&NamespaceRecord| !record.has_own_mode.load(Ordering::Relaxed);
            self.records()
                .filter(without_own)
                .for_each(|record| record.write_phases.set(mode, is_in_transit));
        }
    }

    /// Lets the changes that begin from now on go around the cache, or puts the modes that were set in force
    /// again.
    pub(crate) fn set_in_transit(&self, is_in_transit: bool) {
        let _changing = lock(&self.changing);
        self.is_in_transit.store(is_in_transit, Ordering::Relaxed);
        self.records()
            .for_each(|record| record.write_phases.set(record.write_phases.set_mode(), is_in_transit));
        self.note_back();
    }

    fn note_back(&self) {
        let has_back = self.records().any(|record| record.write_phases.mode() == WriteMode::Back);
        self.has_back.store(has_back, Ordering::Relaxed);
    }

    /// Changes the modes that differ between two configurations: a namespace whose mode is the same in both
    /// keeps the one that it has.
    pub(crate) fn change_modes(&self, before: &ObjectCacheConfig, after: &ObjectCacheConfig) {
        let modes = |config: &ObjectCacheConfig| -> HashMap<Namespace, WriteMode> {
            config.namespaces.iter().map(|each| (each.namespace.clone(), each.write)).collect()
        };
        let (before_of, after_of) = (modes(before), modes(after));
        let _changing = lock(&self.changing);
        for namespace in before_of.keys().filter(|name| !after_of.contains_key(*name)) {
            if let Some(number) = self.known(namespace) {
                self.set_own(number, None);
            }
        }
        for (namespace, mode) in after_of.iter().filter(|(name, mode)| before_of.get(*name) != Some(*mode)) {
            if let Some(number) = self.known(namespace) {
                self.set_own(number, Some(*mode));
            }
        }
        if before.write != after.write {
            self.set_own(OTHERS, Some(after.write));
        }
        self.note_back();
    }

    /// Checks what the modes have in common.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let _changing = lock(&self.changing);
        let of_others = self.record(OTHERS).write_phases.mode();
        for record in self.records() {
            let mode = record.write_phases.mode();
            if !record.has_own_mode.load(Ordering::Relaxed) && mode != of_others {
                return Err(format!("namespace {} has no mode of its own, and {mode}", record.number));
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
