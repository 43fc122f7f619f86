//! The second word of an item: marks, the policy's bits, and the time of the last use.

/// Marks of an item; three of the seven bits belong to the eviction policy.
pub(crate) mod state {
    /// Marked stale (`md I`); the next reader wins the right to refresh it.
    pub(crate) const STALE: u8 = 1;
    /// A client has won the right to refresh the item.
    pub(crate) const TOKEN_SENT: u8 = 2;
    /// Read since it was stored.
    pub(crate) const FETCHED: u8 = 4;
    /// Where the policy's three bits start.
    pub(crate) const POLICY_SHIFT: u32 = 3;
    /// The policy's three bits.
    pub(crate) const POLICY: u8 = 7 << POLICY_SHIFT;
    /// The index leads to the item: a restart takes it over. It differs from that only while the lock of its
    /// hash bucket is held.
    pub(crate) const LIVE: u8 = 64;
    /// The number of states.
    pub(crate) const COUNT: usize = 128;
}

/// An item's state, and the time of its last use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage(pub(super) u32);

impl Usage {
    const STAMP_SHIFT: u32 = state::COUNT.ilog2();
    const STAMP_MAX: u32 = u32::MAX >> Self::STAMP_SHIFT;
    /// A thread may use an item a moment after another has read the clock: up to this much ahead counts as no
    /// idle time.
    const AHEAD_SECS_MAX: u32 = 3600;

    #[inline]
    pub(crate) fn new(state: u8, now: u32) -> Usage {
        Usage(now << Self::STAMP_SHIFT | u32::from(state))
    }

    /// Adds marks.
    #[inline]
    #[must_use]
    pub(crate) fn with(self, marks: u8) -> Usage {
        Usage(self.0 | u32::from(marks))
    }

    /// Removes marks.
    #[inline]
    #[must_use]
    pub(crate) fn without(self, marks: u8) -> Usage {
        Usage(self.0 & !u32::from(marks))
    }

    #[inline]
    pub(crate) fn state(self) -> u8 {
        self.0 as u8 & (state::COUNT as u8 - 1)
    }

    /// Seconds since the last use.
    pub(super) fn idle_secs(self, now: u32) -> u32 {
        let idle = now.wrapping_sub(self.0 >> Self::STAMP_SHIFT) & Self::STAMP_MAX;
        if idle > Self::STAMP_MAX - Self::AHEAD_SECS_MAX { 0 } else { idle }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_use_is_known_for_a_year() {
        for now in [2, 1000, Usage::STAMP_MAX - 1, Usage::STAMP_MAX, 3 << 25, u32::MAX - 5] {
            for idle in [0, 1, 59, 86_400, 365 * 86_400] {
                let Some(then) = now.checked_sub(idle) else { continue };
                let usage = Usage::new(45, then);
                assert_eq!((usage.idle_secs(now), usage.state()), (idle, 45), "{now}");
            }
            assert_eq!(Usage::new(1, now + 1).idle_secs(now), 0, "used after the clock was read");
        }
    }
}
