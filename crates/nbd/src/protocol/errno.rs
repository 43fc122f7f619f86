//! The errors of requests, as clients see them.

use std::fmt;

use blocker::Error;

/// The error of a request. The protocol defines these values, whatever they are on this system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "they are POSIX's")]
#[repr(u32)]
pub enum Errno {
    Eperm = 1,
    Eio = 5,
    Enomem = 12,
    Einval = 22,
    Enospc = 28,
    Eoverflow = 75,
    Enotsup = 95,
    Eshutdown = 108,
}

impl Errno {
    /// Returns the value on the wire.
    #[must_use]
    pub fn value(self) -> u32 {
        self as u32
    }

    /// Returns the value that stands for an error of the storage contract.
    #[must_use]
    pub fn of(error: &Error) -> Self {
        match error {
            Error::OutOfSpace(_) => Self::Enospc,
            Error::Denied(_) => Self::Eperm,
            Error::Unsupported(_) => Self::Enotsup,
            Error::Invalid(_) | Error::TooLarge { .. } => Self::Einval,
            // Another server has the export now: this one never serves it again, and the client has to
            // reconnect.
            Error::Fenced { .. } => Self::Eshutdown,
            _ => Self::Eio,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eperm => "EPERM",
            Self::Eio => "EIO",
            Self::Enomem => "ENOMEM",
            Self::Einval => "EINVAL",
            Self::Enospc => "ENOSPC",
            Self::Eoverflow => "EOVERFLOW",
            Self::Enotsup => "ENOTSUP",
            Self::Eshutdown => "ESHUTDOWN",
        })
    }
}
