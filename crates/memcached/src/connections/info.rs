//! The information about a connection that threads other than its worker may read.
//!
//! The worker that serves a connection writes its [`ConnInfo`]. `stats conns` reads it, and so does
//! the thread that finds that all connections together hold too much memory and chooses which to
//! close.

use cached_metrics::counters;
use cached_proto::Protocol;
use connection::Peer;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The state of a connection, in memcached's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnState {
    /// Waits for a request.
    Read,
    /// Waits for the rest of a value.
    ReadBody,
    /// Discards a value that was refused.
    Swallow,
    /// Waits for the client to take replies.
    Write,
    /// Receives log lines; its input is ignored.
    Watch,
}

/// memcached's names for the states, in the order of [`ConnState`].
const STATE_NAMES: [&str; 5] = ["conn_read", "conn_nread", "conn_swallow", "conn_mwrite", "conn_watch"];

/// The two ends of a connection, or the address of a listener.
#[derive(Debug, Clone)]
pub(crate) enum Endpoints {
    Tcp {
        peer: SocketAddr,
        local: Option<SocketAddr>,
    },
    Unix {
        path: PathBuf,
    },
    /// Any client that sends datagrams to this socket.
    Udp {
        local: SocketAddr,
    },
}

/// A UDP socket, from which all workers read.
#[derive(Debug)]
pub(crate) struct UdpSocket {
    pub(crate) socket: OwnedFd,
    pub(crate) address: SocketAddr,
}

counters! {
    /// The counts of a listener.
    #[derive(Debug, Default)]
    pub(crate) struct ListenerCounts {
        /// Open connections, by listener.
        pub(crate) open: AtomicUsize => "cached_connections",
        /// Connections accepted, by listener.
        pub(crate) accepted: AtomicU64 => "cached_connections_accepted_total",
        /// Connections refused because there were as many as allowed, by listener.
        pub(crate) refused: AtomicU64 => "cached_connections_refused_total",
    }
}

/// The memory that a connection keeps while it waits for its client.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldMemory {
    /// The connection's own buffers: unfinished input and unsent output.
    pub(crate) buffer_bytes: usize,
    /// Values pinned in the store, which cannot reuse their memory while they are pinned.
    pub(crate) pinned_bytes: usize,
    /// Store memory that is reserved for a value that has not arrived completely.
    pub(crate) arriving_bytes: usize,
}

/// The memory of all connections.
#[derive(Debug, Default)]
pub(super) struct HeldSums {
    pub(super) buffer_bytes: AtomicUsize,
    /// The maximum of `buffer_bytes` since
    /// [`Connections::has_freed_much`](super::Connections::has_freed_much) last returned true.
    pub(super) buffer_bytes_peak: AtomicUsize,
    pub(super) pinned_bytes: AtomicUsize,
    pub(super) arriving_bytes: AtomicUsize,
}

/// One connection as other threads see it.
#[derive(Debug)]
pub(crate) struct ConnInfo {
    /// The descriptor of the socket, which is the connection's key in the table.
    pub(crate) fd: RawFd,
    pub(crate) endpoints: Endpoints,
    /// The protocol of the listener; `None` if the first byte decides.
    pub(crate) protocol: Option<Protocol>,
    /// Whether the connection uses TLS.
    pub(crate) is_encrypted: bool,
    /// The counts of the listener that accepted the connection.
    pub(super) listener: Arc<ListenerCounts>,
    /// The index of the worker that serves the connection.
    pub(crate) worker: usize,
    /// The connection's slot in that worker.
    slot: AtomicUsize,
    state: AtomicU8,
    /// The second of the last wake-up, by the server's clock.
    last_active: AtomicU32,
    buffer_bytes: AtomicUsize,
    pinned_bytes: AtomicUsize,
    arriving_bytes: AtomicUsize,
    /// The sums that include the connection's memory.
    pub(super) sums: Arc<HeldSums>,
    /// The second, by the server's clock, since which the connection has continuously held memory.
    pub(super) held_since: AtomicU32,
    close_requested: AtomicBool,
    /// Whether the connection is being closed because it was idle.
    idle_timeout: AtomicBool,
    /// Whether the connection is being closed because of the data that its client has sent.
    broken: AtomicBool,
}

impl ConnInfo {
    /// Returns the client's address, or the path of the unix socket to which the client is
    /// connected.
    pub(crate) fn client(&self) -> String {
        match &self.endpoints {
            Endpoints::Tcp { peer, .. } => peer.to_string(),
            Endpoints::Unix { path } => path.display().to_string(),
            Endpoints::Udp { local } => format!("udp:{local}"),
        }
    }

    /// Returns the address by which the client's connections and wrong passwords are counted;
    /// `None` for a local client of a unix socket.
    pub(crate) fn network(&self) -> Option<IpAddr> {
        match &self.endpoints {
            Endpoints::Tcp { peer, .. } => Peer::Tcp(*peer).network(),
            Endpoints::Unix { .. } | Endpoints::Udp { .. } => None,
        }
    }

    /// Returns the entry for a connection that `worker` is going to serve, last active at second
    /// `now`.
    pub(crate) fn new(
        fd: RawFd,
        endpoints: Endpoints,
        protocol: Option<Protocol>,
        worker: usize,
        now: u32,
    ) -> ConnInfo {
        ConnInfo {
            fd,
            endpoints,
            protocol,
            is_encrypted: false,
            listener: Arc::default(),
            worker,
            slot: AtomicUsize::new(usize::MAX),
            state: AtomicU8::new(ConnState::Read as u8),
            last_active: AtomicU32::new(now),
            buffer_bytes: AtomicUsize::new(0),
            pinned_bytes: AtomicUsize::new(0),
            arriving_bytes: AtomicUsize::new(0),
            sums: Arc::default(),
            held_since: AtomicU32::new(0),
            close_requested: AtomicBool::new(false),
            idle_timeout: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }
    }

