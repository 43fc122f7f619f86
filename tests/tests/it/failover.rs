//! Nodes whose leases end: others replace them, and they never answer with what they had.

use cached_tests::conn::Conn;
use cached_tests::daemon::wait_for;
use cached_tests::moves::clients::{Load, read_all, store_all};
use cached_tests::moves::registers::Registers;
use cached_tests::moves::{By, Cluster, Options};
use cached_tests::program::{Flavour, Program};
use cached_tests::ring::SLOTS;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A lease, and time limits below it, for nodes that stand still. No other node may stand still for so
/// long, however busy the host is.
const SHORT: &str = "lease_secs = 6\npeer_timeout_ms = 3000\nconnect_timeout_ms = 3000";
/// A lease for nodes that end, which others notice at once: a node that is slow is not away. If all nodes stand
/// still for two thirds of it while the registry is away, none of them can promise anything any more.
const PATIENT: &str = "lease_secs = 10\npeer_timeout_ms = 60000\nconnect_timeout_ms = 60000";

const LOAD: Load = Load { clients: 2, changes: 20, pause: Duration::from_millis(1), seed: 7 };

/// The keys of the test of what a node answers that stood still.
const KEYS: usize = 200;

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// Nodes with faults on demand.
fn with(ring: &'static str) -> Options {
    Options { args: "-m 128 -t 2 --debug-clock", ring, ..Options::default() }
}

fn start(names: &[&str], by: By, options: Options) -> (Cluster, Registers) {
    let cluster = Cluster::start(names, by, options);
    // A change with a larger value fails while a new process takes over.
    let registers = Registers::new(300, names.len(), 65_001);
    cluster.wait_until_connected();
    cluster.settle("the start");
    cluster.tell(&registers);
    store_all(&registers, "the start");
    (cluster, registers)
}

/// Returns the number of slots of a node in the map of another one.
fn slots_of(cluster: &Cluster, at: usize, node: &str) -> u64 {
    let report = cluster.report(at);
    let nodes = report["nodes"].as_array().expect("nodes");
    let of = nodes.iter().find(|of| of["node"] == node);
    of.and_then(|of| of["slots"].as_u64()).unwrap_or_else(|| panic!("no node {node}: {report}"))
}

/// Waits until a node owns nothing, and the nodes `others` execute the requests for all slots.
pub(super) fn wait_until_replaced(cluster: &Cluster, node: &str, others: &[usize]) {
    wait_for("a node's replacement", || {
        let own = |at: &usize| cluster.report(*at)["own_slots"].as_u64().unwrap_or(0);
        let all = others.iter().map(own).sum::<u64>();
        (slots_of(cluster, others[0], node) == 0 && all == u64::from(SLOTS)).then_some(())
    });
}

fn request(value: &str) -> String {
    (0..KEYS).map(|number| format!("set seen-{number} 0 0 {}\r\n{value}\r\n", value.len())).collect()
}

fn set_all(conn: &mut Conn, value: &str) {
    conn.send(request(value).as_bytes());
    (0..KEYS).for_each(|_| conn.expect(b"STORED\r\n", value));
}

fn expect_all(conn: &mut Conn, value: &str) {
    for number in 0..KEYS {
        let reply = format!("VALUE seen-{number} 0 {}\r\n{value}\r\nEND\r\n", value.len());
        conn.expect(reply.as_bytes(), value);
    }
}

