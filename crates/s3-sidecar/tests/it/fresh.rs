//! Reads that are answered without the endpoint as long as the known object is fresh, and no
//! longer.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Act, Answer, Client, Endpoint, Gate, ask, object, pattern, request};
use s3_sidecar::{CachePolicy, Fresh, Rule, Sidecar};

const HOUR: Fresh = Fresh::For(Duration::from_secs(3600));
const NEVER: Fresh = Fresh::For(Duration::ZERO);
const SIZE: usize = 300_001;

fn whole() -> Vec<u8> {
    pattern(SIZE, 0)
}

fn with_object(fresh: Fresh) -> (Endpoint, Sidecar) {
    let endpoint = Endpoint::start();
    let mut one = object("one", whole());
    one.headers =
        vec![("x-amz-meta-colour".into(), "green".into()), ("Content-Type".into(), "text/x".into())];
    endpoint.put("/bkt/k", one);
    let sidecar = endpoint.fresh_sidecar(fresh, |config| config.policy.negative = Duration::from_secs(3600));
    (endpoint, sidecar)
}

fn get(sidecar: &Sidecar, headers: &[(&str, &str)]) -> Answer {
    ask(sidecar, "GET /bkt/k", headers)
}

#[test]
fn what_is_fresh_is_answered_without_the_endpoint() {
    let (endpoint, sidecar) = with_object(HOUR);
    let began = Instant::now();
    let first = get(&sidecar, &[]);
    assert!(first.body == whole() && first.header("age").is_none());
    endpoint.take_seen();
    let second = get(&sidecar, &[]);
    assert!(second.status == 200 && second.body == whole());
    let age: u64 = second.header("age").unwrap().parse().unwrap();
    assert!(age <= began.elapsed().as_secs(), "{age}");
    for name in ["etag", "last-modified", "content-length", "x-amz-meta-colour", "content-type"] {
        assert_eq!(first.header(name), second.header(name), "{name}");
    }
    for (range, from, to) in [("bytes=5-9", 5, 10), ("bytes=-7", SIZE - 7, SIZE), ("bytes=4000-", 4000, SIZE)]
    {
        let part = get(&sidecar, &[("Range", range)]);
        assert_eq!((part.status, part.body == whole()[from..to]), (206, true), "{range}");
        assert_eq!(part.header("content-range"), Some(format!("bytes {from}-{}/{SIZE}", to - 1).as_str()));
    }
    let head = ask(&sidecar, "HEAD /bkt/k", &[]);
    assert_eq!((head.status, head.header("content-length")), (200, Some(SIZE.to_string().as_str())));
    assert_eq!(head.header("x-amz-meta-colour"), Some("green"));
    assert!(endpoint.take_seen().is_empty());
    assert_eq!((sidecar.counts().hits.get(), sidecar.counts().misses.get()), (5, 1));
    // An empty object.
    endpoint.put("/bkt/empty", object("empty", ""));
    for _ in 0..2 {
        let answer = ask(&sidecar, "GET /bkt/empty", &[]);
        assert_eq!((answer.status, answer.header("content-length")), (200, Some("0")));
    }
    assert_eq!(endpoint.take_seen().len(), 1);
}

