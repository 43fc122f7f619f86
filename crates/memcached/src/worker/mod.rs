//! A worker: one thread, its share of the connections, and the event loop that drives them; also
//! the background threads. How a connection processes its bytes is in `conn`.
//!
//! ```text
//!  acceptor ── Command::Serve ──► epoll ──► slot 0 ─┐
//!  table ───── Command::Check ──►       ──► slot 1 ─┤ each connection is driven when its socket is ready,
//!                                       ──► …       ▼ with the worker's input and output buffers
//! ```
//! The loop waits by edge-triggered epoll: a request costs one wait, one receive and one send.
//! Connections that are ready together share all three where io_uring is available. Only the
//! acceptor's thread has a tokio runtime; there a connection is the unit, not a request.
//!
//! Connections that are ready at the same time are served in groups: the worker reads from all
//! connections of a group, prefetches the items that their first requests name into the processor's
//! cache, and then answers the connections one after the other. The cache misses of a group thus
//! overlap, like those of the keys of a multiget.
//!
//! Sockets report changes only, so the known readiness of each socket is kept in its connection
//! slot. A connection with more work than its budget allows is driven again after all others,
//! without waiting for its socket.
//!
//! | module | content |
//! |---|---|
//! | `slots` | the connections of the worker |
//! | `bundle` | connections that are ready together, through io_uring |
//! | `timing` | measures a sample of the loop's iterations |
//! | `tls`, `udp` | TLS connections; datagrams |
//! | `lanes`, `inbound` | connections to and from the other nodes of a ring |
//! | `maps` | puts maps of the ring in force |
//! | `pause` | stops between two requests for a hand-over |
//! | `drain` | answers the received requests, and ends |
//! | `background` | the watchdog, and the threads that sample, sweep and move memory |

mod background;
mod bundle;
mod drain;
mod inbound;
mod lanes;
mod maps;
mod pause;
#[cfg(test)]
mod ring_tests;
mod slots;
mod timing;
mod tls;
mod udp;

pub(crate) use background::BackgroundThread;
pub(crate) use bundle::BUNDLE_BYTES;
pub(crate) use lanes::ring_bytes_max;
pub(crate) use maps::adopt_items;
pub(crate) use slots::ConnectionSlot;
pub(crate) use udp::udp_bytes_max;

use crate::conn::{DriveResult, WorkerContext};
use crate::connections::{After, Command};
use crate::shared::Shared;
use crate::stats::Work;
use crate::stream::{AHEAD_BYTES, BUNDLE, FULL_BYTES, GROUP, INPUT_BYTES, Output, Readiness, Socket};
use crate::telemetry::counters::Counters;
use crate::telemetry::heartbeat::Activity;
use bundle::{Bundles, QueueingSocket};
use cached_core::KeyHash;
use cached_proto::text;
use lanes::{LANE_FIRST, WorkerLanes};
use rustix::event::{Timespec, epoll};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use timing::{Timing, record_iteration};
use tls::WorkerTls;
use udp::{UDP_FIRST, WorkerUdp};

/// The maximum number of events processed per wake-up.
const EVENTS_MAX: usize = 256;

/// The event number of the command queue's waker, which has no slot.
const WAKER: u64 = u64::MAX;

/// The bytes read from a connection before it is driven.
#[derive(Clone, Copy, Default)]
struct ReadAhead {
    /// The number of bytes read, 0 at the end of the stream; `None` if nothing was read from the
    /// connection.
    received: Option<usize>,
    /// The hash of the key in the first request.
    hash: Option<KeyHash>,
}

/// The state of one worker thread.
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    epoll: OwnedFd,
    slots: Vec<Option<ConnectionSlot>>,
    /// The state for bundles; `None` without io_uring.
    bundles: Option<Bundles>,
    /// The state for TLS connections; `None` without TLS.
    tls: Option<WorkerTls>,
    /// The state for datagrams; `None` without UDP.
    udp: Option<WorkerUdp>,
    /// The connections to other nodes; `None` without a ring.
    lanes: Option<Box<WorkerLanes>>,
    free: Vec<usize>,
    /// The slots of connections with more work.
    yielded: Vec<usize>,
    input: Box<[u8]>,
    /// The bytes read ahead from the connections of a group or a bundle.
    ahead: Box<[u8]>,
    output: Output,
    /// The remaining budget of this iteration for costly requests.
    work: Work,
    /// The counters of this worker, which `shared` refers to as well.
    counters: Arc<Counters>,
    /// The number of steps begun, by which the watchdog distinguishes one step from the next.
    steps: u64,
    timing: Timing,
    /// Whether a single ready connection is a bundle, too.
    is_always_bundled: bool,
    draining: bool,
    /// Whether to end without answering the received requests.
    aborted: bool,
}

