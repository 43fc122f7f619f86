//! Reads of objects: which bytes come from memory, which from the endpoint, and that different
//! versions are never mixed.

use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crate::support::{Act, Answer, Client, Endpoint, Gate, PATIENCE, Seen, ask, object, pattern, request};
use s3_sidecar::{Fresh, Sidecar};

const SIZE: usize = 9_000_123;

fn whole() -> Vec<u8> {
    pattern(SIZE, 0)
}

/// Returns an endpoint with one large object, and a sidecar in front of it.
fn with_object() -> (Endpoint, Sidecar) {
    let endpoint = Endpoint::start();
    let mut large = object("large", whole());
    large.headers = vec![
        ("x-amz-meta-Colour".into(), "green".into()),
        ("Content-Type".into(), "text/x".into()),
        ("x-amz-checksum-crc32".into(), "AAAA".into()),
    ];
    endpoint.put("/b/large", large);
    let sidecar = endpoint.sidecar(|_| ());
    (endpoint, sidecar)
}

fn get(sidecar: &Sidecar, headers: &[(&str, &str)]) -> Answer {
    ask(sidecar, "GET /b/large", headers)
}

/// Asserts that the endpoint was asked once whether the object is unchanged, and sent no body.
fn assert_was_revalidation(seen: &[Seen]) {
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert_eq!(seen[0].header("if-none-match"), Some("\"large\""));
}

#[test]
fn a_second_read_costs_the_endpoint_no_body() {
    let (endpoint, sidecar) = with_object();
    let first = get(&sidecar, &[]);
    assert_eq!((first.status, first.body == whole()), (200, true));
    assert_eq!(endpoint.take_seen()[0].header("if-none-match"), None);
    let second = get(&sidecar, &[]);
    assert_eq!((second.status, second.body == whole()), (200, true));
    assert_was_revalidation(&endpoint.take_seen());
    for name in [
        "etag",
        "last-modified",
        "content-length",
        "x-amz-meta-colour",
        "content-type",
        "x-amz-checksum-crc32",
    ] {
        assert!(first.header(name).is_some(), "{name}");
        assert_eq!(first.header(name), second.header(name), "{name}");
    }
    assert_eq!(
        (first.header("x-amz-request-id"), second.header("x-amz-request-id")),
        (Some("first"), Some("fresh"))
    );
    assert_eq!((sidecar.counts().hits.get(), sidecar.counts().misses.get()), (1, 1));
    assert_eq!(sidecar.counts().bytes_from_memory.get(), SIZE as u64);
    assert_eq!(sidecar.counts().bytes_from_upstream.get(), SIZE as u64);
}

#[test]
fn parts_come_from_a_whole_and_cost_what_is_asked() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[]);
    endpoint.take_seen();
    for (range, from, to) in [
        ("bytes=0-0", 0, 1),
        ("bytes=4095-4096", 4095, 4097),
        ("bytes=4194300-4194310", 4_194_300, 4_194_311),
        ("bytes=8999999-", 8_999_999, SIZE),
        ("bytes=-5", SIZE - 5, SIZE),
        ("bytes=100-99999999", 100, SIZE),
    ] {
        let part = get(&sidecar, &[("Range", range)]);
        assert_eq!((part.status, part.body == whole()[from..to]), (206, true), "{range}");
        let text = format!("bytes {from}-{}/{SIZE}", to - 1);
        assert_eq!(part.header("content-range"), Some(text.as_str()));
        // The checksum is that of the whole object.
        assert_eq!(part.header("x-amz-checksum-crc32"), None);
        assert_was_revalidation(&endpoint.take_seen());
    }
    let before = sidecar.counts().bytes_from_upstream.get();
    assert_eq!(get(&sidecar, &[("Range", "bytes=9000123-")]).status, 416);
    assert!(sidecar.counts().bytes_from_upstream.get() < before + 100);
    // A read of an uncached part loads only that part.
    let (endpoint, sidecar) = with_object();
    let part = get(&sidecar, &[("Range", "bytes=8192-1056767")]);
    assert_eq!((part.status, part.body == whole()[8192..1_056_768]), (206, true));
    assert_eq!(sidecar.counts().bytes_from_upstream.get(), 1_048_576);
    endpoint.take_seen();
    let within = get(&sidecar, &[("Range", "bytes=10000-20000")]);
    assert_eq!((within.status, within.body == whole()[10_000..20_001]), (206, true));
    assert_was_revalidation(&endpoint.take_seen());
    assert_eq!(sidecar.counts().bytes_from_upstream.get(), 1_048_576);
}