#[test]
fn conditions_are_decided_from_memory() {
    let (endpoint, sidecar) = with_object(HOUR);
    get(&sidecar, &[]);
    endpoint.take_seen();
    let at = "Mon, 01 Jan 2024 00:00:00 GMT";
    for (name, value, status) in [
        ("If-None-Match", "\"one\"", 304),
        ("If-None-Match", "\"x\", W/\"one\"", 304),
        ("If-None-Match", "\"x\"", 200),
        ("If-Match", "\"one\"", 200),
        ("If-Match", "\"x\"", 412),
        ("If-Modified-Since", at, 304),
        ("If-Modified-Since", "Sun, 31 Dec 2023 00:00:00 GMT", 200),
        ("If-Unmodified-Since", at, 200),
        ("If-Unmodified-Since", "Sun, 31 Dec 2023 00:00:00 GMT", 412),
    ] {
        let answer = get(&sidecar, &[(name, value)]);
        assert_eq!(answer.status, status, "{name}: {value}");
        assert_eq!(answer.header("etag").is_some(), status != 412);
        let head = ask(&sidecar, "HEAD /bkt/k", &[(name, value)]);
        assert_eq!(head.status, status, "HEAD {name}: {value}");
    }
    let range = ("Range", "bytes=0-9");
    assert_eq!(get(&sidecar, &[range, ("If-Range", "\"one\"")]).body.len(), 10);
    assert_eq!(get(&sidecar, &[range, ("If-Range", "\"x\"")]).body.len(), SIZE);
    assert!(endpoint.take_seen().is_empty());
    // The endpoint has to judge a value that is not a date.
    assert_eq!(get(&sidecar, &[("If-Modified-Since", "yesterday")]).status, 200);
    assert_eq!(endpoint.take_seen().len(), 1);
}

#[test]
fn clients_may_demand_that_the_endpoint_is_asked() {
    let (endpoint, sidecar) = with_object(Fresh::Immutable);
    get(&sidecar, &[]);
    endpoint.take_seen();
    for (name, value) in
        [("Cache-Control", "no-cache"), ("Cache-Control", "max-age=0"), ("Pragma", "no-cache")]
    {
        let answer = get(&sidecar, &[(name, value)]);
        assert!(answer.body == whole() && answer.header("age").is_none());
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[0].method()), (1, "HEAD"));
    }
    assert_eq!(get(&sidecar, &[("Cache-Control", "max-age=3600")]).body.len(), SIZE);
    assert!(endpoint.take_seen().is_empty());
    assert_eq!(sidecar.counts().revalidated.get(), 3);
}

#[test]
fn an_object_may_demand_it_too() {
    let (endpoint, sidecar) = with_object(HOUR);
    let mut cautious = object("c", "cautious");
    cautious.headers = vec![("Cache-Control".into(), "max-age=9, no-cache".into())];
    endpoint.put("/bkt/c", cautious);
    for number in 0..3 {
        assert_eq!(ask(&sidecar, "GET /bkt/c", &[]).body, b"cautious");
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[0].method() == "HEAD"), (1, number > 0));
    }
}

#[test]
fn without_freshness_each_read_asks_and_gets_what_the_endpoint_has() {
    let (endpoint, sidecar) = with_object(NEVER);
    get(&sidecar, &[]);
    endpoint.take_seen();
    for line in ["GET /bkt/k", "HEAD /bkt/k"] {
        assert_eq!(ask(&sidecar, line, &[]).status, 200);
        let seen = endpoint.take_seen();
        assert_eq!(
            (seen.len(), seen[0].method(), seen[0].header("if-none-match")),
            (1, "HEAD", None),
            "{line}"
        );
    }
    endpoint.put("/bkt/k", object("two", "two"));
    assert_eq!(get(&sidecar, &[("If-None-Match", "\"one\"")]).body, b"two");
    endpoint.put("/bkt/k", object("three", "three"));
    // The client has the endpoint's version, and memory has another one.
    assert_eq!(get(&sidecar, &[("If-None-Match", "\"three\"")]).status, 304);
    assert_eq!(get(&sidecar, &[("If-None-Match", "\"three\"")]).status, 304);
    endpoint.put("/bkt/k", object("four", "four"));
    assert_eq!(get(&sidecar, &[("If-Match", "\"three\"")]).status, 412);
    assert_eq!(get(&sidecar, &[]).body, b"four");
    endpoint.remove("/bkt/k");
    assert_eq!(get(&sidecar, &[]).status, 404);
}

