//! Random sequences of operations, by several clients at once, over a store with every kind of failure,
//! compared with a plain map.
//!
//! Each seed draws a cache (tiny, of few objects, with little room for dirty data), a store (delays, errors,
//! unknown outcomes, stalls, crashes that lose what it had not stored) and a history: which client is polled
//! next, what is requested, what is dropped half-way. An object is changed by one client at a time, so its
//! content is known: one vector of bytes, or a few where an outcome is not known and the next read decides.
//! `validate` checks the cache's invariants after each answer. At the end everything is flushed, the cache
//! dropped, the power of the store cut, and the content of the store compared with the map.
//!
//! `object_concurrency` tests what several clients may see of one object that all of them change.
//! `OBJECT_SEED=n` replays one seed and prints what happens, `OBJECT_SEEDS=n` runs `n` seeds.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::*;
use cached_core::object::{NamespaceConfig, ObjectCache, Writer};
use test_kit::detached::DetachedStore;
use test_kit::rng::Rng;
use test_kit::sim::{Handle, Sim};
use test_kit::{KIB, cache, content, each_seed, namespace, pattern, small};

const OBJECTS: usize = 14;
const SIZE_MAX: u64 = 256 * KIB;
const OPERATIONS: u64 = 120;
/// The most possible contents of one object before a read must decide between them.
const CANDIDATES_MAX: usize = 8;
/// The most states of one object that the store may have lost before a flush must end that.
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
    /// Offset, length, and whether data or zeros.
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

/// Returns what the operation makes of `before`, or the kind of its error.
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

/// One object, as the map has it.
struct Tracked {
    id: ObjectId,
    write: WriteMode,
    /// Its possible contents: one, unless an outcome is not known.
    candidates: Vec<Content>,
    /// Its contents since it was last surely stored: a crash of the store may mix them.
    history: Vec<Content>,
    /// All contents it ever had.
    past: Vec<Content>,
    /// The store has crashed, and forwarded changes may be lost: the next read decides.
    is_tainted: bool,
    /// A change is under way.
    is_written: bool,
    /// The caller of a change has given up, and the change may still be on its way: it arrives before later
    /// changes, but not before later reads.
    is_haunted: bool,
    readers: usize,
    /// The number of changes begun.
    changes: u64,
    /// The version it has, by the last reply.
    version: Option<Version>,
    /// Versions that it no longer has.
    old_versions: Vec<Version>,
}

impl Tracked {
    fn is_known(&self) -> bool {
        self.candidates.len() == 1 && !self.is_tainted && !self.is_haunted
    }

