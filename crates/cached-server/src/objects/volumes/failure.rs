//! Errors as the routes have them: a status, and one line as JSON.

use cached_admin::Response;
use serde_json::json;
use volumes::Error;
use volumes::exports::Refused;

/// Why a request is not done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) status: u16,
    pub(super) line: String,
}

impl Failure {
    pub(super) fn new(status: u16, line: impl Into<String>) -> Failure {
        Failure { status, line: line.into() }
    }

    /// Returns the failure of what is asked of a cache that is gone.
    pub(super) fn ended() -> Failure {
        Failure::new(503, "the object cache has ended")
    }

    pub(super) fn response(&self) -> Response {
        Response::json(&json!({ "error": self.line })).status(self.status)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let status = match &error {
            Error::NoSuchVolume(_) | Error::NoSuchSnapshot(_) => 404,
            Error::Exists(_)
            | Error::InUse { .. }
            | Error::ReadOnly
            | Error::Fenced { .. }
            | Error::HandedOver
            | Error::Limit(_) => 409,
            Error::Invalid(_) | Error::OutOfRange { .. } | Error::Unsupported(_) => 400,
            Error::NoSpace(_) => 507,
            Error::Closed | Error::Interrupted => 503,
            Error::Io(cause) if cause.is_retryable() => 503,
            _ => 500,
        };
        Failure::new(status, error.to_string())
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        match refused {
            Refused::Used { .. } => Failure::new(409, refused.to_string()),
            Refused::Failed(error) => error.into(),
        }
    }
}
