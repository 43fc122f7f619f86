//! Hooks for embedders: the life of objects in the index.

use blocker::ObjectId;

/// Called when objects enter and leave the index. Every method has a default that does nothing. They are
/// called in the middle of operations: return quickly, call nothing of the cache, keep nothing.
///
/// ```text
///   on_init ──> on_evict ──(dirty or busy)──> on_reinsert (asked for again)
///                  │                    └──> on_finalize (all of it is stored)
///                  └─────────────────────────────> on_put ──> on_free
/// ```
pub trait Hooks: Send + Sync {
    /// The object has entered the index.
    fn on_init(&self, object: &ObjectId) {
        let _ = object;
    }
    /// The object has been chosen to leave; it goes at once if it is clean and not in use.
    fn on_evict(&self, object: &ObjectId) {
        let _ = object;
    }
    /// The object that was to leave has been asked for again, and stays.
    fn on_reinsert(&self, object: &ObjectId) {
        let _ = object;
    }
    /// What kept the object from leaving has ended.
    fn on_finalize(&self, object: &ObjectId) {
        let _ = object;
    }
    /// The object has left the index.
    fn on_put(&self, object: &ObjectId) {
        let _ = object;
    }
    /// The object's node in the index is free again.
    fn on_free(&self) {}
}

/// Hooks that do nothing.
pub(crate) struct NoHooks;

impl Hooks for NoHooks {}
