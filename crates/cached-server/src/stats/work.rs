//! The work that a worker does for costly requests before it serves its other connections.

/// How much of the work that does not follow from the bytes of requests and replies is left for one iteration of a
/// worker's event loop: that of reports, key dumps and administrative commands.
///
/// All connections of the worker share it. A costly request begins while some is left and may exceed it, so an iteration
/// does at most one report more than allowed, however many clients send however many requests; one that finds nothing
/// left is held back until the next iteration. Dumps stop in between.
///
/// One unit is a hash bucket walked (about ten items) or a line of a report: half a microsecond.
#[derive(Debug)]
pub(crate) struct Work {
    left: u32,
}

impl Work {
    /// The units of one iteration, about a millisecond.
    pub(crate) const UNITS_MAX: u32 = 2048;

    /// Returns the work of a first iteration.
    pub(crate) fn new() -> Work {
        Work { left: Work::UNITS_MAX }
    }

    /// Begins another iteration.
    #[inline]
    pub(crate) fn renew(&mut self) {
        self.left = Work::UNITS_MAX;
    }

    /// Returns whether nothing is left.
    pub(crate) fn is_used_up(&self) -> bool {
        self.left == 0
    }

    /// Returns whether nothing has been taken in this iteration.
    pub(crate) fn is_untouched(&self) -> bool {
        self.left == Work::UNITS_MAX
    }

    /// Takes some; more than is left uses it up.
    pub(crate) fn take(&mut self, units: usize) {
        self.left = self.left.saturating_sub(u32::try_from(units).unwrap_or(u32::MAX));
    }

    /// Takes all: for what takes a millisecond or more, whatever it finds.
    pub(crate) fn use_up(&mut self) {
        self.left = 0;
    }
}
