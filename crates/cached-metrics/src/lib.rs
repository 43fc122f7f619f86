//! Typed metrics: counters, gauges and histograms with a name, a help text and labels, collected in
//! one registry.
//!
//! A component declares its metrics as a table ([`counters!`]), or implements [`Collect`] itself:
//! it writes the current values of its metrics into [`Families`]. A program registers its
//! components with a [`Registry`], whose [`gather`](Registry::gather) merges what they write. The
//! result is rendered as [pairs of name and number](render::pairs), as [Prometheus
//! text](render::prometheus) or as [OpenMetrics](render::openmetrics).
//!
//! Names follow Prometheus' conventions: `snake_case` that starts with the component, the unit last
//! (`_bytes`, `_seconds`), `_total` after the unit of a counter.
//!
//! Collecting reads values and allocates little: names, help texts and label names are usually
//! `&'static str`. A component that counts on a hot path keeps its own counters, for example one
//! for each thread, and adds them up when it is collected; [`Counter`], [`Gauge`] and [`Histogram`]
//! are for paths where one shared atomic is cheap enough. [`Latency`] counts durations on one scale
//! for the whole program.
//!
//! ```
//! use std::sync::Arc;
//! use cached_metrics::{Collect, Counter, Families, Registry, render};
//!
//! #[derive(Default)]
//! struct Mailer {
//!     sent: Counter,
//! }
//!
//! impl Collect for Mailer {
//!     fn collect(&self, into: &mut Families) {
//!         into.counter("mailer_messages_total", "Messages sent.", self.sent.get());
//!     }
//! }
//!
//! let mailer = Arc::new(Mailer::default());
//! let registry = Registry::new();
//! let _registration = registry.register(mailer.clone(), [("host", "a")]);
//! mailer.sent.add(3);
//!
//! let gathered = registry.gather();
//! assert_eq!(render::pairs(&gathered.families)[0].to_string(), r#"mailer_messages_total{host="a"} 3"#);
//! ```
#![warn(missing_debug_implementations)]

mod family;
mod instrument;
mod latency;
mod registry;
pub mod render;
mod table;

pub use family::{Families, Family, Kind, Label, Number, Sample, Text, Value};
pub use instrument::{Counter, Gauge, Histogram};
pub use latency::{Latency, LatencySnapshot};
pub use registry::{Collect, GatherError, Gathered, Limits, Registration, Registry};
pub use table::{LabelledMetric, Reading, Series};
