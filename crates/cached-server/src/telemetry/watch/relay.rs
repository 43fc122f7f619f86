//! Lines for a watcher whose connection is encrypted: from the log thread to the connection's worker.
//!
//! ```text
//!  log thread ── put, if all before has been taken ──► Relay ── take ──► worker ──► TLS ──► client
//!             ◄───────────────── wakes the log thread ───────┘
//! ```
//! It holds at most what the watcher's buffer held, so a watcher that does not read costs twice that buffer.

use crate::connections::{Command, CommandQueue, ConnInfo};
use crate::locks::{Lock, RELAY};
use std::sync::Arc;

/// Lines on their way to a worker.
#[derive(Debug)]
pub(crate) struct Relay {
    lines: Lock<Vec<u8>>,
    info: Arc<ConnInfo>,
    queues: Arc<[CommandQueue]>,
}

impl Relay {
    /// Returns an empty relay to the worker that serves this connection; `queues` are those of all workers.
    pub(crate) fn new(info: Arc<ConnInfo>, queues: Arc<[CommandQueue]>) -> Relay {
        Relay { lines: Lock::new(&RELAY, Vec::new()), info, queues }
    }

    /// Passes lines on, unless the worker has not taken those before. Returns whether it did.
    pub(super) fn put(&self, lines: &[u8]) -> bool {
        let mut waiting = self.lines.lock();
        if !waiting.is_empty() {
            return false;
        }
        waiting.extend_from_slice(lines);
        drop(waiting);
        self.queues[self.info.worker()].send(Command::Relay(self.info.slot()));
        true
    }

    /// Removes and returns all lines.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.lines.lock())
    }
}
