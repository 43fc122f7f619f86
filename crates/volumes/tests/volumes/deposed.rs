//! Two owners of one volume over a shared store. The first one is delayed in the middle of its
//! requests, and the second one takes over. Later effects of the first one are never visible, and
//! the first one gets no acknowledgement for them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use blocker::executor::{block_on, poll_times};
use blocker::{Blocker, Durability, Memory, WriteMode};
use cached_core::object::Writer;
use test_kit::rng::Rng;
use test_kit::steered::{SteeredStore, Verdict};
use volumes::{Error, Fencing, OpenOptions, Options, ProblemKind, Volume, Volumes};

use super::disk::{Disk, OBJECT};
use super::objects_of;
use super::stack::{cache, until};

const OBJECTS: u64 = 8;
const SECTOR: u64 = 512;

type Write<'a> = Pin<Box<dyn Future<Output = volumes::Result<Durability>> + 'a>>;

fn owner_of(store: &Arc<dyn Blocker>, name: &str, fencing: Fencing) -> Volumes {
    Volumes::new(Arc::clone(store), Options { owner: name.to_owned(), fencing, ..Options::new("vol") })
        .unwrap()
}

fn taken(volumes: &Volumes) -> Volume {
    block_on(volumes.open("a", OpenOptions { take_over: true })).unwrap()
}

/// Creates the volume "a" and fills it.
fn filled(volumes: &Volumes) -> Volume {
    let settings = objects_of(OBJECT);
    block_on(volumes.create("a", OBJECTS * OBJECT, settings)).unwrap();
    let disk = block_on(volumes.open("a", OpenOptions::default())).unwrap();
    write(&disk, 0, &test_kit::pattern(1, 0, (OBJECTS * OBJECT) as usize));
    block_on(disk.flush()).unwrap();
    disk
}

fn write(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
}

fn content(disk: &Volume) -> Vec<u8> {
    block_on(disk.read(0, OBJECTS * OBJECT)).unwrap().to_vec()
}

/// Returns a range of whole sectors within one object.
fn any_range(rng: &mut Rng) -> (u64, u64) {
    let sectors = 1 + rng.below(OBJECT / SECTOR);
    let first = rng.below(OBJECT / SECTOR - sectors + 1);
    (rng.below(OBJECTS) * OBJECT + first * SECTOR, sectors * SECTOR)
}

/// Checks that the stored content equals the model's, for a later owner.
fn assert_stored(volumes: &Volumes, model: &Disk) {
    let disk = taken(volumes);
    model.assert_same(&disk, "the next owner");
    block_on(disk.close()).unwrap();
    let report = block_on(volumes.check(true)).unwrap();
    let is_lost = report.problems.iter().any(|problem| problem.kind != ProblemKind::Leftover);
    assert!(!is_lost, "{report:?}");
    assert_eq!(block_on(volumes.check(false)).unwrap().problems, []);
}

/// Lets the second owner write while the first one's requests arrive. Returns the resulting
/// content.
fn overtaken(store: &SteeredStore, second: &Volume, rng: &mut Rng, between: &mut dyn FnMut()) -> Disk {
    let mut model = Disk::new(OBJECTS * OBJECT);
    // The first owner's changes that arrived in time.
    model.write(0, &content(second));
    let mut tag = 1000;
    loop {
        let held = store.held();
        if rng.below(2) == 0 || held.is_empty() {
            let (offset, length) = any_range(rng);
            let bytes = test_kit::pattern(tag, offset, length as usize);
            tag += 1;
            write(second, offset, &bytes);
            model.write(offset, &bytes);
            if rng.below(4) == 0 {
                block_on(second.flush()).unwrap();
            }
        }
        if !held.is_empty() {
            store.answer(held[rng.below(held.len() as u64) as usize].number);
        }
        between();
        model.assert_same(second, "the second owner");
        if held.is_empty() && tag > 1020 {
            return model;
        }
    }
}

#[test]
fn what_a_deposed_owner_has_sent_is_refused_by_the_stamps() {
    test_kit::each_seed(20, |seed, _| {
        let mut rng = Rng::new(seed);
        let store = SteeredStore::new();
        let shared = Arc::clone(&store) as Arc<dyn Blocker>;
        let [one, two, three] = ["one", "two", "three"].map(|name| owner_of(&shared, name, Fencing::Stamps));
        let first = filled(&one);
        if rng.below(2) == 0 {
            // From here on, each write first creates an object.
            block_on(one.snapshot("a", "s")).unwrap();
        }
        let mut holds = Rng::new(seed + 1000);
        store.rule(move |call| match call.op.is_change() && holds.below(2) == 0 {
            true => Verdict::Hold,
            false => Verdict::Pass,
        });
        let mut load: Vec<Write<'_>> = Vec::new();
        for tag in 0..12 {
            let (offset, length) = any_range(&mut rng);
            let bytes = test_kit::pattern(100 + tag, offset, length as usize);
            let durability = if rng.below(3) == 0 { Durability::Stored } else { Durability::Cached };
            load.push(Box::pin(first.write(offset, bytes.into(), durability)));
        }
        load.retain_mut(|write| poll_times(write.as_mut(), 2, Duration::ZERO).is_none());
        let mut flush = Some(Box::pin(first.flush()));
        if poll_times(flush.as_mut().unwrap().as_mut(), 2, Duration::ZERO).is_some() {
            flush = None;
        }
        store.pass();
        let second = taken(&two);
        let model = overtaken(&store, &second, &mut rng, &mut || {
            load.retain_mut(|write| poll_times(write.as_mut(), 1, Duration::ZERO).is_none());
        });
        for write in load {
            let late = block_on(write);
            assert!(late.is_err(), "{late:?}");
        }
        if let Some(flush) = flush {
            let late = block_on(flush);
            assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        }
        let late = block_on(async {
            first.write(0, b"late".into(), Durability::Cached).await?;
            first.flush().await
        });
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        model.assert_same(&second, "the second owner, in the end");
        block_on(second.close()).unwrap();
        assert_stored(&three, &model);
    });
}

