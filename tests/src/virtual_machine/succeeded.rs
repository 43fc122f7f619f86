//! Programs that run to completion.

use std::process::Command;

use super::DEADLINE;
use crate::outside::{run, text};

/// Runs a program to completion. Returns its standard output, or the reason for its failure.
pub(super) fn succeeded(command: &mut Command) -> Result<String, String> {
    let output = run(command, DEADLINE);
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{command:?} ended with {}:\n{}", output.status, text(&output)))
}
