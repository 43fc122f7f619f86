//! Event lines in memcached's format, and their delivery to the watchers: the log thread forwards
//! pending lines as fast as each watcher reads.

use super::{DELETIONS, EVICTIONS, FETCHERS, KINDS, Line, MUTATIONS, NewWatcher, Sink, Watch};
use crate::connections::{Command, CommandQueue, ConnInfo};
use crate::locks::{Lock, RELAY};
use cached_core::clock::Expiry;
use cached_core::kv::{EvictedItem, StoreMode, StoreOutcome};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The attributes of an item in event lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ItemSummary {
    pub(crate) class: u32,
    pub(crate) value_bytes: usize,
    /// The seconds until the item expires; 0 if it never does.
    pub(crate) ttl_secs: u32,
}

/// The bytes that are percent-encoded.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Returns a key, percent-encoded as in a URI.
pub(crate) fn escaped(key: &[u8]) -> PercentEncode<'_> {
    percent_encode(key, ESCAPED)
}

impl Watch {
    /// Publishes a retrieval; `status` is `found`, `not_found`, `expired` or `flushed`.
    pub(crate) fn fetched(&self, key: &[u8], item: Option<ItemSummary>, status: &str, fd: RawFd) {
        let key = escaped(key);
        let (class, size) = item.map_or((0, 0), |item| (item.class, item.value_bytes));
        let line = format_args!("type=item_get key={key} status={status} clsid={class} cfd={fd} size={size}");
        self.publish(FETCHERS, &line);
    }

    /// Publishes an attempt to store.
    pub(crate) fn stored(
        &self,
        key: &[u8],
        item: ItemSummary,
        mode: StoreMode,
        outcome: StoreOutcome,
        fd: RawFd,
    ) {
        let key = escaped(key);
        let status = match outcome {
            StoreOutcome::Stored { .. } => "stored",
            StoreOutcome::Exists => "exists",
            StoreOutcome::NotFound => "not_found",
            StoreOutcome::TooLarge => "too_large",
            StoreOutcome::OutOfMemory => "no_memory",
            _ => "not_stored",
        };
        let command = match mode {
            StoreMode::Set => "set",
            StoreMode::Add => "add",
            StoreMode::Replace => "replace",
            StoreMode::Append => "append",
            StoreMode::Prepend => "prepend",
            StoreMode::Cas => "cas",
        };
        let ItemSummary { class, value_bytes, ttl_secs } = item;
        let line = format_args!(
            "type=item_store key={key} status={status} cmd={command} ttl={ttl_secs} clsid={class} cfd={fd} size={value_bytes}"
        );
        self.publish(MUTATIONS, &line);
    }

    /// Publishes a deletion by a client.
    pub(crate) fn deleted(&self, key: &[u8], item: ItemSummary, command: &str) {
        let key = escaped(key);
        let ItemSummary { class, value_bytes, .. } = item;
        let line = format_args!("type=deleted key={key} cmd={command} clsid={class} size={value_bytes}");
        self.publish(DELETIONS, &line);
    }

    /// Publishes an eviction.
    pub(crate) fn evicted(&self, item: &EvictedItem<'_>, class: u32) {
        let key = escaped(item.key);
        let fetched = if item.fetched { "yes" } else { "no" };
        let ttl = match item.expiry {
            Expiry::NEVER => -1,
            expiry => i64::from(expiry.as_secs()) - i64::from(item.now),
        };
        let idle = item.now.saturating_sub(item.last_access);
        let size = item.value_bytes;
        let line = format_args!(
            "type=eviction key={key} fetch={fetched} ttl={ttl} la={idle} clsid={class} size={size}"
        );
        self.publish(EVICTIONS, &line);
    }
}

// Lines for a watcher whose connection is encrypted. Only the worker of that connection can write
// to it.
//
// ```text
//  log thread ── put, if all before has been taken ──► Relay ── take ──► worker ──► TLS ──► client
//             ◄───────────────── wakes the log thread ───────┘
// ```
// A relay holds at most as much as the watcher's buffer, so a watcher that does not read costs
// twice that buffer.

/// Lines that the log thread forwards to a worker.
pub(crate) struct Relay {
    lines: Lock<Vec<u8>>,
    info: Arc<ConnInfo>,
    queues: Arc<[CommandQueue]>,
}

impl Relay {
    /// Returns an empty relay to the worker that serves this connection; `queues` contains the
    /// command queues of all workers.
    pub(crate) fn new(info: Arc<ConnInfo>, queues: Arc<[CommandQueue]>) -> Relay {
        Relay { lines: Lock::ranked(Vec::new(), &RELAY), info, queues }
    }

    /// Forwards lines, unless the worker has not yet taken the previous ones. Returns whether the
    /// lines were forwarded.
    pub(super) fn put(&self, lines: &[u8]) -> bool {
        let mut waiting = self.lines.lock();
        if !waiting.is_empty() {
            return false;
        }
        waiting.extend_from_slice(lines);
        drop(waiting);
        self.queues[self.info.worker].send(Command::Relay(self.info.slot()));
        true
    }

    /// Removes and returns all lines.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut *self.lines.lock())
    }
}

