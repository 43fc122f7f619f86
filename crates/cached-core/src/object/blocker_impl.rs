//! The data path: each operation of the storage contract checks its limits, takes the write mode of its
//! namespace once, and is answered at once where it can be.

use std::sync::Arc;

use blocker::admission::{range_end, runs_end};
use blocker::{
    Blocker, Call, Capabilities, Change, ChangeReply, ClaimReply, ClaimRequest, CompareAndWriteRequest,
    Condition, Control, CopyRequest, DeleteReply, DeleteRequest, DiscardRequest, Durability, Error,
    FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply, ListRequest,
    ObjectId, ReadReply, ReadRequest, Reply, Result, Subscription, TruncateRequest, WriteFullRequest,
    WriteMode, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};

use super::cache::ObjectCache;
use super::journal::ChangeLog;
use super::memory::geometry::buckets_of;
use super::mutation::Mutation;
use super::read;
use super::shared::Shared;
use super::state::{Env, LINES_READ, Object};
use super::tasks::deadline::is_late;
use super::write::apply::{apply_at_once, is_too_large};
use super::write::modes::{TakenMode, read_only};
use super::write::through::Route;
use super::write::{back as write_back, copy, scope_ops, through as write_through};

impl ObjectCache {
    /// Makes a change. `end` is where it ends within the object, or the limit that it exceeds.
    fn change(
        &self,
        id: ObjectId,
        mutation: Mutation,
        change: Change,
        call: Call,
        end: Result<u64>,
    ) -> Reply<ChangeReply> {
        let shared = self.shared();
        if let Err(error) = end.and_then(|_| check_change(shared, &change, call)) {
            return Reply::err(error);
        }
        let hash = shared.hash(&id);
        if let Some(log) = &shared.journal.log {
            return self.journaled_change(log, id, hash, mutation, change, call);
        }
        let is_passing = shared.read_ahead.follows_writes() && passes(shared, &id, &mutation);
        let may_be_back = change.stamp.is_none() && !is_passing && !is_too_large(shared, &mutation);
        if may_be_back
            && change.durability == Durability::Cached
            && let Some(answer) = apply_at_once(shared, &id, hash, &mutation, &change, None)
        {
            return Reply::Ready(answer.map(|applied| applied.reply));
        }
        let taken = match take_mode(shared, &id) {
            Ok(taken) => taken,
            Err(error) => return Reply::err(error),
        };
        let shared = Arc::clone(shared);
        if taken.mode == WriteMode::Back && may_be_back {
            return Reply::pending(write_back::change(shared, id, hash, mutation, change, call, taken));
        }
        let route = Route { taken, is_passing };
        Reply::pending(write_through::change(shared, id, hash, mutation, change, call, route))
    }

    /// Makes a change in a cache that has a log.
    fn journaled_change(
        &self,
        log: &ChangeLog,
        id: ObjectId,
        hash: u64,
        mutation: Mutation,
        mut change: Change,
        call: Call,
    ) -> Reply<ChangeReply> {
        let shared = self.shared();
        let (known, terms) = (log.names.get(&id.namespace), log.names.terms(&id.namespace));
        let is_journaled = known.as_ref().map_or(terms.is_journaled, |known| known.is_journaled());
        change.durability = change.durability.max(terms.durability);
        let is_passing = shared.read_ahead.follows_writes() && passes(shared, &id, &mutation);
        let is_forwarded = is_journaled && log.goes_through(&mutation);
        let may_be_back =
            change.stamp.is_none() && !is_passing && !is_forwarded && !is_too_large(shared, &mutation);
        let is_at_once = change.durability == Durability::Cached
            || is_journaled && change.durability == Durability::Journaled;
        if may_be_back
            && is_at_once
            && let Some(answer) = apply_at_once(shared, &id, hash, &mutation, &change, known.as_deref())
        {
            let asked = change.durability;
            return match answer {
                Ok(applied) if asked != Durability::Cached => {
                    Reply::pending(write_back::acknowledge_at_once(
                        Arc::clone(shared),
                        id,
                        hash,
                        applied,
                        asked,
                        call.deadline,
                    ))
                }
                answer => Reply::Ready(answer.map(|applied| applied.reply)),
            };
        }
        let taken = match take_mode(shared, &id) {
            Ok(taken) => taken,
            Err(error) => return Reply::err(error),
        };
        let shared = Arc::clone(shared);
        if taken.mode == WriteMode::Back && may_be_back {
            return Reply::pending(write_back::change(shared, id, hash, mutation, change, call, taken));
        }
        // This cache has no record of it, and the store need not have a log.
        if change.durability == Durability::Journaled {
            change.durability = Durability::Stored;
        }
        let route = Route { taken, is_passing };
        Reply::pending(write_through::change(shared, id, hash, mutation, change, call, route))
    }

