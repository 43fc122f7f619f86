//! Connections that are ready together, served with two system calls for all of them: one receives
//! from every socket, and one sends every reply (io_uring).
//!
//! Readiness still comes from epoll. The ready connections of a wake-up are served without io_uring
//! if there are fewer than `io_uring_sockets_min` of them, if one of them has TLS, or if the system
//! does not allow io_uring. Large replies and the rest of a long input use the socket directly.
//!
//! ```text
//!  events ──► one receive ──► requests of connection 0 ──► reply 0 ─┐
//!             for all         requests of connection 1 ──► reply 1 ─┼─► one send for all ──► what was not sent
//!                             …                            …       ─┘                        is held by its connection
//! ```
//! A connection queues up to 2 KiB of replies. A write beyond that waits until these are sent, and
//! the connection is then driven again, so bytes keep their order.
//!
//! Connections with more work, and those that replies of other nodes have woken, are driven without a
//! receive, and their replies are sent likewise.

use super::{ReadAhead, Worker};
use crate::connections::After;
use crate::stream::{AHEAD_BYTES, BUNDLE, GROUP, Socket, Transport, URING_BYTES, Uring};
use crate::telemetry::heartbeat::Activity;
use rustix::event::epoll;
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsFd;
use std::task::Poll;

/// A reply up to this size is queued; the copy of a larger one would cost more than its system
/// call.
const QUEUED_BYTES_MAX: usize = 2 << 10;

/// The memory of a worker's bundles, in bytes, in addition to that of groups.
pub(crate) const BUNDLE_BYTES: usize =
    URING_BYTES + BUNDLE * QUEUED_BYTES_MAX + (BUNDLE - GROUP) * AHEAD_BYTES;

/// The state of a worker for bundles.
pub(super) struct Bundles {
    ring: Uring,
    /// The minimum number of ready connections that are served as a bundle.
    sockets_min: usize,
    pub(super) queue: SendQueue,
}

impl Bundles {
    /// Returns the state for bundles of at least `sockets_min` connections; `None` if that is 0, or
    /// the system does not allow io_uring.
    pub(super) fn open(worker: usize, sockets_min: usize) -> Option<Bundles> {
        if sockets_min == 0 {
            return None;
        }
        match Uring::open() {
            Ok(ring) => {
                if worker == 0 {
                    tracing::info!("{sockets_min} and more ready connections are served through io_uring");
                }
                let queue = SendQueue {
                    bytes: Vec::with_capacity(BUNDLE * QUEUED_BYTES_MAX),
                    replies: Vec::with_capacity(BUNDLE),
                };
                Some(Bundles { ring, sockets_min, queue })
            }
            Err(error) => {
                // One line is enough: what the system refuses one worker, it refuses all.
                match worker {
                    0 => {
                        tracing::info!(cause = %error, "io_uring is not used: this system does not allow it");
                    }
                    _ => tracing::debug!(worker, cause = %error, "this worker does not use io_uring"),
                }
                None
            }
        }
    }

    /// Returns the minimum number of ready connections that are served as a bundle.
    pub(super) fn sockets_min(&self) -> usize {
        if self.ring.is_open() { self.sockets_min } else { usize::MAX }
    }
}

/// Replies that one system call will send.
#[derive(Default)]
pub(super) struct SendQueue {
    /// The bytes of all replies.
    bytes: Vec<u8>,
    replies: Vec<Reply>,
}

struct Reply {
    /// The number of the connection's slot.
    slot: usize,
    /// The place of the reply in the queue's bytes.
    range: Range<usize>,
    next: Next,
}

/// What the connection does once its reply is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Wait,
    /// The connection is driven again, because a second reply waits.
    Drive,
    Close,
}

impl SendQueue {
    /// Returns the queued reply of the connection that is being driven.
    fn reply_of(&mut self, slot: usize) -> Option<&mut Reply> {
        self.replies.last_mut().filter(|reply| reply.slot == slot)
    }

