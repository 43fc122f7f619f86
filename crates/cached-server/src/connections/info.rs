//! What others may know about a connection, and the table of all of them.
//!
//! The worker that serves a connection writes its [`ConnInfo`]; `stats conns` reads it, and so does whoever
//! finds that connections together hold too much memory and must choose which of them to close.

use crate::locks::{CONNECTIONS, Lock};
use crate::worker::{Mail, Mailbox};
use cached_proto::Protocol;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// What a connection is doing, in memcached's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ConnState {
    /// Waits for a request.
    Read,
    /// Waits for the rest of a value.
    ReadBody,
    /// Throws away a value that was refused.
    Swallow,
    /// Waits for the client to take replies.
    Write,
    /// Is told what goes on, and asks nothing more.
    Watch,
}

impl ConnState {
    fn text(state: u8) -> &'static str {
        match state {
            0 => "conn_read",
            1 => "conn_nread",
            2 => "conn_swallow",
            4 => "conn_watch",
            _ => "conn_mwrite",
        }
    }
}

/// The two ends of a connection.
#[derive(Debug, Clone)]
pub(crate) enum Ends {
    Tcp { peer: SocketAddr, local: Option<SocketAddr> },
    Unix { path: PathBuf },
}

/// What a connection keeps while it waits for its client.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holding {
    /// Memory of its own: unfinished input, unread output.
    pub(crate) bytes: usize,
    /// Values in the store's memory, which cannot be used for others meanwhile.
    pub(crate) pinned: usize,
    /// Memory of the store for a value that is on its way.
    pub(crate) arriving: usize,
}

/// One connection, as others see it.
#[derive(Debug)]
pub(crate) struct ConnInfo {
    pub(crate) fd: RawFd,
    pub(crate) ends: Ends,
    state: AtomicU8,
    /// The clock's second of the last wake-up.
    last_active: AtomicU32,
    /// Memory kept for this connection: unfinished input, unread output.
    held_bytes: AtomicUsize,
    /// Values that wait in the store's memory for the client to take them.
    pinned_bytes: AtomicUsize,
    /// Memory of the store for a value that the client has announced and not sent in full.
    arriving_bytes: AtomicUsize,
    /// The clock's second since which it has held memory without a break.
    held_since: AtomicU32,
    /// Set by whoever wants the connection closed.
    kicked: AtomicBool,
    /// It was closed for being idle.
    timed_out: AtomicBool,
    /// What its listener speaks; `None` to tell by the first byte.
    pub(crate) protocol: Option<Protocol>,
    /// Whom to tell then: its worker, and where it sits there.
    mailbox: Arc<Mailbox>,
    seat: AtomicUsize,
}

impl ConnInfo {
    pub(crate) fn new(
        fd: RawFd,
        ends: Ends,
        protocol: Option<Protocol>,
        mailbox: Arc<Mailbox>,
        now: u32,
    ) -> ConnInfo {
        ConnInfo {
            fd,
            ends,
            state: AtomicU8::new(ConnState::Read as u8),
            last_active: AtomicU32::new(now),
            held_bytes: AtomicUsize::new(0),
            pinned_bytes: AtomicUsize::new(0),
            arriving_bytes: AtomicUsize::new(0),
            held_since: AtomicU32::new(0),
            kicked: AtomicBool::new(false),
            timed_out: AtomicBool::new(false),
            protocol,
            mailbox,
            seat: AtomicUsize::new(usize::MAX),
        }
    }

