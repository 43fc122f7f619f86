//! Writes to objects that belong to a snapshot: they wait at most for a log, not for a copy.
//! Whatever happens to the copies, the process or the snapshot, the volume has the writes exactly
//! once and the snapshot never has them.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability, Error as Store};
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Change, Error, OpenOptions, Options, Volume, Volumes};

use super::objects_of;

const OBJECT: u64 = 64 << 10;
const OBJECTS: u64 = 8;

struct World {
    records_at_once: bool,
    store: Arc<SteeredStore>,
    volumes: Volumes,
    disk: Volume,
}

fn options(records_at_once: bool) -> Options {
    Options { records_at_once, ..Options::new("vol") }
}

/// Creates a volume whose objects consist of the byte 1, and a snapshot "s" of it.
fn snapshotted(records_at_once: bool) -> World {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options(records_at_once)).unwrap();
    let settings = objects_of(OBJECT);
    block_on(volumes.create("a", OBJECTS * OBJECT, settings)).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    write(&disk, 0, &[1; (OBJECTS * OBJECT) as usize]);
    block_on(disk.flush()).unwrap();
    block_on(volumes.snapshot("a", "s")).unwrap();
    World { records_at_once, store, volumes, disk }
}

impl World {
    /// Ends the process without a shutdown, and opens the volume again; the store keeps its
    /// content.
    fn anew(self) -> Self {
        let Self { records_at_once, store, volumes, disk } = self;
        drop((volumes, disk));
        store.pass();
        let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options(records_at_once)).unwrap();
        let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
        Self { records_at_once, store, volumes, disk }
    }

    /// Checks that the snapshot is unchanged, and that nothing is left over or missing.
    fn check(&self) {
        let snapshot = block_on(self.volumes.open_snapshot("a", "s")).unwrap();
        let found = block_on(snapshot.read(0, OBJECTS * OBJECT)).unwrap().to_vec();
        assert!(found.iter().all(|byte| *byte == 1), "the snapshot has changed");
        block_on(self.volumes.check(true)).unwrap();
        let report = block_on(self.volumes.check(false)).unwrap();
        assert_eq!((report.problems, report.births_met), (Vec::new(), 0));
    }

    fn calls(&self, begin: usize) -> Vec<Op> {
        self.store.log()[begin..].iter().map(|call| call.op).collect()
    }
}

fn write(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
}

fn bytes(disk: &Volume, offset: u64, length: u64) -> Vec<u8> {
    block_on(disk.read(offset, length)).unwrap().to_vec()
}

fn is_of(call: &CallInfo, begin: &str) -> bool {
    call.object.as_ref().is_some_and(|object| object.name.as_bytes().starts_with(begin.as_bytes()))
}

#[test]
fn the_first_write_after_a_snapshot_is_one_call_at_most_and_needs_no_entry() {
    for records_at_once in [false, true] {
        let world = snapshotted(records_at_once);
        let begin = world.store.log().len();
        write(&world.disk, 5, b"short");
        let wanted: &[Op] = if records_at_once { &[Op::Write] } else { &[] };
        assert_eq!(world.calls(begin), wanted);
        assert_eq!(bytes(&world.disk, 4, 7), b"\x01short\x01");
        block_on(world.disk.write_zeroes(2 * OBJECT + 3, 500, true, false)).unwrap();
        assert_eq!(bytes(&world.disk, 2 * OBJECT, 504), [vec![1; 3], vec![0; 500], vec![1]].concat());
        let changes = block_on(world.disk.changed_extents(Some("s"))).unwrap();
        let extent = |object: u64| Change { offset: object * OBJECT, length: OBJECT, is_data: true };
        assert_eq!(changes, [extent(0), extent(2)]);
        assert_eq!(world.disk.usage().unwrap().exclusive_bytes, 2 * OBJECT);
        let begin = world.store.log().len();
        block_on(world.disk.flush()).unwrap();
        let has_copied = world.calls(begin).contains(&Op::Copy);
        assert_eq!(has_copied, !records_at_once, "a flush needs no copy of what the log has");
        assert_eq!(block_on(world.volumes.diff("a", Some("s"), None)).unwrap(), changes);
        let begin = world.store.log().len();
        block_on(world.disk.write(OBJECT, b"stored".to_vec().into(), Durability::Stored)).unwrap();
        if records_at_once {
            assert_eq!(world.calls(begin), [Op::Write, Op::Info]);
        }
        let world = world.anew();
        assert_eq!(bytes(&world.disk, 4, 7), b"\x01short\x01");
        assert_eq!(bytes(&world.disk, OBJECT, 7), b"stored\x01");
        assert_eq!(bytes(&world.disk, 2 * OBJECT + 2, 3), [1, 0, 0]);
        world.check();
    }
}

