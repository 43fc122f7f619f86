//! Overlapping requests and edge cases: a load, flush, copy or removal concurrent with another
//! request for the same object.
//!
//! The test controls each call of the store below: when and in which order calls are performed,
//! answered or fail. The clock advances only when a test advances it.

mod memory;
mod overlaps;
mod sizes;

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::ObjectCache;
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore, Verdict};
use test_kit::{BUCKET, KIB, cache, content, fill, id, namespace, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    /// The background task.
    running: Handle<()>,
}

impl Environment {
    fn new(write: WriteMode) -> Self {
        Self::with(small(write), |_| ())
    }

    fn with(config: cached_core::object::ObjectCacheConfig, prepare: impl FnOnce(&Memory)) -> Self {
        Self::over(SteeredStore::new(), config, prepare)
    }

    fn over(
        store: Arc<SteeredStore>,
        config: cached_core::object::ObjectCacheConfig,
        prepare: impl FnOnce(&Memory),
    ) -> Self {
        let mut sim = Sim::new(None);
        prepare(store.memory());
        let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
        let running = sim.spawn(background);
        Self { sim, store, cache, running }
    }

    fn write(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) -> Handle<Result<ChangeReply>> {
        self.sim.spawn(self.cache.write(WriteRequest::new(object.clone(), offset, bytes)))
    }

    #[track_caller]
    fn written(&mut self, object: &ObjectId, offset: u64, bytes: Vec<u8>) -> ChangeReply {
        let handle = self.write(object, offset, bytes);
        self.sim.wait(handle).unwrap()
    }

    fn read(&mut self, object: &ObjectId, offset: u64, len: u64) -> Handle<Result<ReadReply>> {
        self.sim.spawn(self.cache.read(ReadRequest::new(object.clone(), offset, len)))
    }

    #[track_caller]
    fn read_now(&mut self, object: &ObjectId, offset: u64, len: u64) -> Vec<u8> {
        let handle = self.read(object, offset, len);
        self.sim.wait(handle).unwrap().data.to_vec()
    }

    fn flush(&mut self, scope: Scope) -> Handle<Result<FlushReply>> {
        self.sim.spawn(self.cache.flush(FlushRequest::new(scope)))
    }

    #[track_caller]
    fn flushed(&mut self) {
        let handle = self.flush(Scope::All);
        self.sim.wait(handle).unwrap();
        self.validate();
    }

    #[track_caller]
    fn validate(&self) {
        self.cache.validate().unwrap_or_else(|why| panic!("validate: {why}"));
    }

    fn stored(&self, object: &ObjectId) -> Option<Vec<u8>> {
        content(self.store.memory(), object)
    }

    /// Asserts that no call waits in the store, and that cache and store agree on the object.
    #[track_caller]
    fn agrees(&mut self, object: &ObjectId) {
        self.store.open();
        self.flushed();
        let stored = self.stored(object);
        let handle = self.read(object, 0, 4 << 20);
        match self.sim.wait(handle) {
            Ok(reply) => same(&reply.data.to_vec(), &stored.expect("stored as well"), "cache and store"),
            Err(error) => assert!(error == Error::Missing && stored.is_none(), "{error}, {stored:?}"),
        }
        self.validate();
    }

    fn info(&mut self, object: &ObjectId) -> Result<Info> {
        let handle = self.sim.spawn(self.cache.info(InfoRequest::new(object.clone())));
        self.sim.wait(handle)
    }

    #[track_caller]
    fn names(&mut self) -> Vec<(String, u64)> {
        let request = ListRequest::new(namespace("ns"));
        let handle = self.sim.spawn(self.cache.list(request));
        let page = self.sim.wait(handle).unwrap();
        page.entries.iter().map(|entry| (entry.name.to_string(), entry.size_bytes)).collect()
    }
}

fn object_scope(object: &ObjectId) -> Scope {
    Scope::Object(object.clone())
}
