//! The configuration of a running server: the effects of SIGHUP, and that no client is disturbed.

use blocker::executor::block_on;
use blocker::*;
use cached_tests::ending::SetOnDrop;
use cached_tests::object_client;
use cached_tests::program::{Flavour, Program};
use cached_tests::server::{START_STOP_DEADLINE, Server, Start};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;
use synapse::{Address, ClientConfig, SynapseBlocker};

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// A configuration file that can be replaced, and a directory for sockets.
struct File {
    dir: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> File {
        let file = File { dir: tempfile::tempdir().expect("a temporary directory") };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("cached.toml")
    }

    /// Replaces the file atomically, as editors do.
    fn write(&self, text: &str) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, text).expect("a file");
        std::fs::rename(new, self.path()).expect("a file");
    }

    fn start(&self, flags: &str) -> Server {
        Start::new().args(&format!("--config={} {flags}", self.path().display())).start()
    }

    /// Replaces the file, and requests that the server reads it.
    fn reload(&self, server: &Server, text: &str) {
        self.write(text);
        server.signal(libc::SIGHUP);
    }
}

/// Returns the value of `name` in `stats settings`.
fn setting(server: &Server, name: &str) -> String {
    let mut conn = server.connect();
    conn.send(b"stats settings\r\n");
    let mut found = None;
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        match line.strip_prefix("STAT ").and_then(|line| line.split_once(' ')) {
            Some((key, value)) if key == name => found = Some(value.to_owned()),
            Some(_) => {}
            None => break,
        }
    }
    found.unwrap_or_else(|| panic!("no {name} in stats settings"))
}

/// Waits until `holds` returns true.
fn until(what: &str, server: &Server, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + START_STOP_DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in time; log:\n{}", server.log());
        std::thread::yield_now();
    }
}

#[test]
fn live_keys_change_and_the_others_are_named() {
    if !is_cached() {
        return;
    }
    let file = File::new("[memcached]\nconnections_max = 100\nconnection_bytes_max = \"20 MiB\"\n");
    let server = file.start("-R 7");
    assert_eq!(setting(&server, "read_buf_mem_limit"), (20 << 20).to_string());
    file.reload(
        &server,
        "[log]\nlevel = \"warn\"\n[memcached]\nconnections_max = 200\nconnections_excess = \"wait\"\n\
         idle_timeout_secs = 77\nbatches_per_wake = 9\nrequests_per_wake = 99\nflush_command = false\n\
         dump_commands = false\nwatch_command = false\nshutdown_command = true\nthreads = 3\n\
         memory_bytes_max = \"70 MiB\"\n",
    );
    server.wait_until_logged("need a restart");
    for (name, value) in [
        ("maxconns", "200"),
        ("maxconns_fast", "no"),
        ("read_buf_mem_limit", "16777216"),
        ("reqs_per_event", "7"),
        ("flush_enabled", "no"),
        ("dump_enabled", "no"),
        ("shutdown_command", "yes"),
        ("num_threads", "4"),
        ("maxbytes", "67108864"),
    ] {
        assert_eq!(setting(&server, name), value, "{name}");
    }
    let mut conn = server.connect();
    conn.ask(b"flush_all\r\n", b"CLIENT_ERROR flush_all not allowed\r\n");
    conn.ask(b"watch fetchers\r\n", b"CLIENT_ERROR watch commands not allowed\r\n");
    let log = server.log();
    let line = log.lines().find(|line| line.contains("need a restart")).expect("a line");
    for words in ["memcached.threads 4 -> 3", "memcached.memory_bytes_max \\\"64 MiB\\\" -> \\\"70 MiB\\\""] {
        assert!(line.contains(words), "{words} is missing in {line}");
    }
    for live in ["connections_max", "requests_per_wake", "log.level"] {
        assert!(!line.contains(live), "{live} is in {line}");
    }
    // The level in force excludes the reports of later reloads; removing its key restores the
    // default.
    file.reload(&server, "[memcached]\nconnections_max = 300\n");
    // `flush_command` is not given, so that its default is in force again.
    until("the second", &server, || {
        setting(&server, "maxconns") == "300" && setting(&server, "flush_enabled") == "yes"
    });
    server.connect().ask(b"flush_all\r\n", b"OK\r\n");
}

