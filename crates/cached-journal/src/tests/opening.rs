//! Opening, closing, marks, and the tools.

use super::kit::{Kit, SEGMENT_BYTES, append, head};
use crate::disk::Disk;
use crate::{Head, Object, OpenError, Position, Record, Scope, tools};

#[test]
fn a_directory_is_open_once() {
    let kit = Kit::new(3);
    let (journal, replay) = kit.open().unwrap();
    assert!(matches!(kit.open(), Err(OpenError::Locked)));
    assert!(matches!(tools::inspect(&kit.disk), Err(OpenError::Locked)));
    assert!(matches!(tools::verify(&kit.disk), Err(OpenError::Locked)));
    assert!(matches!(tools::export(&kit.disk, |_, _| Ok(())), Err(OpenError::Locked)));
    assert!(matches!(tools::discard(&kit.disk), Err(OpenError::Locked)));
    journal.close().unwrap();
    // A replay that still exists does not keep the lock.
    kit.open().unwrap();
    drop(replay);
}

#[test]
fn what_is_appended_after_a_recovery_follows_what_was_recovered() {
    let kit = Kit::new(12);
    for round in 0..30 {
        let (journal, replay) = kit.open().unwrap();
        while journal.step_prepare() {}
        assert_eq!(replay.records().count() as u64, 2 * round);
        for number in [2 * round, 2 * round + 1] {
            let (position, hold) = append(&journal, number, 100).unwrap();
            assert_eq!(position, Position(number + 1));
            journal.step_commit();
            std::mem::forget(hold);
        }
        // The journal is forgotten with its holds, as in a crash.
        std::mem::forget(replay);
        drop(journal);
    }
}

#[test]
fn journals_that_are_kept_aside_do_not_hinder_a_new_one() {
    let kit = Kit::new(3);
    kit.disk.directory("overtaken-1").unwrap().create("journal").unwrap();
    tools::init(&kit.disk).unwrap();
    assert_eq!(tools::verify(&kit.disk).unwrap(), []);
}

#[test]
fn marked_records_are_not_replayed() {
    let kit = Kit::new(3);
    let journal = kit.open_ready();
    let mut appended = Vec::new();
    let mut add = |head: Head<'_>| {
        let added = journal.append(&Record { head, payload: &[] }).unwrap();
        let position = added.position;
        appended.push(added);
        position
    };
    let object = |number| Head { object: Object::Number(number), ..head(3) };
    let first = add(object(1));
    let other = add(object(2));
    add(Head { namespace: 1, object: Object::Number(1), ..Head::mark(Scope::Object, first) });
    let later = add(object(1));
    journal.step_commit();
    drop(journal);
    let (_journal, replay) = kit.open().unwrap();
    let positions: Vec<_> = replay.records().map(|record| record.unwrap().position).collect();
    assert_eq!((positions, replay.len()), (vec![other, later], 2));
    assert_eq!(replay.all_records().count(), 4);
    assert_eq!(replay.epochs().iter().collect::<Vec<_>>(), [(1, 3, 3)]);
}

#[test]
fn a_directory_with_other_files_is_refused() {
    let kit = Kit::new(3);
    kit.disk.set_content("letters.txt", b"Dear Sir");
    assert!(matches!(kit.open(), Err(OpenError::Foreign { file }) if file == "letters.txt"));
}

#[test]
fn segments_without_a_superblock_are_what_is_left_of_a_journal() {
    let kit = Kit::new(3);
    drop(kit.open_ready());
    kit.disk.remove("journal").unwrap();
    let Err(OpenError::Corrupt(corruption)) = kit.open() else { panic!("opened") };
    assert_eq!((corruption.file.as_str(), corruption.offset), ("journal", 0));
    tools::discard(&kit.disk).unwrap();
    kit.open().unwrap();
}

