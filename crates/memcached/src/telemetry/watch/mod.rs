//! `watch`: log lines for connections that subscribe to them. The server never waits for those
//! connections.
//!
//! ```text
//!  worker ──line──► pending (bounded: worker_logbuf_size for each worker; full: dropped and counted)
//!                      │ waker
//!                      ▼
//!                  log thread ──► buffer of each watcher (bounded: watcher_logbuf_size; full: skipped and counted)
//!                                    │ when its socket has space
//!                                    ▼
//!                                  client
//! ```
//! Without watchers, a request reads only one word ([`Watch::observed_events`]), and there is no
//! log thread. A watcher's socket still belongs to its connection's worker, which notices when the
//! client closes the connection; the log thread writes to a duplicate of the descriptor. If the
//! connection is encrypted, only its worker can write to it, so the log thread passes the lines to
//! the worker ([`Relay`]).

mod lines;

pub(crate) use lines::{ItemSummary, Relay, escaped};

use crate::connections::{ConnInfo, Endpoints};
use crate::locks::{Guard, Lock, WATCHERS};
use crate::settings::Settings;
use crate::settings::size_classes::SizeClasses;
use cached_core::kv::{EvictedItem, EvictionHook};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The maximum number of simultaneous watchers, as in memcached.
const WATCHERS_MAX: usize = 20;

/// The watchers and the lines for them. Shared by the workers and the log thread.
pub(crate) struct Watch {
    /// The kinds of events that are observed by watchers or by other parts of the server.
    observed: Arc<AtomicU32>,
    pending: Lock<Pending>,
    pending_bytes_max: usize,
    watcher_bytes_max: usize,
    /// A descriptor that is readable while the log thread has work to do.
    waker: OwnedFd,
    pub(crate) counts: Counts,
}

/// The counts that `stats` reports.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// The number of lines dropped because the queue to the log thread was full.
    pub(crate) worker_dropped: AtomicU64,
    /// The number of lines added to the queue to the log thread.
    pub(crate) worker_written: AtomicU64,
    /// The number of lines skipped because a watcher was too slow.
    pub(crate) watcher_skipped: AtomicU64,
    /// The number of lines added to watchers' buffers.
    pub(crate) watcher_sent: AtomicU64,
    /// The number of watchers.
    pub(crate) watchers: AtomicU64,
}

impl Counts {
    /// Resets the counts to zero, except for the number of watchers (`stats reset`).
    pub(crate) fn reset(&self) {
        for count in [&self.worker_dropped, &self.worker_written, &self.watcher_skipped, &self.watcher_sent] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// The queue to the log thread.
#[derive(Default)]
struct Pending {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The number of the last line.
    gid: u64,
    new_watchers: Vec<NewWatcher>,
    watchers: usize,
    thread_runs: bool,
}

/// One event.
#[derive(Debug)]
struct Line {
    kind: u32,
    text: Box<str>,
}

/// A watcher that the log thread has not yet taken over.
struct NewWatcher {
    sink: Sink,
    kinds: u32,
    gone: Arc<AtomicBool>,
}

/// The destination of a watcher's lines.
pub(crate) enum Sink {
    /// The connection's socket.
    Socket(OwnedFd),
    /// The connection's worker.
    Relay(Arc<Relay>),
}

/// A connection's subscription, which the connection owns and which ends when this is dropped.
pub(crate) struct Subscription {
    watch: Arc<Watch>,
    gone: Arc<AtomicBool>,
    relay: Option<Arc<Relay>>,
}

impl Subscription {
    /// Removes and returns the lines that the connection's worker must send; empty if there are
    /// none.
    pub(crate) fn take_lines(&self) -> Vec<u8> {
        let lines = self.relay.as_ref().map_or_else(Vec::new, |relay| relay.take());
        if !lines.is_empty() {
            // There is now space for the lines that wait.
            self.watch.wake();
        }
        lines
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.watch.wake();
    }
}

/// The reason why a connection cannot watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    TooMany,
    Failed,
    /// The client sends datagrams, so it has no stream for the lines.
    NotAllowed,
}

impl Watch {
    /// Returns a `Watch` without watchers. The queue to the log thread holds at most
    /// `pending_bytes_max` bytes, each watcher's buffer at most `watcher_bytes_max`.
    ///
    /// # Errors
    /// Fails if the system has no descriptor for the waker.
    pub(crate) fn new(pending_bytes_max: usize, watcher_bytes_max: usize) -> io::Result<Watch> {
        Ok(Watch {
            observed: Arc::default(),
            pending: Lock::ranked(Pending::default(), &WATCHERS),
            pending_bytes_max,
            watcher_bytes_max,
            waker: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            counts: Counts::default(),
        })
    }

    /// Returns the word that holds the kinds of events that are observed.
    pub(crate) fn observed_events(&self) -> Arc<AtomicU32> {
        self.observed.clone()
    }

    /// Returns whether events of this kind are observed.
    #[inline]
    pub(crate) fn wants(&self, kind: u32) -> bool {
        self.observed.load(Ordering::Relaxed) & kind != 0
    }

