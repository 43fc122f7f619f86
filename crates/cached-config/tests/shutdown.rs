//! The shutdown of a cache: as long as there is time, a failed flush that may succeed is tried again.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::faulty::FaultPlan;
use blocker::{
    Blocker, ClaimRequest, Epoch, Faulty, FlushRequest, Memory, Name, Namespace, ObjectId, Scope,
    SystemClock, WriteMode, WriteRequest, WriterId,
};
use cached_config::store_all;
use cached_core::object::{ObjectCache, ObjectCacheConfig};

const MINUTE: Duration = Duration::from_secs(60);

fn cache(store: Arc<dyn Blocker>) -> ObjectCache {
    let config = ObjectCacheConfig { write: WriteMode::Back, ..ObjectCacheConfig::default() };
    let (cache, background) = ObjectCache::new(store, config, Arc::new(SystemClock)).unwrap();
    std::thread::spawn(move || block_on(background));
    cache
}

#[test]
fn a_retryable_error_is_tried_again_even_if_nothing_is_dirty() {
    let mut plan = FaultPlan::benign(3);
    plan.error_permille = 700;
    let store = Arc::new(Faulty::new(Arc::new(Memory::default()), plan, Arc::new(SystemClock)));
    let cache = cache(Arc::clone(&store) as _);
    let mut tries = 0;
    // Most of the first tries fail, so that some of ten shutdowns take several.
    for _ in 0..10 {
        let before = store.steps();
        block_on(store_all(&cache, MINUTE)).unwrap();
        tries += store.steps() - before;
    }
    assert!(tries > 10, "no flush has failed: nothing was tested");
}

#[test]
fn an_earlier_loss_is_reported_at_shutdown() {
    let store = Arc::new(Memory::default());
    let cache = cache(Arc::clone(&store) as _);
    let object = ObjectId::new(Namespace::new("n").unwrap(), Name::new("object").unwrap());
    block_on(cache.write(WriteRequest::new(object.clone(), 0, b"acknowledged"))).unwrap();
    block_on(store.claim(ClaimRequest::new(Scope::All, Epoch(1), WriterId(1)))).unwrap();
    block_on(cache.flush(FlushRequest::new(Scope::Object(object)))).unwrap_err();
    assert_eq!(cache.counters().dirty_bytes, 0);
    let unfinished = block_on(store_all(&cache, MINUTE)).unwrap_err();
    assert!(unfinished.dirty_bytes > 0 && unfinished.why.contains("n/object"), "{unfinished}");
}
