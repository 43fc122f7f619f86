//! Changing the store first: forwarded as it came, then taken over into the cache (*write-through*), or
//! forgotten there (*write-around*).
//!
//! The range is spoken for from before the store is asked until the cache knows the answer, so a load
//! cannot bring back what was there before, and two changes of one range reach store and cache in the
//! same order; changes of other ranges go on beside it. Once the store has been asked, the work goes on
//! to its end even if nobody waits for it any more.

use blocker::admission::check_condition;
use blocker::{
    Call, Change, ChangeReply, CompareAndWriteRequest, Condition, CopyRequest, DeleteRequest, DiscardRequest,
    Durability, Error, InfoRequest, ObjectId, Result, RunContent, Stamp, TruncateRequest, Version,
    WriteFullRequest, WriteMode, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};

use super::back::{Mutation, run_buckets_max, safe_as};
use super::config::Writer;
use super::gauges::add;
use super::handle::{Handle, OwnedMeans, RangeGuard, shielded};
use super::pool::Reserved;
use super::ranges::{Kind, Ticket, WHOLE};
use super::shared::Shared;
use super::state::{Env, Known, Object};
use super::waiter::{FlushTicket, Stored};
use crate::sync::{Arc, AtomicU32, Ordering};

/// A change by way of the store.
pub(crate) async fn change(
    shared: Arc<Shared>,
    id: ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
) -> Result<ChangeReply> {
    let begun = Arc::new(AtomicU32::new(0));
    let own = Arc::clone(&begun);
    let late = move || match own.load(Ordering::Acquire) {
        0 => Error::DeadlinePassed,
        _ => Error::OutcomeUnknown("the deadline passed while the store was at work".into()),
    };
    let work = forward(&shared, &id, hash, mutation, change, call, begun);
    shared.until(call.deadline, late, work).await
}

async fn forward(
    shared: &Arc<Shared>,
    id: &ObjectId,
    hash: u64,
    mutation: Mutation,
    mut change: Change,
    call: Call,
    begun: Arc<AtomicU32>,
) -> Result<ChangeReply> {
    let handle = Handle::acquire(shared, id, hash).await?;
    let policy = shared.write_policy(&id.namespace);
    let needs_version = matches!(change.condition, Condition::Version(_));
    let is_whole = policy == WriteMode::Back || needs_version;
    let buckets = if is_whole { WHOLE } else { mutation.buckets() };
    let kind = match shared.config.writer {
        Writer::Callers => Kind::Change,
        Writer::Cache => Kind::Stamped,
    };
    let mut guard = handle.lock_range(buckets, kind).await?;
    if handle.enter(|object, _| object.has_pending() || object.flushing.is_some()).await {
        if !is_whole {
            drop(guard);
            guard = handle.lock_range(WHOLE, kind).await?;
        }
        store_pending(&handle).await?;
    }
    if needs_version {
        change.condition = store_condition(&handle, change.condition, call).await?;
    }
    let own_stamp = shared.own_stamp(&id.namespace).await?;
    if call.deadline.is_some_and(|deadline| shared.clock.now() >= deadline) {
        return Err(Error::DeadlinePassed);
    }
    begun.store(1, Ordering::Release);
    let asked = change.durability;
    let work = {
        let shared = Arc::clone(shared);
        async move { send(&shared, &handle, guard, mutation, change, own_stamp, call).await }
    };
    let reply = shielded(shared, work).await?;
    let durability = reply.durability.max(asked);
    Ok(safe_as(reply, durability))
}

/// What to ask of the store. Where the cache keeps what it has acknowledged until it is stored, it keeps no
/// copy of what it forwards: so that must be stored, or a crash of the store would lose it.
pub(crate) fn forwarded_durability(policy: WriteMode, asked: Durability) -> Durability {
    if policy == WriteMode::Back { Durability::Stored } else { asked }
}

