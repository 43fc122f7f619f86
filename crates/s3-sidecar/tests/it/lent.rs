//! Bodies that are sent from the cache's memory without a copy: a client that reads late gets the
//! content as of sending, whatever has happened to that memory since.

use std::thread;
use std::time::Duration;

use crate::support::{Client, Endpoint, ask, object, pattern, request};
use s3_sidecar::{Fresh, Sidecar};

const MIB: usize = 1 << 20;

/// Returns the content of the object with this number.
fn body(number: u8, len: usize) -> Vec<u8> {
    pattern(len, number.wrapping_mul(37))
}

/// Returns an endpoint with numbered objects of 4 MiB, and a sidecar with little memory that keeps
/// them fresh.
fn with_objects(count: u8) -> (Endpoint, Sidecar) {
    let endpoint = Endpoint::start();
    for number in 0..count {
        endpoint.put(&format!("/bucket/{number}"), object(&format!("etag{number}"), body(number, 4 * MIB)));
    }
    let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| {
        config.memory_bytes = 32 * MIB as u64;
        config.stall_max = Duration::from_secs(600);
    });
    (endpoint, sidecar)
}

fn read(sidecar: &Sidecar, number: u8) {
    let answer = ask(sidecar, &format!("GET /bucket/{number}"), &[]);
    assert_eq!(
        answer.status,
        200,
        "object {number}: {:?} {}",
        answer.headers,
        String::from_utf8_lossy(&answer.body)
    );
    assert!(answer.body == body(number, 4 * MIB), "object {number}");
}

fn lent(sidecar: &Sidecar) -> u64 {
    sidecar.counts().bytes_lent.get()
}

/// Requests an object that is in memory, and waits until some of its bytes are lent. The client
/// reads nothing.
fn ask_and_wait(sidecar: &Sidecar, number: u8) -> Client {
    let before = lent(sidecar);
    let mut client = Client::of(sidecar);
    client.send(request(&format!("GET /bucket/{number}"), &[]));
    while lent(sidecar) < before + 256 * 1024 {
        thread::yield_now();
    }
    client
}

#[test]
fn a_client_that_reads_late_has_the_bytes_that_were_sent() {
    let (_endpoint, sidecar) = with_objects(40);
    for round in 0..4 {
        for number in [round, 10 + round] {
            read(&sidecar, number);
            read(&sidecar, number);
        }
        let mut clients: Vec<_> =
            [round, 10 + round].map(|number| (number, ask_and_wait(&sidecar, number))).into();
        // Several times the memory, so that every bucket is reused and lent again.
        for number in 20..40 {
            read(&sidecar, number);
            read(&sidecar, number);
        }
        for (number, client) in &mut clients {
            let answer = client.answer();
            assert!(!answer.is_cut && answer.body == body(*number, 4 * MIB), "object {number}");
        }
    }
}

#[test]
fn answers_of_every_length_are_whole_and_follow_each_other() {
    let endpoint = Endpoint::start();
    let lens =
        [1, 4095, 4096, 32_767, 32_768, 32_769, 65_536, 200_000, 262_144, 300_001, MIB + 5, 5 * MIB + 1];
    for (number, len) in lens.into_iter().enumerate() {
        endpoint.put(&format!("/bucket/{number}"), object(&format!("etag{number}"), body(number as u8, len)));
    }
    let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| config.memory_bytes = 64 * MIB as u64);
    for number in 0..lens.len() {
        ask(&sidecar, &format!("GET /bucket/{number}"), &[]);
    }
    let before = lent(&sidecar);
    let mut client = Client::of(&sidecar);
    for round in 0..3 {
        for (number, len) in lens.into_iter().enumerate() {
            // The whole object, and a part that starts and ends within buckets.
            client.send(request(&format!("GET /bucket/{number}"), &[]));
            let (from, to) = (len / 3, len - 1 - len / 7);
            let range = format!("bytes={from}-{to}");
            client.send(request(&format!("GET /bucket/{number}"), &[("Range", &range)]));
            let body = body(number as u8, len);
            let whole = client.answer();
            assert!(whole.status == 200 && whole.body == body, "{round}: {len} bytes");
            let part = client.answer();
            assert!(part.status == 206 && part.body == body[from..=to], "{round}: {range} of {len} bytes");
        }
    }
    let bodies: usize = lens.iter().filter(|len| **len > 100_000).sum();
    assert!(lent(&sidecar) - before > 3 * bodies as u64, "{} bytes were lent", lent(&sidecar) - before);
}

#[test]
fn a_client_that_leaves_while_bytes_are_on_their_way_harms_no_other() {
    let (_endpoint, sidecar) = with_objects(4);
    for number in 0..4 {
        read(&sidecar, number);
    }
    for round in 0..100 {
        // More readers than pipes.
        drop(ask_and_wait(&sidecar, round % 4));
    }
    for number in 0..4 {
        read(&sidecar, number);
    }
    let before = lent(&sidecar);
    read(&sidecar, 0);
    assert!(lent(&sidecar) > before);
}

#[test]
fn where_all_pipes_are_taken_bodies_are_copied() {
    let endpoint = Endpoint::start();
    // Longer than a socket accepts while its client reads nothing.
    endpoint.put("/bucket/0", object("long", body(0, 8 * MIB)));
    let sidecar = endpoint.fresh_sidecar(Fresh::Immutable, |config| {
        config.threads = 1;
        config.stall_max = Duration::from_secs(600);
    });
    let is_right = |body_read: &[u8]| body_read == body(0, 8 * MIB);
    assert!(is_right(&ask(&sidecar, "GET /bucket/0", &[]).body));
    // Each of them has a pipe, which finally contains bytes that its client does not read.
    let waiting: Vec<_> = (0..64).map(|_| ask_and_wait(&sidecar, 0)).collect();
    let copies = |sidecar: &Sidecar| {
        let before = lent(sidecar);
        assert!(is_right(&ask(sidecar, "GET /bucket/0", &[]).body));
        lent(sidecar) == before
    };
    // Waits until nothing changes any more; between two requests, the thread has served each of
    // them.
    let mut before = 0;
    while std::mem::replace(&mut before, lent(&sidecar)) != lent(&sidecar) {
        (0..50).for_each(|_| drop(ask(&sidecar, "HEAD /bucket/0", &[])));
    }
    assert!(copies(&sidecar));
    for mut client in waiting {
        let answer = client.answer();
        assert!(!answer.is_cut && is_right(&answer.body));
    }
    assert!(!copies(&sidecar));
}
