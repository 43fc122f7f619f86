//! Fault injection follows its plan exactly, and the suite detects a disk that reports false
//! success.

use std::sync::Arc;
use std::time::Duration;

use blocker::conformance::{Harness, Options, Plain, run};
use blocker::executor::block_on;
use blocker::faulty::FaultPlan;
use blocker::{
    Blocker, BlockerExt, Clock, Durability, Error, Faulty, FileStore, FlushRequest, ManualClock, Memory,
    Name, Namespace, ObjectId, PassThrough, ReadRequest, Reply, Scope, SystemClock, WriteFullRequest,
    WriteRequest,
};

fn plan(seed: u64, change: impl FnOnce(&mut FaultPlan)) -> FaultPlan {
    let mut plan = FaultPlan::benign(seed);
    change(&mut plan);
    plan
}

fn faulty(inner: Arc<dyn Blocker>, plan: FaultPlan) -> Arc<Faulty> {
    Arc::new(Faulty::new(inner, plan, Arc::new(SystemClock)))
}

fn object() -> ObjectId {
    ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap())
}

fn write(backend: &dyn Blocker, data: &'static [u8]) -> Result<(), Error> {
    block_on(backend.write_full(WriteFullRequest::new(object(), data))).map(drop)
}

fn read(backend: &dyn Blocker) -> Result<Vec<u8>, Error> {
    block_on(backend.read(ReadRequest::new(object(), 0, 4096))).map(|reply| reply.data.to_vec())
}

fn delays(plan: &mut FaultPlan) {
    plan.delay_permille = 150;
    plan.delay = Duration::from_micros(10)..Duration::from_micros(300);
}

#[track_caller]
fn passes(backend: Arc<dyn Blocker>) {
    run(&Plain::new(backend), &Options::default()).assert_passed();
}

#[test]
fn without_faults_it_is_the_backend_below() {
    passes(faulty(Arc::new(Memory::default()), FaultPlan::benign(1)));
    let dir = tempfile::tempdir().unwrap();
    passes(faulty(Arc::new(FileStore::open_or_create(dir.path()).unwrap()), FaultPlan::benign(1)));
}

#[test]
fn delays_change_nothing_but_time() {
    passes(faulty(Arc::new(Memory::default()), plan(2, delays)));
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(FileStore::open_or_create(dir.path()).unwrap());
    passes(Arc::new(PassThrough::new(faulty(file, plan(3, delays)))));
}

#[test]
fn errors_that_say_try_again_are_survived() {
    let noisy = plan(4, |plan| plan.error_permille = 20);
    let memory: Arc<dyn Blocker> = faulty(Arc::new(Memory::default()), noisy);
    let mut options = Options::default();
    // The suite retries failed calls, except in the parts that drop replies.
    for filter in ["content", "random", "fencing", "conditions"] {
        options.filter = filter.into();
        run(&Plain::new(Arc::clone(&memory)), &options).assert_passed();
    }
}

/// A volatile cache whose power can be cut.
struct Disk(Arc<Faulty>);

impl Harness for Disk {
    fn backend(&self) -> Arc<dyn Blocker> {
        Arc::clone(&self.0) as _
    }
    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        self.0.crash();
        self.0.restart().unwrap();
        Some(self.backend())
    }
}

