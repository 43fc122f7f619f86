//! An unavailable endpoint: completely known objects are still served for a time, other requests
//! fail clearly, and the endpoint's return is noticed.

use std::time::Duration;

use crate::support::{Act, Away, Client, Endpoint, Gate, PATIENCE, ask, object, pattern, request};
use s3_sidecar::{Auth, CachePolicy, EndpointState, Fresh, Sidecar};

const HOUR: Duration = Duration::from_secs(3600);

/// The time after which a reader gets what memory has, in tests that wait for it, is a little longer.
const SOON: Duration = Duration::from_secs(1);

/// Returns an endpoint, and a sidecar that knows one of its objects. Nothing is ever fresh, and
/// everything is served while the endpoint is unavailable. The sidecar waits for the endpoint as long
/// as it may take to connect.
fn warm(connect_timeout: Duration) -> (Endpoint, Sidecar) {
    let endpoint = Endpoint::start();
    endpoint.put("/bkt/k", object("one", "one"));
    endpoint.put("/bkt/large", object("large", pattern(500_000, 0)));
    let sidecar = endpoint.fresh_sidecar(Fresh::For(Duration::ZERO), |config| {
        config.policy.stale_if_error = HOUR;
        config.connect_timeout = connect_timeout;
    });
    assert_eq!(ask(&sidecar, "GET /bkt/k", &[]).body, b"one");
    assert_eq!(ask(&sidecar, "GET /bkt/large", &[("Range", "bytes=0-299007")]).body.len(), 73 * 4096);
    endpoint.take_seen();
    (endpoint, sidecar)
}

#[test]
fn what_is_known_whole_answers_while_the_endpoint_is_away() {
    let (endpoint, sidecar) = warm(PATIENCE);
    for act in [
        Act::Hang,
        Act::Raw(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n".into()),
        Act::Raw(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n".into()),
    ] {
        endpoint.on_request(move |_| act.clone());
        let before = sidecar.counts().stale.get();
        let answer = ask(&sidecar, "GET /bkt/k", &[]);
        assert_eq!((answer.status, &answer.body[..]), (200, &b"one"[..]));
        assert!(answer.header("warning").unwrap().starts_with("110") && answer.header("age").is_some());
        assert_eq!(ask(&sidecar, "GET /bkt/k", &[("If-None-Match", "\"one\"")]).status, 304);
        assert_eq!(
            ask(&sidecar, "GET /bkt/large", &[("Range", "bytes=5-299007")]).body,
            pattern(500_000, 0)[5..73 * 4096]
        );
        assert_eq!(sidecar.counts().stale.get(), before + 3);
        // Unknown or incomplete objects fail.
        for (line, range) in
            [("GET /bkt/large", "bytes=0-400000"), ("GET /bkt/other", "bytes=0-"), ("HEAD /bkt/large", "")]
        {
            let headers: &[_] = if range.is_empty() { &[] } else { &[("Range", range)] };
            assert!(ask(&sidecar, line, headers).status >= 500, "{line}");
        }
    }
    // Requests that the client demands to be forwarded fail too.
    assert!(ask(&sidecar, "GET /bkt/k", &[("Cache-Control", "no-cache")]).status >= 500);
    endpoint.on_request(|_| Act::Serve);
    let answer = ask(&sidecar, "GET /bkt/k", &[]);
    assert_eq!((answer.status, answer.header("warning")), (200, None));
}

#[test]
fn an_endpoint_that_does_not_answer_is_not_waited_for_each_time() {
    let (endpoint, sidecar) = warm(SOON);
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |_| Act::Late(held.clone()));
    for _ in 0..3 {
        let answer = ask(&sidecar, "GET /bkt/k", &[]);
        assert!(answer.body == b"one" && answer.header("warning").is_some());
    }
    // Further requests are forwarded only once a second.
    endpoint.take_seen();
    assert_eq!(sidecar.control().status().unwrap().endpoint, EndpointState::Slow);
    for _ in 0..200 {
        assert_eq!(ask(&sidecar, "GET /bkt/k", &[]).body, b"one");
        if endpoint.take_seen().is_empty() {
            gate.open();
            return;
        }
    }
    panic!("each of them has asked");
}

#[test]
fn the_readers_behind_one_that_is_not_answered_fail_with_it() {
    for auth in [Auth::Gateway, Auth::None] {
        let endpoint = Endpoint::start();
        endpoint.put("/bkt/k", object("one", "one"));
        let sidecar = endpoint.sidecar(|config| {
            config.auth = auth;
            config.response_timeout = Duration::from_secs(4);
        });
        let gate = Gate::new();
        let held = gate.clone();
        endpoint.on_request(move |_| Act::Late(held.clone()));
        let mut readers: Vec<_> = (0..5).map(|_| Client::of(&sidecar)).collect();
        for reader in &mut readers {
            reader.send(request("GET /bkt/k", &[]));
        }
        endpoint.wait_for_requests(1);
        for reader in &mut readers {
            assert_eq!(reader.answer().status, 504);
        }
        // One request has checked for all of them.
        assert_eq!(endpoint.take_seen().len(), 1);
        gate.open();
    }
}

#[test]
fn the_readers_behind_one_that_is_not_answered_get_what_memory_has() {
    let (endpoint, _) = warm(PATIENCE);
    let sidecar = endpoint.fresh_sidecar(Fresh::For(Duration::from_nanos(1)), |config| {
        config.policy.stale_if_error = HOUR;
        config.connect_timeout = SOON;
        config.response_timeout = Duration::from_secs(4);
    });
    let range = ("Range", "bytes=0-299007");
    assert_eq!(ask(&sidecar, "GET /bkt/large", &[range]).status, 206);
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |_| Act::Late(held.clone()));
    // Part of the first client's range is missing, so its read waits for the endpoint like any
    // other.
    let mut first = Client::of(&sidecar);
    first.send(request("GET /bkt/large", &[]));
    endpoint.take_seen();
    for _ in 0..3 {
        let answer = ask(&sidecar, "GET /bkt/large", &[range]);
        assert_eq!(
            (answer.status, answer.body.len(), answer.header("warning").is_some()),
            (206, 299_008, true)
        );
    }
    assert_eq!(first.answer().status, 504);
    gate.open();
}

