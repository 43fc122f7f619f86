//! The table of connections: the information that every thread may read about each connection, and
//! the way to reach the worker that serves it. The connections themselves belong to their workers
//! and are in `conn`.
//!
//! ```text
//!  acceptor ── add ──────────────► Connections ◄── Holder ────── worker (its own connections)
//!                                   │  table of ConnInfo      ▲
//!  ticker ──── close_idle ─────────►│                         │ Command::Serve, Command::Check
//!  any worker ─ enforce_limits ────►│ ── CommandQueue of the connection's worker ──┘
//! ```
//! | module | content |
//! |---|---|
//! | `info` | [`ConnInfo`]: state, endpoints and held memory of one connection, written by its worker; [`Holder`]: the worker's handle of it, which counts that memory until it is freed; [`HandedConnection`]: what another process needs to continue one |
//! | `commands` | [`CommandQueue`]: commands of other threads to a worker |
//! | `attempts` | [`Attempts`]: wrong passwords by address |

mod attempts;
mod commands;
mod info;

pub(crate) use attempts::{Attempts, WrongPassword};
pub(crate) use commands::{
    AcceptedConnection, AtAddress, Command, CommandQueue, NoLane, OpenLane, Pause, Paused, PausedConnection,
    ServeLane,
};
pub(crate) use info::{
    ConnInfo, ConnState, Endpoints, HANDED_INPUT_BYTES_MAX, HandedConnection, HandedPhase, HeldMemory,
    Holder, ListenerCounts, UdpSocket,
};

use crate::locks::{CONNECTIONS, Lock};
use blocker::executor::block_on_for;
use connection::Peer;
use info::HeldSums;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;

/// All connections, and the sums of the memory that they hold.
pub(crate) struct Connections {
    /// The entries, each at the index of its descriptor. A single plain lock is used rather than a
    /// concurrent map: the table changes when a connection opens or closes, not with each request, and
    /// the choice of connections to close must see all of them while no other thread makes the same
    /// choice.
    table: Lock<Vec<Option<Arc<ConnInfo>>>>,
    /// The command queue of each worker.
    queues: Arc<[CommandQueue]>,
    count: AtomicUsize,
    count_peak: AtomicUsize,
    /// The number of connections accepted since the start.
    pub(crate) total: AtomicU64,
    /// The number of connections refused because the table was full.
    pub(crate) rejected: AtomicU64,
    /// The number of connections closed because all connections together held too much memory.
    pub(crate) closed_for_memory: AtomicU64,
    /// The memory of all connections, including those that are being closed.
    sums: Arc<HeldSums>,
}

/// The outcome of a check of the memory that connections hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    Enough,
    /// More memory is held than the limit allows. Connections to close have been chosen, and their
    /// workers have been notified.
    Short,
}

/// What a worker does once it has driven a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    /// Connections of this worker may have to be closed ([`Memory::Short`]), and its lanes may have
    /// something to send.
    Short,
    /// The worker's lanes have something to send.
    Lanes,
}

/// Once this many bytes of buffers have been freed, returning memory to the system is worthwhile.
const FREED_BYTES_MIN: usize = 4 << 20;

/// The time, in seconds of the server's clock, for which a value must have been arriving before its
/// connection can be closed to free memory.
const ARRIVING_SECS_MIN: u32 = 2;

/// The interval at which a wait for the workers looks whether it must end.
const LOOK: Duration = Duration::from_millis(20);

impl Connections {
    /// Sends a command to each worker.
    pub(crate) fn tell(&self, command: impl Fn() -> Command) {
        self.queues().iter().for_each(|queue| queue.send(command()));
    }

    /// Waits until every worker has completed what it was executing, and has executed the commands
    /// that were sent before. Returns false if a worker has ended, or as soon as `goes_on` does, which
    /// is called every few milliseconds.
    pub(crate) fn pass(&self, goes_on: &mut dyn FnMut() -> bool) -> bool {
        let send = |queue: &CommandQueue| {
            let (done, passed) = oneshot::channel();
            queue.send(Command::Pass(done));
            passed
        };
        // Every worker has its command before the first reply is awaited.
        let passed: Vec<_> = self.queues().iter().map(send).collect();
        passed.into_iter().all(|mut passed| {
            loop {
                match block_on_for(&mut passed, LOOK) {
                    Some(passed) => return passed.is_ok(),
                    None if goes_on() => {}
                    None => return false,
                }
            }
        })
    }

