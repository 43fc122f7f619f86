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
fn births_are_reserved_though_the_write_that_reserved_them_was_dropped() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    // Each round uses up a birth.
    let round = || {
        written(&disk, 0, b"one");
        block_on(disk.discard(0, OBJECT)).unwrap();
    };
    store.rule(|call| if is_head_change(call) { Verdict::Hold } else { Verdict::Pass });
    loop {
        let mut write = Box::pin(disk.write(0, b"one".into(), Durability::Cached));
        if poll_times(write.as_mut(), 1, Duration::ZERO).is_none() {
            break store.perform(store.held()[0].number);
        }
        block_on(disk.discard(0, OBJECT)).unwrap();
    }
    store.pass();
    // The next head is another operation's.
    block_on(disk.flush()).unwrap();
    flushed(&disk, OBJECT, b"two");
    (0..1000).for_each(|_| round());
    block_on(volumes.snapshot("a", "s")).unwrap();
    flushed(&disk, 0, b"three");
    drop(volumes);
    let (volumes, disk) = anew(&store);
    assert_eq!([bytes(&disk, 0, 5), bytes(&disk, OBJECT, 3)].concat(), b"threetwo");
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

/// Drops an operation that has sent a head, which the store has; returns what the volume answers then.
fn dropped(store: &Arc<SteeredStore>, operation: impl Future<Output = volumes::Result<()>>) {
    store.rule(|call| if is_head_change(call) { Verdict::Hold } else { Verdict::Pass });
    let mut operation = Box::pin(operation);
    assert!(poll_times(operation.as_mut(), 1, Duration::ZERO).is_none());
    store.perform(store.held()[0].number);
    drop(operation);
    store.pass();
}

#[test]
fn nothing_is_promised_that_a_dropped_rollback_has_undone() {
    for durability in [Durability::Cached, Durability::Stored] {
        for snapshot in ["first", "second"] {
            let store = SteeredStore::new();
            let volumes = volumes_of(&store);
            let disk = made(&volumes, 8);
            for content in ["first", "second"] {
                flushed(&disk, 0, content.as_bytes());
                block_on(volumes.snapshot("a", content)).unwrap();
            }
            flushed(&disk, 0, b"later");
            dropped(&store, volumes.rollback("a", snapshot));
            let kept = block_on(async {
                let is = disk.write(0, b"newest".into(), durability).await?;
                if is < Durability::Stored { disk.flush().await } else { Ok(()) }
            });
            drop((disk, volumes));
            let (volumes, disk) = anew(&store);
            let wanted = match kept {
                Ok(()) => "newest",
                Err(Error::Interrupted) => snapshot,
                Err(error) => panic!("{error}"),
            };
            assert_eq!(bytes(&disk, 0, wanted.len() as u64), wanted.as_bytes(), "{snapshot} {kept:?}");
            block_on(volumes.check(true)).unwrap();
            assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
        }
    }
}

#[test]
fn a_snapshot_that_was_dropped_is_not_written_to() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, b"one");
    dropped(&store, volumes.snapshot("a", "s"));
    written(&disk, 0, b"two");
    assert_eq!(block_on(disk.flush()), Err(Error::Interrupted));
    drop((disk, volumes));
    let (volumes, disk) = anew(&store);
    assert_eq!(bytes(&disk, 0, 3), b"one");
    let snapshot = block_on(volumes.open_snapshot("a", "s")).unwrap();
    assert_eq!(block_on(snapshot.read(0, 3)).unwrap().to_vec(), b"one");
}

#[test]
fn a_volume_whose_close_failed_has_its_owner() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, b"one");
    // The head is stored, and nothing is heard of it.
    store.rule(|call| match (is_head_change(call), call.op) {
        (true, _) => Verdict::DoAndFail(unknown()),
        (_, Op::Read) => Verdict::Fail(Store::Retryable("for the test".into())),
        _ => Verdict::Pass,
    });
    block_on(disk.close()).unwrap_err();
    store.pass();
    flushed(&disk, 0, b"two");
    let other = Options::new("vol").owner("other");
    let other = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, other).unwrap();
    let refused = block_on(other.open("a", OpenOptions::default())).unwrap_err();
    assert_eq!(refused, Error::InUse { owner: "local".into() });
    block_on(disk.close()).unwrap();
    let disk = block_on(other.open("a", OpenOptions::default())).unwrap();
    assert_eq!(bytes(&disk, 0, 3), b"two");
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

#[test]
fn a_volume_that_is_closed_before_its_resize_begins_is_not_cut() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, &[1; OBJECT as usize]);
    store.rule(|call| if is_head_change(call) { Verdict::Hold } else { Verdict::Pass });
    let mut close = Box::pin(disk.close());
    assert!(poll_times(close.as_mut(), 1, Duration::ZERO).is_none());
    let mut resize = Box::pin(volumes.resize("a", 100));
    assert!(poll_times(resize.as_mut(), 1, Duration::ZERO).is_none());
    store.open();
    block_on(close).unwrap();
    assert_eq!(block_on(resize), Err(Error::Closed));
    assert_eq!(bytes(&opened(&volumes, "a"), 0, OBJECT), [1; OBJECT as usize]);
}

#[test]
fn a_page_that_was_born_in_vain_does_not_count_as_met() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    written(&disk, 0, b"one");
    store.rule(|call| match is_head_change(call) {
        true => Verdict::Fail(Store::Retryable("for the test".into())),
        false => Verdict::Pass,
    });
    block_on(disk.flush()).unwrap_err();
    store.pass();
    block_on(disk.flush()).unwrap();
    let report = block_on(volumes.check(false)).unwrap();
    assert_eq!((report.births_met, report.problems), (0, Vec::new()));
}

#[test]
fn what_is_recorded_at_once_outlives_the_process() {
    for records_at_once in [false, true] {
        let store = SteeredStore::new();
        let options = || Options::new("vol").records_at_once(records_at_once);
        let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options()).unwrap();
        let disk = made(&volumes, 8);
        written(&disk, 0, b"one");
        written(&disk, OBJECT, &[1; OBJECT as usize]);
        let begin = store.log().len();
        written(&disk, 1, b"w");
        assert_eq!(store.log().len(), begin + 1, "an object that is recorded takes a write");
        block_on(volumes.snapshot("a", "s")).unwrap();
        block_on(disk.write_zeroes(OBJECT, OBJECT, true, false)).unwrap();
        written(&disk, 0, b"two");
        // The store keeps what it has taken, and the process ends without a word.
        drop((disk, volumes));
        let (_volumes, disk) = anew(&store);
        let found = [bytes(&disk, 0, 3), bytes(&disk, OBJECT, 3)].concat();
        let wanted = if records_at_once { b"two\0\0\0" } else { b"owe\x01\x01\x01" };
        assert_eq!(found, wanted, "{records_at_once}");
    }
}
