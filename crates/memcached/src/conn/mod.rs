//! A connection: bytes in, requests executed, replies out. There is no event loop here: the worker
//! calls [`Connection::drive`] with a [`Transport`](crate::stream::Transport) whenever the
//! connection may be able to make progress.
//!
//! ```text
//!             ┌──────────────── input ──────────────┐
//!             ▼                                     │
//!  ──► Command ──complete request──► execute ──► replies ──► one write ──► Command
//!        │  ▲                          │               │
//!        │  └─── value complete ── Body│               └─ client does not take them: held; nothing more
//!        │                         ▲   │                  is read or executed until it has
//!        ├── value too large for   │   ├─ replies fill the buffer: Get keeps its place, the rest waits
//!        │   the input buffer ─────┘   │
//!        └── refused with a value ── Swallow
//! ```
//! Reading and writing use the worker's buffers. A connection that waits for its client holds none,
//! except for what is unfinished: part of a request, or replies that the client has not taken.
//! These bytes are counted ([`connections`](crate::connections)).
//!
//! | module | content |
//! |---|---|
//! | `drive` | reads and sends, within a budget after which others are served |
//! | `requests` | decodes and executes requests, and continues unfinished ones; where a protocol is added |
//! | `gate` | the phase before the others where clients must authenticate |
//! | `route` | in a ring: requests are executed here, or passed to the owner of their key |
//! | `places` | in a ring: the replies that are awaited, in the order of the requests |
//! | `answer` | in a ring: the answers of other nodes |
//! | `way` | in a ring: how a request is passed to another node |
//! | `again` | in a ring: requests that their owner has not executed |
//! | `values` | in a ring: values that have not arrived completely |
//! | `merge` | in a ring: retrievals of keys with different owners |
//! | `every` | in a ring: requests that every node executes |

mod again;
mod answer;
mod drive;
mod every;
mod gate;
mod merge;
mod places;
mod requests;
mod route;
#[cfg(test)]
mod tests;
mod values;
mod way;

pub(crate) use drive::DriveResult;

use crate::connections::{
    After, ConnInfo, ConnState, Endpoints, HANDED_INPUT_BYTES_MAX, HandedConnection, HandedPhase, HeldMemory,
    Holder, Memory,
};
use crate::exec::{Begun, Dump, Executor};
use crate::shared::Shared;
use crate::stats::Work;
use crate::stream::{Body, Output, Transport};
use crate::telemetry::counters::Counters;
use crate::telemetry::watch::Subscription;
use cached_proto::Protocol;
use cached_proto::text::GetCursor;
use places::Routed;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::Poll;

/// One client.
pub(crate) struct Connection {
    protocol: Option<Protocol>,
    phase: Phase,
    /// Input that has not been used.
    input: Vec<u8>,
    /// The number of bytes at the front of the input that are known to contain no line feed.
    scanned: usize,
    /// Whether `input` can be executed without another read.
    runnable: bool,
    /// Whether `input` ends within a value that is short enough to be collected in `input`.
    within_value: bool,
    /// Replies that the client has not accepted yet.
    output: Option<Box<Output>>,
    /// Whether to close the connection once `output` is sent.
    closing: bool,
    /// Whether `info` currently states that this connection holds memory or is in the middle of a
    /// request.
    is_reported: bool,
    /// The second of the last drive, by the server's clock.
    last_active: u32,
    /// The last field, so that the connection's memory is freed before the connection stops being
    /// counted.
    pub(crate) info: Holder,
}

impl Connection {
    pub(crate) fn new(info: Arc<ConnInfo>) -> Connection {
        Connection {
            protocol: info.protocol,
            phase: Phase::Command,
            input: Vec::new(),
            scanned: 0,
            runnable: false,
            within_value: false,
            output: None,
            closing: false,
            is_reported: false,
            last_active: 0,
            info: Holder::new(info),
        }
    }

    /// Returns whether the connection consists of a single datagram and ends with it.
    fn is_datagram(&self) -> bool {
        matches!(self.info.endpoints, Endpoints::Udp { .. })
    }

    /// Returns the memory that this connection keeps while it waits. `tls_bytes` is the memory of
    /// its TLS buffers.
    fn held(&self, tls_bytes: usize) -> HeldMemory {
        let (routed_bytes, routed_pinned_bytes) = match &self.phase {
            Phase::Routed(routed) => routed.held_bytes(),
            _ => (0, 0),
        };
        let (body, arriving_bytes) = match self.phase.within_input() {
            Phase::Body(body) => (body.held_bytes(), body.reserved_bytes()),
            _ => (0, 0),
        };
        let output = self.output.as_deref();
        let output_bytes = output.map_or(0, Output::capacity);
        HeldMemory {
            buffer_bytes: self.input.capacity() + output_bytes + routed_bytes + body + tls_bytes,
            pinned_bytes: output.map_or(0, Output::pinned_bytes) + routed_pinned_bytes,
            arriving_bytes,
        }
    }

