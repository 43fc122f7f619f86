//! Applying a change in memory: checking whether it can be made now, logging it, and queueing the
//! object as dirty. Missing resources are returned, and [`super::back`] obtains them.

use blocker::admission::{Head as StoreHead, admit};
use blocker::{
    BUCKET_BYTES, Change, ChangeReply, ChangeTerms, Durability, Epoch, Error, Namespace, ObjectId,
    OrderDomain, Result, Timestamp, Version, WriteMode,
};
use cached_journal::Position;

use crate::object::config::OTHERS;
use crate::object::control::namespaces::rank;
use crate::object::journal::records::Origin;
use crate::object::journal::{ChangeLog, Entry, JournalState, KeptHold, NamespaceLog, Refusal, Room};
use crate::object::memory::pool::Reserved;
use crate::object::mutation::Mutation;
use crate::object::read::list::change_size;
use crate::object::shared::Shared;
use crate::object::shared::resources::reserve;
use crate::object::state::{Env, Known, Missing, Object, Resources, Rewrite};
use crate::object::tasks::deadline::FlushTicket;
use crate::sync::Arc;

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
    /// The store has accepted changes of the namespace that are not in the log, but has not stored
    /// them.
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

/// The log of a change, if the change is logged.
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
            (Some(log), Some(known)) if known.is_journaled => Self::In(log, known),
            (Some(log), None) if log.names.terms(namespace).is_journaled => Self::Unclaimed,
            _ => Self::Nowhere,
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
    /// The ticket of a change that is acknowledged once it is stored. It is added together with the
    /// change: the loss of such a change is not recorded, so that only its ticket tells the caller.
    pub(super) ticket: Option<Arc<FlushTicket>>,
}

/// Logs a change that is certain to be applied, if it is to be logged.
#[inline]
fn log_change(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    asked: &Asked<'_>,
    made: (u64, Timestamp),
    room: Option<&mut Room>,
) -> Result<Entry, Blocked> {
    match asked.log {
        LogTerms::Nowhere => Ok(Entry::Nothing),
        _ => append_change(shared, object, env, asked, made, room),
    }
}

#[inline(never)]
fn append_change(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    asked: &Asked<'_>,
    (version, now): (u64, Timestamp),
    room: Option<&mut Room>,
) -> Result<Entry, Blocked> {
    let (log, namespace) = match asked.log {
        LogTerms::Nowhere => return Ok(Entry::Nothing),
        LogTerms::In(_, namespace) if namespace.forwarded.is_any() => return Err(Blocked::Forwarded),
        LogTerms::In(log, namespace) => (log, namespace),
        LogTerms::Unclaimed => return Err(Blocked::Owner),
        LogTerms::Again(log, again) => {
            let released = || Error::Corrupt("the record's segment has been reused".into());
            let hold = log.journal.hold(again.position).ok_or_else(|| Blocked::Failed(released()))?;
            queue(shared, object, env, now);
            return Ok(Entry::Record(again.position, log.keep(hold)));
        }
    };
    if !asked.mutation.is_touch() {
        // The object is queued before the append: so a task that stores everything in the log up to
        // now finds it.
        queue(shared, object, env, now);
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
        Ok(entry) => {
            if let Entry::Record(position, _) = &entry {
                object.pending.logged_to = position.0;
            }
            Ok(entry)
        }
        Err(Refusal::Wait) => Err(Blocked::Log),
        Err(Refusal::Failed(error)) => Err(Blocked::Failed(error)),
    }
}

/// Holds the log from the record of a change on, unless the object already does so. Returns the
/// hold that is not needed.
fn keep_hold(shared: &Shared, object: &mut Object, hold: KeptHold) -> Option<KeptHold> {
    let number = object.pending.queue_number;
    if number == 0 {
        // Nothing is left to store.
        return Some(hold);
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
        _ => return Some(hold),
    };
    if shared.journal.log.as_ref().is_some_and(|log| log.events.condition.state() != JournalState::Ok) {
        // The log waits until no change holds its records.
        shared.objects.dirty_queue.expedite(number);
        shared.background.wake();
    }
    released
}

