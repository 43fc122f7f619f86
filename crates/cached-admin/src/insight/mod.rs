//! What programs show of their requests beyond counters: predicted miss ratios, hot keys and objects, reasons of misses,
//! slow requests.
//!
//! | module | content |
//! |---|---|
//! | [`documents`] | the documents `/mrc.json` and `/hot.json`, and metrics of what is in them |
//! | [`objects`] | what an object cache shows, and the thread that makes it of samples |
//! | [`slow`] | slow requests, and those to a store |

pub mod documents;
pub mod objects;
pub mod slow;

pub use objects::ObjectsInsight;
