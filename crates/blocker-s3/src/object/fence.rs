//! Fencing: how a store whose atomic steps span one object refuses a deposed writer on every object of a
//! scope, objects that do not exist yet included.
//!
//! Every head carries the epoch below which nothing is applied to its object, its *fence*. What remains is
//! how fences come to be there, and how a claim reaches all of them. It needs of the server that a put can be
//! made conditional on there being nothing, or on the ETag of what is there, and that a listing shows all
//! that was there throughout.
//!
//! **Rule 1.** No change creates its head, and none is applied to a head without a fence. Such an object is
//! first *introduced*:
//!  1. a head that is there is read, or a ghost is put where there is none, on the condition that there is
//!     none;
//!  2. then the epochs of its scopes are read;
//!  3. then the change itself puts a head with the highest of them (and of its own epoch) as the fence, on
//!     the condition that the head is still that of step 1, byte for byte. It is sent only if its epoch is
//!     not below.
//!
//! **Rule 2.** A claim of epoch e first raises the scope's own epoch (at time R), then lists every head in
//! the scope, and for each: a fence below e is raised to e; a head without a fence is replaced by the same
//! one with another nonce. Then it returns.
//!
//! Between the two it makes sure that no other writer holds the epoch in a scope that overlaps
//! (`exclusive.rs`); if one does, it is refused, and has raised an epoch that no writer was promised.
//!
//! **Rule 3.** The fence of a head never falls. Deleting leaves a ghost. A ghost is removed only if it is still,
//! byte for byte, one whose fence is not above the epochs of its scopes, and that was never claimed by itself
//! (`forget.rs`); those epochs never fall either, so the next head of that name has no lower fence.
//!
//! *Claim: no change of an epoch below e is applied after the claim of e has returned.* Suppose one is, to an
//! object X at time T. By rule 1 it met a fence f < e. Let I < S < C ≤ T be the times of the steps of the
//! introduction that set the first fence of that head of X, since it was last created; f never fell, so at C the
//! fence was below e, so the epoch read at S was below e, so S < R, so I < R. It was not removed in between, or the
//! put at C would have been refused. Hence X's head existed from before R: all through the claim's
//! listing, which therefore met it, at a time K < T. If C < K, there was a fence, and it was raised to e if
//! it was below: it is not below e at T. If K < C, there was no fence, and the head was replaced: the put at C
//! met another ETag, and was refused. Either way a contradiction. ∎
//!
//! Fences of order domains are kept apart from that of the object, and follow the same rules; an object gets
//! one when a change of that domain first meets it.
//!
//! What it costs: nothing for an object that has been changed before; three requests more, two of them at
//! the same time, for the first change of an object; for a claim of a scope, a read of every head in it and a put of every head
//! whose fence it raises. No clock is trusted, and no client needs rights over others.

use std::sync::Arc;

use blocker::admission::check_epoch_step;
use blocker::event::Event;
use blocker::{ClaimReply, Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope, WriterId};
use futures_util::StreamExt;

use super::exclusive::{Above, Place, Update};
use super::swap::{Seen, Swap};
use super::{CONCURRENT, Core, Progress, TRIES};
use crate::format::head::{Claim, Record};

/// The epochs that bind an object beside its own.
#[derive(Clone, Copy, Default)]
pub(crate) struct Scopes {
    /// Of everything, or of the namespace: the higher.
    pub(crate) whole: u64,
    /// Of the order domain, where one was asked for.
    pub(crate) domain: u64,
}

fn fenced<T>(epoch: u64) -> Result<T> {
    Err(Error::Fenced { epoch: Epoch(epoch) })
}

fn after_raise(raised: bool) -> impl Fn(Error) -> Error {
    // The epoch is raised, but not every object knows.
    move |error| match error {
        Error::Retryable(reason) if raised => Error::OutcomeUnknown(reason),
        error => error,
    }
}

impl Core {
    /// Puts a ghost where there is no head; `None` if there is one by now.
    pub(crate) async fn introduce(&self, object: &ObjectId) -> Result<Option<Seen>> {
        self.requests.stats.introduced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.name_namespace(&object.namespace).await?;
        match self.create(object).await {
            Swap::Done(seen) => Ok(Some(seen)),
            Swap::Lost => Ok(None),
            Swap::Failed(error) | Swap::Unknown(error) => Err(error),
        }
    }

    /// Leaves the name of a namespace where it can be found, if its keys do not have it.
    async fn name_namespace(&self, namespace: &Namespace) -> Result<()> {
        if self.layout.has_name(namespace) {
            return Ok(());
        }
        let name = |found: &Record| {
            Ok(if found.namespace.is_empty() { Update::Put(found.clone()) } else { Update::Leave })
        };
        self.update_record(Place::Namespace(namespace), name).await.map(drop)
    }