    /// Publishes the connection's memory and state. Called after each drive, before the connection
    /// waits. `tls_bytes` is the memory of its TLS buffers.
    #[inline]
    pub(crate) fn update_info(&mut self, shared: &Shared, tls_bytes: usize) -> After {
        let waits = matches!(self.phase, Phase::Command) && self.input.is_empty() && self.output.is_none();
        let plain = waits && tls_bytes == 0;
        if !plain || self.is_reported {
            return self.publish(shared, tls_bytes, plain);
        }
        After::Nothing
    }

    #[cold]
    fn publish(&mut self, shared: &Shared, tls_bytes: usize, mut plain: bool) -> After {
        let within_value = std::mem::take(&mut self.within_value);
        let has_places = matches!(&self.phase, Phase::Routed(routed) if routed.has_places());
        self.info.set_state(match self.phase.within_input() {
            _ if self.output.is_some() || has_places => ConnState::Write,
            Phase::Body(_) => ConnState::ReadBody,
            Phase::Command if within_value && !self.input.is_empty() => ConnState::ReadBody,
            Phase::Swallow(_) => ConnState::Swallow,
            Phase::Watch(_) => ConnState::Watch,
            Phase::Gate(_) | Phase::Command | Phase::Get { .. } | Phase::Dump(_) | Phase::Routed(_) => {
                ConnState::Read
            }
        });
        let held = self.held(tls_bytes);
        let mut after = After::Nothing;
        if let Phase::Routed(routed) = &mut self.phase {
            if routed.take_queued() {
                after = After::Lanes;
            }
            // Counting so little memory would cost too much for each request that is passed on.
            plain = held.buffer_bytes <= ROUTED_BYTES_MIN && held.pinned_bytes + held.arriving_bytes == 0;
            if plain && !self.is_reported {
                return after;
            }
        }
        self.is_reported = !plain;
        let now = shared.clock.now_secs();
        self.info.record(if plain { HeldMemory::default() } else { held }, now);
        // Memory held for slow readers is unavailable to all other clients.
        let limit = HeldMemory {
            buffer_bytes: shared.live.connection_bytes_max(),
            pinned_bytes: shared.settings.memory_bytes / 4,
            // The store itself limits the memory of arriving values.
            arriving_bytes: usize::MAX,
        };
        match shared.connections.enforce_limits(limit, shared.live.connections_max(), now) {
            Memory::Short => After::Short,
            Memory::Enough => after,
        }
    }
}

/// The memory of a connection of a ring is counted only above this number of bytes.
const ROUTED_BYTES_MIN: usize = 1 << 10;

/// The position of a connection within its input, between two bytes.
enum Phase {
    /// Before the client is authenticated.
    Gate(Gate),
    /// At the start of a request, or within one that is incomplete.
    Command,
    /// Within a retrieval that filled the output buffer. The command line, `line_bytes` long, is
    /// still in the input.
    Get { cursor: GetCursor, line_bytes: usize },
    /// Within a dump.
    Dump(Dump),
    /// Within a value.
    Body(Box<Body>),
    /// Within a value that was refused; this many bytes of the value are still to be discarded.
    Swallow(usize),
    /// Receiving log lines from the log thread; input is ignored.
    Watch(Subscription),
    /// A connection of a ring; the box contains the phase within the input.
    Routed(Box<Routed>),
}

/// The state of a client that is not authenticated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Gate {
    /// The number of bytes to discard: the rest of a refused frame.
    swallow: usize,
    /// Whether the client has begun PLAIN without data, which the next SASL_STEP contains.
    started: bool,
    /// The number of wrong passwords.
    failures: u8,
}

impl Phase {
    /// Returns the position within the input, also for a connection of a ring.
    fn within_input(&self) -> &Phase {
        match self {
            Phase::Routed(routed) => &routed.phase,
            phase => phase,
        }
    }

    /// Returns the phase in which a value of `body_len` bytes, which follows `head`, is received
    /// after its command has begun.
    fn of_body(begun: Begun, protocol: Protocol, head: &[u8], body_len: usize) -> Phase {
        match begun {
            Begun::Reserved(reservation) => {
                Phase::Body(Box::new(Body::reserved(protocol, head, reservation)))
            }
            Begun::Collect(bytes) => Phase::Body(Box::new(Body::collected(protocol, head, bytes))),
            Begun::Refused => Phase::Swallow(body_len),
        }
    }
}

/// The reason why execution stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopReason {
    /// All input is consumed, except for an incomplete request.
    Input,
    /// The output must be sent before more requests are executed.
    Output,
    /// Other connections must be served first: the budget of requests, or of work for costly
    /// requests, is used up.
    Budget,
    /// The connection must be closed once the output is sent.
    Close,
}

