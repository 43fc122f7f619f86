//! The effects of each operation, over a store that answers immediately.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, BlockerExt, CopyRequest, DeleteRequest, Durability, Memory, Name, ObjectId};
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Answer, Error, ExtentKind, Fencing, OpenOptions, Options, Settings, Volume, Volumes};

use super::objects_of;

const OBJECT: u64 = 4096;

fn volumes() -> Volumes {
    Volumes::new(Arc::new(Memory::default()), Options::new("vol")).unwrap()
}

fn stamped(owner: &str) -> Options {
    Options { owner: owner.to_owned(), fencing: Fencing::Stamps, ..Options::new("vol") }
}

fn small() -> Settings {
    objects_of(OBJECT)
}

fn opened(volumes: &Volumes, name: &str) -> Volume {
    block_on(volumes.open(name, OpenOptions::default())).unwrap()
}

fn written(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
}

fn bytes(disk: &Volume, offset: u64, length: u64) -> Vec<u8> {
    block_on(disk.read(offset, length)).unwrap().to_vec()
}

fn assert_send<T: Send>(future: T) -> T {
    future
}

#[test]
fn what_is_written_is_read_after_a_close_and_an_opening() {
    let volumes = volumes();
    block_on(assert_send(volumes.create("a", 1 << 38, small()))).unwrap();
    assert_eq!(block_on(volumes.create("a", 1 << 38, small())), Err(Error::Exists("a".into())));
    let disk = block_on(assert_send(volumes.open("a", OpenOptions::default()))).unwrap();
    // Across the end of an object and of a page of the map.
    let at = 4032 * OBJECT - 3;
    written(&disk, at, b"across pages");
    assert_eq!(bytes(&disk, at - 2, 16), b"\0\0across pages\0\0");
    assert_eq!(bytes(&disk, (1 << 38) - 5, 5), [0; 5]);
    block_on(assert_send(disk.flush())).unwrap();
    block_on(assert_send(disk.close())).unwrap();
    assert_eq!(block_on(disk.read(0, 1)).unwrap_err(), Error::Closed);
    let disk = opened(&volumes, "a");
    assert_eq!(bytes(&disk, at - 2, 16), b"\0\0across pages\0\0");
    let out = block_on(disk.write((1 << 38) - 1, b"xy".into(), Durability::Cached));
    assert_eq!(out, Err(Error::OutOfRange { offset: (1 << 38) - 1, length: 2, size_bytes: 1 << 38 }));
}