#[test]
fn nothing_is_copied_for_a_write_of_a_whole_object_or_of_what_was_discarded() {
    let world = snapshotted(false);
    write(&world.disk, 0, b"before");
    block_on(world.disk.discard(OBJECT, OBJECT)).unwrap();
    write(&world.disk, OBJECT + 9, b"hole");
    write(&world.disk, 0, &[2; OBJECT as usize]);
    write(&world.disk, 2 * OBJECT, b"over");
    block_on(world.disk.discard(2 * OBJECT, OBJECT)).unwrap();
    block_on(world.disk.merge()).unwrap();
    assert!(world.store.log().iter().all(|call| call.op != Op::Copy));
    let found = |disk: &Volume| [bytes(disk, 0, 1), bytes(disk, OBJECT + 9, 4), bytes(disk, 2 * OBJECT, 1)];
    assert_eq!(found(&world.disk).concat(), b"\x02hole\0");
    block_on(world.disk.flush()).unwrap();
    let world = world.anew();
    assert_eq!(found(&world.disk).concat(), b"\x02hole\0");
    world.check();
}

#[test]
fn writes_go_on_while_an_object_is_copied_and_recorded() {
    for held in ["copy", "bytes", "entry"] {
        for durability in [Durability::Cached, Durability::Stored] {
            let world = snapshotted(true);
            write(&world.disk, 0, b"one");
            let is_held = move |call: &CallInfo| match held {
                "copy" => call.op == Op::Copy,
                "bytes" => call.op == Op::Write && is_of(call, "d/"),
                _ => call.op.is_change() && is_of(call, "m/"),
            };
            world.store.rule(move |call| if is_held(call) { Verdict::Hold } else { Verdict::Pass });
            let mut merge = Box::pin(world.disk.merge());
            assert!(poll_times(merge.as_mut(), 9, Duration::ZERO).is_none());
            assert_eq!(world.store.held().len(), 1);
            if held == "entry" {
                // The write is also applied to the copy.
                world.store.rule(|_| Verdict::Pass);
            }
            let mut write_beside = Box::pin(world.disk.write(1, b"wo".to_vec().into(), durability));
            let is = poll_times(write_beside.as_mut(), 9, Duration::ZERO);
            drop(write_beside);
            assert!(is.is_some_and(|is| is.is_ok()), "{held} {durability}: a write waits");
            write(&world.disk, 2 * OBJECT - 1, b"z");
            assert_eq!(bytes(&world.disk, 0, 4), b"owo\x01");
            if durability == Durability::Stored {
                // The process ends here, and the copy or the entry arrives later or never.
                if held == "copy" {
                    world.store.perform(world.store.held()[0].number);
                }
                drop(merge);
            } else {
                world.store.open();
                block_on(merge).unwrap();
                block_on(world.disk.merge()).unwrap();
                assert_eq!(bytes(&world.disk, 0, 4), b"owo\x01");
                // A position at which the log has older bytes.
                write(&world.disk, 2, b"e");
            }
            let wanted = if durability == Durability::Stored { b"owo\x01" } else { b"owe\x01" };
            let world = world.anew();
            assert_eq!(bytes(&world.disk, 0, 4), wanted, "{held} {durability}");
            assert_eq!(bytes(&world.disk, 2 * OBJECT - 2, 2), b"\x01z");
            world.check();
        }
    }
}

#[test]
fn what_a_rollback_has_undone_does_not_come_back_with_the_log() {
    let world = snapshotted(true);
    write(&world.disk, 0, b"undone");
    block_on(world.disk.flush()).unwrap();
    block_on(world.volumes.rollback("a", "s")).unwrap();
    let disk = block_on(world.volumes.open("a", OpenOptions::default())).unwrap();
    assert_eq!(bytes(&disk, 0, 6), [1; 6]);
    write(&disk, OBJECT, b"kept");
    drop(disk);
    let world = world.anew();
    assert_eq!(
        [bytes(&world.disk, 0, 6), bytes(&world.disk, OBJECT, 4)].concat(),
        b"\x01\x01\x01\x01\x01\x01kept"
    );
    world.check();
}

#[test]
fn writes_are_answered_while_a_snapshot_is_stored() {
    for of in ["r/", "head"] {
        let world = snapshotted(true);
        world.store.rule(move |call| match call.op.is_change() && is_of(call, of) {
            true => Verdict::Hold,
            false => Verdict::Pass,
        });
        let mut snapshot = Box::pin(world.volumes.snapshot("a", "t"));
        assert!(poll_times(snapshot.as_mut(), 9, Duration::ZERO).is_none());
        for durability in [Durability::Cached, Durability::Stored] {
            let mut write = Box::pin(world.disk.write(OBJECT, b"two".to_vec().into(), durability));
            let is = poll_times(write.as_mut(), 1, Duration::ZERO);
            assert!(is.is_some_and(|is| is.is_ok()), "{of} {durability}");
        }
        world.store.open();
        block_on(snapshot).unwrap();
        let world = world.anew();
        let then = block_on(world.volumes.open_snapshot("a", "t")).unwrap();
        assert_eq!(block_on(then.read(OBJECT, 3)).unwrap().to_vec(), [1; 3]);
        assert_eq!(bytes(&world.disk, OBJECT, 3), b"two");
        world.check();
    }
}

