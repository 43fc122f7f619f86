//! One load thread: its connections in one epoll set, driven by a closed or an open loop.
//!
//! ```text
//!              start            warm-up over                    measured span over      all answered
//!                |  not counted  |            counted            |      drained          |
//!  closed loop   |               | by the time of the reply      |                       |
//!  open loop     |               | by the due time of the request: drained ones that were due before count too
//! ```
//! CPU time is read at both ends of the counted span by the first thread itself, and divided by the
//! number of replies in between.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use super::connection::Connection;
use super::requests::RequestMaker;
use super::schedule::Schedule;
use super::tally::Tally;
use super::{Arrival, Limit, LoadSpec, part};
use crate::process::CpuClock;

/// Events taken per call.
const EVENTS_MAX: usize = 256;
/// Bytes read per call.
const READ_BYTES: usize = 256 << 10;
/// The longest sleep, so that the ends of spans and stalls are noticed.
const SLEEP_NS_MAX: u64 = 50_000_000;
/// The maximum number of requests in progress on one connection in an open loop. Further requests
/// wait, which counts towards their latency.
const OPEN_PENDING_MAX: usize = 128;
/// Longest wait for outstanding replies after the measured span.
const DRAIN_NS_MAX: u64 = 5_000_000_000;

/// The results of one thread.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) tally: Tally,
    /// Length of the counted span.
    pub(super) window_ns: u64,
    /// CPU time of the server in the counted span; only the first thread has it.
    pub(super) server_cpu_ns: Option<u64>,
    /// CPU time of this thread in the counted span.
    pub(super) client_cpu_ns: u64,
    /// Requests due in the counted span that were never answered (open loop).
    pub(super) unanswered: u64,
}

/// The phase of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Warmup,
    Counted,
    Drain,
}

/// Readings at the start or end of the counted span.
#[derive(Clone, Copy, Debug)]
struct Edge {
    at_ns: u64,
    server_cpu_ns: Option<u64>,
    client_cpu_ns: u64,
}

pub(super) struct Worker<'a> {
    spec: &'a LoadSpec,
    thread: usize,
    connections: Vec<Connection>,
    requests: RequestMaker,
    epoll: OwnedFd,
    events: Vec<Event>,
    buffer: Vec<u8>,
    base: Instant,
    /// Empty in all threads but the first.
    server_clocks: &'a [CpuClock],
    failed: &'a AtomicBool,
    tally: Tally,
    phase: Phase,
    /// The first and last time of the counted span, in nanoseconds since `base`.
    window: (u64, u64),
    opened: Option<Edge>,
    closed: Option<Edge>,
    /// The requests still to be sent, if the run has a fixed number.
    requests_left: u64,
    pending_count: usize,
    last_reply_ns: u64,
}

