//! What a journal gets from outside: a disk, a clock, and a receiver of events.

use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::disk::Disk;
use crate::event::Observer;

/// What a journal stands on.
pub struct Environment {
    /// The disk.
    pub disk: Box<dyn Disk>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Receives events.
    pub observer: Observer,
}

impl Environment {
    /// Returns an environment with the operating system's clock, and events dropped.
    pub fn new(disk: impl Disk + 'static) -> Self {
        Self { disk: Box::new(disk), clock: Arc::new(SystemClock::default()), observer: Arc::new(|_| {}) }
    }
}
