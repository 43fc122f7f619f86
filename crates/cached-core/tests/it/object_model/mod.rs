//! Random sequences of operations, by several concurrent clients, over a store with every kind of
//! failure, compared with a plain map. During the run, the write modes of the namespaces, their
//! limits, rates, shares and quotas change, and the whole cache is detached and reattached.
//!
//! Each seed draws a cache (tiny, of few objects, with little room for dirty data), a store
//! (delays, errors, unknown outcomes, stalls, crashes that lose data) and a history: which client
//! is polled next, which requests it makes, and which of them it drops. One client at a time
//! changes an object, so the object's content is known: one vector of bytes, or a few if an outcome
//! is unknown and the next read decides. `validate` checks the cache's invariants after each
//! response. At the end everything is flushed, the cache is dropped, the power of the store is cut,
//! and the content of the store is compared with the map.
//!
//! `object_concurrency` tests which values several clients may see of an object that all of them
//! change. `OBJECT_SEED=n` replays one seed and prints the events, `OBJECT_SEEDS=n` runs `n` seeds.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::*;
use cached_core::object::{
    AttachState, NamespaceConfig, ObjectCache, ObjectCacheConfig, SettingSource, StoreTerms, Writer,
};
use test_kit::detached::DetachedStore;
use test_kit::rng::Rng;
use test_kit::sim::{Handle, Sim};
use test_kit::{KIB, cache, content, each_seed, namespace, pattern, small};

const OBJECTS: usize = 14;
const SIZE_MAX: u64 = 256 * KIB;
const OPERATIONS: u64 = 120;
/// The maximum number of possible contents of an object, above which a read must decide between
/// them.
const CANDIDATES_MAX: usize = 8;
/// The maximum number of states of an object that the store may have lost, above which a flush is
/// required.
const HISTORY_MAX: usize = 24;
const PINNED_BYTES_MAX: usize = 256 << 10;

/// The content of an object; `None` if it does not exist.
type Content = Option<Rc<Vec<u8>>>;

fn bytes_of(content: &Content) -> &[u8] {
    content.as_ref().map_or(&[], |bytes| bytes)
}

#[derive(Clone, Debug)]
enum Act {
    Write {
        offset: u64,
        len: u64,
        tag: u64,
    },
    Zeroes {
        offset: u64,
        len: u64,
    },
    /// The offset, the length, and whether the run has data or zeros.
    Runs {
        runs: Rc<Vec<(u64, u64, bool)>>,
        tag: u64,
    },
    Discard {
        offset: u64,
        len: u64,
    },
    Truncate {
        size: u64,
    },
    Full {
        len: u64,
        tag: u64,
    },
    Delete,
    CompareAndWrite {
        offset: u64,
        expected: Rc<Vec<u8>>,
        len: u64,
        tag: u64,
    },
    CopyFrom(usize),
}

/// Returns the content after the operation on `before`, or the kind of the error.
fn effect(
    act: &Act,
    condition: Condition,
    before: &Content,
    source: &Content,
) -> Result<Content, &'static str> {
    match (condition, before) {
        (Condition::Absent, Some(_)) => return Err("exists"),
        (Condition::Present | Condition::Version(_), None) => return Err("missing"),
        _ => {}
    }
    let overwrite = |at: u64, len: u64, data: Option<Vec<u8>>| {
        let mut after = bytes_of(before).to_vec();
        let (from, to) = (at as usize, (at + len) as usize);
        if len > 0 {
            after.resize(after.len().max(to), 0);
            match data {
                Some(data) => after[from..to].copy_from_slice(&data),
                None => after[from..to].fill(0),
            }
        }
        Ok(Some(Rc::new(after)))
    };
    let existing = || before.as_ref().ok_or("missing");
    match act {
        Act::Write { offset, len, tag } => {
            overwrite(*offset, *len, Some(pattern(*tag, *offset, *len as usize)))
        }
        Act::Zeroes { offset, len } => overwrite(*offset, *len, None),
        Act::Runs { runs, tag } => {
            let mut after = bytes_of(before).to_vec();
            for (offset, len, is_data) in runs.iter() {
                let range = *offset as usize..(offset + len) as usize;
                after.resize(after.len().max(range.end), 0);
                match is_data {
                    true => after[range].copy_from_slice(&pattern(*tag, *offset, *len as usize)),
                    false => after[range].fill(0),
                }
            }
            Ok(Some(Rc::new(after)))
        }
        Act::Discard { offset, len } => {
            let size = existing()?.len() as u64;
            let from = (*offset).min(size);
            overwrite(from, (offset + len).min(size) - from, None)
        }
        Act::Truncate { size } => {
            let mut after = existing()?.to_vec();
            after.resize(*size as usize, 0);
            Ok(Some(Rc::new(after)))
        }
        Act::Full { len, tag } => Ok(Some(Rc::new(pattern(*tag, 0, *len as usize)))),
        Act::Delete => existing().map(|_| None),
        Act::CompareAndWrite { offset, expected, len, tag } => {
            let found = existing()?.get(*offset as usize..).unwrap_or(&[]);
            if found.get(..expected.len()) != Some(expected.as_slice()) {
                return Err("mismatch");
            }
            overwrite(*offset, *len, Some(pattern(*tag, *offset, *len as usize)))
        }
        Act::CopyFrom(_) => match source {
            Some(bytes) => Ok(Some(Rc::clone(bytes))),
            None => Err("missing"),
        },
    }
}