#[test]
fn a_volatile_cache_keeps_the_contract_when_power_is_cut() {
    for seed in 0..8 {
        let disk = Disk(faulty(Arc::new(Memory::default()), plan(seed, |plan| plan.volatile = true)));
        let mut options = Options::default();
        options.seed = seed;
        options.filter = if seed == 0 { String::new() } else { "crash".into() };
        options.effort = if seed == 0 { 1 } else { 5 };
        run(&disk, &options).assert_passed();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(FileStore::open_or_create(dir.path()).unwrap());
    run(&Disk(faulty(file, plan(9, |plan| plan.volatile = true))), &Options::default()).assert_passed();
}

#[test]
fn the_suite_notices_a_disk_that_lies_about_flushes() {
    let lying = |plan: &mut FaultPlan| (plan.volatile, plan.flush_lies) = (true, true);
    let disk = Disk(faulty(Arc::new(Memory::default()), plan(1, lying)));
    let mut options = Options::default();
    options.filter = "crash".into();
    let report = run(&disk, &options);
    let failed: Vec<_> = report.failures().map(|case| case.name).collect();
    for name in [
        "crash::what_is_stored_survives",
        "crash::a_flush_stores_what_was_acknowledged",
        "crash::flushes_of_wider_scopes_store_it_too",
        "crash::generations_are_kept_in_order",
    ] {
        assert!(failed.contains(&name), "{name} passes on a disk that lies; failed: {failed:?}");
    }
}

#[test]
fn a_crash_loses_what_was_not_flushed_and_may_tear_it() {
    let (mut lost, mut kept, mut torn) = (0, 0, 0);
    for seed in 0..60 {
        let disk = faulty(Arc::new(Memory::default()), plan(seed, |plan| plan.volatile = true));
        let request = WriteRequest::new(object(), 0, vec![1; 2048]).durability(Durability::Stored);
        assert_eq!(block_on(disk.write(request)).unwrap().durability, Durability::Stored);
        let reply = block_on(disk.write(WriteRequest::new(object(), 0, vec![2; 2048]))).unwrap();
        assert_eq!(reply.durability, Durability::Cached);
        disk.crash();
        assert_eq!(read(&*disk).unwrap_err().kind(), "retryable");
        disk.restart().unwrap();
        let sectors: Vec<_> = read(&*disk).unwrap().chunks(512).map(<[u8]>::to_vec).collect();
        assert!(sectors.iter().all(|sector| *sector == [1; 512] || *sector == [2; 512]), "seed {seed}");
        match sectors.iter().filter(|sector| sector[0] == 2).count() {
            0 => lost += 1,
            4 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(lost > 0 && kept > 0 && torn > 0, "{lost} lost, {kept} kept, {torn} torn");
}

#[test]
fn an_unknown_outcome_is_done_or_not() {
    let (mut done, mut not_done) = (0, 0);
    for seed in 0..50 {
        let backend = faulty(Arc::new(Memory::default()), plan(seed, |plan| plan.unknown_permille = 1000));
        assert_eq!(write(&*backend, b"perhaps").unwrap_err().kind(), "outcome_unknown");
        match read(&*backend) {
            Ok(bytes) => {
                assert_eq!(bytes, b"perhaps");
                done += 1;
            }
            Err(error) => {
                assert_eq!(error, Error::Missing);
                not_done += 1;
            }
        }
    }
    assert!(done > 0 && not_done > 0, "{done} done, {not_done} not");
}

#[test]
fn the_chosen_step_crashes_and_a_seed_replays() {
    let history = |seed| {
        let crashing = plan(seed, |plan| {
            plan.error_permille = 300;
            plan.crash_at_step = Some(20);
        });
        let backend = faulty(Arc::new(Memory::default()), crashing);
        let outcomes: Vec<_> = (0..25).map(|_| write(&*backend, b"x")).collect();
        assert!(backend.is_crashed() && backend.steps() == 20);
        assert_eq!(outcomes[19].as_ref().unwrap_err().kind(), "outcome_unknown");
        outcomes
    };
    assert_eq!(history(7), history(7));
    assert_ne!(history(7), history(8));
}

#[test]
fn a_stall_holds_everyone_until_it_ends_or_the_deadline_passes() {
    let clock = ManualClock::new();
    let memory = Arc::new(Memory::default());
    let backend = Faulty::new(Arc::clone(&memory) as _, FaultPlan::benign(1), Arc::new(clock.clone()));
    backend.stall();
    let deadline = clock.now() + Duration::from_secs(30);
    let late = backend.write_full(WriteFullRequest::new(object(), b"late").deadline(deadline));
    let patient = backend.write_full(WriteFullRequest::new(object(), b"patient"));
    assert!(matches!((&late, &patient), (Reply::Pending(_), Reply::Pending(_))));
    let waiting = std::thread::spawn(move || block_on(late));
    // Advances the clock until the waiting call has its answer.
    while !waiting.is_finished() {
        clock.advance(Duration::from_secs(1));
        std::thread::yield_now();
    }
    assert_eq!(waiting.join().unwrap().unwrap_err(), Error::DeadlinePassed);
    assert_eq!(read(&*memory).unwrap_err(), Error::Missing);
    backend.resume();
    block_on(patient).unwrap();
    assert_eq!(read(&*memory).unwrap(), b"patient");
}

#[test]
fn a_full_store_says_so_and_takes_smaller_things() {
    let backend = faulty(Arc::new(Memory::default()), plan(1, |plan| plan.space_bytes_max = Some(10)));
    write(&*backend, b"0123456789").unwrap();
    assert_eq!(write(&*backend, b"0123456789A").unwrap_err().kind(), "out_of_space");
    assert_eq!(read(&*backend).unwrap(), b"0123456789");
    write(&*backend, b"less").unwrap();
    let more = WriteRequest::new(object(), 4, b"456789");
    block_on(backend.write(more)).unwrap();
}

#[test]
fn a_failed_flush_leaves_the_data_dirty_and_readable() {
    let failing = plan(1, |plan| (plan.volatile, plan.not_stored_permille) = (true, 1000));
    let backend = faulty(Arc::new(Memory::default()), failing);
    write(&*backend, b"dirty").unwrap();
    let flushed = block_on(backend.flush(FlushRequest::new(Scope::All)));
    assert_eq!(flushed.unwrap_err().kind(), "not_stored");
    assert_eq!(read(&*backend).unwrap(), b"dirty");
}