/// Waits until all of an object that waits to be stored is; its range is spoken for, so no more comes.
pub(crate) async fn store_pending(handle: &Handle) -> Result<()> {
    let ticket = Arc::new(FlushTicket::default());
    handle.shared.wait_stored(handle, &ticket, 0).await;
    Stored(ticket).await.map_err(|error| match error {
        // About what was there before: whoever asks has changed nothing yet.
        Error::NotStored(why) => Error::Retryable(why),
        error => error,
    })
}

/// What callers see as one version is another in the store: the condition as the store must check it. The
/// whole object is spoken for.
pub(crate) async fn store_condition(handle: &Handle, condition: Condition, call: Call) -> Result<Condition> {
    let Condition::Version(_) = condition else { return Ok(condition) };
    let known = handle.enter(|object, _| object.head.known).await;
    if known == Known::Unknown {
        ask_head(handle, call).await?;
    }
    let (checked, mut version) = handle
        .enter(move |object, _| {
            let version = (object.head.known == Known::Present).then_some(Version(object.head.version));
            (check_condition(version, condition), object.head.store_version)
        })
        .await;
    checked?;
    if version.is_none() {
        version = ask_head(handle, call).await?;
    }
    Ok(version.map_or(Condition::Present, |version| Condition::Version(Version(version))))
}

/// Asks for size and version while the object is spoken for; the store's version, if it is there.
async fn ask_head(handle: &Handle, call: Call) -> Result<Option<u64>> {
    let mut request = InfoRequest::new(handle.id().clone());
    request.call = call;
    let info = match handle.shared.below.info(request).await {
        Ok(info) => Some(info),
        Err(Error::Missing) => None,
        Err(error) => return Err(error),
    };
    let version = info.as_ref().map(|info| info.version.0);
    handle
        .enter(move |object, env| {
            object.head.store_version = version;
            if object.head.known == Known::Unknown {
                object.set_head(info.as_ref().map(|info| (info.size_bytes, info.version.0)));
                object.head.version = version.map_or(0, |it| env.versions.shown_for(env.hash, it));
            }
        })
        .await;
    Ok(version)
}

/// Asks the store, and brings the cache up to date with its answer.
async fn send(
    shared: &Arc<Shared>,
    handle: &Handle,
    guard: RangeGuard,
    mutation: Mutation,
    change: Change,
    own_stamp: Option<Stamp>,
    call: Call,
) -> Result<ChangeReply> {
    let policy = shared.write_policy(&handle.id().namespace);
    let ticket = guard.ticket();
    let started = handle.enter(move |object, _| object.begin_change(ticket)).await;
    let id = handle.id().clone();
    let mut terms = change;
    terms.stamp = own_stamp.or(change.stamp);
    terms.durability = forwarded_durability(policy, change.durability);
    let answer = ask(shared, id, &mutation, terms, call).await;
    if let Err(Error::Fenced { epoch }) = &answer {
        shared.was_fenced(handle.id(), *epoch);
    }
    let keeps = policy != WriteMode::Around && answer.is_ok();
    let landed = if keeps { mutation.landed(&shared.pool) } else { 0 };
    let most = if keeps { mutation.buckets_kept().saturating_sub(landed) } else { 0 };
    let mut means = OwnedMeans::at_hand(shared, most);
    let (hash, own, id) = (handle.in_use().node.hash(), Arc::clone(shared), handle.id().clone());
    let answer = handle
        .enter(move |object, env| {
            let is_exact = object.end_change(&started);
            match &answer {
                Ok(_) if object.is_stale(ticket) => object.forget(env, mutation.buckets()),
                Ok(_) => {
                    means.lend(None, |means| object.take_over_change(env, &mutation, &change, policy, means));
                }
                Err(error) => object.perhaps_changed(env, &mutation, error),
            }
            if let Ok(reply) = &answer {
                object.changed_below(&mutation, &change, reply, is_exact, || own.next_version(hash));
                own.repaired_by(&id, &mutation);
                object.settle().into_iter().for_each(|(ticket, result)| ticket.settle(result));
            }
            let (version, size) = (Version(object.head.version), object.head.size);
            if object.is_stale(ticket) {
                // Others may have changed it after us, and before we knew of our own change.
                object.doubt_head(env);
            }
            answer.map(|reply| ChangeReply::new(version, size, reply.durability))
        })
        .await;
    drop(guard);
    add(&shared.gauges.writes_through, 1);
    answer
}

