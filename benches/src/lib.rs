//! What the benches share: a memcached load generator, the servers it measures, and the figures it reports.
//!
//! Read in this order: [`keyspace`] (which keys and values exist), [`protocol`] (their bytes on the wire),
//! [`load`] (connections, closed and open loops), [`server`] (child processes under measurement),
//! [`process`] (their CPU time and memory), then the binaries in `src/bin/`, one per question asked.
//!
//! Non-goals: driving a cluster, and anything that asserts a time. A bench prints; people judge.

pub mod args;
pub mod callgrind;
pub mod canned;
pub mod cpu;
pub mod figure;
pub mod files;
pub mod keyspace;
pub mod load;
pub mod machine;
pub mod process;
pub mod protocol;
pub mod scenario;
pub mod server;
pub mod statistics;
pub mod svg;
pub mod text_client;
pub mod tls;
pub mod zipf;
