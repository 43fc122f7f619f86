//! The store on other projects' servers, over HTTP with signed requests: the conformance suite,
//! several programs that change one object, bytes damaged behind the store's back, and unreachable
//! servers.
//!
//! `docs/s3.md` has a table of the results per server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use blocker::conformance::{Harness, Options, run_with};
use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, CompareAndWriteRequest, Error, ListRequest, Name, Namespace, ObjectId, ReadRequest,
    WriteRequest,
};
use blocker_s3::S3Store;
use blocker_s3::object_store::ObjectStoreExt;
use blocker_s3::object_store::signer::Method;
use futures_util::StreamExt;

use crate::http::Double;
use crate::outside::{Outside, ask};

/// Each case has its own prefix, so that its claims do not affect others.
struct On<'a> {
    server: &'a Outside,
    /// The proxy in between, if the test uses one.
    way: Option<&'a Double>,
    case: AtomicU32,
}

impl On<'_> {
    fn open(&self) -> Arc<dyn Blocker> {
        let kind = if self.way.is_some() { "w" } else { "t" };
        let mut config = self.server.config(&format!("{kind}{}", self.case.load(Ordering::Relaxed)));
        if let Some(way) = self.way {
            config.endpoint = Some(format!("http://{}", way.address));
            config.retries = 10;
        }
        loop {
            match S3Store::open(&config) {
                Ok(store) => return Arc::new(store),
                Err(Error::Retryable(_)) if self.way.is_some() => {}
                Err(error) => panic!("{}: {error}", self.server.name),
            }
        }
    }
}

impl Harness for On<'_> {
    fn backend(&self) -> Arc<dyn Blocker> {
        self.case.fetch_add(1, Ordering::Relaxed);
        self.open()
    }

    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        Some(self.open())
    }
}

fn disk() -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(b"disk").unwrap())
}

/// Several programs increment the same number, and no increment is lost.
fn programs_lose_no_update(server: &Outside) {
    const PROGRAMS: u64 = 4;
    const ADDITIONS: u64 = 10;
    let open = || S3Store::open(&server.config("shared")).unwrap();
    block_on(open().write(WriteRequest::new(disk(), 0, 0_u64.to_le_bytes().to_vec()))).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..PROGRAMS {
            scope.spawn(|| {
                let store = open();
                let mut found = 0_u64;
                for _ in 0..ADDITIONS {
                    loop {
                        let (old, new) = (found.to_le_bytes().to_vec(), (found + 1).to_le_bytes().to_vec());
                        let added = store.compare_and_write(CompareAndWriteRequest::new(disk(), 0, old, new));
                        match block_on(added) {
                            Ok(_) => break,
                            Err(Error::Mismatch { .. } | Error::Retryable(_)) => {}
                            Err(error) => panic!("{}: {error}", server.name),
                        }
                        let bytes =
                            block_on(store.read(ReadRequest::new(disk(), 0, 8))).unwrap().data.to_vec();
                        found = u64::from_le_bytes(bytes.try_into().unwrap());
                    }
                    found += 1;
                }
            });
        }
    });
    let bytes = block_on(open().read(ReadRequest::new(disk(), 0, 8))).unwrap().data.to_vec();
    assert_eq!(bytes, (PROGRAMS * ADDITIONS).to_le_bytes(), "{}", server.name);
}

fn conforms(server: &Outside, way: Option<&Double>) {
    let mut options = Options::default();
    options.exclusive = true;
    let report = run_with(&On { server, way, case: AtomicU32::new(0) }, &options, |case| println!("{case}"));
    report.assert_passed();
}

/// The suite passes although one request of 40 is late, refused or interrupted, or loses its
/// response.
fn conforms_with_trouble_on_the_way(server: &Outside) {
    let way = Double::before(server.endpoint.trim_start_matches("http://"));
    way.trouble(crate::trouble::passable(1, 40));
    conforms(server, Some(&way));
}

/// Requests and responses between the store and the server are late, interrupted or lost.
fn trouble_on_the_way_loses_nothing(server: &Outside) {
    for seed in 0..2 {
        let way = Double::before(server.endpoint.trim_start_matches("http://"));
        let open = || {
            let mut config = server.config(&format!("trouble-{seed}"));
            config.endpoint = Some(format!("http://{}", way.address));
            S3Store::open(&config).unwrap()
        };
        crate::trouble::nothing_is_lost_or_made_up(&way, &open, seed);
    }
}

