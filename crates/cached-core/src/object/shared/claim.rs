//! Claiming epochs for this cache if it is the writer, and asking the store for the epochs in
//! force; dropping data that other clients may have changed in the store.
//!
//! A namespace is claimed before its first change is acknowledged, so that no change is
//! acknowledged that the store would refuse. Data that were read before the claim may have been
//! changed by the previous writer, and are dropped.

use blocker::{
    BlockerExt, Call, ClaimRequest, Epoch, Error, Event, Namespace, ObjectId, Result, Scope, Stamp,
};

use super::handle::Handle;
use super::parts::StoreSide;
use super::resources::OwnedResources;
use super::{Shared, log_waits};
use crate::object::config::{Leadership, OTHERS, Writer};
use crate::object::journal::{JournalState, Room};
use crate::object::memory::pool::{BUCKET, Reserved};
use crate::object::store::epochs::{NAMESPACES_MAX, Own};
use crate::object::tasks::wait_queue::Permits;
use crate::sync::Arc;

/// The maximum number of consecutive claims of a namespace that other writers may overtake.
const CLAIM_TRIES_MAX: u32 = 32;

/// Returns the epoch in force for a scope.
pub(crate) async fn ask_epoch(store: &StoreSide, scope: Scope) -> Result<Epoch> {
    match store.below.epoch_in_force(scope, Call::default()).await {
        // The query has changed nothing, whatever its outcome.
        Err(Error::OutcomeUnknown(why)) => Err(Error::Retryable(why)),
        asked => asked,
    }
}

/// Returns the stamp of the next change of this cache in `namespace`; `None` if callers are the
/// writers.
///
/// # Errors
/// The same as for [`own_epoch`].
pub(crate) async fn own_stamp(shared: &Arc<Shared>, namespace: &Namespace) -> Result<Option<Stamp>> {
    if shared.control.config.writer == Writer::Callers {
        return Ok(None);
    }
    let epoch = own_epoch(shared, namespace).await?;
    if shared.journal.log.as_ref().is_some_and(|log| log.events.condition.state() != JournalState::Ok) {
        shared.store.epochs.note_unlogged();
    }
    Ok(Some(shared.store.epochs.next_stamp(epoch)))
}

/// Returns the epoch that this cache holds in `namespace`; claims the namespace at first use.
///
/// # Errors
/// `Fenced` once another writer has taken over, or if no epoch is left; `Retryable`; errors of the
/// store.
pub(crate) async fn own_epoch(shared: &Arc<Shared>, namespace: &Namespace) -> Result<Epoch> {
    let mut room = None;
    loop {
        match shared.store.epochs.get(namespace) {
            Some(Own::Held(epoch)) => return Ok(epoch),
            Some(Own::Deposed(epoch)) => return Err(Error::Fenced { epoch }),
            Some(Own::Unconfirmed(_)) | None => {}
        }
        let alone = Permits::acquire(&shared.store.epochs.claiming).await?;
        match shared.store.epochs.get(namespace) {
            Some(Own::Held(epoch)) => return Ok(epoch),
            Some(Own::Deposed(epoch)) => return Err(Error::Fenced { epoch }),
            Some(Own::Unconfirmed(epoch)) => return claim_again(shared, namespace, epoch).await,
            None => {
                if let Some(epoch) = claim_first(shared, namespace, room.take()).await? {
                    return Ok(epoch);
                }
            }
        }
        drop(alone);
        room = Some(log_waits::room_for_epoch(shared).await?);
    }
}

/// Claims a namespace before a request that reads from the store, if this cache is elected: an
/// earlier leader can then no longer change what is read. So everything in an elected cache was
/// read under its claim.
///
/// # Errors
/// The same as for [`own_epoch`].
#[inline]
pub(crate) async fn claim_before_read(shared: &Arc<Shared>, namespace: &Namespace) -> Result<()> {
    match shared.control.config.writer {
        Writer::Elected => own_epoch(shared, namespace).await.map(drop),
        Writer::Callers | Writer::Cache => Ok(()),
    }
}

