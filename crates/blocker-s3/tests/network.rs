//! The store over real connections, to a server in this process: the conformance suite; a model under connections that
//! are cut, answers that are lost, cut off or wrong, and wishes for fewer requests; answers that come too late.

#![cfg(feature = "http")]

#[path = "support/http.rs"]
mod http;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use blocker::conformance::{Harness, Options, run};
use blocker::executor::block_on;
use blocker::metrics::Collect;
use blocker::{
    Blocker, Error, InfoRequest, Name, Namespace, ObjectId, ReadRequest, WriteFullRequest, WriteRequest,
};
use blocker_s3::{S3Config, S3Store};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use http::{Asked, Double, SLOW_DOWN, Trouble};

/// After how long an attempt fails in the tests of late answers, which wait for that: long enough for a busy machine.
const SHORT: Duration = Duration::from_secs(3);

fn config(server: &Double) -> S3Config {
    let address = server.address;
    let text = format!("bucket,endpoint=http://{address},allow_http=true,anonymous=true");
    let mut config: S3Config = text.parse().unwrap();
    config.sweep_interval = Duration::ZERO;
    config
}

fn impatient(server: &Double) -> S3Store {
    let mut config = config(server);
    config.request_timeout = SHORT;
    S3Store::open(&config).unwrap()
}

fn object(name: &str) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(name.as_bytes()).unwrap())
}

fn read(store: &S3Store, object: &ObjectId) -> Result<Vec<u8>, Error> {
    let max = store.capabilities().object_bytes_max;
    block_on(store.read(ReadRequest::new(object.clone(), 0, max))).map(|reply| reply.data.to_vec())
}

fn metric(store: &S3Store, name: &str) -> u64 {
    store.families().number(name).unwrap().to_u64()
}

/// Each case has a server of its own.
struct OverHttp(AtomicU32, parking_lot::Mutex<Option<Double>>);

impl OverHttp {
    fn open(&self) -> Arc<dyn Blocker> {
        Arc::new(S3Store::open(&config(self.1.lock().as_ref().unwrap())).unwrap())
    }
}

impl Harness for OverHttp {
    fn backend(&self) -> Arc<dyn Blocker> {
        *self.1.lock() = Some(Double::new());
        self.0.fetch_add(1, Ordering::Relaxed);
        self.open()
    }

    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        Some(self.open())
    }
}

#[test]
fn the_conformance_suite_passes() {
    let mut options = Options::default();
    options.exclusive = true;
    let report = run(&OverHttp(AtomicU32::new(0), parking_lot::Mutex::new(None)), &options);
    report.cases.iter().for_each(|case| println!("{case}"));
    report.assert_passed();
}

/// One request in eight meets trouble.
fn troubled(seed: u64) -> impl FnMut(&Asked) -> Trouble + Send + 'static {
    const TROUBLES: [Trouble; 7] = [
        Trouble::Refused("500 Internal Server Error", "InternalError"),
        Trouble::Refused("503 Service Unavailable", "ServiceUnavailable"),
        SLOW_DOWN,
        Trouble::DoneAndFailed,
        Trouble::CutBefore,
        Trouble::CutAfter,
        Trouble::CutWithin,
    ];
    let mut rng = SmallRng::seed_from_u64(seed);
    move |_| if rng.random_range(0..8) == 0 { TROUBLES[rng.random_range(0..7)] } else { Trouble::None }
}

/// What is acknowledged is there, what is refused is not, and what is unknown is one or the other, for good.
#[test]
fn nothing_is_lost_or_made_up_by_trouble_on_the_way() {
    for seed in 0..4 {
        let server = Double::new();
        let store = S3Store::open(&config(&server)).unwrap();
        let names = ["a", "b", "c"].map(object);
        // What each object may be; the first is what it most likely is.
        let mut possible = vec![vec![None::<Vec<u8>>]; names.len()];
        let mut rng = SmallRng::seed_from_u64(seed);
        server.trouble(troubled(seed));
        let mut failed = 0;
        for step in 0..60_u8 {
            let which = rng.random_range(0..names.len());
            let context = format!("seed {seed}, step {step}");
            // Small ones lie in the head, large ones in blobs.
            let len = [100, 40_000][rng.random_range(0..2)];
            let at: usize = rng.random_range(0..50_000);
            let is_full = rng.random_range(0..3) == 0;
            let data = vec![step + 1; len];
            let done = if is_full {
                block_on(store.write_full(WriteFullRequest::new(names[which].clone(), data))).map(drop)
            } else {
                block_on(store.write(WriteRequest::new(names[which].clone(), at as u64, data))).map(drop)
            };
            let after = possible[which].iter().map(|before| {
                let mut bytes = if is_full { Vec::new() } else { before.clone().unwrap_or_default() };
                let at = if is_full { 0 } else { at };
                bytes.resize(bytes.len().max(at + len), 0);
                bytes[at..at + len].fill(step + 1);
                Some(bytes)
            });
            let after: Vec<_> = after.collect();
            match done {
                Ok(()) => possible[which] = after,
                Err(Error::OutcomeUnknown(_)) => possible[which].extend(after),
                Err(Error::Retryable(_)) => failed += 1,
                Err(error) => panic!("{context}: {error}"),
            }
            let found = match read(&store, &names[which]) {
                Ok(bytes) => Some(bytes),
                Err(Error::Missing) => None,
                Err(Error::Retryable(_)) => continue,
                Err(error) => panic!("{context}: {error}"),
            };
            assert!(possible[which].contains(&found), "{context}: it is something else");
            // A read settles it.
            possible[which] = vec![found];
        }
        server.heal();
        let other = S3Store::open(&config(&server)).unwrap();
        let check = |store: &S3Store, context: &str| {
            for (name, possible) in names.iter().zip(&possible) {
                let found = read(store, name).ok();
                assert!(possible.contains(&found), "seed {seed}, {context}: it is something else");
            }
        };
        check(&store, "through the same store");
        check(&other, "through another");
        println!("seed {seed}: {failed} refused, {} repeated", metric(&store, "s3_requests_repeated_total"));
        // Requests in the background have ended with their store.
        drop(store);
        block_on(other.sweep(Duration::ZERO)).unwrap();
        assert_eq!(block_on(other.sweep(Duration::ZERO)).unwrap().removed, 0, "seed {seed}");
        check(&other, "after a sweep");
    }
}

