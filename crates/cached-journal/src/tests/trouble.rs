//! A failing disk: records that were not durable are abandoned, and the journal recovers.

use std::sync::Arc;
use std::time::Duration;

use super::kit::{Kit, append};
use crate::disk::Disk;
use crate::disk::simulated::Faults;
use crate::{AppendError, Environment, Event, Journal, JournalConfig, NotDurable, OpenError};

const ALWAYS: u32 = 1000;

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
        assert_eq!(blocker::executor::block_on(wait), Err(NotDurable));
        assert!(journal.is_durable(before) && !journal.is_durable(failed));
        assert_eq!(append(&journal, 3, 100).unwrap_err(), AppendError::Failed);
        // Retried after 5 s, and not earlier.
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
        assert_eq!((metrics.counts.failures, metrics.counts.restarts, metrics.is_failed), (1, 1, false));

        // The failed record is not found, although its bytes may have reached the disk.
        drop(journal);
        let (_journal, replay) = kit.open().unwrap();
        let found: Vec<_> = replay.records().map(|record| record.unwrap().position).collect();
        assert_eq!(found, [before, after]);
    }
}

/// Starts a commit thread that a test steps.
fn commit_beside(journal: &Arc<Journal>) -> std::thread::JoinHandle<bool> {
    let journal = Arc::clone(journal);
    std::thread::spawn(move || journal.step_commit())
}

#[test]
fn a_disk_that_does_not_answer_has_failed_and_is_not_believed_when_it_does() {
    // The sync of a batch, and that of a new segment's header.
    for is_header in [false, true] {
        let kit = Kit::new(4);
        let journal = Arc::new(kit.open_ready());
        let mut before = None;
        if !is_header {
            before = Some(append(&journal, 1, 100).unwrap());
            assert!(journal.step_commit());
        }
        kit.disk.hold_syncs(true);
        let (hung, _hold) = append(&journal, 2, 100).unwrap();
        let committing = commit_beside(&journal);
        kit.disk.wait_for_held_sync();
        let (behind, _hold) = append(&journal, 3, 100).unwrap();
        kit.clock.advance(Duration::from_millis(29_999));
        assert!(!journal.step_watch(), "not yet too late");
        kit.clock.advance(Duration::from_millis(1));
        assert!(journal.step_watch());
        assert!(!journal.step_watch(), "once");
        assert!(matches!(kit.events.lock().last(), Some(Event::Failed { operation: "commit", .. })));
        assert_eq!([hung, behind].map(|it| journal.outcome(it)), [Some(Err(NotDurable)); 2]);
        assert_eq!(append(&journal, 4, 100).unwrap_err(), AppendError::Failed);

        // The sync returns success, too late.
        kit.disk.hold_syncs(false);
        assert!(committing.join().unwrap());
        assert_eq!([hung, behind].map(|it| journal.outcome(it)), [Some(Err(NotDurable)); 2]);
        assert!(journal.is_failed());
        kit.clock.advance(Duration::from_secs(5));
        assert!(journal.step_commit());
        assert_eq!(kit.events.lock().last(), Some(&Event::Restarted));
        let (after, _hold) = append(&journal, 5, 100).unwrap();
        assert!(journal.step_commit());
        assert!(journal.is_durable(after));

        drop(journal);
        let (_journal, replay) = kit.open().unwrap();
        let found: Vec<_> = replay.records().map(|record| record.unwrap().position).collect();
        let expected: Vec<_> = before.iter().map(|(position, _)| *position).chain([after]).collect();
        assert_eq!(found, expected, "although the bytes of the batch are there");
    }
}

#[test]
fn a_journal_whose_disk_does_not_answer_can_be_closed_and_keeps_its_lock() {
    let kit = Kit::new(4);
    let (commit_timeout, events) = (Duration::from_millis(50), Arc::clone(&kit.events));
    let config = JournalConfig { commit_timeout, ..super::kit::config(4) };
    let environment = Environment {
        observer: Arc::new(move |event| events.lock().push(event.clone())),
        ..Environment::new(kit.disk.clone())
    };
    let (journal, _) = Journal::open_in(&config, environment).unwrap();
    // With real threads: the watcher detects it by itself.
    kit.disk.hold_syncs(true);
    let (hung, _hold) = append(&journal, 1, 100).unwrap();
    assert_eq!(journal.wait_blocking(hung), Err(NotDurable));
    assert_eq!(journal.shut_down(), Err(NotDurable));
    assert!(matches!(kit.open(), Err(OpenError::Locked)), "the disk may still write");
    kit.disk.hold_syncs(false);
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
        // A commit makes the new tail durable; only then may the old file be removed.
        drop(append(&journal, round, 100).unwrap());
        journal.step_commit();
        while journal.step_prepare() {}
    }
    let metrics = journal.metrics();
    assert_eq!((metrics.live_segments + metrics.free_segments, metrics.counts.restarts), (3, 20));
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
    // There is space again.
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
    // Several segments' worth of records, none committed.
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

