//! Unix listeners.

use super::{Listener, ListenerAddress};
use crate::socket_file::SocketFile;
use cached_proto::Protocol;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

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
    Ok((Listener { socket, address: ListenerAddress::Unix(path.to_owned()), protocol, tls: None }, file))
}
