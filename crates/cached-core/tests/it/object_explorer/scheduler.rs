//! One run: every event is a step, and a seed determines the next one. The steps are the clients'
//! operations, the background, the execution of and the response to each request of the store,
//! time, failures, events, and other writers. Nothing else happens.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{NamespaceConfig, ObjectCache, ObjectCacheConfig, Writer};

use super::clients::Flight;
use super::oracle::{CELL, CELLS_PER_BUCKET, Kind, Oracle, bytes_of};
use super::profiles::Profile;
use super::store::{Stage, Store};
use test_kit::rng::Rng;
use test_kit::sim::{Handle, Sim};
use test_kit::{BUCKET, namespace};

/// A run that needs more steps than this to become idle never becomes idle.
const STEPS_MAX: u64 = 30_000;
/// The maximum time until everything is idle, once failures have ended.
const REST_TIMEOUT: Duration = Duration::from_secs(300);
const HOG: &str = "hog";

/// The result of a run.
pub struct Outcome {
    /// The problem.
    pub problem: Option<String>,
    pub trace: Vec<String>,
    /// The number of operations started.
    pub asked: u64,
    pub steps: u64,
}

/// The parts of a run that are left out, to find the relevant ones.
#[derive(Clone, Debug, Default)]
pub struct Without {
    /// The operations with these numbers.
    pub operations: Vec<u64>,
    /// All operations from this number on.
    pub from: Option<u64>,
}

pub struct Environment {
    pub profile: Profile,
    pub seed: u64,
    pub sim: Sim,
    pub rng: Rng,
    pub store: Store,
    pub caches: Vec<ObjectCache>,
    running: Vec<Handle<()>>,
    /// The memory that a slow reader holds.
    held: Vec<Segments>,
    pub ids: Vec<ObjectId>,
    pub oracle: Oracle,
    pub flights: Vec<Flight>,
    pub asked: u64,
    without: Without,
    is_traced: bool,
    pub trace: Vec<String>,
    steps: u64,
    troubles: u64,
    /// Whether failures have ended.
    pub is_calm: bool,
    /// Whether changes may be lost, because another writer has claimed a scope or a sync has
    /// failed.
    pub may_lose: bool,
    /// The scopes that another writer has claimed, each with the number of the previous writer's
    /// cache.
    pub fences: Vec<(usize, Scope)>,
    /// The cache that may change a namespace under an epoch.
    epochs: HashMap<(Namespace, Epoch), usize>,
    /// Objects that another client has changed, for which no event has been sent yet.
    unpublished: Vec<ObjectId>,
    dirty_buckets: u64,
    /// The number of buckets that no slow reader holds.
    pub free_buckets: u64,
    /// The delay of each request.
    slowness: HashMap<u64, u64>,
    slow_permille: u64,
    weights: [u64; 5],
}

macro_rules! trace {
    ($env:expr, $($text:tt)*) => {
        if $env.is_traced() {
            let text = format!($($text)*);
            $env.trace.push(text);
        }
    };
}
pub(super) use trace;

mod faults;

