//! What the server knows about its items and requests beyond counters: predicted miss ratios, reasons of misses,
//! hot keys, shapes of items, slow requests.
//!
//! The engine samples keys for the predictions ([`cached_core::insight`]); workers sample gets for the hot keys
//! ([`hot`]). One thread (`insight_thread`) makes of both what is reported, and watches the workers for slow requests
//! ([`slow`]).

pub(crate) mod hot;
pub(crate) mod slow;

use hot::HotKeys;
use slow::SlowLog;
use std::sync::Arc;

/// The parts of the insight that requests and reports share.
#[derive(Debug)]
pub(crate) struct Insight {
    /// Whether keys are sampled.
    pub(crate) is_on: bool,
    pub(crate) hot: HotKeys,
    pub(crate) slow: Arc<SlowLog>,
}