/// One object of the map.
struct Tracked {
    id: ObjectId,
    /// Whether the object may have been changed in a mode other than write-back: a crash of the
    /// store may lose such changes.
    may_be_forwarded: bool,
    /// The possible contents: one, unless an outcome is unknown.
    candidates: Vec<Content>,
    /// The contents since the object was last known to be stored: a crash of the store may mix
    /// them.
    history: Vec<Content>,
    /// All contents that the object has ever had.
    past: Vec<Content>,
    /// Whether the store has crashed, so that forwarded changes may be lost; the next read
    /// determines the content.
    is_uncertain: bool,
    /// A change is in flight.
    is_written: bool,
    /// The caller of a change has given up, and the change may still be in flight: it takes effect
    /// before later changes, but not necessarily before later reads.
    has_cancelled_change: bool,
    readers: usize,
    /// The number of changes that have begun.
    changes: u64,
    /// The object's version according to the last response.
    version: Option<Version>,
    /// The object's earlier versions.
    old_versions: Vec<Version>,
}

impl Tracked {
    fn is_known(&self) -> bool {
        self.candidates.len() == 1 && !self.is_uncertain && !self.has_cancelled_change
    }

    fn reset_history(&mut self) {
        self.history.clone_from(&self.candidates);
    }

    fn add_candidates(&mut self, more: impl IntoIterator<Item = Content>) {
        for each in more {
            if !self.candidates.contains(&each) {
                self.candidates.push(each);
            }
        }
    }
}

enum Answer {
    Change(ChangeReply),
    Gone(Durability),
    Read(ReadReply),
    Info(Info),
    List(ListReply),
    Flush,
    Invalidated,
    ModeChanged,
    Switched,
}

#[derive(Debug)]
enum Asked {
    Change {
        target: usize,
        act: Act,
        change: ChangeTerms,
        is_stale: bool,
        /// Whether the namespace was read-only at the time of the request.
        is_refused: bool,
    },
    Read {
        object: usize,
        offset: u64,
        len: u64,
        tainted: bool,
    },
    Info {
        object: usize,
    },
    /// For each object, the number of changes that had begun, and whether one was in flight.
    List {
        namespace: usize,
        marks: Vec<(u64, bool)>,
    },
    Flush {
        scope: Scope,
        marks: Vec<(u64, bool)>,
    },
    Invalidate,
    /// The number of mode changes of the namespace so far, including this one.
    Mode {
        namespace: usize,
        mode: WriteMode,
        changes: u64,
    },
    /// Whether the command detaches the cache, and the number of such commands so far, including
    /// this one.
    Switch {
        detaches: bool,
        switches: u64,
    },
}

struct Flight {
    handle: Handle<Result<Answer>>,
    asked: Asked,
    has_deadline: bool,
    number: u64,
}

/// A payload kept for a while, and the bytes that it must still have when it is dropped.
struct Kept {
    data: KeptData,
    wanted: Vec<u8>,
}

enum KeptData {
    Held(Segments),
    /// A dropped payload whose pages the kernel still has.
    Lent(lent::Lent),
}

