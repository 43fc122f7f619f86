//! A count of readers with a *draining* mark: one atomic word decides which thread frees a region.
//!
//! ```text
//!  31        30                                   0
//! ┌──────────┬─────────────────────────────────────┐
//! │ draining │ pins                                │
//! └──────────┴─────────────────────────────────────┘
//! ```
//! The owner sets *draining* when it no longer needs the region; no pins are added from then on.
//! Exactly one thread changes the word to "draining, no pins", and that thread frees the region.

use crate::sync::{AtomicU32, Ordering};

const DRAINING: u32 = 1 << 31;

#[derive(Debug, Default)]
pub(crate) struct Pins(AtomicU32);

impl Pins {
    /// Adds a reader. The caller ensures that draining has not started, by holding the lock of a
    /// hash bucket with an item in the region.
    pub(crate) fn pin(&self) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before & DRAINING == 0, "a draining region was pinned");
    }

    /// Removes a reader. Returns whether the caller must free the region.
    #[must_use]
    pub(crate) fn unpin(&self) -> bool {
        // Release: this thread's reads happen before the region is reused; Acquire: so do those of the other
        // readers.
        self.0.fetch_sub(1, Ordering::AcqRel) == DRAINING | 1
    }

    /// Starts draining. Returns whether the caller must free the region.
    #[must_use]
    pub(crate) fn drain(&self) -> bool {
        self.0.fetch_or(DRAINING, Ordering::AcqRel) == 0
    }

    /// Removes the mark after the region has been freed.
    pub(crate) fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }

    /// The present number of readers.
    pub(crate) fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire) & !DRAINING
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_last_reader_of_a_draining_region_frees_it() {
        let pins = Pins::default();
        pins.pin();
        pins.pin();
        assert!(!pins.drain());
        assert!(!pins.unpin());
        assert!(pins.unpin());
        pins.reset();
        assert!(pins.drain(), "without readers the owner frees");
    }
}

#[cfg(all(test, shuttle))]
mod shuttle_tests {
    use super::*;
    use crate::sync::Arc;

    /// In any interleaving of two readers and the owner, exactly one of them frees the region.
    #[test]
    fn exactly_one_thread_frees() {
        shuttle::check_random(
            || {
                let pins = Arc::new(Pins::default());
                let freed = Arc::new(AtomicU32::new(0));
                pins.pin();
                pins.pin();
                let threads: Vec<_> = (0..3)
                    .map(|i| {
                        let (pins, freed) = (pins.clone(), freed.clone());
                        shuttle::thread::spawn(move || {
                            if if i == 0 { pins.drain() } else { pins.unpin() } {
                                freed.fetch_add(1, Ordering::SeqCst);
                            }
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|t| t.join().unwrap());
                assert_eq!(freed.load(Ordering::SeqCst), 1);
            },
            2000,
        );
    }
}
