//! Requests that are not understood are forwarded unchanged, and invalid requests are refused.

use std::time::{Duration, Instant};

use s3_sidecar::{Fresh, Sidecar, SidecarConfig};
use test_kit::framing::{AMBIGUOUS, BOTH_LENGTHS, REFUSED, SMUGGLED};

use crate::support::{Act, Away, Client, Endpoint, Gate, Object, ask, object, pattern, request};

#[test]
fn a_request_and_its_answer_pass_unchanged() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|_| ());
    let mut client = Client::of(&sidecar);
    for (line, headers) in [
        (
            "GET /bucket/?list-type=2&prefix=a%2Fb&delimiter=/",
            &[("X-Amz-Date", "now"), ("Accept", "a;q=0.1, b")][..],
        ),
        (
            "GET /bucket//a//../b/./c%2F%20+~?versionId=x%3D",
            &[("Authorization", "AWS4-HMAC-SHA256 Credential=é")],
        ),
        ("POST /bucket?delete", &[]),
        ("OPTIONS /bucket/key", &[("Origin", "https://example.com")]),
        ("HEAD /bucket/none", &[]),
        ("PATCH /", &[("x-twice", "1"), ("x-twice", "2")]),
    ] {
        let answer = client.ask(line, headers);
        let seen = endpoint.take_seen();
        assert_eq!(seen.len(), 1, "{line}");
        assert_eq!(seen[0].line, format!("{line} HTTP/1.1"));
        assert_eq!(seen[0].header("host"), Some("localhost"));
        for (name, value) in headers {
            // Byte for byte, including capital letters.
            assert!(seen[0].headers.contains(&((*name).into(), (*value).into())), "{line}: {:?}", seen[0]);
        }
        assert_eq!(seen[0].headers.len(), headers.len() + 1, "{:?}", seen[0]);
        assert_eq!(answer.header("x-amz-request-id"), Some("r"));
    }
}

#[test]
fn bodies_pass_whatever_their_framing() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|_| ());
    let mut client = Client::of(&sidecar);
    let body = pattern(3_000_000, 1);
    client.send(request("PUT /bucket/key", &[("Content-Length", "3000000")]));
    client.send(&body);
    assert_eq!(client.answer().status, 200);
    // On the same connection.
    client.send(request("PUT /bucket/chunked", &[("Transfer-Encoding", "chunked")]));
    client.send("5\r\nhello\r\n6;ext=1\r\n world\r\n0\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    let seen = endpoint.take_seen();
    assert_eq!((seen[0].body == body, &seen[1].body[..]), (true, &b"hello world"[..]));
    assert_eq!(client.ask("DELETE /bucket/chunked", &[]).status, 204);
    let head = client.ask("HEAD /bucket/key", &[]);
    assert_eq!((head.status, head.header("content-length")), (200, Some("3000000")));
    let whole = client.ask("GET /bucket/key", &[]);
    assert_eq!((whole.status, whole.body == body), (200, true));
    // A chunked answer.
    endpoint.on_request(|_| {
        Act::Raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n".into())
    });
    assert_eq!(client.ask("GET /bucket?list", &[]).body, b"abc");
}