#[test]
fn a_part_and_what_lies_beyond_it_are_joined() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[("Range", "bytes=0-1048575")]);
    endpoint.take_seen();
    let part = get(&sidecar, &[("Range", "bytes=1000-3000000")]);
    assert_eq!((part.status, part.body == whole()[1000..=3_000_000]), (206, true));
    let seen = endpoint.take_seen();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].header("if-match"), Some("\"large\""));
    assert_eq!(
        (seen[1].header("if-none-match"), seen[1].header("range")),
        (None, Some("bytes=1048576-3000000"))
    );
    assert_eq!(sidecar.counts().rests.get(), 1);
}

#[test]
fn what_a_client_has_signed_is_never_altered() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[("Range", "bytes=0-1048575")]);
    endpoint.take_seen();
    let signed =
        "AWS4-HMAC-SHA256 Credential=a/b/c/s3/aws4_request, SignedHeaders=host;range;x-amz-date, Signature=0";
    let headers = [("Range", "bytes=1000-3000000"), ("Authorization", signed), ("X-Amz-Date", "now")];
    let part = get(&sidecar, &headers);
    assert_eq!((part.status, part.body == whole()[1000..=3_000_000]), (206, true));
    let seen = endpoint.take_seen();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        for (name, value) in headers {
            assert_eq!(seen.header(name), Some(value));
        }
    }
}

#[test]
fn the_question_about_a_long_object_asks_for_its_first_byte_alone() {
    let (endpoint, sidecar) = with_object();
    endpoint.put("/b/short", object("short", pattern((128 << 10) - 1, 1)));
    endpoint.put("/b/long", object("long", pattern(128 << 10, 2)));
    let v4 = |names: &str| format!("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders={names}, Signature=0");
    let (unsigned, signed) = (v4("host;x-amz-date"), v4("host;range"));
    for (path, headers, range) in [
        ("/b/long", &[][..], Some("bytes=0-0")),
        ("/b/short", &[], None),
        ("/b/long", &[("Range", "bytes=0-")], Some("bytes=0-")),
        ("/b/long", &[("If-Range", "\"long\"")], None),
        ("/b/long", &[("Authorization", unsigned.as_str())], Some("bytes=0-0")),
        ("/b/long", &[("Authorization", signed.as_str())], None),
    ] {
        let line = format!("GET {path}");
        let first = ask(&sidecar, &line, headers);
        endpoint.take_seen();
        let second = ask(&sidecar, &line, headers);
        assert_eq!((first.status, first.body == second.body), (second.status, true), "{path} {headers:?}");
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[0].header("range")), (1, range), "{path} {headers:?}");
        assert!(seen[0].header("if-none-match").is_some());
    }
}

#[test]
fn a_long_object_that_has_changed_comes_as_it_is_asked_for() {
    let (endpoint, sidecar) = with_object();
    let changed = |etag: &str, size: usize| {
        let mut other = object(etag, pattern(size, 7));
        other.headers = vec![("x-amz-checksum-crc32".into(), etag.into())];
        endpoint.put("/b/large", other);
    };
    for (etag, size) in [("longer", SIZE + 1), ("shorter", 5), ("empty", 0), ("again", SIZE)] {
        get(&sidecar, &[]);
        changed(etag, size);
        endpoint.take_seen();
        let answer = get(&sidecar, &[]);
        assert_eq!((answer.status, answer.body == pattern(size, 7)), (200, true), "{etag}");
        assert_eq!(answer.header("x-amz-checksum-crc32"), Some(etag));
        assert!(answer.header("content-range").is_none());
        // One check for changes, unless the known object is small, and the object as the client
        // requests it.
        let seen = endpoint.take_seen();
        let last = seen.last().unwrap();
        assert!(seen.len() <= 2 && last.header("range").is_none(), "{seen:?}");
    }
    endpoint.remove("/b/large");
    assert_eq!(get(&sidecar, &[]).status, 404);
}

