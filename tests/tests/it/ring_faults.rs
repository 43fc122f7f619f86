//! A ring of nodes of which one fails, stops, is replaced, or has another map: reads miss, changes
//! are refused with the reason, no value is older than acknowledged, and everything goes on afterwards.

use cached_tests::conn::Conn;
use cached_tests::daemon::wait_for;
use cached_tests::ending::SetOnDrop;
use cached_tests::program::{Flavour, Program};
use cached_tests::ring::{Fleet, MapFile, PATIENT, keys_in};
use cached_tests::server::own_address;
use cached_tests::upgrade::{Upgradable, load};
use std::sync::atomic::{AtomicBool, Ordering};
use test_kit::memory_directory;

/// The map of two nodes that own a half each.
const HALVES: [(&str, &str); 2] = [("0-8191", "a"), ("8192-16383", "b")];

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// Starts a node that owns nothing, and the node that owns everything, with a memory file. New
/// processes of them read the map and the memory file, too.
fn start_entry_and_owner() -> ([Upgradable; 2], MapFile, tempfile::TempDir) {
    let memory = memory_directory();
    let map = MapFile::new(&["entry", "owner"], &[("0-16383", "owner")]);
    let args = format!("-m 32 -t 2 -e {}", memory.path().join("memory").display());
    let owner = Upgradable::start(&args, &map.configuration("owner", PATIENT));
    let entry = Upgradable::start("-m 32 -t 2", &map.configuration("entry", PATIENT));
    ([entry, owner], map, memory)
}

/// Sends a request, and returns the first line of the reply.
fn first_line(conn: &mut Conn, request: &str) -> String {
    conn.send(request.as_bytes());
    String::from_utf8_lossy(&conn.read_line()).into_owned()
}

fn set_line(conn: &mut Conn, key: &str, value: &str) -> String {
    first_line(conn, &format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()))
}

/// Returns the value of a key.
fn value_of(conn: &mut Conn, key: &str) -> Option<String> {
    let head = first_line(conn, &format!("get {key}\r\n"));
    if head == "END" {
        return None;
    }
    assert!(head.starts_with(&format!("VALUE {key} ")), "{head}");
    let value = String::from_utf8_lossy(&conn.read_line()).into_owned();
    assert_eq!(conn.read_line(), b"END");
    Some(value)
}

/// Reads until there is a value, which must be this one. A read misses while the owner counts as away,
/// which a short `peer_timeout_ms` causes at any time on a slow machine.
fn read_until_there(conn: &mut Conn, key: &str, value: &str) {
    wait_for("a value", || {
        let found = value_of(conn, key);
        assert!(found.as_deref().is_none_or(|found| found == value), "{found:?} instead of {value}");
        found
    });
}

/// Repeats a change until it is acknowledged. Until then, it must be refused for one of the two
/// reasons.
fn set_until_stored(conn: &mut Conn, key: &str, value: &str) {
    set_until_stored_by(conn, key, value, |line| is_away(line) || is_lost(line));
}

/// Repeats a change until it is acknowledged. Until then, it must be refused with an `expected` line.
fn set_until_stored_by(conn: &mut Conn, key: &str, value: &str, expected: impl Fn(&str) -> bool) {
    wait_for("an acknowledged change", || {
        let line = set_line(conn, key, value);
        assert!(line == "STORED" || expected(&line), "{line}");
        (line == "STORED").then_some(())
    });
}

// differs ring-owner-away
fn is_away(line: &str) -> bool {
    line == "SERVER_ERROR node b is away"
}

fn is_lost(line: &str) -> bool {
    line == "SERVER_ERROR the connection to node b was lost; the request may have been executed"
}

/// Waits until all threads of a process have stopped: until then, they serve.
pub(crate) fn wait_until_stopped(pid: i32) {
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    wait_for("all threads to stop", || {
        let mut tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        tasks.all(|task| task.is_ok_and(is_stopped)).then_some(())
    });
}

