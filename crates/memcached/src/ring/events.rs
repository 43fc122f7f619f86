//! The events that the ring reports to the steward of its maps.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{Notify, watch};

/// The events on which the steward of a node has to act. The steward is the task that reads and writes
/// the ring's documents.
#[derive(Debug, Default)]
pub struct RingEvents {
    /// Notified when another node has a later map than this one.
    pub outdated: Notify,
    /// The ids of moves that this node must abort, because nothing else will: moves that were open when
    /// the process started, and moves whose slots are sealed here although the session has ended. An
    /// id is removed when a map without the move is in force.
    pub unfinished: watch::Sender<HashSet<u64>>,
    /// The version of the latest map that was put in force, or is to be.
    latest: AtomicU64,
}

impl RingEvents {
    /// Records the version of the latest map of this node.
    pub(super) fn set_latest(&self, version: u64) {
        self.latest.fetch_max(version, Ordering::Relaxed);
    }

    /// Notes the version of another node's map.
    pub(super) fn see(&self, version: u64) {
        if version > self.latest.load(Ordering::Relaxed) {
            self.outdated.notify_one();
        }
    }
}