#[test]
fn a_wrong_file_is_refused_as_a_whole() {
    if !is_cached() {
        return;
    }
    let file = File::new("[memcached]\nconnections_max = 100\n");
    let mut server = file.start("");
    for (text, words) in [
        (
            "[memcached]\nconnections_max = 200\nthreadz = 2\n",
            "cached.toml:3: memcached.threadz: unknown field",
        ),
        (
            "[memcached]\nconnections_max = 200\nidle_timeout_secs = \"x\"\n",
            "cached.toml:3: memcached.idle_timeout_secs",
        ),
        ("[memcached]\nconnections_max = 0\n", "memcached.connections_max: is 0"),
        ("connections_max = 200\n[memcached", "cached.toml:2"),
        (
            "[memcached]\nconnections_max = 200\nitem_bytes_max = \"60 MiB\"\n",
            "memcached.item_bytes_max: is more than half",
        ),
    ] {
        file.reload(&server, text);
        server.wait_until_logged(words);
        let log = server.log();
        let line = log.lines().find(|line| line.contains(words)).expect("a line");
        assert!(
            line.contains("ERROR the configuration is refused; the previous one stays in force"),
            "{line}"
        );
        assert_eq!(setting(&server, "maxconns"), "100", "after {text}");
    }
    std::fs::remove_file(file.path()).expect("the file");
    server.signal(libc::SIGHUP);
    server.wait_until_logged("cannot be read");
    server.assert_serves("files that are wrong");
    file.reload(&server, "[memcached]\nconnections_max = 200\n");
    until("the right one", &server, || setting(&server, "maxconns") == "200");
}

fn object(number: usize) -> ObjectId {
    let name = Name::new(format!("object.{number}")).expect("a name");
    ObjectId::new(Namespace::new("vm").expect("a namespace"), name)
}

#[test]
fn write_modes_and_dirty_limits_change() {
    if !is_cached() {
        return;
    }
    let file = File::new("");
    let (store, socket) = (file.dir.path().join("store"), file.dir.path().join("socket"));
    let text = |objects: &str, more: &str| {
        format!(
            "[objects]\nmemory_bytes_max = \"8 MiB\"\ndirty_age_ms_max = 86400000\n{objects}\n[objects.backend]\n\
             kind = \"file\"\ncreate = true\npath = {store:?}\n[synapse]\nlisten = [\"unix:{}\"]\nthreads = 1\n{more}",
            socket.display()
        )
    };
    file.write(&text("", ""));
    let server = file.start("");
    let client = SynapseBlocker::connect_on_thread(object_client::config(Address::Unix(socket.clone())))
        .expect("a client");
    let mode = || block_on(client.control().policy(object(0).namespace)).expect("a policy").write;
    let write = |number| {
        block_on(client.write(WriteRequest::new(object(number), 0, vec![7; 4096]))).expect("a write");
    };
    assert_eq!(mode(), WriteMode::Through);
    file.reload(&server, &text("write = \"back\"", ""));
    until("write-back", &server, || mode() == WriteMode::Back);
    let through = "[[objects.namespaces]]\nname = \"vm\"\nwrite = \"through\"\n";
    file.reload(&server, &text("write = \"back\"", through));
    until("the namespace's own", &server, || mode() == WriteMode::Through);
    // A shortened age limit also applies to data that are already dirty.
    file.reload(&server, &text("write = \"back\"", ""));
    until("write-back again", &server, || mode() == WriteMode::Back);
    write(1);
    let dirty = || {
        let metrics = block_on(client.control().metrics()).expect("metrics");
        metrics.number("cache_dirty_bytes").expect("a metric").to_u64()
    };
    assert!(dirty() > 0);
    let young = text("write = \"back\"", "").replace("86400000", "0");
    file.reload(&server, &young);
    until("flushed by age", &server, || dirty() == 0);
    // This value is not possible with the memory that is in force until the restart.
    let large = text("dirty_bytes_max = \"50 MiB\"", "").replace("8 MiB", "80 MiB");
    file.reload(&server, &large);
    server.wait_until_logged("objects.dirty_bytes_max: must be between");
    // A limit that is derived from the memory does not prevent the change.
    file.reload(&server, &young.replace("8 MiB", "80 MiB"));
    server.wait_until_logged("objects.memory_bytes_max \\\"8 MiB\\\" -> \\\"80 MiB\\\"");
}

