//! `cached` as an S3 sidecar that serves reads without the endpoint: invalidation by commands and
//! events, reload, access log.

use cached_tests::daemon::{Daemon, TOKEN, wait_for};
use cached_tests::http;
use cached_tests::reference;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Starts an endpoint whose response to each request is the request's number. Returns the
/// endpoint's URL and the counter.
fn endpoint() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for socket in listener.incoming() {
            let (socket, count) = (socket.expect("a connection"), Arc::clone(&counted));
            thread::spawn(move || answer(&socket, &count));
        }
    });
    (url, count)
}

fn answer(socket: &TcpStream, count: &AtomicU64) -> std::io::Result<()> {
    let mut lines = BufReader::new(socket.try_clone()?).lines();
    let mut is_head = false;
    while let Some(line) = lines.next().transpose()? {
        if !line.is_empty() {
            is_head |= line.starts_with("HEAD ");
            continue;
        }
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        let body = format!("{number}\n");
        let (len, mut socket) = (body.len(), socket);
        let body = if std::mem::take(&mut is_head) { "" } else { &body };
        write!(socket, "HTTP/1.1 200 OK\r\nETag: \"{number}\"\r\nContent-Length: {len}\r\n\r\n{body}")?;
    }
    Ok(())
}

#[test]
fn an_operator_announces_changes_reloads_policies_and_rotates_the_log() {
    let (upstream, count) = endpoint();
    let mut log = String::new();
    let daemon = Daemon::start("cached", |place| {
        log = format!("{place}/access.log");
        format!(
            "[memcached]\nthreads = 1\n[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"{upstream}\"\nauth = \"none\"\n\
             upstream_auth = \"anonymous\"\nmemory_bytes_max = \"16 MiB\"\naccess_log = \"{log}\"\n\
             [[s3.buckets]]\nname = \"media\"\nfresh_secs = \"immutable\"\n"
        )
    });
    let address = daemon.announced("S3 on ");
    let read = |path: &str| {
        let (status, body) = http::get(&address, path);
        assert_eq!(status, 200, "{body}");
        body.trim().parse::<u64>().expect("a number")
    };
    assert_eq!((read("/media/a/1"), read("/media/a/1"), read("/media/b"), read("/media/b")), (1, 1, 2, 2));
    // `cachectl` invalidates an object, a prefix, and the bucket.
    for (objects, is_first, is_second) in [
        ("media/a/1", true, false),
        ("media/a/*", true, false),
        ("media/b", false, true),
        ("media", true, true),
    ] {
        let before = (read("/media/a/1"), read("/media/b"));
        let (code, shown) = daemon.cachectl(&["s3", "invalidate", objects]);
        assert_eq!((code, shown.contains(objects)), (0, true), "{shown}");
        let after = (read("/media/a/1"), read("/media/b"));
        assert_eq!((after.0 != before.0, after.1 != before.1), (is_first, is_second), "{objects}");
    }
    let shown = daemon.log();
    let audited = shown.lines().filter(|line| line.contains("the admin listener invalidates objects of S3"));
    assert_eq!(
        audited.filter(|line| line.contains("127.0.0.1:") && line.contains("media")).count(),
        4,
        "{shown}"
    );
    // A bucket notification invalidates an object.
    let token = &format!("Authorization: Bearer {TOKEN}\r\n");
    let event = r#"{"Records":[{"eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"media"},"object":{"key":"a%2F1"}}}]}"#;
    let before = (read("/media/a/1"), read("/media/b"));
    assert_eq!(http::post(&daemon.admin, "/s3/events", token, event), (200, "{\"records\":1}".into()));
    assert_ne!(read("/media/a/1"), before.0);
    assert_eq!(read("/media/b"), before.1);
    // The request is refused without a token, and with an invalid one.
    for path in ["/s3/events", "/s3/invalidate"] {
        assert_eq!(http::post(&daemon.admin, path, "", event).0, 401);
        for body in
            ["", "{}", "[]", "{\"bucket\": \"\"}", "{\"bucket\": \"a\", \"key\": \"k\", \"prefix\": \"p\"}"]
        {
            assert_eq!(http::post(&daemon.admin, path, token, body).0, 400, "{path} {body}");
        }
    }
    let (code, shown) = daemon.cachectl(&["s3", "invalidate", "/key"]);
    assert_eq!((code, shown.contains("BUCKET/KEY")), (2, true), "{shown}");
    assert_eq!(daemon.metric("cached_s3_sidecar_invalidations_total{by=\"command\"}"), Some(4.0));
    assert_eq!(daemon.metric("cached_s3_sidecar_invalidations_total{by=\"event\"}"), Some(1.0));

    // Each request is logged. A reload reopens the log file, and applies the new settings.
    let requests = |path: &str| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter(|line| line.contains("\"path\":\"/media/")).count()
    };
    wait_for("all lines", || (requests(&log) == 24).then_some(()));
    let first = std::fs::read_to_string(&log).expect("the log");
    let first = first.lines().next().expect("a line");
    for part in
        ["\"method\":\"GET\"", "\"status\":200", "\"bytes\":2", "\"outcome\":\"miss\"", "\"upstream_ms\":"]
    {
        assert!(first.contains(part), "{part} is missing in {first}");
    }
    let old = format!("{log}.1");
    std::fs::rename(&log, &old).expect("it is renamed");
    daemon.configure(|text| text.replace("fresh_secs = \"immutable\"", "fresh_secs = 0"));
    let (code, shown) = daemon.cachectl(&["reload"]);
    assert_eq!((code, shown.contains("s3.buckets")), (0, true), "{shown}");
    let asked = count.load(Ordering::SeqCst);
    assert_ne!(read("/media/b"), read("/media/b"));
    // A HEAD detects that the object has changed.
    assert_eq!(count.load(Ordering::SeqCst), asked + 4);
    wait_for("lines in the new log", || (requests(&log) == 2).then_some(()));
    assert_eq!(requests(&old), 24);
    // A reload with a mistake changes nothing.
    daemon.configure(|text| text.replace("name = \"media\"", "name = \"\""));
    let (code, shown) = daemon.cachectl(&["reload"]);
    assert!(code != 0 && shown.contains("s3.buckets"), "{shown}");
}

#[test]
fn the_reference_names_every_metric_of_the_sidecar() {
    let (upstream, _) = endpoint();
    let daemon = Daemon::start("cached", |_| {
        format!(
            "[memcached]\nthreads = 1\n[s3]\nlisten = [\"127.0.0.1:0\"]\nupstream = \"{upstream}\"\n\
             memory_bytes_max = \"16 MiB\"\n[[s3.buckets]]\nname = \"shared\"\nmemory_bytes_min = \"1 MiB\"\n\
             upstream_requests_per_second_max = 1000\n"
        )
    });
    // A bucket has metrics once a request for it has succeeded.
    assert_eq!(http::get(&daemon.announced("S3 on "), "/shared/k").0, 200);
    let (_, shown) = http::get(&daemon.admin, "/metrics");
    reference::compare(&shown, |name| name.starts_with("cached_s3_sidecar_"), |_| false);
}
