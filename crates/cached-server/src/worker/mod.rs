//! A worker: one thread, its share of the connections, and the event loop that wakes them.
//!
//! ```text
//!  acceptor ──mail──► epoll ──► seat 0 ─┐
//!  kick     ──mail──►       ──► seat 1 ─┤ each is driven when its socket says so,
//!                           ──► …       ▼ with the worker's input and output buffers
//! ```
//! The loop is epoll with edges, and nothing else: a request costs one wait, one receive and one send. (The tokio runtime that was here
//! took twice the instructions of everything else for the same three calls; it still serves the acceptor's
//! thread, where a connection, not a request, is the unit.)
//!
//! Connections that are ready together are served in groups: all of a group are read from, the items that their first requests
//! ask for are fetched into the processor's cache, and then one after the other is answered. Each lookup would otherwise wait for
//! memory by itself; so the waits of a group overlap, as those of a multiget's keys do.
//!
//! Sockets tell of changes only, so what is known of each is kept with its seat. A seat that has more to do than its turn
//! allows comes again after all others, without waiting for its socket.

mod cores;
mod mailbox;
mod pulse;
mod watchdog;

pub(crate) use cores::pin;
pub(crate) use mailbox::{Mail, Mailbox, Newcomer};
pub(crate) use pulse::{Doing, Pulse};
pub(crate) use watchdog::Watchdog;

use crate::conn::output::{FULL_BYTES, Output};
use crate::conn::transport::{Draining, Readiness, Socket};
use crate::conn::{Connection, Desk, INPUT_BYTES, Turn};
use crate::shared::Shared;
use cached_core::KeyHash;
use cached_proto::text;
use rustix::event::{Timespec, epoll};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long clients have at shutdown to take the replies to what they had sent. Who goes on sending is served no longer than that.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(2);

/// Events taken at once.
const EVENTS_MAX: usize = 256;

/// Connections in a group: enough for their waits to overlap, and so few that the first reply is not late.
const GROUP: usize = 4;

/// Bytes read ahead of a connection: a value of 4 KiB with its command. Of larger ones the rest is better read straight into its place,
/// and buffers that are filled to the end by every sender are memory.
const AHEAD_BYTES: usize = (4 << 10) + (1 << 9);

/// A worker's input buffers.
pub(crate) const INPUT_BUFFERS_BYTES: usize = INPUT_BYTES + GROUP * AHEAD_BYTES;

/// The mailbox's number among the seats.
const MAILBOX: u64 = u64::MAX;

/// A connection and its socket: two cache lines, all that a wake-up touches of a connection.
#[repr(align(64))]
pub(crate) struct Seat {
    socket: OwnedFd,
    ready: Readiness,
    connection: Connection,
    /// It is listed in `Worker::again`.
    listed: bool,
}

const _: () = assert!(size_of::<Option<Seat>>() == 128);

/// What is known of a connection before its turn.
#[derive(Clone, Copy, Default)]
struct Ahead {
    /// Bytes read, or 0 where there will be no more; `None` if it has not been read from.
    received: Option<usize>,
    /// Of the key of its first request.
    hash: Option<KeyHash>,
}

/// What belongs to one thread.
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    epoll: OwnedFd,
    seats: Vec<Option<Seat>>,
    free: Vec<usize>,
    /// Seats that have more to do.
    again: Vec<usize>,
    input: Box<[u8]>,
    /// What is read ahead of the connections of a group.
    ahead: Box<[u8]>,
    output: Output,
    /// Turns given, by which the watchdog tells one from the next.
    turns: u64,
    stopping: bool,
    /// End without answering what has been received.
    abandoned: bool,
}

