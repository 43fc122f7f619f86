//! Watchers that read, that do not read, and that close.

use super::events::{FETCHERS, MUTATIONS};
use super::*;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

fn watch(pending_bytes_max: usize, watcher_bytes_max: usize) -> Arc<Watch> {
    Arc::new(Watch::new(pending_bytes_max, watcher_bytes_max).expect("a descriptor"))
}

fn read_until(client: &mut UnixStream, end: &str) -> String {
    let mut text = String::new();
    let mut bytes = [0; 4096];
    while !text.ends_with(end) {
        let count = client.read(&mut bytes).expect("something to read");
        assert!(count > 0, "the end came after {text:?}");
        text.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
    }
    text
}

#[test]
fn a_watcher_gets_the_kinds_it_asked_for() {
    let watch = watch(1 << 16, 1 << 16);
    let (ours, mut client) = UnixStream::pair().expect("sockets");
    assert!(!watch.wants(KINDS));
    let subscription = watch.subscribe(Subscriber::Socket(ours.as_fd()), FETCHERS).expect("room");
    assert!(watch.wants(FETCHERS) && !watch.wants(MUTATIONS));
    assert_eq!(read_until(&mut client, "\n"), "OK\r\n");
    watch.publish(MUTATIONS, &"not asked for");
    watch.publish(FETCHERS, &"type=x");
    let line = read_until(&mut client, "\n");
    assert!(line.starts_with("ts=") && line.ends_with("gid=2 type=x\n"), "{line}");
    drop(subscription);
    // The log thread closes its copy of the socket, which is the last one.
    drop(ours);
    assert_eq!(client.read(&mut [0; 16]).expect("the end"), 0);
    while watch.counts.watchers.load(Ordering::Acquire) > 0 {
        std::thread::yield_now();
    }
    assert!(!watch.wants(KINDS));
}

#[test]
fn a_watcher_that_does_not_read_skips_lines_and_receives_their_number() {
    let watch = watch(1 << 20, 8 << 10);
    let (ours, mut client) = UnixStream::pair().expect("sockets");
    ours.set_nonblocking(true).expect("a flag");
    let _subscription = watch.subscribe(Subscriber::Socket(ours.as_fd()), FETCHERS).expect("room");
    assert_eq!(read_until(&mut client, "\n"), "OK\r\n");
    let long = "x".repeat(2000);
    while watch.counts.watcher_skipped.load(Ordering::Relaxed) == 0 {
        watch.publish(FETCHERS, &long);
    }
    // Until every pending line has been passed on or skipped.
    while !watch.pending().lines.is_empty() {
        std::thread::yield_now();
    }
    let mut all = String::new();
    loop {
        let mut bytes = [0; 65536];
        let count = client.read(&mut bytes).expect("something to read");
        all.push_str(std::str::from_utf8(&bytes[..count]).expect("text"));
        watch.publish(FETCHERS, &"more");
        if all.contains("skipped=") {
            break;
        }
    }
    let skipped = all.split("skipped=").nth(1).and_then(|rest| rest.split('\n').next()).expect("a number");
    assert!(skipped.parse::<u64>().is_ok_and(|number| number > 0), "{skipped}");
}

#[test]
fn pending_lines_are_bounded() {
    let watch = watch(1000, 1 << 16);
    let (ours, _client) = UnixStream::pair().expect("sockets");
    let _subscription = watch.subscribe(Subscriber::Socket(ours.as_fd()), FETCHERS).expect("room");
    // Longer than the whole queue: the line is dropped.
    watch.publish(FETCHERS, &"x".repeat(2000));
    assert_eq!(watch.counts.worker_dropped.load(Ordering::Relaxed), 1);
}

#[test]
fn at_most_twenty_connections_watch() {
    let watch = watch(1000, 1000);
    let pairs: Vec<_> = (0..=WATCHERS_MAX).map(|_| UnixStream::pair().expect("sockets")).collect();
    let all: Vec<_> =
        pairs.iter().map(|(ours, _)| watch.subscribe(Subscriber::Socket(ours.as_fd()), FETCHERS)).collect();
    assert!(all[..WATCHERS_MAX].iter().all(Result::is_ok));
    assert_eq!(all[WATCHERS_MAX].as_ref().err(), Some(&Refused::TooMany));
}