    /// Returns the end of a range, if both are within the limits.
    fn end(&self, offset: u64, len: u64) -> Result<u64> {
        let limit = self.shared().store.can.request_bytes_max;
        if len > limit {
            return Err(Error::TooLarge { limit_bytes: limit });
        }
        range_end(offset, len, self.shared().control.config.object_bytes_max)
    }
}

// A hit is compiled into its callers, in other crates, too. What takes longer is not: it is large.

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
/// `Denied` where the namespace is read-only.
fn take_mode(shared: &Arc<Shared>, id: &ObjectId) -> Result<TakenMode> {
    let taken = TakenMode::take(shared, &id.namespace);
    if taken.mode == WriteMode::ReadOnly {
        return Err(read_only(&id.namespace));
    }
    Ok(taken)
}

/// Takes note of a write; returns whether it goes around the cache because it is part of a long one.
#[cold]
fn passes(shared: &Shared, id: &ObjectId, mutation: &Mutation) -> bool {
    let (offset, bytes) = match mutation {
        Mutation::Write { offset, data } => (*offset, data.len_bytes() as u64),
        Mutation::WriteFull { data } => (0, data.len_bytes() as u64),
        _ => return false,
    };
    let mode = shared.control.namespaces.write_mode(&id.namespace);
    if matches!(mode, WriteMode::Around | WriteMode::ReadOnly) || bytes == 0 {
        return false;
    }
    let namespace = shared.control.namespaces.of(&id.namespace);
    shared.read_ahead.observe_write(namespace, id, buckets_of(offset, bytes), bytes)
}