#[test]
fn an_object_is_asked_about_by_its_head_and_comes_as_it_is_asked_for_if_it_has_changed() {
    let (endpoint, sidecar) = with_object(NEVER);
    get(&sidecar, &[]);
    endpoint.take_seen();
    assert!(get(&sidecar, &[]).body == whole());
    let seen = endpoint.take_seen();
    assert_eq!((seen.len(), seen[0].method()), (1, "HEAD"));
    for (etag, size) in [("two", SIZE), ("none", 0)] {
        endpoint.put("/bkt/k", object(etag, pattern(size, 9)));
        let answer = get(&sidecar, &[("If-None-Match", "\"one\"")]);
        assert_eq!((answer.status, answer.body == pattern(size, 9)), (200, true));
        assert!(answer.header("content-range").is_none());
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[1].header("range")), (2, None));
        // The object is requested with the client's own condition.
        assert_eq!(seen[1].header("if-none-match"), Some("\"one\""));
    }
}

#[test]
fn the_time_of_freshness_counts_from_the_question() {
    let endpoint = Endpoint::start();
    endpoint.put("/bkt/k", object("one", "one"));
    let time = Duration::from_secs(1);
    let sidecar = endpoint.fresh_sidecar(Fresh::For(time), |_| ());
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |_| Act::Late(held.clone()));
    let mut client = Client::of(&sidecar);
    let began = Instant::now();
    client.send(request("GET /bkt/k", &[]));
    endpoint.wait_for_requests(1);
    // The response takes longer than its freshness.
    while began.elapsed() < 2 * time {
        thread::yield_now();
    }
    gate.open();
    assert_eq!(client.answer().body, b"one");
    endpoint.take_seen();
    endpoint.put("/bkt/k", object("two", "two"));
    assert_eq!(ask(&sidecar, "GET /bkt/k", &[]).body, b"two");
    assert_eq!(endpoint.take_seen()[0].method(), "HEAD");
}

#[test]
fn what_is_verified_is_fresh_again() {
    let (endpoint, sidecar) = with_object(Fresh::For(Duration::from_millis(300)));
    get(&sidecar, &[]);
    // The object is revalidated from time to time and then fresh for a while, so that few of many
    // reads need the endpoint.
    let (mut reads, mut questions) = (0, 0);
    while questions < 2 {
        endpoint.take_seen();
        let answer = get(&sidecar, &[("Range", "bytes=0-9")]);
        assert_eq!(answer.body, whole()[..10]);
        reads += 1;
        questions += endpoint.take_seen().len();
    }
    assert_eq!((sidecar.counts().revalidated.get(), sidecar.counts().misses.get()), (2, 1));
    assert_eq!(sidecar.counts().hits.get(), reads - 2);
}

#[test]
fn the_readers_of_what_has_become_old_ask_once() {
    let (endpoint, sidecar) = with_object(HOUR);
    get(&sidecar, &[]);
    let rule = |fresh| CachePolicy { fresh, ..CachePolicy::default() };
    // From now on, everything known is too old.
    sidecar.control().set_policies(rule(Fresh::For(Duration::from_nanos(1))), Vec::new()).unwrap();
    endpoint.take_seen();
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |_| Act::Late(held.clone()));
    thread::scope(|scope| {
        let readers: Vec<_> = (0..5).map(|_| scope.spawn(|| get(&sidecar, &[]).body == whole())).collect();
        endpoint.wait_for_requests(1);
        while sidecar.counts().connections_now.get() < 5.0 {
            thread::yield_now();
        }
        sidecar.control().set_policies(rule(HOUR), Vec::new()).unwrap();
        gate.open();
        readers.into_iter().for_each(|reader| assert!(reader.join().unwrap()));
    });
    let seen = endpoint.take_seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[test]
fn a_head_is_known_and_brings_no_bytes() {
    let (endpoint, sidecar) = with_object(HOUR);
    for _ in 0..2 {
        let head = ask(&sidecar, "HEAD /bkt/k", &[]);
        assert_eq!((head.status, head.header("content-length")), (200, Some(SIZE.to_string().as_str())));
    }
    assert_eq!(endpoint.take_seen().len(), 1);
    for _ in 0..2 {
        assert!(get(&sidecar, &[]).body == whole());
    }
    let seen = endpoint.take_seen();
    assert_eq!((seen.len(), seen[0].header("if-none-match")), (1, None));
}

