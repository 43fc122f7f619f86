//! Checks a store that is not open, and repairs it as far as possible.
//!
//! The check covers everything that the store itself writes: both copies of the superblock, of the
//! claims and of every header, the size and name in each header, and the content of the store's
//! directories. Objects' bytes have no checksum: for them the store relies on the file system and
//! the medium.
//!
//! | damage | repair |
//! |---|---|
//! | one copy of a header, of the superblock, of the claims | it is written again from the other |
//! | both copies of a header; a file that was truncated, extended, or belongs to another object | the file is set aside; then the object is missing |
//! | a path of an object that is not a regular file | it is set aside |
//! | both superblocks | a new one is made from the highest version of all objects |
//! | both files of claims | each namespace is claimed for no writer, above its highest stamp |
//! | a superblock older than the objects | its count of starts is raised |
//!
//! Damage is inconsistent content. If a file cannot be read, its state is unknown: then the store
//! counts as not checked, and nothing is repaired. Files that are set aside or replaced are kept in
//! `damaged/`.
//!
//! Remains of a crash are not damage, but they are reported, and a repair removes them.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::disk::{self, Disk, Kind, Open, found};
use super::object::size_mismatch;
use super::path::{self, Entry};
use super::real::RealDisk;
use super::slot::{FORMAT, Found, HEADER_BYTES, Slot, name_sum};
use super::store::BOOT_SHIFT;
use super::twice::{CLAIMS, Copy, SUPERBLOCK, Twice, copy_name, replace};
use crate::admission::Claims;
use crate::file::directory::Access;
use crate::file::directory::DirectoryLock;
use crate::file::twice::{Superblock, decode_claims, encode_claims};
use crate::{Epoch, Error, Name, Namespace, ObjectId, Result, Scope};

/// The distance by which a reconstructed count of starts exceeds the highest known count: unstored
/// versions that were assigned since then must not be assigned again.
const MADE_UP_STARTS: u64 = 4096;

/// The severity of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum FindingKind {
    /// The content is not the one that the store has written.
    Damage,
    /// The remains of a crash, or a file that does not belong to the store.
    Note,
    /// The file cannot be read.
    Unread,
}

/// One finding of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// The problem.
    pub what: String,
    /// The repair that would be made, or has been made.
    pub remedy: String,
    /// The severity.
    pub kind: FindingKind,
}

/// The results of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The number of objects.
    pub objects: u64,
    /// The number of remembered deletions.
    pub tombstones: u64,
    /// The number of findings that are damage.
    pub damaged: u64,
    /// The number of findings that are notes.
    pub notes: u64,
    /// The number of files that could not be read. Unless it is 0, nothing was repaired.
    pub unread: u64,
}

/// Checks the store in `dir`, and with `repair` repairs it; `each` receives every finding, after
/// its repair if there is one. No process may have the store open, nor can open it during the
/// check. Without `repair` the directory is only read.
///
/// # Errors
/// Returns `Denied` if a process has the store open or the directory is not a store; `Unsupported`
/// if another version of this program wrote it; the disk's errors. A repair that ends with an error
/// has made the repairs that it reported.
pub fn check(dir: impl AsRef<Path>, repair: bool, each: &mut dyn FnMut(&Finding)) -> Result<CheckReport> {
    let dir = dir.as_ref();
    let access = if repair { Access::Write } else { Access::Read };
    let failed = |error: &io::Error| Error::from_io(error, &format!("opening {}", dir.display()));
    let is_dir = match dir.metadata() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&error)),
        found => found.is_ok_and(|found| found.is_dir()),
    };
    if !is_dir {
        return Err(Error::Denied(format!("there is no directory {}", dir.display()).into()));
    }
    let _lock = DirectoryLock::take(dir, access)?;
    let disk = RealDisk::new(false, dir, access).map_err(|error| failed(&error))?;
    check_on(&disk, dir, repair, each)
}

/// Checks a store as [`check`] does, on any disk and without a lock. The disk's type is a parameter so
/// that only programs that check a store compile the checks.
pub(super) fn check_on<D: Disk>(
    disk: &D,
    root: &Path,
    repair: bool,
    each: &mut dyn FnMut(&Finding),
) -> Result<CheckReport> {
    if repair {
        // A repair needs all files, so nothing is changed unless all files can be read.
        let report = Check::new(disk, root, false, &mut |finding| {
            if finding.kind == FindingKind::Unread {
                each(finding);
            }
        })
        .run()?;
        if report.unread > 0 {
            return Ok(report);
        }
    }
    Check::new(disk, root, repair, each).run()
}

