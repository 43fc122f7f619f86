//! The cache of an elected leader: it sends no request to the store for a namespace that it has not
//! claimed with the epoch of its leadership, and does nothing more once the store has refused that
//! epoch.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{Leadership, ObjectCache, ObjectCacheConfig, Writer};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore};
use test_kit::{content, fill, id, namespace, pattern, same, small};

const SECOND: Duration = Duration::from_secs(1);

/// The caches of successive leaders over one store that reports no claims.
struct Leaders {
    sim: Sim,
    store: Arc<SteeredStore>,
    running: Vec<Handle<()>>,
}

fn leader(write: WriteMode, epoch: u64) -> ObjectCacheConfig {
    let records = Some(namespace("registry"));
    let leadership = Some(Leadership { epoch: Epoch(epoch), writer: WriterId(u128::from(epoch)), records });
    ObjectCacheConfig { dirty_age_max: SECOND, writer: Writer::Elected, leadership, ..small(write) }
}

impl Leaders {
    fn new() -> Leaders {
        let leaders = Leaders { sim: Sim::new(None), store: SteeredStore::new(), running: Vec::new() };
        leaders.store.silence();
        leaders
    }

    fn start(&mut self, write: WriteMode, epoch: u64) -> ObjectCache {
        let (cache, background) =
            test_kit::cache(Arc::clone(&self.store) as _, leader(write, epoch), &self.sim.clock);
        self.running.push(self.sim.spawn(background));
        cache
    }

    #[track_caller]
    fn write(&mut self, cache: &ObjectCache, object: &ObjectId, bytes: Vec<u8>) -> Result<ChangeReply> {
        self.sim.run(cache.write(WriteRequest::new(object.clone(), 0, bytes)))
    }

    #[track_caller]
    fn read(&mut self, cache: &ObjectCache, object: &ObjectId) -> Result<Vec<u8>> {
        let reply = self.sim.run(cache.read(ReadRequest::new(object.clone(), 0, 1 << 20)));
        reply.map(|reply| reply.data.to_vec())
    }

    /// Claims a scope without the caches.
    fn claim(&self, scope: Scope, epoch: u64) {
        let claim = ClaimRequest::new(scope, Epoch(epoch), WriterId(99));
        executor::block_on(self.store.memory().claim(claim)).unwrap();
    }

    fn in_force(&self, name: &str) -> u64 {
        let ask = ClaimRequest::ask(Scope::Namespace(namespace(name)));
        match executor::block_on(self.store.memory().claim(ask)) {
            Ok(reply) => reply.epoch.0,
            Err(Error::Fenced { epoch }) => epoch.0,
            Err(error) => panic!("{error}"),
        }
    }

    fn first_requests(&self) -> Vec<Op> {
        // A cache that is detached from the start begins with a flush.
        self.store.log().iter().map(|call| call.op).filter(|op| *op != Op::Flush).take(1).collect()
    }
}

