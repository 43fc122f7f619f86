//! Requests an object's state and bytes from the store, once for all tasks that wait for the same
//! range, and loads data in advance.

use std::ops::Range;
use std::time::Duration;

use blocker::admission::check_condition;
use blocker::{
    BUCKET_BYTES, Call, ChangeReply, Condition, Durability, Error, Info, InfoRequest, ObjectId, ReadReply,
    ReadRequest, Result, Scope, Segments, Version, WriteMode,
};
use futures_util::future::join_all;

use crate::object::control::records::nanos;
use crate::object::memory::pool::BUCKET;
use crate::object::memory::{Buckets, WHOLE};
use crate::object::read_ahead::{Fetch, Marked, Request};
use crate::object::shared::Shared;
use crate::object::shared::calls::begin;
use crate::object::shared::claim::{ask_epoch, claim_before_read};
use crate::object::shared::handle::{Handle, RangeGuard};
use crate::object::shared::resources::OwnedResources;
use crate::object::state::ranges::{Kind, Ticket};
use crate::object::state::{Env, Head, Keep, Known, Load, Loaded, Object, ReportedHead};
use crate::object::store::epochs::UNLOGGED_SEQUENCE;
use crate::object::store::{Class, Lane};
use crate::object::tasks::deadline::until;
use crate::sync::{Arc, Ordering};

/// Returns the maximum number of bytes in a request to the store, in whole buckets. This is the
/// store's current limit: a store on the network may have a different one after a reconnect.
pub(crate) fn run_max(shared: &Shared) -> u64 {
    let request_bytes_max = shared.store.below.capabilities().request_bytes_max;
    (request_bytes_max / BUCKET_BYTES * BUCKET_BYTES).max(BUCKET_BYTES)
}

/// Carries out a load. Returns the loaded data, and buckets for the part that will be kept.
async fn fetch(handle: &Handle, load: Load, call: Call, keep: Keep) -> Result<(Loaded, OwnedResources)> {
    let shared = &handle.shared;
    claim_before_read(shared, &handle.id().namespace).await?;
    let buckets: u64 = load.runs.iter().map(|(_, len)| len / BUCKET_BYTES).sum();
    shared.metrics.loading.fetch_add(buckets, Ordering::Relaxed);
    let _loading = scopeguard::guard((), |()| {
        shared.metrics.loading.fetch_sub(buckets, Ordering::Relaxed);
    });
    let began = shared.clock.now();
    let namespace = handle.namespace();
    let reads = load.runs.iter().map(|(start, len)| {
        let mut request = ReadRequest::new(handle.id().clone(), *start, *len);
        request.call = call;
        fetch_run(shared, namespace, request, keep)
    });
    let mut loaded = Loaded::default();
    for ((start, len), answer) in load.runs.iter().zip(join_all(reads).await) {
        let (data, head) = match answer {
            Ok(ReadReply { data, size_bytes, version, .. }) => (data, Some((size_bytes, version.0))),
            // The object does not exist, so the range is empty.
            Err(Error::Missing) => (Segments::new(), None),
            Err(error) => return Err(error),
        };
        let is_mixed = loaded.reported.is_some_and(|before| before.is_mixed || before.head != head);
        loaded.reported = Some(ReportedHead { head, is_mixed, steps: load.steps });
        loaded.runs.push((*start, *len, data));
    }
    let nanos = nanos(shared.clock.now().since(began));
    shared.memory.shares.loaded(&shared.memory.queues, namespace, buckets, nanos);
    // Count the buckets received, not those requested: a read may reach far beyond the object's
    // end.
    let came = loaded.runs.iter().map(|(_, _, data)| data.len_bytes().div_ceil(BUCKET) as u32).sum();
    let resources = OwnedResources::at_hand(shared, keep.count_max(came).min(load.kept_max));
    Ok((loaded, resources))
}

/// Requests a run from the store.
async fn fetch_run(
    shared: &Arc<Shared>,
    namespace: u16,
    request: ReadRequest,
    keep: Keep,
) -> Result<ReadReply> {
    let class = if keep.is_asked_for() { Class::of(request.call.priority) } else { Class::Idle };
    let asking = begin(shared, namespace, (Lane::Load, class), request.len_bytes).await?;
    let began = shared.clock.now();
    let reply = asking.read(shared, request).await?;
    if keep.is_asked_for() {
        shared.read_ahead.note_answer(shared.clock.now().since(began));
    }
    Ok(reply)
}

