//! The claims that are known here: those that went through the cache, and those that the store has reported.

use blocker::admission::Claims;
use blocker::{Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope};

use crate::object::lock_ranks;
use crate::sync::{AtomicU32, Mutex, Ordering, lock};

/// See the module. One plain lock, not a concurrent map: the epoch in force for a change is the highest of
/// several scopes' (object, order domain, namespace, everything), which must be read together. Without claims
/// it is not taken.
pub(crate) struct KnownClaims {
    claims: Mutex<Claims>,
    /// How often a claim has been noted; read before the lock is taken.
    count: AtomicU32,
}

impl Default for KnownClaims {
    fn default() -> Self {
        Self { claims: Mutex::ranked(Claims::default(), &lock_ranks::CLAIMS), count: AtomicU32::new(0) }
    }
}

impl KnownClaims {
    /// Returns the epoch in force for a change, as far as claims are known here.
    pub(crate) fn in_force(&self, id: &ObjectId, domain: Option<OrderDomain>) -> Epoch {
        if self.count.load(Ordering::Acquire) == 0 {
            return Epoch(0);
        }
        lock(&self.claims).in_force(id, domain)
    }

    /// Notes that a scope is claimed.
    pub(crate) fn note(&self, scope: &Scope, epoch: Epoch) {
        // An older claim of the same scope, or more scopes than can be remembered: the store decides.
        if matches!(lock(&self.claims).record(scope, epoch, None), Ok(true)) {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// Forgets the claims of parts of a namespace that do not stand above `epoch`, with which this cache has claimed all
    /// of it.
    pub(crate) fn forget_parts(&self, namespace: &Namespace, epoch: Epoch) {
        lock(&self.claims).forget_parts(namespace, epoch);
    }

    /// Raises the epoch of a scope before the store is asked to. Returns the scope's epoch before, for
    /// [`Self::take_back`]; `None` where the store alone decides.
    ///
    /// # Errors
    /// `Fenced` if a newer one is known to be in force.
    pub(crate) fn raise(&self, scope: &Scope, epoch: Epoch) -> Result<Option<Epoch>> {
        let mut claims = lock(&self.claims);
        let in_force = claims.scope_epoch(scope);
        if epoch < in_force {
            return Err(Error::Fenced { epoch: in_force });
        }
        // The store knows the writer of a claim that is in force already; with more scopes than can be
        // remembered, the store decides.
        let before = claims.own_epoch(scope);
        if epoch == in_force || !matches!(claims.record(scope, epoch, None), Ok(true)) {
            return Ok(None);
        }
        drop(claims);
        self.count.fetch_add(1, Ordering::Release);
        Ok(Some(before))
    }

    /// Takes back a raised epoch that the store has refused for good.
    pub(crate) fn take_back(&self, scope: &Scope, epoch: Epoch, before: Epoch) {
        lock(&self.claims).undo_record(scope, epoch, before);
    }
}