/// An owner is killed and comes back; then it stands still, and comes back.
#[test]
fn an_owner_is_killed_or_stands_still() {
    if !is_cached() {
        return;
    }
    let mut fleet = Fleet::start(&["a", "b"], &HALVES, "peer_timeout_ms = 500");
    let own = &keys_in(0..=8191, "own", 1)[0];
    let peers = &keys_in(8192..=16383, "peers", 1)[0];
    let mut conn = fleet.connect(0);
    set_until_stored(&mut conn, peers, "one");
    assert_eq!(set_line(&mut conn, own, "own"), "STORED");
    // Killed.
    fleet.nodes[1].signal(libc::SIGKILL);
    assert_eq!(fleet.nodes[1].wait_exit(), 128 + libc::SIGKILL);
    assert_eq!(value_of(&mut conn, peers), None);
    let line = set_line(&mut conn, peers, "two");
    assert!(is_away(&line) || is_lost(&line), "{line}");
    // differs ring-flush-reaches-every-node
    let line = first_line(&mut conn, "flush_all\r\n");
    assert_eq!(line, "SERVER_ERROR flush_all has not reached node b");
    assert_eq!(set_line(&mut conn, own, "own"), "STORED");
    let both = format!("get {peers} {own}\r\n");
    conn.ask(both.as_bytes(), format!("VALUE {own} 0 3\r\nown\r\nEND\r\n").as_bytes());
    fleet.nodes[1].start_again();
    set_until_stored(&mut conn, peers, "three");
    read_until_there(&mut conn, peers, "three");
    // It stands still: the first requests wait for `peer_timeout_ms`, the later ones do not.
    fleet.nodes[1].signal(libc::SIGSTOP);
    wait_until_stopped(fleet.nodes[1].pid);
    let mut other = fleet.connect(0);
    other.send(format!("get {peers}\r\nset {peers} 0 0 5\r\nstale\r\n").as_bytes());
    assert_eq!(other.read_line(), b"END");
    let line = String::from_utf8_lossy(&other.read_line()).into_owned();
    assert!(is_lost(&line) || is_away(&line), "{line}");
    assert_eq!(value_of(&mut conn, peers), None);
    assert_eq!(value_of(&mut conn, own).as_deref(), Some("own"));
    fleet.nodes[1].signal(libc::SIGCONT);
    set_until_stored(&mut conn, peers, "four");
    // What was sent before the owner stood still must not be executed after this.
    for _ in 0..50 {
        read_until_there(&mut conn, peers, "four");
        assert_eq!(value_of(&mut fleet.connect(1), peers).as_deref(), Some("four"));
    }
}

/// A new process takes over from the owner, and another one from the entry, under load: no reply is
/// missing, none is an error, no acknowledged value is lost.
#[test]
fn upgrades_of_owner_and_entry_under_load() {
    if !is_cached() {
        return;
    }
    let (mut servers, _map, _memory) = start_entry_and_owner();
    let report = load::run_on(&mut servers, 4, 5, 1, false);
    println!("{report}");
    assert!(report.lines.is_empty() && report.upgrades == 4, "{report}");
    assert!(report.changes > 200 * 4 && report.keys == 5 * 120, "{report}");
    servers.into_iter().for_each(Upgradable::end);
}

/// Both nodes are replaced in the same moment: a change may fail, but each client gets its reply on
/// its connection, and what was acknowledged is there.
#[test]
fn owner_and_entry_are_upgraded_at_once() {
    if !is_cached() {
        return;
    }
    let (mut servers, _map, _memory) = start_entry_and_owner();
    let mut conns: Vec<Conn> = (0..4).map(|_| servers[0].connect()).collect();
    for _ in 0..5 {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients: Vec<_> = conns
                .iter_mut()
                .enumerate()
                .map(|(client, conn)| {
                    let is_over = &is_over;
                    scope.spawn(move || {
                        let mut number = 0;
                        while !is_over.load(Ordering::Relaxed) || number == 0 {
                            number += 1;
                            let (key, value) = (format!("key-{client}"), format!("{number}"));
                            let line = set_line(conn, &key, &value);
                            let is_refused = line == "SERVER_ERROR node owner is away";
                            assert!(line == "STORED" || is_refused, "{line}");
                            let found = value_of(conn, &key);
                            assert!(is_refused || found.is_none_or(|found| found == value), "{key}");
                        }
                    })
                })
                .collect();
            let end = SetOnDrop(&is_over);
            let upgrades: Vec<_> =
                servers.iter_mut().map(|server| scope.spawn(|| server.upgrade())).collect();
            for upgrade in upgrades {
                upgrade.join().expect("an upgrade");
            }
            drop(end);
            clients.into_iter().for_each(|client| client.join().expect("a client"));
        });
        for (client, conn) in conns.iter_mut().enumerate() {
            set_until_stored_by(conn, &format!("key-{client}"), "last", |line| {
                line.ends_with("node owner is away")
            });
            assert_eq!(value_of(conn, &format!("key-{client}")).as_deref(), Some("last"));
        }
    }
    servers.into_iter().for_each(Upgradable::end);
}

