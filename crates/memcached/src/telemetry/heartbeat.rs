//! A thread's heartbeat: one word that states what the thread is doing, for the watchdog.
//!
//! A worker updates its heartbeat when it begins to drive a connection, when a request is anything
//! but a plain retrieval, and before it waits for events. A hit updates nothing.
//!
//! ```text
//!  63     62 ……… 32      31 …… 8      7 …… 0
//!  busy │ step number │ descriptor │ activity      0: it waits for events
//! ```

use cached_proto::text::Request;
use std::sync::atomic::{AtomicU64, Ordering};

const BUSY: u64 = 1 << 63;
const STEP_SHIFT: u32 = 32;
const STEP_MASK: u64 = (1 << 31) - 1;
const FD_SHIFT: u32 = 8;
const FD_MASK: u64 = (1 << 24) - 1;
const ACTIVITY_MASK: u64 = (1 << FD_SHIFT) - 1;

/// The activity of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Activity {
    /// A retrieval, or receiving and sending.
    Serving,
    /// The thread executes commands from other threads.
    Commands,
    /// The thread replies to the received requests before the server ends.
    Draining,
    /// The maintenance that the acceptor's thread performs every second.
    Upkeep,
    Store,
    MetaGet,
    MetaSet,
    Delete,
    MetaDelete,
    Arithmetic,
    MetaArithmetic,
    Touch,
    MetaDebug,
    FlushAll,
    FlushPrefix,
    Stats,
    Admin,
    Binary,
    Other,
}

impl Activity {
    const NAMES: [&str; 19] = [
        "a retrieval, receiving or sending",
        "commands from other threads",
        "draining connections at shutdown",
        "the maintenance of every second",
        "a storage command",
        "mg",
        "ms",
        "delete",
        "md",
        "incr or decr",
        "ma",
        "touch",
        "me",
        "flush_all",
        "flush_prefix",
        "stats",
        "an administrative command",
        "a binary command",
        "another command",
    ];

    /// Returns the activity for a text request.
    pub(crate) fn of(request: &Request<'_>) -> Activity {
        match request {
            Request::Get(_) => Activity::Serving,
            Request::Store(_) => Activity::Store,
            Request::MetaGet(_) => Activity::MetaGet,
            Request::MetaSet(_) => Activity::MetaSet,
            Request::Delete(_) => Activity::Delete,
            Request::MetaDelete(_) => Activity::MetaDelete,
            Request::Arithmetic(_) => Activity::Arithmetic,
            Request::MetaArithmetic(_) => Activity::MetaArithmetic,
            Request::Touch(_) => Activity::Touch,
            Request::MetaDebug(_) => Activity::MetaDebug,
            Request::FlushAll(_) => Activity::FlushAll,
            Request::FlushPrefix(_) => Activity::FlushPrefix,
            Request::Stats(_) => Activity::Stats,
            Request::Admin(_) => Activity::Admin,
            _ => Activity::Other,
        }
    }
}

/// The heartbeat word, written by one thread and read by any.
#[derive(Debug, Default)]
pub(crate) struct Heartbeat(AtomicU64);

impl Heartbeat {
    /// Records the start of step number `step`, which serves the connection with this descriptor.
    #[inline]
    pub(crate) fn begin(&self, step: u64, fd: i32, activity: Activity) {
        let fd = u64::from(fd.cast_unsigned()) & FD_MASK;
        let word = BUSY | (step & STEP_MASK) << STEP_SHIFT | fd << FD_SHIFT | activity as u64;
        self.0.store(word, Ordering::Relaxed);
    }

    /// Replaces the activity of the current step.
    #[inline]
    pub(crate) fn set_activity(&self, activity: Activity) {
        // There is only one writer, so a plain load and store suffice, without a locked
        // instruction.
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word & !ACTIVITY_MASK | activity as u64, Ordering::Relaxed);
    }

    /// Records that the thread waits for events.
    #[inline]
    pub(crate) fn set_idle(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns the current state of the thread.
    pub(crate) fn read(&self) -> HeartbeatState {
        HeartbeatState(self.0.load(Ordering::Relaxed))
    }
}

/// The heartbeat at one moment. While two successive readings are equal, the thread has made no
/// progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct HeartbeatState(u64);

impl HeartbeatState {
    /// Returns whether the thread waits for events, which may take any amount of time.
    pub(crate) fn is_idle(self) -> bool {
        self.0 == 0
    }

    /// Returns whether both states belong to the same step, whatever its activity.
    pub(crate) fn is_same_step(self, other: HeartbeatState) -> bool {
        self.0 | ACTIVITY_MASK == other.0 | ACTIVITY_MASK && self.is_idle() == other.is_idle()
    }

    /// Returns the descriptor of the connection that is being served.
    pub(crate) fn fd(self) -> u64 {
        self.0 >> FD_SHIFT & FD_MASK
    }

    /// Returns the name of the activity.
    pub(crate) fn activity(self) -> &'static str {
        Activity::NAMES.get((self.0 & ACTIVITY_MASK) as usize).copied().unwrap_or("an unknown activity")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_the_connection_and_the_activity() {
        let heartbeat = Heartbeat::default();
        assert!(heartbeat.read().is_idle());
        heartbeat.begin(7, 42, Activity::Serving);
        let first = heartbeat.read();
        assert_eq!((first.is_idle(), first.fd(), first.activity()), (false, 42, Activity::NAMES[0]));
        heartbeat.set_activity(Activity::FlushAll);
        assert_eq!((heartbeat.read().fd(), heartbeat.read().activity()), (42, "flush_all"));
        heartbeat.begin(8, 42, Activity::Serving);
        assert_ne!(heartbeat.read(), first, "another step for the same connection is progress");
        heartbeat.set_idle();
        assert!(heartbeat.read().is_idle());
    }

    #[test]
    fn every_activity_has_a_name() {
        assert_eq!(Activity::Other as usize + 1, Activity::NAMES.len());
    }
}