#[test]
fn what_waits_for_nothing_is_answered_at_once() {
    let volumes = volumes();
    block_on(volumes.create("a", 4 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    let write = |offset, durability| disk.start_write(offset, b"there".into(), durability);
    let is_ready = |answer: &Answer<Durability>| matches!(answer, Answer::Ready(Ok(_)));
    let finished = |answer: Answer<Durability>| match answer {
        Answer::Ready(answer) => answer,
        Answer::Pending(future) => block_on(future),
    };
    // A dropped write has not started.
    assert!(!is_ready(&write(10, Durability::Cached)), "the object is born first");
    assert_eq!(bytes(&disk, 0, OBJECT), [0; OBJECT as usize]);
    written(&disk, 0, b"born");
    assert!(is_ready(&write(10, Durability::Cached)));
    let Answer::Ready(Ok(data)) = disk.start_read(0, 20) else { panic!("the store has it at once") };
    assert_eq!(data.to_vec(), b"born\0\0\0\0\0\0there\0\0\0\0\0");
    let stored = write(20, Durability::Stored);
    assert!(!is_ready(&stored), "the allocation is recorded first");
    assert_eq!(finished(stored), Ok(Durability::Stored));
    let stored = write(20, Durability::Stored);
    assert!(!is_ready(&stored), "whether another owner has come is looked at first");
    assert_eq!(finished(stored), Ok(Durability::Stored));
    for (offset, why) in [(OBJECT - 3, "two objects"), (4 * OBJECT - 3, "beyond the end")] {
        assert!(!is_ready(&write(offset, Durability::Cached)), "{why}");
        assert!(matches!(disk.start_read(offset, 5), Answer::Pending(_)), "{why}");
    }
    assert!(matches!(finished(write(4 * OBJECT, Durability::Cached)), Err(Error::OutOfRange { .. })));
    block_on(volumes.snapshot("a", "s")).unwrap();
    let stored = write(4 * OBJECT - 5, Durability::Stored);
    assert!(!is_ready(&stored), "the object is born first");
    finished(stored).unwrap();
    assert!(
        is_ready(&write(30, Durability::Cached)),
        "the snapshot has the object, and it is kept in memory"
    );
    assert!(is_ready(&write(40, Durability::Cached)));
    let stored = write(50, Durability::Stored);
    assert!(!is_ready(&stored), "the object is copied first");
    finished(stored).unwrap();
    assert!(is_ready(&write(40, Durability::Cached)));
    let snapshot = block_on(volumes.open_snapshot("a", "s")).unwrap();
    assert_eq!(block_on(snapshot.read(20, 40)).unwrap().to_vec()[..12], *b"there\0\0\0\0\0\0\0");
    block_on(disk.close()).unwrap();
    assert_eq!(finished(write(40, Durability::Cached)), Err(Error::Closed));
}

#[test]
fn discards_and_zeros_leave_holes_where_they_cover_whole_objects() {
    let volumes = volumes();
    block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    written(&disk, 0, &[7; 4 * OBJECT as usize]);
    block_on(disk.flush()).unwrap();
    block_on(assert_send(disk.discard(OBJECT, OBJECT + 100))).unwrap();
    block_on(assert_send(disk.write_zeroes(3 * OBJECT + 10, 20, true, true))).unwrap();
    block_on(disk.write_zeroes(5 * OBJECT, OBJECT, false, false)).unwrap();
    assert_eq!(bytes(&disk, OBJECT, OBJECT + 100), vec![0; OBJECT as usize + 100]);
    assert_eq!(bytes(&disk, 2 * OBJECT + 100, 2), [7, 7]);
    assert_eq!(bytes(&disk, 3 * OBJECT + 9, 22), [&[7][..], &[0; 20], &[7]].concat());
    let extents = block_on(disk.extents(0, 8 * OBJECT)).unwrap();
    let kinds: Vec<_> = extents.iter().map(|extent| (extent.offset / OBJECT, extent.kind)).collect();
    use ExtentKind::{Data, Hole};
    assert_eq!(kinds, [(0, Data), (1, Hole), (2, Data), (4, Hole), (5, Data), (6, Hole)]);
    block_on(disk.close()).unwrap();
    assert_eq!(bytes(&opened(&volumes, "a"), 2 * OBJECT + 99, 2), [0, 7]);
}

#[test]
fn a_volume_in_use_elsewhere_is_refused_and_can_be_taken_over() {
    let store = Arc::new(Memory::default());
    let first = Volumes::new(Arc::clone(&store) as _, stamped("one")).unwrap();
    let second = Volumes::new(Arc::clone(&store) as _, stamped("two")).unwrap();
    block_on(first.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&first, "a");
    written(&disk, 0, b"first");
    block_on(disk.flush()).unwrap();
    let refused = block_on(second.open("a", OpenOptions::default())).unwrap_err();
    assert_eq!(refused, Error::InUse { owner: "one".into() });
    let taken = block_on(second.open("a", OpenOptions { take_over: true })).unwrap();
    assert_eq!(bytes(&taken, 0, 5), b"first");
    for _ in 0..2 {
        let late = block_on(disk.write(0, b"late!".into(), Durability::Cached));
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
    }
    assert!(matches!(block_on(disk.flush()), Err(Error::Fenced { .. })));
    assert_eq!(bytes(&taken, 0, 5), b"first");
    // As the leader of an election does.
    let third = Volumes::new(store, Options { takes_over: true, ..stamped("three") }).unwrap();
    assert_eq!(bytes(&opened(&third, "a"), 0, 5), b"first");
}

#[test]
fn an_owner_whose_head_was_changed_by_another_is_fenced_off_without_stamps_too() {
    let store = Arc::new(Memory::default());
    let first =
        Volumes::new(Arc::clone(&store) as _, Options { owner: "one".to_owned(), ..Options::new("vol") })
            .unwrap();
    let second = Volumes::new(store, Options { owner: "two".to_owned(), ..Options::new("vol") }).unwrap();
    block_on(first.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&first, "a");
    let taken = block_on(second.open("a", OpenOptions { take_over: true })).unwrap();
    // A new page of the map is created, which changes the head.
    written(&disk, 0, b"late");
    assert!(matches!(block_on(disk.flush()), Err(Error::Fenced { .. })));
    assert!(matches!(block_on(first.snapshot("a", "late")), Err(Error::InUse { .. })));
    written(&taken, OBJECT, b"second");
    block_on(taken.flush()).unwrap();
    assert_eq!(bytes(&taken, 0, 4), [0; 4]);
}

#[test]
fn snapshots_clones_and_rollbacks_keep_what_they_have() {
    let volumes = volumes();
    block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    written(&disk, 0, b"one");
    block_on(assert_send(volumes.snapshot("a", "s1"))).unwrap();
    assert_eq!(block_on(volumes.snapshot("a", "s1")), Err(Error::Exists("s1".into())));
    written(&disk, 0, b"two");
    block_on(volumes.snapshot("a", "s2")).unwrap();
    block_on(assert_send(volumes.clone_volume("a", Some("s1"), "b"))).unwrap();
    block_on(assert_send(volumes.rollback("a", "s1"))).unwrap();
    assert_eq!(bytes(&disk, 0, 3), b"one");
    written(&disk, 0, b"six");
    // Later snapshots stay after a rollback.
    block_on(volumes.rollback("a", "s2")).unwrap();
    assert_eq!(bytes(&disk, 0, 3), b"two");
    let names = |volume| {
        let all = block_on(volumes.snapshots(volume)).unwrap();
        all.into_iter().map(|snapshot| snapshot.name).collect::<Vec<_>>()
    };
    assert_eq!(names("a"), ["s1", "s2"]);
    assert_eq!(block_on(volumes.delete_snapshot("a", "s3")), Err(Error::NoSuchSnapshot("s3".into())));
    block_on(assert_send(volumes.delete_snapshot("a", "s1"))).unwrap();
    block_on(disk.close()).unwrap();
    block_on(assert_send(volumes.delete("a"))).unwrap();
    assert_eq!(
        block_on(volumes.open("a", OpenOptions::default())).unwrap_err(),
        Error::NoSuchVolume("a".into())
    );
    let clone = opened(&volumes, "b");
    assert_eq!(bytes(&clone, 0, 3), b"one");
    block_on(assert_send(volumes.flatten("b"))).unwrap();
    assert_eq!(bytes(&clone, 0, 3), b"one");
    let report = block_on(assert_send(volumes.check(false))).unwrap();
    assert_eq!((report.volumes, report.problems.len()), (1, 0), "{report:?}");
}

#[test]
fn diff_and_usage_are_read_from_maps() {
    let volumes = volumes();
    block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    written(&disk, 0, &[1; 3 * OBJECT as usize]);
    block_on(volumes.snapshot("a", "s1")).unwrap();
    written(&disk, OBJECT, b"x");
    block_on(disk.discard(2 * OBJECT, OBJECT)).unwrap();
    block_on(volumes.snapshot("a", "s2")).unwrap();
    let diff = |from, to| {
        let changes = block_on(volumes.diff("a", from, to)).unwrap();
        changes
            .iter()
            .map(|change| (change.offset / OBJECT, change.length / OBJECT, change.is_data))
            .collect::<Vec<_>>()
    };
    assert_eq!(diff(None, Some("s1")), [(0, 3, true)]);
    assert_eq!(diff(Some("s1"), Some("s2")), [(1, 1, true), (2, 1, false)]);
    assert_eq!(diff(Some("s2"), None), []);
    written(&disk, 5 * OBJECT, b"y");
    let usage = block_on(volumes.usage("a")).unwrap();
    assert_eq!((usage.referenced_bytes, usage.exclusive_bytes), (3 * OBJECT, OBJECT));
    let since = block_on(disk.changed_extents(Some("s1"))).unwrap();
    assert_eq!(since.len(), 3);
}

#[test]
fn mistakes_are_named() {
    let volumes = volumes();
    for (name, size, settings) in [
        ("", OBJECT, small()),
        ("a/b", OBJECT, small()),
        ("a", 0, small()),
        ("a", u64::MAX, small()),
        ("a", OBJECT, objects_of(5000)),
        ("a", OBJECT, objects_of(8 << 20)),
    ] {
        assert!(
            matches!(block_on(volumes.create(name, size, settings)), Err(Error::Invalid(_))),
            "{name:?} {size}"
        );
    }
    block_on(volumes.create("a", OBJECT, Settings { is_read_only: true, ..small() })).unwrap();
    let disk = opened(&volumes, "a");
    assert_eq!(block_on(disk.write(0, b"x".into(), Durability::Cached)), Err(Error::ReadOnly));
    assert_eq!(block_on(disk.discard(0, 1)), Err(Error::ReadOnly));
    assert_eq!(block_on(volumes.delete("a")), Err(Error::InUse { owner: "local".into() }));
    assert!(matches!(Volumes::new(Arc::new(Memory::default()), Options::new("")), Err(Error::Invalid(_))));
}

#[test]
fn a_clone_of_a_snapshot_that_is_deleted_meanwhile_is_not_made() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as _, Options::new("vol")).unwrap();
    block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    written(&disk, 0, b"one");
    block_on(volumes.snapshot("a", "s")).unwrap();
    written(&disk, 0, b"two");
    let is_mark = |call: &CallInfo| {
        call.op == Op::WriteFull
            && call.object.as_ref().is_some_and(|object| object.name.as_bytes().starts_with(b"c/"))
    };
    store.rule(move |call| if is_mark(call) { Verdict::Hold } else { Verdict::Pass });
    let mut clone = Box::pin(volumes.clone_volume("a", Some("s"), "b"));
    assert!(poll_times(clone.as_mut(), 1, Duration::ZERO).is_none());
    assert_eq!(store.held().len(), 1);
    block_on(volumes.delete_snapshot("a", "s")).unwrap();
    store.open();
    assert_eq!(block_on(clone), Err(Error::NoSuchSnapshot("s".into())));
    block_on(disk.flush()).unwrap();
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn writes_go_on_while_a_snapshot_is_stored() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as _, Options::new("vol")).unwrap();
    block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    written(&disk, 0, b"one");
    store.rule(|call| if call.op == Op::Flush { Verdict::Hold } else { Verdict::Pass });
    let mut snapshot = Box::pin(volumes.snapshot("a", "s"));
    assert!(poll_times(snapshot.as_mut(), 1, Duration::ZERO).is_none());
    written(&disk, 0, b"two");
    written(&disk, OBJECT, b"new");
    store.open();
    block_on(snapshot).unwrap();
    block_on(volumes.clone_volume("a", Some("s"), "b")).unwrap();
    let clone = opened(&volumes, "b");
    assert_eq!((bytes(&clone, 0, 3), bytes(&clone, OBJECT, 3)), (b"one".to_vec(), vec![0; 3]));
    assert_eq!((bytes(&disk, 0, 3), bytes(&disk, OBJECT, 3)), (b"two".to_vec(), b"new".to_vec()));
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn a_snapshot_waits_for_a_write_that_the_store_has_not_answered() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as _, Options::new("vol")).unwrap();
    block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    written(&disk, 0, b"one");
    store.hold(&[Op::Write]);
    let mut write = Box::pin(disk.write(0, b"two".into(), Durability::Cached));
    assert!(poll_times(write.as_mut(), 1, Duration::ZERO).is_none());
    let mut snapshot = Box::pin(volumes.snapshot("a", "s"));
    assert!(poll_times(snapshot.as_mut(), 1, Duration::ZERO).is_none());
    store.open();
    let (write, snapshot) = block_on(futures_util::future::join(write, snapshot));
    assert!(write.is_ok() && snapshot.is_ok(), "{write:?} {snapshot:?}");
    let snapshot = block_on(volumes.open_snapshot("a", "s")).unwrap();
    assert_eq!(block_on(snapshot.read(0, 3)).unwrap().to_vec(), b"two");
}

