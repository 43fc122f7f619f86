//! Deleting volumes that cannot be read, and checks that run meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability, Error as Store, ListRequest};
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Error, Fencing, OpenOptions, Options, ProblemKind, Volumes};

use super::beside::Listed;
use super::objects_of;

const OBJECT: u64 = 4096;
/// The namespace of "a", the damaged volume.
const DAMAGED: &[u8] = b"vol.0000001";
/// The records of a volume: its head, a page of its map, the root of a snapshot.
const RECORDS: [&str; 3] = ["head", "m/", "r/"];

fn volumes_of(store: &Arc<SteeredStore>, fencing: Fencing) -> Volumes {
    owned(store, fencing, "one")
}

fn owned(store: &Arc<SteeredStore>, fencing: Fencing, owner: &str) -> Volumes {
    let store = Arc::new(Listed(Arc::clone(store)));
    Volumes::new(store, Options { owner: owner.to_owned(), fencing, ..Options::new("vol") }).unwrap()
}

/// Creates a volume with data, and a snapshot before its last write.
fn make(volumes: &Volumes, name: &str) {
    block_on(async {
        volumes.create(name, 8 * OBJECT, objects_of(OBJECT)).await.unwrap();
        for (bytes, snapshot) in [(b"old", Some("s")), (b"new", None)] {
            let disk = volumes.open(name, OpenOptions::default()).await.unwrap();
            disk.write(0, bytes.into(), Durability::Cached).await.unwrap();
            disk.close().await.unwrap();
            if let Some(snapshot) = snapshot {
                volumes.snapshot(name, snapshot).await.unwrap();
            }
        }
    });
}

fn found(volumes: &Volumes, name: &str) -> Vec<u8> {
    block_on(async {
        let disk = volumes.open(name, OpenOptions::default()).await.unwrap();
        let found = disk.read(0, 3).await.unwrap().to_vec();
        disk.close().await.unwrap();
        found
    })
}

fn names(volumes: &Volumes) -> Vec<String> {
    block_on(volumes.list()).unwrap().volumes.into_iter().map(|info| info.name).collect()
}

/// Returns whether a call concerns an object of "a" whose name starts with `begin`.
fn is_of_damaged(call: &CallInfo, begin: &str) -> bool {
    call.object.as_ref().is_some_and(|object| {
        object.namespace.as_bytes() == DAMAGED && object.name.as_bytes().starts_with(begin.as_bytes())
    })
}

/// Damages the answers to reads of records of "a".
fn damage(call: &CallInfo, begin: &str) -> Verdict {
    match call.op {
        Op::Read if is_of_damaged(call, begin) => Verdict::Fail(Store::Corrupt("for the test".into())),
        _ => Verdict::Pass,
    }
}

/// Checks that nothing of "a" remains, and that "b" is complete.
fn is_gone(store: &Arc<SteeredStore>, volumes: &Volumes) {
    store.pass();
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
    assert_eq!(names(volumes), ["b"]);
    assert_eq!(found(volumes, "b"), b"new");
    let namespaces = block_on(store.memory().control().namespaces()).unwrap();
    for namespace in namespaces.into_iter().filter(|namespace| namespace.as_bytes() == DAMAGED) {
        let rest = block_on(store.memory().list(ListRequest::new(namespace))).unwrap().entries;
        assert!(rest.is_empty(), "{rest:?}");
    }
}

#[test]
fn a_damaged_volume_is_deleted() {
    for fencing in [Fencing::Below, Fencing::Stamps] {
        for begin in RECORDS {
            let store = SteeredStore::new();
            let volumes = volumes_of(&store, fencing);
            make(&volumes, "a");
            make(&volumes, "b");
            // A process that has not read anything yet.
            let volumes = volumes_of(&store, fencing);
            store.rule(move |call| damage(call, begin));
            let refused = block_on(volumes.delete("a"));
            assert!(matches!(refused, Err(Error::Damaged(_))), "{begin}: {refused:?}");
            block_on(volumes.delete_damaged("a")).unwrap();
            assert_eq!(block_on(volumes.check(false)).unwrap().problems, [], "{begin}");
            is_gone(&store, &volumes);
            assert_eq!(block_on(volumes.delete_damaged("a")), Err(Error::NoSuchVolume("a".into())));
        }
    }
}

