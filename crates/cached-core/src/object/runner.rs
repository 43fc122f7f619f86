//! The background: flushes when it is time, hears the news from below, and goes on with what has lost its
//! caller. One future, spawned by the embedder.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use blocker::clock::Sleep;
use blocker::{Event, Scope, Subscription, Timestamp};
use futures_util::stream::{FuturesUnordered, Stream};

use super::doubt::dropped;
use super::flush::flush_object;
use super::shared::{Shared, Task};
use super::whole::drop_clean;
use crate::sync::Arc;

/// See the module. Ends when the last handle of the cache has been dropped and what is under way is done.
pub(crate) struct Runner {
    shared: Arc<Shared>,
    news: Subscription,
    flights: FuturesUnordered<Task>,
    flights_max: usize,
    others: FuturesUnordered<Task>,
    alarm: Option<(Timestamp, Sleep)>,
}

impl Runner {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            news: shared.below.subscribe(),
            flights: FuturesUnordered::new(),
            flights_max: shared.config.flush_requests_max,
            others: FuturesUnordered::new(),
            alarm: None,
            shared,
        }
    }

    /// Acts on what comes from below.
    fn hear(&mut self, event: Event) {
        let shared = Arc::clone(&self.shared);
        match event {
            Event::Changed(scope) => self.others.push(Box::pin(async move {
                dropped(drop_clean(&shared, &scope).await);
                shared.hub.publish(&Event::Changed(scope));
            })),
            Event::Missed => self.others.push(Box::pin(async move {
                dropped(drop_clean(&shared, &Scope::All).await);
                shared.check_epochs().await;
                shared.hub.publish(&Event::Missed);
            })),
            // What others had written and this cache has copies of is gone below.
            Event::WritesLost(scope) => self.others.push(Box::pin(async move {
                dropped(drop_clean(&shared, &scope).await);
                shared.hub.publish(&Event::WritesLost(scope));
            })),
            Event::Fenced(scope, epoch) => {
                shared.heard_of_claim(&scope, epoch);
                shared.hub.publish(&Event::Fenced(scope, epoch));
            }
            event => shared.hub.publish(&event),
        }
    }

    /// Begins what is due.
    fn begin_flushes(&mut self) {
        let shared = &self.shared;
        let now = shared.clock.now();
        let age = u64::try_from(shared.config.dirty_age_max.as_nanos()).unwrap_or(u64::MAX);
        // Nothing can be older than the clock.
        let since = now.0.checked_sub(age).map(Timestamp);
        while self.flights.len() < self.flights_max {
            let pressure = shared.is_under_pressure();
            let next = shared.registry.next(now, since, pressure);
            let Some((number, node)) = next else { return };
            self.flights.push(Box::pin(flush_object(Arc::clone(shared), number, node)));
        }
    }

    /// Sees to being woken when something will be due.
    fn set_alarm(&mut self, cx: &mut Context<'_>) -> bool {
        let (oldest, retry) = self.shared.registry.next_due();
        let oldest = oldest.map(|since| since + self.shared.config.dirty_age_max);
        let Some(due) = oldest.into_iter().chain(retry).min() else {
            self.alarm = None;
            return false;
        };
        if self.alarm.as_ref().is_none_or(|(at, _)| *at != due) {
            self.alarm = Some((due, self.shared.clock.sleep_until(due)));
        }
        let is_due = self.alarm.as_mut().is_some_and(|(_, sleep)| sleep.as_mut().poll(cx).is_ready());
        if is_due {
            self.alarm = None;
        }
        is_due && self.flights.len() < self.flights_max
    }
}

impl Future for Runner {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            let (orphans, is_closed) = this.shared.background.look(cx.waker());
            this.others.extend(orphans);
            while let Poll::Ready(Some(event)) = this.news.poll_next(cx) {
                this.hear(event);
            }
            if !is_closed {
                this.begin_flushes();
            }
            let mut has_moved = false;
            while let Poll::Ready(Some(())) = Pin::new(&mut this.flights).poll_next(cx) {
                has_moved = true;
            }
            while let Poll::Ready(Some(())) = Pin::new(&mut this.others).poll_next(cx) {
                has_moved = true;
            }
            if is_closed && this.flights.is_empty() && this.others.is_empty() {
                return Poll::Ready(());
            }
            if has_moved || !is_closed && this.set_alarm(cx) {
                continue;
            }
            return Poll::Pending;
        }
    }
}