#[test]
fn endpoints_that_look_at_the_range_before_the_condition_are_understood() {
    let (endpoint, sidecar) = with_object();
    let part = |etag: &str, size: usize| {
        format!(
            "HTTP/1.1 206 Partial Content\r\nETag: \"{etag}\"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT\r\n\
             Content-Range: bytes 0-0/{size}\r\nContent-Length: 1\r\nx-amz-request-id: part\r\n\r\nx"
        )
    };
    let whole_again = |etag: &str| {
        format!("HTTP/1.1 200 OK\r\nETag: \"{etag}\"\r\nContent-Length: 3\r\nx-amz-meta-m: 1\r\n\r\nnew")
    };
    let unsatisfiable = "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n".to_owned();
    get(&sidecar, &[]);
    for (raw, is_asked_anew, is_known) in [
        // The cached object, which is not requested again.
        (part("large", SIZE), false, true),
        (part("other", SIZE), true, true),
        (part("large", SIZE + 1), true, true),
        (unsatisfiable, true, true),
        (whole_again("new"), false, false),
    ] {
        endpoint.take_seen();
        let answered = raw.clone();
        endpoint.on_request(move |seen| match seen.header("if-none-match") {
            Some(_) => Act::Raw(answered.clone().into_bytes()),
            None => Act::Serve,
        });
        let answer = get(&sidecar, &[]);
        assert_eq!(answer.status, 200, "{raw}");
        assert_eq!(answer.body == whole(), is_known, "{raw}");
        assert_eq!(answer.header("x-amz-meta-colour").is_some(), is_known);
        assert!(answer.header("content-range").is_none());
        assert_eq!(endpoint.take_seen().len(), 1 + usize::from(is_asked_anew), "{raw}");
    }
}

#[test]
fn the_endpoint_decides_for_each_client() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[("Authorization", "AWS good:x")]);
    endpoint.on_request(|seen| match seen.header("authorization") {
        Some("AWS good:x") => Act::Serve,
        _ => Act::Raw(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 6\r\n\r\ndenied".into()),
    });
    assert_eq!(get(&sidecar, &[("Authorization", "AWS bad:x")]).body, b"denied");
    assert_eq!(get(&sidecar, &[]).status, 403);
    assert_eq!(get(&sidecar, &[("Authorization", "AWS good:x")]).status, 200);
    endpoint.on_request(|_| Act::Raw(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 4\r\n\r\nslow".into()));
    assert_eq!(get(&sidecar, &[("Authorization", "AWS good:x")]).body, b"slow");
}

#[test]
fn what_can_change_without_the_etag_is_not_repeated() {
    let (endpoint, sidecar) = with_object();
    let with = |value: Option<&str>| {
        let mut tagged = object("short", pattern(100, 1));
        tagged.headers = vec![("x-amz-meta-m".into(), "1".into())];
        let names = ["x-amz-tagging-count", "x-amz-storage-class", "x-amz-object-lock-mode", "x-amz-restore"];
        tagged
            .headers
            .extend(value.into_iter().flat_map(|value| names.map(|name| (name.into(), value.into()))));
        endpoint.put("/b/short", tagged);
    };
    with(Some("1"));
    let ask = || ask(&sidecar, "GET /b/short", &[]);
    assert_eq!(ask().header("x-amz-tagging-count"), Some("1"));
    for value in [Some("1"), Some("2"), None] {
        with(value);
        let answer = ask();
        let left: Vec<_> = answer.headers.iter().filter(|(name, _)| name.starts_with("x-amz-")).collect();
        // A 304 does not have these headers.
        assert_eq!(left.len(), 2, "{left:?}");
        assert_eq!(
            (answer.header("x-amz-meta-m"), answer.header("x-amz-request-id")),
            (Some("1"), Some("fresh"))
        );
    }
    assert_eq!(sidecar.counts().hits.get(), 3);
}

#[test]
fn a_changed_object_is_seen_at_once() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[]);
    endpoint.put("/b/large", object("other", pattern(50_000, 9)));
    let changed = get(&sidecar, &[]);
    assert_eq!((changed.header("etag"), changed.body == pattern(50_000, 9)), (Some("\"other\""), true));
    // The same bytes with another modification time may have other headers.
    let mut touched = object("other", pattern(50_000, 9));
    touched.modified = "Tue, 02 Jan 2024 00:00:00 GMT".into();
    touched.headers = vec![("x-amz-meta-new".into(), "1".into())];
    endpoint.put("/b/large", touched);
    assert_eq!(get(&sidecar, &[]).header("x-amz-meta-new"), Some("1"));
    assert_eq!(get(&sidecar, &[]).header("x-amz-meta-new"), Some("1"));
    endpoint.remove("/b/large");
    assert_eq!(get(&sidecar, &[]).status, 404);
    let empty = object("empty", "");
    endpoint.put("/b/large", empty);
    for _ in 0..2 {
        let answer = get(&sidecar, &[]);
        assert_eq!((answer.status, answer.header("content-length"), answer.body.len()), (200, Some("0"), 0));
    }
}

