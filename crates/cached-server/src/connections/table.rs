//! All connections: the table, their sums, and the choice of those that are closed when they hold too much
//! memory.

use super::commands::{Command, CommandQueue};
use super::info::{ConnInfo, Endpoints, HeldMemory};
use crate::locks::{CONNECTIONS, Lock};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// All connections, and the memory that they hold.
#[derive(Debug)]
pub(crate) struct Connections {
    /// By descriptor. One plain lock and no concurrent map: the table changes when a connection comes or
    /// goes, not per request, and a choice of connections to close must see all of them while no other thread
    /// chooses.
    table: Lock<BTreeMap<RawFd, Arc<ConnInfo>>>,
    /// The command queue of each worker.
    queues: Arc<[CommandQueue]>,
    count: AtomicUsize,
    count_peak: AtomicUsize,
    /// The number accepted since the start.
    pub(crate) total: AtomicU64,
    /// The number refused because the table was full.
    pub(crate) rejected: AtomicU64,
    /// The number closed because connections together held too much memory.
    pub(crate) closed_for_memory: AtomicU64,
    buffer_bytes: AtomicUsize,
    pinned_bytes: AtomicUsize,
    arriving_bytes: AtomicUsize,
}

/// For how many of the clock's seconds a value may be arriving before its connection can be closed to free
/// memory.
const ARRIVING_SECS_MIN: u32 = 2;

