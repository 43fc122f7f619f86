//! The log thread: hands pending lines to watchers as fast as each takes them.

use super::{Line, Newcomer, Watch};
use crate::watch::observe::KINDS;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection that watches.
struct Watcher {
    socket: OwnedFd,
    kinds: u32,
    gone: Arc<AtomicBool>,
    /// Lines it has not taken yet, from `sent` on.
    buffer: Vec<u8>,
    sent: usize,
    /// Lines left out since the last one it got.
    skipped: u64,
    failed: bool,
}

/// Serves watchers until the last of them has gone.
pub(super) fn run(watch: &Arc<Watch>) {
    let mut watchers: Vec<Watcher> = Vec::new();
    loop {
        wait(watch, &watchers);
        let (lines, newcomers) = {
            let mut pending = watch.pending();
            pending.bytes = 0;
            (std::mem::take(&mut pending.lines), std::mem::take(&mut pending.newcomers))
        };
        for line in &lines {
            for watcher in watchers.iter_mut().filter(|watcher| watcher.kinds & line.kind != 0) {
                watcher.offer(line, watch);
            }
        }
        watchers.extend(newcomers.into_iter().map(Watcher::new));
        watchers.iter_mut().for_each(Watcher::send);
        let count = watchers.len();
        watchers.retain(|watcher| !watcher.failed && !watcher.gone.load(Ordering::Acquire));
        if watchers.len() < count && !take_leave(watch, &watchers) {
            return;
        }
    }
}

/// Waits for lines, newcomers, leavers, and for room on sockets that have something to take.
fn wait(watch: &Watch, watchers: &[Watcher]) {
    let mut waited_for = vec![PollFd::new(&watch.bell, PollFlags::IN)];
    let behind = watchers.iter().filter(|watcher| watcher.sent < watcher.buffer.len());
    waited_for.extend(behind.map(|watcher| PollFd::new(&watcher.socket, PollFlags::OUT)));
    // Whatever it says, everything is looked at.
    let _ = poll(&mut waited_for, None);
    let _ = rustix::io::read(&watch.bell, &mut [0; 8]);
}

/// Notes who is left. False when nobody is, and the thread is to end.
fn take_leave(watch: &Watch, watchers: &[Watcher]) -> bool {
    let mut pending = watch.pending();
    pending.watchers = watchers.len() + pending.newcomers.len();
    watch.counts.watchers.store(pending.watchers as u64, Ordering::Relaxed);
    let wanted = watchers.iter().map(|watcher| watcher.kinds);
    let wanted = wanted.chain(pending.newcomers.iter().map(|newcomer| newcomer.kinds));
    let wanted = wanted.fold(0, |all, kinds| all | kinds) & KINDS;
    // Kinds are only changed under this lock.
    watch.observed.fetch_and(wanted | !KINDS, Ordering::Relaxed);
    if pending.watchers == 0 {
        pending.lines.clear();
        pending.bytes = 0;
        pending.thread_runs = false;
        return false;
    }
    true
}

impl Watcher {
    fn new(newcomer: Newcomer) -> Watcher {
        let Newcomer { socket, kinds, gone } = newcomer;
        let buffer = b"OK\r\n".to_vec();
        Watcher { socket, kinds, gone, buffer, sent: 0, skipped: 0, failed: false }
    }

    /// Takes a line, if there is room for it and for a word about those there was none for.
    fn offer(&mut self, line: &Line, watch: &Watch) {
        /// `skipped=…` and its number.
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

    /// Sends what the socket takes.
    fn send(&mut self) {
        while self.sent < self.buffer.len() && !self.failed {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(self.socket.as_fd(), &self.buffer[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The connection's worker will see it too.
                Err(_) => self.failed = true,
            }
        }
        self.buffer.clear();
        self.sent = 0;
    }
}
