//! Deadlines of requests: how long a caller waits, and what it learns when the deadline passes.

use std::future::{Future, poll_fn};
use std::task::Poll;

use blocker::{Call, Clock, Error, Result, Timestamp};

use crate::sync::{Arc, AtomicBool, Ordering};

/// Returns the result of `work`, or `late` once `deadline` has passed.
pub(crate) async fn until<T>(
    clock: &dyn Clock,
    deadline: Option<Timestamp>,
    late: impl FnOnce() -> Error,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    until_given_up(clock, deadline, || true, late, work).await
}

/// As [`until`], but returns `late` only if `give_up`, called at the deadline or later, returns true: the
/// work can then be dropped without a trace. While it returns false the result of the work is about to come.
pub(crate) async fn until_given_up<T>(
    clock: &dyn Clock,
    deadline: Option<Timestamp>,
    give_up: impl Fn() -> bool,
    late: impl FnOnce() -> Error,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(deadline) = deadline else { return work.await };
    let mut sleep = clock.sleep_until(deadline);
    let mut is_late = false;
    let mut work = std::pin::pin!(work);
    let answer = poll_fn(|cx| {
        if let Poll::Ready(answer) = work.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if !is_late {
            std::task::ready!(sleep.as_mut().poll(cx));
            is_late = true;
        }
        if give_up() { Poll::Ready(None) } else { Poll::Pending }
    });
    answer.await.unwrap_or_else(|| Err(late()))
}

/// Returns the result of a change that the store makes. Once the deadline has passed the caller learns
/// `DeadlinePassed` if the store has not been asked for the change, and `OutcomeUnknown` if it has.
pub(crate) async fn until_forwarded<T, F: Future<Output = Result<T>>>(
    clock: &dyn Clock,
    call: Call,
    work: impl FnOnce(StoreAsked) -> F,
) -> Result<T> {
    let asked = StoreAsked::default();
    let own = asked.clone();
    let late = move || match own.0.load(Ordering::Acquire) {
        false => Error::DeadlinePassed,
        true => Error::OutcomeUnknown("the deadline passed while the store made the change".into()),
    };
    until(clock, call.deadline, late, work(asked)).await
}

/// Whether the store has been asked for a change.
#[derive(Clone)]
pub(crate) struct StoreAsked(Arc<AtomicBool>);

impl Default for StoreAsked {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(false)))
    }
}

impl StoreAsked {
    /// Notes that the store is about to be asked.
    ///
    /// # Errors
    /// `DeadlinePassed`: then the store must not be asked.
    pub(crate) fn begin(&self, clock: &dyn Clock, call: Call) -> Result<()> {
        if is_late(clock, call) {
            return Err(Error::DeadlinePassed);
        }
        self.0.store(true, Ordering::Release);
        Ok(())
    }
}

/// Whether the deadline of a call has passed.
#[inline]
pub(crate) fn is_late(clock: &dyn Clock, call: Call) -> bool {
    call.deadline.is_some_and(|deadline| clock.now() >= deadline)
}
