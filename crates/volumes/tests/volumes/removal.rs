//! Removing objects to which no map refers any more: it does not block stores, and it keeps the
//! store from filling up.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{
    Blocker, BlockerExt, ClaimRequest, DeleteRequest, Durability, Epoch, Error as Store, Name, Namespace,
    ObjectId, Scope, Stamp, WriterId,
};
use futures_util::TryStreamExt;
use test_kit::steered::{Op, SteeredStore, Verdict};
use volumes::{Fencing, OpenOptions, Options, Volume, Volumes};

use super::beside::Listed;
use super::objects_of;

const OBJECT: u64 = 4096;

fn volumes_of(store: &Arc<SteeredStore>, fencing: Fencing) -> Volumes {
    let store = Arc::new(Listed(Arc::clone(store)));
    Volumes::new(store, Options { fencing, ..Options::new("vol") }).unwrap()
}

fn made(volumes: &Volumes) -> Volume {
    block_on(volumes.create("a", 8 * OBJECT, objects_of(OBJECT))).unwrap();
    block_on(volumes.open("a", OpenOptions::default())).unwrap()
}

fn written(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
}

fn namespace() -> Namespace {
    Namespace::copy_from(b"vol.0000001").unwrap()
}

/// Returns the number of the volume's objects in the store.
fn count(store: &SteeredStore) -> usize {
    let all: Vec<_> = block_on(store.memory().entries(namespace(), "").try_collect()).unwrap();
    all.len()
}

#[test]
fn no_flush_waits_for_what_another_operation_removes() {
    for is_snapshot in [false, true] {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store, Fencing::Below);
        let disk = made(&volumes);
        written(&disk, 0, b"one");
        if is_snapshot {
            block_on(volumes.snapshot("a", "s")).unwrap();
        }
        block_on(disk.flush()).unwrap();
        block_on(disk.discard(0, OBJECT)).unwrap();
        store.hold(&[Op::Delete]);
        let mut removal: std::pin::Pin<Box<dyn Future<Output = volumes::Result<()>>>> = match is_snapshot {
            true => Box::pin(volumes.delete_snapshot("a", "s")),
            false => Box::pin(disk.flush()),
        };
        assert!(poll_times(removal.as_mut(), 1, Duration::ZERO).is_none());
        assert!(!store.held().is_empty());
        for object in 1..4 {
            written(&disk, object * OBJECT, b"two");
            let mut flush = Box::pin(disk.flush());
            assert_eq!(poll_times(flush.as_mut(), 2, Duration::ZERO), Some(Ok(())));
        }
        store.open();
        block_on(removal).unwrap();
        assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
    }
}

#[test]
fn what_cannot_be_removed_fails_neither_a_flush_nor_a_close() {
    for error in [Store::Corrupt("for the test".into()), Store::Retryable("for the test".into())] {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store, Fencing::Below);
        let disk = made(&volumes);
        written(&disk, 0, b"one");
        block_on(disk.flush()).unwrap();
        block_on(disk.discard(0, OBJECT)).unwrap();
        store.rule(move |call| match call.op {
            Op::Delete => Verdict::Fail(error.clone()),
            _ => Verdict::Pass,
        });
        for object in 1..4 {
            written(&disk, object * OBJECT, b"two");
            block_on(disk.flush()).unwrap();
        }
        block_on(disk.close()).unwrap();
        store.pass();
        assert_eq!(block_on(volumes.check(true)).unwrap().repaired, 1);
        assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
    }
}

#[test]
fn what_is_written_and_discarded_without_a_flush_does_not_fill_the_store() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, Fencing::Below);
    let disk = made(&volumes);
    for _ in 0..3000 {
        written(&disk, 0, b"one");
        block_on(disk.discard(0, OBJECT)).unwrap();
    }
    assert!(count(&store) < 1100, "{}", count(&store));
    block_on(disk.close()).unwrap();
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn the_objects_of_a_large_discard_are_removed_some_at_a_time() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, Fencing::Below);
    block_on(volumes.create("a", 2000 * OBJECT, objects_of(OBJECT))).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    written(&disk, 0, &[1; 2000 * OBJECT as usize]);
    block_on(disk.flush()).unwrap();
    block_on(disk.discard(0, 2000 * OBJECT)).unwrap();
    store.clear_log();
    block_on(disk.flush()).unwrap();
    assert_eq!(store.count(Op::Delete), 256, "a guest waits for a flush");
    block_on(disk.close()).unwrap();
    // The head and the page of the map.
    assert_eq!(count(&store), 2);
}

#[test]
fn a_deletion_removes_what_a_crash_has_left() {
    for fencing in [Fencing::Below, Fencing::Stamps] {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store, fencing);
        let disk = made(&volumes);
        written(&disk, 0, b"not flushed");
        drop((disk, volumes));
        let volumes = volumes_of(&store, fencing);
        block_on(volumes.delete("a")).unwrap();
        assert_eq!(count(&store), 0);
        for _ in 0..2 {
            assert_eq!(block_on(volumes.check(true)).unwrap().problems, []);
        }
    }
}

#[test]
fn a_repair_removes_what_a_crash_has_left_though_another_owner_has_a_clone() {
    let store = SteeredStore::new();
    let owner = |name: &str| {
        let store = Arc::new(Listed(Arc::clone(&store)));
        Volumes::new(store, Options { owner: name.to_owned(), ..Options::new("vol") }).unwrap()
    };
    let (one, two) = (owner("one"), owner("two"));
    let disk = made(&one);
    written(&disk, 0, b"one");
    block_on(one.snapshot("a", "s")).unwrap();
    block_on(one.clone_volume("a", Some("s"), "b")).unwrap();
    block_on(one.delete_snapshot("a", "s")).unwrap();
    let clone = block_on(two.open("b", OpenOptions::default())).unwrap();
    written(&disk, 0, b"two");
    block_on(disk.flush()).unwrap();
    let kept = count(&store);
    written(&disk, OBJECT, b"not flushed");
    drop((disk, one));
    let one = owner("one");
    let report = block_on(one.check(true)).unwrap();
    assert_eq!((report.repaired, report.skipped), (1, vec!["b".to_owned()]), "{:?}", report.problems);
    assert_eq!(count(&store), kept);
    assert_eq!(block_on(clone.read(0, 3)).unwrap().to_vec(), b"one");
}

#[test]
fn a_repair_removes_what_is_left_without_a_head_in_a_claimed_namespace() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, Fencing::Stamps);
    let disk = made(&volumes);
    written(&disk, 0, b"not flushed");
    drop((disk, volumes));
    // The state in which deletions of an earlier version left a volume.
    let claim = ClaimRequest::new(Scope::Namespace(namespace()), Epoch(100), WriterId(1));
    block_on(store.memory().claim(claim)).unwrap();
    let head = ObjectId::new(namespace(), Name::copy_from(b"head").unwrap());
    let mut change = blocker::ChangeTerms::default();
    change.stamp = Some(Stamp::new(100, 1));
    block_on(store.memory().delete(DeleteRequest::new(head).terms(change))).unwrap();
    let record = ObjectId::new(Namespace::copy_from(b"vol").unwrap(), Name::copy_from(b"v/a").unwrap());
    block_on(store.memory().delete(DeleteRequest::new(record))).unwrap();
    let volumes = volumes_of(&store, Fencing::Stamps);
    assert_eq!(block_on(volumes.check(true)).unwrap().repaired, 1);
    assert_eq!(count(&store), 0);
    assert_eq!(block_on(volumes.check(true)).unwrap().problems, []);
}
