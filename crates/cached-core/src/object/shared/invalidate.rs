//! Dropping what other clients may have changed in the store. Most of it is dropped in the objects' exclusive
//! sections; what needs buckets and finds none waits for them afterwards.

use blocker::{Result, Scope};

use super::Shared;
use super::handle::Handle;
use super::owned_resources::OwnedResources;
use crate::object::memory::pool::{BUCKET, Reserved};
use crate::object::namespace_numbers::OTHERS;
use crate::object::state::Invalidated;
use crate::sync::Arc;

/// One wait is for at most this part of all buckets.
const SHARE: u32 = 8;

/// Drops the clean copies within a scope; returns how many bytes.
///
/// # Errors
/// `Retryable` if that takes memory, and too many tasks wait for memory already.
pub(crate) async fn drop_clean(shared: &Arc<Shared>, scope: &Scope) -> Result<u64> {
    let mut dropped = 0;
    let mut rest = Vec::new();
    for handle in handles_of(shared, scope) {
        let invalidated = drop_clean_object(&handle).await;
        dropped += u64::from(invalidated.dropped) * BUCKET as u64;
        if invalidated.left > 0 {
            rest.push((handle, invalidated.left));
        }
    }
    for (handle, left) in rest {
        narrow_rest(handle, left).await?;
    }
    Ok(dropped)
}

/// Drops the clean copies of an object, waiting for nothing but its exclusive section.
async fn drop_clean_object(handle: &Handle) -> Invalidated {
    handle.enter(|object, env| object.invalidate(env, &mut Reserved::none(env.pool))).await
}

/// Continues with an object of which `left` buckets are still to be narrowed to what is newer than the store.
///
/// # Errors
/// `Retryable` if too many tasks wait for buckets already.
pub(crate) async fn narrow_rest(handle: Handle, mut left: u32) -> Result<()> {
    while left > 0 {
        let count = left.min(handle.shared.pool.count_min() / SHARE).max(1);
        let mut resources = OwnedResources::acquire(&handle.shared, OTHERS, count, 0).await?;
        let narrowed = handle
            .enter(move |object, env| {
                resources.with(None, |resources| object.invalidate(env, &mut resources.reserved))
            })
            .await;
        left = narrowed.left;
    }
    Ok(())
}

/// Logs that something could not be dropped, and may be read once more, where no caller asked for it to be
/// dropped.
pub(crate) fn log_failure<T>(result: Result<T>) {
    if let Err(error) = result {
        tracing::warn!(%error, "copies of what was changed in the store could not all be dropped");
    }
}

/// The objects within a scope that the index has.
fn handles_of(shared: &Arc<Shared>, scope: &Scope) -> Vec<Handle> {
    let mut handles = Vec::new();
    match scope {
        Scope::Object(id) => {
            handles.extend(shared.find(shared.hash(id), id).map(|in_use| Handle::of(shared, in_use)));
        }
        _ => shared.index.for_each(|in_use| {
            let id = shared.index.id(in_use);
            let is_of_it = match scope {
                // An object does not know all the domains it ever belonged to.
                Scope::Domain(namespace, _) | Scope::Namespace(namespace) => id.namespace == *namespace,
                _ => true,
            };
            if is_of_it {
                handles.push(Handle::of(shared, shared.index.use_again(in_use.at)));
            }
        }),
    }
    handles
}
