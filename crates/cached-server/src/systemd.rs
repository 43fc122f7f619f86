//! Sockets inherited from a service manager (systemd's `sd_listen_fds`), without its library. Without the
//! environment variables nothing here has any effect.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

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
