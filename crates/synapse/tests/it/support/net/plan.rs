//! The faults of one connection, at byte positions in either direction. They are drawn only from a
//! seed and the connection's number, so that no interleaving changes them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;

/// A fault in one direction, at a byte position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Both directions end simultaneously, in the middle of a frame.
    Cut,
    /// The connection is cut because the server is killed (see [`Hits::kill`]).
    Kill,
    /// From here on, bytes in this direction disappear, while the other direction continues.
    /// Neither side is notified.
    HalfOpen,
    /// Nothing is read from the sender for this time, as if the receiver had paused.
    Pause(Duration),
    /// The next bytes are delayed by this time.
    Delay(Duration),
    /// These bits of the next byte are flipped.
    Corrupt(u8),
}

/// The kinds of [`Fault`], to choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Cut,
    Kill,
    HalfOpen,
    Pause,
    Delay,
    Corrupt,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Cut, Self::Kill, Self::HalfOpen, Self::Pause, Self::Delay, Self::Corrupt];
}

/// The faults in one direction of a connection, in ascending byte order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Direction {
    pub faults: VecDeque<(u64, Fault)>,
}

impl Direction {
    /// Returns a direction with one fault, after `bytes`.
    pub fn one(bytes: u64, fault: Fault) -> Self {
        Self { faults: VecDeque::from([(bytes, fault)]) }
    }
}

/// The faults of one connection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// From the client to the server.
    pub up: Direction,
    /// From the server to the client.
    pub down: Direction,
}

/// The kinds and positions of faults. From connection number `faulty_connections` on there are
/// none, so that every run ends.
#[derive(Clone, Debug)]
pub struct Profile {
    pub seed: u64,
    pub kinds: Vec<Kind>,
    pub faulty_connections: u64,
    /// How many directions in a thousand have faults.
    pub permille: u32,
    /// The upper limit of the positions of faults. All orders of magnitude are equally frequent, so
    /// that faults affect handshakes as well as payloads.
    pub bytes_max: u64,
    pub pause: Range<Duration>,
    pub delay: Range<Duration>,
}

impl Profile {
    /// No faults.
    pub fn benign() -> Self {
        Self {
            seed: 0,
            kinds: Vec::new(),
            faulty_connections: 0,
            permille: 0,
            bytes_max: 1,
            pause: Duration::ZERO..Duration::ZERO,
            delay: Duration::ZERO..Duration::ZERO,
        }
    }

    /// Returns faults of these kinds on most connections, with pauses from harmless ones to ones
    /// beyond every deadline.
    pub fn rough(seed: u64, kinds: &[Kind]) -> Self {
        Self {
            seed,
            kinds: kinds.to_vec(),
            faulty_connections: 40,
            permille: 600,
            bytes_max: 256 * 1024,
            pause: Duration::from_millis(1)..Duration::from_secs(20),
            delay: Duration::from_micros(10)..Duration::from_millis(200),
        }
    }

    /// Returns the faults of the connection with this number.
    pub fn draw(&self, connection: u64) -> Plan {
        if connection >= self.faulty_connections || self.kinds.is_empty() {
            return Plan::default();
        }
        let mut rng = SmallRng::seed_from_u64(self.seed ^ connection.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Plan { up: self.draw_direction(&mut rng), down: self.draw_direction(&mut rng) }
    }

    fn draw_direction(&self, rng: &mut SmallRng) -> Direction {
        if rng.random_range(0..1000) >= self.permille {
            return Direction::default();
        }
        let mut faults: Vec<_> = (0..rng.random_range(1..=3)).map(|_| self.draw_fault(rng)).collect();
        faults.sort_by_key(|&(bytes, _)| bytes);
        Direction { faults: faults.into() }
    }

    fn draw_fault(&self, rng: &mut SmallRng) -> (u64, Fault) {
        let magnitude = rng.random_range(0..=self.bytes_max.ilog2());
        let bytes = rng.random_range(0..1_u64 << magnitude);
        let fault = match self.kinds[rng.random_range(0..self.kinds.len())] {
            Kind::Cut => Fault::Cut,
            Kind::Kill => Fault::Kill,
            Kind::HalfOpen => Fault::HalfOpen,
            Kind::Pause => Fault::Pause(rng.random_range(self.pause.clone())),
            Kind::Delay => Fault::Delay(rng.random_range(self.delay.clone())),
            Kind::Corrupt => Fault::Corrupt(rng.random_range(1..=255)),
        };
        (bytes, fault)
    }
}

/// The number of faults of each kind that have occurred, by which a test proves that there were
/// any.
#[derive(Default, Debug)]
pub struct Hits {
    pub connections: AtomicU64,
    pub refused: AtomicU64,
    pub cut: AtomicU64,
    pub killed: AtomicU64,
    /// Notifies the test that it has to kill the server.
    pub kill: Notify,
    pub half_open: AtomicU64,
    pub pause: AtomicU64,
    pub delay: AtomicU64,
    pub corrupt: AtomicU64,
    /// Bytes carried from clients to servers.
    pub up_bytes: AtomicU64,
    /// Bytes carried from servers to clients.
    pub down_bytes: AtomicU64,
}

impl Hits {
    pub fn count(&self, fault: Fault) {
        let counter = match fault {
            Fault::Cut => &self.cut,
            Fault::Kill => &self.killed,
            Fault::HalfOpen => &self.half_open,
            Fault::Pause(_) => &self.pause,
            Fault::Delay(_) => &self.delay,
            Fault::Corrupt(_) => &self.corrupt,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        if fault == Fault::Kill {
            self.kill.notify_one();
        }
    }

    /// Returns how many faults of `kind` have happened.
    pub fn of(&self, kind: Kind) -> u64 {
        let counter = match kind {
            Kind::Cut => &self.cut,
            Kind::Kill => &self.killed,
            Kind::HalfOpen => &self.half_open,
            Kind::Pause => &self.pause,
            Kind::Delay => &self.delay,
            Kind::Corrupt => &self.corrupt,
        };
        counter.load(Ordering::Relaxed)
    }
}
