//! The write mode of each namespace.
//!
//! An operation looks its namespace's mode up once, when it begins, and carries the value along: a mode that
//! is changed meanwhile concerns the operations that begin afterwards.

use blocker::{Error, Namespace, Result, WriteMode};
use dashmap::{DashMap, Entry};

use super::config::ObjectCacheConfig;
use crate::hash::{KeyHasher, SeededState};
use crate::sync::{AtomicBool, Ordering};

/// The most namespaces with a mode of their own.
const NAMESPACES_MAX: usize = 64 * 1024;

/// See the module.
pub(crate) struct WriteModes {
    default: WriteMode,
    /// Whether any namespace has a mode of its own: without one, a write looks nothing up.
    has_own: AtomicBool,
    /// A leaf: nothing is locked while a shard of it is.
    own: DashMap<Namespace, WriteMode, SeededState>,
}

impl WriteModes {
    pub(crate) fn new(config: &ObjectCacheConfig, hasher: &KeyHasher) -> Self {
        let own = DashMap::with_hasher(hasher.seeded_state());
        config.namespaces.iter().for_each(|each| {
            own.insert(each.namespace.clone(), each.write);
        });
        Self { default: config.write, has_own: AtomicBool::new(!own.is_empty()), own }
    }

    /// Returns the mode of `namespace`.
    #[inline]
    pub(crate) fn of(&self, namespace: &Namespace) -> WriteMode {
        if !self.has_own.load(Ordering::Acquire) {
            return self.default;
        }
        self.own.get(namespace).map_or(self.default, |mode| *mode)
    }

    /// Sets the mode of `namespace` for operations that begin from now on.
    ///
    /// # Errors
    /// `OutOfSpace` once 65 536 namespaces have a mode of their own.
    pub(crate) fn set(&self, namespace: Namespace, mode: WriteMode) -> Result<()> {
        let is_full = self.own.len() >= NAMESPACES_MAX;
        match self.own.entry(namespace) {
            Entry::Occupied(mut own) => {
                own.insert(mode);
            }
            Entry::Vacant(_) if is_full => {
                let why = format!(
                    "{NAMESPACES_MAX} namespaces have a write mode of their own, the most there can be"
                );
                return Err(Error::OutOfSpace(why.into()));
            }
            Entry::Vacant(place) => {
                place.insert(mode);
            }
        }
        self.has_own.store(true, Ordering::Release);
        Ok(())
    }
}
