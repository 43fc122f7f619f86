//! The namespaces of a log: whether each is journaled, its number, and the position up to which it
//! is marked.

use std::collections::HashMap;

use blocker::{Durability, Namespace, Scope};
use cached_journal::Position;
use dashmap::DashMap;

use crate::hash::{KeyHasher, SeededState};
use crate::object::config::{NamespaceConfig, ObjectCacheConfig};
use crate::sync::{Arc, AtomicU64, Ordering};

/// The configured terms of a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Whether changes of the namespace are logged.
    pub(crate) is_journaled: bool,
    /// The minimum durability of an acknowledgement.
    pub(crate) durability: Durability,
}

/// A namespace that this cache has claimed, or for which the journal has records.
#[derive(Debug)]
pub(crate) struct NamespaceLog {
    /// The namespace's number in record heads.
    pub(crate) number: u64,
    pub(crate) is_journaled: bool,
    /// The epoch that the cache holds.
    epoch: AtomicU64,
    /// The namespace has no record after this position.
    last: AtomicU64,
    /// A durable mark covers the namespace's records up to this position.
    marked: AtomicU64,
    /// The changes that went to the store without being logged. A single change stands for all
    /// changes of earlier processes. While one of these changes is not durable, nothing may be
    /// logged: a logged change would survive a crash that loses changes acknowledged before it.
    pub(crate) forwarded: Forwarded,
}

/// Changes that the store has accepted, but not necessarily stored durably.
#[derive(Debug, Default)]
pub(crate) struct Forwarded {
    taken: AtomicU64,
    /// The number of those changes that the store has stored durably.
    stored: AtomicU64,
}

impl Forwarded {
    /// Records that the store has accepted a change, but may not have stored it durably; the change
    /// is not acknowledged yet.
    pub(crate) fn note(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the number of changes that the store has accepted; a flush requested afterwards
    /// covers all of them.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    /// Records that the store has durably stored everything that it had accepted when `taken` was
    /// read.
    pub(crate) fn note_stored(&self, taken: u64) {
        self.stored.fetch_max(taken, Ordering::SeqCst);
    }

    /// Returns whether the store may have accepted changes that are not durable.
    pub(crate) fn is_any(&self) -> bool {
        self.taken() > self.stored.load(Ordering::SeqCst)
    }
}

impl NamespaceLog {
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Returns whether the log may have a record of the namespace that would be replayed.
    pub(crate) fn has_unmarked(&self) -> bool {
        self.last.load(Ordering::SeqCst) > self.marked.load(Ordering::SeqCst)
    }

    fn new(number: u64, is_journaled: bool) -> Self {
        let zero = || AtomicU64::new(0);
        let forwarded = Forwarded::default();
        forwarded.note();
        Self { number, is_journaled, epoch: zero(), last: zero(), marked: zero(), forwarded }
    }

    /// Records that a record of the namespace was appended.
    pub(super) fn note_record(&self, position: Position) {
        self.last.fetch_max(position.0, Ordering::SeqCst);
    }

    /// Records that a durable mark covers the namespace's records up to `up_to`.
    pub(crate) fn note_mark(&self, up_to: Position) {
        self.marked.fetch_max(up_to.0, Ordering::SeqCst);
    }
}

/// The namespaces of a log.
pub(crate) struct Names {
    default: Terms,
    configured: HashMap<Namespace, Terms>,
    /// The known namespaces: at most as many as a cache can claim, plus those in the replay. A leaf
    /// in the lock order: no other lock is taken while one of its shards is locked.
    known: DashMap<Namespace, Arc<NamespaceLog>, SeededState>,
    next: AtomicU64,
}

impl Names {
    pub(super) fn new(config: &ObjectCacheConfig) -> Self {
        let terms = |journal: Option<bool>, write, durability| {
            let is_journaled = journal.unwrap_or(write == blocker::WriteMode::Back);
            Terms { is_journaled, durability }
        };
        let own = |it: &NamespaceConfig| {
            (it.namespace.clone(), terms(it.journal, config.write_mode(&it.namespace), it.durability))
        };
        Self {
            default: terms(config.journal, config.write, config.durability),
            configured: config.namespaces.iter().map(own).collect(),
            known: DashMap::with_hasher(KeyHasher::new(config.hash_seed).seeded_state()),
            next: AtomicU64::new(1),
        }
    }

    /// Returns the configured terms of a namespace.
    pub(crate) fn terms(&self, namespace: &Namespace) -> Terms {
        self.configured.get(namespace).copied().unwrap_or(self.default)
    }

    /// Returns a namespace that has been claimed, or for which the replay has records.
    pub(crate) fn get(&self, namespace: &Namespace) -> Option<Arc<NamespaceLog>> {
        self.known.get(namespace).map(|known| Arc::clone(&known))
    }

    /// Adds a namespace with its number in the replay, which has records of the namespace up to
    /// `last`. Its changes are logged regardless of the configuration: the log has older changes,
    /// which must not be replayed without the later ones.
    pub(crate) fn learn(&self, namespace: &Namespace, number: u64, last: Position) {
        self.next.fetch_max(number.saturating_add(1), Ordering::SeqCst);
        let known = self.known.entry(namespace.clone());
        known.or_insert_with(|| Arc::new(NamespaceLog::new(number, true))).note_record(last);
    }

    /// Returns the log state of a namespace, and assigns it a number if it is new.
    pub(crate) fn number(&self, namespace: &Namespace) -> Arc<NamespaceLog> {
        let known = self.known.entry(namespace.clone()).or_insert_with(|| {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            Arc::new(NamespaceLog::new(number, self.terms(namespace).is_journaled))
        });
        Arc::clone(&known)
    }

    /// Records that the cache has claimed a namespace.
    pub(crate) fn claimed(&self, namespace: &Namespace, epoch: u64) {
        self.number(namespace).epoch.store(epoch, Ordering::SeqCst);
    }

    /// Records that a mark of everything is durable, or that the log is void for another reason.
    pub(crate) fn note_mark_of_all(&self, up_to: Position) {
        self.known.iter().for_each(|known| known.note_mark(up_to));
    }

    /// Returns the namespaces within a scope, each with the number of changes that the store has
    /// accepted past the log. Scopes of a single object or order domain yield none.
    pub(crate) fn forwarded_within(&self, scope: &Scope) -> Vec<(Arc<NamespaceLog>, u64)> {
        let all: Vec<_> = match scope {
            Scope::Object(_) | Scope::Domain(..) => return Vec::new(),
            Scope::Namespace(namespace) => self.get(namespace).into_iter().collect(),
            _ => self.known.iter().map(|known| Arc::clone(&known)).collect(),
        };
        all.into_iter().map(|known| (Arc::clone(&known), known.forwarded.taken())).collect()
    }

    /// Returns whether the log may have a record that would be replayed.
    pub(crate) fn has_unmarked(&self) -> bool {
        self.known.iter().any(|known| known.has_unmarked())
    }

    /// Returns whether changes of a namespace are logged.
    pub(crate) fn is_journaled(&self, namespace: &Namespace) -> bool {
        self.get(namespace).map_or_else(|| self.terms(namespace).is_journaled, |known| known.is_journaled)
    }
}
