//! The memory backend: the model of the contract.
//!
//! One map under one lock; every operation is one critical section and answers at once. As the
//! *store* of its process it counts everything as *stored*, although that survives nothing
//! ([`Survives::Nothing`](crate::Survives)). The code is meant to be easy to check, not fast.

mod model;
mod mutation;

use std::fmt;
use std::sync::Arc;

use cached_metrics::{Collect, Families};
use parking_lot::Mutex;

#[cfg(feature = "faulty")]
use crate::order::Stamp;
use crate::{
    Attachment, Blocker, Call, Capabilities, Change, ChangeReply, ChangeRequest, ChangeTerms, ClaimReply,
    ClaimRequest, Clock, Condition, Control, Durability, Error, Event, EventHub, FlushReply, FlushRequest,
    Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply, ListRequest, Namespace,
    OBJECT_BYTES_MAX_DEFAULT, ObjectId, Quota, ReadReply, ReadRequest, Reply, Result, Run, Subscription,
    SystemClock, Version,
};

use model::Model;
use mutation::{Broken, Mutation};

/// The limits of a memory backend, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// The largest object.
    pub object_bytes_max: u64,
    /// The capacity for all objects together, each counted with its name and
    /// [`OBJECT_OVERHEAD_BYTES`]. Remembered deletions count as well.
    pub bytes_max: u64,
}

/// The charge for an object, or a remembered deletion, beyond its content and name, in bytes.
pub const OBJECT_OVERHEAD_BYTES: u64 = 256;

/// The largest number of runs of one change.
const RUNS_MAX: u32 = 1024;

impl Default for MemoryConfig {
    fn default() -> Self {
        Self { object_bytes_max: OBJECT_BYTES_MAX_DEFAULT, bytes_max: 1 << 30 }
    }
}

/// A backend that keeps objects in a map.
///
/// ```
/// use blocker::{BlockerExt, Memory, executor::block_on};
///
/// let store = Memory::default();
/// block_on(store.put(&"n/o".parse()?, b"content"))?;
/// assert_eq!(block_on(store.get(&"n/o".parse()?))?, b"content"[..]);
/// # Ok::<_, blocker::Error>(())
/// ```
pub struct Memory {
    config: MemoryConfig,
    clock: Arc<dyn Clock>,
    model: Mutex<Model>,
    events: EventHub,
    broken: Broken,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(MemoryConfig::default(), Arc::new(SystemClock))
    }
}

impl Memory {
    /// Returns an empty backend with these limits. Deadlines are on `clock`.
    #[must_use]
    pub fn new(config: MemoryConfig, clock: Arc<dyn Clock>) -> Self {
        Self::with_broken(config, clock, Broken::default())
    }

    fn with_broken(config: MemoryConfig, clock: Arc<dyn Clock>, broken: Broken) -> Self {
        let model = Mutex::new(Model::new(config, broken));
        Self { config, clock, model, events: EventHub::new(), broken }
    }

    /// Returns a backend that breaks one rule of the contract, for the conformance suite's own
    /// test.
    #[cfg(test)]
    pub(crate) fn broken(broken: Broken) -> Self {
        Self::with_broken(MemoryConfig::default(), Arc::new(SystemClock), broken)
    }

    /// Enters an object, or a remembered deletion, without any check, for layers that keep their
    /// live state in a memory backend.
    #[cfg(feature = "faulty")]
    pub(crate) fn adopt(&self, object: ObjectId, content: Option<(Vec<u8>, Version)>, stamp: Option<Stamp>) {
        self.model.lock().adopt(object, content, stamp);
    }

    /// Removes everything except the record of used versions.
    #[cfg(feature = "faulty")]
    pub(crate) fn forget_all(&self) {
        self.model.lock().forget_all();
    }

    /// Returns a version that was never used before.
    #[cfg(feature = "faulty")]
    pub(crate) fn fresh_version(&self) -> Version {
        self.model.lock().fresh_version()
    }

    fn check_call(&self, call: &Call) -> Result<()> {
        let is_late = call.deadline.is_some_and(|deadline| self.clock.now() >= deadline);
        if is_late && !self.broken.is(Mutation::DeadlineIgnored) {
            return Err(Error::DeadlinePassed);
        }
        Ok(())
    }

    /// Makes one change in one critical section.
    fn make(
        &self,
        object: &ObjectId,
        change: &Change,
        terms: &ChangeTerms,
        call: &Call,
    ) -> Reply<ChangeReply> {
        let done = self.check_call(call).and_then(|()| self.model.lock().change(object, change, terms));
        if matches!(done, Err(Error::OutOfSpace(_))) {
            self.events.publish(&Event::Full);
        }
        done.map(|(version, size_bytes)| ChangeReply::new(version, size_bytes, self.durability())).into()
    }

    fn durability(&self) -> Durability {
        if self.broken.is(Mutation::DurabilityUnderstated) { Durability::Cached } else { Durability::Stored }
    }

