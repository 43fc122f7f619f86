//! Reads while the cache is detached: straight from the store, past the gate. Nothing is looked up in the cache or
//! kept there; versions are shown as the cache would show them.

use blocker::admission::check_condition;
use blocker::{Condition, Error, Info, InfoRequest, ReadReply, ReadRequest, Result, Version};

use crate::object::control::metrics::add;
use crate::object::read;
use crate::object::shared::Shared;
use crate::object::shared::store_call::begin;
use crate::object::store::{Class, Lane};
use crate::object::tasks::deadline::until;
use crate::sync::Arc;

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
        return read::read(shared, request, hash).await;
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
    add(&shared.metrics.direct_reads, 1);
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
