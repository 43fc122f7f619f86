//! The access log: one line of JSON for each request, written by a thread of its own.
//!
//! Requests and reloads never wait for the log: lines that do not fit into its queue are dropped
//! and counted. On exit the sidecar waits for queued lines, but not for long.

use std::cell::Cell;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bytes::Buf;
use cached_metrics::Counter;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;

use crate::http::body::{Body, BodyError, Data};
use crate::http::read::parameters;
use crate::metrics::Outcome;

/// The destination of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, to which lines are appended.
    File(PathBuf),
}

/// The maximum number of queued lines.
const LINES_MAX: usize = 4096;

/// The lines to be written, and what else the thread is asked to do.
#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lines: VecDeque<String>,
    /// Whether to reopen the file.
    reopen: bool,
    /// Whether to end once no lines are queued.
    end: bool,
    has_ended: bool,
}

/// The access log.
#[derive(Debug)]
pub(crate) struct AccessLog {
    queue: Arc<Queue>,
    /// The maximum time to wait at the end for queued lines to be written, in case their destination is
    /// stuck.
    end_max: Duration,
    /// The number of dropped lines.
    pub(crate) dropped: Arc<Counter>,
}

impl AccessLog {
    /// Opens the log and starts its thread, which ends when this is dropped and all lines are
    /// written.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub(crate) fn start(target: &LogTarget) -> io::Result<AccessLog> {
        Self::start_on(Output::open(target)?)
    }

    fn start_on(output: Output) -> io::Result<AccessLog> {
        let (queue, dropped) = (Arc::<Queue>::default(), Arc::<Counter>::default());
        let log =
            AccessLog { queue: queue.clone(), end_max: Duration::from_secs(5), dropped: dropped.clone() };
        let body = move || write(output, &queue, &dropped);
        thread::Builder::new().name("cached-s3-log".into()).spawn(body)?;
        Ok(log)
    }

    /// Logs a line, if the queue has space and the log does not end.
    pub(crate) fn line(&self, line: String) {
        let mut state = self.queue.state.lock();
        if state.lines.len() >= LINES_MAX || state.end {
            return self.dropped.increment();
        }
        state.lines.push_back(line);
        self.queue.changed.notify_all();
    }

    /// Reopens the file, which may have been renamed. Queued lines may go into either file.
    pub(crate) fn reopen(&self) {
        self.queue.state.lock().reopen = true;
        self.queue.changed.notify_all();
    }

    /// Waits until all lines are written, but at most for `end_max`; later lines are not written.
    /// Returns whether all lines were written.
    pub(crate) fn finish(&self) -> bool {
        self.end();
        let until = Instant::now() + self.end_max;
        let mut state = self.queue.state.lock();
        while !state.has_ended && !self.queue.changed.wait_until(&mut state, until).timed_out() {}
        state.has_ended
    }

    fn end(&self) {
        self.queue.state.lock().end = true;
        self.queue.changed.notify_all();
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.end();
    }
}

/// The destination of lines.
struct Output {
    writer: BufWriter<Box<dyn Write + Send>>,
    path: Option<PathBuf>,
}

impl Output {
    fn open(target: &LogTarget) -> io::Result<Output> {
        let (writer, path): (Box<dyn Write + Send>, _) = match target {
            LogTarget::Stdout => (Box::new(io::stdout()), None),
            LogTarget::File(path) => (Box::new(append(path)?), Some(path.clone())),
        };
        Ok(Output { writer: BufWriter::with_capacity(64 << 10, writer), path })
    }

    fn reopen(&mut self) {
        let Some(path) = &self.path else { return };
        match append(path) {
            Ok(file) => {
                self.flush();
                self.writer = BufWriter::with_capacity(64 << 10, Box::new(file));
            }
            Err(error) => {
                tracing::error!(path = %path.display(), cause = %error, "the access log cannot be reopened");
            }
        }
    }

    fn flush(&mut self) {
        if let Err(error) = self.writer.flush() {
            tracing::error!(cause = %error, "the access log cannot be written");
        }
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// The main function of the thread.
fn write(mut output: Output, queue: &Queue, failed: &Counter) {
    let (mut is_flushed, mut has_failed) = (true, false);
    let mut state = queue.state.lock();
    loop {
        if std::mem::take(&mut state.reopen) {
            MutexGuard::unlocked(&mut state, || output.reopen());
        } else if let Some(line) = state.lines.pop_front() {
            is_flushed = false;
            MutexGuard::unlocked(&mut state, || match output.writer.write_all(line.as_bytes()) {
                Ok(()) => has_failed = false,
                Err(error) => {
                    failed.increment();
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::error!(cause = %error, "the access log cannot be written");
                    }
                }
            });
        } else if !is_flushed {
            // All queued lines are written together, and then flushed.
            is_flushed = true;
            MutexGuard::unlocked(&mut state, || output.flush());
        } else if state.end {
            state.has_ended = true;
            queue.changed.notify_all();
            return;
        } else {
            queue.changed.wait(&mut state);
        }
    }
}

tokio::task_local! {
    /// The time that this task's request has waited for responses from the endpoint.
    static WAITED: Cell<Duration>;
}

/// Runs a request, and returns its result and the time that it has waited for the endpoint.
pub(crate) async fn measured<T>(request: impl Future<Output = T>) -> (T, Duration) {
    let counted = async {
        let result = request.await;
        (result, WAITED.with(Cell::get))
    };
    WAITED.scope(Cell::new(Duration::ZERO), counted).await
}

/// Adds to the time that this task's request has waited for the endpoint. Does nothing if the time
/// is not measured.
pub(crate) fn add_wait(time: Duration) {
    let _ = WAITED.try_with(|waited| waited.set(waited.get() + time));
}

/// A log line, of which only a part is known at the beginning of a request.
pub(crate) struct Entry {
    began: Instant,
    line: Line,
}

#[derive(Default, Serialize)]
struct Line {
    time: String,
    peer: Option<SocketAddr>,
    method: String,
    host: String,
    path: String,
    status: u16,
    bytes: u64,
    outcome: Option<Outcome>,
    upstream_ms: f64,
    total_ms: f64,
    key_id: Option<String>,
}

/// The maximum length of a path, host or key in the log, in bytes; longer values are truncated.
const TEXT_BYTES_MAX: usize = 1024;

impl Entry {
    /// Returns the part of a log line that is known from a request. The request's parameters are
    /// not logged, because they may belong to a presigned URL.
    pub(crate) fn of(request: &Parts, host: &str, peer: SocketAddr) -> Entry {
        let line = Line {
            time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
            peer: Some(peer),
            method: request.method.to_string(),
            host: cut(host),
            path: cut(request.uri.path()),
            key_id: key_id(request).map(cut),
            ..Line::default()
        };
        Entry { began: Instant::now(), line }
    }

