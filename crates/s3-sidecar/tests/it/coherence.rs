//! Every later read sees changes that pass through the sidecar or are announced to it. The tests
//! delay individual responses.

use std::time::Duration;

use crate::support::{Act, Away, Client, Endpoint, Gate, Seen, ask, object, request};
use s3_sidecar::{ControlError, Fresh, Invalidation, Names, Sidecar, SidecarConfig, SidecarControl};

/// Returns an endpoint with an object, and a sidecar that considers everything fresh forever and
/// knows the object.
fn warm() -> (Endpoint, Sidecar) {
    warm_with(|_| ())
}

fn warm_with(change: impl FnOnce(&mut SidecarConfig)) -> (Endpoint, Sidecar) {
    let endpoint = Endpoint::start();
    endpoint.put("/bkt/k", object("old", "old"));
    endpoint.put("/bkt/other", object("other", "other"));
    endpoint.put("/cup/k", object("c", "elsewhere"));
    let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| {
        config.policy.negative = Duration::from_secs(3600);
        // A change whose response is lost may take effect within this time.
        config.response_timeout = Duration::from_secs(3600);
        change(config);
    });
    for path in ["/bkt/k", "/bkt/other", "/cup/k"] {
        assert_eq!(ask(&sidecar, &format!("GET {path}"), &[]).status, 200);
    }
    endpoint.take_seen();
    (endpoint, sidecar)
}

fn read(sidecar: &Sidecar, path: &str) -> Vec<u8> {
    ask(sidecar, &format!("GET {path}"), &[]).body
}

/// Returns whether a read of a path asks the endpoint.
fn asks(endpoint: &Endpoint, sidecar: &Sidecar, path: &str) -> bool {
    endpoint.take_seen();
    read(sidecar, path);
    !endpoint.take_seen().is_empty()
}

fn is_read(seen: &Seen) -> bool {
    ["GET", "HEAD"].contains(&seen.method())
}

fn put(client: &mut Client, path: &str, body: &str) {
    client.send(request(&format!("PUT {path}"), &[("Content-Length", &body.len().to_string())]));
    client.send(body);
}

#[test]
fn every_change_is_seen_by_the_next_read() {
    for line in [
        "PUT /bkt/k",
        "DELETE /bkt/k",
        "PUT /bkt/k?tagging",
        "POST /bkt/k?uploadId=x",
        "DELETE /bkt/k?versionId=1",
        "POST /bkt",
        "PUT /bkt?policy",
        "DELETE /bkt",
        "PUT /bkt/new?renameObject",
    ] {
        let (endpoint, sidecar) = warm();
        let changed = endpoint.clone();
        endpoint.on_request(move |seen| {
            if !is_read(seen) {
                changed.put("/bkt/k", object("new", "new"));
                return Act::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".into());
            }
            Act::Serve
        });
        assert_eq!(read(&sidecar, "/bkt/k"), b"old");
        assert_eq!(ask(&sidecar, line, &[]).status, 200);
        assert_eq!(read(&sidecar, "/bkt/k"), b"new", "{line}");
        // From then on the object is cached, as unaffected objects have been throughout.
        assert!(!asks(&endpoint, &sidecar, "/bkt/k") && !asks(&endpoint, &sidecar, "/cup/k"), "{line}");
    }
    // A copy changes its target.
    let (endpoint, sidecar) = warm();
    ask(&sidecar, "PUT /bkt/k", &[("x-amz-copy-source", "/bkt/other")]);
    assert!(asks(&endpoint, &sidecar, "/bkt/k") && !asks(&endpoint, &sidecar, "/bkt/other"));
}

/// Names that an endpoint which keeps objects as files treats as `q/y`.
const ALIASES: [&str; 9] =
    ["/q/y", "q//y", "q///y", "./q/y", "q/./y", "q/%2e/y", "q/z/../y", "q%2F%2Fy", "q/y/."];