#[test]
fn what_was_written_beside_a_snapshot_that_fails_is_there() {
    for is_merged in [false, true] {
        let world = snapshotted(false);
        write(&world.disk, 0, b"one");
        block_on(world.disk.flush()).unwrap();
        block_on(world.disk.merge()).unwrap();
        block_on(world.disk.flush()).unwrap();
        world.store.rule(|call| match call.op.is_change() && is_of(call, "r/") {
            true => Verdict::Hold,
            false => Verdict::Pass,
        });
        let mut snapshot = Box::pin(world.volumes.snapshot("a", "t"));
        assert!(poll_times(snapshot.as_mut(), 9, Duration::ZERO).is_none());
        write(&world.disk, 1, b"wo");
        write(&world.disk, OBJECT, b"three");
        if is_merged {
            block_on(world.disk.merge()).unwrap();
        }
        let held = world.store.held()[0].number;
        world.store.fail(held, Store::Retryable("for the test".into()));
        block_on(snapshot).unwrap_err();
        world.store.pass();
        write(&world.disk, 2, b"l");
        let found = |disk: &Volume| [bytes(disk, 0, 3), bytes(disk, OBJECT, 5)].concat();
        assert_eq!(found(&world.disk), b"owlthree", "{is_merged}");
        block_on(world.disk.flush()).unwrap();
        assert_eq!(block_on(world.volumes.snapshots("a")).unwrap().len(), 1);
        let world = world.anew();
        assert_eq!(found(&world.disk), b"owlthree", "{is_merged}");
        world.check();
    }
}

#[test]
fn a_write_that_the_full_log_has_no_room_for_copies_and_the_next_log_has_room() {
    let world = snapshotted(true);
    // Each needs a sector more than its bytes, and an object has space for four.
    let quarter = vec![7; OBJECT as usize / 4];
    let mut written = 0;
    while world.store.log().iter().all(|call| call.op != Op::Copy) {
        write(&world.disk, written % 2 * OBJECT + 11, &quarter);
        written += 1;
        assert!(written < 8192, "the log has no end");
    }
    assert!(written > 3500, "{written} writes of 16 KiB fill 64 MiB");
    block_on(world.disk.merge()).unwrap();
    let begin = world.store.log().len();
    write(&world.disk, 6 * OBJECT, b"logged");
    assert_eq!(world.calls(begin), [Op::Write]);
    block_on(world.disk.flush()).unwrap();
    let removed = world.store.log().iter().filter(|call| is_of(call, "o/") && call.op == Op::Delete).count();
    assert_eq!(removed, 16, "the parts of the full log");
    let wanted = [b"logged".to_vec(), quarter].concat();
    let found = |disk: &Volume| [bytes(disk, 6 * OBJECT, 6), bytes(disk, 11, OBJECT / 4)].concat();
    assert_eq!(found(&world.disk), wanted);
    let world = world.anew();
    assert_eq!(found(&world.disk), wanted);
    world.check();
}

#[test]
fn a_write_to_a_third_object_is_not_answered_for_a_record_that_the_second_one_voids() {
    let world = snapshotted(true);
    write(&world.disk, 0, b"one");
    world.store.rule(|call| match call.op.is_change() && is_of(call, "m/") {
        true => Verdict::Hold,
        false => Verdict::Pass,
    });
    let mut merge = Box::pin(world.disk.merge());
    assert!(poll_times(merge.as_mut(), 9, Duration::ZERO).is_none());
    assert_eq!(world.store.held().len(), 1, "the entry of the copy is on its way");
    block_on(world.disk.discard(0, OBJECT)).unwrap();
    for text in [b"two", b"six"] {
        let mut write = Box::pin(world.disk.write(9, text.to_vec().into(), Durability::Cached));
        assert!(poll_times(write.as_mut(), 9, Duration::ZERO).is_none(), "the stored map may have the copy");
    }
    world.store.perform(world.store.held()[0].number);
    drop(merge);
    world.anew().check();
}

#[test]
fn a_volume_that_has_no_room_for_copies_opens_and_has_what_was_logged() {
    let world = snapshotted(true);
    write(&world.disk, 0, b"logged");
    let World { records_at_once, store, volumes, disk } = world;
    drop((volumes, disk));
    store.rule(|call| match call.op {
        Op::Copy => Verdict::Fail(Store::OutOfSpace("for the test".into())),
        _ => Verdict::Pass,
    });
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options(true)).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    assert_eq!(bytes(&disk, 0, 6), b"logged");
    block_on(disk.flush()).unwrap();
    assert!(matches!(block_on(disk.merge()), Err(Error::NoSpace(_))));
    let refused = block_on(disk.write(OBJECT, b"refused".to_vec().into(), Durability::Cached));
    assert!(matches!(refused, Err(Error::NoSpace(_))), "{refused:?}");
    assert!(matches!(block_on(disk.close()), Err(Error::NoSpace(_))));
    assert_eq!(bytes(&disk, 0, 6), b"logged");
    let world = World { records_at_once, store, volumes, disk }.anew();
    assert_eq!(bytes(&world.disk, 0, 6), b"logged");
    world.check();
}