async fn ask(
    shared: &Shared,
    id: ObjectId,
    mutation: &Mutation,
    change: Change,
    call: Call,
) -> Result<ChangeReply> {
    macro_rules! send {
        ($operation:ident, $request:expr) => {{
            let mut request = $request.change(change);
            request.call = call;
            shared.below.$operation(request).await
        }};
    }
    match mutation.clone() {
        Mutation::Write { offset, data } => send!(write, WriteRequest::new(id, offset, data)),
        Mutation::WriteZeroes { offset, len } => {
            send!(write_zeroes, WriteZeroesRequest::new(id, offset, len))
        }
        Mutation::WriteRuns { runs } => send!(write_runs, WriteRunsRequest::new(id, runs)),
        Mutation::Discard { offset, len } => send!(discard, DiscardRequest::new(id, offset, len)),
        Mutation::CompareAndWrite { offset, expected, data } => {
            send!(compare_and_write, CompareAndWriteRequest::new(id, offset, expected, data))
        }
        Mutation::WriteFull { data } => send!(write_full, WriteFullRequest::new(id, data)),
        Mutation::Truncate { size } => send!(truncate, TruncateRequest::new(id, size)),
        Mutation::Adopt(_) => Err(Error::Invalid("what is copied in memory is not forwarded".into())),
        Mutation::Touch => send!(copy, CopyRequest::new(id.clone(), id)),
        Mutation::Delete => {
            let reply = send!(delete, DeleteRequest::new(id))?;
            Ok(ChangeReply::new(Version(0), 0, reply.durability))
        }
    }
}

impl Mutation {
    /// The most buckets that taking it over can use.
    fn buckets_kept(&self) -> u32 {
        match self {
            Self::Write { .. } | Self::CompareAndWrite { .. } => {
                let buckets = self.buckets();
                buckets.end - buckets.start
            }
            Self::WriteRuns { runs } => runs.iter().map(run_buckets_max).sum(),
            Self::WriteFull { data } => data.len_bytes().div_ceil(super::pool::BUCKET) as u32,
            Self::WriteZeroes { .. } | Self::Discard { .. } => 2,
            Self::Truncate { .. } | Self::Delete | Self::Touch | Self::Adopt(_) => 0,
        }
    }
}

/// A change that has begun at the store, to tell whether another overlapped it.
pub(crate) struct Started {
    steps: u32,
    was_alone: bool,
}

impl Object {
    /// What the store says of the object as a whole.
    pub(crate) fn set_head(&mut self, found: Option<(u64, u64)>) {
        let head = &mut self.head;
        head.known = if found.is_some() { Known::Present } else { Known::Absent };
        let (size, version) = found.unwrap_or((0, head.version));
        (head.size, head.version, head.store_size) = (size, version, size);
        (head.store_exists, head.store_version) = (found.is_some(), found.map(|(_, version)| version));
    }

    /// The store is about to be asked for the change of the range `ticket`.
    pub(crate) fn begin_change(&mut self, ticket: Ticket) -> Started {
        self.activity().ranges.ask_change(ticket);
        let head = &mut self.head;
        let was_alone = head.store_changes == 0;
        head.store_changes += 1;
        head.store_steps += 1;
        Started { steps: head.store_steps, was_alone }
    }

    /// Whether no other change of the object was under way at any time during this one.
    pub(crate) fn end_change(&mut self, started: &Started) -> bool {
        let head = &mut self.head;
        let is_exact = started.was_alone && head.store_steps == started.steps;
        head.store_changes -= 1;
        head.store_steps += 1;
        is_exact
    }

