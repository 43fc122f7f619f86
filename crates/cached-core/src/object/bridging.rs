//! Whether a flush may send clean data along with dirty, to make one run of two.
//!
//! What is clean here may be old: another client of the store may have written there since it was read. Sent along, it
//! would undo that. So it is sent only where nobody else can have written: in a namespace that this cache has claimed,
//! and of which it has read everything since.

use blocker::{Namespace, Scope};

use super::config::Writer;
use super::doubt::doubt;
use super::shared::Shared;
use super::whole::handles_of;
use crate::sync::{Arc, lock};

/// The most clean bytes between two dirty runs of an object that a flush may send along.
pub(crate) async fn gap_bytes_max(shared: &Arc<Shared>, namespace: &Namespace) -> u64 {
    let most = shared.config.flush_gap_bytes_max;
    if most == 0 || shared.config.writer != Writer::Cache {
        return 0;
    }
    let Some(epoch) = shared.claimed_own(namespace) else { return 0 };
    if lock(&shared.sole).get(namespace) == Some(&epoch) {
        return most;
    }
    // What was read before the claim may have been changed before the claim.
    let mut left = 0;
    for handle in handles_of(shared, &Scope::Namespace(namespace.clone())) {
        left += doubt(&handle).await.left;
    }
    if left > 0 {
        return 0;
    }
    lock(&shared.sole).insert(namespace.clone(), epoch);
    most
}
