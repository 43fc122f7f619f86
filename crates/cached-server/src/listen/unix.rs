//! Unix listeners.

use super::{Listener, ListenerAddress};
use cached_proto::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A unix socket's file. It is removed when this is dropped, unless the path leads to another file by then: a new server may have
/// bound a socket there.
///
/// To be dropped while the socket is still open: only then can no other file have the same inode.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: Option<(u64, u64)>,
}

impl SocketFile {
    fn new(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), file: file_at(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.file.is_some() && file_at(&self.path) == self.file {
            // Fails if it has been removed meanwhile.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns device and inode of the file at a path.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Opens a listening socket with permissions `mask`. A socket left behind at this path is replaced, any other file is not.
///
/// # Errors
/// If another file is there, or the system refuses.
pub(super) fn bind(
    path: &Path,
    mask: u32,
    protocol: Option<Protocol>,
    backlog: u32,
) -> io::Result<(Listener, SocketFile)> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile::new(path);
    // No client can connect before `listen`, so the permissions are in time.
    fs::set_permissions(path, fs::Permissions::from_mode(mask))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok((Listener { socket, address: ListenerAddress::Unix(path.to_owned()), protocol }, file))
}
