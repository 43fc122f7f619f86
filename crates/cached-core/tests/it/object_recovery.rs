//! Recovery of damaged, foreign and superseded journals, through the cache.

use std::future::Future;
use std::sync::Arc;

use blocker::*;
use cached_core::object::{
    JournalOptions, JournalState, Leadership, ObjectCache, ObjectCacheConfig, OpenJournal, RecoveryError,
    Writer,
};
use cached_journal::disk::Disk;
use cached_journal::disk::simulated::{Faults, SimulatedDisk};
use cached_journal::{Environment, Head, Journal, JournalConfig, Kind, Object, Record, tools};
use test_kit::rng::Rng;
use test_kit::sim::Sim;
use test_kit::steered::{Op, SteeredStore, Verdict};
use test_kit::{BUCKET, KIB, id, pattern};

const SEGMENT_BYTES: u64 = 64 * KIB;
pub(crate) const OBJECTS: usize = 6;

fn journal_config() -> JournalConfig {
    JournalConfig {
        segment_bytes: SEGMENT_BYTES,
        limit_bytes: 8 * SEGMENT_BYTES,
        ..JournalConfig::new("simulated")
    }
}

fn environment(disk: &SimulatedDisk) -> Environment {
    Environment { clock: Arc::<cached_journal::ManualClock>::default(), ..Environment::new(disk.clone()) }
}

pub(crate) struct Process {
    sim: Sim,
    pub(crate) cache: ObjectCache,
    journal: Arc<Journal>,
    /// The journal's clock.
    clock: Arc<cached_journal::ManualClock>,
}

