//! Programs that are run to their ends.

use std::process::Command;

use super::DEADLINE;
use crate::outside::{run, text};

/// Runs a program to its end; returns what it wrote to its standard output, or, if it failed, why.
pub(super) fn succeeded(command: &mut Command) -> Result<String, String> {
    let output = run(command, DEADLINE);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?} ended with {}:\n{}", output.status, text(&output)))
}
