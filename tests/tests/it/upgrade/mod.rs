//! Upgrades without interruption: a new process repeatedly takes over from the running one, under
//! load. If the new process fails at any step, the running one continues with all items and
//! connections.

mod ends;
mod objects;

use cached_tests::conn::{Conn, DEADLINE};
use cached_tests::daemon::wait_for;
use cached_tests::http;
use cached_tests::outside;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::Address;
use cached_tests::tls::{BOTH, Certificates, TlsClient};
use cached_tests::upgrade::{Upgradable, load, others};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use test_kit::memory_directory;

/// The number of upgrades during each client's work; the rig `upgrade` performs any number.
const UPGRADES: u64 = 3;

/// Returns whether the program under test is memcached, which has no upgrades.
fn is_memcached() -> bool {
    Program::under_test().flavour != Flavour::Cached
}

fn connect(server: &Upgradable) -> Conn {
    server.connect()
}

/// Returns whether the program was built with faults that can be injected.
fn injects_faults(conn: &mut Conn) -> bool {
    conn.send(b"debugtime stall-off\r\n");
    conn.read_line() == b"OK"
}

/// Items of every size, with their required content.
struct Items(Vec<(String, Vec<u8>)>);

impl Items {
    fn store(conn: &mut Conn) -> Items {
        let item = |n: usize| {
            let bytes = if n % 40 == 7 { 100_000 } else { n };
            (format!("item-{n}"), vec![b'a' + (n % 26) as u8; bytes])
        };
        let items: Vec<_> = (0..200).map(item).collect();
        for (key, value) in &items {
            let request = [format!("set {key} 7 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
            conn.ask(&request, b"STORED\r\n");
        }
        Items(items)
    }

    fn check(&self, conn: &mut Conn, about: &str) {
        for (key, value) in &self.0 {
            conn.send(format!("get {key}\r\n").as_bytes());
            let head = format!("VALUE {key} 7 {}\r\n", value.len());
            conn.expect(&[head.as_bytes(), value, b"\r\nEND\r\n"].concat(), about);
        }
    }
}

#[test]
fn under_load_no_reply_is_missing_and_none_is_wrong() {
    if is_memcached() {
        return;
    }
    for (args, upgrades) in [("-m 32 -t 4", 4), ("-m 64 -t 2 -M", 2)] {
        let report = load::run(args, upgrades, 5, 1, false);
        println!("{args}: {report}");
        assert!(report.lines.is_empty() && report.upgrades == upgrades, "{report}");
        assert!(report.changes > 200 * upgrades && report.keys == 5 * 120, "{report}");
    }
}

/// A connection's unfinished requests continue, and the effects of earlier requests stay.
#[test]
fn connections_go_on_where_they_were() {
    if is_memcached() {
        return;
    }
    let memory = memory_directory();
    let args = format!("-m 64 -t 2 -U -1 -e {}", memory.path().join("memory").display());
    let mut server = Upgradable::start(&args, "");
    let (mut idle, mut within, mut stalled) = (connect(&server), connect(&server), connect(&server));
    let (mut binary, mut swallow, mut watcher) = (connect(&server), connect(&server), connect(&server));
    let items = Items::store(&mut idle);
    idle.ask(b"verbosity 1\r\n", b"OK\r\n");
    // The request is a binary no-op without its last byte.
    let noop = [&[0x80, 10][..], &[0; 22]].concat();
    binary.send(&noop[..23]);
    // The client sends the beginning of a value.
    within.send(b"set within 5 0 10\r\nhello");
    // The value is too large, so its end is discarded.
    swallow.send(format!("set large 0 0 {}\r\n", 2 << 20).as_bytes());
    swallow.expect(b"SERVER_ERROR object too large for cache\r\n", "a value that is too large");
    swallow.send(&vec![b'x'; 1 << 20]);
    watcher.ask(b"watch connevents\r\n", b"OK\r\n");
    // The value is received directly into its item, and its end does not arrive.
    stalled.send(b"set stalled 0 0 100000\r\nbeginning");
    wait_for("what was sent", || {
        let mut conn = connect(&server);
        conn.send(b"stats conns\r\nmn\r\n");
        let mut text = Vec::new();
        while !text.ends_with(b"MN\n") {
            text.extend(conn.read_line());
            text.push(b'\n');
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        // Both values.
        let values = text.matches("conn_nread").count();
        (values == 2 && text.contains("conn_swallow") && text.contains("conn_watch")).then_some(())
    });
    let udp = SocketAddr::from(([127, 0, 0, 1], server.udp_port));
    Conn::datagrams(udp).expect("a socket").ask(b"mn\r\n", b"MN\r\n");
    server.upgrade();
    Conn::datagrams(udp).expect("a socket").ask(b"mn\r\n", b"MN\r\n");
    items.check(&mut idle, "an idle connection, after the upgrade");
    within.send(b"world\r\n");
    within.expect(b"STORED\r\n", "a value whose front came before the upgrade");
    idle.ask(b"get within\r\n", b"VALUE within 5 10\r\nhelloworld\r\nEND\r\n");
    binary.send(&noop[23..]);
    assert_eq!(binary.read_exact(24)[..2], [0x81, 10]);
    swallow.send(&vec![b'x'; 1 << 20]);
    swallow.send(b"\r\nmn\r\n");
    swallow.expect(b"MN\r\n", "after the end of what is discarded");
    stalled.expect_closed("a value that does not come");
    watcher.read_to_end();
    assert!(server.log().contains("connections whose requests do not end are closed"), "{}", server.log());
    // The second upgrade follows with new connections as well.
    server.upgrade();
    items.check(&mut idle, "after the second upgrade");
    items.check(&mut connect(&server), "a new connection");
    let mut stats = connect(&server);
    stats.send(b"stats settings\r\n");
    stats.skip_until_seen(b"STAT verbosity 1", 1);
    server.end();
}

/// A configuration whose store cannot be opened, which is detected only after the sockets have been
/// handed over.
const UNUSABLE: &str = "[objects]\n[objects.backend]\nkind = \"file\"\npath = \"DIR/config.toml\"\n";

/// Unix sockets and UDP sockets are handed over. The socket file stays until the last process ends.
#[test]
fn every_kind_of_socket_is_handed_over() {
    if is_memcached() {
        return;
    }
    let configuration = "[memcached]\nunix_path = \"DIR/socket\"\n[admin]\nlisten = [\"127.0.0.1:0\"]\n";
    let mut server = Upgradable::start("-m 64 -t 2", configuration);
    let unix = Address::Unix(server.path("socket"));
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&path.metadata().expect("the socket"));
    let before = inode(&server.path("socket"));
    let mut conn = Conn::open(&unix).expect("a connection");
    conn.ask(b"mn\r\n", b"MN\r\n");
    let admin = |server: &Upgradable| {
        let log = server.log();
        let line = log.lines().rfind(|line| line.contains("admin on http://")).expect("its address");
        line.rsplit("http://").next().unwrap_or_default().trim().to_owned()
    };
    let first = admin(&server);
    for round in 0..2 {
        // A process that fails after receiving the sockets leaves them and their files intact.
        server.configure(&format!("{configuration}{UNUSABLE}"));
        assert!(server.upgrade_in_vain().contains("it has ended"));
        server.configure(configuration);
        assert_eq!(inode(&server.path("socket")), before);
        server.upgrade();
        conn.ask(b"mn\r\n", b"MN\r\n");
        Conn::open(&unix).expect("a new connection").ask(b"mn\r\n", b"MN\r\n");
        assert_eq!(inode(&server.path("socket")), before);
        assert_eq!(admin(&server), first, "round {round}");
        assert_eq!(http::get(&first, "/readyz").0, 200);
    }
    let path = server.path("socket");
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait_exit(), 0);
    assert!(!path.exists(), "the last process removes the file");
    server.pid = 0;
}

/// The encryption state cannot be handed over, so TLS connections are closed in an orderly way once
/// the new process serves.
#[test]
fn connections_with_tls_are_closed_in_order() {
    if is_memcached() {
        return;
    }
    let certificates = Certificates::shared();
    let mut server = Upgradable::start(&format!("-m 64 {}", certificates.server_args()), "");
    let (config, address) =
        (certificates.client(None, BOTH), SocketAddr::from(([127, 0, 0, 1], server.port)));
    let connect = || {
        let mut client = TlsClient::connect(address, &config).expect("a connection");
        client.handshake(DEADLINE).expect("a handshake");
        client.write_some(b"mn\r\n").expect("a request");
        let mut reply = [0; 4];
        assert_eq!(client.read_some(&mut reply, DEADLINE).expect("a reply"), 4);
        assert_eq!(&reply, b"MN\r\n");
        client
    };
    let mut before = connect();
    server.upgrade();
    assert_eq!(before.read_some(&mut [0; 16], DEADLINE).expect("close_notify"), 0);
    connect();
    server.end();
}

/// An authenticated client stays authenticated, and an unauthenticated one must still authenticate.
#[test]
fn authentication_is_handed_over() {
    if is_memcached() {
        return;
    }
    let users = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(users.path(), "app:secret\n").expect("a file");
    let mut server = Upgradable::start(&format!("-m 64 -Y {}", users.path().display()), "");
    let (mut inside, mut outside) = (connect(&server), connect(&server));
    inside.ask(b"set auth 0 0 10\r\napp secret\r\n", b"STORED\r\n");
    outside.ask(b"set auth 0 0 9\r\napp wrong\r\n", b"CLIENT_ERROR authentication failure\r\n");
    server.upgrade();
    inside.ask(b"mn\r\n", b"MN\r\n");
    outside.send(b"get k\r\n");
    assert!(outside.read_line().starts_with(b"CLIENT_ERROR"));
    outside.ask(b"set auth 0 0 10\r\napp secret\r\n", b"STORED\r\n");
    outside.ask(b"mn\r\n", b"MN\r\n");
    server.end();
}

/// A server whose upgrades fail, with the items and connections that it must keep.
struct Failing {
    server: Upgradable,
    args: String,
    configuration: String,
    conn: Conn,
    items: Items,
    /// Whether the program was built with faults that can be injected.
    injects_faults: bool,
    /// Items stored after the last failure.
    last: String,
    _memory: tempfile::TempDir,
}

impl Failing {
    /// Starts a server that waits this long for each step of a new process.
    fn start(limit_secs: u64) -> Failing {
        let memory = memory_directory();
        let configuration = format!(
            "[process]\nupgrade_timeout_secs = {limit_secs}\n[memcached]\nmemory_bytes_max = \"64 MiB\"\n"
        );
        let args = format!("-t 2 --debug-clock -e {}", memory.path().join("memory").display());
        let server = Upgradable::start(&args, &configuration);
        let mut conn = connect(&server);
        let injects_faults = injects_faults(&mut conn);
        let items = Items::store(&mut conn);
        let last = String::new();
        Failing { server, args, configuration, conn, items, injects_faults, last, _memory: memory }
    }

