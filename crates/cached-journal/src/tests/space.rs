//! Free space, reservations, levels, holds, and the reuse of segments.

use super::kit::{Kit, SEGMENT_BYTES, append, head, payload};
use crate::{AppendError, Event, Level, Position, Record};
use blocker::rng::Rng;

#[test]
fn a_full_journal_refuses_until_the_oldest_hold_is_dropped() {
    let kit = Kit::new(3);
    let journal = kit.open_ready();
    let mut holds = Vec::new();
    let refusal = loop {
        match append(&journal, 1, 4096) {
            Ok((_, hold)) => holds.push(hold),
            Err(error) => break error,
        }
        journal.step_commit();
    };
    assert_eq!(refusal, AppendError::Full);
    assert!(journal.level() >= Level::Half);
    let oldest = journal.oldest().unwrap();
    assert_eq!(oldest.start, Position(1));
    // Releasing younger holds does not free space.
    let rest = holds.split_off(oldest.end.0 as usize - 1);
    drop(rest);
    assert_eq!(append(&journal, 1, 4096).unwrap_err(), AppendError::Full);
    drop(holds);
    assert!(kit.events.lock().contains(&Event::Room));
    append(&journal, 1, 4096).unwrap();
    assert!(journal.hold(Position(1)).is_none(), "a released position cannot be held");
}

#[test]
fn levels_are_reported_upwards_and_downwards() {
    let kit = Kit::new(10);
    let journal = kit.open_ready();
    let mut holds = Vec::new();
    while let Ok((_, hold)) = append(&journal, 1, 12_000) {
        holds.push(hold);
        journal.step_commit();
    }
    drop(holds);
    let events = kit.events.lock();
    let levels: Vec<_> = events.iter().filter(|event| matches!(event, Event::Level(_))).collect();
    let expected = [Level::Half, Level::NineTenths, Level::Half, Level::Low].map(Event::Level);
    assert_eq!(levels, expected.iter().collect::<Vec<_>>());
}

#[test]
fn an_append_within_a_reservation_is_never_refused() {
    for seed in 0..300 {
        let mut random = Rng::new(seed);
        let kit = Kit::new(3 + random.below(3));
        let journal = kit.open_ready();
        let (mut holds, mut reservations) = (Vec::new(), Vec::new());
        for _ in 0..200 {
            let bytes = random.below(SEGMENT_BYTES / 4 + 1);
            match random.below(5) {
                0 => reservations
                    .extend(journal.reserve_leaving(1, bytes, 0).map(|reservation| (reservation, bytes))),
                1 => {
                    if let Ok((_, hold)) = append(&journal, seed, bytes as usize) {
                        holds.push(hold);
                    }
                }
                2 if !reservations.is_empty() => {
                    let (mut reservation, bytes) =
                        reservations.swap_remove(random.below(reservations.len() as u64) as usize);
                    let payload = payload(seed, bytes as usize);
                    let record = Record { head: head(seed), payload: &[&payload] };
                    holds.push(reservation.append(&record).unwrap().hold);
                }
                3 if random.permille(300) => holds.truncate(random.below(holds.len() as u64 + 1) as usize),
                3 if random.permille(100) => holds.clear(),
                _ => {
                    journal.step_commit();
                }
            }
        }
        for (mut reservation, bytes) in reservations {
            let payload = payload(seed, bytes as usize);
            reservation.append(&Record { head: head(seed), payload: &[&payload] }).unwrap();
        }
    }
}

#[test]
fn a_record_over_the_limits_is_refused() {
    let kit = Kit::new(3);
    let journal = kit.open_ready();
    let limit = journal.payload_bytes_max() as usize;
    append(&journal, 1, limit).unwrap();
    assert_eq!(append(&journal, 1, limit + 1).unwrap_err(), AppendError::TooLarge);
    let mut reservation = journal.reserve_leaving(1, 10, 0).unwrap();
    let record = Record { head: head(1), payload: &[&[0; 11]] };
    assert_eq!(reservation.append(&record).unwrap_err(), AppendError::TooLarge);
    let name = vec![0; crate::NAME_BYTES_MAX + 1];
    let head = crate::Head::new(crate::Kind(1), crate::Object::Name((&name[..]).into()));
    assert_eq!(journal.append(&Record { head, payload: &[] }).unwrap_err(), AppendError::TooLarge);
}

#[test]
fn a_disk_that_is_behind_refuses_until_it_has_caught_up() {
    let kit = Kit::new(8);
    let config = crate::JournalConfig { unsynced_bytes_max: 50_000, ..super::kit::config(8) };
    let (journal, _) = crate::Journal::open_stepped(&config, kit.environment()).unwrap();
    while journal.step_prepare() {}
    let mut holds = Vec::new();
    let refusal = loop {
        match append(&journal, 1, 10_000) {
            Ok((_, hold)) => holds.push(hold),
            Err(error) => break error,
        }
    };
    assert_eq!((refusal, holds.len() < 8), (AppendError::Busy, true));
    journal.step_commit();
    assert!(kit.events.lock().contains(&Event::Room));
    append(&journal, 1, 10_000).unwrap();
}

#[test]
fn segments_are_used_again_without_writing_more_files() {
    let kit = Kit::new(6);
    let journal = kit.open_ready();
    let mut held = std::collections::VecDeque::new();
    for number in 0..500 {
        let (_, hold) = append(&journal, number, 5000).unwrap();
        held.push_back(hold);
        journal.step_commit();
        if held.len() > 10 {
            held.pop_front();
        }
        assert!(!journal.step_prepare());
    }
    let oldest_held = held[0].position();
    drop(journal);
    let (_journal, replay) = kit.open().unwrap();
    let first = replay.records().next().unwrap().unwrap().position;
    assert!(first <= oldest_held && first > Position(400));
    drop(held);
}

#[test]
fn a_replay_holds_its_segments_until_they_are_applied() {
    let kit = Kit::new(12);
    let journal = kit.open_ready();
    let mut holds = Vec::new();
    for number in 0..25 {
        holds.push(append(&journal, number, 5000).unwrap().1);
        journal.step_commit();
    }
    drop(journal);
    drop(holds);
    let (journal, mut replay) = kit.open().unwrap();
    assert_eq!(replay.len(), 25);
    assert_eq!(journal.oldest().unwrap().start, Position(1));
    let end = journal.oldest().unwrap().end;
    replay.applied(Position(end.0 - 2), 1);
    assert_eq!(journal.oldest().unwrap().start, Position(1));
    replay.applied(Position(end.0 - 1), 1);
    assert_eq!(journal.oldest().unwrap().start, end);
    assert_eq!((journal.metrics().counts.replay_records, journal.metrics().counts.replay_applied), (25, 2));
    drop(replay);
    assert_eq!(journal.metrics().live_segments, 1);
}

#[test]
fn records_that_matter_less_leave_room_for_the_others() {
    let kit = Kit::new(4);
    let journal = kit.open_ready();
    let mut holds = Vec::new();
    let payload = payload(1, 4096);
    let slices: [&[u8]; 1] = [&payload];
    let record = || Record { head: head(1), payload: &slices };
    let leave = SEGMENT_BYTES / 2;
    loop {
        match journal.append_leaving(&record(), leave) {
            Ok(appended) => holds.push(appended.hold),
            Err(error) => break assert_eq!(error, AppendError::Full),
        }
        journal.step_commit();
    }
    assert_eq!(journal.reserve_leaving(1, 4096, leave).unwrap_err(), AppendError::Full);
    journal.reserve_leaving(1, 4096, 0).unwrap();
    holds.push(journal.append(&record()).unwrap().hold);
}