    /// Returns an empty table for workers with these command queues.
    pub(crate) fn new(queues: Arc<[CommandQueue]>) -> Connections {
        Connections {
            table: Lock::ranked(Vec::new(), &CONNECTIONS),
            queues,
            count: AtomicUsize::new(0),
            count_peak: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            closed_for_memory: AtomicU64::new(0),
            sums: Arc::default(),
        }
    }

    /// Returns the command queue of a worker.
    pub(crate) fn queue(&self, worker: usize) -> &CommandQueue {
        &self.queues[worker]
    }

    /// Returns the command queues of all workers.
    pub(crate) fn queues(&self) -> &Arc<[CommandQueue]> {
        &self.queues
    }

    /// Adds a connection to the table, and returns its entry.
    pub(crate) fn add(&self, mut info: ConnInfo) -> Arc<ConnInfo> {
        info.sums = self.sums.clone();
        let info = Arc::new(info);
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.count_peak.fetch_max(count, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        info.listener.accepted.fetch_add(1, Ordering::Relaxed);
        info.listener.open.fetch_add(1, Ordering::Relaxed);
        let (mut table, at) = (self.table.lock(), info.fd as usize);
        if table.len() <= at {
            table.resize(at + 1, None);
        }
        table[at] = Some(info.clone());
        info
    }

    /// Removes a connection. Called before its socket is closed, because afterwards the descriptor
    /// may belong to another connection. The connection's memory counts until its [`Holder`] is
    /// dropped.
    pub(crate) fn remove(&self, info: &ConnInfo) {
        let mut table = self.table.lock();
        table[info.fd as usize] = None;
        // What looks at all connections need not look at the most that there have been.
        while table.last().is_some_and(Option::is_none) {
            table.pop();
        }
        drop(table);
        self.count.fetch_sub(1, Ordering::Relaxed);
        info.listener.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of connections.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the number of connections from the address of `peer`.
    pub(crate) fn count_of(&self, peer: SocketAddr) -> usize {
        let network = Peer::Tcp(peer).network();
        self.table.lock().iter().flatten().filter(|info| info.network() == network).count()
    }

    /// Returns the maximum number of connections that have been open at the same time.
    pub(crate) fn count_peak(&self) -> usize {
        self.count_peak.load(Ordering::Relaxed)
    }

    /// Returns the bytes of all connections' buffers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.sums.buffer_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether the memory held has fallen far below its peak since this function last
    /// returned true.
    pub(crate) fn has_freed_much(&self) -> bool {
        let (held, peak) = (self.buffer_bytes(), &self.sums.buffer_bytes_peak);
        let has_freed_much = peak.load(Ordering::Relaxed) >= held + FREED_BYTES_MIN;
        if has_freed_much {
            peak.store(held, Ordering::Relaxed);
        }
        has_freed_much
    }

    /// Returns every connection, ordered by descriptor.
    pub(crate) fn snapshot(&self) -> Vec<Arc<ConnInfo>> {
        self.table.lock().iter().flatten().cloned().collect()
    }

    /// Asks the workers to close the TCP connections that have waited for a request since before second
    /// `since`, unless a request arrives in the meantime.
    pub(crate) fn close_idle(&self, since: u32) {
        for info in self.snapshot() {
            let is_tcp = matches!(info.endpoints, Endpoints::Tcp { .. });
            if is_tcp && info.is_idle(since) && !info.is_close_requested() {
                info.set_timed_out();
                self.request_close(&info);
            }
        }
    }

    /// Asks the worker of a connection to close it.
    fn request_close(&self, info: &ConnInfo) {
        info.set_close_requested();
        self.queues[info.worker].send(Command::Check(info.slot()));
    }

    /// Closes the connection whose value arrives most slowly, by size and time, which frees the
    /// memory reserved for the value. Called when a store finds no memory. A value that has only
    /// just begun to arrive is left alone.
    #[inline]
    pub(crate) fn close_stalled(&self, now: u32) {
        if self.sums.arriving_bytes.load(Ordering::Relaxed) > 0 {
            self.close_slowest_arriving(now);
        }
    }

    #[cold]
    fn close_slowest_arriving(&self, now: u32) {
        let table = self.table.lock();
        let age = |info: &ConnInfo| now.saturating_sub(info.held_since.load(Ordering::Relaxed));
        let weight = |info: &ConnInfo| u64::from(age(info)) * info.held().arriving_bytes as u64;
        let stalled = table
            .iter()
            .flatten()
            .filter(|info| !info.is_close_requested() && age(info) >= ARRIVING_SECS_MIN);
        let Some(slowest) = stalled.max_by_key(|info| weight(info)).filter(|info| weight(info) > 0) else {
            return;
        };
        self.closed_for_memory.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            fd = slowest.fd,
            "a store needs memory: the connection with the slowest unfinished value is closed"
        );
        self.request_close(slowest);
    }

    /// While the connections together hold more than `limit`, closes those that have held the most
    /// for the longest time. A connection that holds no more than its floor is never closed; the
    /// floor is its share, among `connections_max` connections, of half the limit for buffers. A
    /// single connection may hold more than the limit of pinned bytes, because a single value may
    /// be that large.
    #[inline]
    pub(crate) fn enforce_limits(&self, limit: HeldMemory, connections_max: usize, now: u32) -> Memory {
        let mut memory = Memory::Enough;
        if self.buffer_bytes() > limit.buffer_bytes {
            let floor_bytes = floor_bytes(limit.buffer_bytes, connections_max);
            let which = Choice { floor_bytes, spared: 0, asking: None };
            self.close_slowest(now, limit.buffer_bytes, &which, |held| held.buffer_bytes);
            memory = Memory::Short;
        }
        if self.sums.pinned_bytes.load(Ordering::Relaxed) > limit.pinned_bytes {
            let which = Choice { floor_bytes: 0, spared: 1, asking: None };
            self.close_slowest(now, limit.pinned_bytes, &which, |held| held.pinned_bytes);
        }
        memory
    }

    /// Returns whether a connection's buffers may grow by `more_bytes`. If not, the slowest holders
    /// are closed, possibly including this connection; the connection asks again once the workers
    /// have closed them.
    pub(crate) fn ask_for(
        &self,
        info: &ConnInfo,
        more_bytes: usize,
        limit_bytes: usize,
        connections_max: usize,
        now: u32,
    ) -> Memory {
        if self.buffer_bytes() + more_bytes <= limit_bytes {
            return Memory::Enough;
        }
        let floor_bytes = floor_bytes(limit_bytes, connections_max);
        let which = Choice { floor_bytes, spared: 0, asking: Some(info.fd) };
        self.close_slowest(now, limit_bytes.saturating_sub(more_bytes), &which, |held| held.buffer_bytes);
        Memory::Short
    }

    /// Closes the slowest holders, by size and time, until the others hold at most `limit_bytes`.
    #[cold]
    fn close_slowest(
        &self,
        now: u32,
        limit_bytes: usize,
        which: &Choice,
        bytes_of: impl Fn(HeldMemory) -> usize,
    ) {
        let table = self.table.lock();
        // Summed up under the lock, because another worker may have chosen enough connections in
        // the meantime. Memory of connections that are being closed will be freed anyway, so no
        // other connection is closed for the same bytes.
        let mut sum = 0;
        let mut holders: Vec<(u64, usize, &Arc<ConnInfo>)> = Vec::new();
        for info in table.iter().flatten().filter(|info| !info.is_close_requested()) {
            let bytes = bytes_of(info.held());
            sum += bytes;
            if bytes > which.floor_bytes || which.asking == Some(info.fd) {
                let secs = now.saturating_sub(info.held_since.load(Ordering::Relaxed));
                holders.push(((u64::from(secs) + 1) * bytes as u64, bytes, info));
            }
        }
        holders.sort_unstable_by_key(|(weight, ..)| *weight);
        while sum > limit_bytes && holders.len() > which.spared {
            let Some((_, bytes, slowest)) = holders.pop() else { return };
            sum -= bytes;
            self.closed_for_memory.fetch_add(1, Ordering::Relaxed);
            tracing::info!(fd = slowest.fd, bytes, "connections hold too much memory: the slowest is closed");
            self.request_close(slowest);
        }
    }
}

/// The restrictions on which connections may be closed.
struct Choice {
    /// Connections that hold no more than this are not closed.
    floor_bytes: usize,
    /// The number of connections that are kept, however much they hold.
    spared: usize,
    /// The connection that asks for more memory, which may be closed however little it holds.
    asking: Option<RawFd>,
}

/// Returns the memory that each of `connections_max` connections may hold without being closed.
fn floor_bytes(limit_bytes: usize, connections_max: usize) -> usize {
    limit_bytes / 2 / connections_max.max(1)
}

#[cfg(test)]
mod tests {
    use super::info::Holder;
    use super::*;

