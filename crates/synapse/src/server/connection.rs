//! One connection: after the handshake, requests as they arrive and answers as they become ready.
//!
//! At each wake-up the connection answers completed tasks, does one write and one read, and
//! executes every complete request. A request whose reply is ready immediately is answered in the
//! same write; only a pending reply gets a task. The connection stops reading while it has much to
//! send. While large payloads arrive, the answers to a few of them are sent together.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use blocker::metrics::Counter;
use blocker::{Error, Event, Subscription, Timestamp};
use connection::{Grant, LOOK_TIME, Output, Peer, Stream};
use tokio::sync::mpsc;

use super::execute::Step;
use super::session::{Completion, Owned};
use super::slots::{Begin, Cancel};
use super::{Counts, Shared};
use crate::codec::{
    self, Features, Flags, FrameError, Names, Op, Outcome, Request, RequestId, Status, cost_bytes,
};
use crate::input::{Frame, Input, Timer};

/// A connection's minimum share of the bytes that may be outstanding: a few requests without a
/// payload.
pub(super) const SHARE_BYTES_MIN: u64 = 16 * 1024;
/// The memory use of a connection besides its requests, in bytes: buffers and names.
pub(super) const FIXED_BYTES: u64 = 512 * 1024;
/// The number of bytes to be sent above which the connection stops reading.
const OUTPUT_HIGH_BYTES: usize = 1 << 20;
/// The number of bytes to send above which some are sent before more requests are executed, so that
/// the client works on the first answers while this side works on the next ones.
const SEND_BYTES: usize = 32 * 1024;
/// The number of reads of a connection before other tasks of its thread run.
const ROUNDS_MAX: u32 = 8;
/// The number of reads of large payloads for which earlier answers may be held back, so that the
/// client is woken once for several of them.
const HELD_MAX: u32 = 3;
/// The maximum time for sending a goodbye.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// The reason why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    #[error("{0}")]
    Failed(#[from] io::Error),
    #[error("the client closed the connection")]
    Closed,
    #[error("the client sent a goodbye")]
    Goodbye,
    #[error("the client broke the protocol: {0}")]
    Broken(String),
    /// The handshake failed.
    #[error("the client is refused: {0}")]
    Refused(Error),
    #[error("the client was silent")]
    Silent,
    #[error("others need the connection's memory, and its client is the slowest")]
    Slowest,
    #[error("another connection has taken over the session")]
    Replaced,
    #[error("the server is shutting down")]
    Ending,
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        Self::Broken(error.to_string())
    }
}

/// A client's connection.
pub(super) struct Connection {
    pub(super) shared: Arc<Shared>,
    pub(super) stream: Stream,
    pub(super) input: Input,
    pub(super) output: Output,
    peer: Peer,
    names: Names,
    completions: Vec<Completion>,
    counts: Counts,
}

