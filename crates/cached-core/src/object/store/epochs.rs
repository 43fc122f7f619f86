//! The epochs of a cache that is the writer itself, and the known claims of callers.

use blocker::admission::Claims;
use blocker::{Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope, Stamp, WriterId};
use dashmap::DashMap;

use crate::hash::{KeyHasher, SeededState};
use crate::object::lock_ranks;
use crate::object::tasks::wait_queue::Permits;
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The maximum number of namespaces of which a cache can be the writer.
pub(crate) const NAMESPACES_MAX: usize = 64 * 1024;

/// Sequences from here on mean that the store may have changes that the log does not have: see
/// [`Epochs::note_unlogged`].
pub(crate) const UNLOGGED_SEQUENCE: u64 = 1 << 63;

/// The cache's role in a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// The cache is the writer, with this epoch.
    Held(Epoch),
    /// The cache may be the writer: the store must be asked before another change is acknowledged.
    Unconfirmed(Epoch),
    /// The cache is no longer the writer; this epoch is in force.
    Deposed(Epoch),
}

/// The epochs of a cache that is the writer itself ([`Writer`](crate::object::Writer)): the
/// epochs that it has claimed, and whether they are still in force. `shared/claim.rs` obtains them.
///
/// ```text
///                 a change was refused, or a newer claim reported
///  (none) ──claim──> Held ─────────────────────────────> Unconfirmed ──claimed again──> Held
///                                                           │ another writer holds the namespace
///                                                           └──> Deposed: every change is refused, until a restart
/// any, with nothing left to be stored ──released──> (none)
/// ```
///
/// An elected cache is deposed in all namespaces at once, and no namespace is released.
pub(crate) struct Epochs {
    pub(crate) writer: WriterId,
    /// Read by every flush and every forwarded change, written at claims. An entry for each
    /// namespace that this cache changes, at most [`NAMESPACES_MAX`]. While one of
    /// the shards is locked, the only other lock taken is that of a shard of `renewed`, a leaf in
    /// the lock order.
    namespaces: DashMap<Namespace, Own, SeededState>,
    /// Epochs with which this cache reclaims namespaces that it holds: if one is found to be in
    /// force, it is the cache's own. Kept apart from the roles, because an epoch stays here while
    /// the role changes.
    renewed: DashMap<Namespace, Epoch, SeededState>,
    /// Incremented whenever a held epoch becomes unconfirmed. An object remembers the generation in
    /// which its namespace was last looked up.
    generation: AtomicU32,
    /// Allows a single claim in flight at a time.
    pub(crate) claiming: Permits,
    sequence: AtomicU64,
    /// The epoch that has deposed this cache in all namespaces; 0: none.
    deposed_by: AtomicU64,
}

impl Epochs {
    /// `writer` is the writer ID of the claims, if it is given, or an earlier process used one.
    pub(crate) fn new(hasher: &KeyHasher, writer: Option<WriterId>) -> Self {
        Self {
            writer: writer.unwrap_or_else(WriterId::random),
            namespaces: DashMap::with_hasher(hasher.seeded_state()),
            renewed: DashMap::with_hasher(hasher.seeded_state()),
            generation: AtomicU32::new(1),
            claiming: Permits::new(1),
            sequence: AtomicU64::new(0),
            deposed_by: AtomicU64::new(0),
        }
    }

    /// Returns the generation; it must be read before a namespace is looked up.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Returns the epoch that has deposed this cache in all namespaces, if any.
    pub(crate) fn deposed_by(&self) -> Option<Epoch> {
        Some(self.deposed_by.load(Ordering::SeqCst)).filter(|epoch| *epoch > 0).map(Epoch)
    }

