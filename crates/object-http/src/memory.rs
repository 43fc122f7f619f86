//! The bodies that a connection holds, which count against the budget of all connections from
//! before they exist until they are freed; and how fast the client sends and receives them.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use blocker::{Clock, Segment, Segments, SystemClock};
use connection::{Grant, LOOK_TIME};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};

/// The memory of a connection. Its part of the budget is returned when the last charge and the
/// connection are gone.
#[derive(Debug)]
pub(crate) struct Memory {
    state: Mutex<State>,
    /// Notified when a response has been sent.
    sent: Notify,
}

#[derive(Debug)]
struct State {
    grant: Grant,
    /// The bytes of all charges.
    held_bytes: u64,
    /// The bytes of the body that the client is sending.
    receiving_bytes: u64,
    /// The bytes of responses that have not been sent.
    sending_bytes: u64,
    /// The parts of the current response that have not been handed to the socket yet.
    unsent: Option<Arc<Mutex<VecDeque<Segments>>>>,
}

/// Bytes that count against the budget until this value is dropped. The memory itself is freed
/// first.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<Memory>,
    bytes: u64,
    is_response: bool,
}

/// A wait for memory. If it is dropped, the connection demands nothing any more: others would have
/// to wait, and slow clients would be disconnected, for a request that is already refused.
struct Waiting<'a>(&'a Memory);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().grant.withdraw();
    }
}

/// Marks the time in which the client sends a body.
pub(crate) struct Receiving<'a>(&'a Memory);

impl Memory {
    pub(crate) fn new(grant: Grant) -> Arc<Memory> {
        let state = State { grant, held_bytes: 0, receiving_bytes: 0, sending_bytes: 0, unsent: None };
        Arc::new(Memory { state: Mutex::new(state), sent: Notify::new() })
    }

    /// Waits until nothing of earlier responses is left in memory, so that only one request of the
    /// connection needs memory.
    pub(crate) async fn until_sent(&self) {
        loop {
            let sent = self.sent.notified();
            if self.state.lock().sending_bytes == 0 {
                return;
            }
            sent.await;
        }
    }

    /// Waits until the budget has `bytes` more for this connection. A connection can have at most
    /// the bytes of the largest request.
    ///
    /// # Cancel safety
    /// If the future is dropped, other connections can have the bytes.
    pub(crate) async fn charge(self: &Arc<Self>, bytes: u64) -> Charge {
        self.wait_for(bytes).await;
        Charge { memory: Arc::clone(self), bytes, is_response: false }
    }

    async fn wait_for(&self, bytes: u64) {
        let waiting = Waiting(self);
        poll_fn(|cx| self.poll_charge(bytes, cx)).await;
        std::mem::forget(waiting);
    }

    fn poll_charge(&self, bytes: u64, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock();
        let wanted = state.held_bytes + bytes;
        if wanted > state.grant.bytes() {
            state.grant.demand(wanted);
            // The bytes may be available immediately. They are then used before the budget can take
            // them back.
            while wanted > state.grant.bytes() {
                let held_bytes = state.held_bytes;
                let Some(granted) = state.grant.take_change(cx.waker()) else {
                    state.grant.register(cx.waker());
                    return Poll::Pending;
                };
                // The accepted value is the announced one, so this cannot fail.
                let _ = state.grant.accept(granted, held_bytes);
            }
        }
        state.held_bytes = wanted;
        Poll::Ready(())
    }