    /// Makes a connection a watcher of events of these kinds. The connection first receives `OK`. If
    /// there are too many watchers, `sink` is not called.
    pub(crate) fn subscribe(
        self: &Arc<Self>,
        sink: impl FnOnce() -> io::Result<Sink>,
        kinds: u32,
    ) -> Result<Subscription, Refused> {
        let gone = Arc::new(AtomicBool::new(false));
        let mut pending = self.pending();
        if pending.watchers >= WATCHERS_MAX {
            return Err(Refused::TooMany);
        }
        let sink = sink().map_err(|_| Refused::Failed)?;
        let relay = match &sink {
            Sink::Socket(_) => None,
            Sink::Relay(relay) => Some(relay.clone()),
        };
        if !pending.thread_runs {
            let watch = self.clone();
            let thread = std::thread::Builder::new().name("cached-log".into());
            thread.spawn(move || lines::run(&watch)).map_err(|_| Refused::Failed)?;
            pending.thread_runs = true;
        }
        pending.watchers += 1;
        pending.new_watchers.push(NewWatcher { sink, kinds, gone: gone.clone() });
        self.counts.watchers.store(pending.watchers as u64, Ordering::Relaxed);
        self.observed.fetch_or(kinds & KINDS, Ordering::Relaxed);
        drop(pending);
        self.wake();
        Ok(Subscription { watch: self.clone(), gone, relay })
    }

    /// Queues a line for the watchers of `kind`. In the line, `rest` follows the time and the
    /// line's number.
    pub(crate) fn publish(&self, kind: u32, rest: &dyn std::fmt::Display) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut pending = self.pending();
        if pending.watchers == 0 {
            return;
        }
        pending.gid += 1;
        let mut text = String::with_capacity(160);
        // The time has microseconds without leading zeroes, as memcached prints them. Writing to a
        // String cannot fail.
        let _ = writeln!(text, "ts={}.{} gid={} {rest}", now.as_secs(), now.subsec_micros(), pending.gid);
        if pending.bytes + text.len() > self.pending_bytes_max {
            self.counts.worker_dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.counts.worker_written.fetch_add(1, Ordering::Relaxed);
        pending.bytes += text.len();
        let first = pending.lines.is_empty();
        pending.lines.push_back(Line { kind, text: text.into() });
        drop(pending);
        if first {
            self.wake();
        }
    }

    /// Publishes that a client has connected.
    pub(crate) fn connection_opened(&self, info: &ConnInfo) {
        if self.wants(CONNEVENTS) {
            let (peer, fd) = (Peer(&info.endpoints), info.fd);
            self.publish(CONNEVENTS, &format_args!("type=conn_new {peer} cfd={fd}"));
        }
    }

    /// Publishes that a connection has ended.
    pub(crate) fn connection_closed(&self, info: &ConnInfo) {
        if self.wants(CONNEVENTS) {
            let reason = match () {
                () if info.is_timed_out() => "idle_timeout",
                () if info.is_close_requested() || info.is_broken() => "error",
                () => "normal",
            };
            let (peer, fd) = (Peer(&info.endpoints), info.fd);
            self.publish(CONNEVENTS, &format_args!("type=conn_close {peer} reason={reason} cfd={fd}"));
        }
    }

    fn pending(&self) -> Guard<'_, Pending> {
        self.pending.lock()
    }

    fn wake(&self) {
        // This fails only if the counter is full, in which case the waker is readable anyway.
        let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes());
    }
}

/// Publishes evictions. The store calls it for each of them.
pub(crate) struct Evictions {
    watch: Arc<Watch>,
    size_classes: SizeClasses,
    cas: bool,
}

impl Evictions {
    pub(crate) fn new(watch: Arc<Watch>, settings: &Settings) -> Evictions {
        Evictions { watch, size_classes: SizeClasses::new(&settings.classes), cas: settings.cas }
    }
}

impl EvictionHook for Evictions {
    fn on_eviction(&self, item: &EvictedItem<'_>) {
        if self.watch.wants(EVICTIONS) {
            let (key, value) = (item.key.len(), item.value_bytes);
            let class = self.size_classes.class_of_item(key, value, item.client_flags, self.cas);
            self.watch.evicted(item, class);
        }
    }
}

/// The peer of a connection, as event lines show it.
struct Peer<'a>(&'a Endpoints);

impl std::fmt::Display for Peer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Endpoints::Tcp { peer, .. } => write!(f, "rip={} rport={} transport=tcp", peer.ip(), peer.port()),
            Endpoints::Unix { .. } => f.write_str("rip=unix rport=0 transport=local"),
            Endpoints::Udp { local } => write!(f, "rip={} rport={} transport=udp", local.ip(), local.port()),
        }
    }
}

// The kinds of events that can be observed: one bit each, in a single word for the whole server.

/// The requests are counted by key prefix (`stats detail on`).
pub(crate) const DETAIL: u32 = 1;
/// `watch evictions`.
pub(crate) const EVICTIONS: u32 = 1 << 1;
/// `watch fetchers`.
pub(crate) const FETCHERS: u32 = 1 << 2;
/// `watch mutations`.
pub(crate) const MUTATIONS: u32 = 1 << 3;
/// `watch connevents`.
pub(crate) const CONNEVENTS: u32 = 1 << 4;
/// `watch deletions`.
pub(crate) const DELETIONS: u32 = 1 << 5;
/// Kinds that have no events in this server: `rawcmds`, `sysevents`, and those of memcached's
/// proxy.
pub(crate) const NOTHING: u32 = 1 << 6;

