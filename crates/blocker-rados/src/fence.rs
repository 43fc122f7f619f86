//! Fencing: how a store whose atomic steps span one object refuses a deposed writer on every object of a
//! scope, objects that do not exist yet included.
//!
//! Every object carries the epoch below which nothing is applied to it, its *fence*; every change compares
//! the fence it was prepared from, in the same step as it is applied. What remains is to say how fences come
//! to be there, and how a claim reaches all of them.
//!
//! **Rule 1.** No change creates its object, and none is applied to an object without a fence. Such an object
//! is first *introduced*:
//!  1. its `intro` attribute is set to a fresh nonce, or an `intro` that is there is read (an object that is
//!     not there is created for it, as a ghost);
//!  2. then the epochs of its scopes are read;
//!  3. then the change itself sets the fence to the highest of them (and of its own epoch), takes `intro` away,
//!     and compares `intro` with the nonce, all in its one step. It is sent only if its epoch is not below.
//!
//! **Rule 2.** A claim of epoch e first raises the scope's own epoch (at time R), then lists every RADOS object
//! in the scope, and for each: a fence below e is raised to e; where there is no fence, an `intro` that is
//! there is replaced by another nonce. Then it returns.
//!
//! **Rule 3.** A fence never falls while its RADOS object exists. One is removed only if its fence tells
//! nothing that the scopes do not tell: an unstamped deletion at fence 0, or a ghost that a claim finds with a
//! fence and a stamp below its epoch.
//!
//! *Claim: no change of an epoch below e is applied after the claim of e has returned.* Suppose one is, to an
//! object X at time T. By rule 1 it met a fence f < e. Let I < S < C ≤ T be the times of the steps of the
//! introduction that set the first fence of X since X's RADOS object was last created; f never fell, so at C
//! the fence was below e, so the epoch read at S was below e, so S < R, so I < R. Hence X existed, with that
//! `intro`, from before R until T: all through the claim's listing, which therefore met it (RADOS lists what is
//! there throughout), at a time K < T. If C < K, there was a fence, and it was raised to e if it was below:
//! it is not below e at T. If K < C, there was no fence, and the `intro` was replaced: the step at C met
//! another nonce, and was refused. Either way a contradiction. ∎
//!
//! Fences of order domains are attributes of their own that follow the same rules; an object gets one when a
//! change of that domain first meets it. The fence of an object that has been claimed by itself is its only
//! memory of it, so its ghost stays (rule 3: with a claimed epoch above 0 only stamped changes are applied,
//! and a stamped deletion leaves a ghost).
//!
//! What it costs: one comparison more in a change that is one round trip anyway; three more round trips for
//! the first change of an object; a claim of a namespace reads the attributes of every object in it, some
//! tens at a time. Nobody's clock is trusted, and no client needs rights over others, as a blocklist would.

use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blocker::event::Event;
use blocker::{ClaimReply, Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope};
use futures_util::StreamExt;

