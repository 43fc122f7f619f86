//! Self-observation of a running server: counters of each worker, latencies, heartbeats, hot keys
//! and slow requests, counts by key prefix, event lines for `watch`. Threads record here without
//! waiting for each other; the reports are in `stats`, and the reactions to them are elsewhere.

pub(crate) mod counters;
pub(crate) mod heartbeat;
pub(crate) mod insight;
pub(crate) mod prefixes;
pub(crate) mod watch;