#[test]
fn what_a_deposed_cache_flushes_is_refused_by_the_store() {
    test_kit::each_seed(3, |seed, _| {
        let mut rng = Rng::new(seed);
        let store = SteeredStore::new();
        let cached = || cache(Arc::clone(&store) as Arc<dyn Blocker>, WriteMode::Back, Writer::Cache);
        let caches = [cached(), cached(), cached()];
        let one = owner_of(&caches[0], "one", Fencing::Below);
        let first = filled(&one);
        if rng.below(2) == 0 {
            block_on(one.snapshot("a", "s")).unwrap();
            write(&first, 0, &[1; OBJECT as usize]);
            block_on(first.flush()).unwrap();
        }
        store.hold_changes();
        for tag in 0..12 {
            // If no object has to be created, the first owner answers from memory.
            let (offset, length) = any_range(&mut rng);
            let bytes = test_kit::pattern(100 + tag, offset % OBJECT, length as usize);
            write(&first, offset % OBJECT, &bytes);
        }
        let mut flush = Box::pin(first.flush());
        assert!(poll_times(flush.as_mut(), 1, Duration::ZERO).is_none());
        until("the flush is sent", || !store.held().is_empty());
        store.pass();
        let two = owner_of(&caches[1], "two", Fencing::Below);
        let second = taken(&two);
        let model = overtaken(&store, &second, &mut rng, &mut || ());
        let late = block_on(flush);
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        let late = block_on(first.write(0, b"late".into(), Durability::Cached));
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        model.assert_same(&second, "the second owner, in the end");
        block_on(second.close()).unwrap();
        assert_stored(&owner_of(&caches[2], "three", Fencing::Below), &model);
    });
}

#[test]
fn a_deposed_owner_is_promised_nothing_where_no_layer_refuses_it() {
    for durability in [Durability::Cached, Durability::Stored] {
        let store = Arc::new(Memory::default()) as Arc<dyn Blocker>;
        let [one, two] = ["one", "two"].map(|name| owner_of(&store, name, Fencing::Below));
        let first = filled(&one);
        let second = taken(&two);
        let late = block_on(async {
            let is = first.write(0, b"late".into(), durability).await?;
            if is < Durability::Stored { first.flush().await } else { Ok(()) }
        });
        assert!(matches!(late, Err(Error::Fenced { .. })), "{durability}: {late:?}");
        let late = block_on(first.write(0, b"later".into(), Durability::Cached));
        assert!(matches!(late, Err(Error::Fenced { .. })), "{durability}: {late:?}");
        write(&second, 0, b"second");
        block_on(second.flush()).unwrap();
        assert_eq!(block_on(second.read(0, 6)).unwrap().to_vec(), b"second");
    }
}

#[test]
fn a_deposed_owner_takes_nothing_from_the_next_one_where_no_layer_refuses_it() {
    let store = Arc::new(Memory::default()) as Arc<dyn Blocker>;
    let [one, two] = ["one", "two"].map(|name| owner_of(&store, name, Fencing::Below));
    // An owner that has stored the page knows its version; one that has opened the volume since
    // then reads it.
    for (at, (snapshot, knows_page)) in
        [(None, true), (Some("s"), true), (None, false), (Some("s"), false)].into_iter().enumerate()
    {
        if at > 0 {
            block_on(two.delete("a")).unwrap();
        }
        let mut first = filled(&one);
        if !knows_page {
            block_on(first.close()).unwrap();
            first = block_on(one.open("a", OpenOptions::default())).unwrap();
        }
        // A discarded object, which the next record removes from the map and deletes.
        block_on(first.discard(0, OBJECT)).unwrap();
        let second = taken(&two);
        if let Some(snapshot) = snapshot {
            block_on(two.snapshot("a", snapshot)).unwrap();
        }
        write(&second, 0, b"second");
        block_on(second.flush()).unwrap();
        let before = content(&second);
        let late = block_on(first.flush());
        assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
        assert_eq!(content(&second), before);
        block_on(second.close()).unwrap();
        let second = taken(&two);
        assert_eq!(content(&second), before);
        block_on(second.close()).unwrap();
        assert_eq!(block_on(two.check(false)).unwrap().problems, []);
    }
}

#[test]
fn a_flush_that_races_with_the_owners_own_changes_of_the_head_is_answered() {
    let store = SteeredStore::new();
    let one = owner_of(&(Arc::clone(&store) as Arc<dyn Blocker>), "one", Fencing::Below);
    let disk = filled(&one);
    // A snapshot is in progress, and its head is already stored when the flush reads it.
    store.rule(|call| {
        let is_head = call.object.as_ref().is_some_and(|object| object.name.as_bytes() == b"head");
        if call.op.is_change() && is_head { Verdict::Hold } else { Verdict::Pass }
    });
    let mut snapshot = Box::pin(one.snapshot("a", "s"));
    assert!(poll_times(snapshot.as_mut(), 1, Duration::ZERO).is_none());
    store.perform(store.held()[0].number);
    let mut flush = Box::pin(disk.flush());
    assert!(poll_times(flush.as_mut(), 1, Duration::ZERO).is_none());
    store.open();
    block_on(snapshot).unwrap();
    block_on(flush).unwrap();
}
