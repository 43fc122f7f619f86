//! Fencing: how a store whose atomic steps span one object refuses a deposed writer on every object of a
//! scope, objects that do not exist yet included.
//!
//! Every object carries the epoch below which nothing is applied to it, its *fence*; every change compares
//! the fence it was prepared from, in the same step as it is applied. What remains is how fences come
//! to be there, and how a claim reaches all of them.
//!
//! **Rule 1.** No change creates its object, and none is applied to an object without a fence. Such an object
//! is first *introduced*:
//!  1. its `intro` attribute is set to a fresh nonce, or an `intro` that is there is read (an object that is
//!     not there is created for it, as a ghost);
//!  2. then the epochs of its scopes are read;
//!  3. then the change itself sets the fence to the highest of them (and of its own epoch), takes `intro`
//!     away, and compares `intro` with the nonce, all in its one step. It is sent only if its epoch is not
//!     below.
//!
//! **Rule 2.** A claim of epoch e first raises the scope's own epoch (at time R), then lists every RADOS
//! object in the scope, and for each: a fence below e is raised to e; where there is no fence, an `intro`
//! that is there is replaced by another nonce. Then it returns.
//!
//! Between the two it makes sure that no other writer holds the epoch in a scope that overlaps
//! (`exclusive.rs`); if one does, it is refused, and has raised an epoch that no writer was promised.
//!
//! **Rule 3.** A fence never falls while its RADOS object exists. One is removed only if its fence adds
//! nothing to those of the scopes: an unstamped deletion at fence 0, or a ghost that a claim finds with a
//! fence and a stamp below its epoch.
//!
//! *Claim: no change of an epoch below e is applied after the claim of e has returned.* Suppose one is, to an
//! object X at time T. By rule 1 it met a fence f < e. Let I < S < C ≤ T be the times of the steps of the
//! introduction that set the first fence of X since X's RADOS object was last created; f never fell, so at C
//! the fence was below e, so the epoch read at S was below e, so S < R, so I < R. Hence X existed, with that
//! `intro`, from before R until T: all through the claim's listing, which therefore met it (RADOS lists what
//! is there throughout), at a time K < T. If C < K, there was a fence, and it was raised to e if it was
//! below: it is not below e at T. If K < C, there was no fence, and the `intro` was replaced: the step at C
//! met another nonce, and was refused. Either way a contradiction. ∎
//!
//! Fences of order domains are attributes of their own that follow the same rules; an object gets one when a
//! change of that domain first meets it. The fence of an object that has been claimed by itself is its only
//! memory of it, so its ghost stays (rule 3: with a claimed epoch above 0 only stamped changes are applied,
//! and a stamped deletion leaves a ghost).
//!
//! What it costs: one comparison more in a change that is one round trip anyway; three more round trips for
//! the first change of an object; a claim of a namespace reads the attributes of every object in it, some
//! tens at a time. No clock is trusted, and no client needs rights over others, as a blocklist would.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blocker::admission::check_epoch_step;
use blocker::event::Event;
use blocker::{ClaimReply, Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope, WriterId};
use futures_util::StreamExt;

use super::exclusive::Above;
use super::read::Found;
use super::view::View;
use super::{Core, Space};
use crate::format::{self, CLAIM, Claim, EPOCH, FENCE, HEAD, Head, INTRO, NAMESPACE, STAMP};
use crate::librados::aio::WriteOp;
use crate::librados::ffi::{COMPARE_EQ, COMPARE_GT, errno};

/// How many objects a claim has in hand at once.
const CLAIM_OBJECTS: usize = 64;
/// How often a claim tries an object that others change at the same time.
const TRIES: u32 = 100;

/// The epochs that bind an object beside its own.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scopes {
    /// Of everything, or of the namespace: the higher.
    pub(crate) whole: u64,
    /// Of the order domain, where one was asked for.
    pub(crate) domain: u64,
}

impl Core {
    // ---- introducing