impl Process {
    pub(crate) fn start<S: Blocker + 'static>(
        disk: &SimulatedDisk,
        store: &Arc<S>,
        seed: u64,
    ) -> std::result::Result<Self, String> {
        Self::lead(disk, store, seed, None)
    }

    /// Starts a cache that leads in an election, if a leadership is given.
    pub(crate) fn lead<S: Blocker + 'static>(
        disk: &SimulatedDisk,
        store: &Arc<S>,
        seed: u64,
        leadership: Option<Leadership>,
    ) -> std::result::Result<Self, String> {
        let mut sim = Sim::new(None);
        let clock = Arc::<cached_journal::ManualClock>::default();
        let environment = Environment { clock: Arc::clone(&clock) as _, ..environment(disk) };
        let open = OpenJournal::open_stepped(&journal_config(), environment).map_err(|it| it.to_string())?;
        let journal = open.journal();
        let config = ObjectCacheConfig {
            memory_bytes_max: 256 * BUCKET,
            object_bytes_max: 4 * BUCKET,
            // Less than half of the journal is used, so no object is stored before a flush is
            // requested.
            dirty_bytes_max: 128 * KIB,
            dirty_age_max: std::time::Duration::from_secs(36_000),
            write: WriteMode::Back,
            writer: if leadership.is_some() { Writer::Elected } else { Writer::Cache },
            leadership,
            hash_seed: Some(seed),
            ..ObjectCacheConfig::default()
        };
        let (cache, background) = ObjectCache::builder(Arc::clone(store) as _)
            .config(config)
            .clock(Arc::new(sim.clock.clone()))
            .journal(open, JournalOptions { journaled_bytes_max: 16 * KIB, ..JournalOptions::default() })
            .build()
            .unwrap();
        test_kit::sim::forget(sim.spawn(background));
        // Prepares all segments, because the objects of a journal that is half full are stored.
        while journal.step_prepare() {}
        Ok(Self { sim, cache, journal, clock })
    }

    pub(crate) fn run<T: 'static>(&mut self, work: impl Future<Output = T> + 'static) -> T {
        let handle = self.sim.spawn(work);
        for _ in 0..100_000 {
            self.sim.run_until_idle();
            if let Some(answer) = handle.take() {
                return answer;
            }
            let has_moved = self.journal.step_commit() | self.journal.step_prepare();
            if !has_moved && self.sim.is_idle() {
                assert!(self.sim.skip(), "a hang");
            }
        }
        panic!("no answer");
    }

    /// Runs all tasks until none can continue.
    pub(crate) fn go_on(&mut self) {
        loop {
            self.sim.run_until_idle();
            if !(self.journal.step_commit() | self.journal.step_prepare()) {
                return;
            }
        }
    }

    /// Writes and stores an object, so that the log keeps only records with a hold.
    fn move_on(&mut self, object: usize, bytes: Vec<u8>) {
        let cache = self.cache.clone();
        let write = WriteRequest::new(name(object), 0, bytes).durability(Durability::Journaled);
        self.run(async move { cache.write(write).await }).unwrap();
        let cache = self.cache.clone();
        self.run(async move { cache.flush(FlushRequest::new(Scope::Object(name(object)))).await }).unwrap();
    }

    pub(crate) fn begin(&mut self) -> std::result::Result<(), RecoveryError> {
        let cache = self.cache.clone();
        self.run(async move { cache.begin_recovery().await })
    }

    pub(crate) fn read(&mut self, object: usize) -> Result<Option<Vec<u8>>> {
        let cache = self.cache.clone();
        let answer = self.run(async move { cache.read(ReadRequest::new(name(object), 0, 4 * BUCKET)).await });
        match answer {
            Ok(reply) => Ok(Some(reply.data.to_vec())),
            Err(Error::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn settle(&mut self) {
        for _ in 0..10_000 {
            self.sim.run_until_idle();
            if self.cache.recovery().is_done {
                return;
            }
            if !self.journal.step_commit() {
                self.sim.skip();
            }
        }
        panic!("the recovery does not end: {:?}", self.cache.recovery());
    }
}

pub(crate) fn name(object: usize) -> ObjectId {
    id(&format!("o{object}"))
}

/// Returns a journal with a few changes of each object, none of which is stored, and the contents
/// of the objects.
fn written() -> (SimulatedDisk, Arc<Memory>, Vec<Option<Vec<u8>>>) {
    written_by(None, Durability::Journaled)
}

/// Does the same as [`written`], by the leader of an election if a leadership is given.
pub(crate) fn written_by(
    leadership: Option<Leadership>,
    durability: Durability,
) -> (SimulatedDisk, Arc<Memory>, Vec<Option<Vec<u8>>>) {
    let (disk, store) = (SimulatedDisk::new(), Arc::new(test_kit::memory(&ManualClock::new())));
    let mut process = Process::lead(&disk, &store, 1, leadership).unwrap();
    process.begin().unwrap();
    let mut contents = vec![None; OBJECTS];
    for round in 0..3 {
        for (object, content) in contents.iter_mut().enumerate() {
            let bytes = pattern(10 * round + object as u64, 0, 2000 + 700 * object);
            let cache = process.cache.clone();
            let request = WriteRequest::new(name(object), 0, bytes.clone()).durability(durability);
            process.run(async move { cache.write(request).await }).unwrap();
            *content = Some(bytes);
        }
    }
    process.go_on();
    drop(process);
    disk.kill_process();
    (disk, store, contents)
}

/// Copies the store, because a recovery claims it.
fn copy_of(store: &Memory) -> Arc<Memory> {
    let copy = Arc::new(test_kit::memory(&ManualClock::new()));
    for object in 0..OBJECTS {
        if let Some(bytes) = test_kit::content(store, &name(object)) {
            test_kit::fill(&copy, &name(object), bytes);
        }
    }
    copy
}

#[test]
fn what_was_journaled_is_there_after_a_restart_with_its_version() {
    let (disk, store, contents) = written();
    let mut process = Process::start(&disk, &store, 2).unwrap();
    process.begin().unwrap();
    // Each object is recovered out of turn, in reverse order.
    for object in (0..OBJECTS).rev() {
        assert_eq!(process.read(object).unwrap(), contents[object]);
    }
    process.settle();
    let progress = process.cache.recovery();
    assert!(progress.records > 18 && progress.records_applied == progress.records, "{progress:?}");
    let cache = process.cache.clone();
    process.run(async move { cache.flush(FlushRequest::new(Scope::All)).await }).unwrap();
    for (object, content) in contents.iter().enumerate() {
        assert_eq!(test_kit::content(&*store, &name(object)), *content);
    }
}

/// Flips a bit of an object's payload.
fn damage(disk: &SimulatedDisk, contents: &[Option<Vec<u8>>], object: usize) {
    let mut damaged = 0;
    for segment in disk.names().unwrap().iter().filter(|name| name.starts_with("segment")) {
        let mut bytes = disk.content(segment).unwrap();
        let wanted = &contents[object].as_ref().unwrap()[100..140];
        if let Some(at) = bytes.windows(wanted.len()).position(|run| run == wanted) {
            bytes[at] ^= 1;
            damaged += 1;
            disk.set_content(segment, &bytes);
        }
    }
    assert_eq!(damaged, 1);
}

#[test]
fn a_payload_damaged_after_the_start_fails_its_object_and_no_other() {
    let (disk, store, contents) = written();
    let mut process = Process::start(&disk, &store, 2).unwrap();
    damage(&disk, &contents, 3);
    // The background task applies the records as soon as the recovery has begun.
    process.begin().unwrap();
    for (object, content) in contents.iter().enumerate() {
        match (object, process.read(object)) {
            (3, answer) => assert!(
                matches!(&answer, Err(Error::Corrupt(why)) if why.to_string().contains("segment-")),
                "{answer:?}"
            ),
            (_, answer) => assert_eq!(answer.unwrap(), *content),
        }
    }
    process.settle();
    let progress = process.cache.recovery();
    assert_eq!((progress.objects_failed, progress.is_done), (1, true));
    let cache = process.cache.clone();
    let flushed = process.run(async move { cache.flush(FlushRequest::new(Scope::All)).await });
    assert!(matches!(flushed, Err(Error::Corrupt(_))), "a flush says what is not stored: {flushed:?}");
    // Nothing is skipped silently: the next start finds the damage again.
    drop(process);
    disk.kill_process();
    let mut process = Process::start(&disk, &store, 3).unwrap();
    process.begin().unwrap();
    assert!(matches!(process.read(3), Err(Error::Corrupt(_))));
}

#[test]
fn every_flipped_bit_is_detected_or_harmless_through_the_cache() {
    let (disk, store, contents) = written();
    let mut rng = Rng::new(5);
    let (mut detected, mut harmless) = (0, 0);
    let last = OBJECTS - 1;
    let before_last = Some(pattern(10 + last as u64, 0, 2000 + 700 * last));
    for segment in disk.names().unwrap() {
        let bytes = disk.content(&segment).unwrap();
        for run in 0..bytes.len() / 64 {
            if bytes[run * 64..][..64].iter().all(|byte| *byte == 0) && run % 61 != 0 {
                continue;
            }
            let mut damaged = bytes.clone();
            damaged[run * 64 + rng.index(64)] ^= 1 << rng.below(8);
            let (disk, store) = (disk.copy(), copy_of(&store));
            disk.set_content(&segment, &damaged);
            let outcome = Process::start(&disk, &store, 2).and_then(|mut process| {
                process.begin().map_err(|error| error.to_string())?;
                for (object, content) in contents.iter().enumerate() {
                    match process.read(object) {
                        // Damage to the last batch of a journal that was not closed looks like a torn write.
                        Ok(found) if object == OBJECTS - 1 && found == before_last => (),
                        Ok(found) => {
                            assert!(found == *content, "{segment}, run {run}: object {object} is wrong");
                        }
                        Err(Error::Corrupt(why)) => return Err(why.to_string()),
                        Err(error) => panic!("{segment}, run {run}: {error}"),
                    }
                }
                Ok(())
            });
            match outcome {
                Ok(()) => harmless += 1,
                Err(why) => {
                    assert!(why.contains("byte ") || why.contains("journal"), "{why}");
                    detected += 1;
                }
            }
        }
    }
    println!("{detected} detected, {harmless} harmless");
    assert!(detected > 300 && harmless > 50, "{detected} {harmless}");
}

/// Lets another writer claim the namespace that contains all objects.
pub(crate) fn take_over(store: &Memory, epoch: u64) {
    let scope = Scope::Namespace(name(0).namespace);
    executor::block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(77)))).unwrap();
}