#[test]
fn a_change_by_any_name_of_an_object_is_seen_by_every_name() {
    for changed in ALIASES.into_iter().chain(["q/y"]) {
        let (endpoint, sidecar) = warm();
        endpoint.fold_paths();
        endpoint.put("/bkt/q/y", object("old", "old"));
        let names = || ALIASES.into_iter().chain(["q/y"]).map(|name| format!("/bkt/{name}"));
        for name in names() {
            assert_eq!(read(&sidecar, &name), b"old", "{name}");
        }
        let mut client = Client::of(&sidecar);
        put(&mut client, &format!("/bkt/{changed}"), "new");
        assert_eq!(client.answer().status, 200);
        for name in names() {
            assert_eq!(read(&sidecar, &name), b"new", "{name} after {changed}");
        }
        assert_eq!(client.ask(&format!("DELETE /bkt/{changed}"), &[]).status, 204);
        for name in names() {
            assert_eq!(client.ask(&format!("GET {name}"), &[]).status, 404, "{name} after {changed}");
        }
        // The absence of the object is known only under its plain name; a change under any of its
        // names ends that.
        put(&mut client, &format!("/bkt/{changed}"), "back");
        assert_eq!(client.answer().status, 200);
        for name in names() {
            assert_eq!(read(&sidecar, &name), b"back", "{name} after {changed}");
        }
        assert!(!asks(&endpoint, &sidecar, "/bkt/q/y") && asks(&endpoint, &sidecar, "/bkt/q//y"));
    }
}

#[test]
fn names_that_differ_in_letter_case_or_form_are_one_where_the_endpoint_folds_them() {
    let names = ["q/y", "Q/y", "q/Y", "Q//./Y"];
    let (endpoint, sidecar) = warm_with(|config| config.names = Names::Folded);
    endpoint.fold_paths();
    endpoint.fold_letters();
    for changed in names {
        for (body, status) in [("new", 200), ("", 404)] {
            let mut client = Client::of(&sidecar);
            if status == 200 {
                put(&mut client, &format!("/bkt/{changed}"), body);
                assert_eq!(client.answer().status, 200);
            } else {
                assert_eq!(client.ask(&format!("DELETE /bkt/{changed}"), &[]).status, 204);
            }
            for name in names {
                assert_eq!(client.ask(&format!("GET /bkt/{name}"), &[]).status, status, "{name} {changed}");
            }
        }
    }
    // An object is known only by the name that was requested.
    endpoint.put("/bkt/q/y", object("old", "old"));
    for (name, is_asked) in [("Q/y", true), ("Q/y", false), ("q/Y", true), ("q/Y", false), ("Q/y", true)] {
        assert_eq!(asks(&endpoint, &sidecar, &format!("/bkt/{name}")), is_asked, "{name}");
    }
    let control = sidecar.control();
    let prefix = |prefix: &str| Invalidation::Prefix { bucket: "bkt".into(), prefix: prefix.into() };
    let key = |key: &str| Invalidation::Key { bucket: "bkt".into(), key: key.into() };
    read(&sidecar, "/bkt/k");
    for (what, is_bucket) in [(key("q/Y"), false), (prefix("Q/"), false), (key("\u{212a}"), true)] {
        read(&sidecar, "/bkt/q/y");
        control.invalidate(&what).unwrap();
        assert!(asks(&endpoint, &sidecar, "/bkt/q/y"), "{what:?}");
        assert_eq!(asks(&endpoint, &sidecar, "/bkt/k"), is_bucket, "{what:?}");
    }
    // A name with letters that file systems treat differently in upper and lower case is never
    // answered from memory.
    endpoint.put("/bkt/%e2%84%aa", object("kelvin", "kelvin"));
    assert_eq!([(); 2].map(|()| asks(&endpoint, &sidecar, "/bkt/%E2%84%AA")), [true, true]);
    ask(&sidecar, "DELETE /bkt/%E2%84%AA", &[]);
    assert!(asks(&endpoint, &sidecar, "/bkt/k") && !asks(&endpoint, &sidecar, "/cup/k"));
}

