//! Room for the payloads of operations under way: those that find none wait their turn.
//!
//! An operation takes its room once, before it asks the server for anything, and holds it to its end, so none waits
//! for room while it has some.

use tokio::sync::{Semaphore, SemaphorePermit};

/// What room is counted in.
const UNIT_BYTES: u64 = 4096;

/// The room that there is.
pub(crate) struct Room {
    units: Semaphore,
    max: u32,
}

impl Room {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let max = u32::try_from(bytes_max / UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        let max = max.min(u32::try_from(Semaphore::MAX_PERMITS).unwrap_or(u32::MAX));
        Self { units: Semaphore::new(max as usize), max }
    }

    /// Waits for room for so many bytes; for all of it, if that is less.
    pub(crate) async fn take(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.max);
        if units == 0 {
            return None;
        }
        // It is never closed.
        self.units.acquire_many(units).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use blocker::executor::poll_times;

    use super::*;

    #[test]
    fn what_finds_no_room_waits_and_what_is_too_large_goes_alone() {
        let room = Room::new(1 << 20);
        let take = |bytes| poll_times(room.take(bytes), 1, Duration::ZERO).flatten();
        let first = take((1 << 20) - 5000).expect("there is room");
        assert!(take(1 << 20).is_none() && take(8192).is_none());
        let second = take(4096).expect("there is room");
        let nothing = poll_times(room.take(0), 1, Duration::ZERO);
        assert!(nothing.is_some(), "it waits for nothing");
        drop((first, second));
        let large = take(1 << 40).expect("there is room");
        assert!(take(1).is_none());
        drop(large);
        assert!(take(1).is_some());
    }
}