/// Asserts that a directory inside the journal's directory contains the journaled changes.
pub(crate) fn assert_kept(disk: &SimulatedDisk, directory: &str, contents: &[Option<Vec<u8>>]) {
    let mut last = std::collections::BTreeMap::new();
    let kept = disk.directory(directory).unwrap();
    let damage = tools::export(&*kept, |record, payload| {
        if !payload.is_empty() {
            last.insert(record.position, payload.to_vec());
        }
        Ok(())
    });
    assert_eq!(damage.unwrap(), []);
    let all: Vec<_> = last.into_values().collect();
    let expected: Vec<_> = contents.iter().flatten().cloned().collect();
    assert!(all.ends_with(&expected), "{} records", all.len());
}

#[test]
fn a_journal_that_another_writer_has_overtaken_is_kept_aside_and_not_replayed() {
    let (disk, store, contents) = written();
    take_over(&store, 9);
    let mut process = Process::start(&disk, &store, 2).unwrap();
    process.begin().unwrap();
    assert_kept(&disk, "overtaken-1", &contents);
    assert!(process.read(0).unwrap().is_none());
    process.settle();
    let progress = process.cache.recovery();
    assert_eq!(progress.records_applied, progress.records);
    assert!(test_kit::content(&*store, &name(0)).is_none());
    // The cache becomes the writer again with its next change, and the next start replays only this
    // change.
    let bytes = pattern(99, 0, 3000);
    let cache = process.cache.clone();
    let write = WriteRequest::new(name(1), 0, bytes.clone()).durability(Durability::Journaled);
    process.run(async move { cache.write(write).await }).unwrap();
    drop(process);
    disk.kill_process();
    let mut process = Process::start(&disk, &store, 3).unwrap();
    process.begin().unwrap();
    assert_eq!(process.read(1).unwrap(), Some(bytes));
    assert!((0..OBJECTS).filter(|object| *object != 1).all(|object| process.read(object).unwrap().is_none()));
    assert!(!disk.names().unwrap().contains(&"overtaken-2".to_owned()));
}

