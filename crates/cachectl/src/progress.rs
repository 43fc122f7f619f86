//! How far a long transfer has come: one line on a terminal, rewritten a few times a second. Nothing
//! where standard error is no terminal, and nothing for what is over in a moment.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const STEP: Duration = Duration::from_millis(200);

pub(crate) struct Progress {
    start: Instant,
    last: Instant,
    done_bytes: u64,
    total_bytes: Option<u64>,
    is_shown: bool,
    has_shown: bool,
}

impl Progress {
    pub(crate) fn new(total_bytes: Option<u64>) -> Self {
        let now = Instant::now();
        let is_shown = std::io::stderr().is_terminal();
        Self { start: now, last: now, done_bytes: 0, total_bytes, is_shown, has_shown: false }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.done_bytes += bytes;
        if self.is_shown && self.last.elapsed() >= STEP {
            self.last = Instant::now();
            self.has_shown = true;
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", self.line());
        }
    }

    fn line(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let rate = mib(self.done_bytes) / self.start.elapsed().as_secs_f64().max(0.001);
        match self.total_bytes.filter(|total| *total > 0) {
            Some(total) => {
                let percent = self.done_bytes * 100 / total;
                format!(
                    "{percent:3} %  {:.1} of {:.1} MiB  {rate:.1} MiB/s",
                    mib(self.done_bytes),
                    mib(total)
                )
            }
            None => format!("{:.1} MiB  {rate:.1} MiB/s", mib(self.done_bytes)),
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
