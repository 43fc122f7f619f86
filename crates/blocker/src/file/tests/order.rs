//! The file backend's guarantees under concurrent operations, and failures within an operation:
//! each case makes a simulated disk hold or fail a step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::simulated::{Fault, SimulatedDisk};
use super::testing::{History, ROOT, Seen, new_disk, object_in, open, open_with};
use crate::executor::block_on;
use crate::file::{FileConfig, FileStore};
use crate::{
    Blocker, BlockerExt, ClaimRequest, Clock, CopyRequest, DeleteRequest, Durability, Epoch, Error,
    FlushRequest, InfoRequest, ListRequest, ManualClock, ObjectId, ReadRequest, Scope, Stamp,
    TruncateRequest, WriteFullRequest, WriteRequest, WriterId,
};

fn object(name: &str) -> ObjectId {
    object_in("n", name)
}

fn file_of(name: &str) -> PathBuf {
    Path::new(ROOT).join("objects/n.ns").join(format!("{name}.obj"))
}

fn write(store: &FileStore, id: &ObjectId, data: &'static [u8], durability: Durability) {
    block_on(store.write(WriteRequest::new(id.clone(), 0, data).durability(durability))).unwrap();
}

fn content(store: &FileStore, id: &ObjectId) -> Vec<u8> {
    block_on(store.read(ReadRequest::new(id.clone(), 0, 100_000))).unwrap().data.to_vec()
}

fn claim(store: &FileStore, epoch: u64) -> Result<(), Error> {
    let scope = Scope::Namespace(object("x").namespace);
    block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(7)))).map(drop)
}

fn buried(store: &FileStore, name: &str) {
    let id = object(name);
    block_on(store.write(WriteRequest::new(id.clone(), 0, b"x").stamp(Stamp::new(1, 1)))).unwrap();
    block_on(store.delete(DeleteRequest::new(id).stamp(Stamp::new(1, 2)))).unwrap();
}

/// Opens a store whose next listing removes the tombstone of `a`, because an epoch was claimed
/// after the deletion.
fn open_with_tombstone(disk: &SimulatedDisk) -> Arc<FileStore> {
    let store = open(disk).unwrap();
    buried(&store, "a");
    claim(&store, 2).unwrap();
    store.close().unwrap();
    Arc::new(open(disk).unwrap())
}

fn list(store: &FileStore) -> Vec<Vec<u8>> {
    let listed = block_on(store.list(ListRequest::new(object("x").namespace))).unwrap();
    listed.entries.iter().map(|entry| entry.name.as_bytes().to_vec()).collect()
}

/// A listing that removes a tombstone, a stamped change of its object, and a claim would deadlock
/// unless all of them lock the claims before the object.
#[test]
fn a_listing_a_change_and_a_claim_do_not_wait_for_each_other() {
    for step in ["open", "after head", "unlink"] {
        let disk = new_disk();
        let store = open_with_tombstone(&disk);
        disk.hold(step, &file_of("a"));
        let lists = thread::spawn({
            let store = Arc::clone(&store);
            move || list(&store)
        });
        disk.wait_held();
        let changes = thread::spawn({
            let store = Arc::clone(&store);
            let request = WriteRequest::new(object("a"), 0, b"y").stamp(Stamp::new(2, 1));
            move || block_on(store.write(request)).map(drop)
        });
        let claims = thread::spawn({
            let store = Arc::clone(&store);
            move || claim(&store, 3)
        });
        // The claim waits for the listing or the change, or it has been made.
        while store.store.claims.try_read().is_some() && !claims.is_finished() {
            thread::yield_now();
        }
        disk.release();
        lists.join().unwrap();
        claims.join().unwrap().unwrap();
        match changes.join().unwrap() {
            Ok(()) | Err(Error::Fenced { epoch: Epoch(3) }) => {}
            other => panic!("{step}: {other:?}"),
        }
    }
}

