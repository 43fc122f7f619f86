//! Signals: INT, TERM, QUIT and USR1 request the shutdown, HUP requests a reload of the
//! configuration, and USR2 requests that a new process takes over.
//!
//! They are blocked from the start and read from a descriptor, so that an early signal is neither
//! lost nor fatal.

use crate::log::{Level, print_err};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use tokio::io::unix::AsyncFd;

/// The signals that the process handles, readable from a descriptor.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
}

/// The request that a signal makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requested {
    /// Shut down.
    End,
    /// Reload the configuration.
    Reload,
    /// Let a new process take over.
    Upgrade,
}

/// Each signal with its name and its request.
const HANDLED: [(i32, &str, Requested); 6] = [
    (libc::SIGTERM, "SIGTERM", Requested::End),
    (libc::SIGINT, "SIGINT", Requested::End),
    (libc::SIGQUIT, "SIGQUIT", Requested::End),
    (libc::SIGUSR1, "SIGUSR1", Requested::End),
    (libc::SIGHUP, "SIGHUP", Requested::Reload),
    (libc::SIGUSR2, "SIGUSR2", Requested::Upgrade),
];

impl Signals {
    /// Blocks the signals and opens the descriptor. Call it before any other thread exists.
    ///
    /// # Errors
    /// Fails if the system refuses.
    pub fn take_over() -> io::Result<Signals> {
        // SAFETY: an all-zero signal set is a valid value to be overwritten, the pointers lead to
        // it, and the signal numbers exist. Each call is checked, or cannot fail with these
        // arguments.
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

    /// Waits until a signal makes a request; each such signal ends one wait. The future must be
    /// polled on a tokio runtime.
    ///
    /// # Cancel safety
    /// A signal that is not returned is returned by the next call.
    pub async fn requested(&self) -> Requested {
        // SAFETY: the descriptor is borrowed for as long as the `AsyncFd` lives, so it stays open,
        // and a `BorrowedFd` always gives the same number.
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

    /// Returns, without waiting, whether a signal has requested the shutdown. Other signals are
    /// logged as having no effect because of `during`, for example "while the store is being
    /// opened".
    pub fn is_end_requested(&self, during: &str) -> bool {
        while let Some(signal) = read(self.descriptor.as_fd()) {
            if requested_by(signal).is_some_and(|requested| is_end(requested, during)) {
                return true;
            }
        }
        false
    }

    /// Waits until a signal requests the shutdown. Other signals are logged as having no effect
    /// because of `during`, for example "while the store is being opened".
    ///
    /// # Cancel safety
    /// The same as for [`requested`](Self::requested).
    pub async fn end_requested(&self, during: &str) {
        while !is_end(self.requested().await, during) {}
    }
}

/// Returns whether the shutdown is requested. Logs that another request has no effect because of
/// `during`.
fn is_end(requested: Requested, during: &str) -> bool {
    match requested {
        Requested::End => return true,
        Requested::Reload => tracing::warn!("SIGHUP has no effect {during}"),
        Requested::Upgrade => tracing::warn!("SIGUSR2 has no effect {during}"),
    }
    false
}

/// Logs a signal, and returns its request.
fn requested_by(signal: i32) -> Option<Requested> {
    if signal == libc::SIGUSR1 {
        // memcached's message, printed at every log level.
        print_err(Level::Info, module_path!(), "Gracefully stopping");
    }
    let (_, name, requested) = HANDLED.iter().find(|(handled, ..)| *handled == signal)?;
    if *requested == Requested::End {
        tracing::info!(signal = name, "a signal requests the end");
    }
    Some(*requested)
}

/// Returns the number of a pending signal, if there is one.
fn read(descriptor: BorrowedFd<'_>) -> Option<i32> {
    let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
    let count = rustix::io::read(descriptor, &mut info).ok()?;
    // The signal's number is the first field.
    (count == info.len()).then(|| i32::from_ne_bytes([info[0], info[1], info[2], info[3]]))
}