#[test]
fn a_segment_of_another_journal_is_refused() {
    let (kit, other) = (Kit::new(3), Kit::new(3));
    other.disk.set_faults(99, crate::disk::simulated::Faults::default());
    for kit in [&kit, &other] {
        let journal = kit.open_ready();
        std::mem::forget(append(&journal, 1, 100).unwrap());
        journal.step_commit();
    }
    kit.disk.set_content("segment-000000", &other.disk.content("segment-000000").unwrap());
    let Err(OpenError::Corrupt(corruption)) = kit.open() else { panic!("opened") };
    assert_eq!(corruption.reason, "the segment belongs to another journal");
}

#[test]
fn the_tools_list_verify_export_and_discard() {
    let kit = Kit::new(8);
    let journal = kit.open_ready();
    let holds: Vec<_> = (0..20).map(|number| append(&journal, number, 5000).unwrap()).collect();
    while journal.step_commit() {}
    drop(journal);
    let inspection = tools::inspect(&kit.disk).unwrap();
    assert_eq!((inspection.records, inspection.problem.clone()), (Some(20), None));
    assert_eq!(inspection.segment_bytes, SEGMENT_BYTES);
    assert_eq!(inspection.segments.iter().map(|segment| segment.records).sum::<u64>(), 20);
    assert!(tools::verify(&kit.disk).unwrap().is_empty());
    let mut exported = Vec::new();
    let each = |record: &crate::Recovered, payload: &[u8]| {
        exported.push((record.position, payload.to_vec()));
        Ok(())
    };
    assert!(tools::export(&kit.disk, each).unwrap().is_empty());
    assert_eq!(exported.len(), 20);
    assert_eq!(exported[7], (Position(8), super::kit::payload(7, 5000)));
    tools::discard(&kit.disk).unwrap();
    let (_journal, replay) = kit.open().unwrap();
    assert!(replay.is_empty());
    drop(holds);
}

#[test]
fn a_discard_that_is_cut_off_is_finished_by_the_next_open() {
    for at in 1..20 {
        let kit = Kit::new(8);
        let journal = kit.open_ready();
        let _holds: Vec<_> = (0..20).map(|number| append(&journal, number, 5000).unwrap()).collect();
        while journal.step_commit() {}
        drop(journal);
        kit.disk.cut_power_in(Some(at));
        let discarded = tools::discard(&kit.disk);
        kit.disk.power_cycle(at);
        let (_journal, replay) = kit.open().unwrap();
        // All or nothing.
        assert!(replay.is_empty() || (replay.len() == 20 && discarded.is_err()), "cut at {at}");
    }
}

#[test]
fn a_lowered_limit_removes_segments_that_the_log_does_not_need() {
    let mut kit = Kit::new(8);
    let journal = kit.open_ready();
    let _hold = append(&journal, 1, 100).unwrap();
    journal.step_commit();
    drop(journal);
    kit.segments = 3;
    let (journal, replay) = kit.open().unwrap();
    assert_eq!((journal.metrics().capacity_bytes, replay.len()), (3 * SEGMENT_BYTES, 1));
}

#[test]
fn a_journal_with_threads_commits_and_closes() {
    let kit = Kit::new(4);
    let (journal, _) = crate::Journal::open_in(&super::kit::config(4), kit.environment()).unwrap();
    let journal = std::sync::Arc::new(journal);
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let journal = std::sync::Arc::clone(&journal);
            std::thread::spawn(move || {
                for number in 0..200 {
                    // Full as long as the preparing thread has not created a segment.
                    let (position, _hold) = loop {
                        match append(&journal, writer * 1000 + number, 500) {
                            Ok(appended) => break appended,
                            Err(crate::AppendError::Full) => std::thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    };
                    journal.wait_blocking(position).unwrap();
                }
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let metrics = journal.metrics();
    assert_eq!((metrics.counts.appended_records, metrics.batch_records.sum), (800, 800));
    let journal = std::sync::Arc::into_inner(journal).unwrap();
    journal.close().unwrap();
    assert!(tools::verify(&kit.disk).unwrap().is_empty());
}