/// Damages the snapshot roots of "a" once its name is gone.
fn damage_late(store: &SteeredStore) {
    let mut is_damaged = false;
    store.rule(move |call| {
        is_damaged |=
            call.op == Op::Delete && call.object.as_ref().is_some_and(|id| id.name.as_bytes() == b"v/a");
        if is_damaged { damage(call, "r/") } else { Verdict::Pass }
    });
}

#[test]
fn a_deletion_that_meets_damage_late_is_ended_by_a_repair() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, Fencing::Below);
    make(&volumes, "a");
    make(&volumes, "b");
    block_on(volumes.snapshot("a", "t")).unwrap();
    let volumes = volumes_of(&store, Fencing::Below);
    damage_late(&store);
    let refused = block_on(volumes.delete("a"));
    assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
    assert_eq!(names(&volumes), ["b"]);
    block_on(volumes.check(true)).unwrap();
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
    is_gone(&store, &volumes);
}

#[test]
fn a_repair_keeps_what_clones_may_need_of_a_damaged_volume_without_a_name() {
    for begin in RECORDS {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store, Fencing::Below);
        make(&volumes, "a");
        make(&volumes, "b");
        block_on(volumes.snapshot("a", "t")).unwrap();
        block_on(volumes.clone_volume("a", Some("s"), "clone")).unwrap();
        let volumes = volumes_of(&store, Fencing::Below);
        damage_late(&store);
        let refused = block_on(volumes.delete("a"));
        assert!(matches!(refused, Err(Error::Damaged(_))), "{refused:?}");
        store.rule(move |call| damage(call, begin));
        for _ in 0..2 {
            let report = block_on(volumes.check(true)).unwrap();
            assert_eq!(report.repaired, 0, "{begin}: {report:?}");
        }
        store.pass();
        assert_eq!(found(&volumes, "clone"), b"old");
        block_on(volumes.delete("clone")).unwrap();
        is_gone(&store, &volumes);
    }
}

/// A volume that this owner read as damaged may be readable to another, which owns it by then.
#[test]
fn a_volume_that_another_owner_takes_meanwhile_stays() {
    let store = SteeredStore::new();
    let [one, two] = ["one", "two"].map(|name| owned(&store, Fencing::Below, name));
    make(&one, "a");
    let one = owned(&store, Fencing::Below, "one");
    let mut is_read = false;
    store.rule(move |call| {
        let is_first = !is_read && call.op == Op::Read && is_of_damaged(call, "m/");
        is_read |= is_first;
        let is_name =
            call.op == Op::Delete && call.object.as_ref().is_some_and(|id| id.name.as_bytes() == b"v/a");
        match (is_first, is_name) {
            (true, _) => damage(call, "m/"),
            (_, true) => Verdict::Hold,
            _ => Verdict::Pass,
        }
    });
    let mut deleted = Box::pin(one.delete_damaged("a"));
    assert!(poll_times(deleted.as_mut(), 1, Duration::ZERO).is_none());
    let disk = block_on(two.open("a", OpenOptions::default())).unwrap();
    store.open();
    assert_eq!(block_on(deleted), Err(Error::InUse { owner: "two".into() }));
    assert_eq!(block_on(disk.read(0, 3)).unwrap().to_vec(), b"new");
    block_on(disk.flush()).unwrap();
}

#[test]
fn a_volume_whose_name_is_damaged_loses_it_and_a_repair_removes_the_rest() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, Fencing::Below);
    make(&volumes, "a");
    make(&volumes, "b");
    let name = blocker::ObjectId::new(
        blocker::Namespace::copy_from(b"vol").unwrap(),
        blocker::Name::copy_from(b"v/a").unwrap(),
    );
    test_kit::fill(store.memory(), &name, b"nonsense".to_vec());
    block_on(volumes.delete_damaged("a")).unwrap();
    assert_ne!(block_on(volumes.check(true)).unwrap().repaired, 0);
    is_gone(&store, &volumes);
}

