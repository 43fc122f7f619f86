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

mod span;

use std::cell::RefCell;
use std::num::NonZeroU64;

use crate::rng::Rng;

#[cfg(test)]
pub(crate) use span::tests as span_tests;
pub use span::{AttributeValue, FinishedSpan, Span, SpanKind, Tracer};

/// The trace that a request belongs to, and the span within which the request was made. Only traced
/// requests have a context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceContext {
    trace_id: [u8; 16],
    span_id: NonZeroU64,
}

impl TraceContext {
    /// The length of an encoded context, in bytes.
    pub const BYTES: usize = 24;

    /// Returns the context of a trace and a span; `None` if either ID is zero, which means *none*.
    #[must_use]
    pub fn new(trace_id: [u8; 16], span_id: u64) -> Option<TraceContext> {
        let span_id = NonZeroU64::new(span_id)?;
        (trace_id != [0; 16]).then_some(TraceContext { trace_id, span_id })
    }

    /// Returns the context of the first span of a new trace.
    fn root() -> TraceContext {
        let mut trace_id = [0; 16];
        trace_id[..8].copy_from_slice(&random().get().to_be_bytes());
        trace_id[8..].copy_from_slice(&random().get().to_be_bytes());
        TraceContext { trace_id, span_id: random() }
    }

    /// Returns the context of another span of the same trace.
    fn child(self) -> TraceContext {
        TraceContext { span_id: random(), ..self }
    }

    /// Returns the number of the trace.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// Returns the number of the span.
    #[must_use]
    pub fn span_id(&self) -> NonZeroU64 {
        self.span_id
    }

    /// Returns the encoded context: the trace ID, then the span ID, both as in W3C Trace Context.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.trace_id);
        bytes[16..].copy_from_slice(&self.span_id.get().to_be_bytes());
        bytes
    }

    /// Decodes a context. Returns `None` if an ID is zero.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Option<TraceContext> {
        let (trace_id, span_id) = bytes.split_first_chunk::<16>()?;
        TraceContext::new(*trace_id, u64::from_be_bytes(span_id.try_into().ok()?))
    }
}

/// Returns a random number that is unlikely to repeat in any process. The number must not be used
/// for secrets.
fn random() -> NonZeroU64 {
    thread_local! {
        static RNG: RefCell<Rng> = RefCell::new(Rng::new(seed()));
    }
    loop {
        if let Some(random) = NonZeroU64::new(RNG.with_borrow_mut(Rng::next_u64)) {
            return random;
        }
    }
}

fn seed() -> u64 {
    let mut bytes = [0; 8];
    if getrandom::fill(&mut bytes).is_ok() {
        return u64::from_ne_bytes(bytes);
    }
    // If the system provides no random bytes, the time, the process and the thread make the numbers
    // distinct.
    use std::hash::BuildHasher;
    let now = std::time::SystemTime::now();
    std::hash::RandomState::new().hash_one((now, std::process::id(), std::thread::current().id()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_context_is_the_same_and_zero_is_none() {
        let context = TraceContext::root().child();
        assert_eq!(TraceContext::from_bytes(context.to_bytes()), Some(context));
        let mut bytes = context.to_bytes();
        bytes[16..].fill(0);
        assert_eq!(TraceContext::from_bytes(bytes), None, "no span");
        let mut bytes = context.to_bytes();
        bytes[..16].fill(0);
        assert_eq!(TraceContext::from_bytes(bytes), None, "no trace");
        let known = TraceContext::new([1; 16], 0x0102_0304_0506_0708).unwrap();
        assert_eq!(known.to_bytes()[16..], [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn a_child_is_another_span_of_the_same_trace() {
        let (root, other) = (TraceContext::root(), TraceContext::root());
        let child = root.child();
        assert_eq!(child.trace_id(), root.trace_id());
        assert_ne!(child.span_id(), root.span_id());
        assert_ne!(root.trace_id(), other.trace_id());
        let elsewhere = std::thread::spawn(TraceContext::root).join().unwrap();
        assert_ne!(elsewhere.trace_id(), other.trace_id());
    }
}