    /// Step 1: `view` with an `intro`; `None` if the object has changed under us.
    pub(crate) async fn introduce(
        self: &Arc<Self>,
        space: &Space,
        object: &ObjectId,
        view: View,
    ) -> Result<Option<View>> {
        if view.intro.is_some() && view.head.encode().is_some() {
            return Ok(Some(view));
        }
        self.limits.stats.introduced.fetch_add(1, Ordering::Relaxed);
        let (nonce, gate) = (format::nonce(), format::nonce());
        let op = WriteOp::new(&space.ioctx.cluster.api);
        let (op, head) = match view.head {
            Head::Absent => (op.create(), Head::Ghost { gate }),
            // Its size is what RADOS reports at this version, which is asserted below.
            Head::Foreign { size_bytes } => (op, Head::Live { size_bytes, gate }),
            head => (op, head),
        };
        let op = match view.head.encode() {
            Some(old) => op.compare(HEAD, COMPARE_EQ, &old).compare(INTRO, COMPARE_EQ, b""),
            None => op,
        };
        // A condition on the version must hold across this step, which gives a new one.
        let op = if view.version > 0 { op.assert_version(view.version) } else { op };
        let op = match head.encode() {
            Some(new) if head != view.head => op.set(HEAD, &new),
            _ => op,
        };
        let outcome = self.change_object(space, object, op.set(INTRO, &nonce.to_be_bytes()), || ()).await;
        match outcome.code {
            0.. => Ok(Some(View { head, intro: Some(nonce), version: outcome.version, ..view })),
            errno::EXIST | errno::CANCELED | errno::RANGE | errno::OVERFLOW => Ok(None),
            errno::NOENT => match self.failed_read(space, errno::NOENT) {
                Error::Missing => Ok(None),
                gone => Err(gone),
            },
            code => Err(self.failed_read(space, code)),
        }
    }

    /// Step 2: the epochs as they are now.
    pub(crate) async fn scopes(
        self: &Arc<Self>,
        space: &Space,
        namespace: &Namespace,
        domain: Option<OrderDomain>,
    ) -> Result<Scopes> {
        let root = &self.pool().root;
        if root.ioctx.pool != space.ioctx.pool {
            return Err(Error::Retryable("the pool has just changed".into()));
        }
        let scope = self.layout.internal(crate::format::SCOPE);
        let of_domain = domain.map(|domain| self.layout.domain(domain));
        let (all, own, domain) =
            futures_util::future::join3(self.epoch(root, &scope), self.epoch(space, &scope), async {
                match &of_domain {
                    Some(name) => self.epoch(space, name).await,
                    None => Ok(None),
                }
            })
            .await;
        let (all, own, domain) = (all?, own?, domain?);
        if own.is_none() && !space.is_named.load(Ordering::Relaxed) {
            self.name_space(space, namespace).await?;
        }
        space.is_named.store(true, Ordering::Relaxed);
        Ok(Scopes { whole: all.unwrap_or(0).max(own.unwrap_or(0)), domain: domain.unwrap_or(0) })
    }

    /// Leaves the namespace's own name where [`crate::RadosStore`] looks for namespaces.
    async fn name_space(self: &Arc<Self>, space: &Space, namespace: &Namespace) -> Result<()> {
        let op = WriteOp::new(&space.ioctx.cluster.api).create().set(NAMESPACE, namespace.as_bytes());
        match self.change_own(space, &self.layout.internal(crate::format::SCOPE), op).await.code {
            0.. | errno::EXIST => Ok(()),
            code => Err(self.failed_read(space, code)),
        }
    }

    /// Takes away the ghost of an introduction that led to nothing. If it stays, it does no harm.
    pub(crate) async fn withdraw(self: &Arc<Self>, space: &Space, object: &ObjectId, view: &View) {
        let (Head::Ghost { .. }, Some(head), None, Some(nonce)) =
            (view.head, view.head.encode(), view.fence, view.intro)
        else {
            return;
        };
        let op = WriteOp::new(&space.ioctx.cluster.api)
            .compare(HEAD, COMPARE_EQ, &head)
            .compare(INTRO, COMPARE_EQ, &nonce.to_be_bytes())
            .compare(FENCE, COMPARE_EQ, b"")
            .remove();
        let _ = self.change_own(space, &self.layout.object(&object.name), op).await;
    }

    // ---- epochs of scopes

    /// The epoch that an object of the store's own carries; `None` if there is no such object.
    async fn epoch(self: &Arc<Self>, space: &Space, name: &CString) -> Result<Option<u64>> {
        Ok(self.record(space, name).await?.map(|record| record.claim.epoch))
    }

