//! Traces: a request from its client through `cached` and `synapsed` to the store is one trace,
//! received by the test's own collector; an unavailable collector has no effect on requests.

use blocker::executor::block_on;
use blocker::trace::{FinishedSpan, SpanKind, Tracer};
use blocker::{Blocker, BlockerExt, ObjectId, ReadRequest, WriteRequest};
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::object_client;
use serde::Deserialize;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use synapse::{Address, SynapseBlocker};

/// A span in OTLP's JSON format.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Span {
    trace_id: String,
    span_id: String,
    #[serde(default)]
    parent_span_id: String,
    name: String,
    start_time_unix_nano: String,
    #[serde(default)]
    attributes: Vec<Value>,
}

/// A span, and the program that sent it.
type Received = (String, Span);

/// A collector, which receives spans by OTLP over HTTP. Its thread ends with the process.
struct Collector {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    spans: Mutex<Vec<Received>>,
    requests: AtomicUsize,
    /// The status with which the collector responds.
    status: AtomicU16,
}

impl Collector {
    fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (spans, requests) = (Mutex::default(), AtomicUsize::new(0));
        let state = Arc::new(State { spans, requests, status: AtomicU16::new(200) });
        let kept = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&kept);
                std::thread::spawn(move || while state.take(&stream).is_some() {});
            }
        });
        Collector { address, state }
    }

    /// Returns the table of a configuration.
    fn table(&self, sample_ratio: f64) -> String {
        format!("[tracing]\notlp_endpoint = \"http://{}\"\nsample_ratio = {sample_ratio:.1}\n", self.address)
    }

    fn spans(&self) -> Vec<Received> {
        self.state.spans.lock().expect("spans").clone()
    }
}

impl State {
    /// Receives one request; returns `None` at the end of the connection.
    fn take(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            head.push(line.trim_end().to_ascii_lowercase());
        }
        assert!(head[0].starts_with("post /v1/traces http/1.1"), "{head:?}");
        assert!(head.contains(&"content-type: application/json".to_owned()), "{head:?}");
        let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
        let mut body = vec![0; length.parse().expect("a number")];
        reader.read_exact(&mut body).ok()?;
        let status = self.status.load(Ordering::SeqCst);
        if status == 200 {
            let mut decoded: Value = serde_json::from_slice(&body).expect("OTLP");
            for of_program in decoded["resourceSpans"].as_array_mut().expect("programs") {
                let attributes = of_program["resource"]["attributes"].as_array().expect("a resource");
                let program = text(attributes, "service.name").expect("a name");
                for scope in of_program["scopeSpans"].as_array_mut().expect("scopes") {
                    let spans: Vec<Span> = serde_json::from_value(scope["spans"].take()).expect("spans");
                    self.spans
                        .lock()
                        .expect("spans")
                        .extend(spans.into_iter().map(|span| (program.clone(), span)));
                }
            }
        }
        self.requests.fetch_add(1, Ordering::SeqCst);
        (&mut &*stream).write_all(format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\n\r\n").as_bytes()).ok()
    }
}

fn text(attributes: &[Value], name: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute["key"] == name)?;
    found["value"]["stringValue"].as_str().map(str::to_owned)
}

/// Returns the configuration of a cache over a store, with a listener on the socket `synapse` in
/// its directory.
fn objects(place: &str, backend: &str, tracing: &str) -> String {
    format!(
        "[objects]\n[objects.backend]\n{backend}\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n{tracing}"
    )
}

fn client(socket: &Path, tracer: Option<Tracer>) -> SynapseBlocker {
    let mut config = object_client::config(Address::Unix(socket.into()));
    config.tracer = tracer;
    SynapseBlocker::connect_on_thread(config).expect("a connection")
}

fn object(name: &str) -> ObjectId {
    format!("vm/{name}").parse().expect("a name")
}