#[test]
fn a_tombstone_that_is_renewed_while_a_listing_looks_at_it_stays() {
    let disk = new_disk();
    let store = open_with_tombstone(&disk);
    disk.hold("after head", &file_of("a"));
    let lists = thread::spawn({
        let store = Arc::clone(&store);
        move || list(&store)
    });
    disk.wait_held();
    let id = object("a");
    block_on(store.write(WriteRequest::new(id.clone(), 0, b"y").stamp(Stamp::new(3, 1)))).unwrap();
    block_on(store.delete(DeleteRequest::new(id.clone()).stamp(Stamp::new(3, 5)))).unwrap();
    disk.release();
    lists.join().unwrap();
    let late = WriteRequest::new(id, 0, b"late").stamp(Stamp::new(3, 4));
    let superseded = Error::Superseded { stamp: Stamp::new(3, 5) };
    assert_eq!(block_on(store.write(late)).unwrap_err(), superseded);
}

#[test]
fn a_listing_after_a_claim_removes_tombstones_and_syncs_nothing() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    for number in 0..300 {
        buried(&store, &format!("t{number}"));
    }
    claim(&store, 2).unwrap();
    block_on(store.flush(FlushRequest::new(Scope::All))).unwrap();
    let before = disk.syncs();
    assert!(list(&store).is_empty());
    assert_eq!(disk.syncs(), before);
    assert!(disk.contents().keys().all(|path| !path.starts_with(Path::new(ROOT).join("objects"))));
    store.close().unwrap();
    disk.power_cycle(1);
    assert!(disk.contents().keys().all(|path| !path.starts_with(Path::new(ROOT).join("objects"))));
}

#[test]
fn a_listing_after_a_crash_syncs_nothing() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    for number in 0..300 {
        write(&store, &object(&format!("o{number}")), b"x", Durability::Cached);
    }
    drop(store);
    let store = open(&disk).unwrap();
    let before = disk.syncs();
    assert_eq!(list(&store).len(), 300);
    assert_eq!(disk.syncs(), before);
}

#[test]
fn a_listing_goes_on_saying_what_is_there() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    let page = |after: Option<&str>, prefix: &str| {
        let mut request = ListRequest::new(object("x").namespace).entries_max(2).prefix(prefix.to_owned());
        if let Some(after) = after {
            request = request.after(object(after).name);
        }
        let reply = block_on(store.list(request)).unwrap();
        let names = reply.entries.iter().map(|entry| entry.name.to_string()).collect::<Vec<_>>();
        (names.join(" "), reply.has_more)
    };
    for name in ["a", "b", "c", "e", "f"] {
        write(&store, &object(name), b"x", Durability::Cached);
    }
    assert_eq!(page(None, ""), ("a b".into(), true));
    // Created and removed between two pages.
    write(&store, &object("d"), b"x", Durability::Cached);
    block_on(store.write_full(WriteFullRequest::new(object("d2"), b"x"))).unwrap();
    block_on(store.delete(DeleteRequest::new(object("e")))).unwrap();
    assert_eq!(page(Some("b"), ""), ("c d".into(), true));
    assert_eq!(page(Some("d"), ""), ("d2 f".into(), false));
    assert_eq!(page(None, "d"), ("d d2".into(), false));
    assert_eq!(page(Some("a"), "d2"), ("d2".into(), false));
    assert_eq!(page(Some("e"), "d"), (String::new(), false));
}

#[test]
fn making_room_does_not_sync_each_file() {
    for together in [true, false] {
        let disk = new_disk();
        if !together {
            disk.media.lock().no_sync_all = true;
        }
        let store = open(&disk).unwrap();
        let before = disk.syncs();
        for number in 0..2_000 {
            // A second write, so that the header lacks the version of the closed file.
            let id = object(&format!("o{number}"));
            write(&store, &id, b"x", Durability::Cached);
            write(&store, &id, b"y", Durability::Cached);
        }
        let syncs = disk.syncs() - before;
        assert!(syncs < 400 || !together, "{syncs} syncs for 2000 creations with 32 open files");
        let versions: Vec<_> = [0, 7, 1_999]
            .iter()
            .map(|number| {
                let id = object(&format!("o{number}"));
                (id.clone(), block_on(store.info(InfoRequest::new(id))).unwrap().version)
            })
            .collect();
        store.close().unwrap();
        disk.power_cycle(3);
        let store = open(&disk).unwrap();
        for (id, version) in versions {
            assert_eq!(block_on(store.info(InfoRequest::new(id.clone()))).unwrap().version, version);
            assert_eq!(content(&store, &id), b"y");
        }
    }
}