    fn settle_history(&mut self) {
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
}

#[derive(Debug)]
enum Asked {
    Change {
        target: usize,
        act: Act,
        change: Change,
        is_stale: bool,
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
    /// With how many changes of each object had begun, and whether one was under way.
    List {
        namespace: usize,
        marks: Vec<(u64, bool)>,
    },
    Flush {
        scope: Scope,
        marks: Vec<(u64, bool)>,
    },
    Invalidate,
}

struct Flight {
    handle: Handle<Result<Answer>>,
    asked: Asked,
    has_deadline: bool,
    number: u64,
}

/// A payload kept for a while, and the bytes that it must still have when it is dropped.
struct Kept {
    data: Segments,
    wanted: Vec<u8>,
}

struct Environment {
    rng: Rng,
    sim: Sim,
    cache: Option<ObjectCache>,
    running: Option<Handle<()>>,
    memory: Arc<Memory>,
    faulty: Arc<Faulty>,
    store: Arc<DetachedStore>,
    namespaces: Vec<Namespace>,
    objects: Vec<Tracked>,
    flights: Vec<Flight>,
    kept: Vec<Kept>,
    versions: HashMap<(usize, Version), Rc<Vec<u8>>>,
    is_noisy: bool,
    is_volatile: bool,
    is_stalled: bool,
    /// While the store is down: the number of the first call made since.
    crashed: Option<u64>,
    /// After a restart, until the cache has invalidated what it knows of the store.
    must_invalidate: bool,
    operations: u64,
    is_told: bool,
}

macro_rules! tell {
    ($env:expr, $($text:tt)+) => {
        if $env.is_told {
            println!("[{:>6}] {}", $env.sim.clock.now().0 / 1_000_000, format_args!($($text)+));
        }
    };
}

impl Environment {
    fn new(seed: u64, is_told: bool) -> Self {
        let mut rng = Rng::new(seed);
        let sim = Sim::new(Some(rng.next()));
        let is_noisy = rng.permille(800);
        let mut plan = FaultPlan::benign(rng.next());
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
            // Most of the state is in write-back mode.
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
                write: policies[space],
                candidates: vec![bytes.clone()],
                history: vec![bytes.clone()],
                past: vec![bytes],
                is_tainted: false,
                is_written: false,
                is_haunted: false,
                readers: 0,
                changes: 0,
                version: None,
                old_versions: Vec::new(),
            });
        }
        let clock = Arc::new(sim.clock.clone());
        let faulty = Arc::new(Faulty::new(Arc::clone(&memory) as _, plan, clock));
        let ready_permille = *rng.pick(&[0, 300, 1000]);
        let store = DetachedStore::new(Arc::clone(&faulty) as _, sim.spawner(), rng.next(), ready_permille);
        // With copies and runs of its own, without, and with few runs in one change.
        let limits: [fn(&mut Capabilities); 6] = [
            |_| (),
            |can| can.copy_native = false,
            |can| can.runs_max = 0,
            |can| (can.copy_native, can.runs_max) = (false, 0),
            |can| can.runs_max = 3,
            |can| (can.copy_native, can.runs_max) = (false, 3),
        ];
        store.limit(*rng.pick(&limits));
        if is_told {
            store.tell();
        }
        let store = Arc::new(store);
        let mut config = small(WriteMode::Back);
        config.objects_count_max = *rng.pick(&[3, 5, 10, 20]);
        config.dirty_bytes_max = *rng.pick(&[4, 64, 300, 768]) * KIB;
        config.dirty_age_max = Duration::from_millis(*rng.pick(&[5, 200, 10_000]));
        config.flush_requests_max = *rng.pick(&[1, 2, 8]);
        config.load_requests_max = *rng.pick(&[1, 2, 16]);
        config.eviction_policy = (*rng.pick(cached_core::policy::NAMES)).into();
        config.writer = *rng.pick(&[Writer::Callers, Writer::Callers, Writer::Cache]);
        let of = |each: usize| NamespaceConfig { namespace: namespaces[each].clone(), write: policies[each] };
        config.hash_seed = Some(rng.next());
        config.namespaces = (0..3).map(of).collect();
        if is_told {
            println!("noisy {is_noisy}, volatile {is_volatile}, {config:?}");
        }
        let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
        let mut env = Self {
            rng,
            cache: Some(cache),
            running: None,
            sim,
            memory,
            faulty,
            store,
            namespaces,
            objects,
            flights: Vec::new(),
            kept: Vec::new(),
            versions: HashMap::new(),
            is_noisy,
            is_volatile,
            is_stalled: false,
            crashed: None,
            must_invalidate: false,
            operations: 0,
            is_told,
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

    // ---- requests

    /// A range as disks and files have them.
    fn range(&mut self) -> (u64, u64) {
        let rng = &mut self.rng;
        let (align, len_max) =
            *rng.pick(&[(4096, 8 * 4096), (512, 4096), (1, 600), (1, 30_000), (4096, SIZE_MAX)]);
        let len = rng.below(len_max + 1) / align * align;
        let offset = rng.below(SIZE_MAX - len + 1) / align * align;
        (offset, len)
    }

    fn begin(&mut self) {
        if self.must_invalidate {
            return self.begin_invalidate(Scope::All);
        }
        match self.rng.weighted(&[50, 30, 6, 4, 8, 3]) {
            0 => self.begin_change(),
            1 => self.begin_read(),
            2 => self.begin_info(),
            3 => self.begin_list(),
            4 => self.begin_flush(),
            _ => {
                let scope = self.scope();
                self.begin_invalidate(scope);
            }
        }
    }

    fn scope(&mut self) -> Scope {
        let object = self.rng.index(OBJECTS);
        let id = self.objects[object].id.clone();
        match self.rng.below(4) {
            0 => Scope::All,
            1 => Scope::Namespace(id.namespace),
            2 => Scope::Domain(id.namespace, OrderDomain(self.rng.below(3))),
            _ => Scope::Object(id),
        }
    }

    fn deadline(&mut self) -> Option<Timestamp> {
        let delay = *self.rng.pick(&[0, 1, 20, 200]);
        let is_set = self.rng.permille(100);
        is_set.then(|| self.sim.clock.now() + Duration::from_millis(delay))
    }

    fn launch<T: Unpin + 'static>(
        &mut self,
        reply: Reply<T>,
        has_deadline: bool,
        asked: Asked,
        answer: impl FnOnce(T) -> Answer + 'static,
    ) {
        self.operations += 1;
        let number = self.operations;
        tell!(self, "#{number} {asked:?}");
        let handle = self.sim.spawn(async move { reply.await.map(answer) });
        self.flights.push(Flight { handle, asked, has_deadline, number });
    }

    fn free_object(&mut self) -> Option<usize> {
        let object = self.rng.index(OBJECTS);
        let tracked = &self.objects[object];
        let is_free = !tracked.is_written && !tracked.is_haunted && tracked.readers == 0;
        // What is not known is asked for first.
        (is_free && tracked.candidates.len() < CANDIDATES_MAX && !tracked.is_tainted).then_some(object)
    }

