//! State shared by all threads.

use std::sync::Arc;

use parking_lot::RwLock;

use crate::access_log::AccessLog;
use crate::auth::Access;
use crate::config::SidecarConfig;
use crate::endpoint::asking::Asking;
use crate::endpoint::lane::Lanes;
use crate::endpoint::upstream::Breaker;
use crate::http::target::Addressing;
use crate::memory::deletes::Held;
use crate::memory::filling::Fills;
use crate::memory::knowledge::Knowledge;
use crate::memory::pieces::Pieces;
use crate::metrics::Counts;
use crate::policy::Policies;

/// State shared by all threads.
pub(crate) struct Shared {
    pub(crate) config: SidecarConfig,
    pub(crate) addressing: Addressing,
    pub(crate) knowledge: Arc<Knowledge>,
    pub(crate) policies: RwLock<Policies>,
    pub(crate) lanes: Lanes,
    pub(crate) access: Access,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) fills: Arc<Fills>,
    pub(crate) asking: Arc<Asking>,
    pub(crate) counts: Arc<Counts>,
    /// Opens when the endpoint is unreachable.
    pub(crate) breaker: Arc<Breaker>,
    /// Opens when the endpoint does not respond to requests that memory can answer.
    pub(crate) slow: Breaker,
    pub(crate) held: Arc<Held>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
}