    /// Returns the entry of a connection from the listener with these counts.
    pub(crate) fn of_listener(self, listener: Arc<ListenerCounts>, is_encrypted: bool) -> ConnInfo {
        ConnInfo { listener, is_encrypted, ..self }
    }

    /// Records the slot in which the worker keeps the connection.
    pub(crate) fn set_slot(&self, slot: usize) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    /// Returns the slot in which the worker keeps the connection.
    pub(crate) fn slot(&self) -> usize {
        self.slot.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn set_state(&self, state: ConnState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Returns memcached's name for the state.
    pub(crate) fn state_text(&self) -> &'static str {
        STATE_NAMES[usize::from(self.state.load(Ordering::Relaxed))]
    }

    #[inline]
    pub(crate) fn set_active(&self, now: u32) {
        self.last_active.store(now, Ordering::Relaxed);
    }

    /// Returns the second of the last wake-up, by the server's clock.
    pub(crate) fn last_active(&self) -> u32 {
        self.last_active.load(Ordering::Relaxed)
    }

    pub(super) fn held(&self) -> HeldMemory {
        HeldMemory {
            buffer_bytes: self.buffer_bytes.load(Ordering::Relaxed),
            pinned_bytes: self.pinned_bytes.load(Ordering::Relaxed),
            arriving_bytes: self.arriving_bytes.load(Ordering::Relaxed),
        }
    }

    fn set_held(&self, held: HeldMemory) {
        set_share(&self.sums.buffer_bytes, &self.buffer_bytes, held.buffer_bytes);
        set_share(&self.sums.pinned_bytes, &self.pinned_bytes, held.pinned_bytes);
        set_share(&self.sums.arriving_bytes, &self.arriving_bytes, held.arriving_bytes);
    }

    /// Returns whether the worker has been asked to close the connection.
    pub(crate) fn is_close_requested(&self) -> bool {
        self.close_requested.load(Ordering::Acquire)
    }

    pub(super) fn set_close_requested(&self) {
        self.close_requested.store(true, Ordering::Release);
    }

    /// Returns whether the connection waits for a request and has done so since before second
    /// `since`.
    pub(crate) fn is_idle(&self, since: u32) -> bool {
        let waits = self.state.load(Ordering::Relaxed) == ConnState::Read as u8;
        waits && self.last_active() < since
    }

    /// Returns whether the connection was closed because it was idle.
    pub(crate) fn is_timed_out(&self) -> bool {
        self.idle_timeout.load(Ordering::Relaxed)
    }

    pub(super) fn set_timed_out(&self) {
        self.idle_timeout.store(true, Ordering::Relaxed);
    }

    /// Withdraws the request to close the connection because it was idle.
    pub(crate) fn keep_open(&self) {
        self.idle_timeout.store(false, Ordering::Relaxed);
        self.close_requested.store(false, Ordering::Release);
    }

    /// Returns whether the connection was closed because of the data that its client has sent.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn set_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

/// A connection's own handle of its entry, which the connection drops after its buffers. Memory is
/// counted from the time at which the connection reports it until this handle is dropped: nothing
/// else subtracts the connection's share from the sums, so no share is subtracted while its memory
/// is in use.
#[derive(Debug)]
pub(crate) struct Holder(Arc<ConnInfo>);

impl Holder {
    pub(crate) fn new(info: Arc<ConnInfo>) -> Holder {
        Holder(info)
    }

    /// Records how much memory the connection holds from now on.
    pub(crate) fn record(&self, held: HeldMemory, now: u32) {
        let before = self.held();
        self.set_held(held);
        self.sums
            .buffer_bytes_peak
            .fetch_max(self.sums.buffer_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        if before == HeldMemory::default() {
            self.held_since.store(now, Ordering::Relaxed);
        }
    }
}

impl std::ops::Deref for Holder {
    type Target = Arc<ConnInfo>;

    fn deref(&self) -> &Arc<ConnInfo> {
        &self.0
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        if self.held() != HeldMemory::default() {
            self.set_held(HeldMemory::default());
        }
    }
}

/// Replaces one connection's share of a sum.
fn set_share(sum: &AtomicUsize, share: &AtomicUsize, now: usize) {
    let before = share.swap(now, Ordering::Relaxed);
    // Wrapping, so that the sum can also decrease.
    sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
}

/// The maximum unused input that is handed over with a connection.
pub(crate) const HANDED_INPUT_BYTES_MAX: usize = 64 << 10;

/// A connection between two requests, or within a request of which only the beginning has arrived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HandedConnection {
    /// The protocol, once it is known.
    pub(crate) protocol: Option<Protocol>,
    /// Whether the client has authenticated.
    pub(crate) is_authenticated: bool,
    pub(crate) phase: HandedPhase,
    /// Input that has not been consumed, at most [`HANDED_INPUT_BYTES_MAX`].
    pub(crate) input: Vec<u8>,
}

/// The position of a handed-over connection within its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandedPhase {
    /// At the start of a request, or within one that is incomplete.
    Command,
    /// Before the client is authenticated.
    Gate { swallow: u64, is_started: bool, failures: u8 },
    /// Within a value that was refused; this many bytes of the value are still to be discarded.
    Swallow(u64),
}
