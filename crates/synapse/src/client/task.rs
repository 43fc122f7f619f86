//! A lane's task: keeps a connection, sends what is queued, hands out what is answered.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use blocker::{Capabilities, Durability, Error, Event, ObjectId, OrderDomain, Scope, Segments, Timestamp};

use super::connect::{Connected, connect};
use super::lane::Lane;
use super::{Core, Shared};
use crate::alarm::Alarm;
use crate::auth::random;
use crate::codec::{
    self, Answer, Features, Flags, InstanceId, Names, Op, Outcome, Request, Status, StoreId, Welcome,
};
use crate::input::Input;
use crate::output::Output;
use crate::stream::Stream;

/// How often a lane reads before others get their turn.
const ROUNDS_MAX: u32 = 8;

/// Why a connection is given up.
enum End {
    /// The client is gone.
    Closed,
    /// It broke, or the server did.
    Broken(Error),
}

/// Serves a lane until the client is gone. `first` is a connection that is there already.
pub(super) async fn run(lane: Arc<Lane>, shared: Arc<Shared>, first: Option<Connected>) {
    serve(&lane, &shared, first).await;
    lane.end();
}

async fn serve(lane: &Lane, shared: &Arc<Shared>, first: Option<Connected>) {
    let mut upkeep = Upkeep::new(shared);
    let mut next = first.map(Ok);
    let mut failures = 0;
    loop {
        let attempt = match next.take() {
            Some(attempt) => attempt,
            None => {
                let session = shared.session(lane.index);
                let connecting = connect(&shared.config, session, &shared.pool);
                match upkeep.during(lane, connecting).await {
                    Some(attempt) => attempt,
                    None => return,
                }
            }
        };
        let ended = match attempt.and_then(|connected| shared.accept(connected)) {
            Ok(connected) => {
                failures = 0;
                let mut connection = Connection::new(lane, shared, connected);
                let end = poll_fn(|cx| connection.poll(&mut upkeep, cx)).await;
                match end {
                    End::Closed => return connection.say_goodbye().await,
                    End::Broken(error) => error,
                }
            }
            Err(error) => error,
        };
        let now = shared.config.clock.now();
        tracing::debug!(server = %shared.config.address, lane = lane.index, cause = %ended, "not connected");
        lane.disconnected(now, ended);
        let pause = backoff(shared, failures);
        failures = failures.saturating_add(1);
        if upkeep.during(lane, shared.config.clock.sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Twice as long each time, at most the longest, and somewhere in the upper half, so that many clients of
/// a server that comes back do not come all at once.
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

/// What goes on whether there is a connection or not: deadlines.
struct Upkeep {
    alarm: Alarm,
    shared: Arc<Shared>,
}

impl Upkeep {
    fn new(shared: &Arc<Shared>) -> Self {
        let alarm = Alarm::after(Arc::clone(&shared.config.clock), Duration::MAX);
        Self { alarm, shared: Arc::clone(shared) }
    }

    fn poll(&mut self, lane: &Lane, now: Timestamp, cx: &mut Context<'_>) {
        let (due, late) = lane.sweep(now);
        self.shared.counters.late.fetch_add(late, Ordering::Relaxed);
        self.alarm.set(due);
        if self.alarm.poll(cx, now).is_ready() {
            // Due since, or between the sweep and now.
            cx.waker().wake_by_ref();
        }
    }

    /// Keeps deadlines while it waits for `future`; `None` if the client is gone.
    async fn during<T>(&mut self, lane: &Lane, future: impl Future<Output = T>) -> Option<T> {
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

struct Connection<'a> {
    lane: &'a Lane,
    shared: &'a Shared,
    stream: Stream,
    input: Input,
    output: Output,
    names: Names,
    instance: InstanceId,
    has_crc: bool,
    /// After so long a silence the server is asked whether it is alive.
    keep_alive: Duration,
    alarm: Alarm,
    pinged_at: Timestamp,
    /// How much there was to be sent up to the first ping since the server was heard last; 0: there was none.
    ping_end: u64,
    /// How much the server had received when that was asked last.
    received_bytes: u64,
    /// When something before that ping went on its way last.
    moved_at: Timestamp,
}

impl<'a> Connection<'a> {
    fn new(lane: &'a Lane, shared: &'a Shared, connected: Connected) -> Self {
        let Connected { stream, mut input, output, welcome } = connected;
        let now = shared.config.clock.now();
        input.heard_at = now;
        let again = lane.connected(&welcome);
        shared.counters.connects.fetch_add(1, Ordering::Relaxed);
        shared.counters.resends.fetch_add(again.resends, Ordering::Relaxed);
        shared.counters.unanswered.fetch_add(again.unanswered, Ordering::Relaxed);
        // The server wants to hear from us, too.
        let server = Duration::from_millis(welcome.peer_timeout_ms.into());
        let keep_alive = shared.config.keep_alive.min(server / 3).max(Duration::from_millis(1));
        Self {
            alarm: Alarm::after(Arc::clone(&shared.config.clock), keep_alive),
            names: Names::default(),
            instance: welcome.instance,
            has_crc: welcome.features.has(Features::PAYLOAD_CRC),
            pinged_at: now,
            ping_end: 0,
            received_bytes: 0,
            moved_at: now,
            keep_alive,
            stream,
            input,
            output,
            lane,
            shared,
        }
    }

    fn poll(&mut self, upkeep: &mut Upkeep, cx: &mut Context<'_>) -> Poll<End> {
        let now = self.shared.config.clock.now();
        upkeep.poll(self.lane, now, cx);
        match self.poll_rounds(now, cx) {
            Poll::Ready(Ok(())) => yield_to_callers(cx),
            Poll::Ready(Err(end)) => return Poll::Ready(end),
            Poll::Pending => {}
        }
        self.poll_keep_alive(now, cx)
    }

    /// Pending when nothing is left to do; ready when there may be more, or at the end.
    fn poll_rounds(&mut self, now: Timestamp, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        for _ in 0..ROUNDS_MAX {
            if self.lane.register(cx.waker()) {
                return Poll::Ready(Err(End::Closed));
            }
            if !self.shared.is_current(self.instance) {
                let why = Error::Retryable("the server has started anew".into());
                return Poll::Ready(Err(End::Broken(why)));
            }
            loop {
                let has_more = self.lane.fill(&mut self.output, now, self.has_crc);
                let before = self.output.written_bytes();
                let flushed = self.output.poll_flush(cx, &mut self.stream);
                if before < self.ping_end && self.output.written_bytes() > before {
                    // The server cannot answer yet: it is still receiving what was sent before the ping.
                    self.moved_at = now;
                }
                match flushed {
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(self.broken(&error))),
                    Poll::Ready(Ok(())) if has_more => {}
                    _ => break,
                }
            }
            match self.input.poll_fill(cx, &mut self.stream) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(self.broken(&"the server has gone"))),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(self.broken(&error))),
            }
            self.input.heard_at = now;
            self.ping_end = 0;
            if self.handle_frames()? {
                // Their callers are likely to ask for more, which the server can begin with while we read on.
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_keep_alive(&mut self, now: Timestamp, cx: &mut Context<'_>) -> Poll<End> {
        if self.alarm.poll(cx, now).is_ready() {
            let silence = now.since(self.input.heard_at);
            self.note_progress(now);
            let alive_at = self.input.heard_at.max(self.moved_at);
            if now.since(alive_at) >= self.shared.config.peer_timeout {
                return Poll::Ready(self.broken(&"the server is silent"));
            }
            if silence >= self.keep_alive && now.since(self.pinged_at) >= self.keep_alive {
                self.pinged_at = now;
                self.output.push(|out| {
                    codec::encode_ping(out, false);
                    Segments::new()
                });
                if self.ping_end == 0 {
                    self.ping_end = self.output.written_bytes() + self.output.pending_bytes() as u64;
                }
                if let Poll::Ready(Err(error)) = self.output.poll_flush(cx, &mut self.stream) {
                    return Poll::Ready(self.broken(&error));
                }
            }
            let from = self.input.heard_at.max(self.pinged_at);
            self.alarm.set((from + self.keep_alive).min(alive_at + self.shared.config.peer_timeout));
            // The alarm is set at the next poll.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Looks whether the server is still receiving what was sent before it was asked whether it is alive: as long as
    /// that goes on, it is. What comes after the ping proves nothing, since the system receives that on its own.
    fn note_progress(&mut self, now: Timestamp) {
        if self.ping_end == 0 {
            return;
        }
        let Some(unreceived) = self.stream.unreceived_bytes() else { return };
        let received = self.output.written_bytes().saturating_sub(unreceived);
        if self.received_bytes < self.ping_end && received > self.received_bytes {
            self.moved_at = now;
        }
        self.received_bytes = received;
    }

    /// Whether there were answers among them.
    fn handle_frames(&mut self) -> Result<bool, End> {
        let address = &self.shared.config.address;
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
                    self.shared.counters.pongs.fetch_add(1, Ordering::Relaxed);
                }
                Op::Event => {
                    let payload = frame.payload.into_segments().to_bytes();
                    let event = codec::decode_event(&frame.head, &payload, &mut self.names);
                    self.shared.events.publish(&event.map_err(|error| broken(&error))?);
                }
                Op::Goodbye => {
                    let payload = frame.payload.into_segments().to_bytes();
                    return Err(broken(&codec::decode_goodbye(&header, &payload)));
                }
                Op::Credit if !header.flags.has(Flags::REPLY) => {
                    let bytes = header.length;
                    self.lane.granted(bytes);
                    // Whatever was sent by the last grant lies before this.
                    self.output.push(|out| {
                        codec::encode_credit(out, bytes, true);
                        Segments::new()
                    });
                }
                op if header.flags.has(Flags::REPLY) => {
                    has_answers = true;
                    let (shared, instance) = (self.shared, self.instance);
                    let (head, payload) = (&frame.head, frame.payload);
                    let op = if header.status == Status::Cancelled { Op::Cancel } else { op };
                    let done = if op == Op::Cancel {
                        self.lane.cancelled(header.id)
                    } else {
                        let decode = || {
                            if is_damaged {
                                return Err(damaged(op));
                            }
                            Outcome::decode(head, payload.into_segments())
                        };
                        self.lane.answered(header.id, op, decode, |request, outcome| {
                            shared.note(instance, request, outcome);
                        })
                    };
                    done.map_err(|error| broken(&error))?;
                }
                op => return Err(broken(&format!("{op:?} is not for a client"))),
            }
        }
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> End {
        End::Broken(Error::Retryable(format!("{}: {why}", self.shared.config.address).into()))
    }

    /// Best effort: the connection is closed in any case.
    async fn say_goodbye(mut self) {
        self.output.push(|out| {
            codec::encode_goodbye(out, Ok(Status::Ending));
            Segments::new()
        });
        let _ = poll_fn(|cx| match self.output.poll_flush(cx, &mut self.stream) {
            Poll::Ready(done) => Poll::Ready(done),
            // The server does not take it: it will see the end.
            Poll::Pending => Poll::Ready(Ok(())),
        })
        .await;
        let _ = self.stream.shutdown().await;
    }
}

/// Has the task polled again once others had their turn. A task that merely wakes itself would come before
/// a runtime's first future, where callers may well be.
fn yield_to_callers(cx: &mut Context<'_>) {
    // Pending at its first poll, and then woken; ready only where a budget says so.
    if pin!(tokio::task::yield_now()).as_mut().poll(cx).is_ready() {
        cx.waker().wake_by_ref();
    }
}

/// What a request answers whose answer arrived damaged: only the head can be believed.
fn damaged(op: Op) -> Error {
    match op.kind() {
        codec::Kind::Change => Error::OutcomeUnknown("the answer was damaged on the way".into()),
        _ => Error::Retryable("the answer was damaged on the way".into()),
    }
}

impl Shared {
    /// Takes a connection that has been greeted, if its server is still the same backend.
    fn accept(&self, connected: Connected) -> Result<Connected, Error> {
        let welcome = &connected.welcome;
        self.check_store(welcome).map_err(|text| {
            tracing::warn!(server = %self.config.address, "{text}");
            Error::Retryable(format!("{}: {text}", self.config.address).into())
        })?;
        let before = std::mem::replace(&mut *self.capabilities.write(), welcome.capabilities);
        if before != welcome.capabilities {
            tracing::info!(server = %self.config.address, "the server has other limits than before");
        }
        if self.unflushed.greeted(welcome.instance, &welcome.closed) {
            // The other lanes still speak to the old one, or think so.
            tracing::info!(server = %self.config.address, name = welcome.server_name, "the server has started anew");
            self.lanes().iter().for_each(|lane| lane.nudge());
        }
        *self.instance.lock() = Some(welcome.instance);
        if welcome.features.has(Features::EVENTS) && self.has_events.swap(true, Ordering::AcqRel) {
            // News may have been missed in between.
            self.events.publish(&Event::Missed);
        }
        Ok(connected)
    }

    /// Whether the server still serves the store that this client is a client of, and keeps what that has promised.
    /// Limits may change; a request beyond the new ones is refused when it is made.
    ///
    /// # Errors
    /// What is another now, and what would be right.
    fn check_store(&self, welcome: &Welcome) -> Result<(), String> {
        let now = &welcome.capabilities;
        if let Some(promise) = lost_promise(&self.capabilities.read(), now) {
            return Err(format!(
                "the server does not promise {promise} any more, on which this client's callers rely; restore it, \
                 or restart the client"
            ));
        }
        let mut store = self.store.lock();
        match (*store, welcome.store) {
            (Some(known), found) if found != Some(known) => {
                let found = found.map_or("none that has an identity".to_owned(), |found| hex(&found));
                Err(format!(
                    "it serves another store ({found}) than the one that this client is connected to ({}); bring \
                     that one back under this address, or restart the client",
                    hex(&known)
                ))
            }
            (_, found) => {
                *store = found;
                Ok(())
            }
        }
    }

    fn is_current(&self, instance: InstanceId) -> bool {
        *self.instance.lock() == Some(instance)
    }

    fn lanes(&self) -> Vec<Arc<Lane>> {
        self.core.get().and_then(Weak::upgrade).map_or_else(Vec::new, |core: Arc<Core>| core.lanes.clone())
    }

    /// Remembers what would be lost with the server.
    fn note(&self, instance: InstanceId, request: &Request, outcome: &Outcome) {
        let Outcome::Answered(answer) = outcome else { return };
        let (Answer::Change(_) | Answer::Delete(_) | Answer::Invalidate(_)) = answer else { return };
        if let (Request::Invalidate(request), _) = (request, answer) {
            return self.unflushed.forgive(&request.scope);
        }
        let durability = match answer {
            Answer::Change(reply) => reply.durability,
            Answer::Delete(reply) => reply.durability,
            _ => return,
        };
        let Some((object, domain)) = changed(request) else { return };
        if matches!(request.op(), Op::WriteFull | Op::Delete | Op::Copy) {
            // Whatever was lost of it is made good.
            self.unflushed.forgive(&Scope::Object(object.clone()));
        }
        if durability == Durability::Cached {
            self.unflushed.acknowledged(instance, object, domain);
        }
    }
}

/// What a backend has promised `before` and does not promise `now`, if anything. Sizes and numbers are no promises: a
/// request that is too large for them is refused.
fn lost_promise(before: &Capabilities, now: &Capabilities) -> Option<&'static str> {
    let largest = now.object_bytes_max.min(now.request_bytes_max);
    let is_lost = [
        (before.write_full_atomic && !now.write_full_atomic, "that a full write is all or nothing"),
        (before.conditions && !now.conditions, "conditions"),
        (before.fencing && !now.fencing, "fencing"),
        (before.tombstones && !now.tombstones, "that a stamped delete is remembered"),
        (before.order_domains && !now.order_domains, "the order of domains"),
        (
            now.atomic_bytes < before.atomic_bytes && now.atomic_bytes < largest,
            "atomic writes of the same size",
        ),
        (
            now.crash_atomic_bytes < before.crash_atomic_bytes,
            "that units of the same size survive a crash whole",
        ),
        (now.survives < before.survives, "that what is stored survives as much"),
    ];
    is_lost.into_iter().find_map(|(is_lost, promise)| is_lost.then_some(promise))
}

fn hex(id: &StoreId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Which object a request changes.
fn changed(request: &Request) -> Option<(&ObjectId, Option<OrderDomain>)> {
    Some(match request {
        Request::Write(r) => (&r.object, r.change.domain),
        Request::WriteZeroes(r) => (&r.object, r.change.domain),
        Request::WriteRuns(r) => (&r.object, r.change.domain),
        Request::Discard(r) => (&r.object, r.change.domain),
        Request::CompareAndWrite(r) => (&r.object, r.change.domain),
        Request::WriteFull(r) => (&r.object, r.change.domain),
        Request::Truncate(r) => (&r.object, r.change.domain),
        Request::Delete(r) => (&r.object, r.change.domain),
        Request::Copy(r) => (&r.to, r.change.domain),
        _ => return None,
    })
}