    /// Asserts that an upgrade fails with a reason that contains these words, and that nothing is
    /// lost.
    #[track_caller]
    fn fail(&mut self, what: &str, words: &str) {
        let line = self.server.upgrade_in_vain();
        assert!(line.contains(words), "{what}: {line}");
        self.items.check(&mut self.conn, what);
        let request = format!("set after 0 0 {}\r\n{what}\r\n", what.len());
        connect(&self.server).ask(request.as_bytes(), b"STORED\r\n");
        self.last = what.to_owned();
        println!("{what}: {line}");
    }

    /// Asserts that the upgrade fails if the new process fails in this way at this step. This needs
    /// a build with fault injection.
    fn fail_at(&mut self, fault: &str, step: &str, words: &str) {
        if self.injects_faults {
            self.server.use_script(&format!("CACHED_FAULT={fault}:{step} exec $REAL \"$@\""));
            self.fail(&format!("{fault} at {step}"), words);
        }
    }

    /// Asserts that an upgrade succeeds, and that after kill -9 of the last process everything is
    /// in the memory file. If time limits are short, several attempts may be needed.
    fn succeed(mut self) {
        self.server.use_program();
        wait_for("an upgrade that succeeds", || self.server.try_upgrade().then_some(()));
        self.items.check(&mut self.conn, "an upgrade after many in vain");
        let expected = format!("VALUE after 0 {}\r\n{}\r\nEND\r\n", self.last.len(), self.last);
        self.conn.ask(b"get after\r\n", expected.as_bytes());
        self.server.signal(libc::SIGKILL);
        self.server.wait_exit();
        self.server.pid = 0;
        let server = Upgradable::start(&self.args, &self.configuration);
        self.items.check(&mut connect(&server), "after kill -9 of the last process");
        server.end();
    }
}

/// Whatever the problem of the new process is, the old one continues with all items and
/// connections.
#[test]
fn the_old_process_goes_on_if_the_new_one_fails() {
    if is_memcached() {
        return;
    }
    // On a busy machine it takes seconds until a process fails.
    let mut failing = Failing::start(120);
    for (what, script, words) in [
        ("it ends at once", "exit 1", "it has ended"),
        ("it ends without an error", "exit 0", "it has ended"),
        ("it is started without exec", "$REAL \"$@\"", "it has ended"),
        ("it sends nonsense", "echo nonsense >&0; exec sleep 1000", "an unexpected message"),
    ] {
        failing.server.use_script(script);
        failing.fail(what, words);
    }
    failing.server.use_bytes(b"\x7fELF and no more");
    failing.fail("no program", "");
    std::fs::remove_file(failing.server.path("cached")).expect("the program is removed");
    failing.fail("the program is missing", "No such file");
    failing.server.use_program();
    for (what, text) in [
        ("a wrong configuration", "[memcached]\nno_such_key = 1\n".to_owned()),
        ("other memory", failing.configuration.replace("64 MiB", "32 MiB")),
        ("an object cache without a store", "[objects]\n".to_owned()),
    ] {
        failing.server.configure(&text);
        failing.fail(what, "it has ended");
    }
    // The new process's last log lines may arrive after its end has been detected.
    let log = || failing.server.log();
    wait_for("the reason", || log().contains("the settings have changed").then_some(()));
    failing.server.configure(&failing.configuration);
    // With debug assertions the real program can be made to fail at each step.
    for step in ["offer", "listening", "store", "opened", "memory", "rebuilt", "ready"] {
        failing.fail_at("kill", step, "it has ended");
    }
    failing.succeed();
}

/// An upgrade whose new process hangs at any step is abandoned.
#[test]
fn the_old_process_goes_on_if_the_new_one_hangs() {
    if is_memcached() {
        return;
    }
    // Each attempt takes as long as the old process waits.
    let mut failing = Failing::start(4);
    failing.server.use_script("exec sleep 1000");
    failing.fail("it hangs", "it has not replied in time");
    for step in ["offer", "listening", "memory", "rebuilt", "ready"] {
        failing.fail_at("stall", step, "it has not replied in time");
    }
    failing.succeed();
}

/// The service manager learns the new main process from the old one, and of upgrades that fail.
#[test]
fn the_service_manager_learns_of_the_new_main_process() {
    if is_memcached() {
        return;
    }
    let mut server = Upgradable::start("-m 64", "");
    let is_main = |note: &String, pid: i32| {
        let has = |wanted: &str| note.lines().any(|line| line == wanted);
        has(&format!("MAINPID={pid}")) && has("READY=1")
    };
    let mut processes = vec![server.pid];
    for _ in 0..2 {
        server.upgrade();
        let pid = server.pid;
        // Notifications of the old process, which are authoritative, and of the new one.
        wait_for("two notes", || {
            (server.notes().iter().filter(|note| is_main(note, pid)).count() == 2).then_some(())
        });
        processes.push(pid);
    }
    server.use_script("exit 1");
    let failed = server.upgrade_in_vain();
    assert!(failed.starts_with("STATUS=Serving; an upgrade has failed: process "), "{failed}");
    let notes = server.notes();
    for note in &notes {
        assert!(!note.contains("STOPPING=1"), "nothing stops: {notes:?}");
        let main = note.lines().find_map(|line| line.strip_prefix("MAINPID=")?.parse().ok());
        assert!(main.is_none_or(|pid: i32| processes.contains(&pid)), "{notes:?}");
    }
    server.end();
}

/// Clients in other languages work during repeated upgrades.
#[test]
#[ignore = "long: clients, from the registries of their languages"]
fn clients_of_others_notice_nothing() {
    if is_memcached() {
        return;
    }
    let (scripts, missing) = others::scripts(Path::new(env!("CARGO_TARGET_TMPDIR")));
    missing.iter().for_each(|why| outside::skip("clients_of_others_notice_nothing", why));
    let memory = memory_directory();
    let args = format!("-m 64 -t 2 -e {}", memory.path().join("memory").display());
    let mut server = Upgradable::start(&args, "");
    let port = server.port;
    let goes_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let goes_on = &goes_on;
        let _stop = Stop(goes_on);
        let scripts = scope.spawn(|| others::run(&scripts, UPGRADES));
        let mut clients = Vec::new();
        for protocol in ["ascii", "binary"] {
            let url = format!("memcache://127.0.0.1:{port}?protocol={protocol}&timeout=60&tcp_nodelay=true");
            clients.push(scope.spawn(move || {
                let client = memcache::connect(url).expect("a connection");
                let mut rounds = 0u64;
                while goes_on.load(Ordering::Relaxed) {
                    client.set(protocol, rounds, 0).expect("set");
                    assert_eq!(client.get::<u64>(protocol).expect("get"), Some(rounds));
                    assert_eq!(client.increment(protocol, 1).expect("increment"), rounds + 1);
                    rounds += 1;
                }
                rounds
            }));
        }
        clients.push(scope.spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async_client(port, goes_on))
        }));
        for _ in 0..UPGRADES {
            server.upgrade();
            assert!(!clients.iter().any(std::thread::ScopedJoinHandle::is_finished), "a client has failed");
        }
        goes_on.store(false, Ordering::Relaxed);
        for client in clients {
            println!("{} rounds", client.join().expect("a client that succeeds"));
        }
        let report = scripts.join().expect("no panic");
        println!("{report}");
        assert_eq!(report.lines, [""; 0]);
    });
    server.end();
}

async fn async_client(port: u16, goes_on: &AtomicBool) -> u64 {
    use async_memcached::{AsciiProtocol, Client};
    let mut client = Client::new(format!("tcp://127.0.0.1:{port}")).await.expect("a client");
    let mut rounds = 0u64;
    while goes_on.load(Ordering::Relaxed) {
        let value = rounds.to_string();
        client.set("async", value.as_str(), None, None).await.expect("set");
        let found = client.get("async").await.expect("get").expect("a value");
        assert_eq!(found.data.as_deref(), Some(value.as_bytes()));
        rounds += 1;
    }
    rounds
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