    /// Records that the client is sending a body of `bytes`, until the result is dropped.
    pub(crate) fn receiving(&self, bytes: u64) -> Receiving<'_> {
        self.state.lock().receiving_bytes = bytes;
        Receiving(self)
    }

    /// Records that the connection accepts no further requests; its charges still count.
    pub(crate) fn retire(&self) {
        let mut state = self.state.lock();
        let held_bytes = state.held_bytes;
        state.grant.retire(held_bytes);
    }

    /// Applies changes of the grant, and returns to the budget what the connection no longer needs.
    /// The caller calls it after each step of the connection. `waker` is woken at the next change.
    pub(crate) fn follow(&self, waker: &Waker) {
        let mut state = self.state.lock();
        let held_bytes = state.held_bytes;
        state.grant.follow(waker, held_bytes);
    }

    /// Registers `waker` to be woken when the grant changes.
    pub(crate) fn register(&self, waker: &Waker) {
        self.state.lock().grant.register(waker);
    }

    /// Returns the bytes that wait for the client.
    fn client_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.receiving_bytes + state.sending_bytes
    }

    /// Copies the data that a slow client has not received. Otherwise the response would prevent a
    /// cache from evicting them.
    fn unpin(&self) {
        let unsent = self.state.lock().unsent.clone();
        if let Some(unsent) = unsent {
            for part in unsent.lock().iter_mut() {
                if part.iter().any(Segment::is_pinned) {
                    *part = Segments::from(part.to_bytes());
                }
            }
        }
    }
}

impl Charge {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Waits until the charge is at least `bytes`.
    ///
    /// # Cancel safety
    /// Like [`Memory::charge`].
    pub(crate) async fn grow(&mut self, bytes: u64) {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 {
            self.memory.wait_for(more).await;
            self.bytes += more;
        }
    }

    /// Returns to the budget what the charge has beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let freed = self.bytes.saturating_sub(bytes);
        self.bytes -= freed;
        self.memory.free(freed, false);
    }

    /// Makes this the memory of a response. `unsent` are the parts that have not been handed to the
    /// socket yet.
    pub(crate) fn of_response(&mut self, unsent: &Arc<Mutex<VecDeque<Segments>>>) {
        let mut state = self.memory.state.lock();
        state.sending_bytes += self.bytes;
        state.unsent = Some(Arc::clone(unsent));
        self.is_response = true;
    }
}

impl Memory {
    fn free(&self, bytes: u64, is_response: bool) {
        let mut state = self.state.lock();
        state.held_bytes -= bytes;
        if is_response {
            state.sending_bytes -= bytes;
            state.unsent = None;
        }
        drop(state);
        if is_response {
            self.sent.notify_waiters();
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory.free(self.bytes, self.is_response);
    }
}

impl Drop for Receiving<'_> {
    fn drop(&mut self) {
        self.0.state.lock().receiving_bytes = 0;
    }
}

/// Observes how fast a client sends and receives.
pub(crate) struct Watch {
    memory: Arc<Memory>,
    /// The bytes that have passed the socket, in both directions.
    moved_bytes: Arc<AtomicU64>,
    timer: Pin<Box<Sleep>>,
}

impl Watch {
    pub(crate) fn new(memory: Arc<Memory>, moved_bytes: Arc<AtomicU64>) -> Watch {
        let timer = Box::pin(sleep_until(Instant::now()));
        Watch { memory, moved_bytes, timer }
    }