#[test]
fn what_changes_without_the_etag_is_as_new_as_the_last_question() {
    let (endpoint, sidecar) = with_object(NEVER);
    let with = |headers: &[(&str, &str)]| {
        let mut tagged = object("one", whole());
        let owned = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        tagged.headers = owned.collect();
        endpoint.put("/bkt/k", tagged);
    };
    let names =
        ["x-amz-tagging-count", "x-amz-storage-class", "x-amz-object-lock-legal-hold", "x-amz-restore"];
    let headers = |value| names.map(|name| (name, value));
    for _ in 0..2 {
        // Missing headers are a change too.
        for value in [Some("1"), Some("2"), None] {
            with(&value.map(|value| headers(value).to_vec()).unwrap_or_default());
            for range in [&[][..], &[("Range", "bytes=0-9")]] {
                let answer = get(&sidecar, range);
                assert!(answer.status / 100 == 2);
                for name in names {
                    assert_eq!(answer.header(name), value, "{name}");
                }
            }
        }
    }
    assert_eq!(sidecar.counts().misses.get(), 1, "the body is the same all the time");
}

#[test]
fn a_head_does_not_state_that_an_object_is_empty() {
    let (endpoint, sidecar) = with_object(HOUR);
    endpoint.on_request(|seen| match seen.method() {
        "HEAD" => Act::Raw(b"HTTP/1.1 200 OK\r\nETag: \"one\"\r\nContent-Length: 0\r\n\r\n".into()),
        _ => Act::Serve,
    });
    assert_eq!(ask(&sidecar, "HEAD /bkt/k", &[]).header("content-length"), Some("0"));
    assert!(get(&sidecar, &[]).body == whole());
    // An empty object, known to be empty from its GET, stays known.
    endpoint.on_request(|_| Act::Serve);
    endpoint.put("/bkt/empty", object("empty", ""));
    for (line, questions) in
        [("HEAD /bkt/empty", 1), ("HEAD /bkt/empty", 0), ("GET /bkt/empty", 1), ("GET /bkt/empty", 0)]
    {
        endpoint.take_seen();
        assert_eq!(ask(&sidecar, line, &[]).header("content-length"), Some("0"));
        assert_eq!(endpoint.take_seen().len(), questions, "{line}");
    }
}

#[test]
fn rules_decide_for_buckets_and_prefixes() {
    let endpoint = Endpoint::start();
    let rule =
        |bucket: &str, prefix: &str, policy| Rule { bucket: bucket.into(), prefix: prefix.into(), policy };
    let fresh = CachePolicy { fresh: Fresh::Immutable, ..CachePolicy::default() };
    let off = CachePolicy { caches: false, ..fresh };
    let sidecar = endpoint.fresh_sidecar(NEVER, |config| {
        config.rules = vec![rule("bkt", "", fresh), rule("bkt", "off/", off), rule("bkt", "off/on/", fresh)];
    });
    for (path, questions, is_verified) in
        [("/bkt/k", 1, false), ("/bkt/off/k", 3, false), ("/bkt/off/on/k", 1, false), ("/cup/k", 3, true)]
    {
        endpoint.put(path, object("e", path));
        for _ in 0..3 {
            assert_eq!(ask(&sidecar, &format!("GET {path}"), &[]).body, path.as_bytes());
        }
        let seen = endpoint.take_seen();
        let verified = seen.iter().filter(|seen| seen.method() == "HEAD").count();
        assert_eq!((seen.len(), verified > 0), (questions, is_verified), "{path}");
    }
    // The rules can be replaced.
    sidecar.control().set_policies(CachePolicy::default(), vec![rule("cup", "", fresh)]).unwrap();
    for path in ["/bkt/k", "/cup/k"] {
        ask(&sidecar, &format!("GET {path}"), &[]);
    }
    let seen = endpoint.take_seen();
    assert_eq!((seen.len(), seen[0].target()), (1, "/bkt/k"));
    let twice = vec![rule("cup", "", fresh), rule("cup", "", off)];
    assert!(sidecar.control().set_policies(fresh, twice).unwrap_err().to_string().contains("twice"));
}