struct Environment {
    rng: Rng,
    sim: Sim,
    cache: Option<ObjectCache>,
    /// The cache's configuration, as last changed.
    config: ObjectCacheConfig,
    running: Option<Handle<()>>,
    memory: Arc<Memory>,
    faulty: Arc<Faulty>,
    store: Arc<DetachedStore>,
    namespaces: Vec<Namespace>,
    /// The write mode of each namespace, and the number of its changes.
    modes: Vec<(WriteMode, u64)>,
    /// Whether this history detaches the cache, and the number of detach and attach commands so
    /// far.
    switches: Option<u64>,
    /// The number of changes of modes, limits and rates, and of detach and attach commands.
    policy_changes: u64,
    objects: Vec<Tracked>,
    flights: Vec<Flight>,
    kept: Vec<Kept>,
    /// The end of the last read and of the last write of each object.
    ends: Vec<[u64; 2]>,
    versions: HashMap<(usize, Version), Rc<Vec<u8>>>,
    is_noisy: bool,
    is_volatile: bool,
    is_stalled: bool,
    /// While the store is down, the number of the first call since its crash.
    crashed: Option<u64>,
    /// The store has restarted, and the cache has not yet invalidated its data.
    must_invalidate: bool,
    /// Whether a namespace has, or had, a quota.
    has_had_quota: bool,
    operations: u64,
    is_traced: bool,
}

macro_rules! trace {
    ($env:expr, $($text:tt)+) => {
        if $env.is_traced {
            println!("[{:>6}] {}", $env.sim.clock.now().0 / 1_000_000, format_args!($($text)+));
        }
    };
}

mod answers;
mod failures;
mod lent;
mod requests;

impl Environment {
    fn new(seed: u64, is_traced: bool) -> Self {
        let mut rng = Rng::new(seed);
        let sim = Sim::new(Some(rng.next_u64()));
        let is_noisy = rng.permille(800);
        let mut plan = FaultPlan::benign(rng.next_u64());
        plan.delay_permille = *rng.pick(&[0, 100, 500, 1000]);
        plan.delay = Duration::from_micros(100)..Duration::from_millis(*rng.pick(&[2, 60]));
        if is_noisy {
            plan.error_permille = *rng.pick(&[0, 20, 150]);
            plan.unknown_permille = *rng.pick(&[0, 20, 100]);
            plan.not_stored_permille = *rng.pick(&[0, 50, 300]);
            plan.volatile = rng.permille(500);
        }
        let is_volatile = plan.volatile;
        let memory = Arc::new(test_kit::memory(&sim.clock));
        let namespaces = vec![namespace("back"), namespace("through"), namespace("around")];
        let policies = [WriteMode::Back, WriteMode::Through, WriteMode::Around];
        let mut objects = Vec::new();
        for number in 0..OBJECTS {
            // Most state exists only in write-back mode.
            let space = rng.weighted(&[6, 3, 1]);
            let name = Name::copy_from(format!("object-{number:02}").as_bytes()).unwrap();
            let id = ObjectId::new(namespaces[space].clone(), name);
            let bytes = rng.permille(700).then(|| {
                let size = rng.below(SIZE_MAX / 2);
                Rc::new(pattern(1 + number as u64, 0, size as usize))
            });
            if let Some(bytes) = &bytes {
                test_kit::fill(&memory, &id, bytes.to_vec());
            }
            objects.push(Tracked {
                id,
                may_be_forwarded: policies[space] != WriteMode::Back,
                candidates: vec![bytes.clone()],
                history: vec![bytes.clone()],
                past: vec![bytes],
                is_uncertain: false,
                is_written: false,
                has_cancelled_change: false,
                readers: 0,
                changes: 0,
                version: None,
                old_versions: Vec::new(),
            });
        }
        let clock = Arc::new(sim.clock.clone());
        let faulty = Arc::new(Faulty::new(Arc::clone(&memory) as _, plan, clock));
        let ready_permille = *rng.pick(&[0, 300, 1000]);
        let store =
            DetachedStore::new(Arc::clone(&faulty) as _, sim.spawner(), rng.next_u64(), ready_permille);
        // The store supports copies and runs, or neither, or only few runs per change.
        let limits: [fn(&mut Capabilities); 6] = [
            |_| (),
            |can| can.copy_native = false,
            |can| can.runs_max = 0,
            |can| (can.copy_native, can.runs_max) = (false, 0),
            |can| can.runs_max = 3,
            |can| (can.copy_native, can.runs_max) = (false, 3),
        ];
        store.limit(*rng.pick(&limits));
        if is_traced {
            store.trace();
        }
        let store = Arc::new(store);
        let mut config = small(WriteMode::Back);
        config.objects_count_max = *rng.pick(&[3, 5, 10, 20]);
        config.flush_requests_max = *rng.pick(&[1, 2, 8]);
        config.load_requests_max = *rng.pick(&[1, 2, 16]);
        config.eviction_policy = (*rng.pick(cached_core::policy::NAMES)).into();
        config.writer = *rng.pick(&[Writer::Callers, Writer::Callers, Writer::Cache]);
        let of = |each: usize| NamespaceConfig::new(namespaces[each].clone(), policies[each]);
        config.hash_seed = Some(rng.next_u64());
        config.lends_buckets = rng.permille(500);
        config.namespaces = (0..3).map(of).collect();
        if is_traced {
            println!("noisy {is_noisy}, volatile {is_volatile}, {config:?}");
        }
        draw_limits(&mut rng, &mut config);
        draw_flow(&mut rng, &mut config);
        // If the store is never slow, there is no read-ahead to test.
        config.read_ahead_latency_min = Duration::from_micros(*rng.pick(&[0, 0, 200]));
        let has_had_quota =
            config.namespaces.iter().any(|each| each.settings.number(NamespaceKey::QuotaBytesMax).is_some());
        let switches = rng.permille(600).then_some(0);
        let (cache, background) = cache(Arc::clone(&store) as _, config.clone(), &sim.clock);
        let mut env = Self {
            rng,
            cache: Some(cache),
            config,
            running: None,
            sim,
            memory,
            faulty,
            store,
            namespaces,
            switches,
            policy_changes: 0,
            modes: policies.into_iter().map(|mode| (mode, 0)).collect(),
            objects,
            flights: Vec::new(),
            kept: Vec::new(),
            ends: vec![[0; 2]; OBJECTS],
            versions: HashMap::new(),
            is_noisy,
            is_volatile,
            is_stalled: false,
            crashed: None,
            must_invalidate: false,
            has_had_quota,
            operations: 0,
            is_traced,
        };
        env.running = Some(env.sim.spawn(background));
        env
    }

