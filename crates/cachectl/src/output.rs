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
        let written = if self.json { writeln!(out, "{value}") } else { writeln!(out, "{text}") };
        written.map_err(Failure::io("standard output"))
    }

    /// Writes why the command failed: one line on standard error. Nothing if only the output's reader has gone.
    pub(crate) fn failure(&self, failure: &Failure) {
        if failure.is_output_closed() {
            return;
        }
        let line = if self.json {
            serde_json::json!({ "error": failure.kind(), "message": failure.to_string() }).to_string()
        } else {
            format!("cachectl: {failure}")
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
