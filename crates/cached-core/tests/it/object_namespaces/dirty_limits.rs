//! Dirty limits of namespaces: each writer waits only for the room of its own namespace, regardless
//! of other writers, and limits change while data are dirty and writers wait.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{NamespaceConfig, NamespaceCounters, ObjectCache, ObjectCacheConfig};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::SteeredStore;
use test_kit::{BUCKET, cache, fill, namespace, small};

/// The dirty limit, in buckets.
const ROOM: u64 = 32;

struct Environment {
    sim: Sim,
    store: Arc<SteeredStore>,
    cache: ObjectCache,
    config: ObjectCacheConfig,
    running: Option<Handle<()>>,
}

fn own(name: &str, part: Option<u64>) -> NamespaceConfig {
    let own = NamespaceConfig::new(namespace(name), WriteMode::Back);
    own.with(NamespaceKey::DirtyBytesMax, part.map(|part| part * BUCKET))
}

fn config(namespaces: Vec<NamespaceConfig>) -> ObjectCacheConfig {
    ObjectCacheConfig {
        dirty_bytes_max: ROOM * BUCKET,
        objects_count_max: 128,
        dirty_age_max: Duration::from_secs(3600),
        namespaces,
        ..small(WriteMode::Back)
    }
}

fn object(name: &str, number: usize) -> ObjectId {
    ObjectId::new(namespace(name), Name::copy_from(format!("object-{number}").as_bytes()).unwrap())
}

/// The namespaces that have objects.
const NAMES: [&str; 3] = ["busy", "quiet", "other"];

/// Creates a cache with these namespaces, and forty objects in each that the store has; the store
/// holds every change.
fn environment(namespaces: Vec<NamespaceConfig>) -> Environment {
    let mut sim = Sim::new(None);
    let store = SteeredStore::new();
    let objects = || NAMES.into_iter().flat_map(|name| (0..40).map(move |number| object(name, number)));
    // A write to a missing object would also need dirty space for the object's creation.
    objects().for_each(|id| fill(store.memory(), &id, vec![1; 2 * BUCKET as usize]));
    let config = config(namespaces);
    let (cache, background) = cache(Arc::clone(&store) as _, config.clone(), &sim.clock);
    let running = Some(sim.spawn(background));
    for id in objects() {
        sim.run(cache.info(InfoRequest::new(id))).unwrap();
    }
    store.hold_changes();
    Environment { sim, store, cache, config, running }
}

type Write = Handle<Result<ChangeReply>>;

impl Environment {
    /// Writes a bucket of each of the objects with these numbers.
    fn write(&mut self, name: &str, objects: std::ops::Range<usize>) -> Vec<Write> {
        let write = |number| {
            let write = WriteRequest::new(object(name, number), 0, vec![7; BUCKET as usize]);
            self.sim.spawn(self.cache.write(write))
        };
        let writes = objects.map(write).collect();
        self.sim.run_until_idle();
        self.cache.validate().unwrap();
        writes
    }

    fn change(&mut self, namespaces: Vec<NamespaceConfig>) {
        let after = ObjectCacheConfig { namespaces, ..self.config.clone() };
        self.cache.live_settings().change(&after).unwrap();
        self.config = after;
        self.sim.run_until_idle();
        self.cache.validate().unwrap();
    }

    fn counters(&self, name: &str) -> NamespaceCounters {
        let all = self.cache.namespaces();
        all.into_iter()
            .find(|of| of.namespace == Some(namespace(name)))
            .unwrap_or_else(|| panic!("no {name}"))
    }

    /// Lets the store respond, and checks that every write is acknowledged and everything is
    /// stored.
    fn end(mut self, writes: Vec<Vec<Write>>) {
        self.store.open();
        for write in writes.into_iter().flatten() {
            self.sim.wait(write).unwrap_or_else(|error| panic!("{error}"));
        }
        self.sim.run(self.cache.flush(FlushRequest::new(Scope::All))).unwrap();
        assert_eq!(self.cache.counters().dirty_bytes, 0);
        self.cache.validate().unwrap();
        drop(self.cache);
        let running = self.running.take().unwrap();
        self.sim.wait(running);
    }
}

fn done(writes: &[Write]) -> usize {
    writes.iter().filter(|write| write.is_done()).count()
}

#[test]
fn a_namespace_that_is_written_too_fast_holds_up_itself_alone() {
    let mut env = environment(vec![own("busy", Some(8)), own("quiet", Some(4))]);
    let busy = env.write("busy", 0..40);
    assert_eq!(done(&busy), 8, "its part");
    let quiet = env.write("quiet", 0..4);
    let other = env.write("other", 0..20);
    assert_eq!((done(&quiet), done(&other)), (4, 20), "the others have what is theirs");
    let (busy_counters, other_counters) = (env.counters("busy"), env.counters("other"));
    assert_eq!((busy_counters.dirty_bytes_max, busy_counters.writes_throttled), (Some(8 * BUCKET), 32));
    assert_eq!((other_counters.dirty_bytes_max, other_counters.writes_throttled), (None, 0));
    let more = env.write("other", 20..21);
    assert_eq!(done(&more), 0, "20 of 32 are the room of those without a part");
    env.end(vec![busy, quiet, other, more]);
}

#[test]
fn without_parts_all_share_the_room() {
    let mut env = environment(vec![]);
    let busy = env.write("busy", 0..40);
    let quiet = env.write("quiet", 0..1);
    assert_eq!((done(&busy), done(&quiet)), (ROOM as usize, 0));
    env.end(vec![busy, quiet]);
}

