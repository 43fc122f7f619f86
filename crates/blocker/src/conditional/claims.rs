//! The claim protocol for stores whose atomic steps span only one object: how a claim reaches every
//! object of a scope, and why no two writers hold the same epoch.
//!
//! # Fencing
//! Every object carries its *fence*, the epoch below which no change is applied to it. Every change
//! is applied on the condition that the fence has not changed since the change was prepared. The
//! protocol defines how objects get fences, and how a claim reaches all of them, including those of
//! objects that do not exist yet. The store must support puts on the condition that the target is
//! absent or unchanged, and its listings must show every object that exists throughout the listing.
//!
//! **Rule 1.** No change creates its object, and none is applied to an object without a fence. Such
//! an object is first *introduced*:
//!  1. it is marked (if nothing is there, a *ghost* is created, which callers do not see as an
//!     object), or the mark of another introduction is read;
//!  2. then the epochs of its scopes are read;
//!  3. then the change itself sets the fence to the highest of them (and of its own epoch), on the
//!     condition that the mark is still that of step 1. It is sent only if its own epoch is not
//!     below that fence.
//!
//! **Rule 2.** A claim of epoch e first raises the scope's own epoch (at time R), then lists every
//! object in the scope, ghosts included, and for each: a fence below e is raised to e; if there is
//! no fence, the mark is replaced by a new one. Then it returns. Between raising and listing it
//! checks that no other writer holds the epoch in an overlapping scope (below); if one does, the
//! claim is refused, and the raised epoch belongs to no writer.
//!
//! **Rule 3.** A fence never falls while its object or ghost exists. A ghost is removed only if its
//! fence adds nothing to the epochs of the scopes, which never fall either.
//!
//! *Claim: no change of an epoch below e is applied after the claim of e has returned.* Suppose one
//! is, to an object X at time T. By rule 1 it met a fence f < e. Let I < S < C ≤ T be the times of
//! the steps of the introduction that set the first fence of X since X was last created; f never
//! fell, so at C the fence was below e, so the epoch read at S was below e, so S < R, so I < R.
//! Hence X existed, with that mark, from before R until C: throughout the claim's listing, which
//! therefore found it, at a time K < T. If C < K, there was a fence, and it was raised to e if it
//! was below: it is not below e at T. If K < C, there was no fence, and the mark was replaced: the
//! step at C met another mark, and was refused. Either way a contradiction. ∎
//!
//! The fences of order domains are separate from the object's own, and follow the same rules; an
//! object gets one with the first change of that domain. The protocol trusts no clock, and no
//! client needs rights over others.
//!
//! # Exclusive epochs
//! A claim is recorded with its writer: in the scope's record, or for an object with the object.
//! Two claims of one scope are decided by its record. Overlapping scopes (a wider and a narrower
//! one; a domain and any object of its namespace) have separate records, which no atomic step
//! spans. So a claim of epoch e
//!  1. *looks* whether the epoch is taken in an overlapping scope, and if so is refused before it
//!     has changed anything;
//!  2. writes its own record, as *asked for*;
//!  3. *announces* itself: raises to e, in the record of every wider scope, the highest epoch of
//!     any narrower claim (separately for domains and objects, which overlap each other);
//!  4. looks again, and is refused if the epoch is taken by now;
//!  5. marks its record as *held*. A writer whose own record, or record of a wider scope, is marked
//!     so holds the epoch: only a newer epoch can refuse its repeated claim.
//!
//! To look is to read the records of the wider scopes and, where a narrower epoch of at least e was
//! announced, to list the narrower records. Writers normally claim an epoch above all announced
//! ones, which lists nothing. A record excludes other writers in either state.
//!
//! *Claim: of two overlapping claims of epoch e by different writers, at most one comes to hold
//! it.* If one is of a wider scope, let it write its record at w and read the announcements at r >
//! w; the other, of a narrower one, writes its record at w', announces at a' > w', and reads the
//! wider scope's record at r' > a'. If r < a', then w < r', and the narrower claim finds the wider
//! one's record. If r > a', the wider claim sees an announcement that is not below e, lists, and
//! finds the record of w'. For a domain and an object, take the announcements of each: w < a < r
//! and w' < a' < r', and a < r' or a' < r. If the wider record has been raised above e since, it
//! refuses the narrower claim as well; if the narrower record has been raised, it no longer holds
//! e. ∎
//!
//! Both may be refused, and leave their records; a later epoch can still be claimed.

