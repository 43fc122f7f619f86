//! A disk that fails: what was not durable is given up, and the journal comes back.

use std::time::Duration;

use super::kit::{Kit, append};
use crate::disk::simulated::Faults;
use crate::{AppendError, Event, NotDurable};

const ALWAYS: u64 = 1000;

#[test]
fn a_failed_sync_fails_its_records_and_appends_until_a_new_segment_works() {
    for faults in
        [Faults { sync: ALWAYS, ..Faults::default() }, Faults { write: ALWAYS, ..Faults::default() }]
    {
        let kit = Kit::new(4);
        let journal = kit.open_ready();
        let (before, _hold) = append(&journal, 1, 100).unwrap();
        assert!(journal.step_commit());
        kit.disk.set_faults(1, faults);
        let (failed, _hold) = append(&journal, 2, 100).unwrap();
        let wait = journal.wait(failed);
        journal.step_commit();
        assert_eq!(crate::durability::block_on(wait), Err(NotDurable));
        assert!(journal.is_durable(before) && !journal.is_durable(failed));
        assert_eq!(append(&journal, 3, 100).unwrap_err(), AppendError::Failed);
        // Tried again after 5 s, and not before.
        kit.disk.set_faults(1, Faults::default());
        kit.clock.advance(Duration::from_millis(4999));
        assert!(!journal.step_commit());
        kit.clock.advance(Duration::from_millis(1));
        assert!(journal.step_commit());
        assert_eq!(kit.events.lock().last(), Some(&Event::Restarted));
        let (after, _hold) = append(&journal, 3, 100).unwrap();
        assert!(journal.step_commit());
        assert_eq!(journal.wait_blocking(after), Ok(()));
        assert_eq!(journal.wait_blocking(failed), Err(NotDurable));
        let metrics = journal.metrics();
        assert_eq!((metrics.failures, metrics.restarts, metrics.is_failed), (1, 1, false));

        // The failed record is not found, although its bytes may have reached the disk.
        drop(journal);
        let (_journal, replay) = kit.open().unwrap();
        let found: Vec<_> = replay.records().map(|record| record.unwrap().position).collect();
        assert_eq!(found, [before, after]);
    }
}

#[test]
fn a_restart_that_fails_is_tried_again() {
    let kit = Kit::new(4);
    let journal = kit.open_ready();
    kit.disk.set_faults(1, Faults { sync: ALWAYS, ..Faults::default() });
    let (_, hold) = append(&journal, 1, 100).unwrap();
    for round in 0..10 {
        journal.step_commit();
        assert!(journal.is_failed(), "round {round}");
        kit.clock.advance(Duration::from_secs(5));
    }
    drop(hold);
    kit.disk.set_faults(1, Faults::default());
    assert!(journal.step_commit());
    let (position, _hold) = append(&journal, 2, 100).unwrap();
    journal.step_commit();
    assert!(journal.is_durable(position));
}

#[test]
fn a_segment_that_failed_is_made_anew_when_nothing_needs_it() {
    let kit = Kit::new(3);
    let journal = kit.open_ready();
    for round in 0..20 {
        let (position, hold) = append(&journal, round, 100).unwrap();
        journal.step_commit();
        assert!(journal.is_durable(position));
        drop(hold);
        kit.disk.set_faults(round, Faults { sync: ALWAYS, ..Faults::default() });
        let (_, hold) = append(&journal, round, 100).unwrap();
        journal.step_commit();
        drop(hold);
        kit.disk.set_faults(round, Faults::default());
        kit.clock.advance(Duration::from_secs(5));
        assert!(journal.step_commit(), "round {round}");
        // A commit makes the new tail durable; only then may the old file go.
        drop(append(&journal, round, 100).unwrap());
        journal.step_commit();
        while journal.step_prepare() {}
    }
    let metrics = journal.metrics();
    assert_eq!((metrics.live_segments + metrics.free_segments, metrics.restarts), (3, 20));
}

#[test]
fn a_full_disk_leaves_the_segments_that_are_there() {
    let kit = Kit::new(5);
    kit.disk.set_faults(1, Faults::default());
    let (journal, _) = kit.open().unwrap();
    kit.disk.set_faults(1, Faults { full: ALWAYS, ..Faults::default() });
    while journal.step_prepare() {}
    assert!(matches!(kit.events.lock().last(), Some(Event::PrepareFailed { .. })));
    assert_eq!(journal.metrics().free_segments, 2);
    let (position, _hold) = append(&journal, 1, 100).unwrap();
    journal.step_commit();
    assert!(journal.is_durable(position));
    // There is room again.
    kit.disk.set_faults(1, Faults::default());
    assert!(!journal.step_prepare());
    kit.clock.advance(Duration::from_secs(5));
    while journal.step_prepare() {}
    assert_eq!(journal.metrics().live_segments + journal.metrics().free_segments, 5);
}

#[test]
fn queued_records_fail_with_the_batch_before_them() {
    let kit = Kit::new(6);
    let journal = kit.open_ready();
    // Several segments' worth, none committed.
    let appended: Vec<_> = (0..8).map(|number| append(&journal, number, 15_000).unwrap()).collect();
    kit.disk.set_faults(1, Faults { sync: ALWAYS, ..Faults::default() });
    journal.step_commit();
    assert!(appended.iter().all(|(position, _)| journal.outcome(*position) == Some(Err(NotDurable))));
    kit.disk.set_faults(1, Faults::default());
    kit.clock.advance(Duration::from_secs(5));
    journal.step_commit();
    drop(appended);
    for number in 0..40 {
        let (position, _hold) = append(&journal, number, 15_000).unwrap();
        while journal.step_commit() {}
        assert!(journal.is_durable(position));
        while journal.step_prepare() {}
    }
    assert_eq!(journal.metrics().live_segments + journal.metrics().free_segments, 6);
}
