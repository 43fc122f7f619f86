//! What all threads share, and how requests end.

use std::sync::Arc;

use crate::asking::Asking;
use crate::auth::Access;
use crate::config::SidecarConfig;
use crate::fills::Fills;
use crate::heads::Heads;
use crate::metrics::Counts;
use crate::pieces::Pieces;
use crate::target::Addressing;

/// What all threads share.
pub(crate) struct Shared {
    pub(crate) config: SidecarConfig,
    pub(crate) addressing: Addressing,
    pub(crate) access: Access,
    pub(crate) heads: Heads,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) fills: Arc<Fills>,
    pub(crate) asking: Arc<Asking>,
    pub(crate) counts: Arc<Counts>,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// From memory.
    Hit,
    /// By the endpoint, and kept.
    Miss,
    /// By the endpoint.
    Passed,
    /// With an error of the proxy's own: the request cannot be forwarded.
    Refused,
    /// With an error of the proxy's own: the endpoint does not answer.
    Failed,
}