/// A node that stands still is replaced, as is one with a worker that hangs. What its clients have sent in
/// the meantime is answered by the new owners, and it is given slots again. So is one that is killed. A node
/// that runs is not replaced.
#[test]
fn a_node_that_stands_still_or_is_killed_is_replaced() {
    if !is_cached() {
        return;
    }
    let (mut cluster, registers) = start(&["a", "b", "c"], By::Disk, with(SHORT));
    let (code, said) = cluster.command(0, &["fail", "b", "--yes"]);
    assert!(code != 0 && said.contains("node b holds its lease"), "{code}: {said}");

    let [mut at_a, mut at_b] = [0, 1].map(|node| cluster.nodes[node].process.connect());
    set_all(&mut at_b, "old");
    cluster.nodes[1].process.signal(libc::SIGSTOP);
    wait_until_replaced(&cluster, "b", &[0, 2]);
    set_all(&mut at_a, "new");
    let gets: String = (0..KEYS).map(|number| format!("get seen-{number}\r\n")).collect();
    at_b.send(gets.as_bytes());
    cluster.nodes[1].process.signal(libc::SIGCONT);
    expect_all(&mut at_b, "new");
    cluster.settle("b has slots again");
    let log = cluster.nodes[1].process.log();
    assert!(log.contains("this node was struck off while its lease had ended"), "{log}");

    // Only builds with faults can let a worker hang.
    if cluster.say(1, "debugtime stall-off") == "OK" {
        // Successive connections belong to different workers, of which the first one hangs.
        let [mut stuck, mut beside, _, mut waiting] = [(); 4].map(|()| cluster.nodes[1].process.connect());
        set_all(&mut at_a, "old");
        stuck.send(b"debugtime stall-on\r\n");
        wait_until_replaced(&cluster, "b", &[0, 2]);
        set_all(&mut at_a, "new");
        waiting.send(gets.as_bytes());
        let log = cluster.nodes[1].process.log();
        assert!(log.contains("a worker makes no progress: this node does not renew its lease"), "{log}");
        beside.ask(b"debugtime stall-off\r\n", b"OK\r\n");
        stuck.expect(b"OK\r\n", "the worker goes on");
        expect_all(&mut waiting, "new");
        cluster.settle("b has slots again after a worker has hung");
    }

    registers.be_strict(false);
    cluster.kill(2);
    cluster.tell(&registers);
    LOAD.run(&registers, || {
        wait_until_replaced(&cluster, "c", &[0, 1]);
        registers.more(50, "c is replaced");
    });
    cluster.restart(2);
    cluster.tell(&registers);
    cluster.settle("c has slots again");
    registers.be_strict(true);
    store_all(&registers, "the end");
    read_all(&registers, "the end");
    cluster.end();
}

/// While the registry is away, nodes that reach each other serve on, for longer than a lease. A node that
/// is lost then keeps its slots, and is replaced when the registry is back.
#[test]
fn an_outage_of_the_registry_alone_stops_nobody() {
    if !is_cached() {
        return;
    }
    let Some(by) = By::etcd("an_outage_of_the_registry_alone_stops_nobody") else { return };
    let (mut cluster, registers) = start(&["a", "b", "c"], by, with(PATIENT));
    let failures = || [&registers.counts.lost, &registers.counts.failed].map(|of| of.load(Ordering::SeqCst));
    let before = failures();
    let By::Etcd(_, relay) = &cluster.by else { panic!("no etcd") };
    LOAD.run(&registers, || {
        relay.cut(true, true);
        for node in &cluster.nodes {
            wait_for("promises alone", || {
                node.process.log().contains("another node's promises hold it").then_some(())
            });
        }
        registers.more(100, "the registry is away");
    });
    registers.assert_right("the registry is away");
    read_all(&registers, "the registry is away");
    assert_eq!(failures(), before, "{}", cluster.logs());

    registers.be_strict(false);
    cluster.kill(2);
    cluster.tell(&registers);
    LOAD.run(&registers, || {
        assert_ne!(slots_of(&cluster, 0, "c"), 0);
        // Without c, its warden, b lapses within a lease.
        let By::Etcd(_, relay) = &cluster.by else { panic!("no etcd") };
        relay.repair();
        wait_until_replaced(&cluster, "c", &[0, 1]);
        registers.more(50, "the registry is back");
    });
    registers.assert_right("the registry is back");
    cluster.end();
}

/// A node is upgraded while clients use it, and goes on with its lease.
#[test]
fn an_upgrade_goes_on_with_the_lease() {
    if !is_cached() {
        return;
    }
    let (mut cluster, registers) =
        start(&["a", "b"], By::Disk, Options { has_memory: true, ..with(PATIENT) });
    LOAD.run(&registers, || {
        for node in 0..2 {
            registers.more(20, "before the upgrade");
            cluster.nodes[node].process.upgrade();
            cluster.wait_until_connected();
            registers.more(20, "after the upgrade");
        }
    });
    registers.assert_right("upgrades");
    read_all(&registers, "upgrades");
    assert_eq!(registers.counts.failed.load(Ordering::SeqCst), 0, "{:?}", registers.errors());
    // It is a warden still, and is replaced by one.
    registers.be_strict(false);
    cluster.kill(0);
    wait_until_replaced(&cluster, "a", &[1]);
    cluster.end();
}
