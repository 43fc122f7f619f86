//! Sends spans to a collector of OpenTelemetry: OTLP over HTTP, as JSON.
//!
//! ```text
//! threads that serve ── span ended ──► queue (bounded, drops) ──► one thread: batches ──► POST /v1/traces
//! ```
//! An unavailable collector costs only spans: the batch that could not be sent is retried at
//! growing intervals, the queue keeps [`QUEUE_MAX`] spans, and those that do not fit are counted.
//! The log has one line when the collector becomes unavailable, and one when it returns.
#![warn(missing_debug_implementations)]

mod encode;
mod exporter;
mod queue;
mod table;

pub use encode::Origin;
pub use exporter::Exporter;
pub use queue::{BATCH_MAX, QUEUE_MAX};
pub use table::TracingTable;
