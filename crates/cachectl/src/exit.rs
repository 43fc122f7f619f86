//! Failures of a command, as one line and an exit code.

use std::fmt;
use std::process::ExitCode;

use blocker::Error;

/// The exit code of a command that a signal has ended.
pub(crate) const INTERRUPTED: u8 = 130;
/// The exit code of a command whose output is read by no process any more: as if SIGPIPE had ended it, which would leave
/// a backend without an orderly close.
const OUTPUT_CLOSED: u8 = 141;

/// Why the command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The backend's error, and what the request was about.
    Backend { what: String, error: Error },
    /// A local file, or the terminal.
    Io { what: String, error: std::io::Error },
    /// The admin listener cannot be reached (no status), or its answer is a failure.
    Admin { what: String, status: Option<u16>, text: String },
    /// The admin listener refuses a request, with a reason: it has no such volume, for example.
    Refused { what: String, status: u16, text: String },
    /// The error of a volume on the store itself, and what the request was about.
    Volume { what: String, error: volumes::Error },
    /// The number of problems that a check of volumes has found, and whether data are lost by them.
    Problems { count: u64, is_loss: bool },
    /// A signal has ended the command.
    Interrupted,
    /// Another failure, and what has become of the work that it ended.
    Ended { by: Box<Self>, left: String },
    /// The command line is wrong.
    Usage(String),
    /// What is to be looked at could not be read.
    Unread(String),
    /// The number of rules that the conformance suite found broken.
    NotConforming(usize),
}

impl Failure {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self::Io { what, error }
    }

    /// Returns whether the reader of the output has gone, as `head` does when it has enough. That is no news to anyone.
    pub(crate) fn is_output_closed(&self) -> bool {
        matches!(self, Self::Io { error, .. } if error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Adds what has become of the work that the failure ended.
    pub(crate) fn leaves(self, left: impl Into<String>) -> Self {
        Self::Ended { by: Box::new(self), left: left.into() }
    }

    /// Returns one word for the failure, for scripts that read JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Backend { error, .. } => error.kind(),
            Self::Io { .. } => "io",
            Self::Admin { .. } => "admin",
            Self::Refused { status, .. } => match status {
                400 => "invalid",
                404 => "missing",
                409 => "refused",
                507 => "out_of_space",
                _ => "admin",
            },
            Self::Volume { error, .. } => volume_kind(error),
            Self::Problems { .. } => "problems",
            Self::Interrupted => "interrupted",
            Self::Ended { by, .. } => by.kind(),
            Self::Usage(_) => "usage",
            Self::Unread(_) => "unread",
            Self::NotConforming(_) => "not_conforming",
        }
    }

    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(self.number())
    }

    /// As [`code`](Self::code), for a command with exit codes of its own: `other`, unless the output is closed.
    pub(crate) fn code_or(&self, other: u8) -> ExitCode {
        if self.is_output_closed() { self.code() } else { ExitCode::from(other) }
    }

    fn number(&self) -> u8 {
        match self {
            Self::Io { .. } if self.is_output_closed() => OUTPUT_CLOSED,
            Self::Io { .. } | Self::NotConforming(_) => 1,
            Self::Usage(_) | Self::Unread(_) => 2,
            Self::Admin { status, .. } => match status {
                Some(401 | 403 | 409) => 4,
                None | Some(503) => 5,
                _ => 1,
            },
            Self::Refused { status, .. } => match status {
                400 => 2,
                404 => 3,
                401 | 403 | 409 => 4,
                503 | 507 => 5,
                _ => 1,
            },
            Self::Backend { error, .. } => backend_number(error),
            Self::Volume { error, .. } => volume_number(error),
            Self::Problems { is_loss, .. } => 1 + 5 * u8::from(*is_loss),
            Self::Interrupted => INTERRUPTED,
            Self::Ended { by, .. } => by.number(),
        }
    }
}

fn backend_number(error: &Error) -> u8 {
    match error {
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
    }
}

fn volume_number(error: &volumes::Error) -> u8 {
    use volumes::Error;
    match error {
        Error::NoSuchVolume(_) | Error::NoSuchSnapshot(_) => 3,
        Error::Exists(_) | Error::InUse { .. } | Error::ReadOnly | Error::Fenced { .. } => 4,
        Error::NoSpace(_) => 5,
        Error::Damaged(_) => 6,
        Error::Invalid(_) | Error::OutOfRange { .. } | Error::Limit(_) => 2,
        Error::Io(error) => backend_number(error),
        _ => 1,
    }
}

fn volume_kind(error: &volumes::Error) -> &'static str {
    use volumes::Error;
    match error {
        Error::NoSuchVolume(_) | Error::NoSuchSnapshot(_) => "missing",
        Error::Exists(_) => "exists",
        Error::InUse { .. } => "in_use",
        Error::ReadOnly => "read_only",
        Error::Fenced { .. } => "fenced",
        Error::NoSpace(_) => "out_of_space",
        Error::Damaged(_) => "corrupt",
        Error::Unsupported(_) => "unsupported",
        Error::Io(error) => error.kind(),
        _ => "invalid",
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Backend { what, error } if what.is_empty() => write!(f, "{error}"),
            Self::Backend { what, error } => write!(f, "{what}: {error}"),
            Self::Io { what, error } => write!(f, "{what}: {error}"),
            Self::Admin { what, text, .. } | Self::Refused { what, text, .. } => write!(f, "{what}: {text}"),
            Self::Volume { what, error: volumes::Error::Fenced { .. } } => {
                let remedy = "where a cache is the writer of the store, use it (--backend synapse:HOST:PORT)";
                write!(f, "{what}: the store is claimed by another writer: {remedy}; see also --claim")
            }
            Self::Volume { what, error } if what.is_empty() => write!(f, "{error}"),
            Self::Volume { what, error } => write!(f, "{what}: {error}"),
            Self::Problems { count: 1, .. } => f.write_str("1 problem was found"),
            Self::Problems { count, .. } => write!(f, "{count} problems were found"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Ended { by, left } => write!(f, "{by}; {left}"),
            Self::Usage(text) | Self::Unread(text) => f.write_str(text),
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

impl<T> About<T> for volumes::Result<T> {
    fn about(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure::Volume { what: what.to_string(), error })
    }
}
