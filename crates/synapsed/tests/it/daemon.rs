//! The real program is started, used and shut down.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use blocker::executor::block_on;
use blocker::*;
use synapse::{ClientConfig, Secret, SynapseBlocker};

struct Daemon {
    child: Child,
    address: synapse::Address,
}

/// Returns the settings of a client that waits as long as a daemon may take to start or answer.
fn patient(address: synapse::Address) -> ClientConfig {
    let mut config = ClientConfig::new(address);
    config.connect_timeout = Duration::from_secs(60);
    config.peer_timeout = Duration::from_secs(60);
    config.reconnect_timeout = Duration::from_secs(300);
    config
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
        Self::start_as(program(), dir, text)
    }

    fn start_as(mut program: Command, dir: &Path, text: &str) -> Self {
        let mut child = program
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
        SynapseBlocker::connect_on_thread(patient(self.address.clone())).unwrap()
    }

    fn signal(&mut self, name: &str) {
        // The shell's own command, because a machine may lack the program.
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn end(mut self) -> (ExitStatus, String) {
        self.signal("TERM");
        self.wait()
    }

    fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (status, log)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Unless the test has failed, it has already ended.
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
        "backend = {{ kind = \"file\", create = true, path = \"{}\" }}\n[synapse]\nlisten = [\"127.0.0.1:0\", \"unix:{}\"]\n",
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
        let local = SynapseBlocker::connect_on_thread(patient(socket)).unwrap();
        assert_eq!(block_on(local.info(InfoRequest::new(object("disk")))).unwrap().size_bytes, 4);
        let metrics = block_on(local.control().metrics()).unwrap();
        let requests = metrics.number("synapse_requests_total").map(|number| number.to_u64());
        assert!(requests >= Some(2), "{metrics:?}");
        let (status, log) = daemon.end();
        assert!(status.success(), "{log}");
        assert!(log.contains("ending") && !log.contains("aborted"), "{log}");
        assert!(!dir.path().join("sock").exists(), "the socket is left behind");
    }
}

#[test]
fn a_cache_over_a_directory_stores_at_the_end_what_it_has_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let text = |cache: &str| {
        let store = dir.path().join("store");
        format!(
            "backend = {{ kind = \"file\", create = true, path = \"{}\" }}\n[synapse]\nlisten = [\"127.0.0.1:0\"]\n{cache}",
            store.display()
        )
    };
    // The age limit never triggers a flush, so the shutdown must store the data.
    let cache = "[objects]\nmemory_bytes_max = \"4 MiB\"\nwrite = \"back\"\nwriter = \"cache\"\ndirty_age_ms_max = 86400000\n";
    let daemon = Daemon::start(dir.path(), &text(cache));
    let client = daemon.client();
    let reply = block_on(client.write(WriteRequest::new(object("disk"), 0, vec![7; 100_000]))).unwrap();
    assert_eq!(reply.durability, Durability::Cached);
    let policy = block_on(client.control().policy(object("disk").namespace)).unwrap();
    assert_eq!(policy.write, WriteMode::Back);
    let metrics = block_on(client.control().metrics()).unwrap();
    let dirty = metrics.number("cache_dirty_bytes").expect("the cache's metrics").to_u64();
    // The count consists of whole buckets, and of one unit for the object's new end.
    assert!(dirty >= 100_000 && dirty <= 100_000_u64.next_multiple_of(4096) + 4096, "{dirty:?}");
    drop(client);
    let (status, log) = daemon.end();
    assert!(status.success(), "{log}");
    // The store contains it even without the cache.
    let daemon = Daemon::start(dir.path(), &text(""));
    let found = block_on(daemon.client().read(ReadRequest::new(object("disk"), 0, 200_000))).unwrap();
    assert_eq!(found.data.to_vec(), vec![7; 100_000]);
    assert!(daemon.end().0.success());
}

#[test]
fn a_client_without_the_secret_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let text = format!(
        "backend = \"memory:\"\n[synapse]\nlisten = [\"127.0.0.1:0\"]\nsecret_file = {secret:?}\nthreads = 3\n"
    );
    let daemon = Daemon::start(dir.path(), &text);
    let mut config = patient(daemon.address.clone());
    let refused = SynapseBlocker::connect_on_thread(config.clone()).err().expect("let in");
    assert!(matches!(refused, Error::Denied(_)), "{refused}");
    config.secret = Some(Secret::new(&std::fs::read(&secret).unwrap()).unwrap());
    let client = SynapseBlocker::connect_on_thread(config).unwrap();
    block_on(client.write(WriteRequest::new(object("o"), 0, b"x"))).unwrap();
    let (status, log) = daemon.end();
    assert!(status.success() && !log.contains("0123456789abcdef"), "{log}");
}

