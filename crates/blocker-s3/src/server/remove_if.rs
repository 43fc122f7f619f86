//! Removing an object only if it is still the one that was seen.

use std::sync::Arc;

use blocker::Result;
use futures_util::future::BoxFuture;
use object_store::path::Path;

/// Removes objects on a condition, which [`object_store::ObjectStore`] cannot.
pub(crate) trait RemoveIf: Send + Sync {
    /// Removes an object if it has this ETag. Whether it did.
    fn remove_if<'a>(&'a self, path: &'a Path, etag: &'a str) -> BoxFuture<'a, Result<bool>>;
}

/// A remover, where there is one.
pub(crate) type Remover = Option<Arc<dyn RemoveIf>>;