/// The thread that has made a directory may not have recorded yet that the entry is unstored.
#[test]
fn what_is_stored_in_a_directory_that_another_thread_has_just_made_survives() {
    for seed in 0..8 {
        let disk = new_disk();
        let store = Arc::new(open(&disk).unwrap());
        let spawn_write = |name, durability| {
            let store = Arc::clone(&store);
            thread::spawn(move || write(&store, &object(name), b"x", durability))
        };
        disk.hold("after make_dir", &Path::new(ROOT).join("objects/n.ns"));
        let first = spawn_write("first", Durability::Cached);
        disk.wait_held();
        let second = spawn_write("second", Durability::Stored);
        // The second write waits for the first one, or it has been made.
        while store.store.unsynced_dirs.try_lock().is_some() && !second.is_finished() {
            thread::yield_now();
        }
        disk.release();
        first.join().unwrap();
        second.join().unwrap();
        drop(store);
        disk.power_cycle(seed);
        assert_eq!(content(&open(&disk).unwrap(), &object("second")), b"x", "seed {seed}");
    }
}

#[test]
fn what_is_stored_in_a_directory_survives_although_an_error_came_after_the_directory_was_made() {
    for seed in 0..32 {
        let disk = new_disk();
        let store = open(&disk).unwrap();
        let dir = Path::new(ROOT).join("objects/n.ns");
        // EMFILE.
        disk.refuse(&dir, Some(24));
        let failed = block_on(store.write(WriteRequest::new(object("a"), 0, b"x")));
        assert!(failed.is_err());
        disk.refuse(&dir, None);
        write(&store, &object("a"), b"x", Durability::Stored);
        drop(store);
        disk.power_cycle(seed);
        assert_eq!(content(&open(&disk).unwrap(), &object("a")), b"x", "seed {seed}");
    }
}

/// Otherwise a read after the deadline could show the old bytes, and the change be made later.
#[test]
fn a_change_whose_deadline_passes_while_it_waits_for_its_locks_is_never_made() {
    let (disk, clock, id) = (new_disk(), ManualClock::new(), object("a"));
    let before = open(&disk).unwrap();
    write(&before, &id, b"one", Durability::Cached);
    before.close().unwrap();
    drop(before);
    let config = FileConfig { threads: 2, ..FileConfig::default() };
    let clock_of_store = Arc::new(clock.clone());
    let store =
        FileStore::over(Path::new(ROOT), config, clock_of_store, Arc::new(disk.clone()), None).unwrap();
    disk.hold("open", &file_of("a"));
    let deadline = clock.now() + Duration::from_secs(1);
    let late = store.write(WriteRequest::new(id.clone(), 0, b"two").deadline(deadline));
    disk.wait_held();
    clock.advance(Duration::from_secs(1));
    assert_eq!(block_on(late).map(drop), Err(Error::DeadlinePassed));
    disk.release();
    assert_eq!(content(&store, &id), b"one");
}

/// A flush of many objects stores them together: the headers after the data, and concurrent changes
/// do not count as stored.
#[test]
fn a_flush_of_many_objects_stores_them_all() {
    let disk = new_disk();
    let store = open_with(&disk, 512).unwrap();
    let ids: Vec<_> = (0..100).map(|number| object(&format!("o{number}"))).collect();
    let stamped = |id: &ObjectId, data: &'static [u8], sequence| {
        block_on(store.write(WriteRequest::new(id.clone(), 0, data).stamp(Stamp::new(1, sequence)))).unwrap();
    };
    ids.iter().for_each(|id| stamped(id, b"one", 1));
    let before = disk.syncs();
    block_on(store.flush(FlushRequest::new(Scope::All))).unwrap();
    assert!(disk.syncs() - before < 20, "{} syncs", disk.syncs() - before);
    ids[..3].iter().for_each(|id| stamped(id, b"two", 2));
    assert_eq!(store.store.unsynced_count(), 3);
    drop(store);
    disk.power_cycle(2);
    let store = open(&disk).unwrap();
    for id in &ids[3..] {
        assert_eq!(content(&store, id), b"one");
        let stamp = block_on(store.info(InfoRequest::new(id.clone()))).unwrap().stamp;
        assert_eq!(stamp, Some(Stamp::new(1, 1)));
    }
}

