//! A new connection: the choice of the server, the handshake, and the decision whether the server
//! may replace the last one.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Poll, ready};

use blocker::{Capabilities, Change, Durability, Error, Event, Survives};
use connection::{Output, PayloadPool, Stream, Transcript};
use tokio::net::{TcpStream, UnixStream};

use super::config::ClientConfig;
use super::lane::Lane;
use super::{Core, Shared};
use crate::Address;
use crate::auth::{Role, random, send};
use crate::codec::{
    self, Answer, Challenge, Credits, Features, Flags, Head, Hello, InstanceId, Op, Outcome, Request,
    SessionId, Status, StoreId, Welcome,
};
use crate::input::{Input, Timer};

/// A connection after its handshake.
pub(super) struct Connected {
    /// The number of the server among the client's addresses.
    pub(super) server: usize,
    pub(super) stream: Stream,
    pub(super) input: Input,
    pub(super) output: Output,
    pub(super) welcome: Box<Welcome>,
}

/// Connects to the server with the number `first`, or else to the next one, until `take` accepts a
/// connection. Tries each server once.
///
/// # Errors
/// Returns `Denied` if the secret is wrong at one of the servers; otherwise `Retryable`, with the
/// cause at each server.
pub(super) async fn connect_in_turn(
    config: &ClientConfig,
    first: usize,
    session: SessionId,
    pool: &Arc<PayloadPool>,
    take: impl Fn(Connected) -> Result<Connected, Error>,
) -> Result<Connected, Error> {
    let count = config.addresses.count();
    let mut causes = Vec::new();
    for server in (first..count).chain(0..first) {
        match connect(config, server, session, pool).await.and_then(&take) {
            Ok(connected) => return Ok(connected),
            Err(cause) => causes.push(cause),
        }
    }
    Err(all_failed(causes))
}

/// Returns one error for the failures of all servers.
fn all_failed(mut causes: Vec<Error>) -> Error {
    let denied = causes.iter().position(|cause| matches!(cause, Error::Denied(_)));
    if let (Some(only), _) | (None, Some(only)) = (denied, (causes.len() == 1).then_some(0)) {
        return causes.swap_remove(only);
    }
    let texts = causes.iter().map(|cause| match cause {
        Error::Retryable(text) => text.to_string(),
        other => other.to_string(),
    });
    Error::Retryable(texts.collect::<Vec<_>>().join("; ").into())
}

/// Connects to a server and performs the handshake, within `connect_timeout`.
///
/// # Errors
/// Returns `Denied` if the secret is wrong, and `Retryable` for every other failure.
async fn connect(
    config: &ClientConfig,
    server: usize,
    session: SessionId,
    pool: &Arc<PayloadPool>,
) -> Result<Connected, Error> {
    let timer = Timer::after(Arc::clone(&config.clock), config.connect_timeout);
    timer.limit(handshake(config, server, session, pool)).await.unwrap_or_else(|| {
        let text =
            format!("{}: no handshake within {:?}", config.addresses.of(server), config.connect_timeout);
        Err(Error::Retryable(text.into()))
    })
}

/// Opens a stream to `address`.
async fn open(address: &Address) -> io::Result<Stream> {
    match address {
        Address::Tcp(address) => Stream::tcp(TcpStream::connect(address.as_str()).await?),
        Address::Unix(path) => UnixStream::connect(path).await.map(Stream::Unix),
    }
}

