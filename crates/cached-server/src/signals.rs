//! Signals: INT, TERM and QUIT stop the server, USR1 stops it gracefully, HUP and USR2 are logged.
//!
//! They are blocked from the start and read from a descriptor, so that one that comes early is neither lost
//! nor fatal.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// The signals that the server handles, readable from a descriptor.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

impl Signals {
    /// Blocks the signals and opens the descriptor. To be called before any other thread exists.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn take_over() -> io::Result<Signals> {
        // SAFETY: an all-zero signal set is a valid value to be overwritten, the pointers lead to it, and the
        // signal numbers exist. Each call is checked, or cannot fail with these arguments.
        let descriptor = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            let (end, note) = ([libc::SIGINT, libc::SIGTERM, libc::SIGQUIT], [libc::SIGUSR2, libc::SIGHUP]);
            for signal in end.into_iter().chain([libc::SIGUSR1]).chain(note) {
                libc::sigaddset(&mut set, signal);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
        };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(Signals { descriptor: unsafe { OwnedFd::from_raw_fd(descriptor) } })
    }

    /// Waits until a signal requests the end of the process; each such signal ends one wait. Must be polled
    /// on a tokio runtime.
    ///
    /// Cancel safe: a signal that is not returned is returned by the next call.
    pub async fn end_requested(&self) {
        // SAFETY: the descriptor is borrowed for as long as the `AsyncFd` lives, so it stays open, and a
        // `BorrowedFd` always gives the same number.
        let registered = unsafe { AsyncFd::register(self.descriptor.as_fd()) };
        let descriptor = match registered {
            Ok(descriptor) => descriptor,
            Err(error) => {
                tracing::error!(cause = %error, "cannot wait for signals; only SIGKILL ends the process");
                return std::future::pending().await;
            }
        };
        loop {
            let Ok(mut ready) = descriptor.readable().await else { return };
            match read(*descriptor.get_ref()) {
                None => ready.clear_ready(),
                Some(libc::SIGUSR2) => tracing::info!("SIGUSR2 is ignored"),
                Some(libc::SIGHUP) => {
                    tracing::info!("SIGHUP is ignored: the configuration is read at the start only");
                }
                Some(libc::SIGUSR1) => {
                    // memcached's message, at any verbosity.
                    eprintln!("Gracefully stopping");
                    return;
                }
                Some(signal) => {
                    let name = match signal {
                        libc::SIGINT => "SIGINT",
                        libc::SIGQUIT => "SIGQUIT",
                        _ => "SIGTERM",
                    };
                    tracing::info!(signal = name, "a signal requests the end");
                    return;
                }
            }
        }
    }
}

/// Returns the number of one pending signal, if there is one.
fn read(descriptor: BorrowedFd<'_>) -> Option<i32> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    let count = rustix::io::read(descriptor, &mut info).ok()?;
    // The number is the first field.
    (count == info.len()).then(|| i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> i32 {
        self.descriptor.as_raw_fd()
    }
}