#[test]
fn what_is_announced_or_deleted_by_another_name_is_asked_for_again() {
    let (endpoint, sidecar) = warm();
    endpoint.put("/bkt/q/y", object("e", "e"));
    let control = sidecar.control();
    let key = |key: &str| Invalidation::Key { bucket: "bkt".into(), key: key.into() };
    let prefix = |prefix: &str| Invalidation::Prefix { bucket: "bkt".into(), prefix: prefix.into() };
    for what in [key("q//y"), key("./q/y"), prefix("q//"), prefix("./q/"), prefix("q/./"), prefix("q/z/../")]
    {
        read(&sidecar, "/bkt/q/y");
        control.invalidate(&what).unwrap();
        assert!(asks(&endpoint, &sidecar, "/bkt/q/y") && !asks(&endpoint, &sidecar, "/bkt/k"), "{what:?}");
    }
    control
        .take_events(br#"{"Records":[{"s3":{"bucket":{"name":"bkt"},"object":{"key":"q%2F%2Fy"}}}]}"#)
        .unwrap();
    assert!(asks(&endpoint, &sidecar, "/bkt/q/y"));
    let body = "<Delete><Object><Key>q/./y</Key></Object></Delete>";
    let mut client = Client::of(&sidecar);
    client.send(request("POST /bkt?delete", &[("Content-Length", &body.len().to_string())]));
    client.send(body);
    assert_eq!(client.answer().status, 200);
    assert!(asks(&endpoint, &sidecar, "/bkt/q/y") && !asks(&endpoint, &sidecar, "/bkt/k"));
}

#[test]
fn a_failed_change_voids_as_well() {
    let (endpoint, sidecar) = warm();
    endpoint.on_request(|seen| match is_read(seen) {
        true => Act::Serve,
        false => Act::Raw(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n".into()),
    });
    assert_eq!(ask(&sidecar, "PUT /bkt/k", &[]).status, 403);
    assert!(asks(&endpoint, &sidecar, "/bkt/k") && !asks(&endpoint, &sidecar, "/bkt/k"));
}

#[test]
fn an_answer_from_before_a_change_is_not_fresh_after_it() {
    for (path, line) in
        [("/bkt/cold", "GET /bkt/cold"), ("/bkt/cold", "HEAD /bkt/cold"), ("/bkt/k", "GET /bkt/k")]
    {
        let (endpoint, sidecar) = warm();
        endpoint.put("/bkt/cold", object("old", "old"));
        let gate = Gate::new();
        let held = gate.clone();
        endpoint.on_request(move |seen| match seen.method() {
            "PUT" => Act::Serve,
            _ => Act::Late(held.clone()),
        });
        let mut reader = Client::of(&sidecar);
        reader.send(request(line, &[("Cache-Control", "no-cache")]));
        endpoint.wait_for_requests(1);
        let mut writer = Client::of(&sidecar);
        put(&mut writer, path, "new");
        assert_eq!(writer.answer().status, 200);
        // Requests from before are answered now, with the old content, which is correct for a read
        // that started before the change.
        gate.open();
        let head = reader.head().unwrap();
        let answer = reader.finish(head, line.starts_with("HEAD"));
        assert_eq!((answer.status, answer.header("etag")), (200, Some("\"old\"")));
        assert_eq!(read(&sidecar, path), b"new", "{line}");
    }
}

#[test]
fn absence_from_before_a_change_is_not_remembered_after_it() {
    let (endpoint, sidecar) = warm();
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |seen| if is_read(seen) { Act::Late(held.clone()) } else { Act::Serve });
    let mut reader = Client::of(&sidecar);
    reader.send(request("GET /bkt/new", &[]));
    endpoint.wait_for_requests(1);
    let mut writer = Client::of(&sidecar);
    put(&mut writer, "/bkt/new", "new");
    assert_eq!(writer.answer().status, 200);
    gate.open();
    assert_eq!(reader.answer().status, 404);
    assert_eq!(read(&sidecar, "/bkt/new"), b"new");
}

#[test]
fn reads_during_a_change_ask_and_what_they_learn_is_not_kept() {
    let (endpoint, sidecar) = warm();
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |seen| if is_read(seen) { Act::Serve } else { Act::ServeAfter(held.clone()) });
    let mut writer = Client::of(&sidecar);
    put(&mut writer, "/bkt/k", "new");
    endpoint.wait_for_requests(1);
    for _ in 0..2 {
        endpoint.take_seen();
        assert_eq!(read(&sidecar, "/bkt/k"), b"old");
        assert_eq!(endpoint.take_seen().len(), 1);
    }
    gate.open();
    assert_eq!(writer.answer().status, 200);
    assert_eq!(read(&sidecar, "/bkt/k"), b"new");
    assert!(!asks(&endpoint, &sidecar, "/bkt/k"));
}