/// Returns the disk of a journal with one change in each of two namespaces, the store, the object
/// in the second namespace, and the written bytes.
fn written_in_two() -> (SimulatedDisk, Arc<Memory>, ObjectId, Vec<u8>) {
    let (disk, store) = (SimulatedDisk::new(), Arc::new(test_kit::memory(&ManualClock::new())));
    let mut process = Process::start(&disk, &store, 1).unwrap();
    process.begin().unwrap();
    let other = ObjectId::new(Namespace::new("other").unwrap(), name(0).name);
    let bytes = pattern(7, 0, 1000);
    for object in [name(0), other.clone()] {
        let write = WriteRequest::new(object, 0, bytes.clone()).durability(Durability::Journaled);
        let cache = process.cache.clone();
        process.run(async move { cache.write(write).await }).unwrap();
    }
    drop(process);
    disk.kill_process();
    (disk, store, other, bytes)
}

/// The records of this cache's own namespace are applied, although another writer has claimed a
/// different one.
#[test]
fn a_namespace_that_was_not_overtaken_is_recovered_beside_one_that_was() {
    let (disk, store, other, bytes) = written_in_two();
    take_over(&store, 9);
    let mut process = Process::start(&disk, &store, 2).unwrap();
    process.begin().unwrap();
    assert!(process.read(0).unwrap().is_none());
    let cache = process.cache.clone();
    let read = process.run(async move { cache.read(ReadRequest::new(other, 0, BUCKET)).await });
    assert_eq!(read.unwrap().data.to_vec(), bytes);
    assert!(disk.names().unwrap().contains(&"overtaken-1".to_owned()));
}

/// One copy contains the changes of all namespaces that were taken over.
#[test]
fn a_journal_of_two_overtaken_namespaces_is_kept_once() {
    let (disk, store, other, bytes) = written_in_two();
    take_over(&store, 9);
    let claim = ClaimRequest::new(Scope::Namespace(other.namespace), Epoch(9), WriterId(77));
    executor::block_on(store.claim(claim)).unwrap();
    Process::start(&disk, &store, 2).unwrap().begin().unwrap();
    assert_kept(&disk, "overtaken-1", &[Some(bytes.clone()), Some(bytes)]);
    assert!(!disk.names().unwrap().contains(&"overtaken-2".to_owned()));
}

/// At whatever point the power fails, a complete copy of the journal is kept before its records are
/// voided.
#[test]
fn a_power_cut_while_a_journal_is_kept_aside_loses_nothing() {
    let (pristine, store, contents) = written();
    take_over(&store, 9);
    let mut cut = 0;
    for at in 1..200 {
        let disk = pristine.copy();
        disk.cut_power_in(Some(at));
        let is_cut = match Process::start(&disk, &store, 2) {
            Err(_) => true,
            Ok(mut process) => process.begin().is_err(),
        };
        disk.power_cycle(at);
        if !is_cut {
            break;
        }
        cut += 1;
        let mut process = Process::start(&disk, &store, 3).unwrap();
        process.begin().unwrap();
        assert_kept(&disk, "overtaken-1", &contents);
        assert!(process.read(0).unwrap().is_none(), "cut at {at}");
    }
    assert!((10..199).contains(&cut), "{cut}");
}

