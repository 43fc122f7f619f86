//! One flush of a namespace that is limited at the gate to the store ([`crate::object::control::limited_flushes`]).

use super::Shared;
use crate::sync::{Arc, Ordering};

/// A flush under way of a namespace that was limited when it began.
pub(crate) struct LimitedFlush {
    shared: Arc<Shared>,
    namespace: u16,
    is_urgent: bool,
}

impl LimitedFlush {
    /// Counts a flush of a namespace, if that is limited.
    pub(crate) fn begin(shared: &Arc<Shared>, namespace: u16, is_urgent: bool) -> Option<Self> {
        let of_it = &shared.namespaces.record(namespace).limited_flushes;
        of_it.is_limited().then(|| {
            of_it.begin(is_urgent);
            shared.limited_flushes.fetch_add(1, Ordering::SeqCst);
            Self { shared: Arc::clone(shared), namespace, is_urgent }
        })
    }
}

impl Drop for LimitedFlush {
    fn drop(&mut self) {
        self.shared.namespaces.record(self.namespace).limited_flushes.end(self.is_urgent);
        self.shared.limited_flushes.fetch_sub(1, Ordering::SeqCst);
    }
}
