//! One run: a disk and a store that outlive the processes, and one process after the other, each
//! until the power fails. A seed determines every step.

use std::sync::Arc;
use std::time::Duration;

use blocker::*;
use cached_core::object::{
    AttachState, JournalOptions, NamespaceConfig, ObjectCache, ObjectCacheConfig, OpenJournal, RecoveryError,
    Writer,
};
use cached_journal::disk::simulated::{Faults, SimulatedDisk};
use cached_journal::{Journal, JournalConfig, OpenError};
use test_kit::rng::Rng;
use test_kit::sim::{Handle, Sim};
use test_kit::{BUCKET, KIB, namespace};

use super::model::{Change as Changed, Content, Model};
use super::operations::{Answer, OBJECT_BYTES, Operation};
use super::profiles::Profile;
use super::store::{Stage, Store};

const SEGMENT_BYTES: u64 = 64 * KIB;
/// A process that needs more steps than this to become idle never becomes idle.
const STEPS_MAX: u64 = 30_000;
/// The maximum time until everything is idle.
const REST_TIMEOUT: Duration = Duration::from_secs(600);

/// The operation that a client waits for.
enum Flight {
    Change {
        object: usize,
        what: String,
        asked: u64,
        durability: Durability,
        /// The content afterwards; `None` if the operation must fail.
        after: Option<Content>,
        source: Option<usize>,
        handle: Handle<Result<Answer>>,
    },
    Read {
        object: usize,
        handle: Handle<Result<(Content, Option<u64>)>>,
    },
    Flush {
        what: String,
        counts: Vec<(usize, usize)>,
        handle: Handle<Result<FlushReply>>,
    },
    List {
        handle: Handle<Result<ListReply>>,
        /// The objects of the namespace.
        objects: Vec<usize>,
    },
    Mode {
        handle: Handle<Result<()>>,
    },
    Switch {
        detaches: bool,
        /// The number of earlier detach and attach commands of the process.
        number: u64,
        counts: Vec<(usize, usize)>,
        handle: Handle<Result<()>>,
    },
}

/// The state of a run.
pub struct World {
    profile: Profile,
    rng: Rng,
    pub disk: SimulatedDisk,
    store: Store,
    ids: Vec<ObjectId>,
    domains: Vec<Option<OrderDomain>>,
    pub model: Model,
    tick: u64,
    value: u8,
    lives: u64,
    /// Whether the outcome of an object's last change is unknown, so that the object must be read.
    unknown: Vec<bool>,
    pub trace: Option<Vec<String>>,
    pub recovered: u64,
}

macro_rules! trace {
    ($world:expr, $($text:tt)*) => {
        if let Some(trace) = &mut $world.trace {
            trace.push(format!($($text)*));
        }
    };
}

/// One process.
struct Process {
    sim: Sim,
    cache: ObjectCache,
    journal: Arc<Journal>,
    clock: Arc<cached_journal::ManualClock>,
    begun: Option<Handle<Result<(), RecoveryError>>>,
    /// The number of detach and attach commands so far.
    switches: u64,
    flights: Vec<Flight>,
    /// The objects that a client uses.
    busy: Vec<bool>,
}

impl World {
    pub fn new(profile: &Profile, seed: u64, is_traced: bool) -> Self {
        let mut rng = Rng::new(seed ^ 0x70_77_72);
        let disk = SimulatedDisk::new();
        disk.set_faults(rng.next_u64(), Faults::default());
        let store = Store::new(&ManualClock::new());
        store.close(true);
        let objects = rng.within(profile.objects.0, profile.objects.1) as usize;
        let ids: Vec<ObjectId> = (0..objects)
            .map(|at| {
                let space = namespace(["n0", "n1"][at % profile.namespaces]);
                ObjectId::new(space, Name::copy_from(format!("o{at}").as_bytes()).unwrap())
            })
            .collect();
        // The store makes all its changes durable.
        store.sync_all(&ids);
        let domains = (0..objects)
            .map(|_| (profile.domains && rng.permille(700)).then(|| OrderDomain(rng.below(2))))
            .collect();
        let mut model = Model::new(objects);
        (model.is_prefix, model.is_exact) = (profile.is_prefix, !profile.has_faults());
        Self {
            profile: profile.clone(),
            rng,
            disk,
            store,
            ids,
            domains,
            model,
            tick: 1,
            value: 0,
            lives: 0,
            unknown: vec![false; objects],
            trace: is_traced.then(Vec::new),
            recovered: 0,
        }
    }

    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    fn journal_config(&self) -> JournalConfig {
        JournalConfig {
            segment_bytes: SEGMENT_BYTES,
            limit_bytes: self.profile.segments * SEGMENT_BYTES,
            ..JournalConfig::new("simulated")
        }
    }

