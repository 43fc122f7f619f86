//! The object cache in the server, used through its listener: a shutdown without losses, a shutdown
//! that reports its losses, stores that cannot be opened, and metrics.

use blocker::executor::block_on;
use blocker::{
    Blocker, BlockerExt, ClaimRequest, Durability, Epoch, Error, FlushRequest, Name, Namespace, ObjectId,
    ReadRequest, Scope, WriteRequest, WriterId,
};
use cached_tests::object_client;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{Server, Start};
use cached_tests::site::{DEADLINE, wait_for};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use synapse::{Address, Secret, SynapseBlocker};

const OBJECT_BYTES: usize = 5000;

/// Returns true for memcached, which has no object cache.
fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// The files of a server: its configuration, its store and its socket.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// Returns a file store in this directory.
    fn file_backend(&self) -> String {
        format!("kind = \"file\"\ncreate = true\npath = \"{}\"", self.path("store").display())
    }

    /// Returns a cache with these settings over a backend, and a listener on a unix socket.
    fn configure(&self, objects: &str, backend: &str) -> String {
        let text = format!(
            "[objects]\n{objects}\n[objects.backend]\n{backend}\n[synapse]\n\
             listen = [\"unix:{}\"]\nthreads = 2\n",
            self.socket().display()
        );
        let path = self.path("cached.toml");
        std::fs::write(&path, text).expect("a configuration");
        format!("--config={}", path.display())
    }

    fn start(&self, objects: &str, backend: &str) -> Server {
        Server::start(&self.configure(objects, backend))
    }

    fn connect(&self) -> SynapseBlocker {
        connect(&self.socket(), None).expect("a connection to the object listener")
    }
}

fn connect(socket: &Path, secret: Option<&str>) -> blocker::Result<SynapseBlocker> {
    let mut config = object_client::config(Address::Unix(socket.into()));
    config.secret = secret.map(|text| Secret::new(text.as_bytes()).expect("long enough"));
    SynapseBlocker::connect_on_thread(config)
}

fn object(number: usize) -> ObjectId {
    let name = Name::new(format!("object.{number}")).expect("a name");
    ObjectId::new(Namespace::new("vm").expect("a namespace"), name)
}

fn content(number: usize) -> Vec<u8> {
    (0..OBJECT_BYTES).map(|index| (number * 31 + index) as u8).collect()
}

/// Writes objects, and returns the weakest durability that was acknowledged.
fn write(client: &SynapseBlocker, count: usize) -> Durability {
    let reply = |number| {
        let request = WriteRequest::new(object(number), 0, content(number));
        block_on(client.write(request)).unwrap_or_else(|error| panic!("object {number}: {error}")).durability
    };
    (0..count).map(reply).min().expect("one at least")
}

fn assert_there(client: &SynapseBlocker, count: usize) {
    for number in 0..count {
        let read = block_on(client.read(ReadRequest::new(object(number), 0, 1 << 20)));
        let data = read.unwrap_or_else(|error| panic!("object {number}: {error}")).data.to_vec();
        assert!(data == content(number), "object {number} has other bytes, {} of them", data.len());
    }
}

/// Returns `stats objects` in text.
fn metrics(server: &Server) -> Vec<String> {
    report(server, "stats objects")
}

/// Returns the lines of a report in text.
fn report(server: &Server, command: &str) -> Vec<String> {
    let mut conn = server.connect();
    conn.send(format!("{command}\r\n").as_bytes());
    let mut lines = Vec::new();
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if !line.starts_with("STAT ") {
            lines.push(line);
            return lines;
        }
        lines.push(line);
    }
}

fn metric(server: &Server, name: &str) -> u64 {
    let lines = metrics(server);
    let value = lines.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} "))?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in\n{}", lines.join("\n")))
}

/// Returns the files that contain objects, except the store's record of servers.
fn stored(store: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(store) else { return 0 };
    let count = |entry: std::fs::DirEntry| {
        let path = entry.path();
        if entry.file_name().to_string_lossy().contains("synapse") {
            0
        } else if path.is_dir() {
            stored(&path)
        } else {
            usize::from(path.extension().is_some_and(|it| it == "obj"))
        }
    };
    entries.filter_map(Result::ok).map(count).sum()
}