    /// Writes the record of a claim of a scope: raises its epoch, or marks the claim as held. `above` is what
    /// the wider scopes have. Whether the epoch has risen.
    async fn record_claim(
        self: &Arc<Self>,
        space: &Space,
        name: &CString,
        namespace: Option<&Namespace>,
        above: Above,
        claim: Claim,
    ) -> Result<bool> {
        let Claim { epoch, writer: Some(writer), .. } = claim else { return Ok(false) };
        for _ in 0..TRIES {
            let record = self.record(space, name).await?;
            let (is_there, record) = (record.is_some(), record.unwrap_or_default());
            let current = record.claim;
            if current.epoch > epoch {
                return Err(Error::Fenced { epoch: Epoch(current.epoch) });
            }
            // One that was only asked for gives way to one that is held by way of a wider scope.
            if current.excludes(epoch, writer) && (current.is_held || !above.is_held) {
                return Err(Error::Fenced { epoch: Epoch(epoch) });
            }
            if current == claim || current.is_held_by(epoch, writer) {
                return Ok(false);
            }
            check_epoch_step(Epoch(current.epoch.max(above.in_force)), Epoch(epoch))?;
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = match (is_there, namespace) {
                // In one step, so that two claims cannot undo each other's.
                (true, _) => op.compare(EPOCH, COMPARE_EQ, &record.claim_bytes),
                (false, Some(namespace)) => op.create().set(NAMESPACE, namespace.as_bytes()),
                (false, None) => op.create(),
            };
            match self.change_own(space, name, op.set(EPOCH, &claim.encode())).await.code {
                0.. => return Ok(current.epoch < epoch),
                errno::EXIST | errno::CANCELED => {}
                errno::NOENT => match self.failed_read(space, errno::NOENT) {
                    Error::Missing => {}
                    gone => return Err(gone),
                },
                code => return Err(self.failed_change(space, code)),
            }
        }
        Err(Error::Retryable("too many concurrent claims of this scope".into()))
    }

    // ---- claiming

    pub(crate) async fn claim(
        self: &Arc<Self>,
        scope: Scope,
        epoch: Epoch,
        writer: WriterId,
    ) -> Result<ClaimReply> {
        if epoch == Epoch(0) {
            // Binds no writer, so it changes nothing; it shows which writer has claimed.
            return match self.epoch_in_force(&scope).await? {
                0 => Ok(ClaimReply::new(epoch)),
                in_force => Err(Error::Fenced { epoch: Epoch(in_force) }),
            };
        }
        let raised = match &scope {
            Scope::Object(object) => self.claim_object(&scope, object, (epoch.0, writer)).await?,
            _ => self.claim_scope(&scope, (epoch.0, writer)).await?,
        };
        if raised {
            self.events.publish(&Event::Fenced(scope.clone(), epoch));
            self.notify_others(&Event::Fenced(scope, epoch)).await;
        }
        Ok(ClaimReply::new(epoch))
    }

    async fn epoch_in_force(self: &Arc<Self>, scope: &Scope) -> Result<u64> {
        match scope {
            Scope::Object(object) => {
                let space = self.space(&object.namespace)?;
                match self.look(&space, &object.name, false).await?.fence {
                    Some(fence) => Ok(fence),
                    None => Ok(self.scopes(&space, &object.namespace, None).await?.whole),
                }
            }
            Scope::Domain(namespace, domain) => {
                let space = self.space(namespace)?;
                let scopes = self.scopes(&space, namespace, Some(*domain)).await?;
                Ok(scopes.whole.max(scopes.domain))
            }
            Scope::Namespace(namespace) => {
                let space = self.space(namespace)?;
                Ok(self.scopes(&space, namespace, None).await?.whole)
            }
            _ => {
                let root = &self.pool().root;
                Ok(self.epoch(root, &self.layout.internal(crate::format::SCOPE)).await?.unwrap_or(0))
            }
        }
    }