fn fails(dir: &Path, text: &str, more: &[&str], code: i32) -> String {
    let Output { status, stderr, .. } =
        program().arg("--config").arg(write(dir, text)).args(more).output().unwrap();
    let error = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{text}: {error}");
    error.lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_wrong_configuration_prevents_the_start_with_one_line_that_names_file_and_key() {
    let dir = tempfile::tempdir().unwrap();
    let check = ["--check-config"];
    let error = fails(dir.path(), "backend = \"memory:\"\nlisten_on = 1\n", &check, 78);
    assert!(error.contains("synapsed.toml:2: listen_on: unknown field `listen_on`"), "{error}");
    // `--check-config` reports mistakes that prevent the start.
    let wrong = [
        (
            "[synapse]\nlisten = [\"0.0.0.0:0\"]",
            "synapsed.toml: synapse.listen: 0.0.0.0:0 can be reached from other machines",
        ),
        (
            "[synapse]\nlisten = [\"127.0.0.1:7\"]\n[admin]\nlisten = [\"localhost:7\"]",
            "synapsed.toml: admin.listen: 127.0.0.1:7 is also an address of synapse.listen",
        ),
        (
            "[objects]\nwriter = \"cache\"\n[objects.journal]\ncreate = true\ndirectory = \"/no/such/journal\"",
            "synapsed.toml: objects.journal.directory: ",
        ),
        ("[synapse]\nsession_bytes_max = \"12 MiB\"\n", "synapse.session_bytes_max: must be at least"),
        ("[objects]\nobject_bytes_max = \"1 GiB\"\n", "objects.object_bytes_max: "),
    ];
    for (line, words) in wrong {
        for more in [&check[..], &[]] {
            let error = fails(dir.path(), &format!("backend = \"memory:\"\n{line}"), more, 78);
            assert!(error.contains(words), "{error}");
        }
    }
    let keys = dir.path().join("aws");
    std::fs::write(&keys, "[default]\naws_access_key_id = A\naws_secret_access_key = B\n").unwrap();
    let s3 = format!("bucket = \"disks\", profile = \"other\", credentials_file = \"{}\"", keys.display());
    for (backend, words) in [
        ("kind = \"synapse\", address = \"h:1\", secret_file = \"/no/secret\"", "backend.secret_file: "),
        (&format!("kind = \"s3\", {s3}"), "backend: credentials_file"),
    ] {
        for more in [&check[..], &[]] {
            let error = fails(dir.path(), &format!("backend = {{ {backend} }}\n"), more, 78);
            assert!(error.contains(&format!("synapsed.toml: {words}")), "{error}");
        }
    }
    let text = "backend = { kind = \"file\", create = true, path = \"/proc/no/such\" }\n[synapse]\nlisten = [\"127.0.0.1:0\"]\n";
    let error = fails(dir.path(), text, &[], 78);
    assert!(error.contains("backend.path: /proc/no/such does not exist and cannot be created"), "{error}");
    // The address is already in use.
    let daemon = Daemon::start(dir.path(), "backend = \"memory:\"\n[synapse]\nlisten = [\"127.0.0.1:0\"]\n");
    let text = format!("backend = \"memory:\"\n[synapse]\nlisten = [\"{}\"]\n", daemon.address);
    let error = fails(dir.path(), &text, &[], 71);
    assert!(error.contains("cannot listen"), "{error}");
    assert!(daemon.end().0.success());
    let right = write(dir.path(), "backend = \"memory:\"\n");
    let printed = program().arg("--config").arg(&right).arg("--print-config").output().unwrap();
    assert!(String::from_utf8(printed.stdout).unwrap().contains("peer_timeout_ms = 30000"));
    assert!(program().arg("--config").arg(&right).args(check).output().unwrap().status.success());
}

/// A write-back cache over a directory that stores its data only at the shutdown.
const BACK: &str = "[synapse]\nlisten = [\"127.0.0.1:0\"]\n[objects]\nmemory_bytes_max = \"4 MiB\"\nwrite = \"back\"\n\
                    writer = \"cache\"\ndirty_age_ms_max = 86400000\n";

#[test]
fn every_signal_stores_what_was_acknowledged_before_the_process_ends() {
    for signal in ["TERM", "INT", "QUIT", "USR1"] {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("store");
        let text =
            format!("backend = {{ kind = \"file\", create = true, path = \"{}\" }}\n{BACK}", store.display());
        let mut daemon = Daemon::start(dir.path(), &text);
        let client = daemon.client();
        let write = |data: &'static [u8]| {
            block_on(client.write(WriteRequest::new(object("disk"), 0, data))).unwrap().durability
        };
        assert_eq!(write(b"acknowledged"), Durability::Cached);
        // These signals do not end the process. The second proves that it has survived the first.
        daemon.signal("HUP");
        daemon.signal("USR2");
        assert_eq!(write(b"acknowledged, and more"), Durability::Cached);
        drop(client);
        // The end could overtake the reload.
        let mut log = BufReader::new(daemon.child.stderr.take().unwrap());
        let mut seen = String::new();
        while !seen.contains("the configuration was reloaded") {
            assert!(log.read_line(&mut seen).unwrap() > 0 && !seen.contains("is refused"), "{seen}");
        }
        daemon.signal(signal);
        let status = daemon.child.wait().unwrap();
        log.read_to_string(&mut seen).unwrap();
        assert!(status.success(), "SIG{signal}: {status}, {seen}");
        let store = blocker::FileStore::open(store).unwrap();
        let found = block_on(store.read(ReadRequest::new(object("disk"), 0, 99))).unwrap();
        assert_eq!(found.data.to_vec(), b"acknowledged, and more", "SIG{signal}");
    }
}

