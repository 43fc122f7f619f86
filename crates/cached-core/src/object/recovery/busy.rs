//! An object whose records one task applies.

use crate::object::shared::Shared;
use crate::sync::Arc;

/// A busy object: given free, and the tasks woken that wait for it, when this is dropped.
pub(super) struct Busy {
    pub(super) shared: Arc<Shared>,
    pub(super) object: u32,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.shared.recovery.end_object(self.object);
    }
}
