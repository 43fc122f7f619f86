//! Spans, and the tracer that creates them.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use super::{TraceContext, random};

/// The role of a part in a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpanKind {
    /// Work inside a program.
    Internal,
    /// The part has received the request from another program.
    Server,
    /// The part waits for another program.
    Client,
}

/// The value of an attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AttributeValue {
    /// The value is a string.
    Text(Cow<'static, str>),
    /// The value is a number.
    Number(u64),
    /// The value is a boolean.
    Flag(bool),
}

impl From<&'static str> for AttributeValue {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// A span that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FinishedSpan {
    /// The name of the operation.
    pub name: Cow<'static, str>,
    /// The part's role.
    pub kind: SpanKind,
    /// The trace and the span.
    pub context: TraceContext,
    /// The parent span; `None` for the first span of a trace.
    pub parent: Option<NonZeroU64>,
    /// The time when the span began.
    pub begun: SystemTime,
    /// The duration of the span.
    pub duration: Duration,
    /// The names and values of the span's attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// The reason for the failure, if the operation has failed.
    pub error: Option<String>,
}

impl FinishedSpan {
    /// Returns a span that begins now.
    fn new(
        context: TraceContext,
        parent: Option<NonZeroU64>,
        name: Cow<'static, str>,
        kind: SpanKind,
    ) -> Self {
        let (begun, duration) = (SystemTime::now(), Duration::ZERO);
        Self { name, kind, context, parent, begun, duration, attributes: Vec::new(), error: None }
    }
}

/// A tracer creates spans, and passes finished spans to its sink. Clones are handles of the same
/// tracer.
#[derive(Clone)]
pub struct Tracer {
    inner: Arc<Inner>,
}

struct Inner {
    /// Requests whose random number is at most this threshold are sampled; 0 samples none.
    threshold: AtomicU64,
    sink: Box<dyn Fn(FinishedSpan) + Send + Sync>,
}

impl Tracer {
    /// Returns a tracer that samples this share of requests, 0 to 1. `sink` receives finished spans
    /// on the thread that ended them, so it must not block.
    #[must_use]
    pub fn new(ratio: f64, sink: impl Fn(FinishedSpan) + Send + Sync + 'static) -> Tracer {
        let tracer = Tracer { inner: Arc::new(Inner { threshold: AtomicU64::new(0), sink: Box::new(sink) }) };
        tracer.set_ratio(ratio);
        tracer
    }

    /// Changes the share of requests that are sampled.
    pub fn set_ratio(&self, ratio: f64) {
        // The cast saturates.
        let threshold = (ratio * u64::MAX as f64) as u64;
        self.inner.threshold.store(threshold, Ordering::Relaxed);
    }

    /// Decides whether to sample a request. If so, begins a trace with its first span.
    #[must_use]
    pub fn sample(&self, name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Option<Span> {
        self.is_sampled().then(|| self.begin(TraceContext::root(), None, name.into(), kind))
    }

    /// Decides whether to sample a request that [`Self::record`] will report.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        let threshold = self.inner.threshold.load(Ordering::Relaxed);
        threshold != 0 && random().get() <= threshold
    }

    /// Begins a span within another one.
    #[must_use]
    pub fn child(&self, parent: TraceContext, name: impl Into<Cow<'static, str>>, kind: SpanKind) -> Span {
        self.begin(parent.child(), Some(parent.span_id()), name.into(), kind)
    }

