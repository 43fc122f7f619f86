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
//! | [`config`], `policy` | what can be set, and which of it cannot work; what holds for the objects of buckets |
//! | `listener` | sockets, connections, which way a request takes, commands to a running sidecar |
//! | `http` | headers, where messages end, bodies; what a request names and asks for |
//! | [`auth`] | who may do what, where the endpoint does not decide that; requests that the sidecar signs |
//! | `reads` | the way of a read: the endpoint is asked each time, or only for what is not fresh |
//! | `memory` | what is known of objects, their bytes, and what makes it void |
//! | `endpoint` | requests to the endpoint, and what they wait for |
//! | `shared`, `metrics`, `access_log` | what all threads share; counts; the access log |
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
mod shared;

pub use access_log::LogTarget;
pub use auth::{Auth, Credentials, Keys, Secrets};
pub use config::{Endpoint, SidecarConfig};
pub use http::names::Names;
pub use listener::control::{ControlError, Invalidation, SidecarControl};
pub use listener::server::{Sidecar, SidecarError};
pub use listener::splicing::PIPE_DESCRIPTORS_MAX;
pub use metrics::Counts;
pub use policy::BucketTerms;
pub use policy::{CachePolicy, Fresh, Rule};
