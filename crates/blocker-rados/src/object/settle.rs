//! Finding out the outcome of a change with unknown outcome, before any other change of the object.
//!
//! A change that timed out may still sit in an OSD's queue and be applied minutes later, over newer data. So
//! its object is *unsettled* until this has been done: its head is read (behind all that was sent before),
//! and the head's *gate* is changed if it is still what was read. Every change compares the head it was
//! prepared from, gate included, in the same step as it is applied. So one of two things is true afterwards:
//! the late change had been applied before the gate moved, and what is read from now on shows it; or it finds
//! another gate, and is refused by the store whenever it comes. An object that is not there needs no gate: a
//! change never creates its object by itself (`fence.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use blocker::{Error, ObjectId, Result};

use crate::attr::{self, HEAD, Head};
use crate::librados::ffi::{COMPARE_EQ, errno};
use crate::librados::op::WriteOp;
use crate::object::{Core, Space};

/// How often a gate is tried that others change at the same time.
const TRIES: u32 = 20;

impl Core {
    /// Makes sure that no earlier change of `object` can still land. Cancel safe; several may do it at once.
    ///
    /// # Errors
    /// Those of reads, but `Missing`: the object is still unsettled.
    pub(crate) async fn settle(self: &Arc<Self>, space: &Space, object: &ObjectId) -> Result<()> {
        if !self.objects.is_unsettled(object) {
            return Ok(());
        }
        for _ in 0..TRIES {
            let view = self.look(space, &object.name, true).await?;
            let moved = match view.head {
                Head::Absent | Head::Foreign { .. } => {
                    // No head: no change of ours can land on it either, they compare it.
                    self.objects.settled(object);
                    return Ok(());
                }
                Head::Ghost { .. } => Head::Ghost { gate: attr::nonce() },
                Head::Live { size_bytes, .. } => Head::Live { size_bytes, gate: attr::nonce() },
            };
            let (Some(old), Some(new)) = (view.head.encode(), moved.encode()) else { continue };
            let op = WriteOp::new(&space.ioctx.cluster.api).compare(HEAD, COMPARE_EQ, &old).set(HEAD, &new);
            match self.change_own(space, &self.layout.object(&object.name), op).await.code {
                0.. => {
                    self.limits.stats.settled.fetch_add(1, Ordering::Relaxed);
                    self.objects.settled(object);
                    return Ok(());
                }
                errno::CANCELED | errno::NOENT => {}
                code => return Err(self.failed_read(space, code)),
            }
        }
        Err(Error::Retryable("the object is changed by others all the time".into()))
    }
}
