//! Several clients of the same objects: the content that each may read, and the content of the
//! store if the cache is lost.
//!
//! Every written sector holds a unique value, so a history of the requests and responses determines
//! which values a read may find (`test_kit::history`). The history is cut at a random moment by the
//! loss of the cache and of the data that the store had not stored durably. It then determines
//! which values must survive: for each order domain, all values whose flush had returned, and none
//! that was overwritten by then.

use std::sync::Arc;
use std::time::Duration;

use blocker::faulty::FaultPlan;
use blocker::*;
use cached_core::object::ObjectCache;
use test_kit::detached::DetachedStore;
use test_kit::history::{History, Moment, SECTOR, sector};
use test_kit::rng::Rng;
use test_kit::sim::{Handle, Sim};
use test_kit::{KIB, cache, content, each_seed, id, namespace, pattern, small};

const OBJECTS: usize = 4;
const SECTORS: usize = 48;
const DOMAINS: u64 = 2;
const CLIENTS: usize = 6;

enum Asked {
    Change { object: usize, change: usize },
    Read { object: usize, first: usize, sectors: usize, asked: Moment },
    Flush { scope: Scope, asked: Moment },
    Other,
}

/// The times at which a read began and ended, its first sector, and the bytes that it found.
type Seen = (Moment, Moment, usize, Vec<u8>);

enum Answer {
    Done(Durability),
    Bytes(Vec<u8>),
    Nothing,
}

struct Environment {
    rng: Rng,
    sim: Sim,
    cache: Option<ObjectCache>,
    running: Option<Handle<()>>,
    memory: Arc<Memory>,
    faulty: Arc<Faulty>,
    store: Arc<DetachedStore>,
    is_volatile: bool,
    config: String,
    objects: Vec<ObjectId>,
    histories: Vec<History>,
    /// The reads of each object.
    reads: Vec<Vec<Seen>>,
    /// The copies: the object, the number of the change, and the source object.
    copies: Vec<(usize, usize, usize)>,
    /// The time at which the last successful flush was requested, by domain and by object.
    flushed_domains: Vec<Moment>,
    flushed_objects: Vec<Moment>,
    flights: Vec<(Handle<Result<Answer>>, Asked)>,
    now: u64,
    operations: u64,
    is_traced: bool,
}

fn domain_of(object: usize) -> u64 {
    object as u64 % DOMAINS
}

impl Environment {
    fn new(seed: u64, is_traced: bool, write: WriteMode, has_lasting_faults: bool) -> Self {
        let mut rng = Rng::new(seed);
        let sim = Sim::new(Some(rng.next_u64()));
        let mut plan = FaultPlan::benign(rng.next_u64());
        plan.delay_permille = *rng.pick(&[0, 200, 1000]);
        plan.delay = Duration::from_micros(10)..Duration::from_millis(20);
        plan.error_permille = *rng.pick(&[0, 0, 50]);
        plan.not_stored_permille = *rng.pick(&[0, 100]);
        plan.unknown_permille = *rng.pick(&[0, 0, 50]);
        // The store loses data when it crashes. Therefore the run ends with the loss of the cache.
        plan.volatile = has_lasting_faults && rng.permille(700);
        let is_volatile = plan.volatile;
        let memory = Arc::new(test_kit::memory(&sim.clock));
        for filler in 0..3_u64 {
            test_kit::fill(&memory, &id(&format!("filler-{filler}")), pattern(filler, 0, 400 << 10));
        }
        let faulty = Arc::new(Faulty::new(Arc::clone(&memory) as _, plan, Arc::new(sim.clock.clone())));
        let ready_permille = *rng.pick(&[0, 0, 300, 1000]);
        let store =
            DetachedStore::new(Arc::clone(&faulty) as _, sim.spawner(), rng.next_u64(), ready_permille);
        if rng.permille(400) {
            store.limit(|capabilities| capabilities.copy_native = false);
        }
        if is_traced {
            store.trace();
        }
        let store = Arc::new(store);
        let mut config = small(write);
        config.objects_count_max = *rng.pick(&[3, 5, 20]);
        config.dirty_bytes_max = *rng.pick(&[4, 16, 512]) * KIB;
        config.dirty_age_max = Duration::from_millis(*rng.pick(&[1, 10, 10_000]));
        config.flush_requests_max = *rng.pick(&[1, 2, 8]);
        config.load_requests_max = *rng.pick(&[1, 16]);
        config.hash_seed = Some(rng.next_u64());
        let config_text = format!("{config:?}");
        let (cache, background) = cache(Arc::clone(&store) as _, config, &sim.clock);
        let mut env = Self {
            rng,
            sim,
            running: None,
            memory,
            faulty,
            store,
            is_volatile,
            config: config_text,
            objects: (0..OBJECTS).map(|n| id(&format!("shared-{n}"))).collect(),
            histories: (0..OBJECTS).map(|_| History::new(SECTORS)).collect(),
            reads: (0..OBJECTS).map(|_| Vec::new()).collect(),
            copies: Vec::new(),
            flushed_domains: vec![Moment(0); DOMAINS as usize],
            flushed_objects: vec![Moment(0); OBJECTS],
            flights: Vec::new(),
            now: 1,
            operations: 0,
            is_traced,
            cache: Some(cache),
        };
        env.running = Some(env.sim.spawn(background));
        env
    }

