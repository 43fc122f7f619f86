//! What the operator sees: results, as text or as JSON, and progress; and Ctrl-C, which ends a long command in order.

use std::io::{IsTerminal, PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, INTERRUPTED};

pub(crate) struct Output {
    json: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    /// Returns whether results are written as JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes one result: `text`, or `value` as JSON.
    pub(crate) fn write(&self, text: impl std::fmt::Display, value: &Value) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let written = match self.json {
            true => writeln!(out, "{}", shown_json(&value.to_string())),
            false => writeln!(out, "{}", shown(&text.to_string())),
        };
        written.map_err(Failure::io("standard output"))
    }

    /// Writes why the command failed: one line on standard error. Nothing if only the output's reader has gone.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.is_output_closed() {
            return;
        }
        let line = if self.json {
            let value = serde_json::json!({ "error": failure.kind(), "message": failure.to_string() });
            shown_json(&value.to_string())
        } else {
            format!("cachectl: {}", shown(&failure.to_string()))
        };
        // If nobody reads it, the exit code is left.
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    /// Writes a failure, if it is one. Returns the exit code of the process.
    pub(crate) fn end(&self, done: Result<(), Failure>) -> ExitCode {
        let Err(failure) = done else { return ExitCode::SUCCESS };
        self.failure(&failure);
        failure.code()
    }
}

/// Returns a text with escapes for what a terminal would obey, or not show: names are of any bytes.
fn shown(text: &str) -> String {
    escaped(text, |letter| letter.escape_unicode().to_string())
}

/// Returns a JSON value that means the same. Only strings have what is escaped.
fn shown_json(text: &str) -> String {
    escaped(text, |letter| {
        letter.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect()
    })
}

fn escaped(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\t' => out.push(letter),
            letter if volumes::is_shown(letter) => out.push(letter),
            letter => out.push_str(&escape(letter)),
        }
    }
    out
}

const STEP: Duration = Duration::from_millis(200);

pub(crate) struct Progress {
    start: Instant,
    last: Instant,
    done: u64,
    total: Option<u64>,
    are_bytes: bool,
    is_shown: bool,
    has_shown: bool,
}

impl Progress {
    pub(crate) fn new(total_bytes: Option<u64>) -> Self {
        let now = Instant::now();
        let is_shown = std::io::stderr().is_terminal();
        Self {
            start: now,
            last: now,
            done: 0,
            total: total_bytes,
            are_bytes: true,
            is_shown,
            has_shown: false,
        }
    }

    /// Returns the progress of what is done elsewhere, in steps.
    pub(crate) fn of_steps() -> Self {
        Self { are_bytes: false, ..Self::new(None) }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        self.show();
    }

    /// Takes how many steps are done, and how many there are.
    pub(crate) fn reach(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (done, Some(total));
        self.show();
    }

    /// Shows a line of the caller's own, if it is time for one.
    pub(crate) fn write(&mut self, line: impl FnOnce() -> String) {
        if self.is_shown && self.last.elapsed() >= STEP {
            self.last = Instant::now();
            self.has_shown = true;
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", line());
        }
    }

    fn show(&mut self) {
        if self.is_shown && self.last.elapsed() >= STEP {
            let line = self.line();
            self.write(|| line);
        }
    }

    fn line(&self) -> String {
        let total = self.total.filter(|total| *total > 0);
        let percent = total.map(|total| u128::from(self.done) * 100 / u128::from(total));
        if !self.are_bytes {
            return match (percent, total) {
                (Some(percent), Some(total)) => format!("{percent:3} %  {} of {total}", self.done),
                _ => format!("{:.0} s", self.start.elapsed().as_secs_f64()),
            };
        }
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let rate = mib(self.done) / self.start.elapsed().as_secs_f64().max(0.001);
        match (percent, total) {
            (Some(percent), Some(total)) => {
                let (done, total) = (mib(self.done), mib(total));
                format!("{percent:3} %  {done:.1} of {total:.1} MiB  {rate:.1} MiB/s")
            }
            _ => format!("{:.1} MiB  {rate:.1} MiB/s", mib(self.done)),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.has_shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// What a command asks whether it is to end.
pub(crate) struct Interrupt {
    /// Readable from the first signal on; nothing reads it.
    bell: PipeReader,
}

impl Interrupt {
    /// Begins to watch for signals, which no longer end the process by themselves.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn watch() -> Result<Self, Failure> {
        let watched = || {
            let (bell, mut ring) = std::io::pipe()?;
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
            let mut signals = {
                let _entered = runtime.enter();
                [signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?]
            };
            let watching = move || {
                runtime.block_on(any(&mut signals));
                // A pipe that nothing reads has room for a byte.
                let _ = ring.write_all(&[1]);
                runtime.block_on(any(&mut signals));
                std::process::exit(INTERRUPTED.into());
            };
            std::thread::Builder::new().name("signals".into()).spawn(watching)?;
            Ok(Self { bell })
        };
        watched().map_err(Failure::io("signals"))
    }

    /// Returns an error if a signal has requested the end.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        self.sleep(Duration::ZERO)
    }

    /// Waits until the time has passed.
    ///
    /// # Errors
    /// A signal has requested the end.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Failure> {
        self.wait(None, Some(time))
    }

    /// Waits until `input` can be read.
    ///
    /// # Errors
    /// A signal has requested the end.
    pub(crate) fn wait_for(&self, input: BorrowedFd<'_>) -> Result<(), Failure> {
        self.wait(Some(input), None)
    }

    fn wait(&self, input: Option<BorrowedFd<'_>>, time: Option<Duration>) -> Result<(), Failure> {
        let mut all = vec![PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)];
        all.extend(input.map(|input| PollFd::from_borrowed_fd(input, PollFlags::IN)));
        let time = time.map(|time| Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        loop {
            match poll(&mut all, time.as_ref()) {
                // By a signal that another thread handles.
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("signals")(error.into())),
                Ok(_) if all[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(Failure::Interrupted),
            }
        }
    }
}

/// Waits for one of the signals.
async fn any(signals: &mut [Signal; 2]) {
    std::future::poll_fn(|context| {
        // Both are polled, so that both wake this task.
        let ready = signals.each_mut().map(|signal| signal.poll_recv(context).is_ready());
        if ready.contains(&true) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        assert_eq!(shown("é a\u{301}\t\"x\"\n\u{202e}\u{1b}[2J"), "é a\u{301}\t\"x\"\n\\u{202e}\\u{1b}[2J");
        let value = serde_json::json!({ "né": ["a\u{202e}b", "\u{e0001}\u{7f}"] });
        let text = shown_json(&value.to_string());
        assert_eq!(text, r#"{"né":["a\u202eb","\udb40\udc01\u007f"]}"#);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
