//! The cache as the writer of its namespaces: it acknowledges no change before it has claimed the
//! namespace, shares an epoch with no other cache, and refuses changes once another writer has
//! claimed the namespace.

use std::sync::Arc;
use std::time::Duration;

use blocker::admission::EPOCH_STEP_MAX;
use blocker::*;
use cached_core::object::{ObjectCache, ObjectCacheConfig, Writer};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore};
use test_kit::{cache, content, fill, id, namespace, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

/// Several caches over one store.
struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    caches: Vec<ObjectCache>,
    running: Vec<Handle<()>>,
}

fn writer(write: WriteMode) -> ObjectCacheConfig {
    ObjectCacheConfig { dirty_age_max: SECOND, writer: Writer::Cache, ..small(write) }
}

impl Environment {
    /// A silent store reports no claims, like one whose connection is broken.
    fn new(is_silent: bool, count: usize) -> Environment {
        let mut env = Environment {
            sim: Sim::new(None),
            store: SteeredStore::new(),
            caches: Vec::new(),
            running: Vec::new(),
        };
        if is_silent {
            env.store.silence();
        }
        (0..count).for_each(|_| env.start(WriteMode::Back));
        env
    }

    fn start(&mut self, write: WriteMode) {
        let (cache, background) = cache(Arc::clone(&self.store) as _, writer(write), &self.sim.clock);
        self.running.push(self.sim.spawn(background));
        self.caches.push(cache);
    }

    #[track_caller]
    fn write(&mut self, cache: usize, object: &ObjectId, bytes: Vec<u8>) -> Result<ChangeReply> {
        let reply = self.caches[cache].write(WriteRequest::new(object.clone(), 0, bytes));
        self.sim.run(reply)
    }

    #[track_caller]
    fn flush(&mut self, cache: usize, scope: Scope) -> Result<()> {
        let reply = self.caches[cache].flush(FlushRequest::new(scope));
        self.sim.run(reply).map(|_| ())
    }

    #[track_caller]
    fn read(&mut self, cache: usize, object: &ObjectId) -> Vec<u8> {
        let reply = self.caches[cache].read(ReadRequest::new(object.clone(), 0, 1 << 20));
        self.sim.run(reply).unwrap().data.to_vec()
    }

    /// Makes another writer claim the scope without the caches.
    #[track_caller]
    fn take_over(&self, scope: Scope, epoch: u64) {
        let claim = ClaimRequest::new(scope, Epoch(epoch), WriterId(99));
        blocker::executor::block_on(self.store.memory().claim(claim)).unwrap();
    }

    fn in_force(&self) -> u64 {
        let ask = ClaimRequest::ask(Scope::Namespace(namespace("ns")));
        match blocker::executor::block_on(self.store.memory().claim(ask)) {
            Ok(reply) => reply.epoch.0,
            Err(Error::Fenced { epoch }) => epoch.0,
            Err(error) => panic!("{error}"),
        }
    }
}

fn ns() -> Scope {
    Scope::Namespace(namespace("ns"))
}

