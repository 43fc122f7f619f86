//! The output for the operator: results, as text or as JSON; failures, as one line and an exit
//! code; and progress. It also handles Ctrl-C, which ends a long command in order.

use std::fmt;
use std::io::{IsTerminal, PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use blocker::Error;
use cached_config::suggestion;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};

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

    /// Writes the reason why the command failed: one line on standard error, or nothing if the only
    /// failure is that the reader of the output has gone.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.is_output_closed {
            return;
        }
        let line = if self.json {
            let value = serde_json::json!({ "error": failure.kind, "message": failure.line });
            shown_json(&value.to_string())
        } else {
            format!("cachectl: {}", shown(&failure.line))
        };
        // If nobody can read the line, the exit status still reports the failure.
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    /// Returns the exit code of a check: 0 if everything is in order, 1 if not. For data that could
    /// not be read, writes the failure and returns 2, unless the output is closed.
    pub(crate) fn verdict(&self, verdict: Result<bool, Failure>) -> ExitCode {
        match verdict {
            Ok(is_in_order) => ExitCode::from(u8::from(!is_in_order)),
            Err(failure) => {
                self.failure(&failure);
                if failure.is_output_closed { failure.code() } else { ExitCode::from(2) }
            }
        }
    }

    /// Writes the failure, if there is one. Returns the exit code of the process.
    pub(crate) fn end(&self, done: Result<(), Failure>) -> ExitCode {
        let Err(failure) = done else { return ExitCode::SUCCESS };
        self.failure(&failure);
        failure.code()
    }
}

/// Returns a string in which characters that a terminal would interpret, or not show, are escaped:
/// names may contain any bytes.
fn shown(text: &str) -> String {
    escaped(text, |letter| letter.escape_unicode().to_string())
}

/// Returns equivalent JSON in which the same characters are escaped. Such characters occur only in
/// strings.
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
    /// Returns the progress, in bytes, of work with this total, if it is known.
    pub(crate) fn new(total: Option<u64>) -> Self {
        let (now, is_shown) = (Instant::now(), std::io::stderr().is_terminal());
        Self { start: now, last: now, done: 0, total, are_bytes: true, is_shown, has_shown: false }
    }

    /// Returns the progress, in steps, of work that another process performs.
    pub(crate) fn of_steps() -> Self {
        Self { are_bytes: false, ..Self::new(None) }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done += bytes;
        self.show();
    }

    /// Records how many steps are complete, and how many there are.
    pub(crate) fn reach(&mut self, done: u64, total: u64) {
        (self.done, self.total) = (done, Some(total));
        self.show();
    }

    /// Shows a line of the caller, if enough time has passed since the last one.
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

/// Tells a command whether a signal has requested its end.
pub(crate) struct Interrupt {
    /// Readable from the first signal on; nothing reads from it.
    bell: PipeReader,
}

impl Interrupt {
    /// Starts to watch for signals, which then no longer end the process by themselves.
    ///
    /// # Errors
    /// Fails if the system refuses.
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
                // A pipe from which nothing is read has space for one byte.
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

    /// Sleeps for this time.
    ///
    /// # Errors
    /// Fails if a signal has requested the end.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), Failure> {
        self.wait(None, Some(time))
    }

    /// Waits until `input` can be read.
    ///
    /// # Errors
    /// Fails if a signal has requested the end.
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
                // The call was interrupted by a signal that another thread handles.
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Failure::io("signals")(error.into())),
                Ok(_) if all[0].revents().is_empty() => return Ok(()),
                Ok(_) => return Err(Failure::new("interrupted", INTERRUPTED, "interrupted")),
            }
        }
    }
}

