//! `cached` before S3 endpoints that check signatures.
//!
//! | module | content |
//! |---|---|
//! | [`endpoint`] | versitygw or radosgw on loopback, with users |
//! | [`sidecar`] | `cached` before an endpoint |

pub mod endpoint;
pub mod sidecar;
