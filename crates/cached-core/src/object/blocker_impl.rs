//! The data path: each operation of the storage contract checks its limits, reads the write mode of
//! its namespace once, and is served at once if possible.

use std::sync::Arc;

use blocker::admission::{range_end, runs_end};
use blocker::{
    Blocker, Call, Capabilities, Change, ChangeReply, ChangeRequest, ChangeTerms, ClaimReply, ClaimRequest,
    Condition, Control, Durability, Error, FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply,
    InvalidateRequest, ListReply, ListRequest, ObjectId, ReadReply, ReadRequest, Reply, Result, Subscription,
    WriteMode,
};

use super::cache::ObjectCache;
use super::memory::buckets_of;
use super::read;
use super::shared::Shared;
use super::state::{Env, Object, PREFETCHED_BYTES_MAX};
use super::tasks::deadline::is_late;
use super::write::apply::{apply_at_once, is_too_large};
use super::write::{TakenMode, back as write_back, copy, read_only, scope_ops, through as write_through};

impl ObjectCache {
    /// Makes a change that is within the limits.
    fn make_change(&self, mut request: ChangeRequest) -> Reply<ChangeReply> {
        let shared = self.shared();
        let hash = shared.hash(&request.object);
        let (mut known, mut is_journaled, mut is_forwarded) = (None, false, false);
        if let Some(log) = &shared.journal.log {
            let logged = log.names.terms(&request.object.namespace);
            known = log.names.get(&request.object.namespace);
            is_journaled = known.as_ref().map_or(logged.is_journaled, |known| known.is_journaled);
            is_forwarded = is_journaled && log.goes_through((&request.change).into());
            request.terms.durability = request.terms.durability.max(logged.durability);
            if shared.stores_if_journaled() {
                write_through::store_if_journaled(shared, &mut request.terms);
            }
        }
        let (change, terms) = (&request.change, &request.terms);
        let is_passing = shared.read_ahead.follows_writes() && passes(shared, &request.object, change);
        let may_be_back =
            terms.stamp.is_none() && !is_passing && !is_forwarded && !is_too_large(shared, change.into());
        let asked = terms.durability;
        let is_at_once = asked == Durability::Cached || is_journaled && asked == Durability::Journaled;
        if may_be_back
            && is_at_once
            && let Some(answer) =
                apply_at_once(shared, &request.object, hash, change.into(), terms, known.as_deref())
        {
            return match answer {
                Ok(applied) if asked != Durability::Cached => {
                    let (shared, object, deadline) =
                        (Arc::clone(shared), request.object, request.call.deadline);
                    Reply::pending(write_back::acknowledge(shared, object, hash, applied, asked, deadline))
                }
                answer => Reply::Ready(answer.map(|applied| applied.reply)),
            };
        }
        self.make_slowly(request, hash, may_be_back, is_passing)
    }

    /// Makes a change that may wait.
    fn make_slowly(
        &self,
        mut request: ChangeRequest,
        hash: u64,
        may_be_back: bool,
        is_passing: bool,
    ) -> Reply<ChangeReply> {
        let shared = Arc::clone(self.shared());
        let mut taken = match take_mode(&shared, &request.object) {
            Ok(taken) => taken,
            Err(error) => return Reply::err(error),
        };
        if taken.mode == WriteMode::Back && may_be_back {
            return Reply::pending(write_back::change(shared, request, None, hash, taken));
        }
        write_through::store_if_journaled(&shared, &mut request.terms);
        taken.is_passing = is_passing;
        Reply::pending(write_through::change(shared, request, hash, taken))
    }

    /// Copies an object to another; `from_condition` is the condition on the source.
    fn copy_to(
        &self,
        mut request: ChangeRequest,
        from: ObjectId,
        from_condition: Condition,
    ) -> Reply<ChangeReply> {
        let shared = self.shared();
        if let Some(log) = &shared.journal.log {
            let least = log.names.terms(&request.object.namespace).durability;
            request.terms.durability = request.terms.durability.max(least);
        }
        let source = copy::Source { hash: shared.hash(&from), id: from, condition: from_condition };
        let hash = shared.hash(&request.object);
        match take_mode(shared, &request.object) {
            Ok(taken) => Reply::pending(copy::copy(Arc::clone(shared), request, source, hash, taken)),
            Err(error) => Reply::err(error),
        }
    }

