//! Events: the channel by which a blocker notifies the layers above it.
//!
//! The channel is bounded and never delays the data path: a subscriber that does not keep up loses
//! its queue, receives [`Event::Missed`], and must treat everything as changed.
//!
//! ```
//! use blocker::{Blocker, Event, InvalidateRequest, Memory, Scope, executor::block_on};
//!
//! let store = Memory::default();
//! let mut events = store.subscribe();
//! block_on(store.invalidate(InvalidateRequest::new(Scope::All)))?;
//! assert_eq!(events.try_next(), Some(Event::Changed(Scope::All)));
//! # Ok::<_, blocker::Error>(())
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::{Epoch, Reason, Scope};

/// The maximum number of pending events per subscription.
const QUEUE_EVENTS_MAX: usize = 1024;

/// A notification from a blocker to the layers above it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Objects of the scope may have been changed without this handle: drop clean copies.
    Changed(Scope),
    /// The scope has been claimed: older epochs are refused from now on.
    Fenced(Scope, Epoch),
    /// Changes in the scope that were acknowledged as less than *stored* are lost, and flushes that
    /// cover them fail with [`Error::WritesLost`](crate::Error::WritesLost): write unstored data
    /// again.
    WritesLost(Scope),
    /// A store in memory has restarted empty: all its data, including *stored* data, and its claims
    /// are lost. Drop clean copies, and store dirty data again.
    Emptied,
    /// The store has run out of space.
    Full,
    /// The store works, but with restrictions.
    Degraded(Reason),
    /// The store has space again, or works normally again.
    Recovered,
    /// Events were lost because the subscriber was too slow or a connection broke: treat everything
    /// as changed.
    Missed,
}

/// The sending side. Each blocker that publishes events has one hub.
#[derive(Default)]
pub struct EventHub {
    queues: Mutex<Vec<Weak<Mutex<Queue>>>>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    waker: Option<Waker>,
    closed: bool,
}

impl EventHub {
    /// Returns a hub without subscriptions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a subscription to events from now on.
    pub fn subscribe(&self) -> Subscription {
        let queue = Arc::new(Mutex::new(Queue::default()));
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Subscription { queue }
    }

    /// Sends `event` to every subscription, without waiting for any.
    pub fn publish(&self, event: &Event) {
        let mut wakers = Vec::new();
        self.queues.lock().retain(|queue| {
            let Some(queue) = queue.upgrade() else { return false };
            let mut queue = queue.lock();
            if queue.events.len() >= QUEUE_EVENTS_MAX {
                queue.events.clear();
                queue.events.push_back(Event::Missed);
            }
            queue.events.push_back(event.clone());
            wakers.extend(queue.waker.take());
            true
        });
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl fmt::Debug for EventHub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHub").field("subscriptions", &self.queues.lock().len()).finish()
    }
}

/// Subscribers still receive the pending events, and then the end of the stream.
impl Drop for EventHub {
    fn drop(&mut self) {
        for queue in self.queues.get_mut().drain(..).filter_map(|queue| queue.upgrade()) {
            let waker = {
                let mut queue = queue.lock();
                queue.closed = true;
                queue.waker.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

/// The receiving side. Dropping the subscription ends it.
pub struct Subscription {
    queue: Arc<Mutex<Queue>>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("waiting_events", &self.queue.lock().events.len()).finish()
    }
}

impl Subscription {
    /// Returns the next event if there is one, without waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.queue.lock().events.pop_front()
    }

    /// Waits for the next event. Returns `None` once the blocker has been dropped and all events
    /// have been received.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub fn recv(&mut self) -> impl Future<Output = Option<Event>> + Send + '_ {
        std::future::poll_fn(|cx| self.poll_next(cx))
    }

    /// Polls for the next event, as [`Self::recv`] does.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut queue = self.queue.lock();
        if let Some(event) = queue.events.pop_front() {
            return Poll::Ready(Some(event));
        }
        if queue.closed {
            return Poll::Ready(None);
        }
        queue.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::block_on;

    #[test]
    fn a_slow_subscriber_receives_missed() {
        let hub = EventHub::new();
        let mut subscriber = hub.subscribe();
        for _ in 0..=QUEUE_EVENTS_MAX {
            hub.publish(&Event::Full);
        }
        assert_eq!(subscriber.try_next(), Some(Event::Missed));
        assert_eq!(subscriber.try_next(), Some(Event::Full));
        assert_eq!(subscriber.try_next(), None);
    }

    #[test]
    fn a_waiting_subscriber_is_woken_and_receives_the_end() {
        let hub = EventHub::new();
        let mut subscriber = hub.subscribe();
        let waiting =
            std::thread::spawn(move || block_on(subscriber.recv()).map(|event| (event, subscriber)));
        hub.publish(&Event::Recovered);
        let (event, mut subscriber) = waiting.join().unwrap().unwrap();
        assert_eq!(event, Event::Recovered);
        drop(hub);
        assert_eq!(block_on(subscriber.recv()), None);
    }
}
