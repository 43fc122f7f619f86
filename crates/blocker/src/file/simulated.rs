//! A disk in memory whose power can be cut at any step, losing, tearing and reordering whatever had not
//! been synced.
//!
//! Every file and directory has its live content, its stored content, and the operations in between.
//! Cutting the power keeps the stored content and, of each operation in between, what a draw decides:
//! of a write each sector for itself, of a directory each entry for itself. Harsher than any journalling
//! file system: a rename's two halves may part, and nothing but a sync orders anything.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::disk::{Disk, DiskFile, Open, WriteFailed, copy_by_hand, zero_by_hand};
use crate::rng::Rng;
use crate::segment::{Segment, Segments};

pub(super) const SECTOR_BYTES: usize = 512;

#[derive(Clone, Default)]
pub(super) struct SimulatedDisk {
    world: Arc<Mutex<World>>,
}

#[derive(Default)]
struct World {
    step: u64,
    cut_at: Option<u64>,
    dead: bool,
    sync_fails: bool,
    is_full: bool,
    /// Files opened before the power was cut are of no use afterwards.
    power: u64,
    dirs: BTreeMap<PathBuf, Dir>,
    files: HashMap<u64, Contents>,
    file_last: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Node {
    File(u64),
    Dir,
}

#[derive(Default)]
struct Dir {
    live: BTreeMap<OsString, Node>,
    stored: BTreeMap<OsString, Node>,
    pending: Vec<(OsString, Option<Node>)>,
}

impl Dir {
    fn set(&mut self, name: OsString, node: Option<Node>) {
        match node {
            Some(node) => self.live.insert(name.clone(), node),
            None => self.live.remove(&name),
        };
        self.pending.push((name, node));
    }
}

#[derive(Default)]
struct Contents {
    live: Vec<u8>,
    stored: Vec<u8>,
    pending: Vec<FileOp>,
}

enum FileOp {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

fn write_into(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    content.resize(content.len().max(at + data.len()), 0);
    content[at..at + data.len()].copy_from_slice(data);
}

impl Contents {
    fn apply(&mut self, op: FileOp) {
        match &op {
            FileOp::Write(at, data) => write_into(&mut self.live, *at, data),
            FileOp::SetLen(len) => self.live.resize(*len, 0),
        }
        self.pending.push(op);
    }

