//! Connection slots: a connection gets one when the acceptor has assigned it to the worker, and gives
//! it back when it is closed.

use super::Worker;
use crate::conn::Connection;
use crate::connections::AcceptedConnection;
use crate::stream::{Readiness, Socket, TlsStream};
use rustix::event::epoll;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;

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
        let Some(Some(slot)) = self.slots.get(number) else { return };
        let info = &slot.connection.info;
        if !info.is_close_requested() {
            return;
        }
        if info.is_timed_out() {
            // A request may have arrived before this worker got to its commands.
            if !self.shared.idle_since().is_some_and(|since| info.is_idle(since)) {
                return info.keep_open();
            }
            self.shared.idle_kicks.fetch_add(1, Ordering::Relaxed);
        }
        self.close_slot(number);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::{CommandQueue, ConnInfo, Endpoints};
    use crate::process::Logging;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use crate::shared::clock::ServerClock;
    use crate::telemetry::watch::Watch;
    use cached_core::kv::{Kv, KvConfig};
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    #[test]
    fn a_connection_that_has_become_active_is_not_closed_as_idle() {
        let settings =
            Settings { threads: 1, memory_bytes: 16 << 20, idle_timeout_secs: 10, ..Settings::default() };
        let clock = ServerClock::new();
        clock.pause(true);
        let config =
            KvConfig { arena_bytes: settings.memory_bytes, clock: clock.ticks(), ..KvConfig::default() };
        let kv = Kv::new(config).expect("a store");
        let watch = Arc::new(Watch::new(1 << 16, 1 << 16).expect("a descriptor"));
        let queues = [CommandQueue::new().expect("a descriptor")];
        let shared = Shared::new(kv, clock, settings, Logging::embedded(0), watch, queues.into());
        let shared = Arc::new(shared);
        let mut worker = Worker::new(0, shared.clone()).expect("descriptors");
        let (near, mut far) = UnixStream::pair().expect("sockets");
        near.set_nonblocking(true).unwrap();
        let endpoints = Endpoints::Tcp { peer: ([127, 0, 0, 1], 1).into(), local: None };
        let info = ConnInfo::new(near.as_raw_fd(), endpoints, None, 0, shared.clock.now_secs());
        let info = shared.connections.add(info);
        let socket = near.into();
        worker.open_slot(AcceptedConnection { socket, info: info.clone(), tls: None, handed: None });

        shared.clock.shift(11);
        shared.close_idle();
        assert!(info.is_close_requested());
        far.write_all(b"mn\r\n").unwrap();
        worker.serve(0, None);
        worker.run_commands();
        let mut reply = [0; 4];
        far.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"MN\r\n");
        assert!(worker.slots[0].is_some() && !info.is_close_requested() && !info.is_timed_out());
        assert_eq!(shared.idle_kicks.load(Ordering::Relaxed), 0);

        shared.clock.shift(11);
        shared.close_idle();
        worker.run_commands();
        assert!(worker.slots[0].is_none());
        assert_eq!(shared.idle_kicks.load(Ordering::Relaxed), 1);
    }
}
