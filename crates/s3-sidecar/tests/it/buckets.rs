//! Settings per bucket: shares of the memory, and rates towards the endpoint.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Answer, Client, Endpoint, ask, object, pattern, request};
use cached_metrics::Families;
use s3_sidecar::{Auth, BucketTerms, ControlError, Fresh, Sidecar, SidecarConfig};

const MIB: usize = 1 << 20;
/// The sizes of the object that must stay in memory, and of the objects of a scan.
const KEPT: usize = 6 * MIB;
const SCANNED: usize = 4 * MIB;

fn terms(bucket: &str) -> BucketTerms {
    BucketTerms { bucket: bucket.into(), ..BucketTerms::default() }
}

fn with_memory(bucket: &str, min: usize) -> BucketTerms {
    BucketTerms { memory_bytes_min: Some(min as u64), ..terms(bucket) }
}

/// Returns an endpoint with an object in one bucket and a dozen in another, three times as large as
/// the sidecar's memory.
fn endpoint() -> Endpoint {
    let endpoint = Endpoint::start();
    endpoint.put("/media/k", object("a", pattern(KEPT, 0)));
    (0..12).for_each(|number| endpoint.put(&format!("/scans/{number}"), object("b", pattern(SCANNED, 1))));
    endpoint
}

fn small(endpoint: &Endpoint, terms: Vec<BucketTerms>) -> Sidecar {
    endpoint.sidecar(|config: &mut SidecarConfig| {
        config.memory_bytes = 16 << 20;
        config.terms = terms;
    })
}

fn read(sidecar: &Sidecar) {
    assert!(ask(sidecar, "GET /media/k", &[]).body == pattern(KEPT, 0));
}

fn scan(sidecar: &Sidecar) {
    for number in 0..12 {
        assert!(ask(sidecar, &format!("GET /scans/{number}"), &[]).body.len() == SCANNED);
    }
}

/// Returns how many bytes the endpoint sends for a read of the object in the first bucket.
fn bytes_of_read(sidecar: &Sidecar) -> u64 {
    let before = sidecar.counts().bytes_from_upstream.get();
    read(sidecar);
    sidecar.counts().bytes_from_upstream.get() - before
}

/// Returns a metric of a bucket.
fn metric(sidecar: &Sidecar, name: &str, bucket: &str) -> Option<f64> {
    let mut families = Families::new();
    sidecar.metrics().collect(&mut families);
    let text = cached_metrics::render::prometheus(&families);
    let begin = format!("{name}{{bucket=\"{bucket}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&begin)).map(|value| value.parse().unwrap())
}

#[test]
fn a_scan_of_one_bucket_takes_nothing_from_the_share_of_another() {
    let endpoint = endpoint();
    let sidecar = small(&endpoint, vec![with_memory("media", 8 * MIB)]);
    read(&sidecar);
    scan(&sidecar);
    assert_eq!(bytes_of_read(&sidecar), 0);
    let bytes =
        |name: &str| metric(&sidecar, &format!("cached_s3_sidecar_bucket_bodies_{name}"), "media").unwrap();
    assert_eq!(bytes("bytes"), KEPT as f64);
    assert!(bytes("target_bytes") >= (8 * MIB) as f64);
    // Without a share, it is evicted.
    let sidecar = small(&endpoint, Vec::new());
    read(&sidecar);
    scan(&sidecar);
    assert!(bytes_of_read(&sidecar) > 0);
}

#[test]
fn a_share_holds_from_the_moment_that_it_is_given() {
    let endpoint = endpoint();
    let sidecar = small(&endpoint, Vec::new());
    let control = sidecar.control();
    read(&sidecar);
    for (wrong, word) in [
        (vec![with_memory("media", 15 * MIB)], "seven eighths"),
        (vec![with_memory("media", 1), with_memory("media", 1)], "twice"),
        ((0..16).map(|number| with_memory(&number.to_string(), 4096)).collect(), "15 can have"),
    ] {
        let error = control.set_terms(wrong).unwrap_err();
        assert!(matches!(&error, ControlError::Wrong(why) if why.contains(word)), "{error}");
    }
    control.set_terms(vec![with_memory("media", 8 * MIB)]).unwrap();
    scan(&sidecar);
    assert_eq!(bytes_of_read(&sidecar), 0);
}

#[test]
fn a_bucket_takes_no_more_memory_than_it_may() {
    let endpoint = endpoint();
    let most = BucketTerms { memory_bytes_max: Some(2 * MIB as u64), ..terms("scans") };
    let sidecar = small(&endpoint, vec![most]);
    read(&sidecar);
    scan(&sidecar);
    // Requests in progress could exceed the limit, but there are none.
    let bytes = metric(&sidecar, "cached_s3_sidecar_bucket_bodies_bytes", "scans").unwrap();
    assert!(bytes > 0.0 && bytes <= (3 * MIB) as f64, "{bytes}");
    assert_eq!(bytes_of_read(&sidecar), 0);
}

fn requests_max(bucket: &str, rate: u64) -> BucketTerms {
    BucketTerms { requests_per_second_max: Some(rate), ..terms(bucket) }
}

/// Sends concurrent requests, each on its own connection, and returns the answers.
fn burst(sidecar: &Sidecar, line: &str, count: usize) -> Vec<Answer> {
    let mut clients: Vec<_> = (0..count).map(|_| Client::of(sidecar)).collect();
    clients.iter_mut().for_each(|client| client.send(request(line, &[])));
    clients.iter_mut().map(Client::answer).collect()
}

#[test]
fn requests_beyond_the_rate_wait_or_are_refused() {
    for auth in [Auth::Gateway, Auth::None] {
        let endpoint = Endpoint::start();
        endpoint.put("/media/k", object("a", "a"));
        endpoint.put("/scans/k", object("b", "b"));
        let sidecar = endpoint.sidecar(|config| {
            config.auth = auth;
            config.terms = vec![requests_max("media", 1)];
        });
        // Other buckets are not affected.
        for line in ["GET /scans/k", "GET /scans/k?versionId=a"] {
            assert!(burst(&sidecar, line, 20).iter().all(|answer| answer.status == 200), "{line}");
        }
        let answers = burst(&sidecar, "GET /media/k?versionId=1", 20);
        let passed = answers.iter().filter(|answer| answer.status == 200).count();
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            let text = String::from_utf8_lossy(&answer.body);
            assert!(answer.status == 503 && text.contains("<Code>SlowDown</Code>"), "{text}");
        }
        let of = |name: &str| {
            metric(&sidecar, &format!("cached_s3_sidecar_bucket_{name}_total"), "media").unwrap()
        };
        assert!((1..20).contains(&passed), "{passed}");
        assert_eq!(of("endpoint_requests"), passed as f64);
        assert_eq!(of("requests_refused"), (20 - passed) as f64);
        assert_eq!(sidecar.counts().refused.get(), 20 - passed as u64);
        // The limit ends when the settings are removed.
        sidecar.control().set_terms(Vec::new()).unwrap();
        assert!(burst(&sidecar, "GET /media/k", 20).iter().all(|answer| answer.status == 200));
    }
}