    fn table() -> Connections {
        Connections::new([CommandQueue::new().expect("a descriptor")].into())
    }

    fn info(fd: RawFd) -> ConnInfo {
        ConnInfo::new(fd, Endpoints::Unix { path: "/x".into() }, None, 0, 2)
    }

    /// Adds a connection to the table, and returns its handle.
    fn enter(connections: &Connections, fd: RawFd) -> Holder {
        Holder::new(connections.add(info(fd)))
    }

    /// So many connections that every floor is 0.
    const MANY: usize = 1 << 20;

    fn bytes(buffer_bytes: usize) -> HeldMemory {
        HeldMemory { buffer_bytes, ..HeldMemory::default() }
    }

    #[test]
    fn the_slowest_holder_is_closed_first() {
        let connections = table();
        let [quick, slow, idle] = [1, 2, 3].map(|fd| enter(&connections, fd));
        slow.record(bytes(1000), 10);
        quick.record(bytes(2000), 99);
        assert_eq!(connections.enforce_limits(bytes(3000), MANY, 100), Memory::Enough);
        assert!(!slow.is_close_requested(), "within the limit");
        assert_eq!(connections.enforce_limits(bytes(2999), MANY, 100), Memory::Short);
        assert!(slow.is_close_requested() && !quick.is_close_requested() && !idle.is_close_requested());
        connections.remove(&slow);
        assert_eq!(connections.buffer_bytes(), 3000, "its buffers are not freed yet");
        drop(slow);
        assert_eq!((connections.buffer_bytes(), connections.count(), connections.count_peak()), (2000, 2, 3));
    }

