//! Self-observation of a server while it works: counters of each worker, latencies, heartbeats, hot
//! keys and slow requests, counts by key prefix, event lines for `watch`. Threads write here
//! without waiting for each other; who reports it (`stats`) and what is done about it are
//! elsewhere.

pub(crate) mod counters;
pub(crate) mod heartbeat;
pub(crate) mod insight;
pub(crate) mod prefixes;
pub(crate) mod watch;
