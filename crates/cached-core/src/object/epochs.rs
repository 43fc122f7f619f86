//! The epochs of a cache that is the writer itself ([`Writer::Cache`](super::Writer)): which it has claimed,
//! and whether they are still in force. `claim.rs` obtains them.
//!
//! ```text
//!                 a change was refused, or a newer claim reported
//!  (none) ──claim──> Held ─────────────────────────────> Unconfirmed ──claimed again──> Held
//!                                                           │ another writer holds the namespace
//!                                                           └──> Deposed: every change is refused, until a restart
//! ```

use blocker::{Epoch, Namespace, Stamp, WriterId};
use dashmap::DashMap;

use super::wait_queue::Permits;
use crate::hash::{KeyHasher, SeededState};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The most namespaces that one cache can be the writer of.
pub(crate) const NAMESPACES_MAX: usize = 64 * 1024;

/// What this cache is to a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// Its writer, with this epoch.
    Held(Epoch),
    /// Perhaps its writer: the store must be asked before anything more is acknowledged.
    Unconfirmed(Epoch),
    /// No longer its writer; this epoch is in force.
    Deposed(Epoch),
}

/// See the module.
pub(crate) struct Epochs {
    pub(crate) writer: WriterId,
    /// Read by every flush and every change by way of the store, written at claims. One entry for each namespace
    /// that this cache changes, at most [`NAMESPACES_MAX`]. A leaf: nothing is locked while a shard of it is.
    namespaces: DashMap<Namespace, Own, SeededState>,
    /// Rises whenever a held epoch becomes unconfirmed. Objects remember under which generation they were
    /// last looked up.
    generation: AtomicU32,
    /// One claim is under way at a time.
    pub(crate) claiming: Permits,
    sequence: AtomicU64,
}

impl Epochs {
    pub(crate) fn new(hasher: &KeyHasher) -> Self {
        Self {
            writer: WriterId::random(),
            namespaces: DashMap::with_hasher(hasher.seeded_state()),
            generation: AtomicU32::new(1),
            claiming: Permits::new(1),
            sequence: AtomicU64::new(0),
        }
    }

    /// Returns the generation; to be read before a namespace is looked up.
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    pub(crate) fn get(&self, namespace: &Namespace) -> Option<Own> {
        self.namespaces.get(namespace).map(|own| *own)
    }

    pub(crate) fn set(&self, namespace: &Namespace, own: Own) {
        self.namespaces.insert(namespace.clone(), own);
        if !matches!(own, Own::Held(_)) {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether no further namespace can be claimed.
    pub(crate) fn is_full(&self) -> bool {
        self.namespaces.len() >= NAMESPACES_MAX
    }

    /// Returns the epoch that is held, or was held until it became unconfirmed.
    pub(crate) fn epoch(&self, namespace: &Namespace) -> Option<Epoch> {
        match self.get(namespace)? {
            Own::Held(epoch) | Own::Unconfirmed(epoch) => Some(epoch),
            Own::Deposed(_) => None,
        }
    }

    /// Returns the stamp of the next change under `epoch`.
    pub(crate) fn next_stamp(&self, epoch: Epoch) -> Stamp {
        Stamp { epoch, sequence: self.sequence.fetch_add(1, Ordering::Relaxed) }
    }

    /// Makes every epoch below `newer` unconfirmed that is held in a namespace for which `is_meant` returns
    /// true.
    pub(crate) fn unconfirm(&self, newer: Epoch, is_meant: impl Fn(&Namespace) -> bool) {
        let mut is_any = false;
        for mut entry in self.namespaces.iter_mut() {
            if let Own::Held(epoch) = *entry.value()
                && epoch < newer
                && is_meant(entry.key())
            {
                *entry.value_mut() = Own::Unconfirmed(epoch);
                is_any = true;
            }
        }
        if is_any {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether no other writer can have changed the namespace since this cache claimed it.
    pub(crate) fn holds(&self, namespace: &Namespace) -> bool {
        matches!(self.get(namespace), Some(Own::Held(_)))
    }

    /// Returns the namespaces whose epochs are held.
    pub(crate) fn held(&self) -> Vec<Namespace> {
        let held = self.namespaces.iter().filter(|entry| matches!(entry.value(), Own::Held(_)));
        held.map(|entry| entry.key().clone()).collect()
    }
}
