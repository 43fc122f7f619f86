//! Deadlines of requests, the errors that callers get when they pass, and tickets for changes that
//! are to be stored.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use blocker::{Call, Clock, Error, Reason, Result, Timestamp};

use crate::object::lock_ranks;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};

/// Returns the result of `work`, or `late` once `deadline` has passed.
pub(crate) fn until<T>(
    clock: &dyn Clock,
    deadline: Option<Timestamp>,
    late: impl FnOnce() -> Error,
    work: impl Future<Output = Result<T>>,
) -> impl Future<Output = Result<T>> {
    until_given_up(clock, deadline, || true, late, work)
}

/// Does the same as [`until`], but returns `late` only if `give_up`, called at the deadline or
/// later, returns true: then the work can be dropped without a trace. While `give_up` returns
/// false, the result of the work is imminent.
pub(crate) async fn until_given_up<T>(
    clock: &dyn Clock,
    deadline: Option<Timestamp>,
    give_up: impl Fn() -> bool,
    late: impl FnOnce() -> Error,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut sleep = deadline.map(|deadline| clock.sleep_until(deadline));
    let mut is_late = false;
    let mut work = std::pin::pin!(work);
    let answer = poll_fn(|cx| {
        if let Poll::Ready(answer) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        let Some(sleep) = &mut sleep else { return Poll::Pending };
        if !is_late {
            std::task::ready!(sleep.as_mut().poll(cx));
            is_late = true;
        }
        if give_up() { Poll::Ready(None) } else { Poll::Pending }
    });
    answer.await.unwrap_or_else(|| Err(late()))
}

/// Returns the result of a change that the store makes. Once the deadline has passed, the caller
/// gets `DeadlinePassed` if the store has not been asked for the change, and `OutcomeUnknown` if it
/// has.
pub(crate) async fn until_forwarded<T, F: Future<Output = Result<T>>>(
    clock: &dyn Clock,
    call: Call,
    work: impl FnOnce(StoreAsked) -> F,
) -> Result<T> {
    let asked = StoreAsked::default();
    let own = asked.clone();
    let late = move || match own.0.load(Ordering::Acquire) {
        false => Error::DeadlinePassed,
        true => {
            Error::OutcomeUnknown("the deadline passed while the change was in flight to the store".into())
        }
    };
    until(clock, call.deadline, late, work(asked)).await
}

/// Whether the store has been asked for a change.
#[derive(Clone, Default)]
pub(crate) struct StoreAsked(Arc<AtomicBool>);

impl StoreAsked {
    /// Records that the store is about to be asked.
    ///
    /// # Errors
    /// `DeadlinePassed`: in this case the store must not be asked.
    pub(crate) fn begin(&self, clock: &dyn Clock, call: Call) -> Result<()> {
        if is_late(clock, call) {
            return Err(Error::DeadlinePassed);
        }
        self.0.store(true, Ordering::Release);
        Ok(())
    }
}

/// Returns whether the deadline of a call has passed.
#[inline]
pub(crate) fn is_late(clock: &dyn Clock, call: Call) -> bool {
    call.deadline.is_some_and(|deadline| clock.now() >= deadline)
}

/// Counts the objects that have yet to be stored.
pub(crate) struct FlushTicket {
    state: Mutex<Waiting>,
}

impl Default for FlushTicket {
    fn default() -> Self {
        Self { state: Mutex::ranked(Waiting::default(), &lock_ranks::TICKET) }
    }
}

#[derive(Default)]
struct Waiting {
    objects: usize,
    failed: Option<Error>,
    waker: Option<Waker>,
    /// The reason why the last attempt to store failed, for a caller whose deadline passes.
    last: Option<Reason>,
}

impl FlushTicket {
    /// Adds an object to be stored.
    pub(crate) fn add(&self) {
        lock(&self.state).objects += 1;
    }

    /// Records that an object is stored, or never will be.
    pub(crate) fn complete(&self, result: Result<()>) {
        let waker = {
            let mut state = lock(&self.state);
            state.objects -= 1;
            match (&state.failed, result) {
                (_, Ok(())) => (),
                // Data that are not stored yet matter more than data recorded as lost.
                (None | Some(Error::WritesLost(_)), Err(error)) => state.failed = Some(error),
                (Some(_), Err(_)) => (),
            }
            if state.objects == 0 { state.waker.take() } else { None }
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Records that an attempt failed and will be repeated.
    pub(crate) fn note(&self, why: &Error) {
        lock(&self.state).last = Some(why.to_string().into());
    }

    /// Returns the reason why the objects have not been stored yet.
    pub(crate) fn why(&self) -> Reason {
        lock(&self.state).last.clone().unwrap_or_else(|| "the deadline passed".into())
    }
}

/// Completes when all objects of the ticket are stored. Cancel safe.
pub(crate) struct Stored(pub(crate) Arc<FlushTicket>);

impl Future for Stored {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut state = lock(&self.0.state);
        if state.objects > 0 {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(state.failed.take().map_or(Ok(()), Err))
    }
}
