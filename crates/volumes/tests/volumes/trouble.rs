//! A store that fails in the middle, an operation that is dropped, and two operations at once: what was
//! flushed is there, and a snapshot is what it was.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability, Error as Store};
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Error, OpenOptions, Options, Settings, Volume, Volumes};

const OBJECT: u64 = 4096;

fn volumes_of(store: &Arc<SteeredStore>) -> Volumes {
    Volumes::new(Arc::clone(store) as Arc<dyn Blocker>, Options::new("vol")).unwrap()
}

fn made(volumes: &Volumes, objects: u64) -> Volume {
    block_on(volumes.create("a", objects * OBJECT, Settings::default().object_bytes(OBJECT))).unwrap();
    opened(volumes, "a")
}

fn opened(volumes: &Volumes, name: &str) -> Volume {
    block_on(volumes.open(name, OpenOptions::default())).unwrap()
}

fn written(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
}

fn flushed(disk: &Volume, offset: u64, bytes: &[u8]) {
    written(disk, offset, bytes);
    block_on(disk.flush()).unwrap();
}

fn bytes(disk: &Volume, offset: u64, length: u64) -> Vec<u8> {
    block_on(disk.read(offset, length)).unwrap().to_vec()
}

/// Returns whether a call is of an object whose name begins so.
fn is_of(call: &CallInfo, begin: &str) -> bool {
    call.object.as_ref().is_some_and(|object| object.name.as_bytes().starts_with(begin.as_bytes()))
}

fn is_head_change(call: &CallInfo) -> bool {
    call.op == Op::WriteFull && is_of(call, "head")
}

/// What the store has, for a process that begins anew.
fn anew(store: &Arc<SteeredStore>) -> (Volumes, Volume) {
    store.pass();
    let volumes = volumes_of(store);
    let disk = opened(&volumes, "a");
    (volumes, disk)
}

fn unknown() -> Store {
    Store::OutcomeUnknown("for the test".into())
}

#[test]
fn a_snapshot_is_whole_though_what_was_replaced_before_it_cannot_be_removed() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, &[1; 4 * OBJECT as usize]);
    // Something to be removed with the snapshot.
    block_on(disk.discard(0, OBJECT)).unwrap();
    store.rule(|call| match call.op {
        Op::Delete => Verdict::Fail(Store::Retryable("for the test".into())),
        _ => Verdict::Pass,
    });
    block_on(volumes.snapshot("a", "s")).unwrap();
    store.pass();
    flushed(&disk, OBJECT, &[2; OBJECT as usize]);
    block_on(disk.discard(2 * OBJECT, OBJECT)).unwrap();
    block_on(disk.flush()).unwrap();
    drop((disk, volumes));
    let (volumes, disk) = anew(&store);
    assert_eq!(bytes(&disk, OBJECT, 2), [2, 2]);
    let snapshot = block_on(volumes.open_snapshot("a", "s")).unwrap();
    for (object, byte) in [0, 1, 1, 1].into_iter().enumerate() {
        let found = block_on(snapshot.read(object as u64 * OBJECT, OBJECT)).unwrap().to_vec();
        assert_eq!(found, [byte; OBJECT as usize], "object {object}");
    }
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn a_page_of_which_a_write_failed_names_nothing_that_is_removed() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, b"one");
    written(&disk, OBJECT, b"two");
    store.rule(|call| match call.op.is_change() && is_of(call, "m/") {
        true => Verdict::DoAndFail(unknown()),
        false => Verdict::Pass,
    });
    block_on(disk.flush()).unwrap_err();
    store.pass();
    block_on(disk.discard(OBJECT, OBJECT)).unwrap();
    block_on(disk.flush()).unwrap();
    drop((disk, volumes));
    let (volumes, disk) = anew(&store);
    assert_eq!([bytes(&disk, 0, 3), bytes(&disk, OBJECT, 3)].concat(), b"one\0\0\0");
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}