    /// Checks that a change is within the limits. A discard is cut at the maximum object size.
    #[inline]
    fn check_limits(&self, change: &mut Change) -> Result<()> {
        let shared = self.shared();
        match change {
            Change::Write { offset, data } => self.check_end(*offset, data.len_bytes() as u64),
            Change::WriteZeroes { offset, len_bytes } => self.check_end(*offset, *len_bytes),
            Change::WriteRuns { runs } => runs_end(runs, &self.capabilities()).map(drop),
            Change::Discard { offset, len_bytes } => {
                *len_bytes = (*len_bytes).min(shared.control.config.object_bytes_max.saturating_sub(*offset));
                *offset = if *len_bytes == 0 { 0 } else { *offset };
                Ok(())
            }
            Change::CompareAndWrite { offset, expected, data } => {
                let limit_bytes = shared.store.can.compare_bytes_max;
                if limit_bytes == 0 {
                    let why = "the store below does not support compare-and-write";
                    return Err(Error::Unsupported(why.into()));
                }
                if expected.len_bytes() as u64 > limit_bytes {
                    return Err(Error::TooLarge { limit_bytes });
                }
                self.check_end(*offset, expected.len_bytes().max(data.len_bytes()) as u64)
            }
            Change::WriteFull { data } => self.check_end(0, data.len_bytes() as u64),
            Change::Truncate { .. } => change.check_end(shared.control.config.object_bytes_max),
            Change::Delete | Change::Copy { .. } => Ok(()),
        }
    }

    /// Checks that a range and its end are within the limits.
    fn check_end(&self, offset: u64, len: u64) -> Result<()> {
        let limit = self.shared().store.can.request_bytes_max;
        if len > limit {
            return Err(Error::TooLarge { limit_bytes: limit });
        }
        range_end(offset, len, self.shared().control.config.object_bytes_max).map(drop)
    }
}

// A hit is inlined into its callers, even in other crates. Slower paths are not, because they are
// large.

#[inline(never)]
fn read_missing(shared: &Arc<Shared>, request: ReadRequest, hash: u64) -> Reply<ReadReply> {
    Reply::pending(read::read(Arc::clone(shared), request, hash))
}

#[inline(never)]
fn read_detached(shared: &Arc<Shared>, request: ReadRequest, hash: u64) -> Reply<ReadReply> {
    Reply::pending(read::read_detached(Arc::clone(shared), request, hash))
}

/// Takes the write mode of an object's namespace, for a change that may wait.
///
/// # Errors
/// `Denied` if the namespace is read-only.
fn take_mode(shared: &Arc<Shared>, id: &ObjectId) -> Result<TakenMode> {
    let taken = TakenMode::take(shared, &id.namespace);
    if taken.mode == WriteMode::ReadOnly {
        return Err(read_only(&id.namespace));
    }
    Ok(taken)
}

/// Observes a write; returns whether it bypasses the cache because it is part of a long sequential
/// run.
#[cold]
fn passes(shared: &Shared, id: &ObjectId, change: &Change) -> bool {
    let (offset, bytes) = match change {
        Change::Write { offset, data } => (*offset, data.len_bytes() as u64),
        Change::WriteFull { data } => (0, data.len_bytes() as u64),
        _ => return false,
    };
    let mode = shared.control.namespaces.write_mode(&id.namespace);
    if matches!(mode, WriteMode::Around | WriteMode::ReadOnly) || bytes == 0 {
        return false;
    }
    let namespace = shared.control.namespaces.of(&id.namespace);
    shared.read_ahead.observe_write(namespace, id, buckets_of(offset, bytes), bytes)
}

/// Checks that a change can be made with this store, and before its deadline.
fn check_change(shared: &Shared, terms: &ChangeTerms, call: Call) -> Result<()> {
    if terms.stamp.is_some() && !shared.fences_callers() {
        return Err(Error::Unsupported(
            "this cache accepts no stamps, because the store does not support fencing, or the cache itself is the writer".into(),
        ));
    }
    if !matches!(terms.condition, Condition::None) && !shared.store.can.conditions {
        return Err(Error::Unsupported("the store below does not support conditions".into()));
    }
    let highest = shared.store.can.durability_max;
    if terms.durability > highest {
        let why = format!("the highest durability of the store below is {highest}");
        return Err(Error::Unsupported(why.into()));
    }
    if is_late(&*shared.clock, call) {
        return Err(Error::DeadlinePassed);
    }
    Ok(())
}

