//! The real program: started, used, ended.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use blocker::executor::block_on;
use blocker::*;
use synapse::{ClientConfig, Secret, SynapseBlocker};

struct Daemon {
    child: Child,
    address: synapse::Address,
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_synapsed"))
}

fn write(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("synapsed.toml");
    std::fs::write(&path, text).unwrap();
    path
}

impl Daemon {
    fn start(dir: &Path, text: &str) -> Self {
        let mut child = program()
            .arg("--config")
            .arg(write(dir, text))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let place = line.trim_end().rsplit_once(" at ");
        let Some((_, place)) = place else {
            let mut error = String::new();
            child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            panic!("it did not start: {line}{error}");
        };
        Self { address: place.parse().unwrap(), child }
    }

    fn client(&self) -> SynapseBlocker {
        SynapseBlocker::connect_on_thread(ClientConfig::new(self.address.clone())).unwrap()
    }

    fn end(mut self) -> (ExitStatus, String) {
        let ended = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(ended.success());
        let status = self.child.wait().unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status, log)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already, unless the test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn object(name: &'static str) -> ObjectId {
    ObjectId::new(Namespace::new("vm").unwrap(), Name::new(name).unwrap())
}

#[test]
fn a_directory_is_served_and_found_again_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let text = format!(
        "backend = \"file:{}\"\nlisten = [\"127.0.0.1:0\", \"unix:{}\"]\n",
        dir.path().join("store").display(),
        dir.path().join("sock").display()
    );
    for round in 0..2 {
        let daemon = Daemon::start(dir.path(), &text);
        let client = daemon.client();
        if round == 0 {
            let write = WriteFullRequest::new(object("disk"), b"kept").durability(Durability::Stored);
            block_on(client.write_full(write)).unwrap();
        }
        assert_eq!(
            block_on(client.read(ReadRequest::new(object("disk"), 0, 9))).unwrap().data.to_vec(),
            b"kept"
        );
        let socket = synapse::Address::Unix(dir.path().join("sock"));
        let local = SynapseBlocker::connect_on_thread(ClientConfig::new(socket)).unwrap();
        assert_eq!(block_on(local.info(InfoRequest::new(object("disk")))).unwrap().size_bytes, 4);
        let figures = block_on(local.statistics()).unwrap();
        assert!(figures.iter().any(|(name, value)| name == "synapse_requests" && *value >= 2), "{figures:?}");
        let (status, log) = daemon.end();
        assert!(status.success(), "{log}");
        assert!(log.contains("ending") && !log.contains("broken off"), "{log}");
        assert!(!dir.path().join("sock").exists(), "the socket is left behind");
    }
}

#[test]
fn a_cache_over_a_directory_stores_at_the_end_what_it_has_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let text = |cache: &str| {
        let store = dir.path().join("store");
        format!("backend = \"file:{}\"\nlisten = [\"127.0.0.1:0\"]\n{cache}", store.display())
    };
    // Nothing is stored for its age: the end must do it.
    let cache = "[cache]\nmemory_bytes_max = \"4 MiB\"\nwrite = \"back\"\nwriter = \"cache\"\ndirty_age_ms_max = 86400000\n";
    let daemon = Daemon::start(dir.path(), &text(cache));
    let client = daemon.client();
    let reply = block_on(client.write(WriteRequest::new(object("disk"), 0, vec![7; 100_000]))).unwrap();
    assert_eq!(reply.durability, Durability::Cached);
    let policy = block_on(client.policy(object("disk").namespace)).unwrap();
    assert_eq!(policy.write, WritePolicy::Back);
    let figures = block_on(client.statistics()).unwrap();
    let dirty = figures.iter().find(|(name, _)| name == "cache_dirty_bytes").expect("the cache's figures");
    assert_eq!(dirty.1, 100_000_u64.next_multiple_of(4096));
    drop(client);
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
    // The store alone has it.
    let daemon = Daemon::start(dir.path(), &text(""));
    let found = block_on(daemon.client().read(ReadRequest::new(object("disk"), 0, 200_000))).unwrap();
    assert_eq!(found.data.to_vec(), vec![7; 100_000]);
    assert!(daemon.end().0.success());
}

#[test]
fn the_secret_is_demanded() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let text =
        format!("backend = \"memory:\"\nlisten = [\"127.0.0.1:0\"]\nsecret_file = {secret:?}\nthreads = 3\n");
    let daemon = Daemon::start(dir.path(), &text);
    let mut config = ClientConfig::new(daemon.address.clone());
    let refused = SynapseBlocker::connect_on_thread(config.clone()).err().expect("let in");
    assert!(matches!(refused, Error::Denied(_)), "{refused}");
    config.secret = Some(Secret::from_file(&secret).unwrap());
    let client = SynapseBlocker::connect_on_thread(config).unwrap();
    block_on(client.write(WriteRequest::new(object("o"), 0, b"x"))).unwrap();
    let (status, log) = daemon.end();
    assert!(status.success() && !log.contains("0123456789abcdef"), "{log}");
}

fn fails(dir: &Path, text: &str, more: &[&str]) -> String {
    let Output { status, stderr, .. } =
        program().arg("--config").arg(write(dir, text)).args(more).output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    assert!(!status.success(), "accepted: {text}");
    assert_eq!(error.lines().count(), 1, "{error}");
    error
}

#[test]
fn mistakes_stop_the_start_with_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let check = ["--check-config"];
    let error = fails(dir.path(), "backend = \"memory:\"\nlisten_on = 1\n", &check);
    assert!(error.contains("line 2: unknown field `listen_on`"), "{error}");
    let error = fails(dir.path(), "backend = \"memory:\"\nlisten = [\"0.0.0.0:0\"]\n", &[]);
    assert!(error.contains("no secret is configured"), "{error}");
    let error = fails(dir.path(), "backend = \"file:/proc/no/such\"\nlisten = [\"127.0.0.1:0\"]\n", &[]);
    assert!(error.contains("file:/proc/no/such"), "{error}");
    // Where another one listens.
    let daemon = Daemon::start(dir.path(), "backend = \"memory:\"\nlisten = [\"127.0.0.1:0\"]\n");
    let error =
        fails(dir.path(), &format!("backend = \"memory:\"\nlisten = [\"{}\"]\n", daemon.address), &[]);
    assert!(error.contains("cannot listen"), "{error}");
    assert!(daemon.end().0.success());
    let right = write(dir.path(), "backend = \"memory:\"\n");
    let printed = program().arg("--config").arg(&right).arg("--print-config").output().unwrap();
    assert!(String::from_utf8(printed.stdout).unwrap().contains("peer_timeout_ms = 30000"));
    assert!(program().arg("--config").arg(&right).args(check).output().unwrap().status.success());
}
