//! Reading: what is not all in the cache is asked of the store, once for all readers of a range; loads,
//! read-ahead, lists, and reads while the cache is detached. What is in memory is read by `state/read.rs`
//! without coming here.

pub(crate) mod fetch_ahead;
pub(crate) mod list;
pub(crate) mod load;

use blocker::admission::check_condition;
use blocker::{Condition, Error, Hints, Info, InfoRequest, ReadReply, ReadRequest, Result, Version};
use load::{load, load_head};

use super::memory::geometry::{BUCKET_U64, buckets_of};
use super::shared::Shared;
use super::shared::calls::begin;
use super::shared::handle::Handle;
use super::state::ranges::Kind;
use super::state::{Keep, Loaded, Lookup};
use super::store::{Class, Lane};
use super::tasks::deadline::until;
use crate::sync::Arc;

/// The most loads for one request: each may turn out void, if other clients change the object that fast.
pub(crate) const LOADS_MAX: usize = 64;

/// Answers a read that could not be answered at once.
pub(crate) async fn read(shared: Arc<Shared>, request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let deadline = request.call.deadline;
    let work = read_from_store(&shared, request, hash);
    until(&*shared.clock, deadline, || Error::DeadlinePassed, work).await
}

async fn read_from_store(shared: &Arc<Shared>, request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let handle = Handle::acquire(shared, &request.object, hash).await?;
    let mut keep = if request.call.hints.has(Hints::NO_CACHE) { Keep::Nothing } else { Keep::All };
    let object_bytes_max = shared.config.object_bytes_max;
    let request = Arc::new(request);
    let mut is_counted = false;
    for _ in 0..LOADS_MAX {
        let asked = Arc::clone(&request);
        let looked = handle
            .enter(move |object, env| (object.look_up(env, &asked, object_bytes_max), object.content_end()));
        let (looked, content_end) = looked.await;
        let buckets = match looked {
            Lookup::Answer(answer) => {
                if !is_counted {
                    shared.metrics.count_hit(shared.index.namespace_of(handle.at()), hash);
                }
                return answer;
            }
            Lookup::Head => {
                load_head(&handle, request.call).await?;
                continue;
            }
            Lookup::Follow(ticket) => {
                handle.follow(ticket).await;
                continue;
            }
            // What is here already is not asked for, unless it was evicted while the rest was loaded:
            // then all of it is.
            Lookup::Load(buckets) if !is_counted => buckets,
            Lookup::Load(_) => {
                let within = object_bytes_max.saturating_sub(request.offset).min(request.len_bytes);
                buckets_of(request.offset, within)
            }
        };
        if !std::mem::replace(&mut is_counted, true) {
            let namespace = shared.index.namespace_of(handle.at());
            shared.metrics.count_miss(namespace);
            keep = what_to_keep(shared, namespace, &request, content_end, keep);
        }
        let guard = handle.lock_range(buckets.clone(), Kind::Load).await?;
        let loaded = load(&handle, &guard, buckets, request.call, keep, Loaded::default()).await?;
        let Some(loaded) = loaded else { continue };
        let asked = Arc::clone(&request);
        let ticket = guard.ticket();
        let answer = handle.enter(move |object, env| {
            let is_void = object.is_stale(ticket);
            object.read_at_once(env, &asked, Some(&loaded).filter(|_| !is_void))
        });
        if let Some(answer) = answer.await {
            return answer;
        }
    }
    Err(changes_too_fast())
}

/// Takes note of a read that the store must be asked for; returns what of it is kept.
fn what_to_keep(
    shared: &Shared,
    namespace: u16,
    request: &ReadRequest,
    content_end: u64,
    keep: Keep,
) -> Keep {
    let end = request.offset.saturating_add(request.len_bytes).min(shared.config.object_bytes_max);
    let buckets = buckets_of(request.offset, end.saturating_sub(request.offset));
    let last = buckets.end - 1;
    let seen = shared.read_ahead.observe_read(namespace, &request.object, buckets, content_end, request.call);
    match seen.is_passing {
        false => keep,
        true if end.is_multiple_of(BUCKET_U64) => Keep::Nothing,
        true => Keep::Passing(last),
    }
}

pub(crate) fn changes_too_fast() -> Error {
    Error::Retryable("the object changes faster than it can be read".into())
}

// Reads while the cache is detached: straight from the store, past the gate. Nothing is looked up in the cache or
// kept there; versions are shown as the cache would show them.

/// Reads from the store.
pub(crate) async fn read_detached(
    shared: Arc<Shared>,
    mut request: ReadRequest,
    hash: u64,
) -> Result<ReadReply> {
    let within = shared.config.object_bytes_max.saturating_sub(request.offset);
    request.len_bytes = request.len_bytes.min(within);
    // The store's present limit: one that is reached over a network may come back with another. In pieces then.
    if request.len_bytes > shared.below.capabilities().request_bytes_max {
        return read(shared, request, hash).await;
    }
    let deadline = request.call.deadline;
    let work = read_below(&shared, request, hash);
    until(&*shared.clock, deadline, || Error::DeadlinePassed, work).await
}

async fn read_below(shared: &Arc<Shared>, mut request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let namespace = shared.namespaces.of(&request.object.namespace);
    // Callers know versions that stand for the store's.
    let condition = std::mem::replace(&mut request.condition, Condition::None);
    let class = Class::of(request.call.priority);
    shared.metrics.count_miss(namespace);
    shared.metrics.counts.direct_reads.increment();
    let asking = begin(shared, namespace, (Lane::Load, class), request.len_bytes).await?;
    let answer = shared.below.read(request).await;
    let bytes = answer.as_ref().map_or(0, |reply| reply.data.len_bytes() as u64);
    asking.end(shared, &answer, bytes);
    let mut reply = answer?;
    reply.version = Version(shared.remembered.shown_for(hash, reply.version.0));
    check_condition(Some(reply.version), condition)?;
    Ok(reply)
}

/// Asks the store for size, version and stamp.
pub(crate) async fn info_detached(shared: Arc<Shared>, request: InfoRequest, hash: u64) -> Result<Info> {
    let deadline = request.call.deadline;
    let own = Arc::clone(&shared);
    let work = async move {
        let namespace = own.namespaces.of(&request.object.namespace);
        let class = Class::of(request.call.priority);
        let asking = begin(&own, namespace, (Lane::Change, class), 0).await?;
        let answer = own.below.info(request).await;
        asking.end(&own, &answer, 0);
        let mut info = answer?;
        info.version = Version(own.remembered.shown_for(hash, info.version.0));
        // Where the cache is the writer, stamps are its own, and are not shown to callers.
        info.stamp = info.stamp.filter(|_| own.fences_callers());
        Ok(info)
    };
    until(&*shared.clock, deadline, || Error::DeadlinePassed, work).await
}