/// Waits for one of the signals.
async fn any(signals: &mut [Signal; 2]) {
    std::future::poll_fn(|context| {
        // Both futures are polled, so that either can wake this task.
        let ready = signals.each_mut().map(|signal| signal.poll_recv(context).is_ready());
        if ready.contains(&true) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// The exit code of a command that a signal has ended.
pub(crate) const INTERRUPTED: u8 = 130;
/// The exit code of a command whose output is no longer read by any process: the same as if SIGPIPE
/// had ended the command, which would leave a backend without an orderly close.
const OUTPUT_CLOSED: u8 = 141;

/// The reason why the command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The kind of the failure, as one word for scripts that read JSON.
    kind: &'static str,
    /// The exit code.
    code: u8,
    line: String,
    /// The HTTP status, if the failure is a response.
    pub(crate) status: Option<u16>,
    /// Whether the reader of the output has closed the pipe, as `head` does once it has read
    /// enough. This failure is not reported.
    is_output_closed: bool,
}

impl Failure {
    fn new(kind: &'static str, code: u8, line: impl Into<String>) -> Self {
        Self { kind, code, line: line.into(), status: None, is_output_closed: false }
    }

    /// Returns the failure of an invalid command line.
    pub(crate) fn usage(line: impl Into<String>) -> Self {
        Self::new("usage", 2, line)
    }

    /// Returns the failure of a command that could not read the data that it inspects.
    pub(crate) fn unread(line: impl Into<String>) -> Self {
        Self::new("unread", 2, line)
    }

    /// Returns the failure of a conformance suite that found `count` rules broken.
    pub(crate) fn not_conforming(count: usize) -> Self {
        Self::new("not_conforming", 1, format!("{count} rules of the contract are broken"))
    }

    /// Returns the failure of a check of volumes that found `count` problems, which may cause data
    /// loss.
    pub(crate) fn problems(count: u64, is_loss: bool) -> Self {
        let line = match count {
            1 => "1 problem was found".to_owned(),
            count => format!("{count} problems were found"),
        };
        Self::new("problems", if is_loss { 6 } else { 1 }, line)
    }

    /// Returns the failure of a filter that no name contains; `what` is what has the names.
    pub(crate) fn no_match<'a>(what: &str, filter: &str, names: impl Iterator<Item = &'a str>) -> Self {
        let line = format!("no {what} contains {filter:?}{}", suggestion(filter, names));
        Self::new("missing", 3, line)
    }

    /// Returns the failure for an error of a local file or of the terminal.
    pub(crate) fn io(what: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.to_string();
        move |error| {
            let is_output_closed = error.kind() == std::io::ErrorKind::BrokenPipe;
            let code = if is_output_closed { OUTPUT_CLOSED } else { 1 };
            Self { is_output_closed, ..Self::new("io", code, format!("{what}: {error}")) }
        }
    }

    /// Returns the failure of a request to an admin listener that cannot be reached (no status), or
    /// whose response is a failure.
    pub(crate) fn admin(what: impl fmt::Display, status: Option<u16>, text: impl fmt::Display) -> Self {
        let code = match status {
            Some(401 | 403 | 409) => 4,
            None | Some(503) => 5,
            _ => 1,
        };
        Self { status, ..Self::new("admin", code, format!("{what}: {text}")) }
    }

    /// Returns the failure of a request that an admin listener refuses for a stated reason, for
    /// example that there is no such volume.
    pub(crate) fn refused(what: impl fmt::Display, status: u16, text: impl fmt::Display) -> Self {
        let (kind, code) = match status {
            400 => ("invalid", 2),
            404 => ("missing", 3),
            409 => ("refused", 4),
            401 | 403 => ("admin", 4),
            507 => ("out_of_space", 5),
            503 => ("admin", 5),
            _ => ("admin", 1),
        };
        Self { status: Some(status), ..Self::new(kind, code, format!("{what}: {text}")) }
    }

    /// Returns the failure for an error of the backend.
    pub(crate) fn backend(what: impl fmt::Display, error: &Error) -> Self {
        Self::new(error.kind(), backend_code(error), about(what, error))
    }

    fn volume(what: impl fmt::Display, error: &volumes::Error) -> Self {
        use volumes::Error;
        let (kind, code) = match error {
            Error::NoSuchVolume(_) | Error::NoSuchSnapshot(_) => ("missing", 3),
            Error::Exists(_) => ("exists", 4),
            Error::InUse { .. } => ("in_use", 4),
            Error::ReadOnly => ("read_only", 4),
            Error::Fenced { .. } => {
                let line = format!(
                    "{what}: the store is claimed by another writer: where a cache is the writer of the store, use it \
                     (--backend synapse:HOST:PORT); see also --claim"
                );
                return Self::new("fenced", 4, line);
            }
            Error::NoSpace(_) => ("out_of_space", 5),
            Error::Damaged(_) => ("corrupt", 6),
            Error::Io(error) => (error.kind(), backend_code(error)),
            Error::Unsupported(_) => ("unsupported", 1),
            Error::Invalid(_) | Error::OutOfRange { .. } | Error::Limit(_) => ("invalid", 2),
            _ => ("invalid", 1),
        };
        Self::new(kind, code, about(what, error))
    }

    /// Adds the state of the work after the failure.
    pub(crate) fn leaves(self, left: impl fmt::Display) -> Self {
        Self { line: format!("{}; {left}", self.line), is_output_closed: false, ..self }
    }

    /// Adds the server to which the request was sent, unless the server has nothing to do with the
    /// failure.
    pub(crate) fn asked(self, server: impl fmt::Display) -> Self {
        match self.code {
            2 | INTERRUPTED | OUTPUT_CLOSED => self,
            _ => self.leaves(server),
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

fn backend_code(error: &Error) -> u8 {
    match error {
        Error::Missing => 3,
        Error::Exists
        | Error::ConditionFailed { .. }
        | Error::Mismatch { .. }
        | Error::Fenced { .. }
        | Error::Superseded { .. }
        | Error::Denied(_) => 4,
        Error::Retryable(_) | Error::OutOfSpace(_) | Error::NotStored(_) | Error::DeadlinePassed => 5,
        Error::Corrupt(_) | Error::WritesLost(_) => 6,
        Error::OutcomeUnknown(_) => 7,
        Error::Invalid(_) | Error::TooLarge { .. } => 2,
        _ => 1,
    }
}

/// Returns a line about an error and, if it is not empty, its subject.
fn about(what: impl fmt::Display, error: impl fmt::Display) -> String {
    match what.to_string() {
        what if what.is_empty() => error.to_string(),
        what => format!("{what}: {error}"),
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::backend("", &error)
    }
}

/// Adds the subject to an error.
pub(crate) trait About<T> {
    fn about(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> About<T> for blocker::Result<T> {
    fn about(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::backend(what, &error))
    }
}

impl<T> About<T> for volumes::Result<T> {
    fn about(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::volume(what, &error))
    }
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
