//! One connection: the negotiation, then receiving requests and sending replies as they become
//! ready.
//!
//! On each wake-up, the connection answers the requests that have become ready, executes every
//! complete request, and does one write and one read. A request whose reply is ready at once is
//! answered in the same write. Reading stops while the connection has its limit of requests or
//! bytes outstanding.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use cached_metrics::Counter;
use connection::{Grant, LOOK_TIME, Output, Peer, Stream};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::End;
use super::execute::{InFlight, Step, cost_bytes};
use super::input::Input;
use super::negotiate::Negotiating;
use super::{Counts, Shared};
use crate::export::Export;
use crate::protocol::{Command, Request, Session};

/// With this many bytes queued, sending comes before executing more requests, so that the client
/// works on the first replies while the server works on the next.
const SEND_BYTES: usize = 256 * 1024;
/// The number of reads of a connection before other tasks of its thread run.
const ROUNDS_MAX: u32 = 16;
/// The longest time for closing a connection: sending the queued bytes, and receiving bytes that
/// still arrive.
const LINGER: Duration = Duration::from_secs(1);

/// Serves a connection until its end.
pub(super) async fn run(shared: &Arc<Shared>, stream: Stream, peer: Peer) -> End {
    // Declared first so that it is dropped last: the connection's memory counts until it is freed.
    let mut grant;
    let mut ending = shared.ending.subscribe();
    let share_bytes = shared.budget.share_bytes();
    let (mut input, mut output) = (Input::new(Arc::clone(&shared.pool), share_bytes), Output::default());
    let negotiating = Negotiating { shared, input: &mut input, output: &mut output };
    let negotiated = tokio::select! {
        negotiated = timeout(shared.config.negotiation_timeout, negotiating.run(stream)) => negotiated,
        _ = ending.wait_for(|is_ending| *is_ending) => return End::ShuttingDown,
    };
    let (stream, export, session) = match negotiated {
        Ok(Ok(negotiated)) => negotiated,
        Ok(Err(end)) => return end,
        Err(_) => return End::Slow,
    };
    tracing::debug!(
        %peer, structured = session.is_structured, contexts = session.contexts.len(),
        "export opened",
    );
    grant = match shared.budget.join(shared.config.connection_bytes_max, false) {
        Ok(grant) => grant,
        Err(error) => return io::Error::other(error.to_string()).into(),
    };
    let mut open = Transmission {
        grant: &mut grant,
        is_registered: false,
        stall: Box::pin(sleep(shared.config.stall_timeout)),
        progress_at: Instant::now(),
        has_progressed: false,
        moved_bytes: 0,
        unreceived_bytes: 0,
        in_flight: FuturesUnordered::new(),
        in_flight_bytes: 0,
        is_ended: false,
        is_paused: false,
        counts: Counts::default(),
        shared,
        peer,
        stream,
        input: &mut input,
        output: &mut output,
        export,
        session: Arc::new(session),
    };
    let end = {
        // Polled outside of the task's cooperative budget. If that were used up, the poll would not
        // register the waker.
        let mut ending = pin!(unconstrained(ending.wait_for(|is_ending| *is_ending)));
        let mut is_waited_for = false;
        poll_fn(|cx| {
            if let Poll::Ready(end) = open.poll(cx) {
                return Poll::Ready(end);
            }
            // The first poll registers the waker; until the wake-up it is enough to read the value.
            let is_due = !std::mem::replace(&mut is_waited_for, true) || *shared.ending.borrow();
            if is_due { ending.as_mut().poll(cx).map(|_| End::ShuttingDown) } else { Poll::Pending }
        })
        .await
    };
    open.finish(&end).await;
    end
}

/// A connection that has selected its export.
pub(super) struct Transmission<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) peer: Peer,
    stream: Stream,
    input: &'a mut Input,
    pub(super) output: &'a mut Output,
    pub(super) export: Arc<dyn Export>,
    pub(super) session: Arc<Session>,
    in_flight: FuturesUnordered<InFlight>,
    /// The bytes of the requests in flight: payloads that have arrived, and data to be returned.
    in_flight_bytes: u64,
    grant: &'a mut Grant,
    /// Whether the task is registered for changes of the grant. Its waker stays the same.
    is_registered: bool,
    /// Whether the client has asked to close the connection.
    is_ended: bool,
    /// Whether the next request waits for memory rather than for the client.
    is_paused: bool,
    /// When the client last sent or received bytes, or last had nothing to do.
    progress_at: Instant,
    /// Whether bytes have moved since then.
    has_progressed: bool,
    /// The bytes that the client has sent and received.
    moved_bytes: u64,
    /// The bytes that the client had not received yet at the last look, as far as the system knows.
    unreceived_bytes: u64,
    stall: Pin<Box<Sleep>>,
    pub(super) counts: Counts,
}

/// The reason why no more requests are executed now.
enum Pause {
    /// The next request has not arrived completely.
    Arrival,
    /// The connection has its limit outstanding.
    Room,
}

