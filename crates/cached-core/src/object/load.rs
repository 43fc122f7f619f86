//! Asking the store: what an object is, and what is in a range of it. Once for all who wait.

use blocker::{Call, Error, InfoRequest, ReadReply, ReadRequest, Result, Scope};
use futures_util::future::join_all;

use super::gauges::add;
use super::handle::{Handle, OwnedMeans, RangeGuard};
use super::pool::BUCKET;
use super::ranges::{Buckets, Kind, WHOLE};
use super::state::{Env, Head, Known, Loaded, Object};
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
    // As the store is now: one that is reached over a network may come back with other limits.
    let request_bytes_max = shared.below.capabilities().request_bytes_max;
    let run_max = (request_bytes_max / BUCKET as u64 * BUCKET as u64).max(BUCKET as u64);
    let (runs, steps) = handle
        .enter(move |object, env| (object.missing_runs(env, &buckets, run_max), object.head.store_steps))
        .await;
    let asked = !runs.is_empty();
    let bytes: u64 = runs.iter().map(|(_, len)| len / BUCKET as u64).sum();
    let _loading = Loading::begin(&shared, bytes);
    let mut brought = Brought { loaded: Loaded::default(), head: None, steps, asked };
    let reads = runs.into_iter().map(|(start, len)| {
        let shared = Arc::clone(&shared);
        let mut request = ReadRequest::new(handle.id().clone(), start, len);
        request.call = call;
        async move {
            // One for each, until its answer is there: none is held while another is waited for.
            let _permit = Permits::acquire(SharedLoads(Arc::clone(&shared))).await?;
            Ok::<_, Error>((start, len, shared.below.read(request).await))
        }
    });
    for answer in join_all(reads).await {
        let (start, len, answer) = answer?;
        let ReadReply { data, size_bytes, version, .. } = match answer {
            Ok(reply) => reply,
            Err(Error::Missing) => return Ok(Brought { head: None, ..brought }),
            Err(error) => return Err(error),
        };
        brought.head = Some((size_bytes, version.0));
        brought.loaded.runs.push((start, len, data));
    }
    Ok(brought)
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
        let is_quiet = head.store_steps == brought.steps && head.store_changes == 0;
        match (head.known, brought.head) {
            // A change overlapped it: this may be from before.
            (Known::Unknown, _) if !is_quiet => (),
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
    // As many as came, not as were asked for: a read may reach far beyond the object's end.
    let came = brought.loaded.runs.iter().map(|(_, _, data)| data.len_bytes().div_ceil(BUCKET) as u32);
    let mut means = OwnedMeans::at_hand(&handle.shared, if keep { came.sum() } else { 0 });
    let ticket = guard.ticket();
    let loaded = handle.enter(move |object, env| {
        if object.activity_ref().is_some_and(|activity| activity.ranges.is_stale(ticket)) {
            return None;
        }
        object.absorb(env, &brought);
        if object.head.known != Known::Unknown {
            means.lend(Some(&brought.loaded), |means| object.install(env, means));
        }
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