    fn begin_change(&mut self) {
        let Some(target) = self.free_object() else { return };
        if self.objects[target].history.len() > HISTORY_MAX && self.is_volatile {
            let scope = Scope::Object(self.objects[target].id.clone());
            return self.launch_flush(scope);
        }
        let (offset, len) = self.range();
        let tag = 100 + self.operations;
        let has_runs = self.cache().capabilities().runs_max > 0;
        let act = match self.rng.weighted(&[50, 8, 8, 8, 6, 6, 6, 8, if has_runs { 10 } else { 0 }]) {
            0 => Act::Write { offset, len, tag },
            1 => Act::Zeroes { offset, len },
            2 => Act::Discard { offset, len },
            3 => Act::Truncate { size: offset },
            4 => Act::Full { len, tag },
            5 => Act::Delete,
            6 => {
                let len = len.min(4096);
                let now = &self.objects[target].candidates[0];
                let here = bytes_of(now).get(offset as usize..).unwrap_or(&[]);
                let mut expected = here[..here.len().min(len as usize)].to_vec();
                if self.rng.permille(200) {
                    expected.push(1);
                }
                expected.truncate(4096);
                Act::CompareAndWrite { offset, expected: Rc::new(expected), len, tag }
            }
            8 => {
                let mut cuts: Vec<u64> = (0..2 * (1 + self.rng.index(3))).map(|_| self.range().0).collect();
                cuts.sort_unstable();
                let runs = cuts.chunks(2).filter(|cut| cut[0] < cut[1]);
                let runs: Vec<_> =
                    runs.map(|cut| (cut[0], cut[1] - cut[0], self.rng.permille(750))).collect();
                if runs.is_empty() {
                    return;
                }
                Act::Runs { runs: Rc::new(runs), tag }
            }
            _ => {
                let source = self.rng.index(OBJECTS);
                let from = &self.objects[source];
                if from.is_written
                    || from.is_haunted
                    || from.is_tainted
                    || from.candidates.len() >= CANDIDATES_MAX
                {
                    return;
                }
                Act::CopyFrom(source)
            }
        };
        let mut change = Change::default();
        if self.rng.permille(120) {
            change.durability = Durability::Stored;
        }
        if self.rng.permille(500) {
            change.domain = Some(OrderDomain(self.rng.below(3)));
        }
        let mut is_stale = false;
        let tracked = &self.objects[target];
        match self.rng.below(20) {
            0 => change.condition = Condition::Absent,
            1 => change.condition = Condition::Present,
            2 | 3 if tracked.is_known() && tracked.version.is_some() => {
                change.condition = Condition::Version(tracked.version.unwrap());
            }
            4 if !tracked.old_versions.is_empty() => {
                let old = *self.rng.pick(&tracked.old_versions);
                change.condition = Condition::Version(old);
                is_stale = true;
            }
            _ => {}
        }
        let tracked = &mut self.objects[target];
        tracked.is_written = true;
        tracked.changes += 1;
        let id = tracked.id.clone();
        if let Act::CopyFrom(source) = act
            && source != target
        {
            self.objects[source].readers += 1;
        }
        let deadline = self.deadline();
        let cache = self.cache();
        let asked = Asked::Change { target, act: act.clone(), change, is_stale };
        // The requests are built in the same way.
        macro_rules! send {
            ($method:ident, $request:expr, $answer:expr) => {{
                let mut request = $request.change(change);
                request.call.deadline = deadline;
                let reply = cache.$method(request);
                self.launch(reply, deadline.is_some(), asked, $answer)
            }};
        }
        match act {
            Act::Write { offset, len, tag } => {
                let data = payload(&mut self.rng, pattern(tag, offset, len as usize));
                send!(write, WriteRequest::new(id, offset, data), Answer::Change);
            }
            Act::Zeroes { offset, len } => {
                send!(write_zeroes, WriteZeroesRequest::new(id, offset, len), Answer::Change);
            }
            Act::Runs { runs, tag } => {
                let runs = runs.iter().map(|(offset, len, is_data)| match is_data {
                    true => Run::data(*offset, payload(&mut self.rng, pattern(tag, *offset, *len as usize))),
                    false => Run::zeroes(*offset, *len),
                });
                send!(write_runs, WriteRunsRequest::new(id, runs.collect()), Answer::Change);
            }
            Act::Discard { offset, len } => {
                send!(discard, DiscardRequest::new(id, offset, len), Answer::Change);
            }
            Act::Truncate { size } => send!(truncate, TruncateRequest::new(id, size), Answer::Change),
            Act::Full { len, tag } => {
                let data = payload(&mut self.rng, pattern(tag, 0, len as usize));
                send!(write_full, WriteFullRequest::new(id, data), Answer::Change);
            }
            Act::Delete => {
                send!(delete, DeleteRequest::new(id), |reply: DeleteReply| Answer::Gone(reply.durability));
            }
            Act::CompareAndWrite { offset, expected, len, tag } => {
                let data = pattern(tag, offset, len as usize);
                let request = CompareAndWriteRequest::new(id, offset, expected.to_vec(), data);
                send!(compare_and_write, request, Answer::Change);
            }
            Act::CopyFrom(source) => {
                let from = self.objects[source].id.clone();
                send!(copy, CopyRequest::new(from, id), Answer::Change);
            }
        }
    }