#[test]
fn a_snapshot_that_cannot_be_stored_leaves_nothing_behind() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as _, Options::new("vol")).unwrap();
    for name in ["a", "b"] {
        block_on(volumes.create(name, 8 * OBJECT, small())).unwrap();
    }
    let (a, b) = (opened(&volumes, "a"), opened(&volumes, "b"));
    written(&a, 0, b"one");
    written(&b, 0, b"one");
    block_on(a.flush()).unwrap();
    block_on(b.flush()).unwrap();
    let is_root = |call: &CallInfo| {
        let is_second = |object: &blocker::ObjectId| {
            object.namespace.as_bytes().ends_with(b"2") && object.name.as_bytes().starts_with(b"r/")
        };
        call.op == Op::WriteFull && call.object.as_ref().is_some_and(is_second)
    };
    store.rule(move |call| match is_root(call) {
        true => Verdict::Fail(blocker::Error::OutOfSpace("full".into())),
        false => Verdict::Pass,
    });
    let made = block_on(volumes.snapshot_together(&["a", "b"], "s"));
    assert_eq!(made, Err(Error::NoSpace("full".into())));
    store.open();
    assert_eq!(block_on(volumes.snapshots("a")).unwrap(), []);
    written(&b, 0, b"two");
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
    block_on(volumes.snapshot_together(&["a", "b"], "s")).unwrap();
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn a_common_snapshot_that_cannot_be_undone_at_once_is_undone_later() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as _, Options::new("vol")).unwrap();
    for name in ["a", "b"] {
        block_on(volumes.create(name, 8 * OBJECT, small())).unwrap();
    }
    let disks = ["a", "b"].map(|name| opened(&volumes, name));
    for disk in &disks {
        written(disk, 0, b"one");
        block_on(disk.flush()).unwrap();
    }
    // The store is full as soon as the second volume's snapshot is stored.
    let mut is_full = false;
    store.rule(move |call| {
        is_full |= call.object.as_ref().is_some_and(|object| {
            object.namespace.as_bytes().ends_with(b"2") && object.name.as_bytes().starts_with(b"r/")
        });
        match is_full && call.op.is_change() {
            true => Verdict::Fail(blocker::Error::OutOfSpace("full".into())),
            false => Verdict::Pass,
        }
    });
    let made = block_on(volumes.snapshot_together(&["a", "b"], "s"));
    assert_eq!(made, Err(Error::NoSpace("full".into())));
    store.open();
    block_on(volumes.snapshot_together(&["a", "b"], "s")).unwrap();
    for name in ["a", "b"] {
        assert_eq!(block_on(volumes.snapshots(name)).unwrap().len(), 1);
    }
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

