//! Reports about the ring of nodes: `stats ring`, metrics, the part of the status, `/ring.json`, and
//! the notes of the readiness probe.

use super::Sink;
use crate::ring::{Direction, LeaseReport, MapInForce, MoveReport, PeerReport, Ring, RingReport};
use crate::shared::Shared;
use cached_admin::status::ring::{RingFigures, RingMove, RingNode, RingPart, RingRun, RingWish};
use cached_metrics::{Families, Label, Value};
use cached_ring::{Map, Move, Node, Promise, Report, Slot, Wish, planned};

/// Returns what this node reports about itself, to other nodes as well. Workers make a report for
/// each PING, between requests of clients, so it takes no pass over the regions of the store.
pub(crate) fn own_report(shared: &Shared) -> Report {
    let ((items, item_bytes), totals) = (shared.kv.items_and_bytes(), shared.sum());
    let map = shared.ring.as_ref().map(Ring::map_in_force);
    Report {
        items,
        item_bytes,
        memory_bytes: shared.kv.limits().arena_bytes as u64,
        gets: totals.gets,
        hits: totals.get_hits,
        uptime_ms: u64::from(shared.clock.uptime_secs()) * 1000,
        map_version: map.map_or(0, |map| map.version),
        map_digest: map.map_or(0, |map| map.digest),
        promise: Promise::default(),
    }
}

/// Writes `stats ring`.
pub(super) fn write(ring: &Ring, sink: &mut Sink<'_>) {
    let report = ring.report();
    sink.put("ring", &report.ring);
    sink.put("node", &report.node);
    sink.put("map_version", report.map.version);
    sink.put("map_digest", hex(report.map));
    sink.put("own_slots", report.own_slots);
    sink.put("purging_slots", report.purging_slots);
    sink.put("purging", u8::from(report.is_purging));
    if let Some(LeaseReport { left, lapses, strikes }) = report.lease {
        sink.put("lapsed", u8::from(left.is_zero()));
        sink.put("lease_left_ms", left.as_millis());
        sink.put("lapses", lapses);
        sink.put("strikes", strikes);
    }
    let MoveReport { begun, committed, failed, items, bytes, left_out, sealed, .. } = report.moves;
    sink.put("moves_begun", begun);
    sink.put("moves_committed", committed);
    sink.put("moves_failed", failed);
    for direction in [Direction::In, Direction::Out] {
        sink.put(&format!("moved_items_{}", name(direction)), items[direction as usize]);
        sink.put(&format!("moved_bytes_{}", name(direction)), bytes[direction as usize]);
    }
    sink.put("moved_items_left_out", left_out);
    sink.put("move_sealed_us", sealed.as_micros());
    for peer in &report.peers {
        let mut put = |name: &str, value: &dyn std::fmt::Display| {
            sink.put(&format!("{}:{name}", peer.name), value);
        };
        put("state", &state(peer));
        put("slots", &peer.slots);
        put("lanes", &peer.lanes);
        put("in_flight", &peer.in_flight);
        put("done", &peer.done);
        put("not_mine", &peer.not_mine);
        put("lost", &peer.lost);
        put("away", &peer.away);
        put("resent", &peer.resent);
        put("sent_bytes", &sent(peer));
        put("received_bytes", &received(peer));
        put("inbound_lanes", &peer.inbound_lanes);
        put("inbound_requests", &peer.inbound_requests);
        if let Some(map) = peer.map {
            put("map_version", &map.version);
            put("has_same_map", &u8::from(map == report.map));
        }
        if let Some(round_trip) = peer.round_trip {
            put("round_trip_us", &round_trip.as_micros());
        }
        if let Some(clock_ms) = peer.clock_ms {
            put("clock_ms", &clock_ms);
        }
    }
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
    }
}

fn hex(map: MapInForce) -> String {
    format!("{:016x}", map.digest)
}

