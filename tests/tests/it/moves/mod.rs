//! Slots move with their items between running nodes: no client gets an error, no key is missing, and
//! nothing older than acknowledged comes back, whatever becomes of the nodes, their connections and
//! the registry.

mod calm;
mod certificates;
mod cuts;
mod faults;
mod operator;
mod rounds;

use cached_tests::daemon::wait_for;
use cached_tests::moves::Cluster;
use cached_tests::moves::clients::{Load, read_all};
use cached_tests::moves::registers::Registers;
use cached_tests::program::{Flavour, Program};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn is_cached() -> bool {
    Program::under_test().flavour == Flavour::Cached
}

/// A load of nine reads for a change, and one of as many changes as reads.
const READS: Load = Load { clients: 2, changes: 10, pause: Duration::from_millis(1), seed: 1 };
const CHANGES: Load = Load { changes: 50, seed: 2, ..READS };

/// Runs a load before, while and after `meanwhile` lets slots move; every request must succeed. Then
/// every key must have its last value at every node.
fn under_load(
    cluster: &mut Cluster,
    registers: &Registers,
    load: Load,
    context: &str,
    meanwhile: impl FnOnce(&mut Cluster),
) {
    let before = failures(registers);
    cluster.tell(registers);
    load.run(registers, || {
        registers.more(50, context);
        meanwhile(cluster);
        cluster.settle(context);
        registers.more(50, context);
    });
    registers.assert_right(context);
    read_all(registers, context);
    assert_eq!(failures(registers), before, "{context}");
}

/// Returns the numbers of keys that were lost, and of requests that have failed.
fn failures(registers: &Registers) -> [u64; 2] {
    [&registers.counts.lost, &registers.counts.failed].map(|count| count.load(Ordering::SeqCst))
}

/// Returns the part of a node in the document that the first one reports, once that one knows the node.
fn slots_of(cluster: &Cluster, node: &str) -> u64 {
    wait_for("a node in the map", || {
        let report = cluster.report(0);
        let of = report["nodes"].as_array()?.iter().find(|of| of["node"] == node)?;
        of["slots"].as_u64()
    })
}