    fn cache_config(&mut self) -> ObjectCacheConfig {
        let mut config = ObjectCacheConfig {
            memory_bytes_max: 256 * BUCKET,
            objects_count_max: *self.rng.pick(&[4, 16]),
            object_bytes_max: OBJECT_BYTES,
            dirty_bytes_max: 64 * KIB,
            dirty_age_max: *self.rng.pick(&[Duration::from_millis(10), Duration::from_secs(3600)]),
            flush_requests_max: 4,
            load_requests_max: 8,
            retry_delay_min: Duration::from_millis(10),
            retry_delay_max: Duration::from_secs(1),
            write: WriteMode::Back,
            writer: Writer::Cache,
            // Versions are derived from it, and must be new after every start.
            hash_seed: Some(self.rng.next_u64()),
            ..ObjectCacheConfig::default()
        };
        if self.profile.has_through {
            config.namespaces = vec![NamespaceConfig::new(namespace("n1"), WriteMode::Through)];
            config.namespaces[0].journal = Some(true);
        }
        config
    }

    /// Starts a process; returns `None` if the power failed.
    fn start(&mut self) -> Result<Option<Process>, String> {
        self.lives += 1;
        let sim = Sim::new(Some(self.rng.next_u64()));
        let clock = Arc::<cached_journal::ManualClock>::default();
        let environment = cached_journal::Environment {
            clock: Arc::clone(&clock) as _,
            ..cached_journal::Environment::new(self.disk.clone())
        };
        let open = match OpenJournal::open_stepped(&self.journal_config(), environment) {
            Ok(open) => open,
            Err(_) if self.disk.is_off() => return Ok(None),
            Err(error @ (OpenError::Corrupt(_) | OpenError::Config(_) | OpenError::Locked)) => {
                return Err(format!("open: {error}"));
            }
            Err(error) => return Err(format!("open: {error}")),
        };
        trace!(self, "-- life {}: {} records to replay", self.lives, open.records());
        self.recovered += open.records();
        let journal = open.journal();
        let options = JournalOptions {
            journaled_bytes_max: *self.rng.pick(&[8 * KIB, 16 * KIB]),
            ..JournalOptions::default()
        };
        let config = self.cache_config();
        let built = ObjectCache::builder(Arc::new(self.store.for_cache(self.lives as usize)))
            .config(config)
            .clock(Arc::new(sim.clock.clone()))
            .journal(open, options)
            .build();
        let (cache, background) = built.map_err(|error| format!("build: {error}"))?;
        let busy = vec![false; self.ids.len()];
        let mut process =
            Process { sim, cache, journal, clock, begun: None, switches: 0, flights: Vec::new(), busy };
        test_kit::sim::forget(process.sim.spawn(background));
        let own = process.cache.clone();
        process.begun = Some(process.sim.spawn(async move { own.begin_recovery().await }));
        Ok(Some(process))
    }

