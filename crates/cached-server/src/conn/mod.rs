//! A connection: bytes in, requests executed, replies out.
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
//! Reading and writing use the worker's buffers; a connection that waits for its client holds none, except
//! for the little that is unfinished: part of a request, or replies the client has not taken. These bytes are
//! counted ([`connections`](crate::connections)).
//!
//! `Connection` knows no event loop: the worker calls [`Connection::drive`] with a
//! [`Transport`](crate::stream::Transport) whenever that may make progress.
//!
//! | module | content |
//! |---|---|
//! | `drive` | reads and sends |
//! | `requests` | decodes and executes requests; where a protocol is added |
//! | `phase` | the states in the drawing |
//! | `resume` | how a connection continues in each of them |
//! | `hand_over` | a connection that another process goes on with |
//! | `gate` | the state before them where clients must authenticate |
//! | `budget` | how much a connection may do before others are served |
//! | `context` | what the worker lends |

mod budget;
mod context;
mod drive;
mod gate;
mod hand_over;
mod phase;
mod requests;
mod resume;

pub(crate) use context::WorkerContext;
pub(crate) use drive::DriveResult;
pub(crate) use hand_over::Finishing;

use crate::connections::{ConnInfo, ConnState, Endpoints, HeldMemory, Holder, Memory};
use crate::shared::Shared;
use crate::stream::Output;
use cached_proto::Protocol;
use phase::Phase;
use std::sync::Arc;

/// One client.
pub(crate) struct Connection {
    protocol: Option<Protocol>,
    phase: Phase,
    /// Input that has not been used.
    input: Vec<u8>,
    /// The number of bytes at the front of the input that hold no line feed.
    scanned: usize,
    /// `input` can be executed as it is.
    runnable: bool,
    /// `input` ends within a value that is short enough to be collected there.
    within_value: bool,
    /// Replies that the client has not taken.
    output: Option<Box<Output>>,
    /// Close when they are taken.
    closing: bool,
    /// `info` states that this connection holds memory or is in the middle of a request.
    is_reported: bool,
    /// The clock's second of the last drive.
    last_active: u32,
    /// Last, so that what the connection holds is freed before it stops counting.
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

    /// Returns whether it ends with the datagram that it is.
    fn is_datagram(&self) -> bool {
        matches!(self.info.endpoints, Endpoints::Udp { .. })
    }

    /// Returns the memory that this connection keeps while it waits; `tls_bytes` are those of its TLS side.
    fn held(&self, tls_bytes: usize) -> HeldMemory {
        let (body, arriving_bytes) = match &self.phase {
            Phase::Body(body) => (body.held_bytes(), body.reserved_bytes()),
            _ => (0, 0),
        };
        let output = self.output.as_deref();
        HeldMemory {
            buffer_bytes: self.input.capacity() + output.map_or(0, Output::capacity) + body + tls_bytes,
            pinned_bytes: output.map_or(0, Output::pinned_bytes),
            arriving_bytes,
        }
    }

    /// Publishes what the connection holds and is doing. Called after each drive, before the connection
    /// waits. `tls_bytes` are the bytes of buffers of its TLS side.
    #[inline]
    pub(crate) fn update_info(&mut self, shared: &Shared, tls_bytes: usize) -> Memory {
        let waits = matches!(self.phase, Phase::Command) && self.input.is_empty() && self.output.is_none();
        let plain = waits && tls_bytes == 0;
        if !plain || self.is_reported {
            self.is_reported = !plain;
            return self.publish(shared, tls_bytes);
        }
        Memory::Enough
    }

    #[cold]
    fn publish(&mut self, shared: &Shared, tls_bytes: usize) -> Memory {
        let within_value = std::mem::take(&mut self.within_value);
        self.info.set_state(match &self.phase {
            _ if self.output.is_some() => ConnState::Write,
            Phase::Body(_) => ConnState::ReadBody,
            Phase::Command if within_value && !self.input.is_empty() => ConnState::ReadBody,
            Phase::Swallow(_) => ConnState::Swallow,
            Phase::Watch(_) => ConnState::Watch,
            Phase::Gate(_) | Phase::Command | Phase::Get { .. } | Phase::Dump(_) => ConnState::Read,
        });
        let now = shared.clock.now_secs();
        self.info.record(self.held(tls_bytes), now);
        // Memory that waits for slow readers is missing for all other clients.
        let limit = HeldMemory {
            buffer_bytes: shared.live.connection_bytes_max(),
            pinned_bytes: shared.settings.memory_bytes / 4,
            // The store limits these itself.
            arriving_bytes: usize::MAX,
        };
        shared.connections.enforce_limits(limit, shared.live.connections_max(), now)
    }
}

#[cfg(test)]
mod tests;
