//! The file backend on a failing disk: writes, write-backs, syncs, renames and other operations
//! fail at random, the process is killed or the power cut in between, and the surviving state must
//! be explained by the history.
//!
//! `FILE_FAULT_ROUNDS=500 cargo test -p cached-blocker --lib file::tests::fault` runs that number of
//! rounds, each with one seed; `FILE_FAULT_SEED` is the first.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::simulated::{Fault, SimulatedDisk};
use super::testing::{History, ROOT, Seen, new_disk, object_in, open};
use crate::executor::block_on;
use crate::file::FileStore;
use crate::file::check::{FindingKind, check_on};
use crate::rng::Rng;
use crate::{
    Blocker, BlockerExt, ChangeReply, ChangeTerms, ClaimRequest, CopyRequest, DeleteRequest, DiscardRequest,
    Durability, Epoch, Error, FlushRequest, InfoRequest, ObjectId, ReadRequest, Run, Scope, Stamp,
    TruncateRequest, Version, WriteFullRequest, WriteRequest, WriteRunsRequest, WriterId,
};

const OBJECTS: u64 = 12;
const FAULTS: [Fault; 9] = [
    Fault::Write,
    Fault::Full,
    Fault::WriteBack,
    Fault::Sync,
    Fault::SyncDir,
    Fault::Rename,
    Fault::Unlink,
    Fault::SetLen,
    Fault::Create,
];

fn object(key: u64) -> ObjectId {
    // Some names need several directories. All changes in the namespace `stamped` have stamps.
    let name = if key % 4 == 3 { vec![b'/'; 80 + key as usize] } else { vec![b'a' + key as u8] };
    object_in(if key.is_multiple_of(2) { "plain" } else { "stamped" }, name)
}

#[derive(Default)]
struct Model {
    objects: BTreeMap<u64, History>,
    versions: HashMap<(u64, Version), Vec<u8>>,
    /// Objects that the store has reported as lost, and that no write has replaced.
    lost: BTreeMap<u64, bool>,
    sequence: u64,
    /// The last claim that was requested, and the last that was acknowledged.
    epoch: u64,
    acknowledged: u64,
    /// The objects whose last operation has an unknown outcome, and may still take effect.
    unsure: BTreeSet<u64>,
    /// Figures of the round.
    stored: u64,
    failed: u64,
}

/// Records that an object is stored. A missing object may have remembered any stamp.
fn stored(history: &mut History) {
    match history.last().content {
        Some(_) => history.stored(),
        None => history.states.retain(|seen| seen.content.is_none()),
    }
}

/// The effect of an operation on an object.
struct Step {
    after: Option<Vec<u8>>,
    stamp: Option<Stamp>,
    forgets_stamp: bool,
    replaces: bool,
    is_copy: bool,
    what: u64,
}

impl Model {
    fn history(&mut self, key: u64) -> &mut History {
        self.objects.entry(key).or_default()
    }

    /// Runs one operation, and updates the history according to its result.
    fn step(&mut self, store: &FileStore, disk: &SimulatedDisk, rng: &mut Rng) {
        if rng.below(8) == 0 {
            return self.flush(store, rng);
        }
        if rng.below(60) == 0 {
            return self.claim(store);
        }
        let key = rng.below(OBJECTS);
        self.sequence += 1;
        let is_stamped = !key.is_multiple_of(2);
        let stamp = is_stamped.then(|| Stamp::new(self.epoch.max(1), self.sequence));
        let durability = if rng.below(3) == 0 { Durability::Stored } else { Durability::Cached };
        let change = ChangeTerms { stamp, durability, ..ChangeTerms::default() };
        let before = self.history(key).last();
        let (step, answer) = self.act(store, rng, key, change, before.clone());
        if std::env::var("FILE_FAULT_TRACE").is_ok() {
            let sizes = (before.content.as_ref().map(Vec::len), step.after.as_ref().map(Vec::len));
            println!("{} {key} {durability:?} {sizes:?}: {answer:?}", step.what);
        }
        let is_stored = durability == Durability::Stored;
        let stamp = if step.forgets_stamp { step.stamp } else { step.stamp.or(before.stamp) };
        let after = Seen { content: step.after, stamp };
        match answer {
            Ok(version) => {
                self.unsure.remove(&key);
                if step.replaces {
                    self.lost.remove(&key);
                }
                assert!(
                    !is_stored || !self.lost.contains_key(&key),
                    "object {key} is stored although something of it was lost"
                );
                if let (Some(content), Some(version)) = (&after.content, version) {
                    let before = self.versions.insert((key, version), content.clone());
                    assert!(before.is_none_or(|before| before == *content), "{version} is given twice");
                }
                self.stored += u64::from(is_stored);
                self.history(key).push(after, is_stored);
            }
            // The change was made, but is not stored.
            Err(Error::WritesLost(_)) if !step.is_copy => {
                self.lost.insert(key, true);
                self.history(key).push(after, false);
            }
            // The source of the copy has lost data, so nothing was copied; or the copy was made and
            // lost.
            Err(Error::WritesLost(_)) => {
                if self.found(store, key).is_none_or(|found| found == after) {
                    self.history(key).push(after, false);
                }
            }
            Err(Error::NotStored(_)) => {
                if step.replaces {
                    self.lost.remove(&key);
                }
                self.history(key).push(after, false);
            }
            // Read the object to find out the outcome; if that fails too, the check after the crash
            // shows it.
            Err(error) if error.is_ambiguous() || disk.is_dead() => {
                self.failed += 1;
                self.unsure.insert(key);
                self.history(key).push(after, false);
                if !disk.is_dead()
                    && let Some(found) = self.found(store, key)
                {
                    let possible = self.history(key).clone();
                    possible.explain(store, &object(key));
                    self.history(key).push(found, false);
                }
            }
            Err(_) => {
                // Nothing was changed.
                self.failed += 1;
                if let Some(found) = self.found(store, key) {
                    assert!(found == before, "object {key} was changed by what failed");
                }
            }
        }
    }

