//! Random operations on a tree of volumes, each compared with a model: the bytes of every volume
//! and snapshot. After each step, every entry has its object and every object its entry, and
//! objects written in place are not shared.

use std::collections::BTreeMap;
use std::sync::Arc;

use blocker::executor::block_on;
use blocker::{Blocker, Durability, WriteMode};
use cached_core::object::Writer;
use test_kit::rng::Rng;
use volumes::{Error, ExtentKind, Fencing, OpenOptions, Options, Volume, Volumes};

use super::disk::{Disk, OBJECT, PAGE};
use super::objects_of;
use super::stack::{self, Stack};

const VOLUMES_MAX: usize = 4;
const SNAPSHOTS_MAX: usize = 4;

struct Modelled {
    live: Disk,
    snapshots: BTreeMap<String, Disk>,
    open: Option<Volume>,
}

struct World {
    volumes: Volumes,
    store: Arc<dyn Blocker>,
    fencing: Fencing,
    model: BTreeMap<String, Modelled>,
    rng: Rng,
    names: u64,
    is_told: bool,
}

impl World {
    fn new(store: Arc<dyn Blocker>, fencing: Fencing, seed: u64, is_told: bool) -> Self {
        let options = Options { fencing, records_at_once: seed % 2 == 1, ..Options::new("vol") };
        let volumes = Volumes::new(Arc::clone(&store), options).unwrap();
        Self { volumes, store, fencing, model: BTreeMap::new(), rng: Rng::new(seed), names: 0, is_told }
    }

    fn name(&mut self, what: &str) -> String {
        self.names += 1;
        format!("{what}{}", self.names)
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.is_told {
            eprintln!("{}", what());
        }
    }

    fn any_volume(&mut self) -> Option<String> {
        let names: Vec<_> = self.model.keys().cloned().collect();
        (!names.is_empty()).then(|| names[self.rng.below(names.len() as u64) as usize].clone())
    }

    fn any_snapshot(&mut self, name: &str) -> Option<String> {
        let names: Vec<_> = self.model[name].snapshots.keys().cloned().collect();
        (!names.is_empty()).then(|| names[self.rng.below(names.len() as u64) as usize].clone())
    }

    fn any_size(&mut self) -> u64 {
        match self.rng.below(3) {
            0 => (PAGE + 2) * OBJECT + self.rng.below(OBJECT),
            1 => 5 * OBJECT,
            _ => 1 + self.rng.below(4 * OBJECT),
        }
    }

    /// Returns a range around the positions in use.
    fn any_range(&mut self, name: &str) -> (u64, u64) {
        let disk = &self.model[name].live;
        let places = disk.places();
        let size_bytes = disk.size_bytes;
        let place = places[self.rng.below(places.len() as u64) as usize];
        let (within, most) = match self.rng.below(3) {
            0 => (0, OBJECT),
            1 => (0, 2 * OBJECT),
            _ => (self.rng.below(OBJECT), 1 + self.rng.below(OBJECT)),
        };
        let offset = (place * OBJECT + within).min(size_bytes - 1);
        (offset, most.min(size_bytes - offset))
    }

    fn opened(&mut self, name: &str) -> Volume {
        if self.model[name].open.is_none() {
            let open = block_on(self.volumes.open(name, OpenOptions::default())).unwrap();
            self.model.get_mut(name).unwrap().open = Some(open);
        }
        self.model[name].open.clone().unwrap()
    }

    fn step(&mut self) {
        let Some(name) = self.any_volume() else { return self.create() };
        match self.rng.below(100) {
            0..40 => self.write(&name),
            40..50 => self.zero(&name),
            50..54 => block_on(self.opened(&name).flush()).unwrap(),
            54..56 => block_on(self.opened(&name).merge()).unwrap(),
            56..60 => self.close(&name),
            60..68 => self.snapshot(&name),
            68..74 => self.clone_one(&name),
            74..79 => self.rollback(&name),
            79..86 => self.delete_snapshot(&name),
            86..90 => self.delete(&name),
            90..93 => self.resize(&name),
            93..95 => self.flatten(&name),
            95..97 => self.move_to_another_owner(),
            _ => self.create(),
        }
    }