/// Drops flushes at the moment in which they store a page or the head of the volume. The store may
/// have executed such a flush by then, or may execute it later.
#[test]
fn a_flush_that_is_given_up_leaves_the_volume_usable() {
    for (op, is_done) in
        [(Op::WriteFull, true), (Op::WriteFull, false), (Op::WriteRuns, true), (Op::WriteRuns, false)]
    {
        for nth in 0..2 {
            let store = SteeredStore::new();
            let volumes = Volumes::new(Arc::clone(&store) as _, Options::new("vol")).unwrap();
            block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
            let disk = opened(&volumes, "a");
            if op == Op::WriteRuns {
                written(&disk, 3 * OBJECT, b"before");
                block_on(disk.flush()).unwrap();
            }
            written(&disk, 0, b"one");
            let begin = store.log().len();
            store.rule(move |call| match call.op == op && (op == Op::WriteRuns || is_nth(call, nth)) {
                true => Verdict::Hold,
                false => Verdict::Pass,
            });
            let mut flush = Box::pin(disk.flush());
            assert!(poll_times(flush.as_mut(), 1, Duration::ZERO).is_none());
            let held = store.held();
            assert_eq!(held.len(), 1, "{:?}", &store.log()[begin..]);
            if is_done {
                store.perform(held[0].number);
            }
            drop(flush);
            store.pass();
            written(&disk, OBJECT, b"two");
            block_on(disk.flush()).unwrap();
            if !is_done {
                // The held request arrives late, and changes nothing.
                store.perform(held[0].number);
            }
            written(&disk, 2 * OBJECT, b"three");
            block_on(disk.close()).unwrap();
            block_on(volumes.check(true)).unwrap();
            let report = block_on(volumes.check(false)).unwrap();
            assert_eq!(report.problems, [], "{op:?} {nth} {is_done}");
            let disk = opened(&volumes, "a");
            let found = [bytes(&disk, 0, 3), bytes(&disk, OBJECT, 3), bytes(&disk, 2 * OBJECT, 5)].concat();
            assert_eq!(found, b"onetwothree");
        }
    }
}

