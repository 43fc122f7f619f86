//! A volume that moves from one owner to another on request.

use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{Blocker, Durability, Memory, WriteMode};
use cached_core::object::Writer;
use test_kit::steered::SteeredStore;
use volumes::{Error, Fencing, OpenOptions, Options, Volume, Volumes};

use super::objects_of;
use super::stack::cache;

const OBJECT: u64 = 4096;
/// The most consecutive calls to the store for which a hand-over makes the volume's user wait,
/// apart from flushing dirty data.
const CALLS_MAX: usize = 12;

fn owner_of(store: &Arc<dyn Blocker>, name: &str, fencing: Fencing) -> Volumes {
    Volumes::new(Arc::clone(store), Options { owner: name.to_owned(), fencing, ..Options::new("vol") })
        .unwrap()
}

fn made(volumes: &Volumes) -> Volume {
    block_on(volumes.create("a", 64 * OBJECT, objects_of(OBJECT))).unwrap();
    opened(volumes)
}

fn opened(volumes: &Volumes) -> Volume {
    block_on(volumes.open("a", OpenOptions::default())).unwrap_or_else(|error| panic!("{error}"))
}

fn written(disk: &Volume, offset: u64, bytes: &[u8]) {
    block_on(disk.write(offset, bytes.to_vec().into(), Durability::Cached)).unwrap();
}

fn bytes(disk: &Volume, offset: u64, length: u64) -> Vec<u8> {
    block_on(disk.read(offset, length)).unwrap().to_vec()
}

#[test]
fn a_volume_goes_to_the_owner_that_is_named_and_to_no_other() {
    for fencing in [Fencing::Below, Fencing::Stamps] {
        let store = Arc::new(Memory::default()) as Arc<dyn Blocker>;
        let [one, two, three] = ["one", "two", "three"].map(|name| owner_of(&store, name, fencing));
        let disk = made(&one);
        written(&disk, 0, b"not flushed");
        assert!(matches!(block_on(disk.hand_over("")), Err(Error::Invalid(_))));
        block_on(disk.hand_over("two")).unwrap();
        assert_eq!(block_on(disk.read(0, 1)).unwrap_err(), Error::HandedOver);
        let late = block_on(disk.write(0, b"late".into(), Durability::Cached));
        assert_eq!(late, Err(Error::HandedOver));
        assert_eq!(block_on(disk.flush()), Err(Error::HandedOver));
        block_on(disk.close()).unwrap();
        for other in [&one, &three] {
            let refused = block_on(other.open("a", OpenOptions::default())).unwrap_err();
            assert_eq!(refused, Error::InUse { owner: "two".into() });
        }
        let disk = opened(&two);
        assert_eq!(bytes(&disk, 0, 11), b"not flushed");
        written(&disk, 0, b"by two");
        block_on(disk.close()).unwrap();
        let disk = opened(&one);
        assert_eq!(bytes(&disk, 0, 11), b"by twoushed");
        block_on(disk.close()).unwrap();
        assert_eq!(block_on(one.check(false)).unwrap().problems, []);
    }
}

#[test]
fn a_volume_goes_back_and_forth_between_caches_that_write_back() {
    back_and_forth(Writer::Cache, Fencing::Below);
}

#[test]
fn a_volume_goes_back_and_forth_between_caches_whose_callers_write() {
    back_and_forth(Writer::Callers, Fencing::Stamps);
}

fn back_and_forth(writer: Writer, fencing: Fencing) {
    let store = SteeredStore::new();
    // No cache is notified of the other one's changes.
    store.silence();
    let caches = [0, 1].map(|_| cache(Arc::clone(&store) as Arc<dyn Blocker>, WriteMode::Back, writer));
    let owners = [("one", &caches[0]), ("two", &caches[1])];
    let owners = owners.map(|(name, cache)| owner_of(cache, name, fencing));
    let mut disk = made(&owners[0]);
    for round in 0..6_u8 {
        // A write in place, a write of a new object, and the entries that each cache has from
        // earlier rounds.
        written(&disk, 0, &[round; 100]);
        written(&disk, u64::from(round + 1) * OBJECT, &[round; 100]);
        if round % 3 == 2 {
            block_on(owners[usize::from(round % 2)].snapshot("a", &format!("s{round}"))).unwrap();
        }
        let (next, name) = if round % 2 == 0 { (1, "two") } else { (0, "one") };
        block_on(disk.hand_over(name)).unwrap();
        disk = opened(&owners[next]);
        assert_eq!(bytes(&disk, 0, 100), [round; 100], "round {round}");
        for earlier in 0..=round {
            assert_eq!(bytes(&disk, u64::from(earlier + 1) * OBJECT, 100), [earlier; 100], "round {round}");
        }
    }
    block_on(disk.close()).unwrap();
    assert_eq!(block_on(owners[0].check(false)).unwrap().problems, []);
}

#[test]
fn a_deposed_cache_can_have_the_volume_again() {
    let store = SteeredStore::new();
    // The replaced owner's cache notices that when its flush is refused.
    store.silence();
    let caches =
        [0, 1].map(|_| cache(Arc::clone(&store) as Arc<dyn Blocker>, WriteMode::Back, Writer::Cache));
    let [one, two] =
        [("one", &caches[0]), ("two", &caches[1])].map(|(name, cache)| owner_of(cache, name, Fencing::Below));
    let disk = made(&one);
    written(&disk, 0, b"flushed");
    block_on(disk.flush()).unwrap();
    let taken = block_on(two.open("a", OpenOptions { take_over: true })).unwrap();
    written(&taken, 0, b"by two");
    block_on(taken.flush()).unwrap();
    written(&disk, 0, b"lost");
    let flushed = block_on(disk.flush());
    assert!(matches!(flushed, Err(Error::Fenced { .. })), "{flushed:?}");
    let late = block_on(disk.write(0, b"late".into(), Durability::Cached));
    assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
    block_on(taken.hand_over("one")).unwrap();
    // The first attempt may find data that are being lost.
    let disk = super::stack::eventually("the volume is opened", || {
        block_on(one.open("a", OpenOptions::default())).ok()
    });
    assert_eq!(bytes(&disk, 0, 7), b"by twod");
    written(&disk, 0, b"again");
    block_on(disk.close()).unwrap();
    assert_eq!(bytes(&opened(&two), 0, 5), b"again");
}

#[test]
fn the_pause_is_the_flush_of_what_is_dirty_and_a_few_calls() {
    for fencing in [Fencing::Below, Fencing::Stamps] {
        let store = SteeredStore::new();
        let shared = Arc::clone(&store) as Arc<dyn Blocker>;
        let [one, two] = ["one", "two"].map(|name| owner_of(&shared, name, fencing));
        let disk = made(&one);
        written(&disk, 0, &[1; 64 * OBJECT as usize]);
        block_on(disk.flush()).unwrap();
        store.clear_log();
        block_on(disk.hand_over("two")).unwrap();
        let disk = opened(&two);
        // The first flush runs while changes continue.
        let calls: Vec<_> = store.log().iter().skip(1).map(|call| call.op).collect();
        assert!(calls.len() <= CALLS_MAX, "{fencing:?}: {calls:?}");
        assert_eq!(bytes(&disk, 0, 1), [1]);
    }
}