    fn create(&mut self) {
        if self.model.len() >= VOLUMES_MAX {
            return;
        }
        let (name, size_bytes) = (self.name("v"), self.any_size());
        self.tell(|| format!("create {name} {size_bytes}"));
        block_on(self.volumes.create(&name, size_bytes, objects_of(OBJECT))).unwrap();
        let modelled = Modelled { live: Disk::new(size_bytes), snapshots: BTreeMap::new(), open: None };
        self.model.insert(name, modelled);
    }

    fn write(&mut self, name: &str) {
        let ((offset, length), tag) = (self.any_range(name), self.rng.below(1 << 30));
        let durability = if self.rng.below(4) == 0 { Durability::Stored } else { Durability::Cached };
        self.tell(|| format!("write {name} {offset}+{length} {durability}"));
        let bytes = test_kit::pattern(tag, offset, length as usize);
        let volume = self.opened(name);
        let is = block_on(volume.write(offset, bytes.clone().into(), durability)).unwrap();
        assert!(is >= durability, "{is}");
        self.model.get_mut(name).unwrap().live.write(offset, &bytes);
    }

    fn zero(&mut self, name: &str) {
        let (offset, length) = self.any_range(name);
        let volume = self.opened(name);
        let kind = self.rng.below(4);
        self.tell(|| format!("zero {name} {offset}+{length}, kind {kind}"));
        match kind {
            0 => {
                block_on(volume.discard(offset, length)).unwrap();
                // The rest keeps its old bytes.
                let found = block_on(volume.read(offset, length)).unwrap().to_vec();
                let live = &mut self.model.get_mut(name).unwrap().live;
                let old = live.read(offset, length);
                assert!(found.iter().zip(&old).all(|(found, old)| found == old || *found == 0), "discarded");
                live.write(offset, &found);
                return;
            }
            1 => match block_on(volume.write_zeroes(offset, length, true, true)) {
                Err(Error::NotFast) => return,
                answer => answer.unwrap(),
            },
            kind => block_on(volume.write_zeroes(offset, length, kind == 2, false)).unwrap(),
        }
        self.model.get_mut(name).unwrap().live.zero(offset, length);
    }

    fn close(&mut self, name: &str) {
        self.tell(|| format!("close {name}"));
        if let Some(volume) = self.model.get_mut(name).unwrap().open.take() {
            block_on(volume.close()).unwrap();
        }
    }

    fn snapshot(&mut self, name: &str) {
        if self.model[name].snapshots.len() >= SNAPSHOTS_MAX {
            return;
        }
        let snapshot = self.name("s");
        let all: Vec<String> = match self.rng.below(3) {
            0 => self.model.keys().cloned().collect(),
            _ => vec![name.to_owned()],
        };
        self.tell(|| format!("snapshot {all:?} {snapshot}"));
        let names: Vec<&str> = all.iter().map(String::as_str).collect();
        block_on(self.volumes.snapshot_together(&names, &snapshot)).unwrap();
        for name in &all {
            let modelled = self.model.get_mut(name).unwrap();
            modelled.snapshots.insert(snapshot.clone(), modelled.live.clone());
        }
    }

    fn clone_one(&mut self, name: &str) {
        if self.model.len() >= VOLUMES_MAX {
            return;
        }
        let (snapshot, new) = (self.any_snapshot(name), self.name("v"));
        self.tell(|| format!("clone {name} {snapshot:?} {new}"));
        block_on(self.volumes.clone_volume(name, snapshot.as_deref(), &new)).unwrap();
        let from = &self.model[name];
        let live = snapshot.map_or(&from.live, |snapshot| &from.snapshots[&snapshot]).clone();
        self.model.insert(new, Modelled { live, snapshots: BTreeMap::new(), open: None });
    }

    fn rollback(&mut self, name: &str) {
        let Some(snapshot) = self.any_snapshot(name) else { return };
        self.tell(|| format!("rollback {name} {snapshot}"));
        block_on(self.volumes.rollback(name, &snapshot)).unwrap();
        let modelled = self.model.get_mut(name).unwrap();
        modelled.live = modelled.snapshots[&snapshot].clone();
    }

    fn delete_snapshot(&mut self, name: &str) {
        let Some(snapshot) = self.any_snapshot(name) else { return };
        self.tell(|| format!("delete snapshot {name} {snapshot}"));
        block_on(self.volumes.delete_snapshot(name, &snapshot)).unwrap();
        self.model.get_mut(name).unwrap().snapshots.remove(&snapshot);
    }

