//! A check with repair while volumes are created, cloned and deleted: it removes nothing that is
//! needed.

use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Control, Durability};
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Error, OpenOptions, Options, ProblemKind, Volume, Volumes};

use super::objects_of;

const OBJECT: u64 = 4096;

/// A controlled store whose namespaces can be listed.
pub(crate) struct Listed(pub(crate) Arc<SteeredStore>);

impl Blocker for Listed {
    blocker::delegate!(|this| *this.0, except control);

    fn control(&self) -> &dyn Control {
        self.0.memory().control()
    }
}

fn volumes_of(store: &Arc<SteeredStore>, owner: &str) -> Volumes {
    let store = Arc::new(Listed(Arc::clone(store)));
    Volumes::new(store, Options { owner: owner.to_owned(), ..Options::new("vol") }).unwrap()
}

fn create(volumes: &Volumes, name: &str) {
    block_on(volumes.create(name, 8 * OBJECT, objects_of(OBJECT))).unwrap();
}

fn opened(volumes: &Volumes, name: &str) -> Volume {
    block_on(volumes.open(name, OpenOptions::default())).unwrap()
}

/// Writes to a volume and closes it.
fn stored(volumes: &Volumes, name: &str, bytes: &[u8]) {
    let disk = opened(volumes, name);
    block_on(disk.write(0, bytes.to_vec().into(), Durability::Cached)).unwrap();
    block_on(disk.close()).unwrap();
}

fn found(volumes: &Volumes, name: &str) -> Vec<u8> {
    let disk = opened(volumes, name);
    let found = block_on(disk.read(0, 3)).unwrap().to_vec();
    block_on(disk.close()).unwrap();
    found
}

fn names(volumes: &Volumes) -> Vec<String> {
    block_on(volumes.list()).unwrap().volumes.into_iter().map(|info| info.name).collect()
}

/// Creates a volume "a" whose content differs from that of its snapshot "s", which is "old".
fn with_snapshot(volumes: &Volumes) {
    create(volumes, "a");
    stored(volumes, "a", b"old");
    block_on(volumes.snapshot("a", "s")).unwrap();
    stored(volumes, "a", b"new");
}

/// Creates a clone "z" of a clone "y" of "a". The snapshot of "a" exists only for them.
fn with_clones(volumes: &Volumes) {
    with_snapshot(volumes);
    block_on(volumes.clone_volume("a", Some("s"), "y")).unwrap();
    block_on(volumes.snapshot("y", "t")).unwrap();
    block_on(volumes.clone_volume("y", Some("t"), "z")).unwrap();
    block_on(volumes.delete_snapshot("a", "s")).unwrap();
}

fn is_change_of(call: &CallInfo, namespace: &str, name: &str) -> bool {
    let is_object = |object: &blocker::ObjectId| {
        object.namespace.as_bytes() == namespace.as_bytes() && object.name.as_bytes() == name.as_bytes()
    };
    call.op.is_change() && call.object.as_ref().is_some_and(is_object)
}

#[test]
fn a_volume_that_is_made_while_a_check_runs_stays() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, "one");
    with_snapshot(&volumes);
    // The check has listed the names, and looks for deleted volumes next.
    let mut lists = 0;
    store.rule(move |call| {
        lists += u32::from(call.op == Op::List);
        if call.op == Op::List && lists == 2 { Verdict::Hold } else { Verdict::Pass }
    });
    let mut check = Box::pin(volumes.check(true));
    assert!(poll_times(check.as_mut(), 1, Duration::ZERO).is_none());
    store.pass();
    create(&volumes, "b");
    stored(&volumes, "b", b"two");
    block_on(volumes.clone_volume("a", Some("s"), "c")).unwrap();
    store.answer_all();
    assert_eq!(block_on(check).unwrap().problems, []);
    assert_eq!(found(&volumes, "b"), b"two");
    block_on(volumes.delete_snapshot("a", "s")).unwrap();
    assert_eq!(block_on(volumes.check(true)).unwrap().problems, []);
    assert_eq!(found(&volumes, "c"), b"old");
}

#[test]
fn a_volume_that_is_made_while_a_check_runs_and_cannot_be_deleted_stays() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, "one");
    with_snapshot(&volumes);
    // The check has listed the names, and looks for deleted volumes next.
    let mut lists = 0;
    store.rule(move |call| {
        lists += u32::from(call.op == Op::List);
        if call.op == Op::List && lists == 2 { Verdict::Hold } else { Verdict::Pass }
    });
    let mut check = Box::pin(volumes.check(true));
    assert!(poll_times(check.as_mut(), 1, Duration::ZERO).is_none());
    store.pass();
    create(&volumes, "b");
    stored(&volumes, "b", b"two");
    // The deletion is recorded, but the volume keeps its name.
    store.rule(|call| match is_change_of(call, "vol", "v/b") {
        true => Verdict::Fail(blocker::Error::Retryable("busy".into())),
        false => Verdict::Pass,
    });
    let failed = block_on(volumes.delete("b"));
    assert!(matches!(failed, Err(Error::Io(blocker::Error::Retryable(_)))), "{failed:?}");
    store.pass();
    store.answer_all();
    block_on(check).unwrap();
    assert_eq!(found(&volumes, "b"), b"two");
    assert_eq!(block_on(volumes.check(true)).unwrap().problems, []);
}

