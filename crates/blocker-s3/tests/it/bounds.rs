//! The maximum duration of a call with a server that does not respond, including retries and waits,
//! and what its error says about the change.

use std::sync::Arc;
use std::time::Duration;

use blocker::{
    Blocker, BlockerExt, ClaimRequest, Clock, Epoch, Error, Event, ListRequest, ManualClock, ReadRequest,
    Scope, Stamp, SystemClock, Timestamp, WriteFullRequest, WriteRequest, WriterId,
};
use blocker_s3::object_store::ObjectStore;
use blocker_s3::{S3Config, S3Store};

use crate::support::{Met, Server, drive, object, read};

/// The number of retries is so high that, without a time limit, a call would take ten times as
/// long.
fn config() -> S3Config {
    let text = "bucket,request_timeout_secs=30,retries=20,call_timeout_secs=100,sweep_age_secs=36000";
    text.parse().unwrap()
}

fn open(server: &Arc<Server>, clock: &ManualClock) -> S3Store {
    let server = Arc::clone(server) as Arc<dyn ObjectStore>;
    S3Store::open_over(&config(), server, Arc::new(clock.clone())).unwrap()
}

fn since(clock: &ManualClock, start: Timestamp) -> u64 {
    clock.now().since(start).as_secs()
}

fn is_put_below(directory: &'static str) -> impl FnMut(&Met) -> bool + Send {
    move |met| met.kind == "put" && met.path.starts_with(directory)
}

#[test]
fn a_call_ends_in_its_time_however_often_its_requests_are_repeated() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    // The second store has no remembered head.
    let (store, other) = (open(&server, &clock), open(&server, &clock));
    drive(&clock, store.write_full(WriteFullRequest::new(object("disk"), vec![1; 100_000]))).unwrap();
    let named = |error: Error, kind: &str, part: &str| {
        let text = error.to_string();
        assert_eq!(error.kind(), kind, "{text}");
        assert!(text.contains("call_timeout_secs = 100") && text.contains(part), "{text}");
    };
    // The server answers none of the three kinds of requests: a read, a listing, and the put of a
    // change's blob.
    server.stall(|met| met.kind == "get");
    let start = clock.now();
    named(read(&store, &clock, &object("disk")).unwrap_err(), "retryable", "nothing was changed");
    assert_eq!(since(&clock, start), 100);
    let start = clock.now();
    let listed = drive(&clock, other.list(ListRequest::new(object("x").namespace))).map(drop);
    named(listed.unwrap_err(), "retryable", "nothing was changed");
    assert_eq!(since(&clock, start), 100);
    server.stall(is_put_below("d/"));
    let start = clock.now();
    let written = drive(&clock, store.write(WriteRequest::new(object("disk"), 0, vec![2; 50_000])));
    named(written.map(drop).unwrap_err(), "retryable", "nothing was changed");
    assert_eq!(since(&clock, start), 100);
    server.heal();
    server.land();
    assert_eq!(read(&store, &clock, &object("disk")).unwrap(), vec![1; 100_000]);
}

#[test]
fn a_change_whose_head_was_on_its_way_is_open_until_the_next_look() {
    for is_late in [false, true] {
        let (server, clock) = (Server::new(1), ManualClock::new());
        let store = open(&server, &clock);
        let full = |byte| WriteFullRequest::new(object("disk"), vec![byte; 100_000]);
        drive(&clock, store.write_full(full(1))).unwrap();
        server.stall(|met| met.path.starts_with("h/"));
        let error = drive(&clock, store.write_full(full(2))).map(drop).unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), "outcome_unknown", "{text}");
        assert!(text.contains("call_timeout_secs = 100") && text.contains("be made later"), "{text}");
        server.heal();
        if is_late {
            server.land();
        }
        let found = read(&store, &clock, &object("disk")).unwrap();
        assert_eq!(found, vec![1 + u8::from(is_late); 100_000]);
        server.land();
        assert_eq!(read(&store, &clock, &object("disk")).unwrap(), found, "it came after it was shut out");
    }
}

