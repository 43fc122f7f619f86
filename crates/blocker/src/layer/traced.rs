//! A layer that traces the operations that pass through it.

use std::fmt;
use std::sync::Arc;

use crate::trace::{Span, SpanKind, TraceContext, Tracer};
use crate::{
    Blocker, Change, ChangeReply, ChangeRequest, ClaimReply, ClaimRequest, Error, FlushReply, FlushRequest,
    Info, InfoRequest, InvalidateReply, InvalidateRequest, ListReply, ListRequest, ReadReply, ReadRequest,
    Reply,
};

/// Begins a span for every traced operation of the blocker below, with the object, the number of
/// bytes, and whether the reply was ready immediately. Operations without a
/// [context](crate::Call::trace) pass through.
pub struct Traced {
    below: Arc<dyn Blocker>,
    tracer: Tracer,
    part: &'static str,
    backend: &'static str,
}

impl Traced {
    /// Returns a layer over an object cache: spans are called `objects.read` and so on.
    #[must_use]
    pub fn cache(below: Arc<dyn Blocker>, tracer: Tracer) -> Traced {
        Traced { below, tracer, part: "objects", backend: "" }
    }

    /// Returns a layer over a store of the kind `backend`: spans are called `store.read` and so on.
    #[must_use]
    pub fn store(below: Arc<dyn Blocker>, tracer: Tracer, backend: &'static str) -> Traced {
        Traced { below, tracer, part: "store", backend }
    }

    fn begin(&self, parent: TraceContext, operation: &str) -> Span {
        let name = format!("{}.{operation}", self.part);
        let mut span = self.tracer.child(parent, name, SpanKind::Internal);
        if !self.backend.is_empty() {
            span.set("store.backend", self.backend);
        }
        span
    }
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traced").field("part", &self.part).finish_non_exhaustive()
    }
}

/// Records the error of a request in its span. An error that only reports the object's
/// [state](Error::is_answer) is recorded as an attribute, not as a failure.
pub fn note_error(span: &mut Span, error: &Error) {
    if error.is_answer() { span.set("outcome", error.to_string()) } else { span.fail(error) }
}

/// Ends a span when its reply is ready.
fn ended_by<T: Send + 'static>(mut span: Span, reply: Reply<T>) -> Reply<T> {
    span.set("at_once", reply.is_ready());
    reply.then(move |answer| answer.inspect_err(|error| note_error(&mut span, error)))
}

/// Records in a span the changed object and the number of bytes; for a copy, the source and the
/// target.
fn describe(span: &mut Span, request: &ChangeRequest) {
    let object = request.object.to_string();
    let bytes = match &request.change {
        Change::Copy { from, .. } => {
            span.set("object", from.to_string());
            return span.set("to", object);
        }
        // The expected bytes are not part of the change.
        Change::CompareAndWrite { data, .. } => data.len_bytes() as u64,
        Change::WriteZeroes { len_bytes, .. } | Change::Discard { len_bytes, .. } => *len_bytes,
        change => change.payload_bytes(),
    };
    span.set("object", object);
    if !matches!(request.change, Change::Truncate { .. } | Change::Delete) {
        span.set("bytes", bytes);
    }
}

macro_rules! traced {
    ($($method:ident($request:ident: $type:ty) -> $reply:ty { $($key:literal: $value:expr),* })*) => {
        $(fn $method(&self, mut $request: $type) -> Reply<$reply> {
            let Some(parent) = $request.call.trace else { return self.below.$method($request) };
            let mut span = self.begin(parent, stringify!($method));
            $(span.set($key, $value);)*
            $request.call.trace = Some(span.context());
            ended_by(span, self.below.$method($request))
        })*
    };
}

impl Blocker for Traced {
    crate::delegate!(|this| *this.below, except read change info list flush claim invalidate);

    fn change(&self, mut request: ChangeRequest) -> Reply<ChangeReply> {
        let Some(parent) = request.call.trace else { return self.below.change(request) };
        let mut span = self.begin(parent, request.change.name());
        describe(&mut span, &request);
        request.call.trace = Some(span.context());
        ended_by(span, self.below.change(request))
    }

    traced! {
        read(r: ReadRequest) -> ReadReply { "object": r.object.to_string(), "bytes": r.len_bytes }
        info(r: InfoRequest) -> Info { "object": r.object.to_string() }
        list(r: ListRequest) -> ListReply { "namespace": r.namespace.to_string() }
        flush(r: FlushRequest) -> FlushReply { "scope": r.scope.to_string() }
        claim(r: ClaimRequest) -> ClaimReply { "scope": r.scope.to_string() }
        invalidate(r: InvalidateRequest) -> InvalidateReply { "scope": r.scope.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::WriteRequest;
    use crate::executor::block_on;
    use crate::ext::BlockerExt;
    use crate::memory::Memory;
    use crate::trace::AttributeValue;
    use crate::trace::span_tests::kept;

    #[test]
    fn traced_operations_are_spans_within_each_other_and_others_pass_through() {
        let (tracer, ended) = kept(1.0);
        let store = Traced::store(Arc::new(Memory::default()), tracer.clone(), "memory");
        let cache = Traced::cache(Arc::new(store), tracer);
        let parent = TraceContext::new([7; 16], 9).unwrap();
        let mut write = WriteRequest::new("a/b".parse().unwrap(), 0, b"hello");
        block_on(cache.write(write.clone())).expect("it is written");
        assert_eq!(ended.lock().len(), 0, "not traced");
        write.call.trace = Some(parent);
        block_on(cache.write(write)).expect("it is written");
        let mut read = ReadRequest::new("a/none".parse().unwrap(), 0, 10);
        read.call.trace = Some(parent);
        block_on(cache.read(read)).expect_err("it is missing");
        let spans = ended.lock();
        let names: Vec<&str> = spans.iter().map(|span| span.name.as_ref()).collect();
        assert_eq!(names, ["store.write", "objects.write", "store.read", "objects.read"]);
        for pair in spans.chunks(2) {
            let (below, above) = (&pair[0], &pair[1]);
            assert_eq!(above.parent, Some(parent.span_id()));
            assert_eq!(below.parent, Some(above.context.span_id()));
            assert!(pair.iter().all(|span| span.context.trace_id() == [7; 16] && span.error.is_none()));
            assert_eq!(below.attributes[0], ("store.backend", AttributeValue::from("memory")));
        }
        assert!(spans[1].attributes.contains(&("bytes", AttributeValue::Number(5))));
        assert!(spans[3].attributes.iter().any(|(name, _)| *name == "outcome"), "missing is no failure");
    }
}
