//! Asking the store: what an object is, and what is in a range of it. Once for all who wait.

use std::future::{Future, poll_fn};
use std::task::Poll;

use blocker::{Call, Error, InfoRequest, ReadReply, ReadRequest, ReplyFuture, Result, Scope};

use super::gauges::add;
use super::handle::{Handle, OwnedMeans, RangeGuard};
use super::object::{Env, Head, Known, Loaded, Object};
use super::pool::BUCKET;
use super::ranges::{Buckets, Kind, WHOLE};
use super::wait::Permits;
use crate::sync::{Arc, Ordering};

/// What a load brought.
pub(crate) struct Brought {
    pub(crate) loaded: Loaded,
    /// The object's size and version in the store; `None`: there is no such object.
    head: Option<(u64, u64)>,
    /// How far the store's changes had come when it was asked.
    steps: u32,
    /// Whether anything was asked at all.
    asked: bool,
}

/// Asks the store for what is missing of `buckets`; the caller holds the range.
pub(crate) async fn ask(handle: &Handle, buckets: Buckets, call: Call) -> Result<Brought> {
    let shared = Arc::clone(&handle.shared);
    let run_max = (shared.can.request_bytes_max / BUCKET as u64 * BUCKET as u64).max(BUCKET as u64);
    let (runs, steps) = handle
        .enter(move |object, env| (object.missing_runs(env, &buckets, run_max), object.head.store_steps))
        .await;
    let asked = !runs.is_empty();
    let bytes: u64 = runs.iter().map(|(_, len)| len / BUCKET as u64).sum();
    let _loading = Loading::begin(&shared, bytes);
    let mut brought = Brought { loaded: Loaded::default(), head: None, steps, asked };
    let mut waiting = Vec::with_capacity(runs.len());
    for (start, len) in runs {
        let permit = Permits::acquire(SharedLoads(Arc::clone(&shared))).await?;
        let mut request = ReadRequest::new(handle.id().clone(), start, len);
        request.call = call;
        waiting.push((start, len, permit, shared.below.read(request).into()));
    }
    for (start, len, _permit, state) in join(waiting).await {
        let ReadReply { data, size_bytes, version, .. } = match state {
            Ok(reply) => reply,
            Err(Error::Missing) => return Ok(Brought { head: None, ..brought }),
            Err(error) => return Err(error),
        };
        brought.head = Some((size_bytes, version.0));
        brought.loaded.runs.push((start, len, data));
    }
    Ok(brought)
}

enum Waiting {
    Asked(ReplyFuture<ReadReply>),
    Answered(Result<ReadReply>),
}

impl From<blocker::Reply<ReadReply>> for Waiting {
    fn from(reply: blocker::Reply<ReadReply>) -> Self {
        use std::future::IntoFuture;
        Self::Asked(reply.into_future())
    }
}