/// Returns the test's own tracer, and its spans.
fn own_tracer() -> (Tracer, Arc<Mutex<Vec<FinishedSpan>>>) {
    let ended = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&ended);
    (Tracer::new(1.0, move |span| sink.lock().expect("spans").push(span)), ended)
}

/// Returns the chain of spans that begins with a child of `root` and ends with the span `last` of
/// `program`.
fn chain(spans: &[Received], program: &str, last: &str, root: u64) -> Option<Vec<Received>> {
    let mut chain = vec![spans.iter().find(|(of, span)| of == program && span.name == last)?.clone()];
    loop {
        let parent = chain.last()?.1.parent_span_id.clone();
        if parent == format!("{root:016x}") {
            chain.reverse();
            return Some(chain);
        }
        chain.push(spans.iter().find(|(_, span)| span.span_id == parent)?.clone());
    }
}

#[test]
fn a_request_is_one_trace_from_its_client_to_the_store_behind_another_server() {
    let collector = Collector::start();
    let node = Daemon::start("synapsed", |place| {
        format!(
            "backend = {{ kind = \"file\", create = true, path = \"{place}/store\" }}\n[objects]\n[synapse]\nlisten = [\"unix:{place}/synapse\"]\n{}",
            collector.table(0.0)
        )
    });
    let address = format!("kind = \"synapse\"\naddress = \"unix:{}\"", node.path("synapse").display());
    let cache = Daemon::start("cached", |place| objects(place, &address, &collector.table(0.0)));
    let (tracer, own) = own_tracer();
    let client = client(&cache.path("synapse"), Some(tracer.clone()));
    // Without a context, and with a sample ratio of 0, requests are not traced.
    block_on(client.write(WriteRequest::new(object("other"), 0, b"other"))).expect("it is written");
    let root = tracer.sample("test", SpanKind::Internal).expect("all of its own are sampled");
    let mut write = WriteRequest::new(object("disk"), 0, vec![7; 5000]);
    write.call.trace = Some(root.context());
    block_on(client.write(write)).expect("it is written");
    let trace_id: String = root.context().trace_id().iter().map(|byte| format!("{byte:02x}")).collect();
    drop(root);
    let own = own.lock().expect("spans").clone();
    let [sent, root] = &own[..] else { panic!("{own:?}") };
    assert_eq!((sent.name.as_ref(), sent.parent), ("synapse.write", Some(root.context.span_id())));
    let sent = sent.context.span_id().get();
    let written = wait_for("the store's span", || chain(&collector.spans(), "synapsed", "store.write", sent));
    let names: Vec<String> = written.iter().map(|(of, span)| format!("{of} {}", span.name)).collect();
    assert_eq!(
        names,
        [
            "cached synapse.write",
            "cached objects.write",
            "cached store.write",
            "cached synapse.write",
            "synapsed synapse.write",
            "synapsed objects.write",
            "synapsed store.write",
        ]
    );
    // Both ends of a request use the same ID.
    let ids = |at: usize| text(&written[at].1.attributes, "synapse.request_id").expect("an id");
    assert_eq!(ids(3), ids(4));
    assert_eq!(text(&written[2].1.attributes, "store.backend").as_deref(), Some("synapse"));
    assert_eq!(text(&written[6].1.attributes, "object").as_deref(), Some("vm/disk"));
    for pair in written.windows(2) {
        let (above, below) = (&pair[0].1, &pair[1].1);
        // The length does not change for the next 260 years.
        assert!(above.start_time_unix_nano <= below.start_time_unix_nano, "{names:?}");
    }
    let (status, log) = cache.end();
    assert!(status.success(), "{log}");
    let (status, log) = node.end();
    assert!(status.success(), "{log}");
    // The shutdown sends the remaining spans.
    let spans = collector.spans();
    assert!(spans.iter().all(|(_, span)| span.trace_id == trace_id), "others are not traced: {spans:?}");
}