    /// A connection that is being closed still holds its memory, which counts, but no other
    /// connection is closed for that memory.
    #[test]
    fn a_connection_that_is_being_closed_counts_and_costs_no_other_its_place() {
        let connections = table();
        let [large, small, other] = [1, 2, 3].map(|fd| enter(&connections, fd));
        small.record(bytes(10), 10);
        other.record(bytes(20), 10);
        large.record(bytes(5000), 100);
        for _ in 0..3 {
            assert_eq!(connections.enforce_limits(bytes(1000), MANY, 100), Memory::Short);
        }
        assert!(large.is_close_requested() && !small.is_close_requested() && !other.is_close_requested());
        // The last drive before the worker closes the connection.
        large.record(bytes(6000), 100);
        connections.enforce_limits(bytes(1000), MANY, 100);
        assert!(!small.is_close_requested() && !other.is_close_requested());
        let closed = connections.closed_for_memory.load(Ordering::Relaxed);
        assert_eq!((connections.buffer_bytes(), closed), (6030, 1));
        connections.remove(&large);
        drop(large);
        assert_eq!(connections.buffer_bytes(), 30);
        assert_eq!(connections.enforce_limits(bytes(1000), MANY, 100), Memory::Enough);
    }

    #[test]
    fn a_store_without_memory_closes_the_slowest_arriving_value() {
        let connections = table();
        let [quick, slow, reader] = [1, 2, 3].map(|fd| enter(&connections, fd));
        let arriving = |arriving_bytes| HeldMemory { arriving_bytes, ..HeldMemory::default() };
        quick.record(arriving(5000), 99);
        slow.record(arriving(1000), 10);
        reader.record(bytes(90_000), 2);
        connections.close_stalled(100);
        assert!(slow.is_close_requested() && !quick.is_close_requested() && !reader.is_close_requested());
        connections.close_stalled(100);
        assert!(!quick.is_close_requested(), "it has only just begun");
        connections.close_stalled(101);
        assert!(
            quick.is_close_requested() && !reader.is_close_requested(),
            "a reader has no arriving value to give back"
        );
    }

