//! The life of a lane: its connection opens, brings answers, is asked for signs of life while it is
//! silent, and ends. Requests without an answer then fail, or wait for the next connection if the peer
//! has ended this one in order.

use super::lanes::{Lane, LaneId, LaneState, Lanes, VERSION_BYTES};
use super::lease::{RingLease, boot_time};
use super::order::Pauses;
use super::peers::add;
use cached_ring::wire::NO_PROMISE;
use cached_ring::{Answer, Executed, Failed, Flags, Hostile, Waiter};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The interval of [`Lanes::tick`].
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// A lane on which nothing was received for this number of ticks is asked for a sign of life.
const PING_TICKS: u32 = 2;

/// Each lane brings a report of its node once in this number of ticks, also if it is busy.
const REPORT_TICKS: u32 = 4;

/// The reason why a request has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// The node is away: the request was not executed.
    Away,
    /// The connection was lost: the request may have been executed.
    Lost,
    /// The node has another map, of this version, and has not executed the request.
    NotMine(u64),
    /// The slot is being prepared, or it moves: the request was not executed.
    Unready,
}

/// The outcome of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome<'a> {
    /// A reply, or a part of it: the next part comes after [`Lanes::more`].
    Bytes { bytes: &'a [u8], last: bool },
    /// There will be no reply.
    Failed {
        /// The client's own bytes: all, or the head of a request in parts; empty if a part of the
        /// reply has been delivered.
        own: &'a [u8],
        flags: Flags,
        /// The name of the node.
        node: &'a str,
        why: Why,
    },
}

/// The state of a lane, as [`Lanes::tick`] finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pulse {
    /// Nothing needs to be done.
    Alive,
    /// Nothing was received for too long, or no connection has come: the lane is lost.
    Silent,
    /// The peer is no longer in the map, and all requests are answered, or it has another address: the
    /// lane ends.
    Unwanted,
}

/// The times after which a lane is given up, in ticks.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneLimits {
    /// After this time without a byte, the lane is lost.
    silent_ticks: u32,
    /// After this time, requests that were not executed no longer wait for the next lane.
    resume_ticks: u32,
    /// After this time, requests that no owner executes fail.
    pub(super) resume_within: Duration,
}

impl LaneLimits {
    pub(super) fn new(silent: Duration, resume: Duration) -> LaneLimits {
        let ticks = |time: Duration| time.as_millis().div_ceil(TICK.as_millis()).max(1) as u32;
        // One tick more than the time for a PING.
        LaneLimits {
            silent_ticks: ticks(silent).max(PING_TICKS + 1),
            resume_ticks: ticks(resume),
            resume_within: resume,
        }
    }
}

impl Lanes {
    /// Asks all peers for a report.
    pub(crate) fn ping_all(&mut self) {
        let open = self.lanes.iter_mut().filter(|lane| lane.state == LaneState::Open);
        open.for_each(|lane| ping(lane, &self.lease));
    }

    /// Returns whether the lane has a connection.
    pub(crate) fn is_open(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_some_and(|lane| lane.state == LaneState::Open)
    }

    /// Returns whether requests wait for the next connection of the lane.
    pub(crate) fn is_resuming(&self, lane: usize) -> bool {
        matches!(self.lanes[lane].state, LaneState::Resuming { .. })
    }

    /// Returns whether requests wait for the first connection of the lane.
    pub(crate) fn is_connecting(&self, lane: usize) -> bool {
        self.lanes[lane].state == LaneState::Connecting
    }

    /// Returns the number of requests of a lane that are not answered.
    pub(crate) fn in_flight(&self, lane: usize) -> usize {
        self.lanes[lane].outbound.in_flight()
    }

    /// Begins a lane whose connection has just been opened. It must not be open.
    pub(crate) fn open(&mut self, lane: usize) {
        let (worker, lease) = (self.worker, &self.lease);
        let lane = &mut self.lanes[lane];
        debug_assert_ne!(lane.state, LaneState::Open);
        if lane.state != LaneState::Connecting {
            add(&lane.peer.counts(worker).resent, lane.outbound.in_flight() as u64);
        }
        lane.state = LaneState::Open;
        lane.is_moved = false;
        lane.peer.set_open(worker, true);
        (lane.silent_ticks, lane.ticks, lane.pinged) = (0, 0, None);
        // The first PING tells the time of the round trip, and brings the first report.
        ping(lane, lease);
    }