/// Holds the first request that `is_it`.
fn hold_once(server: &Double, trouble: Trouble, is_it: impl Fn(&Asked) -> bool + Send + 'static) {
    let mut is_over = false;
    server.trouble(move |asked| {
        if is_over || !is_it(asked) {
            return Trouble::None;
        }
        is_over = true;
        trouble
    });
}

#[test]
fn a_put_that_arrives_late_changes_nothing() {
    let server = Double::new();
    let (store, disk) = (impatient(&server), object("disk"));
    let write =
        |byte: u8| block_on(store.write_full(WriteFullRequest::new(disk.clone(), vec![byte; 50_000])));
    write(1).unwrap();
    for (round, trouble) in [(2, Trouble::HeldBefore), (4, Trouble::HeldAfter)] {
        for kind in ["h/", "d/"] {
            hold_once(&server, trouble, move |asked| asked.method == "PUT" && asked.key.starts_with(kind));
            // The attempt fails, and is repeated.
            write(round).unwrap();
            assert_eq!(server.held(), 1);
            write(round + 1).unwrap();
            server.heal();
            server.release();
            assert_eq!(read(&store, &disk).unwrap(), vec![round + 1; 50_000], "{trouble:?} of {kind}");
        }
    }
}

#[test]
fn a_server_that_does_not_answer_is_an_error_and_no_wait_without_end() {
    let server = Double::new();
    let mut config = config(&server);
    (config.request_timeout, config.retries) = (SHORT, 1);
    let (store, disk) = (S3Store::open(&config).unwrap(), object("disk"));
    block_on(store.write(WriteRequest::new(disk.clone(), 0, vec![1; 50_000]))).unwrap();
    server.trouble(|_| Trouble::HeldBefore);
    // Its blob gets no answer: nothing was changed.
    let error = block_on(store.write(WriteRequest::new(disk.clone(), 0, vec![2; 50_000]))).unwrap_err();
    assert_eq!(error.kind(), "retryable", "{error}");
    let error = read(&store, &disk).unwrap_err();
    assert_eq!(error.kind(), "retryable", "{error}");
    // Its head gets none: that may be changed.
    server.trouble(|asked| if asked.key.starts_with("d/") { Trouble::None } else { Trouble::HeldBefore });
    let error = block_on(store.write(WriteRequest::new(disk.clone(), 0, vec![3; 50_000]))).unwrap_err();
    assert_eq!(error.kind(), "outcome_unknown", "{error}");
    server.heal();
    // What it becomes is decided by the first look; whatever was on the way comes too late.
    let found = read(&store, &disk).unwrap();
    server.release();
    assert_eq!(read(&store, &disk).unwrap(), found);
    block_on(store.write(WriteRequest::new(disk.clone(), 0, vec![4; 50_000]))).unwrap();
    assert_eq!(read(&store, &disk).unwrap(), vec![4; 50_000]);
}

#[test]
fn a_wish_for_fewer_requests_halves_their_number() {
    let server = Double::new();
    let mut config = config(&server);
    config.requests_in_flight_max = 8;
    let store = S3Store::open(&config).unwrap();
    let look = &|name: &str| block_on(store.info(InfoRequest::new(object(name))));
    let mut is_first = true;
    server.trouble(move |_| if std::mem::take(&mut is_first) { SLOW_DOWN } else { Trouble::None });
    assert_eq!(look("none").unwrap_err(), Error::Missing, "it is asked again");
    assert_eq!(metric(&store, "s3_slow_downs_total"), 1);
    assert_eq!(metric(&store, "s3_requests_in_flight_max"), 4);
    server.trouble(|_| Trouble::HeldBefore);
    std::thread::scope(|scope| {
        for number in 0..12 {
            scope.spawn(move || assert_eq!(look(&format!("none.{number}")).unwrap_err(), Error::Missing));
        }
        server.wait_held(4);
        server.heal();
        assert_eq!(server.held(), 4, "others wait for a place");
        server.release();
    });
    // As many answers as it is wide make it wider by one.
    assert!(metric(&store, "s3_requests_in_flight_max") >= 6);
}
