//! A caching HTTP proxy before an S3 endpoint, for unmodified S3 clients.
//!
//! ```text
//! client ──► server ─ connection ─► service ─┬─► gateway ──► pieces (object cache) ──► client
//!                                            │      │ ▲          ▲
//!                                            │      ▼ │ 304      │ filling: what streams by
//!                                            └────► upstream ────┴──────────────────► client
//! ```
//! It is no S3 implementation: what it does not know it forwards as it came. In the mode "gateway" only `GET` of an object is understood. Such a
//! request goes to the endpoint *unchanged*, signature and `Host` included, with an `If-None-Match` of the kept object's
//! `ETag` added, which no signature covers: 304 states at once that this client may read the object and that what
//! is kept is what is stored. Then the body comes from memory. So there are no keys here, and every policy of the endpoint holds.
//!
//! Bodies are kept in an [object cache](cached_core::object) as objects of up to 4 MiB in buckets of 4 KiB, named by a hash of
//! bucket, key, `ETag`, size and `Last-Modified`: a changed object is another one, and bytes of two generations are never mixed.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | what can be set, and which of it cannot work |
//! | `server`, `connection`, `stall` | sockets and threads; one connection; clients that take nothing |
//! | `admission`, `admitting`, `framing` | what is refused before anything else; what the sidecar decides; where messages end, and headers of one connection |
//! | `headers`, `alias` | the request headers that are known; names that an endpoint may take for one object |
//! | `service`, `shared` | from a request to its answer; what all threads share |
//! | `target`, `read` | what a request names; which reads are understood |
//! | `conditions`, `range` | `If-Range` and the added condition; ranges |
//! | `gateway`, `fresh` | the way of a read: the endpoint is asked each time; or only for what is not fresh |
//! | `ready`, `serving`, `local`, `passing` | what is at hand; a body from memory; answers made here; answers of the endpoint |
//! | `policy`, `demand`, `preconditions` | for how long what is known is fresh; what clients demand; their conditions |
//! | `writes`, `deletes`, `root`, `ending` | what requests may change; keys in their bodies; errors in answers; when a change is over |
//! | `knowledge`, `changes`, `wide` | what is known, and what makes it void |
//! | `heads`, `absent`, `table`, `generation` | objects that are known, or known not to be there; what makes two of them the same |
//! | `pieces`, `staging`, `filling`, `fills`, `asking` | the object cache; how bytes enter it; readers that share one request |
//! | `upstream`, `upload` | requests to the endpoint; bodies of clients |
//! | `splicing`, `pipes` | bodies into sockets without a copy |
//! | `control`, `events` | commands to a running sidecar; notifications of buckets |
//! | `terms`, `lane`, `bucket_metrics` | what buckets have of the memory and of the endpoint; its rates at work; what is counted of it |
//! | `breaker` | spares requests the wait for an endpoint that is away |
//! | `body`, `answer`, `outcome`, `metrics` | bodies; the proxy's own error answers; how requests end; counts |
//! | `access_log`, `logged` | the access log; what it states of a request |
//! | [`auth`] | who may do what, where the endpoint does not decide that; requests that the sidecar signs |
#![warn(missing_debug_implementations)]

mod access_log;
pub mod auth;
pub mod config;
mod endpoint;
mod http;
mod listener;
mod logged;
mod memory;
mod metrics;
mod outcome;
mod policy;
mod reads;
mod shared;
mod terms;

pub use access_log::LogTarget;
pub use auth::{Auth, Credentials, Keys, Secrets};
pub use config::{Endpoint, SidecarConfig};
pub use http::alias::Names;
pub use listener::control::{ControlError, Invalidation, SidecarControl};
pub use listener::pipes::PIPE_DESCRIPTORS_MAX;
pub use listener::server::{Sidecar, SidecarError};
pub use metrics::Counts;
pub use policy::{CachePolicy, Fresh, Rule};
pub use terms::BucketTerms;
