//! Pipes through which pages of the cache go into sockets: as many bytes as a pipe holds at a time, without a copy.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice};

/// The number of runs within one page that a pipe holds; the HTTP library hands over as many at a time.
const PIPE_PAGES: usize = 64;

/// The number of pipes of a thread: where more connections wait for their clients with bytes in one, theirs are copied. Those of 4
/// threads are what the system allows a user that is not root to have.
const PIPES_MAX: usize = 64;

/// The most descriptors that a thread takes for pipes.
pub const PIPE_DESCRIPTORS_MAX: usize = 2 * PIPES_MAX;

/// The pipes of a thread.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    /// Empty ones.
    idle: Mutex<Idle>,
    /// Whether the system has refused one of the calls, or no bytes are lent.
    is_off: AtomicBool,
}

#[derive(Debug, Default)]
struct Idle {
    pipes: Vec<Ends>,
    /// How many there are, with those in use.
    count: usize,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

/// A pipe in use.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// `None` once it has been given back.
    ends: Option<Ends>,
    /// The number of bytes in it.
    filled: usize,
    pipes: Arc<Pipes>,
}

impl Pipes {
    /// Returns no pipes, and never any if they are not wanted.
    pub(crate) fn new(are_wanted: bool) -> Pipes {
        Pipes { is_off: AtomicBool::new(!are_wanted), ..Pipes::default() }
    }

    /// Returns whether there can be a pipe at some time.
    pub(crate) fn are_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }

    /// Returns an empty pipe; `None` if there is none at present.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Pipe> {
        let in_use = |ends| Pipe { ends: Some(ends), filled: 0, pipes: Arc::clone(self) };
        let mut idle = self.idle.lock();
        if let Some(ends) = idle.pipes.pop() {
            return Some(in_use(ends));
        }
        if idle.count == PIPES_MAX || self.are_off() {
            return None;
        }
        match open() {
            Ok(ends) => {
                idle.count += 1;
                Some(in_use(ends))
            }
            // Others may be free later.
            Err(Errno::MFILE | Errno::NFILE | Errno::PERM | Errno::NOMEM) => None,
            Err(error) => {
                self.turn_off("pipe", error);
                None
            }
        }
    }

    fn turn_off(&self, call: &str, error: Errno) {
        if !self.is_off.swap(true, Ordering::Relaxed) {
            let cause = std::io::Error::from(error);
            tracing::info!(call, %cause, "bodies of S3 objects are copied into sockets: the system refuses to take pages");
        }
    }
}

fn open() -> Result<Ends, Errno> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    fcntl_setpipe_size(&write, PIPE_PAGES * 4096)?;
    Ok(Ends { read, write })
}

impl Pipe {
    /// Refers to these bytes, as far as there is room in the empty pipe; returns how many. They must never change again: they are lent.
    /// None if the system refuses.
    pub(crate) fn refer_to(&mut self, runs: &[IoSlice<'_>]) -> usize {
        debug_assert_eq!(self.filled, 0, "the pipe is not empty");
        let Some(ends) = &self.ends else { return 0 };
        let runs: Vec<_> = runs.iter().take(PIPE_PAGES).map(|run| IoSliceRaw::from_slice(run)).collect();
        // SAFETY: the kernel only reads the bytes, whose pages it holds; and they never change, as the caller states.
        match unsafe { vmsplice(&ends.write, &runs, SpliceFlags::NONBLOCK) } {
            Ok(taken) => self.filled = taken,
            Err(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => (),
            Err(error) => self.pipes.turn_off("vmsplice", error),
        }
        self.filled
    }

    /// Returns the number of bytes in it.
    pub(crate) fn filled(&self) -> usize {
        self.filled
    }

    /// Moves as many bytes as a socket takes; returns how many, and none if the pipe is empty.
    ///
    /// # Errors
    /// Those of the socket; `WouldBlock` if it takes nothing now.
    pub(crate) fn send(&mut self, socket: impl AsFd) -> std::io::Result<usize> {
        let Some(ends) = &self.ends else { return Ok(0) };
        if self.filled == 0 {
            return Ok(0);
        }
        let sent = splice(&ends.read, None, socket, None, self.filled, SpliceFlags::NONBLOCK)?;
        if sent == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        self.filled -= sent;
        Ok(sent)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let Some(ends) = self.ends.take() else { return };
        let mut idle = self.pipes.idle.lock();
        if self.filled == 0 {
            idle.pipes.push(ends);
        } else {
            // What is in it belongs to a connection that has ended.
            idle.count -= 1;
        }
    }
}