    /// Returns the epochs as they are now.
    pub(crate) async fn scopes(&self, namespace: &Namespace, domain: Option<OrderDomain>) -> Result<Scopes> {
        let (all, own, domain) = futures_util::future::join3(
            self.record(Place::All),
            self.record(Place::Namespace(namespace)),
            async {
                match domain {
                    Some(domain) => self.record(Place::Domain(namespace, domain)).await,
                    None => Ok(Default::default()),
                }
            },
        )
        .await;
        let (all, own, domain) = (all?.claim.epoch, own?.claim.epoch, domain?.claim.epoch);
        Ok(Scopes { whole: all.max(own), domain })
    }

    // ---- claiming

    pub(crate) async fn claim(
        &self,
        scope: Scope,
        epoch: Epoch,
        writer: WriterId,
        progress: &Progress,
    ) -> Result<ClaimReply> {
        if epoch == Epoch(0) {
            // Binds no writer, so it changes nothing; it shows which epoch is in force.
            return match self.epoch_in_force(&scope).await? {
                0 => Ok(ClaimReply::new(epoch)),
                in_force => fenced(in_force),
            };
        }
        let raised = match &scope {
            Scope::Object(object) => self.claim_object(&scope, object, (epoch.0, writer), progress).await?,
            _ => self.claim_scope(&scope, (epoch.0, writer), progress).await?,
        };
        if raised {
            self.events.publish(&Event::Fenced(scope, epoch));
        }
        Ok(ClaimReply::new(epoch))
    }

    async fn epoch_in_force(&self, scope: &Scope) -> Result<u64> {
        match scope {
            Scope::Object(object) => {
                let fence = self.look(object).await?.and_then(|seen| seen.head.fence);
                match fence {
                    Some(fence) => Ok(fence),
                    None => Ok(self.scopes(&object.namespace, None).await?.whole),
                }
            }
            Scope::Domain(namespace, domain) => {
                let scopes = self.scopes(namespace, Some(*domain)).await?;
                Ok(scopes.whole.max(scopes.domain))
            }
            Scope::Namespace(namespace) => Ok(self.scopes(namespace, None).await?.whole),
            _ => Ok(self.record(Place::All).await?.claim.epoch),
        }
    }

    /// Writes the record of a claim of a scope: raises its epoch, or marks the claim as held. `above` is what
    /// the wider scopes have. Whether the epoch has risen.
    async fn record_claim(&self, place: Place<'_>, above: Above, claim: Claim) -> Result<bool> {
        let (epoch, writer) = (claim.epoch, WriterId(claim.writer));
        let mut has_risen = false;
        let update = |found: &Record| {
            let current = found.claim;
            if current.epoch > epoch {
                return fenced(current.epoch);
            }
            // One that was only asked for gives way to one that is held by way of a wider scope.
            if current.excludes(epoch, writer) && (current.is_held || !above.is_held) {
                return fenced(epoch);
            }
            if current == claim || current.is_held_by(epoch, writer) {
                return Ok(Update::Leave);
            }
            check_epoch_step(Epoch(current.epoch.max(above.in_force)), Epoch(epoch))?;
            has_risen |= current.epoch < epoch;
            Ok(Update::Put(Record { claim, ..found.clone() }))
        };
        let is_put = self.update_record(place, update).await?;
        Ok(is_put && has_risen)
    }

    /// Raises the scope's epoch, then meets every object in it.
    async fn claim_scope(
        &self,
        scope: &Scope,
        (epoch, writer): (u64, WriterId),
        progress: &Progress,
    ) -> Result<bool> {
        let (place, namespace, domain) = match scope {
            Scope::All => (Place::All, None, None),
            Scope::Namespace(namespace) => (Place::Namespace(namespace), Some(namespace), None),
            Scope::Domain(namespace, domain) => {
                self.name_namespace(namespace).await?;
                (Place::Domain(namespace, *domain), Some(namespace), Some(*domain))
            }
            _ => return Err(Error::Unsupported("a claim of that scope".into())),
        };
        let own = self.record(place).await?.claim;
        let above = self.look_above(scope, (epoch, writer), own.is_held_by(epoch, writer)).await?;
        if !above.is_held && own.epoch < epoch {
            self.look_beside(scope, (epoch, writer), progress).await?;
        }
        let asked = Claim::asked((epoch, writer));
        let raised = self.record_claim(place, above, asked).await?;
        self.hold(scope, (epoch, writer), above.is_held, progress).await.map_err(after_raise(raised))?;
        let held = Claim { is_held: true, ..asked };
        self.record_claim(place, above, held).await.map_err(after_raise(raised))?;
        // Also when the epoch was there already: the claim that raised it may not have finished.
        let namespaces = match namespace {
            Some(namespace) => vec![namespace.clone()],
            None => self.namespaces().await.map_err(after_raise(raised))?,
        };
        for namespace in namespaces {
            let mut walk = self.walk(&namespace);
            while let Some(objects) = walk.next(self).await.map_err(after_raise(raised))? {
                let met = futures_util::stream::iter(objects).map(|object| self.meet(object, domain, epoch));
                let mut met = std::pin::pin!(met.buffer_unordered(CONCURRENT));
                while let Some(done) = met.next().await {
                    done.map_err(after_raise(raised))?;
                    progress.step();
                }
            }
        }
        Ok(raised)
    }

