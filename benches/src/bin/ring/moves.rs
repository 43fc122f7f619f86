//! Half of all slots move from one node to another with their items: bytes of keys and values for each
//! second of CPU time of both nodes.
//!
//! The measurement ends when the earlier owner has removed what it gave away.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use cached_benches::keyspace::{KeySpace, ValueBytes};
use cached_benches::load::{self, LoadSpec};
use cached_benches::process::CpuClock;
use cached_benches::protocol::Protocol;
use cached_benches::scenario::KEY_BYTES;
use cached_benches::server::Server;

use crate::subjects::{Programs, give_all_slots, until};

/// Half of the slots.
const SLOTS_MOVED: u64 = 8192;

/// The items that one node has before the move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items {
    pub(crate) name: &'static str,
    pub(crate) count: u64,
    pub(crate) value_bytes: usize,
}

/// The sizes that are measured, of about 60 and 400 MB.
pub(crate) const ITEMS: [Items; 2] = [
    Items { name: "values of 100 B", count: 500_000, value_bytes: 100 },
    Items { name: "values of 4 KiB", count: 100_000, value_bytes: 4 << 10 },
];

/// A move that has been made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    pub(crate) bytes_per_cpu_s: f64,
    pub(crate) seconds: f64,
}

impl Items {
    /// Stores all items at a node.
    fn store(&self, server: &Server, protocol: Protocol, client_cpu: usize) -> Result<()> {
        let keys = KeySpace::new(0, self.count, KEY_BYTES, ValueBytes::fixed(self.value_bytes), 0)?;
        let spec = LoadSpec { protocol, cpus: vec![client_cpu], ..LoadSpec::new(server.target(), keys) };
        let stored = load::store_all(&spec).with_context(|| format!("storing at {}", server.name()))?;
        ensure!(stored.refused == 0, "{} refused {} items", server.name(), stored.refused);
        Ok(())
    }

    fn moved(&self, items: u64, cpu_ns: u64, start: Instant) -> Moved {
        let bytes = items * (KEY_BYTES + self.value_bytes) as u64;
        Moved {
            bytes_per_cpu_s: bytes as f64 * 1e9 / cpu_ns.max(1) as f64,
            seconds: start.elapsed().as_secs_f64(),
        }
    }
}

/// Starts a node of a ring, and another one that is given half of the slots.
pub(crate) fn ring(programs: &Programs, items: &Items, client_cpu: usize) -> Result<Moved> {
    let directory = tempfile::tempdir()?;
    let source = programs.ring_node(0, &directory)?;
    let mut at_source = source.client()?;
    until("the first node owns all slots", || {
        Ok(at_source.stats_of("ring")?.get("own_slots").is_some_and(|slots| slots == "16384"))
    })?;
    items.store(&source, Protocol::Text, client_cpu)?;
    let clock = CpuClock::of(source.pid())?;
    let (before_ns, start) = (clock.now_ns()?, Instant::now());
    // The target's CPU time counts from its start.
    let target = programs.ring_node(1, &directory)?;
    let mut at_target = target.client()?;
    let mut arrived = 0;
    until("half of the items are at the second node", || {
        let slots = at_target.stats_of("ring")?.get("own_slots").and_then(|slots| slots.parse().ok());
        arrived = at_target.stat("curr_items")?;
        let is_moved = slots == Some(SLOTS_MOVED) && arrived + at_source.stat("curr_items")? == items.count;
        Ok(is_moved)
    })?;
    let cpu_ns = clock.now_ns()? - before_ns + CpuClock::of(target.pid())?.now_ns()?;
    Ok(items.moved(arrived, cpu_ns, start))
}

/// Starts two Valkeys, and moves half of the slots of one to the other.
pub(crate) fn valkey(programs: &Programs, items: &Items, client_cpu: usize) -> Result<Moved> {
    let directory = tempfile::tempdir()?;
    let source = programs.valkey_node("a", &directory)?;
    give_all_slots(&source)?;
    items.store(&source, Protocol::Resp, client_cpu)?;
    let target = programs.valkey_node("b", &directory)?;
    let (mut at_source, mut at_target) = (source.client()?, target.client()?);
    let name = at_target.bulk("CLUSTER MYID")?;
    let bus = at_target.bulk("CLUSTER NODES")?;
    let bus = bus.split('@').nth(1).and_then(|rest| rest.split([' ', ',']).next()).context("no bus port")?;
    let address = target.address();
    let reply = at_source.ask(&format!("CLUSTER MEET {} {} {bus}", address.ip(), address.port()))?;
    ensure!(reply == "+OK", "CLUSTER MEET answers `{reply}`");
    until("both Valkeys are in one cluster", || {
        let is_known = |nodes: String| nodes.lines().count() == 2 && !nodes.contains("handshake");
        let is_up = at_target.bulk("CLUSTER INFO")?.contains("cluster_state:ok");
        Ok(is_up && is_known(at_source.bulk("CLUSTER NODES")?) && is_known(at_target.bulk("CLUSTER NODES")?))
    })?;
    let pids = [source.pid(), target.pid()];
    let (before_ns, start) = (cpu_with_children_ns(&pids)?, Instant::now());
    let last = SLOTS_MOVED - 1;
    let reply = at_source.ask(&format!("CLUSTER MIGRATESLOTS SLOTSRANGE 0 {last} NODE {name}"))?;
    ensure!(reply == "+OK", "CLUSTER MIGRATESLOTS answers `{reply}`");
    let mut arrived = 0;
    until("half of the items are at the second Valkey", || {
        arrived = at_target.number("DBSIZE")?;
        let owned = at_target.bulk("CLUSTER NODES")?;
        let is_owner =
            owned.lines().any(|line| line.contains("myself") && line.ends_with(&format!("0-{last}")));
        Ok(is_owner && arrived + at_source.number("DBSIZE")? == items.count)
    })?;
    let cpu_ns = cpu_with_children_ns(&pids)? - before_ns;
    Ok(items.moved(arrived, cpu_ns, start))
}

/// Returns the CPU time of processes and of the children that have ended: Valkey sends a snapshot from
/// a child.
fn cpu_with_children_ns(pids: &[u32]) -> Result<u64> {
    let clocks = pids.iter().map(|&pid| CpuClock::of(pid)).collect::<Result<Vec<_>>>()?;
    let children = pids.iter().map(|&pid| CpuClock::ended_children_ns(pid)).sum::<Result<u64>>()?;
    Ok(CpuClock::sum_ns(&clocks)?.unwrap_or_default() + children)
}