#[test]
fn what_memory_may_answer_while_the_endpoint_is_away_answers_beyond_the_rate() {
    let endpoint = Endpoint::start();
    endpoint.put("/media/k", object("a", "a"));
    let sidecar = endpoint.fresh_sidecar(Fresh::For(Duration::ZERO), |config| {
        config.policy.stale_if_error = Duration::from_secs(3600);
        config.terms = vec![requests_max("media", 1)];
    });
    let answers = burst(&sidecar, "GET /media/k", 20);
    assert!(answers.iter().any(|answer| answer.status == 200));
    let answers = burst(&sidecar, "GET /media/k", 20);
    assert!(answers.iter().all(|answer| answer.body == b"a"));
    assert!(answers.iter().any(|answer| answer.header("warning").is_some()));
    assert!(sidecar.counts().stale.get() > 0);
}

#[test]
fn bodies_pass_in_the_pace_of_the_rate_in_both_directions() {
    const RATE: usize = 2 * MIB;
    let endpoint = Endpoint::start();
    endpoint.put("/media/k", object("a", pattern(MIB, 0)));
    let sidecar = endpoint.sidecar(|config| {
        config.terms = vec![BucketTerms { bytes_per_second_max: Some(RATE as u64), ..terms("media") }];
    });
    // At least as long as the rate implies, apart from saved-up tokens. How much longer depends on
    // the machine.
    let least = Duration::from_secs_f64((MIB as f64 / RATE as f64) - 0.2);
    let began = Instant::now();
    assert!(ask(&sidecar, "GET /media/k", &[]).body == pattern(MIB, 0));
    assert!(began.elapsed() >= least);
    let began = Instant::now();
    let mut client = Client::of(&sidecar);
    client.send(request("PUT /media/new", &[("Content-Length", &MIB.to_string())]));
    client.send(pattern(MIB, 1));
    assert_eq!(client.answer().status, 200);
    assert!(began.elapsed() >= least);
    let bytes = metric(&sidecar, "cached_s3_sidecar_bucket_endpoint_bytes_total", "media").unwrap();
    assert_eq!(bytes, (2 * MIB) as f64);
    // Data from memory do not count: only the revalidation goes to the endpoint.
    thread::scope(|scope| {
        let readers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| ask(&sidecar, "GET /media/k", &[]).body.len())).collect();
        readers.into_iter().for_each(|reader| assert_eq!(reader.join().unwrap(), MIB));
    });
    assert_eq!(metric(&sidecar, "cached_s3_sidecar_bucket_endpoint_bytes_total", "media").unwrap(), bytes);
}
