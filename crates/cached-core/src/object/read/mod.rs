//! Reads that are not completely served from memory: data are requested from the store once for all
//! readers of a range; loads, read-ahead, lists, and reads while the cache is detached. Reads of
//! cached data are in `state/read.rs` and do not come here.

pub(crate) mod list;
pub(crate) mod load;

use blocker::admission::check_condition;
use blocker::{Condition, Error, Hints, Info, InfoRequest, ReadReply, ReadRequest, Result, Version};
use load::{ask_info, begin_load, complete, load_head, run_max};

use super::memory::{BUCKET_U64, Buckets, buckets_of};
use super::shared::Shared;
use super::shared::calls::begin;
use super::shared::claim::claim_before_read;
use super::shared::handle::{Handle, RangeGuard};
use super::state::ranges::{Kind, Ticket};
use super::state::{Env, Keep, Known, Load, Object};
use super::store::{Class, Lane};
use super::tasks::deadline::until;
use crate::sync::Arc;

/// The maximum number of loads for a request: any response may be void, if other clients keep
/// changing the object.
pub(crate) const LOADS_MAX: usize = 64;

/// Serves a read that could not be served at once.
pub(crate) async fn read(shared: Arc<Shared>, request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let deadline = request.call.deadline;
    let work = read_from_store(&shared, request, hash);
    until(&*shared.clock, deadline, || Error::DeadlinePassed, work).await
}