impl Connections {
    /// Returns an empty table for workers with these command queues.
    pub(crate) fn new(queues: Arc<[CommandQueue]>) -> Connections {
        Connections {
            table: Lock::new(&CONNECTIONS, BTreeMap::new()),
            queues,
            count: AtomicUsize::new(0),
            count_peak: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            closed_for_memory: AtomicU64::new(0),
            buffer_bytes: AtomicUsize::new(0),
            pinned_bytes: AtomicUsize::new(0),
            arriving_bytes: AtomicUsize::new(0),
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

    /// Enters a connection.
    pub(crate) fn add(&self, info: Arc<ConnInfo>) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.count_peak.fetch_max(count, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        info.listener.accepted.fetch_add(1, Ordering::Relaxed);
        info.listener.open.fetch_add(1, Ordering::Relaxed);
        self.table.lock().insert(info.fd, info);
    }

    /// Removes a connection. Called before its socket is closed: afterwards the descriptor may belong to
    /// another one.
    pub(crate) fn remove(&self, info: &ConnInfo) {
        self.record_held(info, HeldMemory::default(), 0);
        self.table.lock().remove(&info.fd);
        self.count.fetch_sub(1, Ordering::Relaxed);
        info.listener.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of connections.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the largest number of connections at one time.
    pub(crate) fn count_peak(&self) -> usize {
        self.count_peak.load(Ordering::Relaxed)
    }

    /// Returns the bytes of all connections' buffers.
    pub(crate) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes.load(Ordering::Relaxed)
    }

    /// Returns every connection, ordered by descriptor.
    pub(crate) fn snapshot(&self) -> Vec<Arc<ConnInfo>> {
        self.table.lock().values().cloned().collect()
    }

    /// Closes the TCP connections that have waited for a request since before second `since`; returns how
    /// many.
    pub(crate) fn close_idle(&self, since: u32) -> u64 {
        let mut closed = 0;
        for info in self.snapshot() {
            let is_tcp = matches!(info.endpoints, Endpoints::Tcp { .. });
            if is_tcp && info.is_idle(since) && !info.is_close_requested() {
                info.set_timed_out();
                self.request_close(&info);
                closed += 1;
            }
        }
        closed
    }

    /// Asks the worker of a connection to close it.
    fn request_close(&self, info: &ConnInfo) {
        info.set_close_requested();
        self.queues[info.worker].send(Command::Check(info.slot()));
    }

    /// Records how much a connection holds from now on.
    ///
    /// What a connection holds that is to be closed counts as freed from the moment at which that was
    /// decided: its worker closes it as soon as it takes its commands, and until then no other connection is
    /// to be closed for the same bytes.
    pub(crate) fn record_held(&self, info: &ConnInfo, held: HeldMemory, now: u32) {
        let before = info.held();
        self.set_shares(info, held);
        if info.is_close_requested() {
            self.set_shares(info, HeldMemory::default());
        }
        if before == HeldMemory::default() {
            info.held_since.store(now, Ordering::Relaxed);
        }
    }

    fn set_shares(&self, info: &ConnInfo, held: HeldMemory) {
        set_share(&self.buffer_bytes, &info.buffer_bytes, held.buffer_bytes);
        set_share(&self.pinned_bytes, &info.pinned_bytes, held.pinned_bytes);
        set_share(&self.arriving_bytes, &info.arriving_bytes, held.arriving_bytes);
    }

    /// Closes the connection whose value is the slowest to arrive, by size and time, which frees the memory
    /// reserved for the value. Called when a store finds no memory. A value that has only just begun to
    /// arrive is left alone.
    #[inline]
    pub(crate) fn close_stalled(&self, now: u32) {
        if self.arriving_bytes.load(Ordering::Relaxed) > 0 {
            self.close_slowest_arriving(now);
        }
    }

    #[cold]
    fn close_slowest_arriving(&self, now: u32) {
        let table = self.table.lock();
        let age = |info: &ConnInfo| now.saturating_sub(info.held_since.load(Ordering::Relaxed));
        let weight = |info: &ConnInfo| u64::from(age(info)) * info.held().arriving_bytes as u64;
        let stalled =
            table.values().filter(|info| !info.is_close_requested() && age(info) >= ARRIVING_SECS_MIN);
        let Some(slowest) = stalled.max_by_key(|info| weight(info)).filter(|info| weight(info) > 0) else {
            return;
        };
        self.closed_for_memory.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            fd = slowest.fd,
            "a store needs memory: the connection with the slowest unfinished value is closed"
        );
        self.request_close(slowest);
        self.set_shares(slowest, HeldMemory::default());
    }

    /// Closes connections as long as all of them together hold more than `limit`, beginning with those that
    /// have held the most for the longest time. One connection alone may hold more than the limit of pinned
    /// bytes: a single value may be that large.
    #[inline]
    pub(crate) fn enforce_limits(&self, limit: HeldMemory, now: u32) {
        if self.buffer_bytes() > limit.buffer_bytes {
            self.close_slowest(now, limit.buffer_bytes, 0, |held| held.buffer_bytes);
        }
        if self.pinned_bytes.load(Ordering::Relaxed) > limit.pinned_bytes {
            self.close_slowest(now, limit.pinned_bytes, 1, |held| held.pinned_bytes);
        }
    }

    /// Closes the slowest holders, by size and time, until the others hold at most `limit_bytes` or at most
    /// `spared` are left.
    #[cold]
    fn close_slowest(
        &self,
        now: u32,
        limit_bytes: usize,
        spared: usize,
        bytes_of: impl Fn(HeldMemory) -> usize,
    ) {
        let table = self.table.lock();
        // Summed up under the lock: another worker may have closed enough meanwhile.
        let mut holders: Vec<(u64, usize, &Arc<ConnInfo>)> = Vec::new();
        for info in table.values().filter(|info| !info.is_close_requested()) {
            let bytes = bytes_of(info.held());
            if bytes > 0 {
                let secs = now.saturating_sub(info.held_since.load(Ordering::Relaxed));
                holders.push(((u64::from(secs) + 1) * bytes as u64, bytes, info));
            }
        }
        holders.sort_unstable_by_key(|(weight, ..)| *weight);
        let mut sum: usize = holders.iter().map(|(_, bytes, _)| bytes).sum();
        while sum > limit_bytes && holders.len() > spared {
            let Some((_, bytes, slowest)) = holders.pop() else { return };
            sum -= bytes;
            self.closed_for_memory.fetch_add(1, Ordering::Relaxed);
            tracing::info!(fd = slowest.fd, bytes, "connections hold too much memory: the slowest is closed");
            self.request_close(slowest);
            self.set_shares(slowest, HeldMemory::default());
        }
    }
}

/// Replaces one connection's share of a sum.
fn set_share(sum: &AtomicUsize, share: &AtomicUsize, now: usize) {
    // Ordered with the close request: a thread that adds a share again after it was taken out sees the
    // request.
    let before = share.swap(now, Ordering::AcqRel);
    // Wrapping, so that the sum can fall as well.
    sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Connections {
        Connections::new([CommandQueue::new().expect("a descriptor")].into())
    }

    fn info(fd: RawFd) -> Arc<ConnInfo> {
        Arc::new(ConnInfo::new(fd, Endpoints::Unix { path: "/x".into() }, None, 0, 2))
    }

    #[test]
    fn the_slowest_holder_is_closed_first() {
        let connections = table();
        let (quick, slow, idle) = (info(1), info(2), info(3));
        for info in [&quick, &slow, &idle] {
            connections.add(info.clone());
        }
        let bytes = |buffer_bytes| HeldMemory { buffer_bytes, ..HeldMemory::default() };
        connections.record_held(&slow, bytes(1000), 10);
        connections.record_held(&quick, bytes(2000), 99);
        connections.enforce_limits(bytes(3000), 100);
        assert!(!slow.is_close_requested(), "within the limit");
        connections.enforce_limits(bytes(2999), 100);
        assert!(slow.is_close_requested() && !quick.is_close_requested() && !idle.is_close_requested());
        connections.remove(&slow);
        assert_eq!((connections.buffer_bytes(), connections.count(), connections.count_peak()), (2000, 2, 3));
    }

    /// Until its worker has taken its commands, a connection that is to be closed still holds its memory; no
    /// other is closed for that.
    #[test]
    fn a_connection_that_is_being_closed_costs_no_other_its_place() {
        let connections = table();
        let (large, small, other) = (info(1), info(2), info(3));
        for info in [&large, &small, &other] {
            connections.add(info.clone());
        }
        let bytes = |buffer_bytes| HeldMemory { buffer_bytes, ..HeldMemory::default() };
        connections.record_held(&small, bytes(10), 10);
        connections.record_held(&other, bytes(20), 10);
        connections.record_held(&large, bytes(5000), 100);
        for _ in 0..3 {
            connections.enforce_limits(bytes(1000), 100);
        }
        assert!(large.is_close_requested() && !small.is_close_requested() && !other.is_close_requested());
        // Its last drive before its worker takes its commands.
        connections.record_held(&large, bytes(6000), 100);
        connections.enforce_limits(bytes(1000), 100);
        assert!(!small.is_close_requested() && !other.is_close_requested());
        assert_eq!(
            (connections.buffer_bytes(), connections.closed_for_memory.load(Ordering::Relaxed)),
            (30, 1)
        );
        connections.remove(&large);
        assert_eq!(connections.buffer_bytes(), 30);
    }

    #[test]
    fn a_store_without_memory_closes_the_slowest_arriving_value() {
        let connections = table();
        let (quick, slow, reader) = (info(1), info(2), info(3));
        let arriving = |arriving_bytes| HeldMemory { arriving_bytes, ..HeldMemory::default() };
        for (info, holding, since) in [
            (&quick, arriving(5000), 99),
            (&slow, arriving(1000), 10),
            (&reader, HeldMemory { buffer_bytes: 90_000, ..HeldMemory::default() }, 2),
        ] {
            connections.add(info.clone());
            connections.record_held(info, holding, since);
        }
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
        let all: Vec<_> = (1..=5).map(info).collect();
        for (index, info) in all.iter().enumerate() {
            connections.add(info.clone());
            connections.record_held(
                info,
                HeldMemory { buffer_bytes: 100 * (index + 1), ..HeldMemory::default() },
                10,
            );
        }
        connections
            .enforce_limits(HeldMemory { buffer_bytes: 600, pinned_bytes: 100, arriving_bytes: 0 }, 10);
        let closed: Vec<bool> = all.iter().map(|info| info.is_close_requested()).collect();
        assert_eq!(closed, [false, false, false, true, true]);
        assert_eq!(connections.buffer_bytes(), 600);
    }

    #[test]
    fn one_pinned_value_may_exceed_the_limit_and_two_may_not() {
        let connections = table();
        let (first, second) = (info(1), info(2));
        connections.add(first.clone());
        connections.add(second.clone());
        let limit = HeldMemory { buffer_bytes: 10, pinned_bytes: 100, arriving_bytes: 0 };
        connections.record_held(
            &first,
            HeldMemory { buffer_bytes: 5, pinned_bytes: 1000, arriving_bytes: 0 },
            10,
        );
        connections.enforce_limits(limit, 100);
        assert!(!first.is_close_requested());
        connections.record_held(
            &second,
            HeldMemory { buffer_bytes: 5, pinned_bytes: 1000, arriving_bytes: 0 },
            90,
        );
        connections.enforce_limits(limit, 100);
        assert!(first.is_close_requested() && !second.is_close_requested());
    }
}