#[test]
fn a_change_ends_with_the_body_of_its_answer() {
    let (endpoint, sidecar) = warm();
    let gate = Gate::new();
    let held = gate.clone();
    // As S3 does for long copies: the status comes first, and the object exists when the body ends.
    let changed = endpoint.clone();
    endpoint.on_request(move |seen| if is_read(seen) { Act::Serve } else { Act::PauseAt(3, held.clone()) });
    let mut writer = Client::of(&sidecar);
    writer.send(request("POST /bkt/k?uploadId=x", &[]));
    let head = writer.head().unwrap();
    assert_eq!(head.status, 200);
    assert_eq!(read(&sidecar, "/bkt/k"), b"old");
    changed.put("/bkt/k", object("new", "new"));
    gate.open();
    assert!(!writer.finish(head, false).is_cut);
    assert_eq!(read(&sidecar, "/bkt/k"), b"new");
    assert!(!asks(&endpoint, &sidecar, "/bkt/k"));
}

#[test]
fn a_change_whose_answer_is_lost_may_come_about_later() {
    for act in [
        Act::Hang,
        Act::Raw(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n".into()),
        Act::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf".into()),
        // As S3 reports an error after it has started its answer.
        Act::Raw(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
              8\r\n<?xml?>\n\r\n2\r\n  \r\n1a\r\n<Error><Code>SlowDown</Code>\r\n8\r\n</Error>\r\n0\r\n\r\n"
                .into(),
        ),
        Act::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n<Error></Error>".into()),
    ] {
        for (line, path) in [("DELETE /bkt/k", "/bkt/k"), ("POST /bkt?x", "/bkt/other")] {
            let (endpoint, sidecar) = warm();
            let act = act.clone();
            endpoint.on_request(move |seen| if is_read(seen) { Act::Serve } else { act.clone() });
            let _answer = ask(&sidecar, line, &[]);
            for _ in 0..3 {
                assert!(asks(&endpoint, &sidecar, path), "{line}");
            }
            endpoint.put(path, object("late", "late"));
            assert_eq!(read(&sidecar, path), b"late", "{line}");
            assert!(!asks(&endpoint, &sidecar, "/cup/k"));
        }
    }
}

/// Returns an endpoint that prepares answers to requests without `Cache-Control` when they arrive,
/// and sends them once the gate is open.
fn holding_back() -> (Endpoint, Sidecar, std::sync::Arc<Gate>) {
    let (endpoint, sidecar) = warm();
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |seen| match seen.header("cache-control") {
        None => Act::Late(held.clone()),
        Some(_) => Act::Serve,
    });
    (endpoint, sidecar, gate)
}

/// A header with which a read always goes to the endpoint, and does not wait for another reader.
const ASKING: (&str, &str) = ("Cache-Control", "no-cache");
const CHECKSUMS: (&str, &str) = ("x-amz-checksum-mode", "ENABLED");

#[test]
fn an_answer_to_an_older_question_undoes_no_newer_one() {
    let change = |endpoint: &Endpoint, body: Option<&str>| match body {
        Some(body) => endpoint.put("/bkt/x", object(body, body)),
        None => endpoint.remove("/bkt/x"),
    };
    for (before, after) in [(Some("old"), None), (None, Some("new")), (Some("old"), Some("new"))] {
        for [first, second] in [[&[][..], &[ASKING]], [&[CHECKSUMS], &[ASKING]], [&[], &[ASKING, CHECKSUMS]]]
        {
            let (endpoint, sidecar, gate) = holding_back();
            change(&endpoint, before);
            let mut reader = Client::of(&sidecar);
            reader.send(request("GET /bkt/x", first));
            endpoint.wait_for_requests(1);
            // Bypassing the sidecar.
            change(&endpoint, after);
            let status = |body: Option<&str>| if body.is_some() { 200 } else { 404 };
            assert_eq!(ask(&sidecar, "GET /bkt/x", second).status, status(after));
            gate.open();
            assert_eq!(reader.answer().status, status(before));
            for headers in [first, &[], &[CHECKSUMS]] {
                let last = ask(&sidecar, "GET /bkt/x", headers);
                assert_eq!(last.status, status(after), "{before:?} {after:?} {first:?} {headers:?}");
                assert!(after.is_none_or(|body| last.body == body.as_bytes()));
            }
        }
    }
}

