//! Reports about requests, beyond counters: predicted miss ratios, hot keys and objects, reasons
//! for misses, slow requests.
//!
//! | module | content |
//! |---|---|
//! | [`documents`] | the documents `/mrc.json` and `/hot.json`, and metrics of their content |
//! | [`objects`] | the reports of an object cache, and the thread that computes them from samples |
//! | [`slow`] | slow requests, and those to a store |
//! | `statistics` | the statistics of the present object cache |

pub mod documents;
pub mod objects;
pub mod slow;
mod statistics;

pub use objects::ObjectsInsight;
pub use statistics::ObjectStatistics;
