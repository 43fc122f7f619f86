//! What the commit thread knows of the end of the durable log.

use crate::gather::Gather;

/// The end of the durable log, which only one thread at a time extends.
#[derive(Debug, Default)]
pub(crate) struct Committer {
    /// The number of the next batch.
    pub(crate) next_number: u64,
    /// The check of the last durable batch.
    pub(crate) last_check: u32,
    /// The life of the last segment whose header is durable.
    pub(crate) last_life: u64,
    pub(crate) next_life: u64,
    pub(crate) gather: Gather,
}
