//! The journal of a host in an election: no acknowledgement of a leader depends on it, and the
//! changes that a killed leader has logged are applied if no other host has claimed the store since.

use std::sync::Arc;

use blocker::*;
use cached_core::object::{Leadership, RecoveryError};
use cached_journal::disk::Disk;
use cached_journal::disk::simulated::{Faults, SimulatedDisk};
use test_kit::steered::{Op, SteeredStore, Verdict};
use test_kit::{content, pattern};

use crate::object_recovery::{OBJECTS, Process, assert_kept, assert_recovered, name, take_over, written_by};

const EPOCH: u64 = 7;

fn leadership(epoch: u64) -> Option<Leadership> {
    Some(Leadership { epoch: Epoch(epoch), writer: WriterId(5), records: None })
}

/// Returns the journal's disk, the store and the logged contents of the objects after a leader with
/// [`EPOCH`] was killed before it had stored anything.
fn killed() -> (SimulatedDisk, Arc<Memory>, Vec<Option<Vec<u8>>>) {
    written_by(leadership(EPOCH), Durability::Cached)
}

fn assert_nothing_stored(store: &Memory) {
    assert!((0..OBJECTS).all(|object| content(store, &name(object)).is_none()));
}

fn is_kept_aside(disk: &SimulatedDisk) -> bool {
    disk.names().unwrap().contains(&"overtaken-1".to_owned())
}

#[test]
fn a_leader_acknowledges_as_stored_what_is_requested_as_journaled() {
    let (disk, store) = (SimulatedDisk::new(), Arc::new(test_kit::memory(&ManualClock::new())));
    let mut process = Process::lead(&disk, &store, 1, leadership(EPOCH)).unwrap();
    process.begin().unwrap();
    assert!(!process.cache.acknowledges_journaled());
    let cache = process.cache.clone();
    let write = WriteRequest::new(name(0), 0, pattern(1, 0, 100)).durability(Durability::Journaled);
    let reply = process.run(async move { cache.write(write).await }).unwrap();
    assert_eq!(reply.durability, Durability::Stored);
    assert_eq!(content(&store, &name(0)), Some(pattern(1, 0, 100)));
    let cache = process.cache.clone();
    process.run(async move { cache.write(WriteRequest::new(name(1), 0, pattern(2, 0, 100))).await }).unwrap();
    assert_eq!(content(&store, &name(1)), None);
    let cache = process.cache.clone();
    let flush = FlushRequest::new(Scope::All).durability(Durability::Journaled);
    let reply = process.run(async move { cache.flush(flush).await }).unwrap();
    assert_eq!(reply.durability, Durability::Stored);
    assert_eq!(content(&store, &name(1)), Some(pattern(2, 0, 100)));
}

#[test]
fn what_a_killed_leader_has_logged_is_applied_while_its_epoch_is_in_force() {
    let (disk, store, contents) = killed();
    assert_nothing_stored(&store);
    let mut process = Process::start(&disk, &store, 2).unwrap();
    process.begin().unwrap();
    assert_recovered(&mut process, &store, &contents);
    assert!(!is_kept_aside(&disk));
}

/// A process that dies after it has claimed the epoch of its recovery leaves the journal to the next
/// process.
#[test]
fn a_recovery_that_dies_after_its_claims_is_repeated() {
    let (disk, store, contents) = killed();
    for seed in 2..5 {
        Process::start(&disk, &store, seed).unwrap().begin().unwrap();
        disk.kill_process();
    }
    let mut process = Process::start(&disk, &store, 5).unwrap();
    process.begin().unwrap();
    assert_recovered(&mut process, &store, &contents);
    assert!(!is_kept_aside(&disk));
}

/// The claim of a leader would hide whether another host has claimed the store since the journal
/// was written.
#[test]
fn a_leader_itself_applies_nothing() {
    let (disk, store, _) = killed();
    let mut process = Process::lead(&disk, &store, 2, leadership(EPOCH + 1)).unwrap();
    assert_eq!(process.begin(), Err(RecoveryError::Elected));
    let ask = ClaimRequest::ask(Scope::Namespace(name(0).namespace));
    assert!(matches!(executor::block_on(store.claim(ask)), Err(Error::Fenced { epoch: Epoch(EPOCH) })));
}

#[test]
fn what_a_killed_leader_has_logged_is_set_aside_once_another_host_has_led() {
    let (disk, store, contents) = killed();
    take_over(&store, EPOCH + 1);
    let mut process = Process::start(&disk, &store, 2).unwrap();
    process.begin().unwrap();
    assert_kept(&disk, "overtaken-1", &contents);
    process.settle();
    assert_nothing_stored(&store);
}

