//! A cache over a controlled store, with its background task, in a simulator.

use std::sync::Arc;

use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig};

use crate::sim::{Handle, Sim};
use crate::steered::{CallInfo, Op, SteeredStore, Verdict};
use crate::{BUCKET, SMALL_BUCKETS, cache, content, fill, namespace, pattern, same};

/// See the module.
pub struct CacheEnvironment {
    /// The simulator.
    pub sim: Sim,
    /// The store below the cache.
    pub store: Arc<SteeredStore>,
    /// The cache.
    pub cache: ObjectCache,
    /// The background's task.
    pub running: Handle<()>,
}

impl CacheEnvironment {
    /// Creates a cache over an empty store.
    pub fn new(config: ObjectCacheConfig) -> Self {
        Self::over(SteeredStore::new(), config)
    }

    /// Creates a cache over `store`.
    pub fn over(store: Arc<SteeredStore>, config: ObjectCacheConfig) -> Self {
        let mut sim = Sim::new(None);
        let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
        let running = sim.spawn(background);
        Self { sim, store, cache, running }
    }

    /// Writes a whole object directly to the store, as another client would.
    pub fn others_write(&self, object: &ObjectId, bytes: Vec<u8>) {
        fill(self.store.memory(), object, bytes);
    }

    /// Deletes an object directly in the store, as another client would.
    pub fn others_delete(&self, object: &ObjectId) {
        let delete = self.store.memory().delete(DeleteRequest::new(object.clone()));
        executor::block_on(delete).unwrap();
    }

    /// Returns the content of an object in the store; `None` if it does not exist.
    pub fn stored(&self, object: &ObjectId) -> Option<Vec<u8>> {
        content(self.store.memory(), object)
    }

    /// Starts a write.
    pub fn write(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) -> Handle<Result<ChangeReply>> {
        self.sim.spawn(self.cache.write(WriteRequest::new(object.clone(), offset, bytes)))
    }

    /// Writes to an object. The reply must be ready without any time passing.
    #[track_caller]
    pub fn written(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) -> ChangeReply {
        let write = self.write(object, offset, bytes);
        self.at_once(write).unwrap()
    }

    /// Starts a read.
    pub fn read(&mut self, object: &ObjectId, offset: u64, len: u64) -> Handle<Result<ReadReply>> {
        self.sim.spawn(self.cache.read(ReadRequest::new(object.clone(), offset, len)))
    }

    /// Returns the bytes of an object. The reply must be ready without any time passing.
    #[track_caller]
    pub fn bytes(&mut self, object: &ObjectId, offset: u64, len: u64) -> Vec<u8> {
        let read = self.read(object, offset, len);
        self.at_once(read).unwrap().data.to_vec()
    }

    /// Starts a truncate.
    pub fn truncate(&mut self, object: &ObjectId, size: u64) -> Handle<Result<ChangeReply>> {
        self.sim.spawn(self.cache.truncate(TruncateRequest::new(object.clone(), size)))
    }

    /// Starts a copy.
    pub fn copy(&mut self, from: &ObjectId, to: &ObjectId) -> Handle<Result<ChangeReply>> {
        self.sim.spawn(self.cache.copy(CopyRequest::new(from.clone(), to.clone())))
    }

    /// Starts a flush of an object.
    pub fn flush(&mut self, object: &ObjectId) -> Handle<Result<FlushReply>> {
        self.sim.spawn(self.cache.flush(FlushRequest::new(Scope::Object(object.clone()))))
    }

    /// Flushes an object. The reply must be ready without any time passing.
    #[track_caller]
    pub fn flushed(&mut self, object: &ObjectId) {
        let flush = self.flush(object);
        self.at_once(flush).unwrap();
    }

    /// Starts an invalidation of an object.
    pub fn invalidate(&mut self, object: &ObjectId) -> Handle<Result<InvalidateReply>> {
        self.sim.spawn(self.cache.invalidate(InvalidateRequest::new(Scope::Object(object.clone()))))
    }

    /// Invalidates an object. The reply must be ready without any time passing.
    #[track_caller]
    pub fn invalidated(&mut self, object: &ObjectId) {
        let invalidate = self.invalidate(object);
        self.at_once(invalidate).unwrap();
    }

    /// Returns the result of a task, which must be ready without any time passing.
    #[track_caller]
    pub fn at_once<T>(&mut self, handle: Handle<T>) -> T {
        self.sim.run_until_idle();
        handle.take().expect("an answer at once")
    }

    /// Holds calls of this kind for this object from now on.
    pub fn hold(&self, op: Op, object: &ObjectId) {
        let object = object.clone();
        self.store.rule(move |call| match call.op == op && call.object.as_ref() == Some(&object) {
            true => Verdict::Hold,
            false => Verdict::Pass,
        });
    }

    /// Performs the held calls without answering them; returns them.
    pub fn perform_held(&self) -> Vec<CallInfo> {
        let held = self.store.held();
        held.iter().for_each(|call| self.store.perform(call.number));
        held
    }

    /// Returns the number of calls of this kind for this object.
    pub fn calls(&self, op: Op, object: &ObjectId) -> usize {
        self.store.log().iter().filter(|call| call.op == op && call.object.as_ref() == Some(object)).count()
    }

    /// Reads enough other data to evict everything that can be evicted.
    pub fn evict_all(&mut self) {
        for n in 0..2 {
            let name = Name::copy_from(format!("filler-{n}").as_bytes()).unwrap();
            let other = ObjectId::new(namespace("others"), name);
            self.others_write(&other, pattern(99, 0, (SMALL_BUCKETS * BUCKET) as usize));
            for at in 0..SMALL_BUCKETS {
                self.bytes(&other, at * BUCKET, BUCKET);
            }
        }
    }

    /// Asserts that the cache and the store agree on an object after everything is stored, and that
    /// the cache's invariants hold.
    #[track_caller]
    pub fn agrees(&mut self, object: &ObjectId) {
        self.store.open();
        let flush = self.flush(object);
        self.sim.wait(flush).unwrap();
        self.validate();
        let stored = self.stored(object);
        let read = self.read(object, 0, 4 << 20);
        match self.at_once(read) {
            Ok(reply) => same(&reply.data.to_vec(), &stored.expect("stored as well"), "cache and store"),
            Err(error) => assert!(error == Error::Missing && stored.is_none(), "{error}, {stored:?}"),
        }
        self.validate();
    }

    /// Asserts that the cache's invariants hold.
    #[track_caller]
    pub fn validate(&self) {
        self.cache.validate().unwrap_or_else(|why| panic!("validate: {why}"));
    }
}
