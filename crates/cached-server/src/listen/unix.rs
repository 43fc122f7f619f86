//! Listening on a unix socket.

use super::{At, Listener};
use cached_proto::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A unix socket's file, removed when the server is done with it, unless the path leads to another file by then: a new server
/// may have taken the place over.
///
/// Drop it while the socket is still open: only then can no other file have the same number.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
    /// Device and inode.
    file: Option<(u64, u64)>,
}

impl Bound {
    fn new(path: &Path) -> Bound {
        Bound { path: path.to_owned(), file: file_at(path) }
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if self.file.is_some() && file_at(&self.path) == self.file {
            // It may be gone a moment later, and then there is nothing to do.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Which file a path leads to.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Opens a listening socket; a socket left behind at this path is replaced, any other file is not.
pub(crate) fn bind(
    path: &Path,
    mask: u32,
    protocol: Option<Protocol>,
    backlog: u32,
) -> io::Result<(Listener, Bound)> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let bound = Bound::new(path);
    // Nobody is let in before `listen`, so the permissions come in time.
    fs::set_permissions(path, fs::Permissions::from_mode(mask))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok((Listener { socket, at: At::Unix(path.to_owned()), protocol }, bound))
}
