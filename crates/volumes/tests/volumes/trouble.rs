//! A store that fails in the middle, a dropped operation, and two concurrent operations: flushed
//! data are present, and a snapshot is unchanged.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{
    Blocker, BlockerExt, Control, DeleteRequest, DirtyData, Durability, Error as Store, Info, InfoRequest,
    InvalidateReply, InvalidateRequest, ListReply, ListRequest, Memory, Name, Namespace, ObjectId, Quota,
    Reply, Scope, WriteMode,
};
use cached_core::object::Writer;
use test_kit::steered::{CallInfo, Op, SteeredStore, Verdict};
use volumes::{Change, Error, OpenOptions, Options, ProblemKind, Rates, Settings, Volume, Volumes};

use super::objects_of;
use super::stack::Stack;

const OBJECT: u64 = 4096;

fn volumes_of(store: &Arc<SteeredStore>) -> Volumes {
    Volumes::new(Arc::clone(store) as Arc<dyn Blocker>, Options::new("vol")).unwrap()
}

fn made(volumes: &Volumes, objects: u64) -> Volume {
    block_on(volumes.create("a", objects * OBJECT, objects_of(OBJECT))).unwrap();
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

/// Returns whether a call concerns an object whose name starts with `begin`.
fn is_of(call: &CallInfo, begin: &str) -> bool {
    call.object.as_ref().is_some_and(|object| object.name.as_bytes().starts_with(begin.as_bytes()))
}

fn is_head_change(call: &CallInfo) -> bool {
    call.op == Op::WriteFull && is_of(call, "head")
}

/// Opens the stored content in a new process.
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
    // An object to be removed together with the snapshot.
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
fn allocation_ids_are_reserved_though_the_write_that_reserved_them_was_dropped() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    // The discard is recorded in an existing page.
    flushed(&disk, 7 * OBJECT, b"page");
    // Each round uses an allocation id.
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
    // The next head belongs to another operation.
    block_on(disk.flush()).unwrap();
    flushed(&disk, OBJECT, b"two");
    (0..1000).for_each(|_| round());
    block_on(volumes.snapshot("a", "s")).unwrap();
    flushed(&disk, 0, b"three");
    drop(volumes);
    let (volumes, disk) = anew(&store);
    assert_eq!([bytes(&disk, 0, 5), bytes(&disk, OBJECT, 3)].concat(), b"threetwo");
    // The work that the last flush has left for the next one.
    block_on(volumes.check(true)).unwrap();
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

/// Drops an operation that has sent a head that the store has executed. Returns the volume's next
/// answer.
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
    flushed(&disk, 0, b"two");
    drop((disk, volumes));
    let (volumes, disk) = anew(&store);
    assert_eq!(bytes(&disk, 0, 3), b"two");
    let snapshot = block_on(volumes.open_snapshot("a", "s")).unwrap();
    assert_eq!(block_on(snapshot.read(0, 3)).unwrap().to_vec(), b"one");
}

#[test]
fn a_volume_whose_close_failed_has_its_owner() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, b"one");
    // The head is stored, but its answer is lost.
    store.rule(|call| match (is_head_change(call), call.op) {
        (true, _) => Verdict::DoAndFail(unknown()),
        (_, Op::Read) => Verdict::Fail(Store::Retryable("for the test".into())),
        _ => Verdict::Pass,
    });
    block_on(disk.close()).unwrap_err();
    store.pass();
    flushed(&disk, 0, b"two");
    let other = Options { owner: "other".to_owned(), ..Options::new("vol") };
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
fn a_resize_that_meets_a_volume_being_closed_attaches_it_again() {
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
    block_on(resize).unwrap();
    assert_eq!(block_on(disk.read(0, 1)).unwrap_err(), Error::Closed, "no handle of before");
    let disk = opened(&volumes, "a");
    assert_eq!((disk.size_bytes(), bytes(&disk, 0, 100)), (100, vec![1; 100]));
    block_on(disk.close()).unwrap();
    block_on(volumes.resize("a", OBJECT)).unwrap();
    assert_eq!(bytes(&opened(&volumes, "a"), 100, OBJECT - 100), [0; OBJECT as usize - 100]);
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
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
        let options = || Options { records_at_once, ..Options::new("vol") };
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
        // The store keeps what it has accepted, and the process ends without a shutdown.
        drop((disk, volumes));
        let (_volumes, disk) = anew(&store);
        let found = [bytes(&disk, 0, 3), bytes(&disk, OBJECT, 3)].concat();
        let wanted = if records_at_once { b"two\0\0\0" } else { b"owe\x01\x01\x01" };
        assert_eq!(found, wanted, "{records_at_once}");
    }
}

