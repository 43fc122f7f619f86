//! Nodes join, are drained and are replaced under load, without a fault.

use super::{CHANGES, READS, is_cached, slots_of, under_load};
use cached_tests::moves::clients::store_all;
use cached_tests::moves::registers::Registers;
use cached_tests::moves::{By, Cluster, Options};
use cached_tests::ring::SLOTS;
use cached_tests::upgrade::load;

/// The number of keys, and the size of the largest values in bytes.
const KEYS: usize = 1_500;
const LARGE: usize = 200_000;

/// A second node joins one that has items, a third one joins, and both are drained again.
#[test]
fn nodes_join_and_are_drained() {
    if !is_cached() {
        return;
    }
    let mut cluster = Cluster::start(&["a"], By::Disk, Options::default());
    let registers = Registers::new(KEYS, 3, LARGE);
    cluster.tell(&registers);
    store_all(&registers, "the start");
    under_load(&mut cluster, &registers, READS, "b joins", |cluster| {
        cluster.add("b", "");
        cluster.wait_until_connected();
        cluster.tell(&registers);
    });
    assert_eq!((slots_of(&cluster, "a"), slots_of(&cluster, "b")), (8192, 8192));
    under_load(&mut cluster, &registers, CHANGES, "c joins", |cluster| {
        cluster.add("c", "");
        cluster.wait_until_connected();
        cluster.tell(&registers);
    });
    under_load(&mut cluster, &registers, CHANGES, "a is drained", |cluster| {
        // The command ends once the asked node knows that all slots have moved, perhaps before the others do.
        cluster.order(0, &["drain", "a"]);
        assert_eq!(slots_of(cluster, "a"), 0);
    });
    under_load(&mut cluster, &registers, READS, "b is drained", |cluster| {
        cluster.order(0, &["drain", "b"]);
    });
    assert_eq!(slots_of(&cluster, "c"), u64::from(SLOTS));
    println!("{:?}", registers.counts);
    cluster.end();
}

/// Clients that know the exact state of each key, among it stale marks, counters and conditions.
#[test]
fn the_state_of_each_key_is_the_same_after_moves() {
    if !is_cached() {
        return;
    }
    let cluster = Cluster::start(&["a", "b"], By::Disk, Options::default());
    cluster.settle("the start");
    cluster.wait_until_connected();
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.process.port).collect();
    let report = load::run_while(&ports, 1..4, 1, false, |changes, _| {
        for (node, weight) in [("a", "0"), ("a", "1"), ("b", "3")] {
            changes.more(300);
            cluster.order(0, &["weight", node, weight]);
            cluster.settle("moves");
        }
        changes.more(300);
    });
    println!("{report}");
    assert!(report.lines.is_empty(), "{report}\n{}", cluster.logs());
    assert_eq!(report.keys, 3 * 120, "{report}");
    cluster.end();
}

/// New processes take over from the source and from the target while slots move.
#[test]
fn source_and_target_are_upgraded_while_slots_move() {
    if !is_cached() {
        return;
    }
    let options = Options { has_memory: true, ..Options::default() };
    let mut cluster = Cluster::start(&["a", "b"], By::Disk, options);
    cluster.settle("the start");
    cluster.wait_until_connected();
    let ports: Vec<u16> = cluster.nodes.iter().map(|node| node.process.port).collect();
    let report = load::run_while(&ports, 1..4, 2, false, |changes, _| {
        for (weight, upgraded) in [("0", 0), ("1", 0), ("0", 1), ("1", 1)] {
            changes.more(200);
            cluster.order(0, &["weight", "a", weight]);
            cluster.nodes[upgraded].process.upgrade();
            cluster.settle("an upgrade");
        }
        changes.more(200);
    });
    println!("{report}");
    assert!(report.lines.is_empty(), "{report}\n{}", cluster.logs());
    assert_eq!(report.keys, 3 * 120, "{report}");

    // A process that has handed over has not signed off. One that ends does, so that the next one could start on
    // any host: it finds that the node has no process.
    let next = "this process is the node's";
    let process = &cluster.nodes[1].process;
    assert!(!process.log().contains(next), "{}", process.log());
    process.signal(libc::SIGTERM);
    assert_eq!(process.wait_exit(), 0, "{}", process.log());
    let is_late = process.log().contains("the registry does not know that this node has ended in order");
    cluster.restart(1);
    assert!(cluster.nodes[1].process.log().contains(next) || is_late, "{}", cluster.logs());
    cluster.end();
}