#[test]
fn two_repairs_run_one_after_the_other() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, "one");
    with_snapshot(&volumes);
    store.rule(|call| if call.op == Op::List { Verdict::Hold } else { Verdict::Pass });
    let mut first = Box::pin(volumes.check(true));
    assert!(poll_times(first.as_mut(), 1, Duration::ZERO).is_none());
    let mut second = Box::pin(volumes.check(true));
    assert!(poll_times(second.as_mut(), 1, Duration::ZERO).is_none());
    assert_eq!(store.held().len(), 1, "the second one has read nothing yet");
    store.open();
    assert_eq!(block_on(first).unwrap().problems, []);
    assert_eq!(block_on(second).unwrap().problems, []);
}

#[test]
fn a_creation_that_notices_a_deletion_late_leaves_the_name_to_the_next_volume() {
    let store = SteeredStore::new();
    let (one, two) = (volumes_of(&store, "one"), volumes_of(&store, "two"));
    store.rule(|call| {
        let is_looked_for = call.op == Op::Info
            && call.object.as_ref().is_some_and(|object| object.name.as_bytes() == b"x/0000001");
        if is_looked_for { Verdict::Hold } else { Verdict::Pass }
    });
    let mut made = Box::pin(one.create("c", 8 * OBJECT, objects_of(OBJECT)));
    assert!(poll_times(made.as_mut(), 1, Duration::ZERO).is_none());
    assert_eq!(store.held().len(), 1);
    store.pass();
    block_on(two.delete("c")).unwrap();
    create(&two, "c");
    stored(&two, "c", b"two");
    store.answer_all();
    let made = block_on(made);
    assert!(matches!(made, Err(Error::Io(blocker::Error::Retryable(_)))), "{made:?}");
    assert_eq!(names(&two), ["c"]);
    assert_eq!(found(&two, "c"), b"two");
}

#[test]
fn a_volume_that_a_check_took_for_one_that_was_never_made_is_not_made() {
    for is_clone in [false, true] {
        let store = SteeredStore::new();
        let (one, two) = (volumes_of(&store, "one"), volumes_of(&store, "two"));
        with_snapshot(&one);
        store.rule(|call| if is_change_of(call, "vol", "v/c") { Verdict::Hold } else { Verdict::Pass });
        let settings = objects_of(OBJECT);
        let mut made: std::pin::Pin<Box<dyn Future<Output = volumes::Result<()>>>> = match is_clone {
            false => Box::pin(one.create("c", 8 * OBJECT, settings)),
            true => Box::pin(one.clone_volume("a", Some("s"), "c")),
        };
        assert!(poll_times(made.as_mut(), 1, Duration::ZERO).is_none());
        block_on(two.check(true)).unwrap();
        store.open();
        let made = block_on(made);
        assert!(matches!(made, Err(Error::Io(blocker::Error::Retryable(_)))), "{made:?}");
        assert_eq!(names(&two), ["a"]);
        assert_eq!(block_on(two.check(true)).unwrap().problems, []);
        block_on(two.clone_volume("a", Some("s"), "c")).unwrap();
        assert_eq!(found(&two, "c"), b"old");
    }
}

#[test]
fn a_volume_whose_head_a_check_is_removing_is_not_made() {
    let store = SteeredStore::new();
    let (one, two) = (volumes_of(&store, "one"), volumes_of(&store, "two"));
    with_snapshot(&one);
    store.rule(|call| {
        let is_looked_for = call.op == Op::Info
            && call.object.as_ref().is_some_and(|object| object.name.as_bytes() == b"x/0000002");
        let is_removed = call.op == Op::Delete && is_change_of(call, "vol.0000002", "head");
        match is_looked_for || is_removed || is_change_of(call, "vol", "v/c") {
            true => Verdict::Hold,
            false => Verdict::Pass,
        }
    });
    let answer = |what: &str| {
        let held = store.held();
        let is_it = |call: &&CallInfo| {
            call.object.as_ref().is_some_and(|object| object.name.as_bytes() == what.as_bytes())
        };
        store.answer(held.iter().find(is_it).unwrap_or_else(|| panic!("{what}: {held:?}")).number);
    };
    let mut made = Box::pin(one.create("c", 8 * OBJECT, objects_of(OBJECT)));
    assert!(poll_times(made.as_mut(), 1, Duration::ZERO).is_none());
    let mut check = Box::pin(two.check(true));
    assert!(poll_times(check.as_mut(), 1, Duration::ZERO).is_none());
    // The check has seen no name, and has reached the head. Now the name exists, and its creator
    // checks that everything is present.
    answer("v/c");
    assert!(poll_times(made.as_mut(), 1, Duration::ZERO).is_none());
    answer("head");
    block_on(check).unwrap();
    store.pass();
    answer("x/0000002");
    let made = block_on(made);
    assert!(matches!(made, Err(Error::Io(blocker::Error::Retryable(_)))), "{made:?}");
    assert_eq!(names(&two), ["a"]);
    create(&one, "c");
    stored(&one, "c", b"two");
    assert_eq!(found(&two, "c"), b"two");
}