struct Check<'a, D> {
    disk: &'a D,
    root: &'a Path,
    repair: bool,
    each: &'a mut dyn FnMut(&Finding),
    report: CheckReport,
    /// The highest start in any object's version.
    starts: u64,
    /// The highest epoch of any stamp, for each namespace with stamps.
    epochs: HashMap<Namespace, Epoch>,
    /// Only headers with at least this version state the size of the file.
    sizes_from: u64,
    /// The names in `damaged/`, after they have been read.
    aside: Option<BTreeSet<Box<[u8]>>>,
    temporaries: u64,
}

impl<'a, D: Disk> Check<'a, D> {
    fn new(disk: &'a D, root: &'a Path, repair: bool, each: &'a mut dyn FnMut(&Finding)) -> Self {
        Self {
            disk,
            root,
            repair,
            each,
            report: CheckReport::default(),
            starts: 0,
            epochs: HashMap::new(),
            sizes_from: u64::MAX,
            aside: None,
            temporaries: 0,
        }
    }

    fn run(mut self) -> Result<CheckReport> {
        let superblocks = Twice::read(self.disk, self.root, SUPERBLOCK, Superblock::decode)?;
        let claims = Twice::read(self.disk, self.root, CLAIMS, decode_claims)?;
        if let (Copy::Whole(superblock), true) = (&superblocks.first, superblocks.is_in_both())
            && superblock.clean
        {
            self.sizes_from = superblock.version_floor;
        }
        let unread = superblocks.unread(SUPERBLOCK).chain(claims.unread(CLAIMS));
        for (name, error) in unread {
            self.unread(&self.root.join(name), error)?;
        }
        self.top(superblocks.is_absent())?;
        self.objects()?;
        self.superblock(&superblocks)?;
        self.claims(&claims)?;
        Ok(self.report)
    }

    fn found(&mut self, path: &Path, kind: FindingKind, what: impl Into<String>, remedy: impl Into<String>) {
        *match kind {
            FindingKind::Damage => &mut self.report.damaged,
            FindingKind::Note => &mut self.report.notes,
            FindingKind::Unread => &mut self.report.unread,
        } += 1;
        let finding = Finding { path: path.to_path_buf(), what: what.into(), remedy: remedy.into(), kind };
        (self.each)(&finding);
    }

    /// Reports a file that could not be read.
    ///
    /// # Errors
    /// Fails during a repair, which then ends.
    fn unread(&mut self, path: &Path, error: &io::Error) -> Result<()> {
        if self.repair {
            return Err(Error::from_io(error, &format!("reading {}", path.display())));
        }
        self.found(path, FindingKind::Unread, error.to_string(), "nothing is repaired");
        Ok(())
    }

    /// Returns the content that was read, or reports the error and returns `None`.
    fn read<T>(&mut self, path: &Path, answer: io::Result<T>) -> Result<Option<T>> {
        match answer {
            Ok(read) => Ok(Some(read)),
            Err(error) => self.unread(path, &error).map(|()| None),
        }
    }

    /// Performs a step of a repair.
    fn repair(&mut self, path: &Path, act: impl FnOnce(&mut Self) -> io::Result<()>) -> Result<()> {
        if !self.repair {
            return Ok(());
        }
        act(self).map_err(|error| Error::from_io(&error, &format!("repairing {}", path.display())))
    }

    /// Returns a directory's entries: names and kinds.
    fn entries(&mut self, dir: &Path) -> Result<Vec<(Vec<u8>, Kind)>> {
        let mut entries = Vec::new();
        let listed = self.disk.read_dir(dir, &mut |name, kind| entries.push((name.to_vec(), kind)));
        self.read(dir, listed)?;
        Ok(entries)
    }

