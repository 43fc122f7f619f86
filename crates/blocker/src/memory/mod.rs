//! The memory backend: the model of the contract.
//!
//! There is one map under one lock; every operation is one critical section, and its reply is ready
//! immediately. As the *store* of its process, the backend counts everything as *stored*, although
//! stored data survive no failure ([`Survives::Nothing`](crate::Survives)). The code is written to
//! be easy to check, not fast.

mod model;
#[cfg(test)]
mod mutation_tests;

use std::fmt;
use std::sync::Arc;

use cached_metrics::{Collect, Families};
use parking_lot::Mutex;

use crate::{
    Attachment, Blocker, Capabilities, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Clock, Control,
    Durability, Error, Event, EventHub, FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply,
    InvalidateRequest, ListReply, ListRequest, Namespace, OBJECT_BYTES_MAX_DEFAULT, Quota, ReadReply,
    ReadRequest, Reply, Subscription, SystemClock,
};

use model::Model;

/// The limits of a memory backend, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct MemoryConfig {
    /// The largest object.
    pub object_bytes_max: u64,
    /// The capacity for all objects and remembered deletions together, each counted with its name
    /// and [`OBJECT_OVERHEAD_BYTES`].
    pub bytes_max: u64,
}

/// The charge for an object, or a remembered deletion, in addition to its content and name, in
/// bytes.
pub const OBJECT_OVERHEAD_BYTES: u64 = 256;

/// The maximum number of runs of one change.
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
    /// The objects. A layer may keep its live state here.
    pub(crate) model: Mutex<Model>,
    events: EventHub,
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
        Self { config, clock, model: Mutex::new(Model::new(config)), events: EventHub::new() }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Blocker for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities { runs_max: RUNS_MAX, ..Capabilities::full(self.config.object_bytes_max) }
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        let ReadRequest { object, offset, len_bytes, condition, call } = request;
        let read = |()| self.model.lock().read(&object, offset, len_bytes, condition);
        call.check(&*self.clock).and_then(read).into()
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        let ChangeRequest { object, change, terms, call, .. } = &request;
        let done = call.check(&*self.clock).and_then(|()| self.model.lock().change(object, change, terms));
        if matches!(done, Err(Error::OutOfSpace(_))) {
            self.events.publish(&Event::Full);
        }
        done.map(|(version, size_bytes)| ChangeReply::new(version, size_bytes, Durability::Stored)).into()
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        request.call.check(&*self.clock).and_then(|()| self.model.lock().info(&request.object)).into()
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let entries_max = request.entries_max.clamp(1, self.capabilities().list_entries_max) as usize;
        let listed = request.call.check(&*self.clock);
        listed.map(|()| self.model.lock().list(&request, entries_max)).into()
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        // The memory is the store, so everything is already stored.
        request.call.check(&*self.clock).map(|()| FlushReply::new(Durability::Stored)).into()
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        let ClaimRequest { scope, epoch, writer, call } = request;
        let claimed = call.check(&*self.clock).and_then(|()| self.model.lock().claim(&scope, epoch, writer));
        if claimed == Ok(true) {
            self.events.publish(&Event::Fenced(scope, epoch));
        }
        claimed.map(|_| ClaimReply::new(epoch)).into()
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        let checked = request.call.check(&*self.clock);
        if checked.is_ok() {
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
        let help = "The bytes that the objects and remembered deletions of the memory backend count against its limit.";
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
        // The backend has no data besides the objects.
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
