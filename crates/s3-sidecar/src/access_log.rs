//! The access log: a line of JSON for each request, written by a thread of its own.
//!
//! Requests never wait for it: lines that do not fit into its queue are dropped, and counted.

use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use cached_metrics::Counter;

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Standard output.
    Stdout,
    /// A file, to which it is appended.
    File(PathBuf),
}

/// The most lines that wait to be written.
const LINES_MAX: usize = 4096;

/// How a message reaches the thread.
enum Message {
    Line(String),
    Reopen,
}

/// The log.
#[derive(Debug)]
pub(crate) struct AccessLog {
    lines: SyncSender<Message>,
    dropped: Arc<Counter>,
}

impl AccessLog {
    /// Opens the log and starts its thread, which ends when this is dropped and all lines are written.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread not be started.
    pub(crate) fn start(target: &LogTarget) -> io::Result<AccessLog> {
        let output = Output::open(target)?;
        let (sender, lines) = sync_channel(LINES_MAX);
        let dropped = Arc::new(Counter::default());
        let failed = Arc::clone(&dropped);
        thread::Builder::new().name("cached-s3-log".into()).spawn(move || write(output, &lines, &failed))?;
        Ok(AccessLog { lines: sender, dropped })
    }

    /// Logs a line, if there is room.
    pub(crate) fn line(&self, line: String) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.lines.try_send(Message::Line(line))
        {
            self.dropped.increment();
        }
    }

    /// Has the file opened anew, for it may have been renamed. Waits if the queue is full.
    pub(crate) fn reopen(&self) {
        // The thread ends after this only.
        let _ = self.lines.send(Message::Reopen);
    }

    /// Returns the number of lines that were not written.
    pub(crate) fn dropped(&self) -> &Counter {
        &self.dropped
    }
}

/// Where lines are written.
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
                tracing::error!(path = %path.display(), cause = %error, "the access log cannot be opened anew");
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

fn write(mut output: Output, lines: &Receiver<Message>, failed: &Counter) {
    let mut has_failed = false;
    while let Ok(message) = lines.recv() {
        let mut next = Some(message);
        // What waits is written at once, and then it is visible.
        while let Some(message) = next.take() {
            match message {
                Message::Reopen => output.reopen(),
                Message::Line(line) => {
                    if let Err(error) = output.writer.write_all(line.as_bytes()) {
                        failed.increment();
                        if !std::mem::replace(&mut has_failed, true) {
                            tracing::error!(cause = %error, "the access log cannot be written");
                        }
                    } else {
                        has_failed = false;
                    }
                }
            }
            next = lines.try_recv().ok();
        }
        output.flush();
    }
}

tokio::task_local! {
    /// How long the request of this task has waited for answers of the endpoint.
    static WAITED: Cell<Duration>;
}

/// Runs a request, and returns with its result how long it has waited for the endpoint.
pub(crate) async fn measured<T>(request: impl Future<Output = T>) -> (T, Duration) {
    let counted = async {
        let result = request.await;
        (result, WAITED.with(Cell::get))
    };
    WAITED.scope(Cell::new(Duration::ZERO), counted).await
}

/// Adds to how long this task's request has waited for the endpoint. Does nothing if that is not measured.
pub(crate) fn add_wait(time: Duration) {
    let _ = WAITED.try_with(|waited| waited.set(waited.get() + time));
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
        assert_eq!(log.dropped().get(), 0);
    }

    #[test]
    fn lines_without_room_are_dropped_and_counted() {
        let (sender, lines) = sync_channel(2);
        let log = AccessLog { lines: sender, dropped: Arc::default() };
        (0..5).for_each(|_| log.line("x\n".into()));
        assert_eq!((log.dropped().get(), lines.try_iter().count()), (3, 2));
    }
}