    /// Reports the only span of a trace: an operation that ends now and took `duration`. The span
    /// is not subject to sampling.
    pub fn record(
        &self,
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        duration: Duration,
        attributes: Vec<(&'static str, AttributeValue)>,
    ) {
        let mut span = FinishedSpan::new(TraceContext::root(), None, name.into(), kind);
        span.begun = span.begun.checked_sub(duration).unwrap_or(span.begun);
        (span.duration, span.attributes) = (duration, attributes);
        (self.inner.sink)(span);
    }

    fn begin(
        &self,
        context: TraceContext,
        parent: Option<NonZeroU64>,
        name: Cow<'static, str>,
        kind: SpanKind,
    ) -> Span {
        let span = FinishedSpan::new(context, parent, name, kind);
        Span { open: Some(Box::new(Open { span, begun: Instant::now(), tracer: self.clone() })) }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threshold = self.inner.threshold.load(Ordering::Relaxed);
        f.debug_struct("Tracer").field("threshold", &threshold).finish_non_exhaustive()
    }
}

/// A span in progress. Dropping the span ends it.
pub struct Span {
    /// `None` after the span has ended.
    open: Option<Box<Open>>,
}

struct Open {
    span: FinishedSpan,
    begun: Instant,
    tracer: Tracer,
}

impl Span {
    fn open(&self) -> &Open {
        self.open.as_ref().expect("only dropping ends a span")
    }

    /// Returns the span's context, for the parts below.
    #[must_use]
    pub fn context(&self) -> TraceContext {
        self.open().span.context
    }

    /// Adds an attribute.
    pub fn set(&mut self, name: &'static str, value: impl Into<AttributeValue>) {
        if let Some(open) = &mut self.open {
            open.span.attributes.push((name, value.into()));
        }
    }

    /// Records that the operation has failed, and the reason.
    pub fn fail(&mut self, why: impl fmt::Display) {
        if let Some(open) = &mut self.open {
            open.span.error = Some(why.to_string());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            let Open { mut span, begun, tracer } = *open;
            span.duration = begun.elapsed();
            (tracer.inner.sink)(span);
        }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("span", &self.open().span).finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use parking_lot::Mutex;

    /// Returns a tracer, and its finished spans.
    pub(crate) fn kept(ratio: f64) -> (Tracer, Arc<Mutex<Vec<FinishedSpan>>>) {
        let ended = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&ended);
        (Tracer::new(ratio, move |span| sink.lock().push(span)), ended)
    }

    #[test]
    fn a_dropped_span_is_passed_on_with_its_parent() {
        let (tracer, ended) = kept(1.0);
        let root = tracer.sample("root", SpanKind::Server).unwrap();
        let mut child = tracer.child(root.context(), "child", SpanKind::Internal);
        child.set("bytes", 7);
        child.fail("no");
        let (root_context, child_context) = (root.context(), child.context());
        drop(child);
        drop(root);
        let ended = ended.lock();
        assert_eq!(ended.len(), 2);
        let (child, root) = (&ended[0], &ended[1]);
        assert_eq!((child.name.as_ref(), child.context), ("child", child_context));
        assert_eq!((child.parent, root.parent), (Some(root_context.span_id()), None));
        assert_eq!(child.context.trace_id(), root.context.trace_id());
        assert_eq!(child.attributes, [("bytes", AttributeValue::Number(7))]);
        assert_eq!((child.error.as_deref(), &root.error), (Some("no"), &None));
    }

    #[test]
    fn the_share_of_requests_that_are_sampled_can_change() {
        let (tracer, _) = kept(0.0);
        let count = || (0..4000).filter(|_| tracer.sample("r", SpanKind::Server).is_some()).count();
        assert_eq!(count(), 0);
        tracer.set_ratio(0.25);
        // The probability of a larger deviation is 10^-30.
        assert!((600..1400).contains(&count()));
        tracer.set_ratio(1.0);
        assert_eq!(count(), 4000);
        tracer.set_ratio(0.0);
        assert_eq!(count(), 0);
    }

    #[test]
    fn what_is_recorded_afterwards_began_before() {
        let (tracer, ended) = kept(0.0);
        tracer.record("slow", SpanKind::Server, Duration::from_secs(5), vec![("worker", 1.into())]);
        let ended = ended.lock();
        assert_eq!((ended[0].parent, ended[0].duration), (None, Duration::from_secs(5)));
        assert!(ended[0].begun <= SystemTime::now() - Duration::from_secs(5));
    }
}