#[test]
fn an_object_that_changes_while_it_is_read_breaks_the_read_and_is_never_mixed() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[("Range", "bytes=0-1048575")]);
    // The check is answered for the old object, and the rest is requested from the new one.
    let new = pattern(SIZE, 77);
    let replaced = endpoint.clone();
    let replacement = Mutex::new(Some(object("new", new.clone())));
    endpoint.on_request(move |seen| {
        if seen.header("if-match").is_some()
            && let Some(new) = replacement.lock().unwrap().take()
        {
            replaced.put("/b/large", new);
        }
        Act::Serve
    });
    let mut client = Client::of(&sidecar);
    client.send(request("GET /b/large", &[("Range", "bytes=0-3000000")]));
    let head = client.head().unwrap();
    let answer = client.finish(head, false);
    assert!(answer.is_cut && answer.body == whole()[..answer.body.len()], "{} bytes", answer.body.len());
    assert!(get(&sidecar, &[]).body == new);
    // An endpoint that ignores If-Match, and sends other bytes.
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[("Range", "bytes=0-1048575")]);
    endpoint.on_request(|seen| match seen.header("if-match") {
        None => Act::Serve,
        Some(_) => Act::Raw(
            b"HTTP/1.1 206 Partial Content\r\nETag: \"new\"\r\nContent-Range: bytes 1048576-1048579/9000123\r\n\
            Content-Length: 4\r\n\r\nevil"
                .into(),
        ),
    });
    let answer = get(&sidecar, &[("Range", "bytes=0-1048579")]);
    assert!(answer.is_cut && !answer.body.ends_with(b"evil"));
}

#[test]
fn a_small_read_is_not_broken_off_by_a_change() {
    let (endpoint, sidecar) = with_object();
    // The second of these waits until the first one's bytes are in memory.
    for _ in 0..2 {
        get(&sidecar, &[("Range", "bytes=0-8191")]);
    }
    endpoint.take_seen();
    let replaced = endpoint.clone();
    endpoint.on_request(move |seen| {
        if seen.header("if-match").is_some() {
            replaced.put("/b/large", object("new", pattern(SIZE, 77)));
        }
        Act::Serve
    });
    for (range, from, to) in [
        ("bytes=4096-20479", 4096, 20_480),
        ("bytes=12288-126975", 12_288, 126_976),
        ("bytes=122880-143359", 122_880, 143_360),
    ] {
        let part = get(&sidecar, &[("Range", range)]);
        assert!(!part.is_cut && part.status == 206 && part.body == whole()[from..to], "{range}");
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[0].header("if-none-match")), (1, None));
        // Now the whole object is cached.
        assert!(get(&sidecar, &[("Range", range)]).body == whole()[from..to], "{range}");
        assert_was_revalidation(&endpoint.take_seen());
    }
}

#[test]
fn a_small_read_that_shares_the_bytes_of_another_is_not_broken_off_by_a_change() {
    let (endpoint, sidecar) = with_object();
    let new = pattern(SIZE, 77);
    let (gate, replaced) = (Gate::new(), endpoint.clone());
    let (held, replacement) = (gate.clone(), new.clone());
    endpoint.on_request(move |seen| match (seen.header("if-none-match"), seen.header("if-match")) {
        (None, None) => Act::PauseAt(5000, held.clone()),
        (_, Some(_)) => {
            replaced.put("/b/large", object("new", replacement.clone()));
            Act::Serve
        }
        _ => Act::Serve,
    });
    // The end of the range is in the middle of a bucket, so the first reader's bytes in that bucket
    // are not kept.
    let range = [("Range", "bytes=0-9999")];
    let mut first = Client::of(&sidecar);
    first.send(request("GET /b/large", &range));
    endpoint.wait_for_requests(1);
    thread::scope(|scope| {
        let other = scope.spawn(|| get(&sidecar, &range));
        endpoint.wait_for_requests(2);
        gate.open();
        assert!(first.answer().body == whole()[..10_000]);
        let other = other.join().unwrap();
        assert!(!other.is_cut && other.status == 206 && other.body == new[..10_000]);
    });
}