    /// Checks the store's directory itself, and `tmp/`.
    fn top(&mut self, no_superblock: bool) -> Result<()> {
        let entries = self.entries(self.root)?;
        let has = |wanted: &[u8]| entries.iter().any(|(name, kind)| name == wanted && *kind == Kind::Dir);
        let objects = self.root.join("objects");
        let has_objects = has(b"objects");
        if no_superblock && (!has_objects || self.entries(&objects)?.is_empty()) && self.report.unread == 0 {
            let text = format!("there is no store in {}: no superblock, and no objects", self.root.display());
            return Err(Error::Denied(text.into()));
        }
        if !has_objects && self.report.unread == 0 {
            let what = "is missing, and all objects with it";
            self.found(&objects, FindingKind::Damage, what, "the next start creates an empty directory");
        }
        let ours: [&[u8]; 9] = [
            b"superblock",
            b"superblock.copy",
            b"claims",
            b"claims.copy",
            b"lock",
            b"tmp",
            b"objects",
            b"damaged",
            b"lost+found",
        ];
        for (name, _) in entries.iter().filter(|(name, _)| !ours.contains(&name.as_slice())) {
            let path = self.root.join(OsStr::from_bytes(name));
            self.found(&path, FindingKind::Note, "does not belong to the store", "left as it is");
        }
        let tmp = self.root.join("tmp");
        for (name, kind) in self.entries(&tmp)? {
            let path = tmp.join(OsStr::from_bytes(&name));
            if kind == Kind::Dir {
                let what = "is a directory that the store has not created";
                self.found(&path, FindingKind::Note, what, "left as it is");
                continue;
            }
            self.repair(&path, |check| check.disk.unlink(&path))?;
            self.found(&path, FindingKind::Note, "was left by an interrupted change", "removed");
        }
        Ok(())
    }

    /// Checks every file below `objects/`.
    fn objects(&mut self) -> Result<()> {
        // Directories to visit: path, escaped name so far, and the namespace to which they belong.
        let mut left = vec![(self.root.join("objects"), String::new(), None::<Namespace>)];
        while let Some((dir, before, namespace)) = left.pop() {
            for (name, kind) in self.entries(&dir)? {
                let path = dir.join(OsStr::from_bytes(&name));
                let is_outer = namespace.is_none();
                let suffix = if is_outer { path::NAMESPACE_SUFFIX } else { path::OBJECT_SUFFIX };
                let decoded = match path::entry(&before, &name, is_outer, kind, suffix) {
                    Some(Entry::More(text)) => {
                        left.push((path, text, namespace.clone()));
                        continue;
                    }
                    // A decoded name has 1 to 255 bytes, as names of objects and namespaces have.
                    Some(Entry::Last(text)) => path::decode(&text),
                    None => None,
                };
                match (decoded, &namespace) {
                    (Some(name), None) => left.push((path, String::new(), Some(Namespace::new(name)?))),
                    (Some(name), Some(namespace)) => {
                        self.object(&path, &ObjectId::new(namespace.clone(), Name::new(name)?))?;
                    }
                    (None, _) => {
                        let what = "is not a name that the store uses";
                        self.found(&path, FindingKind::Note, what, "left as it is");
                    }
                }
            }
        }
        Ok(())
    }

    fn object(&mut self, path: &Path, id: &ObjectId) -> Result<()> {
        let mut header = [0; HEADER_BYTES as usize];
        let head = found(self.disk.head(path, &mut header));
        let (read, len) = match self.read(path, head)? {
            Some(disk::Found::File(head)) => head,
            Some(disk::Found::Foreign(kind)) => {
                return self.set_aside(path, FindingKind::Damage, format!("is {kind}, not a regular file"));
            }
            Some(disk::Found::Absent) | None => return Ok(()),
        };
        let header = &header[..read];
        let (slot, one_damaged) = match Slot::find(header, name_sum(id)) {
            Found::Slot { slot, one_damaged } => (slot, one_damaged),
            Found::Blank if len <= HEADER_BYTES => {
                self.repair(path, |check| check.disk.unlink(path))?;
                self.found(path, FindingKind::Note, "was created, but never stored", "removed");
                return Ok(());
            }
            Found::Blank => {
                let data = len - HEADER_BYTES;
                let what = format!("has a blank header before {data} bytes: its creation was never stored");
                return self.set_aside(path, FindingKind::Note, what);
            }
            Found::Damaged => {
                return self.set_aside(path, FindingKind::Damage, "both copies of its header are damaged");
            }
            Found::Misplaced => {
                return self.set_aside(path, FindingKind::Damage, "belongs to another object");
            }
            Found::Foreign(format) => {
                let what = format!("has format {format}, but this program reads format {FORMAT}");
                self.found(path, FindingKind::Damage, what, "left as it is");
                return Ok(());
            }
        };
        self.starts = self.starts.max(slot.version.0 >> BOOT_SHIFT);
        if let Some(stamp) = slot.stamp {
            let highest = self.epochs.entry(id.namespace.clone()).or_default();
            *highest = stamp.epoch.max(*highest);
        }
        if let Some(what) = size_mismatch(&slot, len, self.sizes_from) {
            return self.set_aside(path, FindingKind::Damage, what);
        }
        *(if slot.tombstone { &mut self.report.tombstones } else { &mut self.report.objects }) += 1;
        if one_damaged {
            let kept = self.aside(&[path.file_name().unwrap_or_default().as_bytes(), b".header"].concat())?;
            self.repair(path, |check| {
                check.keep(&kept, |file| file.write_all(0, &header.to_vec().into()))?;
                let file = check.disk.open(path, Open::ReadWrite)?;
                let again = Slot { count: slot.count + 1, ..slot };
                file.write_all(0, &again.encode(name_sum(id)).into())?;
                file.sync_data()
            })?;
            let remedy =
                format!("written again from the other copy; the old content is kept as {}", kept.display());
            self.found(path, FindingKind::Damage, "one copy of its header is damaged", remedy);
        }
        if slot.lost {
            let what = "has lost data in a failed sync";
            let remedy = "left as it is; the store rewrites the file at its next use";
            self.found(path, FindingKind::Note, what, remedy);
        }
        if slot.tombstone && len > HEADER_BYTES {
            self.repair(path, |check| {
                let file = check.disk.open(path, Open::ReadWrite)?;
                file.set_len(HEADER_BYTES)?;
                file.sync_data()
            })?;
            self.found(path, FindingKind::Note, "has data behind a remembered deletion", "truncated");
        }
        Ok(())
    }