    /// Adds bytes to the queued reply of the connection that is being driven, or waits until the
    /// reply is sent if it would become too large. Returns `None` if no reply is queued.
    fn extend(&mut self, slot: usize, bytes: &[u8]) -> Option<Poll<io::Result<usize>>> {
        let reply = self.replies.last_mut().filter(|reply| reply.slot == slot)?;
        // What follows a write that waits, waits too.
        if reply.next == Next::Wait && reply.range.len() + bytes.len() <= QUEUED_BYTES_MAX {
            self.bytes.extend_from_slice(bytes);
            reply.range.end = self.bytes.len();
            return Some(Poll::Ready(Ok(bytes.len())));
        }
        reply.next = Next::Drive;
        Some(Poll::Pending)
    }
}

/// A socket whose small replies are queued.
pub(super) struct QueueingSocket<'a> {
    pub(super) socket: Socket<'a>,
    pub(super) slot: usize,
    pub(super) queue: &'a mut SendQueue,
}

impl Transport for QueueingSocket<'_> {
    #[inline]
    fn may_read(&self) -> bool {
        self.socket.may_read()
    }

    #[inline]
    fn has_queued(&self) -> bool {
        self.queue.replies.last().is_some_and(|reply| reply.slot == self.slot)
    }

    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.socket.read(into)
    }

    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if let Some(polled) = self.queue.extend(self.slot, bytes) {
            return polled;
        }
        if bytes.len() > QUEUED_BYTES_MAX || self.queue.replies.len() == BUNDLE || !self.socket.ready.write {
            return self.socket.write(bytes);
        }
        let start = self.queue.bytes.len();
        self.queue.bytes.extend_from_slice(bytes);
        let range = start..self.queue.bytes.len();
        self.queue.replies.push(Reply { slot: self.slot, range, next: Next::Wait });
        Poll::Ready(Ok(bytes.len()))
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(reply) = self.queue.reply_of(self.slot) {
            reply.next = Next::Drive;
            return Poll::Pending;
        }
        self.socket.write_vectored(pieces)
    }

    #[inline]
    fn sent_by_write(&self, written: usize) -> u64 {
        // Once the connection has a queued reply, each write that is accepted is added to it.
        match self.queue.replies.last() {
            Some(reply) if reply.slot == self.slot => 0,
            _ => written as u64,
        }
    }
}

impl Worker {
    /// Serves the connections of at most [`BUNDLE`] events.
    pub(super) fn serve_bundle(&mut self, events: &[epoll::Event]) {
        // When there are many connections, each has left the processor's cache since its last step.
        for event in events {
            self.prefetch_slot(event.data.u64() as usize);
        }
        for event in events {
            self.record_event(*event);
        }
        // The kernel receives for all of them, so this step belongs to no connection.
        self.begin_step(-1, Activity::Serving);
        let mut ahead = [ReadAhead::default(); BUNDLE];
        self.receive_bundle(events, &mut ahead);
        for hash in ahead.iter().filter_map(|ahead| ahead.hash) {
            self.shared.kv.prefetch_item(hash);
        }
        for (at, event) in events.iter().enumerate() {
            let received = ahead[at].received.map(|bytes| at * AHEAD_BYTES..at * AHEAD_BYTES + bytes);
            self.serve_with::<true>(event.data.u64() as usize, received);
        }
        self.end_bundle();
    }

    /// Sends the replies of a bundle. Its requests end together.
    pub(super) fn end_bundle(&mut self) {
        self.send_queued();
        if self.counters.next_timed.is_running() {
            self.timing.served(&self.counters);
        }
    }