/// All kinds that `watch` accepts.
pub(crate) const KINDS: u32 = EVICTIONS | FETCHERS | MUTATIONS | CONNEVENTS | DELETIONS | NOTHING;

/// The names that `watch` accepts. As in memcached, a word may be a prefix of a name; the first
/// name that matches is used.
pub(crate) const EVENT_NAMES: [(&str, u32); 10] = [
    ("rawcmds", NOTHING),
    ("evictions", EVICTIONS),
    ("fetchers", FETCHERS),
    ("mutations", MUTATIONS),
    ("sysevents", NOTHING),
    ("connevents", CONNEVENTS),
    ("proxyreqs", NOTHING),
    ("proxyevents", NOTHING),
    ("proxyuser", NOTHING),
    ("deletions", DELETIONS),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn watch(pending_bytes_max: usize, watcher_bytes_max: usize) -> Arc<Watch> {
        Arc::new(Watch::new(pending_bytes_max, watcher_bytes_max).expect("a descriptor"))
    }

    fn socket(ours: &UnixStream) -> impl FnOnce() -> io::Result<Sink> {
        move || Ok(Sink::Socket(ours.try_clone()?.into()))
    }

    fn read_until(client: &mut UnixStream, end: &str) -> String {
        let mut text = String::new();
        let mut bytes = [0; 4096];
        while !text.ends_with(end) {
            let count = client.read(&mut bytes).expect("something to read");
            assert!(count > 0, "the end came after {text:?}");
            text.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
        }
        text
    }

    #[test]
    fn a_watcher_gets_the_kinds_it_asked_for() {
        let watch = watch(1 << 16, 1 << 16);
        let (ours, mut client) = UnixStream::pair().expect("sockets");
        assert!(!watch.wants(KINDS));
        let subscription = watch.subscribe(socket(&ours), FETCHERS).expect("room");
        assert!(watch.wants(FETCHERS) && !watch.wants(MUTATIONS));
        assert_eq!(read_until(&mut client, "\n"), "OK\r\n");
        watch.publish(MUTATIONS, &"not asked for");
        watch.publish(FETCHERS, &"type=x");
        let line = read_until(&mut client, "\n");
        assert!(line.starts_with("ts=") && line.ends_with("gid=2 type=x\n"), "{line}");
        drop(subscription);
        // The log thread closes its copy of the socket, which is the last one.
        drop(ours);
        assert_eq!(client.read(&mut [0; 16]).expect("the end"), 0);
        while watch.counts.watchers.load(Ordering::Acquire) > 0 {
            std::thread::yield_now();
        }
        assert!(!watch.wants(KINDS));
    }

    #[test]
    fn a_watcher_that_does_not_read_skips_lines_and_receives_their_number() {
        let watch = watch(1 << 20, 8 << 10);
        let (ours, mut client) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a flag");
        let _subscription = watch.subscribe(socket(&ours), FETCHERS).expect("room");
        assert_eq!(read_until(&mut client, "\n"), "OK\r\n");
        let long = "x".repeat(2000);
        while watch.counts.watcher_skipped.load(Ordering::Relaxed) == 0 {
            watch.publish(FETCHERS, &long);
        }
        // Wait until every pending line has been forwarded or skipped.
        while !watch.pending().lines.is_empty() {
            std::thread::yield_now();
        }
        let mut all = String::new();
        let skipped = loop {
            let mut bytes = [0; 65536];
            let count = client.read(&mut bytes).expect("something to read");
            all.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
            watch.publish(FETCHERS, &"more");
            // A read may end within the number.
            if let Some((_, rest)) = all.split_once("skipped=")
                && let Some((number, _)) = rest.split_once('\n')
            {
                break number;
            }
        };
        assert!(skipped.parse::<u64>().is_ok_and(|number| number > 0), "{skipped}");
    }

    #[test]
    fn pending_lines_are_bounded() {
        let watch = watch(1000, 1 << 16);
        let (ours, _client) = UnixStream::pair().expect("sockets");
        let _subscription = watch.subscribe(socket(&ours), FETCHERS).expect("room");
        // A line longer than the whole queue is dropped.
        watch.publish(FETCHERS, &"x".repeat(2000));
        assert_eq!(watch.counts.worker_dropped.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn at_most_twenty_connections_watch() {
        let watch = watch(1000, 1000);
        let pairs: Vec<_> = (0..=WATCHERS_MAX).map(|_| UnixStream::pair().expect("sockets")).collect();
        let all: Vec<_> = pairs.iter().map(|(ours, _)| watch.subscribe(socket(ours), FETCHERS)).collect();
        assert!(all[..WATCHERS_MAX].iter().all(Result::is_ok));
        assert_eq!(all[WATCHERS_MAX].as_ref().err(), Some(&Refused::TooMany));
    }
}
