//! Throwing away what others may have changed below. Most of it goes in the objects' turns; what needs buckets and finds
//! none waits for them afterwards.

use blocker::Result;

use super::handle::{Handle, OwnedMeans};
use super::pool::Reserved;
use super::state::Doubted;

/// Of so many of all buckets one wait is for one at most.
const SHARE: u32 = 8;

/// Throws away what the store is said to have of an object, without waiting for anything but its turn.
pub(crate) async fn doubt(handle: &Handle) -> Doubted {
    handle.enter(|object, env| object.doubt(env, &mut Reserved::none(env.pool))).await
}

/// Goes on with an object of which `left` buckets are still to be narrowed.
///
/// # Errors
/// `Retryable` if too many wait for buckets already.
pub(crate) async fn doubt_rest(handle: Handle, mut left: u32) -> Result<()> {
    while left > 0 {
        let count = left.min(handle.shared.pool.count() / SHARE).max(1);
        let mut means = OwnedMeans::acquire(&handle.shared, count, 0).await?;
        let narrowed = handle
            .enter(move |object, env| means.lend(None, |means| object.doubt(env, &mut means.reserved)))
            .await;
        left = narrowed.left;
    }
    Ok(())
}

/// What could not be dropped may be read once more. Where nobody asked for it to be dropped, the log alone says so.
pub(crate) fn dropped<T>(result: Result<T>) {
    if let Err(error) = result {
        tracing::warn!(%error, "not all that was changed below could be dropped here");
    }
}
