//! A simulated disk in memory whose power can be cut at any step, which loses, tears and reorders
//! unsynced changes, and which fails as disks do.
//!
//! Cutting the power keeps synced data and a random set of 512-byte sectors of each later write;
//! later changes of names are kept at random. Only a sync orders anything.
//!
//! A failed sync loses some of the file's unsynced writes for good, while reads still return them,
//! and the next sync succeeds, as with a page cache.
//!
//! All functions are inlined: only the tests, which call them, compile them.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use blocker::rng::Rng;
use parking_lot::{Condvar, Mutex};

use super::{Disk, DiskFile, FileId};

const SECTOR_BYTES: usize = 512;

/// Returns the sequence of a seed. Small seeds differ in few bits.
#[inline]
fn random(seed: u64) -> Rng {
    Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
}

/// The rates at which operations fail, per 1 000 operations.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// The rate of failed writes. Some of their sectors are written.
    pub write: u32,
    /// The rate of failed syncs of a file. Some of the file's unsynced writes are lost.
    pub sync: u32,
    /// The rate of failed creations of files, for lack of space.
    pub full: u32,
}

/// The simulated disk. Clones share one disk.
#[derive(Clone, Default)]
pub struct SimulatedDisk {
    medium: Arc<Mutex<Medium>>,
    gate: Arc<Gate>,
    /// The names of the files in a directory within the disk begin with the directory's name. An
    /// empty directory does not exist.
    directory: String,
}

/// The state of held-back syncs.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    moved: Condvar,
}

#[derive(Default)]
struct GateState {
    is_closed: bool,
    waiting: u32,
}

impl Gate {
    #[inline]
    fn pass(&self) {
        let mut state = self.state.lock();
        state.waiting += 1;
        self.moved.notify_all();
        while state.is_closed {
            self.moved.wait(&mut state);
        }
        state.waiting -= 1;
    }
}

#[derive(Default)]
struct Medium {
    random: Rng,
    faults: Faults,
    step: u64,
    cut_at: Option<u64>,
    is_off: bool,
    /// The number of power cycles: files opened before the last one are unusable.
    power: u64,
    is_locked: bool,
    names: BTreeMap<String, u64>,
    stored_names: BTreeMap<String, u64>,
    /// Changes of names, each stored as a whole or not at all.
    pending_names: Vec<Vec<(String, Option<u64>)>>,
    /// An ordered map, because the draws from the seed depend on the order.
    files: BTreeMap<u64, Content>,
    next_file: u64,
}

#[derive(Default)]
struct Content {
    live: Vec<u8>,
    stored: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

#[inline]
fn write_into(content: &mut Vec<u8>, at: usize, data: &[u8]) {
    content.resize(content.len().max(at + data.len()), 0);
    content[at..at + data.len()].copy_from_slice(data);
}

impl Content {
    #[inline]
    fn write(&mut self, at: usize, data: Vec<u8>) {
        write_into(&mut self.live, at, &data);
        self.pending.push((at, data));
    }

    #[inline]
    fn store(&mut self) {
        for (at, data) in self.pending.drain(..) {
            write_into(&mut self.stored, at, &data);
        }
    }

    /// Stores a random set of sectors of the unsynced writes.
    #[inline]
    fn store_some(&mut self, random: &mut Rng) {
        // Usually all or nothing, sometimes a mix.
        let chance = [0, 1000, 500][random.below(3) as usize];
        for (at, data) in std::mem::take(&mut self.pending) {
            let mut done = 0;
            while done < data.len() {
                let end = (done + SECTOR_BYTES - (at + done) % SECTOR_BYTES).min(data.len());
                if random.permille(chance) {
                    write_into(&mut self.stored, at + done, &data[done..end]);
                }
                done = end;
            }
        }
    }
}

#[inline]
fn io_error() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Medium {
    #[inline]
    fn check(&self, power: u64) -> io::Result<()> {
        off_if(self.is_off || self.power != power)
    }

    /// Counts a changing operation. The operation at which the power is cut fails, whether or not
    /// it was executed.
    #[inline]
    fn change(&mut self, power: u64) -> io::Result<bool> {
        self.check(power)?;
        self.step += 1;
        self.is_off = self.cut_at == Some(self.step);
        Ok(self.is_off)
    }

    /// Switches the power on after the process that used the disk has ended.
    #[inline]
    fn restart(&mut self) {
        (self.is_off, self.is_locked, self.cut_at) = (false, false, None);
        self.power += 1;
    }

    #[inline]
    fn set_names(&mut self, change: &[(&str, Option<u64>)]) {
        let change: Vec<_> = change.iter().map(|(name, file)| ((*name).to_owned(), *file)).collect();
        apply(&mut self.names, &change);
        self.pending_names.push(change);
    }
}

#[inline]
fn apply(names: &mut BTreeMap<String, u64>, change: &[(String, Option<u64>)]) {
    for (name, file) in change {
        match file {
            Some(file) => names.insert(name.clone(), *file),
            None => names.remove(name),
        };
    }
}

#[inline]
fn off_if(is_cut: bool) -> io::Result<()> {
    if is_cut { Err(io::Error::other("the power is off")) } else { Ok(()) }
}

impl SimulatedDisk {
    /// Returns an empty disk.
    #[inline]
    pub fn new() -> Self {
        Self::default()
    }

