//! Ends threads that run until a flag is set: a scope waits for such threads, even if the test
//! fails.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets a flag when dropped.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