#[test]
fn answers_are_framed_in_one_way() {
    let endpoint = Endpoint::start();
    let (te, both) = ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 2");
    let chunks = "5\r\nhello\r\n0\r\n\r\n";
    for sidecar in [endpoint.sidecar(|_| ()), endpoint.fresh_sidecar(Fresh::Immutable, |_| ())] {
        for (head, body, expected) in [
            (format!("200 OK\r\n{te}"), chunks, Some("hello")),
            (format!("200 OK\r\n{both}"), chunks, Some("hello")),
            (format!("200 OK\r\nETag: \"a\"\r\n{both}"), chunks, Some("hello")),
            ("200 OK\r\nContent-Length: 5\r\nContent-Length: 5".into(), "hello", Some("hello")),
            ("200 OK\r\nContent-Length: 5, 5".into(), "hello", Some("hello")),
            ("200 OK\r\nETag: \"a\"".into(), "hello", Some("hello")),
            ("200 OK\r\nContent-Length: 5\r\nContent-Length: 2".into(), "hello", None),
            ("200 OK\r\nContent-Length: +5".into(), "hello", None),
            ("200 OK\r\nTransfer-Encoding: gzip, chunked".into(), chunks, None),
            ("200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5".into(), "hello", None),
            ("101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade".into(), "hello", None),
        ] {
            // The endpoint closes the connection, so no later request may be sent on it.
            let raw = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{body}").into_bytes();
            endpoint.on_request(move |_| Act::Raw(raw.clone()));
            for line in ["GET /bkt/k", "GET /bkt?list", "POST /bkt/k?uploads"] {
                let answer = ask(&sidecar, line, &[("Cache-Control", "no-cache")]);
                let (status, lengths) = (answer.status, answer.headers.iter());
                let lengths = lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length")).count();
                let text = String::from_utf8_lossy(&answer.body).into_owned();
                assert!(!answer.is_cut && lengths <= 1, "{head} {line}: {answer:?}");
                match expected {
                    Some(body) => assert_eq!((status, &*text), (200, body), "{head} {line}"),
                    None => {
                        assert!(status == 502 && text.contains("<Code>BadGateway"), "{head} {line}: {text}");
                    }
                }
            }
        }
        // The answer to a HEAD has no body, and must not state an invalid length.
        for (len, status) in [("5, 5", 200), ("5, 6", 502), ("-1", 502)] {
            let raw =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n").into_bytes();
            endpoint.on_request(move |_| Act::Raw(raw.clone()));
            let answer = ask(&sidecar, "HEAD /bkt/k?versionId=1", &[]);
            assert_eq!(answer.status, status, "{len}");
            assert!(status != 200 || answer.header("content-length") == Some("5"));
        }
    }
}

#[test]
fn an_answer_before_the_end_of_an_upload_reaches_the_client() {
    let endpoint = Endpoint::start();
    for sidecar in [endpoint.sidecar(|_| ()), endpoint.fresh_sidecar(Fresh::Immutable, |_| ())] {
        for status in [503, 411, 403] {
            let raw = format!("HTTP/1.1 {status} Now\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly");
            endpoint.on_request(move |_| Act::RefuseAndClose(raw.clone().into_bytes()));
            for len in [100_000, 900_000, 5_000_000] {
                for framing in ["Content-Length", "Transfer-Encoding"] {
                    let mut client = Client::of(&sidecar);
                    let value = if framing == "Content-Length" { len.to_string() } else { "chunked".into() };
                    client.send(request("PUT /bkt/k", &[(framing, &value)]));
                    let begin =
                        if framing == "Content-Length" { String::new() } else { format!("{len:x}\r\n") };
                    // The sidecar may or may not accept the body.
                    let _sent = client.try_send(&[begin.into_bytes(), pattern(len, 0)].concat());
                    let answer = client.answer();
                    assert_eq!((answer.status, &answer.body[..]), (status, &b"early"[..]), "{len} {framing}");
                }
            }
        }
    }
}

#[test]
fn two_kib_of_user_metadata_pass_in_any_number_of_entries_if_that_is_configured() {
    let endpoint = Endpoint::start();
    let more = |config: &mut SidecarConfig| config.headers_max = 1200;
    for sidecar in [endpoint.sidecar(more), endpoint.fresh_sidecar(Fresh::Immutable, more)] {
        // All names of one or two letters or digits, with empty values: 2044 bytes.
        let letters = "abcdefghijklmnopqrstuvwxyz0123456789";
        let two = letters.chars().flat_map(|one| letters.chars().map(move |other| format!("{one}{other}")));
        let all: Vec<_> = letters.chars().map(String::from).chain(two).take(1040).collect();
        assert_eq!(all.iter().map(String::len).sum::<usize>(), 2044);
        let names: Vec<_> = all.iter().map(|name| format!("x-amz-meta-{name}")).collect();
        let mut headers: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        headers.push(("Content-Length", "0"));
        let answer = ask(&sidecar, "PUT /bkt/k", &headers);
        assert_eq!(answer.status, 200, "{}", String::from_utf8_lossy(&answer.body));
        let seen = endpoint.take_seen().remove(0);
        assert!(names.iter().all(|name| seen.header(name) == Some("")));
        let mut large = object("large", "body");
        large.headers = names.iter().map(|name| (name.clone(), String::new())).collect();
        endpoint.put("/bkt/k", large);
        for line in ["GET /bkt/k", "GET /bkt/k", "HEAD /bkt/k"] {
            let answer = ask(&sidecar, line, &[]);
            assert_eq!(answer.status, 200, "{line}");
            assert!(names.iter().all(|name| answer.header(name) == Some("")), "{line}");
        }
        endpoint.take_seen();
    }
}

