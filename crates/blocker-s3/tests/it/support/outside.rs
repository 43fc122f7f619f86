//! Other projects' servers of the S3 protocol, each on a loopback port with a user and a bucket:
//! moto, installed from PyPI if it is missing; versitygw, a Go program in the path or among the
//! tests' tools; Debian's radosgw with the one-node Ceph of `deploy/dev/ceph-dev`.

#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use blocker_s3::S3Config;
use blocker_s3::object_store::aws::{AmazonS3, AmazonS3Builder};
use blocker_s3::object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use blocker_s3::object_store::path::Path as Key;
use blocker_s3::object_store::signer::{Method, Signer};
use blocker_s3::object_store::{self, ClientOptions, ObjectStore};
use http_body_util::BodyExt;
use test_kit::outside::{are_installed, fetch, find_program, run, skip, text};

/// How long a server may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long one step of an installation may take.
const INSTALL_DEADLINE: Duration = Duration::from_secs(600);

/// The number of servers and ports that this process has requested.
static SERVERS: AtomicU32 = AtomicU32::new(0);

/// A server. Dropping this value ends the server.
pub(crate) struct Outside {
    pub(crate) name: &'static str,
    process: Process,
    pub(crate) endpoint: String,
    pub(crate) user: (&'static str, &'static str),
    dir: PathBuf,
}

enum Process {
    Child(Child),
    /// A cluster of `ceph-dev`, which ends with this process at the latest.
    Ceph(PathBuf),
}

fn tests_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns a new directory for one server.
fn directory(name: &str) -> PathBuf {
    let number = SERVERS.fetch_add(1, Ordering::Relaxed);
    let dir = tests_dir().join(format!("s3-{name}-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// Installs moto if it is missing. Returns the folder of its programs.
fn install_moto() -> Result<PathBuf, String> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().map_err(|_| "an installation of moto has failed".to_owned())?;
    let environment = tests_dir().join("moto");
    let requirements = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/moto/requirements.txt");
    let wanted = std::fs::read(requirements).map_err(|error| error.to_string())?;
    let (programs, done) = (environment.join("bin"), environment.join("installed.txt"));
    // This file is written last, so that an interrupted installation starts again.
    if std::fs::read(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(programs);
    }
    let mut make = Command::new(find_program("python3").ok_or("there is no python3")?);
    let made = run(make.args(["-m", "venv", "--clear"]).arg(&environment), INSTALL_DEADLINE);
    if !made.status.success() {
        return Err(text(&made));
    }
    let mut fill = Command::new(programs.join("python"));
    fill.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements]);
    fetch(&mut fill, INSTALL_DEADLINE)?;
    std::fs::write(&done, wanted).map_err(|error| error.to_string())?;
    Ok(programs)
}

/// Returns a free port below those that the system uses for outgoing connections.
fn free_port() -> u16 {
    let number = SERVERS.fetch_add(1, Ordering::Relaxed).wrapping_mul(101);
    let first = (std::process::id().wrapping_mul(0x9e37_79b1) >> 8).wrapping_add(number);
    let mut ports = (0..10_000).map(|number| 10_000 + (first.wrapping_add(number) % 10_000) as u16);
    ports.find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok()).expect("a free port")
}

/// Returns whether this process, and not another one, listens on a loopback port.
fn listens(process: u32, port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let (ends_with, mut inodes) = (format!(":{port:04X}"), Vec::new());
    for line in sockets.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // The fields are the address, the state (0A: listening) and the inode.
        if let [_, local, _, "0A", .., _] = fields[..]
            && local.ends_with(&ends_with)
        {
            inodes.extend(fields.get(9).map(|inode| format!("socket:[{inode}]")));
        }
    }
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let mut open = open.filter_map(|file| std::fs::read_link(file.path()).ok());
    open.any(|file| inodes.iter().any(|inode| file.to_str() == Some(inode)))
}

