//! The log thread: passes pending lines to watchers as fast as each of them reads.

use super::events::KINDS;
use super::{Line, NewWatcher, Sink, Watch};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection that watches.
struct Watcher {
    sink: Sink,
    kinds: u32,
    gone: Arc<AtomicBool>,
    /// Lines that its socket has not taken, from `sent` on.
    buffer: Vec<u8>,
    sent: usize,
    /// Lines skipped since the last one in the buffer.
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

/// Waits for lines, for watchers that come or go, and for room on the sockets of watchers with unsent lines.
fn wait(watch: &Watch, watchers: &[Watcher]) {
    let mut waited_for = vec![PollFd::new(&watch.waker, PollFlags::IN)];
    let behind = watchers.iter().filter(|watcher| watcher.sent < watcher.buffer.len());
    // The worker of a watcher that has none wakes this thread.
    let sockets = behind.filter_map(|watcher| match &watcher.sink {
        Sink::Socket(socket) => Some(socket),
        Sink::Relay(_) => None,
    });
    waited_for.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::OUT)));
    // Whatever it returns, everything is checked.
    let _ = poll(&mut waited_for, None);
    let _ = rustix::io::read(&watch.waker, &mut [0; 8]);
}

/// Records which kinds of events the remaining watchers observe. Returns false when none remain and the
/// thread is to end.
fn update_observed(watch: &Watch, watchers: &[Watcher]) -> bool {
    let mut pending = watch.pending();
    pending.watchers = watchers.len() + pending.new_watchers.len();
    let wanted = watchers.iter().map(|watcher| watcher.kinds);
    let wanted = wanted.chain(pending.new_watchers.iter().map(|new| new.kinds));
    let wanted = wanted.fold(0, |all, kinds| all | kinds) & KINDS;
    // The kinds that watchers observe change only under this lock.
    watch.observed.fetch_and(wanted | !KINDS, Ordering::Relaxed);
    // Last, so that a count without a watcher states that nothing is observed for it any more.
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

    /// Appends a line, if there is room for it and for the number of lines skipped before it.
    fn offer(&mut self, line: &Line, watch: &Watch) {
        /// The length of `skipped=…` with its number.
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

    /// Sends as much as the socket or the worker takes.
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
