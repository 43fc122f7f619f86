//! Asking the store: what an object is, and what is in a range of it. Once for all who wait.

use blocker::{Call, Error, InfoRequest, ReadReply, ReadRequest, Result, Scope, Segments};
use futures_util::future::join_all;

use super::gauges::add;
use super::handle::{Handle, OwnedMeans, RangeGuard};
use super::pool::{BUCKET, Reserved};
use super::ranges::{Buckets, Kind, WHOLE};
use super::state::{Env, Known, Loaded, Object};
use super::wait::Permits;
use crate::sync::{Arc, Ordering};

/// What a load brought.
struct Brought {
    loaded: Loaded,
    told: Option<Told>,
}

/// What the store has told of an object as a whole.
#[derive(Clone, Copy)]
struct Told {
    /// Its size and version; `None`: there is no such object.
    head: Option<(u64, u64)>,
    /// Whether it has told of several versions, one for each range.
    is_mixed: bool,
    /// How far the store's changes had come when it was asked.
    steps: u32,
}

/// Asks the store for what is missing of `buckets`; the caller holds the range.
async fn ask(handle: &Handle, guard: &RangeGuard, buckets: Buckets, call: Call) -> Result<Brought> {
    let shared = Arc::clone(&handle.shared);
    // As the store is now: one that is reached over a network may come back with other limits.
    let request_bytes_max = shared.below.capabilities().request_bytes_max;
    let run_max = (request_bytes_max / BUCKET as u64 * BUCKET as u64).max(BUCKET as u64);
    let ticket = guard.ticket();
    let (runs, steps) = handle
        .enter(move |object, env| {
            object.activity().ranges.ask_bytes(ticket);
            (object.missing_runs(env, &buckets, run_max), object.head.store_steps)
        })
        .await;
    let bytes: u64 = runs.iter().map(|(_, len)| len / BUCKET as u64).sum();
    let _loading = Loading::begin(&shared, bytes);
    let mut brought = Brought { loaded: Loaded::default(), told: None };
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
        let (data, head) = match answer {
            Ok(ReadReply { data, size_bytes, version, .. }) => (data, Some((size_bytes, version.0))),
            // Nothing is there, so there is nothing in the range.
            Err(Error::Missing) => (Segments::new(), None),
            Err(error) => return Err(error),
        };
        let is_mixed = brought.told.is_some_and(|before| before.is_mixed || before.head != head);
        brought.told = Some(Told { head, is_mixed, steps });
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
    /// Takes note of what the store tells about the object as a whole; false if the bytes that came with it must be
    /// asked for once more.
    fn absorb(&mut self, env: &Env<'_>, told: Told) -> bool {
        let is_quiet = self.head.store_steps == told.steps && self.head.store_changes == 0;
        match (self.head.known, told.head) {
            _ if is_quiet && told.is_mixed => {
                // Somebody else has changed it while it was read: which bytes are older cannot be said.
                self.doubt(env, &mut Reserved::none(env.pool));
                return false;
            }
            (Known::Present, None) => return self.gone_below(env, told, is_quiet),
            // A change overlapped it: this may be from before.
            _ if !is_quiet => (),
            (Known::Unknown, found) => self.found_below(env, found),
            (Known::Present, Some((_, version))) => {
                // Another version than the one we knew, with no change of ours in between: somebody else
                // has changed it below. What we have of it is old.
                if self.head.store_version.is_some_and(|known| known != version) {
                    self.doubt(env, &mut Reserved::none(env.pool));
                    if self.head.known == Known::Unknown {
                        self.found_below(env, told.head);
                    } else {
                        self.head.store_version = Some(version);
                    }
                }
            }
            (Known::Absent, _) => (),
        }
        true
    }

    /// What the store says of an object of which nothing was known.
    fn found_below(&mut self, env: &Env<'_>, found: Option<(u64, u64)>) {
        self.set_head(found);
        self.head.is_full = false;
        if let Some((_, version)) = found {
            self.head.version = env.versions.shown_for(env.hash, version);
        }
    }

    /// The store has no object where we took it for one: somebody else has removed it. What is newer here than the
    /// store stays, and makes it anew. As [`Self::absorb`].
    fn gone_below(&mut self, env: &Env<'_>, told: Told, is_quiet: bool) -> bool {
        let stays = self.has_pending() || self.flushing.is_some();
        // Of our own changes one flush at most has begun since, and nothing has ended.
        let is_flushing = self.flushing.is_some() && self.head.store_changes == 1;
        let has_only_begun = is_flushing && self.head.store_steps.wrapping_sub(told.steps) <= 1;
        self.doubt(env, &mut Reserved::none(env.pool));
        if stays && (is_quiet || has_only_begun) {
            // Until the flush that makes it anew has ended.
            (self.head.store_size, self.head.store_exists) = (0, false);
        } else if is_quiet {
            self.found_below(env, None);
        } else {
            return false;
        }
        true
    }
}

/// Loads a range into the cache, as far as there are buckets and `keep` says so, and gives the bytes, with those that
/// came `earlier` under the same guard, as well; `None` if what came is void, or the object must be looked at again.
pub(crate) async fn load(
    handle: &Handle,
    guard: &RangeGuard,
    buckets: Buckets,
    call: Call,
    keep: bool,
    earlier: Loaded,
) -> Result<Option<Loaded>> {
    let Brought { mut loaded, told } = ask(handle, guard, buckets, call).await?;
    // As many as came, not as were asked for: a read may reach far beyond the object's end.
    let came = loaded.runs.iter().map(|(_, _, data)| data.len_bytes().div_ceil(BUCKET) as u32);
    let mut means = OwnedMeans::at_hand(&handle.shared, if keep { came.sum() } else { 0 });
    let ticket = guard.ticket();
    let loaded = handle.enter(move |object, env| {
        if object.take_stale(ticket) {
            return None;
        }
        let counts = told.is_none_or(|told| object.absorb(env, told));
        // What came just now may have voided everything before it, but not itself.
        let is_first = object.take_stale(ticket);
        if !counts {
            return None;
        }
        object.activity().ranges.ask_bytes(ticket);
        if object.head.known != Known::Unknown {
            means.lend(Some(&loaded), |means| object.install(env, means));
        }
        if !is_first {
            loaded.runs.extend(earlier.runs);
        }
        Some(loaded)
    });
    Ok(loaded.await)
}

/// Makes sure that all is known of an object as a whole: its size, version, stamp, and the epoch in force.
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
    let info = match shared.below.info(request).await {
        Ok(info) => Some(info),
        Err(Error::Missing) => None,
        Err(error) => return Err(error),
    };
    let claimed = match shared.fences_callers() {
        true => shared.ask_epoch(Scope::Object(handle.id().clone())).await?.0,
        false => 0,
    };
    let fences = shared.fences_callers();
    handle
        .enter(move |object, env| {
            if object.take_stale(ticket) {
                return;
            }
            let head = info.as_ref().map(|info| (info.size_bytes, info.version.0));
            object.absorb(env, Told { head, is_mixed: false, steps });
            let head = &mut object.head;
            if head.known == Known::Unknown {
                return;
            }
            head.is_full = true;
            head.claimed = head.claimed.max(claimed);
            // Where the cache is the writer, stamps are its own, and no caller's business.
            let stamp = info.as_ref().and_then(|info| info.stamp).filter(|_| fences);
            head.stamp = stamp.or(head.stamp);
        })
        .await;
    Ok(())
}
