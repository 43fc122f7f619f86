//! The namespaces of a log: which are journaled, their numbers, and up to which position each is marked.

use std::collections::HashMap;

use blocker::{Durability, Namespace, Scope};
use cached_journal::Position;
use dashmap::DashMap;

use crate::hash::{KeyHasher, SeededState};
use crate::object::config::ObjectCacheConfig;
use crate::sync::{Arc, AtomicU64, Ordering};

/// What is configured for a namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Whether its changes are logged.
    pub(crate) is_journaled: bool,
    /// The least durability of an acknowledgement.
    pub(crate) durability: Durability,
}

/// A namespace that this cache has claimed, or of which the journal has records.
#[derive(Debug)]
pub(crate) struct NamespaceLog {
    /// Its number in the heads of records.
    pub(crate) number: u64,
    is_journaled: bool,
    /// The epoch that the cache holds.
    epoch: AtomicU64,
    /// No record of it is above this position.
    last: AtomicU64,
    /// A mark that is durable covers its records up to this position.
    marked: AtomicU64,
    /// What the store has taken past the log; one change for those of earlier processes.
    pub(crate) forwarded: Forwarded,
}

/// Changes that the store has taken, and need not have stored.
#[derive(Debug, Default)]
pub(crate) struct Forwarded {
    taken: AtomicU64,
    /// How many of them the store has stored since.
    stored: AtomicU64,
}

impl Forwarded {
    /// The store has taken a change that it need not have stored; the change is not acknowledged yet.
    pub(crate) fn note(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns how many changes the store has taken: those that a flush covers which is asked for afterwards.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::SeqCst)
    }

    /// The store has stored all that it had when `taken` was read.
    pub(crate) fn note_stored(&self, taken: u64) {
        self.stored.fetch_max(taken, Ordering::SeqCst);
    }

    /// Whether the store may have changes that it has not stored.
    pub(crate) fn is_any(&self) -> bool {
        self.taken() > self.stored.load(Ordering::SeqCst)
    }
}

impl NamespaceLog {
    pub(crate) fn is_journaled(&self) -> bool {
        self.is_journaled
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Whether the log may have a record of it that would be replayed.
    pub(crate) fn has_unmarked(&self) -> bool {
        self.last.load(Ordering::SeqCst) > self.marked.load(Ordering::SeqCst)
    }

    fn new(number: u64, is_journaled: bool) -> Self {
        let zero = || AtomicU64::new(0);
        let forwarded = Forwarded::default();
        forwarded.note();
        Self { number, is_journaled, epoch: zero(), last: zero(), marked: zero(), forwarded }
    }

    /// Whether the store may have changes that it has taken past the log, and not stored. Nothing may be logged
    /// then: it would survive what was acknowledged before it.
    pub(crate) fn has_forwarded(&self) -> bool {
        self.forwarded.is_any()
    }

    /// A record of it was appended.
    pub(super) fn note_record(&self, position: Position) {
        self.last.fetch_max(position.0, Ordering::SeqCst);
    }

    /// A mark is durable that covers its records up to `up_to`.
    pub(crate) fn note_mark(&self, up_to: Position) {
        self.marked.fetch_max(up_to.0, Ordering::SeqCst);
    }
}

/// See the module.
pub(crate) struct Names {
    default: Terms,
    configured: HashMap<Namespace, Terms>,
    /// At most as many as a cache can claim, and those that the replay has. A leaf: nothing is locked while a
    /// shard of it is.
    known: DashMap<Namespace, Arc<NamespaceLog>, SeededState>,
    next: AtomicU64,
}

impl Names {
    pub(super) fn new(config: &ObjectCacheConfig) -> Self {
        let journals = |asked: Option<bool>, write| asked.unwrap_or(write == blocker::WriteMode::Back);
        let each = |is_journaled, durability| Terms { is_journaled, durability };
        Self {
            default: each(journals(config.journal, config.write), config.durability),
            configured: config
                .namespaces
                .iter()
                .map(|it| {
                    (
                        it.namespace.clone(),
                        each(journals(it.journal, config.write_mode(&it.namespace)), it.durability),
                    )
                })
                .collect(),
            known: DashMap::with_hasher(KeyHasher::new(config.hash_seed).seeded_state()),
            next: AtomicU64::new(1),
        }
    }

    /// Returns what is configured for a namespace.
    pub(crate) fn terms(&self, namespace: &Namespace) -> Terms {
        self.configured.get(namespace).copied().unwrap_or(self.default)
    }

    /// Returns a namespace that has been claimed, or of which the replay has records.
    pub(crate) fn get(&self, namespace: &Namespace) -> Option<Arc<NamespaceLog>> {
        self.known.get(namespace).map(|known| Arc::clone(&known))
    }

    /// Adds a namespace with its number in the replay, which has records of it up to `last`. Its changes are
    /// logged whatever is configured: the log has older ones, which must not be replayed without them.
    pub(crate) fn learn(&self, namespace: &Namespace, number: u64, last: Position) {
        self.next.fetch_max(number.saturating_add(1), Ordering::SeqCst);
        let known = self.known.entry(namespace.clone());
        known.or_insert_with(|| Arc::new(NamespaceLog::new(number, true))).note_record(last);
    }

    /// Returns the number of a namespace, or gives it one.
    pub(crate) fn number(&self, namespace: &Namespace) -> Arc<NamespaceLog> {
        let known = self.known.entry(namespace.clone()).or_insert_with(|| {
            let number = self.next.fetch_add(1, Ordering::SeqCst);
            Arc::new(NamespaceLog::new(number, self.terms(namespace).is_journaled))
        });
        Arc::clone(&known)
    }

    /// Notes that the cache has claimed a namespace.
    pub(crate) fn claimed(&self, namespace: &Namespace, epoch: u64) {
        self.number(namespace).epoch.store(epoch, Ordering::SeqCst);
    }

    /// A mark of everything is durable, or what the log has is void by other means.
    pub(crate) fn note_mark_of_all(&self, up_to: Position) {
        self.known.iter().for_each(|known| known.note_mark(up_to));
    }

    /// Returns the namespaces within a scope, as far as it is not one object or order domain, each with how many
    /// changes the store has taken past the log.
    pub(crate) fn forwarded_within(&self, scope: &Scope) -> Vec<(Arc<NamespaceLog>, u64)> {
        let all: Vec<_> = match scope {
            Scope::Object(_) | Scope::Domain(..) => return Vec::new(),
            Scope::Namespace(namespace) => self.get(namespace).into_iter().collect(),
            _ => self.known.iter().map(|known| Arc::clone(&known)).collect(),
        };
        all.into_iter().map(|known| (Arc::clone(&known), known.forwarded.taken())).collect()
    }

    /// Whether the log may have a record that would be replayed.
    pub(crate) fn has_unmarked(&self) -> bool {
        self.known.iter().any(|known| known.has_unmarked())
    }

    /// Returns whether changes of a namespace are logged.
    pub(crate) fn is_journaled(&self, namespace: &Namespace) -> bool {
        self.get(namespace).map_or_else(|| self.terms(namespace).is_journaled, |known| known.is_journaled)
    }
}
