//! The clock of leases.

use blocker::clock::Sleep;
use blocker::{Clock, SystemClock, Timestamp};
use rustix::time::{ClockId, clock_gettime};

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// The time since this host has started, including the time for which it was suspended:
/// `CLOCK_BOOTTIME`.
///
/// Leases need this clock. The monotonic clock of [`SystemClock`] stops while the host is
/// suspended, so a host that wakes up would regard an ended lease as valid; and the time of day can
/// be set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        // Neither part is ever negative.
        let now = clock_gettime(ClockId::Boottime);
        Timestamp(now.tv_sec as u64 * NANOS_PER_SEC + now.tv_nsec as u64)
    }

    /// After a suspension, the sleep may end late.
    fn sleep_until(&self, until: Timestamp) -> Sleep {
        SystemClock.sleep(until.since(self.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::executor::block_on;
    use std::time::Duration;

    #[test]
    fn a_sleep_ends_when_its_time_has_come() {
        let until = BootClock.now() + Duration::from_millis(2);
        block_on(BootClock.sleep_until(until));
        assert!(BootClock.now() >= until);
    }
}