    fn delete(&mut self, name: &str) {
        self.tell(|| format!("delete {name}"));
        if self.model[name].open.is_some() {
            assert!(matches!(block_on(self.volumes.delete(name)), Err(Error::InUse { .. })));
            self.close(name);
        }
        block_on(self.volumes.delete(name)).unwrap();
        self.model.remove(name);
    }

    fn resize(&mut self, name: &str) {
        let size_bytes = self.any_size();
        self.tell(|| format!("resize {name} {size_bytes}"));
        block_on(self.volumes.resize(name, size_bytes)).unwrap();
        self.model.get_mut(name).unwrap().live.resize(size_bytes);
    }

    fn flatten(&mut self, name: &str) {
        self.tell(|| format!("flatten {name}"));
        let is_clone = block_on(self.volumes.info(name)).unwrap().is_clone;
        match block_on(self.volumes.flatten(name)) {
            Err(Error::Invalid(_)) => {
                assert!(is_clone && block_on(self.volumes.info(name)).unwrap().is_clone);
            }
            answer => {
                answer.unwrap();
                assert!(!block_on(self.volumes.info(name)).unwrap().is_clone);
            }
        }
    }

    /// Another owner takes over everything by force; flushed data are present.
    fn move_to_another_owner(&mut self) {
        self.tell(|| "another owner".into());
        let owner = self.name("owner");
        let options = Options { owner, fencing: self.fencing, ..Options::new("vol") };
        let volumes = Volumes::new(Arc::clone(&self.store), options).unwrap();
        for (name, modelled) in &mut self.model {
            if let Some(old) = modelled.open.take() {
                block_on(old.flush()).unwrap();
                let refused = block_on(volumes.open(name, OpenOptions::default()));
                assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
                let taken = block_on(volumes.open(name, OpenOptions { take_over: true })).unwrap();
                modelled.open = Some(taken);
                // Without stamps, the layer below refuses the old owner.
                if self.fencing == Fencing::Below {
                    continue;
                }
                let late = block_on(async {
                    old.write(0, b"late".into(), Durability::Cached).await?;
                    old.flush().await
                });
                assert!(matches!(late, Err(Error::Fenced { .. })), "{late:?}");
            }
        }
        self.volumes = volumes;
    }

    fn validate(&mut self) {
        let report = block_on(self.volumes.check(false)).unwrap();
        assert_eq!(report.problems, [], "after a step");
        assert_eq!(report.births_met, 0);
        assert_eq!(report.skipped, Vec::<String>::new());
    }

    fn compare(&mut self) {
        for (name, modelled) in &self.model {
            if let Some(volume) = &modelled.open {
                modelled.live.assert_same(volume, name);
                let extents = block_on(volume.extents(0, volume.size_bytes())).unwrap();
                assert_eq!(extents.iter().map(|extent| extent.length).sum::<u64>(), volume.size_bytes());
                for place in modelled.live.places() {
                    let at = place * OBJECT;
                    let extent = extents
                        .iter()
                        .find(|extent| (extent.offset..extent.offset + extent.length).contains(&at));
                    let length = OBJECT.min(volume.size_bytes() - at);
                    let has_data = modelled.live.read(at, length).iter().any(|byte| *byte != 0);
                    assert!(!has_data || extent.unwrap().kind == ExtentKind::Data, "{name}: data in a hole");
                }
            }
        }
    }

    /// Compares every volume and every snapshot, through clones.
    fn compare_all(&mut self) {
        let names: Vec<_> = self.model.keys().cloned().collect();
        for name in &names {
            self.opened(name);
        }
        self.compare();
        for name in names {
            for (snapshot, disk) in &self.model[&name].snapshots {
                block_on(self.volumes.clone_volume(&name, Some(snapshot), "look")).unwrap();
                let look = block_on(self.volumes.open("look", OpenOptions::default())).unwrap();
                disk.assert_same(&look, &format!("{name}@{snapshot}"));
                self.check_changes(&name, snapshot, disk);
                block_on(look.close()).unwrap();
                block_on(self.volumes.delete("look")).unwrap();
            }
        }
        self.validate();
    }