use crate::admission::check_epoch_step;
use crate::{Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope, WriterId};

/// The maximum number of times that a claim of an object is prepared again because of concurrent
/// changes.
const TRIES: u32 = 200;

/// The record of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Claim {
    /// The claimed epoch; 0 if nothing was claimed.
    pub epoch: u64,
    /// The writer; `None` if unknown, which counts as another writer.
    pub writer: Option<WriterId>,
    /// Whether the record shows that the claim has succeeded.
    pub is_held: bool,
}

impl Claim {
    /// Returns whether this claim is a claim of `epoch` (other than 0) by another or an unknown
    /// writer.
    #[must_use]
    pub fn excludes(self, epoch: u64, writer: WriterId) -> bool {
        self.epoch == epoch && self.writer != Some(writer)
    }

    /// Returns whether `writer` holds `epoch` through this claim.
    #[must_use]
    pub fn is_held_by(self, epoch: u64, writer: WriterId) -> bool {
        self == Self { epoch, writer: Some(writer), is_held: true }
    }

    /// Checks that this claim does not exclude `writer` from `epoch`.
    ///
    /// # Errors
    /// Returns `Fenced`.
    pub fn refuse(self, (epoch, writer): (u64, WriterId)) -> Result<()> {
        if self.excludes(epoch, writer) { fenced(epoch) } else { Ok(()) }
    }
}

/// The part of a scope's record that claims need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Record {
    /// The scope's own claim.
    pub claim: Claim,
    /// The highest epoch that any narrower claim has announced.
    pub narrower: u64,
    /// The highest epoch that a domain's claim has announced.
    pub domains: u64,
    /// The highest epoch that an object's claim has announced.
    pub objects: u64,
}

/// A scope that has its own record.
#[derive(Clone, Copy, Debug)]
pub enum Place<'a> {
    /// Everything.
    All,
    /// A namespace.
    Namespace(&'a Namespace),
    /// An order domain of a namespace.
    Domain(&'a Namespace, OrderDomain),
}

/// What a claim announces in the record of a wider scope.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Announced {
    /// A claim of any narrower scope, in the record of everything.
    Narrower,
    /// A claim of a domain, in the record of its namespace.
    Domains,
    /// A claim of an object, in the record of its namespace.
    Objects,
}

/// The epochs of wider scopes that bind an object.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scopes {
    /// The higher epoch of everything and of the namespace.
    pub whole: u64,
    /// The order domain's epoch, if one was requested.
    pub domain: u64,
}

/// An object as a claim finds it.
#[derive(Debug)]
pub struct Found<T> {
    /// The object's fence, if it has one.
    pub fence: Option<u64>,
    /// The last claim of the object itself.
    pub claim: Claim,
    /// The object's state as the store has read it, for a conditional change.
    pub seen: T,
}

/// The operations that the protocol needs of a store.
pub trait Claims: Sync {
    /// A store's view of an object, on which a change is conditional.
    type Seen: Send + Sync;