    /// Does what a claim has to do with an object that it has found in a listing.
    async fn meet(&self, object: ObjectId, domain: Option<OrderDomain>, epoch: u64) -> Result<()> {
        for attempt in 0..TRIES {
            let Some(seen) = self.look(&object).await? else { return Ok(()) };
            let fence = domain.map_or(seen.head.fence, |domain| seen.head.domain_fence(domain));
            let mut next = seen.head.next();
            match (fence, domain) {
                (Some(fence), _) if fence >= epoch => return Ok(()),
                (Some(_), None) => next.fence = Some(epoch),
                (Some(_), Some(domain)) => {
                    next.set_domain_fence(domain, epoch);
                }
                // Another nonce is enough.
                (None, _) => {}
            }
            match self.swap(&object, &seen, next).await {
                Swap::Done(_) => return Ok(()),
                Swap::Lost => {}
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::Retryable(error.to_string().into())),
            }
            if attempt > 1 {
                self.requests.delay((attempt / 4).min(3)).await;
            }
        }
        Err(Error::Retryable("too many concurrent changes to an object".into()))
    }

    /// What comes between the record of a claim that is asked for and that of one that is held.
    async fn hold(
        &self,
        scope: &Scope,
        claim: (u64, WriterId),
        is_held: bool,
        progress: &Progress,
    ) -> Result<()> {
        self.announce(scope, claim.0).await?;
        let above = self.look_above(scope, claim, is_held).await?;
        if above.is_held { Ok(()) } else { self.look_beside(scope, claim, progress).await }
    }

    /// An object that is claimed by itself: its fence is raised, where need be that of its ghost.
    async fn claim_object(
        &self,
        scope: &Scope,
        object: &ObjectId,
        (epoch, writer): (u64, WriterId),
        progress: &Progress,
    ) -> Result<bool> {
        let mut raised = false;
        let claimed = self.try_claim_object(scope, object, (epoch, writer), &mut raised, progress).await;
        claimed.map_err(after_raise(raised))?;
        Ok(raised)
    }

    async fn try_claim_object(
        &self,
        scope: &Scope,
        object: &ObjectId,
        (epoch, writer): (u64, WriterId),
        raised: &mut bool,
        progress: &Progress,
    ) -> Result<()> {
        let asked = Claim::asked((epoch, writer));
        let held = Claim { is_held: true, ..asked };
        for attempt in 0..TRIES {
            let mut seen = self.look(object).await?;
            let head = seen.as_ref().map(|seen| Arc::clone(&seen.head));
            let fence = head.as_ref().and_then(|head| head.fence).unwrap_or(0);
            if fence > epoch {
                return fenced(fence);
            }
            let own = head.as_ref().map_or_else(Claim::default, |head| head.claim);
            let above = self.look_above(scope, (epoch, writer), own == held).await?;
            if own == held {
                return Ok(());
            }
            if own.excludes(epoch, writer) && (own.is_held || !above.is_held) {
                return fenced(epoch);
            }
            let next = if own == asked {
                // It is this claim, or one whose answer was lost.
                self.hold(scope, (epoch, writer), above.is_held, progress).await?;
                seen.as_ref().map(|seen| {
                    let mut next = seen.head.next();
                    next.claim = held;
                    next
                })
            } else {
                if !above.is_held {
                    self.look_beside(scope, (epoch, writer), progress).await?;
                }
                check_epoch_step(Epoch(fence.max(above.in_force)), Epoch(epoch))?;
                *raised |= fence.max(above.in_force) < epoch;
                if seen.is_none() {
                    seen = self.introduce(object).await?;
                }
                if seen.as_ref().is_some_and(|seen| seen.head.fence.is_none()) {
                    let whole = self.scopes(&object.namespace, None).await?.whole;
                    if whole > epoch {
                        return fenced(whole);
                    }
                }
                seen.as_ref().map(|seen| {
                    let mut next = seen.head.next();
                    (next.claim, next.fence) = (asked, Some(epoch));
                    next
                })
            };
            let (Some(base), Some(next)) = (seen, next) else { continue };
            match self.swap(object, &base, next).await {
                // Asked for or held: the next look shows it.
                Swap::Done(_) | Swap::Lost => {}
                Swap::Failed(error) => return Err(error),
                Swap::Unknown(error) => return Err(Error::OutcomeUnknown(error.to_string().into())),
            }
            if attempt > 2 {
                self.requests.delay((attempt / 4).min(3)).await;
            }
        }
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }
}
