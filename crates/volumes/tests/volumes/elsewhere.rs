//! Reading on one host volumes that another host has written. Each host has a cache, and neither is
//! notified of the other's changes.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability, WriteMode};
use cached_core::object::Writer;
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Error, Export, Fencing, OpenOptions, Options, Volume, Volumes};

use super::beside::Listed;
use super::objects_of;
use super::stack::{cache, eventually};

const OBJECT: u64 = 4096;
const BOTH: [(Writer, Fencing); 2] = [(Writer::Cache, Fencing::Below), (Writer::Callers, Fencing::Stamps)];

/// Returns the volumes of two hosts over a store that does not report changes.
fn hosts(store: &Arc<SteeredStore>, (writer, fencing): (Writer, Fencing)) -> [Volumes; 2] {
    store.silence();
    ["one", "two"].map(|name| {
        let cache = cache(Arc::new(Listed(Arc::clone(store))), WriteMode::Back, writer);
        Volumes::new(cache, Options { owner: name.to_owned(), fencing, ..Options::new("vol") }).unwrap()
    })
}

fn create(volumes: &Volumes, name: &str) {
    block_on(volumes.create(name, 8 * OBJECT, objects_of(OBJECT))).unwrap();
}

fn opened(volumes: &Volumes, name: &str) -> Volume {
    block_on(volumes.open(name, OpenOptions::default())).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn written(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
}

fn bytes(disk: &Volume, offset: u64, length: u64) -> Vec<u8> {
    block_on(disk.read(offset, length)).unwrap().to_vec()
}

/// Writes to a volume and closes it.
fn stored(volumes: &Volumes, name: &str, all: &[(u64, &[u8])]) {
    let disk = opened(volumes, name);
    all.iter().for_each(|(offset, bytes)| written(&disk, *offset, bytes));
    block_on(disk.close()).unwrap();
}

/// Checks the content of a clone "c" on the host that created it and then on the other one.
fn assert_clone(hosts: [&Volumes; 2]) {
    let disk = opened(hosts[0], "c");
    assert_eq!([bytes(&disk, 0, 3), bytes(&disk, OBJECT, 4)].concat(), b"newmore");
    // After this write, the clone has its own map.
    written(&disk, 2 * OBJECT, b"own");
    block_on(disk.close()).unwrap();
    let disk = opened(hosts[1], "c");
    let all = [bytes(&disk, 0, 3), bytes(&disk, OBJECT, 4), bytes(&disk, 2 * OBJECT, 3)];
    assert_eq!(all.concat(), b"newmoreown");
    block_on(disk.close()).unwrap();
}

#[test]
fn a_clone_has_what_the_other_host_has_written_before_the_snapshot() {
    for both in BOTH {
        let store = SteeredStore::new();
        let [one, two] = hosts(&store, both);
        create(&two, "a");
        stored(&two, "a", &[(0, b"old")]);
        stored(&one, "a", &[(0, b"new"), (OBJECT, b"more")]);
        block_on(one.snapshot("a", "s")).unwrap();
        block_on(two.clone_volume("a", Some("s"), "c")).unwrap();
        assert_clone([&two, &one]);
    }
}

#[test]
fn a_clone_has_nothing_of_a_deleted_snapshot_that_was_read_before() {
    for both in BOTH {
        let store = SteeredStore::new();
        let [one, two] = hosts(&store, both);
        create(&two, "a");
        stored(&one, "a", &[(0, b"old")]);
        block_on(one.snapshot("a", "s1")).unwrap();
        let snapshot = block_on(two.open_snapshot("a", "s1")).unwrap();
        assert_eq!(block_on(snapshot.read(0, 3)).unwrap().to_vec(), b"old");
        block_on(one.delete_snapshot("a", "s1")).unwrap();
        stored(&one, "a", &[(0, b"new"), (OBJECT, b"more")]);
        block_on(one.snapshot("a", "s2")).unwrap();
        let snapshot = block_on(two.open_snapshot("a", "s2")).unwrap();
        assert_eq!(block_on(snapshot.read(0, 3)).unwrap().to_vec(), b"new");
        let changes = block_on(two.diff("a", None, Some("s2"))).unwrap();
        assert_eq!(changes.iter().map(|change| change.length).sum::<u64>(), 2 * OBJECT);
        block_on(two.clone_volume("a", Some("s2"), "c")).unwrap();
        assert_clone([&two, &one]);
    }
}

#[test]
fn a_clone_of_a_clone_has_what_the_other_host_has_written_to_the_first() {
    // Both hosts change the catalog.
    let store = SteeredStore::new();
    let [one, two] = hosts(&store, BOTH[1]);
    create(&two, "a");
    stored(&two, "a", &[(0, b"old")]);
    stored(&one, "a", &[(0, b"new"), (OBJECT, b"more")]);
    block_on(one.snapshot("a", "s")).unwrap();
    block_on(one.clone_volume("a", Some("s"), "b")).unwrap();
    block_on(one.snapshot("b", "t")).unwrap();
    block_on(two.clone_volume("b", Some("t"), "c")).unwrap();
    assert_clone([&two, &one]);
}

#[test]
fn a_snapshot_that_is_known_stays_in_the_cache() {
    let store = SteeredStore::new();
    let [one, two] = hosts(&store, BOTH[0]);
    create(&two, "a");
    stored(&one, "a", &[(0, b"new")]);
    block_on(one.snapshot("a", "s")).unwrap();
    let read = |name: &str| {
        block_on(two.clone_volume("a", Some("s"), name)).unwrap();
        assert_eq!(bytes(&opened(&two, name), 0, 3), b"new");
    };
    read("b");
    store.clear_log();
    read("c");
    let is_of_data = |call: &CallInfo| {
        let object = call.object.as_ref();
        call.op == Op::Read && object.is_some_and(|object| object.name.as_bytes().starts_with(b"d/"))
    };
    assert!(!store.log().iter().any(is_of_data), "{:?}", store.log());
}

#[test]
fn a_clone_of_a_snapshot_that_the_other_host_deletes_meanwhile_is_not_made() {
    for both in BOTH {
        let store = SteeredStore::new();
        let [one, two] = hosts(&store, both);
        create(&two, "a");
        stored(&one, "a", &[(0, b"one")]);
        block_on(one.snapshot("a", "s")).unwrap();
        store.rule(|call| {
            let name = call.object.as_ref().map(|object| object.name.as_bytes().to_vec()).unwrap_or_default();
            // The root is removed last, and until then it can be cloned.
            let is_held = name.starts_with(b"c/") && call.op.is_change()
                || name.starts_with(b"r/") && call.op == Op::Delete;
            if is_held { Verdict::Hold } else { Verdict::Pass }
        });
        let mut clone = Box::pin(two.clone_volume("a", Some("s"), "c"));
        assert!(poll_times(clone.as_mut(), 1, Duration::ZERO).is_none());
        eventually("the mark is sent", || {
            assert!(poll_times(clone.as_mut(), 1, Duration::ZERO).is_none());
            (!store.held().is_empty()).then_some(())
        });
        let mark = store.held()[0].number;
        let mut deleted = Box::pin(one.delete_snapshot("a", "s"));
        eventually("the snapshot is gone but for its root", || {
            let is_gone = poll_times(deleted.as_mut(), 1, Duration::ZERO).is_some();
            (is_gone || store.held().len() == 2).then_some(())
        });
        store.pass();
        store.answer(mark);
        assert_eq!(block_on(clone), Err(Error::NoSuchSnapshot("s".into())));
        store.open();
    }
}

#[test]
fn a_snapshot_that_is_deleted_while_it_is_exported_is_no_export() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    create(&volumes, "a");
    let disk = opened(&volumes, "a");
    // Two separate ranges.
    [0, 2].iter().for_each(|object| written(&disk, object * OBJECT, b"old"));
    block_on(volumes.snapshot("a", "s")).unwrap();
    block_on(volumes.snapshot("a", "t")).unwrap();
    for (from, to, gone) in [(None, "t", "t"), (Some("s"), "u", "s")] {
        if to == "u" {
            [0, 2].iter().for_each(|object| written(&disk, object * OBJECT, b"mid"));
            block_on(volumes.snapshot("a", "u")).unwrap();
        }
        let open = |name: &str| block_on(volumes.open_snapshot("a", name)).unwrap();
        let (before, after) = (from.map(open), open(to));
        let mut export = Export::new(from.zip(before.as_ref()), (to, &after));
        let mut pieces = 0;
        let ended = loop {
            match block_on(export.next()) {
                Ok(Some(_)) => pieces += 1,
                other => break other,
            }
            if pieces == 2 {
                block_on(volumes.delete_snapshot("a", gone)).unwrap();
                [0, 2].iter().for_each(|object| written(&disk, object * OBJECT, b"new"));
                block_on(disk.flush()).unwrap();
            }
        };
        assert_eq!(ended.unwrap_err(), Error::NoSuchSnapshot(gone.into()), "{pieces} pieces");
        // A new snapshot with the same name is another snapshot.
        block_on(volumes.snapshot("a", gone)).unwrap();
        assert_eq!(block_on(export.next()).unwrap_err(), Error::NoSuchSnapshot(gone.into()));
    }
}