#[test]
fn objects_that_are_not_there_are_remembered() {
    let (endpoint, sidecar) = with_object(HOUR);
    for _ in 0..3 {
        let answer = ask(&sidecar, "GET /bkt/none", &[]);
        assert_eq!((answer.status, &answer.body[..]), (404, &b"<Code>NoSuchKey</Code>"[..]));
        // Both the document and the headers name the request that was answered.
        assert_eq!(answer.header("x-amz-request-id"), Some("r"));
        assert_eq!(ask(&sidecar, "HEAD /bkt/none", &[]).status, 404);
    }
    assert_eq!((endpoint.take_seen().len(), sidecar.counts().absent.get()), (1, 5));
    // The 404 response to a HEAD has no body with which to answer a GET.
    for (line, questions) in
        [("HEAD /bkt/nor", 1), ("HEAD /bkt/nor", 0), ("GET /bkt/nor", 1), ("GET /bkt/nor", 0)]
    {
        assert_eq!(ask(&sidecar, line, &[]).status, 404);
        assert_eq!(endpoint.take_seen().len(), questions, "{line}");
    }
    assert_eq!(ask(&sidecar, "GET /bkt/none", &[("Cache-Control", "no-cache")]).status, 404);
    assert_eq!(endpoint.take_seen().len(), 1);
    // A change ends the cached absence.
    let mut client = Client::of(&sidecar);
    client.send(request("PUT /bkt/none", &[("Content-Length", "3")]));
    client.send("new");
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.ask("GET /bkt/none", &[]).body, b"new");
    assert_eq!(client.ask("DELETE /bkt/none", &[]).status, 204);
    assert_eq!(client.ask("GET /bkt/none", &[]).status, 404);
    // Without a time for it, absences are not remembered.
    let sidecar = endpoint.fresh_sidecar(HOUR, |_| ());
    endpoint.take_seen();
    (0..3).for_each(|_| assert_eq!(ask(&sidecar, "GET /bkt/none", &[]).status, 404));
    assert_eq!(endpoint.take_seen().len(), 3);
}

#[test]
fn what_has_gone_is_not_known_any_more() {
    let (endpoint, sidecar) = with_object(HOUR);
    get(&sidecar, &[]);
    endpoint.remove("/bkt/k");
    assert_eq!(get(&sidecar, &[("Cache-Control", "no-cache")]).status, 404);
    endpoint.take_seen();
    // Now the absence is known.
    assert_eq!((get(&sidecar, &[]).status, endpoint.take_seen().len()), (404, 0));
}

#[test]
fn an_absence_is_remembered_without_a_length_of_its_document() {
    let (endpoint, sidecar) = with_object(HOUR);
    let chunk = |len: usize| format!("{len:x}\r\n{}\r\n", "x".repeat(len));
    for (lens, is_kept) in
        [(&[5][..], true), (&[4000, 4192], true), (&[4000, 4193], false), (&[9000, 10_000], false)]
    {
        let document: String = lens.iter().map(|len| chunk(*len)).collect();
        let raw = format!("HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n{document}0\r\n\r\n");
        endpoint.on_request(move |_| Act::Raw(raw.clone().into_bytes()));
        let path = format!("GET /bkt/{}", lens.iter().sum::<usize>());
        for _ in 0..3 {
            let answer = ask(&sidecar, &path, &[]);
            assert_eq!((answer.status, answer.body.len()), (404, lens.iter().sum()), "{lens:?}");
        }
        assert_eq!(endpoint.take_seen().len(), if is_kept { 1 } else { 3 }, "{lens:?}");
    }
}

/// A response with too little information to be cached.
const UNKEPT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew";

#[test]
fn an_answer_that_cannot_be_kept_ends_what_was_known() {
    let (endpoint, sidecar) = with_object(Fresh::Immutable);
    get(&sidecar, &[]);
    endpoint.on_request(|_| Act::Raw(UNKEPT.into()));
    assert_eq!(get(&sidecar, &[("Cache-Control", "no-cache")]).body, b"new");
    endpoint.put("/bkt/k", object("two", "two"));
    endpoint.on_request(|_| Act::Serve);
    assert_eq!(get(&sidecar, &[]).body, b"two");
}

