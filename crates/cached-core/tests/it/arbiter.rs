//! A store of items and a cache of objects that share memory. Whatever is moved, no acknowledged
//! data are lost, each half keeps its minimum, the sum stays the same, no request waits, and memory
//! moves to the half in which it saves most.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use blocker::*;
use cached_core::arbiter::{Arbiter, Half, SharedMemory};
use cached_core::kv::{Kv, KvConfig};
use cached_core::object::{NamespaceConfig, ObjectCache, ObjectCacheConfig};
use test_kit::rng::Rng;
use test_kit::sim::{Handle, Sim};
use test_kit::steered::{Op, SteeredStore};
use test_kit::{BUCKET, cache, content, each_seed, fill, id, namespace, pattern, same, small};

const MIB: u64 = 1 << 20;
const MEMORY: SharedMemory = SharedMemory {
    items_bytes: 4 * MIB,
    objects_bytes: 4 * MIB,
    items_bytes_min: 2 * MIB,
    objects_bytes_min: 2 * MIB,
    item_miss: None,
};

struct Both {
    sim: Sim,
    store: Arc<SteeredStore>,
    kv: Kv,
    cache: ObjectCache,
    arbiter: Arbiter,
    running: Option<Handle<()>>,
}

impl Both {
    fn new(namespaces: Vec<NamespaceConfig>) -> Both {
        Both::with(MEMORY, namespaces)
    }

    fn with(memory: SharedMemory, namespaces: Vec<NamespaceConfig>) -> Both {
        let (mut sim, store) = (Sim::new(None), SteeredStore::new());
        let kv = Kv::new(KvConfig {
            arena_bytes: memory.items_bytes as usize,
            memory_range: Some(memory.items_range()),
            item_bytes_max: 256 << 10,
            lanes: 2,
            hash_seed: Some(1),
            ..KvConfig::default()
        })
        .unwrap();
        let config = ObjectCacheConfig {
            memory_bytes_max: memory.objects_bytes,
            memory_range: Some(memory.objects_range()),
            objects_count_max: 4096,
            dirty_bytes_max: MIB,
            namespaces,
            ..small(WriteMode::Back)
        };
        let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
        let running = Some(sim.spawn(background));
        let arbiter = Arbiter::new(kv.clone(), &cache, memory);
        Both { sim, store, kv, cache, arbiter, running }
    }

    fn validate(&self) {
        self.kv.validate();
        self.cache.validate().unwrap();
        self.arbiter.validate().unwrap();
    }

    fn write(&mut self, object: &ObjectId, bucket: u64, bytes: &[u8]) {
        let request = WriteRequest::new(object.clone(), bucket * BUCKET, bytes.to_vec());
        self.sim.run(self.cache.write(request)).unwrap();
    }

