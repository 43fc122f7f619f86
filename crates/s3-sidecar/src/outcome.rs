//! How requests end.

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// From memory.
    Hit,
    /// From memory, after the endpoint has stated that it holds.
    Revalidated,
    /// From memory, as the endpoint does not answer.
    Stale,
    /// From memory: it is not there.
    Absent,
    /// By the endpoint, and kept.
    Miss,
    /// By the endpoint.
    Passed,
    /// With an error of the proxy's own: the request cannot be forwarded.
    Refused,
    /// With an error of the proxy's own: the endpoint does not answer.
    Failed,
}

impl Outcome {
    /// All of them.
    pub(crate) const ALL: [Outcome; 8] = [
        Outcome::Hit,
        Outcome::Revalidated,
        Outcome::Stale,
        Outcome::Absent,
        Outcome::Miss,
        Outcome::Passed,
        Outcome::Refused,
        Outcome::Failed,
    ];

    /// Returns the word for it in metrics and the access log.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Outcome::Hit => "hit",
            Outcome::Revalidated => "revalidated",
            Outcome::Stale => "stale",
            Outcome::Absent => "absent",
            Outcome::Miss => "miss",
            Outcome::Passed => "passed",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        }
    }
}
