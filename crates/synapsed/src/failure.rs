//! Why the daemon does not start, or ends with a failure: one line, and an exit status (`sysexits.h`).

use cached_process::exit;
use std::fmt;

/// A failure: one line, and an exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    line: String,
    status: u8,
}

impl Failure {
    /// `EX_CONFIG`: the configuration cannot work.
    pub(crate) fn configuration(line: impl fmt::Display) -> Self {
        Self { line: line.to_string(), status: exit::CONFIGURATION }
    }

    /// `EX_OSERR`: the system or the store refused something.
    pub(crate) fn refused(line: impl fmt::Display) -> Self {
        Self { line: line.to_string(), status: exit::REFUSED }
    }

    /// `EX_IOERR`: something that was acknowledged is not stored.
    pub(crate) fn not_stored(line: impl fmt::Display) -> Self {
        Self { line: line.to_string(), status: exit::NOT_STORED }
    }

    /// `EX_SOFTWARE`: a defect has ended the process.
    pub(crate) fn defect(line: impl fmt::Display) -> Self {
        Self { line: line.to_string(), status: exit::DEFECT }
    }

    /// Returns this failure after an earlier one, `line`.
    pub(crate) fn after(self, line: String) -> Self {
        Self { line: format!("{line}\n{}", self.line), status: self.status }
    }

    pub(crate) fn status(&self) -> u8 {
        self.status
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line)
    }
}