    /// Makes a change as a backend does that checks and changes in two steps, or sends the parts of
    /// a change one by one, with others in between. Returns `None` where this one does not.
    fn torn(&self, request: &ChangeRequest) -> Option<Reply<ChangeReply>> {
        let ChangeRequest { object, change, terms, call, .. } = request;
        let unchecked = ChangeTerms { condition: Condition::None, ..*terms };
        let (first, second, rest) = match change {
            Change::Write { offset, data } if self.broken.is(Mutation::WriteTorn) && data.len_bytes() > 1 => {
                let half = data.len_bytes() / 2;
                let first = Change::Write { offset: *offset, data: data.slice(0..half) };
                let data = data.slice(half..data.len_bytes());
                (first, Change::Write { offset: offset + half as u64, data }, unchecked)
            }
            Change::WriteRuns { runs } if self.broken.is(Mutation::RunsTorn) && runs.len() > 1 => {
                let of = |runs: &[Run]| Change::WriteRuns { runs: runs.to_vec() };
                (of(&runs[..1]), of(&runs[1..]), ChangeTerms { stamp: None, ..unchecked })
            }
            Change::Write { .. } if self.broken.is(Mutation::ConditionCheckedTooEarly) => {
                let Condition::Version(_) = terms.condition else {
                    std::thread::yield_now();
                    return None;
                };
                let found = self.model.lock().read(object, 0, 0, terms.condition);
                if let Err(error) = found {
                    return Some(Reply::err(error));
                }
                std::thread::yield_now();
                return Some(self.make(object, change, &unchecked, call));
            }
            _ => return None,
        };
        let _ = self.make(object, &first, terms, call);
        std::thread::yield_now();
        Some(self.make(object, &second, &rest, call))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Blocker for Memory {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(self.config.object_bytes_max);
        capabilities.runs_max = RUNS_MAX;
        if self.broken.is(Mutation::RunsOverstated) {
            capabilities.runs_max += 1;
        }
        if self.broken.is(Mutation::LimitOverstated) {
            capabilities.object_bytes_max += 1;
        }
        if self.broken.is(Mutation::CompareOverstated) {
            capabilities.compare_bytes_max *= 2;
        }
        capabilities
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let ReadRequest { object, offset, len_bytes, condition, call } = request;
        let read = |()| self.model.lock().read(&object, offset, len_bytes, condition);
        self.check_call(&call).and_then(read).into()
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        if let Some(reply) = self.torn(&request) {
            return reply;
        }
        self.make(&request.object, &request.change, &request.terms, &request.call)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        self.check_call(&request.call).and_then(|()| self.model.lock().info(&request.object)).into()
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let entries_max = request.entries_max.clamp(1, self.capabilities().list_entries_max) as usize;
        let listed = self.check_call(&request.call);
        listed.map(|()| self.model.lock().list(&request, entries_max)).into()
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        // The memory is the store, so everything is stored already.
        self.check_call(&request.call).map(|()| FlushReply::new(Durability::Stored)).into()
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        let ClaimRequest { scope, epoch, writer, call } = request;
        let claimed = self.check_call(&call).and_then(|()| self.model.lock().claim(&scope, epoch, writer));
        if claimed == Ok(true) && !self.broken.is(Mutation::ClaimSilent) {
            self.events.publish(&Event::Fenced(scope, epoch));
        }
        claimed.map(|_| ClaimReply::new(epoch)).into()
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        let checked = self.check_call(&request.call);
        if checked.is_ok() && !self.broken.is(Mutation::InvalidateSilent) {
            self.events.publish(&Event::Changed(request.scope));
        }
        checked.map(|()| InvalidateReply::new(0)).into()
    }

    fn subscribe(&self) -> Subscription {
        self.events.subscribe()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Collect for Memory {
    fn collect(&self, into: &mut Families) {
        let model = self.model.lock();
        into.gauge("memory_objects", "Objects in the memory backend.", model.object_count() as u64);
        let help = "What the objects and remembered deletions of the memory backend count against its limit.";
        into.gauge("memory_used_bytes", help, model.used_bytes);
        into.counter("memory_changes_total", "Changes made in the memory backend.", model.change_count);
    }
}

impl Control for Memory {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        let epoch = self.model.lock().namespace_epoch(&namespace);
        Reply::ok(Attachment::new(self.capabilities(), epoch))
    }

    fn detach(&self, _namespace: Namespace) -> Reply<()> {
        // The backend holds nothing beside the objects.
        Reply::ok(())
    }

    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        Reply::ok(self.model.lock().quota(&namespace))
    }

    fn set_quota(&self, namespace: Namespace, bytes_max: Option<u64>) -> Reply<()> {
        self.model.lock().set_quota(namespace, bytes_max).into()
    }

    fn metrics(&self) -> Reply<Families> {
        Reply::ok(self.families())
    }

    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        Reply::ok(self.model.lock().namespaces())
    }
}