/// Fills the cache with loaded data, as far as there are buckets and `keep` allows. Returns the
/// data; `None` if they are void, or the object must be looked up again.
fn take_over(
    shared: &Shared,
    object: &mut Object,
    env: &Env<'_>,
    ticket: Ticket,
    (mut loaded, mut resources): (Loaded, OwnedResources),
    keep: Keep,
) -> Option<Loaded> {
    if object.take_stale(ticket) {
        return None;
    }
    // Only a caller that asked may learn that an object does not exist, because it may be created
    // at any time.
    if !keep.is_asked_for() && loaded.reported.is_some_and(|reported| reported.head.is_none()) {
        return None;
    }
    let counts = loaded.reported.is_none_or(|reported| object.apply_head(env, reported));
    // These bytes may have invalidated everything before them, but not themselves.
    loaded.voids_earlier = object.take_stale(ticket);
    if !counts {
        return None;
    }
    object.activity().ranges.ask_bytes(ticket);
    if keep.is_asked_for() {
        object.sample_misses(env, &loaded);
    }
    // If the cache has been detached since the request, the cache keeps nothing.
    let is_kept = !shared.control.attaching.is_direct();
    if object.head.known != Known::Unknown && is_kept {
        resources.with(Some(&loaded), |resources| object.fill(env, resources, keep));
    }
    Some(loaded)
}