fn object(namespace: &str, name: &str) -> ObjectId {
    ObjectId::new(
        Namespace::copy_from(namespace.as_bytes()).unwrap(),
        Name::copy_from(name.as_bytes()).unwrap(),
    )
}

/// Replaces an object, and returns its old content.
fn replaced(store: &SteeredStore, object: &ObjectId, bytes: Vec<u8>) -> Vec<u8> {
    let before = test_kit::content(store.memory(), object).unwrap();
    test_kit::fill(store.memory(), object, bytes);
    before
}

#[test]
fn a_damaged_volume_is_named_and_the_others_are_listed() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    for name in ["a", "b", "c"] {
        block_on(volumes.create(name, 8 * OBJECT, objects_of(OBJECT))).unwrap();
    }
    block_on(volumes.snapshot("a", "s")).unwrap();
    block_on(volumes.clone_volume("a", Some("s"), "clone")).unwrap();
    let disk = opened(&volumes, "b");
    flushed(&disk, 0, b"content");
    block_on(disk.close()).unwrap();
    let listed = |volumes: &Volumes| {
        let all = block_on(volumes.list()).unwrap();
        let names: Vec<_> = all.volumes.iter().map(|info| info.name.clone()).collect();
        let damaged: Vec<_> = all.damaged.iter().map(|it| (it.name.clone(), it.why.clone())).collect();
        (names.join(" "), damaged)
    };
    assert_eq!(listed(&volumes), ("a b c clone".into(), Vec::new()));
    let (head, record) = (object("vol.0000001", "head"), object("vol", "v/b"));
    let head_before = replaced(&store, &head, b"nonsense".to_vec());
    let record_before = replaced(&store, &record, b"nonsense".to_vec());
    let (names, damaged) = listed(&volumes);
    assert_eq!(names, "c clone");
    assert_eq!(damaged.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert!(damaged[0].1.contains("vol.0000001/head"), "{damaged:?}");
    assert!(damaged[1].1.contains("the catalog's record of volume \"b\""), "{damaged:?}");
    let clone = block_on(volumes.info("clone")).unwrap().origin.unwrap();
    assert_eq!((clone.volume.as_deref(), clone.snapshot), (Some("a"), None));
    assert!(matches!(block_on(volumes.info("a")), Err(Error::Damaged(_))));
    // A check reports both, and a repair mistakes neither for a volume that was never created.
    let report = block_on(volumes.check(true)).unwrap();
    let kinds: Vec<_> = report.problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::Damaged, ProblemKind::Damaged], "{report:?}");
    replaced(&store, &head, head_before);
    replaced(&store, &record, record_before);
    assert_eq!(listed(&volumes), ("a b c clone".into(), Vec::new()));
    assert_eq!(bytes(&opened(&volumes, "b"), 0, 7), b"content");
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

