//! A store that has lost what it had not stored of an object, by a failed sync say, takes nothing of it as stored until
//! all of it is written in one: the cache does that with what it has, and nothing acknowledged is lost.

mod object_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use object_support::sim::{Handle, Sim};
use object_support::steered::{Op, Steered, Verdict};
use object_support::{KIB, cache, content, fill, id, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    sim: Sim,
    store: Arc<Steered>,
    cache: ObjectCache,
    _running: Handle<()>,
    /// Whether the store has lost something of the object.
    lost: Arc<AtomicBool>,
}

fn world(change: fn(&mut ObjectCacheConfig), limit: fn(&mut Capabilities)) -> World {
    let mut sim = Sim::new(None);
    let store = Steered::new();
    store.limit(limit);
    let mut config = ObjectCacheConfig { dirty_age_max: SECOND, ..small(WriteMode::Back) };
    change(&mut config);
    let cache = cache(Arc::clone(&store) as _, config, &sim.clock);
    let _running = sim.spawn(cache.run());
    let lost = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&lost);
    // As the file store does it: the bytes are written, and the sync says that some were lost.
    store.rule(move |call| match call.op {
        Op::WriteFull | Op::Delete | Op::Invalidate => {
            own.store(false, Ordering::SeqCst);
            Verdict::Pass
        }
        op if op.is_change() && own.load(Ordering::SeqCst) => {
            Verdict::DoAndFail(Error::WritesLost("a sync failed".into()))
        }
        _ => Verdict::Pass,
    });
    World { sim, store, cache, _running, lost }
}

impl World {
    fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        let reply = self.cache.write(WriteRequest::new(id("object"), offset, bytes));
        self.sim.run(reply).unwrap();
    }

    /// All is stored, and the store has `wanted`.
    #[track_caller]
    fn stored(&mut self, wanted: &[u8]) {
        let flush = self.cache.flush(FlushRequest::new(Scope::All));
        self.sim.run(flush).unwrap();
        assert_eq!(self.cache.counters().dirty_bytes, 0);
        assert_eq!(self.cache.counters().lost_objects, 0);
        self.cache.validate().unwrap();
        same(&content(self.store.memory(), &id("object")).unwrap(), wanted, "stored");
        let len = self.cache.capabilities().request_bytes_max.min(1 << 20);
        let read = self.cache.read(ReadRequest::new(id("object"), 0, len));
        same(&self.sim.run(read).unwrap().data.to_vec(), &wanted[..wanted.len().min(len as usize)], "read");
    }
}

fn put(all: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    all.resize(all.len().max(offset + bytes.len()), 0);
    all[offset..offset + bytes.len()].copy_from_slice(bytes);
}

#[test]
fn one_failed_sync_loses_nothing_and_is_over_with_the_next_flush() {
    let mut world = world(|_| (), |_| ());
    let mut wanted = pattern(1, 0, 20_000);
    fill(world.store.memory(), &id("object"), wanted.clone());
    world.write(5000, pattern(2, 5000, 3000));
    put(&mut wanted, 5000, &pattern(2, 5000, 3000));
    world.lost.store(true, Ordering::SeqCst);
    world.stored(&wanted);
    assert_eq!(world.store.count(Op::WriteFull), 1);
    assert!(world.cache.counters().flush_failures > 0);
    // Later changes go as they always do.
    world.store.clear_log();
    world.write(0, pattern(3, 0, 10));
    put(&mut wanted, 0, &pattern(3, 0, 10));
    world.stored(&wanted);
    assert_eq!(world.store.count(Op::WriteFull), 0);
}

