//! The file backend under power loss: at every step of seeded workloads, and under the whole
//! conformance suite.
//!
//! A workload is run once to count the disk's steps, then again for each step, with the power cut
//! there. The acknowledgements must explain the surviving state: stored data are exactly there;
//! each byte of an object with unstored changes is that of one of its states since; a stored stamp
//! stands for stored data; no version stands for two contents.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use super::simulated::SimulatedDisk;
use super::testing::{History, ROOT, Seen, new_disk, open};
use crate::conformance::{Harness, Options, Verdict, run};
use crate::executor::block_on;
use crate::file::FileStore;
use crate::file::check::{Finding, FindingKind, check_on};
use crate::rng::Rng;
use crate::{
    Blocker, BlockerExt, ChangeReply, ChangeTerms, ClaimRequest, CopyRequest, DeleteRequest, DiscardRequest,
    Durability, Epoch, Error, Event, FlushRequest, InfoRequest, InvalidateRequest, ListRequest, Name,
    Namespace, ObjectId, ReadRequest, Reply, Result, Scope, Stamp, TruncateRequest, Version,
    WriteFullRequest, WriteRequest, WriterId,
};

const OBJECTS: u64 = 4;
const EPOCH: u64 = 5;

fn object(key: u64) -> ObjectId {
    let namespace = Namespace::new("volume").unwrap();
    // One of the names needs several directories.
    let name = if key == 3 { vec![b'/'; 200] } else { vec![b'a' + key as u8] };
    ObjectId::new(namespace, Name::new(name).unwrap())
}

#[derive(Default)]
struct Model {
    objects: BTreeMap<u64, History>,
    versions: HashMap<(u64, Version), Vec<u8>>,
    claimed: bool,
}

/// Runs the seed's workload until it ends or the power fails. Returns whether it ended.
fn work(store: &FileStore, seed: u64, model: &mut Model) -> bool {
    let mut rng = Rng::new(seed);
    for sequence in 1..=30 {
        let key = rng.below(OBJECTS);
        let before = model.objects.entry(key).or_default().last();
        let stamp = before.stamp.map_or(rng.below(3) == 0, |_| true).then(|| Stamp::new(EPOCH, 2 * sequence));
        let durability = if rng.below(3) == 0 { Durability::Stored } else { Durability::Cached };
        let change = ChangeTerms { stamp, durability, ..ChangeTerms::default() };
        let (offset, len) = (rng.below(12) * 300, 1 + rng.below(9) * 300);
        let (from, to) = (offset as usize, (offset + len) as usize);
        let data = rng.bytes(len as usize);
        let mut after = before.content.clone();
        let kind = rng.below(10);
        let reply: Reply<ChangeReply> = match kind {
            0..=3 => {
                let content = after.get_or_insert_default();
                content.resize(content.len().max(to), 0);
                content[from..to].copy_from_slice(&data);
                store.write(WriteRequest::new(object(key), offset, data).terms(change))
            }
            4 => {
                after = Some(data.clone());
                store.write_full(WriteFullRequest::new(object(key), data).terms(change))
            }
            5 => {
                if let Some(content) = &mut after {
                    content.resize(from, 0);
                }
                store.truncate(TruncateRequest::new(object(key), offset).terms(change))
            }
            6 => {
                if let Some(content) = &mut after {
                    let size = content.len();
                    content[from.min(size)..to.min(size)].fill(0);
                }
                store.discard(DiscardRequest::new(object(key), offset, len).terms(change))
            }
            7 => {
                after = None;
                store.delete(DeleteRequest::new(object(key)).terms(change))
            }
            8 => {
                let source = (key + 1) % OBJECTS;
                after = model.objects.get(&source).and_then(|history| history.last().content);
                store.copy(CopyRequest::new(object(source), object(key)).terms(change))
            }
            _ => {
                let flushed = block_on(store.flush(FlushRequest::new(Scope::All)));
                match flushed {
                    Ok(_) => model.objects.values_mut().for_each(History::stored),
                    Err(_) => return false,
                }
                continue;
            }
        };
        // A delete without a stamp forgets the object's stamp.
        let stamp_after = if kind == 7 { stamp } else { stamp.or(before.stamp) };
        let history = model.objects.entry(key).or_default();
        match block_on(reply) {
            Ok(done) => {
                if let Some(content) = &after {
                    model.versions.insert((key, done.version), content.clone());
                }
                let is_stored = durability == Durability::Stored;
                history.push(Seen { content: after, stamp: stamp_after }, is_stored);
            }
            Err(Error::Missing) => {}
            Err(error) => {
                println!("step {sequence}, operation {kind} on object {key} with {stamp:?}: {error}");
                // The power failed, so the change may or may not have been made.
                history.push(Seen { content: after, stamp: stamp_after }, false);
                return false;
            }
        }
        if sequence == 15 {
            let request = ClaimRequest::new(Scope::Namespace(object(0).namespace), Epoch(1), WriterId(1));
            match block_on(store.claim(request)) {
                // From here on every change needs a stamp.
                Ok(_) => model.claimed = true,
                Err(_) => return false,
            }
            model.objects.entry(0).or_default();
            for key in 0..OBJECTS {
                let history = model.objects.entry(key).or_default();
                let stamp = Stamp::new(EPOCH, 2 * sequence + 1);
                let mut after = history.last().content.unwrap_or_default();
                after.resize(after.len().max(1), 0);
                after[0] = b'!';
                let request = WriteRequest::new(object(key), 0, b"!").stamp(stamp);
                let done = block_on(store.write(request));
                history.push(Seen { content: Some(after), stamp: Some(stamp) }, false);
                if done.is_err() {
                    return false;
                }
            }
        }
    }
    true
}

