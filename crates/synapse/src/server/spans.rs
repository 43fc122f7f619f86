//! The span of a request at the server: from when it is decoded to its outcome.

use blocker::note_error;
use blocker::trace::{Span, SpanKind, Tracer};
use connection::Peer;

use crate::codec::{Outcome, Request, RequestId};

/// Begins the span of a request that its client traces, or that is sampled here, and puts its context into
/// the request. Requests of the control plane have none.
pub(super) fn begin(
    tracer: &Tracer,
    request: &mut Request,
    peer: Peer,
    session: u64,
    id: RequestId,
) -> Option<Span> {
    let name = request.op().span_name()?;
    let mut span = match request.call().trace {
        Some(parent) => tracer.child(parent, name, SpanKind::Server),
        None => tracer.sample(name, SpanKind::Server)?,
    };
    span.set("rpc.system", "synapse");
    span.set("client.address", peer.to_string());
    span.set("synapse.session", format!("{session:016x}"));
    span.set("synapse.request_id", id.to_string());
    request.set_trace(span.context());
    Some(span)
}

/// Ends a span with the outcome of its request.
pub(super) fn end(mut span: Span, outcome: &Outcome) {
    match outcome {
        Outcome::Answered(_) => {}
        Outcome::Failed(error) => note_error(&mut span, error),
        Outcome::Cancelled => span.fail("its client has cancelled it"),
    }
}
