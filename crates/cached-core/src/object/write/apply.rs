//! Applying a change in memory: checking whether it can be made now, logging it, and queueing the
//! object as dirty. Missing resources are returned, and [`super::back`] obtains them.

use blocker::admission::{Head as StoreHead, admit};
use blocker::{
    Change, ChangeReply, ChangeTerms, Durability, Epoch, Error, Namespace, ObjectId, OrderDomain, Result,
    Timestamp, Version, WriteMode,
};
use cached_journal::Position;

use crate::object::config::OTHERS;
use crate::object::control::namespaces::rank;
use crate::object::journal::records::Origin;
use crate::object::journal::{
    ChangeLog, Entry, JournalState, KeptHold, NamespaceLog, Refusal, Room, Unlogged,
};
use crate::object::memory::pool::Reserved;
use crate::object::mutation::Mutation;
use crate::object::read::list::change_size;
use crate::object::shared::Shared;
use crate::object::shared::resources::{reserve, take_room_at_once};
use crate::object::state::dirty_queue::Released;
use crate::object::state::{Env, Known, LINES_WRITTEN, Missing, Object, Resources};

/// The reason why a change was not applied.
pub(super) enum Blocked {
    /// The change will never be applied.
    Failed(Error),
    /// The store must be asked for the object's head.
    Head,
    /// The store must be asked for the epoch of the order domain.
    Domain(OrderDomain),
    /// The namespace's epoch must be claimed or looked up.
    Owner,
    /// Changes of another order domain must be stored first: a flush is sent under the epoch of a
    /// single domain.
    OtherDomain,
    /// A change is in flight to the store: of the same range or, if the write mode of the namespace
    /// has just changed, of another range of the object.
    Changing,
    /// Buckets, room or bytes of the store are missing.
    Missing(Missing),
    /// The store has accepted changes of the namespace past the log, but not stored them.
    Forwarded,
    /// Room in the log is missing, or changes must wait until the log works again.
    Log,
}

/// The part of the object that the owner of a change holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    Nothing,
    /// The range of the change.
    Range,
    Whole,
}

/// A change to be applied.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) id: &'a ObjectId,
    pub(super) mutation: Mutation<'a>,
    pub(super) terms: &'a ChangeTerms,
    pub(super) holds: Holds,
    /// The object's namespace, if its changes are logged.
    pub(super) log: LogTerms<'a>,
}

/// Whether and where a change is logged.
#[derive(Clone, Copy)]
pub(crate) enum LogTerms<'a> {
    Nowhere,
    In(&'a ChangeLog, &'a NamespaceLog),
    /// Changes of the namespace are logged, but the namespace had not been claimed when it was
    /// looked up.
    Unclaimed,
    /// A recovery repeats the change, which is already in the log.
    Again(&'a ChangeLog, Again),
}

/// A change that a recovery repeats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// The version that the change gave to the object.
    pub(crate) version: u64,
    /// The position of the change's record, or of the first one if it has several.
    pub(crate) position: Position,
    /// Whether the object existed before the change.
    pub(crate) was_present: bool,
}

impl<'a> LogTerms<'a> {
    pub(super) fn new(
        log: Option<&'a ChangeLog>,
        namespace: &Namespace,
        known: Option<&'a NamespaceLog>,
    ) -> Self {
        match (log, known) {
            (None, _) => Self::Nowhere,
            (Some(log), Some(known)) if known.is_journaled() => Self::In(log, known),
            (Some(_), Some(_)) => Self::Nowhere,
            (Some(log), None) if log.names.terms(namespace).is_journaled => Self::Unclaimed,
            (Some(_), None) => Self::Nowhere,
        }
    }
}

/// A change that was applied.
pub(crate) struct Applied {
    pub(crate) reply: ChangeReply,
    /// The object's number in the dirty queue.
    pub(super) queue_number: u64,
    /// Whether anything is left to store.
    pub(super) is_pending: bool,
    /// The position of the change in the log.
    pub(super) position: Option<Position>,
    /// Unneeded holds, to be dropped outside of the exclusive section and before any wait.
    pub(super) released: Released,
}

impl Applied {
    pub(super) fn without_holds(mut self) -> Self {
        self.released = [None, None];
        self
    }
}