#[test]
fn an_answer_to_an_older_question_is_not_known_after_a_newer_one_that_cannot_be_kept() {
    let (endpoint, sidecar, gate) = holding_back();
    let held = gate.clone();
    endpoint.on_request(move |seen| match seen.header("cache-control") {
        None => Act::Late(held.clone()),
        Some(_) => Act::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew".into()),
    });
    endpoint.put("/bkt/x", object("old", "old"));
    let mut reader = Client::of(&sidecar);
    reader.send(request("GET /bkt/x", &[]));
    endpoint.wait_for_requests(1);
    assert_eq!(ask(&sidecar, "GET /bkt/x", &[ASKING]).body, b"new");
    gate.open();
    assert_eq!(reader.answer().body, b"old");
    assert!(asks(&endpoint, &sidecar, "/bkt/x"));
}

#[test]
fn an_object_that_is_known_to_have_changed_is_not_known_with_its_checksums_either() {
    for [first, second] in [[&[][..], &[CHECKSUMS]], [&[CHECKSUMS], &[]]] {
        let (endpoint, sidecar) = warm();
        let get = |headers: &[_]| ask(&sidecar, "GET /bkt/k", headers).body;
        assert_eq!((get(first), get(second)), (b"old".to_vec(), b"old".to_vec()));
        endpoint.put("/bkt/k", object("new", "new"));
        assert_eq!(get(&[first, &[ASKING]].concat()), b"new");
        assert_eq!(get(second), b"new");
        // The same holds if the older bytes become current again.
        endpoint.put("/bkt/k", object("old", "old"));
        assert_eq!(get(&[first, &[ASKING]].concat()), b"old");
        assert_eq!(get(second), b"old");
    }
}

#[test]
fn a_client_that_leaves_its_change_leaves_it_open() {
    let (endpoint, sidecar) = warm();
    let mut writer = Client::of(&sidecar);
    writer.send(request("PUT /bkt/k", &[("Content-Length", "10")]));
    writer.send("half");
    while sidecar.counts().changes.get() < 1 {
        std::thread::yield_now();
    }
    drop(writer);
    while sidecar.counts().connections_now.get() > 0.0 {
        std::thread::yield_now();
    }
    assert!(asks(&endpoint, &sidecar, "/bkt/k") && asks(&endpoint, &sidecar, "/bkt/k"));
}

#[test]
fn a_change_that_was_never_sent_is_over_at_once() {
    let away = Away::new();
    let endpoint = Endpoint::start();
    let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| {
        config.upstream = away.url().parse().unwrap();
        config.response_timeout = Duration::from_secs(3600);
    });
    assert_eq!(ask(&sidecar, "PUT /bkt/k", &[]).status, 502);
    let back = away.come_back();
    back.put("/bkt/k", object("old", "old"));
    assert_eq!(read(&sidecar, "/bkt/k"), b"old");
    assert!(!asks(&back, &sidecar, "/bkt/k"));
}

#[test]
fn a_deletion_of_many_concerns_those_that_it_names() {
    let deletion = |keys: &[&str]| -> String {
        let all: String = keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
        format!("<Delete>{all}</Delete>")
    };
    let (endpoint, sidecar) = warm();
    let send = |body: &str| {
        let mut client = Client::of(&sidecar);
        client.send(request("POST /bkt?delete", &[("Content-Length", &body.len().to_string())]));
        client.send(body);
        client
    };
    // While the request is in progress, nothing in the bucket is fresh.
    let gate = Gate::new();
    let held = gate.clone();
    endpoint.on_request(move |seen| if is_read(seen) { Act::Serve } else { Act::ServeAfter(held.clone()) });
    let mut client = send(&deletion(&["k", "x&amp;y"]));
    endpoint.wait_for_requests(1);
    endpoint.take_seen();
    assert_eq!(
        (read(&sidecar, "/bkt/k"), read(&sidecar, "/bkt/other")),
        (b"old".to_vec(), b"other".to_vec())
    );
    let seen = endpoint.take_seen();
    assert!(seen.len() == 2 && seen.iter().all(|seen| seen.method() == "HEAD"), "{seen:?}");
    assert!(!asks(&endpoint, &sidecar, "/cup/k"));
    endpoint.remove("/bkt/k");
    gate.open();
    assert_eq!(client.answer().status, 200);
    assert_eq!(ask(&sidecar, "GET /bkt/k", &[]).status, 404);
    assert!(!asks(&endpoint, &sidecar, "/bkt/other"));
    // A request that cannot be parsed affects the whole bucket.
    let long = deletion(&["k"; 10_001]);
    for body in ["nonsense", &long, &format!("{}{}", " ".repeat(3 << 20), deletion(&["k"]))] {
        assert!(!asks(&endpoint, &sidecar, "/bkt/other"));
        assert_eq!(send(body).answer().status, 200);
        assert!(asks(&endpoint, &sidecar, "/bkt/other") && !asks(&endpoint, &sidecar, "/cup/k"));
    }
}