    fn cut_power(&mut self, rng: &mut Rng) {
        // Mostly all or nothing; sometimes anything.
        let chance = [0, 1000, 500][rng.below(3) as usize];
        let mut content = std::mem::take(&mut self.stored);
        for op in self.pending.drain(..) {
            match op {
                FileOp::SetLen(len) if rng.permille(chance) => content.resize(len, 0),
                FileOp::SetLen(_) => {}
                FileOp::Write(at, data) => {
                    let mut done = 0;
                    while done < data.len() {
                        let sector_left = SECTOR_BYTES - (at + done) % SECTOR_BYTES;
                        let end = (done + sector_left).min(data.len());
                        if rng.permille(chance) {
                            write_into(&mut content, at + done, &data[done..end]);
                        }
                        done = end;
                    }
                }
            }
        }
        self.stored = content.clone();
        self.live = content;
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl World {
    fn check(&self, power: u64) -> io::Result<()> {
        if self.dead || self.power != power { Err(power_is_off()) } else { Ok(()) }
    }

    /// One step that changes something; the one at which the power goes fails, done or not.
    fn step<T>(&mut self, power: u64, act: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        self.check(power)?;
        self.step += 1;
        if self.cut_at == Some(self.step) {
            // Half of the time it still gets as far as the disk's own memory.
            if self.step.is_multiple_of(2) {
                let _ = act(self);
            }
            self.dead = true;
            return Err(power_is_off());
        }
        act(self)
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(not_found)
    }

    fn file(&mut self, file: u64) -> &mut Contents {
        self.files.entry(file).or_default()
    }
}

fn split(path: &Path) -> (PathBuf, OsString) {
    (
        path.parent().unwrap_or(Path::new("/")).to_path_buf(),
        path.file_name().unwrap_or_default().to_os_string(),
    )
}

impl SimulatedDisk {
    /// An empty disk with one directory.
    pub(super) fn new(root: &Path) -> Self {
        let disk = Self::default();
        disk.world.lock().dirs.insert(root.to_path_buf(), Dir::default());
        disk
    }

    /// From now on every sync of a file fails, or none.
    pub(super) fn fail_syncs(&self, fails: bool) {
        self.world.lock().sync_fails = fails;
    }

    /// From now on no write finds room, or each does.
    pub(super) fn fill(&self, is_full: bool) {
        self.world.lock().is_full = is_full;
    }

    /// How many steps were taken since the power came on.
    pub(super) fn steps(&self) -> u64 {
        self.world.lock().step
    }

    /// The power goes at this step.
    pub(super) fn cut_at(&self, step: u64) {
        self.world.lock().cut_at = Some(step);
    }

    /// Loses what was not synced, by the seed's draw, and turns the power on again.
    pub(super) fn power_cycle(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut world = self.world.lock();
        let mut files: Vec<_> = world.files.keys().copied().collect();
        files.sort_unstable();
        for file in files {
            world.file(file).cut_power(&mut rng);
        }
        for dir in world.dirs.values_mut() {
            let chance = [0, 1000, 500][rng.below(3) as usize];
            for (name, node) in dir.pending.drain(..) {
                if rng.permille(chance) {
                    match node {
                        Some(node) => dir.stored.insert(name, node),
                        None => dir.stored.remove(&name),
                    };
                }
            }
            dir.live = dir.stored.clone();
        }
        // A directory whose entry was lost is gone with all that was in it.
        let roots: Vec<PathBuf> = world.dirs.keys().cloned().collect();
        for path in roots.into_iter().skip(1) {
            let (parent, name) = split(&path);
            let is_there = world.dirs.get(&parent).is_some_and(|dir| dir.live.get(&name) == Some(&Node::Dir));
            if !is_there {
                world.dirs.remove(&path);
            }
        }
        (world.dead, world.cut_at, world.step) = (false, None, 0);
        world.power += 1;
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world.lock();
        let power = world.power;
        let (parent, name) = split(path);
        world.check(power)?;
        let node = world.dir(&parent)?.live.get(&name).copied();
        let file = match (node, how) {
            (Some(Node::File(file)), Open::Existing) => file,
            (None, Open::Existing) => return Err(not_found()),
            (Some(Node::Dir), _) => return Err(io::ErrorKind::IsADirectory.into()),
            (Some(Node::File(file)), Open::Create) => world.step(power, |world| {
                world.file(file).apply(FileOp::SetLen(0));
                Ok(file)
            })?,
            (None, Open::Create) => world.step(power, |world| {
                world.file_last += 1;
                let file = world.file_last;
                world.file(file);
                world.dir(&parent)?.set(name, Some(Node::File(file)));
                Ok(file)
            })?,
        };
        Ok(Arc::new(SimulatedFile { world: Arc::clone(&self.world), file, power }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (split(from), split(to));
        let mut world = self.world.lock();
        let power = world.power;
        world.step(power, |world| {
            let node = world.dir(&from_dir)?.live.get(&from_name).copied().ok_or_else(not_found)?;
            world.dir(&from_dir)?.set(from_name, None);
            world.dir(&to_dir)?.set(to_name, Some(node));
            Ok(())
        })
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let (parent, name) = split(path);
        let mut world = self.world.lock();
        let power = world.power;
        world.step(power, |world| {
            let dir = world.dir(&parent)?;
            dir.live.get(&name).ok_or_else(not_found)?;
            dir.set(name, None);
            Ok(())
        })
    }

    fn make_dir(&self, path: &Path) -> io::Result<bool> {
        let (parent, name) = split(path);
        let mut world = self.world.lock();
        let power = world.power;
        world.check(power)?;
        if world.dirs.contains_key(path) {
            return Ok(false);
        }
        world.step(power, |world| {
            world.dir(&parent)?.set(name, Some(Node::Dir));
            world.dirs.insert(path.to_path_buf(), Dir::default());
            Ok(true)
        })
    }

    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&[u8], bool)) -> io::Result<()> {
        let world = self.world.lock();
        world.check(world.power)?;
        let entries = world.dirs.get(path).map(|dir| dir.live.clone()).unwrap_or_default();
        drop(world);
        entries.iter().for_each(|(name, node)| each(name.as_bytes(), *node == Node::Dir));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        let power = world.power;
        world.step(power, |world| {
            let dir = world.dir(path)?;
            dir.stored = dir.live.clone();
            dir.pending.clear();
            Ok(())
        })
    }
}

struct SimulatedFile {
    world: Arc<Mutex<World>>,
    file: u64,
    power: u64,
}

impl SimulatedFile {
    fn apply(&self, op: FileOp) -> io::Result<()> {
        self.world.lock().step(self.power, |world| {
            world.file(self.file).apply(op);
            Ok(())
        })
    }
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        let mut world = self.world.lock();
        world.check(self.power)?;
        Ok(world.file(self.file).live.len() as u64)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut world = self.world.lock();
        world.check(self.power)?;
        let content = &world.file(self.file).live;
        let from = (offset as usize).min(content.len());
        Ok(content[from..(from + len).min(content.len())].to_vec())
    }

    fn read_at_once(&self, offset: u64, len: usize) -> Option<Segment> {
        self.read_at(offset, len).ok().filter(|data| data.len() == len).map(|data| Bytes::from(data).into())
    }

    fn write_at(&self, offset: u64, data: &Segments) -> Result<(), WriteFailed> {
        if self.world.lock().is_full {
            return Err(WriteFailed { written_bytes: 0, error: io::ErrorKind::StorageFull.into() });
        }
        let written = self.apply(FileOp::Write(offset as usize, data.to_vec()));
        written.map_err(|error| WriteFailed { written_bytes: data.len_bytes() as u64, error })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.apply(FileOp::SetLen(len as usize))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        zero_by_hand(self, offset, len)
    }

    fn copy_from(&self, from: &dyn DiskFile, offset: u64, len: u64) -> io::Result<()> {
        copy_by_hand(self, from, offset, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.world.lock().step(self.power, |world| {
            if world.sync_fails {
                return Err(io::Error::from_raw_os_error(5));
            }
            let content = world.file(self.file);
            content.stored = content.live.clone();
            content.pending.clear();
            Ok(())
        })
    }
}