/// Records the readiness that an event reports for a socket.
#[inline]
fn record(ready: &mut Readiness, flags: epoll::EventFlags) {
    let closed = flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
    ready.closed |= closed;
    ready.read |= closed || flags.contains(epoll::EventFlags::IN);
    ready.write |= closed || flags.contains(epoll::EventFlags::OUT);
    ready.urgent |= flags.contains(epoll::EventFlags::PRI);
}

impl Worker {
    /// Returns a worker without connections.
    ///
    /// # Errors
    /// If the system has no descriptor for the event loop.
    pub(crate) fn new(index: usize, shared: Arc<Shared>) -> io::Result<Worker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let waker = shared.connections.queue(index).waker();
        epoll::add(&epoll, waker, epoll::EventData::new_u64(WAKER), epoll::EventFlags::IN)?;
        let tls = shared.tls.clone().map(WorkerTls::new);
        let udp = WorkerUdp::new(index, &shared, &epoll)?;
        let lanes = WorkerLanes::new(&shared);
        let bundles = Bundles::open(index, shared.settings.io_uring_sockets_min);
        let is_always_bundled = bundles.as_ref().is_some_and(|bundles| bundles.sockets_min() == 1);
        let ahead = if bundles.is_some() { BUNDLE } else { GROUP };
        Ok(Worker {
            index,
            counters: shared.counters(index).clone(),
            shared,
            bundles,
            tls,
            udp,
            lanes,
            epoll,
            slots: Vec::new(),
            free: Vec::new(),
            yielded: Vec::new(),
            input: vec![0; INPUT_BYTES].into(),
            ahead: vec![0; ahead * AHEAD_BYTES].into(),
            output: Output::with_capacity(2 * FULL_BYTES),
            work: Work::new(),
            steps: 0,
            timing: Timing::new(index),
            is_always_bundled,
            draining: false,
            aborted: false,
        })
    }

    /// Serves until a command ends the worker, then answers the received requests.
    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.draining {
            let timeout = match (self.yielded.is_empty(), &self.tls) {
                (false, _) => Some(Timespec::default()),
                (true, None) => None,
                (true, Some(tls)) => tls.timeout(),
            };
            if let Some(tls) = &mut self.tls {
                tls.begin_iteration(!self.yielded.is_empty());
            }
            self.wait(&mut events, timeout);
            if self.tls.is_some() {
                self.follow_handshakes();
            }
            // Connections that have waited come first; connections with new events get the rest of
            // the work.
            self.work.renew();
            if !self.yielded.is_empty() {
                self.serve_yielded();
            }
        }
        self.drain(&mut events);
    }

    /// Serves the connections that have more work.
    #[inline(never)]
    fn serve_yielded(&mut self) {
        let mut yielded = std::mem::take(&mut self.yielded);
        // Rotated, because the first connection may use up the work for costly requests.
        yielded.rotate_left(1);
        for several in yielded.chunks(BUNDLE) {
            let is_bundle = self.is_bundle(several.iter().map(|number| *number as u64));
            for number in several.iter().copied() {
                let Some(Some(slot)) = self.slots.get_mut(number) else { continue };
                slot.is_listed = false;
                // One with unsent replies sends by itself: only that shows that its socket has failed.
                match is_bundle && !slot.connection.has_unsent() {
                    true => self.serve_with::<true>(number, None),
                    false => self.serve(number, None),
                }
            }
            if is_bundle {
                self.end_bundle();
            }
        }
        if self.lanes.is_some() {
            self.end_iteration();
        }
    }

    /// Waits for events and serves the connections concerned.
    #[inline]
    fn wait(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Timespec>) {
        self.counters.heartbeat.set_idle();
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Without this, the worker's clients would wait forever, and nothing would report the
            // reason.
            Err(error) => {
                self.shared.fail(format!("worker {} cannot wait for events: {error}", self.index));
                self.draining = true;
            }
        }
        if self.counters.next_timed.is_due(self.steps) {
            self.timing.begin_or_end(self.steps, &self.counters);
        }
        if let [event] = events[..]
            && event.data.u64() < UDP_FIRST
            && !self.is_always_bundled
        {
            self.record_event(event);
            self.serve_here(event.data.u64() as usize, None);
        } else {
            self.serve_several(events);
        }
    }

    /// Serves any number of events of any kind.
    #[inline(never)]
    fn serve_several(&mut self, events: &[epoll::Event]) {
        for several in events.chunks(BUNDLE) {
            match self.is_bundle(several.iter().map(|event| event.data.u64())) {
                true => self.serve_bundle(several),
                false => self.serve_groups(several),
            }
        }
        if events.iter().any(|event| event.data.u64() >= UDP_FIRST) {
            self.serve_others(events);
        }
    }

    /// Returns whether the connections with these numbers are served as a bundle. TLS records are read and
    /// written one connection at a time, so a bundle with one would only delay the first reply.
    fn is_bundle(&self, numbers: impl ExactSizeIterator<Item = u64> + Clone) -> bool {
        let min = self.bundles.as_ref().map_or(usize::MAX, Bundles::sockets_min);
        // A span describes one connection, whose reply has been sent.
        let is_traced = self.counters.next_timed.is_running() && self.shared.tracer.get().is_some();
        if numbers.len() < min || is_traced {
            return false;
        }
        let has_tls = |number: u64| {
            let slot = self.slots.get(number as usize).and_then(Option::as_ref);
            slot.is_some_and(|slot| slot.tls.is_some())
        };
        let is_plain = self.tls.is_none() || !numbers.clone().any(has_tls);
        is_plain && numbers.filter(|number| *number < UDP_FIRST).count() >= min
    }

    /// Serves the event sources without a connection slot: UDP sockets, lanes and the command queue.
    #[cold]
    fn serve_others(&mut self, events: &[epoll::Event]) {
        self.serve_lanes(events);
        for event in events {
            if (UDP_FIRST..LANE_FIRST).contains(&event.data.u64()) {
                self.serve_datagrams(event.data.u64());
            }
        }
        if events.iter().any(|event| event.data.u64() == WAKER) {
            self.begin_step(-1, Activity::Commands);
            self.run_commands();
        }
    }

    /// Records a new step in the heartbeat.
    #[inline]
    fn begin_step(&mut self, fd: i32, activity: Activity) {
        self.steps += 1;
        self.counters.heartbeat.begin(self.steps, fd, activity);
    }

    /// Serves the connections that are ready together.
    fn serve_groups(&mut self, events: &[epoll::Event]) {
        let mut groups = events.chunks(GROUP).peekable();
        while let Some(group) = groups.next() {
            // When there are many connections, each has left the processor's cache since its last
            // step.
            for event in groups.peek().copied().unwrap_or_default() {
                self.prefetch_slot(event.data.u64() as usize);
            }
            let mut ahead = [ReadAhead::default(); GROUP];
            for (at, event) in group.iter().enumerate() {
                self.record_event(*event);
                ahead[at] = self.receive_ahead(event.data.u64() as usize, at);
            }
            for hash in ahead.iter().filter_map(|ahead| ahead.hash) {
                self.shared.kv.prefetch_item(hash);
            }
            for (at, event) in group.iter().enumerate() {
                let received = ahead[at].received.map(|bytes| at * AHEAD_BYTES..at * AHEAD_BYTES + bytes);
                self.serve(event.data.u64() as usize, received);
            }
        }
    }

    /// Records the readiness that an event reports for a slot's socket.
    #[inline]
    fn record_event(&mut self, event: epoll::Event) {
        let (flags, number) = (event.flags, event.data.u64() as usize);
        // An event of a connection that was closed a moment ago may reach the next connection in
        // the same slot, which is then driven once too often. The waker has no slot.
        let Some(Some(slot)) = self.slots.get_mut(number) else { return };
        record(&mut slot.ready, flags);
    }

    /// Reads from a connection before it is driven, if it waits for a request, and prefetches the
    /// index line of the request's key.
    #[inline]
    fn receive_ahead(&mut self, number: usize, at: usize) -> ReadAhead {
        let Some(Some(slot)) = self.slots.get_mut(number) else { return ReadAhead::default() };
        let input = &mut self.ahead[at * AHEAD_BYTES..][..AHEAD_BYTES];
        let mut socket = Socket { fd: slot.socket.as_fd(), ready: &mut slot.ready };
        let received = match &mut slot.tls {
            None => slot.connection.receive_ahead(input, &mut socket),
            Some(stream) if stream.is_established => {
                let Some(tls) = &mut self.tls else { return ReadAhead::default() };
                slot.connection.receive_ahead(input, &mut tls.socket(socket, stream, &self.counters))
            }
            // Handshakes are processed one by one, and counted.
            Some(_) => None,
        };
        match received {
            Some(received) => self.read_ahead(received, at),
            None => ReadAhead::default(),
        }
    }

    /// Prefetches the index line of the key in the first of the requests that were read ahead.
    #[inline]
    fn read_ahead(&self, received: usize, at: usize) -> ReadAhead {
        let key = text::first_key(&self.ahead[at * AHEAD_BYTES..][..received]);
        let hash = key.map(|key| self.shared.kv.hash(key));
        if let Some(hash) = hash {
            self.shared.kv.prefetch_bucket(hash);
        }
        ReadAhead { received: Some(received), hash }
    }

    /// Prefetches a slot's cache lines.
    #[inline]
    fn prefetch_slot(&self, number: usize) {
        let Some(slot) = self.slots.get(number) else { return };
        let first_line = std::ptr::from_ref(slot).cast::<u8>();
        cached_core::prefetch(first_line);
        cached_core::prefetch(first_line.wrapping_add(64));
    }

    fn run_commands(&mut self) {
        let mut is_ticked = false;
        for command in self.shared.connections.queue(self.index).take() {
            match command {
                Command::Serve(accepted) => self.open_slot(accepted),
                Command::Relay(number) => self.serve(number, None),
                Command::Check(number) => self.check(number),
                Command::Pause(pause) => {
                    self.pause(pause);
                    if self.aborted {
                        return;
                    }
                }
                Command::Drain => self.draining = true,
                Command::Abort => (self.draining, self.aborted) = (true, true),
                // A worker that has stood still finds several ticks, of which one is enough.
                Command::Tick => is_ticked = true,
                command => self.run_lane_command(command),
            }
        }
        if is_ticked {
            self.tick_lanes();
        }
    }

    /// Drives one connection, with the bytes that were read ahead from it.
    #[inline(never)]
    fn serve(&mut self, number: usize, received: Option<Range<usize>>) {
        self.serve_here(number, received);
    }

    /// Like `serve`, but inlined: for a single event, the usual case, a call would cost a tenth of
    /// a get.
    #[inline(always)]
    fn serve_here(&mut self, number: usize, received: Option<Range<usize>>) {
        self.serve_with::<false>(number, received);
    }

    /// Drives one connection. If `IN_BUNDLE`, small replies are queued.
    #[inline(always)]
    fn serve_with<const IN_BUNDLE: bool>(&mut self, number: usize, received: Option<Range<usize>>) {
        let Some(Some(slot)) = self.slots.get_mut(number) else { return };
        self.steps += 1;
        let counters = &*self.counters;
        counters.heartbeat.begin(self.steps, slot.socket.as_raw_fd(), Activity::Serving);
        let mut context = WorkerContext {
            shared: &self.shared,
            counters,
            input: &mut self.input,
            received: received.map(|range| &self.ahead[range]),
            output: &mut self.output,
            work: &mut self.work,
            client: slot.socket.as_fd(),
        };
        let mut socket = Socket { fd: slot.socket.as_fd(), ready: &mut slot.ready };
        let (result, tls_bytes) = match (&mut slot.tls, &mut self.bundles) {
            (None, Some(bundles)) if IN_BUNDLE => {
                let mut socket = QueueingSocket { socket, slot: number, queue: &mut bundles.queue };
                (slot.connection.drive(&mut context, &mut socket), 0)
            }
            (None, _) => (slot.connection.drive(&mut context, &mut socket), 0),
            (Some(stream), _) => {
                let Some(tls) = &mut self.tls else { return };
                (tls.drive(&mut slot.connection, &mut context, socket, stream), stream.held_bytes())
            }
        };
        if !IN_BUNDLE && counters.next_timed.is_running() {
            let served = self.timing.served(counters);
            if let Some(tracer) = self.shared.tracer.get() {
                record_iteration(tracer, self.index, self.steps, &slot.connection.info, &served);
            }
        }
        // A watcher's replies precede the lines that the log thread sends to it. And other clients
        // do not wait for their replies while connections with much work are driven.
        let sends_first = IN_BUNDLE && (slot.connection.is_watcher() || result == DriveResult::Yield);
        if result == DriveResult::Close {
            if IN_BUNDLE && self.close_once_sent(number) {
                return;
            }
            return self.close_slot(number);
        }
        let after = slot.connection.update_info(&self.shared, tls_bytes);
        if sends_first {
            self.send_queued();
        }
        if after != After::Nothing {
            self.follow_up(after);
        }
        if result == DriveResult::Yield {
            self.list_yielded(number);
        }
    }

    /// Does what follows from the drive of a connection.
    #[cold]
    fn follow_up(&mut self, after: After) {
        if after == After::Short {
            self.close_requested();
        }
        self.list_lanes();
    }

    /// Lists a connection that has more work, if it still exists.
    #[cold]
    fn list_yielded(&mut self, number: usize) {
        if let Some(Some(slot)) = self.slots.get_mut(number)
            && !slot.is_listed
        {
            slot.is_listed = true;
            self.yielded.push(number);
        }
    }
}