    /// If nothing is reported as changed since a snapshot, volume and snapshot are equal.
    fn check_changes(&self, name: &str, snapshot: &str, disk: &Disk) {
        let modelled = &self.model[name];
        let Some(volume) = &modelled.open else { return };
        let changes = block_on(volume.changed_extents(Some(snapshot))).unwrap();
        for place in
            modelled.live.places().into_iter().filter(|place| (place + 1) * OBJECT <= disk.size_bytes)
        {
            let at = place * OBJECT;
            let is_changed =
                changes.iter().any(|change| (change.offset..change.offset + change.length).contains(&at));
            let length = OBJECT.min(volume.size_bytes() - at);
            let is_same = modelled.live.read(at, length) == disk.read(at, length);
            assert!(is_changed || is_same, "{name}: a change of object {place} since {snapshot} is missing");
        }
    }
}

fn run(stack: &Stack, fencing: Fencing, seed: u64, steps: u32, is_told: bool) {
    let mut world = World::new(Arc::clone(&stack.store), fencing, seed, is_told);
    for step in 0..steps {
        world.step();
        world.compare();
        if step % 2 == 0 {
            world.validate();
        }
        if step % 50 == 49 {
            world.compare_all();
        }
    }
    world.compare_all();
    let names: Vec<_> = world.model.keys().cloned().collect();
    for name in names {
        world.delete(&name);
    }
    // Only the record with the number of the next volume remains.
    world.validate();
    let report = block_on(world.volumes.check(false)).unwrap();
    assert_eq!((report.volumes, report.objects), (0, 0));
}

#[test]
fn random_operations_over_memory() {
    test_kit::each_seed(5, |seed, is_told| run(&Stack::memory(), Fencing::Below, seed, 300, is_told));
}

#[test]
fn random_operations_with_stamps_over_memory() {
    test_kit::each_seed(4, |seed, is_told| run(&Stack::memory(), Fencing::Stamps, seed, 200, is_told));
}

#[test]
fn random_operations_over_files() {
    test_kit::each_seed(1, |seed, is_told| run(&Stack::files(), Fencing::Below, seed, 30, is_told));
}

#[test]
fn random_operations_over_a_cache_that_writes_through() {
    test_kit::each_seed(2, |seed, is_told| {
        let stack = Stack::memory().cached(WriteMode::Through, Writer::Callers);
        run(&stack, Fencing::Below, seed, 200, is_told);
    });
}

#[test]
fn random_operations_over_a_cache_that_writes_back() {
    test_kit::each_seed(2, |seed, is_told| {
        let stack = Stack::memory().cached(WriteMode::Back, Writer::Callers);
        run(&stack, Fencing::Below, seed, 200, is_told);
    });
}

#[test]
fn random_operations_over_synapse() {
    test_kit::each_seed(1, |seed, is_told| {
        run(&Stack::memory().over_synapse(), Fencing::Below, seed, 100, is_told);
        run(&Stack::memory().over_synapse(), Fencing::Stamps, seed, 100, is_told);
    });
}

#[test]
fn random_operations_over_a_cache_over_synapse_over_a_cache_over_files() {
    test_kit::each_seed(1, |seed, is_told| {
        let node = Stack::files().cached(WriteMode::Through, Writer::Callers).over_synapse();
        run(&node.cached(WriteMode::Back, Writer::Cache), Fencing::Below, seed, 40, is_told);
    });
}

#[test]
fn random_operations_over_s3() {
    test_kit::each_seed(1, |seed, is_told| {
        run(&Stack::s3(), Fencing::Below, seed, 60, is_told);
        run(&Stack::s3(), Fencing::Stamps, seed, 60, is_told);
        let cached = Stack::s3().cached(WriteMode::Back, Writer::Cache);
        run(&cached, Fencing::Below, seed, 60, is_told);
    });
}

#[test]
fn random_operations_over_rados() {
    let Some(cluster) = stack::cluster("volumes") else { return };
    test_kit::each_seed(1, |seed, is_told| {
        run(&Stack::rados(&cluster, &format!("stamps{seed}")), Fencing::Stamps, seed, 40, is_told);
        let cached = Stack::rados(&cluster, &format!("cached{seed}"));
        run(&cached.cached(WriteMode::Back, Writer::Cache), Fencing::Below, seed, 40, is_told);
    });
}
