//! What the nodes of a ring report about it, and how another map comes into force.

use cached_tests::conn::Conn;
use cached_tests::daemon::{Daemon, wait_for};
use cached_tests::http;
use cached_tests::reference;
use cached_tests::ring::{MapFile, PATIENT, keys_in};
use cached_tests::server::Address;

const HALVES: [(&str, &str); 2] = [("0-8191", "a"), ("8192-16383", "b")];

/// Two nodes, each of which owns half of the slots.
struct Nodes {
    a: Daemon,
    b: Daemon,
    map: MapFile,
}

impl Nodes {
    /// Starts the nodes, and waits until they are connected.
    fn start() -> Nodes {
        let map = MapFile::new(&["a", "b"], &HALVES);
        let start = |name: &str| {
            let ring = map.configuration(name, PATIENT);
            Daemon::start("cached", |_| {
                format!("[memcached]\nthreads = 2\ncluster_discovery = \"reached\"\n{ring}")
            })
        };
        let nodes = Nodes { a: start("a"), b: start("b"), map };
        nodes.wait_until_connected();
        nodes
    }

    /// Waits until each node is connected to the other one, and both have the same map.
    fn wait_until_connected(&self) {
        for node in [&self.a, &self.b] {
            wait_for("the ring", || (node.cachectl(&["cluster", "status"]).0 == 0).then_some(()));
        }
    }
}

/// Sends a command, and returns the reply up to a line that `ends` it.
fn ask(node: &Daemon, command: &str, ends: &str) -> Vec<String> {
    let mut conn = Conn::open(&Address::Unix(node.path("memcached"))).expect("a connection");
    conn.send(command.as_bytes());
    let mut lines = Vec::new();
    loop {
        let line = String::from_utf8_lossy(&conn.read_line()).into_owned();
        if line == ends {
            return lines;
        }
        assert!(!line.contains("ERROR"), "{command}: {line}");
        lines.push(line);
    }
}

#[test]
fn each_node_reports_the_ring() {
    let Nodes { a, b, map } = Nodes::start();
    let key = &keys_in(8192..=16383, "report", 1)[0];
    ask(&a, &format!("set {key} 0 0 5\r\nhello\r\n"), "STORED");
    assert_eq!(ask(&a, &format!("get {key}\r\n"), "END"), [format!("VALUE {key} 0 5"), "hello".into()]);

    let stats = ask(&a, "stats ring\r\n", "END");
    for line in [
        "ring main",
        "node a",
        "map_version 1",
        "own_slots 8192",
        "purging_slots 0",
        "b:state up",
        "b:slots 8192",
        "b:done 2",
        "b:has_same_map 1",
    ] {
        assert!(stats.contains(&format!("STAT {line}")), "{line}: {stats:#?}");
    }
    // What both count is added up.
    let stats = ask(&b, "stats cluster\r\n", "END");
    for line in ["nodes 2", "nodes_away 0", "cmd_set 1", "cmd_get 1", "curr_items 1"] {
        assert!(stats.contains(&format!("STAT {line}")), "{line}: {stats:#?}");
    }
    wait_for("a ping", || a.metric("cached_ring_round_trip_seconds{peer=\"b\"}"));
    let (_, metrics) = http::get(&a.admin, "/metrics");
    // A map in a file has no leases.
    let leases = ["cached_ring_lease_left_seconds", "cached_ring_lapses_total", "cached_ring_strikes_total"];
    reference::compare(&metrics, |name| name.starts_with("cached_ring_"), |name| leases.contains(&name));
    assert_eq!(a.metric("cached_ring_requests_total{peer=\"b\",result=\"done\"}"), Some(2.0));
    assert_eq!(b.metric("cached_ring_inbound_requests_total{peer=\"a\"}"), Some(2.0));
    assert_eq!(a.metric("cached_ring_slots"), Some(8192.0));

    let ring = b.json("/ring.json");
    assert_eq!(ring["nodes"][1]["state"], "here");
    assert_eq!((&ring["nodes"][1]["items"], &ring["nodes"][0]["state"]), (&1.into(), &"up".into()));
    assert_eq!(ring["runs"][1], serde_json::json!({ "first": 8192, "last": 16383, "owner": "b" }));
    assert_eq!(b.json("/status.json")["ring"]["map_version"], 1);
    let (_, shown) = b.cachectl(&["cluster", "map"]);
    assert_eq!(shown.trim(), "ring main, map 1\n0-8191 a\n8192-16383 b");

    let cluster = ask(&a, "config get cluster\r\n", "END");
    assert_eq!((cluster[1].as_str(), cluster[2].split(' ').count()), ("1", 2), "{cluster:?}");
    let (status, refused) = a.cachectl(&["flush-prefix", "report"]);
    assert!(status == 4 && refused.contains("send the command flush_prefix to any node"), "{refused}");

    drop(b);
    let away = wait_for("the other node is away", || {
        Some(a.cachectl(&["cluster", "status"])).filter(|it| it.0 == 5)
    });
    assert!(away.1.contains("away, or with another map: b"), "{}", away.1);
    assert_eq!(ask(&a, "stats cluster\r\n", "END")[..2], ["STAT nodes 2", "STAT nodes_away 1"]);
    let (status, notes) = http::get(&a.admin, "/readyz");
    assert!(status == 200 && notes.contains("ring: node b is away"), "{status}: {notes}");
    drop(map);
}

#[test]
fn a_reload_puts_a_later_map_in_force_and_refuses_others() {
    let nodes = Nodes::start();
    let Nodes { a, b, map } = &nodes;
    let reload = |node: &Daemon| node.cachectl(&["reload"]);
    let key = &keys_in(8192..=16383, "moves", 1)[0];
    ask(a, &format!("set {key} 0 0 3\r\nold\r\n"), "STORED");

    // What moves is cold, and what returns is not stale.
    for (version, owner) in [(2, "a"), (3, "b")] {
        map.write(version, &[("0-8191", "a"), ("8192-16383", owner)]);
        for node in [a, b] {
            let (status, shown) = reload(node);
            assert!(status == 0 && shown.contains("ring.map_file"), "{shown}");
        }
        nodes.wait_until_connected();
        let slots = if owner == "a" { (16384, 0) } else { (8192, 8192) };
        for (node, slots) in [(a, slots.0), (b, slots.1)] {
            wait_for("the slots", || {
                let ring = node.json("/ring.json");
                (ring["own_slots"] == slots && ring["map_version"] == version).then_some(())
            });
        }
        assert_eq!(ask(b, &format!("get {key}\r\n"), "END"), [""; 0]);
        ask(b, &format!("set {key} 0 0 3\r\nnew\r\n"), "STORED");
        assert_eq!(ask(a, &format!("get {key}\r\n"), "END")[1], "new");
    }

    // A map that is refused changes nothing.
    map.write(3, &[("0-16383", "a")]);
    let (status, refused) = reload(a);
    assert!(status != 0 && refused.contains("version: is 3; it must be above 3"), "{refused}");
    map.write(4, &[("0-16382", "a")]);
    let (status, refused) = reload(a);
    assert!(status != 0 && refused.contains("slot 16383 has no owner"), "{refused}");
    assert_eq!(a.json("/ring.json")["map_version"], 3);
    assert_eq!(ask(a, &format!("get {key}\r\n"), "END")[1], "new");
}
