//! Whether a flush may send clean data along with dirty, to make one run of two.
//!
//! What is clean here may be old: another client of the store may have written there since it was read. Sent along, it
//! would undo that. So it is sent only where nobody else can have written: in a namespace that this cache has claimed,
//! and of which it has read everything since ([`super::owner`] drops what was read before).

use blocker::Namespace;

use super::shared::Shared;

/// The most clean bytes between two dirty runs of an object that a flush may send along.
pub(crate) fn gap_bytes_max(shared: &Shared, namespace: &Namespace) -> u64 {
    if shared.owner.holds(namespace) { shared.config.flush_gap_bytes_max } else { 0 }
}
