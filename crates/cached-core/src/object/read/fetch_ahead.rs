//! Read-ahead: the background loads the data that a progression is expected to read next.
//!
//! A read-ahead is a load like any other: whatever invalidates the response of a load invalidates
//! it too, and a read of the same range waits for it. But a read-ahead does less than other
//! loads: it never waits for a change or a bucket, loads only bytes that are neither cached nor in
//! flight, and gives up without a retry at the first obstacle.

use std::ops::Range;
use std::time::Duration;

use blocker::{Call, Error, Result};

use super::load::{OnDrop, complete, run_max};
use crate::object::read_ahead::{Fetch, Marked, Request};
use crate::object::shared::Shared;
use crate::object::shared::handle::{Handle, RangeGuard};
use crate::object::state::Keep;
use crate::object::state::ranges::Kind;
use crate::object::tasks::deadline::until;
use crate::sync::Arc;

/// The maximum number of read-ahead requests in flight.
pub(crate) const FETCHES_MAX: usize = 16;
/// The timeout of a read-ahead; afterwards a read that waits for it asks the store itself.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Carries out a read-ahead request of the background.
pub(crate) async fn serve(shared: Arc<Shared>, request: Request) {
    let fetch = match request {
        Request::Fetch(fetch) => Some(fetch),
        Request::Marked(marked) => next_after(&shared, marked).await,
    };
    let Some(fetch) = fetch else { return };
    let deadline = shared.clock.now() + ANSWER_MAX;
    let work = read_ahead(&shared, fetch);
    if let Err(error) = until(&*shared.clock, Some(deadline), || Error::DeadlinePassed, work).await {
        tracing::debug!(%error, "read-ahead has failed");
    }
}

async fn next_after(shared: &Arc<Shared>, marked: Marked) -> Option<Fetch> {
    let handle = Handle::of_node(shared, marked.node)?;
    if handle.in_use().node.hash() != marked.hash {
        return None;
    }
    let end = handle.enter(|object, _| object.content_end()).await;
    let namespace = handle.namespace();
    shared.read_ahead.reach_mark(namespace, handle.id(), marked.bucket, end)
}

async fn read_ahead(shared: &Arc<Shared>, fetch: Fetch) -> Result<()> {
    let hash = shared.hash(&fetch.id);
    if shared.is_unrecovered(hash) {
        return Ok(());
    }
    let handle = match shared.find(hash, &fetch.id) {
        Some(in_use) => Handle::of(shared, in_use),
        // No object is evicted from the index for a read-ahead.
        None if shared.objects.index.count() >= u64::from(shared.control.config.objects_count_max) => {
            return Ok(());
        }
        None => Handle::acquire(shared, &fetch.id, hash).await?,
    };
    let object_end = (shared.control.config.object_bytes_max / blocker::BUCKET_BYTES) as u32;
    let mut ranges = fetch.plan.ranges(object_end).peekable();
    let mut mark = Some(fetch.plan.mark);
    while let Some(range) = ranges.next() {
        let is_last = ranges.peek().is_none();
        read_range(&handle, range, &fetch, &mut mark, is_last).await?;
    }
    Ok(())
}

/// Loads the missing parts of a range, run by run. `mark` is the desired position of the mark,
/// until it is set.
async fn read_range(
    handle: &Handle,
    range: Range<u32>,
    fetch: &Fetch,
    mark: &mut Option<u32>,
    is_last: bool,
) -> Result<()> {
    let (shared, pattern) = (&handle.shared, fetch.plan.pattern);
    let mut from = range.start;
    // Reads for which callers wait come first.
    while from < range.end && !shared.store.gate.is_crowded() {
        let count = shared.read_ahead.begin(range.end - from);
        let _coming = OnDrop(|| shared.read_ahead.end(count));
        let within = from..from + count;
        let (own, run_max, wanted) = (handle.clone(), run_max(shared), *mark);
        let registering = handle.enter(move |object, env| {
            let (run, marked) = object.run_to_read_ahead(within, pattern, wanted, is_last)?;
            // The entry is granted, because no change of the range is in flight.
            let (guard, _) = RangeGuard::queue(own, object, run.clone(), Kind::Ahead).ok()?;
            let load = object.begin_load(env, guard.ticket(), &run, run_max, Some(pattern));
            Some(((guard, load), run.end, marked))
        });
        // Everything is cached or in flight, or something is in the way.
        let Some((registered, end, marked)) = registering.await else { break };
        if marked.is_some() {
            *mark = None;
        }
        from = end;
        let keep = Keep::Ahead { pattern, mark: marked, is_passing: fetch.is_passing };
        complete(handle, registered, Call::default(), keep, |_, _, _| ()).await?;
    }
    Ok(())
}
