//! A simulated disk in memory. Its power can be cut at any step, which loses, tears and reorders
//! unsynced operations; operations can fail as on a real disk; and the disk can hold a step until a
//! test releases it.
//!
//! Every file and directory has its live content, its stored content, and the operations in
//! between. A power cut keeps the stored content and a random part of the operations, drawn for
//! each sector of a write and each entry of a directory separately. This is harsher than any
//! journalling file system: a rename's two halves may separate, and only a sync orders anything.
//!
//! A write-back that fails, in a sync or at any other time, loses some of a file's operations for
//! good: the live content stays, as in a page cache, the next sync reports the failure once, and
//! the one after claims success.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

use crate::file::disk::{Disk, DiskFile, Kind, Open, WriteFailed, copy_by_hand, zero_by_hand};
use crate::rng::Rng;
use crate::{Segment, Segments};

pub(super) const SECTOR_BYTES: usize = 512;

#[derive(Clone, Default)]
pub(super) struct SimulatedDisk {
    pub(super) media: Arc<Mutex<Media>>,
    gate: Arc<Gate>,
}

/// Operations that can fail, each with its own probability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Fault {
    /// A write fails after some of its sectors.
    Write,
    /// A write fails for lack of space.
    Full,
    /// The write-back of a file's operations, which the next sync reports.
    WriteBack,
    Sync,
    SyncDir,
    Rename,
    Unlink,
    SetLen,
    Create,
}

/// The operation at which a test stops a thread.
#[derive(Default)]
struct Gate {
    place: Mutex<Option<Place>>,
    changed: Condvar,
}

struct Place {
    operation: &'static str,
    path: PathBuf,
    is_reached: bool,
}