#[test]
fn heads_beyond_their_limit_are_refused_in_both_directions() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| config.head_bytes_max = 8 << 10);
    let [short, long, longest] = [7 << 10, 9 << 10, 64 << 10].map(|len| "x".repeat(len));
    endpoint.put("/bkt/k", object("a", "body"));
    assert_eq!(ask(&sidecar, "GET /bkt/k", &[("x-amz-meta-m", &short)]).status, 200);
    assert_eq!(endpoint.take_seen()[0].header("x-amz-meta-m"), Some(&*short));
    let mut client = Client::of(&sidecar);
    // The request is answered before it has been sent completely.
    let _ = client.try_send(request("GET /bkt/k", &[("x-amz-meta-m", &long)]).as_bytes());
    assert_eq!(client.answer().status, 431);
    assert!(client.is_closed() && endpoint.take_seen().is_empty());
    // Each object has a new ETag, so that the endpoint sends its headers.
    for (etag, value, status) in [("b", short, 200), ("c", longest, 502)] {
        endpoint
            .put("/bkt/k", Object { headers: vec![("x-amz-meta-m".into(), value)], ..object(etag, "body") });
        assert_eq!(ask(&sidecar, "GET /bkt/k", &[]).status, status);
    }
}

#[test]
fn more_headers_than_the_limit_are_refused_in_both_directions() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|_| ());
    let names: Vec<String> = (0..110).map(|number| format!("x-amz-meta-{number}")).collect();
    for (count, is_within) in [(90, true), (110, false)] {
        let sent: Vec<(&str, &str)> = names[..count].iter().map(|name| (name.as_str(), "1")).collect();
        let headers = sent.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        endpoint.put("/bkt/few", object("a", "body"));
        // Each object has a new ETag, so that the endpoint sends its headers.
        endpoint.put("/bkt/many", Object { headers, ..object(&count.to_string(), "body") });
        let mut client = Client::of(&sidecar);
        // The request is answered before it has been sent completely.
        let _ = client.try_send(request("GET /bkt/few", &sent).as_bytes());
        assert_eq!(client.answer().status, if is_within { 200 } else { 431 }, "{count}");
        let answer = ask(&sidecar, "GET /bkt/many", &[]);
        assert_eq!(answer.status, if is_within { 200 } else { 502 }, "{count}");
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(text.contains("beyond 100 headers (s3.headers_max of cached)"), !is_within, "{text}");
    }
}

#[test]
fn headers_of_a_connection_stay_on_it() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|_| ());
    endpoint.on_request(|_| {
        Act::Raw(
            b"HTTP/1.1 200 OK\r\nConnection: close, X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=1\r\n\
            Content-Length: 2\r\nX-Other: 2\r\n\r\nok"
                .into(),
        )
    });
    let mut client = Client::of(&sidecar);
    for _ in 0..2 {
        let headers = [
            ("Connection", "keep-alive, x-hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "5"),
            ("TE", "trailers"),
            ("X-End", "2"),
        ];
        let answer = client.ask("POST /bucket?x", &headers);
        assert_eq!((answer.header("x-mine"), answer.header("keep-alive")), (None, None));
        assert_eq!((answer.header("x-other"), &answer.body[..]), (Some("2"), &b"ok"[..]));
        let seen = endpoint.take_seen();
        assert_eq!(
            (seen[0].header("x-hop"), seen[0].header("te"), seen[0].header("x-end")),
            (None, None, Some("2"))
        );
    }
}

