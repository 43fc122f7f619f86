//! Counters by namespace: their sums equal the counters of the whole cache, and the number of
//! namespaces is bounded.

mod dirty_limits;
mod memory_shares;
mod quota;
mod rates;

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::block_on;
use blocker::*;
use cached_core::object::{NamespaceCounters, ObjectCache};

fn object(namespace: &str, name: &str) -> ObjectId {
    format!("{namespace}/{name}").parse().expect("a name")
}

fn of<'a>(all: &'a [NamespaceCounters], name: &str) -> &'a NamespaceCounters {
    let is = |one: &&NamespaceCounters| one.namespace.as_ref().is_some_and(|own| own.to_string() == name);
    all.iter().find(is).unwrap_or_else(|| panic!("no {name} in {all:?}"))
}

/// Returns a cache over a store in memory, whose namespace `back` is in write-back mode; its
/// background does not run.
fn cache(clock: &Arc<ManualClock>) -> ObjectCache {
    let store = test_kit::memory(clock);
    let back = Namespace::new("back").expect("a name");
    let cache = ObjectCache::builder(Arc::new(store)).memory_bytes(64 << 20).clock(Arc::clone(clock) as _);
    let (cache, background) = cache.namespace_write_mode(back, WriteMode::Back).build().expect("a cache");
    drop(background);
    cache
}

#[test]
fn each_namespace_has_its_own_counts_and_the_oldest_change_its_age() {
    let clock = Arc::new(ManualClock::new());
    clock.advance(Duration::from_secs(1));
    let cache = cache(&clock);
    let write = |namespace: &str, name: &str, bytes: usize| {
        let request = WriteRequest::new(object(namespace, name), 0, vec![1; bytes]);
        block_on(cache.write(request)).expect("it is written")
    };
    write("back", "old", 4096);
    clock.advance(Duration::from_secs(7));
    write("back", "young", 2 * 4096);
    write("through", "a", 4096);
    let read =
        |namespace: &str, name: &str| block_on(cache.read(ReadRequest::new(object(namespace, name), 0, 10)));
    (0..3).for_each(|_| _ = read("back", "old").expect("it is there"));
    read("through", "none").expect_err("it is missing");
    let all = cache.namespaces();
    let (back, through) = (of(&all, "back"), of(&all, "through"));
    assert_eq!((back.objects, back.cached_bytes, back.dirty_bytes), (2, 3 * 4096, back.dirty_bytes));
    // A new object also takes space for its creation.
    assert_eq!(back.dirty_bytes, cache.counters().dirty_bytes);
    assert!(back.dirty_bytes >= 3 * 4096);
    assert_eq!((back.dirty_age, back.write_mode), (Duration::from_secs(7), WriteMode::Back));
    assert_eq!((back.read_hits, back.read_misses, back.writes), (3, 0, [2, 0, 0, 0]));
    assert_eq!((through.dirty_bytes, through.dirty_age), (0, Duration::ZERO));
    assert_eq!((through.read_hits, through.read_misses, through.write_mode), (0, 1, WriteMode::Through));
    assert_eq!(through.writes.iter().sum::<u64>(), 1, "{through:?}");
    let total = cache.counters();
    assert_eq!((total.objects, total.read_hits, total.read_misses), (4, 3, 1));
    assert_eq!((total.writes_back, total.writes_through), (2, 1));
    cache.validate().expect("all is in order");
}

#[test]
fn namespaces_beyond_the_first_are_counted_together() {
    let cache = cache(&Arc::new(ManualClock::new()));
    for n in 0..4100 {
        let request = WriteRequest::new(object(&format!("n{n}"), "a"), 0, vec![1; 10]);
        block_on(cache.write(request)).expect("it is written");
    }
    let all = cache.namespaces();
    // The configured namespace, which is empty, has its own number, too.
    assert_eq!(all.len(), 4097);
    let others = all.iter().find(|one| one.namespace.is_none()).expect("the others");
    assert_eq!(others.objects, 4100 - 4095);
    assert_eq!(all.iter().map(|one| one.objects).sum::<u64>(), cache.counters().objects);
    assert_eq!(all.iter().map(|one| one.writes.iter().sum::<u64>()).sum::<u64>(), 4100);
}
