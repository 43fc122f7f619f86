//! Asking the store what an object is, and what is in a range of it: once for all tasks that wait for it.

use blocker::admission::check_condition;
use blocker::{
    Call, ChangeReply, Condition, Durability, Error, Info, InfoRequest, ReadReply, ReadRequest, Result,
    Scope, Segments, Version, WriteMode,
};
use futures_util::future::join_all;

use crate::object::memory::geometry::{Buckets, WHOLE};
use crate::object::memory::pool::BUCKET;
use crate::object::shared::Shared;
use crate::object::shared::calls::begin;
use crate::object::shared::claim::ask_epoch;
use crate::object::shared::handle::{Handle, RangeGuard};
use crate::object::shared::resources::OwnedResources;
use crate::object::state::ranges::Kind;
use crate::object::state::{Keep, Known, Loaded, Object, ReportedHead};
use crate::object::store::epochs::UNLOGGED_SEQUENCE;
use crate::object::store::{Class, Lane};
use crate::sync::{Arc, Ordering};

/// What the store has given for a range.
struct Fetched {
    loaded: Loaded,
    reported: Option<ReportedHead>,
    /// The most buckets of it that will be kept.
    kept_max: u32,
}

/// Asks the store for what is missing of `buckets`, or for all of them if no caller waits for them; the caller
/// holds the range.
async fn ask(
    handle: &Handle,
    guard: &RangeGuard,
    buckets: Buckets,
    call: Call,
    keep: Keep,
) -> Result<Fetched> {
    let is_asked_for = keep.is_asked_for();
    let shared = Arc::clone(&handle.shared);
    // The store's present limits: one that is reached over a network may come back with others.
    let request_bytes_max = shared.below.capabilities().request_bytes_max;
    let run_max = (request_bytes_max / BUCKET as u64 * BUCKET as u64).max(BUCKET as u64);
    let ticket = guard.ticket();
    let (runs, kept_max, steps) = handle
        .enter(move |object, env| {
            object.activity().ranges.ask_bytes(ticket);
            let steps = object.head.store_steps;
            match keep {
                Keep::Ahead { pattern, .. } => {
                    (cut(&buckets, run_max), object.count_ahead(&buckets, pattern), steps)
                }
                _ => (object.missing_runs(env, &buckets, run_max), u32::MAX, steps),
            }
        })
        .await;
    let bytes: u64 = runs.iter().map(|(_, len)| len / BUCKET as u64).sum();
    let _loading = Loading::begin(&shared, bytes);
    let began = shared.clock.now();
    let mut fetched = Fetched { loaded: Loaded::default(), reported: None, kept_max };
    let namespace = shared.index.namespace_of(handle.at());
    let class = if is_asked_for { Class::of(call.priority) } else { Class::Idle };
    let reads = runs.into_iter().map(|(start, len)| {
        let shared = Arc::clone(&shared);
        let mut request = ReadRequest::new(handle.id().clone(), start, len);
        request.call = call;
        async move {
            let asking = begin(&shared, namespace, (Lane::Load, class), len).await?;
            let began = shared.clock.now();
            let answer = shared.below.read(request).await;
            asking.end(&shared, &answer, answer.as_ref().map_or(0, |reply| reply.data.len_bytes() as u64));
            if is_asked_for && answer.is_ok() {
                shared.read_ahead.note_answer(shared.clock.now().since(began));
            }
            Ok::<_, Error>((start, len, answer))
        }
    });
    for answer in join_all(reads).await {
        let (start, len, answer) = answer?;
        let (data, head) = match answer {
            Ok(ReadReply { data, size_bytes, version, .. }) => (data, Some((size_bytes, version.0))),
            // Nothing is there, so there is nothing in the range.
            Err(Error::Missing) => (Segments::new(), None),
            Err(error) => return Err(error),
        };
        let is_mixed = fetched.reported.is_some_and(|before| before.is_mixed || before.head != head);
        fetched.reported = Some(ReportedHead { head, is_mixed, steps });
        fetched.loaded.runs.push((start, len, data));
    }
    let nanos = u64::try_from(shared.clock.now().since(began).as_nanos()).unwrap_or(u64::MAX);
    shared.shares.loaded(&shared.queues, namespace, bytes, nanos);
    Ok(fetched)
}

