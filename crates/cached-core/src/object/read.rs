//! Reading: at once from what is there, else after the store has been asked.

use blocker::admission::check_condition;
use blocker::{Error, Hints, ReadReply, ReadRequest, Result, Version};

use super::gauges::add;
use super::handle::Handle;
use super::load::{load, load_head};
use super::ranges::{Buckets, Kind, Ticket};
use super::shared::Shared;
use super::state::{Env, Known, Loaded, Object, buckets_of};
use crate::sync::Arc;

/// The most loads for one request: what comes may be void each time, if others change the object that fast.
pub(crate) const LOADS_MAX: usize = 64;

/// What the first look at an object gives.
enum Look {
    Answer(Result<ReadReply>),
    /// The store must be asked what the object is.
    Head,
    Load(Buckets),
    /// Another load of it is under way.
    Follow(Ticket),
}

impl Object {
    /// The answer, if everything it needs is here.
    #[inline]
    pub(crate) fn read_at_once(
        &self,
        env: &Env<'_>,
        request: &ReadRequest,
        loaded: Option<&Loaded>,
    ) -> Option<Result<ReadReply>> {
        match self.head.known {
            Known::Unknown => return None,
            Known::Absent => return Some(Err(Error::Missing)),
            Known::Present => (),
        }
        if let Err(error) = check_condition(Some(Version(self.head.version)), request.condition) {
            return Some(Err(error));
        }
        // Not after a load: what has just come for this very read would count as read once more.
        if loaded.is_none()
            && let Some(data) = self.read_within(env, request.offset, request.len_bytes)
        {
            return Some(Ok(self.reply(data)));
        }
        let data = self.read(env, request.offset, request.len_bytes, loaded).ok()?;
        Some(Ok(self.reply(data)))
    }

    fn look(&self, env: &Env<'_>, request: &ReadRequest, object_bytes_max: u64) -> Look {
        if let Some(answer) = self.read_at_once(env, request, None) {
            return Look::Answer(answer);
        }
        let wanted = if self.head.known == Known::Unknown {
            let within = object_bytes_max.saturating_sub(request.offset).min(request.len_bytes);
            // While others change it, only who waits for them learns where it ends.
            if within == 0 || self.head.store_changes > 0 {
                return Look::Head;
            }
            let wanted = buckets_of(request.offset, within);
            // All of it is here, but not where the object ends: a load would ask the store for nothing.
            if self.missing_runs(env, &wanted, u64::MAX).is_empty() {
                return Look::Head;
            }
            wanted
        } else {
            match self.read(env, request.offset, request.len_bytes, None) {
                Err(need) => need.load.unwrap_or_default(),
                Ok(_) => return Look::Head,
            }
        };
        let other = self.activity_ref().and_then(|activity| activity.ranges.load_of(&wanted));
        other.map_or(Look::Load(wanted), Look::Follow)
    }
}

/// A read that could not be answered at once.
pub(crate) async fn read(shared: Arc<Shared>, request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let deadline = request.call.deadline;
    let work = read_from_store(&shared, request, hash);
    shared.until(deadline, || Error::DeadlinePassed, work).await
}

async fn read_from_store(shared: &Arc<Shared>, request: ReadRequest, hash: u64) -> Result<ReadReply> {
    let handle = Handle::acquire(shared, &request.object, hash).await?;
    let keep = !request.call.hints.has(Hints::NO_CACHE);
    let object_bytes_max = shared.config.object_bytes_max;
    let request = Arc::new(request);
    let mut is_counted = false;
    for _ in 0..LOADS_MAX {
        let asked = Arc::clone(&request);
        let buckets = match handle.enter(move |object, env| object.look(env, &asked, object_bytes_max)).await
        {
            Look::Answer(answer) => {
                if !is_counted {
                    shared.gauges.count_hit(hash);
                }
                return answer;
            }
            Look::Head => {
                load_head(&handle, request.call).await?;
                continue;
            }
            Look::Follow(ticket) => {
                handle.follow(ticket).await;
                continue;
            }
            // What is here is not looked for, unless it was evicted while the rest came: then it is held as well.
            Look::Load(buckets) if !is_counted => buckets,
            Look::Load(_) => {
                let within = object_bytes_max.saturating_sub(request.offset).min(request.len_bytes);
                buckets_of(request.offset, within)
            }
        };
        if !std::mem::replace(&mut is_counted, true) {
            add(&shared.gauges.misses, 1);
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

pub(crate) fn changes_too_fast() -> Error {
    Error::Retryable("the object changes faster than it can be read".into())
}
