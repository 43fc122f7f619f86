//! Records a history, with one counter for all clients, which increases before each call and after
//! each answer, and with a limit on the outcomes that may stay unknown.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::check::UNKNOWN_MAX;
use super::operation::{Action, Operation};

/// The history of one register, as its clients record it.
pub struct Recorder {
    ticks: AtomicU64,
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    operations: Vec<Operation>,
    /// The number of changes in progress or with unknown outcome, all of which could stay unknown.
    perhaps_unknown: usize,
}

/// A call in progress. It is created before the call, and ends with [`Recorder::answered`] or when
/// it is dropped.
#[derive(Debug)]
pub struct Called {
    client: usize,
    at: u64,
    is_change: bool,
}

impl Recorder {
    /// Returns an empty history.
    pub fn new() -> Self {
        Self { ticks: AtomicU64::new(1), written: Mutex::default() }
    }

    /// Records that `client` is about to read.
    pub fn reads(&self, client: usize) -> Called {
        Called { client, at: self.tick(), is_change: false }
    }

    /// Records that `client` is about to make a change. Returns `None` if too many outcomes could
    /// then become unknown; the client has to read instead.
    pub fn changes(&self, client: usize) -> Option<Called> {
        {
            let mut written = self.written.lock();
            if written.perhaps_unknown == UNKNOWN_MAX {
                return None;
            }
            written.perhaps_unknown += 1;
        }
        Some(Called { client, at: self.tick(), is_change: true })
    }

    /// Records that the reply has arrived. `None` means that certainly nothing was changed, and
    /// nothing will be.
    pub fn answered(&self, called: Called, action: Option<Action>) {
        let is_unknown = action.is_some_and(Action::is_unknown);
        let answered = if is_unknown { u64::MAX } else { self.tick() };
        let mut written = self.written.lock();
        if called.is_change && !is_unknown {
            written.perhaps_unknown -= 1;
        }
        if let Some(action) = action {
            let Called { client, at, .. } = called;
            written.operations.push(Operation { client, action, called: at, answered });
        }
    }

    /// Returns the history so far.
    pub fn history(&self) -> Vec<Operation> {
        self.written.lock().operations.clone()
    }

    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }
}