/// Takes over a namespace with an epoch above the one in force. Returns `None` if there is no room
/// in the log for the epoch's record; `room` is what the caller has waited for.
///
/// # Errors
/// `OutOfSpace` if no further namespace can be claimed; errors of [`own_epoch`].
async fn claim_first(
    shared: &Arc<Shared>,
    namespace: &Namespace,
    mut room: Option<Room>,
) -> Result<Option<Epoch>> {
    if shared.store.epochs.is_full() {
        let why = format!("this cache is the writer of {NAMESPACES_MAX} namespaces already, the maximum");
        return Err(Error::OutOfSpace(why.into()));
    }
    let scope = Scope::Namespace(namespace.clone());
    if let Some(leadership) = &shared.control.config.leadership {
        return claim_elected(shared, namespace, leadership).await.map(Some);
    }
    let mut in_force = ask_epoch(&shared.store, scope.clone()).await?;
    for tries in 0..CLAIM_TRIES_MAX {
        // The step increases each time, because epochs just above may be in force in parts of the
        // namespace.
        let epoch = Epoch(in_force.0.saturating_add(1 << tries));
        if epoch == in_force {
            tracing::error!(%namespace, %in_force, "the highest possible epoch is in force: no writer can claim the namespace any more");
            return Err(Error::Fenced { epoch: in_force });
        }
        // The epoch is logged before the claim, so that a recovery can tell which epochs are its
        // own.
        if !log_waits::note_epoch(shared, namespace, epoch.0, room.take()).await? {
            return Ok(None);
        }
        match claim_below(&shared.store, &scope, epoch).await {
            Ok(()) => {
                if let Some(log) = &shared.journal.log {
                    log.names.claimed(namespace, epoch.0);
                }
                // Earlier claims of others, from before this cache gave up or lost the namespace,
                // no longer bind it.
                shared.store.claims.forget_parts(namespace, epoch);
                drop_clean(shared, &scope).await?;
                shared.store.epochs.set(namespace, Own::Held(epoch));
                return Ok(Some(epoch));
            }
            Err(Error::Fenced { epoch: newer }) => in_force = newer.max(epoch),
            Err(error) => return Err(error),
        }
    }
    let why = format!(
        "{CLAIM_TRIES_MAX} consecutive claims of {namespace} failed, because other writers claim it too"
    );
    Err(Error::Retryable(why.into()))
}

/// Takes over a namespace with the epoch of this cache's leadership.
async fn claim_elected(
    shared: &Arc<Shared>,
    namespace: &Namespace,
    &Leadership { epoch, ref records, .. }: &Leadership,
) -> Result<Epoch> {
    if records.as_ref() == Some(namespace) {
        let why = format!("namespace {namespace} holds the registry of the election: use another one");
        return Err(Error::Denied(why.into()));
    }
    match claim_below(&shared.store, &Scope::Namespace(namespace.clone()), epoch).await {
        Ok(()) => {
            if let Some(log) = &shared.journal.log {
                log.names.claimed(namespace, epoch.0);
            }
            shared.store.claims.forget_parts(namespace, epoch);
            shared.store.epochs.set(namespace, Own::Held(epoch));
            Ok(epoch)
        }
        Err(Error::Fenced { epoch: newer }) => Err(depose(shared, namespace, (epoch, newer))),
        Err(error) => Err(error),
    }
}

/// Records that another writer holds a namespace with the epoch `newer`.
fn depose(shared: &Arc<Shared>, namespace: &Namespace, (own, newer): (Epoch, Epoch)) -> Error {
    let namespace_scope = Scope::Namespace(namespace.clone());
    shared.store.epochs.set(namespace, Own::Deposed(newer));
    let dropped = if shared.control.config.writer == Writer::Elected {
        shared.store.epochs.depose(newer);
        tracing::error!(
            %namespace, %own, in_force = %newer,
            "the store has refused the epoch of this leadership: another host leads, or has led"
        );
        Scope::All
    } else {
        tracing::error!(
            %namespace, %own, in_force = %newer,
            "another writer has taken over: changes are refused until this cache is restarted"
        );
        namespace_scope.clone()
    };
    shared.hub.publish(&Event::Fenced(namespace_scope, newer));
    // This cache does not learn of the new writer's changes. The cleanup runs in the background,
    // because a flush must not wait for memory.
    let owned = Arc::clone(shared);
    shared.background.add(Box::pin(async move { log_failure(drop_clean(&owned, &dropped).await) }));
    Error::Fenced { epoch: newer }
}