    fn read(&mut self, object: &ObjectId, bucket: u64) -> Vec<u8> {
        let request = ReadRequest::new(object.clone(), bucket * BUCKET, BUCKET);
        match self.sim.run(self.cache.read(request)) {
            Ok(reply) => reply.data.to_vec(),
            Err(Error::Missing) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }

    fn bytes(&self, half: Half) -> u64 {
        self.arbiter.metrics().of(half).bytes.get() as u64
    }

    fn end(mut self) {
        self.sim.run(self.cache.flush(FlushRequest::new(Scope::All))).unwrap();
        self.validate();
        drop(self.cache);
        self.sim.run_until_idle();
        self.running.take().unwrap().get();
        assert!(!self.arbiter.step(), "without a cache nothing moves");
        self.arbiter.look();
    }
}

/// Returns a reply that must be ready immediately.
#[track_caller]
fn at_once<F: IntoFuture>(future: F) -> F::Output {
    let polled = pin!(future.into_future()).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(answer) = polled else { panic!("a request waits for a move") };
    answer
}

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

const OBJECTS: u64 = 12;
const OBJECT_BUCKETS: u64 = 96;

fn object(space: u64, number: u64) -> ObjectId {
    let space = namespace(if space == 0 { "common" } else { "own" });
    ObjectId::new(space, Name::copy_from(format!("object-{number}").as_bytes()).unwrap())
}

/// Changes both halves at random between the steps of random moves.
fn random_moves(seed: u64) {
    let mut rng = Rng::new(seed);
    let own = NamespaceConfig::new(namespace("own"), WriteMode::Back);
    let own = own.with(NamespaceKey::MemoryBytesMin, MIB);
    let mut both = Both::new(if rng.index(2) == 0 { vec![own] } else { Vec::new() });
    let mut items: HashMap<u64, Vec<u8>> = HashMap::new();
    let mut buckets: HashMap<(u64, u64, u64), u64> = HashMap::new();
    for step in 0..3_000u64 {
        match rng.index(16) {
            0..5 => {
                let (number, len) = (rng.below(2_000), rng.index(6_000) + 1);
                let value = pattern(step, 0, if rng.index(40) == 0 { len * 20 } else { len });
                both.kv.set(&key(number), &value).unwrap();
                items.insert(number, value);
            }
            5..8 => {
                let number = rng.below(2_000);
                if let Some(found) = both.kv.get(&key(number)) {
                    same(&found, items.get(&number).expect("it was deleted"), "an item");
                }
            }
            8 => {
                let number = rng.below(2_000);
                both.kv.remove(&key(number));
                items.remove(&number);
            }
            9..12 => {
                let (space, number, bucket) = (rng.below(2), rng.below(OBJECTS), rng.below(OBJECT_BUCKETS));
                both.write(&object(space, number), bucket, &pattern(step, 0, BUCKET as usize));
                buckets.insert((space, number, bucket), step);
            }
            12..14 => {
                let place = (rng.below(2), rng.below(OBJECTS), rng.below(OBJECT_BUCKETS));
                let found = both.read(&object(place.0, place.1), place.2);
                match buckets.get(&place) {
                    Some(tag) => same(&found, &pattern(*tag, 0, BUCKET as usize), "a bucket"),
                    None => assert!(found.iter().all(|byte| *byte == 0)),
                }
            }
            14 if rng.index(4) == 0 => {
                let from = Half::BOTH[rng.index(2)];
                both.arbiter.force(from, (rng.below(64) + 1) << 16);
            }
            14 if rng.index(40) == 0 => {
                both.sim.run(both.cache.flush(FlushRequest::new(Scope::All))).unwrap();
            }
            14 => both.arbiter.look(),
            _ => {
                for _ in 0..=rng.index(300) {
                    both.arbiter.step();
                }
            }
        }
        if step.is_multiple_of(100) {
            both.validate();
        }
    }
    let metrics = both.arbiter.metrics();
    assert!(
        Half::BOTH.iter().all(|half| metrics.of(*half).given_bytes.get() > 0),
        "nothing has moved: {metrics:?}"
    );
    both.sim.run(both.cache.flush(FlushRequest::new(Scope::All))).unwrap();
    for ((space, number, bucket), tag) in &buckets {
        let stored = content(both.store.memory(), &object(*space, *number)).expect("it was stored");
        let at = (bucket * BUCKET) as usize;
        same(&stored[at..at + BUCKET as usize], &pattern(*tag, 0, BUCKET as usize), "a stored bucket");
    }
    both.end();
}

#[test]
fn random_moves_lose_nothing() {
    each_seed(12, |seed, _| random_moves(seed));
}

/// Moves as much memory as possible, and checks both halves after every step.
fn drain(both: &mut Both, from: Half, mut after_each: impl FnMut(&mut Both, u64)) {
    both.arbiter.force(from, 1 << 40);
    let mut steps = 0;
    while both.arbiter.step() {
        steps += 1;
        after_each(both, steps);
    }
    both.validate();
}

#[test]
fn each_half_keeps_its_least_and_can_have_the_rest() {
    let mut both = Both::new(Vec::new());
    for round in 0..3 {
        for number in 0..3_000 {
            both.kv.set(&key(number), &pattern(number, 0, 2_000)).unwrap();
            both.write(&object(0, number % OBJECTS), number % OBJECT_BUCKETS, &[round; BUCKET as usize]);
        }
        for from in Half::BOTH {
            drain(&mut both, from, |_, _| ());
            let (given, least) = (both.bytes(from), both.arbiter.metrics().of(from).bytes_min);
            assert!(given >= least && given < least + (128 << 10), "{from:?} have {given}, at least {least}");
            let (whole, other) = (MEMORY.bytes(), both.bytes(from.other()));
            assert!(other + given > whole - (512 << 10), "{other} and {given} of {whole}");
        }
    }
    both.end();
}

#[test]
fn no_request_waits_for_a_move() {
    let mut both = Both::new(Vec::new());
    let dirty = id("dirty");
    for number in 0..4_000 {
        both.kv.set(&key(number), &pattern(number, 0, 2_000)).unwrap();
    }
    // The dirty limit is reached, and the store does not answer flushes; the remaining data are
    // clean.
    for bucket in 0..OBJECTS * OBJECT_BUCKETS {
        both.write(&object(0, bucket % OBJECTS), bucket / OBJECTS, &[1; BUCKET as usize]);
    }
    both.sim.run(both.cache.flush(FlushRequest::new(Scope::All))).unwrap();
    both.store.hold(&[Op::Write, Op::WriteRuns]);
    for bucket in 0..250 {
        both.write(&dirty, bucket, &pattern(7, 0, BUCKET as usize));
    }
    let flushing = both.sim.spawn(both.cache.flush(FlushRequest::new(Scope::All)));
    both.sim.run_until_idle();
    assert!(!flushing.is_done());
    for round in 0..2 {
        for from in [Half::Objects, Half::Items] {
            drain(&mut both, from, |both, step| {
                // Each step reads and changes dirty data, changes one bucket for the first time,
                // and stores items.
                let bucket = step % 250;
                let read = ReadRequest::new(dirty.clone(), bucket * BUCKET, BUCKET);
                assert!(at_once(both.cache.read(read)).is_ok());
                if step.is_multiple_of(64) {
                    let bytes = vec![2; BUCKET as usize];
                    let write = WriteRequest::new(dirty.clone(), (255 - round) * BUCKET, bytes);
                    assert!(at_once(both.cache.write(write)).is_ok());
                }
                // A store that must reclaim a region before it can open one has no more free
                // regions than the reclaimer's reserve.
                let before = both.kv.stats();
                assert!(before.regions_free > 2, "step {step}: {} regions are free", before.regions_free);
                both.kv.set(&key(step), b"a value").unwrap();
                assert_eq!(both.kv.get(&key(step)).as_deref(), Some(&b"a value"[..]));
            });
        }
    }
    both.store.pass();
    both.store.answer_all();
    both.sim.run_until_idle();
    both.sim.run(both.cache.flush(FlushRequest::new(Scope::All))).unwrap();
    let stored = content(both.store.memory(), &dirty).unwrap();
    same(&stored[..BUCKET as usize], &pattern(7, 0, BUCKET as usize), "what was dirty");
    both.end();
}

/// Memory follows a load from items to objects and back.
#[test]
fn memory_follows_the_load() {
    let mut both = Both::new(Vec::new());
    let mut rng = Rng::new(5);
    for number in 0..=4_000 / OBJECT_BUCKETS {
        fill(both.store.memory(), &object(0, number), vec![1; (OBJECT_BUCKETS * BUCKET) as usize]);
    }
    // Twice as many as fit into the whole memory, with small numbers being more frequent.
    let skewed = |rng: &mut Rng, count: u64| rng.below(count) * rng.below(count) / count;
    let looks = |both: &mut Both| {
        both.arbiter.look();
        while both.arbiter.step() {}
    };
    for phase in 0..3 {
        for request in 0..40_000u64 {
            if phase % 2 == 0 {
                let key = key(skewed(&mut rng, 8_000));
                if both.kv.get(&key).is_none() {
                    both.kv.set(&key, &[1; 2_000]).unwrap();
                }
            } else {
                let at = skewed(&mut rng, 4_000);
                both.read(&object(0, at / OBJECT_BUCKETS), at % OBJECT_BUCKETS);
            }
            if request.is_multiple_of(100) {
                looks(&mut both);
            }
        }
        both.validate();
        let [items, objects] = Half::BOTH.map(|half| both.bytes(half));
        let (more, less) = if phase % 2 == 0 { (items, objects) } else { (objects, items) };
        assert!(more > 2 * less, "phase {phase}: items have {items}, objects {objects}");
    }
    both.end();
}