/// Applies a change in the object's exclusive section, or returns the reason why it cannot be
/// applied now. A hold that is not needed is returned too: the caller drops it outside the section,
/// before any wait.
pub(super) fn apply(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    asked: &Asked<'_>,
    resources: &mut Resources<'_>,
    mut room: Option<&mut Room>,
) -> Result<(Applied, Option<KeptHold>), Blocked> {
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
    let ranges = object.ranges();
    if !ranges.is_idle()
        && (holds == Holds::Nothing && ranges.is_changing(&mutation.buckets())
            || holds != Holds::Whole && ranges.is_forwarding())
    {
        return Err(Blocked::Changing);
    }
    if object.has_other_domain(terms.domain) {
        return Err(Blocked::OtherDomain);
    }
    let is_present = object.head.known == Known::Present;
    let claimed = shared.store.claims.in_force(id, terms.domain).0.max(object.head.claimed);
    let head = StoreHead { version: object.head.shown_version(), stamp: object.head.stamp };
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
    let mut logged = Entry::Nothing;
    let rewrite = match mutation.change {
        Change::Write { offset, data } if is_present => {
            object.rewrite(env, *offset, data, resources, |object| {
                made = moment(object);
                logged = log_change(shared, object, env, asked, made, room.take())?;
                Ok(())
            })?
        }
        _ => Rewrite::No,
    };
    if rewrite == Rewrite::No {
        let mut missing = object.missing_for(env, mutation, resources.loaded).map_err(Blocked::Failed)?;
        let bucketless = object.bucketless_for(mutation);
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
        shared.objects.losses.repaired_by(id, mutation.replaces_content());
    }
    let (version, now) = made;
    object.note_change(now, version, terms.domain);
    let is_logged = matches!(logged, Entry::Record(..));
    let is_acknowledged =
        terms.durability == Durability::Cached || terms.durability == Durability::Journaled && is_logged;
    object.pending.is_acknowledged |= is_acknowledged;
    let is_pending = enqueue(shared, object, env);
    let ticket = (is_pending && !is_acknowledged).then(Arc::<FlushTicket>::default);
    if let Some(ticket) = &ticket {
        object.wait_until_stored(Arc::clone(ticket));
    }
    let (position, released) = match logged {
        Entry::Record(position, hold) => (Some(position), keep_hold(shared, object, hold)),
        Entry::Nothing | Entry::Unlogged { .. } => (None, None),
    };
    let has_used_room = rewrite == Rewrite::OfClean || resources.credits < credits;
    if has_used_room && shared.metrics.dirty_room.pressure_has_begun() {
        shared.background.wake();
    }
    shared.metrics.of(env.namespace).count_write(rank(terms.durability));
    let reply = ChangeReply::new(Version(version), object.head.size, Durability::Cached);
    let queue_number = object.pending.queue_number;
    Ok((Applied { reply, queue_number, is_pending, position, ticket }, released))
}

/// Adds the object to the dirty queue if something waits to be stored, and completes its waiters if
/// nothing does. Returns whether anything is left to store.
#[inline]
fn enqueue(shared: &Shared, object: &mut Object, env: &Env<'_>) -> bool {
    let is_pending = object.has_pending() || object.flushing.is_some();
    if object.has_pending() {
        let since = object.pending.dirty_since;
        queue(shared, object, env, since);
    } else if !is_pending {
        object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
    }
    is_pending
}

/// Adds the object to the dirty queue, unless it is there already.
#[inline]
fn queue(shared: &Shared, object: &mut Object, env: &Env<'_>, since: Timestamp) {
    if object.pending.queue_number == 0 {
        insert(shared, object, env, since);
    }
}

#[inline(never)]
fn insert(shared: &Shared, object: &mut Object, env: &Env<'_>, since: Timestamp) {
    let dirty_queue = &shared.objects.dirty_queue;
    object.pending.queue_number = dirty_queue.insert(env.node, env.namespace, since);
    // If other objects of the namespace wait, the background already waits until they are due.
    let is_under_pressure = shared.metrics.dirty_room.is_any_pressed() || shared.is_memory_short();
    if is_under_pressure || dirty_queue.has_one_of(env.namespace) {
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
            if let Change::Write { offset, data } = mutation.change {
                object.prefetch(env, *offset, data.len_bytes());
            }
        };
        let mut released = None;
        let job = |object: &mut Object, env: &Env<'_>| {
            namespace = env.namespace;
            // The mode is read within the section: a change of the mode waits for the end of
            // sections that began before it.
            let mode = || shared.control.namespaces.record(namespace).write_phases.mode();
            if !matches!(log, LogTerms::Again(..)) && mode() != WriteMode::Back {
                return None;
            }
            match apply(shared, object, env, &asked, &mut resources, None) {
                Ok((applied, hold)) => (answer, released) = (Some(Ok(applied)), hold),
                Err(Blocked::Failed(error)) => answer = Some(Err(error)),
                Err(Blocked::Missing(missing)) => return Some(missing),
                Err(_) => (),
            }
            None
        };
        let missing = shared.enter_at_once(hash, id, ahead, job).flatten();
        drop(released);
        match missing {
            Some(missing)
                if !is_last
                    && missing.load.is_none()
                    && shared.metrics.dirty_room.take_at_once(namespace, missing.credits) =>
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
#[inline]
pub(crate) fn is_too_large(shared: &Shared, mutation: Mutation<'_>) -> bool {
    let (quarter, dirty_max) =
        (u64::from(shared.memory.pool.count_min() / 4), shared.metrics.dirty_room.dirty_max());
    if let Change::Write { data, .. } = mutation.change
        && data.len_bytes() as u64 / BUCKET_BYTES + 2 <= quarter.min(dirty_max)
    {
        // Far from too large, wherever it begins.
        return false;
    }
    u64::from(mutation.buckets_max()) > quarter || mutation.dirty_buckets_max() > dirty_max
}
