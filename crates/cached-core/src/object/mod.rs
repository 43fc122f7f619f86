//! The object cache: RAM speed in front of a slow store. An [`ObjectCache`] is a
//! [`Blocker`] over a [`Blocker`].
//!
//! Follow one read by opening files in this order: this one ([`ObjectCache`]'s `read`), `index.rs` (name →
//! object), `serial.rs` (a turn with the object), `object.rs` (slots → bytes), `slots.rs` and `pool.rs` (what
//! a slot and a bucket are); on a miss `read.rs`, `ranges.rs` (once for all who wait), `load.rs` (the store).
//!
//! And one write: `back.rs` (applied here, acknowledged as *cached*), then, later, `registry.rs` (what waits
//! to be stored), `runner.rs` (when), `flush_plan.rs` (what), `flush.rs` (sent). Or `through.rs`: the store
//! first. What can go when memory is needed: `queue.rs`.
//!
//! ```
//! use std::sync::Arc;
//! use blocker::{Blocker, Memory, Name, Namespace, ObjectId, ReadRequest, SystemClock, WriteRequest};
//! use cached_core::object::{ObjectCache, ObjectCacheConfig};
//!
//! let store = Arc::new(Memory::default());
//! let cache = ObjectCache::new(store, ObjectCacheConfig::default(), Arc::new(SystemClock))?;
//! let background = cache.run();
//! std::thread::spawn(move || blocker::executor::block_on(background));
//!
//! let disk = ObjectId::new(Namespace::new("vm")?, Name::new("disk.0")?);
//! blocker::executor::block_on(async {
//!     cache.write(WriteRequest::new(disk.clone(), 0, b"hello")).await?;
//!     assert_eq!(cache.read(ReadRequest::new(disk, 1, 3)).await?.data.to_vec(), b"ell");
//!     Ok::<_, blocker::Error>(())
//! })?;
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```

mod back;
mod bridging;
mod config;
mod copy;
mod doubt;
mod flush;
mod flush_plan;
mod gauges;
mod handle;
mod hooks;
mod index;
mod label;
mod landing;
mod load;
mod losses;
mod metrics;
mod order;
mod owner;
mod pool;
mod queue;
mod ranges;
mod read;
mod registry;
mod restore;
mod runner;
mod serial;
mod shared;
mod slots;
mod state;
mod through;
mod validate;
mod versions;
mod wait;
mod waiter;
mod whole;

use std::future::Future;
use std::sync::Arc;

use blocker::admission::{range_end, runs_end};
use blocker::{
    Blocker, Call, Capabilities, Change, ChangeReply, ClaimReply, ClaimRequest, Clock,
    CompareAndWriteRequest, Condition, Control, CopyRequest, DeleteReply, DeleteRequest, DiscardRequest,
    Durability, Error, FlushReply, FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest,
    ListReply, ListRequest, ObjectId, ReadReply, ReadRequest, Reply, Result, Subscription, TruncateRequest,
    WriteFullRequest, WriteMode, WriteRequest, WriteRunsRequest, WriteZeroesRequest,
};

pub use config::{
    ConfigError, MEMORY_BYTES_MIN, NamespaceConfig, OBJECT_BYTES_LIMIT, ObjectCacheConfig, Writer,
};
pub use gauges::Counters;
pub use hooks::Hooks;
pub use landing::Landing;
pub use losses::{LostObject, LostWrites};

use back::{Mutation, is_too_large};
use index::Index;
use pool::Pool;
use queue::Queues;
use shared::Shared;
use state::{Env, LINES_READ, Object};

/// A cache of objects before a store. Cheap to clone; all clones are the same cache.
///
/// What each write mode promises, what is lost when, and how it behaves when the store does not: the
/// contract's words hold ([`Blocker`]), with *cached* meaning the memory of this process.
///
/// [`Self::run`] must be polled as long as the cache is used.
#[derive(Clone)]
pub struct ObjectCache {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.background.close();
    }
}

impl ObjectCache {
    /// A cache over `below`, empty. Deadlines, ages and delays are by `clock`, which must be the callers'.
    ///
    /// # Errors
    /// The first key of `config` that cannot work, or the memory that cannot be had.
    pub fn new(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, ConfigError> {
        Self::with_hooks(below, config, clock, Arc::new(hooks::NoHooks))
    }

    /// As [`Self::new`], watched by `hooks`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_hooks(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
        hooks: Arc<dyn Hooks>,
    ) -> Result<Self, ConfigError> {
        config.check(&below.capabilities())?;
        let memory = |why: String| ConfigError { key: "memory_bytes_max", why };
        // What the policy remembers of evicted buckets is taken out of the memory.
        let buckets = u32::try_from(config.memory_bytes_max / blocker::BUCKET_BYTES)
            .map_err(|_| memory("must be below 16 TiB".into()))?;
        let policy = ConfigError { key: "eviction_policy", why: "is not known".into() };
        let remembered = Queues::new(&config.eviction_policy, buckets).ok_or(policy.clone())?.policy_bytes();
        let bytes = config.memory_bytes_max.saturating_sub(remembered as u64);
        let pool = Pool::new(bytes, config.huge_pages).map_err(|error| memory(error.to_string()))?;
        let queues = Queues::new(&config.eviction_policy, pool.count()).ok_or(policy)?;
        let objects =
            |error: std::io::Error| ConfigError { key: "objects_count_max", why: error.to_string() };
        let index = Index::new(config.objects_count_max).map_err(objects)?;
        let shared = Shared::new(below, config, clock, hooks, pool, queues, index);
        Ok(Self { inner: Arc::new(Inner { shared: Arc::new(shared) }) })
    }

    /// The background: flushes by age and need, hears news from below, and ends what has lost its caller.
    /// To be spawned once, on any executor; it does not block. It ends when the last handle of the cache is
    /// dropped; what is dirty then is lost, so [flush](Blocker::flush) before.
    pub fn run(&self) -> impl Future<Output = ()> + Send + 'static {
        runner::Runner::new(Arc::clone(&self.inner.shared))
    }

    /// What the cache holds and has done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared().counters()
    }

    /// What has been acknowledged as *cached*, can never be stored, and has not been made good yet. Every flush that
    /// covers any of it answers [`Error::WritesLost`] until the objects are written in full or deleted, or the scope
    /// is invalidated.
    #[must_use]
    pub fn lost(&self) -> LostWrites {
        self.shared().losses.all()
    }

    /// Walks every invariant. Operations may wait for the store meanwhile, none may be inside the cache.
    ///
    /// # Errors
    /// The first that does not hold.
    pub fn validate(&self) -> Result<(), String> {
        self.shared().validate()
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// A change of one object, once its limits have been checked.
    fn change(
        &self,
        id: ObjectId,
        mutation: Mutation,
        change: Change,
        call: Call,
        end: Result<u64>,
    ) -> Reply<ChangeReply> {
        let shared = self.shared();
        if let Err(error) = end.and_then(|_| shared.check_change(&change, call)) {
            return Reply::err(error);
        }
        let hash = shared.hash(&id);
        let is_back = shared.write_policy(&id.namespace) == WriteMode::Back
            && change.stamp.is_none()
            && !is_too_large(shared, &mutation);
        if !is_back {
            let shared = Arc::clone(shared);
            return Reply::pending(through::change(shared, id, hash, mutation, change, call));
        }
        if change.durability == Durability::Cached
            && let Some(answer) = shared.apply_at_once(&id, hash, &mutation, &change)
        {
            return Reply::Ready(answer);
        }
        Reply::pending(back::change(Arc::clone(shared), id, hash, mutation, change, call))
    }

    fn end(&self, offset: u64, len: u64) -> Result<u64> {
        let limit = self.shared().request_bytes_max();
        if len > limit {
            return Err(Error::TooLarge { limit_bytes: limit });
        }
        range_end(offset, len, self.shared().config.object_bytes_max)
    }
}

impl Shared {
    fn request_bytes_max(&self) -> u64 {
        self.can.request_bytes_max
    }

    /// Whether the caller does not wait any more.
    fn is_late(&self, call: Call) -> bool {
        call.deadline.is_some_and(|deadline| self.clock.now() >= deadline)
    }

    /// Whether a change can be made at all, and still.
    fn check_change(&self, change: &Change, call: Call) -> Result<()> {
        if change.stamp.is_some() && !self.fences_callers() {
            return Err(Error::Unsupported(
                "no stamps here: the store has no fencing, or the cache is the writer".into(),
            ));
        }
        if !matches!(change.condition, Condition::None) && !self.can.conditions {
            return Err(Error::Unsupported("the store below has no conditions".into()));
        }
        if change.durability > self.can.durability_max {
            return Err(Error::Unsupported(
                format!("the store below gives {} at most", self.can.durability_max).into(),
            ));
        }
        if self.is_late(call) {
            return Err(Error::DeadlinePassed);
        }
        Ok(())
    }
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
        if request.len_bytes > shared.request_bytes_max() {
            return Reply::err(Error::TooLarge { limit_bytes: shared.request_bytes_max() });
        }
        if !matches!(request.condition, Condition::None) && !shared.can.conditions {
            return Reply::err(Error::Unsupported("the store below has no conditions".into()));
        }
        if shared.is_late(request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        let hash = shared.hash(&request.object);
        let ahead = |object: &Object, env: &Env<'_>| object.prefetch(env, request.offset, LINES_READ);
        let read = |object: &mut Object, env: &Env<'_>| object.read_at_once(env, &request, None);
        if let Some(Some(answer)) = shared.at_once(hash, &request.object, ahead, read) {
            shared.gauges.count_hit(hash);
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
        // What lies past the end is left out, however far the range goes.
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
        if let Err(error) = shared.check_change(&request.change, request.call) {
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
        Reply::pending(copy::copy(Arc::clone(shared), request, hashes))
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        let shared = self.shared();
        if shared.is_late(request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        let hash = shared.hash(&request.object);
        if let Some(Some(answer)) =
            shared.at_once(hash, &request.object, |_, _| (), |object, _| object.info())
        {
            return Reply::Ready(answer);
        }
        Reply::pending(whole::info(Arc::clone(shared), request, hash))
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        if self.shared().is_late(request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        Reply::pending(whole::list(Arc::clone(self.shared()), request))
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        Reply::pending(whole::flush(Arc::clone(self.shared()), request))
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        let shared = self.shared();
        if !shared.fences_callers() {
            return Reply::err(Error::Unsupported(
                "no claims here: the store has no fencing, or the cache is the writer".into(),
            ));
        }
        if shared.is_late(request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        Reply::pending(whole::claim(Arc::clone(shared), request))
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        if self.shared().is_late(request.call) {
            return Reply::err(Error::DeadlinePassed);
        }
        Reply::pending(whole::invalidate(Arc::clone(self.shared()), request))
    }

    fn subscribe(&self) -> Subscription {
        self.shared().hub.subscribe()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}
