//! Write-back: a change is applied in memory and acknowledged as *cached*, or, if the caller asks for
//! *stored*, once it has been flushed.
//!
//! A change obtains what it needs in this order: what the object is, then room for dirty data, then buckets,
//! then (only if the store must be asked, or has a change of its own under way) the range. So no change holds
//! a range or a bucket while it waits for what the holder of another one needs.

use blocker::admission::{Head as StoreHead, admit};
use blocker::{
    Call, Change, ChangeReply, Durability, Epoch, Error, Namespace, ObjectId, OrderDomain, Result, Scope,
    Timestamp, Version, WriteMode,
};
use cached_journal::Position;

use super::modes::TakenMode;
use crate::object::control::namespaces::rank;
use crate::object::journal::records::{Origin, payload_bytes};
use crate::object::journal::{
    ChangeLog, Entry, JournalState, KeptHold, NamespaceLog, Refusal, Room, Unlogged,
};
use crate::object::memory::geometry::WHOLE;
use crate::object::memory::pool::Reserved;
use crate::object::mutation::Mutation;
use crate::object::namespace_numbers::OTHERS;
use crate::object::read::forward::with_durability;
use crate::object::read::load::{load, load_head};
use crate::object::read::quota_count::change_size;
use crate::object::read::{LOADS_MAX, changes_too_fast};
use crate::object::shared::Shared;
use crate::object::shared::claim::{ask_epoch, own_epoch};
use crate::object::shared::evict::reserve;
use crate::object::shared::handle::{Handle, RangeGuard};
use crate::object::shared::log_waits;
use crate::object::shared::owned_resources::{OwnedResources, take_room_at_once};
use crate::object::shared::store_pending::{expedite, store_pending};
use crate::object::state::dirty_queue::Released;
use crate::object::state::ranges::Kind;
use crate::object::state::{Env, Keep, Known, LINES_WRITTEN, Missing, Object, Resources};
use crate::object::tasks::deadline::{until, until_given_up};
use crate::object::tasks::flush_ticket::{FlushTicket, Stored};
use crate::sync::{Arc, AtomicU32, Ordering};

/// Why a change was not applied.
enum Blocked {
    /// It never will be.
    Failed(Error),
    /// The store must be asked what the object is.
    Head,
    /// The store must be asked for the epoch of the order domain.
    Domain(OrderDomain),
    /// The namespace's epoch must be claimed, or looked up.
    Owner,
    /// Changes of another order domain must be stored first: one flush is sent under one domain's epoch.
    OtherDomain,
    /// A change is on its way to the store: of the same range, or, if the write mode of the namespace has
    /// just been changed, of another range of the object.
    Changing,
    /// Buckets, room or bytes of the store are missing.
    Missing(Missing),
    /// The store has changes of the namespace that it has taken past the log, and not stored.
    Forwarded,
    /// Room in the log is missing, or changes must wait until the log is in order.
    Log,
}

/// The part of the object that the maker of a change holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Nothing,
    /// The range of the change.
    Range,
    Whole,
}

/// A change to be applied.
#[derive(Clone, Copy)]
struct ChangeRequest<'a> {
    id: &'a ObjectId,
    mutation: &'a Mutation,
    change: &'a Change,
    holds: Holds,
    /// The object's namespace, if its changes are logged.
    log: LogTerms<'a>,
}

/// Where a change is logged.
#[derive(Clone, Copy)]
pub(crate) enum LogTerms<'a> {
    Nowhere,
    In(&'a ChangeLog, &'a NamespaceLog),
    /// Changes of the namespace are logged, but it had not been claimed when it was looked up.
    Unclaimed,
    /// A recovery makes the change once more: it is in the log.
    Again(&'a ChangeLog, Again),
}

/// A change that a recovery makes once more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// The version that it gave to the object.
    pub(crate) version: u64,
    /// The position of its record, of the first one if it has several.
    pub(crate) position: Position,
    /// Whether the object was there before it.
    pub(crate) was_present: bool,
}

