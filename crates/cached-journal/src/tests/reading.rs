//! The sequential reader and the reader of single records return the same as the iterator.

use super::kit::{Kit, SEGMENT_BYTES, append, config};
use crate::{Environment, Head, Journal, Object, Position, Record, Replay, Scope};
use blocker::rng::Rng;

type Content = Vec<(Position, Head<'static>, Vec<u8>)>;

/// Returns the result of the iterator, with the records' places.
fn one_by_one(replay: &Replay) -> Content {
    let source = replay.source();
    let mut records = replay.records();
    let mut content = Vec::new();
    while let Some(next) = records.next_placed() {
        let (place, record) = next.unwrap();
        let payload = record.payload().unwrap();
        assert_eq!(source.read(place).unwrap(), (record.position, record.head.clone(), payload.clone()));
        content.push((record.position, record.head, payload));
    }
    content
}

fn in_pieces(replay: &Replay) -> Content {
    let mut reader = replay.reader();
    let mut content = Vec::new();
    while let Some(read) = reader.next().unwrap() {
        let own = (read.position, read.head.clone(), read.payload.unwrap().to_vec());
        content.push(own);
        let place = reader.place().unwrap();
        assert_eq!(replay.source().read(place).unwrap().0, content.last().unwrap().0);
    }
    assert!(reader.next().unwrap().is_none(), "the end stays the end");
    content
}

#[test]
fn reading_in_pieces_returns_every_record_but_marks_and_what_they_cover() {
    let mut records = 0;
    for seed in 0..200 {
        let mut random = Rng::new(seed);
        let kit = Kit::new(3 + random.below(5));
        let journal = kit.open_ready();
        let mut holds = Vec::new();
        for number in 0..random.below(60) {
            let bytes = [0, 1, 100, 4096, 5000, 16_000][random.below(6) as usize];
            let Ok((position, hold)) = append(&journal, number, bytes) else { break };
            holds.push(hold);
            if random.permille(50) {
                let mark = Head::mark(Scope::Object, position);
                let head = Head { namespace: 1, object: Object::Number(number), ..mark };
                let Ok(appended) = journal.append(&Record { head, payload: &[] }) else { break };
                holds.push(appended.hold);
            }
            if random.permille(300) {
                journal.step_commit();
            }
        }
        while journal.step_commit() {}
        kit.disk.kill_process();
        std::mem::forget(journal);
        let (_journal, replay) = kit.open().unwrap();
        let content = one_by_one(&replay);
        assert_eq!(in_pieces(&replay), content, "seed {seed}");
        let payload_bytes = content.iter().map(|(_, _, payload)| payload.len() as u64).sum::<u64>();
        let counted = (replay.len(), replay.payload_bytes());
        assert_eq!(counted, (content.len() as u64, payload_bytes), "seed {seed}");
        records += content.len();
    }
    assert!(records > 1000);
}

#[test]
fn a_damaged_payload_is_part_of_the_record_and_the_rest_is_read() {
    let kit = Kit::new(6);
    let journal = kit.open_ready();
    let holds: Vec<_> = (0..20)
        .map(|number| {
            let appended = append(&journal, number, 5000).unwrap();
            journal.step_commit();
            appended
        })
        .collect();
    while journal.step_commit() {}
    kit.disk.kill_process();
    std::mem::forget((journal, holds));
    let (_journal, replay) = kit.open().unwrap();
    let intact = one_by_one(&replay);
    // Damage found after the open: in the payload of the first batch of the first segment.
    let name = "segment-000000";
    let mut bytes = kit.disk.content(name).unwrap();
    bytes[8192 + 4096 + 17] ^= 1;
    kit.disk.set_content(name, &bytes);
    let mut reader = replay.reader();
    for (at, (position, head, payload)) in intact.iter().enumerate() {
        let read = reader.next().unwrap().unwrap();
        assert_eq!((read.position, read.head), (*position, head));
        match read.payload {
            Ok(read) => assert_eq!(read, payload),
            Err(damage) => {
                assert_eq!((at, damage.file.as_str(), damage.offset), (0, name, 8192 + 4096));
            }
        }
    }
    let source = replay.source();
    let mut records = replay.records();
    let (place, _) = records.next_placed().unwrap().unwrap();
    assert!(matches!(source.read(place), Err(crate::ReadError::Corrupt(_))));
}

#[test]
fn a_batch_that_changes_after_the_open_ends_the_reading_with_its_place() {
    let kit = Kit::new(3);
    let journal = kit.open_ready();
    let held = append(&journal, 1, 100).unwrap();
    while journal.step_commit() {}
    kit.disk.kill_process();
    std::mem::forget((journal, held));
    let (_journal, replay) = Journal::open_stepped(&config(3), Environment::new(kit.disk.clone())).unwrap();
    let mut bytes = kit.disk.content("segment-000000").unwrap();
    bytes[8192 + 70] ^= 1;
    assert!(bytes.len() == SEGMENT_BYTES as usize);
    kit.disk.set_content("segment-000000", &bytes);
    let mut reader = replay.reader();
    for _ in 0..2 {
        let Err(crate::ReadError::Corrupt(damage)) = reader.next() else { panic!("damage is reported") };
        assert_eq!((damage.file.as_str(), damage.offset), ("segment-000000", 8192));
    }
}