impl Environment {
    pub fn new(profile: &Profile, seed: u64, without: Without, is_traced: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x0b1e_c700);
        let mut sim = Sim::new(Some(seed));
        let store = Store::new(&sim.clock);
        let request_buckets = *rng.pick(profile.request_buckets);
        let runs_max = *rng.pick(profile.runs_max);
        store.limit(|can| {
            if request_buckets > 0 {
                can.request_bytes_max = request_buckets * BUCKET;
            }
            can.runs_max = runs_max;
        });
        let free = rng.within(profile.buckets.0, profile.buckets.1);
        let dirty_buckets = rng.within(1, (free / 4 * 3).max(1));
        let policy = *rng.pick(profile.policies);
        let ns = |index: u64| namespace(if index == 0 { "a" } else { "b" });
        let mut namespaces = vec![NamespaceConfig::new(namespace(HOG), WriteMode::Through)];
        for index in 0..profile.namespaces {
            namespaces.push(NamespaceConfig::new(ns(index), *rng.pick(profile.policies)));
        }
        let config = ObjectCacheConfig {
            objects_count_max: rng.within(profile.places.0, profile.places.1) as u32,
            dirty_bytes_max: dirty_buckets * BUCKET,
            dirty_age_max: Duration::from_secs(if rng.permille(500) { 3600 } else { 1 }),
            flush_gap_bytes_max: *rng.pick(profile.gap_bytes),
            flush_requests_max: rng.within(1, 4) as usize,
            load_requests_max: rng.within(1, 4) as usize,
            writer: profile.writer,
            namespaces,
            hash_seed: Some(seed | 1),
            ..test_kit::small(policy)
        };
        let mut caches = Vec::new();
        let mut running = Vec::new();
        let mut held = Vec::new();
        for index in 0..profile.caches {
            let below: Arc<dyn Blocker> = Arc::new(store.for_cache(index));
            let config =
                ObjectCacheConfig { hash_seed: Some((seed | 1) + 2 * index as u64), ..config.clone() };
            let (cache, background) = test_kit::cache(below, config, &sim.clock);
            running.push(sim.spawn(background));
            held.extend(hold_all_but(&mut sim, &cache, free));
            caches.push(cache);
        }
        let mut oracle = Oracle::new(profile.size_buckets * CELLS_PER_BUCKET);
        let count = rng.within(profile.objects.0, profile.objects.1);
        let mut ids = Vec::new();
        for index in 0..count {
            let name = Name::copy_from(format!("o{index}").as_bytes()).unwrap();
            let id = ObjectId::new(ns(index % profile.namespaces), name);
            let size = match profile.is_prefilled {
                true => Some(oracle.cells),
                false => rng.permille(700).then(|| rng.below(u64::from(oracle.cells) + 1) as u32),
            };
            let value = oracle.fresh_value();
            if let Some(size) = size {
                test_kit::fill(&store.memory(), &id, bytes_of(value, size));
            }
            oracle.add(id.clone(), size, value);
            ids.push(id);
        }
        oracle.is_lenient = profile.another_deletes;
        oracle.checks_versions = profile.another == 0 && profile.claims == 0 && profile.caches == 1;
        store.sync_all(&ids);
        store.close(profile.is_volatile);
        let _ = store.take_done();
        let slow_permille = *rng.pick(&[0, 100, 300, 600]);
        let any = [1, 3, 10, 30];
        let weights = [
            *rng.pick(&any),
            *rng.pick(&any) * 10,
            *rng.pick(&any) * 3,
            *rng.pick(&any) * 3,
            *rng.pick(&[0, 0, 1, 3]),
        ];
        Self {
            profile: profile.clone(),
            seed,
            sim,
            rng,
            store,
            caches,
            running,
            held,
            ids,
            oracle,
            flights: Vec::new(),
            asked: 0,
            without,
            is_traced,
            trace: Vec::new(),
            steps: 0,
            troubles: 0,
            is_calm: false,
            may_lose: false,
            fences: Vec::new(),
            epochs: HashMap::new(),
            unpublished: Vec::new(),
            dirty_buckets,
            free_buckets: free,
            slowness: HashMap::new(),
            slow_permille,
            weights,
        }
    }

    pub fn is_traced(&self) -> bool {
        self.is_traced
    }

    /// Returns whether the store answers every request, and no caller cancels.
    pub fn is_faultless(&self) -> bool {
        self.profile.retryable + self.profile.unknown + self.profile.failed_sync == 0
    }

    /// Performs the whole run.
    pub fn run(&mut self) -> Result<(), String> {
        let last = self.without.from.unwrap_or(u64::MAX).min(self.profile.operations);
        let mut rest_at = self.rng.within(5, 40);
        let (mut asked, mut since) = (0, 0);
        while self.asked < last {
            let moves = self.step()?;
            let unknown = (0..self.ids.len()).any(|object| self.oracle.unknown(object) > 9);
            if self.asked > asked {
                (asked, since) = (self.asked, self.steps);
            }
            // No operation is started, so one of those in flight waits forever, or loops.
            let moves = moves && self.steps - since < 4_000;
            if !moves || self.asked >= rest_at || unknown {
                rest_at = self.asked + self.rng.within(5, 40);
                self.rest()?;
                if self.rng.permille(400) {
                    self.compare()?;
                }
                self.is_calm = false;
                since = self.steps;
            }
        }
        self.rest()?;
        self.compare()?;
        self.held.clear();
        self.caches.clear();
        self.drain(|env| env.running.iter().all(Handle::is_done))?;
        Ok(())
    }

    /// Makes one of the possible steps; returns false if no step is possible.
    fn step(&mut self) -> Result<bool, String> {
        let can_ask = self.flights.len() < self.profile.clients as usize;
        let [ask, poll, begin, answer, time] = self.weights;
        let profile = &self.profile;
        let rates = profile.retryable
            + profile.unknown
            + profile.failed_sync
            + profile.cancels
            + profile.another
            + profile.claims
            + profile.rumours
            + profile.mode_changes;
        let event = if self.unpublished.is_empty() { 0 } else { ask * 20 };
        let weights = [
            if can_ask { ask * 100 } else { 0 },
            if self.sim.is_idle() { 0 } else { poll * 100 },
            begin * self.ease_of(Stage::Queued) + self.ease_of(Stage::Stray).div_ceil(4),
            answer * self.ease_of(Stage::Done),
            if self.sim.clock.next_timer().is_some() { time * 20 } else { 0 },
            if self.troubles * 1000 < (self.asked + 4) * rates { ask * rates / 10 } else { 0 },
            event,
        ];
        if weights[..4].iter().sum::<u64>() == 0 {
            return Ok(self.move_stuck());
        }
        match self.rng.weighted(&weights) {
            0 => self.ask(),
            1 => self.poll(),
            2 => self.begin_one(),
            3 => self.answer_one(),
            4 => {
                self.sim.skip();
                trace!(self, "time passes");
            }
            5 => self.trouble()?,
            _ => self.publish_one(),
        }
        self.after_step()?;
        Ok(true)
    }

    fn after_step(&mut self) -> Result<(), String> {
        self.steps += 1;
        self.store.step();
        self.store.sort_out();
        self.look_at_store()?;
        self.collect()?;
        if self.steps.is_multiple_of(8) {
            self.validate()?;
        }
        if self.profile.checks_stake && self.steps.is_multiple_of(16) && !self.may_lose {
            // Depending on the kind of truncation, truncated bytes count as a bucket or not.
            let most = self.dirty_buckets + self.ids.len() as u64;
            let at_stake = self.oracle.buckets_at_stake();
            if at_stake > most {
                return Err(format!("stake: {at_stake} acknowledged buckets are not stored, at most {most}"));
            }
        }
        Ok(())
    }

    fn validate(&self) -> Result<(), String> {
        self.caches.iter().try_for_each(|cache| cache.validate().map_err(|why| format!("invariant: {why}")))
    }

    fn poll(&mut self) {
        self.sim.step();
    }

    /// Returns the weight, of 100, of a request's next step; 0 for a step that is made only if no
    /// other step is possible.
    fn ease(&mut self, number: u64) -> u64 {
        let (rng, permille) = (&mut self.rng, self.slow_permille);
        let drawn = || if rng.permille(permille) { *rng.pick(&[0, 0, 1, 3, 10]) } else { 100 };
        *self.slowness.entry(number).or_insert_with(drawn)
    }

    /// Makes the next step of a request that waits until no other step is possible; returns false
    /// if there is no such request.
    fn move_stuck(&mut self) -> bool {
        let waiting = self.store.waiting();
        if waiting.is_empty() {
            return false;
        }
        let (number, _) = *self.rng.pick(&waiting);
        self.slowness.insert(number, 1);
        true
    }

    fn ease_of(&mut self, stage: Stage) -> u64 {
        let waiting = self.store.waiting();
        let here = waiting.into_iter().filter(|(_, at)| *at == stage);
        here.map(|(number, _)| self.ease(number)).sum()
    }

    /// Chooses a request of a stage, and rarely one that is slow.
    fn pick(&mut self, stage: Stage) -> Option<u64> {
        let waiting = self.store.waiting();
        let here: Vec<u64> = waiting.into_iter().filter(|(_, at)| *at == stage).map(|(it, _)| it).collect();
        let mut weights: Vec<u64> = here.iter().map(|number| self.ease(*number)).collect();
        if weights.iter().sum::<u64>() == 0 {
            weights.fill(1);
        }
        (!here.is_empty()).then(|| here[self.rng.weighted(&weights)])
    }

    fn begin_one(&mut self) {
        let (queued, strays) = (self.ease_of(Stage::Queued), self.ease_of(Stage::Stray).div_ceil(4));
        let is_stray = queued == 0 || self.rng.below(queued + strays) >= queued;
        let stage = if is_stray { Stage::Stray } else { Stage::Queued };
        let Some(number) = self.pick(stage) else { return };
        if stage == Stage::Stray && self.rng.permille(300) {
            trace!(self, "    {}: never done", number);
            return self.store.forget(number);
        }
        let request = self.store.request(number);
        trace!(self, "    {}: {} {} begun", number, named(&request.object), request.text);
        self.store.begin(number);
    }

    fn answer_one(&mut self) {
        let Some(number) = self.pick(Stage::Done) else { return };
        let request = self.store.request(number);
        trace!(self, "    {}: {} {} answered", number, named(&request.object), request.text);
        self.store.answer(number, None);
    }

    /// Checks that the events in the store preserve the guarantees.
    fn look_at_store(&mut self) -> Result<(), String> {
        for done in self.store.take_done() {
            let request = &done.request;
            trace!(self, "    {}: {:?}", request.number, done.result);
            if let (Some(stamp), Some(object), Ok(())) = (request.stamp, &request.object, &done.result) {
                let key = (object.namespace.clone(), stamp.epoch);
                let other = *self.epochs.entry(key).or_insert(request.cache);
                if other != request.cache {
                    let epoch = stamp.epoch;
                    return Err(format!("epoch: two caches change {} with {epoch}", object.namespace));
                }
            }
            if let (Some((scope, _)), Ok(())) = (&request.claim, &done.result) {
                self.taken_over(request.cache, &scope.clone());
            }
            let all = request.syncs.is_some();
            for object in 0..self.ids.len() {
                let id = &self.ids[object];
                let touches = match &request.object {
                    Some(it) => it == id && (request.is_change || all),
                    None => all,
                };
                if touches {
                    let stable = self.store.stable(id);
                    self.oracle.stable(object, stable.as_deref(), all)?;
                }
            }
        }
        Ok(())
    }

    /// Records that a claim by one of the caches has succeeded.
    fn taken_over(&mut self, cache: usize, scope: &Scope) {
        self.fences.retain(|(fenced, within)| *fenced != cache || within != scope);
        self.oracle.unfenced(cache, scope);
        for other in (0..self.caches.len()).filter(|other| *other != cache) {
            self.oracle.fenced(other, scope);
            self.fences.push((other, scope.clone()));
            self.may_lose = true;
        }
    }

    /// Runs until `is_over`, in any order and without failures. Time passes only after a failure.
    pub fn drain(&mut self, is_over: impl Fn(&Self) -> bool) -> Result<(), String> {
        let first = self.steps;
        let was_calm = std::mem::replace(&mut self.is_calm, true);
        let start = self.sim.clock.now();
        loop {
            let waiting = self.store.waiting();
            if self.sim.is_idle() && waiting.is_empty() {
                if is_over(self) {
                    break;
                }
                // A flush is retried, a little later, if another client removes the object
                // meanwhile.
                let may_wait = !self.is_faultless() || self.may_lose || self.profile.another_deletes;
                let is_late = self.sim.clock.now().since(start) > REST_TIMEOUT;
                let due = self.sim.clock.next_timer();
                let far = due.is_none_or(|due| due.since(start) > REST_TIMEOUT);
                if !may_wait || far || is_late {
                    return Err(format!("hang: nothing moves, and these wait: {:?}", self.waiting()));
                }
                self.sim.skip();
                trace!(self, "time passes");
            } else {
                let is_ready = if self.sim.is_idle() { 0 } else { 100 };
                let begin = self.ease_of(Stage::Queued) + self.ease_of(Stage::Stray);
                let answer = self.ease_of(Stage::Done);
                if begin + answer + is_ready == 0 {
                    self.move_stuck();
                    continue;
                }
                match self.rng.weighted(&[begin, answer, is_ready]) {
                    0 => self.begin_one(),
                    1 => self.answer_one(),
                    _ => self.poll(),
                }
            }
            self.after_step()?;
            if self.steps - first > STEPS_MAX {
                return Err(format!("endless: {STEPS_MAX} steps, and these wait: {:?}", self.waiting()));
            }
        }
        self.is_calm = was_calm;
        Ok(())
    }

    fn waiting(&self) -> Vec<&str> {
        self.flights.iter().map(|flight| flight.what.as_str()).collect()
    }

    /// Runs until everything is idle: all operations have ended, and all events have arrived.
    fn rest(&mut self) -> Result<(), String> {
        trace!(self, "to rest");
        self.is_calm = true;
        while !self.unpublished.is_empty() {
            self.publish_one();
        }
        self.drain(|env| env.flights.is_empty())?;
        let now = self.oracle.tick();
        self.oracle.informed(&Scope::All, now);
        self.oracle.at_rest();
        self.validate()?;
        trace!(self, "at rest");
        Ok(())
    }

    /// Flushes, and checks that cache and store agree.
    fn compare(&mut self) -> Result<(), String> {
        if self.caches.len() > 1 {
            return Ok(());
        }
        self.is_calm = true;
        trace!(self, "flush, and compare");
        if self.profile.flushes_objects {
            // A flush of everything could hide a loss that the flush of an object reports.
            for object in 0..self.ids.len() {
                let scope = Scope::Object(self.ids[object].clone());
                if !self.flush_to_rest(scope.clone())? {
                    self.invalidate_at_rest(scope)?;
                }
            }
        }
        let mut losses = 0;
        while !self.flush_to_rest(Scope::All)? {
            // The loss was reported, and is now accepted. Data that are still dirty may be lost
            // afterwards.
            losses += 1;
            if losses > 6 {
                return Err("loss: reported again after each invalidation".into());
            }
            self.invalidate_at_rest(Scope::All)?;
        }
        let dirty = self.caches[0].counters().dirty_bytes;
        if dirty > 0 {
            return Err(format!("invariant: {dirty} dirty bytes after a flush"));
        }
        for object in 0..self.ids.len() {
            self.compare_one(object)?;
        }
        self.oracle.at_rest();
        for object in 0..self.ids.len() {
            let content = self.store.current(&self.ids[object]);
            self.oracle.rebase(object, content.as_deref())?;
        }
        self.store.sync_all(&self.ids.clone());
        Ok(())
    }
}

