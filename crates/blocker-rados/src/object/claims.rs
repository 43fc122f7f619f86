//! Claims on RADOS: [`blocker::conditional::claims`] has the protocol and its proofs; this module
//! has the operations that it needs.
//!
//! An object's fence is an attribute, and every change compares the fence from which it was
//! prepared, in the same step in which it is applied. An object is introduced by its `intro`
//! attribute, which is set to a new nonce (a missing object is created as a ghost); the change
//! itself compares and removes the attribute. A RADOS object is removed only if its fence adds
//! nothing to those of the scopes: an unstamped deletion at fence 0, or a ghost that a claim finds
//! with a fence and a stamp below its epoch. If an object itself was claimed, only its fence
//! records the claim, so its ghost stays (with a claimed epoch above 0 only stamped changes are
//! applied, and a stamped deletion leaves a ghost).
//!
//! A scope's record is on an internal object of the store (`%scope`, `%domain.*`), an object's
//! record on the object. Records of older versions name no writer, so they exclude every writer;
//! claims of narrower scopes by older versions are not announced.
//!
//! Costs: one more comparison in each change, which takes one round trip anyway; three more round
//! trips for the first change of an object; a claim of a namespace reads the attributes of every
//! object in it, some tens at a time. The protocol trusts no clock, and no client needs rights over
//! others, as a blocklist would.

use std::ffi::{CStr, CString};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use blocker::conditional::claims::{self, Announced, Claim, Claims, Found, Place, Scopes};
use blocker::event::Event;
use blocker::{ClaimReply, ClaimRequest, Epoch, Error, Namespace, ObjectId, OrderDomain, Result, WriterId};
use futures_util::StreamExt;

use super::view::View;
use super::{Core, Space, read};
use crate::format::{
    self, CLAIM, DOMAINS, EPOCH, FENCE, HEAD, Head, INTRO, NAMESPACE, NARROWER, OBJECTS, SCOPE, STAMP,
    decode_claim, encode_claim,
};
use crate::librados::aio::{ReadOp, WriteOp};
use crate::librados::ffi::{COMPARE_EQ, COMPARE_GT, errno};

/// The number of objects that a claim handles concurrently.
const OBJECTS_CONCURRENT: usize = 64;
/// The maximum number of attempts to change an object or a record while others change it.
const TRIES: u32 = 100;

/// A scope's record in an internal object of the store.
#[derive(Default)]
struct Record {
    /// The record for the protocol.
    record: claims::Record,
    /// The claim's stored bytes; empty without a claim.
    claim_bytes: Vec<u8>,
}

/// The claims of a store.
struct Claiming(Arc<Core>);

impl Core {
    pub(crate) async fn claim(self: &Arc<Self>, request: ClaimRequest) -> Result<ClaimReply> {
        let ClaimRequest { scope, epoch, writer, .. } = request;
        claims::claim(&Claiming(Arc::clone(self)), &scope, epoch, writer).await?;
        if self.reported.is_first(&scope, epoch) {
            self.events.publish(&Event::Fenced(scope.clone(), epoch));
            self.notify_others(&Event::Fenced(scope, epoch)).await;
        }
        Ok(ClaimReply::new(epoch))
    }

    /// Returns the epoch with which the whole namespace has been claimed.
    pub(crate) async fn namespace_epoch(self: &Arc<Self>, namespace: &Namespace) -> Result<Epoch> {
        let space = self.space(namespace)?;
        Ok(Epoch(self.scopes(&space, namespace, None).await?.whole))
    }

    // ---- introducing

    /// Returns `view` with an `intro`; `None` if the object has changed in the meantime.
    pub(crate) async fn introduce(
        self: &Arc<Self>,
        space: &Space,
        object: &ObjectId,
        view: View,
    ) -> Result<Option<View>> {
        if view.intro.is_some() && view.head.encode().is_some() {
            return Ok(Some(view));
        }
        self.limits.stats.introduced.increment();
        let (nonce, gate) = (format::nonce(), format::nonce());
        let op = WriteOp::new(&space.ioctx.cluster.api);
        let (op, head) = match view.head {
            Head::Absent => (op.create(), Head::Ghost { gate }),
            // The object's size is the one that RADOS reports for this version, which is asserted
            // below.
            Head::Foreign { size_bytes } => (op, Head::Live { size_bytes, gate }),
            head => (op, head),
        };
        let op = match view.head.encode() {
            Some(old) => op.compare(HEAD, COMPARE_EQ, &old).compare(INTRO, COMPARE_EQ, b""),
            None => op,
        };
        // A condition on the version must hold across this step, which creates a new version.
        let op = if view.version > 0 { op.assert_version(view.version) } else { op };
        let op = match head.encode() {
            Some(new) if head != view.head => op.set(HEAD, &new),
            _ => op,
        };
        let outcome = self.change_object(space, object, op.set(INTRO, &nonce.to_be_bytes()), || ()).await;
        match outcome.code {
            0.. => Ok(Some(View { head, intro: Some(nonce), version: outcome.version, ..view })),
            errno::EXIST | errno::CANCELED | errno::RANGE | errno::OVERFLOW => Ok(None),
            code => lost_or(self.failed_read(space, code)).map(|()| None),
        }
    }

