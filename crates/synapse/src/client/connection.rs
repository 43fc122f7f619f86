//! A lane's task: its successive connections, sending and receiving, and the deadlines of its
//! requests.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use blocker::{Error, Timestamp};
use connection::{Output, Stream};

use super::Shared;
use super::connect::Connected;
use super::lane::{Lane, damaged_error};
use crate::auth::random;
use crate::codec::{self, Features, Flags, InstanceId, Names, Op, Outcome, Status};
use crate::input::{Input, Timer};

/// The number of reads of a lane before other tasks of its thread run.
const ROUNDS_MAX: u32 = 8;

/// The reason why a connection ends.
pub(super) enum End {
    /// The client is closed.
    Closed,
    /// The connection broke, or the server violated the protocol.
    Broken(Error),
}

/// A connection that a lane uses.
pub(super) struct Connection<'a> {
    lane: &'a Lane,
    shared: &'a Shared,
    /// The number of the server among the client's addresses.
    server: usize,
    /// Whether the server has sent an answer and has not been silent since.
    is_proven: bool,
    stream: Stream,
    input: Input,
    output: Output,
    /// The error after which nothing more can be sent.
    write_failure: Option<io::Error>,
    names: Names,
    instance: InstanceId,
    has_crc: bool,
    /// The time without a byte from the server after which a ping is sent.
    keep_alive: Duration,
    timer: Timer,
    pinged_at: Timestamp,
    /// The number of bytes that were sent up to the end of the first ping after the server's last
    /// bytes; 0 if no ping has been sent since.
    ping_end: u64,
    /// The number of bytes received by the server, as last reported by the system.
    received_bytes: u64,
    /// The time at which the server last received bytes from before the end of that ping.
    progressed_at: Timestamp,
}

impl<'a> Connection<'a> {
    pub(super) fn new(lane: &'a Lane, shared: &'a Shared, connected: Connected) -> Self {
        let Connected { server, stream, mut input, output, welcome } = connected;
        let now = shared.config.clock.now();
        input.received_at = now;
        // The server also closes a connection that is silent for too long.
        let patience = Duration::from_millis(welcome.peer_timeout_ms.into());
        let keep_alive = shared.config.keep_alive.min(patience / 3).max(Duration::from_millis(1));
        // Started at the time of the welcome, like all other times: the clock may have advanced
        // since.
        let mut timer = Timer::after(Arc::clone(&shared.config.clock), keep_alive);
        timer.set(now + keep_alive);
        let resent = lane.connected(&welcome);
        shared.counters.connects.increment();
        shared.counters.resends.add(resent.count);
        shared.counters.unanswered.add(resent.lost_count);
        Self {
            timer,
            names: Names::default(),
            instance: welcome.instance,
            has_crc: welcome.features.has(Features::PAYLOAD_CRC),
            pinged_at: now,
            ping_end: 0,
            received_bytes: 0,
            progressed_at: now,
            write_failure: None,
            keep_alive,
            server,
            is_proven: false,
            stream,
            input,
            output,
            lane,
            shared,
        }
    }

    pub(super) fn poll(&mut self, deadlines: &mut Deadlines, cx: &mut Context<'_>) -> Poll<End> {
        let now = self.shared.config.clock.now();
        deadlines.poll(self.lane, now, cx);
        match self.poll_rounds(now, cx) {
            Poll::Ready(Ok(())) => yield_to_callers(cx),
            Poll::Ready(Err(end)) => return Poll::Ready(end),
            Poll::Pending => {}
        }
        self.poll_keep_alive(now, cx)
    }

