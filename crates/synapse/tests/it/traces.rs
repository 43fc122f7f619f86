//! The server also traces every traced request, whatever share of requests it samples itself; other
//! requests are not traced.

use std::sync::{Arc, Mutex};

use crate::support::host::{Host, Kind, object};
use blocker::trace::{FinishedSpan, SpanKind, Tracer};
use blocker::*;
use synapse::ServerConfig;

type Spans = Arc<Mutex<Vec<FinishedSpan>>>;

/// Returns a tracer that samples this share, and the finished spans.
fn tracer(ratio: f64) -> (Tracer, Spans) {
    let spans = Spans::default();
    let sink = Arc::clone(&spans);
    (Tracer::new(ratio, move |span| sink.lock().unwrap().push(span)), spans)
}

#[test]
fn the_context_of_a_trace_crosses_the_wire() {
    let (at_server, served) = tracer(0.0);
    let (at_client, sent) = tracer(1.0);
    let mut config = ServerConfig::default();
    config.tracer = Some(at_server.clone());
    let store = Traced::store(Arc::new(Memory::default()), at_server, "memory");
    let host = Host::new(Kind::Tcp, Arc::new(store), config);
    let mut config = host.client_config();
    config.tracer = Some(at_client.clone());
    let client = host.client_with(config);
    let root = at_client.sample("test", SpanKind::Internal).unwrap();
    let untraced = WriteRequest::new(object("a"), 0, b"untraced");
    let mut traced = CopyRequest::new(object("a"), object("b")).if_from_version(Version(77));
    traced.call.trace = Some(root.context());
    host.runtime.block_on(async {
        client.write(untraced).await.unwrap();
        // The request also has another extension. Its outcome is an error that does not count as a
        // failure.
        client.copy(traced).await.unwrap_err();
    });
    drop(root);
    let (served, sent) = (served.lock().unwrap().clone(), sent.lock().unwrap().clone());
    let names = |spans: &[FinishedSpan]| spans.iter().map(|span| span.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&served), ["store.copy", "synapse.copy"]);
    assert_eq!(names(&sent), ["synapse.copy", "test"]);
    assert_eq!(served[1].parent, Some(sent[0].context.span_id()));
    assert_eq!(served[0].parent, Some(served[1].context.span_id()));
    assert!(served.iter().all(|span| span.context.trace_id() == sent[1].context.trace_id()));
    let id = |span: &FinishedSpan| {
        span.attributes.iter().find(|(name, _)| *name == "synapse.request_id").map(|(_, id)| id.clone())
    };
    assert!(id(&sent[0]).is_some());
    assert_eq!(id(&sent[0]), id(&served[1]), "both ends know the request by the same id");
}
