//! Notifies the service manager of the process's state (systemd's `sd_notify`), without its
//! library.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends a change of state, such as `READY=1`, to the service manager that has set `NOTIFY_SOCKET`.
/// Does nothing without that variable. A failure is logged.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&path, state) {
        tracing::warn!(cause = %error, "cannot notify the service manager");
    }
}

/// Reports that the configuration is being reloaded, until `READY=1` is sent.
pub(crate) fn reloading() {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
}

fn send(path: &OsStr, state: &str) -> io::Result<()> {
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(path)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