    /// Returns the record of a scope; an empty one if the scope has none.
    fn record(&self, place: Place<'_>) -> impl Future<Output = Result<Record>> + Send;

    /// Replaces the scope's claim by the one that `decide` returns for it, if the claim is
    /// unchanged; otherwise calls `decide` again. `None` keeps the claim. Returns whether a claim
    /// may have been put.
    fn update_claim(
        &self,
        place: Place<'_>,
        decide: impl FnMut(Claim) -> Result<Option<Claim>> + Send,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Raises an announcement in a scope's record to at least `epoch`.
    fn raise(
        &self,
        place: Place<'_>,
        announced: Announced,
        epoch: u64,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the current epochs that bind the objects of a namespace.
    fn scopes(
        &self,
        namespace: &Namespace,
        domain: Option<OrderDomain>,
    ) -> impl Future<Output = Result<Scopes>> + Send;

    /// Makes the namespace visible in [`Self::namespaces`].
    fn name_namespace(&self, namespace: &Namespace) -> impl Future<Output = Result<()>> + Send;

    /// Returns the namespaces that have objects or records.
    fn namespaces(&self) -> impl Future<Output = Result<Vec<Namespace>>> + Send;

    /// Checks the claims of all domains of a namespace, by [`Claim::refuse`].
    fn refuse_domains(
        &self,
        namespace: &Namespace,
        claim: (u64, WriterId),
    ) -> impl Future<Output = Result<()>> + Send;

    /// Checks the claims of all objects of a namespace, by [`Claim::refuse`].
    fn refuse_objects(
        &self,
        namespace: &Namespace,
        claim: (u64, WriterId),
    ) -> impl Future<Output = Result<()>> + Send;

    /// Returns the current state of an object.
    fn find(&self, object: &ObjectId) -> impl Future<Output = Result<Found<Self::Seen>>> + Send;

    /// Performs the store's own checks before an object is claimed with `epoch`; `above` is the
    /// epoch of the wider scopes.
    ///
    /// # Errors
    /// Returns `Fenced`.
    fn check_found(&self, _found: &Found<Self::Seen>, _above: u64, _epoch: u64) -> Result<()> {
        Ok(())
    }

    /// Records a claim with an object if the object is unchanged since it was found, and raises its
    /// fence to `fence`, if given. An object without a fence is introduced. If the epoch of its
    /// scopes is higher, the claim is refused with that epoch.
    fn put_claim(
        &self,
        object: &ObjectId,
        found: Found<Self::Seen>,
        claim: Claim,
        fence: Option<u64>,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Applies rule 2 to every object in the scope of `place`.
    fn meet_all(&self, place: Place<'_>, epoch: u64) -> impl Future<Output = Result<()>> + Send;

    /// Waits for concurrent changes before a claim of an object is prepared again.
    fn pause(&self, attempt: u32) -> impl Future<Output = ()> + Send;
}

fn fenced<T>(epoch: u64) -> Result<T> {
    Err(Error::Fenced { epoch: Epoch(epoch) })
}

/// Returns the conversion of an error that occurs after the epoch is raised but before all objects
/// have it.
fn after_raise(raised: bool) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Retryable(reason) if raised => Error::OutcomeUnknown(reason),
        error => error,
    }
}

/// Claims a scope. A claim of epoch 0 changes nothing; its error names the epoch in force.
///
/// # Errors
/// Returns `Fenced`, `Invalid`, and the errors of the store.
pub async fn claim<S: Claims>(store: &S, scope: &Scope, epoch: Epoch, writer: WriterId) -> Result<()> {
    if epoch == Epoch(0) {
        return match epoch_in_force(store, scope).await? {
            0 => Ok(()),
            in_force => fenced(in_force),
        };
    }
    let claim = (epoch.0, writer);
    match scope {
        Scope::All => claim_scope(store, scope, Place::All, claim).await,
        Scope::Namespace(namespace) => claim_scope(store, scope, Place::Namespace(namespace), claim).await,
        Scope::Domain(namespace, domain) => {
            store.name_namespace(namespace).await?;
            claim_scope(store, scope, Place::Domain(namespace, *domain), claim).await
        }
        Scope::Object(object) => {
            let mut raised = false;
            let claimed = claim_object(store, scope, object, claim, &mut raised).await;
            claimed.map_err(after_raise(raised))
        }
    }
}

async fn epoch_in_force<S: Claims>(store: &S, scope: &Scope) -> Result<u64> {
    match scope {
        Scope::Object(object) => match store.find(object).await?.fence {
            Some(fence) => Ok(fence),
            None => Ok(store.scopes(&object.namespace, None).await?.whole),
        },
        Scope::Domain(namespace, domain) => {
            let scopes = store.scopes(namespace, Some(*domain)).await?;
            Ok(scopes.whole.max(scopes.domain))
        }
        Scope::Namespace(namespace) => Ok(store.scopes(namespace, None).await?.whole),
        Scope::All => Ok(store.record(Place::All).await?.claim.epoch),
    }
}

/// Raises the scope's epoch, then applies it to every object in the scope.
async fn claim_scope<S: Claims>(
    store: &S,
    scope: &Scope,
    place: Place<'_>,
    (epoch, writer): (u64, WriterId),
) -> Result<()> {
    let own = store.record(place).await?.claim;
    let above = look_above(store, scope, (epoch, writer), own.is_held_by(epoch, writer)).await?;
    if !above.is_held && own.epoch < epoch {
        look_beside(store, scope, (epoch, writer)).await?;
    }
    let asked = Claim { epoch, writer: Some(writer), is_held: false };
    let raised = record_claim(store, place, above, asked, writer).await?;
    hold(store, scope, (epoch, writer), above.is_held).await.map_err(after_raise(raised))?;
    let held = Claim { is_held: true, ..asked };
    record_claim(store, place, above, held, writer).await.map_err(after_raise(raised))?;
    // `meet_all` runs even if the record already had the epoch: the claim that raised the record
    // may not have finished.
    store.meet_all(place, epoch).await.map_err(after_raise(raised))
}

/// Writes the record of a scope's claim: raises its epoch, or marks the claim as held. Returns
/// whether the epoch has risen.
async fn record_claim<S: Claims>(
    store: &S,
    place: Place<'_>,
    above: Above,
    claim: Claim,
    writer: WriterId,
) -> Result<bool> {
    let epoch = claim.epoch;
    let mut has_risen = false;
    let decide = |current: Claim| {
        if current.epoch > epoch {
            return fenced(current.epoch);
        }
        // A claim that is only *asked for* yields to a writer that holds the epoch through a wider
        // scope.
        if current.excludes(epoch, writer) && (current.is_held || !above.is_held) {
            return fenced(epoch);
        }
        if current == claim || current.is_held_by(epoch, writer) {
            return Ok(None);
        }
        check_epoch_step(Epoch(current.epoch.max(above.in_force)), Epoch(epoch))?;
        has_risen |= current.epoch < epoch;
        Ok(Some(claim))
    };
    let is_put = store.update_claim(place, decide).await?;
    Ok(is_put && has_risen)
}

/// Claims an object itself: raises its fence, and creates a ghost if necessary.
async fn claim_object<S: Claims>(
    store: &S,
    scope: &Scope,
    object: &ObjectId,
    (epoch, writer): (u64, WriterId),
    raised: &mut bool,
) -> Result<()> {
    let asked = Claim { epoch, writer: Some(writer), is_held: false };
    let held = Claim { is_held: true, ..asked };
    for attempt in 0..TRIES {
        let found = store.find(object).await?;
        let fence = found.fence.unwrap_or(0);
        if fence > epoch {
            return fenced(fence);
        }
        let own = found.claim;
        let above = look_above(store, scope, (epoch, writer), own == held).await?;
        if own == held {
            return Ok(());
        }
        if own.excludes(epoch, writer) && (own.is_held || !above.is_held) {
            return fenced(epoch);
        }
        if own == asked {
            // The record contains this claim, or an earlier attempt whose response was lost.
            hold(store, scope, (epoch, writer), above.is_held).await?;
            store.put_claim(object, found, held, None).await?;
        } else {
            store.check_found(&found, above.in_force, epoch)?;
            if !above.is_held {
                look_beside(store, scope, (epoch, writer)).await?;
            }
            check_epoch_step(Epoch(fence.max(above.in_force)), Epoch(epoch))?;
            *raised |= fence.max(above.in_force) < epoch;
            store.put_claim(object, found, asked, Some(epoch)).await?;
        }
        // The next read shows whether the claim was put.
        store.pause(attempt).await;
    }
    Err(Error::Retryable("too many concurrent changes to this object".into()))
}

/// Announces a claim that is *asked for*, and checks that the claim can become *held*.
async fn hold<S: Claims>(store: &S, scope: &Scope, claim: (u64, WriterId), is_held: bool) -> Result<()> {
    announce(store, scope, claim.0).await?;
    let above = look_above(store, scope, claim, is_held).await?;
    if above.is_held { Ok(()) } else { look_beside(store, scope, claim).await }
}

/// The state of the wider scopes.
#[derive(Clone, Copy)]
struct Above {
    /// The highest epoch of the wider scopes.
    in_force: u64,
    /// Whether the writer already holds the claimed epoch, in a wider scope or in the scope itself.
    is_held: bool,
}

/// Examines the scopes wider than `scope`. Refuses the claim if one of them has a newer epoch, or
/// if another writer has claimed this epoch there and the claimant does not already hold it.
async fn look_above<S: Claims>(
    store: &S,
    scope: &Scope,
    (epoch, writer): (u64, WriterId),
    is_held: bool,
) -> Result<Above> {
    let Some(namespace) = scope.namespace() else { return Ok(Above { in_force: 0, is_held }) };
    let mut wider = vec![store.record(Place::All).await?.claim];
    if !matches!(scope, Scope::Namespace(_)) {
        wider.push(store.record(Place::Namespace(namespace)).await?.claim);
    }
    let in_force = wider.iter().map(|claim| claim.epoch).max().unwrap_or(0);
    if in_force > epoch {
        return fenced(in_force);
    }
    let is_held = is_held || wider.iter().any(|claim| claim.is_held_by(epoch, writer));
    if !is_held && wider.iter().any(|claim| claim.excludes(epoch, writer)) {
        return fenced(epoch);
    }
    Ok(Above { in_force, is_held })
}

/// Examines all other scopes that overlap `scope`: narrower ones; the objects beside a domain, or
/// the domains beside an object. Refuses the claim if another writer has claimed the epoch in one
/// of them.
async fn look_beside<S: Claims>(store: &S, scope: &Scope, claim: (u64, WriterId)) -> Result<()> {
    let (namespace, domains, objects) = match scope {
        Scope::All => {
            if store.record(Place::All).await?.narrower < claim.0 {
                return Ok(());
            }
            for namespace in store.namespaces().await? {
                let whole = store.record(Place::Namespace(&namespace)).await?;
                whole.claim.refuse(claim)?;
                look_within(store, &namespace, whole, (true, true), claim).await?;
            }
            return Ok(());
        }
        Scope::Namespace(namespace) => (namespace, true, true),
        Scope::Domain(namespace, _) => (namespace, false, true),
        Scope::Object(object) => (&object.namespace, true, false),
    };
    let whole = store.record(Place::Namespace(namespace)).await?;
    look_within(store, namespace, whole, (domains, objects), claim).await
}

/// Checks the domains of a namespace, its objects, or both, if an announcement shows that they may
/// matter.
async fn look_within<S: Claims>(
    store: &S,
    namespace: &Namespace,
    whole: Record,
    (domains, objects): (bool, bool),
    claim: (u64, WriterId),
) -> Result<()> {
    if domains && whole.domains >= claim.0 {
        store.refuse_domains(namespace, claim).await?;
    }
    if objects && whole.objects >= claim.0 {
        store.refuse_objects(namespace, claim).await?;
    }
    Ok(())
}

/// Announces to the wider scopes that a claim in `scope` has this `epoch`.
async fn announce<S: Claims>(store: &S, scope: &Scope, epoch: u64) -> Result<()> {
    match scope {
        Scope::Namespace(_) => {}
        Scope::Domain(namespace, _) => {
            store.raise(Place::Namespace(namespace), Announced::Domains, epoch).await?;
        }
        Scope::Object(object) => {
            store.raise(Place::Namespace(&object.namespace), Announced::Objects, epoch).await?;
        }
        Scope::All => return Ok(()),
    }
    store.raise(Place::All, Announced::Narrower, epoch).await
}