#[test]
fn a_map_that_is_read_while_its_snapshot_is_deleted_counts_for_nothing() {
    for is_diff in [false, true] {
        let store = SteeredStore::new();
        let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
        create(&volumes, "a");
        let disk = opened(&volumes, "a");
        written(&disk, 0, b"old");
        block_on(volumes.snapshot("a", "s")).unwrap();
        store.rule(|call| {
            let is_page =
                call.object.as_ref().is_some_and(|object| object.name.as_bytes().starts_with(b"m/"));
            if call.op == Op::Read && is_page { Verdict::Hold } else { Verdict::Pass }
        });
        let mut read: std::pin::Pin<Box<dyn Future<Output = volumes::Result<()>>>> = match is_diff {
            true => Box::pin(async { volumes.diff("a", None, Some("s")).await.map(drop) }),
            false => Box::pin(async { volumes.open_snapshot("a", "s").await.map(drop) }),
        };
        assert!(poll_times(read.as_mut(), 1, Duration::ZERO).is_none());
        store.pass();
        block_on(volumes.delete_snapshot("a", "s")).unwrap();
        written(&disk, OBJECT, b"new");
        block_on(disk.flush()).unwrap();
        store.answer_all();
        assert_eq!(block_on(read), Err(Error::NoSuchSnapshot("s".into())));
    }
}