/// A connection that is a watcher.
struct Watcher {
    sink: Sink,
    kinds: u32,
    gone: Arc<AtomicBool>,
    /// Lines that the socket has not accepted yet. They begin at the index `sent`.
    buffer: Vec<u8>,
    sent: usize,
    /// The number of lines skipped since the last one in the buffer.
    skipped: u64,
    failed: bool,
}

/// Serves watchers until none is left.
pub(super) fn run(watch: &Arc<Watch>) {
    let mut watchers: Vec<Watcher> = Vec::new();
    loop {
        wait(watch, &watchers);
        let (lines, new_watchers) = {
            let mut pending = watch.pending();
            pending.bytes = 0;
            (std::mem::take(&mut pending.lines), std::mem::take(&mut pending.new_watchers))
        };
        for line in &lines {
            for watcher in watchers.iter_mut().filter(|watcher| watcher.kinds & line.kind != 0) {
                watcher.offer(line, watch);
            }
        }
        watchers.extend(new_watchers.into_iter().map(Watcher::new));
        watchers.iter_mut().for_each(Watcher::send);
        let count = watchers.len();
        watchers.retain(|watcher| !watcher.failed && !watcher.gone.load(Ordering::Acquire));
        if watchers.len() < count && !update_observed(watch, &watchers) {
            return;
        }
    }
}

/// Waits for lines, for watchers that come or go, and for space in the sockets of watchers with
/// unsent lines.
fn wait(watch: &Watch, watchers: &[Watcher]) {
    let mut waited_for = vec![PollFd::new(&watch.waker, PollFlags::IN)];
    let behind = watchers.iter().filter(|watcher| watcher.sent < watcher.buffer.len());
    // If a watcher has no socket, its worker wakes this thread.
    let sockets = behind.filter_map(|watcher| match &watcher.sink {
        Sink::Socket(socket) => Some(socket),
        Sink::Relay(_) => None,
    });
    waited_for.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)));
    // The result does not matter, because everything is checked afterwards.
    let _ = poll(&mut waited_for, None);
    let _ = rustix::io::read(&watch.waker, &mut [0; 8]);
}

/// Records which kinds of events the remaining watchers observe. Returns false when no watcher
/// remains and the thread must end.
fn update_observed(watch: &Watch, watchers: &[Watcher]) -> bool {
    let mut pending = watch.pending();
    pending.watchers = watchers.len() + pending.new_watchers.len();
    let wanted = watchers.iter().map(|watcher| watcher.kinds);
    let wanted = wanted.chain(pending.new_watchers.iter().map(|new| new.kinds));
    let wanted = wanted.fold(0, |all, kinds| all | kinds) & KINDS;
    // The kinds that watchers observe change only under this lock.
    watch.observed.fetch_and(wanted | !KINDS, Ordering::Relaxed);
    // The count is stored last, so that a count of 0 implies that no kinds of events are observed
    // for watchers any more.
    watch.counts.watchers.store(pending.watchers as u64, Ordering::Release);
    if pending.watchers == 0 {
        pending.lines.clear();
        pending.bytes = 0;
        pending.thread_runs = false;
        return false;
    }
    true
}

impl Watcher {
    fn new(new: NewWatcher) -> Watcher {
        let NewWatcher { sink, kinds, gone } = new;
        let buffer = b"OK\r\n".to_vec();
        Watcher { sink, kinds, gone, buffer, sent: 0, skipped: 0, failed: false }
    }

    /// Appends a line, if there is space for it and for the number of lines skipped before it.
    fn offer(&mut self, line: &Line, watch: &Watch) {
        /// The maximum length of `skipped=…` with its number.
        const SKIPPED_BYTES_MAX: usize = 32;
        let mut used = self.buffer.len() - self.sent;
        if used + line.text.len() + SKIPPED_BYTES_MAX > watch.watcher_bytes_max {
            self.send();
            used = self.buffer.len() - self.sent;
        }
        if used + line.text.len() + SKIPPED_BYTES_MAX > watch.watcher_bytes_max {
            self.skipped += 1;
            watch.counts.watcher_skipped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if self.sent > 0 {
            self.buffer.drain(..self.sent);
            self.sent = 0;
        }
        if self.skipped > 0 {
            self.buffer.extend_from_slice(format!("skipped={}\n", self.skipped).as_bytes());
            self.skipped = 0;
        }
        self.buffer.extend_from_slice(line.text.as_bytes());
        watch.counts.watcher_sent.fetch_add(1, Ordering::Relaxed);
    }

    /// Sends as much as the socket or the worker accepts.
    fn send(&mut self) {
        let socket = match &self.sink {
            Sink::Socket(socket) => socket,
            Sink::Relay(relay) => {
                if self.sent < self.buffer.len() && !relay.put(&self.buffer[self.sent..]) {
                    return;
                }
                self.buffer.clear();
                self.sent = 0;
                return;
            }
        };
        while self.sent < self.buffer.len() && !self.failed {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(socket.as_fd(), &self.buffer[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The connection's worker gets the same error and closes the connection.
                Err(_) => self.failed = true,
            }
        }
        self.buffer.clear();
        self.sent = 0;
    }
}
