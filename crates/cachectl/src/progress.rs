//! How far a long transfer has come: one line on a terminal, rewritten a few times a second. Nothing
//! where standard error is no terminal, and nothing for what is over in a moment.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

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
