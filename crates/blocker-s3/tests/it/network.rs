//! The store over real connections to a server in this process: the conformance suite; a model with
//! interrupted connections, responses that are lost, truncated or wrong, and requests to slow down;
//! and late responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use blocker::conformance::{Harness, Options, run};
use blocker::executor::block_on;
use blocker::metrics::Collect;
use blocker::{
    Blocker, BlockerExt, Error, InfoRequest, ListRequest, Name, Namespace, ObjectId, ReadRequest, Run,
    WriteFullRequest, WriteRequest, WriteRunsRequest,
};
use blocker_s3::{S3Config, S3Store};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index::sample;

use crate::http::{Asked, Double, SLOW_DOWN, Trouble};

/// The time limit of an attempt in the tests that wait for late responses. It is long enough for a
/// busy machine.
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

/// Each case has its own server.
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

/// The traffic of a cache's flush: 16 dirty ranges of 4 KiB, anywhere in 4 MiB, cause two requests
/// that together have at most 1.3 times the data plus 8 KiB, unless the object is rewritten.
#[test]
fn a_flush_is_two_requests_little_larger_than_what_is_dirty() {
    const FLUSHES: usize = 150;
    const BUCKET: usize = 4096;
    let server = Double::new();
    let store = S3Store::open(&config(&server)).unwrap();
    let full = WriteFullRequest::new(object("disk"), vec![1; 4 << 20]);
    block_on(store.write_full(full)).unwrap();
    let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let into = Arc::clone(&asked);
    server.trouble(move |request| {
        // Obsolete blobs are removed in the background, not as a part of a flush.
        if request.method != "DELETE" {
            into.lock().push((request.method.clone(), request.bytes()));
        }
        Trouble::None
    });
    let mut rng = SmallRng::seed_from_u64(7);
    let (mut anew, mut most) = (0, 0);
    for flush in 0..FLUSHES {
        let mut places = sample(&mut rng, (4 << 20) / BUCKET, 16).into_vec();
        places.sort_unstable();
        let runs = places.iter().map(|place| Run::data((place * BUCKET) as u64, vec![flush as u8; BUCKET]));
        block_on(store.write_runs(WriteRunsRequest::new(object("disk"), runs.collect()))).unwrap();
        let asked = std::mem::take(&mut *asked.lock());
        if asked.iter().any(|(method, _)| method == "GET") {
            anew += 1;
            continue;
        }
        let bytes: usize = asked.iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(asked.len(), 2, "flush {flush}: {asked:?}");
        assert!(bytes <= 16 * BUCKET * 13 / 10 + 8192, "flush {flush} is {bytes} bytes on the way");
        most = most.max(bytes);
    }
    println!("{most} bytes on the way at most; {anew} of {FLUSHES} flushes wrote the object anew");
    assert!(anew * 40 <= FLUSHES, "{anew} of {FLUSHES} wrote the object anew");
}

/// A page requests as many keys from the server as the caller wants. A page longer than one
/// response of the server is complete.
#[test]
fn a_page_is_as_long_as_what_is_asked_for() {
    const NAMES: usize = 1_010;
    let server = Double::new();
    // The listing reads each head, which takes long on a busy machine.
    let mut config = config(&server);
    config.call_timeout = Duration::from_secs(600);
    let store = S3Store::open(&config).unwrap();
    block_on(store.write(WriteRequest::new(object("0000"), 0, b"x"))).unwrap();
    let head = server.get("h/n.vm/n/0000").unwrap();
    (1..NAMES).for_each(|number| server.put(&format!("h/n.vm/n/{number:04}"), &head));
    let asked = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let into = Arc::clone(&asked);
    server.trouble(move |request| {
        if request.key.is_empty() {
            into.lock().push(request.query("max-keys").unwrap_or_default().to_owned());
        }
        Trouble::None
    });
    let namespace = object("0000").namespace;
    let page = block_on(store.list(ListRequest::new(namespace.clone()).entries_max(5))).unwrap();
    assert_eq!((page.entries.len(), page.has_more), (5, true));
    // The requested number is one more than the page holds, for either parameter name.
    assert_eq!(std::mem::take(&mut *asked.lock()), ["6", "6"]);
    let page = block_on(store.list(ListRequest::new(namespace).entries_max(10_000))).unwrap();
    assert_eq!((page.entries.len(), page.has_more), (NAMES, false));
    assert!(page.entries.is_sorted_by(|one, two| one.name < two.name));
    assert!(asked.lock().iter().all(|keys| keys == "1000"), "{:?}", asked.lock());
}