impl<'a> Worker<'a> {
    pub(super) fn new(
        spec: &'a LoadSpec,
        thread: usize,
        connections: Vec<Connection>,
        requests: RequestMaker,
        base: Instant,
        server_clocks: &'a [CpuClock],
        failed: &'a AtomicBool,
    ) -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (place, connection) in connections.iter().enumerate() {
            epoll::add(&epoll, connection, EventData::new_u64(place as u64), EventFlags::IN)?;
        }
        let (window, requests_left) = match spec.limit {
            Limit::Time { warmup, measured } => {
                let start = warmup.as_nanos() as u64;
                ((start, start + measured.as_nanos() as u64), u64::MAX)
            }
            Limit::Requests(count) => ((0, u64::MAX), part(count, thread, spec.threads).count() as u64),
        };
        Ok(Self {
            spec,
            thread,
            connections,
            requests,
            epoll,
            events: Vec::with_capacity(EVENTS_MAX),
            buffer: vec![0; READ_BYTES],
            base,
            server_clocks,
            failed,
            tally: Tally::new()?,
            phase: Phase::Warmup,
            window,
            opened: None,
            closed: None,
            requests_left,
            pending_count: 0,
            last_reply_ns: 0,
        })
    }

    pub(super) fn run(mut self) -> Result<Outcome> {
        let unanswered = match self.spec.arrival {
            Arrival::Closed => self.run_closed()?,
            Arrival::Open { .. } => self.run_open()?,
        };
        let (opened, closed) = match (self.opened, self.closed) {
            (Some(opened), Some(closed)) => (opened, closed),
            _ => bail!("the run ended before its counted span"),
        };
        let server_cpu_ns = closed
            .server_cpu_ns
            .zip(opened.server_cpu_ns)
            .map(|(after, before)| after.saturating_sub(before));
        Ok(Outcome {
            tally: self.tally,
            window_ns: closed.at_ns - opened.at_ns,
            server_cpu_ns,
            client_cpu_ns: closed.client_cpu_ns - opened.client_cpu_ns,
            unanswered,
        })
    }

    fn run_closed(&mut self) -> Result<u64> {
        let now_ns = self.now_ns();
        self.update_phase(now_ns)?;
        for place in 0..self.connections.len() {
            self.send_batch(place)?;
        }
        let mut drain_end_ns = u64::MAX;
        loop {
            let now_ns = self.now_ns();
            self.update_phase(now_ns)?;
            if self.phase == Phase::Drain && drain_end_ns == u64::MAX {
                drain_end_ns = now_ns + DRAIN_NS_MAX;
            }
            if self.pending_count == 0 && (self.phase == Phase::Drain || self.requests_left == 0) {
                if self.closed.is_none() {
                    self.closed = Some(self.edge(now_ns)?);
                }
                return Ok(0);
            }
            if now_ns > drain_end_ns {
                bail!(
                    "{} requests not answered {} s after the end",
                    self.pending_count,
                    DRAIN_NS_MAX / 1_000_000_000
                );
            }
            self.check_stall(now_ns)?;
            let deadline_ns = if self.phase == Phase::Warmup { self.window.0 } else { self.window.1 };
            let edge_ns =
                if self.phase == Phase::Drain { SLEEP_NS_MAX } else { deadline_ns.saturating_sub(now_ns) };
            self.wait(edge_ns.min(SLEEP_NS_MAX))?;
            for event in 0..self.events.len() {
                let place = self.events[event].data.u64() as usize;
                self.serve_event(place, self.events[event].flags)?;
                if self.connections[place].pending_count() == 0 && self.phase != Phase::Drain {
                    self.send_batch(place)?;
                }
            }
        }
    }

    fn run_open(&mut self) -> Result<u64> {
        let Arrival::Open { requests_per_s, kind } = self.spec.arrival else { return Ok(0) };
        let arrivals_per_s = requests_per_s / self.spec.pipeline as f64 / self.spec.threads as f64;
        let phase = self.thread as f64 / self.spec.threads as f64;
        let seed = self.spec.seed.rotate_left(32) ^ self.thread as u64;
        let mut schedule = Schedule::new(kind, arrivals_per_s, phase, seed);
        let mut next_place = 0;
        loop {
            let now_ns = self.now_ns();
            self.update_phase(now_ns)?;
            self.check_stall(now_ns)?;
            while schedule.next_ns() <= now_ns && schedule.next_ns() < self.window.1 {
                let Some(place) = self.free_connection(next_place) else { break };
                next_place = (place + 1) % self.connections.len();
                self.send_to(place, self.spec.pipeline, schedule.next_ns())?;
                schedule.advance();
            }
            let all_sent = schedule.next_ns() >= self.window.1;
            if all_sent && self.phase == Phase::Drain && self.pending_count == 0 {
                return Ok(0);
            }
            if now_ns > self.window.1.saturating_add(DRAIN_NS_MAX) {
                return Ok(self.give_up(&mut schedule, now_ns));
            }
            // The worker never sleeps, because a wake-up would cost more than the latencies
            // measured here.
            self.wait(0)?;
            for event in 0..self.events.len() {
                self.serve_event(self.events[event].data.u64() as usize, self.events[event].flags)?;
            }
        }
    }

    /// Returns the next connection from `start` on that can accept more.
    fn free_connection(&self, start: usize) -> Option<usize> {
        let count = self.connections.len();
        let places = (start..count).chain(0..start);
        let mut free = places.filter(|&place| {
            self.connections[place].pending_count() + self.spec.pipeline
                <= OPEN_PENDING_MAX.max(self.spec.pipeline)
        });
        free.next()
    }

    /// Records the latency so far of requests that were never answered, and counts them.
    fn give_up(&mut self, schedule: &mut Schedule, now_ns: u64) -> u64 {
        let (start_ns, end_ns) = self.window;
        let mut unanswered = 0;
        let pending: Vec<u64> = self
            .connections
            .iter()
            .flat_map(Connection::pending_started_ns)
            .filter(|&due| due >= start_ns)
            .collect();
        for due_ns in pending {
            self.tally.record(now_ns - due_ns);
            unanswered += 1;
        }
        while schedule.next_ns() < end_ns {
            if schedule.next_ns() >= start_ns {
                for _ in 0..self.spec.pipeline {
                    self.tally.record(now_ns - schedule.next_ns());
                }
                unanswered += self.spec.pipeline as u64;
            }
            schedule.advance();
        }
        unanswered
    }

    fn send_batch(&mut self, place: usize) -> Result<()> {
        let count = self.requests_left.min(self.spec.pipeline as u64);
        if count > 0 {
            self.requests_left -= count;
            self.send_to(place, count as usize, self.now_ns())?;
        }
        Ok(())
    }

    fn send_to(&mut self, place: usize, count: usize, started_ns: u64) -> Result<()> {
        self.connections[place].push(&mut self.requests, &self.spec.keys, count, started_ns);
        self.pending_count += count;
        self.send(place, false)
    }

    /// Sends as much as the socket accepts, and requests a wake-up if the socket is full
    /// (`was_full`: it was full before).
    fn send(&mut self, place: usize, was_full: bool) -> Result<()> {
        let connection = &mut self.connections[place];
        let is_full = connection.send().with_context(|| format!("connection {place}"))?;
        if is_full || was_full {
            let flags = if is_full { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(&self.epoll, &*connection, EventData::new_u64(place as u64), flags)?;
        }
        Ok(())
    }

    fn serve_event(&mut self, place: usize, flags: EventFlags) -> Result<()> {
        if flags.contains(EventFlags::OUT) {
            self.send(place, true)?;
        }
        if !flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR) {
            return Ok(());
        }
        let (tally, phase, window, base) = (&mut self.tally, self.phase, self.window, self.base);
        let is_open_loop = matches!(self.spec.arrival, Arrival::Open { .. });
        let mut now_ns = None;
        let mut done_count = 0;
        self.connections[place]
            .receive(&mut self.buffer, &self.spec.keys, &mut |done| {
                let now_ns = *now_ns.get_or_insert_with(|| nanoseconds_since(base));
                done_count += 1;
                if phase == Phase::Counted {
                    tally.count(done);
                }
                let is_recorded = match is_open_loop {
                    true => (window.0..window.1).contains(&done.started_ns),
                    false => phase == Phase::Counted,
                };
                if is_recorded {
                    tally.record(now_ns.saturating_sub(done.started_ns));
                }
            })
            .with_context(|| format!("connection {place}"))?;
        self.pending_count -= done_count;
        self.last_reply_ns = now_ns.unwrap_or(self.last_reply_ns);
        Ok(())
    }

    fn wait(&mut self, timeout_ns: u64) -> Result<()> {
        self.events.clear();
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout_ns.min(SLEEP_NS_MAX).cast_signed() };
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn update_phase(&mut self, now_ns: u64) -> Result<()> {
        if self.phase == Phase::Warmup && now_ns >= self.window.0 {
            self.opened = Some(self.edge(now_ns)?);
            self.phase = Phase::Counted;
        }
        if self.phase == Phase::Counted && now_ns >= self.window.1 {
            self.closed = Some(self.edge(now_ns)?);
            self.phase = Phase::Drain;
        }
        Ok(())
    }

    fn edge(&self, at_ns: u64) -> Result<Edge> {
        let server_cpu_ns = CpuClock::sum_ns(self.server_clocks)?;
        Ok(Edge { at_ns, server_cpu_ns, client_cpu_ns: CpuClock::of_this_thread().now_ns()? })
    }

    fn check_stall(&self, now_ns: u64) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) {
            bail!("stopped because another load thread failed");
        }
        let silent_ns = now_ns.saturating_sub(self.last_reply_ns);
        if self.pending_count > 0 && u128::from(silent_ns) > self.spec.stall_limit.as_nanos() {
            bail!("no reply for {} ms, {} requests open", silent_ns / 1_000_000, self.pending_count);
        }
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        nanoseconds_since(self.base)
    }
}

fn nanoseconds_since(base: Instant) -> u64 {
    base.elapsed().as_nanos() as u64
}
