//! A crash at every call to the store: flushed data survive, each sector has content that some
//! order of unflushed writes allows, snapshots are bitwise unchanged, and no object to which a map
//! refers is missing.

use std::collections::BTreeMap;
use std::sync::Arc;

use blocker::executor::block_on;
use blocker::faulty::FaultPlan;
use blocker::{Blocker, Durability, Faulty, Memory, SystemClock};
use test_kit::rng::Rng;
use volumes::{Error, Fencing, OpenOptions, Options, ProblemKind, Result, Volume, Volumes};

use super::disk::{OBJECT, PAGE};
use super::objects_of;

const SECTOR: u64 = 512;
const SIZE: u64 = (PAGE + 3) * OBJECT;

/// The tags that a sector may have after a crash: the last flushed one, and those of all writes
/// since. The last one is its tag without a crash.
#[derive(Clone, Default)]
struct Sectors(BTreeMap<u64, Vec<u64>>);

impl Sectors {
    fn write(&mut self, first: u64, count: u64, tag: u64) {
        for sector in first..first + count {
            self.0.entry(sector).or_insert_with(|| vec![0]).push(tag);
        }
    }

    fn flushed(&mut self) {
        for tags in self.0.values_mut() {
            tags.drain(..tags.len() - 1);
        }
    }

    /// Also allows the tags of `other`.
    fn or(&mut self, other: &Self) {
        let sectors: Vec<u64> = self.0.keys().chain(other.0.keys()).copied().collect();
        for sector in sectors {
            let more = other.0.get(&sector).and_then(|tags| tags.last()).copied().unwrap_or(0);
            self.0.entry(sector).or_insert_with(|| vec![0]).push(more);
        }
    }

    #[track_caller]
    fn check(&mut self, volume: &Volume, what: &str) {
        for (sector, tags) in &mut self.0 {
            let found = block_on(volume.read(sector * SECTOR, SECTOR)).unwrap().to_vec();
            let is = tags.iter().copied().find(|tag| found == sector_bytes(*tag, *sector));
            let Some(is) = is else {
                panic!("{what}: sector {sector} has none of {tags:?}: {:02x?}", &found[..16])
            };
            *tags = vec![is];
        }
    }
}

fn sector_bytes(tag: u64, sector: u64) -> Vec<u8> {
    if tag == 0 { vec![0; SECTOR as usize] } else { test_kit::pattern(tag, sector * SECTOR, SECTOR as usize) }
}

#[derive(Default)]
struct Model {
    volumes: BTreeMap<String, Sectors>,
    snapshots: BTreeMap<(String, String), Sectors>,
    /// Volumes and snapshots that may or may not exist.
    unsure: Vec<(String, Option<String>)>,
}

struct Run<'a> {
    volumes: &'a Volumes,
    model: &'a mut Model,
    rng: Rng,
    tag: &'a mut u64,
    is_told: bool,
}