/// The log entry of a change, until the change has been applied.
#[derive(Default)]
struct Logged {
    position: Option<Position>,
    hold: Option<KeptHold>,
    _unlogged: Option<Unlogged>,
}

/// Logs a change that is certain to be applied.
fn log_change(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    asked: &Asked<'_>,
    (version, now): (u64, Timestamp),
    room: Option<&mut Room>,
) -> Result<Logged, Blocked> {
    let (log, namespace) = match asked.log {
        LogTerms::Nowhere => return Ok(Logged::default()),
        LogTerms::In(_, namespace) if namespace.has_forwarded() => return Err(Blocked::Forwarded),
        LogTerms::In(log, namespace) => (log, namespace),
        LogTerms::Unclaimed => return Err(Blocked::Owner),
        LogTerms::Again(log, again) => {
            let released = || Error::Corrupt("the record's segment is in use again".into());
            let hold = log.journal().hold(again.position).ok_or_else(|| Blocked::Failed(released()))?;
            if object.pending.queue_number == 0 {
                object.pending.queue_number = shared.objects.dirty_queue.insert(env.node, env.namespace, now);
                wake_if_due(shared, env.namespace);
            }
            let (position, hold) = (Some(again.position), Some(log.keep(hold)));
            return Ok(Logged { position, hold, _unlogged: None });
        }
    };
    if object.pending.queue_number == 0 && !asked.mutation.is_touch() {
        // The object is queued before the append: so a task that stores everything in the log up to
        // now finds it.
        object.pending.queue_number = shared.objects.dirty_queue.insert(env.node, env.namespace, now);
        wake_if_due(shared, env.namespace);
    }
    let Asked { id, terms, .. } = *asked;
    let epoch = namespace.epoch();
    let origin = Origin {
        namespace: namespace.number,
        id,
        domain: terms.domain,
        version,
        epoch,
        was_present: object.head.known == Known::Present,
    };
    match log.append(namespace, &origin, asked.mutation, room) {
        Ok(Entry::Nothing) => Ok(Logged::default()),
        Ok(Entry::Unlogged(unlogged)) => Ok(Logged { _unlogged: Some(unlogged), ..Logged::default() }),
        Ok(Entry::Record(position, hold)) => {
            object.pending.logged_to = position.0;
            Ok(Logged { position: Some(position), hold: Some(hold), _unlogged: None })
        }
        Err(Refusal::Wait) => Err(Blocked::Log),
        Err(Refusal::Failed(error)) => Err(Blocked::Failed(error)),
    }
}

/// Holds the log from the record of a change on, unless the object already does so. Returns holds
/// that are not needed.
fn keep_hold(shared: &Shared, object: &mut Object, hold: KeptHold) -> Released {
    let number = object.pending.queue_number;
    if number == 0 {
        // Nothing is left to store.
        return [Some(hold), None];
    }
    let released = match &mut object.flushing {
        None if !object.pending.is_held => {
            object.pending.is_held = true;
            shared.objects.dirty_queue.hold_oldest(number, hold)
        }
        Some(flushing) if !flushing.newer_is_held => {
            flushing.newer_is_held = true;
            shared.objects.dirty_queue.hold_newer(number, hold)
        }
        _ => return [Some(hold), None],
    };
    if shared.journal.log.as_ref().is_some_and(|log| log.events.condition.state() != JournalState::Ok) {
        // The log is waiting until nothing holds it.
        shared.objects.dirty_queue.expedite(number);
        shared.background.wake();
    }
    released
}