/// Returns whether a call is the first (`nth` is 0), which stores the page, or the second, which
/// stores the head.
fn is_nth(call: &CallInfo, nth: usize) -> bool {
    let name = call.object.as_ref().map(|object| object.name.as_bytes().to_vec()).unwrap_or_default();
    if nth == 0 { name.starts_with(b"m/") } else { name == b"head" }
}

#[test]
fn what_was_cut_off_is_zeros_when_the_volume_grows_again() {
    let volumes = volumes();
    block_on(volumes.create("a", 4 * OBJECT, small())).unwrap();
    let disk = opened(&volumes, "a");
    written(&disk, 0, &[7; 4 * OBJECT as usize]);
    // The object at the new end belongs to the volume in one case, and to a snapshot in the other.
    for snapshot in [None, Some("s")] {
        if let Some(snapshot) = snapshot {
            block_on(volumes.snapshot("a", snapshot)).unwrap();
        }
        let end = if snapshot.is_none() { 2 * OBJECT + 100 } else { OBJECT + 50 };
        block_on(volumes.resize("a", end)).unwrap();
        assert!(matches!(block_on(disk.read(end, 1)), Err(Error::OutOfRange { .. })));
        block_on(volumes.resize("a", 4 * OBJECT)).unwrap();
        assert_eq!(bytes(&disk, end - 2, 4), [7, 7, 0, 0]);
        assert_eq!(bytes(&disk, end, 4 * OBJECT - end), vec![0; (4 * OBJECT - end) as usize]);
    }
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
    block_on(volumes.rollback("a", "s")).unwrap();
    assert_eq!(bytes(&disk, 2 * OBJECT + 98, 4), [7, 7, 0, 0]);
}

