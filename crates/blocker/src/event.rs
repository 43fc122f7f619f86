//! News from below: the channel a backend speaks up through.
//!
//! Bounded, and never in the way of the data path: a subscriber that does not keep up loses its queue
//! and is told so by [`Event::Missed`]; it then treats everything as changed.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::error::Reason;
use crate::order::Epoch;
use crate::request::Scope;

/// How many events wait for one subscriber before they are dropped.
const QUEUE_EVENTS_MAX: usize = 1024;

/// Something happened below that the layers above should know.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Objects of the scope may have changed other than through this handle: drop clean copies.
    Changed(Scope),
    /// The scope has been claimed: older epochs are refused from now on.
    Fenced(Scope, Epoch),
    /// Changes of objects of the scope that had been acknowledged as less than *stored* are lost, and flushes that
    /// cover them answer [`Error::WritesLost`](crate::Error::WritesLost): write again what was not stored.
    WritesLost(Scope),
    /// The store has run out of space.
    Full,
    /// The store works, but not as it should.
    Degraded(Reason),
    /// The store has space again, or works as it should again.
    Recovered,
    /// Events were lost, because the subscriber was too slow or a connection broke: treat everything
    /// as changed.
    Missed,
}

/// Where a backend publishes; one per backend.
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
    /// A hub that nobody listens to yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new listener; it hears what is published from now on.
    pub fn subscribe(&self) -> Subscription {
        let queue = Arc::new(Mutex::new(Queue::default()));
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(&queue));
        Subscription { queue }
    }

    /// Tells every listener. Never waits for one.
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

/// Listeners read what is left, then see the end.
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

/// A listener's end of the channel. Dropping it ends the subscription.
pub struct Subscription {
    queue: Arc<Mutex<Queue>>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("waiting_events", &self.queue.lock().events.len()).finish()
    }
}

impl Subscription {
    /// The next event, if one waits.
    pub fn try_next(&mut self) -> Option<Event> {
        self.queue.lock().events.pop_front()
    }

    /// The next event; `None` once the backend is gone and all has been read.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    pub fn recv(&mut self) -> impl Future<Output = Option<Event>> + Send + '_ {
        std::future::poll_fn(|cx| self.poll_next(cx))
    }

    /// [`Self::recv`], for those who poll.
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
    fn a_slow_listener_is_told_that_it_missed_something() {
        let hub = EventHub::new();
        let mut listener = hub.subscribe();
        for _ in 0..=QUEUE_EVENTS_MAX {
            hub.publish(&Event::Full);
        }
        assert_eq!(listener.try_next(), Some(Event::Missed));
        assert_eq!(listener.try_next(), Some(Event::Full));
        assert_eq!(listener.try_next(), None);
    }

    #[test]
    fn a_waiting_listener_is_woken_and_sees_the_end() {
        let hub = EventHub::new();
        let mut listener = hub.subscribe();
        let waiting = std::thread::spawn(move || block_on(listener.recv()).map(|event| (event, listener)));
        hub.publish(&Event::Recovered);
        let (event, mut listener) = waiting.join().unwrap().unwrap();
        assert_eq!(event, Event::Recovered);
        drop(hub);
        assert_eq!(block_on(listener.recv()), None);
    }
}