    /// Delivers what the peer has sent, and returns the number of bytes used.
    ///
    /// # Errors
    /// Returns [`Hostile`], after which the lane must be lost.
    pub(crate) fn received(
        &mut self,
        lane: usize,
        fresh: usize,
        bytes: &[u8],
        each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>),
    ) -> Result<usize, Hostile> {
        let (at, epoch) = (lane as u16, self.epoch);
        let lane = &mut self.lanes[lane];
        lane.silent_ticks = 0;
        let (mut done, mut not_mine) = (0, 0);
        let used = lane.outbound.received(bytes, &mut |to, request, answer| {
            let id = LaneId { lane: at, request };
            let outcome = match answer {
                Answer::Bytes { bytes, last } => {
                    done += u64::from(last);
                    Outcome::Bytes { bytes, last }
                }
                Answer::NotMine { map_version, slot, flags, own } => {
                    not_mine += 1;
                    lane.peer.see(map_version);
                    lane.pauses.refused(slot, flags, own, epoch);
                    let own = without_version(flags, own);
                    Outcome::Failed { own, flags, node: &lane.peer.name, why: Why::NotMine(map_version) }
                }
            };
            each(to, id, outcome);
        });
        // Also the answer to a request whose client has gone may be awaited.
        if !lane.ordered.is_empty() && fresh > 0 {
            self.woken.extend(std::mem::take(&mut lane.ordered));
        }
        let counts = lane.peer.counts(self.worker);
        add(&counts.received_bytes, fresh as u64);
        add(&counts.done, done);
        if not_mine > 0 {
            add(&counts.not_mine, not_mine);
        }
        counts.in_flight.store(lane.outbound.in_flight() as u64, Ordering::Relaxed);
        if lane.pinged.is_some()
            && let Some((_, report)) = lane.outbound.take_pong()
            && let Some(pinged) = lane.pinged.take()
        {
            let round_trip = Duration::from_nanos(boot_time().saturating_sub(pinged));
            lane.peer.set_pong(round_trip, report);
            self.lease.promised(&lane.peer.name, pinged, &report);
        }
        self.wake_if_room(at.into());
        used
    }

    /// Returns whether the peer has ended the lane in order, so that it [ends](Self::end).
    pub(crate) fn has_said_bye(&self, lane: usize) -> bool {
        self.lanes[lane].outbound.is_ended()
    }

    /// Ends a lane whose connection is closed. After the peer's BYE, requests that were not executed
    /// wait for the next lane; all others fail, and `each` is called for them.
    pub(crate) fn end(&mut self, lane: usize, each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>)) {
        self.close(lane, true, each);
    }

    fn close(&mut self, at: usize, resumes: bool, each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>)) {
        let (worker, limits) = (self.worker, self.limits);
        let lane = &mut self.lanes[at];
        let (mut lost, mut away) = (0, 0);
        let mut fail = |failed: Failed<'_>| {
            let Failed { to, id: request, flags, own, executed } = failed;
            let own = without_version(flags, own);
            let why = match executed {
                Executed::No => Why::Away,
                // It goes again after the one that was refused before it.
                Executed::Refused => Why::Unready,
                Executed::Maybe | Executed::Partly => Why::Lost,
            };
            *(if why == Why::Away { &mut away } else { &mut lost }) += 1;
            each(
                to,
                LaneId { lane: at as u16, request },
                Outcome::Failed { own, flags, node: &lane.peer.name, why },
            );
        };
        let resumes = resumes && lane.outbound.is_ended() && lane.is_wanted;
        match resumes {
            true => lane.outbound.resume(&mut fail),
            false => lane.outbound.lost(&mut fail),
        }
        lane.state = match resumes {
            true => LaneState::Resuming { ticks: limits.resume_ticks },
            false => LaneState::Away,
        };
        let counts = lane.peer.counts(worker);
        add(&counts.lost, lost);
        add(&counts.away, away);
        counts.in_flight.store(lane.outbound.in_flight() as u64, Ordering::Relaxed);
        lane.peer.set_open(worker, false);
        // The requests of these connections are refused now, or the next lane has room for them.
        self.woken.extend(std::mem::take(&mut lane.waiting));
        self.woken.extend(std::mem::take(&mut lane.ordered));
        // The peer's end of the next lane has refused nothing.
        lane.pauses = Pauses::default();
    }

    /// Ends the time in which requests wait for a connection: they fail.
    pub(crate) fn give_up(&mut self, lane: usize, each: &mut dyn FnMut(Waiter, LaneId, Outcome<'_>)) {
        if self.is_resuming(lane) || self.is_connecting(lane) {
            self.close(lane, false, each);
        }
    }

    /// Looks after a lane. Called every [`TICK`].
    pub(crate) fn tick(&mut self, at: usize) -> Pulse {
        let LaneLimits { silent_ticks, .. } = self.limits;
        let (lane, lease) = (&mut self.lanes[at], &self.lease);
        match &mut lane.state {
            LaneState::Connecting if !lane.is_wanted => Pulse::Silent,
            LaneState::Connecting | LaneState::Away => Pulse::Alive,
            LaneState::Resuming { ticks: 0 } => Pulse::Silent,
            LaneState::Resuming { ticks } => {
                *ticks -= 1;
                Pulse::Alive
            }
            LaneState::Open if lane.is_moved => Pulse::Unwanted,
            LaneState::Open if !lane.is_wanted && lane.outbound.in_flight() == 0 => Pulse::Unwanted,
            LaneState::Open => {
                lane.silent_ticks += 1;
                if lane.silent_ticks > silent_ticks {
                    return Pulse::Silent;
                }
                lane.ticks = lane.ticks.wrapping_add(1);
                if lane.silent_ticks >= PING_TICKS || lane.ticks.is_multiple_of(REPORT_TICKS) {
                    ping(lane, lease);
                }
                Pulse::Alive
            }
        }
    }
}

/// Returns the client's own bytes of a request, which follow the map's version in one to every node.
fn without_version(flags: Flags, own: &[u8]) -> &[u8] {
    if flags.has(Flags::EVERY) { own.get(VERSION_BYTES..).unwrap_or_default() } else { own }
}

/// Queues a PING, unless one is not answered.
fn ping(lane: &mut Lane, lease: &RingLease) {
    if lane.pinged.is_none() {
        lane.pinged = Some(boot_time());
        lane.outbound.ping(if lease.is_stalled() { NO_PROMISE } else { 0 });
    }
}