async fn handshake(
    config: &ClientConfig,
    server: usize,
    session: SessionId,
    pool: &Arc<PayloadPool>,
) -> Result<Connected, Error> {
    let address = config.addresses.of(server);
    let stream = match &config.connector {
        Some(connector) => connector(address).await.map(Stream::Other),
        None => open(address).await,
    };
    let mut stream = stream.map_err(|error| Error::Retryable(format!("{address}: {error}").into()))?;
    let mut input = Input::new(Arc::clone(pool), config.clock.now());
    let mut output = Output::default();
    // In a handshake, only errors have a payload.
    input.payload_bytes_max = codec::REASON_BYTES_MAX as u32;
    let mut features = Features(Features::RUNS | Features::CREDIT);
    features.0 |= Features::METRICS | Features::LOSSES | Features::NAMESPACES;
    features.0 |= if config.is_server { Features::RESERVED_NAMESPACES } else { 0 };
    features.0 |= if config.payload_crc { Features::PAYLOAD_CRC } else { 0 };
    features.0 |= if session.lane == 0 { Features::EVENTS | Features::WRITES_LOST } else { 0 };
    let credits = Credits { slots: config.slots, bytes: config.bytes };
    let mut hello = Hello::new(session, features, random(), credits);
    (hello.client_name, hello.key) = (config.name.clone(), config.key.clone().into_bytes());
    let mut transcript = Transcript::default();
    send(&mut transcript, &mut output, |out| hello.encode(out));
    let unproved = || {
        let text = format!("{address}: the server does not prove that it knows the secret");
        Error::Denied(text.into())
    };
    let mut challenge: Option<Challenge> = None;
    let welcome = loop {
        let reply = receive(&mut stream, &mut input, &mut output, &mut transcript).await;
        match reply.map_err(|error| with_address(address, error))? {
            HandshakeReply::Challenge(received) => {
                let (Some(secret), None) = (&config.secret, &challenge) else {
                    let text = format!("{address}: the server requires a secret, but none is configured");
                    return Err(Error::Denied(text.into()));
                };
                let proof = Role::Client.proof(secret, &transcript);
                send(&mut transcript, &mut output, |out| codec::encode_proof(out, &proof, false));
                challenge = Some(received);
            }
            HandshakeReply::Welcome(welcome) => break welcome,
            HandshakeReply::Proof(_) => return Err(unproved()),
        }
    };
    if let Some(secret) = &config.secret {
        if challenge.is_none_or(|challenge| challenge.instance != welcome.instance) {
            return Err(unproved());
        }
        let before = transcript.clone();
        match receive(&mut stream, &mut input, &mut output, &mut transcript).await {
            Ok(HandshakeReply::Proof(proof)) if Role::Server.has_proven(secret, &proof, &before) => {}
            Ok(_) => return Err(unproved()),
            Err(error) => return Err(with_address(address, error)),
        }
    }
    let capabilities = &welcome.capabilities;
    let list_bytes = u64::from(capabilities.list_entries_max) * codec::LIST_ENTRY_BYTES_MAX;
    let payload = capabilities.request_bytes_max.max(list_bytes).max(codec::CONTROL_BYTES_MAX);
    input.payload_bytes_max = u32::try_from(payload).unwrap_or(u32::MAX);
    Ok(Connected { server, stream, input, output, welcome })
}

enum HandshakeReply {
    Challenge(Challenge),
    Welcome(Box<Welcome>),
    Proof([u8; 32]),
}

/// Sends the queued bytes, then waits for one frame of the handshake.
async fn receive(
    stream: &mut Stream,
    input: &mut Input,
    output: &mut Output,
    transcript: &mut Transcript,
) -> Result<HandshakeReply, Error> {
    let broken = |error: &dyn std::fmt::Display| Error::Retryable(error.to_string().into());
    poll_fn(|cx| {
        ready!(output.poll_flush(cx, stream)).map_err(|error| broken(&error))?;
        loop {
            if let Some(frame) = input.next_frame(|_| None).map_err(|error| broken(&error))? {
                transcript.push(frame.head_bytes);
                let payload = frame.payload.into_segments().to_bytes();
                return Poll::Ready(decode(&frame.head, &payload));
            }
            if ready!(input.poll_fill(cx, stream)).map_err(|error| broken(&error))? == 0 {
                return Poll::Ready(Err(broken(&"the server has closed the connection")));
            }
        }
    })
    .await
}

fn decode(head: &Head<'_>, payload: &[u8]) -> Result<HandshakeReply, Error> {
    match (head.header.op, head.header.status) {
        (Op::Hello, Status::Challenge) => Challenge::decode(head).map(HandshakeReply::Challenge),
        (Op::Hello, Status::Ok) if head.header.flags.has(Flags::REPLY) => {
            Welcome::decode(head).map(|welcome| HandshakeReply::Welcome(Box::new(welcome)))
        }
        (Op::Prove, Status::Ok) if head.header.flags.has(Flags::REPLY) => {
            codec::decode_proof(head).map(HandshakeReply::Proof)
        }
        (Op::Goodbye, _) => Err(codec::decode_goodbye(&head.header, payload)),
        (op, _) => Err(Error::Invalid(format!("{op:?} in the handshake").into())),
    }
}