/// Fills the cache's memory, except for `free` buckets, with data that a slow reader holds.
fn hold_all_but(sim: &mut Sim, cache: &ObjectCache, free: u64) -> Vec<Segments> {
    let id = ObjectId::new(namespace(HOG), Name::copy_from(b"hog").unwrap());
    let total = cache.counters().memory_bytes / BUCKET;
    let most = (cache.capabilities().request_bytes_max / BUCKET).min(64);
    let mut held = Vec::new();
    let mut at = 0;
    while at < total - free {
        let count = most.min(total - free - at);
        let bytes = vec![1; (count * BUCKET) as usize];
        sim.run(cache.write(WriteRequest::new(id.clone(), at * BUCKET, bytes))).expect("written");
        let read = sim.run(cache.read(ReadRequest::new(id.clone(), at * BUCKET, count * BUCKET)));
        held.push(read.expect("read").data);
        at += count;
    }
    sim.run(cache.invalidate(InvalidateRequest::new(Scope::Object(id.clone())))).expect("invalidated");
    assert_eq!(cache.counters().free_bytes, free * BUCKET, "only what is held is taken");
    held
}

fn named(object: &Option<ObjectId>) -> String {
    object.as_ref().map_or(String::new(), |id| id.to_string())
}

impl Environment {
    pub fn is_left_out(&self, number: u64) -> bool {
        self.without.operations.contains(&number)
    }
}

/// Runs one seed.
pub fn run(profile: &Profile, seed: u64, without: Without, is_traced: bool) -> Outcome {
    let env = std::panic::AssertUnwindSafe(std::cell::RefCell::new(None));
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut own = env.borrow_mut();
        let own = own.insert(Environment::new(profile, seed, without, is_traced));
        own.run()
    }));
    let problem = match ran {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            Some(format!("panic: {text}"))
        }
    };
    let mut slot = env.borrow_mut();
    let Some(own) = slot.as_mut() else {
        return Outcome { problem, trace: Vec::new(), asked: 0, steps: 0 };
    };
    let outcome =
        Outcome { problem, trace: std::mem::take(&mut own.trace), asked: own.asked, steps: own.steps };
    if outcome.problem.as_ref().is_some_and(|why| why.starts_with("panic")) {
        // An unwound task may still hold locks.
        std::mem::forget(slot.take());
    }
    outcome
}