const BACK: &str = "write = \"back\"\ndirty_age_ms_max = 86400000";

/// Data are acknowledged from memory without being stored; after SIGTERM all of them are stored.
#[test]
fn sigterm_stores_what_is_dirty() {
    if !is_cached() {
        return;
    }
    let place = Place::new();
    let backend = place.file_backend();
    let mut server = place.start(BACK, &backend);
    let client = place.connect();
    assert_eq!(write(&client, 100), Durability::Cached);
    assert_eq!(stored(&place.path("store")), 0, "stored already: this would prove nothing");
    assert!(metric(&server, "cache_dirty_bytes") >= 100 * OBJECT_BYTES as u64);
    assert_there(&client, 100);
    server.signal(libc::SIGTERM);
    let status = server.wait_exit();
    assert!(status.success(), "{status}: {}", server.log());
    assert_eq!(stored(&place.path("store")), 100);
    assert!(!place.socket().exists(), "the socket stays behind");
    drop(client);

    let server = place.start(BACK, &backend);
    assert_there(&place.connect(), 100);
    assert_eq!(metric(&server, "cache_dirty_bytes"), 0);
}

/// Flushed or written-through data survive a kill; data that were only cached are lost with the
/// process.
#[test]
fn kill_loses_only_unflushed_data() {
    if !is_cached() {
        return;
    }
    let place = Place::new();
    let backend = place.file_backend();
    let mut server = place.start(BACK, &backend);
    let client = place.connect();
    write(&client, 10);
    block_on(client.flush(FlushRequest::new(Scope::All))).expect("a flush");
    let late = object(10);
    block_on(client.write(WriteRequest::new(late.clone(), 0, b"never flushed"))).expect("a write");
    server.signal(libc::SIGKILL);
    server.wait_exit();
    drop(client);
    for policy in ["through", "around"] {
        let mut server = place.start(&format!("write = \"{policy}\""), &backend);
        let client = place.connect();
        assert_there(&client, 10);
        let read = block_on(client.read(ReadRequest::new(late.clone(), 0, 100)));
        assert!(matches!(read, Err(Error::Missing)), "{read:?}");
        let mut request = WriteRequest::new(object(0), 0, content(0));
        request.terms.durability = Durability::Stored;
        let reply = block_on(client.write(request)).expect("a write");
        assert_eq!(reply.durability, Durability::Stored, "{policy}");
        // A write-through is in the store even without a flush; after the kill, the kernel still
        // has the data.
        write(&client, 10);
        server.signal(libc::SIGKILL);
        server.wait_exit();
    }
    let _server = place.start("", &backend);
    assert_there(&place.connect(), 10);
}

/// Starts a server, and a cache in front of it that has unflushed data. Then the server stops
/// responding.
fn cut_off(store: &Place, cache: &Place, flush_secs: u64) -> (Server, Server) {
    let behind = store.start("", &store.file_backend());
    let backend = format!("kind = \"synapse\"\naddress = \"unix:{}\"", store.socket().display());
    let front = cache.start(&format!("{BACK}\nshutdown_flush_secs = {flush_secs}"), &backend);
    let client = cache.connect();
    assert_eq!(write(&client, 20), Durability::Cached);
    assert_eq!(stored(&store.path("store")), 0);
    behind.signal(libc::SIGSTOP);
    (behind, front)
}