#[test]
fn requests_are_sampled_where_they_come_in() {
    let collector = Collector::start();
    let backend = "kind = \"memory\"";
    let cached = Daemon::start("cached", |place| objects(place, backend, &collector.table(1.0)));
    let client = client(&cached.path("synapse"), None);
    block_on(client.read(ReadRequest::new(object("none"), 0, 10))).expect_err("it is missing");
    let roots =
        |name: &'static str| move |span: &&Received| span.1.name == name && span.1.parent_span_id.is_empty();
    let read = wait_for("a trace", || collector.spans().iter().find(roots("synapse.read")).cloned());
    wait_for("the store's span", || {
        let id = read.1.trace_id.clone();
        collector.spans().into_iter().find(|(_, span)| span.name == "store.read" && span.trace_id == id)
    });
    let mut memcached = UnixStream::connect(cached.path("memcached")).expect("a connection");
    let turn = wait_for("a turn of a worker", || {
        memcached.write_all(b"get nothing\r\n").expect("a request");
        let mut reply = [0; 5];
        memcached.read_exact(&mut reply).expect("a reply");
        assert_eq!(&reply, b"END\r\n");
        collector.spans().iter().find(roots("memcached.turn")).cloned()
    });
    let ids = &turn.1.attributes;
    assert!(ids.iter().any(|attribute| attribute["key"] == "memcached.get"), "{ids:?}");
    assert!(text(ids, "memcached.request_id").is_some_and(|id| id.contains('.')), "{ids:?}");
    // The sample ratio can change while the program runs.
    cached.configure(|text| text.replace("sample_ratio = 1.0", "sample_ratio = 0.0"));
    let (status, report) = cached.cachectl(&["reload"]);
    assert_eq!((status, report.contains("tracing.sample_ratio 1.0 -> 0.0")), (0, true), "{report}");
    let read = || block_on(client.read(ReadRequest::new(object("late"), 0, 10))).expect_err("it is missing");
    (0..100).for_each(|_| _ = read());
    drop(client);
    let (status, log) = cached.end();
    assert!(status.success(), "{log}");
    let late = |span: &Received| text(&span.1.attributes, "object").as_deref() == Some("vm/late");
    assert!(!collector.spans().iter().any(late), "sampled at a share of 0");
}

#[test]
fn a_collector_that_is_away_harms_nothing_and_gets_the_spans_when_it_is_back() {
    let collector = Collector::start();
    collector.state.status.store(503, Ordering::SeqCst);
    let backend = "kind = \"memory\"";
    let cached = Daemon::start("cached", |place| objects(place, backend, &collector.table(1.0)));
    let client = client(&cached.path("synapse"), None);
    block_on(client.write(WriteRequest::new(object("first"), 0, b"x"))).expect("it is written");
    wait_for("three attempts", || (collector.state.requests.load(Ordering::SeqCst) >= 3).then_some(()));
    // The number of spans exceeds the queue's capacity.
    for _ in 0..2000 {
        block_on(client.read(ReadRequest::new(object("first"), 0, 1))).expect("it is read");
    }
    let dropped = || cached.metric("cached_tracing_spans_dropped_total{reason=\"queue_full\"}");
    (0..2000).for_each(|_| _ = block_on(client.read(ReadRequest::new(object("first"), 0, 1))));
    assert!(dropped().expect("the metric") > 0.0, "the queue is bounded");
    let lines = cached.log().matches("the trace collector does not respond").count();
    assert_eq!(lines, 1, "{}", cached.log());
    collector.state.status.store(200, Ordering::SeqCst);
    wait_for("the first request's trace", || {
        let spans = collector.spans();
        spans.iter().any(|(_, span)| span.name == "synapse.write").then_some(())
    });
    wait_for("the line", || cached.log().contains("the trace collector responds again").then_some(()));
    assert!(cached.metric("cached_tracing_spans_sent_total").expect("the metric") > 0.0);
    drop(client);
    let (status, log) = cached.end();
    assert!(status.success(), "{log}");
}
