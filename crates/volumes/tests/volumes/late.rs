//! Heads that arrive late or whose outcome stays unknown: a snapshot keeps its content whenever
//! they arrive.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability, Error as Store};
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Error, OpenOptions, Options, Volume, Volumes};

use super::objects_of;

const OBJECT: u64 = 4096;

fn volumes_of(store: &Arc<SteeredStore>) -> Volumes {
    Volumes::new(Arc::clone(store) as Arc<dyn Blocker>, Options::new("vol")).unwrap()
}

fn made(volumes: &Volumes, name: &str) -> Volume {
    block_on(volumes.create(name, 8 * OBJECT, objects_of(OBJECT))).unwrap();
    opened(volumes, name)
}

fn opened(volumes: &Volumes, name: &str) -> Volume {
    block_on(volumes.open(name, OpenOptions::default())).unwrap()
}

fn flushed(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
    block_on(disk.flush()).unwrap();
}

fn bytes(disk: &Volume, offset: u64, length: u64) -> Vec<u8> {
    block_on(disk.read(offset, length)).unwrap().to_vec()
}

fn is_head_change(call: &CallInfo) -> bool {
    let is_head = call.object.as_ref().is_some_and(|object| object.name.as_bytes() == b"head");
    call.op == Op::WriteFull && is_head
}

fn unknown() -> Store {
    Store::OutcomeUnknown("for the test".into())
}

fn retryable() -> Store {
    Store::Retryable("for the test".into())
}

/// Checks the stored content as seen by a new process.
fn assert_stored(store: &Arc<SteeredStore>, content: &[u8], snapshot: Option<&[u8]>) {
    store.pass();
    let volumes = volumes_of(store);
    let disk = opened(&volumes, "a");
    assert_eq!(bytes(&disk, 0, content.len() as u64), content);
    let found = block_on(volumes.snapshots("a")).unwrap();
    assert_eq!(found.len(), usize::from(snapshot.is_some()), "{found:?}");
    if let Some(wanted) = snapshot {
        let found = block_on(volumes.open_snapshot("a", "s")).unwrap();
        assert_eq!(block_on(found.read(0, wanted.len() as u64)).unwrap().to_vec(), wanted);
    }
    block_on(disk.close()).unwrap();
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn a_snapshot_is_not_written_to_though_its_head_comes_after_another_try_was_refused() {
    for comes in [true, false] {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store);
        let disk = made(&volumes, "a");
        flushed(&disk, 0, b"one");
        let mut tries = 0;
        store.rule(move |call| {
            if !is_head_change(call) {
                return Verdict::Pass;
            }
            tries += 1;
            if tries == 1 { Verdict::FailAndHold(unknown()) } else { Verdict::Fail(retryable()) }
        });
        block_on(volumes.snapshot("a", "s")).unwrap_err();
        block_on(disk.write(0, b"two".into(), Durability::Cached)).unwrap();
        store.pass();
        if comes {
            store.perform(store.held()[0].number);
        }
        block_on(disk.flush()).unwrap();
        flushed(&disk, OBJECT, b"three");
        if !comes {
            // Too late to have an effect.
            store.perform(store.held()[0].number);
        }
        block_on(disk.close()).unwrap();
        assert_stored(&store, b"two", comes.then_some(b"one"));
    }
}

#[test]
fn a_head_may_come_while_the_one_that_was_to_keep_it_from_coming_is_in_doubt() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, "a");
    flushed(&disk, 0, b"one");
    store.rule(|call| if is_head_change(call) { Verdict::FailAndHold(unknown()) } else { Verdict::Pass });
    block_on(volumes.snapshot("a", "s")).unwrap_err();
    block_on(disk.flush()).unwrap_err();
    block_on(disk.write(0, b"two".into(), Durability::Cached)).unwrap();
    store.pass();
    store.perform(store.held()[0].number);
    block_on(disk.flush()).unwrap();
    for late in store.held() {
        store.perform(late.number);
    }
    flushed(&disk, OBJECT, b"three");
    block_on(disk.close()).unwrap();
    assert_stored(&store, b"two", Some(b"one"));
}

#[test]
fn a_volume_goes_on_after_a_snapshot_of_which_nothing_was_heard() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, "a");
    flushed(&disk, 0, b"one");
    store.rule(|call| {
        let is_head = call.object.as_ref().is_some_and(|object| object.name.as_bytes() == b"head");
        match call.op {
            Op::WriteFull if is_head => Verdict::DoAndFail(unknown()),
            Op::Read if is_head => Verdict::Fail(retryable()),
            _ => Verdict::Pass,
        }
    });
    block_on(volumes.snapshot("a", "s")).unwrap_err();
    store.pass();
    flushed(&disk, 0, b"two");
    block_on(disk.close()).unwrap();
    assert_stored(&store, b"two", Some(b"one"));
}

