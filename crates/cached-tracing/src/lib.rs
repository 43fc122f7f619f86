//! Sends spans to a collector of OpenTelemetry: OTLP over HTTP, as JSON.
//!
//! ```text
//! threads that serve ── span ended ──► queue (bounded, drops) ──► one thread: batches ──► POST /v1/traces
//! ```
//! A collector that is away costs nothing but spans: the batch that could not be sent is tried again at
//! growing intervals, the queue keeps [`QUEUE_MAX`] spans, and what does not fit is counted. That it is away,
//! and that it is back, is one line each in the log.
#![warn(missing_debug_implementations)]

mod encode;
mod exporter;
mod queue;
mod table;

pub use encode::Origin;
pub use exporter::Exporter;
pub use queue::{BATCH_MAX, QUEUE_MAX};
pub use table::TracingTable;