    #[test]
    fn no_more_are_closed_than_the_limit_requires() {
        let connections = table();
        let all: Vec<_> = (1..=5).map(|fd| enter(&connections, fd)).collect();
        for (index, holder) in all.iter().enumerate() {
            holder.record(bytes(100 * (index + 1)), 10);
        }
        let limit = HeldMemory { buffer_bytes: 600, pinned_bytes: 100, arriving_bytes: 0 };
        connections.enforce_limits(limit, MANY, 10);
        let closed: Vec<bool> = all.iter().map(|holder| holder.is_close_requested()).collect();
        assert_eq!(closed, [false, false, false, true, true]);
    }

    #[test]
    fn none_is_closed_that_holds_no_more_than_its_floor() {
        let connections = table();
        let [patient, greedy, asking] = [1, 2, 3].map(|fd| enter(&connections, fd));
        // A floor of 125 bytes.
        patient.record(bytes(125), 2);
        greedy.record(bytes(900), 100);
        connections.enforce_limits(bytes(1000), 4, 100);
        assert!(greedy.is_close_requested() && !patient.is_close_requested());
        connections.remove(&greedy);
        drop(greedy);
        // If all others hold no more than their floor, the connection that asks for too much is
        // closed.
        assert_eq!(connections.ask_for(&asking, 875, 1000, 4, 100), Memory::Enough);
        assert_eq!(connections.ask_for(&asking, 876, 1000, 4, 100), Memory::Short);
        assert!(asking.is_close_requested() && !patient.is_close_requested());
    }

    #[test]
    fn a_connection_that_asks_for_more_has_the_slowest_closed() {
        let connections = table();
        let [slow, quick, asking] = [1, 2, 3].map(|fd| enter(&connections, fd));
        slow.record(bytes(400), 10);
        quick.record(bytes(400), 99);
        asking.record(bytes(100), 99);
        assert_eq!(connections.ask_for(&asking, 200, 1000, 4, 100), Memory::Short);
        assert!(slow.is_close_requested() && !quick.is_close_requested() && !asking.is_close_requested());
        // The connection waits until that memory is freed, and no other is closed for it.
        assert_eq!(connections.ask_for(&asking, 200, 1000, 4, 100), Memory::Short);
        assert!(!quick.is_close_requested());
        connections.remove(&slow);
        drop(slow);
        assert_eq!(connections.ask_for(&asking, 200, 1000, 4, 100), Memory::Enough);
    }

    #[test]
    fn one_pinned_value_may_exceed_the_limit_and_two_may_not() {
        let connections = table();
        let [first, second] = [1, 2].map(|fd| enter(&connections, fd));
        let limit = HeldMemory { buffer_bytes: 10, pinned_bytes: 100, arriving_bytes: 0 };
        let pinned = HeldMemory { buffer_bytes: 5, pinned_bytes: 1000, arriving_bytes: 0 };
        first.record(pinned, 10);
        connections.enforce_limits(limit, MANY, 100);
        assert!(!first.is_close_requested());
        second.record(pinned, 90);
        connections.enforce_limits(limit, MANY, 100);
        assert!(first.is_close_requested() && !second.is_close_requested());
    }
}