#[test]
fn no_more_than_three_overtaken_journals_are_kept() {
    let (disk, store, _) = written();
    let mut epoch = 9;
    for seed in 2..5 {
        take_over(&store, epoch);
        let mut process = Process::start(&disk, &store, seed).unwrap();
        process.begin().unwrap();
        let write = WriteRequest::new(name(0), 0, b"again".to_vec()).durability(Durability::Journaled);
        let cache = process.cache.clone();
        process.run(async move { cache.write(write).await }).unwrap();
        drop(process);
        disk.kill_process();
        epoch += 10;
    }
    for (seed, is_discarded) in [(5, false), (6, true)] {
        take_over(&store, epoch);
        let mut process = Process::start(&disk, &store, seed).unwrap();
        let refused = process.begin().unwrap_err();
        let RecoveryError::Overtaken { in_force, .. } = &refused else { panic!("{refused}") };
        assert_eq!(*in_force, Epoch(epoch));
        assert!(refused.to_string().contains("overtaken-1 to overtaken-3"), "{refused}");
        // One copy is discarded, or removed after an export.
        let kept = disk.directory("overtaken-2").unwrap();
        if is_discarded {
            tools::discard(&*kept).unwrap();
        } else {
            for file in kept.names().unwrap() {
                disk.remove(&format!("overtaken-2/{file}")).unwrap();
            }
        }
        process.begin().unwrap();
        let write = WriteRequest::new(name(0), 0, b"again".to_vec()).durability(Durability::Journaled);
        let cache = process.cache.clone();
        process.run(async move { cache.write(write).await }).unwrap();
        drop(process);
        disk.kill_process();
        epoch += 10;
    }
}

/// A host that leads without a journal that could not be set aside must not leave out changes that
/// have to be stored.
#[test]
fn a_journal_without_space_to_be_set_aside_is_kept_until_there_is_some() {
    for is_other_overtaken in [true, false] {
        let (disk, store, other, bytes) = written_in_two();
        take_over(&store, 9);
        if is_other_overtaken {
            let claim = ClaimRequest::new(Scope::Namespace(other.namespace), Epoch(9), WriterId(77));
            executor::block_on(store.claim(claim)).unwrap();
        }
        let mut process = Process::start(&disk, &store, 2).unwrap();
        disk.set_faults(1, Faults { full: 1000, ..Faults::default() });
        for _ in 0..2 {
            let refused = process.begin().unwrap_err();
            assert_eq!(matches!(refused, RecoveryError::NotSetAside(_)), is_other_overtaken, "{refused}");
            assert_eq!(matches!(refused, RecoveryError::Disk(_)), !is_other_overtaken, "{refused}");
        }
        disk.set_faults(1, Faults::default());
        process.begin().unwrap();
        assert_kept(&disk, "overtaken-1", &[Some(bytes.clone()), Some(bytes)]);
        assert!(process.read(0).unwrap().is_none());
    }
}

/// Asserts that all objects have the journaled content, and that the store gets this content.
pub(crate) fn assert_recovered(process: &mut Process, store: &Memory, contents: &[Option<Vec<u8>>]) {
    for (object, content) in contents.iter().enumerate() {
        assert_eq!(process.read(object).unwrap(), *content, "object {object}");
    }
    process.settle();
    let cache = process.cache.clone();
    process.run(async move { cache.flush(FlushRequest::new(Scope::All)).await }).unwrap();
    for (object, content) in contents.iter().enumerate() {
        assert_eq!(test_kit::content(store, &name(object)), *content, "object {object}");
    }
}

/// The store accepts a claim, and the response is lost. The next attempt must not mistake this
/// claim for the one that voids the journal.
#[test]
fn a_claim_whose_answer_is_lost_leaves_nothing_out() {
    for nth in [1, 2] {
        let (disk, memory, contents) = written();
        let store = SteeredStore::over(Arc::clone(&memory));
        let mut process = Process::start(&disk, &store, 2).unwrap();
        let mut claims = 0;
        store.rule(move |call| {
            claims += u64::from(call.op == Op::Claim);
            match call.op == Op::Claim && claims == nth {
                true => Verdict::DoAndFail(Error::OutcomeUnknown("the connection broke".into())),
                false => Verdict::Pass,
            }
        });
        let lost = process.begin().unwrap_err();
        assert!(matches!(lost, RecoveryError::Store(Error::OutcomeUnknown(_))), "claim {nth}: {lost}");
        process.begin().unwrap();
        assert_recovered(&mut process, &memory, &contents);
    }
}