    fn cache(&self) -> ObjectCache {
        self.cache.clone().expect("not dropped yet")
    }

    fn validate(&self) {
        if let Some(cache) = &self.cache {
            cache.validate().unwrap_or_else(|why| panic!("validate: {why}"));
        }
    }
}

/// Asserts that each byte found belongs to some state of the object since it was last stored.
fn check_mix(label: &str, history: &[Content], found: Option<&[u8]>) {
    let Some(found) = found else {
        assert!(history.iter().any(Option::is_none), "{label}: it is gone after a crash");
        return;
    };
    let longest = history.iter().map(|state| bytes_of(state).len()).max().unwrap_or(0);
    assert!(found.len() <= longest, "{label}: {} bytes after a crash", found.len());
    assert!(history.iter().any(Option::is_some), "{label}: it has come into being by a crash");
    for (at, sector) in (0..).step_by(512).zip(found.chunks(512)) {
        let of = |state: &Content| bytes_of(state).get(at..).unwrap_or(&[]).to_vec();
        if history.iter().any(|state| bytes_of(state).get(at..at + sector.len()) == Some(sector)) {
            continue;
        }
        for (within, byte) in sector.iter().enumerate() {
            let is_known = history.iter().any(|state| *byte == of(state).get(within).copied().unwrap_or(0));
            assert!(is_known, "{label}: byte {} after a crash was never there", at + within);
        }
    }
}