/// Control characters that reverse or hide the surrounding text are not allowed in new names; an
/// existing name that contains them can be found and removed.
#[test]
fn a_new_name_looks_like_what_it_is() {
    let store = Arc::new(Memory::default());
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    for name in ["größe", "e\u{301}t\u{e9}", "ディスク", "it's \"C:\\\"", "a b", "🖴"] {
        block_on(volumes.create(name, OBJECT, small())).unwrap_or_else(|error| panic!("{error}"));
        block_on(volumes.snapshot(name, name)).unwrap();
    }
    block_on(volumes.create("a", OBJECT, small())).unwrap();
    block_on(volumes.snapshot("a", "s")).unwrap();
    let refused = |what: Result<(), Error>, name: &str| match what {
        Err(Error::Invalid(why)) => assert!(!why.contains(name) && why.is_ascii(), "{why}"),
        other => panic!("{name:?}: {other:?}"),
    };
    let wrong = [
        "a\u{202e}b",
        "\u{200b}",
        "a\u{2028}",
        "a\u{2066}b",
        "\u{feff}a",
        "a\u{ad}b",
        "a\u{a0}b",
        "a\u{e0001}",
        "a\u{7f}",
        "a\u{1b}[2J",
    ];
    for name in wrong {
        refused(block_on(volumes.create(name, OBJECT, small())), name);
        refused(block_on(volumes.snapshot("a", name)), name);
        refused(block_on(volumes.clone_volume("a", Some("s"), name)), name);
    }
    let id = |name: &str| {
        ObjectId::new("vol".parse().unwrap(), Name::copy_from(format!("v/{name}").as_bytes()).unwrap())
    };
    block_on(store.copy(CopyRequest::new(id("a"), id("a\u{202e}b")))).unwrap();
    block_on(store.delete(DeleteRequest::new(id("a")))).unwrap();
    assert!(block_on(volumes.list()).unwrap().volumes.iter().any(|volume| volume.name == "a\u{202e}b"));
    block_on(volumes.delete("a\u{202e}b")).unwrap();
}

#[test]
fn volumes_have_no_reserved_namespaces() {
    let made = |prefix: &str| Volumes::new(Arc::new(Memory::default()), Options::new(prefix)).map(drop);
    assert!(matches!(made(".vol"), Err(Error::Invalid(why)) if why.contains("begins with a dot")));
    assert_eq!(made("v.ol"), Ok(()));
}
