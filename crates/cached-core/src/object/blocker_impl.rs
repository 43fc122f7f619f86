//! The data path: each operation of the storage contract checks its limits, resolves the write mode of its
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
use super::deadline::is_late;
use super::mutation::Mutation;
use super::shared::Shared;
use super::state::{Env, LINES_READ, Object};
use super::write_back::{apply_at_once, is_too_large};
use super::{copy, read, scope_ops, write_back, write_through};

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
        let mode = shared.write_modes.of(&id.namespace);
        let is_back = mode == WriteMode::Back && change.stamp.is_none() && !is_too_large(shared, &mutation);
        if !is_back {
            let shared = Arc::clone(shared);
            return Reply::pending(write_through::change(shared, id, hash, mutation, change, call, mode));
        }
        if change.durability == Durability::Cached
            && let Some(answer) = apply_at_once(shared, &id, hash, &mutation, &change)
        {
            return Reply::Ready(answer);
        }
        Reply::pending(write_back::change(Arc::clone(shared), id, hash, mutation, change, call))
    }

    /// Returns the end of a range, if both are within the limits.
    fn end(&self, offset: u64, len: u64) -> Result<u64> {
        let limit = self.shared().can.request_bytes_max;
        if len > limit {
            return Err(Error::TooLarge { limit_bytes: limit });
        }
        range_end(offset, len, self.shared().config.object_bytes_max)
    }
}

/// Checks that a change can be made over this store, and before its deadline.
fn check_change(shared: &Shared, change: &Change, call: Call) -> Result<()> {
    if change.stamp.is_some() && !shared.fences_callers() {
        return Err(Error::Unsupported(
            "this cache takes no stamps: the store has no fencing, or the cache is the writer".into(),
        ));
    }
    if !matches!(change.condition, Condition::None) && !shared.can.conditions {
        return Err(Error::Unsupported("the store below has no conditions".into()));
    }
    if change.durability > shared.can.durability_max {
        return Err(Error::Unsupported(
            format!("the store below gives {} at most", shared.can.durability_max).into(),
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
        let mut can = shared.can;
        can.object_bytes_max = shared.config.object_bytes_max;
        (can.fencing, can.tombstones) = (fences, can.tombstones && fences);
        can
    }

    #[inline]
    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let shared = self.shared();
        if request.len_bytes > shared.can.request_bytes_max {
            return Reply::err(Error::TooLarge { limit_bytes: shared.can.request_bytes_max });
        }
        if !matches!(request.condition, Condition::None) && !shared.can.conditions {
            return Reply::err(Error::Unsupported("the store below has no conditions".into()));
        }
        if is_late(&*shared.clock, request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        let hash = shared.hash(&request.object);
        let ahead = |object: &Object, env: &Env<'_>| object.prefetch(env, request.offset, LINES_READ);
        let read = |object: &mut Object, env: &Env<'_>| object.read_at_once(env, &request, None);
        if let Some(Some(answer)) = shared.at_once(hash, &request.object, ahead, read) {
            shared.metrics.count_hit(hash);
            return Reply::Ready(answer);
        }
        Reply::pending(read::read(Arc::clone(shared), request, hash))
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
        let len = len_bytes.min(self.shared().config.object_bytes_max.saturating_sub(offset));
        let offset = if len == 0 { 0 } else { offset };
        self.change(object, Mutation::Discard { offset, len }, change, call, Ok(0))
    }

    fn compare_and_write(&self, request: CompareAndWriteRequest) -> Reply<ChangeReply> {
        let CompareAndWriteRequest { object, offset, expected, data, change, call, .. } = request;
        let limit = self.shared().can.compare_bytes_max;
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
        let end = range_end(size, 0, self.shared().config.object_bytes_max);
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
        let hashes = (shared.hash(&request.from), shared.hash(&request.to));
        let mode = shared.write_modes.of(&request.to.namespace);
        Reply::pending(copy::copy(Arc::clone(shared), request, hashes, mode))
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let shared = self.shared();
        if is_late(&*shared.clock, request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        let hash = shared.hash(&request.object);
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