/// The disk's state. Tests set its public fields.
#[derive(Default)]
pub(super) struct Media {
    step: u64,
    /// The step at which the power is cut.
    pub(super) cut_at: Option<u64>,
    /// The random generator, and how many times in 1 000 each operation fails; `None` if no
    /// operation fails.
    pub(super) faults: Option<(Rng, Vec<(Fault, u32)>)>,
    /// The number of failures of each operation.
    failed: BTreeMap<Fault, u64>,
    /// The number of syncs of a file, a directory or everything.
    syncs: u64,
    /// A write-back has failed, and no sync of everything has reported the failure yet.
    error_unseen: bool,
    /// A sync of everything reports that its success cannot be trusted.
    pub(super) no_sync_all: bool,
    dead: bool,
    /// Every sync of a file fails.
    pub(super) sync_fails: bool,
    /// The disk is full: only overwriting succeeds, because this needs no space.
    pub(super) is_full: bool,
    /// Paths that cannot be opened or listed, with the system's error codes.
    refused: BTreeMap<PathBuf, i32>,
    /// The number of power cycles; files opened in an earlier one are unusable.
    power: u64,
    dirs: BTreeMap<PathBuf, Dir>,
    /// The map is ordered, so that a seed draws the same file in every run.
    files: BTreeMap<u64, Contents>,
    file_last: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Node {
    File(u64),
    Dir,
    /// An entry of any other kind, which the text names.
    Other(&'static str),
}

impl Node {
    fn kind(self) -> Kind {
        match self {
            Self::File(_) => Kind::File,
            Self::Dir => Kind::Dir,
            Self::Other(noun) => Kind::Other(noun),
        }
    }
}

#[derive(Default)]
struct Dir {
    live: BTreeMap<OsString, Node>,
    stored: BTreeMap<OsString, Node>,
    pending: Vec<(OsString, Option<Node>)>,
}

impl Dir {
    fn store(&mut self) {
        self.stored = self.live.clone();
        self.pending.clear();
    }

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
    /// A write-back has failed, and no sync of this file has reported the failure yet.
    error_unseen: bool,
    /// The error code with which reads fail.
    read_error: Option<i32>,
}

enum FileOp {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

fn write_into(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    content.resize(content.len().max(at + data.len()), 0);
    content[at..at + data.len()].copy_from_slice(data);
}

impl FileOp {
    fn apply_to(&self, content: &mut Vec<u8>) {
        match self {
            Self::Write(at, data) => write_into(content, *at, data),
            Self::SetLen(len) => content.resize(*len, 0),
        }
    }
}

impl Contents {
    fn apply(&mut self, op: FileOp) {
        op.apply_to(&mut self.live);
        self.pending.push(op);
    }

    fn store(&mut self) {
        self.pending.drain(..).for_each(|op| op.apply_to(&mut self.stored));
    }

    /// Loses some of the operations; the next sync reports that.
    fn fail_write_back(&mut self, rng: &mut Rng) {
        let live = std::mem::take(&mut self.live);
        self.cut_power(rng);
        self.live = live;
        self.error_unseen = true;
    }

    fn cut_power(&mut self, rng: &mut Rng) {
        // Usually all or none of the operations survive, sometimes a part.
        let chance = [0, 1000, 500][rng.below(3) as usize];
        let mut content = std::mem::take(&mut self.stored);
        for op in self.pending.drain(..) {
            match op {
                FileOp::SetLen(len) if rng.permille(chance) => content.resize(len, 0),
                FileOp::SetLen(_) => {}
                FileOp::Write(mut at, data) => {
                    let mut left = &data[..];
                    while !left.is_empty() {
                        let (sector, rest) = left.split_at(left.len().min(SECTOR_BYTES - at % SECTOR_BYTES));
                        if rng.permille(chance) {
                            write_into(&mut content, at, sector);
                        }
                        (at, left) = (at + sector.len(), rest);
                    }
                }
            }
        }
        self.stored = content.clone();
        self.live = content;
        self.error_unseen = false;
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

fn io_error() -> io::Error {
    io::Error::from_raw_os_error(5)
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Media {
    fn check(&self, power: u64) -> io::Result<()> {
        if self.dead || self.power != power { Err(power_is_off()) } else { Ok(()) }
    }

    /// Performs a step that changes the disk. The step at which the power is cut fails, whether or
    /// not it is executed.
    fn step<T>(&mut self, power: u64, act: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        self.check(power)?;
        self.step += 1;
        if self.cut_at == Some(self.step) {
            // In half of the cases, the interrupted step still reaches the disk's cache.
            if self.step.is_multiple_of(2) {
                let _ = act(self);
            }
            self.dead = true;
            return Err(power_is_off());
        }
        act(self)
    }

    fn power_on(&mut self) {
        (self.dead, self.cut_at, self.step) = (false, None, 0);
        self.power += 1;
    }

    fn fails(&mut self, fault: Fault) -> bool {
        let Some((rng, chances)) = &mut self.faults else { return false };
        let chance = chances.iter().find(|(kind, _)| *kind == fault).map_or(0, |(_, chance)| *chance);
        let fails = rng.permille(chance);
        if fails {
            *self.failed.entry(fault).or_default() += 1;
        }
        fails
    }

    fn check_fault(&mut self, fault: Fault) -> io::Result<()> {
        if self.fails(fault) { Err(io_error()) } else { Ok(()) }
    }

    /// Makes a file's write-back fail.
    fn lose(&mut self, file: u64) {
        let mut rng = self.faults.as_mut().map_or(Rng::new(0), |(rng, _)| Rng::new(rng.next_u64()));
        self.file(file).fail_write_back(&mut rng);
        self.error_unseen = true;
    }

    fn check_path(&self, path: &Path) -> io::Result<()> {
        self.refused.get(path).map_or(Ok(()), |code| Err(io::Error::from_raw_os_error(*code)))
    }

    fn dir(&mut self, path: &Path) -> io::Result<&mut Dir> {
        self.dirs.get_mut(path).ok_or_else(not_found)
    }

    fn file(&mut self, file: u64) -> &mut Contents {
        self.files.entry(file).or_default()
    }
}

fn split(path: &Path) -> (PathBuf, OsString) {
    let parent = path.parent().unwrap_or(Path::new("/"));
    (parent.to_path_buf(), path.file_name().unwrap_or_default().to_os_string())
}

impl SimulatedDisk {
    /// Returns an empty disk with one directory.
    pub(super) fn new(root: &Path) -> Self {
        let disk = Self::default();
        disk.media.lock().dirs.insert(root.to_path_buf(), Dir::default());
        disk
    }

    /// Makes opening or listing `path` fail from now on with the system's error `code`; `None`
    /// removes the fault.
    pub(super) fn refuse(&self, path: &Path, code: Option<i32>) {
        let mut media = self.media.lock();
        match code {
            Some(code) => media.refused.insert(path.to_path_buf(), code),
            None => media.refused.remove(path),
        };
    }

    /// Makes reading a file fail that can be opened, as [`refuse`](Self::refuse) does for opening.
    pub(super) fn refuse_reads(&self, path: &Path, code: Option<i32>) {
        let (parent, name) = split(path);
        let mut media = self.media.lock();
        if let Some(Node::File(file)) = media.dirs.get(&parent).and_then(|dir| dir.live.get(&name)).copied() {
            media.file(file).read_error = code;
        }
    }

    /// Replaces a file by a directory, or by an entry of this `kind`.
    pub(super) fn put_foreign(&self, path: &Path, kind: Kind) {
        let (parent, name) = split(path);
        let mut media = self.media.lock();
        let node = match kind {
            Kind::Other(noun) => Node::Other(noun),
            Kind::File | Kind::Dir => Node::Dir,
        };
        if node == Node::Dir {
            media.dirs.insert(path.to_path_buf(), Dir::default());
        }
        if let Some(dir) = media.dirs.get_mut(&parent) {
            dir.live.insert(name.clone(), node);
            dir.stored.insert(name, node);
        }
    }

    /// Makes operations fail from now on, as drawn from the seed: `chances` in 1 000 of each kind.
    pub(super) fn fail(&self, seed: u64, chances: Vec<(Fault, u32)>) {
        self.media.lock().faults = Some((Rng::new(seed), chances));
    }

    /// Returns the number of syncs.
    pub(super) fn syncs(&self) -> u64 {
        self.media.lock().syncs
    }

    /// Returns whether the power is off.
    pub(super) fn is_dead(&self) -> bool {
        self.media.lock().dead
    }

    /// Returns the number of random failures of each operation.
    pub(super) fn failed(&self) -> BTreeMap<Fault, u64> {
        self.media.lock().failed.clone()
    }

    /// Makes the next operation of this kind on this path (`/` for a sync of everything) wait for
    /// [`Self::release`].
    pub(super) fn hold(&self, operation: &'static str, path: &Path) {
        let place = Place { operation, path: path.to_path_buf(), is_reached: false };
        *self.gate.place.lock() = Some(place);
    }

    /// Waits until a thread has reached the held operation. Returns immediately if no operation is
    /// to be held.
    pub(super) fn wait_held(&self) {
        let mut place = self.gate.place.lock();
        while place.as_ref().is_some_and(|place| !place.is_reached) {
            self.gate.changed.wait(&mut place);
        }
    }

    /// Releases the held thread.
    pub(super) fn release(&self) {
        *self.gate.place.lock() = None;
        self.gate.changed.notify_all();
    }

    /// Performs a step that changes the disk, in the current power cycle.
    fn step<T>(&self, act: impl FnOnce(&mut Media) -> io::Result<T>) -> io::Result<T> {
        let mut media = self.media.lock();
        let power = media.power;
        media.step(power, act)
    }

    fn pass(&self, operation: &'static str, path: &Path) {
        let mut place = self.gate.place.lock();
        while let Some(held) = place.as_mut().filter(|held| held.operation == operation && held.path == path)
        {
            held.is_reached = true;
            self.gate.changed.notify_all();
            self.gate.changed.wait(&mut place);
        }
    }

    /// Replaces the process: the content remains, and open files become unusable.
    pub(super) fn restart(&self) {
        self.media.lock().power_on();
    }

    /// Returns all files and their contents.
    pub(super) fn contents(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let media = self.media.lock();
        let mut all = BTreeMap::new();
        for (path, dir) in &media.dirs {
            for (name, node) in &dir.live {
                if let Node::File(file) = node {
                    all.insert(path.join(name), media.files[file].live.clone());
                }
            }
        }
        all
    }

    /// Replaces or removes a file's content.
    pub(super) fn tamper(&self, path: &Path, content: Option<Vec<u8>>) {
        let (parent, name) = split(path);
        let mut media = self.media.lock();
        let Some(dir) = media.dirs.get_mut(&parent) else { return };
        let Some(content) = content else {
            dir.live.remove(&name);
            dir.stored.remove(&name);
            return;
        };
        let Some(Node::File(file)) = dir.live.get(&name).copied() else { return };
        media.files.insert(file, Contents { live: content.clone(), stored: content, ..Contents::default() });
    }

    /// Returns the number of steps since the last power cycle.
    pub(super) fn steps(&self) -> u64 {
        self.media.lock().step
    }

    /// Loses unsynced operations, as drawn from the seed, and turns the power on again.
    pub(super) fn power_cycle(&self, seed: u64) {
        let mut rng = Rng::new(seed);
        let mut media = self.media.lock();
        for file in media.files.keys().copied().collect::<Vec<_>>() {
            media.file(file).cut_power(&mut rng);
        }
        for dir in media.dirs.values_mut() {
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
        // A directory whose entry was lost is gone with its content.
        let roots: Vec<PathBuf> = media.dirs.keys().cloned().collect();
        for path in roots.into_iter().skip(1) {
            let (parent, name) = split(&path);
            let is_there = media.dirs.get(&parent).is_some_and(|dir| dir.live.get(&name) == Some(&Node::Dir));
            if !is_there {
                media.dirs.remove(&path);
            }
        }
        media.error_unseen = false;
        media.power_on();
    }
}

impl Disk for SimulatedDisk {
    fn open(&self, path: &Path, how: Open) -> io::Result<Arc<dyn DiskFile>> {
        self.pass("open", path);
        let mut media = self.media.lock();
        let power = media.power;
        let (parent, name) = split(path);
        media.check(power)?;
        media.check_path(path)?;
        let node = media.dir(&parent)?.live.get(&name).copied();
        let file = match (node, how) {
            (Some(node @ (Node::Dir | Node::Other(_))), _) => return Err(node.kind().refused()),
            (Some(Node::File(file)), Open::Read | Open::ReadWrite) => file,
            (None, Open::Read | Open::ReadWrite) => return Err(not_found()),
            (Some(Node::File(file)), Open::Create) => media.step(power, |media| {
                media.file(file).apply(FileOp::SetLen(0));
                Ok(file)
            })?,
            (None, Open::Create) => media.step(power, |media| {
                media.check_fault(Fault::Create)?;
                media.file_last += 1;
                let file = media.file_last;
                media.file(file);
                media.dir(&parent)?.set(name, Some(Node::File(file)));
                Ok(file)
            })?,
        };
        Ok(Arc::new(SimulatedFile { media: Arc::clone(&self.media), file, power }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.pass("rename", to);
        let ((from_dir, from_name), (to_dir, to_name)) = (split(from), split(to));
        self.step(|media| {
            let fails = media.fails(Fault::Rename);
            // Half of the failed renames have been executed.
            if fails && media.step.is_multiple_of(2) {
                return Err(io_error());
            }
            let node = media.dir(&from_dir)?.live.get(&from_name).copied().ok_or_else(not_found)?;
            media.dir(&from_dir)?.set(from_name, None);
            media.dir(&to_dir)?.set(to_name, Some(node));
            if fails { Err(io_error()) } else { Ok(()) }
        })
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        self.pass("unlink", path);
        let (parent, name) = split(path);
        self.step(|media| {
            media.check_fault(Fault::Unlink)?;
            let dir = media.dir(&parent)?;
            dir.live.get(&name).ok_or_else(not_found)?;
            dir.set(name, None);
            Ok(())
        })
    }

    fn make_dir(&self, path: &Path) -> io::Result<bool> {
        let (parent, name) = split(path);
        {
            let mut media = self.media.lock();
            let power = media.power;
            media.check(power)?;
            if media.dirs.contains_key(path) {
                return Ok(false);
            }
            media.step(power, |media| {
                media.dir(&parent)?.set(name, Some(Node::Dir));
                media.dirs.insert(path.to_path_buf(), Dir::default());
                Ok(())
            })?;
            // A new directory is opened, so that it is given to its owner.
            media.check_path(path)?;
        }
        self.pass("after make_dir", path);
        Ok(true)
    }

    fn read_dir(&self, path: &Path, each: &mut dyn FnMut(&[u8], Kind)) -> io::Result<()> {
        let media = self.media.lock();
        media.check(media.power)?;
        media.check_path(path)?;
        let entries = media.dirs.get(path).map(|dir| dir.live.clone()).unwrap_or_default();
        drop(media);
        entries.iter().for_each(|(name, node)| each(name.as_bytes(), node.kind()));
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step(|media| {
            media.syncs += 1;
            media.check_fault(Fault::SyncDir)?;
            media.dir(path)?.store();
            Ok(())
        })
    }

    fn head(&self, path: &Path, buffer: &mut [u8]) -> io::Result<(usize, u64)> {
        let found = self.open(path, Open::Read).and_then(|file| {
            let head = file.read_at(0, buffer.len())?;
            buffer[..head.len()].copy_from_slice(&head);
            Ok((head.len(), file.len()?))
        });
        self.pass("after head", path);
        found
    }

    fn sync_all(&self) -> io::Result<bool> {
        let mut media = self.media.lock();
        let power = media.power;
        if media.no_sync_all {
            return media.check(power).map(|()| false);
        }
        let synced = media.step(power, |media| {
            media.syncs += 1;
            if media.fails(Fault::Sync) || media.sync_fails {
                // The write-back of any file fails, even of one that has nothing to write back.
                let files = media.files.keys().copied().collect::<Vec<_>>();
                let drawn = media.faults.as_mut().map_or(0, |(rng, _)| rng.below(files.len() as u64));
                for (index, file) in files.into_iter().enumerate() {
                    if media.sync_fails || index as u64 == drawn {
                        media.lose(file);
                    }
                }
            }
            media.files.values_mut().for_each(Contents::store);
            media.dirs.values_mut().for_each(Dir::store);
            if std::mem::take(&mut media.error_unseen) { Err(io_error()) } else { Ok(true) }
        });
        drop(media);
        self.pass("after sync_all", Path::new("/"));
        synced
    }
}

struct SimulatedFile {
    media: Arc<Mutex<Media>>,
    file: u64,
    power: u64,
}

impl SimulatedFile {
    fn apply(&self, op: FileOp) -> io::Result<()> {
        self.media.lock().step(self.power, |media| {
            media.file(self.file).apply(op);
            if media.fails(Fault::WriteBack) {
                media.lose(self.file);
            }
            Ok(())
        })
    }

    /// Returns how many bytes of a write are done before it fails, and the error.
    fn write_fails(&self, end: usize, len: usize) -> Option<(usize, io::Error)> {
        let mut media = self.media.lock();
        let needs_room = end > media.file(self.file).live.len();
        let error = if (media.is_full && needs_room) || media.fails(Fault::Full) {
            io::ErrorKind::StorageFull.into()
        } else if media.fails(Fault::Write) {
            io_error()
        } else {
            return None;
        };
        let sectors = (len / SECTOR_BYTES) as u64;
        let done = media.faults.as_mut().map_or(0, |(rng, _)| rng.below(sectors + 1));
        Some((done as usize * SECTOR_BYTES, error))
    }
}

impl DiskFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        let mut media = self.media.lock();
        media.check(self.power)?;
        Ok(media.file(self.file).live.len() as u64)
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut media = self.media.lock();
        media.check(self.power)?;
        let file = media.file(self.file);
        if let Some(code) = file.read_error {
            return Err(io::Error::from_raw_os_error(code));
        }
        let content = &file.live;
        let from = (offset as usize).min(content.len());
        Ok(content[from..(from + len).min(content.len())].to_vec())
    }

    fn read_at_once(&self, offset: u64, len: usize) -> Option<Segment> {
        self.read_at(offset, len).ok().filter(|data| data.len() == len).map(|data| Bytes::from(data).into())
    }

    fn write_at(&self, offset: u64, data: &Segments) -> Result<(), WriteFailed> {
        if let Some((done, error)) = self.write_fails(offset as usize + data.len_bytes(), data.len_bytes()) {
            if done > 0 {
                let written = self.apply(FileOp::Write(offset as usize, data.to_vec()[..done].to_vec()));
                written.map_err(|error| WriteFailed { written_bytes: done as u64, error })?;
            }
            return Err(WriteFailed { written_bytes: done as u64, error });
        }
        let written = self.apply(FileOp::Write(offset as usize, data.to_vec()));
        written.map_err(|error| WriteFailed { written_bytes: data.len_bytes() as u64, error })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.media.lock().check_fault(Fault::SetLen)?;
        self.apply(FileOp::SetLen(len as usize))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        zero_by_hand(self, offset, len)
    }

    fn copy_from(&self, from: &dyn DiskFile, from_at: u64, to_at: u64, len: u64) -> io::Result<()> {
        copy_by_hand(self, from, from_at, to_at, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.media.lock().step(self.power, |media| {
            media.syncs += 1;
            if media.fails(Fault::Sync) || media.sync_fails {
                media.lose(self.file);
            }
            let content = media.file(self.file);
            content.store();
            if std::mem::take(&mut content.error_unseen) { Err(io_error()) } else { Ok(()) }
        })
    }
}