#[test]
fn a_request_beyond_its_part_has_its_turn_when_nothing_else_is_dirty() {
    let mut env = environment(vec![own("busy", Some(2))]);
    let small = env.write("busy", 0..1);
    let large = WriteRequest::new(object("busy", 9), 0, vec![7; 5 * BUCKET as usize]);
    let large = env.sim.spawn(env.cache.write(large));
    env.sim.run_until_idle();
    assert!(done(&small) == 1 && !large.is_done());
    env.end(vec![small, vec![large]]);
}

#[test]
fn flushing_begins_in_the_namespace_that_is_half_full() {
    let mut env = environment(vec![own("busy", Some(8)), own("quiet", Some(8))]);
    let quiet = env.write("quiet", 0..4);
    assert!(env.store.held().is_empty(), "half of it, and young");
    let busy = env.write("busy", 0..5);
    let held = env.store.held();
    let of_busy =
        held.iter().filter(|call| call.object.as_ref().is_some_and(|id| id.namespace == namespace("busy")));
    assert_eq!((held.len(), of_busy.count()), (5, 5), "{held:?}");
    env.end(vec![quiet, busy]);
}

#[test]
fn each_namespace_is_flushed_at_its_own_age() {
    let aged = |name, secs: u64| own(name, None).with(NamespaceKey::DirtyAgeMsMax, secs * 1000);
    let mut env = environment(vec![aged("busy", 10), aged("quiet", 7200)]);
    let writes = ["quiet", "other", "busy"].map(|name| env.write(name, 0..1));
    let flushed = |env: &mut Environment, secs| {
        env.sim.clock.advance(Duration::from_secs(secs));
        env.sim.run_until_idle();
        env.store.held().len()
    };
    assert_eq!(flushed(&mut env, 9), 0);
    assert_eq!(flushed(&mut env, 1), 1, "busy, after its ten seconds");
    assert_eq!(flushed(&mut env, 3589), 1);
    assert_eq!(flushed(&mut env, 1), 2, "other, after the hour of all");
    assert_eq!(flushed(&mut env, 3599), 2);
    assert_eq!(flushed(&mut env, 1), 3, "quiet, after its two hours");
    env.end(writes.into());
}

#[test]
fn writers_that_wait_go_over_with_their_namespace() {
    let mut env = environment(vec![]);
    let other = env.write("other", 0..30);
    let busy = env.write("busy", 0..10);
    let quiet = env.write("quiet", 0..3);
    assert_eq!((done(&other), done(&busy), done(&quiet)), (30, 2, 0));
    // The namespace's two dirty buckets now belong to its own part. The others have less dirty
    // space than they use already.
    env.change(vec![own("busy", Some(8))]);
    assert_eq!((done(&busy), done(&quiet)), (8, 0));
    env.change(vec![own("busy", Some(8)), own("quiet", Some(2))]);
    assert_eq!((done(&busy), done(&quiet)), (8, 2));
    env.change(vec![own("quiet", Some(3))]);
    assert_eq!((done(&busy), done(&quiet)), (8, 3), "busy shares again, and there is no room");
    env.end(vec![other, busy, quiet]);
}

#[test]
fn a_copy_takes_the_room_of_its_target() {
    let mut env = environment(vec![own("quiet", Some(6))]);
    let wide = WriteRequest::new(object("other", 50), 0, vec![7; 4 * BUCKET as usize]);
    let wide = env.sim.spawn(env.cache.write(wide));
    env.sim.run_until_idle();
    let copy = CopyRequest::new(object("other", 50), object("quiet", 50));
    let copy = env.sim.spawn(env.cache.copy(copy));
    env.sim.run_until_idle();
    assert!(copy.is_done());
    env.cache.validate().unwrap();
    assert_eq!(env.counters("quiet").dirty_bytes, 5 * BUCKET, "the content, and the change itself");
    let more = env.write("quiet", 1..3);
    assert_eq!(done(&more), 1);
    env.end(vec![vec![wide, copy], more]);
}

#[test]
fn parts_that_leave_nothing_for_the_others_are_refused() {
    let env = environment(vec![]);
    let live = env.cache.live_settings();
    for (parts, why) in [
        (vec![own("a", Some(16)), own("b", Some(16))], "add up to"),
        (vec![own("a", Some(u64::MAX / BUCKET)), own("b", Some(16))], "add up to"),
        (vec![own("a", Some(0))], "at least 4096"),
        ((0..4097).map(|n| own(&format!("n{n}"), None)).collect(), "4096 can have"),
    ] {
        let error = live.change(&config(parts)).unwrap_err();
        assert!(error.key == "namespaces" && error.why.contains(why), "{error}");
        env.cache.validate().unwrap();
    }
    env.end(vec![]);
}

#[test]
fn a_namespace_beyond_those_told_apart_cannot_get_limits_later() {
    let mut env = environment(vec![]);
    // All namespaces but the last get a number; those of the environment already have theirs.
    for number in 0..=4096 {
        let id = object(&format!("n{number}"), 0);
        assert_eq!(env.sim.run(env.cache.info(InfoRequest::new(id))).unwrap_err(), Error::Missing);
    }
    let error = env.cache.live_settings().change(&config(vec![own("n4096", Some(1))])).unwrap_err();
    assert!(error.key == "namespaces" && error.why.contains("it gets them at a restart"), "{error}");
    // A volume without settings needs no number.
    let attach = |settings| env.cache.control().set_volume(namespace("n4096"), 1, Some(settings));
    env.sim.run(attach(NamespaceSettings::default())).unwrap();
    let limited = NamespaceSettings::default().with(NamespaceKey::QuotaBytesMax, 1 << 20);
    let refused = env.sim.run(attach(limited));
    assert!(matches!(refused, Err(Error::OutOfSpace(_))), "{refused:?}");
    env.end(vec![]);
}
