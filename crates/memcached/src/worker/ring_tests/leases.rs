//! Requests at nodes whose leases lapse.

use super::Bench;
use super::nodes::{Node, pair, read_all, settings};
use crate::connections::Command;
use crate::ring::RingLease;
use crate::settings::RingSettings;
use cached_ring::{Map, Node as MapNode};
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

/// Returns a map in a registry, of `b`, which owns all slots, and `a`, whose warden `b` is.
fn map() -> Arc<Map> {
    let node = |name: &str, port: u16| {
        let [ring, address] = [port, port + 1].map(|port| format!("127.0.0.1:{port}"));
        MapNode { lease_ms: 60_000, ..MapNode::new(name, ring, address) }
    };
    let map = Map::first("main", node("b", 3)).and_then(|map| map.join(node("a", 1)));
    Arc::new(map.and_then(|map| map.set_warden("a", Some("b"))).expect("a map"))
}

/// Returns both nodes, and a client of `a`. Neither has a lease.
fn bench() -> Bench {
    let [mut entry, owner] = ["a", "b"].map(|name| {
        let mut settings = settings(name, map());
        let ring = settings.ring.take().expect("a ring");
        settings.ring = Some(Arc::new(RingSettings { has_leases: true, ..RingSettings::clone(&ring) }));
        Node::with(settings)
    });
    let client = entry.connect();
    let mut bench = Bench { entry, owner, client };
    let (near, far) = pair();
    bench.entry.dial("b", near);
    bench.owner.accept("a", far);
    bench
}

impl Bench {
    /// Lets waiting requests be tried again, and answers to pings arrive.
    fn ping(&mut self) {
        for _ in 0..3 {
            self.entry.worker.run_lane_command(Command::Ping);
            self.owner.worker.run_lane_command(Command::Ping);
            (0..4).for_each(|_| self.turn());
        }
    }
}

/// Requests of clients and of other nodes, and flushes, wait until the owner has its lease.
#[test]
fn a_node_executes_nothing_for_its_slots_without_its_lease() {
    let mut bench = bench();
    let mut beside = bench.owner.connect();
    let mut reply = Vec::new();
    for is_first in [true, false] {
        bench.client.write_all(b"set k 0 0 1\r\n1\r\nget k\r\n").unwrap();
        beside.write_all(b"set own 0 0 1\r\n1\r\n").unwrap();
        bench.ping();
        read_all(&mut bench.client, &mut reply);
        read_all(&mut beside, &mut reply);
        assert_eq!(reply, b"");
        assert!(!bench.owner.ring().may_flush(3));
        assert_eq!((bench.owner.has(b"k"), bench.owner.has(b"own")), (!is_first, !is_first));
        bench.owner.ring().lease.registered(RingLease::now());
        assert!(bench.owner.ring().may_flush(3));
        bench.ping();
        bench.expect(b"", b"STORED\r\nVALUE k 0 1\r\n1\r\nEND\r\n");
        read_all(&mut beside, &mut reply);
        assert_eq!(std::mem::take(&mut reply), b"STORED\r\n");
        bench.owner.ring().lease.lost();
    }
}

/// A value of which a part has come when the lease lapses is not stored.
#[test]
fn a_value_is_not_stored_that_is_complete_after_the_lease() {
    let mut bench = bench();
    let mut beside = bench.owner.connect();
    bench.owner.ring().lease.registered(RingLease::now());
    let value = vec![b'v'; 200_000];
    for client in [&mut beside, &mut bench.client] {
        client.write_all(b"set large 0 0 200000\r\n").unwrap();
        client.write_all(&value[..70_000]).unwrap();
    }
    (0..8).for_each(|_| bench.turn());
    bench.owner.ring().lease.lost();
    for client in [&mut beside, &mut bench.client] {
        client.write_all(&value[70_000..]).unwrap();
        client.write_all(b"\r\n").unwrap();
    }
    bench.ping();
    let mut reply = Vec::new();
    read_all(&mut beside, &mut reply);
    read_all(&mut bench.client, &mut reply);
    assert!(reply.is_empty() && !bench.owner.has(b"large"));
    bench.owner.ring().lease.registered(RingLease::now());
    bench.ping();
    read_all(&mut beside, &mut reply);
    assert_eq!(reply, b"STORED\r\n");
    bench.expect(b"", b"STORED\r\n");
}

/// The answers of its warden hold a node that the registry no longer renews; others do not.
#[test]
fn a_warden_promises_to_its_wards_while_it_has_its_own_lease() {
    let mut bench = bench();
    bench.ping();
    bench.entry.ring().lease.registered(RingLease::now());
    bench.entry.ring().lease.lost();
    bench.owner.ring().lease.read(&map(), &|_| true);
    bench.ping();
    assert!(!bench.entry.ring().is_valid(), "the warden has no lease");
    bench.owner.ring().lease.registered(RingLease::now());
    bench.entry.ring().lease.note_stall(Duration::from_secs(20));
    bench.ping();
    assert!(!bench.entry.ring().is_valid(), "it asks for no promise while a worker makes no progress");
    bench.entry.ring().lease.note_stall(Duration::from_secs(19));
    bench.ping();
    assert!(bench.entry.ring().is_valid());
    bench.owner.ring().lease.lost();
    bench.ping();
    assert!(!bench.owner.ring().is_valid(), "a ward promises nothing");
}