impl<'a> LogTerms<'a> {
    fn new(log: Option<&'a ChangeLog>, namespace: &Namespace, known: Option<&'a NamespaceLog>) -> Self {
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
    queue_number: u64,
    /// Whether anything is left to store.
    is_pending: bool,
    /// Where the log has it.
    position: Option<Position>,
    /// Holds that are not needed, to be dropped outside of the exclusive section, and before any wait.
    released: Released,
}

impl Applied {
    fn without_holds(mut self) -> Self {
        self.released = [None, None];
        self
    }
}

/// What the log has of a change, until the change has been applied.
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
    request: &ChangeRequest<'_>,
    (version, now): (u64, Timestamp),
    room: Option<&mut Room>,
) -> Result<Logged, Blocked> {
    let (log, namespace) = match request.log {
        LogTerms::Nowhere => return Ok(Logged::default()),
        LogTerms::In(_, namespace) if namespace.has_forwarded() => return Err(Blocked::Forwarded),
        LogTerms::In(log, namespace) => (log, namespace),
        LogTerms::Unclaimed => return Err(Blocked::Owner),
        LogTerms::Again(log, again) => {
            let released = || Error::Corrupt("the record's segment is in use again".into());
            let hold = log.journal().hold(again.position).ok_or_else(|| Blocked::Failed(released()))?;
            if object.pending.queue_number == 0 {
                object.pending.queue_number = shared.dirty_queue.insert(env.node, env.namespace, now);
                wake_if_due(shared, env.namespace);
            }
            let (position, hold) = (Some(again.position), Some(log.keep(hold)));
            return Ok(Logged { position, hold, _unlogged: None });
        }
    };
    if object.pending.queue_number == 0 && !matches!(request.mutation, Mutation::Touch) {
        // Before the append: whatever is to store all that the log has up to now finds the object.
        object.pending.queue_number = shared.dirty_queue.insert(env.node, env.namespace, now);
        wake_if_due(shared, env.namespace);
    }
    let ChangeRequest { id, change, .. } = *request;
    let epoch = namespace.epoch();
    let origin = Origin {
        namespace: namespace.number,
        id,
        domain: change.domain,
        version,
        epoch,
        was_present: object.head.known == Known::Present,
    };
    match log.append(namespace, &origin, request.mutation, room) {
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

/// Keeps the log from the record of a change on, unless the object does so already. Returns the holds that
/// are not needed.
fn keep_hold(shared: &Shared, object: &mut Object, hold: KeptHold) -> Released {
    let number = object.pending.queue_number;
    if number == 0 {
        // Nothing is left to store.
        return [Some(hold), None];
    }
    let released = match &mut object.flushing {
        None if !object.pending.is_held => {
            object.pending.is_held = true;
            shared.dirty_queue.hold_oldest(number, hold)
        }
        Some(flushing) if !flushing.newer_is_held => {
            flushing.newer_is_held = true;
            shared.dirty_queue.hold_newer(number, hold)
        }
        _ => return [Some(hold), None],
    };
    if shared.log.as_ref().is_some_and(|log| log.events.condition.state() != JournalState::Ok) {
        // The log waits until nothing is held.
        shared.dirty_queue.expedite(number);
        shared.background.wake();
    }
    released
}

/// Applies a change in the object's exclusive section, or returns what it lacks.
fn apply(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    request: &ChangeRequest<'_>,
    resources: &mut Resources<'_>,
    mut room: Option<&mut Room>,
) -> Result<Applied, Blocked> {
    let ChangeRequest { id, mutation, change, holds, .. } = *request;
    let fences = shared.fences_callers();
    if !shared.owns(object) {
        return Err(Blocked::Owner);
    }
    if object.head.known == Known::Unknown || fences && !object.head.is_full {
        return Err(Blocked::Head);
    }
    if fences && let Some(domain) = change.domain.filter(|it| object.head.domain_asked != Some(*it)) {
        return Err(Blocked::Domain(domain));
    }
    if holds == Holds::Nothing && object.is_changing(&mutation.buckets())
        || holds != Holds::Whole && object.is_forwarding()
    {
        return Err(Blocked::Changing);
    }
    if object.has_other_domain(change.domain) {
        return Err(Blocked::OtherDomain);
    }
    let is_present = object.head.known == Known::Present;
    let version = is_present.then_some(Version(object.head.version));
    let claimed = shared.claims.in_force(id, change.domain).0.max(object.head.claimed);
    let head = StoreHead { version, stamp: object.head.stamp };
    admit(head, Epoch(claimed), change).map_err(Blocked::Failed)?;
    if mutation.needs_present() && !is_present {
        return Err(Blocked::Failed(Error::Missing));
    }
    if let LogTerms::Again(_, again) = request.log {
        if matches!(mutation, Mutation::WriteFull { .. } | Mutation::Delete) {
            // Whatever the store had is gone.
            object.head.has_unlogged = false;
        } else if object.head.has_unlogged || again.was_present && !is_present {
            object.head.has_unlogged = true;
            shared.epochs.note_unlogged();
        }
    }
    let credits = resources.credits;
    // Drawn when the change is certain to be made.
    let moment = |object: &Object| {
        let version = match request.log {
            // What came back is what the version stood for, unless the store has had more than the log.
            LogTerms::Again(_, again) if !object.head.has_unlogged => again.version,
            _ => shared.next_version(env.hash),
        };
        (version, if object.asks_for_time() { shared.clock.now() } else { Timestamp(0) })
    };
    let mut made = (0, Timestamp(0));
    let mut logged = Logged::default();
    let is_rewrite = match mutation {
        Mutation::Write { offset, data } if is_present => object.rewrite(env, *offset, data, |object| {
            made = moment(object);
            logged = log_change(shared, object, env, request, made, room.take())?;
            Ok(())
        })?,
        _ => false,
    };
    if !is_rewrite {
        let mut missing = object.missing_for(env, mutation, resources).map_err(Blocked::Failed)?;
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
        match request.log {
            // It has been acknowledged.
            LogTerms::Again(..) => shared.quotas.note(env.namespace, id, sizes),
            _ => change_size(shared, env.namespace, id, sizes, change.settles).map_err(Blocked::Failed)?,
        }
        made = moment(object);
        logged = log_change(shared, object, env, request, made, room)
            .inspect_err(|_| shared.quotas.note(env.namespace, id, (sizes.1, sizes.0)))?;
        object.mutate(env, mutation, resources);
        object.hold_bucketless(env, bucketless, resources);
        shared.losses.repaired_by(id, mutation);
    }
    let (version, now) = made;
    object.note_change(now, version, change.domain);
    object.pending.is_acknowledged |= change.durability == Durability::Cached;
    let is_pending = enqueue(shared, object, env);
    let released = logged.hold.map_or([None, None], |hold| keep_hold(shared, object, hold));
    if resources.credits < credits && shared.metrics.dirty_room.pressure_has_begun() {
        shared.background.wake();
    }
    shared.metrics.count_write(env.namespace, env.hash, rank(change.durability));
    let reply = ChangeReply::new(Version(version), object.head.size, Durability::Cached);
    let (queue_number, position) = (object.pending.queue_number, logged.position);
    Ok(Applied { reply, queue_number, is_pending, position, released })
}

/// Puts the object into the dirty queue if something waits to be stored, and completes its waiters if nothing
/// does. Returns whether anything is left to store.
fn enqueue(shared: &Shared, object: &mut Object, env: &Env<'_>) -> bool {
    let is_pending = object.has_pending() || object.flushing.is_some();
    if object.has_pending() && object.pending.queue_number == 0 {
        object.pending.queue_number =
            shared.dirty_queue.insert(env.node, env.namespace, object.pending.dirty_since);
        wake_if_due(shared, env.namespace);
    } else if !is_pending {
        object.take_stored_waiters().into_iter().for_each(|(ticket, result)| ticket.complete(result));
    }
    is_pending
}

/// Wakes the background if it must look at what has just come into the dirty queue.
fn wake_if_due(shared: &Shared, namespace: u16) {
    if shared.is_under_pressure() || shared.dirty_queue.has_one_of(namespace) {
        shared.background.wake();
    }
}

/// Applies a change at once, if its namespace is written back and everything it needs is at hand. `known` is its namespace, if the cache has a
/// log that knows it.
#[inline]
pub(crate) fn apply_at_once(
    shared: &Shared,
    id: &ObjectId,
    hash: u64,
    mutation: &Mutation,
    change: &Change,
    known: Option<&NamespaceLog>,
) -> Option<Result<Applied>> {
    if shared.is_unrecovered(hash) {
        return None;
    }
    if !shared.namespaces.has_back() {
        return None;
    }
    let log = LogTerms::new(shared.log.as_ref(), &id.namespace, known);
    try_apply(shared, id, hash, mutation, change, log)
}

/// As [`apply_at_once`], for a recovery.
pub(crate) fn apply_again_at_once(
    shared: &Shared,
    id: &ObjectId,
    hash: u64,
    mutation: &Mutation,
    change: &Change,
    again: Again,
) -> Option<Result<()>> {
    let log = LogTerms::Again(shared.log.as_ref()?, again);
    try_apply(shared, id, hash, mutation, change, log).map(|applied| applied.map(|_| ()))
}

#[inline]
fn try_apply(
    shared: &Shared,
    id: &ObjectId,
    hash: u64,
    mutation: &Mutation,
    change: &Change,
    log: LogTerms<'_>,
) -> Option<Result<Applied>> {
    let mut resources = Resources { reserved: Reserved::none(&shared.pool), credits: 0, loaded: None };
    let request = ChangeRequest { id, mutation, change, holds: Holds::Nothing, log };
    let mut answer = None;
    let mut namespace = OTHERS;
    for is_last in [false, true] {
        let ahead = |object: &Object, env: &Env<'_>| {
            if let Mutation::Write { offset, .. } = mutation {
                object.prefetch(env, *offset, LINES_WRITTEN);
            }
        };
        let job = |object: &mut Object, env: &Env<'_>| {
            namespace = env.namespace;
            // Within the section: a change of the mode waits for the end of those that began before.
            let mode = || shared.namespaces.record(namespace).write_phases.mode();
            if !matches!(log, LogTerms::Again(..)) && mode() != WriteMode::Back {
                return None;
            }
            Some(apply(shared, object, env, &request, &mut resources, None))
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
                if let Some(reserved) = shared.pool.waiters().try_take(taking) {
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

/// Whether a change is still to be made: it is made in the object's exclusive section, perhaps on another
/// thread, while its caller watches the clock. Exactly one of the two decides.
#[derive(Default)]
struct Decision(AtomicU32);

impl Decision {
    const OPEN: u32 = 0;
    const GIVEN_UP: u32 = 1;
    const MADE: u32 = 2;

    fn decide(&self, to: u32) -> bool {
        self.0.compare_exchange(Self::OPEN, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Gives the change up; returns false if it is being made, or found to be impossible yet, at this moment.
    fn give_up(&self) -> bool {
        self.decide(Self::GIVEN_UP)
    }

    /// Makes the change, unless it was given up.
    fn make<T>(&self, make: impl FnOnce() -> Result<T, Blocked>) -> Result<T, Blocked> {
        if !self.decide(Self::MADE) {
            return Err(Blocked::Failed(Error::DeadlinePassed));
        }
        let made = make();
        if made.is_err() {
            self.0.store(Self::OPEN, Ordering::SeqCst);
        }
        made
    }
}

/// Makes a change that could not be applied at once, or that is to be stored. Its mode is taken until it has
/// been acknowledged.
pub(crate) async fn change(
    shared: Arc<Shared>,
    id: ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
    _taken: TakenMode,
) -> Result<ChangeReply> {
    let deadline = call.deadline;
    let decision = Arc::new(Decision::default());
    let own = Arc::clone(&decision);
    let work = async {
        let handle = Handle::acquire(&shared, &id, hash).await?;
        let applied = apply_when_possible(&handle, mutation, change, call, own, None).await?;
        Ok((handle, applied))
    };
    let give_up = || decision.give_up();
    let late = || Error::DeadlinePassed;
    let (handle, applied) = until_given_up(&*shared.clock, deadline, give_up, late, work).await?;
    acknowledge(shared, Some(handle), applied, change.durability, deadline).await
}

/// As [`acknowledge`], of a change that was applied at once.
pub(crate) async fn acknowledge_at_once(
    shared: Arc<Shared>,
    id: ObjectId,
    hash: u64,
    applied: Applied,
    asked: Durability,
    deadline: Option<Timestamp>,
) -> Result<ChangeReply> {
    // Without a node it is stored.
    let handle = shared.find(hash, &id).map(|in_use| Handle::of(&shared, in_use));
    acknowledge(shared, handle, applied, asked, deadline).await
}

/// Waits until an applied change is as durable as asked.
async fn acknowledge(
    shared: Arc<Shared>,
    handle: Option<Handle>,
    applied: Applied,
    asked: Durability,
    deadline: Option<Timestamp>,
) -> Result<ChangeReply> {
    let Applied { reply, queue_number, is_pending, position, .. } = applied;
    if asked == Durability::Cached {
        return Ok(with_durability(reply, Durability::Cached));
    }
    let mut must_store = is_pending;
    if let Some(position) = position
        && (asked == Durability::Journaled || !is_pending)
    {
        // Also where nothing is left to store: older records of the object could be replayed without it.
        if log_waits::durable(&shared, position, deadline).await? {
            return Ok(with_durability(reply, asked));
        }
        must_store = true;
    }
    let Some(handle) = handle else { return Ok(with_durability(reply, Durability::Stored)) };
    let ticket = Arc::new(FlushTicket::default());
    let late = || Error::NotStored(ticket.why());
    let stored = async {
        if must_store {
            expedite(&handle, &ticket, queue_number).await?;
            Stored(Arc::clone(&ticket)).await?;
        }
        log_waits::not_draining(&shared, &handle.id().namespace).await
    };
    until(&*shared.clock, deadline, late, stored).await?;
    if must_store {
        shared.losses.check(&Scope::Object(handle.id().clone()))?;
    }
    let durability = if must_store { Durability::Stored } else { asked };
    Ok(with_durability(reply, durability))
}

/// Makes a change once more that a recovery has found.
///
/// # Errors
/// As the change's own; `Missing` if there is nothing that it could change.
pub(crate) async fn change_again(
    shared: &Arc<Shared>,
    id: &ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    again: Again,
) -> Result<()> {
    let handle = Handle::acquire_unrecovered(shared, id, hash).await?;
    let decision = Arc::default();
    apply_when_possible(&handle, mutation, change, Call::default(), decision, Some(again)).await?;
    Ok(())
}

/// Applies a change, once it has what it needs. A recovery makes it `again`.
async fn apply_when_possible(
    handle: &Handle,
    mutation: Mutation,
    change: Change,
    call: Call,
    decision: Arc<Decision>,
    again: Option<Again>,
) -> Result<Applied> {
    let (shared, id) = (&handle.shared, handle.id());
    let mutation = Arc::new(mutation);
    let most = mutation.buckets_max();
    let mut resources = None;
    let mut guard: Option<(RangeGuard, Holds)> = None;
    let mut loaded = None;
    let mut loads = 0;
    // Room in the log. Nothing is waited for while it is held.
    let mut room: Option<Room> = None;
    loop {
        let mut own_room = room.take();
        let known = shared.log.as_ref().and_then(|log| log.names.get(&id.namespace));
        let mut lent = resources.take().unwrap_or_else(|| OwnedResources::none(shared));
        let (own, mutated, bytes, decision) =
            (handle.clone(), Arc::clone(&mutation), loaded.take(), Arc::clone(&decision));
        let ticket = guard.as_ref().map(|(guard, _)| guard.ticket());
        let holds = guard.as_ref().map_or(Holds::Nothing, |(_, holds)| *holds);
        let (applied, back, bytes) = handle
            .enter(move |object, env| {
                let is_void = ticket.is_some_and(|ticket| object.take_stale(ticket));
                let bytes = bytes.filter(|_| !is_void);
                let applied = lent.with(bytes.as_ref(), |resources| {
                    let log = match (again, own.shared.log.as_ref()) {
                        (Some(again), Some(log)) => LogTerms::Again(log, again),
                        (_, log) => LogTerms::new(log, &own.id().namespace, known.as_deref()),
                    };
                    let request =
                        ChangeRequest { id: own.id(), mutation: &mutated, change: &change, holds, log };
                    decision.make(|| apply(&own.shared, object, env, &request, resources, own_room.as_mut()))
                });
                (applied, lent, bytes)
            })
            .await;
        match applied {
            Ok(applied) => return Ok(applied.without_holds()),
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Log) => {
                (resources, loaded) = (Some(back), bytes);
                room = log_waits::room(shared, payload_bytes(&mutation)).await?;
            }
            Err(Blocked::Head) => {
                (guard, resources) = (None, Some(back));
                load_head(handle, call).await?;
            }
            Err(Blocked::Owner) => {
                drop(back);
                (guard, resources) = (None, None);
                let generation = shared.epochs.generation();
                own_epoch(shared, &id.namespace).await?;
                handle.enter(move |object, _| object.head.owned = generation).await;
            }
            Err(Blocked::Forwarded) => {
                drop(back);
                (guard, resources) = (None, None);
                log_waits::store_forwarded(shared, &id.namespace).await?;
            }
            Err(Blocked::Domain(domain)) => {
                let scope = Scope::Domain(id.namespace.clone(), domain);
                let epoch = ask_epoch(shared, scope.clone()).await?;
                shared.claims.note(&scope, epoch);
                handle.enter(move |object, _| object.head.domain_asked = Some(domain)).await;
                resources = Some(back);
            }
            Err(Blocked::OtherDomain) => {
                (guard, resources) = (None, Some(back));
                match store_pending(handle).await {
                    // What was lost is recorded, and nothing of it is left.
                    Ok(()) | Err(Error::WritesLost(_)) => (),
                    Err(error) => return Err(error),
                }
            }
            Err(Blocked::Changing) => {
                resources = Some(back);
                // The range is not enough if it is held already.
                let (range, holds) = match guard.take() {
                    None => (mutation.buckets(), Holds::Range),
                    Some(_) => (WHOLE, Holds::Whole),
                };
                guard = Some((handle.lock_range(range, Kind::Change).await?, holds));
            }
            // Before the store is asked: what it gives is good only as long as the range is held.
            Err(Blocked::Missing(missing)) if back.lacks(&missing) => {
                drop(back);
                guard = None;
                let (buckets, credits) = (most.max(missing.buckets), most.max(missing.credits));
                let namespace = shared.index.namespace_of(handle.at());
                resources = Some(OwnedResources::acquire(shared, namespace, buckets, credits).await?);
            }
            Err(Blocked::Missing(missing)) => {
                resources = Some(back);
                let Some((guard, _)) = &guard else {
                    let held = handle.lock_range(mutation.buckets(), Kind::Change).await?;
                    guard = Some((held, Holds::Range));
                    continue;
                };
                loads += 1;
                if loads > LOADS_MAX {
                    return Err(changes_too_fast());
                }
                // The range is held, so the bytes stay true until they are used, or are void; so do the
                // earlier ones.
                let (range, earlier) = (missing.load.unwrap_or_default(), bytes.unwrap_or_default());
                loaded = load(handle, guard, range, call, Keep::Nothing, earlier).await?;
            }
        }
    }
}

/// Whether a change is too large for the cache, and must go to the store at once.
pub(crate) fn is_too_large(shared: &Shared, mutation: &Mutation) -> bool {
    let (quarter, dirty_max) =
        (u64::from(shared.pool.count_min() / 4), shared.metrics.dirty_room.dirty_max());
    u64::from(mutation.buckets_max()) > quarter || mutation.dirty_buckets_max() > dirty_max
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use blocker::clock::Sleep;
    use blocker::executor::block_on;
    use blocker::{Clock, Memory, Name, Namespace, WriteMode};

    use super::*;
    use crate::object::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};
    use crate::object::{ObjectCache, read};

    /// A clock whose timers fire when they are first polled, and call a function just before.
    #[derive(Default)]
    struct FiringClock(Arc<Mutex<Option<Before>>>);

    /// Called just before a timer fires.
    type Before = Box<dyn FnOnce() + Send>;

    struct Timer(Arc<Mutex<Option<Before>>>);

    impl Future for Timer {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            let first = self.0.lock().unwrap().take();
            first.into_iter().for_each(|first| first());
            Poll::Ready(())
        }
    }

    impl Clock for FiringClock {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }
        fn sleep_until(&self, _: Timestamp) -> Sleep {
            Box::pin(Timer(Arc::clone(&self.0)))
        }
    }

    /// If the exclusive section begins between the poll of the change and the poll of the timer, the change
    /// is made, and its caller learns that. If the section begins later, nothing is changed.
    #[test]
    fn at_its_deadline_a_change_is_made_or_given_up_and_not_both() {
        for section_comes_first in [true, false] {
            let clock = Arc::new(FiringClock::default());
            let config = ObjectCacheConfig {
                memory_bytes_max: MEMORY_BYTES_MIN,
                dirty_bytes_max: MEMORY_BYTES_MIN / 2,
                write: WriteMode::Back,
                hash_seed: Some(1),
                ..ObjectCacheConfig::default()
            };
            let (cache, _background) =
                ObjectCache::new(Arc::new(Memory::default()), config, Arc::clone(&clock) as _).unwrap();
            let id = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
            let write = |byte: u8| blocker::WriteRequest::new(id.clone(), 0, vec![byte; 4096]);
            block_on(blocker::Blocker::write(&cache, write(1))).unwrap();
            let shared = Arc::clone(cache.shared());
            let hash = shared.hash(&id);
            // Another thread is inside, and stays there until it is released.
            let handle = block_on(Handle::acquire(&shared, &id, hash)).unwrap();
            let (entered, inside) = std::sync::mpsc::channel();
            let (release, wait) = std::sync::mpsc::channel::<()>();
            let other = handle.clone();
            let thread = std::thread::spawn(move || {
                block_on(other.enter(move |_, _| {
                    entered.send(()).unwrap();
                    wait.recv().unwrap();
                }));
            });
            inside.recv().unwrap();
            let end = move || {
                release.send(()).unwrap();
                thread.join().unwrap();
            };
            let mut end = Some(end);
            if section_comes_first {
                *clock.0.lock().unwrap() = Some(Box::new(end.take().unwrap()));
            }
            let late = blocker::Blocker::write(&cache, write(2).deadline(Timestamp(1)));
            let mut late = Box::pin(std::future::IntoFuture::into_future(late));
            let mut cx = Context::from_waker(Waker::noop());
            let mut answer = late.as_mut().poll(&mut cx);
            if answer.is_pending() {
                answer = late.as_mut().poll(&mut cx);
            }
            let Poll::Ready(answer) = answer else { panic!("an answer at the deadline") };
            drop(late);
            end.into_iter().for_each(|end| end());
            let request = Arc::new(blocker::ReadRequest::new(id.clone(), 0, 1));
            let found = block_on(read::read(Arc::clone(&shared), (*request).clone(), hash)).unwrap();
            let is_made = found.data.to_vec() == [2];
            assert_eq!(is_made, section_comes_first);
            match is_made {
                true => assert!(answer.is_ok(), "{answer:?}"),
                false => assert_eq!(answer.unwrap_err(), Error::DeadlinePassed),
            }
        }
    }
}
