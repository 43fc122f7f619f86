//! The empty layer: forwards every call. What a layer costs at least, and what one starts from.

use std::fmt;
use std::sync::Arc;

use crate::blocker::Blocker;

/// A layer that forwards each call to the blocker below. A ready reply stays ready, unboxed.
#[derive(Clone)]
pub struct PassThrough<B: Blocker + ?Sized = dyn Blocker> {
    inner: Arc<B>,
}

impl<B: Blocker + ?Sized> PassThrough<B> {
    /// Returns a layer over `inner`.
    #[must_use]
    pub fn new(inner: Arc<B>) -> Self {
        Self { inner }
    }
}

impl<B: Blocker + ?Sized> fmt::Debug for PassThrough<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassThrough").finish_non_exhaustive()
    }
}

impl<B: Blocker + ?Sized> Blocker for PassThrough<B> {
    crate::delegate!(|this| *this.inner);
}