#[test]
fn the_map_of_a_snapshot_is_read_once_and_no_flush_waits_for_it() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, b"one");
    block_on(volumes.snapshot("a", "s")).unwrap();
    flushed(&disk, OBJECT, b"two");
    store.rule(|call| if call.op == Op::Read && is_of(call, "r/") { Verdict::Hold } else { Verdict::Pass });
    let mut changed = Box::pin(disk.changed_extents(Some("s")));
    assert!(poll_times(changed.as_mut(), 1, Duration::ZERO).is_none());
    // With an entry to be recorded, which needs the shape of the volume.
    flushed(&disk, 2 * OBJECT, b"three");
    store.open();
    let wanted = [Change { offset: OBJECT, length: 2 * OBJECT, is_data: true }];
    assert_eq!(block_on(changed).unwrap(), wanted);
    let begin = store.log().len();
    assert_eq!(block_on(disk.changed_extents(Some("s"))).unwrap(), wanted);
    assert_eq!(store.log().len(), begin, "it is known");
    // A new snapshot with the same name is another snapshot.
    block_on(volumes.delete_snapshot("a", "s")).unwrap();
    let gone = block_on(disk.changed_extents(Some("s")));
    assert_eq!(gone, Err(Error::NoSuchSnapshot("s".into())));
    block_on(volumes.snapshot("a", "s")).unwrap();
    assert_eq!(block_on(disk.changed_extents(Some("s"))).unwrap(), []);
}

#[test]
fn the_changes_since_a_snapshot_that_is_deleted_meanwhile_are_not_damage() {
    let store = SteeredStore::new();
    let volumes = volumes_of(&store);
    let disk = made(&volumes, 8);
    flushed(&disk, 0, b"one");
    block_on(volumes.snapshot("a", "s")).unwrap();
    flushed(&disk, 0, b"two");
    store.rule(|call| if call.op == Op::Read && is_of(call, "r/") { Verdict::Hold } else { Verdict::Pass });
    let mut changed = Box::pin(disk.changed_extents(Some("s")));
    assert!(poll_times(changed.as_mut(), 1, Duration::ZERO).is_none());
    store.pass();
    block_on(volumes.delete_snapshot("a", "s")).unwrap();
    store.answer_all();
    assert_eq!(block_on(changed), Err(Error::NoSuchSnapshot("s".into())));
}