    /// Receives from all connections that wait for a request.
    fn receive_bundle(&mut self, events: &[epoll::Event], ahead: &mut [ReadAhead; BUNDLE]) {
        let Worker { bundles: Some(bundles), slots, ahead: buffers, .. } = self else { return };
        let slots = &*slots;
        let numbers = events.iter().map(|event| event.data.u64() as usize);
        let waiting = numbers.clone().zip(buffers.chunks_mut(AHEAD_BYTES)).enumerate().filter_map(
            move |(at, (number, into))| {
                let slot = slots.get(number)?.as_ref()?;
                let waits = slot.tls.is_none() && slot.ready.read && slot.connection.waits_for_request();
                waits.then(|| (at, slot.socket.as_fd(), into))
            },
        );
        let results = bundles.ring.receive(waiting);
        for (at, number) in numbers.enumerate() {
            ahead[at] = match results[at] {
                Some(result @ (Ok(_) | Err(Errno::AGAIN))) => {
                    let Some(Some(slot)) = self.slots.get_mut(number) else { continue };
                    match slot.ready.received(result, AHEAD_BYTES) {
                        Poll::Ready(received) => self.read_ahead(received.unwrap_or(0), at),
                        Poll::Pending => ReadAhead::default(),
                    }
                }
                // The operation was not performed, or its error may be the ring's own (such as a
                // lack of memory): the socket is asked.
                None | Some(Err(_)) => self.receive_ahead(number, at),
            };
        }
    }

    /// Records that the connection that was just driven is to be closed once its queued reply is
    /// sent. Returns false if it has no queued reply.
    pub(super) fn close_once_sent(&mut self, number: usize) -> bool {
        let reply = self.bundles.as_mut().and_then(|bundles| bundles.queue.reply_of(number));
        reply.map(|reply| reply.next = Next::Close).is_some()
    }

    /// Sends the queued replies. A connection holds the bytes that its socket does not accept at
    /// once.
    pub(super) fn send_queued(&mut self) {
        let Worker { bundles: Some(bundles), slots, .. } = self else { return };
        if bundles.queue.replies.is_empty() {
            return;
        }
        let slots = &*slots;
        // The queue is moved out, because `close_slot`, which `follow` may call, sends it first.
        let mut queue = std::mem::take(&mut bundles.queue);
        let operations = queue.replies.iter().enumerate().filter_map(|(at, reply)| {
            let slot = slots.get(reply.slot)?.as_ref()?;
            Some((at, slot.socket.as_fd(), &queue.bytes[reply.range.clone()]))
        });
        let results = bundles.ring.send(operations);
        let sent_bytes: usize = results.iter().flatten().filter_map(|result| result.ok()).sum();
        self.counters.sent_bytes.add(sent_bytes as u64);
        for (reply, result) in queue.replies.iter().zip(results) {
            let bytes = &queue.bytes[reply.range.clone()];
            if result != Some(Ok(bytes.len())) || reply.next != Next::Wait {
                self.follow(reply, bytes, result);
            }
        }
        queue.bytes.clear();
        queue.replies.clear();
        if let Some(bundles) = &mut self.bundles {
            bundles.queue = queue;
        }
    }