/// The result of a handshake.
pub(super) struct Established {
    pub(super) owned: Owned,
    pub(super) features: Features,
    pub(super) has_crc: bool,
    pub(super) events: Option<Subscription>,
    /// The bytes that this connection may have outstanding.
    pub(super) grant: Grant,
    /// A sender of which each task that executes a request has a clone, so that the receiver learns
    /// when all of them have ended.
    pub(super) executing: mpsc::Sender<()>,
    pub(super) executed: mpsc::Receiver<()>,
    /// The time of the next check of the client's progress.
    pub(super) look: Timer,
    /// The time at which a grant was last announced to the client.
    pub(super) announced_at: Timestamp,
    /// The number of bytes not yet received by the client, as last reported by the system.
    pub(super) unreceived_bytes: u64,
    /// The timeout that the welcome announces to the client.
    pub(super) peer_timeout: Duration,
    pub(super) timer: Timer,
    pub(super) wrote_at: Timestamp,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, stream: Stream, peer: Peer) -> Self {
        let now = shared.config.clock.now();
        let input = Input::new(Arc::clone(&shared.pool), now);
        Self {
            stream,
            input,
            output: Output::default(),
            peer,
            names: Names::default(),
            completions: Vec::new(),
            counts: Counts::default(),
            shared,
        }
    }

    /// Serves the connection until it ends.
    pub(super) async fn run(mut self) -> End {
        let (end, held) = match self.handshake().await {
            Ok(mut open) => {
                let end = poll_fn(|cx| self.poll_open(&mut open, cx)).await;
                if matches!(end, End::Ending) {
                    self.finish(&mut open).await;
                }
                let Established { owned, mut grant, executing, mut executed, .. } = open;
                // The grant covers the responses and the requests being executed, whichever
                // connection continues the session.
                grant.retire(owned.slots.cost_bytes() + self.output.held_bytes() as u64);
                // The session is free for the client's next connection.
                drop((owned, executing));
                (
                    end,
                    Some(async move {
                        while executed.recv().await.is_some() {}
                        drop(grant);
                    }),
                )
            }
            Err(end) => (end, None),
        };
        let end = self.say_goodbye(end).await;
        drop(self);
        if let Some(held) = held {
            connection::spawn(held);
        }
        end
    }

    /// Tells the client the reason for the end of the connection, if it may still be listening.
    async fn say_goodbye(&mut self, mut end: End) -> End {
        let why = match &end {
            End::Broken(text) => Err(Error::Invalid(text.clone().into())),
            End::Refused(error) => Err(error.clone()),
            End::Replaced => Ok(Status::Replaced),
            End::Ending => Ok(Status::Ending),
            End::Failed(_) | End::Closed | End::Goodbye | End::Silent | End::Slowest => return end,
        };
        self.output.push_head(|out| codec::encode_goodbye(out, why.as_ref().map(|status| *status)));
        if let Err(error) = self.send_goodbye().await
            && matches!(end, End::Ending | End::Replaced)
        {
            end = End::Failed(error);
        }
        end
    }

    /// Sends queued bytes, and closes the sending direction.
    async fn send_goodbye(&mut self) -> io::Result<()> {
        let timer = Timer::after(Arc::clone(&self.shared.config.clock), GOODBYE_TIMEOUT);
        let flushed = timer.limit(poll_fn(|cx| self.output.poll_flush(cx, &mut self.stream))).await;
        flushed.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
        self.stream.shutdown().await
    }

    // ---- requests

    fn poll_open(&mut self, open: &mut Established, cx: &mut Context<'_>) -> Poll<End> {
        if open.owned.register(cx.waker()) {
            open.grant.register(cx.waker());
        }
        let end = self.poll_rounds(open, cx);
        self.counts.copied_bytes += std::mem::take(&mut self.input.copied_bytes);
        self.shared.counters.zip(&mut self.counts, Counter::take);
        match end {
            Poll::Ready(Ok(())) => {
                // The other tasks of the thread run first.
                cx.waker().wake_by_ref();
            }
            Poll::Ready(Err(end)) => return Poll::Ready(end),
            Poll::Pending => {}
        }
        if self.is_slowest(open, cx) {
            return Poll::Ready(End::Slowest);
        }
        // This is the time of the last read: data that have arrived since are not read yet.
        let now = open.owned.now;
        let timeout = open.peer_timeout;
        if open.timer.poll(cx, now).is_ready() {
            if open.grant.is_unaccepted() && now.since(open.announced_at) >= timeout {
                return Poll::Ready(End::Broken("it does not accept its grant in time".into()));
            }
            let unreceived_bytes = self.stream.unreceived_bytes().unwrap_or(0);
            if unreceived_bytes < open.unreceived_bytes {
                // The system's buffers drain, so the client is still receiving.
                open.wrote_at = now;
            }
            open.unreceived_bytes = unreceived_bytes;
            let last = self.input.received_at.max(open.wrote_at);
            if now.since(last) >= timeout {
                return Poll::Ready(End::Silent);
            }
            let next = if open.grant.is_unaccepted() { last.min(open.announced_at) } else { last };
            // This is an intermediate check, which provides a value for comparison.
            open.timer.set((next + timeout).min(now + timeout / 2));
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Returns whether the connection must end because other connections need the memory that waits
    /// for its client to send the rest of a payload, or to receive its answers.
    fn is_slowest(&mut self, open: &mut Established, cx: &mut Context<'_>) -> bool {
        let client_bytes = (self.output.held_bytes() + self.input.receiving_bytes()) as u64;
        // Memory below the minimum share would help no other connection.
        if client_bytes <= SHARE_BYTES_MIN {
            open.grant.end_turn();
            return false;
        }
        let moved_bytes = self.output.written_bytes() + self.input.received_bytes;
        let now = self.shared.config.clock.now();
        if open.grant.begin_turn(|| now, client_bytes, moved_bytes) {
            open.look.set(now + LOOK_TIME);
        }
        while open.look.poll(cx, now).is_ready() {
            if open.grant.look(now, client_bytes, moved_bytes).1 {
                return true;
            }
            open.look.set(now + LOOK_TIME);
        }
        false
    }

    /// Returns `Pending` when there is nothing to do, and `Ready` when there may be more to do, or
    /// at the end.
    fn poll_rounds(&mut self, open: &mut Established, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        let mut held_count = 0;
        for _ in 0..ROUNDS_MAX {
            let now = self.shared.config.clock.now();
            open.owned.now = now;
            if open.owned.is_replaced() {
                return Poll::Ready(Err(End::Replaced));
            }
            if self.shared.sessions.is_ending() {
                return Poll::Ready(Err(End::Ending));
            }
            self.answer_completions(open);
            self.send_events(open, cx);
            let is_stopped = self.handle_frames(open, now, cx)?;
            self.update_grant(open, now, cx);
            // The request is counted before the response, so that a client that sees the response
            // also sees the count.
            self.shared.counters.zip(&mut self.counts, Counter::take);
            if self.input.is_in_payload() && held_count < HELD_MAX && !is_stopped {
                held_count += 1;
            } else {
                held_count = 0;
                let is_flushed = self.flush(open, now, cx)?;
                if is_stopped {
                    if !is_flushed && self.output.pending_bytes() >= OUTPUT_HIGH_BYTES {
                        return Poll::Pending;
                    }
                    continue;
                }
            }
            match self.input.poll_fill(cx, &mut self.stream)? {
                Poll::Ready(0) => return Poll::Ready(Err(End::Closed)),
                Poll::Ready(_) => self.input.received_at = now,
                Poll::Pending => {
                    self.input.release_buffer();
                    self.flush(open, now, cx)?;
                    return Poll::Pending;
                }
            }
        }
        self.flush(open, open.owned.now, cx)?;
        Poll::Ready(Ok(()))
    }

    /// Sends as much as the socket accepts. Returns whether nothing remains to be sent.
    fn flush(&mut self, open: &mut Established, now: Timestamp, cx: &mut Context<'_>) -> Result<bool, End> {
        let before = self.output.pending_bytes();
        let is_flushed = self.output.poll_flush(cx, &mut self.stream)?.is_ready();
        if self.output.pending_bytes() < before {
            open.wrote_at = now;
        }
        Ok(is_flushed)
    }

    /// Handles every complete frame. Returns whether it stopped because too much remains to be
    /// sent.
    fn handle_frames(
        &mut self,
        open: &mut Established,
        now: Timestamp,
        cx: &mut Context<'_>,
    ) -> Result<bool, End> {
        let mut send_at = SEND_BYTES;
        loop {
            if self.output.pending_bytes() >= send_at {
                // The request is counted before the response, so that a client that sees the
                // response also sees the count.
                self.shared.counters.zip(&mut self.counts, Counter::take);
                self.flush(open, now, cx)?;
                if self.output.pending_bytes() >= OUTPUT_HIGH_BYTES {
                    return Ok(true);
                }
                // After a partial write, the rest is not offered again with every frame.
                send_at = (self.output.pending_bytes() + SEND_BYTES).min(OUTPUT_HIGH_BYTES);
            }
            let shared = &self.shared;
            let names = &mut self.names;
            let frame = self.input.next_frame(|head| shared.reserve_buffer(head, names))?;
            let Some(frame) = frame else { return Ok(false) };
            let header = frame.head.header;
            if !open.features.allow(header.op) {
                return Err(End::Broken(format!("{:?} needs a feature that was not granted", header.op)));
            }
            match header.op {
                Op::Ping if !header.flags.has(Flags::REPLY) => {
                    self.output.push_head(|out| codec::encode_ping(out, true));
                }
                Op::Cancel => {
                    self.counts.cancels += 1;
                    match open.owned.slots.cancel(header.id) {
                        Cancel::Abort(task) => task.abort(),
                        Cancel::Answer(op, outcome) => {
                            reply(&mut self.output, outcome, op, header.id, open.has_crc);
                        }
                        Cancel::Ignore => {}
                        Cancel::Refuse(why) => return Err(End::Broken(why.into())),
                    }
                }
                Op::Goodbye => return Err(End::Goodbye),
                Op::Credit => {
                    let bytes = header.length;
                    if header.flags.has(Flags::REPLY) {
                        let accepted = open.grant.accept(bytes, open.owned.slots.cost_bytes());
                        accepted.map_err(|why| End::Broken(why.into()))?;
                    } else {
                        open.grant.demand(bytes);
                    }
                }
                op if op.takes_slot() && !header.flags.has(Flags::REPLY) => {
                    let (shared, output) = (&self.shared, &mut self.output);
                    let peer = self.peer;
                    handle_request(
                        shared,
                        peer,
                        open,
                        frame,
                        output,
                        &mut self.names,
                        &mut self.counts,
                        now,
                    )?;
                }
                op => return Err(End::Broken(format!("{op:?} is not allowed here"))),
            }
        }
    }

    /// Sends the answers to the requests that tasks have completed.
    fn answer_completions(&mut self, open: &mut Established) {
        open.owned.take_completions(&mut self.completions);
        for (id, outcome) in self.completions.drain(..) {
            if let Some((op, outcome)) = open.owned.slots.complete(id, outcome) {
                self.shared.log_failure(self.peer, op, &outcome);
                reply(&mut self.output, outcome, op, id, open.has_crc);
            }
        }
    }

    /// Announces a changed grant to the client, and returns unused bytes to the budget.
    fn update_grant(&mut self, open: &mut Established, now: Timestamp, cx: &mut Context<'_>) {
        let change = open.grant.take_change(cx.waker());
        open.grant.release_unused(open.owned.slots.cost_bytes());
        let Some(bytes) = change else { return };
        self.counts.grants += 1;
        open.announced_at = now;
        self.output.push_head(|out| codec::encode_credit(out, bytes, false));
    }

    /// Sends events, as long as the client receives them.
    fn send_events(&mut self, open: &mut Established, cx: &mut Context<'_>) {
        let features = open.features;
        while let Some(events) = &mut open.events
            && self.output.pending_bytes() < OUTPUT_HIGH_BYTES
        {
            let Poll::Ready(event) = events.poll_next(cx) else { break };
            let is_last = event.is_none();
            let event = event.unwrap_or(Event::Missed);
            self.output.push_head(|out| codec::encode_event(out, &event, features));
            if is_last {
                open.events = None;
            }
        }
    }

    // ---- shutdown

    /// Waits for the requests that are being executed, and sends their answers. The caller limits
    /// the time.
    async fn finish(&mut self, open: &mut Established) {
        let done = poll_fn(|cx| {
            _ = open.owned.register(cx.waker());
            self.answer_completions(open);
            let flushed = self.output.poll_flush(cx, &mut self.stream);
            match flushed {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ if open.owned.slots.executing_count() > 0 => Poll::Pending,
                flushed => flushed,
            }
        });
        if let Err(error) = done.await {
            tracing::debug!(cause = %error, "a client closed its connection before its last answers");
        }
    }
}

/// Executes a request, and sends the answer if its reply is ready.
#[allow(clippy::too_many_arguments, reason = "the connection is borrowed in parts")]
fn handle_request(
    shared: &Arc<Shared>,
    peer: Peer,
    open: &mut Established,
    frame: Frame<'_>,
    output: &mut Output,
    names: &mut Names,
    counts: &mut Counts,
    now: Timestamp,
) -> Result<(), End> {
    let head = &frame.head;
    let (op, id) = (head.header.op, head.header.id);
    let cost = cost_bytes(&head.header, head.head_bytes, head.payload_bytes, &shared.capabilities);
    counts.requests += 1;
    match open.owned.slots.begin(id, op, cost) {
        Begin::Execute => {}
        Begin::Replay(outcome) => {
            counts.replays += 1;
            reply(output, outcome, op, id, open.has_crc);
            return Ok(());
        }
        Begin::Wait => return Ok(()),
        Begin::Refuse(why) => return Err(End::Broken(why.into())),
    }
    if open.owned.slots.cost_bytes() > open.grant.bytes() {
        return Err(End::Broken("more is outstanding than was granted".into()));
    }
    let decoded = if frame.is_damaged() {
        Err(Error::Retryable("the payload was damaged in transit".into()))
    } else {
        Request::decode(&frame.head, frame.payload.into_segments(), names, now)
    };
    let mut span = None;
    let step = match decoded {
        Ok(mut request) => {
            if let Some(tracer) = &shared.config.tracer {
                let session = open.owned.generation();
                span = super::execute::begin(tracer, &mut request, peer, session, id);
            }
            shared.execute(request, open.features)
        }
        Err(error) => Step::Ready(Outcome::Failed(error)),
    };
    match step {
        Step::Ready(outcome) => {
            if let Some(span) = span {
                super::execute::end(span, &outcome);
            }
            if let Some((op, outcome)) = open.owned.slots.complete(id, Some(outcome)) {
                shared.log_failure(peer, op, &outcome);
                reply(output, outcome, op, id, open.has_crc);
            }
        }
        Step::Pending(future) => {
            counts.waits += 1;
            let reporter = open.owned.reporter(id, open.executing.clone());
            let task = tokio::spawn(async move {
                let outcome = future.await;
                if let Some(span) = span {
                    super::execute::end(span, &outcome);
                }
                reporter.report(outcome);
            });
            open.owned.slots.set_abort(id, task.abort_handle());
        }
    }
    Ok(())
}

fn reply(output: &mut Output, outcome: Outcome, op: Op, id: RequestId, has_crc: bool) {
    output.push(|out| outcome.encode(op, id, has_crc, out));
}