fn state(peer: &PeerReport) -> &'static str {
    match peer.lanes {
        0 => "away",
        lanes if lanes < peer.lanes_max => "partly",
        _ => "up",
    }
}

/// Returns the bytes sent to a node on connections of both directions.
fn sent(peer: &PeerReport) -> u64 {
    peer.sent_bytes + peer.inbound_sent_bytes
}

/// Returns the bytes received from a node on connections of both directions.
fn received(peer: &PeerReport) -> u64 {
    peer.received_bytes + peer.inbound_received_bytes
}

pub(super) fn collect(ring: &Ring, into: &mut Families) {
    let report = ring.report();
    let help = "The version of the map in force at this node. Maps are equal if their digests are.";
    let labels = vec![("ring", report.ring.clone()).into(), ("digest", hex(report.map)).into()];
    into.sample("cached_ring_map_version", help, labels, Value::Gauge(report.map.version as f64));
    let help = "Slots whose requests this node executes; all nodes of a ring together have 16384.";
    into.gauge("cached_ring_slots", help, report.own_slots as u64);
    if let Some(LeaseReport { left, lapses, strikes }) = report.lease {
        let help = "The time that is left of this node's lease: at 0, it answers for none of its slots.";
        into.measure("cached_ring_lease_left_seconds", help, &left);
        let help = "How often this node's lease has lapsed.";
        into.counter("cached_ring_lapses_total", help, lapses);
        let help = "Nodes that this one has struck off because their leases had ended.";
        into.counter("cached_ring_strikes_total", help, strikes);
    }
    let MoveReport { begun, committed, failed, items, bytes, left_out, sealed, .. } = report.moves;
    for (result, count) in [("begun", begun), ("committed", committed), ("failed", failed)] {
        let help = "Moves of slots to this node: begun, committed (the slots are this node's, with their items), or \
                    failed (given up, and tried again).";
        into.sample("cached_ring_moves_total", help, vec![("result", result).into()], Value::Counter(count));
    }
    for direction in [Direction::In, Direction::Out] {
        let labels = || vec![("direction", name(direction)).into()];
        let help = "Items and deletions that moves have brought to this node (in) or taken from it (out).";
        let value = Value::Counter(items[direction as usize]);
        into.sample("cached_ring_moved_items_total", help, labels(), value);
        let help = "Bytes of these items.";
        let value = Value::Counter(bytes[direction as usize]);
        into.sample("cached_ring_moved_bytes_total", help, labels(), value);
    }
    let help = "Items that moves have brought to this node and that it has not stored: its memory was full, and what it \
                would have evicted was used later.";
    into.counter("cached_ring_moved_items_left_out_total", help, left_out);
    let help = "The time for which nobody executed requests for the slots of the last move to this node.";
    into.measure("cached_ring_move_sealed_seconds", help, &sealed);
    for peer in &report.peers {
        let of_peer = || vec![Label::from(("peer", peer.name.clone()))];
        let with = |name: &'static str, value: &'static str| {
            let mut labels = of_peer();
            labels.push((name, value).into());
            labels
        };
        let help = "Connections to another node: one for each worker; 0 if the node is away.";
        into.sample("cached_ring_lanes", help, of_peer(), Value::Gauge(peer.lanes as f64));
        for (result, count) in [
            ("done", peer.done),
            ("not_mine", peer.not_mine),
            ("lost", peer.lost),
            ("away", peer.away),
            ("resent", peer.resent),
        ] {
            let help = "Requests for another node's keys: answered by it (done), refused because the maps differ \
                        (not_mine), without an answer (lost), without a connection (away), sent again after an orderly \
                        end (resent).";
            let value = Value::Counter(count);
            into.sample("cached_ring_requests_total", help, with("result", result), value);
        }
        for (direction, bytes) in [("sent", sent(peer)), ("received", received(peer))] {
            let help = "Bytes on connections with another node.";
            let value = Value::Counter(bytes);
            into.sample("cached_ring_bytes_total", help, with("direction", direction), value);
        }
        let help = "Requests of another node that this node has executed.";
        let value = Value::Counter(peer.inbound_requests);
        into.sample("cached_ring_inbound_requests_total", help, of_peer(), value);
        if let Some(round_trip) = peer.round_trip {
            let help = "The time of the last ping of another node.";
            let value = Value::Gauge(round_trip.as_secs_f64());
            into.sample("cached_ring_round_trip_seconds", help, of_peer(), value);
        }
        if let Some(clock_ms) = peer.clock_ms {
            let help =
                "The time by which another node's clock was ahead when the last connection was opened.";
            let value = Value::Gauge(clock_ms as f64 / 1000.0);
            into.sample("cached_ring_clock_seconds", help, of_peer(), value);
        }
    }
}

