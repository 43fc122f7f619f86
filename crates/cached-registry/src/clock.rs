//! The clock of leases.

use std::time::Duration;

use blocker::clock::Sleep;
use blocker::{Clock, SystemClock, Timestamp};
use rustix::time::{ClockId, clock_gettime};

/// The time since this host has started, including the time for which it was suspended:
/// `CLOCK_BOOTTIME`.
///
/// Leases need this clock. The monotonic clock of [`SystemClock`] stops while the host is suspended,
/// so a host that wakes up would take an ended lease for a valid one; and the time of day can be
/// set.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Timestamp {
        let now = clock_gettime(ClockId::Boottime);
        let secs = u64::try_from(now.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
        Timestamp::default() + Duration::new(secs, nanos)
    }

    /// After a suspension the sleep may end late.
    fn sleep_until(&self, until: Timestamp) -> Sleep {
        SystemClock.sleep(until.since(self.now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::executor::block_on;

    #[test]
    fn a_sleep_ends_when_its_time_has_come() {
        let until = BootClock.now() + Duration::from_millis(2);
        block_on(BootClock.sleep_until(until));
        assert!(BootClock.now() >= until);
    }
}