/// An invalid password file leaves the object cache unchanged too, because a reload is refused as a
/// whole.
#[test]
fn a_wrong_password_file_keeps_the_object_cache_as_it_was() {
    if !is_cached() {
        return;
    }
    let file = File::new("");
    let [store, socket, passwords] = ["store", "socket", "passwords"].map(|name| file.dir.path().join(name));
    let text = |write: &str| {
        format!(
            "[memcached]\nauth_file = {passwords:?}\n[objects]\nmemory_bytes_max = \"8 MiB\"\nwrite = {write:?}\n\
             [objects.backend]\nkind = \"file\"\ncreate = true\npath = {store:?}\n[synapse]\nlisten = [\"unix:{}\"]\nthreads = 1\n",
            socket.display()
        )
    };
    std::fs::write(&passwords, "user:password\n").expect("the passwords");
    file.write(&text("through"));
    let server = file.start("");
    let client = SynapseBlocker::connect_on_thread(object_client::config(Address::Unix(socket.clone())))
        .expect("a client");
    let mode = || block_on(client.control().policy(object(0).namespace)).expect("a policy").write;
    std::fs::write(&passwords, "no colon\n").expect("the passwords");
    file.reload(&server, &text("back"));
    server.wait_until_logged("the configuration is refused");
    assert_eq!(mode(), WriteMode::Through);
    std::fs::write(&passwords, "user:password\n").expect("the passwords");
    file.reload(&server, &text("back"));
    until("write-back", &server, || mode() == WriteMode::Back);
}

/// If a configuration cannot be read completely, as from a hanging disk, the shutdown is not
/// delayed.
#[test]
fn a_reload_that_hangs_does_not_keep_the_process_from_ending() {
    if !is_cached() {
        return;
    }
    let file = File::new("");
    let mut server = file.start("");
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    std::fs::remove_file(file.path()).expect("the file");
    let pipe = format!("/proc/{}/fd/{}", std::process::id(), reader.as_raw_fd());
    std::os::unix::fs::symlink(pipe, file.path()).expect("a link");
    writer.write_all(b"\n").expect("room in the pipe");
    server.signal(libc::SIGHUP);
    // From then on the server waits for the end of the pipe, which never comes.
    until("the beginning is read", &server, || {
        let mut unread: libc::c_int = 0;
        // SAFETY: FIONREAD writes one int.
        assert_eq!(unsafe { libc::ioctl(reader.as_raw_fd(), libc::FIONREAD, &mut unread) }, 0);
        unread == 0
    });
    server.signal(libc::SIGTERM);
    assert!(server.wait_exit().success(), "{}", server.log());
    drop(writer);
}

