//! The conformance suite over HTTP with signed requests, on moto's S3 server, which is installed from PyPI.

#![cfg(feature = "http")]

use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use blocker::conformance::{Harness, Options, run};
use blocker::executor::block_on;
use blocker::{Blocker, Error, ListRequest, Name, Namespace, ObjectId, ReadRequest, WriteRequest};
use blocker_s3::object_store::aws::AmazonS3Builder;
use blocker_s3::object_store::{ObjectStore, ObjectStoreExt};
use blocker_s3::{S3Config, S3Store};
use futures_util::StreamExt;

/// The server takes any.
const SECRET: &str = "of-the-tests-on-moto";

/// The server; it ends with this.
struct Moto {
    child: Child,
    port: u16,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reports that tests are skipped, past the test runner's capture.
///
/// # Panics
/// With `CACHED_REQUIRE_ALL=1`.
fn skip(why: &str) {
    let all = std::env::var("CACHED_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!all, "tests on moto: {why}, and CACHED_REQUIRE_ALL=1 allows no skip");
    let line = format!("\n*** SKIPPED tests on moto: {why} ***\n");
    let _ = std::fs::File::options()
        .write(true)
        .open("/dev/stderr")
        .and_then(|mut to| to.write_all(line.as_bytes()));
}

/// Runs a command. What it has written last is the error.
fn run_to_end(command: &mut Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or_default().to_owned())
}

/// Installs moto, unless it is there. The folder of its programs.
fn install() -> Result<PathBuf, String> {
    let environment = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("moto");
    let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto/requirements.txt");
    let wanted = std::fs::read(requirements).map_err(|error| error.to_string())?;
    let (programs, done) = (environment.join("bin"), environment.join("installed.txt"));
    // Written last, so that an interrupted installation is repeated.
    if std::fs::read(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&environment);
    let mut fill = Command::new(programs.join("python"));
    fill.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]);
    for (step, attempts) in [(&mut make, 1), (&mut fill, 3)] {
        let mut outcome = Ok(());
        for _ in 0..attempts {
            outcome = run_to_end(step);
            if outcome.is_ok() {
                break;
            }
        }
        outcome?;
    }
    std::fs::write(&done, wanted).map_err(|error| error.to_string())?;
    Ok(programs)
}

impl Moto {
    /// Starts the server and makes the bucket; `None`, and a loud word, where it cannot be installed.
    fn up() -> Option<Self> {
        let programs = match install() {
            Ok(programs) => programs,
            Err(why) => {
                skip(&why);
                return None;
            }
        };
        let mut child = Command::new(programs.join("python"))
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto/server.py"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mut moto = Self { child, port: 0 };
        moto.port = line.trim().parse().expect("moto names its port");
        moto.ask("PUT /bucket");
        Some(moto)
    }

    /// Makes or removes a bucket.
    fn ask(&self, what: &str) {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let request =
            format!("{what} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut status = String::new();
        BufReader::new(connection).read_line(&mut status).unwrap();
        assert!(status.contains(" 200 ") || status.contains(" 204 "), "{what}: {status}");
    }

    fn config(&self, prefix: &str) -> S3Config {
        let port = self.port;
        let text = format!("bucket,endpoint=http://127.0.0.1:{port},allow_http=true,prefix={prefix}");
        text.parse().unwrap()
    }
}

/// Each case has a prefix of its own, so that whatever it claims binds no other.
struct OnMoto<'a>(&'a Moto, AtomicU32);

impl OnMoto<'_> {
    fn open(&self) -> Arc<dyn Blocker> {
        let prefix = format!("t{}", self.1.load(Ordering::Relaxed));
        Arc::new(S3Store::open(&self.0.config(&prefix)).unwrap())
    }
}

impl Harness for OnMoto<'_> {
    fn backend(&self) -> Arc<dyn Blocker> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.open()
    }

    fn power_cycle(&self) -> Option<Arc<dyn Blocker>> {
        Some(self.open())
    }
}

/// Runs the test in a process of its own that has credentials in its environment, where the store takes them
/// from. Returns whether this is that process.
fn has_credentials() -> bool {
    if std::env::var("AWS_SECRET_ACCESS_KEY").is_ok_and(|key| key == SECRET) {
        return true;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_conformance_suite_passes_on_moto", "--nocapture"])
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env_remove("AWS_SESSION_TOKEN")
        .env("NO_PROXY", "127.0.0.1")
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success() && text.contains("1 passed"),
        "the process with credentials: {}",
        output.status
    );
    false
}

/// Blobs that are cut off, or gone, under their head.
fn damaged_blobs_are_noticed(moto: &Moto) {
    let config = moto.config("damage");
    let store = S3Store::open(&config).unwrap();
    let id = ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(b"disk").unwrap());
    block_on(store.write(WriteRequest::new(id.clone(), 0, vec![1; 100_000]))).unwrap();
    let server = AmazonS3Builder::from_env()
        .with_endpoint(config.endpoint.unwrap())
        .with_allow_http(true)
        .with_bucket_name("bucket")
        .build()
        .unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let blobs = runtime.block_on(server.list(Some(&"damage/d".into())).collect::<Vec<_>>());
    let [Ok(blob)] = &blobs[..] else { panic!("{blobs:?}") };
    let damaged =
        || block_on(store.read(ReadRequest::new(id.clone(), 60_000, 10_000))).map(drop).unwrap_err();
    for left in [65_000, 50_000, 0] {
        runtime.block_on(server.put(&blob.location, vec![1; left].into())).unwrap();
        assert_eq!(damaged().kind(), "corrupt", "{left} bytes: {}", damaged());
    }
    runtime.block_on(server.delete(&blob.location)).unwrap();
    assert_eq!(damaged().kind(), "corrupt", "{}", damaged());
}

#[test]
fn the_conformance_suite_passes_on_moto() {
    if !has_credentials() {
        return;
    }
    let Some(moto) = Moto::up() else { return };
    let mut options = Options::default();
    options.exclusive = true;
    let report = run(&OnMoto(&moto, AtomicU32::new(0)), &options);
    report.cases.iter().for_each(|case| println!("{case}"));
    report.assert_passed();

    damaged_blobs_are_noticed(&moto);

    // A bucket that is removed: its objects are not missing, they cannot be reached.
    moto.ask("PUT /short-lived");
    let mut config = moto.config("");
    config.bucket = "short-lived".into();
    let store = S3Store::open(&config).unwrap();
    moto.ask("DELETE /short-lived");
    let object = ObjectId::new(Namespace::new("vm").unwrap(), Name::copy_from(b"disk").unwrap());
    let read = store.read(ReadRequest::new(object.clone(), 0, 1));
    let write = store.write(WriteRequest::new(object.clone(), 0, b"x"));
    let list = store.list(ListRequest::new(object.namespace));
    for error in [
        block_on(read).map(drop).unwrap_err(),
        block_on(write).map(drop).unwrap_err(),
        block_on(list).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), "denied", "{error}");
    }

    // A bucket that never was there, and a server that is not.
    let mut config = moto.config("");
    config.bucket = "nowhere".into();
    let error = S3Store::open(&config).map(drop).unwrap_err();
    assert_eq!(error.kind(), "denied", "{error}");
    drop(moto);
    let error = S3Store::open(&config).map(drop).unwrap_err();
    assert!(matches!(error, Error::Retryable(_)), "{error}");
}