/// A crate that made the trait object itself would compile a hit again, at its own level.
impl From<ObjectCache> for Arc<dyn Blocker> {
    #[inline(never)]
    fn from(cache: ObjectCache) -> Arc<dyn Blocker> {
        Arc::new(cache)
    }
}

impl Blocker for ObjectCache {
    fn capabilities(&self) -> Capabilities {
        let shared = self.shared();
        let fences = shared.fences_callers();
        let mut can = shared.store.can;
        can.object_bytes_max = shared.control.config.object_bytes_max;
        (can.fencing, can.tombstones) = (fences, can.tombstones && fences);
        can
    }

    #[inline]
    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let shared = self.shared();
        if request.len_bytes > shared.store.can.request_bytes_max {
            return Reply::err(Error::TooLarge { limit_bytes: shared.store.can.request_bytes_max });
        }
        if !matches!(request.condition, Condition::None) && !shared.store.can.conditions {
            return Reply::err(Error::Unsupported("the store below does not support conditions".into()));
        }
        if is_late(&*shared.clock, request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        if shared.hot.is_due() {
            let object = &request.object;
            let namespace = object.namespace.as_bytes();
            shared.hot.sample(|| ([namespace, b"/", object.name.as_bytes()].concat(), namespace.to_vec()));
        }
        let hash = shared.hash(&request.object);
        if shared.control.attaching.is_direct() {
            return read_detached(shared, request, hash);
        }
        let bytes = request.len_bytes.min(PREFETCHED_BYTES_MAX) as usize;
        let ahead = |object: &Object, env: &Env<'_>| object.prefetch(env, request.offset, bytes);
        let read = |object: &mut Object, env: &Env<'_>| {
            Some((object.read_at_once(env, &request, None)?, env.namespace))
        };
        if let Some(Some((answer, namespace))) = shared.at_once(hash, &request.object, ahead, read) {
            shared.metrics.of(namespace).hits.increment();
            return Reply::Ready(answer);
        }
        read_missing(shared, request, hash)
    }

    #[inline]
    fn change(&self, mut request: ChangeRequest) -> Reply<ChangeReply> {
        let within = self.check_limits(&mut request.change);
        if let Err(error) = within.and_then(|()| check_change(self.shared(), &request.terms, request.call)) {
            return Reply::err(error);
        }
        match &mut request.change {
            Change::Copy { from, from_condition } if *from == request.object => {
                // An object can have only one condition.
                request.terms.condition = match (request.terms.condition, std::mem::take(from_condition)) {
                    (Condition::None, condition) => condition,
                    (condition, Condition::None | Condition::Present) => condition,
                    (condition, other) if condition == other => condition,
                    _ => {
                        let why = "a copy of an object to itself can have only one condition";
                        return Reply::err(Error::Invalid(why.into()));
                    }
                };
            }
            Change::Copy { from, from_condition } => {
                let (from, from_condition) = (from.clone(), *from_condition);
                return self.copy_to(request, from, from_condition);
            }
            Change::Delete => {
                let removed = |reply: ChangeReply| ChangeReply::removed(reply.durability);
                return self.make_change(request).then(move |answer| answer.map(removed));
            }
            _ => (),
        }
        self.make_change(request)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let shared = self.shared();
        if is_late(&*shared.clock, request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        let hash = shared.hash(&request.object);
        if shared.control.attaching.is_direct() {
            return Reply::pending(read::info_detached(Arc::clone(shared), request, hash));
        }
        if let Some(Some(answer)) =
            shared.at_once(hash, &request.object, |_, _| (), |object, _| object.info())
        {
            return Reply::Ready(answer);
        }
        Reply::pending(scope_ops::info(Arc::clone(shared), request, hash))
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        if is_late(&*self.shared().clock, request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        Reply::pending(read::list::list(Arc::clone(self.shared()), request))
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        Reply::pending(scope_ops::flush(Arc::clone(self.shared()), request))
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        let shared = self.shared();
        if !shared.fences_callers() {
            return Reply::err(Error::Unsupported(
                "this cache accepts no claims, because the store does not support fencing, or the cache itself is the writer".into(),
            ));
        }
        if is_late(&*shared.clock, request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        Reply::pending(scope_ops::claim(Arc::clone(shared), request))
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        if is_late(&*self.shared().clock, request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        Reply::pending(scope_ops::invalidate(Arc::clone(self.shared()), request))
    }

    fn subscribe(&self) -> Subscription {
        self.shared().hub.subscribe()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}