    /// Removes the ghost of an introduction that was not completed. A remaining ghost is harmless.
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

    /// Returns the current epochs.
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
        let scope = self.layout.internal(SCOPE);
        let of_domain = domain.map(|domain| self.layout.domain(domain));
        let (all, own, domain) =
            futures_util::future::join3(self.record(root, &scope), self.record(space, &scope), async {
                match &of_domain {
                    Some(name) => self.record(space, name).await,
                    None => Ok(None),
                }
            })
            .await;
        let (all, own, domain) = (all?, own?, domain?);
        if own.is_none() && !space.is_named.load(Ordering::Relaxed) {
            self.name_space(space, namespace).await?;
        }
        space.is_named.store(true, Ordering::Relaxed);
        let epoch = |record: Option<Record>| record.map_or(0, |found| found.record.claim.epoch);
        Ok(Scopes { whole: epoch(all).max(epoch(own)), domain: epoch(domain) })
    }

    /// Records the namespace's own name where [`crate::RadosStore`] looks for namespaces.
    async fn name_space(self: &Arc<Self>, space: &Space, namespace: &Namespace) -> Result<()> {
        let op = WriteOp::new(&space.ioctx.cluster.api).create().set(NAMESPACE, namespace.as_bytes());
        match self.change_own(space, &self.layout.internal(SCOPE), op).await.code {
            0.. | errno::EXIST => Ok(()),
            code => Err(self.failed_read(space, code)),
        }
    }

    /// Returns the record in the internal object with this name, or `None` if there is no record.
    async fn record(self: &Arc<Self>, space: &Space, name: &CStr) -> Result<Option<Record>> {
        let op = ReadOp { attributes: true, ..ReadOp::default() };
        let (outcome, found) = self.limits.read(&space.ioctx, name, op).await;
        if outcome.code < 0 {
            return lost_or(self.failed_read(space, outcome.code)).map(|()| None);
        }
        let unreadable =
            || Error::Corrupt("the epoch of a scope has a value that this program never writes".into());
        let (mut record, mut claim_bytes) = (claims::Record::default(), Vec::new());
        for (name, value) in found.attributes {
            let number = || format::u64_of(&value).ok_or_else(unreadable);
            match name.as_slice() {
                name if name == EPOCH.to_bytes() => {
                    record.claim = decode_claim(&value).ok_or_else(unreadable)?;
                    claim_bytes = value;
                }
                name if name == NARROWER.to_bytes() => record.narrower = number()?,
                name if name == DOMAINS.to_bytes() => record.domains = number()?,
                name if name == OBJECTS.to_bytes() => record.objects = number()?,
                _ => {}
            }
        }
        Ok(Some(Record { record, claim_bytes }))
    }

    /// Returns the place of a scope's record, and the namespace that is named beside it when it is
    /// created.
    fn place_of<'a>(
        self: &Arc<Self>,
        place: Place<'a>,
    ) -> Result<(Arc<Space>, CString, Option<&'a Namespace>)> {
        let scope = self.layout.internal(SCOPE);
        Ok(match place {
            Place::All => (Arc::clone(&self.pool().root), scope, None),
            Place::Namespace(namespace) => (self.space(namespace)?, scope, Some(namespace)),
            Place::Domain(namespace, domain) => (self.space(namespace)?, self.layout.domain(domain), None),
        })
    }

    /// Applies a claim to an object found in a listing.
    async fn meet(
        self: &Arc<Self>,
        found: Result<read::Found>,
        domain: Option<OrderDomain>,
        epoch: u64,
    ) -> Result<()> {
        let read::Found { space, name } = found?;
        let attribute = domain.map_or_else(|| FENCE.to_owned(), format::domain_fence);
        let bytes = epoch.to_be_bytes();
        for _ in 0..TRIES {
            let view = self.look(&space, &name, false).await?;
            let fence = domain.map_or(view.fence, |domain| view.domain_fence(domain));
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = match (view.head.encode(), fence, view.intro) {
                // Either the object does not exist, or no change can be applied to it before its
                // introduction, which reads the raised epoch.
                (None, None, None) => return Ok(()),
                // Rule 3: the object is a ghost whose fence adds nothing to its scopes' fences.
                (Some(head), Some(fence), None) if is_needless(&view, domain, fence, epoch) => op
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
                code => lost_or(self.failed_read(&space, code))?,
            }
        }
        Err(Error::Retryable("too many concurrent changes to an object".into()))
    }
}

