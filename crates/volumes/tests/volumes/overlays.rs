//! Writes to objects that a snapshot has: they wait for a log, and for no copy; and whatever becomes of the copies, of the
//! process or of the snapshot, the volume has them once and the snapshot never.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability, Error as Store, WriteMode};
use cached_core::object::Writer;
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Change, OpenOptions, Options, Settings, Volume, Volumes};

use super::stack::{cache, until};

const OBJECT: u64 = 64 << 10;
const OBJECTS: u64 = 8;

struct World {
    store: Arc<SteeredStore>,
    volumes: Volumes,
    disk: Volume,
}

fn options(records_at_once: bool) -> Options {
    Options::new("vol").records_at_once(records_at_once)
}

/// Makes a volume whose objects have the byte 1, and a snapshot "s" of it.
fn snapshotted(records_at_once: bool) -> World {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options(records_at_once)).unwrap();
    let settings = Settings::default().object_bytes(OBJECT);
    block_on(volumes.create("a", OBJECTS * OBJECT, settings)).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    write(&disk, 0, &[1; (OBJECTS * OBJECT) as usize]);
    block_on(disk.flush()).unwrap();
    block_on(volumes.snapshot("a", "s")).unwrap();
    World { store, volumes, disk }
}

impl World {
    /// The process ends without a word; the store has what it had.
    fn anew(self) -> Self {
        let Self { store, volumes, disk } = self;
        drop((volumes, disk));
        store.pass();
        let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options(false)).unwrap();
        let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
        Self { store, volumes, disk }
    }

    /// Checks that the snapshot is what it was, and that nothing is left over or missing.
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
fn the_first_write_after_a_snapshot_is_one_call_and_needs_no_entry() {
    for records_at_once in [false, true] {
        let world = snapshotted(records_at_once);
        let begin = world.store.log().len();
        write(&world.disk, 5, b"short");
        assert_eq!(world.calls(begin), [Op::Write]);
        assert_eq!(bytes(&world.disk, 4, 7), b"\x01short\x01");
        let begin = world.store.log().len();
        block_on(world.disk.flush()).unwrap();
        assert_eq!(world.calls(begin), [Op::Flush, Op::Info], "the log has it: nothing is to be recorded");
        let begin = world.store.log().len();
        block_on(world.disk.write(OBJECT, b"stored".to_vec().into(), Durability::Stored)).unwrap();
        assert_eq!(world.calls(begin), [Op::Write, Op::Info]);
        block_on(world.disk.write_zeroes(2 * OBJECT + 3, 500, true, false)).unwrap();
        assert_eq!(bytes(&world.disk, 2 * OBJECT, 504), [vec![1; 3], vec![0; 500], vec![1]].concat());
        let changes = block_on(world.disk.changed_extents(Some("s"))).unwrap();
        let wanted = [Change { offset: 0, length: 3 * OBJECT, is_data: true }];
        assert_eq!(changes, wanted);
        assert_eq!(block_on(world.volumes.diff("a", Some("s"), None)).unwrap(), wanted);
        assert_eq!(world.disk.usage().unwrap().exclusive_bytes, 3 * OBJECT);
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
                // To the copy as well.
                world.store.rule(|_| Verdict::Pass);
            }
            let mut write_beside = Box::pin(world.disk.write(1, b"wo".to_vec().into(), durability));
            let is = poll_times(write_beside.as_mut(), 9, Duration::ZERO);
            drop(write_beside);
            assert!(is.is_some_and(|is| is.is_ok()), "{held} {durability}: a write waits");
            write(&world.disk, 2 * OBJECT - 1, b"z");
            assert_eq!(bytes(&world.disk, 0, 4), b"owo\x01");
            if durability == Durability::Stored {
                // The process ends here: the copy or the entry comes, or never does.
                if held == "copy" {
                    world.store.perform(world.store.held()[0].number);
                }
                drop(merge);
            } else {
                world.store.open();
                block_on(merge).unwrap();
                block_on(world.disk.merge()).unwrap();
                assert_eq!(bytes(&world.disk, 0, 4), b"owo\x01");
                // Where the log has older bytes.
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
    let world = snapshotted(false);
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
    let world = snapshotted(false);
    // Each takes a sector more than its bytes, and an object is half of it.
    let half = vec![7; OBJECT as usize / 2];
    let mut written = 0;
    while world.store.log().iter().all(|call| call.op != Op::Copy) {
        write(&world.disk, written % 2 * OBJECT + 11, &half);
        written += 1;
        assert!(written < 4096, "the log has no end");
    }
    assert!(written > 1500, "{written} writes of 32 KiB fill 64 MiB");
    write(&world.disk, 5 * OBJECT, b"copied");
    block_on(world.disk.merge()).unwrap();
    let begin = world.store.log().len();
    write(&world.disk, 6 * OBJECT, b"logged");
    assert_eq!(world.calls(begin), [Op::Write]);
    let wanted = [b"copied".to_vec(), b"logged".to_vec(), half].concat();
    let found = |disk: &Volume| {
        [bytes(disk, 5 * OBJECT, 6), bytes(disk, 6 * OBJECT, 6), bytes(disk, 11, OBJECT / 2)].concat()
    };
    assert_eq!(found(&world.disk), wanted);
    block_on(world.disk.flush()).unwrap();
    let world = world.anew();
    assert_eq!(found(&world.disk), wanted);
    world.check();
}

#[test]
fn a_write_to_a_new_object_waits_for_that_object_and_its_entry_alone() {
    let store = SteeredStore::new();
    let cached = cache(Arc::clone(&store) as Arc<dyn Blocker>, WriteMode::Back, Writer::Callers);
    let volumes = Volumes::new(cached, options(true)).unwrap();
    let settings = Settings::default().object_bytes(OBJECT);
    block_on(volumes.create("a", OBJECTS * OBJECT, settings)).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    write(&disk, 0, b"old");
    block_on(disk.flush()).unwrap();
    // What is dirty of the first object cannot be stored.
    let is_first = |call: &CallInfo| {
        let object = call.object.as_ref().map(|object| object.name.as_bytes().to_vec());
        object.is_some_and(|name| name.starts_with(b"d/") && name.ends_with(b"/00000000"))
    };
    store.rule(move |call| if call.op.is_change() && is_first(call) { Verdict::Hold } else { Verdict::Pass });
    write(&disk, 0, b"new");
    let begin = store.log().len();
    let own = disk.clone();
    let writer = std::thread::spawn(move || write(&own, OBJECT, b"born"));
    until("the write to the new object is answered", || writer.is_finished());
    writer.join().unwrap();
    let log = store.log();
    let changes = log[begin..].iter().filter(|call| call.op.is_change() && !is_first(call));
    let kinds: Vec<u8> = changes.map(|call| call.object.as_ref().unwrap().name.as_bytes()[0]).collect();
    let place = |kind: u8| kinds.iter().position(|one| *one == kind).expect("it is stored");
    assert!(place(b'd') < place(b'm'), "the object before its entry: {kinds:?}");
    store.open();
    block_on(disk.close()).unwrap();
}