    /// Returns an unused path in `damaged/` that ends in `name`.
    fn aside(&mut self, name: &[u8]) -> Result<PathBuf> {
        let dir = self.root.join("damaged");
        let mut names = match self.aside.take() {
            Some(names) => names,
            None => self.entries(&dir)?.into_iter().map(|(name, _)| name.into()).collect(),
        };
        let mut target = (0..).map(|number: u64| [format!("{number}-").as_bytes(), name].concat());
        let target = target.find(|target| !names.contains(target.as_slice())).unwrap_or_default();
        names.insert(target.clone().into());
        self.aside = Some(names);
        Ok(dir.join(OsStr::from_bytes(&target)))
    }

    /// Stores a file in `damaged/`, filled by `fill`.
    fn keep(&self, kept: &Path, fill: impl FnOnce(&dyn disk::DiskFile) -> io::Result<()>) -> io::Result<()> {
        self.put_aside(|| {
            let file = self.disk.open(kept, Open::Create)?;
            fill(&*file)?;
            file.sync_data()
        })
    }

    /// Moves `path` into `damaged/`, where an operator finds the file but the store ignores it.
    fn move_aside(&self, path: &Path, target: &Path) -> io::Result<()> {
        self.put_aside(|| self.disk.rename(path, target))?;
        self.disk.sync_dir(path.parent().unwrap_or(self.root))
    }

    /// Lets `put` create an entry of `damaged/`, and stores the entry.
    fn put_aside(&self, put: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let dir = self.root.join("damaged");
        self.disk.make_dir(&dir)?;
        put()?;
        self.disk.sync_dir(&dir)?;
        self.disk.sync_dir(self.root)
    }

    fn set_aside(&mut self, path: &Path, kind: FindingKind, what: impl Into<String>) -> Result<()> {
        let target = self.aside(path.file_name().unwrap_or_default().as_bytes())?;
        self.repair(path, |check| check.move_aside(path, &target))?;
        let remedy = format!("set aside as {}; the object is then missing", target.display());
        self.found(path, kind, what, remedy);
        Ok(())
    }