/// Creates the object that holds a scope's record, and stores the namespace's name in an attribute.
fn create(op: WriteOp, namespace: Option<&Namespace>) -> WriteOp {
    let op = op.create();
    match namespace {
        Some(namespace) => op.set(NAMESPACE, namespace.as_bytes()),
        None => op,
    }
}

/// Treats an error that reports a missing object as a lost race.
fn lost_or(error: Error) -> Result<()> {
    if error == Error::Missing { Ok(()) } else { Err(error) }
}

fn is_needless(view: &View, domain: Option<OrderDomain>, fence: u64, epoch: u64) -> bool {
    let stamp = view.stamp.filter(|stamp| stamp.epoch.0 < epoch);
    domain.is_none() && matches!(view.head, Head::Ghost { .. }) && stamp.is_some() && fence < epoch
}

impl Claims for Claiming {
    type Seen = View;

    async fn record(&self, place: Place<'_>) -> Result<claims::Record> {
        let (space, name, _) = self.0.place_of(place)?;
        Ok(self.0.record(&space, &name).await?.unwrap_or_default().record)
    }

    async fn update_claim(
        &self,
        place: Place<'_>,
        mut decide: impl FnMut(Claim) -> Result<Option<Claim>> + Send,
    ) -> Result<bool> {
        let core = &self.0;
        let (space, name, namespace) = core.place_of(place)?;
        for _ in 0..TRIES {
            let record = core.record(&space, &name).await?;
            let (is_there, Record { record, claim_bytes }) = (record.is_some(), record.unwrap_or_default());
            let Some(claim) = decide(record.claim)? else { return Ok(false) };
            let op = WriteOp::new(&space.ioctx.cluster.api);
            // The record is compared and replaced in one step, so that two claims cannot undo each
            // other.
            let op = match is_there {
                true => op.compare(EPOCH, COMPARE_EQ, &claim_bytes),
                false => create(op, namespace),
            };
            match core.change_own(&space, &name, op.set(EPOCH, &encode_claim(claim))).await.code {
                0.. => return Ok(true),
                errno::EXIST | errno::CANCELED => {}
                code => lost_or(core.failed_change(&space, code))?,
            }
        }
        Err(Error::Retryable("too many concurrent claims of this scope".into()))
    }

    async fn raise(&self, place: Place<'_>, announced: Announced, epoch: u64) -> Result<()> {
        let core = &self.0;
        let (space, name, namespace) = core.place_of(place)?;
        let attribute = match announced {
            Announced::Narrower => NARROWER,
            Announced::Domains => DOMAINS,
            Announced::Objects => OBJECTS,
        };
        let bytes = epoch.to_be_bytes();
        let mut is_there = true;
        for _ in 0..TRIES {
            let op = WriteOp::new(&space.ioctx.cluster.api);
            let op = match is_there {
                true => op.compare(attribute, COMPARE_GT, &bytes),
                false => create(op, namespace),
            };
            match core.change_own(&space, &name, op.set(attribute, &bytes)).await.code {
                // The step was cancelled because the recorded epoch is not lower.
                0.. | errno::CANCELED => return Ok(()),
                errno::EXIST => is_there = true,
                // Repeating the step has the same effect.
                code => {
                    lost_or(core.failed_read(&space, code))?;
                    is_there = false;
                }
            }
        }
        Err(Error::Retryable("too many concurrent claims of this scope".into()))
    }

    async fn scopes(&self, namespace: &Namespace, domain: Option<OrderDomain>) -> Result<Scopes> {
        let space = self.0.space(namespace)?;
        self.0.scopes(&space, namespace, domain).await
    }