/// Adds the server's address to an error. Every error except `Denied` becomes `Retryable`, because
/// only this attempt has failed.
fn with_address(address: &Address, error: Error) -> Error {
    match error {
        Error::Denied(text) => Error::Denied(format!("{address}: {text}").into()),
        Error::Retryable(text) => Error::Retryable(format!("{address}: {text}").into()),
        other => Error::Retryable(format!("{address}: {other}").into()),
    }
}

// ---- Which servers a client accepts, and what it records of their responses.

/// The server that the client uses, or tries first.
#[derive(Clone, Copy, Default)]
pub(super) struct Current {
    /// The server's number among the client's addresses.
    pub(super) server: usize,
    /// The server of the last connection, and its instance.
    pub(super) connected: Option<(usize, InstanceId)>,
}

impl Shared {
    /// Connects a lane to the server that the other lanes use, or else to the next one that
    /// accepts. If another lane chooses a server in the meantime, this lane immediately follows it.
    ///
    /// # Errors
    /// Returns the errors of [`connect_in_turn`].
    pub(super) async fn reach(&self, lane: u16) -> Result<Connected, Error> {
        let config = ClientConfig { secret: self.secret.lock().clone(), ..self.config.clone() };
        loop {
            let first = self.current.lock().server;
            let take = |connected| self.accept(connected);
            let mut attempt = pin!(connect_in_turn(&config, first, self.session(lane), &self.pool, take));
            // A lane's task is woken when the server changes.
            let reached = poll_fn(|cx| {
                let is_first = self.current.lock().server == first;
                if is_first { attempt.as_mut().poll(cx).map(Some) } else { Poll::Ready(None) }
            });
            if let Some(reached) = reached.await {
                return reached;
            }
        }
    }

    /// Makes the client try the next server first from now on, because a connection to `server` has
    /// ended. Has no effect if another lane has already chosen another server.
    pub(super) fn leave(&self, server: usize) {
        let count = self.config.addresses.count();
        {
            let mut current = self.current.lock();
            if count == 1 || current.server != server {
                return;
            }
            current.server = (server + 1) % count;
        }
        // Other lanes may be waiting for this lane's handshake.
        self.lanes().iter().for_each(|lane| lane.wake());
    }

    /// Returns the address of the server in use.
    pub(super) fn address(&self) -> &Address {
        self.config.addresses.of(self.current.lock().server)
    }

    /// Accepts a connection after its handshake, if its server still serves the same backend.
    ///
    /// # Errors
    /// Returns `Retryable`, with the difference.
    pub(super) fn accept(&self, connected: Connected) -> Result<Connected, Error> {
        let Connected { server, welcome, .. } = &connected;
        let address = self.config.addresses.of(*server);
        let is_emptied = self.check_store(welcome).map_err(|text| {
            tracing::warn!(server = %address, "{text}");
            Error::Retryable(format!("{address}: {text}").into())
        })?;
        let before = std::mem::replace(&mut *self.capabilities.write(), welcome.capabilities);
        if before != welcome.capabilities {
            tracing::info!(server = %address, "the server has other limits than on the last connection");
        }
        self.features.store(welcome.features.0, Ordering::Relaxed);
        let has_changed = self.unflushed.connected_to(welcome.instance, &welcome.closed);
        let now = Current { server: *server, connected: Some((*server, welcome.instance)) };
        let before = std::mem::replace(&mut *self.current.lock(), now);
        if has_changed {
            let name = &welcome.server_name;
            match before.connected.map(|(last, _)| last).filter(|last| last != server) {
                None => tracing::info!(server = %address, name, "the server has restarted"),
                Some(last) => {
                    self.counters.server_changes.increment();
                    let last = self.config.addresses.of(last);
                    tracing::info!(server = %address, name, %last, "another server has taken over");
                }
            }
        }
        if has_changed || before.server != *server {
            // Other lanes may still have connections to the old instance, or may be waiting for
            // one.
            self.lanes().iter().for_each(|lane| lane.wake());
        }
        if is_emptied {
            tracing::error!(
                server = %address,
                "the server's store is in memory, and was empty after a restart: everything stored there is lost"
            );
            self.events.publish(&Event::Emptied);
        }
        if welcome.features.has(Features::EVENTS) && self.has_events.swap(true, Ordering::AcqRel) {
            // Events may have been published while there was no connection.
            self.events.publish(&Event::Missed);
        }
        Ok(connected)
    }

