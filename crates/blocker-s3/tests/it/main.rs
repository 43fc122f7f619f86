//! The tests of the store on S3, with an in-memory server and with real ones.

mod answers;
mod bounds;
mod conformance;
mod faults;
mod forgetting;
#[path = "support/http.rs"]
mod http;
mod kill9;
mod late;
#[path = "support/measure.rs"]
mod measure;
mod network;
#[path = "support/outside.rs"]
mod outside;
mod racing;
mod requests;
mod servers;
mod support;
#[path = "support/trouble.rs"]
mod trouble;
