//! What a journal reports without being asked.

use std::sync::Arc;

/// How full a journal is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// Less than half of the space is in use.
    Low,
    /// Half of the space is in use: store the oldest objects first, whatever their age.
    Half,
    /// Nine tenths of the space are in use: let writers wait, or write through.
    NineTenths,
}

/// A change of the journal's condition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The fill has passed a level, upwards or downwards.
    Level(Level),
    /// There is room again after an append or a reservation was refused with `Full` or `Busy`.
    Room,
    /// A write or sync failed, or took too long. Records that were not durable are lost to the journal, appends are refused.
    Failed {
        /// The file.
        file: String,
        /// `write`, `sync`, `commit` if the disk has not answered, `find` or `lock`: what cannot be found was removed,
        /// replaced or unmounted.
        operation: &'static str,
        /// The operating system's message.
        error: String,
    },
    /// A new segment works: appends are accepted again.
    Restarted,
    /// A new segment could not be made; tried again after 5 s. The journal works with the segments that it
    /// has.
    PrepareFailed {
        /// The file.
        file: String,
        /// The operating system's message.
        error: String,
    },
}

/// The function that receives events. It is called without locks held, from any thread that uses the journal,
/// also from the drop of a hold; it must not block.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;