    /// Continues with a connection whose reply was not sent completely, or that has more to do once
    /// its reply is sent.
    #[cold]
    fn follow(&mut self, reply: &Reply, bytes: &[u8], result: Option<rustix::io::Result<usize>>) {
        let number = reply.slot;
        let Some(Some(slot)) = self.slots.get_mut(number) else { return };
        let sent = match result {
            Some(result @ (Ok(_) | Err(Errno::AGAIN))) => match slot.ready.sent(result, bytes.len()) {
                Poll::Ready(sent) => sent.unwrap_or(0),
                Poll::Pending => 0,
            },
            // The operation was not performed, or its error may be the ring's own: the connection
            // sends again, and ends if its socket has failed.
            None | Some(Err(_)) => 0,
        };
        let rest = &bytes[sent..];
        if rest.is_empty() && reply.next == Next::Close {
            return self.close_slot(number);
        }
        if !rest.is_empty() {
            slot.connection.hold_unsent(rest, reply.next == Next::Close);
            let after = slot.connection.update_info(&self.shared, 0);
            if after != After::Nothing {
                self.follow_up(after);
            }
        }
        // Unless the socket is full, no event will drive the connection.
        if let Some(Some(slot)) = self.slots.get(number)
            && slot.ready.write
        {
            self.list_yielded(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::{AcceptedConnection, CommandQueue, ConnInfo, Endpoints};
    use crate::process::Logging;
    use crate::settings::Settings;
    use crate::shared::Shared;
    use crate::shared::clock::ServerClock;
    use crate::stream::Readiness;
    use crate::telemetry::watch::Watch;
    use cached_core::kv::{Kv, KvConfig};
    use rustix::event::Timespec;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    /// A worker and its clients; client N is connected to slot N.
    struct Bench {
        worker: Worker,
        clients: Vec<UnixStream>,
    }

    impl Bench {
        /// Returns a worker that serves everything in bundles; `None`, with a message, where the
        /// system does not allow io_uring.
        fn new(clients: usize) -> Option<Bench> {
            let settings = Settings {
                threads: 1,
                memory_bytes: 16 << 20,
                io_uring_sockets_min: 1,
                ..Settings::default()
            };
            let clock = ServerClock::new();
            let config = KvConfig {
                arena_bytes: settings.memory_bytes,
                lanes: 1,
                clock: clock.ticks(),
                ..KvConfig::default()
            };
            let kv = Kv::new(config).expect("a store");
            let watch = Arc::new(Watch::new(1 << 16, 1 << 16).expect("a descriptor"));
            let queues = [CommandQueue::new().expect("a descriptor")];
            let shared = Shared::new(kv, clock, settings, Logging::embedded(0), watch, queues.into());
            let worker = Worker::new(0, Arc::new(shared)).expect("descriptors");
            if worker.bundles.is_none() {
                test_kit::outside::announce_skip("bundles", "this system allows no io_uring");
                return None;
            }
            let mut bench = Bench { worker, clients: Vec::new() };
            for _ in 0..clients {
                let client = bench.connect();
                bench.clients.push(client);
            }
            Some(bench)
        }

        fn connect(&mut self) -> UnixStream {
            let (near, far) = UnixStream::pair().expect("sockets");
            near.set_nonblocking(true).unwrap();
            far.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let info = ConnInfo::new(near.as_raw_fd(), Endpoints::Unix { path: "/x".into() }, None, 0, 2);
            let info = self.worker.shared.connections.add(info);
            self.worker.open_slot(AcceptedConnection { socket: near.into(), info, tls: None, handed: None });
            far
        }

        /// Sends a request on every connection, and executes these without sending the replies.
        fn queue_replies(&mut self, request: &[u8]) {
            for (number, client) in self.clients.iter_mut().enumerate() {
                client.write_all(request).unwrap();
                self.worker.serve_with::<true>(number, None);
            }
        }

        fn follow(&mut self, next: Next, bytes: &[u8], result: rustix::io::Result<usize>) {
            self.worker.follow(&Reply { slot: 0, range: 0..bytes.len(), next }, bytes, Some(result));
        }

        fn expect(&mut self, client: usize, expected: &[u8]) {
            let mut received = vec![0; expected.len()];
            self.clients[client].read_exact(&mut received).unwrap();
            assert_eq!(received, expected);
        }

        fn expect_end(&mut self, client: usize) {
            assert_eq!(self.clients[client].read(&mut [0; 8]).unwrap(), 0);
            assert!(self.worker.slots[client].is_none());
        }

        fn sent_bytes(&self) -> u64 {
            self.worker.counters.totals().sent_bytes
        }
    }

    #[test]
    fn replies_survive_a_ring_that_fails_before_they_are_sent() {
        let Some(mut bench) = Bench::new(3) else { return };
        bench.queue_replies(b"mn\r\n");
        assert_eq!(bench.sent_bytes(), 0);
        bench.worker.bundles.as_mut().unwrap().ring.close();
        bench.worker.send_queued();
        assert_eq!((bench.sent_bytes(), &bench.worker.yielded[..]), (0, &[0, 1, 2][..]));
        bench.worker.serve_yielded();
        (0..3).for_each(|client| bench.expect(client, b"MN\r\n"));
        assert_eq!(bench.sent_bytes(), 12);
        // From now on, the worker has no ring.
        bench.clients.iter_mut().for_each(|client| client.write_all(b"mn\r\n").unwrap());
        bench.worker.wait(&mut Vec::with_capacity(8), Some(Timespec::default()));
        (0..3).for_each(|client| bench.expect(client, b"MN\r\n"));
    }

    #[test]
    fn an_error_of_the_ring_ends_no_healthy_connection() {
        let Some(mut bench) = Bench::new(1) else { return };
        bench.follow(Next::Wait, b"first", Err(Errno::NOMEM));
        bench.worker.serve_yielded();
        bench.expect(0, b"first");
        bench.follow(Next::Close, b"second", Err(Errno::CANCELED));
        bench.worker.serve_yielded();
        bench.expect(0, b"second");
        bench.expect_end(0);
    }

    #[test]
    fn a_client_that_has_gone_is_closed() {
        let Some(mut bench) = Bench::new(1) else { return };
        bench.queue_replies(b"mn\r\n");
        bench.clients.clear();
        bench.worker.send_queued();
        bench.worker.serve_yielded();
        assert!(bench.worker.slots[0].is_none());
        assert_eq!(bench.sent_bytes(), 0);
    }

    #[test]
    fn the_rest_of_a_last_reply_is_sent_before_the_end() {
        let Some(mut bench) = Bench::new(1) else { return };
        bench.follow(Next::Close, b"0123456789", Ok(4));
        assert!(bench.worker.yielded.is_empty(), "the socket is full");
        bench.worker.slots[0].as_mut().unwrap().ready.write = true;
        bench.worker.serve(0, None);
        bench.expect(0, b"456789");
        bench.expect_end(0);
        assert_eq!(bench.sent_bytes(), 6);
    }

    /// The log thread sends to the same socket, before the queued reply.
    #[test]
    fn no_client_with_a_queued_reply_becomes_a_watcher() {
        let Some(mut bench) = Bench::new(1) else { return };
        bench.queue_replies(b"mn\r\n");
        bench.worker.slots[0].as_mut().unwrap().ready.read = true;
        bench.queue_replies(b"watch fetchers\r\n");
        assert!(!bench.worker.slots[0].as_ref().unwrap().connection.is_watcher());
        bench.worker.send_queued();
        bench.expect(0, b"MN\r\nERROR cannot pipeline other commands before watch\r\n");
    }

    /// The log thread, which does not run here, would drop its duplicate of the socket later.
    #[test]
    fn no_event_of_a_watcher_reaches_the_next_connection_in_its_slot() {
        let Some(mut bench) = Bench::new(1) else { return };
        bench.queue_replies(b"watch fetchers\r\n");
        bench.expect(0, b"OK\r\n");
        bench.worker.close_slot(0);
        let _client = bench.connect();
        assert!(bench.worker.slots[0].is_some());
        bench.clients.clear();
        let mut events = Vec::with_capacity(8);
        let spare = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&bench.worker.epoll, spare, Some(&Timespec::default())).unwrap();
        let flags: Vec<_> = events.iter().map(|event: &epoll::Event| event.flags).collect();
        assert_eq!(flags, [epoll::EventFlags::OUT]);
    }

    #[test]
    fn small_replies_are_queued_in_order_up_to_the_limit() {
        let (near, _far) = UnixStream::pair().expect("sockets");
        let (mut ready, mut queue) = (Readiness::NEW, SendQueue::default());
        let mut write = |slot, len| {
            let socket = Socket { fd: near.as_fd(), ready: &mut ready };
            let mut socket = QueueingSocket { socket, slot, queue: &mut queue };
            match socket.write(&vec![b'x'; len]) {
                Poll::Ready(written) => Some((written.unwrap(), socket.sent_by_write(len))),
                Poll::Pending => None,
            }
        };
        assert_eq!(write(1, 3000), Some((3000, 3000)), "a large one is sent");
        assert_eq!(write(1, 1500), Some((1500, 0)));
        assert_eq!(write(1, 548), Some((548, 0)));
        assert_eq!(write(1, 1), None);
        assert_eq!(write(2, 1000), Some((1000, 0)));
        assert_eq!(write(2, 1500), None);
        assert_eq!(write(2, 10), None, "after one that waits");
        let replies: Vec<_> = queue.replies.iter().map(|reply| (reply.slot, reply.range.clone())).collect();
        assert_eq!((queue.bytes.len(), &replies[..]), (3048, &[(1, 0..2048), (2, 2048..3048)][..]));
        assert!(queue.replies.iter().all(|reply| reply.next == Next::Drive));
    }
}
