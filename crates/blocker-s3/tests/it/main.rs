//! The tests of the store on S3: before a server in memory, and before real ones.

#[cfg(feature = "http")]
mod answers;
mod bounds;
mod conformance;
mod faults;
#[cfg(feature = "http")]
mod forgetting;
#[cfg(feature = "http")]
#[path = "support/http.rs"]
mod http;
#[cfg(feature = "http")]
mod kill9;
#[cfg(feature = "http")]
#[path = "support/measure.rs"]
mod measure;
#[cfg(feature = "http")]
mod network;
#[cfg(feature = "http")]
#[path = "support/outside.rs"]
mod outside;
mod racing;
mod requests;
#[cfg(feature = "http")]
mod servers;
mod support;
#[cfg(feature = "http")]
#[path = "support/trouble.rs"]
mod trouble;