/// After the time limit of the shutdown, the log and the exit status report the lost data.
#[test]
fn data_that_cannot_be_stored_are_reported() {
    if !is_cached() {
        return;
    }
    let (store, cache) = (Place::new(), Place::new());
    let (mut behind, mut front) = cut_off(&store, &cache, 1);
    front.signal(libc::SIGTERM);
    let status = front.wait_exit();
    assert_eq!(status.code(), Some(74), "{}", front.log());
    let log = front.log();
    let line = log.lines().last().unwrap_or_default();
    assert!(line.starts_with("the object cache ended with "), "{log}");
    let bytes: u64 = line.split(' ').nth(5).and_then(|word| word.parse().ok()).expect("how much");
    assert!(bytes >= 20 * OBJECT_BYTES as u64, "{line}");
    assert!(line.contains("bytes of acknowledged writes not stored: "), "{line}");
    behind.signal(libc::SIGCONT);
    behind.signal(libc::SIGTERM);
    assert!(behind.wait_exit().success());
}

/// Another writer has taken over, so acknowledged data are lost. Each flush that covers them
/// reports the loss, as do the log and the exit status, however long ago the loss occurred.
#[test]
fn data_fenced_by_another_writer_are_reported() {
    if !is_cached() {
        return;
    }
    let (store, cache) = (Place::new(), Place::new());
    let behind = store.start("", &store.file_backend());
    let backend = format!("kind = \"synapse\"\naddress = \"unix:{}\"", store.socket().display());
    let mut front = cache.start(BACK, &backend);
    let client = cache.connect();
    assert_eq!(write(&client, 5), Durability::Cached);
    let namespace = Scope::Namespace(object(0).namespace);
    let claim = ClaimRequest::new(namespace.clone(), Epoch(7), WriterId(7));
    block_on(store.connect().claim(claim)).expect("a claim at the store");
    for scope in [Scope::Object(object(0)), namespace.clone(), namespace, Scope::All] {
        let flushed = block_on(client.flush(FlushRequest::new(scope.clone())));
        assert!(matches!(flushed, Err(Error::WritesLost(_))), "{scope:?}: {flushed:?}");
    }
    assert_eq!((metric(&front, "cache_dirty_bytes"), metric(&front, "cache_lost_objects")), (0, 5));
    assert!(metric(&front, "cache_lost_bytes_total") >= 5 * OBJECT_BYTES as u64);
    let lost = report(&front, "stats objects_lost");
    for number in 0..5 {
        let start = format!("STAT vm/object.{number} ");
        assert!(lost.iter().any(|line| line.starts_with(&start) && line.contains(" bytes in ")), "{lost:?}");
    }
    assert_eq!((lost.len(), lost[5].as_str()), (6, "END"));
    front.signal(libc::SIGTERM);
    let status = front.wait_exit();
    let log = front.log();
    assert_eq!(status.code(), Some(74), "{log}");
    let line = log.lines().last().unwrap_or_default();
    assert!(line.starts_with("the object cache ended with ") && line.contains("vm/object.0"), "{log}");
    for number in 0..5 {
        let told = |line: &str| {
            line.contains("acknowledged writes are lost") && line.contains(&format!("vm/object.{number}"))
        };
        assert!(log.lines().any(told), "object {number}: {log}");
    }
    drop(behind);
}

/// An operator who does not want to wait sends a second signal, which ends the process.
#[test]
fn a_second_signal_forces_the_end() {
    if !is_cached() {
        return;
    }
    let (store, cache) = (Place::new(), Place::new());
    let (behind, mut front) = cut_off(&store, &cache, 24 * 60 * 60);
    front.signal(libc::SIGTERM);
    wait_for("the end of listening", || !cache.socket().exists());
    front.signal(libc::SIGTERM);
    let status = front.wait_exit();
    assert_eq!(status.code(), Some(74), "{}", front.log());
    assert!(front.log().contains("not stored: a second signal forced the end"), "{}", front.log());
    behind.signal(libc::SIGCONT);
}

/// The store becomes available in time: the shutdown waits for it, and no data are lost.
#[test]
fn the_end_waits_for_the_store() {
    if !is_cached() {
        return;
    }
    let (store, cache) = (Place::new(), Place::new());
    let (behind, mut front) = cut_off(&store, &cache, 24 * 60 * 60);
    front.signal(libc::SIGTERM);
    wait_for("the end of listening", || !cache.socket().exists());
    behind.signal(libc::SIGCONT);
    let status = front.wait_exit();
    assert!(status.success(), "{status}: {}", front.log());
    assert_there(&store.connect(), 20);
}

