//! The lines of a program's output, as they arrive.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Lines {
    /// The complete lines, without their ends.
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Lines {
    pub(super) fn of(output: impl Read + Send + 'static) -> Self {
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
        Self { lines, seen: Vec::new() }
    }

    /// Returns the next line, or the reason why there is no line.
    pub(super) fn next(&mut self, deadline: Duration) -> Result<String, &'static str> {
        match self.lines.recv_timeout(deadline) {
            Ok(line) => {
                self.seen.push(line.clone());
                Ok(line)
            }
            Err(RecvTimeoutError::Disconnected) => Err("its output has ended"),
            Err(RecvTimeoutError::Timeout) => Err("nothing came in time"),
        }
    }

    /// Returns the lines that have arrived since the last call of this or another method.
    pub(super) fn waiting(&mut self) -> Vec<String> {
        let waiting: Vec<String> = self.lines.try_iter().collect();
        self.seen.extend(waiting.iter().cloned());
        waiting
    }

    /// Returns the last lines that have been returned.
    pub(super) fn tail(&self) -> String {
        self.seen[self.seen.len().saturating_sub(40)..].join("\n")
    }
}
