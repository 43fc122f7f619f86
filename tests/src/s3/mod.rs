//! `cached` in front of S3 endpoints that check signatures, and Ceph's s3-tests, which judge it.
//!
//! | module | content |
//! |---|---|
//! | [`endpoint`] | versitygw or radosgw on loopback, with users |
//! | [`files`] | an endpoint in this process that folds names |
//! | [`sidecar`] | `cached` before an endpoint |
//! | [`wire`] | requests byte for byte, signed, and their answers |
//! | [`beside`] | the same random requests to an endpoint and through the sidecar |
//! | [`mode`] | the ways of authentication that are judged |
//! | [`judge`] | s3-tests: one pass over the suite, and what became of each test |
//! | [`compare`] | two passes side by side, and the differences that are expected |

pub mod beside;
pub mod compare;
pub mod endpoint;
pub mod files;
pub mod judge;
pub mod mode;
pub mod sidecar;
pub mod wire;
