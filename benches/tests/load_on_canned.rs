//! The whole load generator against the canned server: counts must be exact, wrong replies must be errors.
//! Nothing here asserts a time.

use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use cached_benches::canned::{Replies, serve_on};
use cached_benches::keyspace::{KeySpace, ValueBytes, Verify};
use cached_benches::load::{self, Arrival, ArrivalKind, KeyChoice, Limit, LoadSpec, Target};

/// Starts a canned server that lives as long as the test process.
fn canned() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || serve_on(&listener, &Replies::new(20, 100)).unwrap());
    address
}

fn spec(address: SocketAddr) -> LoadSpec {
    let keys = KeySpace::new(0, 1_000, 20, ValueBytes::fixed(100), 0).unwrap();
    LoadSpec {
        verify: Verify::Length,
        connections: 8,
        limit: Limit::Requests(1_003),
        stall_limit: Duration::from_secs(60),
        server_pids: vec![std::process::id()],
        ..LoadSpec::new(Target::Tcp(address), keys)
    }
}

#[test]
fn a_request_count_is_met_exactly_whatever_the_shape() {
    let address = canned();
    let base = spec(address);
    let shapes = [
        base.clone(),
        LoadSpec { pipeline: 16, ..base.clone() },
        LoadSpec { keys_per_get: 100, ..base.clone() },
        LoadSpec { set_share: 1.0, ..base.clone() },
        LoadSpec { set_share: 0.3, pipeline: 5, key_choice: KeyChoice::Zipf(0.99), ..base.clone() },
        LoadSpec { threads: 3, pipeline: 7, key_choice: KeyChoice::Sequential, ..base.clone() },
    ];
    for shape in shapes {
        let report = load::run(&shape).unwrap();
        assert_eq!(report.requests, 1_003, "{shape:?}");
        assert_eq!(report.keys, report.sets + report.hits);
        assert_eq!((report.misses, report.refused, report.unanswered), (0, 0, 0));
        assert_eq!(report.hits, (report.requests - report.sets) * shape.keys_per_get as u64);
        assert!(report.server_cpu_ns_per_request.is_some_and(|ns| ns > 0.0));
    }
}

#[test]
fn an_open_loop_sends_what_is_due() {
    let limit = Limit::Time { warmup: Duration::from_millis(20), measured: Duration::from_millis(200) };
    for kind in [ArrivalKind::Fixed, ArrivalKind::Poisson] {
        let arrival = Arrival::Open { requests_per_s: 5_000.0, kind };
        let report = load::run(&LoadSpec { arrival, limit, ..spec(canned()) }).unwrap();
        assert_eq!(report.unanswered, 0);
        assert!(report.requests > 0 && report.latency.max_us >= report.latency.p50_us);
    }
}

#[test]
fn values_that_were_never_stored_are_an_error() {
    let error = load::run(&LoadSpec { verify: Verify::Ends, ..spec(canned()) }).unwrap_err();
    assert!(format!("{error:#}").contains("not asked for"), "{error:#}");
    let keys = KeySpace::new(0, 1_000, 20, ValueBytes::fixed(99), 0).unwrap();
    let error = load::run(&LoadSpec { keys, ..spec(canned()) }).unwrap_err();
    assert!(format!("{error:#}").contains("100 bytes instead of 99"), "{error:#}");
}

#[test]
fn nobody_listening_and_bad_bounds_are_errors() {
    // The address is separate, so that no other test's server takes the port in the meantime.
    let free = TcpListener::bind("127.0.0.96:0").unwrap().local_addr().unwrap();
    let base = spec(free);
    assert!(format!("{:#}", load::run(&base).unwrap_err()).contains("connecting"));
    for bad in [
        LoadSpec { connections: 0, ..base.clone() },
        LoadSpec { pipeline: 0, ..base.clone() },
        LoadSpec { threads: 9, ..base.clone() },
        LoadSpec { set_share: 1.5, ..base.clone() },
        LoadSpec { key_choice: KeyChoice::Zipf(0.0), ..base.clone() },
    ] {
        assert!(!format!("{:#}", load::run(&bad).unwrap_err()).contains("connecting"));
    }
}
