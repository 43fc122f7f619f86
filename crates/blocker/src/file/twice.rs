//! A small file that is kept twice, `NAME` and `NAME.copy`, so that damage of one leaves the other.
//!
//! Both are replaced by every change, the first before the second, each whole and stored before the next
//! begins. So whatever was acknowledged is in both, and the second is behind by at most the one change that
//! was cut off.

use std::io;
use std::path::{Path, PathBuf};

use super::disk::{Disk, Open};
use crate::error::{Error, Result};

pub(super) const SUPERBLOCK: &str = "superblock";
pub(super) const CLAIMS: &str = "claims";

/// Where the second copy of `name` is.
pub(super) fn copy_name(name: &str) -> String {
    format!("{name}.copy")
}

/// What one of the two files holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Copy<T> {
    Whole(T),
    Absent,
    /// It cannot be read, or fails its checks.
    Damaged(Error),
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

impl<T> Twice<T> {
    /// # Errors
    /// `Unsupported` if another version of this program wrote one of them.
    pub(super) fn read(
        disk: &dyn Disk,
        root: &Path,
        name: &str,
        decode: fn(&[u8]) -> Result<T>,
    ) -> Result<Self> {
        let read = |name: &str| match read_small(disk, &root.join(name)) {
            Ok(None) => Ok(Copy::Absent),
            Ok(Some(bytes)) => match decode(&bytes) {
                Ok(value) => Ok(Copy::Whole(value)),
                Err(error @ Error::Unsupported(_)) => Err(error),
                Err(error) => Ok(Copy::Damaged(error)),
            },
            Err(error) => Ok(Copy::Damaged(Error::from_io(&error, &format!("reading {name}")))),
        };
        Ok(Self { first: read(name)?, second: read(&copy_name(name))? })
    }

    /// The value in force: the first, or the second if the first is lost.
    pub(super) fn value(&self) -> Option<&T> {
        self.first.whole().or(self.second.whole())
    }

    /// Whether the first is lost and the second stands in for it.
    pub(super) fn is_from_copy(&self) -> bool {
        self.first.whole().is_none() && self.second.whole().is_some()
    }

    /// Whether neither file is there.
    pub(super) fn is_absent(&self) -> bool {
        matches!((&self.first, &self.second), (Copy::Absent, Copy::Absent))
    }
}

/// Replaces both files: when it returns, both are stored. `temporary` names a file to begin each with.
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
        if let Err(error) = replaced {
            // If it stays, the next start removes it.
            let _ = disk.unlink(&temporary);
            return Err(error);
        }
        disk.sync_dir(root)?;
    }
    Ok(())
}

fn read_small(disk: &dyn Disk, path: &Path) -> io::Result<Option<Vec<u8>>> {
    /// Far more than all claims together can take.
    const SMALL_BYTES_MAX: u64 = 64 << 20;
    match disk.open(path, Open::Existing) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(file) => {
            let len = file.len()?.min(SMALL_BYTES_MAX);
            file.read_at(0, len as usize).map(Some)
        }
    }
}