    /// Deposes this cache in all namespaces, for good.
    pub(crate) fn depose(&self, newer: Epoch) {
        self.deposed_by.fetch_max(newer.0, Ordering::SeqCst);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn get(&self, namespace: &Namespace) -> Option<Own> {
        if let Some(epoch) = self.deposed_by() {
            return Some(Own::Deposed(epoch));
        }
        self.namespaces.get(namespace).map(|own| *own)
    }

    pub(crate) fn set(&self, namespace: &Namespace, own: Own) {
        self.namespaces.insert(namespace.clone(), own);
        if !matches!(own, Own::Held(_)) {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Forgets the cache's role in a namespace: the cache claims the namespace afresh before its
    /// next change there.
    pub(crate) fn forget(&self, namespace: &Namespace) {
        self.namespaces.remove(namespace);
        self.renewed.remove(namespace);
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Records that this cache is about to reclaim a namespace that it holds, with a new epoch.
    pub(crate) fn renew(&self, namespace: &Namespace, epoch: Epoch) {
        self.renewed.insert(namespace.clone(), epoch);
    }

    /// Returns the epoch with which this cache has, or may have, reclaimed a namespace.
    pub(crate) fn renewed(&self, namespace: &Namespace) -> Option<Epoch> {
        self.renewed.get(namespace).map(|epoch| *epoch)
    }

    /// Returns whether this cache may have reclaimed a namespace without receiving a response: then
    /// the store may refuse the held epoch.
    pub(crate) fn is_renewing(&self, namespace: &Namespace) -> bool {
        self.renewed(namespace).zip(self.epoch(namespace)).is_some_and(|(renewed, own)| own < renewed)
    }

    /// Returns whether an epoch in force is this cache's own: then a change that was refused
    /// because of it was sent before the namespace was reclaimed.
    pub(crate) fn is_own(&self, namespace: &Namespace, epoch: Epoch) -> bool {
        self.epoch(namespace) == Some(epoch) || self.renewed(namespace) == Some(epoch)
    }

    /// Returns whether no further namespace can be claimed.
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

    /// Marks all stamps from now on to say that the store may get changes that the log does not
    /// have, because the journal has failed. A recovery that finds such a stamp does not show the
    /// versions in the log, because they stood for different contents.
    pub(crate) fn note_unlogged(&self) {
        self.sequence.fetch_max(UNLOGGED_SEQUENCE, Ordering::Relaxed);
    }

    /// Marks every held epoch below `newer` as unconfirmed, in the namespaces for which `is_meant`
    /// returns true.
    pub(crate) fn unconfirm(&self, newer: Epoch, is_meant: impl Fn(&Namespace) -> bool) {
        let mut is_any = false;
        for mut entry in self.namespaces.iter_mut() {
            if let Own::Held(epoch) = *entry.value()
                && epoch < newer
                && is_meant(entry.key())
                && self.renewed(entry.key()) != Some(newer)
            {
                *entry.value_mut() = Own::Unconfirmed(epoch);
                is_any = true;
            }
        }
        if is_any {
            self.generation.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns whether no other writer can have changed the namespace since this cache claimed it.
    pub(crate) fn holds(&self, namespace: &Namespace) -> bool {
        matches!(self.get(namespace), Some(Own::Held(_)))
    }

    /// Returns the claimed namespaces, except those that have turned out to be another writer's.
    pub(crate) fn claimed(&self) -> Vec<Namespace> {
        self.in_role(|own| !matches!(own, Own::Deposed(_)))
    }

    /// Returns all namespaces in which this cache may have data that are not stored.
    pub(crate) fn known(&self) -> Vec<Namespace> {
        self.in_role(|_| true)
    }

    /// Returns the namespaces whose epochs are held.
    pub(crate) fn held(&self) -> Vec<Namespace> {
        self.in_role(|own| matches!(own, Own::Held(_)))
    }

    /// Returns the namespaces whose epochs may no longer be held.
    pub(crate) fn unconfirmed(&self) -> Vec<Namespace> {
        self.in_role(|own| matches!(own, Own::Unconfirmed(_)))
    }

    fn in_role(&self, is_meant: impl Fn(&Own) -> bool) -> Vec<Namespace> {
        let meant = self.namespaces.iter().filter(|entry| is_meant(entry.value()));
        meant.map(|entry| entry.key().clone()).collect()
    }
}

/// The known claims: those that went through the cache, and those that the store has reported. They
/// have a plain lock instead of a concurrent map, because the epoch in force for a change is the
/// highest of several scopes (object, order domain, namespace, everything), which must be read
/// together. Without claims the lock is not taken.
pub(crate) struct KnownClaims {
    claims: Mutex<Claims>,
    /// The number of claims recorded; read before the lock is taken.
    count: AtomicU32,
}

impl Default for KnownClaims {
    fn default() -> Self {
        Self { claims: Mutex::ranked(Claims::default(), &lock_ranks::CLAIMS), count: AtomicU32::new(0) }
    }
}

impl KnownClaims {
    /// Returns the epoch in force for a change, as far as claims are known.
    #[inline]
    pub(crate) fn in_force(&self, id: &ObjectId, domain: Option<OrderDomain>) -> Epoch {
        if self.count.load(Ordering::Acquire) == 0 {
            return Epoch(0);
        }
        lock(&self.claims).in_force(id, domain)
    }

    /// Records that a scope is claimed.
    pub(crate) fn note(&self, scope: &Scope, epoch: Epoch) {
        // An older claim of the same scope, or more scopes than can be remembered, is not recorded:
        // the store decides.
        if matches!(lock(&self.claims).record(scope, epoch, None), Ok(true)) {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets claims of parts of a namespace, up to `epoch`, with which this cache has claimed the
    /// whole namespace.
    pub(crate) fn forget_parts(&self, namespace: &Namespace, epoch: Epoch) {
        lock(&self.claims).forget_parts(namespace, epoch);
    }

    /// Raises the epoch of a scope before the store is asked to. Returns the scope's own epoch before,
    /// which is `epoch` after another claim of it.
    ///
    /// # Errors
    /// `Fenced` if a newer epoch is known to be in force.
    pub(crate) fn raise(&self, scope: &Scope, epoch: Epoch) -> Result<Epoch> {
        let mut claims = lock(&self.claims);
        let in_force = claims.scope_epoch(scope);
        if epoch < in_force {
            return Err(Error::Fenced { epoch: in_force });
        }
        let before = claims.own_epoch(scope);
        // If there are more scopes than can be remembered, the store decides.
        if matches!(claims.record(scope, epoch, None), Ok(true)) {
            self.count.fetch_add(1, Ordering::Release);
        }
        Ok(before)
    }

    /// Lowers a raised epoch that the store has refused for good.
    pub(crate) fn lower(&self, scope: &Scope, epoch: Epoch, to: Epoch) {
        lock(&self.claims).undo_record(scope, epoch, to);
    }
}