    /// Notes where its worker has put it.
    pub(crate) fn set_seat(&self, seat: usize) {
        self.seat.store(seat, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set_state(&self, state: ConnState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub(crate) fn state_text(&self) -> &'static str {
        ConnState::text(self.state.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set_active(&self, now: u32) {
        self.last_active.store(now, Ordering::Relaxed);
    }

    pub(crate) fn last_active(&self) -> u32 {
        self.last_active.load(Ordering::Relaxed)
    }

    fn holding(&self) -> Holding {
        Holding {
            bytes: self.held_bytes.load(Ordering::Relaxed),
            pinned: self.pinned_bytes.load(Ordering::Relaxed),
            arriving: self.arriving_bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn is_kicked(&self) -> bool {
        self.kicked.load(Ordering::Acquire)
    }

    /// Closes the connection if it has had nothing to do since before `since`.
    pub(crate) fn close_if_idle(&self, since: u32) -> bool {
        let waits = self.state.load(Ordering::Relaxed) == ConnState::Read as u8;
        let idle = waits && self.last_active() < since && !self.is_kicked();
        if idle {
            self.timed_out.store(true, Ordering::Relaxed);
            self.kick();
        }
        idle
    }

    /// Whether it was closed for being idle.
    pub(crate) fn is_timed_out(&self) -> bool {
        self.timed_out.load(Ordering::Relaxed)
    }

    fn kick(&self) {
        self.kicked.store(true, Ordering::Release);
        self.mailbox.send(Mail::Look(self.seat.load(Ordering::Relaxed)));
    }
}

/// All connections, and what they hold.
#[derive(Debug)]
pub(crate) struct Connections {
    table: Lock<BTreeMap<RawFd, Arc<ConnInfo>>>,
    count: AtomicUsize,
    count_peak: AtomicUsize,
    /// Accepted since the start.
    pub(crate) total: AtomicU64,
    /// Turned away because the table was full.
    pub(crate) rejected: AtomicU64,
    /// Closed because connections together held too much.
    pub(crate) kicked: AtomicU64,
    held_bytes: AtomicUsize,
    pinned_bytes: AtomicUsize,
    arriving_bytes: AtomicUsize,
}

/// For how many of the clock's seconds a value may be on its way before it is closed for memory that others want.
const ARRIVING_SECS_MIN: u32 = 2;

impl Default for Connections {
    fn default() -> Self {
        Connections {
            table: Lock::new(&CONNECTIONS, BTreeMap::new()),
            count: AtomicUsize::new(0),
            count_peak: AtomicUsize::new(0),
            total: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            kicked: AtomicU64::new(0),
            held_bytes: AtomicUsize::new(0),
            pinned_bytes: AtomicUsize::new(0),
            arriving_bytes: AtomicUsize::new(0),
        }
    }
}

impl Connections {
    /// Enters a connection.
    pub(crate) fn add(&self, info: Arc<ConnInfo>) {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        self.count_peak.fetch_max(count, Ordering::Relaxed);
        self.total.fetch_add(1, Ordering::Relaxed);
        self.table.lock().insert(info.fd, info);
    }

    /// Strikes a connection out. Before its socket is closed, or the number may be another's already.
    pub(crate) fn remove(&self, info: &ConnInfo) {
        self.set_held(info, Holding::default(), 0);
        self.table.lock().remove(&info.fd);
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Connections now.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The most there have been at once.
    pub(crate) fn count_peak(&self) -> usize {
        self.count_peak.load(Ordering::Relaxed)
    }

    /// Memory held by all.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Every connection, by descriptor.
    pub(crate) fn snapshot(&self) -> Vec<Arc<ConnInfo>> {
        self.table.lock().values().cloned().collect()
    }

    /// Notes how much a connection holds from now on.
    ///
    /// What a connection holds that is to be closed counts as given back from the moment at which that was decided: its worker
    /// closes it as soon as it reads its mail, and until then no other connection is to be closed for the same bytes.
    pub(crate) fn set_held(&self, info: &ConnInfo, holding: Holding, now: u32) {
        let before = info.holding();
        self.put(info, holding);
        if info.is_kicked() {
            self.put(info, Holding::default());
        }
        if before == Holding::default() {
            info.held_since.store(now, Ordering::Relaxed);
        }
    }

    fn put(&self, info: &ConnInfo, holding: Holding) {
        replace(&self.held_bytes, &info.held_bytes, holding.bytes);
        replace(&self.pinned_bytes, &info.pinned_bytes, holding.pinned);
        replace(&self.arriving_bytes, &info.arriving_bytes, holding.arriving);
    }

    /// Closes the connection whose value has been on its way for the longest time, by size and time, because a store has found no
    /// memory: what it has announced is given back with it. One that has only just begun is left alone.
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
        let weight = |info: &ConnInfo| u64::from(age(info)) * info.holding().arriving as u64;
        let stalled = table.values().filter(|info| !info.is_kicked() && age(info) >= ARRIVING_SECS_MIN);
        let Some(slowest) = stalled.max_by_key(|info| weight(info)).filter(|info| weight(info) > 0) else {
            return;
        };
        self.kicked.fetch_add(1, Ordering::Relaxed);
        tracing::info!(fd = slowest.fd, "memory is wanted: the slowest half-sent value is given up");
        slowest.kick();
        self.put(slowest, Holding::default());
    }

    /// Closes connections as long as all of them together hold more than `limit`: first those that have held the most for the
    /// longest time. A value that is alone in being pinned may be as large as it likes.
    #[inline]
    pub(crate) fn relieve(&self, limit: Holding, now: u32) {
        if self.held_bytes() > limit.bytes {
            self.close_slowest(now, limit.bytes, 0, |holding| holding.bytes);
        }
        if self.pinned_bytes.load(Ordering::Relaxed) > limit.pinned {
            self.close_slowest(now, limit.pinned, 1, |holding| holding.pinned);
        }
    }

    /// Closes the slowest holders, by size and time, until the others hold no more than `limit`, or are no more than `spared`.
    #[cold]
    fn close_slowest(&self, now: u32, limit: usize, spared: usize, held: impl Fn(Holding) -> usize) {
        let table = self.table.lock();
        // Judged under the lock: another worker may have closed enough meanwhile.
        let mut holders: Vec<(u64, usize, &Arc<ConnInfo>)> = Vec::new();
        for info in table.values().filter(|info| !info.is_kicked()) {
            let bytes = held(info.holding());
            if bytes > 0 {
                let secs = now.saturating_sub(info.held_since.load(Ordering::Relaxed));
                holders.push(((u64::from(secs) + 1) * bytes as u64, bytes, info));
            }
        }
        holders.sort_unstable_by_key(|(weight, ..)| *weight);
        let mut sum: usize = holders.iter().map(|(_, bytes, _)| bytes).sum();
        while sum > limit && holders.len() > spared {
            let Some((_, bytes, slowest)) = holders.pop() else { return };
            sum -= bytes;
            self.kicked.fetch_add(1, Ordering::Relaxed);
            tracing::info!(fd = slowest.fd, bytes, "connections hold too much: the slowest is closed");
            slowest.kick();
            self.put(slowest, Holding::default());
        }
    }
}

/// Puts `now` in place of one share of a sum.
fn replace(sum: &AtomicUsize, share: &AtomicUsize, now: usize) {
    // Ordered with the mark of a connection that is to be closed: whoever puts a share back after it was taken out sees the mark.
    let before = share.swap(now, Ordering::AcqRel);
    // Wrapping, so that it goes down as well.
    sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(fd: RawFd) -> Arc<ConnInfo> {
        let mailbox = Arc::new(Mailbox::new().expect("a descriptor"));
        Arc::new(ConnInfo::new(fd, Ends::Unix { path: "/x".into() }, None, mailbox, 2))
    }

    #[test]
    fn the_slowest_holder_is_closed_first() {
        let connections = Connections::default();
        let (quick, slow, idle) = (info(1), info(2), info(3));
        for info in [&quick, &slow, &idle] {
            connections.add(info.clone());
        }
        let bytes = |bytes| Holding { bytes, ..Holding::default() };
        connections.set_held(&slow, bytes(1000), 10);
        connections.set_held(&quick, bytes(2000), 99);
        connections.relieve(bytes(3000), 100);
        assert!(!slow.is_kicked(), "within the limit");
        connections.relieve(bytes(2999), 100);
        assert!(slow.is_kicked() && !quick.is_kicked() && !idle.is_kicked());
        connections.remove(&slow);
        assert_eq!((connections.held_bytes(), connections.count(), connections.count_peak()), (2000, 2, 3));
    }

    /// Until its worker has read its mail, a connection that is to be closed holds what it held; no other is closed for that.
    #[test]
    fn one_that_holds_too_much_takes_no_other_with_it() {
        let connections = Connections::default();
        let (large, small, other) = (info(1), info(2), info(3));
        for info in [&large, &small, &other] {
            connections.add(info.clone());
        }
        let bytes = |bytes| Holding { bytes, ..Holding::default() };
        connections.set_held(&small, bytes(10), 10);
        connections.set_held(&other, bytes(20), 10);
        connections.set_held(&large, bytes(5000), 100);
        for _ in 0..3 {
            connections.relieve(bytes(1000), 100);
        }
        assert!(large.is_kicked() && !small.is_kicked() && !other.is_kicked());
        // Its last turn before its worker looks.
        connections.set_held(&large, bytes(6000), 100);
        connections.relieve(bytes(1000), 100);
        assert!(!small.is_kicked() && !other.is_kicked());
        assert_eq!((connections.held_bytes(), connections.kicked.load(Ordering::Relaxed)), (30, 1));
        connections.remove(&large);
        assert_eq!(connections.held_bytes(), 30);
    }

    #[test]
    fn memory_that_is_wanted_is_taken_from_the_slowest_value() {
        let connections = Connections::default();
        let (quick, slow, reader) = (info(1), info(2), info(3));
        let arriving = |arriving| Holding { arriving, ..Holding::default() };
        for (info, holding, since) in [
            (&quick, arriving(5000), 99),
            (&slow, arriving(1000), 10),
            (&reader, Holding { bytes: 90_000, ..Holding::default() }, 2),
        ] {
            connections.add(info.clone());
            connections.set_held(info, holding, since);
        }
        connections.close_stalled(100);
        assert!(slow.is_kicked() && !quick.is_kicked() && !reader.is_kicked());
        connections.close_stalled(100);
        assert!(!quick.is_kicked(), "it has only just begun");
        connections.close_stalled(101);
        assert!(quick.is_kicked() && !reader.is_kicked(), "who sends nothing has nothing to give back");
    }

    #[test]
    fn as_many_are_closed_as_it_takes() {
        let connections = Connections::default();
        let all: Vec<_> = (1..=5).map(info).collect();
        for (index, info) in all.iter().enumerate() {
            connections.add(info.clone());
            connections.set_held(info, Holding { bytes: 100 * (index + 1), ..Holding::default() }, 10);
        }
        connections.relieve(Holding { bytes: 600, pinned: 100, arriving: 0 }, 10);
        let kicked: Vec<bool> = all.iter().map(|info| info.is_kicked()).collect();
        assert_eq!(kicked, [false, false, false, true, true]);
        assert_eq!(connections.held_bytes(), 600);
    }

    #[test]
    fn one_pinned_value_may_be_large_two_may_not() {
        let connections = Connections::default();
        let (first, second) = (info(1), info(2));
        connections.add(first.clone());
        connections.add(second.clone());
        let limit = Holding { bytes: 10, pinned: 100, arriving: 0 };
        connections.set_held(&first, Holding { bytes: 5, pinned: 1000, arriving: 0 }, 10);
        connections.relieve(limit, 100);
        assert!(!first.is_kicked());
        connections.set_held(&second, Holding { bytes: 5, pinned: 1000, arriving: 0 }, 90);
        connections.relieve(limit, 100);
        assert!(first.is_kicked() && !second.is_kicked());
    }
}
