//! What an operator chooses of how a cache uses its journal.

/// What happens to a change when nine tenths of the journal are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtLimit {
    /// It waits for room, which comes as objects are stored.
    #[default]
    Wait,
    /// It goes to the store at once, as in write-through.
    Through,
}

/// How a cache uses its journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalOptions {
    /// What happens to a change when nine tenths of the journal are in use.
    pub at_limit: AtLimit,
    /// The largest payload of a change, in bytes, that is logged: a change with more goes to the store at
    /// once, which takes large changes about as fast. Default: 512 KiB.
    pub journaled_bytes_max: u64,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self { at_limit: AtLimit::Wait, journaled_bytes_max: 512 << 10 }
    }
}
