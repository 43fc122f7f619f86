//! Datagrams: each is treated as a connection that carries one or more requests and ends with the
//! datagram.
//!
//! All workers wait for all UDP sockets, and whichever worker is free reads. A datagram with an
//! incomplete request is dropped, as is one that is part of a request of several datagrams, or for
//! whose value there is no memory. A reply is sent in as many datagrams as it needs, up to a limit:
//! the sender's address may be forged, and the bytes sent to it should not be many times the bytes
//! received.

use super::Worker;
use crate::conn::{Connection, DriveResult, WorkerContext};
use crate::connections::{ConnInfo, Endpoints, UdpSocket};
use crate::shared::Shared;
use crate::stream::Transport;
use crate::telemetry::heartbeat::Activity;
use cached_proto::binary::{ErrorReply, Head, Header, MAGIC_REQUEST, Status};
use cached_proto::reply;
use cached_proto::udp::{UDP_DATAGRAM_LEN_MAX, UDP_HEADER_LEN, decode_datagram, encode_datagrams};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

/// The event number of the first UDP socket. Slot numbers never reach it, and the waker's number is
/// larger.
pub(super) const UDP_FIRST: u64 = 1 << 48;

/// The number of datagrams that are answered before connections are served again.
const BATCH: usize = 32;

/// The maximum size of a datagram.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;

/// The reply memory that is kept between datagrams.
const REPLY_BYTES_KEPT: usize = 1 << 16;

/// A worker's sockets and buffers for datagrams.
pub(super) struct WorkerUdp {
    sockets: Arc<[UdpSocket]>,
    /// The entries by which event lines and limits identify the clients of each socket.
    infos: Box<[Arc<ConnInfo>]>,
    datagram: Box<[u8]>,
    reply: Vec<u8>,
}

/// Returns the maximum memory that a worker uses for datagrams, in bytes.
pub(crate) fn udp_bytes_max(reply_bytes_max: usize) -> usize {
    DATAGRAM_BYTES_MAX + 2 * reply_bytes_max
}

impl WorkerUdp {
    /// Returns the state for reading from the server's UDP sockets, which it registers with the
    /// worker's event loop; `None` if there are no such sockets.
    ///
    /// # Errors
    /// If a socket cannot be registered.
    pub(super) fn new(worker: usize, shared: &Shared, loop_of: &OwnedFd) -> io::Result<Option<WorkerUdp>> {
        let Some(sockets) = shared.udp.get().filter(|sockets| !sockets.is_empty()) else { return Ok(None) };
        let mut infos = Vec::new();
        for (number, UdpSocket { socket, address }) in (UDP_FIRST..).zip(sockets.iter()) {
            // Level-triggered: datagrams that one batch leaves are reported again, to one worker.
            let interest = epoll::EventFlags::IN | epoll::EventFlags::EXCLUSIVE;
            epoll::add(loop_of, socket, epoll::EventData::new_u64(number), interest)?;
            let endpoints = Endpoints::Udp { local: *address };
            let (protocol, now) = (shared.settings.protocol, shared.clock.now_secs());
            infos.push(Arc::new(ConnInfo::new(socket.as_raw_fd(), endpoints, protocol, worker, now)));
        }
        let datagram = vec![0; DATAGRAM_BYTES_MAX].into();
        Ok(Some(WorkerUdp { sockets: sockets.clone(), infos: infos.into(), datagram, reply: Vec::new() }))
    }
}

impl Worker {
    /// Answers datagrams of the socket with this event number, at most one batch.
    #[cold]
    pub(super) fn serve_datagrams(&mut self, event: u64) {
        // Moved out of the worker, so that the rest of the worker can be borrowed meanwhile.
        let Some(mut udp) = self.udp.take() else { return };
        if let Some(index) = event.checked_sub(UDP_FIRST).and_then(|index| usize::try_from(index).ok())
            && let Some(UdpSocket { socket, address }) = udp.sockets.clone().get(index)
        {
            self.begin_step(socket.as_raw_fd(), Activity::Serving);
            for _ in 0..BATCH {
                let received = rustix::net::recvfrom(socket, &mut *udp.datagram, RecvFlags::DONTWAIT);
                let (bytes, peer) = match received {
                    Ok((_, bytes, peer)) => (bytes, peer.and_then(|peer| SocketAddr::try_from(peer).ok())),
                    Err(Errno::AGAIN) => break,
                    // An ICMP error from the host of an earlier peer: nothing listens there.
                    Err(_) => continue,
                };
                let info = udp.infos[index].clone();
                let WorkerUdp { datagram, reply, .. } = &mut udp;
                self.work.renew();
                self.answer(&datagram[..bytes], peer, socket, *address, info, reply);
                // An iteration answers only one costly datagram.
                if !self.work.is_untouched() {
                    break;
                }
            }
        }
        self.udp = Some(udp);
        let counters = self.shared.counters(self.index);
        if counters.next_timed.is_running() {
            self.timing.served(counters);
        }
    }