/// Writes to a file that has lost its name succeed, and no recovery finds them.
#[test]
fn a_segment_that_was_removed_or_replaced_is_not_believed() {
    for is_replaced in [false, true] {
        let kit = Kit::new(4);
        let journal = kit.open_ready();
        let (before, _hold) = append(&journal, 1, 100).unwrap();
        journal.step_commit();
        kit.disk.remove("segment-000000").unwrap();
        if is_replaced {
            kit.disk.set_content("segment-000000", b"another's");
        }
        let (lost, hold) = append(&journal, 2, 100).unwrap();
        journal.step_commit();
        assert!(journal.is_durable(before));
        assert_eq!(journal.outcome(lost), Some(Err(NotDurable)));
        let events = kit.events.lock().clone();
        assert!(matches!(events.last(), Some(Event::Failed { operation: "find", .. })), "{events:?}");
        // Another segment works; the lost one is created again once nothing needs it.
        drop((hold, _hold));
        kit.clock.advance(Duration::from_secs(5));
        assert!(journal.step_commit());
        for number in 3..9 {
            let (position, _hold) = append(&journal, number, 15_000).unwrap();
            while journal.step_commit() {}
            assert!(journal.is_durable(position));
            if number == 3 && is_replaced {
                assert!(journal.step_prepare());
                let content = kit.disk.content("segment-000000").unwrap();
                assert!(content == b"another's", "what is not the journal's is not removed");
                kit.disk.remove("segment-000000").unwrap();
            }
            while journal.step_prepare() {}
        }
        assert_eq!(journal.metrics().live_segments + journal.metrics().free_segments, 4);
    }
}

#[test]
fn a_disk_that_was_away_is_used_again_through_files_opened_anew() {
    let kit = Kit::new(4);
    let journal = kit.open_ready();
    let (before, _hold) = append(&journal, 1, 100).unwrap();
    journal.step_commit();
    // Open files and the lock are unusable from here on; the names exist.
    kit.disk.kill_process();
    let (failed, _hold2) = append(&journal, 2, 100).unwrap();
    journal.step_commit();
    assert_eq!(journal.outcome(failed), Some(Err(NotDurable)));
    kit.clock.advance(Duration::from_secs(5));
    assert!(journal.step_commit());
    assert_eq!(kit.events.lock().last(), Some(&Event::Restarted));
    assert!(kit.disk.lock().is_err(), "the lock is taken again");
    let mut positions = vec![before];
    let mut holds = Vec::new();
    for number in 3..8 {
        let (position, hold) = append(&journal, number, 15_000).unwrap();
        while journal.step_commit() {}
        assert!(journal.is_durable(position), "{number}: {:?}", kit.events.lock());
        positions.push(position);
        holds.push(hold);
    }
    assert_eq!(journal.metrics().counts.restarts, 1, "one restart is enough for all files");
    drop(journal);
    let (_journal, replay) = kit.open().unwrap();
    let found: Vec<_> = replay.records().map(|record| record.unwrap().position).collect();
    assert_eq!(found, positions);
}

#[test]
fn nothing_is_written_where_the_journal_is_not() {
    let kit = Kit::new(5);
    let (journal, _) = kit.open().unwrap();
    assert!(journal.step_prepare());
    let superblock = kit.disk.content("journal").unwrap();
    let other = crate::format::Superblock { journal: 77, segment_bytes: super::kit::SEGMENT_BYTES };
    kit.disk.set_faults(1, Faults { sync: ALWAYS, ..Faults::default() });
    let (_, _hold) = append(&journal, 1, 100).unwrap();
    journal.step_commit();
    kit.disk.set_faults(1, Faults::default());
    for content in [None, Some(other.encode()), Some(vec![1; 4096])] {
        match content {
            None => kit.disk.remove("journal").unwrap(),
            Some(content) => kit.disk.set_content("journal", &content),
        }
        let names = kit.disk.names().unwrap();
        kit.clock.advance(Duration::from_secs(5));
        journal.step_commit();
        assert!(journal.is_failed());
        while journal.step_prepare() {}
        assert_eq!(kit.disk.names().unwrap(), names, "neither made nor removed");
    }
    // The file is back.
    kit.disk.set_content("journal", &superblock);
    kit.clock.advance(Duration::from_secs(5));
    assert!(journal.step_commit());
    assert!(!journal.is_failed());
}