    fn act(
        &mut self,
        store: &FileStore,
        rng: &mut Rng,
        key: u64,
        change: ChangeTerms,
        before: Seen,
    ) -> (Step, Result<Option<Version>, Error>) {
        let stamp = change.stamp;
        let (offset, len) = (rng.below(14) * 400, 1 + rng.below(9) * 300);
        let (from, to) = (offset as usize, (offset + len) as usize);
        let data = rng.bytes(len as usize);
        let mut after = before.content.clone();
        let id = object(key);
        let version = |reply: Result<ChangeReply, Error>| reply.map(|reply| Some(reply.version));
        let (mut forgets_stamp, mut replaces, mut is_copy) = (false, false, false);
        let what = rng.below(12);
        let answer = match what {
            0..=3 => {
                let content = after.get_or_insert_default();
                content.resize(content.len().max(to), 0);
                content[from..to].copy_from_slice(&data);
                version(block_on(store.write(WriteRequest::new(id, offset, data).terms(change))))
            }
            4 | 5 => {
                replaces = true;
                after = Some(data.clone());
                version(block_on(store.write_full(WriteFullRequest::new(id, data).terms(change))))
            }
            6 => {
                let content = after.get_or_insert_default();
                content.resize(content.len().max(to + 700), 0);
                content[from..to].fill(0);
                content[to + 600..to + 700].fill(7);
                let runs = vec![Run::zeroes(offset, len), Run::data(offset + len + 600, vec![7; 100])];
                version(block_on(store.write_runs(WriteRunsRequest::new(id, runs).terms(change))))
            }
            7 => {
                if let Some(content) = &mut after {
                    content.resize(from, 0);
                }
                version(block_on(store.truncate(TruncateRequest::new(id, offset).terms(change))))
            }
            8 => {
                if let Some(content) = &mut after {
                    let size = content.len();
                    content[from.min(size)..to.min(size)].fill(0);
                }
                version(block_on(store.discard(DiscardRequest::new(id, offset, len).terms(change))))
            }
            9 | 10 => {
                (forgets_stamp, replaces) = (stamp.is_none(), true);
                after = None;
                block_on(store.delete(DeleteRequest::new(id).terms(change))).map(|_| None)
            }
            _ => {
                (replaces, is_copy) = (true, true);
                let source = (key + 1 + rng.below(OBJECTS - 1)) % OBJECTS;
                after = self.history(source).last().content;
                version(block_on(store.copy(CopyRequest::new(object(source), id).terms(change))))
            }
        };
        (Step { after, stamp, forgets_stamp, replaces, is_copy, what }, answer)
    }

    /// Returns the object's current state, if it can be read.
    fn found(&self, store: &FileStore, key: u64) -> Option<Seen> {
        let info = match block_on(store.info(InfoRequest::new(object(key)))) {
            Ok(info) => info,
            // A deleted object's remembered stamp cannot be queried.
            Err(Error::Missing) => {
                let stamp = self.objects.get(&key).and_then(|history| history.last().stamp);
                return Some(Seen { content: None, stamp });
            }
            Err(_) => return None,
        };
        let read = block_on(store.read(ReadRequest::new(object(key), 0, 100_000))).ok()?;
        Some(Seen { content: Some(read.data.to_vec()), stamp: info.stamp })
    }

    fn flush(&mut self, store: &FileStore, rng: &mut Rng) {
        let key = rng.below(OBJECTS);
        let (scope, keys) = match rng.below(3) {
            0 => (Scope::All, 0..OBJECTS),
            _ => (Scope::Object(object(key)), key..key + 1),
        };
        match block_on(store.flush(FlushRequest::new(scope))) {
            Ok(_) => {
                for key in keys {
                    assert!(
                        !self.lost.contains_key(&key),
                        "object {key} is stored although it lost something"
                    );
                    self.stored += 1;
                    stored(self.history(key));
                }
            }
            Err(_) => self.failed += 1,
        }
    }