    fn begin_read(&mut self) {
        let object = self.rng.index(OBJECTS);
        if self.objects[object].is_written {
            return;
        }
        let (mut offset, mut len) = self.range();
        let tainted = self.objects[object].is_tainted;
        if self.objects[object].candidates.len() > 1 || tainted || self.rng.permille(100) {
            (offset, len) = (0, SIZE_MAX + 10);
        }
        self.objects[object].readers += 1;
        let mut request = ReadRequest::new(self.objects[object].id.clone(), offset, len);
        request.call.deadline = self.deadline();
        if self.rng.permille(100) {
            request = request.hints(*self.rng.pick(&[Hints::NO_CACHE, Hints::SEQUENTIAL, Hints::RANDOM]));
        }
        let has_deadline = request.call.deadline.is_some();
        let reply = self.cache().read(request);
        self.launch(reply, has_deadline, Asked::Read { object, offset, len, tainted }, Answer::Read);
    }

    fn begin_info(&mut self) {
        let object = self.rng.index(OBJECTS);
        if self.objects[object].is_written || self.objects[object].is_tainted {
            return;
        }
        self.objects[object].readers += 1;
        let reply = self.cache().info(InfoRequest::new(self.objects[object].id.clone()));
        self.launch(reply, false, Asked::Info { object }, Answer::Info);
    }

    fn marks(&self) -> Vec<(u64, bool)> {
        self.objects.iter().map(|object| (object.changes, object.is_written)).collect()
    }

    fn begin_list(&mut self) {
        let namespace = self.rng.index(3);
        let request = ListRequest::new(self.namespaces[namespace].clone());
        let reply = self.cache().list(request);
        let marks = self.marks();
        self.launch(reply, false, Asked::List { namespace, marks }, Answer::List);
    }

    fn begin_flush(&mut self) {
        let scope = self.scope();
        self.launch_flush(scope);
    }

    fn launch_flush(&mut self, scope: Scope) {
        let mut request = FlushRequest::new(scope.clone());
        request.call.deadline = self.deadline();
        let has_deadline = request.call.deadline.is_some();
        let reply = self.cache().flush(request);
        let marks = self.marks();
        self.launch(reply, has_deadline, Asked::Flush { scope, marks }, |_| Answer::Flush);
    }

    fn begin_invalidate(&mut self, scope: Scope) {
        let reply = self.cache().invalidate(InvalidateRequest::new(scope));
        self.launch(reply, false, Asked::Invalidate, |_| Answer::Invalidated);
    }

    // ---- answers

    /// Handles the answers that have come.
    fn collect(&mut self) {
        let mut at = 0;
        while at < self.flights.len() {
            if !self.flights[at].handle.is_done() {
                at += 1;
                continue;
            }
            let flight = self.flights.swap_remove(at);
            let answer = flight.handle.take().expect("done");
            let told = answer.as_ref().err().map_or("done".to_owned(), ToString::to_string);
            tell!(self, "#{}: {told}", flight.number);
            self.finish_flight(flight, Some(answer));
            self.validate();
        }
    }

    /// Drops a request that waits.
    fn cancel_one(&mut self) {
        if std::env::var("NO_CANCEL").is_ok() {
            return;
        }
        if self.flights.is_empty() {
            return;
        }
        let at = self.rng.index(self.flights.len());
        let mut flight = self.flights.swap_remove(at);
        tell!(self, "#{} is dropped", flight.number);
        let handle = std::mem::replace(&mut flight.handle, self.sim.spawn(std::future::pending()));
        let answer = self.sim.cancel(handle);
        let placeholder =
            std::mem::replace(&mut flight.handle, self.sim.spawn(async { Err(Error::Missing) }));
        self.sim.cancel(placeholder);
        self.finish_flight(flight, answer);
        self.validate();
    }