#[track_caller]
fn refused(answer: Result<ChangeReply>) -> u64 {
    match answer {
        Err(Error::Fenced { epoch }) => epoch.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_deposed_cache_refuses_changes_after_its_first_flush_is_refused() {
    let mut env = Environment::new(true, 1);
    let elsewhere = ObjectId::new(namespace("elsewhere"), id("a").name);
    env.write(0, &id("a"), pattern(1, 0, 5000)).unwrap();
    env.write(0, &elsewhere, pattern(1, 0, 5000)).unwrap();
    env.flush(0, Scope::All).unwrap();
    env.write(0, &id("a"), pattern(2, 0, 5000)).unwrap();
    env.take_over(ns(), 50);
    env.sim.advance(2 * SECOND);
    assert_eq!(env.caches[0].cache_dirty(), 0, "the background has tried");
    for object in [id("a"), id("b")] {
        assert_eq!(refused(env.write(0, &object, pattern(3, 0, 100))), 50);
    }
    let delete = env.caches[0].delete(DeleteRequest::new(id("a")));
    assert!(matches!(env.sim.run(delete), Err(Error::Fenced { .. })));
    for scope in [ns(), Scope::All, Scope::Object(id("a"))] {
        let flushed = env.flush(0, scope);
        assert!(matches!(flushed, Err(Error::WritesLost(_))), "{flushed:?}");
    }
    same(
        &content(env.store.memory(), &id("a")).unwrap(),
        &pattern(1, 0, 5000),
        "nothing came after the claim",
    );
    // The cache is still the writer of the other namespaces.
    env.write(0, &elsewhere, pattern(4, 0, 5000)).unwrap();
    env.flush(0, Scope::Namespace(namespace("elsewhere"))).unwrap();
    assert_eq!(env.caches[0].lost().objects.len(), 1, "what was refused is not lost");
    // After a restart, the cache claims again.
    env.start(WriteMode::Back);
    env.write(1, &id("a"), pattern(5, 0, 5000)).unwrap();
    env.flush(1, Scope::All).unwrap();
    assert_eq!(env.in_force(), 51);
}

trait Dirty {
    fn cache_dirty(&self) -> u64;
}

impl Dirty for ObjectCache {
    fn cache_dirty(&self) -> u64 {
        self.counters().dirty_bytes
    }
}

#[test]
fn a_deposed_cache_that_is_notified_acknowledges_nothing_more() {
    for missed in [false, true] {
        let mut env = Environment::new(false, 1);
        env.write(0, &id("a"), pattern(1, 0, 5000)).unwrap();
        env.flush(0, Scope::All).unwrap();
        env.take_over(ns(), 50);
        if missed {
            for _ in 0..3000 {
                let other = InvalidateRequest::new(Scope::Namespace(namespace("elsewhere")));
                blocker::executor::block_on(env.store.memory().invalidate(other)).unwrap();
            }
        }
        env.sim.run_until_idle();
        assert_eq!(refused(env.write(0, &id("a"), pattern(2, 0, 5000))), 50);
        env.flush(0, Scope::All).unwrap();
        assert_eq!(env.caches[0].counters().lost_objects, 0, "nothing was acknowledged");
    }
}

#[test]
fn changes_of_an_object_taken_over_alone_are_refused_alone() {
    for is_silent in [false, true] {
        let mut env = Environment::new(is_silent, 1);
        for name in ["taken", "kept"] {
            env.write(0, &id(name), pattern(1, 0, 5000)).unwrap();
        }
        env.take_over(Scope::Object(id("taken")), 50);
        env.sim.advance(2 * SECOND);
        assert_eq!(refused(env.write(0, &id("taken"), pattern(2, 0, 100))), 50);
        env.write(0, &id("kept"), pattern(2, 0, 5000)).unwrap();
        env.flush(0, Scope::Object(id("kept"))).unwrap();
        same(&content(env.store.memory(), &id("kept")).unwrap(), &pattern(2, 0, 5000), "kept");
        let lost = env.caches[0].lost();
        assert_eq!(lost.objects.len(), 1, "{lost:?}");
        assert_eq!(lost.objects[0].object, id("taken"));
    }
}

#[test]
fn a_deposed_cache_refuses_write_through_changes() {
    let mut env = Environment::new(true, 0);
    env.start(WriteMode::Through);
    env.write(0, &id("a"), pattern(1, 0, 5000)).unwrap();
    env.take_over(ns(), 50);
    assert_eq!(refused(env.write(0, &id("a"), pattern(2, 0, 100))), 50);
    env.store.clear_log();
    assert_eq!(refused(env.write(0, &id("b"), pattern(2, 0, 100))), 50);
    assert_eq!(refused(env.write(0, &id("c"), pattern(2, 0, 100))), 50);
    assert_eq!(env.store.count(Op::Write), 0, "the store is not asked again");
}

#[test]
fn a_deposed_cache_whose_copy_was_refused_refuses_further_changes() {
    let mut env = Environment::new(true, 0);
    env.start(WriteMode::Through);
    env.write(0, &id("a"), pattern(1, 0, 5000)).unwrap();
    env.take_over(ns(), 50);
    let copy = env.caches[0].copy(CopyRequest::new(id("a"), id("b")));
    assert_eq!(refused(env.sim.run(copy)), 50);
    env.store.clear_log();
    assert_eq!(refused(env.write(0, &id("c"), pattern(2, 0, 100))), 50);
    assert_eq!(env.store.count(Op::Write), 0, "the store is not asked again");
}

#[test]
fn two_caches_that_start_together_get_epochs_of_their_own() {
    let mut env = Environment::new(false, 2);
    env.store.hold(&[Op::Claim]);
    let writes: Vec<_> = (0..2)
        .map(|n| {
            let request = WriteRequest::new(id("a"), 0, pattern(n as u64, 0, 4096));
            env.sim.spawn(env.caches[n].write(request))
        })
        .collect();
    env.sim.run_until_idle();
    // Both caches request the epoch in force, and get the same response.
    assert_eq!(env.store.held().len(), 2);
    env.store.answer_all();
    env.sim.run_until_idle();
    // Both claim the next epoch.
    assert_eq!(env.store.held().len(), 2);
    env.store.open();
    env.sim.run_until_idle();
    let done: Vec<_> = writes.iter().map(|write| write.take().expect("an answer")).collect();
    // The second cache has the epoch, and the first one knows this.
    let flushed = [env.flush(0, Scope::All), env.flush(1, Scope::All)];
    let stored =
        flushed.iter().zip(&done).filter(|(flushed, write)| flushed.is_ok() && write.is_ok()).count();
    assert_eq!(stored, 1, "{flushed:?} {done:?}");
    let last = usize::from(flushed[0].is_err() || done[0].is_err());
    same(&content(env.store.memory(), &id("a")).unwrap(), &pattern(last as u64, 0, 4096), "the last claim's");
    let first = 1 - last;
    assert!(
        matches!(done[first], Err(Error::Fenced { .. }))
            || matches!(flushed[first], Err(Error::WritesLost(_)))
    );
    refused(env.write(first, &id("a"), pattern(7, 0, 10)));
}

#[test]
fn without_an_epoch_left_nothing_is_acknowledged() {
    let mut env = Environment::new(false, 1);
    let mut epoch = 0_u64;
    while epoch < u64::MAX {
        epoch = epoch.saturating_add(EPOCH_STEP_MAX);
        env.take_over(ns(), epoch);
    }
    assert_eq!(refused(env.write(0, &id("a"), pattern(1, 0, 100))), u64::MAX);
    env.flush(0, Scope::All).unwrap();
    assert_eq!(env.caches[0].counters().lost_objects, 0);
    assert_eq!(content(env.store.memory(), &id("a")), None);
}

#[test]
fn epochs_in_parts_of_a_namespace_do_not_stop_a_claim() {
    let mut env = Environment::new(false, 1);
    for n in 1..20 {
        env.take_over(Scope::Object(id(&format!("taken-{n}"))), n);
    }
    env.write(0, &id("a"), pattern(1, 0, 100)).unwrap();
    env.flush(0, Scope::All).unwrap();
    assert!(env.in_force() > 0);
}

#[test]
fn data_read_before_the_claim_are_dropped_at_the_claim() {
    let mut env = Environment::new(true, 1);
    let (read, other) = (id("read"), id("other"));
    fill(env.store.memory(), &read, pattern(1, 0, 9000));
    same(&env.read(0, &read), &pattern(1, 0, 9000), "before");
    // The previous writer continues until it is deposed.
    fill(env.store.memory(), &read, pattern(2, 0, 5000));
    env.write(0, &other, pattern(3, 0, 100)).unwrap();
    same(&env.read(0, &read), &pattern(2, 0, 5000), "as the last writer left it");
    let info = env.caches[0].info(InfoRequest::new(read));
    assert_eq!(env.sim.run(info).unwrap().size_bytes, 5000);
}

#[test]
fn nothing_is_acknowledged_before_the_claim() {
    let mut env = Environment::new(false, 1);
    env.store.hold(&[Op::Claim]);
    let writing = env.sim.spawn(env.caches[0].write(WriteRequest::new(id("a"), 0, pattern(1, 0, 100))));
    env.sim.run_until_idle();
    assert!(!writing.is_done());
    let first = env.store.held()[0].number;
    env.store.fail(first, Error::Denied("not for you".into()));
    env.sim.run_until_idle();
    let answer = writing.get();
    assert!(matches!(answer, Err(Error::Denied(_))), "{answer:?}");
    assert_eq!(env.caches[0].cache_dirty(), 0);
}

#[test]
fn a_namespace_that_is_released_goes_back_and_forth_between_caches() {
    let mut env = Environment::new(true, 2);
    for round in 0..6 {
        let (cache, before) = (round % 2, pattern(round as u64, 0, 5000));
        if round > 0 {
            same(&env.read(cache, &id("a")), &before, "what the other cache has written");
        }
        let bytes = pattern(round as u64 + 1, 0, 5000);
        env.write(cache, &id("a"), bytes.clone()).unwrap();
        // In every third round the change is flushed, in the others it is not. Both are stored in
        // the end.
        if round % 3 == 0 {
            env.flush(cache, ns()).unwrap();
        }
        let released = env.caches[cache].control().release(namespace("ns"));
        env.sim.run(released).unwrap();
        same(&content(env.store.memory(), &id("a")).unwrap(), &bytes, "released");
    }
}

#[test]
fn a_deposed_cache_is_the_writer_again_once_it_has_released_the_namespace() {
    let mut env = Environment::new(true, 1);
    env.write(0, &id("a"), pattern(1, 0, 5000)).unwrap();
    env.flush(0, Scope::All).unwrap();
    env.write(0, &id("a"), pattern(2, 0, 5000)).unwrap();
    env.take_over(ns(), 50);
    env.sim.advance(2 * SECOND);
    // The losses must be accepted first.
    let released = env.caches[0].control().release(namespace("ns"));
    let released = env.sim.run(released);
    assert!(matches!(released, Err(Error::WritesLost(_))), "{released:?}");
    assert_eq!(refused(env.write(0, &id("a"), pattern(3, 0, 100))), 50);
    let accepted = env.caches[0].invalidate(InvalidateRequest::new(ns()));
    env.sim.run(accepted).unwrap();
    let released = env.caches[0].control().release(namespace("ns"));
    env.sim.run(released).unwrap();
    env.write(0, &id("a"), pattern(4, 0, 5000)).unwrap();
    env.flush(0, Scope::All).unwrap();
    same(&content(env.store.memory(), &id("a")).unwrap(), &pattern(4, 0, 5000), "written again");
    assert_eq!(env.in_force(), 51);
}