#[test]
fn what_is_changed_after_the_failure_is_stored_with_it() {
    let mut world = world(|_| (), |_| ());
    fill(world.store.memory(), &id("object"), pattern(1, 0, 20_000));
    world.write(8192, pattern(2, 8192, 8192));
    world.lost.store(true, Ordering::SeqCst);
    let deadline = world.sim.clock.now() + Duration::from_millis(5);
    let flush = world.cache.flush(FlushRequest::new(Scope::All).deadline(deadline));
    let told = world.sim.run(flush).unwrap_err();
    assert!(matches!(told, Error::NotStored(_)), "{told}");
    let cut = world.cache.truncate(TruncateRequest::new(id("object"), 9000));
    world.sim.run(cut).unwrap();
    world.write(15_000, pattern(3, 15_000, 100));
    let zeros = world.cache.write_zeroes(WriteZeroesRequest::new(id("object"), 4096, 4096));
    world.sim.run(zeros).unwrap();
    let mut wanted = pattern(1, 0, 9000);
    put(&mut wanted, 8192, &pattern(2, 8192, 808));
    put(&mut wanted, 4096, &[0; 4096]);
    put(&mut wanted, 15_000, &pattern(3, 15_000, 100));
    world.stored(&wanted);
}

#[test]
fn an_object_larger_than_a_request_is_stored_as_well() {
    let mut world = world(|_| (), |capabilities| capabilities.request_bytes_max = 16 * KIB);
    let mut wanted = pattern(1, 0, 100_000);
    fill(world.store.memory(), &id("object"), wanted.clone());
    world.write(50_000, pattern(2, 50_000, 9000));
    put(&mut wanted, 50_000, &pattern(2, 50_000, 9000));
    world.lost.store(true, Ordering::SeqCst);
    world.stored(&wanted);
    assert_eq!(world.store.count(Op::WriteFull), 0, "in parts it would not be all or nothing");
    assert_eq!(world.store.count(Op::Invalidate), 1);
}

#[test]
fn nothing_of_another_writer_is_written_over() {
    let mut world = world(|_| (), |_| ());
    let mut wanted = pattern(1, 0, 20_000);
    fill(world.store.memory(), &id("object"), wanted.clone());
    world.write(0, pattern(2, 0, 4096));
    put(&mut wanted, 0, &pattern(2, 0, 4096));
    // The first attempt to write all of it is held, and another writer comes between.
    let (fulls, writes) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    world.store.rule(move |call| match call.op {
        Op::WriteFull if fulls.fetch_add(1, Ordering::SeqCst) == 0 => Verdict::Hold,
        Op::Write | Op::WriteRuns if writes.fetch_add(1, Ordering::SeqCst) == 0 => {
            Verdict::DoAndFail(Error::WritesLost("a sync failed".into()))
        }
        _ => Verdict::Pass,
    });
    let flush = world.sim.spawn(world.cache.flush(FlushRequest::new(Scope::All)));
    world.sim.advance(SECOND);
    assert_eq!(world.store.held().len(), 1);
    let theirs = WriteRequest::new(id("object"), 10_000, pattern(3, 10_000, 500));
    blocker::executor::block_on(world.store.memory().write(theirs)).unwrap();
    put(&mut wanted, 10_000, &pattern(3, 10_000, 500));
    world.store.answer_all();
    world.sim.wait(flush).unwrap();
    same(&content(world.store.memory(), &id("object")).unwrap(), &wanted, "both writers' bytes");
}

#[test]
fn an_object_made_anew_is_restored() {
    let mut world = world(|_| (), |_| ());
    world.lost.store(true, Ordering::SeqCst);
    world.write(6000, pattern(2, 6000, 3000));
    let mut wanted = vec![0; 6000];
    put(&mut wanted, 6000, &pattern(2, 6000, 3000));
    world.stored(&wanted);
}

#[test]
fn a_store_that_does_not_answer_does_not_keep_an_object_for_ever() {
    let mut world = world(|config| config.flush_timeout = 5 * SECOND, |_| ());
    // Asked once, it says nothing until the time is up, as the contract has it.
    let is_first = Arc::new(AtomicBool::new(true));
    world.store.rule(move |call| match call.op {
        Op::Write | Op::WriteRuns if is_first.swap(false, Ordering::SeqCst) => {
            assert!(call.deadline.is_some(), "a request without an end");
            Verdict::DoAndFail(Error::OutcomeUnknown("the deadline passed".into()))
        }
        _ => Verdict::Pass,
    });
    world.write(0, pattern(1, 0, 100));
    world.stored(&pattern(1, 0, 100));
}