#[test]
fn what_is_announced_is_asked_for_again() {
    let (endpoint, sidecar) = warm();
    let control = sidecar.control();
    for path in ["/bkt/dir/1", "/bkt/dir/2", "/bkt/dir2"] {
        endpoint.put(path, object("e", path));
        assert!(asks(&endpoint, &sidecar, path) && !asks(&endpoint, &sidecar, path));
    }
    let (bucket, all) = ("bkt".to_owned(), ["/bkt/dir/1", "/bkt/dir/2", "/bkt/dir2", "/bkt/k", "/cup/k"]);
    for (what, void) in [
        (Invalidation::Key { bucket: bucket.clone(), key: "dir/1".into() }, &all[..1]),
        (Invalidation::Prefix { bucket: bucket.clone(), prefix: "dir/".into() }, &all[..2]),
        (Invalidation::Prefix { bucket: bucket.clone(), prefix: String::new() }, &all[..4]),
        (Invalidation::All, &all[..]),
    ] {
        control.invalidate(&what).unwrap();
        for path in all {
            assert_eq!(asks(&endpoint, &sidecar, path), void.contains(&path), "{what:?} {path}");
        }
    }
    let record = |key: &str| {
        let body =
            format!(r#"{{"Records":[{{"s3":{{"bucket":{{"name":"bkt"}},"object":{{"key":"{key}"}}}}}}]}}"#);
        control.take_events(body.as_bytes())
    };
    assert_eq!(record("dir%2F1"), Ok(1));
    assert!(asks(&endpoint, &sidecar, "/bkt/dir/1") && !asks(&endpoint, &sidecar, "/bkt/dir/2"));
    assert!(matches!(control.take_events(b"{}"), Err(ControlError::Wrong(_))));
    let wrong = Invalidation::Key { bucket: "a/b".into(), key: "k".into() };
    assert!(matches!(control.invalidate(&wrong), Err(ControlError::Wrong(_))));
    assert_eq!(sidecar.counts().invalidated_by_command.get(), 4);
    // If the sidecar revalidates at each read, announcements have no effect, and after the shutdown
    // nobody receives them.
    let asking: SidecarControl = endpoint.sidecar(|_| ()).control();
    assert_eq!(asking.invalidate(&Invalidation::All), Err(ControlError::Ended));
    let asking = endpoint.sidecar(|_| ());
    assert_eq!(asking.control().invalidate(&Invalidation::All), Err(ControlError::AlwaysAsks));
}

#[test]
fn an_answer_from_before_an_announcement_is_not_fresh_after_it() {
    let announcements: [fn(&SidecarControl); 2] = [
        |control| {
            control.invalidate(&Invalidation::Prefix { bucket: "bkt".into(), prefix: "co".into() }).unwrap();
        },
        |control| {
            let body = br#"{"Records":[{"s3":{"bucket":{"name":"bkt"},"object":{"key":"cold"}}}]}"#;
            control.take_events(body).unwrap();
        },
    ];
    for announce in announcements {
        let (endpoint, sidecar) = warm();
        endpoint.put("/bkt/cold", object("old", "old"));
        let gate = Gate::new();
        let held = gate.clone();
        endpoint.on_request(move |_| Act::Late(held.clone()));
        let mut reader = Client::of(&sidecar);
        reader.send(request("GET /bkt/cold", &[]));
        endpoint.wait_for_requests(1);
        endpoint.put("/bkt/cold", object("new", "new"));
        announce(&sidecar.control());
        gate.open();
        assert_eq!(reader.answer().body, b"old");
        assert_eq!(read(&sidecar, "/bkt/cold"), b"new");
    }
}