/// Blobs are truncated or missing while their head exists.
fn damaged_blobs_are_noticed(server: &Outside) {
    let store = S3Store::open(&server.config("damage")).unwrap();
    block_on(store.write(WriteRequest::new(disk(), 0, vec![1; 100_000]))).unwrap();
    let client = server.client("bucket");
    let blobs = ask(&client, async |client| client.list(Some(&"damage/d".into())).collect::<Vec<_>>().await);
    let [Ok(blob)] = &blobs[..] else { panic!("{blobs:?}") };
    let damaged = || block_on(store.read(ReadRequest::new(disk(), 60_000, 10_000))).map(drop).unwrap_err();
    for left in [65_000, 50_000, 0] {
        ask(&client, async |client| client.put(&blob.location, vec![1; left].into()).await).unwrap();
        assert_eq!(damaged().kind(), "corrupt", "{}, {left} bytes: {}", server.name, damaged());
    }
    ask(&client, async |client| client.delete(&blob.location).await).unwrap();
    assert_eq!(damaged().kind(), "corrupt", "{}: {}", server.name, damaged());
}

/// The objects of a removed bucket cannot be reached, and do not count as missing. The same is true
/// of a bucket that never existed.
fn a_bucket_that_is_gone_is_no_missing_object(server: &Outside) {
    server.bucket(Method::PUT, "short-lived");
    let mut config = server.config("");
    config.bucket = "short-lived".into();
    let store = S3Store::open(&config).unwrap();
    let edition = "s/layout".into();
    ask(&server.client("short-lived"), async |client| client.delete(&edition).await).unwrap();
    server.bucket(Method::DELETE, "short-lived");
    let read = store.read(ReadRequest::new(disk(), 0, 1));
    let write = store.write(WriteRequest::new(disk(), 0, b"x"));
    let list = store.list(ListRequest::new(disk().namespace));
    for error in [
        block_on(read).map(drop).unwrap_err(),
        block_on(write).map(drop).unwrap_err(),
        block_on(list).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), "denied", "{}: {error}", server.name);
    }
    config.bucket = "nowhere".into();
    let error = S3Store::open(&config).map(drop).unwrap_err();
    assert_eq!(error.kind(), "denied", "{}: {error}", server.name);
}

fn serves(server: Option<Outside>) {
    let Some(server) = server else { return };
    let since = Instant::now();
    let done = |what: &str| println!("{}: {what}, {} s", server.name, since.elapsed().as_secs());
    let rows = ask(&server.client("bucket"), async |_| {
        crate::measure::rows(&crate::measure::Plain::new(&server.endpoint, server.user)).await
    });
    crate::measure::compare(server.name, &rows);
    done("measured");
    conforms(&server, None);
    crate::measure::compare(server.name, &[("the conformance suite", "passes".into())]);
    done("conforms");
    programs_lose_no_update(&server);
    trouble_on_the_way_loses_nothing(&server);
    damaged_blobs_are_noticed(&server);
    a_bucket_that_is_gone_is_no_missing_object(&server);
    done("keeps what it has");
    if server.name != "moto" {
        let error = S3Store::open(&server.config_with_wrong_secret()).map(drop).unwrap_err();
        assert_eq!(error.kind(), "denied", "{}: {error}", server.name);
    }
    let mut config = server.config("");
    drop(server);
    (config.credentials_file, config.anonymous) = (None, true);
    let error = S3Store::open(&config).map(drop).unwrap_err();
    assert!(matches!(error, Error::Retryable(_)), "{error}");
}

fn serves_over_a_troubled_way(server: Option<Outside>) {
    let Some(server) = server else { return };
    let since = Instant::now();
    conforms_with_trouble_on_the_way(&server);
    crate::measure::compare(server.name, &[("the same over an unreliable connection", "passes".into())]);
    println!("{}: conforms over an unreliable connection, {} s", server.name, since.elapsed().as_secs());
}

#[test]
#[ignore = "long: s3, before moto, which is slow"]
fn moto() {
    serves(Outside::moto());
}

#[test]
#[ignore = "long: s3, many minutes"]
fn trouble_before_moto() {
    serves_over_a_troubled_way(Outside::moto());
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn versitygw() {
    serves(Outside::versitygw());
}

#[test]
#[ignore = "long: s3, before versitygw"]
fn trouble_before_versitygw() {
    serves_over_a_troubled_way(Outside::versitygw());
}

#[test]
#[ignore = "long: radosgw, before a Ceph"]
fn radosgw() {
    serves(Outside::radosgw());
}

#[test]
#[ignore = "long: radosgw, before a Ceph"]
fn trouble_before_radosgw() {
    serves_over_a_troubled_way(Outside::radosgw());
}