#[test]
fn namespaces_have_their_own_policies() {
    if !is_cached() {
        return;
    }
    let place = Place::new();
    let own =
        "write = \"around\"\nnamespaces = [{ name = \"vm\", write = \"back\" }]\ndirty_age_ms_max = 86400000";
    let server = place.start(own, &place.file_backend());
    let client = place.connect();
    assert_eq!(write(&client, 1), Durability::Cached);
    let other = ObjectId::new(Namespace::new("other").expect("it"), Name::new("x").expect("it"));
    let dirty_bytes = metric(&server, "cache_dirty_bytes");
    assert!(dirty_bytes > 0 && stored(&place.path("store")) == 0);
    block_on(client.write(WriteRequest::new(other, 0, b"x"))).expect("a write");
    assert_eq!((metric(&server, "cache_dirty_bytes"), stored(&place.path("store"))), (dirty_bytes, 1));
}

/// Returns the lines that are not the log's, which begin with the time.
fn reasons(text: &str) -> Vec<&str> {
    text.lines().filter(|line| !line.starts_with(|letter: char| letter.is_ascii_digit())).collect()
}

/// A store or listener that cannot be opened makes the start fail with one line.
#[test]
fn a_store_or_listener_that_cannot_be_opened_stops_the_start() {
    if !is_cached() {
        return;
    }
    let (first, second) = (Place::new(), Place::new());
    let _holder = first.start("", &first.file_backend());
    let flag = second.configure("", &first.file_backend());
    let (status, text) = Start::new().args(&flag).run_to_exit();
    assert!(text.contains("cannot open the object store: denied: "), "{text}");
    assert!(text.contains("is held by another process"), "{text}");
    assert_eq!((status.code(), reasons(&text).len()), (Some(71), 1), "{text}");

    let taken = first.socket();
    let flag = second.configure("", &second.file_backend());
    let path = second.path("cached.toml");
    let text = std::fs::read_to_string(&path)
        .expect("it")
        .replace(&second.socket().display().to_string(), &taken.display().to_string());
    std::fs::write(&path, text).expect("it");
    let (status, text) = Start::new().args(&flag).run_to_exit();
    let wanted = format!("the object listener: cannot listen on unix:{}", taken.display());
    let reasons = reasons(&text);
    assert!(matches!(reasons[..], [line] if line.starts_with(&wanted)), "{text}");
    assert_eq!(status.code(), Some(71), "{text}");
}

/// A `cached` that waits for its store, started without the harness, which would wait until it
/// listens.
struct Waiting {
    child: std::process::Child,
    log: PathBuf,
}

impl Waiting {
    fn start(front: &Place, store: &Place) -> Waiting {
        let backend = format!("kind = \"synapse\"\naddress = \"unix:{}\"", store.socket().display());
        let flag = front.configure("", &backend);
        let log = front.path("log");
        let file = std::fs::File::create(&log).expect("a file");
        let mut command = std::process::Command::new(&Program::under_test().path);
        command.arg(flag).arg(format!("-s{}", front.path("memcached").display()));
        let child = command.stdout(std::process::Stdio::null()).stderr(file).spawn().expect("a process");
        let waiting = Waiting { child, log };
        waiting.until(|log| log.contains("waiting for the store"));
        waiting
    }

