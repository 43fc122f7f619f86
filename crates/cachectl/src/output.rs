//! The output of a command: text for people, or one JSON value in each line for programs.

use std::io::Write;
use std::process::ExitCode;

use serde_json::Value;

use crate::exit::Failure;

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