/// Returns a range in parts of at most `run_max` bytes, as byte ranges.
fn cut(buckets: &Buckets, run_max: u64) -> Vec<(u64, u64)> {
    let (start, end) = (u64::from(buckets.start) * BUCKET as u64, u64::from(buckets.end) * BUCKET as u64);
    (start..end).step_by(run_max as usize).map(|at| (at, run_max.min(end - at))).collect()
}

/// Counts what is being loaded.
struct Loading(Arc<Shared>, u64);

impl Loading {
    fn begin(shared: &Arc<Shared>, buckets: u64) -> Self {
        shared.metrics.loading.fetch_add(buckets, Ordering::Relaxed);
        Self(Arc::clone(shared), buckets)
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.metrics.loading.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Loads a range into the cache, as far as there are buckets and `keep` asks for, and returns the bytes, with
/// those that came `earlier` under the same guard; `None` if they are void, or the object must be looked at
/// again.
pub(crate) async fn load(
    handle: &Handle,
    guard: &RangeGuard,
    buckets: Buckets,
    call: Call,
    keep: Keep,
    earlier: Loaded,
) -> Result<Option<Loaded>> {
    let Fetched { mut loaded, reported, kept_max } = ask(handle, guard, buckets, call, keep).await?;
    // As many as came, not as were asked for: a read may reach far beyond the object's end.
    let came = loaded.runs.iter().map(|(_, _, data)| data.len_bytes().div_ceil(BUCKET) as u32);
    let mut resources = OwnedResources::at_hand(&handle.shared, keep.count_max(came.sum()).min(kept_max));
    let ticket = guard.ticket();
    let shared = Arc::clone(&handle.shared);
    let loaded = handle.enter(move |object, env| {
        if object.take_stale(ticket) {
            return None;
        }
        // That an object is not there may be known only to a caller that has asked: it may come.
        if !keep.is_asked_for() && reported.is_some_and(|reported| reported.head.is_none()) {
            return None;
        }
        let counts = reported.is_none_or(|reported| object.apply_head(env, reported));
        // These bytes may have made void everything before them, but not themselves.
        let is_first = object.take_stale(ticket);
        if !counts {
            return None;
        }
        object.activity().ranges.ask_bytes(ticket);
        if keep.is_asked_for() {
            object.sample_misses(env, &loaded);
        }
        // Asked for before the cache was detached: it keeps nothing any more.
        let is_kept = !shared.attaching.is_direct();
        if object.head.known != Known::Unknown && is_kept {
            resources.with(Some(&loaded), |resources| object.fill(env, resources, keep));
        }
        if !is_first {
            loaded.runs.extend(earlier.runs);
        }
        Some(loaded)
    });
    Ok(loaded.await)
}

/// Asks the store what an object is as a whole.
pub(crate) async fn ask_info(handle: &Handle, request: InfoRequest) -> Result<Info> {
    let shared = &handle.shared;
    let namespace = shared.index.namespace_of(handle.at());
    let asking = begin(shared, namespace, (Lane::Change, Class::of(request.call.priority)), 0).await?;
    let answer = shared.below.info(request).await;
    asking.end(shared, &answer, 0);
    answer
}

/// Makes sure that everything is known of an object as a whole: its size, version, stamp, and the epoch in
/// force.
pub(crate) async fn load_head(handle: &Handle, call: Call) -> Result<()> {
    let shared = &handle.shared;
    let needs = |object: &Object| object.head.known == Known::Unknown || !object.head.is_full;
    let guard = handle.lock_range(WHOLE, Kind::Load).await?;
    let ticket = guard.ticket();
    let asked = handle.enter(move |object, _| {
        needs(object).then(|| {
            object.activity().ranges.ask_bytes(ticket);
            object.head.store_steps
        })
    });
    let Some(steps) = asked.await else { return Ok(()) };
    let mut request = InfoRequest::new(handle.id().clone());
    request.call = call;
    let info = match ask_info(handle, request).await {
        Ok(info) => Some(info),
        Err(Error::Missing) => None,
        Err(error) => return Err(error),
    };
    let claimed = match shared.fences_callers() {
        true => ask_epoch(shared, Scope::Object(handle.id().clone())).await?.0,
        false => 0,
    };
    let fences = shared.fences_callers();
    handle
        .enter(move |object, env| {
            if object.take_stale(ticket) {
                return;
            }
            let head = info.as_ref().map(|info| (info.size_bytes, info.version.0));
            object.apply_head(env, ReportedHead { head, is_mixed: false, steps });
            let head = &mut object.head;
            if head.known == Known::Unknown {
                return;
            }
            head.is_full = true;
            head.claimed = head.claimed.max(claimed);
            // Where the cache is the writer, stamps are its own, and are not shown to callers.
            let stamp = info.as_ref().and_then(|info| info.stamp).filter(|_| fences);
            head.stamp = stamp.or(head.stamp);
            let own = info.as_ref().and_then(|info| info.stamp).filter(|_| !fences);
            head.has_unlogged |= own.is_some_and(|stamp| stamp.sequence >= UNLOGGED_SEQUENCE);
        })
        .await;
    Ok(())
}

// What write-through changes and copies have in common when they ask the store.

/// The durability to ask of the store. In write-back mode the cache keeps what it has acknowledged until it
/// is stored, but no copy of what it forwards: so that must be stored, or a crash of the store would lose it.
pub(crate) fn forwarded_durability(mode: WriteMode, asked: Durability) -> Durability {
    if mode == WriteMode::Back { Durability::Stored } else { asked }
}

/// The reply with another durability.
pub(crate) fn with_durability(mut reply: ChangeReply, durability: Durability) -> ChangeReply {
    reply.durability = durability;
    reply
}

/// What was known of an object as a whole at one moment. What the object has of it may be forgotten any time after, as
/// upon a notice that another client has changed it.
#[derive(Clone, Copy)]
struct FoundHead {
    /// Size, and version as callers see it; `None`: there is no such object.
    shown: Option<(u64, Version)>,
    /// The version that the store has for it, if known.
    store_version: Option<u64>,
}

impl FoundHead {
    /// Returns what an object knows of itself, unless it must ask.
    fn of(object: &Object) -> Option<Self> {
        let head = &object.head;
        let shown = match head.known {
            Known::Unknown => return None,
            Known::Absent => None,
            Known::Present => Some((head.size, Version(head.version))),
        };
        Some(Self { shown, store_version: head.store_version })
    }
}

/// Returns the condition as the store must check it: what callers see as one version can be another in the
/// store. The caller holds the object's whole range.
pub(crate) async fn store_condition(handle: &Handle, condition: Condition, call: Call) -> Result<Condition> {
    let Condition::Version(_) = condition else { return Ok(condition) };
    let found = find_head(handle, call).await?;
    check_condition(found.shown.map(|(_, version)| version), condition)?;
    let version = match found.store_version {
        None => ask_head(handle, call).await?.store_version,
        known => known,
    };
    Ok(version.map_or(Condition::Present, |version| Condition::Version(Version(version))))
}

/// Returns what the object knows of itself; asks the store if it knows nothing.
async fn find_head(handle: &Handle, call: Call) -> Result<FoundHead> {
    match handle.enter(|object, _| FoundHead::of(object)).await {
        Some(found) => Ok(found),
        None => ask_head(handle, call).await,
    }
}

/// Asks the store for size and version while the caller holds the object's whole range.
async fn ask_head(handle: &Handle, call: Call) -> Result<FoundHead> {
    let mut request = InfoRequest::new(handle.id().clone());
    request.call = call;
    let info = match ask_info(handle, request).await {
        Ok(info) => Some(info),
        Err(Error::Missing) => None,
        Err(error) => return Err(error),
    };
    let version = info.as_ref().map(|info| info.version.0);
    let found = handle.enter(move |object, env| {
        object.head.store_version = version;
        if object.head.known == Known::Unknown {
            object.set_head(info.as_ref().map(|info| (info.size_bytes, info.version.0)));
            object.head.version = version.map_or(0, |it| env.versions.shown_for(env.hash, it));
        }
        let shown =
            (object.head.known == Known::Present).then_some((object.head.size, Version(object.head.version)));
        FoundHead { shown, store_version: version }
    });
    Ok(found.await)
}

/// Returns the sizes of an object before and after a change that gives it the size `after` of the one before;
/// asks the store for what is not known. The caller holds the object's whole range.
pub(crate) async fn sizes(
    handle: &Handle,
    call: Call,
    after: impl FnOnce(Option<u64>) -> u64,
) -> Result<(u64, u64)> {
    let before = find_head(handle, call).await?.shown.map(|(size, _)| size);
    Ok((before.unwrap_or(0), after(before)))
}