/// The `syncfs` of a flush of many objects does not cover a directory that was created after it.
#[test]
fn a_directory_made_during_a_flush_of_many_objects_is_stored_by_the_next_flush() {
    let late = object_in("late", "a");
    for seed in 0..8 {
        let disk = new_disk();
        let store = Arc::new(open_with(&disk, 512).unwrap());
        (0..50).for_each(|number| write(&store, &object(&format!("o{number}")), b"x", Durability::Cached));
        disk.hold("after sync_all", Path::new("/"));
        let flushes = thread::spawn({
            let store = Arc::clone(&store);
            move || block_on(store.flush(FlushRequest::new(Scope::All))).map(drop)
        });
        disk.wait_held();
        write(&store, &late, b"late", Durability::Cached);
        disk.release();
        flushes.join().unwrap().unwrap();
        block_on(store.flush(FlushRequest::new(Scope::Object(late.clone())))).unwrap();
        drop(store);
        disk.power_cycle(seed);
        let store = open(&disk).unwrap();
        assert_eq!(content(&store, &late), b"late", "seed {seed}");
        assert_eq!(content(&store, &object("o49")), b"x");
    }
}

#[test]
fn a_failed_sync_of_many_is_laid_to_the_object_that_lost_something() {
    let disk = new_disk();
    let store = open_with(&disk, 512).unwrap();
    for number in 0..50 {
        write(&store, &object(&format!("o{number}")), b"x", Durability::Cached);
    }
    // One write-back fails unnoticed by the store.
    disk.fail(1, vec![(Fault::WriteBack, 1000)]);
    write(&store, &object("o7"), b"lost?", Durability::Cached);
    disk.media.lock().faults = None;
    let kind = |scope: Scope| block_on(store.flush(FlushRequest::new(scope))).map_err(|error| error.kind());
    assert_eq!(kind(Scope::All).unwrap_err(), "writes_lost");
    assert_eq!(kind(Scope::Object(object("o7"))).unwrap_err(), "writes_lost");
    assert!(kind(Scope::Object(object("o8"))).is_ok());
    block_on(store.write_full(WriteFullRequest::new(object("o7"), b"anew"))).unwrap();
    assert!(kind(Scope::All).is_ok());
    drop(store);
    disk.power_cycle(5);
    let store = open(&disk).unwrap();
    assert_eq!(content(&store, &object("o7")), b"anew");
    assert_eq!(content(&store, &object("o8")), b"x");
}

#[test]
fn a_change_that_comes_behind_the_close_is_refused() {
    let disk = new_disk();
    let store = Arc::new(open(&disk).unwrap());
    // Each shard may have two open files. To open a third one, an operation waits for the lock of
    // the thread that closes files.
    write(&store, &object("a1"), b"x", Durability::Cached);
    write(&store, &object("b1"), b"x", Durability::Cached);
    let turn = store.store.turn.lock();
    let evictions = store.store.evictions.load(Ordering::Relaxed);
    let changes = thread::spawn({
        let store = Arc::clone(&store);
        move || block_on(store.write(WriteRequest::new(object("c1"), 0, b"late"))).map(drop)
    });
    while store.store.evictions.load(Ordering::Relaxed) == evictions {
        thread::yield_now();
    }
    // The operation has checked that the store is open, but has not begun.
    store.close().unwrap();
    drop(turn);
    assert_eq!(changes.join().unwrap().unwrap_err().kind(), "denied");
    let store = open(&disk).unwrap();
    assert_eq!(block_on(store.info(InfoRequest::new(object("c1")))).unwrap_err(), Error::Missing);
}

#[test]
fn closing_waits_for_the_change_under_way() {
    let disk = new_disk();
    let store = Arc::new(open(&disk).unwrap());
    write(&store, &object("a"), b"old", Durability::Stored);
    disk.hold("rename", &file_of("a"));
    let changes = thread::spawn({
        let store = Arc::clone(&store);
        move || block_on(store.write_full(WriteFullRequest::new(object("a"), b"new")))
    });
    disk.wait_held();
    let closes = thread::spawn({
        let store = Arc::clone(&store);
        move || store.close()
    });
    while store.store.claims.try_read().is_some() {
        thread::yield_now();
    }
    disk.release();
    let version = changes.join().unwrap().unwrap().version;
    closes.join().unwrap().unwrap();
    disk.power_cycle(1);
    let store = open(&disk).unwrap();
    assert_eq!(content(&store, &object("a")), b"new");
    assert_eq!(block_on(store.info(InfoRequest::new(object("a")))).unwrap().version, version);
}