#[test]
fn rates_and_a_quota_are_those_of_the_namespace_of_the_cache() {
    let store = Stack::memory().cached(blocker::WriteMode::Back, Writer::Callers).store;
    let volumes = Volumes::new(Arc::clone(&store), Options::new("vol")).unwrap();
    let mut rates = Rates::default();
    (rates.store_requests_per_second_max, rates.store_burst_ms) = (Some(500), Some(1000));
    let mut settings =
        Settings { object_bytes: Some(OBJECT), rates, quota_bytes_max: Some(1 << 20), ..Settings::default() };
    settings.write = Some(WriteMode::Through);
    block_on(volumes.create("a", 8 * OBJECT, settings)).unwrap();
    let in_force = || {
        let namespace = Namespace::copy_from(b"vol.0000001").unwrap();
        let state = block_on(store.control().namespace_state(namespace)).unwrap();
        let all = state.settings.values().filter_map(|(key, value)| Some((key.name().to_owned(), value?)));
        (state.write, all.collect::<BTreeMap<_, _>>())
    };
    let wanted = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
        all.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
    };
    let disk = opened(&volumes, "a");
    assert_eq!(disk.settings().rates, rates);
    let all =
        [("quota_bytes_max", 1 << 20), ("store_burst_ms", 1000), ("store_requests_per_second_max", 500)];
    assert_eq!(in_force(), (WriteMode::Through, wanted(&all)));
    // While it is attached, its namespace is not removed from the cache.
    let remove = || {
        let namespace = Namespace::copy_from(b"vol.0000001").unwrap();
        block_on(store.control().remove_namespace(namespace, DirtyData::Store))
    };
    assert!(matches!(remove(), Err(Store::Denied(_))));
    assert_eq!(in_force(), (WriteMode::Through, wanted(&all)));
    block_on(disk.close()).unwrap();
    assert_eq!(
        in_force(),
        (WriteMode::Through, wanted(&all)),
        "until it is attached with others, or removed"
    );
    remove().unwrap();
    assert_eq!(in_force(), (WriteMode::Back, wanted(&[])));
    block_on(opened(&volumes, "a").close()).unwrap();
    assert_eq!(in_force(), (WriteMode::Through, wanted(&all)));
    // A removed limit does not come back.
    rates.store_requests_per_second_max = None;
    block_on(volumes.set("a", Settings { rates, ..Settings::default() })).unwrap();
    assert_eq!(block_on(volumes.info("a")).unwrap().settings.rates, rates);
    assert_eq!(in_force(), (WriteMode::Back, wanted(&all[1..2])));
    block_on(opened(&volumes, "a").close()).unwrap();
    assert_eq!(in_force(), (WriteMode::Back, wanted(&all[1..2])));
    block_on(volumes.delete("a")).unwrap();
    assert_eq!(in_force(), (WriteMode::Back, wanted(&[])), "nothing is left of it");
    block_on(volumes.create("a", OBJECT, Settings::default())).unwrap();
    rates.store_bytes_per_second_max = Some(1);
    for refused in [
        block_on(volumes.set("a", Settings { rates, ..Settings::default() })),
        block_on(volumes.create("b", OBJECT, Settings { rates, ..Settings::default() })),
    ] {
        let line = refused.unwrap_err().to_string();
        assert!(line.contains("store_bytes_per_second_max is 1, and must be from 4096"), "{line}");
    }
    // Without a cache there is nothing to limit, and the volume can be used.
    let bare = Volumes::new(Arc::new(Memory::default()), Options::new("vol")).unwrap();
    let settings = Settings {
        write: Some(blocker::WriteMode::Back),
        rates: disk.settings().rates,
        ..Settings::default()
    };
    block_on(bare.create("a", OBJECT, settings)).unwrap();
    block_on(opened(&bare, "a").close()).unwrap();
}

/// A store whose listings lack data, as may those of a layer that combines several answers.
struct Listless(Memory);

impl Blocker for Listless {
    blocker::delegate!(|this| this.0, except list);

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let without_data = |page: ListReply| {
            let entries = page.entries.into_iter().filter(|entry| !entry.name.as_bytes().starts_with(b"d/"));
            ListReply::new(entries.collect(), page.has_more)
        };
        Reply::ok(without_data(block_on(self.0.list(request)).unwrap()))
    }
}

#[test]
fn a_check_asks_for_what_a_listing_lacks_before_it_is_missing() {
    let store = Arc::new(Listless(Memory::default()));
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    let disk = made(&volumes, 4);
    flushed(&disk, 0, &[1; 3 * OBJECT as usize]);
    block_on(disk.close()).unwrap();
    let report = block_on(volumes.check(false)).unwrap();
    assert_eq!(report.problems, []);
    // Three objects of data, a page of the map, and the head.
    assert_eq!(report.objects, 5);
    let all = block_on(store.0.list(ListRequest::new("vol.0000001".parse().unwrap()).prefix("d/"))).unwrap();
    let gone = ObjectId::new("vol.0000001".parse().unwrap(), all.entries[1].name.clone());
    block_on(store.0.delete(DeleteRequest::new(gone.clone()))).unwrap();
    let report = block_on(volumes.check(false)).unwrap();
    let missing: Vec<_> =
        report.problems.iter().map(|problem| (problem.kind, problem.what.clone())).collect();
    assert_eq!(missing, [(ProblemKind::Missing, gone.to_string())]);
}

/// A layer with stale knowledge of objects that another owner has created: they are missing until
/// an invalidation drops that knowledge.
struct Behind(Listless, Mutex<HashSet<ObjectId>>);

impl Blocker for Behind {
    blocker::delegate!(|this| this.0, except info invalidate);

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        match self.1.lock().unwrap().contains(&request.object) {
            true => Reply::err(Store::Missing),
            false => self.0.info(request),
        }
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        self.1.lock().unwrap().retain(|object| !request.scope.covers(object, None));
        self.0.invalidate(request)
    }
}