#[test]
fn what_has_changed_or_is_too_old_does_not_answer() {
    let (endpoint, sidecar) = warm(PATIENCE);
    endpoint.on_request(|_| Act::Hang);
    assert!(ask(&sidecar, "DELETE /bkt/k", &[]).status >= 500);
    assert!(ask(&sidecar, "GET /bkt/k", &[]).status >= 500);
    let policy = CachePolicy { stale_if_error: Duration::from_nanos(1), ..CachePolicy::default() };
    sidecar.control().set_policies(policy, Vec::new()).unwrap();
    assert!(ask(&sidecar, "GET /bkt/large", &[("Range", "bytes=0-9")]).status >= 500);
    let policy = CachePolicy { stale_if_error: HOUR, ..CachePolicy::default() };
    sidecar.control().set_policies(policy, Vec::new()).unwrap();
    assert_eq!(ask(&sidecar, "GET /bkt/large", &[("Range", "bytes=0-9")]).status, 206);
    // A refusal counts as a response.
    endpoint.on_request(|_| Act::Raw(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".into()));
    assert_eq!(ask(&sidecar, "GET /bkt/large", &[("Range", "bytes=0-9")]).status, 403);
}

#[test]
fn an_endpoint_that_cannot_be_reached_is_tried_once_a_second_until_it_returns() {
    let away = Away::new();
    let nobody = Endpoint::start();
    let sidecar = nobody.sidecar(|config| config.upstream = away.url().parse().unwrap());
    let mut client = Client::of(&sidecar);
    // The connection is attempted three times. Then requests fail without an attempt, except for
    // one each second.
    for number in 0_u32.. {
        client.send(request("GET /bkt/k", &[]));
        let answer = client.answer();
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.status == 502 && text.contains("cannot reach the S3 endpoint"), "{text}");
        if text.contains("once a second") {
            assert!(number >= 3);
            break;
        }
        assert!(number < 10_000, "each of them was tried");
    }
    let state = || sidecar.control().status().unwrap().endpoint;
    assert!(matches!(state(), EndpointState::Away(_)), "{:?}", state());
    let endpoint = away.come_back();
    endpoint.put("/bkt/k", object("one", "one"));
    loop {
        let answer = client.ask("GET /bkt/k", &[]);
        if answer.status == 200 {
            break assert_eq!(answer.body, b"one");
        }
        assert_eq!(answer.status, 502);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(state(), EndpointState::Serving);
}
