//! What a service manager hands over and wants to hear: sockets that are open already, and notes about the
//! state.
//!
//! The protocols are systemd's (`sd_listen_fds`, `sd_notify`), spoken without its library. Without the
//! variables they come in, nothing here does anything.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The first descriptor handed over.
const FIRST_FD: RawFd = 3;
/// More than anyone would hand over.
const FDS_MAX: usize = 64;

/// The sockets handed over by `LISTEN_FDS`, if they are meant for this process. They are to be listened on
/// instead of what the command line says.
///
/// Call once, before anything else opens descriptors and before the process forks.
pub fn inherited_sockets() -> Vec<OwnedFd> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let (Some(pid), Some(count)) = (number("LISTEN_PID"), number("LISTEN_FDS")) else { return Vec::new() };
    if pid != std::process::id() {
        return Vec::new();
    }
    let descriptors = (FIRST_FD..).take((count as usize).min(FDS_MAX)).filter(|fd| {
        // SAFETY: a plain number; sets a flag on a descriptor, or fails.
        unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) == 0 }
    });
    // SAFETY: whoever set the variables says that these descriptors are ours, they are open as just seen, and
    // nobody else in this process knows of them.
    descriptors.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Tells whoever set `NOTIFY_SOCKET` of a change of state, like `READY=1`.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::warn!(cause = %error, "cannot notify the service manager");
    }
}

fn send(path: &OsStr, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
