//! TLS connections of a worker: buffers, and limits on handshakes.
//!
//! A handshake costs as much as some hundred requests, so a worker performs only a few steps of
//! handshakes in each iteration of its loop. Clients beyond that number queue, while established
//! connections are served in every iteration. A connection whose handshake is not complete after
//! ten seconds is closed.

use super::Worker;
use crate::conn::{Connection, DriveResult, WorkerContext};
use crate::stream::{CountHandshake, Socket, TlsBuffers, TlsSocket, TlsStream};
use crate::telemetry::counters::Counters;
use cached_tls::{ClientCertificates, ServerTls};
use rustix::event::Timespec;
use std::sync::Arc;

/// The number of handshake steps in one iteration of the loop.
const HANDSHAKES_PER_ITERATION: u32 = 4;

/// The maximum duration of a handshake.
const HANDSHAKE_SECS_MAX: u32 = 10;

/// The TLS state of one worker.
pub(super) struct WorkerTls {
    server: Arc<ServerTls>,
    buffers: Box<TlsBuffers>,
    /// The number of connections whose handshake is not complete.
    handshaking: usize,
    /// The second, by the server's clock, in which overdue handshakes were last checked.
    checked: u32,
}

impl WorkerTls {
    pub(super) fn new(server: Arc<ServerTls>) -> WorkerTls {
        WorkerTls { server, buffers: TlsBuffers::new(), handshaking: 0, checked: 0 }
    }

    /// Returns the maximum wait for events: overdue handshakes are checked once a second.
    pub(super) fn timeout(&self) -> Option<Timespec> {
        (self.handshaking > 0).then_some(Timespec { tv_sec: 1, tv_nsec: 0 })
    }

    /// Begins an iteration of the loop. `others_wait` states that connections are queued: these
    /// come before connections with new events.
    pub(super) fn begin_iteration(&mut self, others_wait: bool) {
        self.buffers.handshakes_left = if others_wait { 0 } else { HANDSHAKES_PER_ITERATION };
    }

    /// Returns the TLS side of a connection that has been accepted.
    pub(super) fn begin(&mut self, policy: ClientCertificates, now: u32) -> Option<Box<TlsStream>> {
        let config = self.server.config(policy)?;
        self.handshaking += 1;
        Some(TlsStream::new(config, now))
    }

    /// Returns the transport of a connection.
    pub(super) fn socket<'a>(
        &'a mut self,
        socket: Socket<'a>,
        stream: &'a mut TlsStream,
        counters: &'a Counters,
    ) -> TlsSocket<'a> {
        TlsSocket { socket, stream, buffers: &mut self.buffers, counts: Some(counters), is_draining: false }
    }

    /// Drives a connection.
    pub(super) fn drive(
        &mut self,
        connection: &mut Connection,
        context: &mut WorkerContext<'_>,
        socket: Socket<'_>,
        stream: &mut TlsStream,
    ) -> DriveResult {
        let was_established = stream.is_established;
        stream.is_deferred = false;
        let result = connection.drive(context, &mut self.socket(socket, stream, context.counters));
        if stream.is_established && !was_established {
            self.handshaking -= 1;
        }
        match result {
            DriveResult::Wait if stream.is_deferred => DriveResult::Yield,
            result => result,
        }
    }

    /// Drives a connection at shutdown. A connection whose handshake is not complete has no
    /// requests, so it is closed.
    pub(super) fn drain(
        &mut self,
        connection: &mut Connection,
        context: &mut WorkerContext<'_>,
        socket: Socket<'_>,
        stream: &mut TlsStream,
    ) -> DriveResult {
        if !stream.is_established {
            return DriveResult::Close;
        }
        let mut socket = TlsSocket { is_draining: true, ..self.socket(socket, stream, context.counters) };
        connection.drive(context, &mut socket)
    }

    /// Ends the TLS side of a connection that is about to be closed.
    pub(super) fn end(&mut self, socket: Socket<'_>, stream: &mut TlsStream, counters: &Counters) {
        if !stream.is_established {
            self.handshaking -= 1;
        }
        self.socket(socket, stream, counters).close();
        if let Some(why) = stream.failure() {
            match stream.is_established {
                true => counters.tls_failures.bump(),
                false => counters.tls_handshake_failures.bump(),
            }
            tracing::debug!(cause = why, "a TLS connection has failed");
        }
    }
}

impl CountHandshake for Counters {
    fn count_handshake(&self, is_resumed: bool) {
        match is_resumed {
            true => self.tls_handshakes_resumed.bump(),
            false => self.tls_handshakes_full.bump(),
        }
    }
}

impl Worker {
    /// Closes connections with overdue handshakes, and allows the queued ones a few steps.
    pub(super) fn follow_handshakes(&mut self) {
        let now = self.shared.clock.now_secs();
        let Some(tls) = &mut self.tls else { return };
        tls.buffers.handshakes_left = HANDSHAKES_PER_ITERATION;
        if tls.handshaking == 0 || tls.checked == now {
            return;
        }
        tls.checked = now;
        for number in 0..self.slots.len() {
            if let Some(Some(slot)) = self.slots.get_mut(number)
                && let Some(stream) = &mut slot.tls
                && stream.is_overdue(now, HANDSHAKE_SECS_MAX)
            {
                stream.fail("the handshake took too long");
                self.close_slot(number);
            }
        }
    }
}