#[test]
fn a_body_that_the_endpoint_refuses_is_not_sent() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|_| ());
    let headers = [("Content-Length", "5"), ("Expect", "100-continue")];
    let mut client = Client::of(&sidecar);
    client.send(request("PUT /bucket/key", &headers));
    assert_eq!(client.head().unwrap().status, 100);
    client.send("hello");
    assert_eq!(client.answer().status, 200);
    assert_eq!(endpoint.take_seen()[0].body, b"hello");
    endpoint.on_request(|_| Act::Raw(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno".into()));
    client.send(request("PUT /bucket/key", &headers));
    // There is no status 100 first.
    let answer = client.answer();
    assert_eq!((answer.status, &answer.body[..]), (403, &b"no"[..]));
}

#[test]
fn a_body_that_was_not_asked_for_is_no_request() {
    let smuggled = "GET /bucket/secret HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let len = smuggled.len().to_string();
    for is_late in [false, true] {
        let endpoint = Endpoint::start();
        endpoint.put("/bucket/secret", object("s", "of another user"));
        // Only an endpoint that answers late is given the body without having asked for it.
        let sidecar = endpoint.sidecar(|config| {
            if is_late {
                config.continue_wait_max = Duration::from_millis(100);
            }
        });
        endpoint.on_request(move |seen| match seen.method() {
            "PUT" => {
                let bytes = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno".into();
                Act::Refuse { bytes, is_late }
            }
            _ => Act::Serve,
        });
        for _ in 0..3 {
            let mut client = Client::of(&sidecar);
            let put = request("PUT /bucket/key", &[("Content-Length", &len), ("Expect", "100-continue")]);
            // The client does not wait for status 100.
            client.send(format!("{put}{smuggled}"));
            let answer = match client.answer() {
                answer if answer.status == 100 => client.answer(),
                answer => answer,
            };
            assert_eq!((answer.status, &answer.body[..]), (403, &b"no"[..]));
            assert_eq!(ask(&sidecar, "GET /bucket/other", &[]).status, 404);
        }
        let lines: Vec<_> = endpoint.take_seen().into_iter().map(|seen| seen.line).collect();
        let is_there = lines.iter().any(|line| line.contains("secret"));
        // The data sent before the answer belong to that connection.
        assert_eq!(is_there, is_late, "{lines:?}");
    }
}

#[test]
fn a_body_reaches_an_endpoint_that_ignores_expectations() {
    let endpoint = Endpoint::start();
    endpoint.answer_no_expectation();
    let sidecar = endpoint.sidecar(|config| config.continue_wait_max = Duration::from_millis(100));
    let mut client = Client::of(&sidecar);
    client.send(request("PUT /bucket/key", &[("Content-Length", "5"), ("Expect", "100-continue")]));
    assert_eq!(client.head().unwrap().status, 100);
    client.send("hello");
    assert_eq!(client.answer().status, 200);
}

#[test]
fn what_two_readers_could_understand_differently_is_refused_and_ends_the_connection() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|_| ());
    for both in BOTH_LENGTHS {
        // The chunks determine the length, and nothing after them is a request.
        let mut client = Client::of(&sidecar);
        client.send(format!("POST /b/k HTTP/1.1\r\nHost: localhost\r\n{both}\r\n\r\n{SMUGGLED}"));
        assert_eq!(client.answer().status, 200);
        assert!(client.is_closed());
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[0].header("content-length"), &seen[0].body[..]), (1, None, &b""[..]));
    }
    let signed = "GET /b/k HTTP/1.1\r\nHost: localhost\r\nConnection: x-amz_date\r\n\r\n";
    for head in AMBIGUOUS.into_iter().chain([signed]) {
        let mut client = Client::of(&sidecar);
        client.send(head);
        // The sidecar may have closed the connection already.
        let _ = client.try_send(SMUGGLED.as_bytes());
        let answer = client.head();
        let is_one =
            endpoint.take_seen().iter().all(|seen| seen.target() == "/b/k" && seen.method() == "POST");
        assert!(is_one, "{head}");
        match answer {
            None => (),
            Some(answer) if answer.status == 400 => (),
            Some(answer) => panic!("{head}: {answer:?}"),
        }
    }
    // Headers that the library would remove only partly, or not forward.
    for (head, status) in REFUSED {
        let mut client = Client::of(&sidecar);
        client.send(head);
        let _ = client.try_send(SMUGGLED.as_bytes());
        let answer = client.answer();
        assert!(answer.status == status && client.is_closed(), "{head}: {answer:?}");
    }
    assert!(endpoint.take_seen().is_empty());
    let big = "x".repeat(200 << 10);
    let mut client = Client::of(&sidecar);
    let _ = client.try_send(request("GET /b/k", &[("X-Big", &big)]).as_bytes());
    assert!(client.head().is_none_or(|answer| answer.status == 431));
    assert!(endpoint.take_seen().is_empty());
}