    async fn name_namespace(&self, namespace: &Namespace) -> Result<()> {
        // This records the namespace's name, unless it is recorded already.
        self.scopes(namespace, None).await.map(drop)
    }

    async fn namespaces(&self) -> Result<Vec<Namespace>> {
        self.0.namespaces().await
    }

    async fn refuse_domains(&self, namespace: &Namespace, claim: (u64, WriterId)) -> Result<()> {
        let space = self.0.space(namespace)?;
        for name in self.0.domain_records(&space).await? {
            self.0.record(&space, &name).await?.unwrap_or_default().record.claim.refuse(claim)?;
        }
        Ok(())
    }

    async fn refuse_objects(&self, namespace: &Namespace, claim: (u64, WriterId)) -> Result<()> {
        let found = self.0.find_all(&self.0.pool(), Some(self.0.space(namespace)?))?;
        let views = found.map(|found| async {
            let found = found?;
            self.0.look(&found.space, &found.name, false).await
        });
        let mut views = std::pin::pin!(views.buffer_unordered(OBJECTS_CONCURRENT));
        while let Some(view) = views.next().await {
            view?.claim.map_or_else(Claim::default, |claim| *claim).refuse(claim)?;
        }
        Ok(())
    }

    async fn find(&self, object: &ObjectId) -> Result<Found<View>> {
        let space = self.0.space(&object.namespace)?;
        let view = self.0.look(&space, &object.name, false).await?;
        let claim = view.claim.as_deref().copied().unwrap_or_default();
        Ok(Found { fence: view.fence, claim, seen: view })
    }

    /// A fence comes from a wider scope, a stamp, or a claim. Without a record, the claim was made
    /// by an older version.
    fn check_found(&self, found: &Found<View>, above: u64, epoch: u64) -> Result<()> {
        let stamped = found.seen.stamp.map_or(0, |stamp| stamp.epoch.0);
        let fence = found.fence.unwrap_or(0);
        if fence == epoch && ![above, stamped, found.claim.epoch].contains(&fence) {
            return Err(Error::Fenced { epoch: Epoch(epoch) });
        }
        Ok(())
    }

    async fn put_claim(
        &self,
        object: &ObjectId,
        found: Found<View>,
        claim: Claim,
        fence: Option<u64>,
    ) -> Result<()> {
        let core = &self.0;
        let space = core.space(&object.namespace)?;
        let view = found.seen;
        let was = view.claim.as_deref().map_or_else(Vec::new, |claim| encode_claim(*claim));
        let op = WriteOp::new(&space.ioctx.cluster.api).compare(CLAIM, COMPARE_EQ, &was);
        let op = match (fence, view.fence) {
            (None, _) => op,
            (Some(fence), Some(before)) => {
                op.compare(FENCE, COMPARE_EQ, &before.to_be_bytes()).set(FENCE, &fence.to_be_bytes())
            }
            (Some(fence), None) => {
                let Some(view) = core.introduce(&space, object, view).await? else { return Ok(()) };
                let whole = core.scopes(&space, &object.namespace, None).await?.whole;
                if whole > fence {
                    core.withdraw(&space, object, &view).await;
                    return Err(Error::Fenced { epoch: Epoch(whole) });
                }
                let nonce = view.intro.unwrap_or_default().to_be_bytes();
                let op = op.compare(FENCE, COMPARE_EQ, b"").compare(INTRO, COMPARE_EQ, &nonce);
                op.unset(INTRO).set(FENCE, &fence.to_be_bytes())
            }
        };
        core.objects.forget(object);
        match core.change_object(&space, object, op.set(CLAIM, &encode_claim(claim)), || ()).await.code {
            0.. | errno::CANCELED => Ok(()),
            code => lost_or(core.failed_change(&space, code)),
        }
    }

    async fn meet_all(&self, place: Place<'_>, epoch: u64) -> Result<()> {
        let core = &self.0;
        let (space, domain) = match place {
            Place::All => (None, None),
            Place::Namespace(namespace) => (Some(core.space(namespace)?), None),
            Place::Domain(namespace, domain) => (Some(core.space(namespace)?), Some(domain)),
        };
        let found = core.find_all(&core.pool(), space)?;
        let met = found.map(|found| core.meet(found, domain, epoch)).buffer_unordered(OBJECTS_CONCURRENT);
        let mut met = std::pin::pin!(met);
        while let Some(done) = met.next().await {
            done?;
        }
        core.objects.forget_all();
        Ok(())
    }

    async fn pause(&self, _attempt: u32) {}
}