/// Applies a change in the object's exclusive section, or returns what is missing.
pub(super) fn apply(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    asked: &Asked<'_>,
    resources: &mut Resources<'_>,
    mut room: Option<&mut Room>,
) -> Result<Applied, Blocked> {
    let Asked { id, mutation, terms, holds, .. } = *asked;
    let fences = shared.fences_callers();
    if !shared.owns(object) {
        return Err(Blocked::Owner);
    }
    if object.head.known == Known::Unknown || fences && !object.head.is_full {
        return Err(Blocked::Head);
    }
    if fences && let Some(domain) = terms.domain.filter(|it| object.head.domain_asked != Some(*it)) {
        return Err(Blocked::Domain(domain));
    }
    if holds == Holds::Nothing && object.is_changing(&mutation.buckets())
        || holds != Holds::Whole && object.is_forwarding()
    {
        return Err(Blocked::Changing);
    }
    if object.has_other_domain(terms.domain) {
        return Err(Blocked::OtherDomain);
    }
    let is_present = object.head.known == Known::Present;
    let version = is_present.then_some(Version(object.head.version));
    let claimed = shared.store.claims.in_force(id, terms.domain).0.max(object.head.claimed);
    let head = StoreHead { version, stamp: object.head.stamp };
    admit(head, Epoch(claimed), terms).map_err(Blocked::Failed)?;
    if mutation.needs_present() && !is_present {
        return Err(Blocked::Failed(Error::Missing));
    }
    if let LogTerms::Again(_, again) = asked.log {
        if mutation.change.replaces_content() {
            // The store's content is replaced completely.
            object.head.has_unlogged = false;
        } else if object.head.has_unlogged || again.was_present && !is_present {
            object.head.has_unlogged = true;
            shared.store.epochs.note_unlogged();
        }
    }
    let credits = resources.credits;
    // The version and time are taken when the change is certain to be made.
    let moment = |object: &Object| {
        let version = match asked.log {
            // The recovered content is what the version stood for, unless the store has had more
            // changes than the log.
            LogTerms::Again(_, again) if !object.head.has_unlogged => again.version,
            _ => shared.objects.next_version(env.hash),
        };
        (version, if object.asks_for_time() { shared.clock.now() } else { Timestamp(0) })
    };
    let mut made = (0, Timestamp(0));
    let mut logged = Logged::default();
    let is_rewrite = match mutation.change {
        Change::Write { offset, data } if is_present => object.rewrite(env, *offset, data, |object| {
            made = moment(object);
            logged = log_change(shared, object, env, asked, made, room.take())?;
            Ok(())
        })?,
        _ => false,
    };
    if !is_rewrite {
        let mut missing = object.missing_for(env, mutation.change, resources).map_err(Blocked::Failed)?;
        let bucketless = object.bucketless_for(mutation.change);
        missing.credits += bucketless;
        if missing.load.is_some()
            || missing.buckets > resources.reserved.count()
            || missing.credits > resources.credits
        {
            return Err(Blocked::Missing(missing));
        }
        let before = is_present.then_some(object.head.size);
        let sizes = (before.unwrap_or(0), mutation.size_after(before));
        match asked.log {
            // The change was acknowledged by the earlier process.
            LogTerms::Again(..) => shared.control.quotas.note(env.namespace, id, sizes),
            _ => change_size(shared, env.namespace, id, sizes, terms.settles).map_err(Blocked::Failed)?,
        }
        made = moment(object);
        logged = log_change(shared, object, env, asked, made, room)
            .inspect_err(|_| shared.control.quotas.note(env.namespace, id, (sizes.1, sizes.0)))?;
        object.mutate(env, mutation, resources);
        object.hold_bucketless(env, bucketless, resources);
        shared.objects.losses.repaired_by(id, mutation);
    }
    let (version, now) = made;
    object.note_change(now, version, terms.domain);
    object.pending.is_acknowledged |= terms.durability == Durability::Cached;
    let is_pending = enqueue(shared, object, env);
    let released = logged.hold.map_or([None, None], |hold| keep_hold(shared, object, hold));
    if resources.credits < credits && shared.metrics.dirty_room.pressure_has_begun() {
        shared.background.wake();
    }
    shared.metrics.of(env.namespace).count_write(env.hash, rank(terms.durability));
    let reply = ChangeReply::new(Version(version), object.head.size, Durability::Cached);
    let (queue_number, position) = (object.pending.queue_number, logged.position);
    Ok(Applied { reply, queue_number, is_pending, position, released })
}