/// A running cache reports the loss, whichever durability it has acknowledged, and leaves the journal
/// to the next start.
#[test]
fn what_a_running_cache_loses_to_another_host_is_reported_and_set_aside() {
    for leader in [None, leadership(EPOCH)] {
        let (disk, store) = (SimulatedDisk::new(), Arc::new(test_kit::memory(&ManualClock::new())));
        let mut process = Process::lead(&disk, &store, 1, leader.clone()).unwrap();
        process.begin().unwrap();
        let durability = if leader.is_some() { Durability::Cached } else { Durability::Journaled };
        let contents: Vec<_> = (0..OBJECTS).map(|object| Some(pattern(object as u64, 0, 3000))).collect();
        for (object, content) in contents.iter().enumerate() {
            let cache = process.cache.clone();
            let write = WriteRequest::new(name(object), 0, content.clone().unwrap()).durability(durability);
            assert_eq!(process.run(async move { cache.write(write).await }).unwrap().durability, durability);
        }
        take_over(&store, EPOCH + 1);
        let cache = process.cache.clone();
        let flushed = process.run(async move { cache.flush(FlushRequest::new(Scope::All)).await });
        assert!(matches!(flushed, Err(Error::WritesLost(_))), "{flushed:?}");
        assert_eq!(process.cache.lost().objects.len(), OBJECTS);
        process.go_on();
        drop(process);
        disk.kill_process();
        let mut process = Process::start(&disk, &store, 2).unwrap();
        process.begin().unwrap();
        assert_kept(&disk, "overtaken-1", &contents);
        process.settle();
        assert_nothing_stored(&store);
    }
}

/// A host whose lease has ended claims the store late: after the recovery has read the epoch in force
/// and before it claims the next one, or at any other moment up to the last change.
#[test]
fn a_late_claim_at_any_moment_of_a_recovery_is_never_overwritten() {
    let newer = b"newer".to_vec();
    let mut last = 0;
    for moment in 1..100 {
        let (disk, memory, contents) = killed();
        let store = SteeredStore::over(Arc::clone(&memory));
        let (mut calls, own, bytes) = (0, Arc::clone(&memory), newer.clone());
        store.rule(move |call| {
            calls += u64::from(call.op == Op::Claim || call.op.is_change());
            if calls == moment && (call.op == Op::Claim || call.op.is_change()) {
                take_over(&own, EPOCH + 4);
                let write = WriteRequest::new(name(OBJECTS - 1), 0, bytes.clone());
                executor::block_on(own.write(write.stamp(Stamp::new(EPOCH + 4, 1)))).unwrap();
            }
            Verdict::Pass
        });
        let mut process = Process::start(&disk, &store, 2).unwrap();
        process.begin().unwrap();
        process.settle();
        let cache = process.cache.clone();
        let flushed = process.run(async move { cache.flush(FlushRequest::new(Scope::All)).await });
        process.go_on();
        drop(process);
        disk.kill_process();
        if content(&memory, &name(OBJECTS - 1)) == contents[OBJECTS - 1] {
            assert!(flushed.is_ok(), "the late host has not claimed yet at moment {moment}");
            break;
        }
        last = moment;
        assert_eq!(content(&memory, &name(OBJECTS - 1)), Some(newer.clone()), "moment {moment}");
        // The journal is set aside by this process or the next, with everything that is not stored.
        let mut process = Process::start(&disk, &store, 3).unwrap();
        process.begin().unwrap();
        assert_kept(&disk, "overtaken-1", &contents[OBJECTS - 1..]);
        process.settle();
        assert_eq!(content(&memory, &name(OBJECTS - 1)), Some(newer.clone()), "moment {moment}");
    }
    // Two claims, and one change of each object.
    assert!(last >= 3, "{last}");
}

/// The store has newer changes than the journal, made while its disk failed.
#[test]
fn a_journal_that_its_leader_has_voided_is_not_applied() {
    let (disk, store) = (SimulatedDisk::new(), Arc::new(test_kit::memory(&ManualClock::new())));
    let mut process = Process::lead(&disk, &store, 1, leadership(EPOCH)).unwrap();
    process.begin().unwrap();
    for (bytes, durability) in
        [(pattern(1, 0, 100), Durability::Cached), (pattern(2, 0, 100), Durability::Stored)]
    {
        let cache = process.cache.clone();
        let write = WriteRequest::new(name(0), 0, bytes).durability(durability);
        process.run(async move { cache.write(write).await }).unwrap();
        process.go_on();
        disk.set_faults(1, Faults { sync: 1000, ..Faults::default() });
    }
    drop(process);
    disk.kill_process();
    disk.set_faults(1, Faults::default());
    let mut process = Process::start(&disk, &store, 2).unwrap();
    process.begin().unwrap();
    process.settle();
    assert_eq!(process.read(0).unwrap(), Some(pattern(2, 0, 100)));
}