#[test]
fn a_volume_goes_on_after_a_larger_size_of_which_nothing_was_heard() {
    // Within the existing page of the map, and with a further page.
    for objects in [16, 5000] {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store);
        let disk = made(&volumes, "a");
        flushed(&disk, 0, b"one");
        store.rule(|call| {
            let is_head = call.object.as_ref().is_some_and(|object| object.name.as_bytes() == b"head");
            match call.op {
                Op::WriteFull if is_head => Verdict::DoAndFail(unknown()),
                Op::Read if is_head => Verdict::Fail(retryable()),
                _ => Verdict::Pass,
            }
        });
        block_on(volumes.resize("a", objects * OBJECT)).unwrap_err();
        store.pass();
        assert_eq!(disk.size_bytes(), 8 * OBJECT);
        flushed(&disk, 0, b"two");
        assert_eq!(disk.size_bytes(), objects * OBJECT);
        flushed(&disk, (objects - 1) * OBJECT, b"far");
        assert_stored(&store, b"two", None);
        assert_eq!(bytes(&opened(&volumes_of(&store), "a"), (objects - 1) * OBJECT, 3), b"far");
    }
}

#[test]
fn a_snapshot_of_several_that_fails_is_undone_in_each() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disks = ["a", "b", "c"].map(|name| made(&volumes, name));
    disks.iter().for_each(|disk| flushed(disk, 0, b"one"));
    let mut is_full = false;
    store.rule(move |call| {
        let Some(object) = &call.object else { return Verdict::Pass };
        let is_in = |number: &[u8]| object.namespace.as_bytes().ends_with(number);
        let is_root = call.op.is_change() && object.name.as_bytes().starts_with(b"r/");
        is_full |= is_root && is_in(b"3");
        match (is_root && is_in(b"3"), is_full && is_head_change(call) && is_in(b"1")) {
            (true, _) => Verdict::Fail(Store::OutOfSpace("full".into())),
            (_, true) => Verdict::Fail(retryable()),
            _ => Verdict::Pass,
        }
    });
    let made = block_on(volumes.snapshot_together(&["a", "b", "c"], "s"));
    assert_eq!(made, Err(Error::NoSpace("full".into())));
    store.pass();
    let count = |name: &str| block_on(volumes.snapshots(name)).unwrap().len();
    assert_eq!(["a", "b", "c"].map(count), [1, 0, 0]);
    // The next operation undoes it in the volume whose head could not be changed.
    disks.iter().for_each(|disk| flushed(disk, 0, b"two"));
    assert_eq!(["a", "b", "c"].map(count), [0, 0, 0]);
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn a_snapshot_that_is_given_up_before_its_head_is_undone() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, "a");
    flushed(&disk, 0, b"one");
    store.rule(|call| {
        let is_root = call.object.as_ref().is_some_and(|object| object.name.as_bytes().starts_with(b"r/"));
        if call.op.is_change() && is_root { Verdict::Hold } else { Verdict::Pass }
    });
    let mut snapshot = Box::pin(volumes.snapshot("a", "s"));
    assert!(poll_times(snapshot.as_mut(), 1, Duration::ZERO).is_none());
    drop(snapshot);
    store.open();
    flushed(&disk, OBJECT, b"two");
    let begin = store.log().len();
    flushed(&disk, 0, b"six");
    let is_copy = |call: &CallInfo| call.op == Op::Copy;
    assert!(!store.log()[begin..].iter().any(is_copy), "the object is the volume's own again");
    block_on(disk.close()).unwrap();
    assert_stored(&store, b"six", None);
}

#[test]
fn a_page_of_a_flush_that_was_given_up_does_not_count_as_met() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, "a");
    block_on(disk.write(0, b"one".into(), Durability::Cached)).unwrap();
    store.rule(|call| if is_head_change(call) { Verdict::Hold } else { Verdict::Pass });
    let mut flush = Box::pin(disk.flush());
    assert!(poll_times(flush.as_mut(), 1, Duration::ZERO).is_none());
    drop(flush);
    store.pass();
    block_on(disk.flush()).unwrap();
    assert_eq!(block_on(volumes.check(false)).unwrap().births_met, 0);
}
