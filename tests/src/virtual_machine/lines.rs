//! The lines that a program writes, as they come.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};

use super::DEADLINE;

/// See the module.
#[derive(Debug)]
pub(super) struct Lines {
    whose: &'static str,
    /// Only whole lines, without their ends.
    lines: Receiver<String>,
    /// Those that came while its end was waited for.
    unread: Vec<String>,
    seen: Vec<String>,
}

impl Lines {
    pub(super) fn of(output: impl Read + Send + 'static, whose: &'static str) -> Self {
        let (send, lines) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok() && line.ends_with(b"\n") {
                let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                if send.send(text).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Self { whose, lines, unread: Vec::new(), seen: Vec::new() }
    }

    /// Returns the next line; `None` at the end.
    fn next(&mut self, wanted: &str) -> Option<String> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => {
                self.seen.push(line.clone());
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{}: {wanted:?} did not come; it wrote:\n{}", self.whose, self.tail())
            }
        }
    }

    /// Returns what follows `begin` in the next line that begins so.
    pub(super) fn wait_for(&mut self, begin: &str, failure: &str) -> String {
        while let Some(line) = self.next(begin) {
            if let Some(rest) = line.strip_prefix(begin) {
                return rest.to_owned();
            }
            assert!(!line.starts_with(failure), "{}: {line}\n{}", self.whose, self.tail());
        }
        panic!("{} ended before {begin:?}; it wrote:\n{}", self.whose, self.tail())
    }

    /// Returns the lines that have come since the last call of this or another method.
    pub(super) fn waiting(&mut self) -> Vec<String> {
        let mut waiting = std::mem::take(&mut self.unread);
        waiting.extend(self.lines.try_iter());
        self.seen.extend(waiting.iter().cloned());
        waiting
    }

    /// Waits until the program has ended.
    pub(super) fn read_to_end(&mut self) {
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => self.unread.push(line),
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{} does not end; it wrote:\n{}", self.whose, self.tail())
                }
            }
        }
    }

    fn tail(&self) -> String {
        self.seen[self.seen.len().saturating_sub(40)..].join("\n")
    }
}