#[test]
fn an_answer_that_is_cut_leaves_only_what_came() {
    let (endpoint, sidecar) = with_object();
    endpoint.on_request(|_| Act::CutAt(3_000_000));
    let cut = get(&sidecar, &[]);
    assert!(cut.is_cut && whole().starts_with(&cut.body));
    endpoint.on_request(|_| Act::Serve);
    for _ in 0..2 {
        let answer = get(&sidecar, &[]);
        assert!(!answer.is_cut && answer.body == whole());
    }
    endpoint.take_seen();
    assert!(get(&sidecar, &[]).body == whole());
    assert_was_revalidation(&endpoint.take_seen());
}

#[test]
fn conditions_of_clients_hold() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[]);
    let old = "Mon, 01 Jan 2024 00:00:00 GMT";
    assert_eq!(get(&sidecar, &[("If-None-Match", "\"large\"")]).status, 304);
    assert_eq!(get(&sidecar, &[("If-None-Match", "\"x\"")]).body.len(), SIZE);
    assert_eq!(get(&sidecar, &[("If-Match", "\"x\"")]).status, 412);
    assert_eq!(get(&sidecar, &[("If-Match", "\"large\"")]).body.len(), SIZE);
    endpoint.take_seen();
    let range = ("Range", "bytes=5-9");
    let met = get(&sidecar, &[range, ("If-Range", "\"large\"")]);
    assert_eq!((met.status, met.body), (206, whole()[5..10].to_vec()));
    assert_eq!(get(&sidecar, &[range, ("If-Range", old)]).status, 206);
    for unmet in ["\"x\"", "W/\"large\"", "Sun, 31 Dec 2023 00:00:00 GMT"] {
        let answer = get(&sidecar, &[range, ("If-Range", unmet)]);
        assert_eq!((answer.status, answer.body.len(), answer.header("content-range")), (200, SIZE, None));
    }
    assert!(endpoint.take_seen().iter().all(|seen| seen.header("if-none-match").is_some()));
}

#[test]
fn what_is_not_understood_is_neither_kept_nor_answered() {
    let (endpoint, sidecar) = with_object();
    get(&sidecar, &[]);
    endpoint.take_seen();
    for (line, headers) in [
        ("GET /b/large?versionId=1", &[][..]),
        ("GET /b/large?partNumber=1", &[]),
        ("GET /b/large?response-content-type=x", &[]),
        ("GET /b/large", &[("x-amz-server-side-encryption-customer-algorithm", "AES256")]),
        ("GET /b/large", &[("Cache-Control", "no-store")]),
        ("GET /b/large", &[("Range", "bytes=0-1,5-6")]),
        ("GET /b/large", &[("Origin", "https://a")]),
        ("HEAD /b/large", &[]),
    ] {
        let answer = ask(&sidecar, line, headers);
        assert_eq!(answer.status / 100, 2);
        let seen = endpoint.take_seen();
        assert_eq!((seen.len(), seen[0].header("if-none-match")), (1, None), "{line}");
    }
    assert_eq!(sidecar.counts().hits.get(), 0);
    let mut secret = object("s", "secret");
    secret.headers = vec![("Cache-Control".into(), "no-store".into())];
    endpoint.put("/b/secret", secret);
    for _ in 0..2 {
        assert_eq!(ask(&sidecar, "GET /b/secret", &[]).body, b"secret");
        assert_eq!(endpoint.take_seen()[0].header("if-none-match"), None);
    }
}

#[test]
fn readers_of_a_cold_object_share_one_body() {
    let (endpoint, sidecar) = with_object();
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |seen| match seen.header("if-none-match") {
        None => Act::PauseAt(2_000_000, held.clone()),
        Some(_) => Act::Serve,
    });
    let mut first = Client::of(&sidecar);
    first.send(request("GET /b/large", &[]));
    endpoint.wait_for_requests(1);
    thread::scope(|scope| {
        let others: Vec<_> = (0..6).map(|_| scope.spawn(|| get(&sidecar, &[]).body == whole())).collect();
        // The endpoint has authorised all of them while the first one's body has stopped.
        endpoint.wait_for_requests(7);
        // The readers get the available part, and wait for more.
        let deadline = Instant::now() + PATIENCE;
        while sidecar.counts().bytes_from_memory.get() < 6 * 1_900_000 {
            assert!(Instant::now() < deadline, "{}", sidecar.counts().bytes_from_memory.get());
            thread::yield_now();
        }
        gate.open();
        let answer = first.answer();
        assert!(answer.body == whole());
        others.into_iter().for_each(|other| assert!(other.join().unwrap()));
    });
    let bodies = endpoint.take_seen().iter().filter(|seen| seen.header("if-none-match").is_none()).count();
    assert_eq!((bodies, sidecar.counts().bytes_from_upstream.get()), (1, SIZE as u64));
    assert!(sidecar.counts().shared.get() > 0);
}

