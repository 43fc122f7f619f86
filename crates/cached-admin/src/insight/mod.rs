//! Reports about requests, beyond counters: predicted miss ratios, hot keys and objects, reasons
//! for misses, slow requests.
//!
//! | module | content |
//! |---|---|
//! | [`documents`] | the documents `/mrc.json` and `/hot.json`, and metrics of their content |
//! | [`objects`] | the reports of an object cache, and the thread that computes them from samples |
//! | [`slow`] | slow requests, and those to a store |

pub mod documents;
pub mod objects;
pub mod slow;

pub use objects::ObjectsInsight;