/// Adds the object to the dirty queue if something waits to be stored, and completes its waiters if
/// nothing does. Returns whether anything is left to store.
fn enqueue(shared: &Shared, object: &mut Object, env: &Env<'_>) -> bool {
    let is_pending = object.has_pending() || object.flushing.is_some();
    if object.has_pending() && object.pending.queue_number == 0 {
        object.pending.queue_number =
            shared.objects.dirty_queue.insert(env.node, env.namespace, object.pending.dirty_since);
        wake_if_due(shared, env.namespace);
    } else if !is_pending {
        object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
    }
    is_pending
}

/// Wakes the background if it must check the object that has just entered the dirty queue.
fn wake_if_due(shared: &Shared, namespace: u16) {
    if shared.is_under_pressure() || shared.objects.dirty_queue.has_one_of(namespace) {
        shared.background.wake();
    }
}

/// Applies a change at once, if its namespace is in write-back mode and all resources are
/// available. `known` is the namespace, if the cache has a log that knows it.
#[inline]
pub(crate) fn apply_at_once(
    shared: &Shared,
    id: &ObjectId,
    hash: u64,
    mutation: Mutation<'_>,
    terms: &ChangeTerms,
    known: Option<&NamespaceLog>,
) -> Option<Result<Applied>> {
    if shared.is_unrecovered(hash) {
        return None;
    }
    if !shared.control.namespaces.has_back() {
        return None;
    }
    let log = LogTerms::new(shared.journal.log.as_ref(), &id.namespace, known);
    try_apply(shared, id, hash, mutation, terms, log)
}

/// Like [`apply_at_once`], for a recovery.
pub(crate) fn apply_again_at_once(
    shared: &Shared,
    id: &ObjectId,
    hash: u64,
    mutation: Mutation<'_>,
    terms: &ChangeTerms,
    again: Again,
) -> Option<Result<()>> {
    let log = LogTerms::Again(shared.journal.log.as_ref()?, again);
    try_apply(shared, id, hash, mutation, terms, log).map(|applied| applied.map(|_| ()))
}

#[inline]
fn try_apply(
    shared: &Shared,
    id: &ObjectId,
    hash: u64,
    mutation: Mutation<'_>,
    terms: &ChangeTerms,
    log: LogTerms<'_>,
) -> Option<Result<Applied>> {
    let mut resources = Resources { reserved: Reserved::none(&shared.memory.pool), credits: 0, loaded: None };
    let asked = Asked { id, mutation, terms, holds: Holds::Nothing, log };
    let mut answer = None;
    let mut namespace = OTHERS;
    for is_last in [false, true] {
        let ahead = |object: &Object, env: &Env<'_>| {
            if let Change::Write { offset, .. } = mutation.change {
                object.prefetch(env, *offset, LINES_WRITTEN);
            }
        };
        let job = |object: &mut Object, env: &Env<'_>| {
            namespace = env.namespace;
            // The mode is read within the section: a change of the mode waits for the end of
            // sections that began before it.
            let mode = || shared.control.namespaces.record(namespace).write_phases.mode();
            if !matches!(log, LogTerms::Again(..)) && mode() != WriteMode::Back {
                return None;
            }
            Some(apply(shared, object, env, &asked, &mut resources, None))
        };
        match shared.enter_at_once(hash, id, ahead, job).flatten() {
            Some(Ok(applied)) => answer = Some(Ok(applied.without_holds())),
            Some(Err(Blocked::Failed(error))) => answer = Some(Err(error)),
            Some(Err(Blocked::Missing(missing)))
                if !is_last
                    && missing.load.is_none()
                    && take_room_at_once(shared, namespace, missing.credits) =>
            {
                resources.credits = missing.credits;
                let taking = || reserve(shared, missing.buckets);
                if let Some(reserved) = shared.memory.pool.waiters().try_take(taking) {
                    resources.reserved = reserved;
                    continue;
                }
            }
            _ => (),
        }
        break;
    }
    shared.metrics.dirty_room.give_back(namespace, resources.credits);
    answer
}

/// Returns whether a change is too large for the cache, and must go to the store at once.
pub(crate) fn is_too_large(shared: &Shared, mutation: Mutation<'_>) -> bool {
    let (quarter, dirty_max) =
        (u64::from(shared.memory.pool.count_min() / 4), shared.metrics.dirty_room.dirty_max());
    u64::from(mutation.buckets_max()) > quarter || mutation.dirty_buckets_max() > dirty_max
}