    /// Runs one process until the power fails or its operations are used up; then it ends without a
    /// shutdown.
    pub fn live(&mut self, cut_in: Option<u64>, operations: u64) -> Result<(), String> {
        self.disk.set_faults(self.rng.next_u64(), Faults::default());
        self.disk.cut_power_in(cut_in);
        let started = self.start();
        let process = match started {
            Ok(Some(process)) => process,
            Ok(None) => {
                self.crash(None);
                return Ok(());
            }
            Err(_) if self.disk.is_off() => {
                self.crash(None);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // The process is not dropped during unwinding, because its locks are held.
        let mut process = std::mem::ManuallyDrop::new(process);
        self.disk.set_faults(self.rng.next_u64(), self.profile.faults);
        let (mut left, mut steps) = (operations, 0);
        while left > 0 && !self.disk.is_off() {
            if self.step(&mut process, true)? {
                left -= 1;
            }
            steps += 1;
            if steps > STEPS_MAX {
                let waiting = Self::waiting(&process);
                let (recovery, health) = (process.cache.recovery(), process.cache.journal_health());
                return Err(format!("endless: {waiting:?} wait, {recovery:?}, {health:?}"));
            }
        }
        self.crash(Some(std::mem::ManuallyDrop::into_inner(process)));
        Ok(())
    }

    /// Makes one random step. Returns whether an operation was begun.
    fn step(&mut self, process: &mut Process, may_begin: bool) -> Result<bool, String> {
        let idle = process.sim.is_idle();
        let waiting = self.store.waiting();
        let of = |stage| waiting.iter().filter(|(_, it)| *it == stage).count() as u64;
        let free = (0..self.ids.len()).any(|object| !process.busy[object]) && process.flights.len() < 6;
        let weights = [
            if may_begin && free { 40 } else { 0 },
            if idle { 0 } else { 200 },
            30,
            4,
            40 * of(Stage::Queued) + of(Stage::Stray),
            60 * of(Stage::Done),
            if may_begin { 2 } else { 0 },
        ];
        self.store.step();
        let drawn = self.rng.weighted(&weights);
        match drawn {
            0 => self.begin_one(process),
            1 => {
                process.sim.step();
            }
            2 => {
                process.journal.step_commit();
            }
            3 => {
                process.journal.step_prepare();
            }
            4 => self.begin_request(),
            5 => self.answer_request(),
            _ => self.pass_time(process),
        }
        self.store.sort_out();
        for done in self.store.take_done() {
            // Late changes of an ended process count as stored: the model does not cover a store
            // that shows such a change and loses it later.
            if done.request.cache as u64 != self.lives
                && let Some(object) = &done.request.object
            {
                self.store.sync_one(object);
            }
        }
        if !self.disk.is_off() {
            self.collect(process)?;
        }
        Ok(drawn == 0)
    }

    fn waiting(process: &Process) -> Vec<String> {
        let text = |flight: &Flight| match flight {
            Flight::Change { object, what, .. } => format!("object {object}: {what}"),
            Flight::Read { object, .. } => format!("read of object {object}"),
            Flight::Flush { what, .. } => what.clone(),
            Flight::List { .. } => "list".into(),
            Flight::Mode { .. } => "mode".into(),
            Flight::Switch { detaches, .. } => format!("detach {detaches}"),
        };
        process.flights.iter().map(text).collect()
    }

    fn pass_time(&mut self, process: &mut Process) {
        if process.sim.skip() {
            trace!(self, "time passes");
        }
        process.clock.advance(Duration::from_secs(self.rng.below(4)));
    }

    fn pick(&mut self, wanted: impl Fn(Stage) -> bool) -> Option<u64> {
        let waiting: Vec<u64> =
            self.store.waiting().into_iter().filter(|(_, stage)| wanted(*stage)).map(|(it, _)| it).collect();
        (!waiting.is_empty()).then(|| *self.rng.pick(&waiting))
    }

    fn begin_request(&mut self) {
        if let Some(number) = self.pick(|stage| stage != Stage::Done) {
            let request = self.store.request(number);
            trace!(
                self,
                "    store does {number} ({}): {} {:?}", request.cache, request.text, request.object
            );
            self.store.begin(number);
        }
    }

    fn answer_request(&mut self) {
        if let Some(number) = self.pick(|stage| stage == Stage::Done) {
            self.store.answer(number, None);
        }
    }

    /// Begins an operation of a client.
    fn begin_one(&mut self, process: &mut Process) {
        let free: Vec<usize> = (0..self.ids.len()).filter(|object| !process.busy[*object]).collect();
        let object = *self.rng.pick(&free);
        let seen = |world: &Self, it: usize| world.model.objects[it].is_seen && !world.unknown[it];
        if !seen(self, object) || self.rng.permille(150) {
            return self.read(process, object);
        }
        match self.rng.weighted(&[800, 90, 20, self.profile.mode_changes, self.profile.switches]) {
            0 => {
                let others: Vec<usize> =
                    free.iter().copied().filter(|it| *it != object && seen(self, *it)).collect();
                self.change(process, object, &others);
            }
            1 => self.flush(process, object),
            2 => self.list(process, object),
            3 => self.set_mode(process, object),
            _ => self.switch(process),
        }
    }

    fn change(&mut self, process: &mut Process, object: usize, others: &[usize]) {
        self.value = self.value.wrapping_add(1).max(1);
        let current = self.model.objects[object].current().clone();
        let operation = Operation::draw(&mut self.rng, &current, self.value, others);
        let source = if let Operation::Copy(from) = &operation { Some(*from) } else { None };
        let source_content = source.map(|from| self.model.objects[from].current().clone());
        let after = operation.apply(&current, &source_content.unwrap_or_default());
        let durability = *self.rng.pick(&[
            Durability::Cached,
            Durability::Cached,
            Durability::Journaled,
            Durability::Stored,
        ]);
        let mut change = ChangeTerms::default();
        change.durability = durability;
        change.domain = self.domains[object];
        let asked = self.tick();
        let mut what = format!("{operation:?}");
        what.truncate(60);
        let what = format!("{what} as {durability} #{}", self.value);
        trace!(self, "{asked}: object {object}: {what}");
        process.busy[object] = true;
        source.into_iter().for_each(|from| process.busy[from] = true);
        let handle =
            process.sim.spawn(operation.ask(process.cache.clone(), self.ids.clone(), object, change));
        process.flights.push(Flight::Change { object, what, asked, durability, after, source, handle });
    }

    fn read(&mut self, process: &mut Process, object: usize) {
        trace!(self, "{}: read object {object}", self.tick);
        let (cache, id) = (process.cache.clone(), self.ids[object].clone());
        let handle = process.sim.spawn(async move {
            match cache.read(ReadRequest::new(id, 0, OBJECT_BYTES)).await {
                Ok(reply) => Ok((Some(reply.data.to_vec()), Some(reply.version.0))),
                Err(Error::Missing) => Ok((None, None)),
                Err(error) => Err(error),
            }
        });
        process.busy[object] = true;
        process.flights.push(Flight::Read { object, handle });
    }

    fn flush(&mut self, process: &mut Process, object: usize) {
        let id = self.ids[object].clone();
        let scope = match (self.rng.below(5), self.domains[object]) {
            (0, _) => Scope::All,
            (1, _) => Scope::Namespace(id.namespace),
            (2, Some(domain)) => Scope::Domain(id.namespace, domain),
            _ => Scope::Object(id),
        };
        let durability = *self.rng.pick(&[Durability::Stored, Durability::Journaled]);
        let counts = (0..self.ids.len())
            .filter(|at| scope.covers(&self.ids[*at], self.domains[*at]) && self.model.objects[*at].is_seen)
            .map(|at| (at, self.model.objects[at].changes.len()))
            .collect();
        let what = format!("flush {scope:?} {durability}");
        trace!(self, "{}: {what}", self.tick);
        let cache = process.cache.clone();
        let handle = process
            .sim
            .spawn(async move { cache.flush(FlushRequest::new(scope).durability(durability)).await });
        process.flights.push(Flight::Flush { what, counts, handle });
    }

    fn list(&mut self, process: &mut Process, object: usize) {
        let space = self.ids[object].namespace.clone();
        let objects: Vec<usize> = (0..self.ids.len()).filter(|at| self.ids[*at].namespace == space).collect();
        if objects.iter().any(|at| process.busy[*at] || self.unknown[*at]) {
            return;
        }
        objects.iter().for_each(|at| process.busy[*at] = true);
        let cache = process.cache.clone();
        let handle = process.sim.spawn(async move { cache.list(ListRequest::new(space)).await });
        process.flights.push(Flight::List { handle, objects });
    }

    fn set_mode(&mut self, process: &mut Process, object: usize) {
        let space = self.ids[object].namespace.clone();
        let mode = *self.rng.pick(&[WriteMode::Back, WriteMode::Back, WriteMode::Through, WriteMode::Around]);
        trace!(self, "{}: {space} is written {mode}", self.tick);
        let cache = process.cache.clone();
        let mut policy = Policy::default();
        policy.write = mode;
        let handle = process.sim.spawn(async move { cache.control().set_policy(space, policy).await });
        process.flights.push(Flight::Mode { handle });
    }

    /// Detaches or attaches the cache.
    fn switch(&mut self, process: &mut Process) {
        let detaches = process.cache.attach_status().state == AttachState::Attached;
        trace!(self, "{}: detach {detaches}", self.tick);
        process.switches += 1;
        let counts = (0..self.ids.len())
            .filter(|at| self.model.objects[*at].is_seen)
            .map(|at| (at, self.model.objects[at].changes.len()))
            .collect();
        let cache = process.cache.clone();
        let handle = process.sim.spawn(async move {
            match detaches {
                true => cache.detach_cache(None).await,
                false => cache.attach_cache(None).await,
            }
        });
        process.flights.push(Flight::Switch { detaches, number: process.switches, counts, handle });
    }

    /// Handles the responses that have arrived.
    fn collect(&mut self, process: &mut Process) -> Result<(), String> {
        if let Some(begun) = process.begun.take_if(|begun| begun.is_done()) {
            match begun.get() {
                Ok(()) => trace!(self, "recovery has begun"),
                // The disk failed before the claims were logged, so the recovery begins again.
                Err(RecoveryError::Disk(why) | RecoveryError::NotSetAside(why))
                    if self.profile.has_faults() =>
                {
                    trace!(self, "recovery cannot begin: {why}");
                    process.clock.advance(Duration::from_secs(6));
                    let own = process.cache.clone();
                    process.begun = Some(process.sim.spawn(async move { own.begin_recovery().await }));
                }
                Err(error) => return Err(format!("recovery: {error}")),
            }
        }
        let mut at = 0;
        while at < process.flights.len() {
            let is_done = match &process.flights[at] {
                Flight::Change { handle, .. } => handle.is_done(),
                Flight::Read { handle, .. } => handle.is_done(),
                Flight::Flush { handle, .. } => handle.is_done(),
                Flight::List { handle, .. } => handle.is_done(),
                Flight::Mode { handle } | Flight::Switch { handle, .. } => handle.is_done(),
            };
            match is_done {
                true => {
                    let flight = process.flights.swap_remove(at);
                    self.done(process, flight)?;
                }
                false => at += 1,
            }
        }
        Ok(())
    }

    fn done(&mut self, process: &mut Process, flight: Flight) -> Result<(), String> {
        match flight {
            Flight::Change { object, what, asked, durability, after, source, handle } => {
                process.busy[object] = false;
                source.into_iter().for_each(|from| process.busy[from] = false);
                let answer = handle.get();
                let now = self.tick();
                let told = answer.as_ref().map(|it| it.durability);
                trace!(self, "{now}: object {object}: {what}: {told:?}");
                let change = |acknowledged, after| Changed { what: what.clone(), asked, acknowledged, after };
                match (answer, after) {
                    (Ok(answer), Some(after)) => {
                        if answer.durability < durability {
                            let got = answer.durability;
                            return Err(format!("durability: {what} was answered as {got}"));
                        }
                        let is_durable = answer.durability >= Durability::Journaled;
                        self.model.changed(object, change(Some(now), after.clone()), is_durable);
                        if let Some(version) = answer.version {
                            self.model.version(object, version, &after)?;
                        }
                    }
                    (Ok(_), None) => {
                        return Err(format!("result: {what} of object {object} should have failed"));
                    }
                    (
                        Err(
                            Error::Missing
                            | Error::Mismatch { .. }
                            | Error::ConditionFailed { .. }
                            | Error::DeadlinePassed,
                        ),
                        None,
                    ) => (),
                    // The operation had no effect.
                    (Err(Error::Retryable(_)), _) => (),
                    (Err(Error::NotStored(_)), Some(after)) => {
                        self.model.changed(object, change(Some(now), after), false);
                    }
                    (Err(Error::OutcomeUnknown(_)), Some(after)) => {
                        self.model.changed(object, change(None, after), false);
                        self.unknown[object] = true;
                    }
                    (Err(error), _) => return Err(format!("result: {what} of object {object}: {error}")),
                }
            }
            Flight::Read { object, handle } => {
                process.busy[object] = false;
                match handle.get() {
                    Ok((content, version)) => {
                        trace!(self, "{}: object {object} is read", self.tick);
                        if std::mem::take(&mut self.unknown[object])
                            && self.model.objects[object].is_seen
                            && self.model.objects[object].current() != &content
                        {
                            self.model.objects[object].changes.pop();
                        }
                        self.model.found(object, &content)?;
                        if let Some(version) = version {
                            self.model.version(object, version, &content)?;
                        }
                    }
                    Err(Error::Retryable(_)) => (),
                    Err(error) => return Err(format!("read: object {object}: {error}")),
                }
            }
            Flight::Flush { what, counts, handle } => match handle.get() {
                Ok(reply) => {
                    trace!(self, "{}: {what}: {}", self.tick, reply.durability);
                    if reply.durability < Durability::Journaled {
                        return Err(format!("durability: {what} was answered as {}", reply.durability));
                    }
                    self.model.flushed(&counts);
                }
                Err(Error::Retryable(_) | Error::NotStored(_)) => (),
                Err(error) => return Err(format!("result: {what}: {error}")),
            },
            Flight::List { handle, objects } => {
                objects.iter().for_each(|at| process.busy[*at] = false);
                let reply = handle.get().map_err(|error| format!("list: {error}"))?;
                for at in objects.iter().filter(|at| self.model.objects[**at].is_seen) {
                    let entry = reply.entries.iter().find(|entry| entry.name == self.ids[*at].name);
                    let size = entry.map(|entry| entry.size_bytes);
                    let expected = self.model.objects[*at].current().as_ref().map(|it| it.len() as u64);
                    if size != expected {
                        return Err(format!(
                            "list: object {at} has {size:?} bytes, and should have {expected:?}"
                        ));
                    }
                }
            }
            Flight::Switch { detaches, number, counts, handle } => match handle.get() {
                Ok(()) if number == process.switches => {
                    let state = process.cache.attach_status().state;
                    trace!(self, "{}: the cache is {state:?}", self.tick);
                    if (state == AttachState::Detached) != detaches {
                        return Err(format!("detach {detaches} was answered, and the cache is {state:?}"));
                    }
                    if detaches {
                        self.model.flushed(&counts);
                    }
                }
                Ok(()) | Err(Error::Retryable(_)) => (),
                Err(error) => return Err(format!("result: detach {detaches}: {error}")),
            },
            Flight::Mode { handle } => match handle.get() {
                Ok(()) | Err(Error::Retryable(_) | Error::NotStored(_)) => (),
                Err(error) => return Err(format!("result: a change of the write mode: {error}")),
            },
        }
        Ok(())
    }

    /// Ends the process. The outcome of operations in flight is unknown, and they may reach the
    /// store later.
    fn crash(&mut self, process: Option<Process>) {
        if let Some(mut process) = process {
            for flight in std::mem::take(&mut process.flights) {
                if let Flight::Change { object, what, asked, after: Some(after), .. } = flight {
                    self.model.changed(object, Changed { what, asked, acknowledged: None, after }, false);
                }
            }
            drop(process);
        }
        self.unknown.iter_mut().for_each(|unknown| *unknown = false);
        self.store.sort_out();
        for (number, stage) in self.store.waiting() {
            // A copy has the content that its source had at the time of the copy, not the content
            // after the power failure.
            let is_copy = self.store.request(number).name == "copy";
            match (stage, self.rng.below(if is_copy { 2 } else { 4 })) {
                (Stage::Stray, 0) => self.store.forget(number),
                (Stage::Stray, 1) => self.store.begin(number),
                _ => (),
            }
        }
        let _ = self.store.take_done();
        self.model.crashed();
        let is_power = self.profile.is_power_lost && self.rng.permille(700);
        trace!(self, "-- {}", if is_power { "the power goes" } else { "the process is killed" });
        match is_power {
            true => self.disk.power_cycle(self.rng.next_u64()),
            false => self.disk.kill_process(),
        }
        if is_power {
            self.lose_power_of_store();
        }
        // All surviving changes are on the medium.
        self.store.sync_all(&self.ids.clone());
    }

    /// Loses changes that the store was not asked to store durably.
    fn lose_power_of_store(&mut self) {
        for id in self.ids.clone() {
            let (stable, current) = (self.store.stable(&id), self.store.current(&id));
            if stable == current || self.rng.permille(300) {
                continue;
            }
            trace!(self, "    the store loses changes of {id}");
            let scope = Scope::Namespace(id.namespace.clone());
            self.store.by_another(|memory| {
                let epoch = match executor::block_on(memory.claim(ClaimRequest::ask(scope))) {
                    Ok(reply) => reply.epoch,
                    Err(Error::Fenced { epoch }) => epoch,
                    Err(error) => panic!("{error}"),
                };
                // This stamp is above all stamps of the same kind that the cache has used: those
                // that indicate trouble of its journal, or the others.
                let info = executor::block_on(memory.info(InfoRequest::new(id.clone())));
                let is_unlogged = info.is_ok_and(|it| it.stamp.is_some_and(|it| it.sequence >> 63 == 1));
                let sequence = if is_unlogged { u64::MAX } else { u64::MAX >> 1 };
                let mut change = ChangeTerms::default();
                change.stamp = (epoch.0 > 0).then_some(Stamp { epoch, sequence });
                let done = match stable {
                    Some(bytes) => {
                        let request = WriteFullRequest::new(id.clone(), bytes).terms(change);
                        executor::block_on(memory.write_full(request)).map(|_| ())
                    }
                    None => {
                        let request = DeleteRequest::new(id.clone()).terms(change);
                        executor::block_on(memory.delete(request)).map(|_| ())
                    }
                };
                // An earlier loss in the same epoch already has the highest stamp.
                assert!(matches!(done, Ok(()) | Err(Error::Superseded { .. })), "{done:?}");
            });
        }
    }

    /// Runs the last process: it recovers, all objects are read, and all data are stored.
    pub fn last(&mut self) -> Result<(), String> {
        self.disk.set_faults(0, Faults::default());
        self.disk.cut_power_in(None);
        let process = self.start()?.ok_or("the power went at last")?;
        let mut process = std::mem::ManuallyDrop::new(process);
        for object in 0..self.ids.len() {
            self.read(&mut process, object);
        }
        self.settle(&mut process)?;
        for object in 0..self.ids.len() {
            self.read(&mut process, object);
        }
        let cache = process.cache.clone();
        let flush = process.sim.spawn(async move { cache.flush(FlushRequest::new(Scope::All)).await });
        let counts = Vec::new();
        process.flights.push(Flight::Flush { what: "the last flush".into(), counts, handle: flush });
        self.settle(&mut process)?;
        let progress = process.cache.recovery();
        if !progress.is_done || progress.records_applied != progress.records {
            return Err(format!("recovery: {progress:?} at rest"));
        }
        if !self.model.objects.iter().all(|it| it.is_seen) {
            return Err("an object was not seen".into());
        }
        process.cache.validate().map_err(|why| format!("invariant: {why}"))?;
        for (object, id) in self.ids.iter().enumerate() {
            let (stored, expected) = (self.store.stable(id), self.model.objects[object].current());
            if &stored != expected {
                return Err(format!(
                    "stored: object {object} has {:?} bytes in the store, and should have {:?}; or other ones",
                    stored.map(|it| it.len()),
                    expected.as_ref().map(Vec::len)
                ));
            }
        }
        Ok(())
    }

    /// Runs until no operation is in flight.
    fn settle(&mut self, process: &mut Process) -> Result<(), String> {
        let start = process.sim.clock.now();
        for _ in 0..STEPS_MAX {
            if process.flights.is_empty() && process.begun.is_none() && process.sim.is_idle() {
                return Ok(());
            }
            let is_still = process.sim.is_idle()
                && self.store.waiting().iter().all(|(_, stage)| *stage == Stage::Stray)
                && !process.journal.step_commit();
            if is_still && process.sim.is_idle() {
                let late = process.sim.clock.now().since(start) > REST_TIMEOUT;
                if late || !process.sim.skip() {
                    let waiting = process.flights.len();
                    return Err(format!(
                        "hang: {waiting} operations wait, recovery {:?}",
                        process.cache.recovery()
                    ));
                }
                process.clock.advance(Duration::from_secs(1));
            }
            self.step(process, false)?;
        }
        Err(format!("endless: {:?} wait, {:?}", Self::waiting(process), process.cache.recovery()))
    }
}

/// Runs one seed. For each process, `cut` draws the number of disk changes after which the power
/// fails.
pub fn run(world: &mut World, seed: u64, cut: impl Fn(&mut Rng) -> Option<u64>) -> Result<(), String> {
    let mut cuts = Rng::new(seed ^ 0xc07);
    for _ in 0..world.profile.lives {
        let operations = cuts.below(world.profile.operations);
        world.live(cut(&mut cuts), operations)?;
    }
    world.last()
}