    /// Raises the scope's epoch, then meets every object in it.
    async fn claim_scope(self: &Arc<Self>, scope: &Scope, (epoch, writer): (u64, WriterId)) -> Result<bool> {
        let pool = self.pool();
        let whole = self.layout.internal(crate::format::SCOPE);
        let (space, name, namespace, domain) = match scope {
            Scope::All => (Arc::clone(&pool.root), whole, None, None),
            Scope::Namespace(namespace) => (self.space(namespace)?, whole, Some(namespace), None),
            Scope::Domain(namespace, domain) => {
                let space = self.space(namespace)?;
                // Names the namespace, if nothing has yet.
                self.scopes(&space, namespace, None).await?;
                (space, self.layout.domain(*domain), None, Some(*domain))
            }
            _ => return Err(Error::Unsupported("a claim of that scope".into())),
        };
        let own = self.record(&space, &name).await?.unwrap_or_default().claim;
        let above = self.look_above(scope, (epoch, writer), own.is_held_by(epoch, writer)).await?;
        if !above.is_held && own.epoch < epoch {
            self.look_beside(scope, (epoch, writer)).await?;
        }
        let asked = Claim { epoch, writer: Some(writer), is_held: false };
        let raised = self.record_claim(&space, &name, namespace, above, asked).await?;
        // The epoch is raised, but not every object knows.
        let after_raise = |error| match error {
            Error::Retryable(reason) if raised => Error::OutcomeUnknown(reason),
            error => error,
        };
        let hold = self.hold(scope, asked, above.is_held);
        hold.await.map_err(after_raise)?;
        let held = Claim { is_held: true, ..asked };
        self.record_claim(&space, &name, namespace, above, held).await.map_err(after_raise)?;
        // Also when the epoch was there already: the claim that raised it may not have finished.
        let listed = domain.is_some() || namespace.is_some();
        let found = self.find_all(&pool, listed.then_some(space))?;
        let met = found.map(|found| self.meet(found, domain, epoch)).buffer_unordered(CLAIM_OBJECTS);
        let mut met = std::pin::pin!(met);
        while let Some(done) = met.next().await {
            done.map_err(after_raise)?;
        }
        self.objects.forget_all();
        Ok(raised)
    }

    /// Does what a claim has to do with an object that it has found in a listing.
    async fn meet(
        self: &Arc<Self>,
        found: Result<Found>,
        domain: Option<OrderDomain>,
        epoch: u64,
    ) -> Result<()> {
        let Found { space, name } = found?;
        let attribute = domain.map_or_else(|| FENCE.to_owned(), format::domain_fence);
        let bytes = epoch.to_be_bytes();
        for _ in 0..TRIES {
            let view = self.look(&space, &name, false).await?;
            let fence = domain.map_or(view.fence, |domain| view.domain_fence(domain));
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = match (view.head.encode(), fence, view.intro) {
                // Nothing there, or nothing that a change could be applied to: it will be introduced, and
                // will then read the epoch that has been raised.
                (None, None, None) => return Ok(()),
                // Rule 3: a ghost that remembers nothing which the scope does not.
                (Some(head), Some(fence), None) if self.is_needless(&view, domain, fence, epoch) => op
                    .compare(HEAD, COMPARE_EQ, &head)
                    .compare(FENCE, COMPARE_EQ, &fence.to_be_bytes())
                    .compare(STAMP, COMPARE_EQ, &view.stamp.map(format::encode_stamp).unwrap_or_default())
                    .remove(),
                (_, Some(fence), _) if fence >= epoch => return Ok(()),
                (_, Some(_), _) => op.compare(&attribute, COMPARE_GT, &bytes).set(&attribute, &bytes),
                (_, None, Some(nonce)) => op
                    .compare(INTRO, COMPARE_EQ, &nonce.to_be_bytes())
                    .set(INTRO, &format::nonce().to_be_bytes()),
                (_, None, None) => return Ok(()),
            };
            match self.change_own(&space, &self.layout.object(&name), op).await.code {
                0.. => return Ok(()),
                errno::CANCELED => {}
                errno::NOENT => match self.failed_read(&space, errno::NOENT) {
                    Error::Missing => {}
                    gone => return Err(gone),
                },
                code => return Err(self.failed_read(&space, code)),
            }
        }
        Err(Error::Retryable("too many concurrent changes to an object".into()))
    }

    fn is_needless(&self, view: &View, domain: Option<OrderDomain>, fence: u64, epoch: u64) -> bool {
        let stamp = view.stamp.filter(|stamp| stamp.epoch.0 < epoch);
        domain.is_none() && matches!(view.head, Head::Ghost { .. }) && stamp.is_some() && fence < epoch
    }