    fn finish_flight(&mut self, flight: Flight, answer: Option<Result<Answer>>) {
        let Flight { asked, has_deadline, number, .. } = flight;
        if let Some(Err(error)) = &answer {
            let is_excused = match error {
                Error::Retryable(_) => self.is_noisy || has_deadline,
                Error::DeadlinePassed => has_deadline,
                Error::OutcomeUnknown(_) | Error::NotStored(_) => self.is_noisy || has_deadline,
                Error::Missing | Error::Exists | Error::Mismatch { .. } | Error::ConditionFailed { .. } => {
                    true
                }
                _ => false,
            };
            assert!(is_excused, "#{number} {asked:?}: {error}");
        }
        match asked {
            Asked::Change { target, act, change, is_stale } => {
                let label = format!("#{number} {act:?} of {}", self.objects[target].id);
                self.changed(&label, target, &act, change, is_stale, answer);
            }
            Asked::Read { object, offset, len, tainted } => {
                self.objects[object].readers -= 1;
                if let Some(answer) = answer {
                    self.was_read(number, object, offset, len, tainted, answer);
                }
            }
            Asked::Info { object } => {
                self.objects[object].readers -= 1;
                if let Some(answer) = answer {
                    self.informed(number, object, answer);
                }
            }
            Asked::List { namespace, marks } => {
                if let Some(Ok(Answer::List(page))) = answer {
                    self.listed(number, namespace, &marks, &page);
                }
            }
            Asked::Flush { scope, marks } => {
                if let Some(Ok(Answer::Flush)) = answer {
                    self.flushed(&scope, &marks);
                }
            }
            Asked::Invalidate => {
                if let Some(Ok(_)) = answer {
                    self.must_invalidate = false;
                }
            }
        }
    }