#[track_caller]
fn fenced<T: std::fmt::Debug>(answer: Result<T>) -> u64 {
    match answer {
        Err(Error::Fenced { epoch }) => epoch.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_kind_of_request_claims_the_namespace_once_before_it_reaches_the_store() {
    let object = id("a");
    type Request = fn(&ObjectCache, &ObjectId) -> Reply<()>;
    let requests: [(&str, Request); 6] = [
        ("read", |cache, id| cache.read(ReadRequest::new(id.clone(), 0, 4096)).then(|it| it.map(drop))),
        ("info", |cache, id| cache.info(InfoRequest::new(id.clone())).then(|it| it.map(drop))),
        ("list", |cache, id| cache.list(ListRequest::new(id.namespace.clone())).then(|it| it.map(drop))),
        ("write", |cache, id| cache.write(WriteRequest::new(id.clone(), 0, b"x")).then(|it| it.map(drop))),
        ("copy", |cache, id| {
            cache
                .copy(CopyRequest::new(id.clone(), ObjectId::new(id.namespace.clone(), self::id("b").name)))
                .then(|it| it.map(drop))
        }),
        ("attach", |cache, id| cache.control().attach(id.namespace.clone()).then(|it| it.map(drop))),
    ];
    for is_attached in [true, false] {
        for (name, request) in requests {
            let mut leaders = Leaders::new();
            fill(leaders.store.memory(), &object, pattern(1, 0, 5000));
            let mut config = leader(WriteMode::Through, 7);
            config.attached = is_attached;
            let (cache, background) =
                test_kit::cache(Arc::clone(&leaders.store) as _, config, &leaders.sim.clock);
            leaders.running.push(leaders.sim.spawn(background));
            leaders.store.clear_log();
            for _ in 0..2 {
                leaders.sim.run(request(&cache, &object)).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
            assert_eq!(leaders.first_requests(), [Op::Claim], "{name}, attached: {is_attached}");
            assert_eq!(leaders.store.count(Op::Claim), 1, "{name}, attached: {is_attached}");
            assert_eq!(leaders.in_force("ns"), 7, "{name}: the claimed epoch is that of the leadership");
        }
    }
}

#[test]
fn the_next_leader_reads_what_is_stored_and_the_last_one_changes_nothing_more() {
    let mut leaders = Leaders::new();
    let first = leaders.start(WriteMode::Back, 1);
    leaders.write(&first, &id("a"), pattern(1, 0, 5000)).unwrap();
    leaders.sim.run(first.flush(FlushRequest::new(Scope::All))).unwrap();
    // Acknowledged as cached only, when the first leader's host stops for a while.
    leaders.write(&first, &id("a"), pattern(2, 0, 5000)).unwrap();

    let second = leaders.start(WriteMode::Back, 2);
    same(&leaders.read(&second, &id("a")).unwrap(), &pattern(1, 0, 5000), "what the first leader has stored");
    leaders.write(&second, &id("a"), pattern(3, 0, 5000)).unwrap();
    leaders.sim.run(second.flush(FlushRequest::new(Scope::All))).unwrap();

    leaders.sim.advance(2 * SECOND);
    same(&content(leaders.store.memory(), &id("a")).unwrap(), &pattern(3, 0, 5000), "the second leader's");
    assert_eq!(first.deposed_by(), Some(Epoch(2)));
    assert_eq!(second.deposed_by(), None);
    let flushed = leaders.sim.run(first.flush(FlushRequest::new(Scope::All)));
    assert!(matches!(flushed, Err(Error::WritesLost(_))), "{flushed:?}");
    same(&leaders.read(&second, &id("a")).unwrap(), &pattern(3, 0, 5000), "nothing else has changed");
}

#[test]
fn a_deposed_leader_refuses_everything_in_every_namespace_without_asking() {
    let mut leaders = Leaders::new();
    let deposed = leaders.start(WriteMode::Through, 3);
    let elsewhere = ObjectId::new(namespace("elsewhere"), id("a").name);
    let never = ObjectId::new(namespace("never"), id("a").name);
    for object in [&id("a"), &elsewhere] {
        leaders.write(&deposed, object, pattern(1, 0, 5000)).unwrap();
    }
    let mut events = deposed.subscribe();
    leaders.claim(Scope::Namespace(namespace("ns")), 4);
    assert_eq!(fenced(leaders.write(&deposed, &id("a"), pattern(2, 0, 100))), 4);
    let event = leaders.sim.run(async move { events.recv().await });
    assert!(matches!(event, Some(Event::Fenced(_, Epoch(4)))), "{event:?}");
    leaders.sim.run_until_idle();
    leaders.store.clear_log();
    for object in [&id("a"), &elsewhere, &never] {
        assert_eq!(fenced(leaders.write(&deposed, object, pattern(2, 0, 100))), 4, "{object}");
        assert_eq!(fenced(leaders.read(&deposed, object)), 4, "{object}: clean copies are dropped");
        let list = deposed.list(ListRequest::new(object.namespace.clone()));
        assert_eq!(fenced(leaders.sim.run(list)), 4, "{object}");
        assert_eq!(
            fenced(leaders.sim.run(deposed.control().attach(object.namespace.clone()))),
            4,
            "{object}"
        );
    }
    assert_eq!(leaders.store.log().len(), 0, "{:?}", leaders.store.log());
}

#[test]
fn a_first_claim_that_is_refused_deposes_the_leader() {
    let mut leaders = Leaders::new();
    // The same epoch of another writer counts as well, for example of a cache outside the election.
    leaders.claim(Scope::Namespace(namespace("ns")), 5);
    let cache = leaders.start(WriteMode::Back, 5);
    assert_eq!(fenced(leaders.read(&cache, &id("a"))), 5);
    assert_eq!(cache.deposed_by(), Some(Epoch(5)));
    assert_eq!(leaders.in_force("ns"), 5, "no higher epoch was claimed");
    assert_eq!(fenced(leaders.write(&cache, &id("a"), pattern(1, 0, 100))), 5);
    let elsewhere = ObjectId::new(namespace("elsewhere"), id("a").name);
    assert_eq!(fenced(leaders.write(&cache, &elsewhere, pattern(1, 0, 100))), 5);
}

#[test]
fn a_claim_whose_answer_is_lost_is_repeated_with_the_same_epoch() {
    let mut leaders = Leaders::new();
    let cache = leaders.start(WriteMode::Back, 6);
    leaders.store.hold(&[Op::Claim]);
    let reading = leaders.sim.spawn(cache.read(ReadRequest::new(id("a"), 0, 10)));
    leaders.sim.run_until_idle();
    let number = leaders.store.held()[0].number;
    leaders.store.perform(number);
    leaders.store.fail(number, Error::OutcomeUnknown("the connection broke".into()));
    leaders.store.open();
    leaders.sim.run_until_idle();
    let answer = reading.get();
    assert!(matches!(answer, Err(Error::Retryable(_))), "{answer:?}");
    leaders.write(&cache, &id("a"), pattern(1, 0, 100)).unwrap();
    assert_eq!(leaders.in_force("ns"), 6);
    assert_eq!(cache.deposed_by(), None);
}

#[test]
fn the_records_of_the_election_are_neither_served_nor_claimed() {
    let mut leaders = Leaders::new();
    let cache = leaders.start(WriteMode::Back, 1);
    let record = ObjectId::new(namespace("registry"), id("a").name);
    fill(leaders.store.memory(), &record, pattern(1, 0, 100));
    leaders.store.clear_log();
    let read = leaders.read(&cache, &record);
    assert!(matches!(read, Err(Error::Denied(_))), "{read:?}");
    let written = leaders.write(&cache, &record, pattern(2, 0, 100));
    assert!(matches!(written, Err(Error::Denied(_))), "{written:?}");
    assert_eq!(leaders.store.log().len(), 0, "{:?}", leaders.store.log());
    leaders.write(&cache, &id("a"), pattern(1, 0, 100)).unwrap();
}

#[test]
fn a_namespace_of_a_leader_cannot_be_released_and_a_leadership_needs_an_elected_writer() {
    let mut leaders = Leaders::new();
    let cache = leaders.start(WriteMode::Back, 1);
    let released = leaders.sim.run(cache.control().release(namespace("ns")));
    assert!(matches!(released, Err(Error::Unsupported(_))), "{released:?}");
    for config in [
        ObjectCacheConfig { leadership: None, ..leader(WriteMode::Back, 1) },
        ObjectCacheConfig { writer: Writer::Cache, ..leader(WriteMode::Back, 1) },
    ] {
        let made = ObjectCache::builder(Arc::new(Memory::default())).config(config).build();
        assert_eq!(made.err().map(|error| error.key), Some("leadership"));
    }
}
