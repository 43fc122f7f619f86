//! What the ring tells the steward of its maps.

use std::collections::BTreeSet;
use tokio::sync::{Notify, watch};

/// What happens at a node that its steward has to act on, the task that reads and writes the ring's
/// documents.
#[derive(Debug)]
pub struct RingEvents {
    /// Notified when another node has a later map than this one.
    pub outdated: Notify,
    /// The ids of moves that this node must abort, because nothing else will: moves that were open when
    /// the process started, and moves whose slots are sealed here although the session has ended. An
    /// id is removed when a map without the move is in force.
    pub unfinished: watch::Sender<BTreeSet<u64>>,
}

impl Default for RingEvents {
    fn default() -> RingEvents {
        RingEvents { outdated: Notify::new(), unfinished: watch::Sender::default() }
    }
}
