//! Waiting until an object, or a scope, is recovered.

use std::future::poll_fn;

use blocker::{Result, Scope};

use super::Shared;
use super::owned_resources::flushed_meanwhile;
use crate::sync::Arc;

/// Waits until the object with this hash is recovered.
///
/// # Errors
/// Why it cannot be; `Unsupported` if the background of the cache has ended.
pub(crate) async fn object_recovered(shared: &Arc<Shared>, hash: u64) -> Result<()> {
    let waiting = poll_fn(|cx| {
        let (poll, requested) = shared.recovery.poll_object(hash, cx.waker());
        if let Some(object) = requested {
            shared.recovery.out_of_turn(object).into_iter().for_each(|task| shared.background.add(task));
        }
        poll
    });
    flushed_meanwhile(shared, waiting).await
}

/// Waits until everything within a scope is recovered, an order domain's namespace with it.
///
/// # Errors
/// Why an object of it cannot be; `Unsupported` if the background of the cache has ended.
pub(crate) async fn scope_recovered(shared: &Arc<Shared>, scope: &Scope) -> Result<()> {
    if !shared.recovery.is_active() {
        return Ok(());
    }
    let namespace = match scope {
        Scope::Object(id) => return object_recovered(shared, shared.hash(id)).await,
        Scope::Domain(namespace, _) | Scope::Namespace(namespace) => Some(namespace),
        _ => None,
    };
    let waiting = poll_fn(|cx| shared.recovery.poll_wide(namespace, cx.waker()));
    flushed_meanwhile(shared, waiting).await
}

/// Waits until the namespaces have been claimed.
///
/// # Errors
/// `Unsupported` if the background of the cache has ended.
pub(crate) async fn recovery_begun(shared: &Arc<Shared>) -> Result<()> {
    let waiting = poll_fn(|cx| shared.recovery.poll_begun(cx.waker()).map(Ok));
    flushed_meanwhile(shared, waiting).await
}
