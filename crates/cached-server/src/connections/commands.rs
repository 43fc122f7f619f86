//! What a worker is told by other threads.

use crate::conn::info::ConnInfo;
use crate::locks::{Lock, MAIL};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// One message.
pub(crate) enum Mail {
    /// Serve this connection.
    Connection(Newcomer),
    /// Look at this seat, though its socket has nothing to say.
    Look(usize),
    /// Finish what has been received, then end.
    Shutdown,
    /// End at once.
    Abandon,
}

/// A connection that has been accepted and entered in the table.
pub(crate) struct Newcomer {
    pub(crate) fd: OwnedFd,
    pub(crate) info: Arc<ConnInfo>,
}

/// Messages for one worker, and the descriptor that wakes it.
#[derive(Debug)]
pub(crate) struct Mailbox {
    mail: Lock<Vec<Mail>>,
    bell: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> io::Result<Mailbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Mailbox { mail: Lock::new(&MAIL, Vec::new()), bell })
    }

    /// Leaves a message and wakes the worker.
    pub(crate) fn send(&self, mail: Mail) {
        self.mail.lock().push(mail);
        // It fails only when the counter is full, and then the worker wakes anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Takes all messages.
    pub(crate) fn take(&self) -> Vec<Mail> {
        // Fails if nobody has rung since; the messages are looked at all the same.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *self.mail.lock())
    }

    /// Readable while there may be messages.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mail::Connection(newcomer) => write!(f, "Connection({})", newcomer.info.fd),
            Mail::Look(seat) => write!(f, "Look({seat})"),
            Mail::Shutdown => f.write_str("Shutdown"),
            Mail::Abandon => f.write_str("Abandon"),
        }
    }
}
