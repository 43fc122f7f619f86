//! A connection that stops in one process and goes on in another.
//!
//! Between two requests all that is known of a connection is its protocol, whether its client has authenticated,
//! and input that has not been used. Within a value, a retrieval or a dump there is more, and replies may wait;
//! that is brought to an end first.

use super::phase::{Gate, Phase};
use super::{ConnInfo, Connection};
use crate::connections::{HANDED_INPUT_BYTES_MAX, HandedConnection, HandedPhase};
use crate::stream::Transport;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::Poll;

impl Connection {
    /// Returns whether it stands between two requests, or within one of which only the beginning has arrived, and
    /// holds nothing of the store.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_between = match self.phase {
            Phase::Command | Phase::Gate(_) | Phase::Swallow(_) | Phase::Watch(_) => true,
            Phase::Get { .. } | Phase::Dump(_) | Phase::Body(_) => false,
        };
        is_between && self.output.is_none() && !self.closing
    }

    /// Returns what another process must know to go on with it; `None` if none can: it is not at rest, watches,
    /// is encrypted, or has too much input.
    pub(crate) fn hand_over(&self, auth_is_required: bool) -> Option<HandedConnection> {
        if !self.is_at_rest() || self.info.is_encrypted || self.input.len() > HANDED_INPUT_BYTES_MAX {
            return None;
        }
        let phase = match self.phase {
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

    /// Returns a connection that goes on where it has stopped in another process. Where clients must
    /// authenticate here and did not have to there, it must.
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
        // A request may be whole in it.
        let runnable = !input.is_empty();
        Connection { protocol, phase, input, runnable, ..Connection::new(info) }
    }

    /// Returns how many bytes are to be read before it can be at rest.
    pub(crate) fn missing_bytes(&self) -> usize {
        match &self.phase {
            Phase::Body(body) => body.missing(),
            _ => 0,
        }
    }
}

/// A transport of which only `allowed` bytes are read: a request is brought to its end, and the next is not begun.
pub(crate) struct Finishing<T> {
    pub(crate) io: T,
    /// The bytes that may be read.
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
