//! The contract's objects, over conditional puts: reads, changes, listings, claims, and their
//! shared state. Only conditional puts decide; `format` defines keys and bodies, and `server` sends
//! requests.

pub(crate) mod change;
mod claims;
pub(crate) mod read;
pub(crate) mod swap;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use blocker::clock::Sleep;
use blocker::conditional::{Progress, ReportedClaims};
use blocker::event::EventHub;
use blocker::{Call, Clock, Error, ObjectId, Reply, Result};
use tokio::sync::Semaphore;

use crate::format::layout::Layout;
use crate::server::Remover;
use crate::server::limits::Credits;
use crate::server::requests::Requests;
use swap::{Heads, ObjectLocks};

/// State shared by the handle of a store and its calls.
pub(crate) struct Core {
    pub(crate) layout: Layout,
    pub(crate) requests: Arc<Requests>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) heads: Heads,
    pub(crate) locks: ObjectLocks,
    /// Conditional removals, over HTTP.
    pub(crate) remover: Option<Remover>,
    pub(crate) events: EventHub,
    pub(crate) reported: ReportedClaims,
    /// Credits for the payloads of operations.
    pub(crate) credits: Credits,
    /// Limits concurrent compactions.
    pub(crate) compactions: Semaphore,
    pub(crate) object_bytes_max: u64,
    /// The maximum time of a call; see [`bounded`].
    pub(crate) call_timeout: Duration,
}

/// The number of concurrent requests of a call that needs many requests.
pub(crate) const CONCURRENT: usize = 32;
/// The maximum number of attempts to prepare a call whose object is changed concurrently. Each
/// further attempt means that a change of another client was applied.
pub(crate) const TRIES: u32 = 200;

/// Runs a call until its caller's deadline, or the configured limit. `changed` is the object that
/// the call may change.
///
/// Each attempt has its own limits (`server/requests.rs`), but a call makes several requests and
/// retries each of them, and waits for other changes of the object and for credits. Therefore the
/// whole call ends after [`crate::S3Config::call_timeout`]. If a request is in progress at that
/// time, its current attempt runs to its end, but the result is ignored. If the request puts a
/// head, the outcome of the change is unknown, and the next access to the object resolves it
/// (`swap.rs`); otherwise nothing was changed, and a sweep removes a leftover blob.
///
/// The same holds for a call whose reply is dropped before its end.
///
/// A call whose work grows with the number of objects (a claim, a sweep) is limited per step: the
/// time restarts with each finished object.
pub(crate) fn bounded<T: 'static>(
    core: &Arc<Core>,
    call: &Call,
    progress: Progress,
    changed: Option<&ObjectId>,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Reply<T> {
    let deadline = call.deadline;
    if let Err(error) = call.check(&*core.clock) {
        return Reply::err(error);
    }
    let under_way = UnderWay { core: Arc::clone(core), progress, changed: changed.cloned() };
    Reply::pending(async move {
        let mut under_way = under_way;
        let core = Arc::clone(&under_way.core);
        let progress = under_way.progress.clone();
        let mut work = pin!(work);
        let mut deadline = deadline.map(|deadline| core.clock.sleep_until(deadline));
        let mut limit: Option<Sleep> = None;
        let mut steps = 0;
        std::future::poll_fn(|cx| {
            if let Poll::Ready(answer) = work.as_mut().poll(cx) {
                under_way.changed = None;
                return Poll::Ready(answer);
            }
            let is_late = deadline.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
            loop {
                if is_late {
                    break;
                }
                let timer = limit.get_or_insert_with(|| core.requests.timer(core.call_timeout));
                ready!(timer.as_mut().poll(cx));
                let done = progress.steps();
                if done == steps {
                    break;
                }
                (steps, limit) = (done, None);
            }
            Poll::Ready(Err(given_up(&core, is_late, progress.has_begun())))
        })
        .await
    })
}

/// A call without an answer. If it ends without one, and a put may still be applied to the object
/// that it changes, the object is marked.
struct UnderWay {
    core: Arc<Core>,
    progress: Progress,
    changed: Option<ObjectId>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(object) = self.changed.take().filter(|_| self.progress.has_begun()) {
            self.core.heads.unsettle(&object, None);
        }
    }
}

/// Returns the error of a call that ended without a response.
fn given_up(core: &Core, is_late: bool, has_begun: bool) -> Error {
    core.requests.stats.given_up.increment();
    if !has_begun && is_late {
        return Error::DeadlinePassed;
    }
    let why = if is_late {
        "the deadline passed before the server answered".to_owned()
    } else {
        let secs = core.call_timeout.as_secs();
        format!("the server has not completed the call within call_timeout_secs = {secs}")
    };
    if !has_begun {
        return Error::Retryable(format!("{why}; nothing was changed").into());
    }
    Error::OutcomeUnknown(format!("{why}; the change may have been made, or be made later").into())
}