/// Draws the dirty limits of the cache and of its namespaces, and the memory shares.
fn draw_limits(rng: &mut Rng, config: &mut ObjectCacheConfig) {
    config.dirty_bytes_max = *rng.pick(&[4, 64, 300, 768]) * KIB;
    config.dirty_age_max = Duration::from_millis(*rng.pick(&[5, 200, 10_000]));
    // Each namespace gets at most a quarter of the room, so that some is left for the others.
    let part_max = config.dirty_bytes_max / 4;
    for namespace in &mut config.namespaces {
        // The rate limits are drawn separately.
        let mut own = NamespaceConfig { settings: NamespaceSettings::default(), ..namespace.clone() };
        own.settings.write = namespace.settings.write;
        let part = *rng.pick(&[4, 16, 64, 192]) * KIB;
        let part = (part <= part_max && rng.permille(300)).then_some(part);
        let age = rng.permille(300).then(|| *rng.pick(&[0, 50, 20_000]));
        let own = own.with(NamespaceKey::DirtyBytesMax, part).with(NamespaceKey::DirtyAgeMsMax, age);
        let own = if rng.permille(400) { own.with_store_terms(store_terms(rng)) } else { own };
        let quota = rng.permille(300).then(|| *rng.pick(&[0, 64, 300, 1000, 100_000]) * KIB);
        let memory = config.memory_bytes_max;
        let (min, max) = (
            rng.permille(200).then(|| memory / rng.within(16, 64)),
            rng.permille(200).then(|| memory / rng.within(2, 16)),
        );
        let weight = rng.permille(200).then(|| rng.within(1, 1000));
        let own = own.with(NamespaceKey::QuotaBytesMax, quota).with(NamespaceKey::MemoryBytesMin, min);
        *namespace = own.with(NamespaceKey::MemoryBytesMax, max).with(NamespaceKey::MemoryWeight, weight);
    }
}

/// Draws the limits of a namespace at the store.
fn store_terms(rng: &mut Rng) -> StoreTerms {
    StoreTerms {
        requests_per_second_max: rng.permille(500).then(|| *rng.pick(&[5, 100, 5000])),
        bytes_per_second_max: rng.permille(500).then(|| *rng.pick(&[64, 1024, 100_000]) * KIB),
        requests_per_second_min: rng.permille(300).then_some(5),
        weight: *rng.pick(&[1, 2, 100]),
        burst: Duration::from_millis(*rng.pick(&[0, 100, 2000])),
    }
}

/// Draws the settings of read-ahead and of the bypass.
fn draw_flow(rng: &mut Rng, config: &mut ObjectCacheConfig) {
    let ahead = [0, 4 * KIB, 16 * KIB, 1024 * KIB];
    let cut_offs = [0, 0, 4 * KIB, 20 * KIB, 200 * KIB];
    config.read_ahead_bytes_max = *rng.pick(&ahead);
    config.bypass_read_bytes_min = *rng.pick(&cut_offs);
    config.bypass_write_bytes_min = *rng.pick(&cut_offs);
    for namespace in &mut config.namespaces {
        for (key, values) in [
            (NamespaceKey::ReadAheadBytesMax, &ahead[..]),
            (NamespaceKey::BypassReadBytesMin, &cut_offs),
            (NamespaceKey::BypassWriteBytesMin, &cut_offs),
        ] {
            namespace.settings.set(key, rng.permille(300).then(|| *rng.pick(values)));
        }
    }
}

/// The data are in one or several segments.
fn payload(rng: &mut Rng, bytes: Vec<u8>) -> Segments {
    let whole = Segments::from(bytes);
    if whole.len_bytes() < 2 || rng.permille(700) {
        return whole;
    }
    let cut = 1 + rng.index(whole.len_bytes() - 1);
    let mut cut_up: Segments = whole.slice(0..cut).iter().cloned().collect();
    whole.slice(cut..whole.len_bytes()).iter().for_each(|segment| cut_up.push(segment.clone()));
    cut_up
}

fn run(seed: u64, is_traced: bool) -> u64 {
    let mut env = Environment::new(seed, is_traced);
    while env.operations < OPERATIONS {
        env.step();
    }
    let changes = env.policy_changes;
    env.finish();
    changes
}

#[test]
fn any_history_matches_a_plain_map() {
    let changes = AtomicU64::new(0);
    each_seed(400, |seed, is_traced| {
        changes.fetch_add(run(seed, is_traced), Ordering::Relaxed);
    });
    let changes = changes.into_inner();
    println!("{changes} changes of modes, limits, rates, shares and of the path of requests");
    let is_whole = ["OBJECT_SEED", "OBJECT_SEEDS"].iter().all(|name| std::env::var(name).is_err());
    assert!(!is_whole || changes >= 2_500, "{changes} are too few to show anything");
}