    /// Brings the slots up to date with what the store has done.
    fn take_over_change(
        &mut self,
        env: &Env<'_>,
        mutation: &Mutation,
        _change: &Change,
        policy: WriteMode,
        means: &mut super::state::Means<'_>,
    ) {
        if policy == WriteMode::Around && !matches!(mutation, Mutation::Truncate { .. } | Mutation::Delete) {
            if !matches!(mutation, Mutation::Touch) {
                self.forget(env, mutation.buckets());
            }
            return;
        }
        match mutation {
            Mutation::Write { offset, data } | Mutation::CompareAndWrite { offset, data, .. } => {
                self.write_through(env, *offset, data, means);
            }
            Mutation::WriteZeroes { offset, len } => self.zero_through(env, *offset, *len, means),
            Mutation::WriteRuns { runs } => runs.iter().for_each(|run| match &run.content {
                RunContent::Data(data) => self.write_through(env, run.offset, data, means),
                RunContent::Zeroes(len) => self.zero_through(env, run.offset, *len, means),
            }),
            Mutation::Discard { offset, len } => {
                // Without knowing the end we do not know what has become zeros.
                let is_known = self.head.known == Known::Present;
                let within = self.head.size.saturating_sub(*offset).min(*len);
                if is_known && within > 0 {
                    self.zero_through(env, *offset, within, means);
                } else if !is_known {
                    self.forget(env, mutation.buckets());
                }
            }
            Mutation::WriteFull { data } => {
                self.forget(env, WHOLE);
                self.write_through(env, 0, data, means);
            }
            Mutation::Truncate { size } => self.truncated(env, *size),
            Mutation::Delete => self.forget(env, WHOLE),
            Mutation::Touch | Mutation::Adopt(_) => (),
        }
    }

    /// Brings the head up to date.
    fn changed_below(
        &mut self,
        mutation: &Mutation,
        change: &Change,
        reply: &ChangeReply,
        is_exact: bool,
        next_version: impl FnOnce() -> u64,
    ) {
        let head = &mut self.head;
        let was_known = head.known == Known::Present;
        let size = match mutation {
            Mutation::Write { .. }
            | Mutation::CompareAndWrite { .. }
            | Mutation::WriteZeroes { .. }
            | Mutation::WriteRuns { .. }
                if was_known =>
            {
                head.size.max(mutation.end())
            }
            Mutation::Discard { .. } | Mutation::Touch if was_known => head.size,
            Mutation::Delete => 0,
            _ => reply.size_bytes,
        };
        let is_delete = matches!(mutation, Mutation::Delete);
        head.known = match (is_delete, was_known || is_exact) {
            (true, _) => Known::Absent,
            (false, true) => Known::Present,
            // Others overlapped it: this size may be from before theirs.
            (false, false) => Known::Unknown,
        };
        (head.size, head.store_size, head.store_exists) = (size, size, !is_delete);
        head.store_version = (is_exact && !is_delete).then_some(reply.version.0);
        head.version = head.store_version.unwrap_or_else(next_version);
        if change.stamp.is_some() {
            head.stamp = change.stamp;
        }
    }

    /// Something may have been changed below, or what we took for known has turned out wrong.
    pub(crate) fn perhaps_changed(&mut self, env: &Env<'_>, mutation: &Mutation, error: &Error) {
        let doubts = matches!(
            error,
            Error::OutcomeUnknown(_)
                | Error::Missing
                | Error::Exists
                | Error::ConditionFailed { .. }
                | Error::Fenced { .. }
                | Error::Superseded { .. }
                | Error::WritesLost(_)
                | Error::NotStored(_)
        );
        if !doubts {
            return;
        }
        if matches!(error, Error::OutcomeUnknown(_) | Error::NotStored(_)) {
            self.forget(env, mutation.buckets());
        } else {
            self.doubt(env, &mut Reserved::none(env.pool));
        }
        if !self.has_pending() {
            self.head.store_version = None;
            self.forget_head(env);
        }
    }
}