impl Run<'_> {
    fn places(&self) -> Vec<u64> {
        (0..4).chain(PAGE - 2..PAGE + 2).collect()
    }

    async fn open(&self, name: &str) -> Result<Volume> {
        self.volumes.open(name, OpenOptions::default()).await
    }

    async fn steps(&mut self, steps: u32) -> Result<()> {
        for _ in 0..steps {
            self.step().await?;
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<()> {
        let names: Vec<String> = self.model.volumes.keys().cloned().collect();
        if names.is_empty() {
            return self.create().await;
        }
        let name = self.rng.pick(&names).clone();
        let snapshots: Vec<String> = self
            .model
            .snapshots
            .keys()
            .filter(|(of, _)| *of == name)
            .map(|(_, snapshot)| snapshot.clone())
            .collect();
        let snapshot = (!snapshots.is_empty()).then(|| self.rng.pick(&snapshots).clone());
        let step = self.rng.below(100);
        if self.is_told {
            eprintln!("{step} {name} {snapshot:?}");
        }
        match (step, snapshot) {
            (0..45, _) => self.write(&name).await,
            (45..53, _) => self.discard(&name).await,
            (53..65, _) => {
                self.open(&name).await?.flush().await?;
                self.model.volumes.get_mut(&name).unwrap().flushed();
                Ok(())
            }
            (65..67, _) => self.open(&name).await?.merge().await,
            (67..70, _) => {
                self.open(&name).await?.close().await?;
                self.model.volumes.get_mut(&name).unwrap().flushed();
                Ok(())
            }
            (70..78, _) => self.snapshot(&name).await,
            (78..84, Some(snapshot)) => self.clone_one(&name, &snapshot).await,
            (84..89, Some(snapshot)) => self.rollback(&name, &snapshot).await,
            (89..95, Some(snapshot)) => {
                let key = (name.clone(), snapshot.clone());
                let sectors = self.model.snapshots.remove(&key).unwrap();
                self.model.unsure.push((name.clone(), Some(snapshot.clone())));
                let deleted = self.volumes.delete_snapshot(&name, &snapshot).await;
                if deleted.is_err() {
                    self.model.snapshots.insert(key, sectors);
                } else {
                    self.model.unsure.pop();
                }
                deleted
            }
            (95..98, _) if names.len() > 1 => self.delete(&name).await,
            _ => self.create().await,
        }
    }

    fn next_tag(&mut self) -> u64 {
        *self.tag += 1;
        *self.tag
    }

    async fn create(&mut self) -> Result<()> {
        if self.model.volumes.len() >= 3 {
            return Ok(());
        }
        let name = format!("v{}", self.next_tag());
        self.model.unsure.push((name.clone(), None));
        self.model.volumes.insert(name.clone(), Sectors::default());
        self.volumes.create(&name, SIZE, objects_of(OBJECT)).await?;
        self.model.unsure.pop();
        Ok(())
    }

    async fn write(&mut self, name: &str) -> Result<()> {
        let disk = self.open(name).await?;
        let (place, tag) = (*self.rng.pick(&self.places()), self.next_tag());
        let (first, count) = match self.rng.below(3) {
            0 => (0, 8),
            1 => (0, 16),
            _ => (self.rng.below(8), 1 + self.rng.below(8)),
        };
        let first = place * 8 + first;
        let count = count.min(SIZE / SECTOR - first);
        let bytes: Vec<u8> = (first..first + count).flat_map(|sector| sector_bytes(tag, sector)).collect();
        let durability = if self.rng.below(5) == 0 { Durability::Stored } else { Durability::Cached };
        let sectors = self.model.volumes.get_mut(name).unwrap();
        sectors.write(first, count, tag);
        disk.write(first * SECTOR, bytes.into(), durability).await?;
        if durability == Durability::Stored {
            for sector in first..first + count {
                let tags = sectors.0.get_mut(&sector).unwrap();
                *tags = vec![tag];
            }
        }
        Ok(())
    }

    /// Discarding whole objects counts as writing zeros.
    async fn discard(&mut self, name: &str) -> Result<()> {
        let disk = self.open(name).await?;
        let place = *self.rng.pick(&self.places());
        let count = (1 + self.rng.below(2)).min(SIZE / OBJECT - place);
        self.model.volumes.get_mut(name).unwrap().write(place * 8, count * 8, 0);
        disk.discard(place * OBJECT, count * OBJECT).await
    }

    async fn snapshot(&mut self, name: &str) -> Result<()> {
        let snapshot = format!("s{}", self.next_tag());
        let key = (name.to_owned(), snapshot.clone());
        let mut sectors = self.model.volumes[name].clone();
        sectors.flushed();
        self.model.snapshots.insert(key, sectors);
        self.model.unsure.push((name.to_owned(), Some(snapshot.clone())));
        self.volumes.snapshot(name, &snapshot).await?;
        self.model.unsure.pop();
        self.model.volumes.get_mut(name).unwrap().flushed();
        Ok(())
    }

    async fn clone_one(&mut self, name: &str, snapshot: &str) -> Result<()> {
        if self.model.volumes.len() >= 3 {
            return Ok(());
        }
        let new = format!("v{}", self.next_tag());
        let sectors = self.model.snapshots[&(name.to_owned(), snapshot.to_owned())].clone();
        self.model.unsure.push((new.clone(), None));
        self.model.volumes.insert(new.clone(), sectors);
        self.volumes.clone_volume(name, Some(snapshot), &new).await?;
        self.model.unsure.pop();
        Ok(())
    }

    async fn rollback(&mut self, name: &str, snapshot: &str) -> Result<()> {
        let sectors = self.model.snapshots[&(name.to_owned(), snapshot.to_owned())].clone();
        // Until the operation is done, the old content or the snapshot.
        self.model.volumes.get_mut(name).unwrap().or(&sectors);
        self.volumes.rollback(name, snapshot).await?;
        self.model.volumes.insert(name.to_owned(), sectors);
        Ok(())
    }

    async fn delete(&mut self, name: &str) -> Result<()> {
        self.open(name).await?.close().await?;
        self.model.unsure.push((name.to_owned(), None));
        let of: Vec<_> = self.model.snapshots.keys().filter(|(of, _)| of == name).cloned().collect();
        self.model.unsure.extend(of.iter().map(|(_, snapshot)| (name.to_owned(), Some(snapshot.clone()))));
        self.volumes.delete(name).await?;
        self.model.unsure.clear();
        self.model.volumes.remove(name);
        self.model.snapshots.retain(|(of, _), _| of != name);
        Ok(())
    }
}

impl Model {
    /// Finds out the state that the crash has left undecided.
    fn settle(&mut self, volumes: &Volumes) {
        let names: Vec<String> =
            block_on(volumes.list()).unwrap().volumes.into_iter().map(|info| info.name).collect();
        for (name, snapshot) in std::mem::take(&mut self.unsure) {
            let is_there = names.contains(&name)
                && match &snapshot {
                    None => true,
                    Some(snapshot) => {
                        block_on(volumes.snapshots(&name)).unwrap().iter().any(|info| info.name == *snapshot)
                    }
                };
            match snapshot {
                _ if is_there => {}
                Some(snapshot) => drop(self.snapshots.remove(&(name, snapshot))),
                None => {
                    self.volumes.remove(&name);
                    self.snapshots.retain(|(of, _), _| *of != name);
                }
            }
        }
        let wanted: Vec<&String> = self.volumes.keys().collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), wanted, "the volumes that there are");
    }

    fn check(&mut self, volumes: &Volumes) {
        for (name, sectors) in &mut self.volumes {
            let disk = block_on(volumes.open(name, OpenOptions::default())).unwrap();
            sectors.check(&disk, name);
            let snapshots = block_on(volumes.snapshots(name)).unwrap();
            let found: Vec<_> = snapshots.iter().map(|info| info.name.clone()).collect();
            let mut wanted: Vec<_> = self
                .snapshots
                .keys()
                .filter(|(of, _)| of == name)
                .map(|(_, snapshot)| snapshot.clone())
                .collect();
            wanted.sort_by_key(|snapshot| found.iter().position(|one| one == snapshot));
            assert_eq!(found, wanted, "the snapshots of {name}");
        }
        for ((name, snapshot), sectors) in &mut self.snapshots {
            block_on(volumes.clone_volume(name, Some(snapshot), "look")).unwrap();
            let look = block_on(volumes.open("look", OpenOptions::default())).unwrap();
            sectors.check(&look, &format!("{name}@{snapshot}"));
            block_on(look.close()).unwrap();
            block_on(volumes.delete("look")).unwrap();
        }
    }
}

