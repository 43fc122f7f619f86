//! Checking a store that is not open, and repairing what can be repaired.
//!
//! What is checked is everything the store itself writes: both copies of the superblock, of the claims and of
//! every header, and what lies in its directories. The objects' bytes carry no checksum: that they are what
//! was written is the file system's and the medium's word.
//!
//! | damage | repair |
//! |---|---|
//! | one copy of a header, of the superblock, of the claims | it is written again from the other |
//! | both copies of a header | the file is set aside in `damaged/`; the object is missing then |
//! | both superblocks | one is made from the highest version of all objects |
//! | both files of claims | empty ones are made: no claim binds any more, every writer has to claim again |
//! | a superblock older than the objects | its count of starts is raised |
//!
//! What a crash leaves behind is no damage. It is named all the same, and tidied up by a repair.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::directory_lock::DirectoryLock;
use super::disk::{Disk, Open};
use super::path::{self, Entry};
use super::real::RealDisk;
use super::records::{Superblock, decode_claims, encode_claims};
use super::slot::{FORMAT, Found, HEADER_BYTES, Slot};
use super::store::BOOT_SHIFT;
use super::twice::{CLAIMS, Copy, SUPERBLOCK, Twice, copy_name, replace};
use crate::admission::Claims;
use crate::error::{Error, Result};

/// How far a count of starts that had to be made up lies above the highest that is known of: versions that
/// were given since then and never stored must not be given again.
const MADE_UP_STARTS: u64 = 4096;

/// Something that a check has found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The file or directory.
    pub path: PathBuf,
    /// What is wrong with it.
    pub what: String,
    /// What a repair does, or has done.
    pub remedy: String,
    /// Whether it is damage, rather than what a crash leaves behind.
    pub is_damage: bool,
}

/// What a check has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The objects that are there.
    pub objects: u64,
    /// The remembered deletions.
    pub tombstones: u64,
    /// The findings that are damage.
    pub damaged: u64,
    /// The other findings.
    pub notes: u64,
}

/// Checks the store in `dir`, and with `repair` repairs it; `each` is given every finding. The store must not
/// be open, and cannot be opened meanwhile.
///
/// # Errors
/// `Denied` if a process has the store open or the directory is no store; `Unsupported` if another version of
/// this program wrote it; the disk's errors.
pub fn check(dir: impl AsRef<Path>, repair: bool, each: &mut dyn FnMut(&Finding)) -> Result<CheckReport> {
    let dir = dir.as_ref();
    if !dir.is_dir() {
        return Err(Error::Denied(format!("there is no directory {}", dir.display()).into()));
    }
    let _lock = DirectoryLock::take(dir)?;
    let failed = |error: io::Error| Error::from_io(&error, &format!("checking {}", dir.display()));
    let disk = RealDisk::new(false, dir).map_err(failed)?;
    check_on(&disk, dir, repair, each)
}

/// As [`check`], on any disk and without a lock.
pub(super) fn check_on(
    disk: &dyn Disk,
    root: &Path,
    repair: bool,
    each: &mut dyn FnMut(&Finding),
) -> Result<CheckReport> {
    let superblocks = Twice::read(disk, root, SUPERBLOCK, Superblock::decode)?;
    let claims = Twice::read(disk, root, CLAIMS, decode_claims)?;
    let mut check =
        Check { disk, root, repair, each, report: CheckReport::default(), starts: 0, temporaries: 0 };
    let failed = |error: io::Error| Error::from_io(&error, &format!("checking {}", root.display()));
    check.top(superblocks.is_absent()).map_err(failed)??;
    check.objects().map_err(failed)?;
    check.superblock(&superblocks).map_err(failed)?;
    check.claims(&claims).map_err(failed)?;
    Ok(check.report)
}

struct Check<'a> {
    disk: &'a dyn Disk,
    root: &'a Path,
    repair: bool,
    each: &'a mut dyn FnMut(&Finding),
    report: CheckReport,
    /// The last start that an object's version names.
    starts: u64,
    temporaries: u64,
}