#[test]
fn a_volume_whose_deletion_another_owner_has_begun_keeps_what_its_clones_need() {
    let store = SteeredStore::new();
    let one = volumes_of(&store, "one");
    with_clones(&one);
    // Both the name and the owner have disappeared.
    store.rule(|call| if is_change_of(call, "vol", "v/y") { Verdict::Hold } else { Verdict::Pass });
    let mut deleted = Box::pin(one.delete("y"));
    assert!(poll_times(deleted.as_mut(), 1, Duration::ZERO).is_none());
    store.perform(store.held()[0].number);
    store.pass();
    drop(deleted);
    drop(one);
    let two = volumes_of(&store, "two");
    assert_eq!(names(&two), ["a", "z"]);
    block_on(two.check(true)).unwrap();
    assert_eq!(found(&two, "z"), b"old");
    let one = volumes_of(&store, "one");
    block_on(one.check(true)).unwrap();
    assert_eq!(found(&one, "z"), b"old");
    block_on(one.delete("z")).unwrap();
    assert_eq!(block_on(one.check(false)).unwrap().problems, []);
}

#[test]
fn a_deletion_beside_a_check_keeps_its_record() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, "one");
    with_clones(&volumes);
    store.rule(|call| if is_change_of(call, "vol", "v/y") { Verdict::Hold } else { Verdict::Pass });
    let mut deleted = Box::pin(volumes.delete("y"));
    assert!(poll_times(deleted.as_mut(), 1, Duration::ZERO).is_none());
    let mut check = Box::pin(volumes.check(true));
    assert!(poll_times(check.as_mut(), 1, Duration::ZERO).is_none());
    store.open();
    block_on(deleted).unwrap();
    block_on(check).unwrap();
    assert_eq!(block_on(volumes.check(true)).unwrap().problems, []);
    assert_eq!(found(&volumes, "z"), b"old");
}

#[test]
fn a_check_goes_on_to_other_volumes_where_a_page_or_root_of_one_is_corrupt() {
    for corrupt in ["m/", "r/"] {
        let store = SteeredStore::new();
        let volumes = volumes_of(&store, "one");
        with_snapshot(&volumes);
        create(&volumes, "b");
        stored(&volumes, "b", b"all");
        store.rule(move |call| {
            let is_it = call.object.as_ref().is_some_and(|object| {
                let is_first = object.namespace.as_bytes() == b"vol.0000001";
                is_first && object.name.as_bytes().starts_with(corrupt.as_bytes())
            });
            match call.op {
                Op::Read if is_it => Verdict::Fail(blocker::Error::Corrupt("for the test".into())),
                _ => Verdict::Pass,
            }
        });
        let report = block_on(volumes.check(false)).unwrap();
        assert_eq!((report.volumes, report.problems.len()), (1, 1), "{report:?}");
        assert_eq!(report.problems[0].kind, ProblemKind::Damaged);
        store.pass();
        assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
        assert_eq!(found(&volumes, "a"), b"new");
    }
}

#[test]
fn a_clone_that_a_crash_cuts_short_leaves_no_snapshot_that_is_shown() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store, "one");
    with_snapshot(&volumes);
    store.rule(|call| {
        let is_mark = call.op == Op::WriteFull
            && call.object.as_ref().is_some_and(|object| object.name.as_bytes().starts_with(b"c/"));
        if is_mark { Verdict::Hold } else { Verdict::Pass }
    });
    let mut clone = Box::pin(volumes.clone_volume("a", None, "b"));
    assert!(poll_times(clone.as_mut(), 1, Duration::ZERO).is_none());
    assert_eq!(store.held().len(), 1);
    store.pass();
    drop(clone);
    drop(volumes);
    let volumes = volumes_of(&store, "one");
    let shown = block_on(volumes.snapshots("a")).unwrap();
    assert_eq!(shown.iter().map(|snapshot| snapshot.name.as_str()).collect::<Vec<_>>(), ["s"]);
    assert_eq!(block_on(volumes.info("a")).unwrap().snapshots, 1);
    let report = block_on(volumes.check(true)).unwrap();
    assert_eq!(report.problems.first().map(|problem| problem.kind), Some(ProblemKind::Leftover));
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
    block_on(volumes.clone_volume("a", None, "b")).unwrap();
    assert_eq!(found(&volumes, "b"), b"new");
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}
