//! Connection slots: a connection gets one when the acceptor has assigned it to the worker, and gives
//! it back when it is closed.

use super::Worker;
use crate::conn::Connection;
use crate::connections::AcceptedConnection;
use crate::stream::{Readiness, Socket, TlsStream};
use rustix::event::epoll;
use std::os::fd::{AsFd, OwnedFd};

/// A connection and its socket. The slot takes two cache lines, the only ones of a connection that
/// a wake-up touches.
#[repr(align(64))]
pub(crate) struct ConnectionSlot {
    /// The TLS state; `None` without TLS. Dropped before the connection, which counts its buffers.
    pub(super) tls: Option<Box<TlsStream>>,
    pub(super) connection: Connection,
    pub(super) socket: OwnedFd,
    pub(super) ready: Readiness,
    /// Whether the slot is listed in `Worker::yielded`.
    pub(super) is_listed: bool,
}

const _: () = assert!(size_of::<Option<ConnectionSlot>>() == 128);

impl Worker {
    /// Puts an accepted connection into a free slot.
    pub(super) fn open_slot(&mut self, accepted: AcceptedConnection) {
        let AcceptedConnection { socket, info, tls, handed } = accepted;
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let interest = epoll::EventFlags::IN
            | epoll::EventFlags::PRI
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        if let Err(error) =
            epoll::add(&self.epoll, socket.as_fd(), epoll::EventData::new_u64(number as u64), interest)
        {
            tracing::warn!(cause = %error, "cannot register a connection with epoll: it is closed");
            self.shared.connections.remove(&info);
            self.free.push(number);
            return;
        }
        let tls = match (tls, &mut self.tls) {
            (Some(policy), Some(worker)) => worker.begin(policy, self.shared.clock.now_secs()),
            _ => None,
        };
        tracing::debug!(fd = info.fd, "new connection");
        info.set_slot(number);
        let must_authenticate = self.shared.settings.auth.is_required();
        let mut connection = match handed {
            Some(handed) => Connection::resume_handed(info, *handed, must_authenticate),
            None => {
                let mut connection = Connection::new(info);
                if must_authenticate {
                    connection.require_authentication();
                }
                connection
            }
        };
        if let Some(ring) = &self.shared.ring {
            connection.join_ring(ring.lanes(self.index).next_tag());
        }
        let slot = ConnectionSlot { socket, ready: Readiness::NEW, connection, tls, is_listed: false };
        self.slots[number] = Some(slot);
    }

    /// Closes the worker's connections that were asked to close, before any other connection takes
    /// more memory.
    #[cold]
    pub(super) fn close_requested(&mut self) {
        for number in self.shared.connections.queue(self.index).take_checks() {
            self.check(number);
        }
    }

    /// Closes a connection if that was requested.
    pub(super) fn check(&mut self, number: usize) {
        if let Some(Some(slot)) = self.slots.get(number)
            && slot.connection.info.is_close_requested()
        {
            self.close_slot(number);
        }
    }

    /// Removes a connection from the table and closes its socket.
    #[cold]
    pub(super) fn close_slot(&mut self, number: usize) {
        // A queued reply names the slot, which another connection may have next.
        self.send_queued();
        if let Some(mut slot) = self.slots.get_mut(number).and_then(Option::take) {
            if let Some(ring) = &self.shared.ring {
                slot.connection.abandon(&mut ring.lanes(self.index));
            }
            if slot.connection.is_watcher() {
                // The log thread may still hold a duplicate of the socket, which keeps the
                // registration alive: its events would reach the next connection in this slot. The
                // call fails only if there is no registration.
                let _ = epoll::delete(&self.epoll, slot.socket.as_fd());
            }
            if let (Some(stream), Some(tls)) = (&mut slot.tls, &mut self.tls) {
                let socket = Socket { fd: slot.socket.as_fd(), ready: &mut slot.ready };
                tls.end(socket, stream, &self.counters);
            }
            self.shared.connections.remove(&slot.connection.info);
            self.shared.watch.connection_closed(&slot.connection.info);
            tracing::debug!(fd = slot.connection.info.fd, "connection closed");
            self.free.push(number);
            // Drops the buffers first, then the connection's share of the memory that all
            // connections hold, then the socket.
            drop(slot);
            self.list_lanes();
        }
    }
}