/// Memcached and object clients work on persistent connections while a hundred reloads succeed and
/// ten are refused.
#[test]
fn a_hundred_reloads_under_load_disturb_no_client() {
    const RELOADS: usize = 100;
    const CLIENTS: usize = 4;
    if !is_cached() {
        return;
    }
    let file = File::new("");
    let (socket, secret) = (file.dir.path().join("socket"), file.dir.path().join("secret"));
    std::fs::write(&secret, "0123456789abcdef\n").expect("a secret");
    let text = |number: usize| {
        let even = number.is_multiple_of(2);
        format!(
            "[log]\nformat = \"{}\"\n[memcached]\nconnections_max = {}\nrequests_per_wake = {}\nidle_timeout_secs = {}\n\
             [objects]\nmemory_bytes_max = \"16 MiB\"\nwrite = \"{}\"\ndirty_bytes_max = \"{} MiB\"\nload_requests_max = {}\n\
             flush_requests_max = {}\n[objects.backend]\nkind = \"memory\"\n[synapse]\nlisten = [\"unix:{}\"]\nthreads = 1\n\
             secret_file = {secret:?}\n",
            if even { "text" } else { "json" },
            500 + number,
            if even { 1 } else { 0 },
            if even { 0 } else { 3600 },
            if even { "back" } else { "through" },
            if even { 1 } else { 8 },
            if even { 1 } else { 64 },
            if even { 1 } else { 64 },
            socket.display(),
        )
    };
    file.write(&text(0));
    let server = file.start("-t 2");
    let connect = || {
        let mut config = object_client::config(Address::Unix(socket.clone()));
        config.secret = synapse::Secret::new(b"0123456789abcdef").ok();
        SynapseBlocker::connect_on_thread(config).expect("a client")
    };
    let (is_over, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&is_over);
        for client in 0..CLIENTS {
            let mut conn = server.connect();
            let (is_over, requests) = (&is_over, &requests);
            scope.spawn(move || {
                for number in 0.. {
                    if is_over.load(Ordering::Acquire) {
                        return;
                    }
                    conn.ask(format!("set key{client} 0 0 8\r\n{number:08}\r\n").as_bytes(), b"STORED\r\n");
                    let reply = format!("VALUE key{client} 0 8\r\n{number:08}\r\nEND\r\n");
                    conn.ask(format!("get key{client}\r\n").as_bytes(), reply.as_bytes());
                    requests.fetch_add(1, Ordering::Relaxed);
                }
            });
            let objects = connect();
            scope.spawn(move || {
                for number in 0_usize.. {
                    if is_over.load(Ordering::Acquire) {
                        break;
                    }
                    let (object, data) = (object(client * 1000 + number % 100), vec![number as u8; 65_536]);
                    block_on(objects.write(WriteRequest::new(object.clone(), 0, data.clone())))
                        .expect("a write");
                    let read = block_on(objects.read(ReadRequest::new(object, 0, 65_536))).expect("a read");
                    assert!(read.data.to_vec() == data, "other bytes");
                    requests.fetch_add(1, Ordering::Relaxed);
                }
                let connects = objects.counters().connects;
                assert_eq!(connects, u64::from(ClientConfig::new(Address::Unix("x".into())).connections));
            });
        }
        for number in 1..=RELOADS {
            if number.is_multiple_of(10) {
                file.reload(&server, "[memcached]\nconnections_max = 1\nwrong = 1\n");
            }
            let before = requests.load(Ordering::Relaxed);
            file.reload(&server, &text(number));
            let maxconns = (500 + number).to_string();
            until("in force", &server, || setting(&server, "maxconns") == maxconns);
            until("clients work", &server, || requests.load(Ordering::Relaxed) > before);
        }
    });
    assert_eq!(server.stat("rejected_connections"), 0);
    println!(
        "{RELOADS} reloads, {} requests of {CLIENTS} clients of each kind",
        requests.load(Ordering::Relaxed)
    );
}

/// During the drain delay, load balancers may still send clients, so the listeners serve them; a
/// second signal ends the delay.
#[test]
fn the_listeners_close_after_the_delay() {
    if !is_cached() {
        return;
    }
    let file = File::new("[process]\ndrain_delay_secs = 3600\n");
    let mut server = file.start("");
    let mut early = server.connect();
    server.signal(libc::SIGTERM);
    server.wait_until_logged("no longer ready");
    early.ask(b"mn\r\n", b"MN\r\n");
    server.assert_serves("a signal to end");
    server.signal(libc::SIGTERM);
    assert!(server.wait_exit().success());
    assert!(server.log().contains("stopping"), "{}", server.log());
}

