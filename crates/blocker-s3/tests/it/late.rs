//! Late puts beside slow responses. Whoever reads an object after a change with an unknown outcome
//! determines the outcome, also if a response from before the late put arrives in between.

use std::pin::pin;
use std::time::Duration;

use blocker::{Blocker, BlockerExt, Clock, Error, ManualClock, ReadRequest, WriteFullRequest};
use blocker_s3::S3Store;
use futures_util::FutureExt;

use crate::support::{Fault, Server, drive, object, open, read};

/// A put of a head and its repetitions.
const PUTS: usize = 4;

fn write(store: &S3Store, clock: &ManualClock, bytes: &str) -> Result<(), Error> {
    let mut request = WriteFullRequest::new(object("o"), bytes.as_bytes().to_vec());
    request.call.deadline = Some(clock.now() + Duration::from_secs(20));
    drive(clock, store.write_full(request)).map(drop)
}

fn is_unknown(written: Result<(), Error>) -> bool {
    matches!(written, Err(Error::OutcomeUnknown(_)))
}

/// Checks that the late puts can no longer take effect once the object has been read.
fn stays(content: &str, server: &Server, store: &S3Store, clock: &ManualClock) {
    assert_eq!(read(store, clock, &object("o")).unwrap(), content.as_bytes());
    server.land();
    assert_eq!(read(store, clock, &object("o")).unwrap(), content.as_bytes(), "it has changed since");
}

#[test]
fn a_head_that_was_read_before_a_late_put_says_nothing_about_it() {
    let (server, clock) = (Server::new(0), ManualClock::new());
    let store = open(&server, &clock);
    write(&store, &clock, "one").unwrap();
    server.fail_at(0, Fault::Slow);
    let mut reading = pin!(store.read(ReadRequest::new(object("o"), 0, 9)).into_future());
    assert!(reading.as_mut().now_or_never().is_none(), "the head's response is under way");
    write(&store, &clock, "two").unwrap();
    (0..PUTS).for_each(|put| server.fail_at(put, Fault::Late));
    assert!(is_unknown(write(&store, &clock, "three")));
    drive(&clock, reading).unwrap();
    stays("two", &server, &store, &clock);
}

#[test]
fn what_shuts_out_one_late_put_does_not_count_for_the_next() {
    let (server, clock) = (Server::new(0), ManualClock::new());
    let store = open(&server, &clock);
    write(&store, &clock, "one").unwrap();
    (0..PUTS).for_each(|put| server.fail_at(put, Fault::Late));
    assert!(is_unknown(write(&store, &clock, "two")));
    server.fail_at(1, Fault::Slow);
    let mut reading = pin!(store.read(ReadRequest::new(object("o"), 0, 9)).into_future());
    assert!(reading.as_mut().now_or_never().is_none(), "the put that shuts it out has no response yet");
    server.stall(|met| met.kind == "put");
    assert!(is_unknown(write(&store, &clock, "three")));
    server.heal();
    drive(&clock, reading).unwrap();
    stays("one", &server, &store, &clock);
}

#[test]
fn a_late_put_of_a_change_whose_reply_was_dropped_is_shut_out() {
    let (server, clock) = (Server::new(0), ManualClock::new());
    let store = open(&server, &clock);
    write(&store, &clock, "one").unwrap();
    server.stall(|met| met.kind == "put");
    let request = WriteFullRequest::new(object("o"), b"two".to_vec());
    let mut writing = Box::pin(store.write_full(request).into_future());
    assert!(writing.as_mut().now_or_never().is_none(), "the put has no response yet");
    drop(writing);
    server.heal();
    stays("one", &server, &store, &clock);
}