    /// Cuts the power at the operation after this many; 1 means the next operation. With `None` the
    /// power stays on.
    #[inline]
    pub fn cut_power_in(&self, operations: Option<u64>) {
        let mut medium = self.medium.lock();
        medium.cut_at = operations.map(|operations| medium.step + operations);
    }

    /// Returns whether the power has been cut.
    #[inline]
    pub fn is_off(&self) -> bool {
        self.medium.lock().is_off
    }

    /// Returns the number of changing operations.
    #[inline]
    pub fn steps(&self) -> u64 {
        self.medium.lock().step
    }

    /// Cuts the power if it is on, decides by `seed` which unsynced changes are stored, and
    /// switches the power on again.
    #[inline]
    pub fn power_cycle(&self, seed: u64) {
        let mut medium = self.medium.lock();
        let medium = &mut *medium;
        let mut random = random(seed);
        for content in medium.files.values_mut() {
            content.store_some(&mut random);
            content.live.clone_from(&content.stored);
        }
        let chance = [0, 1000, 500][random.below(3) as usize];
        for names in medium.pending_names.drain(..) {
            if random.permille(chance) {
                apply(&mut medium.stored_names, &names);
            }
        }
        medium.names.clone_from(&medium.stored_names);
        let (names, files) = (&medium.names, &mut medium.files);
        files.retain(|file, _| names.values().any(|named| named == file));
        medium.restart();
    }

    /// Ends the process that uses the disk, as `kill -9` does. Its writes stay, synced or not, its
    /// lock is released, and its open files become unusable.
    #[inline]
    pub fn kill_process(&self) {
        self.medium.lock().restart();
    }

    /// Makes operations fail at random from now on. `seed` determines which of them fail.
    #[inline]
    pub fn set_faults(&self, seed: u64, faults: Faults) {
        let mut medium = self.medium.lock();
        medium.random = random(seed);
        medium.faults = faults;
    }

    /// Makes syncs of files wait, as on a disk that does not respond, or releases the waiting
    /// syncs.
    #[inline]
    pub fn hold_syncs(&self, is_held: bool) {
        self.gate.state.lock().is_closed = is_held;
        self.gate.moved.notify_all();
    }

    /// Blocks the thread until a sync is waiting.
    #[inline]
    pub fn wait_for_held_sync(&self) {
        let mut state = self.gate.state.lock();
        while !(state.is_closed && state.waiting > 0) {
            self.gate.moved.wait(&mut state);
        }
    }

    /// Returns the content of a file as the program sees it, if there is one.
    #[inline]
    pub fn content(&self, name: &str) -> Option<Vec<u8>> {
        let medium = self.medium.lock();
        medium.names.get(name).map(|file| medium.files[file].live.clone())
    }

    /// Replaces the content of a file, durably.
    #[inline]
    pub fn set_content(&self, name: &str, bytes: &[u8]) {
        let mut medium = self.medium.lock();
        let medium = &mut *medium;
        let file = *medium.names.entry(name.to_owned()).or_insert_with(|| {
            medium.next_file += 1;
            medium.next_file
        });
        medium.stored_names.insert(name.to_owned(), file);
        let content = Content { live: bytes.to_vec(), stored: bytes.to_vec(), pending: Vec::new() };
        medium.files.insert(file, content);
    }

    /// Returns a separate disk with the same durable files.
    #[inline]
    pub fn copy(&self) -> Self {
        let copy = Self::new();
        let names: Vec<_> = self.medium.lock().names.keys().cloned().collect();
        for name in names {
            copy.set_content(&name, &self.content(&name).unwrap_or_default());
        }
        copy
    }

    #[inline]
    fn full(&self, name: &str) -> String {
        format!("{}{name}", self.directory)
    }

    #[inline]
    fn file(&self, medium: &Medium, file: u64) -> Arc<dyn DiskFile> {
        let (gate, power) = (Arc::clone(&self.gate), medium.power);
        Arc::new(SimulatedFile { medium: Arc::clone(&self.medium), gate, file, power })
    }
}

struct Locked {
    medium: Arc<Mutex<Medium>>,
    power: u64,
}

impl Drop for Locked {
    #[inline]
    fn drop(&mut self) {
        let mut medium = self.medium.lock();
        if medium.power == self.power {
            medium.is_locked = false;
        }
    }
}

impl Disk for SimulatedDisk {
    #[inline]
    fn lock(&self) -> io::Result<Box<dyn Send + Sync>> {
        let mut medium = self.medium.lock();
        if !self.directory.is_empty() {
            // No process keeps a directory within the disk open.
            return Ok(Box::new(()));
        }
        if std::mem::replace(&mut medium.is_locked, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Locked { medium: Arc::clone(&self.medium), power: medium.power }))
    }