impl Outside {
    /// Starts moto, which keeps everything in memory and does not check signatures.
    pub(crate) fn moto() -> Option<Self> {
        let programs = match install_moto() {
            Ok(programs) => programs,
            Err(why) => {
                skip("tests on moto", &why);
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
        let port: u16 = line.trim().parse().expect("moto names its port");
        Some(Self::up("moto", Process::Child(child), format!("http://127.0.0.1:{port}"), directory("moto")))
    }

    /// Starts versitygw with a new directory as its storage.
    pub(crate) fn versitygw() -> Option<Self> {
        let tool = tests_dir().join("tools/versitygw");
        let Some(program) = Some(tool).filter(|tool| tool.is_file()).or_else(|| find_program("versitygw"))
        else {
            skip("tests on versitygw", "it is not installed");
            return None;
        };
        let dir = directory("versitygw");
        std::fs::create_dir_all(dir.join("data")).unwrap();
        for _ in 0..5 {
            let port = free_port();
            let address = format!("127.0.0.1:{port}");
            let log = std::fs::File::create(dir.join("log")).unwrap();
            let mut child = Command::new(&program)
                .args(["--quiet", "--port", &address, "posix"])
                .arg(dir.join("data"))
                .env("ROOT_ACCESS_KEY", "cached")
                .env("ROOT_SECRET_KEY", "of-ceph-dev")
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .unwrap();
            let since = std::time::Instant::now();
            // versitygw exits if another program has taken the port.
            while child.try_wait().unwrap().is_none() && since.elapsed() < PATIENCE {
                if listens(child.id(), port) {
                    return Some(Self::up(
                        "versitygw",
                        Process::Child(child),
                        format!("http://{address}"),
                        dir,
                    ));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        let log = std::fs::read_to_string(dir.join("log")).unwrap_or_default();
        panic!("versitygw does not come up: {log}");
    }

    /// Starts radosgw with a Ceph of one monitor and one OSD.
    pub(crate) fn radosgw() -> Option<Self> {
        let needed = ["ceph-mon", "ceph-osd", "ceph", "rados", "radosgw", "radosgw-admin"];
        if !are_installed("tests on radosgw", &needed) {
            return None;
        }
        let dir = directory("radosgw");
        let cluster = dir.join("ceph");
        let until = std::process::id().to_string();
        ceph_dev(&cluster, "up", &["--until", &until]).unwrap();
        ceph_dev(&cluster, "rgw", &["start"]).unwrap();
        let endpoint = std::fs::read_to_string(cluster.join("rgw/endpoint")).unwrap();
        Some(Self::up("radosgw", Process::Ceph(cluster), endpoint, dir))
    }

    fn up(name: &'static str, process: Process, endpoint: String, dir: PathBuf) -> Self {
        let this = Self { name, process, endpoint, user: ("cached", "of-ceph-dev"), dir };
        this.write_credentials("credentials", this.user.1);
        this.bucket(Method::PUT, "bucket");
        this
    }

    fn write_credentials(&self, file: &str, secret: &str) -> PathBuf {
        let path = self.dir.join(file);
        let id = self.user.0;
        let text = format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
        std::fs::write(&path, text).unwrap();
        path
    }

    /// Returns a client of the server that bypasses the store.
    pub(crate) fn client(&self, bucket: &str) -> AmazonS3 {
        AmazonS3Builder::new()
            .with_endpoint(&self.endpoint)
            .with_allow_http(true)
            .with_http_connector(Plain)
            .with_region("us-east-1")
            .with_access_key_id(self.user.0)
            .with_secret_access_key(self.user.1)
            .with_bucket_name(bucket)
            .build()
            .unwrap()
    }

    /// Creates or removes a bucket by a request with a signed URL.
    pub(crate) fn bucket(&self, method: Method, name: &str) {
        let what = format!("{method} {name}");
        let client = self.client(name);
        let root = Key::from("");
        let signed = client.signed_url(method.clone(), &root, Duration::from_secs(600));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url = runtime.block_on(signed).unwrap();
        let (host, port) = (url.host_str().unwrap(), url.port().unwrap());
        let (path, query) = (url.path(), url.query().unwrap());
        let mut connection = TcpStream::connect((host, port)).unwrap();
        let request = format!(
            "{method} {path}?{query} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        connection.write_all(request.as_bytes()).unwrap();
        let mut status = String::new();
        BufReader::new(connection).read_line(&mut status).unwrap();
        assert!(status.contains(" 200 ") || status.contains(" 204 "), "{what}: {status}");
    }

    /// Returns a file with the user's credentials.
    pub(crate) fn credentials(&self) -> PathBuf {
        self.dir.join("credentials")
    }

    pub(crate) fn config(&self, prefix: &str) -> S3Config {
        let text = format!("bucket,endpoint={},allow_http=true,prefix={prefix}", self.endpoint);
        let mut config: S3Config = text.parse().unwrap();
        config.credentials_file = Some(self.credentials());
        config.sweep_interval = Duration::ZERO;
        config
    }

    /// Returns the same configuration with a wrong secret.
    pub(crate) fn config_with_wrong_secret(&self) -> S3Config {
        let mut config = self.config("wrong");
        config.credentials_file = Some(self.write_credentials("wrong", "of-another"));
        config
    }
}

/// `object_store` is built without its own HTTP client.
#[derive(Debug)]
struct Plain;

impl HttpConnector for Plain {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let connector =
            cached_http::Route::new(PATIENCE).with_tls(cached_tls::client::no_authorities(), true);
        // The connections end with the runtime of their request.
        let mut settings = cached_http::builder();
        settings.pool_max_idle_per_host(0);
        Ok(HttpClient::new(PlainClient(cached_http::Client::new(&settings, connector))))
    }
}

#[derive(Debug)]
struct PlainClient(cached_http::Client);

#[async_trait]
impl HttpService for PlainClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = self.0.request(request).await;
        let answer = answer.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        let broken = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(answer.map(|body| HttpResponseBody::new(body.map_err(broken))))
    }
}

/// Runs a `ceph-dev` command on a cluster. The error is its output.
fn ceph_dev(cluster: &Path, command: &str, arguments: &[&str]) -> Result<(), String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/dev/ceph-dev");
    // The output goes to a file, because the daemons keep the script's descriptors open.
    let log = cluster.with_extension("log");
    let file = std::fs::File::options().create(true).append(true).open(&log).unwrap();
    let status = Command::new(script)
        .arg(command)
        .arg(cluster)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .status()
        .unwrap();
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    if status.success() { Ok(()) } else { Err(format!("ceph-dev {command} {arguments:?} failed:\n{text}")) }
}

impl Drop for Outside {
    fn drop(&mut self) {
        match &mut self.process {
            Process::Child(child) => {
                let _ = child.kill();
                let _ = child.wait();
            }
            // The cluster is also ended after a failure: its daemons outlive this process, and
            // their directory identifies them.
            Process::Ceph(cluster) => match ceph_dev(cluster, "down", &["--wipe"]) {
                Err(why) if !std::thread::panicking() => panic!("{why}"),
                _ => {}
            },
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs a request of [`Outside::client`] on its own runtime.
pub(crate) fn ask<T>(client: &AmazonS3, what: impl AsyncFnOnce(&dyn ObjectStore) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(what(client))
}