    fn cache(&self) -> ObjectCache {
        self.cache.clone().expect("not lost yet")
    }

    fn moment(&mut self) -> Moment {
        self.now += 1;
        Moment(self.now)
    }

    fn launch<T: Unpin + 'static>(
        &mut self,
        reply: Reply<T>,
        asked: Asked,
        answer: impl FnOnce(T) -> Answer + 'static,
    ) {
        self.operations += 1;
        if self.is_traced {
            let what = match &asked {
                Asked::Change { object, change } => self.histories[*object].describe(*change),
                Asked::Read { first, sectors, .. } => format!("read {first}..{}", first + sectors),
                Asked::Flush { scope, .. } => format!("flush {scope:?}"),
                Asked::Other => "other".into(),
            };
            let object = match &asked {
                Asked::Change { object, .. } | Asked::Read { object, .. } => {
                    self.objects[*object].to_string()
                }
                _ => String::new(),
            };
            println!("[{}] {object} {what}", self.now);
        }
        let handle = self.sim.spawn(async move { reply.await.map(answer) });
        self.flights.push((handle, asked));
    }

    fn begin(&mut self) {
        let object = self.rng.index(OBJECTS);
        let from = self.rng.index(SECTORS);
        let sectors = match self.rng.below(3) {
            0 => 1 + self.rng.index(8),
            1 => 1 + self.rng.index(SECTORS),
            _ => 8 - from % 8,
        };
        let range = from..(from + sectors).min(SECTORS);
        let (offset, len) = ((from * SECTOR) as u64, (range.len() * SECTOR) as u64);
        let target = self.objects[object].clone();
        let value = self.operations + 1_000_000 * (object as u64 + 1);
        let mut change = ChangeTerms::default();
        change.domain = Some(OrderDomain(domain_of(object)));
        if self.rng.permille(60) {
            change.durability = Durability::Stored;
        }
        let cache = self.cache();
        let asked = self.moment();
        let mut note = |value: u64, range: std::ops::Range<usize>, what| {
            let change = self.histories[object].asked(asked, value, range, domain_of(object), what);
            Asked::Change { object, change }
        };
        let changed = |reply: ChangeReply| Answer::Done(reply.durability);
        match self.rng.weighted(&[30, 30, 5, 5, 4, 3, 3, 4, 10, 3, 5]) {
            0 => {
                let asked = note(value, range.clone(), "write");
                let data = sector(value).repeat(range.len());
                self.launch(
                    cache.write(WriteRequest::new(target, offset, data).terms(change)),
                    asked,
                    changed,
                );
            }
            1 => {
                let request = ReadRequest::new(target, offset, len);
                let asked = Asked::Read { object, first: from, sectors: range.len(), asked };
                self.launch(cache.read(request), asked, |reply| Answer::Bytes(reply.data.to_vec()));
            }
            2 => {
                let asked = note(0, range, "zeroes");
                let request = WriteZeroesRequest::new(target, offset, len).terms(change);
                self.launch(cache.write_zeroes(request), asked, changed);
            }
            3 => {
                let asked = note(0, range, "discard");
                let request = DiscardRequest::new(target, offset, len).terms(change);
                self.launch(cache.discard(request), asked, changed);
            }
            4 => {
                let asked = note(value, 0..SECTORS, "full");
                let request = WriteFullRequest::new(target, sector(value).repeat(SECTORS)).terms(change);
                self.launch(cache.write_full(request), asked, changed);
            }
            5 => {
                let asked = note(0, from..SECTORS, "truncate");
                let request = TruncateRequest::new(target, offset).terms(change);
                self.launch(cache.truncate(request), asked, changed);
            }
            6 => {
                let asked = note(0, 0..SECTORS, "delete");
                let request = DeleteRequest::new(target).terms(change);
                self.launch(cache.delete(request), asked, |reply| Answer::Done(reply.durability));
            }
            // Copies go only to higher numbers, so that the histories can be completed one by one.
            7 if object > 0 => {
                let source = self.rng.index(object);
                // This value is never read, because the content comes from the source.
                let asked = note(u64::MAX, 0..SECTORS, "copy");
                let Asked::Change { change: number, .. } = asked else { unreachable!("just made") };
                self.copies.push((object, number, source));
                let request = CopyRequest::new(self.objects[source].clone(), target).terms(change);
                self.launch(cache.copy(request), asked, changed);
            }
            8 => {
                let scope = match self.rng.below(6) {
                    0 => Scope::All,
                    1 => Scope::Namespace(namespace("ns")),
                    2 => Scope::Object(target),
                    _ => Scope::Domain(namespace("ns"), OrderDomain(self.rng.below(DOMAINS))),
                };
                let mut request = FlushRequest::new(scope.clone());
                if self.rng.permille(150) {
                    request = request.deadline(self.sim.clock.now() + Duration::from_millis(5));
                }
                self.launch(cache.flush(request), Asked::Flush { scope, asked }, |_| Answer::Nothing);
            }
            9 => {
                let scope = if self.rng.permille(500) { Scope::All } else { Scope::Object(target) };
                let request = InvalidateRequest::new(scope);
                self.launch(cache.invalidate(request), Asked::Other, |_| Answer::Nothing);
            }
            _ => {
                let filler = id(&format!("filler-{}", self.rng.below(3)));
                let request = ReadRequest::new(filler, 0, 400 << 10);
                self.launch(cache.read(request), Asked::Other, |_| Answer::Nothing);
            }
        }
    }

    fn collect(&mut self) {
        let mut at = 0;
        while at < self.flights.len() {
            if !self.flights[at].0.is_done() {
                at += 1;
                continue;
            }
            let (handle, asked) = self.flights.swap_remove(at);
            let answered = self.moment();
            let answer = handle.take().expect("done");
            if self.is_traced {
                let asked = match &asked {
                    Asked::Change { object, change } => self.histories[*object].describe(*change),
                    Asked::Read { asked, .. } | Asked::Flush { asked, .. } => format!("{asked:?}"),
                    Asked::Other => String::new(),
                };
                let reported = answer.as_ref().err().map_or("done".to_owned(), ToString::to_string);
                println!("[{}] {asked}: {reported}", self.now);
            }
            self.answered(asked, answered, answer);
            let cache = self.cache();
            cache.validate().unwrap_or_else(|why| panic!("validate: {why}"));
        }
    }

    fn answered(&mut self, asked: Asked, at: Moment, answer: Result<Answer>) {
        match (asked, answer) {
            (Asked::Change { object, change }, Ok(Answer::Done(durability))) => {
                self.histories[object].answered(change, at);
                if durability == Durability::Stored {
                    self.histories[object].stored_at_once(change);
                }
            }
            (Asked::Change { object, change }, Err(Error::NotStored(_))) => {
                self.histories[object].answered(change, at);
            }
            (Asked::Change { .. }, Err(Error::OutcomeUnknown(_))) => {}
            (Asked::Change { object, change }, Err(error)) => {
                let is_void = matches!(error, Error::Missing | Error::Retryable(_));
                assert!(is_void, "{error}");
                self.histories[object].failed(change);
            }
            (Asked::Read { object, first, sectors, asked }, answer) => {
                let mut bytes = match answer {
                    Ok(Answer::Bytes(bytes)) => bytes,
                    Err(Error::Missing) => Vec::new(),
                    Err(Error::Retryable(_)) => return,
                    Err(error) => panic!("read: {error}"),
                    Ok(_) => unreachable!("a read was asked"),
                };
                assert_eq!(bytes.len() % SECTOR, 0, "sizes are whole sectors");
                bytes.resize(sectors * SECTOR, 0);
                self.reads[object].push((asked, at, first, bytes));
            }
            (Asked::Flush { scope, asked }, Ok(_)) => self.flushed(&scope, asked),
            (Asked::Flush { .. }, Err(error)) => {
                let is_traced =
                    matches!(error, Error::NotStored(_) | Error::Retryable(_) | Error::DeadlinePassed);
                assert!(is_traced, "flush: {error}");
            }
            _ => {}
        }
    }

    fn flushed(&mut self, scope: &Scope, asked: Moment) {
        for (object, id) in self.objects.iter().enumerate() {
            if scope.covers(id, Some(OrderDomain(domain_of(object)))) {
                let flushed = &mut self.flushed_objects[object];
                *flushed = (*flushed).max(asked);
            }
        }
        for (domain, flushed) in self.flushed_domains.iter_mut().enumerate() {
            let covers = match scope {
                Scope::Domain(_, OrderDomain(each)) => *each == domain as u64,
                Scope::Object(_) => false,
                _ => true,
            };
            if covers {
                *flushed = (*flushed).max(asked);
            }
        }
    }

    fn step(&mut self) {
        match self.rng.weighted(&[30, 100, 10, 3]) {
            0 if self.flights.len() < CLIENTS => self.begin(),
            0 | 1 => {
                self.sim.step();
            }
            2 => {
                if self.sim.is_idle() || self.rng.permille(200) {
                    self.sim.skip();
                }
            }
            _ => {
                if self.rng.permille(300) && !self.flights.is_empty() {
                    let at = self.rng.index(self.flights.len());
                    let (handle, asked) = self.flights.swap_remove(at);
                    let answered = self.moment();
                    if let Some(answer) = self.sim.cancel(handle) {
                        self.answered(asked, answered, answer);
                    }
                    let cache = self.cache();
                    cache.validate().unwrap_or_else(|why| panic!("validate after a cancellation: {why}"));
                }
            }
        }
        self.collect();
    }

    fn end_flights(&mut self) {
        let mut skips = 0;
        while !self.flights.is_empty() {
            while self.sim.step() {
                self.collect();
            }
            self.collect();
            if self.flights.is_empty() {
                break;
            }
            let is_hung = !self.sim.skip();
            assert!(!is_hung, "a hang: no task is woken, and these wait:\n{}", self.waiting());
            skips += 1;
            assert!(skips < 100_000, "{} never end", self.flights.len());
        }
    }

    fn waiting(&self) -> String {
        let each = self.flights.iter().map(|(_, asked)| match asked {
            Asked::Change { object, change } => {
                format!("{} {}", self.objects[*object], self.histories[*object].describe(*change))
            }
            Asked::Read { object, first, sectors, asked } => {
                format!("{} read {first}..{}, asked at {asked:?}", self.objects[*object], first + sectors)
            }
            Asked::Flush { scope, asked } => format!("flush {scope:?}, asked at {asked:?}"),
            Asked::Other => "another".into(),
        });
        let config = self.config.clone();
        format!("{}\n{config}\n{:?}", each.collect::<Vec<_>>().join("\n"), self.cache().counters())
    }

    /// Checks all reads and copies, object by object.
    fn complete_histories(&mut self) {
        for object in 0..OBJECTS {
            for (target, change, source) in std::mem::take(&mut self.copies) {
                if target == object {
                    let (before, from) = self.histories.split_at_mut(object);
                    from[0].copied(change, &before[source]);
                } else {
                    self.copies.push((target, change, source));
                }
            }
        }
    }

    fn check_reads(&mut self) {
        for object in 0..OBJECTS {
            for (asked, answered, first, bytes) in std::mem::take(&mut self.reads[object]) {
                let checked = self.histories[object].read(asked, answered, first, &bytes);
                checked.unwrap_or_else(|why| {
                    panic!("{} read at {asked:?}..{answered:?}: {why}", self.objects[object])
                });
            }
        }
    }

    fn check_store(&mut self) {
        for object in 0..OBJECTS {
            let mut bytes = content(&*self.memory, &self.objects[object]).unwrap_or_default();
            bytes.resize(SECTORS * SECTOR, 0);
            let flushed = self.flushed_objects[object];
            let domains = &self.flushed_domains;
            let checked =
                self.histories[object].stored(|domain| domains[domain as usize].max(flushed), &bytes);
            if self.is_traced {
                println!("{}: flushed {flushed:?} {domains:?}", self.objects[object]);
            }
            checked.unwrap_or_else(|why| panic!("{} as stored: {why}", self.objects[object]));
        }
    }

    /// Flushes everything; afterwards the stored content must equal the content that is read.
    fn finish(mut self) {
        self.end_flights();
        self.sim.advance(Duration::from_secs(30));
        for object in 0..OBJECTS {
            for _ in 0..200 {
                let asked = self.moment();
                let read = self.cache().read(ReadRequest::new(self.objects[object].clone(), 0, 1 << 20));
                let handle =
                    self.sim.spawn(async move { read.await.map(|reply| Answer::Bytes(reply.data.to_vec())) });
                let answer = self.sim.wait(handle);
                let answered = self.moment();
                let is_done = !matches!(answer, Err(Error::Retryable(_)));
                self.answered(Asked::Read { object, first: 0, sectors: SECTORS, asked }, answered, answer);
                if is_done {
                    break;
                }
            }
        }
        for _ in 0..200 {
            let asked = self.moment();
            let flush = self.cache().flush(FlushRequest::new(Scope::All));
            let handle = self.sim.spawn(flush);
            if self.sim.wait(handle).is_ok() {
                self.flushed(&Scope::All, asked);
                break;
            }
        }
        self.cache().validate().unwrap_or_else(|why| panic!("validate: {why}"));
        self.lose();
        // The last reads returned the content that the store has now.
        for object in 0..OBJECTS {
            let (_, _, _, last) = self.reads[object].last().expect("read just now");
            let mut bytes = content(&*self.memory, &self.objects[object]).unwrap_or_default();
            bytes.resize(SECTORS * SECTOR, 0);
            test_kit::same(&bytes, last, "what is stored, and was read last");
        }
        self.complete_histories();
        self.check_reads();
        self.check_store();
    }

    /// The cache is lost with all data that it had not stored, and the store's power is cut.
    fn lose(&mut self) {
        for (handle, _) in std::mem::take(&mut self.flights) {
            self.sim.cancel(handle);
        }
        if let Some(running) = self.running.take() {
            self.sim.cancel(running);
        }
        drop(self.cache.take());
        // The calls in flight take effect nevertheless.
        self.sim.advance(Duration::from_secs(60));
        assert!(!self.store.has_older_than(u64::MAX), "calls of a cache that is gone");
        if self.is_volatile {
            self.faulty.crash();
            self.faulty.restart().unwrap();
        }
    }
}

#[test]
fn several_clients_see_one_history() {
    each_seed(300, |seed, is_traced| {
        let policies = [WriteMode::Back, WriteMode::Back, WriteMode::Through, WriteMode::Around];
        let mut env = Environment::new(seed, is_traced, policies[seed as usize % 4], false);
        while env.operations < 100 {
            env.step();
        }
        env.finish();
    });
}

#[test]
fn a_lost_cache_leaves_a_prefix_of_history() {
    each_seed(300, |seed, is_traced| {
        let policies = [WriteMode::Back, WriteMode::Back, WriteMode::Back, WriteMode::Through];
        let mut env = Environment::new(seed, is_traced, policies[seed as usize % 4], true);
        let steps = env.rng.within(10, 1200);
        for _ in 0..steps {
            env.step();
        }
        env.lose();
        env.complete_histories();
        env.check_reads();
        env.check_store();
    });
}