/// A slot changes its owner and comes back: the value from before must not.
#[test]
fn a_slot_that_comes_back_is_empty() {
    if !is_cached() {
        return;
    }
    let fleet = Fleet::start(&["a", "b"], &HALVES, PATIENT);
    let reload = |version: u64, runs: &[(&str, &str)]| {
        fleet.map.write(version, runs);
        fleet.nodes.iter().for_each(|node| node.signal(libc::SIGHUP));
    };
    let keys = keys_in(0..=4095, "moving", 20);
    let stays = &keys_in(4096..=8191, "stays", 1)[0];
    let mut conn = fleet.connect(0);
    set_until_stored(&mut conn, stays, "stays");
    keys.iter().for_each(|key| set_until_stored(&mut conn, key, "first"));
    // `b` owns them now, without the values.
    reload(2, &[("0-4095", "b"), ("4096-8191", "a"), ("8192-16383", "b")]);
    fleet.wait_for_map(2, || ());
    let mut at_b = fleet.connect(1);
    for key in &keys {
        assert_eq!(value_of(&mut conn, key), None, "{key}");
        assert_eq!(set_line(&mut conn, key, "second"), "STORED", "{key}");
        assert_eq!(value_of(&mut at_b, key).as_deref(), Some("second"), "{key}");
    }
    // `a` owns them again, and had a value of each.
    reload(3, &HALVES);
    let mut turn = keys.iter().cycle();
    fleet.wait_for_map(3, || {
        let key = turn.next().expect("a key");
        assert_ne!(value_of(&mut conn, key).as_deref(), Some("first"), "{key}");
        assert_ne!(value_of(&mut at_b, key).as_deref(), Some("first"), "{key}");
    });
    for key in &keys {
        assert_eq!(value_of(&mut at_b, key), None, "{key}");
        assert_eq!(set_line(&mut conn, key, "third"), "STORED", "{key}");
        assert_eq!(value_of(&mut at_b, key).as_deref(), Some("third"), "{key}");
    }
    assert_eq!(value_of(&mut at_b, stays).as_deref(), Some("stays"));
}