/// A change removes obsolete blobs only after it has completed.
#[test]
fn a_change_that_was_made_is_not_called_unmade() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    let full = |byte| WriteFullRequest::new(object("disk"), vec![byte; 100_000]);
    drive(&clock, store.write_full(full(1))).unwrap();
    server.stall(|met| met.kind == "delete");
    let error = drive(&clock, store.write_full(full(2))).map(drop).unwrap_err();
    assert_eq!(error.kind(), "outcome_unknown", "{error}");
    assert_eq!(read(&store, &clock, &object("disk")).unwrap(), vec![2; 100_000]);
}

/// A caller's own earlier deadline takes precedence.
#[test]
fn the_callers_deadline_comes_first_where_it_is_shorter() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    server.stall(|_| true);
    let start = clock.now();
    let mut request = ReadRequest::new(object("disk"), 0, 1);
    request.call.deadline = Some(start + Duration::from_secs(10));
    assert_eq!(drive(&clock, store.read(request)).map(drop), Err(Error::DeadlinePassed));
    assert_eq!(since(&clock, start), 10);
}

/// The time limit of a claim applies to each object, not to all of them.
#[test]
fn a_claim_takes_as_long_as_it_comes_further() {
    const OBJECTS: usize = 200;
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    for number in 0..OBJECTS {
        let request = WriteRequest::new(object(format!("disk.{number}")), 0, b"x").stamp(Stamp::new(1, 1));
        drive(&clock, store.write(request)).unwrap();
    }
    let claim = |epoch| ClaimRequest::new(Scope::Namespace(object("x").namespace), Epoch(epoch), WriterId(1));
    // For each object, the first read waits until its attempt times out.
    let mut met = std::collections::BTreeSet::new();
    let is_first = move |head: &Met| head.path.starts_with("h/") && met.insert(head.path.clone());
    let other = open(&server, &clock);
    server.stall(is_first);
    let start = clock.now();
    drive(&clock, other.claim(claim(2))).unwrap();
    assert!(since(&clock, start) > 150, "{} s: it tests nothing", since(&clock, start));
    // A claim that cannot continue after it has raised the epoch has an unknown outcome.
    server.stall(|met| met.path.starts_with("h/"));
    let start = clock.now();
    let error = drive(&clock, other.claim(claim(3))).map(drop).unwrap_err();
    assert_eq!(error.kind(), "outcome_unknown", "{error}");
    assert_eq!(since(&clock, start), 100);
}

/// The first attempt has raised the epoch; the repetition only meets the objects.
#[test]
fn a_claim_that_its_repetition_completes_is_reported_once() {
    let (server, clock) = (Server::new(1), ManualClock::new());
    let store = open(&server, &clock);
    let request = WriteRequest::new(object("disk"), 0, b"x").stamp(Stamp::new(1, 1));
    drive(&clock, store.write(request)).unwrap();
    let mut events = store.subscribe();
    let scope = Scope::Namespace(object("x").namespace);
    let claim = || drive(&clock, store.claim(ClaimRequest::new(scope.clone(), Epoch(2), WriterId(1))));
    server.stall(|met| met.path.starts_with("h/"));
    assert_eq!(claim().map(drop).unwrap_err().kind(), "outcome_unknown");
    assert_eq!(events.try_next(), None);
    server.heal();
    claim().unwrap();
    assert_eq!(events.try_next(), Some(Event::Fenced(scope.clone(), Epoch(2))));
    claim().unwrap();
    assert_eq!(events.try_next(), None);
}

#[test]
fn a_server_that_never_answers_is_not_waited_for_without_end_when_a_store_is_opened() {
    let server = Server::new(1);
    server.stall(|_| true);
    let config: S3Config =
        "bucket,request_timeout_secs=1,retries=20,call_timeout_secs=2,sweep_age_secs=36000".parse().unwrap();
    // Opening blocks the thread, so the test uses the system's clock.
    let error = S3Store::open_over(&config, server as Arc<dyn ObjectStore>, Arc::new(SystemClock));
    let error = error.map(drop).unwrap_err();
    assert_eq!(error.kind(), "retryable", "{error}");
    assert!(error.to_string().contains("call_timeout_secs = 2"), "{error}");
}
