//! One connection: greeting, then requests as they come and answers as they are ready.
//!
//! Per wake-up: what tasks have done is answered, one write, one read, and everything complete is done. A
//! request whose answer is at hand is done right here and its reply is part of the next write; only one
//! that has to wait gets a task. Nothing more is read while much is still to be sent. While large payloads are
//! arriving, answers to a few of them wait for each other.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use blocker::{Error, Event, Subscription, Timestamp};

use super::Shared;
use super::budget::Grant;
use super::execute::Step;
use super::session::{Completion, Owned};
use super::slots::{Begin, Cancel, Slots};
use super::statistics::Counts;
use crate::alarm::Alarm;
use crate::auth::{Role, Transcript, random};
use crate::codec::{
    self, Challenge, Credits, Features, Flags, FrameError, Hello, Names, Op, Outcome, Request, RequestId,
    Status, Welcome, cost_bytes,
};
use crate::input::{Frame, Input};
use crate::output::Output;
use crate::stream::Stream;

/// What a connection takes beside its requests: buffers and names.
pub(super) const FIXED_BYTES: u64 = 512 * 1024;
/// While more than this is still to be sent, nothing more is read.
const OUTPUT_HIGH_BYTES: usize = 1 << 20;
/// With so much to send, some is sent before more is done: the client works on the first answers while we
/// work on the next, and its wake-up costs neither of us time.
const SEND_BYTES: usize = 32 * 1024;
/// How often a connection reads before others get their turn.
const ROUNDS_MAX: u32 = 8;
/// How many reads of large payloads the answers to those before may wait for: the client is woken once for several.
const HELD_MAX: u32 = 3;
/// How long a goodbye may take to be sent.
const GOODBYE: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The client has closed it, or it broke.
    Closed(io::Result<()>),
    /// The client said goodbye.
    Goodbye,
    /// The client cannot be understood, or breaks the rules.
    Broken(String),
    /// The client is not let in.
    Refused(Error),
    /// The client is dead, as far as can be told.
    Silent,
    /// Another connection has taken the session.
    Replaced,
    /// The server ends.
    Ending,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Closed(Err(error))
    }
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        Self::Broken(error.to_string())
    }
}

pub(super) struct Connection {
    shared: Arc<Shared>,
    stream: Stream,
    input: Input,
    output: Output,
    names: Names,
    mail: Vec<Completion>,
    counts: Counts,
}