impl Worker {
    /// A worker without connections.
    ///
    /// # Errors
    /// When the system has no descriptor for its event loop.
    pub(crate) fn new(index: usize, shared: Arc<Shared>, mailbox: Arc<Mailbox>) -> io::Result<Worker> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, mailbox.bell(), epoll::EventData::new_u64(MAILBOX), epoll::EventFlags::IN)?;
        Ok(Worker {
            index,
            shared,
            mailbox,
            epoll,
            seats: Vec::new(),
            free: Vec::new(),
            again: Vec::new(),
            input: vec![0; INPUT_BYTES].into(),
            ahead: vec![0; GROUP * AHEAD_BYTES].into(),
            output: Output::with_capacity(2 * FULL_BYTES),
            turns: 0,
            stopping: false,
            abandoned: false,
        })
    }

    /// Serves until told to stop, then finishes what has been received.
    pub(crate) fn run(&mut self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while !self.stopping {
            let timeout = (!self.again.is_empty()).then(Timespec::default);
            self.wait(&mut events, timeout);
            for seat in std::mem::take(&mut self.again) {
                if let Some(Some(seat)) = self.seats.get_mut(seat) {
                    seat.listed = false;
                }
                self.visit(seat, None);
            }
        }
        self.finish(&mut events);
    }

    /// Waits for events and gives each seat concerned its turn.
    #[inline]
    fn wait(&mut self, events: &mut Vec<epoll::Event>, timeout: Option<Timespec>) {
        self.shared.counters(self.index).pulse.rest();
        events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // Its clients would wait for ever, and nobody would know why.
            Err(error) => {
                self.shared.fail(format!("worker {} cannot wait for events: {error}", self.index));
                self.stopping = true;
            }
        }
        if let [event] = events[..] {
            self.note(event);
            self.visit(event.data.u64() as usize, None);
        } else {
            self.serve_groups(events);
        }
        if events.iter().any(|event| event.data.u64() == MAILBOX) {
            self.begin(-1, Doing::Mail);
            self.read_mail();
        }
    }

    /// Notes for the watchdog whose turn it is.
    #[inline]
    fn begin(&mut self, fd: i32, doing: Doing) {
        self.turns += 1;
        self.shared.counters(self.index).pulse.begin(self.turns, fd, doing);
    }

    /// Serves what is ready together.
    fn serve_groups(&mut self, events: &[epoll::Event]) {
        let mut groups = events.chunks(GROUP).peekable();
        while let Some(group) = groups.next() {
            // With many connections each is cold when its turn comes.
            for event in groups.peek().copied().unwrap_or_default() {
                self.prefetch(event.data.u64() as usize);
            }
            let mut ahead = [Ahead::default(); GROUP];
            for (at, event) in group.iter().enumerate() {
                self.note(*event);
                ahead[at] = self.receive_ahead(event.data.u64() as usize, at);
            }
            for hash in ahead.iter().filter_map(|ahead| ahead.hash) {
                self.shared.kv.prefetch_item(hash);
            }
            for (at, event) in group.iter().enumerate() {
                let received = ahead[at].received.map(|bytes| at * AHEAD_BYTES..at * AHEAD_BYTES + bytes);
                self.visit(event.data.u64() as usize, received);
            }
        }
    }

    /// Notes what an event says of its seat's socket.
    #[inline]
    fn note(&mut self, event: epoll::Event) {
        let (flags, number) = (event.flags, event.data.u64() as usize);
        // An event of a seat that was left a moment ago may meet a newcomer there: it looks once too often. The mailbox has no seat.
        let Some(Some(seat)) = self.seats.get_mut(number) else { return };
        let closed =
            flags.intersects(epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR);
        seat.ready.closed |= closed;
        seat.ready.read |= closed || flags.contains(epoll::EventFlags::IN);
        seat.ready.write |= closed || flags.contains(epoll::EventFlags::OUT);
        seat.ready.urgent |= flags.contains(epoll::EventFlags::PRI);
    }

    /// Reads from a connection before its turn, if it waits for a request, and asks for the line of the index where that will look.
    #[inline]
    fn receive_ahead(&mut self, number: usize, at: usize) -> Ahead {
        let Some(Some(seat)) = self.seats.get_mut(number) else { return Ahead::default() };
        let input = &mut self.ahead[at * AHEAD_BYTES..][..AHEAD_BYTES];
        let mut socket = Socket { fd: seat.socket.as_fd(), ready: &mut seat.ready };
        let Some(received) = seat.connection.receive_ahead(input, &mut socket) else {
            return Ahead::default();
        };
        let key = text::first_key(&input[..received]);
        let hash = key.map(|key| self.shared.kv.hash(key));
        if let Some(hash) = hash {
            self.shared.kv.prefetch_bucket(hash);
        }
        Ahead { received: Some(received), hash }
    }

    /// Asks the processor for a seat's cache lines.
    #[inline]
    fn prefetch(&self, number: usize) {
        let Some(seat) = self.seats.get(number) else { return };
        let at = std::ptr::from_ref(seat).cast::<i8>();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: a prefetch is only a hint; it never faults, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(at);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64));
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = at;
    }

    fn read_mail(&mut self) {
        for mail in self.mailbox.take() {
            match mail {
                Mail::Connection(newcomer) => self.welcome(newcomer),
                Mail::Look(number) => {
                    if let Some(Some(seat)) = self.seats.get(number)
                        && seat.connection.info.is_kicked()
                    {
                        self.leave(number);
                    }
                }
                Mail::Shutdown => self.stopping = true,
                Mail::Abandon => (self.stopping, self.abandoned) = (true, true),
            }
        }
    }

    fn welcome(&mut self, newcomer: Newcomer) {
        let Newcomer { fd, info } = newcomer;
        let number = self.free.pop().unwrap_or_else(|| {
            self.seats.push(None);
            self.seats.len() - 1
        });
        let interest = epoll::EventFlags::IN
            | epoll::EventFlags::PRI
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        if let Err(error) =
            epoll::add(&self.epoll, fd.as_fd(), epoll::EventData::new_u64(number as u64), interest)
        {
            tracing::warn!(cause = %error, "cannot serve a connection");
            self.shared.connections.remove(&info);
            self.free.push(number);
            return;
        }
        tracing::debug!(fd = info.fd, "new connection");
        info.set_seat(number);
        let connection = Connection::new(info);
        self.seats[number] = Some(Seat { socket: fd, ready: Readiness::NEW, connection, listed: false });
    }

    /// Gives one connection its turn, with what has been read ahead for it.
    #[inline]
    fn visit(&mut self, number: usize, received: Option<Range<usize>>) {
        let Some(Some(seat)) = self.seats.get_mut(number) else { return };
        self.turns += 1;
        let counters = self.shared.counters(self.index);
        counters.pulse.begin(self.turns, seat.socket.as_raw_fd(), Doing::Serving);
        let mut desk = Desk {
            shared: &self.shared,
            counters,
            input: &mut self.input,
            received: received.map(|range| &self.ahead[range]),
            output: &mut self.output,
            client: seat.socket.as_fd(),
        };
        let mut socket = Socket { fd: seat.socket.as_fd(), ready: &mut seat.ready };
        let turn = seat.connection.drive(&mut desk, &mut socket);
        if turn == Turn::Close {
            return self.leave(number);
        }
        seat.connection.settle(&self.shared);
        if turn == Turn::Again && !seat.listed {
            seat.listed = true;
            self.again.push(number);
        }
    }

    /// Strikes the connection out and closes its socket.
    #[cold]
    fn leave(&mut self, number: usize) {
        if let Some(seat) = self.seats.get_mut(number).and_then(Option::take) {
            self.shared.connections.remove(&seat.connection.info);
            self.shared.watch.connection_closed(&seat.connection.info);
            tracing::debug!(fd = seat.connection.info.fd, "connection closed");
            self.free.push(number);
        }
    }

    /// At shutdown: reads what has arrived, answers, and closes whoever has taken the answers, until all are gone or the time is over,
    /// whatever clients do.
    fn finish(&mut self, events: &mut Vec<epoll::Event>) {
        self.read_mail();
        let end = Instant::now() + DRAIN_TIME;
        while !self.abandoned && self.shared.defect.first().is_none() {
            let more = self.drain_all(end);
            let left = end.saturating_duration_since(Instant::now());
            if self.seats.iter().all(Option::is_none) {
                return;
            }
            if left.is_zero() {
                tracing::info!("clients that do not read their replies, or go on sending, are cut off");
                break;
            }
            self.shared.counters(self.index).pulse.rest();
            events.clear();
            // Who has more to do is served without waiting for the others.
            let wait = if more { Duration::ZERO } else { left };
            let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
            // Whatever it says, every seat is looked at again.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout));
            self.read_mail();
        }
        (0..self.seats.len()).for_each(|number| self.leave(number));
    }

    /// Gives every connection one turn, until `end`; whether any has more to do.
    fn drain_all(&mut self, end: Instant) -> bool {
        let mut more = false;
        for number in 0..self.seats.len() {
            more |= self.drain(number);
            // A turn is bounded, a round of ten thousand is not.
            if Instant::now() >= end {
                return more;
            }
        }
        more
    }

    /// Gives one connection a turn at shutdown; whether it has more to do.
    fn drain(&mut self, number: usize) -> bool {
        let Some(Some(seat)) = self.seats.get_mut(number) else { return false };
        seat.ready.write = true;
        self.turns += 1;
        let counters = self.shared.counters(self.index);
        counters.pulse.begin(self.turns, seat.socket.as_raw_fd(), Doing::Draining);
        let mut desk = Desk {
            shared: &self.shared,
            counters,
            input: &mut self.input,
            received: None,
            output: &mut self.output,
            client: seat.socket.as_fd(),
        };
        let socket = Socket { fd: seat.socket.as_fd(), ready: &mut seat.ready };
        match seat.connection.drive(&mut desk, &mut Draining(socket)) {
            Turn::Again => return true,
            Turn::Wait => {}
            Turn::Close => self.leave(number),
        }
        false
    }

    /// Ends all connections without looking at anything else, after a panic that may have left anything half-done.
    pub(crate) fn hang_up(&self) {
        for seat in self.seats.iter().flatten() {
            // One that has gone already needs no word.
            let _ = rustix::net::shutdown(seat.socket.as_fd(), rustix::net::Shutdown::Both);
        }
    }
}
