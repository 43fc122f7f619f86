//! Counts a volume's requests to its store.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability};
use test_kit::steered::{Op, SteeredStore, Verdict};
use volumes::{OpenOptions, Options, Settings, Volumes};

use super::objects_of;

const OBJECTS: u64 = 64;
const OBJECT_BYTES: u64 = 64 << 10;

fn calls(store: &SteeredStore, begin: usize) -> Vec<Op> {
    store.log()[begin..].iter().map(|call| call.op).collect()
}

#[test]
fn a_random_write_in_steady_state_is_one_call_and_a_flush_another() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    let size = OBJECTS * OBJECT_BYTES;
    block_on(volumes.create("a", size, objects_of(OBJECT_BYTES))).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    let all = vec![1; size as usize];
    block_on(disk.write(0, all.into(), Durability::Cached)).unwrap();
    block_on(disk.flush()).unwrap();
    let mut rng = test_kit::rng::Rng::new(1);
    for _ in 0..1000 {
        let offset = rng.below(size / 4096) * 4096;
        let begin = store.log().len();
        block_on(disk.write(offset, vec![2; 4096].into(), Durability::Cached)).unwrap();
        assert_eq!(calls(&store, begin), [Op::Write]);
        let begin = store.log().len();
        block_on(disk.write(offset, vec![3; 4096].into(), Durability::Stored)).unwrap();
        // Plus a read of the head, because the store does not refuse an owner that another one has
        // replaced.
        assert_eq!(calls(&store, begin), [Op::Write, Op::Info]);
        let begin = store.log().len();
        assert_eq!(block_on(disk.read(offset, 4096)).unwrap().to_vec(), [3; 4096]);
        assert_eq!(calls(&store, begin), [Op::Read]);
    }
    let begin = store.log().len();
    block_on(disk.flush()).unwrap();
    assert_eq!(calls(&store, begin), [Op::Flush, Op::Info]);
}

#[test]
fn the_allocations_of_a_page_are_recorded_by_one_request() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    block_on(volumes.create("a", 1 << 40, Settings::default())).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    let write_all = |disk: &volumes::Volume| {
        for place in 0..200 {
            block_on(disk.write(place * (8 << 20), vec![1; 4096].into(), Durability::Cached)).unwrap();
        }
    };
    write_all(&disk);
    let begin = store.log().len();
    block_on(disk.flush()).unwrap();
    // The data, the new page of the map, and the head.
    assert_eq!(calls(&store, begin), [Op::Flush, Op::WriteFull, Op::WriteFull, Op::Info]);
    block_on(disk.discard(0, 100 * (8 << 20))).unwrap();
    let begin = store.log().len();
    block_on(disk.flush()).unwrap();
    let calls_made = calls(&store, begin);
    assert_eq!(calls_made[..2], [Op::Flush, Op::WriteRuns]);
    assert!(calls_made[2..102].iter().all(|op| *op == Op::Delete) && calls_made[102..] == [Op::Info]);
}

#[test]
fn a_snapshot_and_a_clone_of_a_large_volume_take_no_more_calls_than_of_a_small_one() {
    let mut counts = Vec::new();
    for size in [1 << 30, 1 << 40] {
        let store = SteeredStore::new();
        let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
        block_on(volumes.create("a", size, Settings::default())).unwrap();
        let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
        // One write in each page of the map.
        for offset in (0..size).step_by(16 << 30) {
            block_on(disk.write(offset + 5, b"something".into(), Durability::Stored)).unwrap();
        }
        let begin = store.log().len();
        block_on(volumes.snapshot("a", "s")).unwrap();
        block_on(volumes.clone_volume("a", Some("s"), "b")).unwrap();
        let log = store.log();
        assert!(
            log[begin..]
                .iter()
                .all(|call| call.op != Op::Copy && (call.op == Op::Read || call.len < 64 << 10))
        );
        counts.push(calls(&store, begin));
        let clone = block_on(volumes.open("b", OpenOptions::default())).unwrap();
        assert_eq!(block_on(clone.read(0, 14)).unwrap().to_vec(), b"\0\0\0\0\0something");
    }
    assert_eq!(counts[0], counts[1]);
}

/// In volumes without an owner, another owner's concurrent changes are not reported as damage.
#[test]
fn a_check_without_repair_writes_nothing() {
    let store = SteeredStore::new();
    let new = |owner: &str| {
        let options = Options { owner: owner.to_owned(), ..Options::new("vol") };
        Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options).unwrap()
    };
    let volumes = new("one");
    for name in ["a", "b"] {
        block_on(volumes.create(name, OBJECTS * OBJECT_BYTES, objects_of(OBJECT_BYTES))).unwrap();
        let disk = block_on(volumes.open(name, OpenOptions::default())).unwrap();
        block_on(disk.write(5, b"something".into(), Durability::Stored)).unwrap();
        block_on(volumes.snapshot(name, "s")).unwrap();
        block_on(disk.write(5, b"other".into(), Durability::Stored)).unwrap();
        block_on(disk.close()).unwrap();
    }
    let begin = store.log().len();
    let report = block_on(new("two").check(false)).unwrap();
    assert!(
        calls(&store, begin).iter().all(|op| !op.is_change() && *op != Op::Claim),
        "{:?}",
        calls(&store, begin)
    );
    assert_eq!((report.volumes, report.problems.len(), report.skipped.len()), (2, 0, 0));
    // Another owner discards data of the volume while the check lists its objects: after two
    // listings of the catalog, there is one for each volume.
    let mut lists = 0;
    store.rule(move |call| {
        lists += u32::from(call.op == Op::List);
        if call.op == Op::List && lists == 4 { Verdict::Hold } else { Verdict::Pass }
    });
    let checking = new("two");
    let mut check = Box::pin(checking.check(false));
    assert!(poll_times(check.as_mut(), 1, Duration::ZERO).is_none());
    assert_eq!(store.held().len(), 1);
    let other = new("other");
    let disk = block_on(other.open("b", OpenOptions::default())).unwrap();
    block_on(disk.discard(0, OBJECTS * OBJECT_BYTES)).unwrap();
    block_on(disk.close()).unwrap();
    store.open();
    let report = block_on(check).unwrap();
    assert_eq!((report.volumes, report.problems), (1, Vec::new()));
    assert_eq!(report.skipped, ["b: it was attached meanwhile"]);
}