/// What the greeting has brought.
struct Open {
    owned: Owned,
    has_crc: bool,
    events: Option<Subscription>,
    /// What this connection may cost, given back when it ends.
    grant: Grant,
    /// When the client was told of another grant last.
    told_at: Timestamp,
    /// What the client had not received when that was asked last.
    unreceived_bytes: u64,
    alarm: Alarm,
    wrote_at: Timestamp,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, stream: Stream) -> Self {
        let now = shared.config.clock.now();
        let input = Input::new(Arc::clone(&shared.pool), now);
        Self {
            stream,
            input,
            output: Output::default(),
            names: Names::default(),
            mail: Vec::new(),
            counts: Counts::default(),
            shared,
        }
    }

    /// Serves the connection to its end.
    pub(super) async fn run(mut self) -> End {
        let mut end = match self.greet().await {
            Ok(mut open) => {
                let end = poll_fn(|cx| self.poll_open(&mut open, cx)).await;
                if matches!(end, End::Ending) {
                    self.finish(&mut open).await;
                }
                end
            }
            Err(end) => end,
        };
        let why = match &end {
            End::Broken(text) => Err(Error::Invalid(text.clone().into())),
            End::Refused(error) => Err(error.clone()),
            End::Replaced => Ok(Status::Replaced),
            End::Ending => Ok(Status::Ending),
            End::Closed(_) | End::Goodbye | End::Silent => return end,
        };
        self.output.push(|out| {
            codec::encode_goodbye(out, why.as_ref().map(|status| *status));
            blocker::Segments::new()
        });
        if let Err(error) = self.say_goodbye().await
            && matches!(end, End::Ending | End::Replaced)
        {
            end = End::Closed(Err(error));
        }
        end
    }

    async fn say_goodbye(&mut self) -> io::Result<()> {
        let clock = Arc::clone(&self.shared.config.clock);
        let alarm = Alarm::after(clock, GOODBYE);
        let mut ring = pin!(alarm.ring());
        poll_fn(|cx| match ring.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => self.output.poll_flush(cx, &mut self.stream),
        })
        .await?;
        self.stream.shutdown().await
    }

    // ---- greeting

    async fn greet(&mut self) -> Result<Open, End> {
        let shared = Arc::clone(&self.shared);
        let alarm = Alarm::after(Arc::clone(&shared.config.clock), shared.config.handshake_timeout);
        let mut ring = pin!(alarm.ring());
        let mut greeting = pin!(self.greeting());
        poll_fn(|cx| {
            if let Poll::Ready(done) = greeting.as_mut().poll(cx) {
                return Poll::Ready(done);
            }
            ready!(ring.as_mut().poll(cx));
            Poll::Ready(Err(End::Silent))
        })
        .await
    }

    async fn greeting(&mut self) -> Result<Open, End> {
        let shared = Arc::clone(&self.shared);
        let config = &shared.config;
        let mut said = Transcript::default();
        let hello = self.expect(Op::Hello, &mut said, Hello::decode).await?;
        if !hello.versions.has(codec::VERSION) {
            let codec::Versions { lowest, highest } = hello.versions;
            let own = codec::VERSION;
            let text =
                format!("versions {lowest} to {highest} of the protocol, this side speaks version {own}");
            return Err(End::Refused(Error::Unsupported(text.into())));
        }
        let secret = config.secret_of(&hello.key);
        if let Some(secret) = secret {
            let challenge = Challenge { nonce: random(), instance: shared.instance };
            self.say(&mut said, |out| challenge.encode(out));
            let before = said.clone();
            let proof = self.expect(Op::Prove, &mut said, codec::decode_proof).await?;
            if !secret.is_proof(&proof, Role::Client, &before) {
                return Err(End::Refused(Error::Denied("the secret is not the server's".into())));
            }
        }
        if shared.sessions.is_ending() {
            return Err(End::Ending);
        }
        let features = Features(hello.features.0 & Features::ALL);
        let grant = shared.budget.join(hello.credits.bytes, !features.has(Features::CREDIT));
        let mut grant = grant.map_err(End::Refused)?;
        poll_fn(|cx| grant.poll_ready(cx)).await;
        let slots = hello.credits.slots.min(config.session_slots_max);
        let new = || Slots::new(slots, config.remembers_outcomes());
        let attached = shared.sessions.attach(hello.session, config.clock.now(), new).await;
        let (owned, is_resumed) = attached.map_err(End::Refused)?;
        let mut capabilities = shared.capabilities;
        if !features.has(Features::RUNS) {
            capabilities.runs_max = 0;
        }
        let credits = Credits { slots: owned.slots.count(), bytes: grant.bytes() };
        let mut welcome = Welcome::new(shared.instance, owned.generation(), credits, capabilities);
        (welcome.is_resumed, welcome.features) = (is_resumed, features);
        welcome.peer_timeout_ms = u32::try_from(config.peer_timeout.as_millis()).unwrap_or(u32::MAX);
        (welcome.store, welcome.server_name) = (config.store, config.name.clone());
        welcome.closed.clone_from(&config.closed);
        // News from before the welcome are not missed.
        let events = features.has(Features::EVENTS).then(|| shared.backend.subscribe());
        self.say(&mut said, |out| welcome.encode(out));
        if let Some(secret) = secret {
            let proof = secret.proof(Role::Server, &said);
            self.say(&mut said, |out| codec::encode_proof(out, &proof, true));
        }
        self.input.payload_bytes_max = shared.payload_bytes_max;
        let alarm = Alarm::after(Arc::clone(&config.clock), config.peer_timeout);
        let wrote_at = config.clock.now();
        let has_crc = features.has(Features::PAYLOAD_CRC);
        Ok(Open { owned, has_crc, events, grant, told_at: wrote_at, unreceived_bytes: 0, alarm, wrote_at })
    }

    /// Has a frame of the greeting sent.
    fn say(&mut self, said: &mut Transcript, encode: impl FnOnce(&mut Vec<u8>)) {
        self.output.push(|out| {
            let start = out.len();
            encode(out);
            said.push(&out[start..]);
            blocker::Segments::new()
        });
    }

    /// Sends what there is, then waits for one frame of the greeting.
    async fn expect<T>(
        &mut self,
        op: Op,
        said: &mut Transcript,
        decode: impl Fn(&codec::Head<'_>) -> Result<T, Error>,
    ) -> Result<T, End> {
        poll_fn(|cx| {
            ready!(self.output.poll_flush(cx, &mut self.stream))?;
            loop {
                if let Some(frame) = self.input.next_frame(|_| None)? {
                    if frame.head.header.op != op || frame.head.header.flags.has(Flags::REPLY) {
                        let text = format!("{:?} instead of {op:?} in the greeting", frame.head.header.op);
                        return Poll::Ready(Err(End::Broken(text)));
                    }
                    said.push(frame.head_bytes);
                    return Poll::Ready(decode(&frame.head).map_err(End::Refused));
                }
                if ready!(self.input.poll_fill(cx, &mut self.stream))? == 0 {
                    return Poll::Ready(Err(End::Closed(Ok(()))));
                }
            }
        })
        .await
    }

    // ---- requests

    fn poll_open(&mut self, open: &mut Open, cx: &mut Context<'_>) -> Poll<End> {
        if open.owned.register(cx.waker()) {
            open.grant.register(cx.waker());
        }
        let end = self.poll_rounds(open, cx);
        self.counts.copied_bytes += std::mem::take(&mut self.input.copied_bytes);
        self.shared.counters.add(&mut self.counts);
        match end {
            Poll::Ready(Ok(())) => {
                // Others first.
                cx.waker().wake_by_ref();
            }
            Poll::Ready(Err(end)) => return Poll::Ready(end),
            Poll::Pending => {}
        }
        // The time of the last read, not of now: what came while we were busy has not been heard yet.
        let now = open.owned.now;
        let timeout = self.shared.config.peer_timeout;
        if open.alarm.poll(cx, now).is_ready() {
            if open.grant.is_unanswered() && now.since(open.told_at) >= timeout {
                return Poll::Ready(End::Broken("it does not say that it keeps to its grant".into()));
            }
            let unreceived_bytes = self.stream.unreceived_bytes().unwrap_or(0);
            if unreceived_bytes < open.unreceived_bytes {
                // On its way through the system's buffers: the client is taking it.
                open.wrote_at = now;
            }
            open.unreceived_bytes = unreceived_bytes;
            let last = self.input.heard_at.max(open.wrote_at);
            if now.since(last) >= timeout {
                return Poll::Ready(End::Silent);
            }
            let next = if open.grant.is_unanswered() { last.min(open.told_at) } else { last };
            // In between once, to have something to compare with.
            open.alarm.set((next + timeout).min(now + timeout / 2));
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Pending when nothing is left to do; ready when there may be more, or at the end.
    fn poll_rounds(&mut self, open: &mut Open, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
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
            self.answer_mail(open);
            self.take_events(open, cx);
            let is_stopped = self.handle_frames(open, now, cx)?;
            self.update_grant(open, now, cx);
            // Whoever has the answer finds it counted.
            self.shared.counters.add(&mut self.counts);
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
                Poll::Ready(0) => return Poll::Ready(Err(End::Closed(Ok(())))),
                Poll::Ready(_) => self.input.heard_at = now,
                Poll::Pending => {
                    self.input.rest();
                    self.flush(open, now, cx)?;
                    return Poll::Pending;
                }
            }
        }
        self.flush(open, open.owned.now, cx)?;
        Poll::Ready(Ok(()))
    }

    /// Sends what the socket takes. Whether nothing is left.
    fn flush(&mut self, open: &mut Open, now: Timestamp, cx: &mut Context<'_>) -> Result<bool, End> {
        let before = self.output.pending_bytes();
        let is_flushed = self.output.poll_flush(cx, &mut self.stream)?.is_ready();
        if self.output.pending_bytes() < before {
            open.wrote_at = now;
        }
        Ok(is_flushed)
    }

    /// Does everything complete. Whether it stopped because too much is still to be sent.
    fn handle_frames(&mut self, open: &mut Open, now: Timestamp, cx: &mut Context<'_>) -> Result<bool, End> {
        let mut send_at = SEND_BYTES;
        loop {
            if self.output.pending_bytes() >= send_at {
                // Whoever has the answer finds it counted.
                self.shared.counters.add(&mut self.counts);
                self.flush(open, now, cx)?;
                if self.output.pending_bytes() >= OUTPUT_HIGH_BYTES {
                    return Ok(true);
                }
                // What the socket does not take now is not offered for every frame again.
                send_at = (self.output.pending_bytes() + SEND_BYTES).min(OUTPUT_HIGH_BYTES);
            }
            let shared = &self.shared;
            let names = &mut self.names;
            let frame = self.input.next_frame(|head| shared.reserve_buffer(head, names))?;
            let Some(frame) = frame else { return Ok(false) };
            let header = frame.head.header;
            match header.op {
                Op::Ping if !header.flags.has(Flags::REPLY) => self.output.push(|out| {
                    codec::encode_ping(out, true);
                    blocker::Segments::new()
                }),
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
                Op::Credit if !open.grant.is_fixed() => {
                    let bytes = header.length;
                    if header.flags.has(Flags::REPLY) {
                        let kept = open.grant.kept(bytes, open.owned.slots.cost_bytes());
                        kept.map_err(|why| End::Broken(why.into()))?;
                    } else {
                        open.grant.ask(bytes);
                    }
                }
                op if op.takes_slot() && !header.flags.has(Flags::REPLY) => {
                    let (shared, output) = (&self.shared, &mut self.output);
                    handle_request(shared, open, frame, output, &mut self.names, &mut self.counts, now)?;
                }
                op => return Err(End::Broken(format!("{op:?} has no place here"))),
            }
        }
    }

    /// Answers what tasks have done.
    fn answer_mail(&mut self, open: &mut Open) {
        open.owned.take_mail(&mut self.mail);
        for (id, outcome) in self.mail.drain(..) {
            if let Some((op, outcome)) = open.owned.slots.complete(id, outcome) {
                reply(&mut self.output, outcome, op, id, open.has_crc);
            }
        }
    }

    /// Tells the client of another grant, and gives back what it has let go of.
    fn update_grant(&mut self, open: &mut Open, now: Timestamp, cx: &mut Context<'_>) {
        let news = open.grant.take_news(cx.waker());
        open.grant.settle(open.owned.slots.cost_bytes());
        let Some(bytes) = news else { return };
        self.counts.grants += 1;
        open.told_at = now;
        self.output.push(|out| {
            codec::encode_credit(out, bytes, false);
            blocker::Segments::new()
        });
    }

    /// Passes on news, as long as the client takes them.
    fn take_events(&mut self, open: &mut Open, cx: &mut Context<'_>) {
        while let Some(events) = &mut open.events
            && self.output.pending_bytes() < OUTPUT_HIGH_BYTES
        {
            match events.poll_next(cx) {
                Poll::Ready(Some(event)) => self.output.push(|out| {
                    codec::encode_event(out, &event);
                    blocker::Segments::new()
                }),
                Poll::Ready(None) => {
                    self.output.push(|out| {
                        codec::encode_event(out, &Event::Missed);
                        blocker::Segments::new()
                    });
                    open.events = None;
                }
                Poll::Pending => break,
            }
        }
    }

    // ---- the end

    /// Waits for what is being done, and sends its answers; the embedder bounds how long.
    async fn finish(&mut self, open: &mut Open) {
        let done = poll_fn(|cx| {
            _ = open.owned.register(cx.waker());
            self.answer_mail(open);
            let flushed = self.output.poll_flush(cx, &mut self.stream);
            match flushed {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                _ if open.owned.slots.executing_count() > 0 => Poll::Pending,
                flushed => flushed,
            }
        });
        if let Err(error) = done.await {
            tracing::debug!(cause = %error, "a client went before its last answers");
        }
    }
}

fn handle_request(
    shared: &Arc<Shared>,
    open: &mut Open,
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
        return Err(End::Broken("more is under way than was granted".into()));
    }
    let decoded = if frame.is_damaged() {
        Err(Error::Retryable("the payload was damaged on the way".into()))
    } else {
        Request::decode(&frame.head, frame.payload.into_segments(), names, now)
    };
    let step = match decoded {
        Ok(request) => shared.execute(request),
        Err(error) => Step::Ready(Outcome::Failed(error)),
    };
    match step {
        Step::Ready(outcome) => {
            if let Some((op, outcome)) = open.owned.slots.complete(id, Some(outcome)) {
                reply(output, outcome, op, id, open.has_crc);
            }
        }
        Step::Pending(future) => {
            counts.waits += 1;
            let reporter = open.owned.reporter(id);
            let task = tokio::spawn(async move { reporter.report(future.await) });
            open.owned.slots.set_abort(id, task.abort_handle());
        }
    }
    Ok(())
}

fn reply(output: &mut Output, outcome: Outcome, op: Op, id: RequestId, has_crc: bool) {
    output.push(|out| outcome.encode(op, id, has_crc, out));
}