/// Runs operations until the crash at call `at`, then a few more after it. Returns the number of
/// calls.
fn crash(seed: u64, at: Option<u64>, fencing: Fencing, is_told: bool) -> u64 {
    let mut plan = FaultPlan::benign(seed);
    (plan.volatile, plan.crash_at_step) = (true, at);
    let store = Arc::new(Faulty::new(Arc::new(Memory::default()), plan, Arc::new(SystemClock)));
    let (mut model, mut tag) = (Model::default(), 0);
    let options = || Options { fencing, records_at_once: seed % 2 == 1, ..Options::new("vol") };
    for round in 0..2 {
        let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options()).unwrap();
        let rng = Rng::new(seed * 2 + round);
        let mut run = Run { volumes: &volumes, model: &mut model, rng, tag: &mut tag, is_told };
        let ended = block_on(run.steps(if round == 0 { 60 } else { 15 }));
        if !store.is_crashed() {
            ended.unwrap();
            if round == 0 {
                return store.steps();
            }
        } else if is_told {
            eprintln!("crashed: {ended:?}");
        }
        if !store.is_crashed() {
            assert_eq!(block_on(volumes.check(false)).unwrap().births_met, 0);
        }
        // The process ends without a shutdown.
        drop(volumes);
        store.restart().unwrap();
        let volumes = Volumes::new(Arc::clone(&store) as Arc<dyn Blocker>, options()).unwrap();
        let report = block_on(volumes.check(true)).unwrap();
        let is_lost = report.problems.iter().any(|problem| problem.kind != ProblemKind::Leftover);
        assert!(!is_lost, "{report:?}");
        if is_told {
            eprintln!("repaired: {report:?}");
        }
        model.settle(&volumes);
        model.check(&volumes);
        let report = block_on(volumes.check(false)).unwrap();
        assert_eq!(report.problems, [], "after a repair");
        for name in model.volumes.keys() {
            match block_on(volumes.open(name, OpenOptions::default())) {
                Ok(disk) => block_on(disk.close()).unwrap(),
                Err(error) => assert_eq!(error, Error::Closed),
            }
        }
    }
    store.steps()
}

#[test]
fn a_crash_at_every_call_loses_nothing_that_was_flushed() {
    test_kit::each_seed(2, |seed, is_told| {
        let calls = crash(seed, None, Fencing::Below, false);
        let only = std::env::var("VOLUMES_CRASH_AT").ok().map(|text| text.parse::<u64>().unwrap());
        for at in (1..=calls).filter(|at| only.is_none_or(|only| only == *at)) {
            if is_told {
                eprintln!("crash at {at} of {calls}");
            }
            crash(seed, Some(at), Fencing::Below, is_told && only.is_some());
        }
    });
}

#[test]
fn a_crash_with_stamps_loses_nothing_that_was_flushed() {
    test_kit::each_seed(1, |seed, is_told| {
        let calls = crash(seed, None, Fencing::Stamps, false);
        for at in (1..=calls).step_by(3) {
            if is_told {
                eprintln!("crash at {at} of {calls}");
            }
            crash(seed, Some(at), Fencing::Stamps, false);
        }
    });
}