    /// Is ready when the connection must be closed, because other connections need the memory that
    /// it holds for its client, and its client is the slowest.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let client_bytes = self.memory.client_bytes();
        let state = &self.memory.state;
        if client_bytes == 0 {
            state.lock().grant.end_turn();
            return Poll::Pending;
        }
        let moved_bytes = || self.moved_bytes.load(Ordering::Relaxed);
        if state.lock().grant.begin_turn(|| SystemClock.now(), client_bytes, moved_bytes()) {
            self.timer.as_mut().reset(Instant::now() + LOOK_TIME);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            let (waiting, is_slowest) =
                state.lock().grant.look(SystemClock.now(), client_bytes, moved_bytes());
            if is_slowest {
                return Poll::Ready(());
            }
            if waiting >= LOOK_TIME {
                self.memory.unpin();
            }
            self.timer.as_mut().reset(Instant::now() + LOOK_TIME);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerConfig;
    use blocker::Timestamp;
    use std::pin::pin;

    /// Returns a budget for 16 connections, whose shares are 64 KiB, with a pool of two of the
    /// largest requests.
    fn budget() -> Arc<connection::Budget> {
        let mut config = ServerConfig { connections_max: 16, ..ServerConfig::default() };
        config.bytes_max = (16 << 16) + (8 << 20);
        config.budget(4 << 20).unwrap()
    }

    fn member(budget: &Arc<connection::Budget>) -> Arc<Memory> {
        Memory::new(budget.join(0, false).unwrap())
    }

    #[test]
    fn a_body_waits_until_others_are_freed() {
        let budget = budget();
        let members: Vec<_> = (0..3).map(|_| member(&budget)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let mut charge = |memory: &Arc<Memory>| match pin!(memory.charge(4 << 20)).poll(&mut cx) {
            Poll::Ready(charge) => Some(charge),
            Poll::Pending => None,
        };
        let first = charge(&members[0]).expect("there is memory");
        let second = charge(&members[1]);
        // The grants of idle members follow the budget.
        members.iter().for_each(|memory| memory.follow(Waker::noop()));
        let second = second.or_else(|| charge(&members[1])).expect("there is memory for two");
        assert!(charge(&members[2]).is_none(), "and for no third one");
        drop(first);
        members.iter().for_each(|memory| memory.follow(Waker::noop()));
        assert!(charge(&members[2]).is_some());
        drop(second);
    }

    #[test]
    fn no_client_is_disconnected_for_a_request_that_was_given_up() {
        let budget = budget();
        let members: Vec<_> = (0..3).map(|_| member(&budget)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        let mut holding = Vec::new();
        for memory in &members[..2] {
            let Poll::Ready(charge) = pin!(memory.charge(4 << 20)).poll(&mut cx) else { panic!("for two") };
            holding.push(charge);
            members.iter().for_each(|memory| memory.follow(Waker::noop()));
        }
        let look = |second: u64| {
            let mut state = members[0].state.lock();
            let at = |second: u64| Timestamp(second * 1_000_000_000);
            state.grant.begin_turn(|| at(0), 4 << 20, 0);
            state.grant.look(at(second), 4 << 20, 0).1
        };
        let mut waiting = Box::pin(members[2].charge(4 << 20));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        // The demand is noticed, and the next look would disconnect the client.
        assert!(!look(10));
        drop(waiting);
        assert!(!look(11) && !look(12));
        let mut waiting = Box::pin(members[2].charge(4 << 20));
        assert!(waiting.as_mut().poll(&mut cx).is_pending());
        assert!(!look(13) && look(14));
    }

    #[test]
    fn small_bodies_always_have_memory() {
        let budget = budget();
        let large: Vec<_> = (0..2).map(|_| member(&budget)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        for memory in &large {
            std::mem::forget(pin!(memory.charge(4 << 20)).poll(&mut cx));
            large.iter().for_each(|memory| memory.follow(Waker::noop()));
        }
        for _ in 0..14 {
            let memory = member(&budget);
            assert!(pin!(memory.charge(64 << 10)).poll(&mut cx).is_ready());
            std::mem::forget(memory);
        }
    }

    #[test]
    fn the_next_request_waits_until_the_response_is_sent() {
        let budget = budget();
        let memory = member(&budget);
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(mut charge) = pin!(memory.charge(10)).poll(&mut cx) else { panic!("10 bytes") };
        assert!(pin!(memory.until_sent()).poll(&mut cx).is_ready());
        charge.of_response(&Arc::default());
        let mut sent = pin!(memory.until_sent());
        assert!(sent.as_mut().poll(&mut cx).is_pending());
        assert_eq!(memory.client_bytes(), 10);
        drop(charge);
        assert!(sent.poll(&mut cx).is_ready());
        assert_eq!(memory.client_bytes(), 0);
    }
}