    fn claim(&mut self, store: &FileStore) {
        let scope = Scope::Namespace(object(1).namespace);
        let request = ClaimRequest::new(scope, Epoch(self.epoch + 1), WriterId(1));
        // The writer repeats the claim until it is answered.
        for _ in 0..4 {
            if block_on(store.claim(request.clone())).is_ok() {
                self.epoch += 1;
                self.acknowledged = self.epoch;
                return;
            }
        }
        // The claim may be in force: continue with its epoch, as its writer would.
        self.epoch += 1;
    }

    /// Checks everything after a start, which has stored all existing data.
    fn check(&mut self, store: &FileStore, is_cut: bool) {
        for key in 0..OBJECTS {
            let (found, version) = self.history(key).explain(store, &object(key));
            if let (Some(content), Some(known)) = (&found.content, self.versions.get(&(key, version))) {
                assert!(content == known, "object {key}: its version stands for other bytes");
            }
            if !is_cut && !self.unsure.contains(&key) {
                // A kill preserves the page cache, so no acknowledged change is missing.
                assert!(found.content == self.history(key).last().content, "object {key} after a kill");
            }
            // A missing object's remembered stamp cannot be queried.
            let stamps = self.history(key).states.iter().map(|seen| seen.stamp);
            let absent = [None].into_iter().chain(stamps).map(|stamp| Seen { content: None, stamp });
            let states = if found.content.is_none() { absent.collect() } else { vec![found] };
            *self.history(key) = History { states };
        }
        self.lost.clear();
        self.unsure.clear();
        if self.acknowledged > 0 {
            let late = Stamp::new(self.acknowledged - 1, u64::MAX);
            let answer = block_on(store.write(WriteRequest::new(object(1), 0, b"late").stamp(late)));
            assert!(matches!(answer, Err(Error::Fenced { .. })), "a deposed writer is admitted");
        }
    }
}

/// Runs one round: a store is opened several times, and each time is killed, loses power or is
/// closed.
fn round(seed: u64, totals: &mut BTreeMap<Fault, u64>) -> (u64, u64) {
    let mut rng = Rng::new(seed);
    let disk = new_disk();
    if seed % 3 == 2 {
        disk.media.lock().no_sync_all = true;
    }
    open(&disk).unwrap().close().unwrap();
    let mut model = Model::default();
    for life in 0..4 {
        let chances = FAULTS.map(|fault| (fault, if rng.below(3) == 0 { rng.below(120) as u32 } else { 0 }));
        disk.fail(rng.next_u64(), chances.to_vec());
        if rng.below(2) == 0 {
            let cut = disk.steps() + 1 + rng.below(600);
            disk.media.lock().cut_at = Some(cut);
        }
        let mut in_order = false;
        if let Ok(store) = open(&disk) {
            for _ in 0..80 {
                if disk.is_dead() {
                    break;
                }
                model.step(&store, &disk, &mut rng);
            }
            in_order = rng.below(4) == 0 && store.close().is_ok();
        }
        let power = rng.below(2) == 0;
        println!("seed {seed}, life {life}: closed {in_order}, power lost {power}");
        if in_order {
            (0..OBJECTS).for_each(|key| stored(model.history(key)));
        }
        disk.media.lock().faults = None;
        if power {
            disk.power_cycle(rng.next_u64());
        } else {
            disk.restart();
        }
        let report = check_on(&disk, Path::new(ROOT), false, &mut |finding| {
            // A failed write-back may leave one copy of a header blank, but nothing worse.
            assert!(
                finding.kind != FindingKind::Damage || finding.what.starts_with("one copy"),
                "{finding:?}"
            );
        });
        report.unwrap();
        let store = open(&disk).unwrap();
        model.check(&store, power);
        store.close().unwrap();
    }
    for (fault, count) in disk.failed() {
        *totals.entry(fault).or_default() += count;
    }
    (model.stored, model.failed)
}

#[test]
fn nothing_stored_is_lost_on_a_disk_that_fails() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
    };
    let (rounds, first) = (number("FILE_FAULT_ROUNDS", 60), number("FILE_FAULT_SEED", 0));
    let (mut totals, mut stored, mut failed) = (BTreeMap::new(), 0, 0);
    for seed in first..first + rounds {
        let (also_stored, also_failed) = round(seed, &mut totals);
        (stored, failed) = (stored + also_stored, failed + also_failed);
    }
    println!("{rounds} rounds: {stored} stored, {failed} failed; {totals:?}");
    if rounds >= 60 {
        let missed: Vec<_> = FAULTS.iter().filter(|fault| !totals.contains_key(fault)).collect();
        assert!(missed.is_empty(), "never failed: {missed:?}");
    }
}
