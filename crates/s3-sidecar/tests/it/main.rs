//! The tests of the sidecar between a client and a test endpoint.

mod away;
mod buckets;
mod coherence;
mod forwarding;
mod fresh;
mod history;
mod lent;
mod listener;
mod reading;
mod support;
mod tls;