async fn read_from_store(shared: &Arc<Shared>, request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let handle = Handle::acquire(shared, &request.object, hash).await?;
    let mut keep = if request.call.hints.has(Hints::NO_CACHE) { Keep::Nothing } else { Keep::All };
    let request = Arc::new(request);
    let mut is_counted = false;
    for _ in 0..LOADS_MAX {
        let (own, asked, run_max) = (handle.clone(), Arc::clone(&request), run_max(shared));
        let looked = handle.enter(move |object, env| {
            let looked = look_up(own, object, env, &asked, run_max, is_counted)?;
            Ok::<_, Error>((looked, object.content_end()))
        });
        let (looked, content_end) = looked.await?;
        let namespace = handle.namespace();
        let (guard, load) = match looked {
            Lookup::Answer(answer) => {
                if !is_counted {
                    shared.metrics.of(namespace).hits.increment();
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
            Lookup::Load(guard, load) => (guard, load),
        };
        if !std::mem::replace(&mut is_counted, true) {
            shared.metrics.of(namespace).misses.increment();
            keep = what_to_keep(shared, namespace, &request, content_end, keep);
        }
        let load = match load {
            Ok(load) => load,
            Err(buckets) => {
                guard.granted().await;
                begin_load(&handle, &guard, buckets).await
            }
        };
        let asked = Arc::clone(&request);
        let answer = complete(&handle, (guard, load), request.call, keep, move |object, env, loaded| {
            object.read_at_once(env, &asked, Some(&loaded?))
        });
        if let Some(answer) = answer.await? {
            return answer;
        }
    }
    Err(changes_too_fast())
}

/// The result of looking up a range in the cache.
enum Lookup {
    Answer(Result<ReadReply>),
    /// The store must be asked for the object's head.
    Head,
    /// Another request is already loading the range.
    Follow(Ticket),
    /// A load of the missing buckets is registered. If changes are ahead of it, the load begins
    /// with these buckets once they have ended.
    Load(RangeGuard, Result<Load, Buckets>),
}

/// Looks up a range, and registers a load of its missing part.
///
/// # Errors
/// `Retryable` if too many requests wait for the object.
fn look_up(
    handle: Handle,
    object: &mut Object,
    env: &Env<'_>,
    request: &ReadRequest,
    run_max: u64,
    was_loaded: bool,
) -> Result<Lookup> {
    if let Some(answer) = object.read_at_once(env, request, None) {
        return Ok(Lookup::Answer(answer));
    }
    let within =
        handle.shared.control.config.object_bytes_max.saturating_sub(request.offset).min(request.len_bytes);
    let all = buckets_of(request.offset, within);
    let missing = if object.head.known == Known::Unknown {
        // While changes of the object are in flight, only a request that waits for them learns the
        // object's size. If the whole range is cached, but not the object's size, a load would
        // request nothing from the store.
        if within == 0 || object.head.store_changes > 0 || object.has_all(env, &all) {
            return Ok(Lookup::Head);
        }
        all.clone()
    } else {
        match object.read(env, request.offset, request.len_bytes, None) {
            Err(missing) => missing.load.unwrap_or_default(),
            Ok(_) => return Ok(Lookup::Head),
        }
    };
    if let Some(ticket) = object.ranges().load_of(&missing) {
        return Ok(Lookup::Follow(ticket));
    }
    // Cached buckets are not requested, unless they were evicted while the rest was loaded: then
    // the whole range is requested.
    let buckets = if was_loaded { all } else { missing };
    let (guard, is_granted) = RangeGuard::queue(handle, object, buckets.clone(), Kind::Load)?;
    let load = match is_granted {
        true => Ok(object.begin_load(env, guard.ticket(), &buckets, run_max, None)),
        false => Err(buckets),
    };
    Ok(Lookup::Load(guard, load))
}

/// Records a read that needs the store; returns which part of it to keep.
fn what_to_keep(
    shared: &Shared,
    namespace: u16,
    request: &ReadRequest,
    content_end: u64,
    keep: Keep,
) -> Keep {
    let end = request.offset.saturating_add(request.len_bytes).min(shared.control.config.object_bytes_max);
    let buckets = buckets_of(request.offset, end.saturating_sub(request.offset));
    let last = buckets.end - 1;
    match shared.read_ahead.observe_read(namespace, &request.object, buckets, content_end, request.call) {
        false => keep,
        true if end.is_multiple_of(BUCKET_U64) => Keep::Nothing,
        true => Keep::Passing(last),
    }
}

pub(crate) fn changes_too_fast() -> Error {
    Error::Retryable("the object changes faster than it can be read".into())
}

// Reads while the cache is detached: directly from the store, through the gate. Nothing is looked
// up or kept in the cache; versions are shown as the cache would show them.

/// Reads from the store.
pub(crate) async fn read_detached(
    shared: Arc<Shared>,
    mut request: ReadRequest,
    hash: u64,
) -> Result<ReadReply> {
    let within = shared.control.config.object_bytes_max.saturating_sub(request.offset);
    request.len_bytes = request.len_bytes.min(within);
    // This is the store's current limit: a store on the network may have a different one after a
    // reconnect. A larger read is split.
    if request.len_bytes > shared.store.below.capabilities().request_bytes_max {
        return read(shared, request, hash).await;
    }
    let deadline = request.call.deadline;
    let work = read_below(&shared, request, hash);
    until(&*shared.clock, deadline, || Error::DeadlinePassed, work).await
}

async fn read_below(shared: &Arc<Shared>, mut request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let namespace = shared.control.namespaces.of(&request.object.namespace);
    // Callers may know other versions than the store's.
    let condition = std::mem::replace(&mut request.condition, Condition::None);
    let class = Class::of(request.call.priority);
    shared.metrics.of(namespace).misses.increment();
    shared.metrics.counts.direct_reads.increment();
    claim_before_read(shared, &request.object.namespace).await?;
    let asking = begin(shared, namespace, (Lane::Load, class), request.len_bytes).await?;
    let mut reply = asking.read(shared, request).await?;
    reply.version = Version(shared.objects.remembered.shown_for(hash, reply.version.0));
    check_condition(Some(reply.version), condition)?;
    Ok(reply)
}

/// Asks the store for the size, version and stamp.
pub(crate) async fn info_detached(shared: Arc<Shared>, request: InfoRequest, hash: u64) -> Result<Info> {
    let (id, call) = (&request.object, request.call);
    let work = async {
        let object = (id, shared.control.namespaces.of(&id.namespace));
        let info = ask_info(&shared, object, Class::of(call.priority), || call).await?;
        let mut info = info.ok_or(Error::Missing)?;
        info.version = Version(shared.objects.remembered.shown_for(hash, info.version.0));
        // If the cache is the writer, stamps are its own, and callers do not see them.
        info.stamp = info.stamp.filter(|_| shared.fences_callers());
        Ok(info)
    };
    until(&*shared.clock, call.deadline, || Error::DeadlinePassed, work).await
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::executor::block_on;
    use blocker::{Blocker, BlockerExt, Memory, SystemClock, WriteRequest};

    use super::*;
    use crate::object::ObjectCache;
    use crate::object::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};
    use crate::object::tasks::serial::tests::jobs_run;

    #[test]
    fn a_miss_enters_its_object_three_times() {
        let store = Arc::new(Memory::default());
        let id: blocker::ObjectId = "n/o".parse().unwrap();
        block_on(store.write(WriteRequest::new(id.clone(), 0, vec![7; 8192]))).unwrap();
        let config = ObjectCacheConfig {
            memory_bytes_max: MEMORY_BYTES_MIN,
            dirty_bytes_max: MEMORY_BYTES_MIN / 2,
            hash_seed: Some(1),
            ..ObjectCacheConfig::default()
        };
        let (cache, _background) = ObjectCache::new(store, config, Arc::new(SystemClock)).unwrap();
        let jobs_of_read = |offset| {
            let before = jobs_run();
            let reply = block_on(cache.read(ReadRequest::new(id.clone(), offset, 4096))).unwrap();
            assert_eq!(reply.data.to_vec(), [7; 4096]);
            jobs_run() - before
        };
        assert_eq!(
            jobs_of_read(0),
            3,
            "the object gets its node, the load is registered, and its bytes are taken"
        );
        assert_eq!(
            jobs_of_read(4096),
            3,
            "the object is known: the read looks for the bytes at once, in vain"
        );
        assert_eq!(jobs_of_read(0), 1, "a hit");
    }
}