/// A worker's counters and buffers, for the connection that it drives.
pub(crate) struct WorkerContext<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) counters: &'a Counters,
    /// The input buffer, [`INPUT_BYTES`](crate::stream::INPUT_BYTES) long.
    pub(crate) input: &'a mut [u8],
    /// The bytes that [`Connection::receive_ahead`](Connection::receive_ahead) has read.
    pub(crate) received: Option<&'a [u8]>,
    /// The output buffer, empty between connections.
    pub(crate) output: &'a mut Output,
    /// The remaining budget of this iteration for costly requests.
    pub(crate) work: &'a mut Work,
    /// The connection's socket.
    pub(crate) client: BorrowedFd<'a>,
}

impl WorkerContext<'_> {
    #[inline]
    fn executor(&mut self) -> Executor<'_> {
        let WorkerContext { shared, counters, output, work, client, .. } = self;
        Executor { shared, counters, out: output, work, client: client.as_raw_fd() }
    }
}

// Hand-over to another process. Between two requests, the state of a connection consists of its
// protocol, whether its client has authenticated, and unused input. Within a value, a retrieval or
// a dump there is more state, and replies may be unsent, so these are completed first.

impl Connection {
    /// Returns whether the connection is between two requests, or within a request of which only
    /// the beginning has arrived, and holds no resource of the store.
    pub(crate) fn is_at_rest(&self) -> bool {
        if matches!(&self.phase, Phase::Routed(routed) if !routed.is_idle()) {
            return false;
        }
        let is_between = match self.phase.within_input() {
            Phase::Command | Phase::Gate(_) | Phase::Swallow(_) | Phase::Watch(_) => true,
            Phase::Get { .. } | Phase::Dump(_) | Phase::Body(_) | Phase::Routed(_) => false,
        };
        is_between && self.output.is_none() && !self.closing
    }

    /// Returns the state with which another process can continue the connection. Returns `None` if
    /// that is impossible: the connection is not at rest, is a watcher, is encrypted, or has too
    /// much unused input.
    pub(crate) fn hand_over(&self, auth_is_required: bool) -> Option<HandedConnection> {
        if !self.is_at_rest() || self.info.is_encrypted || self.input.len() > HANDED_INPUT_BYTES_MAX {
            return None;
        }
        let phase = match *self.phase.within_input() {
            Phase::Command => HandedPhase::Command,
            Phase::Gate(Gate { swallow, started, failures }) => {
                HandedPhase::Gate { swallow: swallow as u64, is_started: started, failures }
            }
            Phase::Swallow(bytes) => HandedPhase::Swallow(bytes as u64),
            _ => return None,
        };
        let is_authenticated = auth_is_required && !matches!(phase, HandedPhase::Gate { .. });
        Some(HandedConnection { protocol: self.protocol, is_authenticated, phase, input: self.input.clone() })
    }

    /// Returns a connection that continues where it stopped in another process. If this process
    /// requires authentication and the other one did not, the client must authenticate.
    pub(crate) fn resume_handed(
        info: Arc<ConnInfo>,
        handed: HandedConnection,
        auth_is_required: bool,
    ) -> Connection {
        let HandedConnection { protocol, is_authenticated, phase, input } = handed;
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let phase = match phase {
            HandedPhase::Gate { swallow, is_started, failures } if auth_is_required => {
                Phase::Gate(Gate { swallow: bytes(swallow), started: is_started, failures })
            }
            HandedPhase::Swallow(rest) if auth_is_required && !is_authenticated => {
                Phase::Gate(Gate { swallow: bytes(rest), ..Gate::default() })
            }
            _ if auth_is_required && !is_authenticated => Phase::Gate(Gate::default()),
            HandedPhase::Swallow(rest) | HandedPhase::Gate { swallow: rest, .. } if rest > 0 => {
                Phase::Swallow(bytes(rest))
            }
            _ => Phase::Command,
        };
        let protocol = protocol.or(info.protocol);
        // The input may contain a complete request.
        let runnable = !input.is_empty();
        Connection { protocol, phase, input, runnable, ..Connection::new(info) }
    }

    /// Returns how many bytes of the current request must still be read before the connection can
    /// be at rest.
    pub(crate) fn missing_bytes(&self) -> usize {
        match self.phase.within_input() {
            Phase::Body(body) => body.missing(),
            _ => 0,
        }
    }
}

/// A transport that reads at most `allowed` bytes, so that the current request can be completed but
/// the next one cannot begin.
pub(crate) struct Finishing<T> {
    pub(crate) io: T,
    /// The number of bytes that may still be read.
    pub(crate) allowed: usize,
}

impl<T: Transport> Transport for Finishing<T> {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let bytes = into.len().min(self.allowed);
        if bytes == 0 {
            return Poll::Pending;
        }
        let read = self.io.read(&mut into[..bytes]);
        if let Poll::Ready(Ok(count)) = read {
            self.allowed -= count;
        }
        read
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io.write(bytes)
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.io.write_vectored(pieces)
    }

    fn may_read(&self) -> bool {
        self.allowed > 0 && self.io.may_read()
    }
}