/// Another writer that claims the namespace between two attempts is noticed.
#[test]
fn a_takeover_between_two_attempts_is_noticed() {
    let (disk, memory, contents) = written();
    let store = SteeredStore::over(Arc::clone(&memory));
    let mut process = Process::start(&disk, &store, 2).unwrap();
    let mut claims = 0;
    store.rule(move |call| {
        claims += u64::from(call.op == Op::Claim);
        match call.op == Op::Claim && claims == 2 {
            true => Verdict::Fail(Error::Retryable("away".into())),
            false => Verdict::Pass,
        }
    });
    process.begin().unwrap_err();
    take_over(&memory, 2);
    process.begin().unwrap();
    assert_kept(&disk, "overtaken-1", &contents);
    assert!(process.read(0).unwrap().is_none());
}

/// A failing disk does not count as damage: no journal has to be discarded, and the recovery begins
/// once the disk works.
#[test]
fn a_disk_that_fails_while_the_claims_are_logged_is_tried_again() {
    let (disk, memory, contents) = written();
    let mut process = Process::start(&disk, &memory, 2).unwrap();
    disk.set_faults(1, Faults { sync: 1000, ..Faults::default() });
    for _ in 0..3 {
        let failed = process.begin().unwrap_err();
        assert!(
            matches!(failed, RecoveryError::Disk(_)) && !failed.to_string().contains("discard"),
            "{failed}"
        );
    }
    disk.set_faults(1, Faults::default());
    process.clock.advance(std::time::Duration::from_secs(6));
    process.go_on();
    process.begin().unwrap();
    assert_recovered(&mut process, &memory, &contents);
}

#[test]
fn any_records_are_refused_or_applied_and_never_panic() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let (disk, store) = (SimulatedDisk::new(), Arc::new(test_kit::memory(&ManualClock::new())));
        let (journal, _) = Journal::open_stepped(&journal_config(), environment(&disk)).unwrap();
        let mut holds = Vec::new();
        let numbers = [0, 1, 2, 5, 512, 4096, 16_384, 16_385, 1 << 40, 1 << 63, u64::MAX - 1, u64::MAX];
        for _ in 0..rng.within(1, 12) {
            let mut key = b"\x02nso0".to_vec();
            if rng.permille(100) {
                let at = rng.index(key.len());
                key[at] = rng.next_u64() as u8;
            }
            let mut payload = vec![rng.next_u64() as u8; *rng.pick(&[0, 1, 24, 40, 512, 5000])];
            for number in payload.chunks_exact_mut(8).take(6) {
                number.copy_from_slice(&rng.pick(&numbers).to_le_bytes());
            }
            let kind = Kind(rng.within(1, 10) as u8);
            let len = if rng.permille(600) { payload.len() as u64 } else { *rng.pick(&numbers) };
            let head = Head {
                namespace: *rng.pick(&numbers),
                offset: *rng.pick(&numbers),
                len,
                domain: *rng.pick(&numbers),
                generation: *rng.pick(&[0, 0, 1]),
                sequence: *rng.pick(&numbers),
                epoch: *rng.pick(&[1, 1, 2, 1 << 52]),
                ..Head::new(kind, Object::Name(key.into()))
            };
            let Ok(appended) = journal.append(&Record { head, payload: &[&payload] }) else { continue };
            holds.push(appended.hold);
        }
        while journal.step_commit() {}
        disk.kill_process();
        drop((holds, journal));
        let Ok(mut process) = Process::start(&disk, &store, 2) else { continue };
        if process.begin().is_ok() {
            let _ = process.read(0);
            process.settle();
            process.cache.validate().unwrap();
        }
    }
}

/// An object that cannot be recovered prevents neither the log from becoming void nor other objects
/// from being stored.
#[test]
fn a_damaged_object_does_not_keep_the_log_in_trouble() {
    let (disk, store, contents) = written();
    let mut process = Process::start(&disk, &store, 2).unwrap();
    damage(&disk, &contents, 3);
    process.begin().unwrap();
    process.settle();
    assert_eq!(process.cache.recovery().objects_failed, 1);
    disk.set_faults(1, Faults { sync: 1000, ..Faults::default() });
    let cache = process.cache.clone();
    let write = WriteRequest::new(name(1), 0, pattern(1, 0, 100)).durability(Durability::Journaled);
    let write = process.run(async move { cache.write(write).await });
    assert_eq!(write.unwrap().durability, Durability::Stored);
    assert_eq!(process.cache.journal_health().unwrap().state, JournalState::Void);
    assert!(matches!(process.read(3), Err(Error::Corrupt(_))), "as before");
}