    #[inline]
    fn names(&self) -> io::Result<Vec<String>> {
        let medium = self.medium.lock();
        let below = medium.names.keys().filter_map(|name| name.strip_prefix(&*self.directory));
        let mut names: Vec<_> =
            below.map(|name| name.split_once('/').map_or(name, |(first, _)| first).to_owned()).collect();
        names.dedup();
        Ok(names)
    }

    #[inline]
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut medium = self.medium.lock();
        let power = medium.power;
        let is_cut = medium.change(power)?;
        let permille = medium.faults.full;
        if !is_cut && medium.random.permille(permille) {
            return Err(io::Error::from_raw_os_error(28));
        }
        medium.next_file += 1;
        let file = medium.next_file;
        medium.files.insert(file, Content::default());
        medium.set_names(&[(&self.full(name), Some(file))]);
        off_if(is_cut)?;
        Ok(self.file(&medium, file))
    }

    #[inline]
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let medium = self.medium.lock();
        medium.check(medium.power)?;
        let file = *medium.names.get(&self.full(name)).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(&medium, file))
    }

    #[inline]
    fn id(&self, name: &str) -> io::Result<FileId> {
        let medium = self.medium.lock();
        medium.check(medium.power)?;
        Ok((0, *medium.names.get(&self.full(name)).ok_or(io::ErrorKind::NotFound)?))
    }

    #[inline]
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut medium = self.medium.lock();
        let power = medium.power;
        let is_cut = medium.change(power)?;
        let (from, to) = (self.full(from), self.full(to));
        let file = *medium.names.get(&from).ok_or(io::ErrorKind::NotFound)?;
        medium.set_names(&[(&to, Some(file)), (&from, None)]);
        off_if(is_cut)
    }

    #[inline]
    fn remove(&self, name: &str) -> io::Result<()> {
        let mut medium = self.medium.lock();
        let power = medium.power;
        let is_cut = medium.change(power)?;
        let name = self.full(name);
        medium.names.get(&name).ok_or(io::ErrorKind::NotFound)?;
        medium.set_names(&[(&name, None)]);
        off_if(is_cut)
    }

    #[inline]
    fn sync_names(&self) -> io::Result<()> {
        let mut medium = self.medium.lock();
        let power = medium.power;
        off_if(medium.change(power)?)?;
        medium.stored_names = medium.names.clone();
        medium.pending_names.clear();
        Ok(())
    }

    #[inline]
    fn directory(&self, name: &str) -> io::Result<Box<dyn Disk>> {
        Ok(Box::new(Self { directory: self.full(name) + "/", ..self.clone() }))
    }

    #[inline]
    fn random(&self) -> io::Result<u64> {
        let mut medium = self.medium.lock();
        Ok(medium.random.next_u64())
    }
}

struct SimulatedFile {
    medium: Arc<Mutex<Medium>>,
    gate: Arc<Gate>,
    file: u64,
    power: u64,
}

impl DiskFile for SimulatedFile {
    #[inline]
    fn len(&self) -> io::Result<u64> {
        let medium = self.medium.lock();
        medium.check(self.power)?;
        Ok(medium.files[&self.file].live.len() as u64)
    }

    #[inline]
    fn id(&self) -> io::Result<FileId> {
        let medium = self.medium.lock();
        medium.check(self.power)?;
        Ok((0, self.file))
    }

    #[inline]
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let medium = self.medium.lock();
        medium.check(self.power)?;
        let live = &medium.files[&self.file].live;
        let from = live.get(offset as usize..).unwrap_or_default();
        let read = from.len().min(buffer.len());
        buffer[..read].copy_from_slice(&from[..read]);
        Ok(read)
    }

    #[inline]
    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        let data = parts.concat();
        assert!(offset.is_multiple_of(4096) && data.len().is_multiple_of(4096), "an unaligned write");
        let mut medium = self.medium.lock();
        let is_cut = medium.change(self.power)?;
        let medium = &mut *medium;
        let content = medium.files.get_mut(&self.file).expect("an open file");
        if !is_cut && medium.random.permille(medium.faults.write) {
            let part = medium.random.below(data.len() as u64 / 512 + 1) as usize * 512;
            content.write(offset as usize, data[..part].to_vec());
            return Err(io_error());
        }
        content.write(offset as usize, data);
        off_if(is_cut)
    }

    #[inline]
    fn sync(&self) -> io::Result<()> {
        self.gate.pass();
        let mut medium = self.medium.lock();
        off_if(medium.change(self.power)?)?;
        let medium = &mut *medium;
        let content = medium.files.get_mut(&self.file).expect("an open file");
        if medium.random.permille(medium.faults.sync) {
            content.store_some(&mut medium.random);
            return Err(io_error());
        }
        content.store();
        Ok(())
    }
}