#[test]
fn a_second_signal_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    // The store is unavailable during the whole shutdown.
    let below = Daemon::start(dir.path(), "backend = \"memory:\"\n[synapse]\nlisten = [\"127.0.0.1:0\"]\n");
    let text = format!("backend = \"synapse:{}\"\n{BACK}shutdown_flush_secs = 86400\n", below.address);
    let mut daemon = Daemon::start(dir.path(), &text);
    let client = daemon.client();
    block_on(client.write(WriteRequest::new(object("disk"), 0, vec![7; 4096]))).unwrap();
    drop(client);
    drop(below);
    let mut log = BufReader::new(daemon.child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut until = |words: &str| {
        let mut seen = String::new();
        for line in log.by_ref() {
            if line.contains(words) {
                return line;
            }
            seen += &line;
        }
        panic!("{words:?} is never logged: {seen}");
    };
    daemon.signal("TERM");
    until("storing dirty data");
    daemon.signal("TERM");
    let line = until("acknowledged writes not stored");
    assert!(!line.contains(" 0 bytes") && line.contains("a second signal forced the end"), "{line}");
    assert_eq!(daemon.child.wait().unwrap().code(), Some(74));
}

#[test]
fn a_secret_that_other_users_can_read_causes_a_warning() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    for (mode, is_warned) in [(0o644, true), (0o600, false)] {
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(mode)).unwrap();
        let text = format!(
            "backend = \"memory:\"\n[synapse]\nlisten = [\"127.0.0.1:0\"]\nsecret_file = {secret:?}\n"
        );
        let (_, log) = Daemon::start(dir.path(), &text).end();
        assert_eq!(log.contains("can be read by others"), is_warned, "{mode:o}: {log}");
    }
}

#[test]
fn the_limit_of_open_files_is_raised() {
    let dir = tempfile::tempdir().unwrap();
    let text = "backend = \"memory:\"\n[synapse]\nlisten = [\"127.0.0.1:0\"]\n";
    // A shell sets the soft limit, which the daemon may raise.
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 64 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_synapsed")]);
    let daemon = Daemon::start_as(shell, dir.path(), text);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", daemon.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(soft >= 1024, "{line}");
    assert!(daemon.end().0.success());
}

#[test]
fn a_planned_restart_loses_nothing_that_a_client_had_not_flushed() {
    let dir = test_kit::memory_directory();
    let path = dir.path();
    let at = |store: &str| {
        let (store, socket) = (path.join(store), path.join("sock"));
        format!(
            "backend = {{ kind = \"file\", create = true, path = \"{}\" }}\n[synapse]\nlisten = [\"unix:{}\"]\n",
            store.display(),
            socket.display()
        )
    };
    let daemon = Daemon::start(path, &at("store"));
    let client = daemon.client();
    let write = WriteRequest::new(object("disk"), 0, b"acknowledged").durability(Durability::Cached);
    block_on(client.write(write)).unwrap();
    assert!(daemon.end().0.success());
    let daemon = Daemon::start(path, &at("store"));
    let flushed = block_on(client.flush(FlushRequest::new(Scope::Object(object("disk")))));
    assert_eq!(flushed.map(|reply| reply.durability), Ok(Durability::Stored));
    assert!(daemon.end().0.success());
    // Another directory behind the same address is refused.
    let daemon = Daemon::start(path, &at("another"));
    let deadline = SystemClock.now() + Duration::from_secs(2);
    let read = ReadRequest::new(object("disk"), 0, 99).deadline(deadline);
    let found = block_on(client.read(read));
    assert!(!matches!(found, Ok(_) | Err(Error::Missing)), "{found:?}");
    assert!(daemon.end().0.success());
}

#[test]
fn the_start_waits_for_an_unavailable_store() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("below");
    let text =
        format!("backend = \"synapse:unix:{}\"\n[synapse]\nlisten = [\"127.0.0.1:0\"]\n", socket.display());
    let (early, late) = (write(dir.path(), &text), dir.path().join("late"));
    let mut child =
        program().arg("--config").arg(early).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(log.any(|line| line.contains("waiting for the store")), "it does not wait");
    std::fs::create_dir(&late).unwrap();
    let text = format!("backend = \"memory:\"\n[synapse]\nlisten = [\"unix:{}\"]\n", socket.display());
    let below = Daemon::start(&late, &text);
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let place = line.trim_end().rsplit_once(" at ").expect("it serves").1;
    let mut daemon = Daemon { address: place.parse().unwrap(), child };
    block_on(daemon.client().write(WriteRequest::new(object("disk"), 0, b"x"))).unwrap();
    daemon.signal("TERM");
    assert!(daemon.child.wait().unwrap().success());
    drop(below);
}