#[test]
fn what_the_endpoint_does_wrong_is_stated() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|_| ());
    endpoint.put("/bucket/key", object("a", pattern(100_000, 0)));
    let expect_of = |sidecar: &Sidecar, line: &str, status| {
        let answer = ask(sidecar, line, &[]);
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        assert_eq!(answer.status, status, "{text}");
        assert!(status == 200 || text.contains("<Error><Code>"), "{text}");
    };
    let expect = |line: &str, status| expect_of(&sidecar, line, status);
    endpoint.on_request(|_| Act::Hang);
    expect("GET /bucket/key", 502);
    expect("POST /bucket?x", 502);
    // A read is tried twice, because the connection might have been an old one.
    assert_eq!(endpoint.take_seen().len(), 3);
    endpoint.on_request(|_| Act::Raw(b"nonsense\r\n\r\n".into()));
    expect("GET /bucket/key", 502);
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |_| Act::ServeAfter(held.clone()));
    let impatient = endpoint.sidecar(|config| config.response_timeout = Duration::from_secs(1));
    expect_of(&impatient, "GET /bucket/key", 504);
    gate.open();
    for act in [
        Act::CutAt(50_000),
        Act::Raw(b"HTTP/1.1 200 OK\r\nETag: \"a\"\r\nContent-Length: 100000\r\n\r\nshort".into()),
    ] {
        endpoint.on_request(move |_| act.clone());
        assert!(ask(&sidecar, "GET /bucket/key", &[]).is_cut);
    }
    endpoint.on_request(|_| Act::Serve);
    assert_eq!(ask(&sidecar, "GET /bucket/key", &[]).body, pattern(100_000, 0));
}

#[test]
fn an_endpoint_that_is_away_is_a_clear_error_and_its_return_is_noticed() {
    let away = Away::new();
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| config.upstream = away.url().parse().unwrap());
    let answer = ask(&sidecar, "GET /bucket/key", &[]);
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    assert!(answer.status == 502 && text.contains("cannot reach the S3 endpoint"), "{text}");
    assert_eq!(sidecar.counts().failed.get(), 1);
}

#[test]
fn connections_beyond_the_limit_are_answered_and_closed() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| config.connections_max = 2);
    let mut clients = [Client::of(&sidecar), Client::of(&sidecar)];
    clients.iter_mut().for_each(|client| assert_eq!(client.ask("HEAD /b/none", &[]).status, 404));
    let answer = Client::of(&sidecar).answer();
    assert!(answer.status == 503 && !answer.is_cut, "{answer:?}");
    assert_eq!(answer.body.len().to_string(), answer.header("content-length").unwrap());
}

#[test]
fn clients_that_stand_still_are_disconnected() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| {
        config.client_idle_max = Duration::from_secs(1);
        config.stall_max = Duration::from_secs(1);
    });
    endpoint.put("/b/large", object("a", pattern(20_000_000, 0)));
    let begun = Instant::now();
    // A client that is delayed here may have been disconnected already.
    let mut in_head = Client::of(&sidecar);
    let _ = in_head.try_send(b"GET /b/k HTTP/1.1\r\nHost: loc");
    let mut in_body = Client::of(&sidecar);
    let half = request("PUT /b/k", &[("Content-Length", "10")]) + "half";
    let _ = in_body.try_send(half.as_bytes());
    let mut takes_nothing = Client::of(&sidecar);
    let _ = takes_nothing.try_send(request("GET /b/large", &[]).as_bytes());
    // Each of them waits until it is disconnected.
    drop(in_head.head());
    assert!(in_head.is_closed());
    assert!(in_body.head().is_none_or(|answer| answer.status == 400));
    while sidecar.counts().connections_now.get() > 0.0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(begun.elapsed() >= Duration::from_secs(1), "they had their time");
}
