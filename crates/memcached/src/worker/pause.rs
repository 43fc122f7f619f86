//! A worker that pauses between two requests, so that another process can take over its
//! connections.
//!
//! Requests in flight are completed, and no new request begins; connections whose request does not
//! complete in time are closed. Other nodes of a ring are told to send further requests to the process
//! that follows. Then the worker waits for the verdict with all sockets open: either
//! it resumes as if nothing had happened, or it closes its descriptors and ends.

use super::Worker;
use super::drain::LEAVE_WITHIN;
use crate::conn::{DriveResult, Finishing, WorkerContext};
use crate::connections::{After, Pause, Paused, PausedConnection};
use crate::stream::Socket;
use crate::telemetry::heartbeat::Activity;
use blocker::executor::block_on;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant};

/// The delay before connections whose requests are still in flight are driven again.
const RETRY: Duration = Duration::from_micros(300);

impl Worker {
    /// Pauses, then continues as the verdict says.
    #[cold]
    pub(super) fn pause(&mut self, pause: Pause) {
        let Pause { finish_within, report, end } = pause;
        let finish_until = Instant::now() + finish_within;
        self.finish_requests(finish_until);
        self.leave_inbound(finish_until.min(Instant::now() + LEAVE_WITHIN));
        // Nothing of the store may be held when the other process takes it.
        self.break_off_inbound();
        // Fails if the pause was abandoned, in which case there is no verdict either.
        let _ = report.send(self.paused());
        self.counters.heartbeat.set_idle();
        if block_on(end).is_ok() {
            (self.draining, self.aborted) = (true, true);
            // The other process has the connections: this one must not read another request of those
            // that the answers of other nodes, or an earlier turn, have listed.
            self.yielded.clear();
        } else if let Some(ring) = &self.shared.ring {
            ring.lanes(self.index).set_gives_up(false);
        }
    }

    /// Completes the requests in flight, and closes connections whose requests are not complete at
    /// `end`.
    fn finish_requests(&mut self, end: Instant) {
        let mut is_late = false;
        loop {
            self.pump_lanes();
            // Nothing opens a lane in the meantime.
            self.give_up_lanes(false);
            // No command brings another map, but an owner may execute again what it has refused.
            self.retry_within();
            self.take_back_requests();
            let unfinished: Vec<usize> =
                (0..self.slots.len()).filter(|number| !self.is_at_rest(*number)).collect();
            if unfinished.is_empty() {
                return;
            }
            if is_late {
                tracing::warn!(
                    connections = unfinished.len(),
                    "connections whose requests do not end are closed before the hand-over"
                );
                return unfinished.into_iter().for_each(|number| self.close_slot(number));
            }
            if Instant::now() >= end {
                // Requests that wait for another node fail, so that their clients get a reply.
                is_late = true;
                self.give_up_lanes(true);
            }
            unfinished.into_iter().for_each(|number| self.finish_request(number));
            self.flush_lanes();
            if !(0..self.slots.len()).all(|number| self.is_at_rest(number)) {
                self.counters.heartbeat.set_idle();
                thread::sleep(RETRY);
            }
        }
    }

    /// Takes back what waits until another node executes it: the process that takes over begins it anew.
    fn take_back_requests(&mut self) {
        for number in 0..self.slots.len() {
            if let Some(Some(slot)) = self.slots.get_mut(number)
                && slot.tls.is_none()
                && slot.connection.take_back()
            {
                // If no process takes over, this one does.
                self.list_yielded(number);
            }
        }
    }

    /// Returns whether a slot is empty, or its connection is at rest.
    fn is_at_rest(&self, number: usize) -> bool {
        self.slots[number].as_ref().is_none_or(|slot| slot.connection.is_at_rest())
    }

    /// Drives one connection to complete its request.
    fn finish_request(&mut self, number: usize) {
        let Some(Some(slot)) = self.slots.get_mut(number) else { return };
        self.work.renew();
        // This loop does not wait for events.
        (slot.ready.read, slot.ready.write) = (true, true);
        self.steps += 1;
        self.counters.heartbeat.begin(self.steps, slot.socket.as_raw_fd(), Activity::Draining);
        let mut context = WorkerContext {
            shared: &self.shared,
            counters: &self.counters,
            input: &mut self.input,
            received: None,
            output: &mut self.output,
            work: &mut self.work,
            client: slot.socket.as_fd(),
        };
        let socket = Socket { fd: slot.socket.as_fd(), ready: &mut slot.ready };
        let (result, tls_bytes) = match (&mut slot.tls, &mut self.tls) {
            (Some(stream), Some(tls)) => {
                (tls.drive(&mut slot.connection, &mut context, socket, stream), stream.held_bytes())
            }
            _ => {
                let allowed = slot.connection.missing_bytes();
                (slot.connection.drive(&mut context, &mut Finishing { io: socket, allowed }), 0)
            }
        };
        match result {
            DriveResult::Close => self.close_slot(number),
            DriveResult::Wait | DriveResult::Yield => {
                if slot.connection.update_info(&self.shared, tls_bytes) == After::Short {
                    self.close_requested();
                }
            }
        }
    }

    /// Returns the state with which another process can continue the connections.
    fn paused(&self) -> Paused {
        let must_authenticate = self.shared.settings.auth.is_required();
        let mut paused = Paused { connections: Vec::new(), others: 0 };
        for slot in self.slots.iter().flatten() {
            match slot.connection.hand_over(must_authenticate) {
                Some(connection) if slot.tls.is_none() => {
                    paused.connections.push(PausedConnection { fd: slot.socket.as_raw_fd(), connection });
                }
                _ => paused.others += 1,
            }
        }
        paused
    }
}
