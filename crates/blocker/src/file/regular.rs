//! What every program of a data directory observes: it opens regular files only, and what root makes belongs to the
//! directory's owner. The journal uses it as well.

use std::fs::{self, File, FileType, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use super::disk::Kind;

/// Opens a regular file, and refuses anything else: nothing is waited for at a FIFO, no link is followed.
///
/// # Errors
/// `InvalidInput`, without a number of the system's, for anything else; those of the system.
pub fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = rustix::io::retry_on_intr(|| rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)));
    let file_type = match opened {
        Ok(file) => {
            let file = File::from(file);
            let file_type = file.metadata()?.file_type();
            if file_type.is_file() {
                return Ok(file);
            }
            file_type
        }
        // A link; a directory, to write to; a socket.
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => fs::symlink_metadata(path)?.file_type(),
        Err(errno) => return Err(errno.into()),
    };
    Err(kind_of(file_type).refused())
}

pub(super) fn kind_of(found: FileType) -> Kind {
    match found {
        found if found.is_file() => Kind::File,
        found if found.is_dir() => Kind::Dir,
        found if found.is_symlink() => Kind::Other("a symbolic link"),
        found if found.is_fifo() => Kind::Other("a FIFO"),
        found if found.is_socket() => Kind::Other("a socket"),
        _ => Kind::Other("a device"),
    }
}

/// The user to whom what root makes in a directory is given: the directory's owner, who could not use it otherwise.
#[derive(Clone, Copy, Debug)]
pub struct Owner(Option<(Uid, Gid)>);

impl Owner {
    /// Returns the owner of a directory, if this process is root's and the directory is not.
    #[must_use]
    pub fn of(directory: &Metadata) -> Self {
        let is_given = rustix::process::geteuid().is_root() && directory.uid() != 0;
        Self(is_given.then(|| (Uid::from_raw(directory.uid()), Gid::from_raw(directory.gid()))))
    }

    /// Gives what this process has just made to the owner.
    ///
    /// # Errors
    /// Those of the system.
    pub fn give(self, made: &File) -> io::Result<()> {
        let Some((uid, gid)) = self.0 else { return Ok(()) };
        let found = made.metadata()?;
        // What another user has put there under this name is not given away.
        let is_own = found.uid() == 0 && (found.is_dir() || found.nlink() == 1);
        if is_own && let Err(errno) = rustix::fs::fchown(made, Some(uid), Some(gid)) {
            // A root without that right, as in a container, keeps what it makes.
            return if errno == Errno::PERM { Ok(()) } else { Err(errno.into()) };
        }
        Ok(())
    }
}
