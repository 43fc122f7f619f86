//! Lines outside the log: those of a start that fails before the log is installed, the line of a
//! panic, and what a program prints when it serves. They have the log's format, so that with JSON
//! every line of the process is an object.
//!
//! These lines are not kept for readers of the log's last lines, and have no number (`id` is 0). No
//! lock is taken, because a thread may panic while it writes to the log.

use super::{Format, Level, Record, Value};
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether lines outside the log are JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

impl Format {
    /// Returns the format that the text of a configuration file selects, even if the file has a
    /// mistake elsewhere; the default if the text is not TOML, or selects no valid format.
    #[must_use]
    pub fn of_file(text: &str) -> Format {
        let selected = || {
            let file: toml::Table = text.parse().ok()?;
            file.get("log")?.get("format")?.clone().try_into().ok()
        };
        selected().unwrap_or_default()
    }

    /// Makes this the format of the lines outside the log. [`Log`](super::Log) calls this when it
    /// is installed and when it is changed.
    pub fn use_outside(self) {
        IS_JSON.store(self == Format::Json, Ordering::Relaxed);
    }

    /// Returns the format of the lines outside the log.
    #[must_use]
    pub fn outside() -> Format {
        if IS_JSON.load(Ordering::Relaxed) { Format::Json } else { Format::Text }
    }
}

/// Prints lines to standard output. `target` is the module that prints them.
pub fn print_out(target: &'static str, lines: &str) {
    let text = in_format(Level::Info, target, lines.lines());
    // This fails if standard output is closed, which is no reason to stop.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
}

/// Prints a message to standard error, whatever the log level is, for example the reason why the
/// program exits. In JSON it is one object, even if it has several lines. `target` is the module
/// that prints it.
pub fn print_err(level: Level, target: &'static str, message: &str) {
    write_err(&in_format(level, target, std::iter::once(message)));
}

/// Prints the line of a panic as JSON; with a backtrace if the environment requests one.
pub(crate) fn print_panic(message: String) {
    let mut record = Record { message, ..Record::new(Level::Error, "panic") };
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        record.fields.push(("backtrace", Value::Text(backtrace.to_string())));
    }
    let mut line = String::new();
    record.write_json(&mut line);
    write_err(&line);
}

fn in_format<'a>(level: Level, target: &'static str, messages: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for message in messages {
        match Format::outside() {
            Format::Text => {
                text.push_str(message);
                text.push('\n');
            }
            Format::Json => {
                let message = message.to_owned();
                Record { message, ..Record::new(level, target) }.write_json(&mut text);
            }
        }
    }
    text
}

fn write_err(text: &str) {
    // If standard error is closed, the failure cannot be reported.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_is_found_in_a_file_with_other_mistakes() {
        for (text, format) in [
            ("[log]\nformat = \"json\"\n[memcached]\nthreadz = 1", Format::Json),
            ("log = { level = \"loud\", format = \"json\" }", Format::Json),
            ("[log]\nformat = \"text\"", Format::Text),
            ("[log]\nformat = \"yaml\"", Format::Text),
            ("[log]\nlevel = \"warn\"", Format::Text),
            ("log = 5", Format::Text),
            ("[log]\nformat = \"json\"\n= 5", Format::Text),
            ("", Format::Text),
        ] {
            assert_eq!(Format::of_file(text), format, "{text}");
        }
    }
}