#[test]
fn a_check_believes_no_layer_that_an_object_is_missing() {
    let store = Arc::new(Behind(Listless(Memory::default()), Mutex::default()));
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    let disk = made(&volumes, 4);
    flushed(&disk, 0, &[1; 3 * OBJECT as usize]);
    block_on(disk.close()).unwrap();
    let namespace: Namespace = "vol.0000001".parse().unwrap();
    let all = block_on(store.0.0.list(ListRequest::new(namespace.clone()).prefix("d/"))).unwrap();
    let all = all.entries.into_iter().map(|entry| ObjectId::new(namespace.clone(), entry.name));
    store.1.lock().unwrap().extend(all);
    let report = block_on(volumes.check(false)).unwrap();
    assert_eq!((report.problems, report.objects), (vec![], 5));
}

/// A store that records the scopes whose losses are accepted.
struct Accepting(Memory, Mutex<Vec<Scope>>);

impl Blocker for Accepting {
    blocker::delegate!(|this| this.0, except invalidate);

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        if request.accepts_losses {
            self.1.lock().unwrap().push(request.scope.clone());
        }
        self.0.invalidate(request)
    }
}

#[test]
fn looking_at_volumes_accepts_no_losses() {
    let store = Arc::new(Accepting(Memory::default(), Mutex::default()));
    let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    let disk = made(&volumes, 4);
    flushed(&disk, 0, &[1; OBJECT as usize]);
    block_on(disk.close()).unwrap();
    store.1.lock().unwrap().clear();
    let mut options = Options::new("vol");
    options.owner = "another".into();
    let others = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options).unwrap();
    for looking in [&volumes, &others] {
        assert_eq!(block_on(looking.check(false)).unwrap().problems, []);
    }
    assert_eq!(*store.1.lock().unwrap(), []);
    // A new owner does not answer for what was lost before.
    let taken = opened(&others, "a");
    let namespace: Namespace = "vol.0000001".parse().unwrap();
    assert_eq!(store.1.lock().unwrap().first(), Some(&Scope::Namespace(namespace)));
    block_on(taken.close()).unwrap();
}

/// A store without a quota that counts the queries for one.
struct Looked(Memory, AtomicU32);

impl Blocker for Looked {
    blocker::delegate!(|this| this.0, except control);

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Control for Looked {
    fn below(&self) -> Option<&dyn Control> {
        Some(self.0.control())
    }

    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let quota = block_on(self.0.control().quota(namespace));
        Reply::pending(std::future::ready(quota))
    }
}

/// This holds after a snapshot, in a volume that was opened with a snapshot, and in a clone.
#[test]
fn no_write_beside_a_snapshot_waits_to_learn_that_there_is_no_quota() {
    let store = Arc::new(Looked(Memory::default(), AtomicU32::new(0)));
    let new = || Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, Options::new("vol")).unwrap();
    let volumes = new();
    let disk = made(&volumes, 4);
    flushed(&disk, 0, &[1; 3 * OBJECT as usize]);
    let write = |disk: &Volume, offset: u64| {
        let before = store.1.load(Ordering::Relaxed);
        written(disk, offset, b"new");
        assert_eq!(store.1.load(Ordering::Relaxed), before, "it has looked at the quota");
    };
    block_on(volumes.snapshot("a", "s")).unwrap();
    write(&disk, 0);
    block_on(disk.close()).unwrap();
    let volumes = new();
    write(&opened(&volumes, "a"), OBJECT);
    block_on(volumes.clone_volume("a", Some("s"), "b")).unwrap();
    write(&opened(&volumes, "b"), OBJECT);
    block_on(volumes.rollback("a", "s")).unwrap();
    write(&opened(&volumes, "a"), 2 * OBJECT);
}