    /// Returns `Pending` when there is nothing to do, and `Ready` when there may be more to do, or
    /// at the end.
    fn poll_rounds(&mut self, now: Timestamp, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        for _ in 0..ROUNDS_MAX {
            if self.lane.register(cx.waker()) {
                return Poll::Ready(Err(End::Closed));
            }
            // Another lane has connected to the next instance. Responses of this instance may have
            // arrived before it ended.
            let is_over = !self.shared.is_current(self.instance);
            while !is_over && self.write_failure.is_none() {
                let has_more = self.lane.fill(&mut self.output, now, self.has_crc);
                let before = self.output.written_bytes();
                let flushed = self.output.poll_flush(cx, &mut self.stream);
                if before < self.ping_end && self.output.written_bytes() > before {
                    // The server cannot respond yet, because it is still receiving data sent before
                    // the ping.
                    self.progressed_at = now;
                }
                match flushed {
                    // The server has closed the connection; its last responses and its goodbye may
                    // have arrived earlier.
                    Poll::Ready(Err(error)) => self.write_failure = Some(error),
                    Poll::Ready(Ok(())) if has_more => {}
                    _ => break,
                }
            }
            match self.input.poll_fill(cx, &mut self.stream) {
                Poll::Pending if is_over => {
                    let why =
                        Error::Retryable("the server has restarted, or another one has taken over".into());
                    return Poll::Ready(Err(End::Broken(why)));
                }
                Poll::Pending => {
                    self.input.release_buffer();
                    return Poll::Pending;
                }
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Err(self.broken(&"the server has closed the connection")));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.broken(&error))),
            }
            self.input.received_at = now;
            self.ping_end = 0;
            if self.handle_frames()? {
                // The callers are likely to send more requests, which the server can begin while
                // this task reads on.
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_keep_alive(&mut self, now: Timestamp, cx: &mut Context<'_>) -> Poll<End> {
        if self.timer.poll(cx, now).is_ready() {
            if let Some(error) = &self.write_failure {
                return Poll::Ready(self.broken(error));
            }
            let silence = now.since(self.input.received_at);
            self.record_progress(now);
            let alive_at = self.input.received_at.max(self.progressed_at);
            if now.since(alive_at) >= self.shared.config.peer_timeout {
                self.is_proven = false;
                return Poll::Ready(self.broken(&"the server is silent"));
            }
            if silence >= self.keep_alive && now.since(self.pinged_at) >= self.keep_alive {
                self.pinged_at = now;
                self.output.push_head(|out| codec::encode_ping(out, false));
                if self.ping_end == 0 {
                    self.ping_end = self.output.written_bytes() + self.output.pending_bytes() as u64;
                }
                if let Poll::Ready(Err(error)) = self.output.poll_flush(cx, &mut self.stream) {
                    return Poll::Ready(self.broken(&error));
                }
            }
            let from = self.input.received_at.max(self.pinged_at);
            self.timer.set((from + self.keep_alive).min(alive_at + self.shared.config.peer_timeout));
            // The timer is polled, and thereby armed, at the next poll of the task.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Records whether the server is still receiving data sent before the ping, which proves that
    /// it is alive. Later data prove nothing, because the system receives them without the server.
    fn record_progress(&mut self, now: Timestamp) {
        if self.ping_end == 0 {
            return;
        }
        let Some(unreceived) = self.stream.unreceived_bytes() else { return };
        let received = self.output.written_bytes().saturating_sub(unreceived);
        if self.received_bytes < self.ping_end && received > self.received_bytes {
            self.progressed_at = now;
        }
        self.received_bytes = received;
    }

    /// Handles all complete frames. Returns whether they included answers.
    fn handle_frames(&mut self) -> Result<bool, End> {
        let address = self.shared.config.addresses.of(self.server);
        let broken = |error: &dyn std::fmt::Display| {
            End::Broken(Error::Retryable(format!("{address}: {error}").into()))
        };
        let mut has_answers = false;
        loop {
            let frame = self.input.next_frame(|_| None).map_err(|error| broken(&error))?;
            let Some(frame) = frame else { return Ok(has_answers) };
            let header = frame.head.header;
            let is_damaged = frame.is_damaged();
            match header.op {
                Op::Ping if header.flags.has(Flags::REPLY) => {
                    self.is_proven = true;
                    self.shared.counters.pings_answered.increment();
                }
                Op::Event => {
                    let payload = frame.payload.into_segments().to_bytes();
                    let event = codec::decode_event(&frame.head, &payload, &mut self.names);
                    self.shared.events.publish(&event.map_err(|error| broken(&error))?);
                }
                Op::Goodbye => {
                    if header.status == Status::Ending {
                        let count = self.lane.take_back_unexecuted();
                        self.shared.counters.resends.add(count);
                    }
                    let payload = frame.payload.into_segments().to_bytes();
                    return Err(broken(&codec::decode_goodbye(&header, &payload)));
                }
                Op::Credit if !header.flags.has(Flags::REPLY) => {
                    let bytes = header.length;
                    self.lane.granted(bytes);
                    // All data sent under the old grant precede this frame.
                    self.output.push_head(|out| codec::encode_credit(out, bytes, true));
                }
                op if header.flags.has(Flags::REPLY) => {
                    (has_answers, self.is_proven) = (true, true);
                    let (shared, instance) = (self.shared, self.instance);
                    let (head, payload) = (&frame.head, frame.payload);
                    let op = if header.status == Status::Cancelled { Op::Cancel } else { op };
                    let done = if op == Op::Cancel {
                        self.lane.cancelled(header.id)
                    } else {
                        let decode = || {
                            if is_damaged {
                                return Err(damaged_error(op));
                            }
                            Outcome::decode(head, payload.into_segments())
                        };
                        self.lane.answered(header.id, op, decode, |request, outcome| {
                            shared.record(instance, request, outcome);
                        })
                    };
                    done.map_err(|error| broken(&error))?;
                }
                op => return Err(broken(&format!("the server has sent {op:?}, which only a client sends"))),
            }
        }
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> End {
        End::Broken(Error::Retryable(
            format!("{}: {why}", self.shared.config.addresses.of(self.server)).into(),
        ))
    }

    /// Sends a goodbye if the socket accepts it immediately, and closes the connection.
    pub(super) async fn send_goodbye(mut self) {
        self.output.push_head(|out| codec::encode_goodbye(out, Ok(Status::Ending)));
        let _ = poll_fn(|cx| match self.output.poll_flush(cx, &mut self.stream) {
            Poll::Ready(done) => Poll::Ready(done),
            // The server sees the end of the stream instead.
            Poll::Pending => Poll::Ready(Ok(())),
        })
        .await;
        let _ = self.stream.shutdown().await;
    }
}

/// Makes the runtime poll this task again after other tasks. A task that only wakes itself runs
/// before the future that the runtime blocks on, which may be a caller.
fn yield_to_callers(cx: &mut Context<'_>) {
    // The first poll is pending and wakes the task; the future is ready only if the runtime's
    // budget is used up.
    if pin!(tokio::task::yield_now()).as_mut().poll(cx).is_ready() {
        cx.waker().wake_by_ref();
    }
}

// ---- The deadlines of a lane's calls, kept with a connection and without one.

/// A timer for all calls of a lane. It is set to the earliest deadline.
pub(super) struct Deadlines {
    timer: Timer,
    shared: Arc<Shared>,
}

impl Deadlines {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let timer = Timer::after(Arc::clone(&shared.config.clock), Duration::MAX);
        Self { timer, shared: Arc::clone(shared) }
    }

    /// Fails the calls whose deadline has passed, and schedules the task for the next deadline.
    pub(super) fn poll(&mut self, lane: &Lane, now: Timestamp, cx: &mut Context<'_>) {
        let (due, expired_count) = lane.expire(now);
        self.shared.counters.late.add(expired_count);
        self.timer.set(due);
        if self.timer.poll(cx, now).is_ready() {
            // The timer expired after the calls were checked.
            cx.waker().wake_by_ref();
        }
    }

    /// Waits for `future`, and enforces deadlines in the meantime. Returns `None` if the client has
    /// been closed.
    pub(super) async fn during<T>(&mut self, lane: &Lane, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if lane.register(cx.waker()) {
                return Poll::Ready(None);
            }
            self.poll(lane, self.shared.config.clock.now(), cx);
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

// ---- A lane's task: keeps a connection open, and connects again when it breaks.

/// Serves a lane until the client is closed. `first` is a connection that is already open.
pub(super) async fn run(lane: Arc<Lane>, shared: Arc<Shared>, first: Option<Connected>) {
    serve(&lane, &shared, first).await;
    lane.end();
}

async fn serve(lane: &Lane, shared: &Arc<Shared>, first: Option<Connected>) {
    let mut deadlines = Deadlines::new(shared);
    let mut next = first.map(|first| shared.accept(first));
    let mut failures = 0;
    loop {
        let attempt = match next.take() {
            Some(attempt) => attempt,
            None => match deadlines.during(lane, shared.reach(lane.index)).await {
                Some(attempt) => attempt,
                None => return,
            },
        };
        let ended = match attempt {
            Ok(connected) => {
                failures = 0;
                shared.lane_up();
                let mut connection = Connection::new(lane, shared, connected);
                let end = poll_fn(|cx| connection.poll(&mut deadlines, cx)).await;
                match end {
                    End::Closed => return connection.send_goodbye().await,
                    End::Broken(error) => {
                        // Another server may have taken over; if not, it refuses immediately.
                        if !connection.is_proven || shared.is_current(connection.instance) {
                            shared.leave(connection.server);
                        }
                        shared.lane_down(&error);
                        error
                    }
                }
            }
            Err(error) => error,
        };
        let now = shared.config.clock.now();
        tracing::debug!(server = %shared.config.addresses, lane = lane.index, cause = %ended, "not connected");
        lane.disconnected(now, ended);
        let pause = backoff(shared, failures);
        failures = failures.saturating_add(1);
        if deadlines.during(lane, shared.config.clock.sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Returns the pause before the next attempt. The pause doubles up to its maximum, and is drawn
/// from the upper half of this range, so that the clients of a restarted server do not all connect
/// at the same time.
fn backoff(shared: &Shared, failures: u32) -> Duration {
    let config = &shared.config;
    let full = config.backoff_min.saturating_mul(1_u32.checked_shl(failures).unwrap_or(u32::MAX));
    let full = full.min(config.backoff_max);
    let spread = match config.seed {
        None => u16::from_le_bytes(random()),
        Some(seed) => (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(failures * 7) >> 48) as u16,
    };
    full / 2 + full.mul_f64(f64::from(spread) / f64::from(u16::MAX) / 2.0)
}
