//! Failures of a command, as one line and an exit code.

use std::fmt;
use std::process::ExitCode;

use blocker::Error;

/// Why the command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The backend's error, and what the request was about.
    Backend { what: String, error: Error },
    /// A local file, or the terminal.
    Io { what: String, error: std::io::Error },
    /// The admin listener cannot be reached (no status), or its answer is a failure.
    Admin { what: String, status: Option<u16>, text: String },
    /// The command line is wrong.
    Usage(String),
    /// The number of rules that the conformance suite found broken.
    NotConforming(usize),
}

impl Failure {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    /// Returns one word for the failure, for scripts that read JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Backend { error, .. } => error.kind(),
            Self::Io { .. } => "io",
            Self::Admin { .. } => "admin",
            Self::Usage(_) => "usage",
            Self::NotConforming(_) => "not_conforming",
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Io { .. } | Self::NotConforming(_) => 1,
            Self::Usage(_) => 2,
            Self::Admin { status, .. } => match status {
                Some(401 | 403) => 4,
                None | Some(503) => 5,
                _ => 1,
            },
            Self::Backend { error, .. } => match error {
                Error::Missing => 3,
                Error::Exists
                | Error::ConditionFailed { .. }
                | Error::Mismatch { .. }
                | Error::Fenced { .. }
                | Error::Superseded { .. }
                | Error::Denied(_) => 4,
                Error::Retryable(_) | Error::OutOfSpace(_) | Error::NotStored(_) | Error::DeadlinePassed => 5,
                Error::Corrupt(_) | Error::WritesLost(_) => 6,
                Error::OutcomeUnknown(_) => 7,
                Error::Invalid(_) | Error::TooLarge { .. } => 2,
                _ => 1,
            },
        })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backend { what, error } if what.is_empty() => write!(f, "{error}"),
            Self::Backend { what, error } => write!(f, "{what}: {error}"),
            Self::Io { what, error } => write!(f, "{what}: {error}"),
            Self::Admin { what, text, .. } => write!(f, "{what}: {text}"),
            Self::Usage(text) => f.write_str(text),
            Self::NotConforming(count) => write!(f, "{count} rules of the contract are broken"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Backend { what: String::new(), error }
    }
}

/// Adds to an error what it is about.
pub(crate) trait About<T> {
    fn about(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T> About<T> for blocker::Result<T> {
    fn about(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::Backend { what: what.to_string(), error })
    }
}