#[test]
fn a_name_is_found_that_the_other_host_has_given_meanwhile() {
    for both in BOTH {
        let store = SteeredStore::new();
        let [one, two] = hosts(&store, both);
        let early = block_on(two.open("a", OpenOptions::default())).unwrap_err();
        assert_eq!(early, Error::NoSuchVolume("a".into()));
        create(&one, "a");
        assert_eq!(block_on(two.info("a")).unwrap().size_bytes, 8 * OBJECT);
        block_on(one.delete("a")).unwrap();
        block_on(one.create("a", 2 * OBJECT, objects_of(OBJECT))).unwrap();
        let all = block_on(two.list()).unwrap();
        assert_eq!((all.volumes[0].size_bytes, all.damaged.len()), (2 * OBJECT, 0));
        assert_eq!(opened(&two, "a").size_bytes(), 2 * OBJECT);
    }
}

#[test]
fn a_repair_knows_the_names_that_the_other_host_has_given_meanwhile() {
    let store = SteeredStore::new();
    let [one, two] = hosts(&store, BOTH[1]);
    create(&one, "a");
    block_on(two.check(true)).unwrap();
    block_on(one.delete("a")).unwrap();
    create(&one, "a");
    stored(&one, "a", &[(0, b"new")]);
    assert_eq!(block_on(two.check(true)).unwrap().problems, []);
    assert_eq!(bytes(&opened(&one, "a"), 0, 3), b"new");
}

#[test]
fn what_a_volume_uses_is_read_without_taking_it() {
    for both in BOTH {
        let store = SteeredStore::new();
        let [one, two] = hosts(&store, both);
        create(&two, "a");
        assert_eq!(block_on(two.usage("a")).unwrap().referenced_bytes, 0);
        let disk = opened(&one, "a");
        written(&disk, 0, b"one");
        block_on(one.snapshot("a", "s")).unwrap();
        for objects in 1..4 {
            written(&disk, objects * OBJECT, b"two");
            block_on(disk.flush()).unwrap();
            store.clear_log();
            let usage = block_on(two.usage("a")).unwrap();
            let found = (usage.referenced_bytes / OBJECT, usage.exclusive_bytes / OBJECT);
            assert_eq!(found, (objects + 1, objects), "{usage:?}");
            assert!(!store.log().iter().any(|call| call.op.is_change() || call.op == Op::Claim));
        }
        block_on(disk.flush()).unwrap();
    }
}
