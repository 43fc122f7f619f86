//! The interface of service managers: inherited sockets (`sd_listen_fds`) and notifications of the state
//! (`sd_notify`).
//!
//! The protocols are systemd's, implemented without its library. Without their environment variables nothing
//! here has any effect.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The first inherited descriptor.
const FIRST_FD: RawFd = 3;
/// The largest number of inherited descriptors that is accepted.
const FDS_MAX: usize = 64;

/// Returns the sockets of `LISTEN_FDS`, if they are meant for this process. The server listens on them
/// instead of the addresses in its settings.
///
/// To be called once, before anything else opens descriptors and before the process forks.
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
    // SAFETY: the variables state that these descriptors belong to this process, they are open as just
    // checked, and nothing else in this process uses them.
    descriptors.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Sends a change of state, like `READY=1`, to the service manager that has set `NOTIFY_SOCKET`.
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