impl Transmission<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        if !std::mem::replace(&mut self.is_registered, true) {
            self.grant.register(cx.waker());
        }
        let end = self.poll_rounds(cx);
        let held_bytes = self.held_bytes();
        self.grant.follow(cx.waker(), held_bytes);
        self.shared.counters.zip(&mut self.counts, Counter::take);
        match end {
            Poll::Ready(Ok(())) => {
                // Lets other tasks of the thread run first.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Poll::Ready(Err(end)) => Poll::Ready(end),
            Poll::Pending => self.poll_stall(cx),
        }
    }

    /// Returns the bytes of memory that the connection holds while it waits for the client to send
    /// or receive.
    fn client_bytes(&self) -> u64 {
        self.input.receiving_bytes() + self.output.held_bytes() as u64
    }

    /// Returns the bytes of memory that the connection holds.
    fn held_bytes(&self) -> u64 {
        self.in_flight_bytes + self.client_bytes()
    }

    /// Is ready once the connection has to be closed: because the client has made no progress for
    /// too long while the server waited for it, or because it is the slowest client and others need
    /// the memory that it holds.
    fn poll_stall(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let is_in_request = !self.is_ended && !self.is_paused && self.input.is_in_request();
        if self.output.pending_bytes() == 0 && !is_in_request {
            self.grant.end_turn();
            return Poll::Pending;
        }
        let timeout = self.shared.config.stall_timeout;
        // At least two looks, because the second one is the first that has a value to compare with.
        let look_time = LOOK_TIME.min(timeout / 2);
        if std::mem::take(&mut self.has_progressed) {
            self.progress_at = Instant::now();
        }
        let (shared, client_bytes) = (self.shared, self.client_bytes());
        if self.grant.begin_turn(|| shared.at(Instant::now()), client_bytes, self.moved_bytes) {
            // So far, the client has been waiting for the server.
            self.progress_at = Instant::now();
            self.stall.as_mut().reset(self.progress_at + look_time);
        }
        while self.stall.as_mut().poll(cx).is_ready() {
            let (now, client_bytes) = (Instant::now(), self.client_bytes());
            self.output.unpin();
            let unreceived_bytes = self.stream.unreceived_bytes().unwrap_or(0);
            if std::mem::replace(&mut self.unreceived_bytes, unreceived_bytes) > unreceived_bytes {
                // The client is still receiving, though the socket takes no more bytes before a large
                // part of its buffer is empty.
                self.progress_at = now;
            }
            if now >= self.progress_at + timeout {
                return Poll::Ready(End::Stalled);
            }
            if self.grant.look(shared.at(now), client_bytes, self.moved_bytes).1 {
                return Poll::Ready(End::Slowest);
            }
            self.stall.as_mut().reset((self.progress_at + timeout).min(now + look_time));
        }
        Poll::Pending
    }

    /// Counts bytes that the client has sent or received.
    fn note_progress(&mut self, bytes: usize) {
        self.has_progressed = true;
        self.moved_bytes += bytes as u64;
    }

    /// Does as many rounds as possible. Pending once there is nothing left to do; ready if there
    /// may be more to do, or at the end of the connection.
    fn poll_rounds(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        for _ in 0..ROUNDS_MAX {
            self.answer_ready(cx);
            let pause = self.execute_requests(cx)?;
            // Polls for the first time those that have just started.
            self.answer_ready(cx);
            let is_sent = self.flush(cx)?;
            if self.is_ended {
                let is_over = is_sent && self.in_flight.is_empty();
                return if is_over { Poll::Ready(Err(End::Ended)) } else { Poll::Pending };
            }
            self.is_paused = matches!(pause, Pause::Room);
            if self.is_paused {
                // The flush may have freed memory. If it has not, one of the wakers of the
                // outstanding work is set.
                if !self.has_room_for_next(cx) {
                    return Poll::Pending;
                }
                continue;
            }
            match self.input.poll_fill(cx, &mut self.stream) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(End::Closed)),
                Poll::Ready(Ok(count)) => self.note_progress(count),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error.into())),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends as much as the socket accepts. Returns whether everything is sent.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        let before = self.output.pending_bytes();
        let is_sent = self.output.poll_flush(cx, &mut self.stream)?.is_ready();
        let pending_bytes = self.output.pending_bytes();
        if pending_bytes < before {
            self.note_progress(before - pending_bytes);
        }
        Ok(is_sent)
    }

    /// Answers the requests that have become ready.
    fn answer_ready(&mut self, cx: &mut Context<'_>) {
        if self.in_flight.is_empty() {
            return;
        }
        while let Poll::Ready(Some((request, cost_bytes, outcome))) = self.in_flight.poll_next_unpin(cx) {
            self.in_flight_bytes -= cost_bytes;
            self.answer(request, outcome);
        }
    }

    /// Returns whether there is memory for more of the next request, which needs `cost_bytes` in
    /// all.
    fn admits(&mut self, request: &Request, cost_bytes: u64, cx: &mut Context<'_>) -> bool {
        let limits = &self.shared.config;
        let receiving_bytes = self.input.receiving_bytes();
        let needed_bytes = self.input.needed_bytes(request, cost_bytes);
        let outstanding_bytes = self.held_bytes() - receiving_bytes;
        if self.input.is_receiving() {
            if needed_bytes <= receiving_bytes {
                return true;
            }
            // The client may send a whole payload before it receives a reply.
        } else {
            let is_alone = self.in_flight.is_empty() && outstanding_bytes == 0;
            let is_within = self.in_flight.len() < limits.connection_requests_max as usize
                && outstanding_bytes + cost_bytes <= limits.connection_bytes_max;
            if !is_alone && !is_within {
                return false;
            }
        }
        // The heads of replies are not counted against the limit of one connection.
        let wanted_bytes = (outstanding_bytes + needed_bytes).min(limits.connection_bytes_max);
        if wanted_bytes <= self.grant.bytes() {
            return true;
        }
        self.grant.demand(wanted_bytes);
        // The bytes may be available at once. They are then used before they can be taken back.
        while wanted_bytes > self.grant.bytes() {
            let Some(bytes) = self.grant.take_change(cx.waker()) else { return false };
            // The accepted value is the announced one.
            let _ = self.grant.accept(bytes, outstanding_bytes + receiving_bytes);
        }
        true
    }

    fn has_room_for_next(&mut self, cx: &mut Context<'_>) -> bool {
        let Ok(Some(request)) = self.input.peek() else { return true };
        let checked = request.check(&self.session, self.export.description());
        self.admits(&request, cost_bytes(&request, checked, &self.session, self.input), cx)
    }

    /// Executes every complete request. Returns the reason for the pause after them.
    fn execute_requests(&mut self, cx: &mut Context<'_>) -> Result<Pause, End> {
        let mut send_at = SEND_BYTES;
        while !self.is_ended {
            if self.output.pending_bytes() >= send_at {
                self.flush(cx)?;
                // Bytes that the socket has not accepted are not offered again at every request.
                send_at = self.output.pending_bytes() + SEND_BYTES;
            }
            let Some(request) = self.input.peek()? else { return Ok(Pause::Arrival) };
            let checked = request.check(&self.session, self.export.description());
            let cost = cost_bytes(&request, checked, &self.session, self.input);
            if !self.admits(&request, cost, cx) {
                return Ok(Pause::Room);
            }
            let export = &self.export;
            let reserve = || {
                let is_write = matches!(checked, Ok(Command::Write { .. }));
                is_write.then(|| export.receive_buffer(request.offset, request.len_bytes)).flatten()
            };
            let Some(payload) = self.input.take_request(request, reserve) else { return Ok(Pause::Arrival) };
            self.counts.requests += 1;
            let command = match checked {
                Ok(Command::Disconnect) => {
                    self.is_ended = true;
                    break;
                }
                Ok(command) => command,
                Err(refusal) => {
                    self.refuse(&request, refusal.errno, refusal.why);
                    continue;
                }
            };
            match self.execute(request, command, payload, cx) {
                Step::Ready(outcome) => self.answer(request, outcome),
                Step::Pending(mut in_flight) => {
                    self.counts.waits += 1;
                    in_flight.cost_bytes = cost;
                    self.in_flight_bytes += cost;
                    self.in_flight.push(in_flight);
                }
            }
        }
        Ok(Pause::Arrival)
    }

    /// Closes the connection. The requests in flight are completed whether or not the client is
    /// still connected, and it gets their replies if it is.
    async fn finish(&mut self, end: &End) {
        let is_there = matches!(end, End::Ended | End::ShuttingDown);
        self.input.forget_payload();
        if !is_there {
            *self.output = Output::default();
        }
        // The requests in flight may take as long as the store does. Memory beyond what they hold
        // is released for others.
        let held_bytes = self.held_bytes();
        self.grant.retire(held_bytes);
        while let Some((request, _, outcome)) = self.in_flight.next().await {
            if is_there {
                self.answer(request, outcome);
                // Bounded by the limit of one connection, because nothing more is received.
            }
        }
        self.shared.counters.zip(&mut self.counts, Counter::take);
        if is_there {
            // A client that has disconnected by now misses nothing that it could still receive.
            let _ = timeout(LINGER, poll_fn(|cx| self.poll_close(cx))).await;
        }
    }

    /// Sends the queued replies, shuts down the sending direction, and receives what still arrives:
    /// closing a socket with unread bytes would discard replies that the client has not received.
    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.output.poll_flush(cx, &mut self.stream))?;
        std::task::ready!(self.stream.poll_shutdown(cx))?;
        let mut bytes = [0; 4096];
        loop {
            let mut places = [io::IoSliceMut::new(&mut bytes)];
            if std::task::ready!(self.stream.poll_read_vectored(cx, &mut places))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
