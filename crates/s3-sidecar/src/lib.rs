//! A caching HTTP proxy in front of an S3 endpoint, for unmodified S3 clients.
//!
//! ```text
//! client ──► server ─ connection ─► service ─┬─► gateway ──► pieces (object cache) ──► client
//!                                            │      │ ▲          ▲
//!                                            │      ▼ │ 304      │ filling: what streams by
//!                                            └────► upstream ────┴──────────────────► client
//! ```
//! It is not an S3 implementation: it forwards unknown requests unchanged. In the mode "gateway" it
//! handles only `GET` of an object. Such a request goes to the endpoint *unchanged*, including
//! signature and `Host`, with an added `If-None-Match` of the cached object's `ETag`, which no
//! signature covers: 304 states both that this client may read the object and that the cached
//! object is current. Then the body comes from memory. So the sidecar needs no keys, and every
//! policy of the endpoint holds.
//!
//! Bodies are kept in an [object cache](cached_core::object) as objects of up to 4 MiB in buckets
//! of 4 KiB, named by a hash of bucket, key, `ETag`, size and `Last-Modified`: a changed object
//! gets another name, and bytes of two generations are never mixed.
//!
//! | module | content |
//! |---|---|
//! | [`config`], `policy` | configuration and its checks; policies of buckets and prefixes |
//! | `listener` | sockets, connections, routing of requests, commands to a running sidecar |
//! | `http` | headers, framing, bodies; a request's target and range |
//! | [`auth`] | rights, where the endpoint does not decide them; requests that the sidecar signs |
//! | `reads` | the path of a read: the endpoint is asked each time, or only when the cached object is not fresh |
//! | `memory` | cached heads, absences and bytes of objects, and the changes that invalidate them |
//! | `endpoint` | requests to the endpoint: rates, circuit breaker, shared answers |
//! | `metrics`, `access_log` | counters; the access log |
#![warn(missing_debug_implementations)]

mod access_log;
pub mod auth;
pub mod config;
mod endpoint;
mod http;
mod listener;
mod memory;
mod metrics;
mod policy;
mod reads;

use std::sync::Arc;

use parking_lot::RwLock;

use access_log::AccessLog;
use auth::Access;
use endpoint::Breaker;
use endpoint::asking::Asking;
use endpoint::lane::Lanes;
use http::target::Addressing;
use memory::Knowledge;
use memory::filling::Fills;
use memory::pieces::Pieces;
use memory::writes::Held;
use metrics::Buckets;
use policy::Policies;

pub use access_log::LogTarget;
pub use auth::{Auth, Credentials, Keys, Secrets};
pub use config::{Endpoint, SidecarConfig};
pub use http::target::Names;
pub use listener::control::{
    BucketStatus, ControlError, EndpointState, Invalidation, SidecarControl, SidecarStatus,
};
pub use listener::socket::PIPE_DESCRIPTORS_MAX;
pub use listener::{Sidecar, SidecarError};
pub use metrics::Counts;
pub use policy::{BucketTerms, CachePolicy, Fresh, Rule};

/// State shared by all threads.
pub(crate) struct Shared {
    pub(crate) config: SidecarConfig,
    pub(crate) addressing: Addressing,
    pub(crate) knowledge: Arc<Knowledge>,
    pub(crate) policies: RwLock<Policies>,
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) access: Access,
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) fills: Arc<Fills>,
    pub(crate) asking: Arc<Asking>,
    pub(crate) counts: Arc<Counts>,
    pub(crate) buckets: Buckets,
    /// Opens when the endpoint is unreachable.
    pub(crate) breaker: Arc<Breaker>,
    /// Opens when the endpoint does not respond to requests that memory can answer.
    pub(crate) slow: Breaker,
    pub(crate) held: Arc<Held>,
    pub(crate) access_log: Option<Arc<AccessLog>>,
}