#[test]
fn a_server_that_ignores_ranges_is_refused_when_the_store_is_opened() {
    let server = Double::new();
    server.ignore_ranges();
    let error = S3Store::open(&config(&server)).map(drop).unwrap_err();
    assert_eq!(error.kind(), "unsupported", "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn a_server_that_names_no_etag_is_refused_when_the_store_is_opened() {
    for method in ["PUT", "GET"] {
        let server = Double::new();
        server.hide_etags_of(method);
        let error = S3Store::open(&config(&server)).map(drop).unwrap_err();
        assert_eq!(error.kind(), "unsupported", "{method}: {error}");
        assert!(error.to_string().contains("ETag") && !error.to_string().contains('\n'), "{error}");
    }
}

/// The server keeps objects as files, and has no space for one of them.
#[test]
fn a_name_that_the_server_cannot_keep_is_refused_at_once_and_one_that_it_could_not_is_kept() {
    let server = Double::new();
    let store = S3Store::open(&config(&server)).unwrap();
    let write = |len| block_on(store.write(WriteRequest::new(object("disk"), 0, vec![1; len])));
    for (kind, len) in [("h/", 1), ("d/", 50_000)] {
        let refused = Trouble::Refused("409 Conflict", "ExistingObjectIsDirectory");
        let plan = move |asked: &Asked| asked.method == "PUT" && asked.key.starts_with(kind);
        server.trouble(move |asked| if plan(asked) { refused } else { Trouble::None });
        let error = write(len).unwrap_err();
        assert_eq!(error.kind(), "denied", "{error}");
        assert!(error.to_string().contains("the server cannot keep a file of this name"), "{error}");
        // The refusal is the one that a server sends while the last object of a directory is being
        // removed.
        hold_once(&server, refused, plan);
        write(len).unwrap();
        server.heal();
    }
}

/// Acknowledged changes are present, refused ones are absent, and unknown ones are permanently one
/// or the other.
#[test]
fn nothing_is_lost_or_made_up_by_trouble_on_the_way() {
    for seed in 0..4 {
        let server = Double::new();
        crate::trouble::nothing_is_lost_or_made_up(
            &server,
            &|| S3Store::open(&config(&server)).unwrap(),
            seed,
        );
    }
}

/// Holds the first request for which `is_it` returns true.
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
            // The first attempt fails and is retried.
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
    // The put of the blob gets no response: nothing was changed.
    let error = block_on(store.write(WriteRequest::new(disk.clone(), 0, vec![2; 50_000]))).unwrap_err();
    assert_eq!(error.kind(), "retryable", "{error}");
    let error = read(&store, &disk).unwrap_err();
    assert_eq!(error.kind(), "retryable", "{error}");
    // The put of the head gets no response: the object may have changed.
    server.trouble(|asked| if asked.key.starts_with("d/") { Trouble::None } else { Trouble::HeldBefore });
    let error = block_on(store.write(WriteRequest::new(disk.clone(), 0, vec![3; 50_000]))).unwrap_err();
    assert_eq!(error.kind(), "outcome_unknown", "{error}");
    server.heal();
    // The first read decides the outcome; requests still in transit arrive too late.
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
    // The limit grows by one after as many successful responses as it permits requests in flight.
    assert!(metric(&store, "s3_requests_in_flight_max") >= 6);
}