#[test]
fn a_claim_that_could_not_be_stored_is_stored_by_its_repetition() {
    for fault in [Fault::Create, Fault::Write, Fault::Sync, Fault::Rename, Fault::SyncDir] {
        let disk = new_disk();
        let store = open(&disk).unwrap();
        disk.fail(3, vec![(fault, 1000)]);
        for _ in 0..3 {
            let error = claim(&store, 5).unwrap_err();
            assert!(error.is_ambiguous(), "{fault:?}: {error}");
        }
        // The claim is already in force in memory.
        let old = WriteRequest::new(object("a"), 0, b"old").stamp(Stamp::new(4, 1));
        assert_eq!(block_on(store.write(old.clone())).unwrap_err(), Error::Fenced { epoch: Epoch(5) });
        disk.media.lock().faults = None;
        claim(&store, 5).unwrap();
        drop(store);
        disk.power_cycle(9);
        let store = open(&disk).unwrap();
        assert_eq!(block_on(store.write(old)).unwrap_err(), Error::Fenced { epoch: Epoch(5) }, "{fault:?}");
    }
}

#[test]
fn a_stamped_delete_whose_sync_fails_is_not_forgotten() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    write(&store, &object("a"), b"kept", Durability::Stored);
    block_on(store.write(WriteRequest::new(object("a"), 0, b"cached").stamp(Stamp::new(1, 1)))).unwrap();
    disk.media.lock().sync_fails = true;
    let delete = DeleteRequest::new(object("a")).stamp(Stamp::new(1, 2));
    assert!(block_on(store.delete(delete)).unwrap_err().is_ambiguous());
    disk.media.lock().sync_fails = false;
    let flushed = block_on(store.flush(FlushRequest::new(Scope::All)));
    assert_eq!(flushed.unwrap_err().kind(), "writes_lost");
}

#[test]
fn a_write_that_fails_half_way_leaves_nothing_behind_the_end() {
    let mut half_done = 0;
    for seed in 0..40 {
        for (fault, trims) in [(Fault::Write, true), (Fault::Full, true), (Fault::Write, false)] {
            let disk = new_disk();
            let store = open(&disk).unwrap();
            let id = object("a");
            block_on(store.write(WriteRequest::new(id.clone(), 0, vec![1; 6_000]))).unwrap();
            let mut chances = vec![(fault, 1000)];
            if !trims {
                chances.push((Fault::SetLen, 1000));
            }
            disk.fail(seed, chances);
            let across = WriteRequest::new(id.clone(), 5_000, vec![2; 8_192]);
            let failed = block_on(store.write(across)).unwrap_err();
            half_done += u32::from(failed.is_ambiguous());
            disk.media.lock().faults = None;
            block_on(store.truncate(TruncateRequest::new(id.clone(), 20_000))).unwrap();
            let found = content(&store, &id);
            assert_eq!(found.len(), 20_000);
            assert!(found[..5_000].iter().all(|byte| *byte == 1));
            assert!(found[6_000..].iter().all(|byte| *byte == 0), "seed {seed}, {fault:?}, {trims}");
            // The next start does not expose old bytes either.
            disk.fail(seed, vec![(fault, 1000)]);
            let before = content(&store, &id);
            let _ = block_on(store.write(WriteRequest::new(id.clone(), 20_000, vec![3; 8_192]))).unwrap_err();
            disk.media.lock().faults = None;
            store.close().unwrap();
            assert_eq!(content(&open(&disk).unwrap(), &id), before);
        }
    }
    assert!(half_done > 20, "only {half_done} writes failed in the middle");
}