    /// What comes between the record of a claim that is asked for and that of one that is held.
    async fn hold(self: &Arc<Self>, scope: &Scope, asked: Claim, is_held: bool) -> Result<()> {
        let Claim { epoch, writer: Some(writer), .. } = asked else { return Ok(()) };
        self.announce(scope, epoch).await?;
        let above = self.look_above(scope, (epoch, writer), is_held).await?;
        if above.is_held { Ok(()) } else { self.look_beside(scope, (epoch, writer)).await }
    }

    /// An object that is claimed by itself: its fence is raised, where need be that of its ghost.
    async fn claim_object(
        self: &Arc<Self>,
        scope: &Scope,
        object: &ObjectId,
        (epoch, writer): (u64, WriterId),
    ) -> Result<bool> {
        let mut raised = false;
        let claimed = self.try_claim_object(scope, object, (epoch, writer), &mut raised).await;
        claimed.map_err(|error| match error {
            // Perhaps as far as its fence.
            Error::Retryable(reason) if raised => Error::OutcomeUnknown(reason),
            error => error,
        })?;
        Ok(raised)
    }

    async fn try_claim_object(
        self: &Arc<Self>,
        scope: &Scope,
        object: &ObjectId,
        (epoch, writer): (u64, WriterId),
        raised: &mut bool,
    ) -> Result<()> {
        let space = self.space(&object.namespace)?;
        let fenced = |epoch| Err(Error::Fenced { epoch: Epoch(epoch) });
        let asked = Claim { epoch, writer: Some(writer), is_held: false };
        let held = Claim { is_held: true, ..asked };
        for _ in 0..TRIES {
            let view = self.look(&space, &object.name, false).await?;
            let fence = view.fence.unwrap_or(0);
            if fence > epoch {
                return fenced(fence);
            }
            let own = view.claim.as_deref().copied().unwrap_or_default();
            let above = self.look_above(scope, (epoch, writer), own == held).await?;
            if own == held {
                return Ok(());
            }
            if own.excludes(epoch, writer) && (own.is_held || !above.is_held) {
                return fenced(epoch);
            }
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = if own == asked {
                // It is this claim, or one whose answer was lost.
                self.hold(scope, asked, above.is_held).await?;
                op.compare(CLAIM, COMPARE_EQ, &own.encode()).set(CLAIM, &held.encode())
            } else {
                // A fence comes from a wider scope, from a stamp, or from a claim: one of an older version,
                // if there is no record of it.
                let stamped = view.stamp.map_or(0, |stamp| stamp.epoch.0);
                if fence == epoch && ![above.in_force, stamped, own.epoch].contains(&fence) {
                    return fenced(epoch);
                }
                if !above.is_held {
                    self.look_beside(scope, (epoch, writer)).await?;
                }
                check_epoch_step(Epoch(fence.max(above.in_force)), Epoch(epoch))?;
                *raised |= fence.max(above.in_force) < epoch;
                let was = view.claim.as_deref().map_or_else(Vec::new, |claim| claim.encode());
                let op = op.compare(CLAIM, COMPARE_EQ, &was);
                let op = match view.fence {
                    Some(fence) => op.compare(FENCE, COMPARE_EQ, &fence.to_be_bytes()),
                    None => {
                        let Some(view) = self.introduce(&space, object, view).await? else { continue };
                        let whole = self.scopes(&space, &object.namespace, None).await?.whole;
                        if whole > epoch {
                            self.withdraw(&space, object, &view).await;
                            return fenced(whole);
                        }
                        let nonce = view.intro.unwrap_or_default().to_be_bytes();
                        op.compare(FENCE, COMPARE_EQ, b"").compare(INTRO, COMPARE_EQ, &nonce).unset(INTRO)
                    }
                };
                op.set(FENCE, &epoch.to_be_bytes()).set(CLAIM, &asked.encode())
            };
            self.objects.forget(object);
            match self.change_object(&space, object, op, || ()).await.code {
                // Asked for or held: the next look shows it.
                0.. | errno::CANCELED => {}
                errno::NOENT => match self.failed_read(&space, errno::NOENT) {
                    Error::Missing => {}
                    gone => return Err(gone),
                },
                code => return Err(self.failed_change(&space, code)),
            }
        }
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }

    /// The epoch that a whole namespace has been claimed with.
    pub(crate) async fn namespace_epoch(self: &Arc<Self>, namespace: &Namespace) -> Result<Epoch> {
        let space = self.space(namespace)?;
        Ok(Epoch(self.scopes(&space, namespace, None).await?.whole))
    }
}
