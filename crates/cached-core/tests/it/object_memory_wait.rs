//! Waiting for memory: a waiting task continues when memory becomes free.

use std::sync::Arc;

use blocker::*;
use test_kit::sim::Sim;
use test_kit::steered::{Op, SteeredStore};
use test_kit::{BUCKET, SMALL_BUCKETS, cache, fill, id, pattern, same, small};

#[test]
fn a_writer_gets_the_buckets_that_a_load_had_held() {
    let (mut sim, store) = (Sim::new(None), SteeredStore::new());
    let (read, written) = (id("read"), id("written"));
    fill(store.memory(), &read, pattern(1, 0, (SMALL_BUCKETS * BUCKET) as usize));
    let (cache, background) = cache(Arc::clone(&store) as _, small(WriteMode::Back), &sim.clock);
    let _running = sim.spawn(background);
    sim.run(cache.write(WriteRequest::new(written.clone(), 0, b"known"))).unwrap();
    sim.run(cache.flush(FlushRequest::new(Scope::All))).unwrap();
    // One object occupies the whole memory, and the store is asked about the object.
    for at in 0..SMALL_BUCKETS {
        sim.run(cache.read(ReadRequest::new(read.clone(), at * BUCKET, BUCKET))).unwrap();
    }
    store.hold(&[Op::Info]);
    let asking = sim.spawn(cache.info(InfoRequest::new(read.clone())));
    sim.run_until_idle();
    assert_eq!(store.held().len(), 1, "the object is being asked for");
    let bytes = pattern(2, 0, 16 * BUCKET as usize);
    let writing = sim.spawn(cache.write(WriteRequest::new(written.clone(), 0, bytes.clone())));
    sim.run_until_idle();
    assert!(!writing.is_done(), "there was room all the same: this proves nothing");
    store.answer_all();
    sim.run_until_idle();
    asking.get().unwrap();
    writing.take().expect("the buckets can be had, and the writer was not woken").unwrap();
    let found = sim.run(cache.read(ReadRequest::new(written, 0, 16 * BUCKET))).unwrap();
    same(&found.data.to_vec(), &bytes, "written");
    cache.validate().unwrap();
}