/// Checks that the history explains the object's state.
fn check(store: &FileStore, key: u64, history: &History, versions: &HashMap<(u64, Version), Vec<u8>>) {
    let (seen, version) = history.explain(store, &object(key));
    if let (Some(found), Some(content)) = (&seen.content, versions.get(&(key, version))) {
        assert!(content == found, "object {key}: its version stands for other bytes");
    }
}

/// Remains of a crash are not damage.
fn assert_in_order(disk: &SimulatedDisk) {
    let mut on_finding = |finding: &Finding| assert!(finding.kind != FindingKind::Damage, "{finding:?}");
    match check_on(disk, Path::new(ROOT), false, &mut on_finding) {
        // The first start was interrupted.
        Ok(_) | Err(Error::Denied(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

fn check_all(store: &FileStore, model: &Model) {
    for (key, history) in &model.objects {
        check(store, *key, history, &model.versions);
    }
    let late = WriteRequest::new(ObjectId::new(object(0).namespace, Name::new("late").unwrap()), 0, b"x");
    match block_on(store.write(late)) {
        Err(Error::Fenced { .. }) => {}
        done => assert!(done.is_ok() && !model.claimed, "a claim is forgotten: {done:?}"),
    }
}

/// The store must work like a new one, and must not reuse a version.
fn use_again(store: &FileStore, versions: &HashMap<(u64, Version), Vec<u8>>) {
    for key in 0..OBJECTS {
        let stamp = Stamp::new(EPOCH + 1, key);
        let change =
            ChangeTerms { stamp: Some(stamp), durability: Durability::Stored, ..ChangeTerms::default() };
        let again = WriteFullRequest::new(object(key), b"again").terms(change);
        let version = block_on(store.write_full(again)).unwrap().version;
        assert!(!versions.contains_key(&(key, version)), "object {key}: {version} is given a second time");
        let read = block_on(store.read(ReadRequest::new(object(key), 0, 10))).unwrap();
        assert_eq!(read.data.to_vec(), b"again");
    }
    let listed = block_on(store.list(ListRequest::new(object(0).namespace))).unwrap();
    let count = listed.entries.iter().filter(|entry| entry.name.as_bytes() != b"late").count();
    assert_eq!(count as u64, OBJECTS);
}

#[test]
fn the_power_may_go_at_every_step() {
    let mut cuts = 0;
    for seed in 0..6 {
        let disk = new_disk();
        let mut model = Model::default();
        let store = open(&disk).unwrap();
        assert!(work(&store, seed, &mut model));
        check_all(&store, &model);
        store.close().unwrap();
        let steps = disk.steps();
        for cut in 1..=steps {
            cuts += 1;
            println!("seed {seed}, power cut at step {cut} of {steps}");
            let disk = new_disk();
            disk.media.lock().cut_at = Some(cut);
            let mut model = Model::default();
            if let Ok(store) = open(&disk) {
                let ended = work(&store, seed, &mut model);
                let closed = ended && store.close().is_ok();
                assert!(!closed || cut > steps, "the power was not cut");
            }
            disk.power_cycle(seed << 32 | cut);
            assert_in_order(&disk);
            let store = open(&disk).unwrap();
            check_all(&store, &model);
            use_again(&store, &model.versions);
            store.close().unwrap();
            drop(store);
            // After an orderly close another power loss changes nothing.
            disk.power_cycle(cut);
            let store = open(&disk).unwrap();
            let read = block_on(store.read(ReadRequest::new(object(1), 0, 10))).unwrap();
            assert_eq!(read.data.to_vec(), b"again");
        }
    }
    assert!(cuts > 500, "only {cuts} cuts");
}

#[test]
fn the_power_may_go_while_starting_again() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    block_on(store.write(WriteRequest::new(object(0), 0, b"kept").durability(Durability::Stored))).unwrap();
    drop(store);
    for cut in 1..10 {
        disk.media.lock().cut_at = Some(cut);
        let _ = open(&disk);
        disk.power_cycle(cut);
        let store = open(&disk).unwrap();
        let read = block_on(store.read(ReadRequest::new(object(0), 0, 10))).unwrap();
        assert_eq!(read.data.to_vec(), b"kept");
        drop(store);
        disk.power_cycle(cut);
    }
}

#[test]
fn versions_survive_an_orderly_close_and_nothing_else() {
    let disk = new_disk();
    let write = |store: &FileStore, data: &'static [u8]| {
        block_on(store.write(WriteRequest::new(object(0), 0, data))).unwrap().version
    };
    let info = |store: &FileStore| block_on(store.info(InfoRequest::new(object(0)))).unwrap().version;
    let store = open(&disk).unwrap();
    write(&store, b"one");
    let version = write(&store, b"two");
    store.close().unwrap();
    assert_eq!(block_on(store.read(ReadRequest::new(object(0), 0, 1))).unwrap_err().kind(), "denied");
    let store = open(&disk).unwrap();
    assert_eq!(info(&store), version);
    // The store is not closed, as after `kill -9`.
    drop(store);
    let store = open(&disk).unwrap();
    assert_ne!(info(&store), version);
}

#[test]
fn a_failed_sync_is_not_forgotten() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    let flush = || block_on(store.flush(FlushRequest::new(Scope::All))).map(|reply| reply.durability);
    let kind = |result: Result<Durability>| result.unwrap_err().kind();
    for heal in ["write_full", "delete", "invalidate"] {
        block_on(store.write(WriteRequest::new(object(0), 0, b"perhaps lost"))).unwrap();
        disk.media.lock().sync_fails = true;
        assert_eq!(kind(flush()), "writes_lost");
        disk.media.lock().sync_fails = false;
        // The disk reports success from now on, although data are lost.
        assert_eq!(kind(flush()), "writes_lost");
        let request = WriteRequest::new(object(0), 0, b"more").durability(Durability::Stored);
        assert_eq!(block_on(store.write(request)).unwrap_err().kind(), "writes_lost");
        let refresh = InvalidateRequest::new(Scope::All).accepts_losses(false);
        block_on(store.invalidate(refresh)).unwrap();
        assert_eq!(kind(flush()), "writes_lost", "nobody has accepted the loss");
        match heal {
            "write_full" => block_on(store.write_full(WriteFullRequest::new(object(0), b"anew"))).map(drop),
            "delete" => block_on(store.delete(DeleteRequest::new(object(0)))).map(drop),
            _ => block_on(store.invalidate(InvalidateRequest::new(Scope::Object(object(0))))).map(drop),
        }
        .unwrap();
        assert_eq!(flush(), Ok(Durability::Stored), "after {heal}");
    }
}

#[test]
fn a_full_disk_changes_nothing_and_is_told_once() {
    let disk = new_disk();
    let store = open(&disk).unwrap();
    let mut events = store.subscribe();
    let before = block_on(store.write(WriteRequest::new(object(0), 0, b"before"))).unwrap();
    disk.media.lock().is_full = true;
    for _ in 0..2 {
        let failed = block_on(store.write(WriteRequest::new(object(0), 0, b"after, and longer")));
        assert_eq!(failed.unwrap_err().kind(), "out_of_space");
        let failed = block_on(store.write_full(WriteFullRequest::new(object(0), b"after!")));
        assert_eq!(failed.unwrap_err().kind(), "out_of_space");
        let failed = block_on(store.write(WriteRequest::new(object(1), 0, b"new")));
        assert_eq!(failed.unwrap_err().kind(), "out_of_space");
    }
    let read = block_on(store.read(ReadRequest::new(object(0), 0, 100))).unwrap();
    assert_eq!((read.data.to_vec(), read.version), (b"before".to_vec(), before.version));
    assert_eq!(block_on(store.info(InfoRequest::new(object(1)))).unwrap_err(), Error::Missing);
    disk.media.lock().is_full = false;
    block_on(store.write(WriteRequest::new(object(1), 0, b"new"))).unwrap();
    assert_eq!((events.try_next(), events.try_next()), (Some(Event::Full), Some(Event::Recovered)));
    assert_eq!(events.try_next(), None);
}

/// The conformance suite's store, whose power is cut on request.
struct Simulated {
    disk: SimulatedDisk,
    cycles: Mutex<u64>,
    store: Mutex<Option<Arc<FileStore>>>,
}

impl Harness for Simulated {
    fn backend(&self) -> Arc<dyn Blocker> {
        let mut store = self.store.lock();
        let open = || Arc::new(open(&self.disk).unwrap());
        Arc::clone(store.get_or_insert_with(open)) as _
    }

    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        *self.store.lock() = None;
        let mut cycles = self.cycles.lock();
        *cycles += 1;
        self.disk.power_cycle(*cycles);
        drop(cycles);
        Some(self.backend())
    }
}

#[test]
fn the_suite_passes_with_the_power_cut() {
    for seed in 0..4 {
        let disk = new_disk();
        let harness = Simulated { disk, cycles: Mutex::new(seed << 32), store: Mutex::new(None) };
        let mut options = Options { seed, ..Options::default() };
        options.filter = if seed == 0 { String::new() } else { "crash".into() };
        options.effort = if seed == 0 { 1 } else { 4 };
        let report = run(&harness, &options);
        report.assert_passed();
        let skipped =
            report.cases.iter().find(|case| case.name.starts_with("crash") && case.verdict != Verdict::Pass);
        assert!(skipped.is_none(), "{skipped:?}");
    }
}