/// Sends one request to an admin listener; returns the status and the body.
fn ask_admin(address: &str, request: &str, token: Option<&str>) -> (u16, String) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).expect("a connection to the admin listener");
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "{request} HTTP/1.1\r\nHost: {address}\r\n{token}Content-Length: 0\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, body.to_owned())
}

#[test]
fn the_admin_listener_reloads_shows_and_drains() {
    const TOKEN: &str = "0123456789abcdef";
    if !is_cached() {
        return;
    }
    let file = File::new("");
    let token = file.dir.path().join("token");
    std::fs::write(&token, TOKEN).expect("a token");
    let text = |more: &str| {
        format!(
            "[process]\ndrain_delay_secs = 3600\n[admin]\nlisten = [\"127.0.0.1:0\"]\ntoken_file = {token:?}\n{more}"
        )
    };
    file.write(&text("[memcached]\nthreads = 2\n"));
    let mut server = file.start("-c 100");
    let log = server.log();
    let address = log.lines().find_map(|line| line.split_once("http://")).expect("its address").1;
    let address = address.trim().trim_end_matches('/').to_owned();
    let ask = |request: &str| ask_admin(&address, request, Some(TOKEN));
    assert_eq!(ask_admin(&address, "POST /reload", None).0, 401);
    assert_eq!(ask_admin(&address, "POST /drain", None).0, 401);
    file.write(&text("[memcached]\nthreads = 3\nidle_timeout_secs = 77\nconnections_max = 5\n"));
    let (status, body) = ask("POST /reload");
    let report: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!(status, 200, "{body}");
    assert_eq!(report["changed"][0]["key"], "memcached.idle_timeout_secs");
    assert_eq!(report["restart"][0]["key"], "memcached.threads");
    assert_eq!(setting(&server, "maxconns"), "100", "the flag overrides the file");
    file.write(&text("[memcached]\nthreadz = 3\n"));
    let (status, body) = ask("POST /reload");
    assert!(status == 422 && body.contains("memcached.threadz: unknown field"), "{status} {body}");
    let (_, body) = ask("GET /config.json");
    let shown: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let entry = |key: &str| {
        let entries = shown["entries"].as_array().expect("entries");
        entries.iter().find(|entry| entry["key"] == key).unwrap_or_else(|| panic!("no {key}")).clone()
    };
    for (key, value, origin, live) in [
        ("memcached.connections_max", "100", "flag", true),
        ("memcached.idle_timeout_secs", "77", "file", true),
        ("memcached.threads", "2", "file", false),
        ("memcached.memory_bytes_max", "\"64 MiB\"", "default", false),
    ] {
        let found = entry(key);
        assert_eq!(
            (&found["value"], &found["origin"], &found["live"]),
            (&value.into(), &origin.into(), &live.into()),
            "{key}"
        );
    }
    let (_, body) = ask("GET /log.json");
    let lines: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    let lines = lines["lines"].as_array().expect("lines");
    let has = |words: &str| {
        lines.iter().any(|line| line["message"].as_str().is_some_and(|text| text.contains(words)))
    };
    assert!(has("the configuration was reloaded") && has("is refused"), "{lines:?}");
    let last = lines.last().expect("one")["id"].as_u64().expect("a number");
    assert!(!ask(&format!("GET /log.json?after={last}")).1.contains("is refused"));
    assert_eq!(ask("GET /readyz").0, 200);
    assert_eq!(ask("POST /drain").0, 200);
    until("not ready", &server, || ask("GET /readyz").0 == 503);
    server.assert_serves("a drain, within its delay");
    server.signal(libc::SIGTERM);
    assert!(server.wait_exit().success());
}
