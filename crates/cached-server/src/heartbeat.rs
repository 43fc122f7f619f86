//! A worker's pulse: one word that says what it is doing, for the watchdog.
//!
//! The worker writes it when it gives a connection its turn, when it begins anything but a plain retrieval, and before it waits. Nothing
//! is written per hit.
//!
//! ```text
//!  63        62 ……… 32      31 …… 8      7 …… 0
//!  at work │ turn number │ descriptor │ command      0: it waits for events
//! ```

use cached_proto::text::Request;
use std::sync::atomic::{AtomicU64, Ordering};

const AT_WORK: u64 = 1 << 63;
const TURN_SHIFT: u32 = 32;
const TURN_MASK: u64 = (1 << 31) - 1;
const FD_SHIFT: u32 = 8;
const FD_MASK: u64 = (1 << 24) - 1;
const COMMAND_MASK: u64 = (1 << FD_SHIFT) - 1;

/// What a worker may be in the middle of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Doing {
    /// A retrieval, or receiving and sending.
    Serving,
    /// What other threads have sent it.
    Mail,
    /// The end of the server.
    Draining,
    /// What the acceptor does once a second.
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
    Stats,
    Admin,
    Binary,
    Other,
}

impl Doing {
    const NAMES: [&str; 18] = [
        "a retrieval, receiving or sending",
        "its mail",
        "the end of the server",
        "the upkeep of every second",
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
        "stats",
        "a command for operators",
        "a binary command",
        "a small command",
    ];

    /// What carrying out a text request is.
    pub(crate) fn of(request: &Request<'_>) -> Doing {
        match request {
            Request::Get(_) => Doing::Serving,
            Request::Store(_) => Doing::Store,
            Request::MetaGet(_) => Doing::MetaGet,
            Request::MetaSet(_) => Doing::MetaSet,
            Request::Delete(_) => Doing::Delete,
            Request::MetaDelete(_) => Doing::MetaDelete,
            Request::Arithmetic(_) => Doing::Arithmetic,
            Request::MetaArithmetic(_) => Doing::MetaArithmetic,
            Request::Touch(_) => Doing::Touch,
            Request::MetaDebug(_) => Doing::MetaDebug,
            Request::FlushAll(_) => Doing::FlushAll,
            Request::Stats(_) => Doing::Stats,
            Request::Admin(_) => Doing::Admin,
            _ => Doing::Other,
        }
    }
}

/// The word. Written by one thread, read by any.
#[derive(Debug, Default)]
pub(crate) struct Pulse(AtomicU64);

impl Pulse {
    /// Notes the begin of turn number `turn`, which belongs to the connection with this descriptor.
    #[inline]
    pub(crate) fn begin(&self, turn: u64, fd: i32, doing: Doing) {
        let fd = u64::from(fd.cast_unsigned()) & FD_MASK;
        let word = AT_WORK | (turn & TURN_MASK) << TURN_SHIFT | fd << FD_SHIFT | doing as u64;
        self.0.store(word, Ordering::Relaxed);
    }

    /// Notes what the turn has come to.
    #[inline]
    pub(crate) fn go_on(&self, doing: Doing) {
        // One writer: a plain load and store, not a locked instruction.
        let word = self.0.load(Ordering::Relaxed);
        self.0.store(word & !COMMAND_MASK | doing as u64, Ordering::Relaxed);
    }

    /// Notes that the worker waits for events.
    #[inline]
    pub(crate) fn rest(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// What the worker is doing now.
    pub(crate) fn look(&self) -> Beat {
        Beat(self.0.load(Ordering::Relaxed))
    }
}

/// A pulse as it was at one moment. As long as two are equal the worker has not got any further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Beat(u64);

impl Beat {
    /// Whether the worker waits for events, which may last.
    pub(crate) fn is_rest(self) -> bool {
        self.0 == 0
    }

    /// The connection whose turn it is.
    pub(crate) fn fd(self) -> u64 {
        self.0 >> FD_SHIFT & FD_MASK
    }

    /// What the worker is in the middle of.
    pub(crate) fn doing(self) -> &'static str {
        Doing::NAMES.get((self.0 & COMMAND_MASK) as usize).copied().unwrap_or("something")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_says_whose_turn_it_is_and_what_for() {
        let pulse = Pulse::default();
        assert!(pulse.look().is_rest());
        pulse.begin(7, 42, Doing::Serving);
        let first = pulse.look();
        assert_eq!((first.is_rest(), first.fd(), first.doing()), (false, 42, Doing::NAMES[0]));
        pulse.go_on(Doing::FlushAll);
        assert_eq!((pulse.look().fd(), pulse.look().doing()), (42, "flush_all"));
        pulse.begin(8, 42, Doing::Serving);
        assert_ne!(pulse.look(), first, "another turn of the same connection is another beat");
        pulse.rest();
        assert!(pulse.look().is_rest());
    }

    #[test]
    fn everything_has_a_name() {
        assert_eq!(Doing::Other as usize + 1, Doing::NAMES.len());
    }
}
