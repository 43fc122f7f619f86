//! A small file that is kept twice, `NAME` and `NAME.copy`, so that damage of one leaves the other.
//!
//! Both are replaced by every change, the first before the second, each whole and stored before the next
//! begins. So whatever was acknowledged is in both, and the second is behind by at most the one change that
//! was cut off.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::disk::{Disk, Found, Open, found};
use crate::error::{Error, Result};

/// What a disk writes wholly or not at all.
const SECTOR_BYTES: usize = 512;

pub(super) const SUPERBLOCK: &str = "superblock";
pub(super) const CLAIMS: &str = "claims";

/// Where the second copy of `name` is.
pub(super) fn copy_name(name: &str) -> String {
    format!("{name}.copy")
}

/// What one of the two files holds.
#[derive(Debug)]
pub(super) enum Copy<T> {
    Whole(T),
    Absent,
    Damaged(Damage),
    /// The system could not read it: nothing is known of its content.
    Unread(io::Error),
}

/// Why a file that could be read cannot be used: its bytes do not decode, or it is not a regular file. An error
/// of the system never becomes one.
#[derive(Debug)]
pub(super) struct Damage(String);

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T> Copy<T> {
    fn whole(&self) -> Option<&T> {
        match self {
            Self::Whole(value) => Some(value),
            _ => None,
        }
    }
}

/// What both files hold.
pub(super) struct Twice<T> {
    pub(super) first: Copy<T>,
    pub(super) second: Copy<T>,
}

impl<T: PartialEq> Twice<T> {
    /// # Errors
    /// `Unsupported` if another version of this program wrote one of them.
    pub(super) fn read(
        disk: &dyn Disk,
        root: &Path,
        name: &str,
        decode: fn(&[u8]) -> Result<T>,
    ) -> Result<Self> {
        let read = |name: &str| match found(read_small(disk, &root.join(name))) {
            Ok(Found::Absent) => Ok(Copy::Absent),
            Ok(Found::Foreign(kind)) => {
                Ok(Copy::Damaged(Damage(format!("it is {kind}, not a regular file"))))
            }
            Ok(Found::File(bytes)) => match decode(&bytes) {
                Ok(value) => Ok(Copy::Whole(value)),
                Err(error @ Error::Unsupported(_)) => Err(error),
                Err(error) => Ok(Copy::Damaged(Damage(error.to_string()))),
            },
            Err(error) => Ok(Copy::Unread(error)),
        };
        Ok(Self { first: read(name)?, second: read(&copy_name(name))? })
    }

    /// The value in force: the first, or the second if the first is lost.
    pub(super) fn value(&self) -> Option<&T> {
        self.first.whole().or(self.second.whole())
    }

    /// As [`value`](Self::value); nothing if both files are absent or damaged. `name` is that of the first.
    ///
    /// # Errors
    /// If a file that may hold the value could not be read.
    pub(super) fn in_force(&self, root: &Path, name: &str) -> Result<Option<&T>> {
        let value = self.value();
        match self.unread(name).next().filter(|_| value.is_none()) {
            Some((name, error)) => {
                Err(Error::from_io(error, &format!("reading {}", root.join(name).display())))
            }
            None => Ok(value),
        }
    }

    /// Returns the files that could not be read, with the reasons.
    pub(super) fn unread(&self, name: &str) -> impl Iterator<Item = (String, &io::Error)> {
        let files = [(name.to_owned(), &self.first), (copy_name(name), &self.second)];
        files.into_iter().filter_map(|(name, copy)| match copy {
            Copy::Unread(error) => Some((name, error)),
            _ => None,
        })
    }

    /// Whether the first is lost and the second stands in for it.
    pub(super) fn is_from_copy(&self) -> bool {
        self.first.whole().is_none() && self.second.whole().is_some()
    }

    /// Whether both files hold the value in force.
    pub(super) fn is_in_both(&self) -> bool {
        self.first.whole().is_some() && self.first.whole() == self.second.whole()
    }

    /// Whether one of the files is damaged.
    pub(super) fn is_damaged(&self) -> bool {
        matches!(self.first, Copy::Damaged(_)) || matches!(self.second, Copy::Damaged(_))
    }

    /// Whether neither file is there.
    pub(super) fn is_absent(&self) -> bool {
        matches!((&self.first, &self.second), (Copy::Absent, Copy::Absent))
    }
}

/// Replaces both files: when it returns, both are stored. `temporary` names a file to begin each with.
///
/// Content of one sector is written over the old one where the disk has no room for another file: a sector is
/// written wholly or not at all, and the other file is not written meanwhile.
///
/// # Errors
/// The disk's errors; each file is then the old one or the new one.
pub(super) fn replace(
    disk: &dyn Disk,
    root: &Path,
    name: &str,
    content: &[u8],
    temporary: &mut dyn FnMut() -> PathBuf,
) -> io::Result<()> {
    for name in [name, &copy_name(name)] {
        let temporary = temporary();
        let replaced = (|| {
            let file = disk.open(&temporary, Open::Create)?;
            file.write_at(0, &content.to_vec().into()).map_err(|failed| failed.error)?;
            file.sync_data()?;
            disk.rename(&temporary, &root.join(name))
        })();
        match replaced {
            Ok(()) => disk.sync_dir(root)?,
            Err(error) => {
                // If it stays, the next start removes it.
                let _ = disk.unlink(&temporary);
                if !is_out_of_space(&error) || content.len() > SECTOR_BYTES {
                    return Err(error);
                }
                overwrite(disk, &root.join(name), content).map_err(|_| error)?;
            }
        }
    }
    Ok(())
}

/// Writes over a file of the same length, in place.
fn overwrite(disk: &dyn Disk, path: &Path, content: &[u8]) -> io::Result<()> {
    let file = disk.open(path, Open::ReadWrite)?;
    if file.len()? != content.len() as u64 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.write_at(0, &content.to_vec().into()).map_err(|failed| failed.error)?;
    file.sync_data()
}

/// Whether a disk, or a user's share of it, is full.
pub(super) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    /// Far more than all claims together can take.
    const SMALL_BYTES_MAX: u64 = 64 << 20;
    let file = disk.open(path, Open::Read)?;
    let len = file.len()?.min(SMALL_BYTES_MAX);
    file.read_at(0, len as usize)
}
