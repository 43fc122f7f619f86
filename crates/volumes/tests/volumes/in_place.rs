//! Changes in place of a volume's own objects: with unknown outcomes, with objects lost in the
//! store, and of long ranges.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, BlockerExt, DeleteRequest, Durability, Error as Store, ObjectId};
use test_kit::steered::{Op, SteeredStore, Verdict};
use volumes::{Change, Error, OpenOptions, Options, Volume, Volumes};

use super::disk::{OBJECT, PAGE};
use super::objects_of;

fn with_volume(size_bytes: u64) -> (Arc<SteeredStore>, Volumes, Volume) {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    block_on(volumes.create("a", size_bytes, objects_of(OBJECT))).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    (store, volumes, disk)
}

fn write(disk: &Volume, offset: u64, bytes: &[u8]) -> volumes::Result<()> {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).map(drop)
}

fn data_object(store: &SteeredStore) -> ObjectId {
    let of_data = |object: &ObjectId| object.name.as_bytes().starts_with(b"d/");
    store.log().into_iter().filter_map(|call| call.object).find(of_data).expect("it was written")
}

#[test]
fn each_change_with_an_unknown_outcome_is_asked_for_before_another_one_can_come() {
    let (store, _volumes, disk) = with_volume(OBJECT);
    write(&disk, 0, b"born").unwrap();
    let begin = store.log().len();
    store.rule(|call| match call.op {
        Op::Write => Verdict::Fail(Store::OutcomeUnknown("lost".into())),
        _ => Verdict::Pass,
    });
    let answer = write(&disk, 0, b"lost");
    assert!(matches!(answer, Err(Error::Io(Store::OutcomeUnknown(_)))), "{answer:?}");
    let calls: Vec<Op> = store.log()[begin..].iter().map(|call| call.op).collect();
    assert_eq!(calls, [Op::Write, Op::Info].repeat(3));
}

#[test]
fn an_object_that_is_lost_below_does_not_come_back_with_zeros() {
    let (store, _volumes, disk) = with_volume(2 * OBJECT);
    write(&disk, 0, b"born").unwrap();
    let object = data_object(&store);
    block_on(store.memory().delete(DeleteRequest::new(object.clone()))).unwrap();
    let long = vec![1; OBJECT as usize + 5];
    for answer in [write(&disk, 2000, b"more"), write(&disk, 2, &long), block_on(disk.discard(5, 9))] {
        let Err(Error::Damaged(why)) = &answer else { panic!("{answer:?}") };
        assert!(why.contains(&object.to_string()), "{why}");
    }
    assert_eq!(test_kit::content(store.memory(), &object), None);
}

#[test]
fn a_snapshot_is_made_while_a_long_range_is_zeroed() {
    const OBJECTS: u64 = 200;
    let (store, volumes, disk) = with_volume(OBJECTS * OBJECT);
    let written = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&written);
    store.rule(move |call| {
        if call.op == Op::WriteZeroes {
            counter.fetch_add(1, Ordering::Relaxed);
            return Verdict::Hold;
        }
        Verdict::Pass
    });
    let mut zeroing = Box::pin(disk.write_zeroes(0, OBJECTS * OBJECT, false, false));
    assert!(poll_times(zeroing.as_mut(), 1, Duration::ZERO).is_none());
    let mut snapshot = Box::pin(volumes.snapshot("a", "s"));
    assert!(poll_times(snapshot.as_mut(), 1, Duration::ZERO).is_none(), "a change is under way");
    let mut made_after = None;
    for count in 1..=OBJECTS {
        for call in store.held() {
            store.answer(call.number);
        }
        if poll_times(zeroing.as_mut(), 1, Duration::ZERO).is_some() {
            break;
        }
        if made_after.is_none() && poll_times(snapshot.as_mut(), 1, Duration::ZERO).is_some() {
            made_after = Some(count);
        }
    }
    assert!(made_after.is_some_and(|count| count <= 65), "{made_after:?}");
    assert_eq!(written.load(Ordering::Relaxed), OBJECTS);
}

#[test]
fn changes_of_a_range_are_those_of_the_pages_that_have_it() {
    let size_bytes = 3 * PAGE * OBJECT;
    let (_store, volumes, disk) = with_volume(size_bytes);
    let places = [5, PAGE - 1, PAGE, 2 * PAGE + 7];
    for place in places {
        write(&disk, place * OBJECT, b"old").unwrap();
    }
    block_on(volumes.snapshot("a", "s")).unwrap();
    for place in places {
        write(&disk, place * OBJECT, b"new").unwrap();
    }
    let all = block_on(disk.changed_extents(Some("s"))).unwrap();
    let within = |offset: u64, length: u64| {
        let found = block_on(disk.changed_extents_in(Some("s"), offset, length)).unwrap();
        let is_in =
            |change: &&Change| change.offset < offset + length && offset < change.offset + change.length;
        let (found_in, all_in) = (found.iter().filter(is_in).count(), all.iter().filter(is_in).count());
        assert!(found_in >= all_in.min(1), "{offset} {length}");
        found.iter().map(|change| (change.offset / OBJECT, change.length / OBJECT)).collect::<Vec<_>>()
    };
    assert_eq!(within(0, 1), [(5, 1), (PAGE - 1, 1)]);
    assert_eq!(within(PAGE * OBJECT - 1, 2), [(5, 1), (PAGE - 1, 2)]);
    assert_eq!(within(PAGE * OBJECT, PAGE * OBJECT), [(PAGE, 1)]);
    assert_eq!(within(size_bytes - 1, 1), [(2 * PAGE + 7, 1)]);
    assert_eq!(within(0, u64::MAX), [(5, 1), (PAGE - 1, 2), (2 * PAGE + 7, 1)]);
    // From holes, and from a snapshot with merged overlays.
    assert_eq!(block_on(disk.changed_extents_in(None, 0, 1)).unwrap().len(), 2);
    block_on(disk.flush()).unwrap();
    assert_eq!(within(PAGE * OBJECT, 1), [(PAGE, 1)]);
}