/// Waits for all of them at once.
async fn join<P>(mut waiting: Vec<(u64, u64, P, Waiting)>) -> Vec<(u64, u64, P, Result<ReadReply>)> {
    poll_fn(|cx| {
        let mut all_done = true;
        for (_, _, _, state) in &mut waiting {
            if let Waiting::Asked(reply) = state {
                match std::pin::Pin::new(reply).poll(cx) {
                    Poll::Ready(answer) => *state = Waiting::Answered(answer),
                    Poll::Pending => all_done = false,
                }
            }
        }
        if all_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let answers = waiting.into_iter().map(|(start, len, permit, state)| match state {
        Waiting::Answered(answer) => (start, len, permit, answer),
        Waiting::Asked(_) => unreachable!("all are answered"),
    });
    answers.collect()
}

/// The permits for loads, reached through the cache.
#[derive(Clone)]
pub(crate) struct SharedLoads(pub(crate) Arc<super::shared::Shared>);

impl std::ops::Deref for SharedLoads {
    type Target = Permits;
    fn deref(&self) -> &Permits {
        &self.0.load_permits
    }
}

/// Counts what is being loaded.
struct Loading(Arc<super::shared::Shared>, u64);

impl Loading {
    fn begin(shared: &Arc<super::shared::Shared>, buckets: u64) -> Self {
        add(&shared.gauges.loading, buckets);
        Self(Arc::clone(shared), buckets)
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.0.gauges.loading.fetch_sub(self.1, Ordering::Relaxed);
    }
}

impl Object {
    /// Takes note of what a load tells about the object as a whole.
    pub(crate) fn absorb(&mut self, env: &Env<'_>, brought: &Brought) {
        if !brought.asked {
            return;
        }
        let head = &mut self.head;
        match (head.known, brought.head) {
            (Known::Unknown, Some((size, version))) => {
                *head = Head { known: Known::Present, is_full: false, ..*head };
                (head.size, head.version) = (size, env.versions.shown_for(env.hash, version));
                (head.store_size, head.store_exists, head.store_version) = (size, true, Some(version));
            }
            (Known::Unknown, None) => {
                head.known = Known::Absent;
                (head.store_size, head.store_exists, head.store_version) = (0, false, None);
            }
            (Known::Present, Some((size, version))) => {
                // Another version than the one we knew, with no change of ours in between: somebody else
                // has changed it below. What we have of it is old.
                let is_ours = head.store_steps != brought.steps || head.store_changes > 0;
                if !is_ours && head.store_version.is_some_and(|known| known != version) && !self.has_pending()
                {
                    self.drop_clean(env);
                    let head = &mut self.head;
                    (head.size, head.version, head.is_full) = (size, version, false);
                    (head.store_size, head.store_exists, head.store_version) = (size, true, Some(version));
                }
            }
            _ => (),
        }
    }
}

/// Loads a range into the cache and gives the bytes as well; `None` if what came is out of date already, or
/// the object must be looked at again.
pub(crate) async fn load(
    handle: &Handle,
    guard: &RangeGuard,
    buckets: Buckets,
    call: Call,
    keep: bool,
) -> Result<Option<Loaded>> {
    let brought = ask(handle, buckets.clone(), call).await?;
    let wanted = if keep { buckets.end - buckets.start } else { 0 };
    let mut means =
        OwnedMeans::at_hand(&handle.shared, if brought.loaded.runs.is_empty() { 0 } else { wanted });
    let ticket = guard.ticket();
    let loaded = handle.enter(move |object, env| {
        if object.activity_ref().is_some_and(|activity| activity.ranges.is_stale(ticket)) {
            return None;
        }
        object.absorb(env, &brought);
        means.lend(Some(&brought.loaded), |means| object.install(env, means));
        Some(brought.loaded)
    });
    Ok(loaded.await)
}

/// Makes sure that all is known of an object as a whole: its size, version, stamp, and the epoch in force.
pub(crate) async fn load_head(handle: &Handle, call: Call) -> Result<()> {
    let shared = &handle.shared;
    let needs = |object: &Object| object.head.known == Known::Unknown || !object.head.is_full;
    let guard = handle.lock_range(WHOLE, Kind::Load).await?;
    if !handle.enter(move |object, _| needs(object)).await {
        return Ok(());
    }
    let mut request = InfoRequest::new(handle.id().clone());
    request.call = call;
    let info = match shared.below.info(request).await {
        Ok(info) => Some(info),
        Err(Error::Missing) => None,
        Err(error) => return Err(error),
    };
    let claimed = match shared.fences_callers() {
        true => shared.ask_epoch(Scope::Object(handle.id().clone())).await?.0,
        false => 0,
    };
    let (ticket, fences) = (guard.ticket(), shared.fences_callers());
    handle
        .enter(move |object, env| {
            if object.activity_ref().is_some_and(|activity| activity.ranges.is_stale(ticket)) {
                return;
            }
            let was_known = object.head.known != Known::Unknown;
            let head = &mut object.head;
            head.is_full = true;
            head.claimed = head.claimed.max(claimed);
            // Where the cache is the writer, stamps are its own, and no caller's business.
            let stamp = info.as_ref().and_then(|info| info.stamp).filter(|_| fences);
            head.stamp = stamp.or(head.stamp);
            if was_known {
                return;
            }
            head.known = if info.is_some() { Known::Present } else { Known::Absent };
            if let Some(info) = info {
                (head.size, head.version) =
                    (info.size_bytes, env.versions.shown_for(env.hash, info.version.0));
                head.store_version = Some(info.version.0);
            }
            head.store_size = head.size;
            head.store_exists = head.known == Known::Present;
        })
        .await;
    Ok(())
}
