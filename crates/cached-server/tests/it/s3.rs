//! `cached` with its objects in a bucket, on an S3 server in this process: stored data survive kill
//! -9 and a new start, cached data survive an orderly end; also the messages about wrong
//! configurations.

#![cfg(feature = "s3")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, Durability, Error, FlushRequest, InfoRequest, Name, Namespace, ObjectId,
    ReadRequest, Scope, WriteRequest,
};
use synapse::{Address, ClientConfig, SynapseBlocker};

use crate::http::Double;

/// The time limit for any step on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Place {
    server: Double,
    dir: tempfile::TempDir,
}

/// The process of a server. Dropping this value kills the process.
struct Cached(Child);

impl Drop for Cached {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Place {
    fn new() -> Self {
        let this = Self { server: Double::new(), dir: tempfile::tempdir().unwrap() };
        let keys = "[default]\naws_access_key_id = any\naws_secret_access_key = any\n";
        std::fs::write(this.file("credentials"), keys).unwrap();
        this
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the command that starts a write-back cache over the bucket, which flushes only on
    /// request. `keys` are added to the table of the store.
    fn command(&self, keys: &str) -> Command {
        let text = format!(
            "[objects]\nwrite = \"back\"\nwriter = \"cache\"\ndirty_age_ms_max = 86400000\n\
             [synapse]\nlisten = [\"unix:{}\"]\n\
             [objects.backend]\nkind = \"s3\"\nbucket = \"objects\"\nprefix = \"cached\"\n\
             endpoint = \"http://{}\"\ncredentials_file = \"{}\"\n{keys}\n",
            self.file("synapse").display(),
            self.server.address,
            self.file("credentials").display(),
        );
        std::fs::write(self.file("cached.toml"), text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_cached"));
        command.arg(format!("--config={}", self.file("cached.toml").display()));
        command.arg("-s").arg(self.file("memcached"));
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            command.args(["-u", "root"]);
        }
        command.env("NO_PROXY", "127.0.0.1").stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn start(&self) -> (Cached, SynapseBlocker) {
        let log = std::fs::File::create(self.file("log")).unwrap();
        let mut child = self.command("allow_http = true").stderr(log).spawn().unwrap();
        let mut config = ClientConfig::new(Address::Unix(self.file("synapse")));
        (config.connect_timeout, config.peer_timeout) = (PATIENCE, PATIENCE);
        let since = Instant::now();
        let client = loop {
            match SynapseBlocker::connect_on_thread(config.clone()) {
                Ok(client) => break client,
                Err(_) if since.elapsed() < PATIENCE && child.try_wait().unwrap().is_none() => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => {
                    let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
                    panic!("{error}: {log}");
                }
            }
        };
        (Cached(child), client)
    }

    /// Returns the message of a start that fails.
    fn refusal(&self, keys: &str) -> (Option<i32>, String) {
        let output = self.command(keys).stderr(Stdio::piped()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    }
}

fn object(number: u8) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::new(format!("object.{number}")).unwrap())
}

/// Fills every third bucket with the object's number, so that a flush has many runs.
fn fill(client: &SynapseBlocker, number: u8) {
    for bucket in (0..30).step_by(3) {
        let request = WriteRequest::new(object(number), bucket * 4096, vec![number; 4096]);
        assert_eq!(block_on(client.write(request)).unwrap().durability, Durability::Cached);
    }
}

fn assert_there(client: &SynapseBlocker, number: u8) {
    let data = block_on(client.read(ReadRequest::new(object(number), 0, 1 << 20))).unwrap().data.to_vec();
    assert_eq!(data.len(), 28 * 4096, "object {number}");
    for (bucket, bytes) in data.chunks(4096).enumerate() {
        let wanted = if bucket % 3 == 0 { number } else { 0 };
        assert!(bytes.iter().all(|byte| *byte == wanted), "object {number}, bucket {bucket}");
    }
}

fn end(mut cached: Cached, signal: libc::c_int) -> std::process::ExitStatus {
    let pid = libc::pid_t::try_from(cached.0.id()).unwrap();
    // SAFETY: the child has not been waited for, so the PID is still its own.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    cached.0.wait().unwrap()
}

#[test]
fn stored_data_survive_the_process() {
    let place = Place::new();
    let (cached, client) = place.start();
    (1..5).for_each(|number| fill(&client, number));
    block_on(client.flush(FlushRequest::new(Scope::All))).unwrap();
    fill(&client, 5);
    drop(client);
    end(cached, libc::SIGKILL);
    assert!(place.server.keys("cached/h/").len() >= 4, "everything is below the prefix");

    // The new process has a new epoch.
    let (cached, client) = place.start();
    (1..5).for_each(|number| assert_there(&client, number));
    let lost = block_on(client.info(InfoRequest::new(object(5))));
    assert!(matches!(lost, Err(Error::Missing)), "never flushed, and there: {lost:?}");
    fill(&client, 6);
    drop(client);
    let status = end(cached, libc::SIGTERM);
    assert!(status.success(), "{status}");

    let (_cached, client) = place.start();
    [1, 4, 6].into_iter().for_each(|number| assert_there(&client, number));
}

#[test]
fn a_wrong_configuration_stops_the_start_with_one_line() {
    let place = Place::new();
    for (keys, status, part) in [
        ("", Some(78), "endpoint does not use TLS; set allow_http = true to allow this"),
        ("allow_http = true\nretries = 21", Some(78), "retries must be at most 20"),
        ("allow_http = true\ncolour = 1", Some(78), "colour: unknown field `colour`"),
        ("allow_http = true\nprofile = \"other\"", None, "has no profile [other]"),
    ] {
        let (found, text) = place.refusal(keys);
        let lines: Vec<&str> = text.lines().filter(|line| line.contains(part)).collect();
        assert_eq!(lines.len(), 1, "{keys}: {text}");
        assert!(found != Some(0) && (status.is_none() || found == status), "{keys}: {found:?}");
    }
}