    /// Rewrites both files of `name` if one of them is wrong, or if `value` is given for another
    /// reason, and reports on them. `last_resort` names the origin of the value if neither file can
    /// be used.
    fn twice<T: PartialEq>(
        &mut self,
        name: &str,
        twice: &Twice<T>,
        last_resort: &str,
        outdated: Option<(String, String)>,
        content: impl FnOnce() -> Vec<u8>,
    ) -> Result<()> {
        let mut findings = Vec::new();
        for (name, copy) in twice.files(name) {
            let what = match copy {
                Copy::Whole(_) | Copy::Unread(_) => continue,
                Copy::Absent => "is missing".to_owned(),
                Copy::Damaged(damage) => format!("cannot be used: {damage}"),
            };
            let remedy = match twice.value() {
                Some(_) => "written again from the other copy",
                None if twice.unread("").next().is_some() => "nothing until the other copy can be read",
                None => last_resort,
            };
            findings.push((name, FindingKind::Damage, what, remedy.to_owned()));
        }
        if let (Copy::Whole(first), Copy::Whole(second)) = (&twice.first, &twice.second)
            && first != second
        {
            let again = "written again".to_owned();
            findings.push((copy_name(name), FindingKind::Note, "lacks the last change".to_owned(), again));
        }
        if let Some((what, remedy)) = outdated {
            findings.push((name.to_owned(), FindingKind::Damage, what, remedy));
        }
        if findings.is_empty() {
            return Ok(());
        }
        let mut kept = Vec::new();
        for (name, copy) in twice.files(name) {
            if !matches!(copy, Copy::Absent) && findings.iter().any(|(found, ..)| *found == name) {
                kept.push((name.clone(), self.aside(name.as_bytes())?));
            }
        }
        self.repair(&self.root.join(name), |check| {
            for (name, target) in &kept {
                check.keep_copy(&check.root.join(name), target)?;
            }
            check.replace(name, &content())
        })?;
        for (name, kind, what, mut remedy) in findings {
            if let Some((_, target)) = kept.iter().find(|(kept, _)| *kept == name) {
                remedy += &format!("; the old content is kept as {}", target.display());
            }
            self.found(&self.root.join(name), kind, what, remedy);
        }
        Ok(())
    }

    /// Keeps a copy of a file that is about to be replaced. An entry that is not a regular file is
    /// moved.
    fn keep_copy(&self, path: &Path, kept: &Path) -> io::Result<()> {
        match found(self.disk.open(path, Open::Read))? {
            disk::Found::File(file) => {
                let len = file.len()?;
                self.keep(kept, |copy| copy.copy_from(&*file, 0, 0, len))
            }
            disk::Found::Foreign(_) => self.move_aside(path, kept),
            disk::Found::Absent => Ok(()),
        }
    }

    fn superblock(&mut self, superblocks: &Twice<Superblock>) -> Result<()> {
        if let (Copy::Whole(Superblock { boot: 1, .. }), Copy::Absent) =
            (&superblocks.first, &superblocks.second)
        {
            let path = self.root.join(copy_name(SUPERBLOCK));
            let what = "is missing: the first start was interrupted";
            self.found(&path, FindingKind::Note, what, "the next start writes the file");
            return Ok(());
        }
        let starts = self.starts;
        let known = superblocks.value().copied();
        let outdated = known.filter(|known| known.boot < starts).map(|known| {
            let what = format!(
                "counts {} starts, but an object was changed in start {starts}: the file is outdated",
                known.boot
            );
            (what, "the count of starts is raised".to_owned())
        });
        let made_up = Superblock {
            clean: false,
            boot: (starts + MADE_UP_STARTS).min((1 << (64 - BOOT_SHIFT)) - 2),
            version_floor: 0,
        };
        // The superblock is marked as not closed, unless only the second copy was wrong: the second
        // copy may be older.
        let from_first = matches!(superblocks.first, Copy::Whole(_));
        let value = match known {
            Some(known) if outdated.is_none() => Superblock { clean: known.clean && from_first, ..known },
            _ => made_up,
        };
        let last_resort =
            "recreated from the objects' versions; at the next start, every object gets a new version";
        self.twice(SUPERBLOCK, superblocks, last_resort, outdated, || value.encode())
    }

    fn claims(&mut self, claims: &Twice<Claims>) -> Result<()> {
        let mut value = claims.value().cloned().unwrap_or_default();
        if claims.value().is_none() {
            for (namespace, highest) in &self.epochs {
                let above = Epoch(highest.0.saturating_add(1));
                value.record(&Scope::Namespace(namespace.clone()), above, None)?;
            }
        }
        let last_resort = format!(
            "made from the objects: {} namespaces are claimed for no writer, above their highest stamps. Claims \
             whose writers have stored nothing cannot be recovered. Every writer must claim again; an earlier \
             journal is set aside when its cache starts, and `cachectl journal export` saves its content",
            self.epochs.len()
        );
        self.twice(CLAIMS, claims, &last_resort, None, || encode_claims(&value))
    }

    fn replace(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        let tmp = self.root.join("tmp");
        self.disk.make_dir(&tmp)?;
        let temporaries = &mut self.temporaries;
        replace(self.disk, self.root, name, content, &mut || {
            *temporaries += 1;
            tmp.join(format!("fsck-{temporaries}"))
        })
    }
}
