//! Random concurrent changes and reads by many clients: every read must fit a history in which
//! nothing goes back.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::{Act, Client, Endpoint, request};
use s3_sidecar::{Fresh, Sidecar};

const KEYS: usize = 3;
const CLIENTS: u64 = 6;
const STEPS: usize = 250;

/// A pseudo-random sequence of numbers.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// A change of a key: its value, and its start and end.
#[derive(Clone, Copy, Debug)]
struct Change {
    value: Option<u64>,
    began: u64,
    ended: u64,
}

#[derive(Default)]
struct History {
    clock: AtomicU64,
    values: AtomicU64,
    changes: Mutex<HashMap<String, Vec<Change>>>,
}

impl History {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Makes a change, which has no end if `make` returns false.
    fn change(&self, path: &str, value: Option<u64>, make: impl FnOnce() -> bool) {
        let index = {
            let mut all = self.changes.lock().unwrap();
            let changes = all.entry(path.into()).or_default();
            changes.push(Change { value, began: self.now(), ended: u64::MAX });
            changes.len() - 1
        };
        if make() {
            self.changes.lock().unwrap().get_mut(path).unwrap()[index].ended = self.now();
        }
    }

    /// Asserts that a read is consistent: a change to its value started before the read ended, and no
    /// other change took place entirely between the end of that change and the start of the read.
    fn check(&self, path: &str, value: Option<u64>, began: u64) {
        let ended = self.now();
        let all = self.changes.lock().unwrap();
        let none = Vec::new();
        let changes = all.get(path).unwrap_or(&none);
        let first = Change { value: None, began: 0, ended: 0 };
        let mut writers =
            changes.iter().chain([&first]).filter(|change| change.value == value && change.began <= ended);
        let fits = writers
            .any(|writer| !changes.iter().any(|other| other.began > writer.ended && other.ended < began));
        assert!(fits, "{path}: {value:?} was read from {began} to {ended}: {changes:?}");
    }
}

fn body(value: u64) -> String {
    // Several cache buckets, each of them different.
    (0..1000).map(|_| format!("{value:015}\n")).collect()
}

fn value_of(body: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(body).unwrap();
    let first = text.lines().next()?;
    assert!(text.lines().all(|line| line == first), "two values are mixed");
    Some(first.parse().unwrap())
}

fn play(sidecar: &Sidecar, history: &History, seed: u64) {
    let mut numbers = Numbers(seed);
    let mut client = Client::of(sidecar);
    for _ in 0..STEPS {
        let path = format!("/bkt/k{}", numbers.next(KEYS as u64));
        match numbers.next(20) {
            0..=2 => {
                let value = history.values.fetch_add(1, Ordering::SeqCst) + 1;
                let body = body(value);
                history.change(&path, Some(value), || {
                    client.send(request(
                        &format!("PUT {path}"),
                        &[("Content-Length", &body.len().to_string())],
                    ));
                    client.send(&body);
                    end(&mut client, sidecar)
                });
            }
            3 => history.change(&path, None, || {
                client.send(request(&format!("DELETE {path}"), &[]));
                end(&mut client, sidecar)
            }),
            step => {
                let began = history.now();
                let range = [("Range", "bytes=4096-8191")];
                let headers = if step % 3 == 0 { &range[..] } else { &[] };
                client.send(request(&format!("GET {path}"), headers));
                let answer = client.answer();
                match answer.status {
                    200 | 206 => history.check(&path, value_of(&answer.body), began),
                    404 => history.check(&path, None, began),
                    // The endpoint closed the connection early.
                    status => assert!(status >= 500, "{status}"),
                }
            }
        }
    }
}

/// Reads the answer to a change, and returns whether the change has certainly been made.
fn end(client: &mut Client, sidecar: &Sidecar) -> bool {
    match client.head() {
        Some(answer) => {
            let status = client.finish(answer, false).status;
            status < 300
        }
        None => {
            *client = Client::of(sidecar);
            false
        }
    }
}

#[test]
fn every_read_fits_the_history_of_changes() {
    for (seed, loses_answers) in [(1, false), (2, true), (3, true)] {
        let endpoint = Endpoint::start();
        let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| {
            config.policy.negative = Duration::from_secs(3600);
            config.memory_bytes = 16 << 20;
        });
        let numbers = Mutex::new(Numbers(seed));
        endpoint.on_request(move |_| {
            let turns = numbers.lock().unwrap().next(200);
            // Responses overtake each other.
            if loses_answers && turns < 5 { Act::Hang } else { Act::Lagging(turns % 8) }
        });
        let history = History::default();
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    scope.spawn({
                        let (sidecar, history) = (&sidecar, &history);
                        move || play(sidecar, history, seed * 1000 + client)
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
        let counts = sidecar.counts();
        assert!(counts.hits.get() > 0 && counts.absent.get() > 0 && counts.misses.get() > 0);
    }
}
