//! Listening on a unix socket.

use super::{At, Listener};
use cached_proto::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A unix socket's file, removed when the server is done with it.
#[derive(Debug)]
pub(crate) struct Bound {
    path: PathBuf,
}

impl Drop for Bound {
    fn drop(&mut self) {
        // It may be gone already, and then there is nothing to do.
        let _ = fs::remove_file(&self.path);
    }
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
    let bound = Bound { path: path.to_owned() };
    // Nobody is let in before `listen`, so the permissions come in time.
    fs::set_permissions(path, fs::Permissions::from_mode(mask))?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok((Listener { socket, at: At::Unix(path.to_owned()), protocol }, bound))
}