#[test]
fn an_object_is_stored_without_what_a_failed_write_has_left_behind_its_end() {
    let mut left_behind = 0;
    for seed in 0..20 {
        // The object is stored alone, with a few others, and with so many others that they are
        // stored together.
        for others in [0, 3, 40] {
            let disk = new_disk();
            let store = open_with(&disk, 512).unwrap();
            let id = object("a");
            block_on(store.write(WriteRequest::new(id.clone(), 0, vec![1; 6_000]))).unwrap();
            (0..others)
                .for_each(|number| write(&store, &object(&format!("o{number}")), b"x", Durability::Cached));
            let file_bytes = || disk.contents()[&file_of("a")].len();
            let before = file_bytes();
            disk.fail(seed, vec![(Fault::Write, 1000), (Fault::SetLen, 1000)]);
            block_on(store.write(WriteRequest::new(id.clone(), 5_000, vec![2; 8_192]))).unwrap_err();
            disk.media.lock().faults = None;
            left_behind += u32::from(file_bytes() > before);
            let scope = if others == 0 { Scope::Object(id.clone()) } else { Scope::All };
            block_on(store.flush(FlushRequest::new(scope))).unwrap();
            assert_eq!(file_bytes(), before, "seed {seed}");
            drop(store);
            disk.power_cycle(seed);
            let store = open(&disk).unwrap();
            let found = content(&store, &id);
            assert_eq!(found.len(), 6_000, "seed {seed}");
            assert!(found[..5_000].iter().all(|byte| *byte == 1));
        }
    }
    assert!(left_behind > 20, "only {left_behind} writes left something behind the end");
}

#[test]
fn a_creation_that_fails_leaves_no_object() {
    let mut definite = 0;
    for seed in 0..20 {
        for fault in [Fault::Write, Fault::Full, Fault::SetLen] {
            for buried_before in [false, true] {
                let disk = new_disk();
                let store = open(&disk).unwrap();
                let id = object("a");
                if buried_before {
                    buried(&store, "a");
                }
                disk.fail(seed, vec![(fault, 600)]);
                let stamp = Stamp::new(1, 3);
                let request = WriteRequest::new(id.clone(), 100, vec![2; 8_192]).stamp(stamp);
                let done = block_on(store.write(request));
                disk.media.lock().faults = None;
                drop(store);
                disk.restart();
                let store = open(&disk).unwrap();
                let found = block_on(store.info(InfoRequest::new(id.clone()))).map(|info| info.size_bytes);
                match done {
                    Ok(_) => assert_eq!(found, Ok(8_292)),
                    // The rollback of the change has failed as well.
                    Err(error) if error.is_ambiguous() => continue,
                    Err(error) => {
                        definite += 1;
                        assert_eq!(found, Err(Error::Missing), "{fault:?} {error}");
                    }
                }
                if buried_before && found.is_err() {
                    let late = WriteRequest::new(id, 0, b"late").stamp(Stamp::new(1, 2));
                    let superseded = Error::Superseded { stamp: Stamp::new(1, 2) };
                    assert_eq!(block_on(store.write(late)).unwrap_err(), superseded);
                }
            }
        }
    }
    assert!(definite > 20, "only {definite} creations failed for sure");
}

/// The removal of the file must not be lost with the power: the file would be an empty object.
#[test]
fn a_creation_that_fails_leaves_no_object_after_a_power_loss() {
    for seed in 0..400 {
        let disk = new_disk();
        let store = open(&disk).unwrap();
        // The directory exists, and is stored.
        write(&store, &object("other"), b"x", Durability::Stored);
        disk.fail(seed, vec![(Fault::Write, 1000)]);
        let failed = block_on(store.write(WriteRequest::new(object("a"), 0, b"new"))).unwrap_err();
        disk.media.lock().faults = None;
        assert!(!failed.is_ambiguous(), "{failed}");
        block_on(store.flush(FlushRequest::new(Scope::All))).unwrap();
        drop(store);
        disk.power_cycle(seed);
        let found = block_on(open(&disk).unwrap().info(InfoRequest::new(object("a"))));
        assert_eq!(found.unwrap_err(), Error::Missing, "seed {seed}");
    }
}

