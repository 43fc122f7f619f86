//! Code shared by the benches: a memcached load generator, the servers that it measures, and the
//! figures that it reports.
//!
//! Read in this order: [`keyspace`] (which keys and values exist), [`protocol`] (their bytes on the
//! wire), [`load`] (connections, closed and open loops), [`server`] (child processes under
//! measurement), [`process`] (their CPU time and memory), then the binaries in `src/bin/`, one per
//! question.
//!
//! Non-goals: clients that know several servers, and assertions about times. A bench only prints figures, which
//! people judge.

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
