//! Traces, which show the parts of the system that a request passes through, and the time that each
//! part takes.
//!
//! A *span* is the time that one part spends on a request. A part begins its span as the child of
//! the span in the request's [`Call::trace`](crate::Call::trace), and puts its own context there
//! for the parts below. A request without a context is not traced. The decision to trace a request
//! is made once, where the request enters ([`Tracer::sample`]), so that an untraced request costs
//! one comparison.
//!
//! ```
//! use blocker::trace::{SpanKind, Tracer};
//!
//! let tracer = Tracer::new(1.0, |span| println!("{} of {:?}", span.name, span.parent));
//! let root = tracer.sample("request", SpanKind::Server).expect("all requests are sampled");
//! let child = tracer.child(root.context(), "store", SpanKind::Internal);
//! drop(child);
//! drop(root);
//! ```

mod context;
mod span;

pub use context::TraceContext;
#[cfg(test)]
pub(crate) use span::tests;
pub use span::{AttributeValue, FinishedSpan, Span, SpanKind, Tracer};