impl Check<'_> {
    fn found(&mut self, path: &Path, is_damage: bool, what: impl Into<String>, remedy: impl Into<String>) {
        *(if is_damage { &mut self.report.damaged } else { &mut self.report.notes }) += 1;
        let finding =
            Finding { path: path.to_path_buf(), what: what.into(), remedy: remedy.into(), is_damage };
        (self.each)(&finding);
    }

    /// The entries of a directory: name, and whether it is a directory.
    fn entries(&self, dir: &Path) -> io::Result<Vec<(Vec<u8>, bool)>> {
        let mut entries = Vec::new();
        self.disk.read_dir(dir, &mut |name, is_dir| entries.push((name.to_vec(), is_dir)))?;
        Ok(entries)
    }

    /// What lies in the store's directory itself, and in `tmp/`.
    fn top(&mut self, no_superblock: bool) -> io::Result<Result<()>> {
        let entries = self.entries(self.root)?;
        let has = |wanted: &[u8]| entries.iter().any(|(name, is_dir)| name == wanted && *is_dir);
        let objects = self.root.join("objects");
        if no_superblock && (!has(b"objects") || self.entries(&objects)?.is_empty()) {
            let text = format!("there is no store in {}: no superblock, and no objects", self.root.display());
            return Ok(Err(Error::Denied(text.into())));
        }
        if !has(b"objects") {
            self.found(
                &objects,
                true,
                "is missing, and every object with it",
                "the next start makes an empty one",
            );
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
            self.found(&self.root.join(OsStr::from_bytes(name)), false, "is not the store's", "left alone");
        }
        let tmp = self.root.join("tmp");
        for (name, is_dir) in self.entries(&tmp)? {
            let path = tmp.join(OsStr::from_bytes(&name));
            match is_dir {
                true => {
                    self.found(&path, false, "is a directory, which the store does not make", "left alone");
                }
                false => {
                    self.found(&path, false, "was left behind by a change that was cut off", "removed");
                    if self.repair {
                        self.disk.unlink(&path)?;
                    }
                }
            }
        }
        Ok(Ok(()))
    }

    /// Every file below `objects/`.
    fn objects(&mut self) -> io::Result<()> {
        // Directories, the escaped name so far, and whether the name is a namespace's.
        let mut left = vec![(self.root.join("objects"), String::new(), true)];
        while let Some((dir, before, is_outer)) = left.pop() {
            for (name, is_dir) in self.entries(&dir)? {
                let path = dir.join(OsStr::from_bytes(&name));
                let suffix = if is_outer { path::NAMESPACE_SUFFIX } else { path::OBJECT_SUFFIX };
                match path::entry(&before, &name, is_outer, is_dir, suffix) {
                    Some(Entry::More(text)) => left.push((path, text, is_outer)),
                    Some(Entry::Last(text)) if path::decode(&text).is_some() => match is_outer {
                        true => left.push((path, String::new(), false)),
                        false => self.object(&path)?,
                    },
                    _ => self.found(&path, false, "is not a name that the store gives", "left alone"),
                }
            }
        }
        Ok(())
    }

    fn object(&mut self, path: &Path) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES as usize];
        let (read, len) = match self.disk.head(path, &mut header) {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.found(path, true, format!("cannot be read: {error}"), "left alone");
                return Ok(());
            }
        };
        let (slot, one_damaged) = match Slot::find(&header[..read]) {
            Found::Slot { slot, one_damaged } => (slot, one_damaged),
            Found::Blank if len <= HEADER_BYTES => {
                self.found(path, false, "is a creation that was never stored", "removed");
                return if self.repair { self.disk.unlink(path) } else { Ok(()) };
            }
            Found::Blank => {
                let data = len - HEADER_BYTES;
                let what = format!("has a blank header before {data} bytes: its creation was never stored");
                return self.set_aside(path, false, what);
            }
            Found::Damaged => return self.set_aside(path, true, "both copies of its header are damaged"),
            Found::Foreign(format) => {
                let what = format!("has format {format}, where this program reads {FORMAT}");
                self.found(path, true, what, "left alone");
                return Ok(());
            }
        };
        self.starts = self.starts.max(slot.version.0 >> BOOT_SHIFT);
        *(if slot.tombstone { &mut self.report.tombstones } else { &mut self.report.objects }) += 1;
        if one_damaged {
            self.found(path, true, "one copy of its header is damaged", "written again from the other");
            if self.repair {
                let file = self.disk.open(path, Open::Existing)?;
                let again = Slot { count: slot.count + 1, ..slot };
                file.write_at(0, &again.encode().into()).map_err(|failed| failed.error)?;
                file.sync_data()?;
            }
        }
        if slot.lost {
            let what = "has lost something in a sync that failed";
            self.found(path, false, what, "left alone; the store writes it anew when it is next used");
        }
        if slot.tombstone && len > HEADER_BYTES {
            self.found(path, false, "has bytes behind the memory of a deletion", "cut off");
            if self.repair {
                let file = self.disk.open(path, Open::Existing)?;
                file.set_len(HEADER_BYTES)?;
                file.sync_data()?;
            }
        }
        Ok(())
    }

    /// Moves a file to where the store does not find it and a person does.
    fn set_aside(&mut self, path: &Path, is_damage: bool, what: impl Into<String>) -> io::Result<()> {
        let dir = self.root.join("damaged");
        let names = self.entries(&dir)?;
        let file_name = path.file_name().unwrap_or_default().as_bytes();
        let target = (0..).map(|number: u64| [format!("{number}-").as_bytes(), file_name].concat());
        let mut target = target.filter(|target| !names.iter().any(|(name, _)| name == target));
        let target = dir.join(OsStr::from_bytes(&target.next().unwrap_or_default()));
        self.found(
            path,
            is_damage,
            what,
            format!("set aside as {}; the object is missing then", target.display()),
        );
        if self.repair {
            self.disk.make_dir(&dir)?;
            self.disk.rename(path, &target)?;
            self.disk.sync_dir(&dir)?;
            self.disk.sync_dir(self.root)?;
            self.disk.sync_dir(path.parent().unwrap_or(self.root))?;
        }
        Ok(())
    }

    /// Reports on the two files of `name`. Returns whether they have to be written again.
    fn twice<T: PartialEq>(&mut self, name: &str, twice: &Twice<T>, last_resort: &str) -> bool {
        let both = twice.value().is_none();
        let mut again = false;
        for (name, copy) in [(name.to_owned(), &twice.first), (copy_name(name), &twice.second)] {
            let what = match copy {
                Copy::Whole(_) => continue,
                Copy::Absent => "is missing".to_owned(),
                Copy::Damaged(error) => format!("cannot be used: {error}"),
            };
            let remedy = if both { last_resort } else { "written again from the other copy" };
            self.found(&self.root.join(name), true, what, remedy);
            again = true;
        }
        if !again && twice.first != twice.second {
            self.found(&self.root.join(copy_name(name)), false, "is behind by a change", "written again");
            again = true;
        }
        again
    }

    fn superblock(&mut self, superblocks: &Twice<Superblock>) -> io::Result<()> {
        if let (Copy::Whole(Superblock { boot: 1, .. }), Copy::Absent) =
            (&superblocks.first, &superblocks.second)
        {
            let path = self.root.join(copy_name(SUPERBLOCK));
            self.found(&path, false, "is missing: the first start was cut off", "the next start writes it");
            return Ok(());
        }
        let again = self.twice(
            SUPERBLOCK,
            superblocks,
            "made from the versions of the objects; every object has a new version at the next start",
        );
        let known = superblocks.value().copied();
        let is_behind = known.is_some_and(|known| known.boot < self.starts);
        if let Some(known) = known.filter(|_| is_behind) {
            let what = format!(
                "knows of {} starts, where an object was changed in start {}: it is of an earlier time",
                known.boot, self.starts
            );
            self.found(&self.root.join(SUPERBLOCK), true, what, "the count of starts is raised");
        }
        if !self.repair || !(again || is_behind) {
            return Ok(());
        }
        let made_up = Superblock {
            clean: false,
            boot: (self.starts + MADE_UP_STARTS).min((1 << (64 - BOOT_SHIFT)) - 2),
            version_floor: 0,
        };
        // Not as closed in order, unless nothing but the second copy was amiss: it may be of another time.
        let from_first = matches!(superblocks.first, Copy::Whole(_));
        let value = match known {
            Some(known) if !is_behind => Superblock { clean: known.clean && from_first, ..known },
            _ => made_up,
        };
        self.replace(SUPERBLOCK, &value.encode())
    }

    fn claims(&mut self, claims: &Twice<Claims>) -> io::Result<()> {
        let last_resort = "made empty: no claim binds any more, so every writer must claim before it writes";
        if self.twice(CLAIMS, claims, last_resort) && self.repair {
            let value = claims.value().cloned().unwrap_or_default();
            return self.replace(CLAIMS, &encode_claims(&value));
        }
        Ok(())
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
