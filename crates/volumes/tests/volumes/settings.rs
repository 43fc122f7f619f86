//! Settings and sizes that would do harm, and volumes that cannot be opened.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Memory, Name, Namespace, ObjectId, WriteMode};
use test_kit::steered::{Op, SteeredStore, Verdict};
use volumes::{Error, OpenOptions, Options, Settings, Volumes};

use super::objects_of;

const OBJECT: u64 = 4096;

fn owner_of(store: &Arc<Memory>, name: &str) -> Volumes {
    Volumes::new(
        Arc::clone(store) as Arc<dyn Blocker>,
        Options { owner: name.to_owned(), ..Options::new("vol") },
    )
    .unwrap()
}

fn small() -> Settings {
    objects_of(OBJECT)
}

#[test]
fn no_volume_has_a_namespace_that_refuses_its_own_head() {
    let volumes = owner_of(&Arc::default(), "one");
    let refused =
        block_on(volumes.create("a", OBJECT, Settings { write: Some(WriteMode::ReadOnly), ..small() }));
    assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("is_read_only")), "{refused:?}");
    block_on(volumes.create("a", OBJECT, small())).unwrap();
    let refused = block_on(volumes.set("a", Settings { write: Some(WriteMode::ReadOnly), ..small() }));
    assert!(matches!(&refused, Err(Error::Invalid(why)) if why.contains("is_read_only")), "{refused:?}");
    block_on(volumes.delete("a")).unwrap();
}

#[test]
fn a_volume_whose_limits_nothing_keeps_can_be_set_otherwise_and_deleted() {
    // The control of this store does nothing.
    let store = SteeredStore::new() as Arc<dyn Blocker>;
    let volumes = Volumes::new(store, Options::new("vol")).unwrap();
    let limited = Settings { quota_bytes_max: Some(1 << 20), ..small() };
    for name in ["a", "b"] {
        block_on(volumes.create(name, OBJECT, limited)).unwrap();
        let opened = block_on(volumes.open(name, OpenOptions::default())).map(drop);
        assert!(matches!(opened, Err(Error::Io(blocker::Error::Unsupported(_)))), "{opened:?}");
    }
    block_on(volumes.set("a", small())).unwrap();
    block_on(volumes.open("a", OpenOptions::default())).unwrap();
    block_on(volumes.delete("b")).unwrap();
}

#[test]
fn two_changes_of_settings_at_the_same_time_do_not_undo_each_other() {
    let store = SteeredStore::new();
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    block_on(volumes.create("a", OBJECT, small())).unwrap();
    store.rule(|call| if call.op == Op::WriteFull { Verdict::Hold } else { Verdict::Pass });
    let mut first = Box::pin(volumes.set_with("a", |now| Ok(Settings { is_read_only: true, ..now })));
    assert!(poll_times(first.as_mut(), 1, Duration::ZERO).is_none());
    let write = Some(WriteMode::Back);
    let mut second = Box::pin(volumes.set_with("a", |now| Ok(Settings { write, ..now })));
    assert!(poll_times(second.as_mut(), 1, Duration::ZERO).is_none());
    store.open();
    block_on(first).unwrap();
    block_on(second).unwrap();
    let settings = block_on(volumes.info("a")).unwrap().settings;
    assert_eq!(settings, Settings { is_read_only: true, write, ..small() });
}

#[test]
fn a_volume_that_cannot_be_opened_has_no_owner() {
    let store = Arc::new(Memory::default());
    let [one, two] = ["one", "two"].map(|name| owner_of(&store, name));
    block_on(one.create("a", OBJECT, small())).unwrap();
    let disk = block_on(one.open("a", OpenOptions::default())).unwrap();
    block_on(disk.write(0, b"one".into(), blocker::Durability::Cached)).unwrap();
    block_on(disk.close()).unwrap();
    let page = ObjectId::new(
        Namespace::copy_from(b"vol.0000001").unwrap(),
        Name::copy_from(b"m/000000001/00000000").unwrap(),
    );
    let content = test_kit::content(&*store, &page).expect("a page");
    test_kit::fill(&store, &page, b"nonsense".to_vec());
    for volumes in [&one, &two] {
        let opened = block_on(volumes.open("a", OpenOptions::default())).map(drop);
        assert!(matches!(opened, Err(Error::Damaged(_))), "{opened:?}");
    }
    test_kit::fill(&store, &page, content);
    let disk = block_on(two.open("a", OpenOptions::default())).unwrap();
    assert_eq!(block_on(disk.read(0, 3)).unwrap().to_vec(), b"one");
}

#[test]
fn a_volume_that_is_to_grow_does_not_shrink() {
    let volumes = owner_of(&Arc::default(), "one");
    block_on(volumes.create("a", 8 * OBJECT, small())).unwrap();
    assert!(block_on(volumes.grow("a", 16 * OBJECT)).unwrap());
    assert!(!block_on(volumes.grow("a", 12 * OBJECT)).unwrap());
    assert_eq!(block_on(volumes.info("a")).unwrap().size_bytes, 16 * OBJECT);
    block_on(volumes.resize("a", 4 * OBJECT)).unwrap();
    assert_eq!(block_on(volumes.info("a")).unwrap().size_bytes, 4 * OBJECT);
}