    fn until(&self, holds: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            if holds(&log) {
                return;
            }
            assert!(Instant::now() < deadline, "{log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn terminate(&mut self) -> std::process::ExitStatus {
        // SAFETY: the child has not been waited for, so the id is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
        self.child.wait().expect("a status")
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The start waits for an unavailable store, logs this, and serves once the store is available.
#[test]
fn the_start_waits_for_a_store_that_is_away() {
    if !is_cached() {
        return;
    }
    let (front, store) = (Place::new(), Place::new());
    let mut waiting = Waiting::start(&front, &store);
    assert!(!front.socket().exists());
    let _behind = store.start("", &store.file_backend());
    // The file exists before the server listens at it.
    waiting.until(|_| UnixStream::connect(front.socket()).is_ok());
    let client = front.connect();
    write(&client, 3);
    assert_there(&client, 3);
    drop(client);
    assert!(waiting.terminate().success());
}

/// A signal ends the wait for a store, with status 0.
#[test]
fn a_signal_ends_the_wait_for_the_store() {
    if !is_cached() {
        return;
    }
    let (front, store) = (Place::new(), Place::new());
    let mut waiting = Waiting::start(&front, &store);
    let status = waiting.terminate();
    assert!(status.success(), "{status}");
}

/// Listening on other interfaces needs a secret; a client without the secret is refused.
#[test]
fn other_machines_need_a_secret() {
    if !is_cached() {
        return;
    }
    let place = Place::new();
    let flag = place.configure("", "kind = \"memory\"");
    let path = place.path("cached.toml");
    let text = std::fs::read_to_string(&path).expect("it");
    let exposed = text.replace("listen = [", "listen = [\"0.0.0.0:0\", ");
    std::fs::write(&path, &exposed).expect("it");
    let (status, said) = Start::new().args(&flag).run_to_exit();
    assert_eq!(status.code(), Some(78), "{said}");
    assert!(said.contains("synapse.listen: 0.0.0.0:0 can be reached from other machines"), "{said}");

    let secret = place.path("secret");
    std::fs::write(&secret, "too short").expect("it");
    let locked = format!("{exposed}secret_file = \"{}\"\n", secret.display());
    std::fs::write(&path, locked).expect("it");
    let (status, said) = Start::new().args(&flag).run_to_exit();
    assert_eq!(status.code(), Some(78), "{said}");
    assert!(said.contains("synapse.secret_file: ") && said.contains("can be guessed"), "{said}");

    std::fs::write(&secret, "a secret of many bytes\n").expect("it");
    let server = Server::start(&flag);
    let client = connect(&place.socket(), Some("a secret of many bytes")).expect("who knows it is let in");
    write(&client, 3);
    assert_there(&client, 3);
    for wrong in [None, Some("another one of many bytes")] {
        let refused = connect(&place.socket(), wrong).err();
        assert!(matches!(refused, Some(Error::Denied(_))), "{wrong:?}: {refused:?}");
    }
    assert!(!server.log().contains("a secret of many"), "the secret is in the log");
}

#[test]
fn metrics_and_memory_are_shown() {
    if !is_cached() {
        return;
    }
    let place = Place::new();
    let server = place.start("memory_bytes_max = \"64 MiB\"", "kind = \"memory\"\nbytes_max = \"32 MiB\"");
    let log = server.log();
    assert!(log.contains(&format!("objects on unix:{}", place.socket().display())), "{log}");
    assert!(log.contains(" + objects ") && log.contains(" + object listener "), "{log}");
    let client = place.connect();
    write(&client, 5);
    // The first read of each object may have to request its length from the store.
    assert_there(&client, 5);
    assert_there(&client, 5);
    assert!(metric(&server, "cache_objects") >= 5);
    assert!(metric(&server, "cache_read_hits_total") >= 5);
    assert!(metric(&server, "synapse_requests_total") >= 10);
    // Without an object cache the report's name is unknown, as in memcached.
    assert_eq!(metrics(&Server::start("")), ["ERROR"]);
}

/// A cache without a listener does not prevent the start, and is logged.
#[test]
fn a_cache_without_a_listener_is_logged() {
    if !is_cached() {
        return;
    }
    let place = Place::new();
    let path = place.path("cached.toml");
    std::fs::write(&path, format!("[objects.backend]\n{}\n", place.file_backend())).expect("it");
    let mut server = Server::start(&format!("--config={}", path.display()));
    server.assert_serves("a start without a listener");
    assert!(server.log().contains("objects on nowhere"), "{}", server.log());
    server.signal(libc::SIGTERM);
    assert!(server.wait_exit().success());
}