use crate::attr::{self, EPOCH, FENCE, HEAD, Head, INTRO, NAMESPACE, STAMP};
use crate::core::{Core, Space};
use crate::ffi::{COMPARE_EQ, COMPARE_GT, errno};
use crate::list::Found;
use crate::op::{ReadOp, WriteOp};
use crate::view::View;

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
        let (nonce, gate) = (attr::nonce(), attr::nonce());
        let op = WriteOp::new(&space.ioctx.cluster.api);
        let (op, head) = match view.head {
            Head::Absent => (op.create(), Head::Ghost { gate }),
            // Its size is what RADOS says at this version, which is asserted below.
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
        let scope = self.layout.internal(crate::layout::SCOPE);
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
        match self.change_own(space, &self.layout.internal(crate::layout::SCOPE), op).await.code {
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
        let op = ReadOp { attributes: true, ..ReadOp::default() };
        let (outcome, found) = self.limits.read(&space.ioctx, name, op).await;
        if outcome.code < 0 {
            return match self.failed_read(space, outcome.code) {
                Error::Missing => Ok(None),
                error => Err(error),
            };
        }
        let value = found.attributes.iter().find(|(name, _)| name == EPOCH.to_bytes());
        let unreadable = || Error::Corrupt("the epoch of a scope is not as this program writes it".into());
        value.map_or(Ok(Some(0)), |(_, value)| attr::u64_of(value).ok_or_else(unreadable).map(Some))
    }

    /// Raises it. Whether that changed anything.
    async fn raise_epoch(
        self: &Arc<Self>,
        space: &Space,
        name: &CString,
        namespace: Option<&Namespace>,
        epoch: u64,
    ) -> Result<bool> {
        for _ in 0..TRIES {
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = match self.epoch(space, name).await? {
                Some(current) if current > epoch => return Err(Error::Fenced { epoch: Epoch(current) }),
                Some(current) if current == epoch => return Ok(false),
                // Raised in one step, so that two claims cannot lower each other's.
                Some(_) => op.compare(EPOCH, COMPARE_GT, &epoch.to_be_bytes()),
                None => match namespace {
                    Some(namespace) => op.create().set(NAMESPACE, namespace.as_bytes()),
                    None => op.create(),
                },
            };
            match self.change_own(space, name, op.set(EPOCH, &epoch.to_be_bytes())).await.code {
                0.. => return Ok(true),
                errno::EXIST | errno::CANCELED => {}
                errno::NOENT => match self.failed_read(space, errno::NOENT) {
                    Error::Missing => {}
                    gone => return Err(gone),
                },
                code => return Err(self.failed_change(space, code)),
            }
        }
        Err(Error::Retryable("the scope is claimed by others all the time".into()))
    }

    // ---- claiming

    pub(crate) async fn claim(self: &Arc<Self>, scope: Scope, epoch: Epoch) -> Result<ClaimReply> {
        if epoch == Epoch(0) {
            // Binds nobody, so it changes nothing; it tells who has claimed.
            return match self.epoch_in_force(&scope).await? {
                0 => Ok(ClaimReply::new(epoch)),
                in_force => Err(Error::Fenced { epoch: Epoch(in_force) }),
            };
        }
        let raised = match &scope {
            Scope::Object(object) => self.claim_object(object, epoch.0).await?,
            _ => self.claim_scope(&scope, epoch.0).await?,
        };
        if raised {
            self.events.publish(&Event::Fenced(scope.clone(), epoch));
            self.tell_others(&Event::Fenced(scope, epoch)).await;
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
                Ok(self.epoch(root, &self.layout.internal(crate::layout::SCOPE)).await?.unwrap_or(0))
            }
        }
    }

    /// Raises the scope's epoch, then meets every object in it.
    async fn claim_scope(self: &Arc<Self>, scope: &Scope, epoch: u64) -> Result<bool> {
        let pool = self.pool();
        let own = self.layout.internal(crate::layout::SCOPE);
        // A wider scope may be claimed with a newer epoch already.
        let all = self.epoch(&pool.root, &own).await?.unwrap_or(0);
        if all > epoch {
            return Err(Error::Fenced { epoch: Epoch(all) });
        }
        let (raised, listed, domain) = match scope {
            Scope::All => (self.raise_epoch(&pool.root, &own, None, epoch).await?, None, None),
            Scope::Namespace(namespace) => {
                let space = self.space(namespace)?;
                (self.raise_epoch(&space, &own, Some(namespace), epoch).await?, Some(space), None)
            }
            Scope::Domain(namespace, domain) => {
                let space = self.space(namespace)?;
                let whole = self.scopes(&space, namespace, None).await?.whole;
                if whole > epoch {
                    return Err(Error::Fenced { epoch: Epoch(whole) });
                }
                let name = self.layout.domain(*domain);
                (self.raise_epoch(&space, &name, None, epoch).await?, Some(space), Some(*domain))
            }
            _ => return Err(Error::Unsupported("a claim of that scope".into())),
        };
        // Also when the epoch was there already: whoever raised it may not have come through.
        let found = self.find_all(&pool, listed)?;
        let met = found.map(|found| self.meet(found, domain, epoch)).buffer_unordered(CLAIM_OBJECTS);
        let mut met = std::pin::pin!(met);
        while let Some(done) = met.next().await {
            done.map_err(|error| match error {
                // The epoch is raised, but not every object knows.
                Error::Retryable(reason) if raised => Error::OutcomeUnknown(reason),
                error => error,
            })?;
        }
        self.objects.forget_all();
        Ok(raised)
    }

    /// What a claim owes an object that it has found in a listing.
    async fn meet(
        self: &Arc<Self>,
        found: Result<Found>,
        domain: Option<OrderDomain>,
        epoch: u64,
    ) -> Result<()> {
        let Found { space, name } = found?;
        let attribute = domain.map_or_else(|| FENCE.to_owned(), attr::domain_fence);
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
                    .compare(STAMP, COMPARE_EQ, &view.stamp.map(attr::encode_stamp).unwrap_or_default())
                    .remove(),
                (_, Some(fence), _) if fence >= epoch => return Ok(()),
                (_, Some(_), _) => op.compare(&attribute, COMPARE_GT, &bytes).set(&attribute, &bytes),
                (_, None, Some(nonce)) => op
                    .compare(INTRO, COMPARE_EQ, &nonce.to_be_bytes())
                    .set(INTRO, &attr::nonce().to_be_bytes()),
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
        Err(Error::Retryable("an object is changed by others all the time".into()))
    }

    fn is_needless(&self, view: &View, domain: Option<OrderDomain>, fence: u64, epoch: u64) -> bool {
        let stamp = view.stamp.filter(|stamp| stamp.epoch.0 < epoch);
        domain.is_none() && matches!(view.head, Head::Ghost { .. }) && stamp.is_some() && fence < epoch
    }

    /// An object that is claimed by itself: its fence is raised, where need be that of its ghost.
    async fn claim_object(self: &Arc<Self>, object: &ObjectId, epoch: u64) -> Result<bool> {
        let space = self.space(&object.namespace)?;
        let bytes = epoch.to_be_bytes();
        for _ in 0..TRIES {
            let view = self.look(&space, &object.name, false).await?;
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = match view.fence {
                Some(fence) if fence > epoch => return Err(Error::Fenced { epoch: Epoch(fence) }),
                Some(fence) if fence == epoch => return Ok(false),
                Some(_) => op.compare(FENCE, COMPARE_GT, &bytes).set(FENCE, &bytes),
                None => {
                    let Some(view) = self.introduce(&space, object, view).await? else { continue };
                    let whole = self.scopes(&space, &object.namespace, None).await?.whole;
                    if whole > epoch {
                        self.withdraw(&space, object, &view).await;
                        return Err(Error::Fenced { epoch: Epoch(whole) });
                    }
                    let nonce = view.intro.unwrap_or_default().to_be_bytes();
                    op.compare(FENCE, COMPARE_EQ, b"")
                        .compare(INTRO, COMPARE_EQ, &nonce)
                        .set(FENCE, &bytes)
                        .unset(INTRO)
                }
            };
            self.objects.forget(object);
            match self.change_object(&space, object, op, || ()).await.code {
                0.. => return Ok(true),
                errno::CANCELED => {}
                errno::NOENT => match self.failed_read(&space, errno::NOENT) {
                    Error::Missing => {}
                    gone => return Err(gone),
                },
                code => return Err(self.failed_change(&space, code)),
            }
        }
        Err(Error::Retryable("the object is changed by others all the time".into()))
    }

    /// The epoch that a whole namespace has been claimed with.
    pub(crate) async fn namespace_epoch(self: &Arc<Self>, namespace: &Namespace) -> Result<Epoch> {
        let space = self.space(namespace)?;
        Ok(Epoch(self.scopes(&space, namespace, None).await?.whole))
    }
}