/// An object that cannot be recovered does not fill the log, and its records are not dropped.
#[test]
fn a_damaged_object_does_not_stop_the_log() {
    let (disk, store, contents) = written();
    damage(&disk, &contents, 3);
    for life in 0..3 {
        let mut process = Process::start(&disk, &store, 10 + life).unwrap();
        process.begin().unwrap();
        process.settle();
        assert_eq!(process.cache.recovery().objects_failed, 1, "life {life}");
        // The writes exceed the journal's capacity several times.
        for round in 0..150 {
            let cache = process.cache.clone();
            let write =
                WriteRequest::new(name(1), 0, pattern(round, 0, 12_000)).durability(Durability::Journaled);
            assert_eq!(
                process.run(async move { cache.write(write).await }).unwrap().durability,
                Durability::Journaled
            );
            let cache = process.cache.clone();
            process.run(async move { cache.flush(FlushRequest::new(Scope::Object(name(1)))).await }).unwrap();
        }
        assert!(matches!(process.read(3), Err(Error::Corrupt(_))));
        assert_eq!(process.read(2).unwrap(), contents[2]);
        let flushed = process.run({
            let cache = process.cache.clone();
            async move { cache.flush(FlushRequest::new(Scope::All)).await }
        });
        assert!(matches!(flushed, Err(Error::Corrupt(_))), "{flushed:?}");
        drop(process);
        disk.kill_process();
    }
}

/// A shutdown stores all other objects, and the next start finds the damage again.
#[test]
fn an_orderly_end_keeps_the_records_of_what_could_not_be_recovered() {
    let (disk, store, contents) = written();
    let mut process = Process::start(&disk, &store, 2).unwrap();
    damage(&disk, &contents, 3);
    process.begin().unwrap();
    process.settle();
    assert_eq!(process.cache.recovery().objects_failed, 1);
    // The namespace no longer has any change that the store accepted without a record.
    let cache = process.cache.clone();
    let write = WriteRequest::new(name(1), 0, pattern(1, 0, 100)).durability(Durability::Journaled);
    process.run(async move { cache.write(write).await }).unwrap();
    let cache = process.cache.clone();
    let stored = process.run(async move { cache.flush(FlushRequest::new(Scope::All)).await });
    assert!(matches!(stored, Err(Error::Corrupt(_))), "{stored:?}");
    assert_eq!(process.cache.counters().dirty_bytes, 0, "all else is stored");
    let cache = process.cache.clone();
    let journaled = FlushRequest::new(Scope::All).durability(Durability::Journaled);
    process.run(async move { cache.flush(journaled).await }).unwrap();
    let cache = process.cache.clone();
    process.run(async move { cache.close_journal().await }).unwrap();
    drop(process);
    disk.kill_process();
    let mut process = Process::start(&disk, &store, 3).unwrap();
    process.begin().unwrap();
    assert!(matches!(process.read(3), Err(Error::Corrupt(_))), "its acknowledged changes are not forgotten");
    assert_eq!(process.read(2).unwrap(), contents[2]);
}

/// Returns a journal with a state of object 0 in three parts. `before` records of object 1 precede
/// them, and each part except the last is followed by `between` records of `bytes` bytes, which
/// fill more than a segment.
fn state_in_three_segments(content: &[u8], before: usize, between: usize, bytes: usize) -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let (journal, _) = Journal::open_stepped(&journal_config(), environment(&disk)).unwrap();
    while journal.step_prepare() {}
    let mut holds = Vec::new();
    let mut append = |object: usize, kind: u8, (offset, len): (u64, u64), payload: &[u8]| {
        let key = format!("\x02nso{object}").into_bytes();
        let sequence = if kind == STATE { 7 } else { 100 + holds.len() as u64 };
        let head = Head {
            namespace: 1,
            offset,
            len,
            sequence,
            epoch: 1,
            ..Head::new(Kind(kind), Object::Name(key.into()))
        };
        let record = Record { head, payload: &[payload] };
        let appended = loop {
            match journal.append(&record) {
                Ok(appended) => break appended,
                Err(error) => assert!(journal.step_commit() | journal.step_prepare(), "{error}"),
            }
        };
        holds.push(appended.hold);
    };
    // The state is that of an existing, replaced object with one run.
    let mut state = vec![3_u8];
    [0, 0, 1, 0, content.len() as u64].iter().for_each(|number: &u64| state.extend(number.to_le_bytes()));
    state.extend(content);
    let filler = pattern(2, 0, bytes);
    (0..before).for_each(|_| append(1, WRITE, (0, 8), &filler[..8]));
    for (number, part) in state.chunks(state.len().div_ceil(3)).enumerate() {
        if number > 0 {
            (0..between).for_each(|_| append(1, WRITE, (0, bytes as u64), &filler));
        }
        append(0, STATE, (number as u64, 3), part);
    }
    while journal.step_commit() | journal.step_prepare() {}
    disk.kill_process();
    disk
}