/// Returns the part of the status; `with_runs` is for `/ring.json`.
pub(super) fn part(shared: &Shared, ring: &Ring, with_runs: bool) -> RingPart {
    let (report, map) = (ring.report(), ring.map());
    let counts = map.counts();
    let nodes = map.nodes().iter().zip(counts).map(|(node, slots)| node_of(shared, &report, node, slots));
    let mut nodes: Vec<RingNode> = nodes.collect();
    // A map file says who owns what, whatever the weights are.
    let follows_weights = map.nodes().iter().any(|node| node.term != 0 && node.weight > 0);
    if with_runs
        && follows_weights
        && let Ok(planned) = planned(map.ring(), map.version(), map.nodes().to_vec(), Some(&map))
    {
        let counts = planned.counts().into_iter();
        nodes.iter_mut().zip(counts).for_each(|(node, slots)| node.planned_slots = Some(slots as u64));
    }
    RingPart {
        nodes,
        lease_left_ms: report.lease.map(|lease| lease.left.as_millis() as u64),
        paused: map.is_paused(),
        moves: map.moves().iter().map(|one| move_of(&map, one)).collect(),
        wishes: map.wishes().iter().map(|wish| wish_of(&map, wish)).collect(),
        runs: if with_runs { runs(&map) } else { Vec::new() },
        map_version: report.map.version,
        map_digest: hex(report.map),
        moved_slots: report.moves.slots,
        moving_secs: report.moves.took.as_secs_f64(),
        own_slots: report.own_slots as u64,
        purging_slots: report.purging_slots as u64,
        ring: report.ring,
        node: report.node,
    }
}

fn move_of(map: &Map, of: &Move) -> RingMove {
    let name = |node| map.node(node).name.clone();
    let Move { id, from, to, slots } = of;
    let slot_count = slots.len() as u64;
    RingMove { id: *id, from: name(*from), to: name(*to), slots: slots.to_string(), slot_count }
}

fn wish_of(map: &Map, Wish { to, slots }: &Wish) -> RingWish {
    let missing_slots = slots.iter().filter(|slot| map.owner(*slot) != *to).count() as u64;
    let (node, slot_count) = (map.node(*to).name.clone(), slots.len() as u64);
    RingWish { node, slots: slots.to_string(), slot_count, missing_slots }
}

/// Returns runs of slots that have one owner, move to one node or do not move, and are wished for one
/// node or none.
fn runs(map: &Map) -> Vec<RingRun> {
    let mut runs: Vec<RingRun> = Vec::new();
    for slot in Slot::all() {
        let name = |node| map.node(node).name.as_str();
        let (owner, moves_to) = (name(map.owner(slot)), map.move_of(slot).map(|one| name(one.to)));
        let wish = map.wishes().iter().find(|wish| wish.slots.contains(slot));
        let wished_for = wish.map(|wish| name(wish.to));
        match runs.last_mut() {
            Some(run)
                if run.owner == owner
                    && run.moves_to.as_deref() == moves_to
                    && run.wished_for.as_deref() == wished_for =>
            {
                run.last = slot.number();
            }
            _ => runs.push(RingRun {
                first: slot.number(),
                last: slot.number(),
                owner: owner.to_owned(),
                moves_to: moves_to.map(str::to_owned),
                wished_for: wished_for.map(str::to_owned),
            }),
        }
    }
    runs
}