/// An object that outgrows its packed place moves; its stored data exist at every step.
#[test]
fn an_object_outgrows_its_first_block_without_loss() {
    let grow = |store: &FileStore, history: &mut History| {
        let id = object("a");
        let mut wanted = vec![7; 100];
        for (offset, len) in [(0, 100), (100, 2_972), (3_072, 1), (3_000, 9_000)] {
            wanted.resize(offset + len, 0);
            wanted[offset..].fill(offset as u8);
            let data = wanted[offset..].to_vec();
            let is_stored = offset != 3_072;
            let durability = if is_stored { Durability::Stored } else { Durability::Cached };
            let request = WriteRequest::new(id.clone(), offset as u64, data).durability(durability);
            let done = block_on(store.write(request));
            history.push(Seen { content: Some(wanted.clone()), stamp: None }, is_stored && done.is_ok());
            if done.is_err() {
                return false;
            }
        }
        true
    };
    let disk = new_disk();
    assert!(grow(&open(&disk).unwrap(), &mut History::default()));
    let steps = disk.steps();
    for cut in 1..=steps + 1 {
        for seed in 0..4 {
            let disk = new_disk();
            disk.media.lock().cut_at = Some(cut);
            let mut history = History::default();
            if let Ok(store) = open(&disk) {
                grow(&store, &mut history);
            }
            disk.power_cycle(seed << 32 | cut);
            history.explain(&open(&disk).unwrap(), &object("a"));
        }
    }
}

/// A killed process has created directories and changed entries without syncing them. The next
/// process must not assume that they are stored.
#[test]
fn what_a_killed_process_left_behind_is_stored_by_the_next() {
    let ids: Vec<_> =
        (0..3).map(|number| object_in(&format!("space{number}"), vec![b'/'; 1 + 90 * number])).collect();
    let cached = |store: &FileStore| {
        ids.iter().all(|id| block_on(store.write(WriteRequest::new(id.clone(), 0, b"one"))).is_ok())
    };
    let mut kills = 0;
    for together in [true, false] {
        let new_disk = || {
            let disk = new_disk();
            if !together {
                disk.media.lock().no_sync_all = true;
            }
            open(&disk).unwrap().close().unwrap();
            disk
        };
        let disk = new_disk();
        let before = disk.steps();
        assert!(cached(&open(&disk).unwrap()));
        for kill in before + 1..=disk.steps() {
            for seed in 0..4 {
                kills += 1;
                let disk = new_disk();
                disk.media.lock().cut_at = Some(kill);
                if let Ok(store) = open(&disk) {
                    cached(&store);
                }
                disk.restart();
                let store = open(&disk).unwrap();
                let flushed = ids.iter().filter(|id| {
                    block_on(store.info(InfoRequest::new((*id).clone())))
                        .is_ok_and(|info| info.size_bytes == 3)
                });
                let flushed: Vec<_> = flushed.collect();
                block_on(store.flush(FlushRequest::new(Scope::All))).unwrap();
                let written = &ids[seed as usize % 3];
                write(&store, written, b"two", Durability::Stored);
                drop(store);
                disk.power_cycle(seed << 32 | kill);
                let store = open(&disk).unwrap();
                assert_eq!(content(&store, written), b"two");
                for id in flushed.into_iter().filter(|id| *id != written) {
                    assert_eq!(content(&store, id), b"one", "killed at step {kill}");
                }
            }
        }
    }
    assert!(kills > 100, "only {kills} kills");
}

#[test]
fn a_lost_object_is_not_copied() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    write(&store, &object("a"), b"lost?", Durability::Cached);
    disk.media.lock().sync_fails = true;
    block_on(store.flush(FlushRequest::new(Scope::All))).unwrap_err();
    disk.media.lock().sync_fails = false;
    let copied = block_on(store.copy(CopyRequest::new(object("a"), object("b"))));
    assert_eq!(copied.unwrap_err().kind(), "writes_lost");
    assert_eq!(block_on(store.info(InfoRequest::new(object("b")))).unwrap_err(), Error::Missing);
}

/// No version is reused, however the previous process ended: by a power cut, a kill, or an orderly
/// close.
#[test]
fn versions_are_given_once() {
    let (disk, id) = (new_disk(), object("a"));
    let mut versions = std::collections::HashSet::new();
    for life in 0..12 {
        let store = open(&disk).unwrap();
        for _ in 0..5 {
            let version = block_on(store.write(WriteRequest::new(id.clone(), 0, b"x"))).unwrap().version;
            assert!(versions.insert(version), "{version} is given a second time");
        }
        match life % 3 {
            0 => store.close().unwrap(),
            1 => disk.power_cycle(life),
            _ => disk.restart(),
        }
        drop(store);
    }
}