/// When the client has the last bytes of a body, these may still be on their way into the cache.
#[test]
fn what_one_client_has_just_read_is_not_asked_for_again() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| config.threads = 2);
    let mut clients = [0; 4].map(|_| Client::of(&sidecar));
    for number in 0..240_usize {
        // At most one run, several runs, and more than is withheld until the whole range is
        // available.
        let size = [100, 70_000, 131_072, 300_000][number % 4];
        let body = pattern(size, number as u8);
        endpoint.put(&format!("/bucket/{number}"), object("a", body.clone()));
        for client in &mut clients {
            assert!(client.ask(&format!("GET /bucket/{number}"), &[]).body == body, "{number}");
        }
        let seen = endpoint.take_seen();
        assert_eq!(seen.len(), 1, "{number}: {seen:?}");
    }
}

#[test]
fn a_short_object_of_which_the_end_is_on_its_way_is_waited_for() {
    const HERE: usize = 66_000;
    let endpoint = Endpoint::start();
    let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| config.threads = 1);
    let body = pattern(131_072, 1);
    endpoint.put("/bucket/short", object("a", body.clone()));
    endpoint.put("/bucket/other", object("b", "other"));
    assert_eq!(ask(&sidecar, "GET /bucket/other", &[]).body, b"other");
    endpoint.take_seen();
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |_| Act::PauseAt(HERE, held.clone()));
    let [mut first, mut second, mut third] = [0; 3].map(|_| Client::of(&sidecar));
    // Every connection has been served once before.
    for client in [&mut second, &mut third] {
        assert_eq!(client.ask("GET /bucket/other", &[]).body, b"other");
    }
    first.send(request("GET /bucket/short", &[]));
    let head = first.head().unwrap();
    let begin = first.bytes(HERE);
    second.send(request("GET /bucket/short", &[]));
    // The only thread processes the second client's request before the third one's.
    assert_eq!(third.ask("GET /bucket/other", &[]).body, b"other");
    gate.open();
    let rest = first.bytes(body.len() - HERE);
    assert!(head.status == 200 && [begin, rest].concat() == body);
    assert!(second.answer().body == body);
    let seen = endpoint.take_seen();
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[test]
fn a_reader_whose_leader_leaves_goes_on_by_itself() {
    let (endpoint, sidecar) = with_object();
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |seen| match (seen.header("if-none-match"), seen.header("if-match")) {
        (None, None) => Act::PauseAt(2_000_000, held.clone()),
        _ => Act::Serve,
    });
    let mut first = Client::of(&sidecar);
    first.send(request("GET /b/large", &[]));
    endpoint.wait_for_requests(1);
    thread::scope(|scope| {
        let other = scope.spawn(|| get(&sidecar, &[]));
        endpoint.wait_for_requests(2);
        // The first reader disconnects in the middle of the body.
        first.head().unwrap();
        drop(first.bytes(1_000_000));
        drop(first);
        assert!(other.join().unwrap().body == whole());
    });
    gate.open();
}

#[test]
fn unequal_generations_of_many_readers_are_never_mixed() {
    let endpoint = Endpoint::start();
    let sidecar = endpoint.sidecar(|config| config.memory_bytes = 8 << 20);
    let put = |number: u8| endpoint.put("/b/large", object(&number.to_string(), vec![number; 700_000]));
    put(0);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..4_usize)
            .map(|reader| {
                let sidecar = &sidecar;
                scope.spawn(move || {
                    let mut newest = 0;
                    while newest < 100 {
                        let range = format!("bytes={}-{}", reader * 1000, 600_000 - reader * 4096);
                        let headers: &[_] = if reader == 0 { &[] } else { &[("Range", range.as_str())] };
                        let answer = get(sidecar, headers);
                        let number: u8 = answer.header("etag").unwrap().trim_matches('"').parse().unwrap();
                        assert!(answer.body.iter().all(|byte| *byte == number));
                        // A reader never sees an older state than before, whatever other readers
                        // get.
                        assert!(number >= newest, "{number} after {newest}");
                        newest = number;
                    }
                })
            })
            .collect();
        (1..=100).for_each(put);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
    });
}