#[test]
fn a_volume_that_is_not_damaged_is_deleted_as_any_and_its_clones_stay() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, Fencing::Below);
    make(&volumes, "a");
    block_on(volumes.clone_volume("a", Some("s"), "b")).unwrap();
    block_on(volumes.delete_damaged("a")).unwrap();
    assert_eq!(found(&volumes, "b"), b"old");
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn a_damaged_volume_with_clones_stays_until_they_are_gone() {
    for begin in RECORDS {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store, Fencing::Below);
        make(&volumes, "a");
        make(&volumes, "b");
        block_on(volumes.clone_volume("a", Some("s"), "clone")).unwrap();
        let volumes = volumes_of(&store, Fencing::Below);
        store.rule(move |call| damage(call, begin));
        let refused = block_on(volumes.delete_damaged("a"));
        assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("\"clone\"")), "{refused:?}");
        let repaired = block_on(volumes.check(true)).unwrap();
        assert!(repaired.problems.iter().all(|problem| problem.kind == ProblemKind::Damaged), "{repaired:?}");
        store.pass();
        assert_eq!(found(&volumes, "clone"), b"old", "{begin}");
        store.rule(move |call| damage(call, begin));
        // The volume's parent is damaged, and a repair completes the interrupted deletion.
        let _ = block_on(volumes.delete_damaged("clone"));
        let _ = block_on(volumes.delete_damaged("a"));
        block_on(volumes.check(true)).unwrap();
        block_on(volumes.check(true)).unwrap();
        is_gone(&store, &volumes);
    }
}

#[test]
fn a_damaged_volume_that_another_owner_has_stays() {
    let store = SteeredStore::new();
    let [one, two] = ["one", "two"].map(|name| owned(&store, Fencing::Below, name));
    make(&one, "a");
    let disk = block_on(two.open("a", OpenOptions::default())).unwrap();
    store.rule(|call| damage(call, "m/"));
    assert_eq!(block_on(one.delete_damaged("a")), Err(Error::InUse { owner: "two".into() }));
    let mine = block_on(two.delete_damaged("a"));
    assert_eq!(mine, Err(Error::InUse { owner: "two".into() }));
    store.pass();
    assert_eq!(block_on(disk.read(0, 3)).unwrap().to_vec(), b"new");
    block_on(disk.close()).unwrap();
}

/// A deletion that fails at any of its changes, and at all later ones, is completed by another
/// deletion or by a repair.
#[test]
fn a_deletion_of_a_damaged_volume_that_is_cut_short_is_ended() {
    for fencing in [Fencing::Below, Fencing::Stamps] {
        for begin in RECORDS {
            for last in 0.. {
                let store = SteeredStore::new();
                let volumes = volumes_of(&store, fencing);
                make(&volumes, "a");
                make(&volumes, "b");
                let volumes = volumes_of(&store, fencing);
                let changes = Arc::new(AtomicU64::new(0));
                let counted = Arc::clone(&changes);
                store.rule(move |call| {
                    if call.op.is_change() && counted.fetch_add(1, Ordering::Relaxed) >= last {
                        return Verdict::Fail(Store::Retryable("for the test".into()));
                    }
                    damage(call, begin)
                });
                let deleted = block_on(volumes.delete_damaged("a"));
                assert!(names(&volumes).contains(&"b".into()));
                store.rule(move |call| damage(call, begin));
                let volumes = volumes_of(&store, fencing);
                match block_on(volumes.delete_damaged("a")) {
                    Ok(()) | Err(Error::NoSuchVolume(_)) => {}
                    Err(error) => panic!("{begin}, change {last}: {error}"),
                }
                block_on(volumes.check(true)).unwrap();
                is_gone(&store, &volumes);
                if deleted.is_ok() {
                    assert!(last > 3, "{last}");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_check_goes_on_to_other_volumes_where_one_cannot_be_attached() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, Fencing::Below);
    make(&volumes, "a");
    make(&volumes, "b");
    store.rule(|call| match call.op {
        Op::WriteFull if is_of_damaged(call, "head") => Verdict::Fail(Store::Denied("for the test".into())),
        _ => Verdict::Pass,
    });
    let report = block_on(volumes.check(true)).unwrap();
    assert_eq!((report.volumes, report.problems.len(), report.skipped.len()), (1, 0, 1), "{report:?}");
    assert!(report.skipped[0].starts_with("a: ") && report.skipped[0].contains("for the test"), "{report:?}");
    // That a store is unavailable says nothing about a volume.
    store.rule(|call| match call.op {
        Op::WriteFull if is_of_damaged(call, "head") => Verdict::Fail(Store::Retryable("away".into())),
        _ => Verdict::Pass,
    });
    assert!(matches!(block_on(volumes.check(true)), Err(Error::Io(Store::Retryable(_)))));
}