/// Repeats an earlier claim, which shows whether it is still in force.
async fn claim_again(shared: &Arc<Shared>, namespace: &Namespace, epoch: Epoch) -> Result<Epoch> {
    let scope = Scope::Namespace(namespace.clone());
    match claim_below(&shared.store, &scope, epoch).await {
        Ok(()) => {
            shared.store.epochs.set(namespace, Own::Held(epoch));
            Ok(epoch)
        }
        Err(Error::Fenced { epoch: newer }) if shared.store.epochs.renewed(namespace) == Some(newer) => {
            // This is our own claim, whose response was lost.
            claim_below(&shared.store, &scope, newer).await?;
            hold_renewed(shared, namespace, newer);
            Ok(newer)
        }
        Err(Error::Fenced { epoch: newer }) => Err(depose(shared, namespace, (epoch, newer))),
        Err(error) => Err(error),
    }
}

/// Claims again, with a new epoch, every namespace that has records in the log, so that a recovery
/// finds the records to be void. A claim whose response was lost is repeated.
///
/// # Errors
/// Errors of the store; in this case some namespaces are claimed, and the next call claims the
/// others.
pub(crate) async fn claim_anew(shared: &Arc<Shared>) -> Result<()> {
    for namespace in shared.store.epochs.claimed() {
        if !log_waits::has_records(&shared.journal, &namespace)
            && !shared.store.epochs.is_renewing(&namespace)
        {
            continue;
        }
        let _alone = Permits::acquire(&shared.store.epochs.claiming).await?;
        let Some(Own::Held(epoch) | Own::Unconfirmed(epoch)) = shared.store.epochs.get(&namespace) else {
            continue;
        };
        // The new epoch is exactly the next one: a higher one could pass over another writer's
        // claim.
        let newer = Epoch(epoch.0.saturating_add(1));
        shared.store.epochs.renew(&namespace, newer);
        match claim_below(&shared.store, &Scope::Namespace(namespace.clone()), newer).await {
            Ok(()) => hold_renewed(shared, &namespace, newer),
            // Another writer has taken over.
            Err(Error::Fenced { .. }) => match claim_again(shared, &namespace, epoch).await {
                Ok(_) | Err(Error::Fenced { .. }) => (),
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Records that this cache now holds a namespace with a new epoch.
fn hold_renewed(shared: &Shared, namespace: &Namespace, epoch: Epoch) {
    if let Some(log) = &shared.journal.log {
        log.names.claimed(namespace, epoch.0);
        // Only while nothing is being logged and all logged changes are stored.
        if log.events.condition.state() == JournalState::Draining
            && let Some(known) = log.names.get(namespace)
        {
            known.note_mark(log.last_position());
        }
    }
    shared.store.epochs.set(namespace, Own::Held(epoch));
}

async fn claim_below(store: &StoreSide, scope: &Scope, epoch: Epoch) -> Result<()> {
    let request = ClaimRequest::new(scope.clone(), epoch, store.epochs.writer);
    match store.below.claim_in_steps(request).await {
        Ok(_) => Ok(()),
        // The same writer may repeat the claim.
        Err(Error::OutcomeUnknown(why)) => Err(Error::Retryable(why)),
        Err(error) => Err(error),
    }
}

/// Records the store's response to a change of an object. If the store has refused the change
/// because of this cache's own epoch, the change can be repeated; if it was another writer's epoch,
/// that epoch may cover more than the object.
pub(crate) fn note_answer<T>(shared: &Arc<Shared>, object: &ObjectId, answer: Result<T>) -> Result<T> {
    match answer {
        Err(Error::Fenced { epoch }) if shared.store.epochs.is_own(&object.namespace, epoch) => {
            Err(Error::Retryable("the namespace was claimed with a new epoch in the meantime".into()))
        }
        Err(Error::Fenced { epoch }) => {
            note_refusal(shared, object, epoch);
            Err(Error::Fenced { epoch })
        }
        answer => answer,
    }
}

/// Records that the store has refused a change of an object because `newer` is in force: for the
/// object alone, or for more.
fn note_refusal(shared: &Arc<Shared>, object: &ObjectId, newer: Epoch) {
    if shared.control.config.writer == Writer::Callers {
        return;
    }
    if shared.store.epochs.epoch(&object.namespace).is_some_and(|own| own < newer) {
        shared.store.claims.note(&Scope::Object(object.clone()), newer);
        shared.store.epochs.unconfirm(newer, |namespace| *namespace == object.namespace);
        confirm_if_elected(shared);
    }
}

/// If this cache is elected, finds out in the background whether it still leads: an election must
/// learn of a new leader even if no client asks for anything.
fn confirm_if_elected(shared: &Arc<Shared>) {
    if shared.control.config.writer != Writer::Elected {
        return;
    }
    for namespace in shared.store.epochs.unconfirmed() {
        let own = Arc::clone(shared);
        // If there is no answer, the next request in the namespace asks again.
        shared.background.add(Box::pin(async move { drop(own_epoch(&own, &namespace).await) }));
    }
}

/// Records a claim that the store has reported.
pub(crate) fn note_claim_event(shared: &Arc<Shared>, scope: &Scope, epoch: Epoch) {
    if shared.fences_callers() {
        return shared.store.claims.note(scope, epoch);
    }
    if shared.control.config.writer == Writer::Callers {
        return;
    }
    match (scope, scope.namespace()) {
        (Scope::Object(_) | Scope::Domain(..), Some(namespace)) => {
            if shared.store.epochs.epoch(namespace).is_some_and(|own| own < epoch) {
                shared.store.claims.note(scope, epoch);
            }
        }
        (_, own) => {
            shared.store.epochs.unconfirm(epoch, |it| own.is_none_or(|own| own == it));
            confirm_if_elected(shared);
        }
    }
}

/// Repeats the claim of every held epoch after events, perhaps of claims, were missed. No caller
/// waits for this: an epoch counts as held until the store refuses it.
pub(crate) async fn check_epochs(shared: &Arc<Shared>) {
    for namespace in shared.store.epochs.held() {
        let Ok(_alone) = Permits::acquire(&shared.store.epochs.claiming).await else { return };
        if let Some(Own::Held(epoch)) = shared.store.epochs.get(&namespace) {
            // A missing response changes nothing: the next flush is refused if necessary.
            let _ = claim_again(shared, &namespace, epoch).await;
        }
    }
}

// Dropping data that other clients may have changed in the store. Most are dropped in the objects'
// exclusive sections; a drop that needs buckets and finds none waits for them afterwards.

/// A single wait is for at most this fraction of all buckets.
const SHARE: u32 = 8;

/// Drops the clean copies within a scope; returns the number of bytes dropped.
///
/// # Errors
/// `Retryable` if dropping requires memory, and too many tasks are waiting for memory.
pub(crate) async fn drop_clean(shared: &Arc<Shared>, scope: &Scope) -> Result<u64> {
    let mut dropped = 0;
    let mut rest = Vec::new();
    for handle in handles_of(shared, scope) {
        let invalidated =
            handle.enter(|object, env| object.invalidate(env, &mut Reserved::none(env.pool))).await;
        dropped += u64::from(invalidated.dropped) * BUCKET as u64;
        if invalidated.left > 0 {
            rest.push((handle, invalidated.left));
        }
    }
    for (handle, left) in rest {
        narrow_rest(handle, left).await?;
    }
    Ok(dropped)
}

/// Continues to narrow the buckets of an object to sectors that are newer than the store; `left`
/// buckets remain.
///
/// # Errors
/// `Retryable` if too many tasks are waiting for buckets.
pub(crate) async fn narrow_rest(handle: Handle, mut left: u32) -> Result<()> {
    while left > 0 {
        let count = left.min(handle.shared.memory.pool.count_min() / SHARE).max(1);
        let mut resources = OwnedResources::acquire(&handle.shared, OTHERS, count, 0).await?;
        let entered = handle.enter(move |object, env| {
            resources.with(None, |resources| object.invalidate(env, &mut resources.reserved))
        });
        left = entered.await.left;
    }
    Ok(())
}

/// Logs that data could not be dropped, and may be read again, if no caller asked for the drop.
pub(crate) fn log_failure<T>(result: Result<T>) {
    if let Err(error) = result {
        tracing::warn!(%error, "not all cached copies of data that have changed in the store could be dropped");
    }
}

/// Returns the objects within a scope that are in the index.
fn handles_of(shared: &Arc<Shared>, scope: &Scope) -> Vec<Handle> {
    let mut handles = Vec::new();
    match scope {
        Scope::Object(id) => {
            handles.extend(shared.find(shared.hash(id), id).map(|in_use| Handle::of(shared, in_use)));
        }
        _ => shared.for_each(|in_use| {
            // An object does not know all the domains to which it ever belonged.
            let own = &shared.objects.index.id(in_use).namespace;
            if scope.namespace().is_none_or(|namespace| namespace == own) {
                handles.push(Handle::of(shared, shared.objects.index.use_again(in_use.at)));
            }
        }),
    }
    handles
}