#[test]
fn conditions_that_were_not_asked_are_decided_on_every_answer() {
    let (endpoint, sidecar) = with_object(NEVER);
    for (name, value, status) in [
        ("If-Match", "\"x\"", 412),
        ("If-Match", "\"one\"", 200),
        ("If-None-Match", "\"one\"", 304),
        ("If-Modified-Since", "yesterday", 200),
    ] {
        endpoint.on_request(|_| Act::Serve);
        get(&sidecar, &[]);
        endpoint.take_seen();
        // The answer to the check of the known object does not allow a decision.
        let own = (name.to_ascii_lowercase(), value);
        endpoint.on_request(move |seen| {
            match seen.header(&own.0) == Some(own.1) && seen.header("range").is_none() {
                true => Act::Serve,
                false => Act::Raw(UNKEPT.into()),
            }
        });
        assert_eq!(get(&sidecar, &[(name, value)]).status, status, "{name}: {value}");
        assert_eq!(endpoint.take_seen().len(), 2, "{name}: {value}");
    }
    // The same holds for a response from which the sidecar cannot see what has changed.
    endpoint.on_request(|_| Act::Serve);
    endpoint.put("/bkt/k", object("short", "short"));
    get(&sidecar, &[]);
    endpoint.put("/bkt/k", object("two", "two"));
    endpoint.take_seen();
    assert_eq!(get(&sidecar, &[("If-Modified-Since", "yesterday")]).body, b"two");
    let seen = endpoint.take_seen();
    assert_eq!((seen.len(), seen[1].header("if-modified-since")), (2, Some("yesterday")));
}

#[test]
fn freshness_needs_rights_to_be_decided_here() {
    let endpoint = Endpoint::start();
    let config = |policy: CachePolicy| {
        let mut config = s3_sidecar::SidecarConfig::new(endpoint.url().parse().unwrap());
        config.policy = policy;
        config
    };
    let second = Duration::from_secs(1);
    let none = CachePolicy::default();
    for (policy, key) in [
        (CachePolicy { fresh: HOUR, ..none }, "fresh_secs"),
        (CachePolicy { fresh: Fresh::Immutable, ..none }, "fresh_secs"),
        (CachePolicy { stale_if_error: second, ..none }, "stale_if_error_secs"),
        (CachePolicy { negative: second, ..none }, "negative_secs"),
    ] {
        let error = Sidecar::start(config(policy)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("s3.{key}: ")) && error.contains("auth"), "{error}");
    }
    let mut with_rule = config(none);
    let policy = CachePolicy { fresh: HOUR, ..none };
    with_rule.rules = vec![Rule { bucket: "media".into(), prefix: String::new(), policy }];
    assert!(Sidecar::start(with_rule).unwrap_err().to_string().contains("\"media\""));
    assert!(config(none).check().is_ok());
}

#[test]
fn what_is_passed_on_stays_so() {
    let (endpoint, sidecar) = with_object(HOUR);
    get(&sidecar, &[]);
    endpoint.take_seen();
    for (line, headers) in [
        ("GET /bkt/k?versionId=1", &[][..]),
        ("GET /bkt/k?partNumber=1", &[]),
        ("GET /bkt/k?response-content-type=x", &[]),
        ("GET /bkt/k", &[("x-amz-server-side-encryption-customer-algorithm", "AES256")]),
        ("GET /bkt/k", &[("Cache-Control", "no-store")]),
        ("GET /bkt/k", &[("Range", "bytes=0-1,5-6")]),
        ("GET /bkt/k", &[("Origin", "https://a")]),
        ("HEAD /bkt/k", &[("Range", "bytes=0-1")]),
        ("HEAD /bkt/k?versionId=1", &[]),
    ] {
        assert_eq!(ask(&sidecar, line, headers).status / 100, 2, "{line}");
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[0].header("if-none-match")), (1, None), "{line}");
    }
}