    /// Returns the response with a body that logs the request at its end.
    pub(crate) fn follow(
        mut self,
        log: &Arc<AccessLog>,
        response: Response<Body>,
        outcome: Outcome,
        waited: Duration,
    ) -> Response<Body> {
        self.line.status = response.status().as_u16();
        self.line.outcome = Some(outcome);
        self.line.upstream_ms = millis(waited);
        let log = Arc::clone(log);
        response.map(|body| Followed { body, log, entry: self }.boxed_unsync())
    }
}

fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn cut(text: &str) -> String {
    let end = (0..=text.len().min(TEXT_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
    text[..end.unwrap_or(0)].to_owned()
}

/// Returns the access key that a request names.
fn key_id(request: &Parts) -> Option<&str> {
    if let Some(value) = request.headers.get(AUTHORIZATION) {
        let value = value.to_str().ok()?;
        if let Some(rest) = value.strip_prefix("AWS ") {
            return rest.split(':').next();
        }
        return value.split([' ', ',']).find_map(|part| part.strip_prefix("Credential="))?.split('/').next();
    }
    let is_key =
        |name: &str| ["x-amz-credential", "awsaccesskeyid"].iter().any(|key| name.eq_ignore_ascii_case(key));
    let (_, value) = parameters(&request.uri).find(|(name, _)| is_key(name))?;
    value.split(['/', '%']).next()
}

/// A body that counts the bytes read from it.
struct Followed {
    body: Body,
    log: Arc<AccessLog>,
    entry: Entry,
}

impl HttpBody for Followed {
    type Data = Data;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Data>, BodyError>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            self.entry.line.bytes += data.remaining() as u64;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let Entry { began, line } = &mut self.entry;
        line.total_ms = millis(began.elapsed());
        if let Ok(mut text) = serde_json::to_string(line) {
            text.push('\n');
            self.log.line(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_written_and_a_renamed_file_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("access"), directory.path().join("access.1"));
        let log = AccessLog::start(&LogTarget::File(path.clone())).unwrap();
        log.line("one\n".into());
        let await_text = |path: &Path, text: &str| {
            while std::fs::read_to_string(path).unwrap_or_default() != text {
                thread::sleep(Duration::from_millis(1));
            }
        };
        await_text(&path, "one\n");
        std::fs::rename(&path, &old).unwrap();
        log.line("two\n".into());
        await_text(&old, "one\ntwo\n");
        log.reopen();
        log.line("three\n".into());
        await_text(&path, "three\n");
        await_text(&old, "one\ntwo\n");
        assert_eq!(log.dropped.get(), 0);
    }

    /// A writer that blocks until a gate is opened, and the bytes written.
    #[derive(Clone, Default)]
    struct Held(Arc<Gate>);
    /// Whether the gate is open, and the bytes that passed it.
    type Gate = (Mutex<(bool, Vec<u8>)>, Condvar);

    impl Held {
        fn open(&self) {
            self.0.0.lock().0 = true;
            self.0.1.notify_all();
        }

        fn log(&self) -> AccessLog {
            let writer: Box<dyn Write + Send> = Box::new(self.clone());
            let output = Output { writer: BufWriter::with_capacity(0, writer), path: None };
            let mut log = AccessLog::start_on(output).unwrap();
            log.end_max = Duration::from_secs(60);
            log
        }
    }

    impl Write for Held {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut held = self.0.0.lock();
            self.0.1.wait_while(&mut held, |held| !held.0);
            held.1.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn neither_lines_nor_a_reload_wait_for_what_takes_nothing() {
        let held = Held::default();
        let log = held.log();
        // The thread holds at most one of these lines.
        (0..LINES_MAX + 5).for_each(|_| log.line("x\n".into()));
        assert!(log.dropped.get() >= 4);
        log.reopen();
        held.open();
        assert!(log.finish());
        let taken = held.0.0.lock().1.len() / 2;
        assert_eq!(taken as u64 + log.dropped.get(), LINES_MAX as u64 + 5);
        // The thread has ended.
        log.line("y\n".into());
        log.reopen();
    }

    #[test]
    fn the_end_writes_what_waits() {
        let held = Held::default();
        let log = held.log();
        (0..100).for_each(|_| log.line("x\n".into()));
        thread::scope(|scope| {
            let finished = scope.spawn(|| log.finish());
            held.open();
            assert!(finished.join().unwrap());
        });
        assert_eq!(held.0.0.lock().1.len(), 200);
    }
}