fn node_of(shared: &Shared, report: &RingReport, node: &Node, slots: usize) -> RingNode {
    let Node { name, ring, address, weight, warden, .. } = node.clone();
    let (ring_address, slots, warden) = (ring, slots as u64, warden.map(|of| of.warden));
    let common = RingNode { node: name, ring_address, address, weight, slots, warden, ..RingNode::default() };
    if node.name == report.node {
        let (version, figures) = (Some(report.map.version), figures(&own_report(shared)));
        let same = Some(true);
        return RingNode {
            state: "here",
            map_version: version,
            has_same_map: same,
            figures: Some(figures),
            ..common
        };
    }
    // A map that was put in force since the report was made can have another node.
    let Some(peer) = report.peers.iter().find(|peer| peer.name == node.name) else {
        return RingNode { state: "away", ..common };
    };
    RingNode {
        state: state(peer),
        map_version: peer.map.map(|map| map.version),
        has_same_map: peer.map.map(|map| map == report.map),
        lanes: peer.lanes as u64,
        lanes_max: peer.lanes_max as u64,
        inbound_lanes: peer.inbound_lanes,
        in_flight: peer.in_flight,
        done: peer.done,
        not_mine: peer.not_mine,
        lost: peer.lost,
        away: peer.away,
        resent: peer.resent,
        inbound_requests: peer.inbound_requests,
        sent_bytes: sent(peer),
        received_bytes: received(peer),
        round_trip_us: peer.round_trip.map(|time| time.as_nanos() as f64 / 1000.0),
        clock_ms: peer.clock_ms,
        figures: peer.report.as_ref().map(figures),
        ..common
    }
}

fn figures(report: &Report) -> RingFigures {
    let Report { items, item_bytes, memory_bytes, gets, hits, uptime_ms, .. } = *report;
    RingFigures { items, item_bytes, memory_bytes, gets, hits, uptime_secs: uptime_ms / 1000 }
}

/// Returns the reason why this node is not ready: it has not yet tried to connect to some node.
pub(super) fn not_ready(ring: &Ring) -> Option<String> {
    let untried = ring.report().peers.into_iter().find(|peer| !peer.is_tried)?;
    Some(format!("ring: connecting to node {}", untried.name))
}

/// Returns a line about nodes that are away or have another map, for readers of the readiness probe.
/// Neither makes this node unready: it answers for all other nodes, and clients that went to other
/// nodes instead would find the same.
pub(super) fn note(ring: &Ring) -> Option<String> {
    /// The maximum number of nodes in the line.
    const SHOWN_MAX: usize = 8;
    let report = ring.report();
    let of_peer = |peer: &PeerReport| match peer.map.filter(|map| *map != report.map) {
        _ if peer.lanes == 0 => Some(format!("node {} is away", peer.name)),
        _ if peer.lanes < peer.lanes_max => {
            Some(format!("{} of {} workers are connected to node {}", peer.lanes, peer.lanes_max, peer.name))
        }
        Some(map) if map.version == report.map.version => {
            Some(format!("node {} has another map of version {}", peer.name, map.version))
        }
        Some(map) => Some(format!("node {} has map {}, here {}", peer.name, map.version, report.map.version)),
        None => None,
    };
    let mut lines: Vec<String> = report.peers.iter().filter_map(of_peer).collect();
    let more = lines.len().saturating_sub(SHOWN_MAX);
    lines.truncate(SHOWN_MAX);
    if more > 0 {
        lines.push(format!("{more} more nodes are away or have another map"));
    }
    if report.purging_slots > 0 {
        lines.push(format!("{} slots that this node was given are not ready", report.purging_slots));
    }
    (!lines.is_empty()).then(|| format!("ring: {}", lines.join("; ")))
}
