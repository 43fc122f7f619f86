//! How fast a client does what is its turn to do: to send the rest of what it has begun, and to take its replies.

use std::time::Duration;

use blocker::Timestamp;

/// A client that does not do its part for so long is slow: others may have the memory that waits for it.
pub const SLOW_TIME: Duration = Duration::from_secs(2);
/// The part of what a client has to send or to take that it has to do within [`SLOW_TIME`].
const MOVED_PART: u64 = 8;

/// A time in which it was the client's turn all along.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    begun_at: Timestamp,
    /// The bytes that the client had to send or to take then.
    client_bytes: u64,
    /// The bytes that it has sent or taken since.
    moved_bytes: u64,
}

impl Turn {
    /// Begins when it becomes the turn of a client that has `client_bytes` to send or to take.
    #[must_use]
    pub fn begin(now: Timestamp, client_bytes: u64) -> Self {
        Self { begun_at: now, client_bytes, moved_bytes: 0 }
    }

    /// Counts bytes that the client has sent or taken.
    pub fn note_moved(&mut self, bytes: u64) {
        self.moved_bytes += bytes;
    }

    /// Returns for how long the client has not done its part, with `client_bytes` still to be sent or taken. A part that is
    /// done begins the next one.
    pub fn waiting(&mut self, now: Timestamp, client_bytes: u64) -> Duration {
        if self.moved_bytes > 0 && self.moved_bytes >= self.client_bytes.min(client_bytes) / MOVED_PART {
            *self = Self::begin(now, client_bytes);
        }
        now.since(self.begun_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_does_its_part_is_not_slow_and_one_that_dribbles_is() {
        let second = |at: u64| Timestamp(at * 1_000_000_000);
        let mut quick = Turn::begin(second(0), 800);
        let mut dribbling = quick;
        for at in 1..=10 {
            quick.note_moved(100);
            dribbling.note_moved(1);
            assert_eq!(quick.waiting(second(at), 800), Duration::ZERO);
            assert_eq!(dribbling.waiting(second(at), 800), Duration::from_secs(at));
        }
        // What is left to do counts where it is less.
        assert_eq!(dribbling.waiting(second(11), 80), Duration::ZERO);
        // One that does nothing is slow, however little it has to do.
        let mut silent = Turn::begin(second(0), 4);
        assert_eq!(silent.waiting(second(3), 4), Duration::from_secs(3));
    }
}
