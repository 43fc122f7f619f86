//! `watch`: telling connections what goes on, without ever waiting for them.
//!
//! ```text
//!  worker ──line──► pending (bounded: worker_logbuf_size for each worker; full: dropped and counted)
//!                      │ bell
//!                      ▼
//!                  log thread ──► buffer of each watcher (bounded: watcher_logbuf_size; full: skipped and counted)
//!                                    │ when its socket has room
//!                                    ▼
//!                                  client
//! ```
//! As long as nobody watches, a request looks at one word ([`Watch::observed`]) and there is no log thread. A watcher's socket
//! still belongs to its connection's worker, which notices when the client goes; the log thread has a duplicate
//! of the descriptor to write to.

mod line;
pub(crate) mod observe;
mod thread;

pub(crate) use line::Seen;

use crate::conn::info::{ConnInfo, Ends};
use crate::locks::{Guard, Lock, WATCHERS};
use crate::settings::Settings;
use crate::stats::classes::Classes;
use cached_core::kv::hook::{EvictedItem, EvictionHook};
use observe::{CONNEVENTS, EVICTIONS, KINDS};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Watchers at the same time, as in memcached.
const WATCHERS_MAX: usize = 20;

/// Everything about watching. Shared by the workers and the log thread.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The kinds that some watcher wants, beside what others observe.
    observed: Arc<AtomicU32>,
    pending: Lock<Pending>,
    pending_bytes_max: usize,
    watcher_bytes_max: usize,
    /// Readable when the log thread has something to do.
    bell: OwnedFd,
    pub(crate) counts: Counts,
}

/// What `stats` tells.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Lines that found no room on their way to the log thread.
    pub(crate) worker_dropped: AtomicU64,
    /// Lines that found it.
    pub(crate) worker_written: AtomicU64,
    /// Lines that a watcher was too slow for.
    pub(crate) watcher_skipped: AtomicU64,
    /// Lines put into watchers' buffers.
    pub(crate) watcher_sent: AtomicU64,
    /// Watchers now.
    pub(crate) watchers: AtomicU64,
}

impl Counts {
    /// `stats reset`.
    pub(crate) fn reset(&self) {
        for count in [&self.worker_dropped, &self.worker_written, &self.watcher_skipped, &self.watcher_sent] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// What waits for the log thread.
#[derive(Debug, Default)]
struct Pending {
    lines: VecDeque<Line>,
    bytes: usize,
    /// The number of the last line.
    gid: u64,
    newcomers: Vec<Newcomer>,
    watchers: usize,
    thread_runs: bool,
}

/// One event.
#[derive(Debug)]
struct Line {
    kind: u32,
    text: Box<str>,
}

/// A watcher that the log thread has not met yet.
#[derive(Debug)]
struct Newcomer {
    socket: OwnedFd,
    kinds: u32,
    gone: Arc<AtomicBool>,
}

/// A connection's promise to tell when it ends. Kept by the connection.
#[derive(Debug)]
pub(crate) struct Watching {
    watch: Arc<Watch>,
    gone: Arc<AtomicBool>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::Release);
        self.watch.ring();
    }
}

/// Why nobody more can watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    TooMany,
    Failed,
}

impl Watch {
    /// Nobody watches yet.
    ///
    /// # Errors
    /// When the system has no descriptor for the bell.
    pub(crate) fn new(pending_bytes_max: usize, watcher_bytes_max: usize) -> io::Result<Watch> {
        Ok(Watch {
            observed: Arc::default(),
            pending: Lock::new(&WATCHERS, Pending::default()),
            pending_bytes_max,
            watcher_bytes_max,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            counts: Counts::default(),
        })
    }

    /// The word that tells requests whether anybody wants to hear of them.
    pub(crate) fn observed(&self) -> Arc<AtomicU32> {
        self.observed.clone()
    }