    /// Answers one datagram, or drops it.
    fn answer(
        &mut self,
        datagram: &[u8],
        peer: Option<SocketAddr>,
        socket: &OwnedFd,
        own: SocketAddr,
        info: Arc<ConnInfo>,
        reply: &mut Vec<u8>,
    ) {
        let counters = self.shared.counters(self.index);
        counters.received_bytes.add(UDP_HEADER_LEN.min(datagram.len()) as u64);
        // Two servers that took each other's replies for requests would reply to each other
        // forever.
        let peer = peer.filter(|peer| peer.port() != 0 && peer.port() != own.port());
        let (Some((id, request)), Some(peer)) = (decode_datagram(datagram), peer) else {
            return counters.udp_dropped.bump();
        };
        counters.udp_requests.bump();
        let mut io = Datagram {
            request,
            reply,
            reply_bytes_max: self.shared.settings.udp_reply_bytes_max,
            is_too_large: false,
        };
        let mut connection = Connection::new(info);
        if let Some(ring) = &self.shared.ring {
            connection.join_ring(ring.lanes(self.index).next_tag());
        }
        loop {
            let (unread, needs_input) = (io.request.len(), connection.needs_input());
            let mut context = WorkerContext {
                shared: &self.shared,
                counters,
                input: &mut self.input,
                received: None,
                output: &mut self.output,
                work: &mut self.work,
                client: socket.as_fd(),
            };
            // The end of the datagram is the end of the connection.
            if connection.drive(&mut context, &mut io) != DriveResult::Yield {
                break;
            }
            // The request cannot be deferred, so it is refused like one whose reply is too large.
            if self.work.is_used_up() {
                io.is_too_large = true;
                break;
            }
            // There is no memory for the value. It may be this worker that has to close the connections
            // that hold the memory, so the datagram is dropped here; the client retries.
            if needs_input && io.request.len() == unread {
                counters.udp_dropped.bump();
                break;
            }
        }
        drop(connection);
        self.output.clear();
        if io.is_too_large {
            refuse(request, reply);
        }
        for (header, bytes) in encode_datagrams(id, reply) {
            let mut datagram = [0; UDP_DATAGRAM_LEN_MAX];
            datagram[..UDP_HEADER_LEN].copy_from_slice(&header);
            datagram[UDP_HEADER_LEN..][..bytes.len()].copy_from_slice(bytes);
            let datagram = &datagram[..UDP_HEADER_LEN + bytes.len()];
            match rustix::net::sendto(socket, datagram, SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &peer) {
                // The payload of the reply was counted when the request was executed.
                Ok(_) => counters.sent_bytes.add(UDP_HEADER_LEN as u64),
                // There is no buffer space, or no route to that address. The client retries, as it
                // does for any lost datagram.
                Err(_) => {
                    counters.udp_dropped.bump();
                    break;
                }
            }
        }
        reply.clear();
        reply.shrink_to(REPLY_BYTES_KEPT);
    }
}

/// Replaces a reply that is too large with an error that fits one datagram.
fn refuse(request: &[u8], reply: &mut Vec<u8>) {
    reply.clear();
    match Header::read(request).filter(|header| header.magic == MAGIC_REQUEST) {
        None => reply.extend_from_slice(reply::UDP_REPLY_TOO_LARGE),
        Some(Header { opcode, opaque, cas, .. }) => {
            let head = Head { opcode, opaque, cas, quiet: false };
            ErrorReply { head, status: Status::TooLarge }.encode(reply);
        }
    }
}

/// A datagram as a stream that ends with it.
struct Datagram<'a> {
    /// The unread rest of the datagram.
    request: &'a [u8],
    reply: &'a mut Vec<u8>,
    reply_bytes_max: usize,
    /// Whether the reply has exceeded the limit.
    is_too_large: bool,
}

impl Transport for Datagram<'_> {
    fn read(&mut self, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let count = self.request.len().min(into.len());
        let (bytes, rest) = self.request.split_at(count);
        into[..count].copy_from_slice(bytes);
        self.request = rest;
        Poll::Ready(Ok(count))
    }

    fn write(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        if self.reply.len() + bytes > self.reply_bytes_max {
            self.is_too_large = true;
            return Poll::Ready(Err(io::ErrorKind::FileTooLarge.into()));
        }
        pieces.iter().for_each(|piece| self.reply.extend_from_slice(piece));
        Poll::Ready(Ok(bytes))
    }
}
