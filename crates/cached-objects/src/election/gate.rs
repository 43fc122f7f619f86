//! The gate before the cache of an elected leader: no client is answered from the cache of a host that
//! no longer leads.
//!
//! Each request checks the lease first. If the answer is not ready at once, the lease is checked
//! again once it is: an answer that reveals the content must be true at a moment at which the lease
//! held, even if it refuses the request. An answer that reports a change as stored always passes,
//! because the store accepts no change of a leader that has been replaced.

use blocker::{
    Blocker, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Durability, Error, FlushReply,
    FlushRequest, Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply, ListRequest, ReadReply,
    ReadRequest, Reply, Result,
};
use std::fmt;
use std::sync::Arc;

/// Returns whether this host leads now.
pub(crate) type Holds = Arc<dyn Fn() -> bool + Send + Sync>;

/// A layer over the cache of a leader.
pub(crate) struct Gate {
    below: Arc<dyn Blocker>,
    holds: Holds,
}

const NO_LONGER: &str = "this host no longer leads; another one takes over";

impl Gate {
    pub(crate) fn new(below: Arc<dyn Blocker>, holds: Holds) -> Gate {
        Gate { below, holds }
    }

    /// Makes a request if this host leads. `late` converts an answer that is ready only after the
    /// leadership has ended into the one for the client.
    fn pass<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn Blocker) -> Reply<T>,
        late: impl FnOnce(Result<T>) -> Result<T> + Send + 'static,
    ) -> Reply<T> {
        if !(self.holds)() {
            return Reply::err(Error::Retryable(NO_LONGER.into()));
        }
        let reply = request(&*self.below);
        match reply {
            // Returned as it is, because each move of a hit's data costs instructions.
            Reply::Ready(Ok(_)) => reply,
            Reply::Ready(Err(error)) => Reply::err(replaced(error)),
            Reply::Pending(answer) => {
                let holds = Arc::clone(&self.holds);
                Reply::pending(async move {
                    let answer = answer.await.map_err(replaced);
                    if holds() { answer } else { late(answer) }
                })
            }
        }
    }
}

/// Returns the error for clients: the clients of a host that has been replaced should try another
/// host.
fn replaced(error: Error) -> Error {
    match error {
        Error::Fenced { .. } => Error::Retryable(NO_LONGER.into()),
        error => error,
    }
}

/// Refuses an answer that says what the content is, or was.
fn refused<T>(_: Result<T>) -> Result<T> {
    Err(Error::Retryable(NO_LONGER.into()))
}

/// Accepts the answer to a change only if the store has the change.
fn stored(answer: Result<ChangeReply>) -> Result<ChangeReply> {
    match answer {
        Ok(reply) if reply.durability >= Durability::Stored => Ok(reply),
        // A change that only the cache has is lost with the cache, but the store may have it
        // already.
        Ok(_) | Err(Error::NotStored(_) | Error::WritesLost(_) | Error::OutcomeUnknown(_)) => {
            Err(Error::OutcomeUnknown(NO_LONGER.into()))
        }
        Err(
            error @ (Error::Missing | Error::Exists | Error::ConditionFailed { .. } | Error::Mismatch { .. }),
        ) => refused(Err(error)),
        Err(error) => Err(error),
    }
}

impl Blocker for Gate {
    blocker::delegate!(|this| *this.below, except read change info list flush claim invalidate);

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.pass(|below| below.read(request), refused)
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        self.pass(|below| below.change(request), stored)
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        self.pass(|below| below.info(request), refused)
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        self.pass(|below| below.list(request), refused)
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        // The store has everything that the flush covers.
        self.pass(|below| below.flush(request), |answer| answer)
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        self.pass(|below| below.claim(request), refused)
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        self.pass(|below| below.invalidate(request), refused)
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("holds", &(self.holds)()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::executor::block_on;
    use blocker::{BlockerExt, Clock, Epoch, ManualClock, Memory, ObjectId, Timestamp, WriteRequest};
    use parking_lot::Mutex;
    use std::time::Duration;
    use tokio::sync::Notify;

    /// A store each of whose answers waits until it is let go, if it is `slow`.
    struct Store {
        memory: Memory,
        slow: Option<Arc<Notify>>,
        durability: Durability,
        fails: Mutex<Option<Error>>,
    }

    impl Store {
        fn answer<T: Send + Unpin + 'static>(&self, reply: Reply<T>) -> Reply<T> {
            let reply = self.fails.lock().take().map_or(reply, Reply::err);
            let Some(slow) = self.slow.clone() else { return reply };
            Reply::pending(async move {
                let answer = reply.await;
                slow.notified().await;
                answer
            })
        }
    }

    impl Blocker for Store {
        blocker::delegate!(|this| this.memory, except read change info list flush);

        fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
            self.answer(self.memory.read(request))
        }

        fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
            let durability = self.durability;
            self.answer(self.memory.change(request)).then(move |reply| {
                reply.map(|reply| ChangeReply::new(reply.version, reply.size_bytes, durability))
            })
        }

        fn info(&self, request: InfoRequest) -> Reply<Info> {
            self.answer(self.memory.info(request))
        }

        fn list(&self, request: ListRequest) -> Reply<ListReply> {
            self.answer(self.memory.list(request))
        }

        fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
            self.answer(self.memory.flush(request))
        }
    }

    /// A gate whose lease ends at 10 s of the clock.
    fn gate(slow: Option<Arc<Notify>>, durability: Durability) -> (Gate, Arc<Store>, ManualClock) {
        let store = Arc::new(Store { memory: Memory::default(), slow, durability, fails: Mutex::default() });
        let clock = ManualClock::new();
        let own = clock.clone();
        let holds: Holds = Arc::new(move || own.now() < Timestamp(10_000_000_000));
        (Gate::new(Arc::clone(&store) as _, holds), store, clock)
    }

    fn id() -> ObjectId {
        "a/b".parse().unwrap()
    }

    fn outcomes(gate: &Gate) -> Vec<Reply<()>> {
        let write = ChangeRequest::from(WriteRequest::new(id(), 0, b"x"));
        vec![
            gate.change(write).then(|it| it.map(drop)),
            gate.read(ReadRequest::new(id(), 0, 10)).then(|it| it.map(drop)),
            gate.info(InfoRequest::new(id())).then(|it| it.map(drop)),
            gate.list(ListRequest::new(id().namespace)).then(|it| it.map(drop)),
            gate.flush(FlushRequest::new(blocker::Scope::All)).then(|it| it.map(drop)),
        ]
    }

    #[test]
    fn every_request_is_answered_under_the_lease_and_none_reaches_the_cache_afterwards() {
        let (gate, store, clock) = gate(None, Durability::Stored);
        for reply in outcomes(&gate) {
            assert_eq!(block_on(reply), Ok(()));
        }
        clock.advance(Duration::from_secs(10));
        block_on(store.memory.delete(blocker::DeleteRequest::new(id()))).unwrap();
        for reply in outcomes(&gate) {
            assert!(reply.is_ready());
            assert!(matches!(block_on(reply), Err(Error::Retryable(_))));
        }
        let info = block_on(store.memory.info(InfoRequest::new(id())));
        assert!(matches!(info, Err(Error::Missing)), "the change has reached the store: {info:?}");
    }

    #[test]
    fn an_answer_that_comes_after_the_lease_counts_only_if_the_store_vouches_for_it() {
        for (durability, of_change) in [(Durability::Stored, true), (Durability::Cached, false)] {
            let slow = Arc::new(Notify::new());
            let (gate, _, clock) = gate(Some(Arc::clone(&slow)), durability);
            let replies = outcomes(&gate);
            clock.advance(Duration::from_secs(10));
            let mut answers = Vec::new();
            for reply in replies {
                slow.notify_one();
                answers.push(block_on(reply));
            }
            match of_change {
                true => assert_eq!(answers[0], Ok(())),
                false => assert!(matches!(answers[0], Err(Error::OutcomeUnknown(_))), "{:?}", answers[0]),
            }
            for answer in &answers[1..4] {
                assert!(matches!(answer, Err(Error::Retryable(_))), "{answer:?}");
            }
            assert_eq!(answers[4], Ok(()), "a flush whose data the store has succeeds also after the lease");
        }
    }

    #[test]
    fn an_error_that_comes_after_the_lease_says_neither_what_the_content_is_nor_that_a_change_is_undone() {
        let retryable = Error::Retryable(NO_LONGER.into());
        let unknown = Error::OutcomeUnknown(NO_LONGER.into());
        let late = |error: Error| {
            let slow = Arc::new(Notify::new());
            let (gate, store, clock) = gate(Some(Arc::clone(&slow)), Durability::Stored);
            *store.fails.lock() = Some(error.clone());
            let change = gate.change(ChangeRequest::from(WriteRequest::new(id(), 0, b"x")));
            *store.fails.lock() = Some(error);
            let read = gate.read(ReadRequest::new(id(), 0, 1));
            clock.advance(Duration::from_secs(10));
            slow.notify_one();
            let change = block_on(change).map(drop).unwrap_err();
            slow.notify_one();
            (change, block_on(read).map(drop).unwrap_err())
        };
        for error in [Error::Missing, Error::Exists] {
            assert_eq!(late(error), (retryable.clone(), retryable.clone()));
        }
        for error in [Error::WritesLost("x".into()), Error::NotStored("x".into())] {
            assert_eq!(late(error), (unknown.clone(), retryable.clone()));
        }
        let denied = Error::Denied("x".into());
        assert_eq!(late(denied.clone()), (denied, retryable));
    }

    #[test]
    fn an_answer_that_comes_in_time_counts_and_a_refusal_by_the_store_is_retryable_elsewhere() {
        let slow = Arc::new(Notify::new());
        let (slow_gate, _, _) = gate(Some(Arc::clone(&slow)), Durability::Cached);
        for reply in outcomes(&slow_gate) {
            slow.notify_one();
            assert_eq!(block_on(reply), Ok(()));
        }
        let (gate, store, _) = gate(None, Durability::Stored);
        *store.fails.lock() = Some(Error::Fenced { epoch: Epoch(7) });
        let write = gate.change(ChangeRequest::from(WriteRequest::new(id(), 0, b"x")));
        assert!(matches!(block_on(write), Err(Error::Retryable(_))));
        *store.fails.lock() = Some(Error::Corrupt("x".into()));
        let read = gate.read(ReadRequest::new(id(), 0, 1));
        assert!(matches!(block_on(read), Err(Error::Corrupt(_))), "other errors pass");
    }
}