/// Checks that a change can be made over this store, and before its deadline.
fn check_change(shared: &Shared, change: &Change, call: Call) -> Result<()> {
    if change.stamp.is_some() && !shared.fences_callers() {
        return Err(Error::Unsupported(
            "this cache takes no stamps: the store has no fencing, or the cache is the writer".into(),
        ));
    }
    if !matches!(change.condition, Condition::None) && !shared.store.can.conditions {
        return Err(Error::Unsupported("the store below has no conditions".into()));
    }
    if change.durability > shared.store.can.durability_max {
        return Err(Error::Unsupported(
            format!("the store below gives {} at most", shared.store.can.durability_max).into(),
        ));
    }
    if is_late(&*shared.clock, call) {
        return Err(Error::DeadlinePassed);
    }
    Ok(())
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
            return Reply::err(Error::Unsupported("the store below has no conditions".into()));
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
        let ahead = |object: &Object, env: &Env<'_>| object.prefetch(env, request.offset, LINES_READ);
        let read = |object: &mut Object, env: &Env<'_>| {
            Some((object.read_at_once(env, &request, None)?, env.namespace))
        };
        if let Some(Some((answer, namespace))) = shared.at_once(hash, &request.object, ahead, read) {
            shared.metrics.of(namespace).hits.increment(hash);
            return Reply::Ready(answer);
        }
        read_missing(shared, request, hash)
    }

    #[inline]
    fn write(&self, request: WriteRequest) -> Reply<ChangeReply> {
        let WriteRequest { object, offset, data, change, call, .. } = request;
        let end = self.end(offset, data.len_bytes() as u64);
        self.change(object, Mutation::Write { offset, data }, change, call, end)
    }

    fn write_zeroes(&self, request: WriteZeroesRequest) -> Reply<ChangeReply> {
        let WriteZeroesRequest { object, offset, len_bytes: len, change, call, .. } = request;
        let end = self.end(offset, len);
        self.change(object, Mutation::WriteZeroes { offset, len }, change, call, end)
    }

    fn write_runs(&self, request: WriteRunsRequest) -> Reply<ChangeReply> {
        let WriteRunsRequest { object, runs, change, call, .. } = request;
        let end = runs_end(&runs, &self.capabilities());
        self.change(object, Mutation::WriteRuns { runs }, change, call, end)
    }

    fn discard(&self, request: DiscardRequest) -> Reply<ChangeReply> {
        let DiscardRequest { object, offset, len_bytes, change, call, .. } = request;
        // A range may reach beyond the largest object: that part is left out.
        let len = len_bytes.min(self.shared().control.config.object_bytes_max.saturating_sub(offset));
        let offset = if len == 0 { 0 } else { offset };
        self.change(object, Mutation::Discard { offset, len }, change, call, Ok(0))
    }

    fn compare_and_write(&self, request: CompareAndWriteRequest) -> Reply<ChangeReply> {
        let CompareAndWriteRequest { object, offset, expected, data, change, call, .. } = request;
        let limit = self.shared().store.can.compare_bytes_max;
        if limit == 0 {
            return Reply::err(Error::Unsupported("the store below cannot compare and write".into()));
        }
        if expected.len_bytes() as u64 > limit {
            return Reply::err(Error::TooLarge { limit_bytes: limit });
        }
        let end = self.end(offset, expected.len_bytes().max(data.len_bytes()) as u64);
        self.change(object, Mutation::CompareAndWrite { offset, expected, data }, change, call, end)
    }

    fn write_full(&self, request: WriteFullRequest) -> Reply<ChangeReply> {
        let WriteFullRequest { object, data, change, call, .. } = request;
        let end = self.end(0, data.len_bytes() as u64);
        self.change(object, Mutation::WriteFull { data }, change, call, end)
    }

    fn truncate(&self, request: TruncateRequest) -> Reply<ChangeReply> {
        let TruncateRequest { object, size_bytes: size, change, call, .. } = request;
        let end = range_end(size, 0, self.shared().control.config.object_bytes_max);
        self.change(object, Mutation::Truncate { size }, change, call, end)
    }

    fn delete(&self, request: DeleteRequest) -> Reply<DeleteReply> {
        let DeleteRequest { object, change, call, .. } = request;
        let reply = self.change(object, Mutation::Delete, change, call, Ok(0));
        reply.then(|reply| reply.map(|reply| DeleteReply::new(reply.durability)))
    }

    fn copy(&self, request: CopyRequest) -> Reply<ChangeReply> {
        let shared = self.shared();
        if let Err(error) = check_change(shared, &request.change, request.call) {
            return Reply::err(error);
        }
        if request.from == request.to {
            let CopyRequest { to, from_condition, mut change, call, .. } = request;
            change.condition = match (change.condition, from_condition) {
                (Condition::None, condition) => condition,
                (condition, Condition::None | Condition::Present) => condition,
                (condition, other) if condition == other => condition,
                _ => return Reply::err(Error::Invalid("two conditions for one object".into())),
            };
            return self.change(to, Mutation::Touch, change, call, Ok(0));
        }
        let mut request = request;
        if let Some(log) = &shared.journal.log {
            let least = log.names.terms(&request.to.namespace).durability;
            request.change.durability = request.change.durability.max(least);
        }
        let hashes = (shared.hash(&request.from), shared.hash(&request.to));
        match take_mode(shared, &request.to) {
            Ok(taken) => Reply::pending(copy::copy(Arc::clone(shared), request, hashes, taken)),
            Err(error) => Reply::err(error),
        }
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
        Reply::pending(scope_ops::list(Arc::clone(self.shared()), request))
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        Reply::pending(scope_ops::flush(Arc::clone(self.shared()), request))
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        let shared = self.shared();
        if !shared.fences_callers() {
            return Reply::err(Error::Unsupported(
                "this cache takes no claims: the store has no fencing, or the cache is the writer".into(),
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