    fn changed(
        &mut self,
        label: &str,
        target: usize,
        act: &Act,
        change: Change,
        is_stale: bool,
        answer: Option<Result<Answer>>,
    ) {
        let sources = match act {
            Act::CopyFrom(source) => {
                if *source != target {
                    self.objects[*source].readers -= 1;
                }
                self.objects[*source].candidates.clone()
            }
            _ => vec![None],
        };
        let tracked = &mut self.objects[target];
        tracked.is_written = false;
        let effects = |states: &[Content]| -> Vec<Result<Content, &'static str>> {
            let each = states.iter().flat_map(|state| sources.iter().map(move |source| (state, source)));
            each.map(|(state, source)| effect(act, change.condition, state, source)).collect()
        };
        let before = tracked.candidates.clone();
        let outcomes = effects(&before);
        let mut after: Vec<Content> = Vec::new();
        for each in outcomes.iter().flatten() {
            if !after.contains(each) {
                after.push(each.clone());
            }
        }
        // A crash of the store may make any of these of it, on top of what may be there.
        let may_be_lost = self.is_volatile && tracked.write != WriteMode::Back;
        if tracked.is_tainted {
            let more: Vec<Content> = effects(&tracked.history).into_iter().flatten().collect();
            tracked.history.extend(more);
        }
        let is_done = match &answer {
            Some(Ok(_)) | Some(Err(Error::NotStored(_))) => true,
            None | Some(Err(Error::OutcomeUnknown(_))) => {
                if let Act::CopyFrom(source) = act {
                    // The store may have copied its own bytes, without what is pending in the cache: see the
                    // note at `copy_objects`. The next read decides.
                    let past = self.objects[*source].past.clone();
                    let tracked = &mut self.objects[target];
                    tracked.is_tainted = true;
                    tracked.history.extend(past.into_iter().chain(tracked.past.clone()));
                }
                let tracked = &mut self.objects[target];
                tracked.past.extend(after.clone());
                tracked.history.extend(after.clone());
                tracked.version = None;
                tracked.is_haunted = true;
                tracked.add_candidates(after);
                return;
            }
            Some(Err(error)) => {
                let kind = error.kind();
                match error {
                    Error::ConditionFailed { .. } => {
                        let asked = matches!(change.condition, Condition::Version(_));
                        assert!(asked, "{label}: {error}");
                        // Its version may have become the store's own, with the same bytes.
                        tracked.version = None;
                    }
                    Error::Missing | Error::Exists | Error::Mismatch { .. } if !tracked.is_tainted => {
                        let agrees = |state: &Content| {
                            sources
                                .iter()
                                .any(|source| effect(act, change.condition, state, source) == Err(kind))
                        };
                        tracked.candidates.retain(agrees);
                        assert!(!tracked.candidates.is_empty(), "{label}: {error}, against the map");
                    }
                    _ => {}
                }
                false
            }
        };
        if !is_done {
            return;
        }
        tracked.past.extend(after.clone());
        if tracked.is_tainted {
            tracked.history.extend(after.clone());
            tracked.add_candidates(after);
            return;
        }
        assert!(!after.is_empty(), "{label} worked; by the map it fails: {outcomes:?}");
        if let (true, Condition::Version(version)) = (is_stale, change.condition) {
            // A change that left every byte as it was may be forgotten, and its version with it.
            let was = self.versions.get(&(target, version));
            let is_same = was.is_some_and(|was| before.iter().flatten().any(|bytes| bytes == was));
            assert!(is_same, "{label} worked with a version that stood for other bytes");
        }
        let before_version = tracked.version.take();
        tracked.old_versions.extend(before_version);
        match answer {
            Some(Ok(Answer::Change(reply))) => {
                assert!(reply.durability >= change.durability, "{label} gave {}", reply.durability);
                after.retain(|state| bytes_of(state).len() as u64 == reply.size_bytes);
                assert!(!after.is_empty(), "{label}: a size of {}", reply.size_bytes);
                tracked.candidates = after;
                tracked.version = Some(reply.version);
                tracked.history.extend(tracked.candidates.clone());
                if reply.durability == Durability::Stored {
                    tracked.settle_history();
                }
                self.note_version(label, target, reply.version);
            }
            Some(Ok(Answer::Gone(durability))) => {
                assert!(durability >= change.durability, "{label} gave {durability}");
                tracked.candidates = after;
                tracked.history.extend(tracked.candidates.clone());
                if durability == Durability::Stored {
                    tracked.settle_history();
                }
            }
            _ => {
                tracked.candidates = after;
                tracked.history.extend(tracked.candidates.clone());
            }
        }
        let tracked = &mut self.objects[target];
        if !may_be_lost {
            tracked.settle_history();
        }
    }

    /// One version, one content.
    fn note_version(&mut self, label: &str, object: usize, version: Version) {
        let tracked = &self.objects[object];
        if let (true, Some(Some(bytes))) = (tracked.is_known(), tracked.candidates.first()) {
            let known = self.versions.entry((object, version)).or_insert_with(|| Rc::clone(bytes));
            let same = Rc::ptr_eq(known, bytes) || known == bytes;
            assert!(same, "{label}: version {version} has stood for other bytes");
            let is_old = tracked.old_versions.contains(&version);
            assert!(!is_old || same, "{label}: version {version} is back");
        }
    }

    fn was_read(
        &mut self,
        number: u64,
        object: usize,
        offset: u64,
        len: u64,
        tainted: bool,
        answer: Result<Answer>,
    ) {
        let tracked = &mut self.objects[object];
        let label = format!("#{number} read of {len} at {offset} of {}", tracked.id);
        let reply = match answer {
            Ok(Answer::Read(reply)) => Some(reply),
            Err(Error::Missing) => None,
            Ok(_) => unreachable!("a read was asked"),
            Err(_) => return,
        };
        if tracked.is_tainted != tainted {
            // A crash came in between: any content is possible.
            return;
        }
        let found = reply.as_ref().map(|reply| reply.data.to_vec());
        if tainted {
            if self.must_invalidate || tracked.is_written || tracked.is_haunted {
                return;
            }
            check_mix(&label, &tracked.history, found.as_deref());
            tracked.candidates = vec![found.map(Rc::new)];
            tracked.past.push(tracked.candidates[0].clone());
            tracked.is_tainted = false;
            // What was changed since the store came up again may be lost by the next crash.
            tracked.history.push(tracked.candidates[0].clone());
            return;
        }
        let expected = |state: &Content| {
            let bytes = state.as_ref()?;
            let from = (offset as usize).min(bytes.len());
            let to = (offset.saturating_add(len) as usize).min(bytes.len());
            Some(bytes[from..to].to_vec())
        };
        let size = reply.as_ref().map(|reply| reply.size_bytes as usize);
        let wanted = expected(&tracked.candidates[0]);
        let count = tracked.candidates.len();
        let agrees =
            |state: &Content| expected(state) == found && state.as_ref().map(|bytes| bytes.len()) == size;
        let is_known = tracked.candidates.iter().any(agrees);
        if !tracked.is_haunted {
            tracked.candidates.retain(agrees);
        }
        if !is_known {
            let wanted_text = wanted.as_ref().map(|bytes| bytes.len());
            let found_text = found.as_ref().map(|bytes| bytes.len());
            println!(
                "{label}: {found_text:?} bytes, size {size:?}; {count} candidates, first {wanted_text:?} bytes"
            );
            test_kit::same(&found.unwrap_or_default(), &wanted.unwrap_or_default(), &label);
            panic!("{label}: existence or size is not the map's");
        }
        let Some(reply) = reply else { return };
        if let Some(bytes) = self.versions.get(&(object, reply.version)) {
            let same = expected(&Some(Rc::clone(bytes))).as_deref() == found.as_deref();
            assert!(same, "{label}: version {} has stood for other bytes", reply.version);
        }
        if !self.objects[object].is_written && !self.objects[object].is_haunted {
            self.objects[object].version = Some(reply.version);
            self.note_version(&label, object, reply.version);
        }
        // Payloads must not change while they are held.
        let kept: usize = self.kept.iter().map(|kept| kept.wanted.len()).sum();
        let wanted = found.unwrap_or_default();
        if self.rng.permille(300) && kept + wanted.len() < PINNED_BYTES_MAX {
            self.kept.push(Kept { data: reply.data, wanted });
        }
    }

    fn informed(&mut self, number: u64, object: usize, answer: Result<Answer>) {
        let tracked = &mut self.objects[object];
        let label = format!("#{number} info of {}", tracked.id);
        let size = match answer {
            Ok(Answer::Info(info)) => Some(info),
            Err(Error::Missing) => None,
            _ => return,
        };
        if tracked.is_tainted {
            return;
        }
        let found = size.as_ref().map(|info| info.size_bytes as usize);
        let before: Vec<_> = tracked.candidates.iter().map(|state| state.as_ref().map(|b| b.len())).collect();
        assert!(before.contains(&found), "{label}: size {found:?}, by the map {before:?}");
        if !tracked.is_haunted {
            tracked.candidates.retain(|state| state.as_ref().map(|bytes| bytes.len()) == found);
        }
        if let Some(info) = size
            && !tracked.is_written
            && !tracked.is_haunted
        {
            tracked.version = Some(info.version);
            self.note_version(&label, object, info.version);
        }
    }

    fn listed(&mut self, number: u64, namespace: usize, marks: &[(u64, bool)], page: &ListReply) {
        assert!(!page.has_more, "#{number}: so few objects are one page");
        let names: Vec<&Name> = page.entries.iter().map(|entry| &entry.name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "#{number}: {names:?} are not in order");
        let ours = |name: &Name| {
            let id = ObjectId::new(self.namespaces[namespace].clone(), name.clone());
            self.objects.iter().any(|object| object.id == id)
        };
        assert!(names.iter().all(|name| ours(name)), "#{number}: {names:?} were never made");
        for (tracked, (changes, was_written)) in self.objects.iter().zip(marks) {
            let is_here = tracked.id.namespace == self.namespaces[namespace];
            let is_steady = tracked.changes == *changes && !was_written && !tracked.is_tainted;
            if !is_here || !is_steady {
                continue;
            }
            let entry = page.entries.iter().find(|entry| entry.name == tracked.id.name);
            let found = entry.map(|entry| entry.size_bytes as usize);
            let possible: Vec<_> =
                tracked.candidates.iter().map(|state| state.as_ref().map(|bytes| bytes.len())).collect();
            assert!(
                possible.contains(&found),
                "#{number}: {} is listed with {found:?}, by the map {possible:?}",
                tracked.id
            );
        }
    }

    fn flushed(&mut self, scope: &Scope, marks: &[(u64, bool)]) {
        for (tracked, (changes, was_written)) in self.objects.iter_mut().zip(marks) {
            // The model does not keep a change's domain, so a flush of one shows nothing about objects.
            let is_covered = match scope {
                Scope::Domain(..) => false,
                scope => scope.covers(&tracked.id, None),
            };
            if is_covered && tracked.changes == *changes && !was_written && !tracked.is_tainted {
                tracked.settle_history();
            }
        }
    }

    // ---- failures

    fn trouble(&mut self) {
        if !self.is_noisy {
            return;
        }
        match self.rng.below(4) {
            0 if self.crashed.is_none() => {
                self.is_stalled = !self.is_stalled;
                tell!(self, "stalled: {}", self.is_stalled);
                if self.is_stalled { self.faulty.stall() } else { self.faulty.resume() }
            }
            1 if self.crashed.is_none() && !self.is_stalled => {
                tell!(self, "the store crashes");
                self.faulty.crash();
                self.crashed = Some(self.store.calls() + 1);
            }
            2 | 3 => self.restart(),
            _ => {}
        }
    }

    /// Brings the store up again, once no call from before waits for it.
    fn restart(&mut self) {
        let Some(number) = self.crashed else { return };
        if self.store.has_older_than(number) {
            return;
        }
        tell!(self, "the store is up again");
        self.faulty.restart().unwrap();
        self.crashed = None;
        if self.is_volatile {
            for tracked in self.objects.iter_mut().filter(|tracked| tracked.write != WriteMode::Back) {
                tracked.is_tainted = true;
                tracked.version = None;
            }
            self.must_invalidate = true;
        }
    }

    fn release(&mut self) {
        if self.kept.is_empty() {
            return;
        }
        let at = self.rng.index(self.kept.len());
        let kept = self.kept.swap_remove(at);
        test_kit::same(&kept.data.to_vec(), &kept.wanted, "a payload that was kept");
    }

    /// Asserts that nothing is under way in the cache or below: cancelled requests have ended.
    fn lay_ghosts(&mut self) {
        if self.sim.is_idle() && !self.store.has_older_than(u64::MAX) {
            self.objects.iter_mut().for_each(|tracked| tracked.is_haunted = false);
        }
    }

    fn step(&mut self) {
        let haunted = self.objects.iter().filter(|tracked| tracked.is_haunted).count();
        if haunted > 0 {
            self.lay_ghosts();
        }
        match self.rng.weighted(&[30, 100, 8, 4, 3, 3]) {
            0 if self.flights.len() < 6 && haunted < 4 => self.begin(),
            0 | 1 => {
                for _ in 0..self.rng.within(1, 6) {
                    self.sim.step();
                }
            }
            2 => {
                self.sim.skip();
            }
            3 => {
                if self.rng.permille(400) {
                    self.cancel_one();
                }
            }
            4 => {
                if self.rng.permille(300) {
                    self.trouble();
                }
            }
            _ => self.release(),
        }
        self.collect();
        if self.crashed.is_some() && self.rng.permille(50) {
            self.restart();
        }
        let is_full = self.flights.len() >= 6 || haunted >= 4;
        if self.sim.is_idle() && is_full && !self.sim.skip() {
            // All requests wait, and only the test can bring the store back.
            self.mend();
        }
    }

    /// Ends all failures.
    fn mend(&mut self) {
        if self.is_stalled {
            self.is_stalled = false;
            self.faulty.resume();
        }
        for _ in 0..1000 {
            self.restart();
            if self.crashed.is_none() {
                break;
            }
            self.sim.settle();
            self.sim.skip();
        }
        assert!(self.crashed.is_none(), "calls from before the crash are still under way");
    }

    /// With everything flushed and the cache dropped, the store has what the map has.
    fn finish(mut self) {
        self.mend();
        while !self.kept.is_empty() {
            self.release();
        }
        self.end_flights();
        self.sim.advance(Duration::from_secs(600));
        self.lay_ghosts();
        assert!(self.objects.iter().all(|tracked| !tracked.is_haunted), "calls below never end");
        let is_tainted = |env: &Self| env.objects.iter().any(|tracked| tracked.is_tainted);
        let mut rounds = 0;
        while is_tainted(&self) || self.must_invalidate {
            if self.must_invalidate {
                self.begin_invalidate(Scope::All);
            } else {
                self.read_tainted();
            }
            self.end_flights();
            rounds += 1;
            assert!(rounds < 10_000, "the store never answers");
        }
        self.flush_all();
        self.validate();
        assert_eq!(self.cache().counters().dirty_bytes, 0, "all is flushed");
        drop(self.cache.take());
        self.sim.advance(Duration::from_secs(60));
        if let Some(running) = &self.running {
            assert!(running.is_done(), "the background's work goes on without a cache");
        }
        assert!(!self.store.has_older_than(u64::MAX), "calls of a cache that is gone");
        if self.is_volatile {
            self.faulty.crash();
            self.faulty.restart().unwrap();
        }
        for tracked in &self.objects {
            let found = content(&*self.memory, &tracked.id);
            let is_known = tracked.candidates.iter().any(|state| state.as_deref() == found.as_ref());
            if !is_known {
                let wanted = bytes_of(&tracked.candidates[0]);
                let label = format!("{} as stored", tracked.id);
                println!("{label}: {:?} bytes", found.as_ref().map(Vec::len));
                test_kit::same(&found.unwrap_or_default(), wanted, &label);
                panic!("{label}: it is there or not, against the map");
            }
        }
    }

    fn end_flights(&mut self) {
        let mut skips = 0;
        while !self.flights.is_empty() {
            while self.sim.step() {}
            self.collect();
            if self.flights.is_empty() {
                break;
            }
            let waiting: Vec<_> = self.flights.iter().map(|flight| &flight.asked).collect();
            assert!(self.sim.skip(), "a hang: nobody is woken, no alarm is set, and these wait: {waiting:?}");
            skips += 1;
            assert!(skips < 200_000, "these never end: {waiting:?}");
        }
    }

    fn read_tainted(&mut self) {
        let tainted = self.objects.iter().position(|tracked| tracked.is_tainted).expect("asked for");
        self.objects[tainted].readers += 1;
        let request = ReadRequest::new(self.objects[tainted].id.clone(), 0, SIZE_MAX + 10);
        let reply = self.cache().read(request);
        let asked = Asked::Read { object: tainted, offset: 0, len: SIZE_MAX + 10, tainted: true };
        self.launch(reply, false, asked, Answer::Read);
    }

    fn flush_all(&mut self) {
        for _ in 0..1000 {
            let reply = self.cache().flush(FlushRequest::new(Scope::All));
            let handle = self.sim.spawn(reply);
            match self.sim.wait(handle) {
                Ok(_) => return,
                Err(error) => {
                    let is_excused = matches!(error, Error::NotStored(_) | Error::Retryable(_));
                    assert!(is_excused && self.is_noisy, "flush: {error}");
                }
            }
        }
        panic!("a store that works most of the time never takes the dirty data");
    }
}

/// Asserts that each byte found is one that the object had in some state since it was stored.
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

/// In one segment or in several.
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

fn run(seed: u64, is_told: bool) {
    let mut env = Environment::new(seed, is_told);
    while env.operations < OPERATIONS {
        env.step();
    }
    env.finish();
}

#[test]
fn any_history_matches_a_plain_map() {
    each_seed(1500, run);
}
