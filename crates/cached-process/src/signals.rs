//! Signals: INT, TERM, QUIT and USR1 request the end, HUP requests that the configuration is read again, USR2
//! that a new process takes over.
//!
//! They are blocked from the start and read from a descriptor, so that one that comes early is neither lost
//! nor fatal.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// The signals that the process handles, readable from a descriptor.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

/// What a signal requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// The end of the process.
    End,
    /// That the configuration is read again.
    Reload,
    /// That a new process takes over.
    Upgrade,
}

/// Each signal with its name and what it requests; a signal that requests nothing is logged.
pub const HANDLED: [(i32, &str, Option<Requested>); 6] = [
    (libc::SIGTERM, "SIGTERM", Some(Requested::End)),
    (libc::SIGINT, "SIGINT", Some(Requested::End)),
    (libc::SIGQUIT, "SIGQUIT", Some(Requested::End)),
    (libc::SIGUSR1, "SIGUSR1", Some(Requested::End)),
    (libc::SIGHUP, "SIGHUP", Some(Requested::Reload)),
    (libc::SIGUSR2, "SIGUSR2", Some(Requested::Upgrade)),
];

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
            for (signal, ..) in HANDLED {
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

    /// Waits until a signal requests something; each such signal ends one wait. Must be polled on a tokio
    /// runtime.
    ///
    /// # Cancel safety
    /// A signal that is not returned is returned by the next call.
    pub async fn requested(&self) -> Requested {
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
            let Ok(mut ready) = descriptor.readable().await else { return Requested::End };
            let Some(signal) = read(*descriptor.get_ref()) else {
                ready.clear_ready();
                continue;
            };
            if let Some(requested) = requested_by(signal) {
                return requested;
            }
        }
    }

    /// Returns whether a signal has requested the end of the process, without waiting; others are logged as without
    /// effect, because of what the process is doing: `during`, as in "while the store is being opened".
    pub fn is_end_requested(&self, during: &str) -> bool {
        while let Some(signal) = read(self.descriptor.as_fd()) {
            match requested_by(signal) {
                Some(Requested::End) => return true,
                Some(Requested::Reload) => tracing::warn!("SIGHUP has no effect {during}"),
                Some(Requested::Upgrade) => tracing::warn!("SIGUSR2 has no effect {during}"),
                None => {}
            }
        }
        false
    }

    /// Waits until a signal requests the end of the process; others are logged as without effect, because of
    /// what the process is doing: `during`, as in "while the store is being opened".
    ///
    /// # Cancel safety
    /// As [`requested`](Self::requested).
    pub async fn end_requested(&self, during: &str) {
        loop {
            let name = match self.requested().await {
                Requested::End => return,
                Requested::Reload => "SIGHUP",
                Requested::Upgrade => "SIGUSR2",
            };
            tracing::warn!("{name} has no effect {during}");
        }
    }
}

/// Logs a signal, and returns what it requests.
fn requested_by(signal: i32) -> Option<Requested> {
    if signal == libc::SIGUSR1 {
        // memcached's message, at any level.
        eprintln!("Gracefully stopping");
    }
    let (_, name, requested) = HANDLED.iter().find(|(handled, ..)| *handled == signal)?;
    match requested {
        Some(Requested::End) => tracing::info!(signal = name, "a signal requests the end"),
        Some(Requested::Reload | Requested::Upgrade) => {}
        None => tracing::info!(signal = name, "the signal has no effect"),
    }
    *requested
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