/// Completes a load that is registered with its object: asks the store, fills the cache, calls
/// `then` with the data unless they are void, and releases the range.
pub(crate) async fn complete<R, F>(
    handle: &Handle,
    (guard, load): (RangeGuard, Load),
    call: Call,
    keep: Keep,
    then: F,
) -> Result<R>
where
    R: Send + Unpin + 'static,
    F: FnOnce(&mut Object, &Env<'_>, Option<Loaded>) -> R + Send + 'static,
{
    let fetched = fetch(handle, load, call, keep).await?;
    let shared = Arc::clone(&handle.shared);
    let done = handle.enter(move |object, env| {
        let loaded = take_over(&shared, object, env, guard.ticket(), fetched, keep);
        let result = then(object, env, loaded);
        guard.release(object);
        result
    });
    Ok(done.await)
}

/// Begins a load of a range that the caller holds.
pub(crate) async fn begin_load(handle: &Handle, guard: &RangeGuard, buckets: Buckets) -> Load {
    let (ticket, run_max) = (guard.ticket(), run_max(&handle.shared));
    handle.enter(move |object, env| object.begin_load(env, ticket, &buckets, run_max, None)).await
}

/// Loads the missing parts of a range for a change that holds it. Returns the bytes together with
/// those that were loaded `earlier` under the same guard; `None` if they are void, or the object
/// must be looked up again.
pub(crate) async fn load(
    handle: &Handle,
    guard: &RangeGuard,
    buckets: Buckets,
    call: Call,
    earlier: Loaded,
) -> Result<Option<Loaded>> {
    let load = begin_load(handle, guard, buckets).await;
    let fetched = fetch(handle, load, call, Keep::Nothing).await?;
    let (ticket, shared) = (guard.ticket(), Arc::clone(&handle.shared));
    let loaded = handle.enter(move |object, env| {
        let mut loaded = take_over(&shared, object, env, ticket, fetched, Keep::Nothing)?;
        if !loaded.voids_earlier {
            loaded.runs.extend(earlier.runs);
        }
        Some(loaded)
    });
    Ok(loaded.await)
}

/// Asks the store for an object's size, version and stamp once the gate admits the request; `None`
/// if the object does not exist. `call` is made when the request is sent.
pub(crate) async fn ask_info(
    shared: &Arc<Shared>,
    (id, namespace): (&ObjectId, u16),
    class: Class,
    call: impl FnOnce() -> Call,
) -> Result<Option<Info>> {
    claim_before_read(shared, &id.namespace).await?;
    let asking = begin(shared, namespace, (Lane::Change, class), 0).await?;
    let mut request = InfoRequest::new(id.clone());
    request.call = call();
    let answer = shared.store.below.info(request).await;
    asking.end(shared, &answer, 0);
    match answer {
        Err(Error::Missing) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Like [`ask_info`], for a caller that has a handle.
async fn ask_info_of(handle: &Handle, call: Call) -> Result<Option<Info>> {
    let object = (handle.id(), handle.namespace());
    ask_info(&handle.shared, object, Class::of(call.priority), || call).await
}

/// Makes sure that the head of an object is known: its size, version, stamp, and the epoch in
/// force.
pub(crate) async fn load_head(handle: &Handle, call: Call) -> Result<()> {
    let shared = &handle.shared;
    let guard = handle.lock_range(WHOLE, Kind::Load).await?;
    let ticket = guard.ticket();
    let asked = handle.enter(move |object, _| {
        let is_known = object.head.known != Known::Unknown && object.head.is_full;
        (!is_known).then(|| {
            object.activity().ranges.ask_bytes(ticket);
            object.head.store_steps
        })
    });
    let Some(steps) = asked.await else { return Ok(()) };
    let info = ask_info_of(handle, call).await?;
    let fences = shared.fences_callers();
    let claimed = match fences {
        true => ask_epoch(&shared.store, Scope::Object(handle.id().clone())).await?.0,
        false => 0,
    };
    let done = handle.enter(move |object, env| {
        let is_void = object.take_stale(ticket);
        guard.release(object);
        if is_void {
            return;
        }
        object.apply_head(env, ReportedHead { head: head_of(info.as_ref()), is_mixed: false, steps });
        let head = &mut object.head;
        if head.known == Known::Unknown {
            return;
        }
        head.is_full = true;
        head.claimed = head.claimed.max(claimed);
        let stamp = info.and_then(|info| info.stamp);
        if fences {
            head.stamp = stamp.or(head.stamp);
        } else {
            // The cache is the writer: stamps are its own, and callers do not see them.
            head.has_unlogged |= stamp.is_some_and(|stamp| stamp.sequence >= UNLOGGED_SEQUENCE);
        }
    });
    done.await;
    Ok(())
}

/// Returns an object's size and version as the store has them.
fn head_of(info: Option<&Info>) -> Option<(u64, u64)> {
    info.map(|info| (info.size_bytes, info.version.0))
}

// Requests to the store that write-through changes and copies share.

/// Returns the durability to request from the store. In write-back mode the cache keeps
/// acknowledged data until they are stored, but no copy of forwarded changes: these must be stored,
/// or a crash of the store would lose them.
pub(crate) fn forwarded_durability(mode: WriteMode, asked: Durability) -> Durability {
    if mode == WriteMode::Back { Durability::Stored } else { asked }
}

/// Returns the reply with another durability.
pub(crate) fn with_durability(mut reply: ChangeReply, durability: Durability) -> ChangeReply {
    reply.durability = durability;
    reply
}

/// Returns the condition as the store must check it: the version that callers see may differ from
/// the store's. The caller holds the object's whole range.
pub(crate) async fn store_condition(handle: &Handle, condition: Condition, call: Call) -> Result<Condition> {
    let Condition::Version(_) = condition else { return Ok(condition) };
    let head = find_head(handle, call).await?;
    check_condition(head.shown_version(), condition)?;
    let version = match head.store_version {
        None => ask_head(handle, call).await?.store_version,
        known => known,
    };
    Ok(version.map_or(Condition::Present, |version| Condition::Version(Version(version))))
}

/// Returns the object's head, and asks the store if it is unknown. The object may forget its head
/// at any time afterwards, for instance when a notice arrives that another client has changed it.
async fn find_head(handle: &Handle, call: Call) -> Result<Head> {
    let head = handle.enter(|object, _| object.head).await;
    match head.known {
        Known::Unknown => ask_head(handle, call).await,
        _ => Ok(head),
    }
}

/// Asks the store for the size and version, while the caller holds the object's whole range.
async fn ask_head(handle: &Handle, call: Call) -> Result<Head> {
    let found = head_of(ask_info_of(handle, call).await?.as_ref());
    let version = found.map(|(_, version)| version);
    let asked = handle.enter(move |object, env| {
        object.head.store_version = version;
        if object.head.known == Known::Unknown {
            object.set_head(found);
            object.head.version = version.map_or(0, |it| env.versions.shown_for(env.hash, it));
        }
        object.head
    });
    Ok(asked.await)
}

/// Returns the sizes of an object before and after a change, where `after` computes the new size
/// from the old one; asks the store if the size is unknown. The caller holds the object's whole
/// range.
pub(crate) async fn sizes(
    handle: &Handle,
    call: Call,
    after: impl FnOnce(Option<u64>) -> u64,
) -> Result<(u64, u64)> {
    let head = find_head(handle, call).await?;
    let before = (head.known == Known::Present).then_some(head.size);
    Ok((before.unwrap_or(0), after(before)))
}

// Read-ahead: the background loads the data that a progression is expected to read next.
//
// A read-ahead is a load like any other: whatever invalidates the response of a load invalidates
// it too, and a read of the same range waits for it. But a read-ahead does less than other
// loads: it never waits for a change or a bucket, loads only bytes that are neither cached nor in
// flight, and gives up without a retry at the first obstacle.

/// The maximum number of read-ahead requests in flight.
pub(crate) const FETCHES_MAX: usize = 16;
/// The timeout of a read-ahead; afterwards a read that waits for it asks the store itself.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Carries out a read-ahead request of the background.
pub(crate) async fn serve_read_ahead(shared: Arc<Shared>, request: Request) {
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
        let _coming = scopeguard::guard((), |()| shared.read_ahead.end(count));
        let within = from..from + count;
        let (own, run_max, wanted) = (handle.clone(), run_max(shared), *mark);
        let registering = handle.enter(move |object, env| {
            let (run, marked) = object.run_to_read_ahead(within, pattern, wanted, is_last)?;
            // The entry is granted, because no change of the range is in flight.
            let (guard, _) = RangeGuard::queue(own, object, run.clone(), Kind::Ahead).ok()?;
            let load = object.begin_load(env, guard.ticket(), &run, run_max, Some(pattern));
            Some(((guard, load), run.end, marked))
        });
        // Everything is cached or in flight, or a change of the range is in flight.
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