    /// Records that a lane has a connection.
    pub(super) fn lane_up(&self) {
        self.lanes_up.fetch_add(1, Ordering::AcqRel);
        if self.is_away.swap(false, Ordering::AcqRel) {
            tracing::info!(server = %self.address(), "the server is reachable again");
        }
    }

    /// Records that a lane has lost its connection.
    pub(super) fn lane_down(&self, why: &Error) {
        if self.lanes_up.fetch_sub(1, Ordering::AcqRel) == 1 && !self.is_away.swap(true, Ordering::AcqRel) {
            tracing::warn!(server = %self.config.addresses, cause = %why, "the server is unreachable; retrying");
        }
    }

    /// Checks that the server still serves the store of the first connection, with at least the
    /// same guarantees. Limits may change; requests beyond the new limits are refused. Returns
    /// whether the server has replaced a store in memory, which no restart survives, by a new one.
    ///
    /// # Errors
    /// Returns one line: what differs, and what the client expects.
    fn check_store(&self, welcome: &Welcome) -> Result<bool, String> {
        let now = &welcome.capabilities;
        let is_in_memory = |can: &Capabilities| can.survives == Survives::Nothing;
        let was_in_memory = is_in_memory(&self.capabilities.read()) && is_in_memory(now);
        if let Some(promise) = lost_promise(&self.capabilities.read(), now) {
            return Err(format!(
                "the server no longer promises {promise}, on which this client's callers rely; restore it, or \
                 restart the client"
            ));
        }
        let mut store = self.store.lock();
        match (*store, welcome.store) {
            (Some(known), Some(found)) if found != known && was_in_memory => {
                *store = Some(found);
                Ok(true)
            }
            (Some(known), found) if found != Some(known) => {
                let found = found.map_or("one without an identity".to_owned(), |found| hex(&found));
                Err(format!(
                    "it serves another store ({found}) than the one that this client first connected to ({}); serve \
                     that one at this address again, or restart the client",
                    hex(&known)
                ))
            }
            (_, found) => {
                *store = found;
                Ok(false)
            }
        }
    }

    /// Returns whether `instance` is the one that the client connected to last.
    pub(super) fn is_current(&self, instance: InstanceId) -> bool {
        self.current.lock().connected.is_some_and(|(_, current)| current == instance)
    }

    fn lanes(&self) -> Vec<Arc<Lane>> {
        self.core.get().and_then(Weak::upgrade).map_or_else(Vec::new, |core: Arc<Core>| core.lanes.clone())
    }

    /// Records an acknowledged change that a crash of the server would lose.
    pub(super) fn record(&self, instance: InstanceId, request: &Request, outcome: &Outcome) {
        let (Request::Change(request), Outcome::Answered(Answer::Change(reply))) = (request, outcome) else {
            return;
        };
        let object = &request.object;
        if request.change.replaces_content() || matches!(request.change, Change::Copy { .. }) {
            // The new content repairs the object's loss.
            self.unflushed.replaced(object);
        }
        if reply.durability == Durability::Cached {
            self.unflushed.acknowledged(instance, object, request.terms.domain);
        }
    }
}

/// Returns a guarantee of `before` that `now` lacks, if there is one. Sizes and numbers are not
/// guarantees: requests beyond them are refused.
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
        (now.survives < before.survives, "that stored data survive the same failures"),
    ];
    is_lost.into_iter().find_map(|(is_lost, promise)| is_lost.then_some(promise))
}

fn hex(id: &StoreId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}
