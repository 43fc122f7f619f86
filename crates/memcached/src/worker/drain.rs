//! The end of a worker: it answers the requests that it has received, and closes its connections. After
//! a panic it only shuts down the sockets.

use super::Worker;
use super::lanes::Ended;
use crate::conn::{DriveResult, WorkerContext};
use crate::ring::RETRY;
use crate::stream::{Draining, Socket};
use crate::telemetry::heartbeat::Activity;
use rustix::event::{Timespec, epoll};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

/// The time in which other nodes may take what this one still answers when it ends.
pub(super) const LEAVE_WITHIN: Duration = Duration::from_secs(1);

impl Worker {
    /// Serves connections at shutdown: reads the data that has arrived, replies, and closes each
    /// connection once its client has accepted the replies, until no connection is left or
    /// `drain_timeout` has passed. A client that keeps sending is not served any longer than that.
    pub(super) fn drain(&mut self, events: &mut Vec<epoll::Event>) {
        // After a hand-over another process has the store.
        if !self.aborted {
            self.run_commands();
        }
        let end = Instant::now() + self.shared.live.drain_timeout.get();
        while !self.aborted && self.shared.defect.get().is_none() {
            self.pump_lanes();
            // No lane is opened any more.
            self.give_up_lanes(false);
            let more = self.drain_all(end);
            self.flush_lanes();
            let left = end.saturating_duration_since(Instant::now());
            if self.slots.iter().all(Option::is_none) {
                break;
            }
            if left.is_zero() {
                tracing::info!(
                    "connections of clients that do not read their replies, or that continue to send, are closed"
                );
                break;
            }
            self.counters.heartbeat.set_idle();
            events.clear();
            // A connection with more work does not wait for events of other connections.
            let wait = if more { Duration::ZERO } else { left.min(self.retry_within()) };
            let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            // Whatever this returns, every slot is served again.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout));
            self.run_commands();
        }
        (0..self.slots.len()).for_each(|number| self.close_slot(number));
        if !self.aborted && self.shared.defect.get().is_none() {
            self.leave_inbound(Instant::now() + LEAVE_WITHIN);
        }
    }

    /// Drives every connection once, until `end`. Returns whether any connection has more work.
    fn drain_all(&mut self, end: Instant) -> bool {
        let mut more = false;
        for number in 0..self.slots.len() {
            more |= self.drain_slot(number);
            // A single drive is bounded; ten thousand drives are not.
            if Instant::now() >= end {
                return more;
            }
        }
        more
    }

    /// Drives one connection at shutdown. Returns whether it has more work.
    fn drain_slot(&mut self, number: usize) -> bool {
        let Some(Some(slot)) = self.slots.get_mut(number) else { return false };
        slot.ready.write = true;
        self.work.renew();
        self.steps += 1;
        let counters = &*self.counters;
        counters.heartbeat.begin(self.steps, slot.socket.as_raw_fd(), Activity::Draining);
        let mut context = WorkerContext {
            shared: &self.shared,
            counters,
            input: &mut self.input,
            received: None,
            output: &mut self.output,
            work: &mut self.work,
            client: slot.socket.as_fd(),
        };
        let socket = Socket { fd: slot.socket.as_fd(), ready: &mut slot.ready };
        let result = match (&mut slot.tls, &mut self.tls) {
            (Some(stream), Some(tls)) => tls.drain(&mut slot.connection, &mut context, socket, stream),
            _ => slot.connection.drive(&mut context, &mut Draining(socket)),
        };
        match result {
            DriveResult::Yield => return true,
            DriveResult::Wait => {}
            DriveResult::Close => self.close_slot(number),
        }
        false
    }

    /// Lets the requests fail that wait for a connection to their node. With `all`, also those that
    /// wait for a reply, whose lanes are closed, and those that wait until their owner executes them.
    pub(super) fn give_up_lanes(&mut self, all: bool) {
        let count = self.with_lanes(|_, lanes, _| lanes.len()).unwrap_or(0);
        for at in 0..count {
            let is_in_use = self.with_lanes(|_, lanes, each| {
                lanes.give_up(at, each);
                lanes.is_open(at) && lanes.in_flight(at) > 0
            });
            if all && is_in_use == Some(true) {
                self.close_lane(at, Ended::Failed("no reply has come before the hand-over".into()));
            }
        }
        if all {
            self.with_lanes(|_, lanes, _| lanes.set_gives_up(true));
        }
        self.wake_waiting();
    }

    /// Lets waiting requests be tried again when the worker ends. Returns when to do so next.
    pub(super) fn retry_within(&mut self) -> Duration {
        let is_waiting = self.with_lanes(|_, lanes, _| {
            let is_waiting = lanes.is_waiting();
            lanes.retry();
            is_waiting
        });
        self.wake_waiting();
        if is_waiting == Some(true) { RETRY } else { Duration::MAX }
    }

    /// Shuts down the sockets of all connections and touches nothing else. Called after a panic,
    /// which may have left any state inconsistent.
    pub(crate) fn shut_down_sockets(&self) {
        for slot in self.slots.iter().flatten() {
            // Fails for a socket whose peer has already gone.
            let _ = rustix::net::shutdown(slot.socket.as_fd(), rustix::net::Shutdown::Both);
        }
        self.shut_down_lanes();
    }
}