/// The kinds of the records of a write and of a part of a state.
const WRITE: u8 = 1;
const STATE: u8 = 8;

/// All parts of a state stay in the log until the described content is stored.
#[test]
fn a_recovered_state_is_kept_from_its_first_part_on() {
    let content = pattern(1, 0, 8000);
    let disk = state_in_three_segments(&content, 0, 6, 12_000);
    let store = SteeredStore::new();
    store.rule(|call| match call.op.is_change() && call.object == Some(name(0)) {
        true => Verdict::Fail(Error::Retryable("refused".into())),
        false => Verdict::Pass,
    });
    for life in 2..5 {
        let mut process = Process::start(&disk, &store, life).unwrap();
        process.begin().unwrap();
        process.settle();
        assert_eq!(process.read(0).unwrap().as_ref(), Some(&content), "life {life}");
        process.move_on(1, pattern(life, 0, 100));
        process.move_on(5, pattern(life, 0, 100));
        drop(process);
        disk.kill_process();
    }
    assert_eq!(test_kit::content(store.memory(), &name(0)), None, "the store has refused it");
}

/// The pass does not release records that an object recovered out of turn still needs.
#[test]
fn a_state_that_is_recovered_out_of_turn_is_kept_from_its_first_part_on() {
    // The first window of the recovery pass ends before the first part, the second one before the
    // last part.
    let content = pattern(1, 0, 8000);
    let disk = state_in_three_segments(&content, 256, 128, 500);
    let store = SteeredStore::new();
    store.rule(|call| match call.object.is_some() {
        true => Verdict::Hold,
        false => Verdict::Pass,
    });
    let mut process = Process::start(&disk, &store, 2).unwrap();
    let cache = process.cache.clone();
    let read = process.sim.spawn(async move { cache.read(ReadRequest::new(name(0), 0, 100)).await });
    process.begin().unwrap();
    process.go_on();
    assert!(store.held().iter().any(|call| call.object == Some(name(0))), "all parts are read");
    // The recovery pass continues to the last part.
    store.rule(|call| match call.object == Some(name(0)) {
        true => Verdict::Hold,
        false => Verdict::Pass,
    });
    let others = store.held().into_iter().filter(|call| call.object != Some(name(0)));
    others.for_each(|call| store.answer(call.number));
    process.go_on();
    let progress = process.cache.recovery();
    assert_eq!(progress.records - progress.records_applied, 1, "{progress:?}");
    process.move_on(1, pattern(2, 0, 100));
    process.move_on(5, pattern(2, 0, 100));
    assert!(!read.is_done());
    drop((read, process));
    disk.kill_process();
    store.open();
    let mut process = Process::start(&disk, &store, 3).unwrap();
    process.begin().unwrap();
    assert_eq!(process.read(0).unwrap(), Some(content));
}

/// All parts of a state that cannot be applied stay: with only some of them, the next start would
/// regard the state as stored.
#[test]
fn a_state_that_is_refused_is_kept_from_its_first_part_on() {
    // The object is larger than this cache's limit.
    let content = pattern(1, 0, 5 * BUCKET as usize);
    let disk = state_in_three_segments(&content, 256, 128, 300);
    let store = Arc::new(test_kit::memory(&ManualClock::new()));
    for life in 2..5 {
        let mut process = Process::start(&disk, &store, life).unwrap();
        process.begin().unwrap();
        process.settle();
        let read = process.read(0);
        assert!(matches!(read, Err(Error::TooLarge { .. })), "life {life}: {read:?}");
        process.move_on(1, pattern(life, 0, 100));
        process.move_on(5, pattern(life, 0, 100));
        drop(process);
        disk.kill_process();
    }
}