/// A large value and a read of its key are refused, because the owner has an earlier map; when they are
/// passed on again, the read does not overtake the parts of the value.
#[test]
fn a_read_does_not_overtake_the_parts_of_a_value() {
    if !is_cached() {
        return;
    }
    let fleet = Fleet::start(&["a", "b"], &HALVES, PATIENT);
    let key = &keys_in(0..=8191, "key", 1)[0];
    let peers = &keys_in(8192..=16383, "peers", 1)[0];
    let stat = |name: &str| fleet.stat(0, name).parse::<u64>().expect("a number");
    let reaches = |name: &str, count| wait_for(name, || (stat(name) >= count).then_some(()));
    // For `a` its owner is `b`, for `b` it is `a`.
    fleet.map.write(2, &[("0-16383", "b")]);
    fleet.nodes[0].signal(libc::SIGHUP);
    reaches("map_version", 2);
    let refused = stat("b:not_mine");
    // Before its first reply from another node, a connection awaits one at a time.
    let mut conn = fleet.connect(0);
    conn.ask(format!("get {peers}\r\n").as_bytes(), b"END\r\n");
    // Both are on their way when the first of them is refused.
    fleet.nodes[1].signal(libc::SIGSTOP);
    wait_until_stopped(fleet.nodes[1].pid);
    let value = "v".repeat(200_000);
    conn.send(format!("set {key} 0 0 {}\r\n{value}\r\nget {key}\r\n", value.len()).as_bytes());
    reaches("b:in_flight", 2);
    fleet.nodes[1].signal(libc::SIGCONT);
    reaches("b:not_mine", refused + 2);
    fleet.nodes[1].signal(libc::SIGHUP);
    let found = format!("STORED\r\nVALUE {key} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    conn.expect(found.as_bytes(), "the value that was sent before");
}

/// Nodes that do not belong together say why, on both sides.
#[test]
fn nodes_that_do_not_belong_together_say_why() {
    if !is_cached() {
        return;
    }
    let map = MapFile::new(&["a", "b", "c"], &HALVES);
    let right = map.secret("secret_file", "0123456789abcdef0123456789abcdef");
    let a = Upgradable::start("-t 1 -m 16", &map.configuration("a", &right));
    let logged = |server: &Upgradable, words: &[&str]| {
        wait_for(&words.join(" … "), || {
            let log = server.log();
            log.lines().any(|line| words.iter().all(|word| line.contains(word))).then_some(())
        });
    };
    let starts = |node: &str, more: &str| Upgradable::start("-t 1 -m 16", &map.configuration(node, more));
    // The wrong secret, and none.
    let wrong = map.secret("wrong", "fedcba9876543210fedcba9876543210").replacen("wrong", "secret_file", 1);
    let b = starts("b", &wrong);
    logged(&b, &["node a", "secret"]);
    logged(&a, &["node b", "secret"]);
    drop(b);
    let b = starts("b", "");
    logged(&b, &["node a", "secret"]);
    drop(b);
    // The right one beside a new one, as in a rotation.
    let previous = right.replacen("secret_file", "secret_file_previous", 1);
    let b = starts("b", &format!("{wrong}\n{previous}"));
    let mut conn = b.connect();
    wait_for("the rotation", || {
        (set_line(&mut conn, &keys_in(0..=8191, "key", 1)[0], "x") == "STORED").then_some(())
    });
    // A second process of the same name, at another address; a map with another node at the address
    // of `a`; and another ring.
    let text = std::fs::read_to_string(map.path("ring.toml")).expect("the map");
    let address = |node: &str| map.address(node).to_string();
    let elsewhere = own_address().to_string();
    let starts_with = |text: String, node: &str, more: &str| {
        let file = map.path("another.toml");
        std::fs::write(&file, text).expect("a map");
        let usual = map.path("ring.toml").display().to_string();
        let configuration = map.configuration(node, &format!("{right}\n{more}"));
        Upgradable::start("-t 1 -m 16", &configuration.replace(&usual, &file.display().to_string()))
    };
    let twin = starts_with(text.replace(&address("b"), &elsewhere), "b", "");
    logged(&twin, &["node a", "a second process is called \"b\""]);
    logged(&a, &["a second process is called \"b\""]);
    drop(twin);
    let moved = text.replace(&address("a"), &elsewhere).replace(&address("b"), &address("a"));
    let c = starts_with(moved, "c", "");
    logged(&c, &["node b", "this is node \"a\", not \"b\""]);
    logged(&a, &["this is node \"a\", not \"b\""]);
    drop(c);
    let c = starts_with(text.replace("ring/main/", "ring/other/"), "c", "name = \"other\"");
    logged(&c, &["node a", "the ring \"main\", not of \"other\""]);
    logged(&a, &["the ring \"main\", not of \"other\""]);
}

/// A memory file stays with its node and its slots: it is kept by a restart, and emptied if the map
/// gives the node other slots.
#[test]
fn a_memory_file_is_kept_with_the_same_slots_only() {
    if !is_cached() {
        return;
    }
    let memory = memory_directory();
    let map = MapFile::new(&["a", "b"], &HALVES);
    let args = format!("-m 16 -t 2 -e {}", memory.path().join("memory").display());
    let (own, foreign) = (&keys_in(0..=8191, "own", 1)[0], &keys_in(8192..=16383, "foreign", 1)[0]);
    // Alone, it owns everything.
    let mut server = Upgradable::start(&args, "");
    let again = |server: &mut Upgradable, configuration: &str| {
        server.signal(libc::SIGTERM);
        assert_eq!(server.wait_exit(), 0, "{}", server.log());
        server.configure(configuration);
        server.start_again();
        server.connect()
    };
    let mut conn = server.connect();
    for key in [own, foreign] {
        assert_eq!(set_line(&mut conn, key, "alone"), "STORED");
    }
    // It enters a ring, and keeps what it owns there.
    let mut conn = again(&mut server, &map.configuration("a", ""));
    assert_eq!(value_of(&mut conn, own).as_deref(), Some("alone"));
    assert_eq!(value_of(&mut conn, foreign), None, "the owner is away");
    let mut conn = again(&mut server, &map.configuration("a", ""));
    assert_eq!(value_of(&mut conn, own).as_deref(), Some("alone"));
    // With other slots, it may have missed changes.
    map.write(2, &[("0-8191", "a"), ("8192-8192", "a"), ("8193-16383", "b")]);
    let mut conn = again(&mut server, &map.configuration("a", ""));
    assert_eq!(value_of(&mut conn, own), None);
    set_until_stored_by(&mut conn, own, "later", |line| line == "SERVER_ERROR node a is away");
    // It leaves the ring.
    let mut conn = again(&mut server, "");
    assert_eq!(value_of(&mut conn, own).as_deref(), Some("later"));
    assert_eq!(value_of(&mut conn, foreign), None, "it was another node's");
    server.end();
}
