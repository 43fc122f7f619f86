//! Writes lost by the store: after a failed sync, for example, a store accepts no flush of the
//! object until a single request has written the whole object. The cache makes this request, and no
//! acknowledged data are lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore, Verdict};
use test_kit::{KIB, cache, content, fill, id, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    _running: Handle<()>,
    /// Whether the store has lost writes of the object.
    lost: Arc<AtomicBool>,
}

fn environment(change: fn(&mut ObjectCacheConfig), limit: fn(&mut Capabilities)) -> Environment {
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    store.limit(limit);
    let mut config = ObjectCacheConfig { dirty_age_max: SECOND, ..small(WriteMode::Back) };
    change(&mut config);
    let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
    let _running = sim.spawn(background);
    let lost = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&lost);
    // This is how the file store behaves: the bytes are written, and the sync reports that some
    // were lost.
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
    Environment { sim, store, cache, _running, lost }
}

impl Environment {
    fn write(&mut self, offset: u64, bytes: Vec<u8>) {
        let reply = self.cache.write(WriteRequest::new(id("object"), offset, bytes));
        self.sim.run(reply).unwrap();
    }

    /// Asserts that everything is stored, and that the store has `wanted`.
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
fn one_failed_sync_loses_nothing_and_is_repaired_by_the_next_flush() {
    let mut env = environment(|_| (), |_| ());
    let mut wanted = pattern(1, 0, 20_000);
    fill(env.store.memory(), &id("object"), wanted.clone());
    env.write(5000, pattern(2, 5000, 3000));
    put(&mut wanted, 5000, &pattern(2, 5000, 3000));
    env.lost.store(true, Ordering::SeqCst);
    env.stored(&wanted);
    assert_eq!(env.store.count(Op::WriteFull), 1);
    assert!(env.cache.counters().flush_failures > 0);
    // Later changes are flushed as usual.
    env.store.clear_log();
    env.write(0, pattern(3, 0, 10));
    put(&mut wanted, 0, &pattern(3, 0, 10));
    env.stored(&wanted);
    assert_eq!(env.store.count(Op::WriteFull), 0);
}

#[test]
fn changes_after_the_failure_are_stored_with_it() {
    let mut env = environment(|_| (), |_| ());
    fill(env.store.memory(), &id("object"), pattern(1, 0, 20_000));
    env.write(8192, pattern(2, 8192, 8192));
    env.lost.store(true, Ordering::SeqCst);
    let deadline = env.sim.clock.now() + Duration::from_millis(5);
    let flush = env.cache.flush(FlushRequest::new(Scope::All).deadline(deadline));
    let told = env.sim.run(flush).unwrap_err();
    assert!(matches!(told, Error::NotStored(_)), "{told}");
    let cut = env.cache.truncate(TruncateRequest::new(id("object"), 9000));
    env.sim.run(cut).unwrap();
    env.write(15_000, pattern(3, 15_000, 100));
    let zeros = env.cache.write_zeroes(WriteZeroesRequest::new(id("object"), 4096, 4096));
    env.sim.run(zeros).unwrap();
    let mut wanted = pattern(1, 0, 9000);
    put(&mut wanted, 8192, &pattern(2, 8192, 808));
    put(&mut wanted, 4096, &[0; 4096]);
    put(&mut wanted, 15_000, &pattern(3, 15_000, 100));
    env.stored(&wanted);
}

#[test]
fn an_object_larger_than_a_request_is_stored_as_well() {
    let mut env = environment(|_| (), |capabilities| capabilities.request_bytes_max = 16 * KIB);
    let mut wanted = pattern(1, 0, 100_000);
    fill(env.store.memory(), &id("object"), wanted.clone());
    env.write(50_000, pattern(2, 50_000, 9000));
    put(&mut wanted, 50_000, &pattern(2, 50_000, 9000));
    env.lost.store(true, Ordering::SeqCst);
    env.stored(&wanted);
    assert_eq!(env.store.count(Op::WriteFull), 0, "in parts it would not be all or nothing");
    assert_eq!(env.store.count(Op::Invalidate), 1);
}

#[test]
fn foreign_writes_are_not_overwritten() {
    let mut env = environment(|_| (), |_| ());
    let mut wanted = pattern(1, 0, 20_000);
    fill(env.store.memory(), &id("object"), wanted.clone());
    env.write(0, pattern(2, 0, 4096));
    put(&mut wanted, 0, &pattern(2, 0, 4096));
    // The first attempt to write the whole object is held, and another writer intervenes.
    let (fulls, writes) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    env.store.rule(move |call| match call.op {
        Op::WriteFull if fulls.fetch_add(1, Ordering::SeqCst) == 0 => Verdict::Hold,
        Op::Write | Op::WriteRuns if writes.fetch_add(1, Ordering::SeqCst) == 0 => {
            Verdict::DoAndFail(Error::WritesLost("a sync failed".into()))
        }
        _ => Verdict::Pass,
    });
    let flush = env.sim.spawn(env.cache.flush(FlushRequest::new(Scope::All)));
    env.sim.advance(SECOND);
    assert_eq!(env.store.held().len(), 1);
    let theirs = WriteRequest::new(id("object"), 10_000, pattern(3, 10_000, 500));
    blocker::executor::block_on(env.store.memory().write(theirs)).unwrap();
    put(&mut wanted, 10_000, &pattern(3, 10_000, 500));
    env.store.answer_all();
    env.sim.wait(flush).unwrap();
    same(&content(env.store.memory(), &id("object")).unwrap(), &wanted, "both writers' bytes");
}

#[test]
fn an_object_created_anew_is_restored() {
    let mut env = environment(|_| (), |_| ());
    env.lost.store(true, Ordering::SeqCst);
    env.write(6000, pattern(2, 6000, 3000));
    let mut wanted = vec![0; 6000];
    put(&mut wanted, 6000, &pattern(2, 6000, 3000));
    env.stored(&wanted);
}

#[test]
fn a_store_that_does_not_answer_does_not_block_an_object_for_ever() {
    let mut env = environment(|config| config.flush_timeout = 5 * SECOND, |_| ());
    // The store gets one request, and does not respond before the deadline.
    let is_first = Arc::new(AtomicBool::new(true));
    env.store.rule(move |call| match call.op {
        Op::Write | Op::WriteRuns if is_first.swap(false, Ordering::SeqCst) => {
            assert!(call.deadline.is_some(), "a request without an end");
            Verdict::DoAndFail(Error::OutcomeUnknown("the deadline passed".into()))
        }
        _ => Verdict::Pass,
    });
    env.write(0, pattern(1, 0, 100));
    env.stored(&pattern(1, 0, 100));
}