    /// Whether some watcher wants events of this kind.
    #[inline]
    pub(crate) fn wants(&self, kind: u32) -> bool {
        self.observed.load(Ordering::Relaxed) & kind != 0
    }

    /// Makes a connection a watcher; it is told `OK`, and from then on what it asked for.
    pub(crate) fn add(self: &Arc<Self>, socket: BorrowedFd<'_>, kinds: u32) -> Result<Watching, Refused> {
        let gone = Arc::new(AtomicBool::new(false));
        let mut pending = self.pending();
        if pending.watchers >= WATCHERS_MAX {
            return Err(Refused::TooMany);
        }
        let socket = socket.try_clone_to_owned().map_err(|_| Refused::Failed)?;
        if !pending.thread_runs {
            let watch = self.clone();
            let thread = std::thread::Builder::new().name("cached-log".into());
            thread.spawn(move || thread::run(&watch)).map_err(|_| Refused::Failed)?;
            pending.thread_runs = true;
        }
        pending.watchers += 1;
        pending.newcomers.push(Newcomer { socket, kinds, gone: gone.clone() });
        self.counts.watchers.store(pending.watchers as u64, Ordering::Relaxed);
        self.observed.fetch_or(kinds & KINDS, Ordering::Relaxed);
        drop(pending);
        self.ring();
        Ok(Watching { watch: self.clone(), gone })
    }

    /// Tells watchers of `kind` an event; `rest` follows the time and the number.
    pub(crate) fn tell(&self, kind: u32, rest: &dyn std::fmt::Display) {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let mut pending = self.pending();
        if pending.watchers == 0 {
            return;
        }
        pending.gid += 1;
        let mut text = String::with_capacity(160);
        // As memcached prints it: microseconds without leading zeroes. Writing to a String cannot fail.
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
            self.ring();
        }
    }

    /// A client has come.
    pub(crate) fn connection_opened(&self, info: &ConnInfo) {
        if self.wants(CONNEVENTS) {
            let (end, fd) = (End(&info.ends), info.fd);
            self.tell(CONNEVENTS, &format_args!("type=conn_new {end} cfd={fd}"));
        }
    }

    /// A client has gone.
    pub(crate) fn connection_closed(&self, info: &ConnInfo) {
        if self.wants(CONNEVENTS) {
            let reason = match () {
                () if info.is_timed_out() => "idle_timeout",
                () if info.is_kicked() => "error",
                () => "normal",
            };
            let (end, fd) = (End(&info.ends), info.fd);
            self.tell(CONNEVENTS, &format_args!("type=conn_close {end} reason={reason} cfd={fd}"));
        }
    }

    fn pending(&self) -> Guard<'_, Pending> {
        self.pending.lock()
    }

    fn ring(&self) {
        // Fails only when the counter is full, and then it rings anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// Tells watchers of evictions.
pub(crate) struct Evictions {
    watch: Arc<Watch>,
    classes: Classes,
    cas: bool,
}

impl Evictions {
    pub(crate) fn new(watch: Arc<Watch>, settings: &Settings) -> Evictions {
        Evictions { watch, classes: Classes::new(&settings.classes), cas: settings.cas }
    }
}

impl EvictionHook for Evictions {
    fn on_eviction(&self, item: &EvictedItem<'_>) {
        if self.watch.wants(EVICTIONS) {
            let (key, value) = (item.key.len(), item.value_bytes);
            let class = self.classes.class_of_item(key, value, item.client_flags, self.cas);
            self.watch.evicted(item, class);
        }
    }
}

/// The far end of a connection, as event lines have it.
struct End<'a>(&'a Ends);

impl std::fmt::Display for End<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Ends::Tcp { peer, .. } => write!(f, "rip={} rport={} transport=tcp", peer.ip(), peer.port()),
            Ends::Unix { .. } => f.write_str("rip=unix rport=0 transport=local"),
        }
    }
}

#[cfg(test)]
mod tests;
