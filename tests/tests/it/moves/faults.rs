//! Moves whose connection breaks at chosen bytes, whose nodes are killed or stand still there, that
//! are flushed in between, or during which the registry is away.

use super::{READS, failures, is_cached, slots_of};
use cached_tests::daemon::wait_for;
use cached_tests::moves::clients::{read_all, store_all};
use cached_tests::moves::registers::Registers;
use cached_tests::moves::{By, Cluster, Options};
use cached_tests::relay::{Point, Then};
use cached_tests::ring::{SLOTS, slot_of};
use std::sync::Arc;

/// The number of keys, and the size of the largest values in bytes.
const KEYS: usize = 600;
const LARGE: usize = 200_000;
/// The directions of a copy session, from the view of its source's relay.
const TO_SOURCE: usize = 0;
const TO_TARGET: usize = 1;

/// The lengths of the messages that the target sends after the handshake: COPY, SEAL, COMMITTED.
const COPY: u64 = 13;
const SEAL: u64 = 5;
const COMMITTED: u64 = 13;

/// A step of a move, at which its session is held or broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The session has not begun.
    Handshake,
    /// The source sends items.
    Copying,
    /// The source has sent all items; SEAL is on its way.
    Ready,
    /// The source has sealed the slots; its last messages are on their way.
    Sealed,
    /// The target owns the slots; COMMITTED is on its way.
    Committed,
}

const STEPS: [Step; 4] = [Step::Copying, Step::Ready, Step::Sealed, Step::Committed];

/// Two nodes: `a`, and `b`, whose weight decides to which of them some slots belong.
struct Two {
    cluster: Cluster,
    registers: Arc<Registers>,
    is_at_b: bool,
    /// The bytes of a session in both directions.
    bytes: [u64; 2],
}

impl Two {
    /// Starts both, with items.
    fn start(by: By, options: Options) -> Two {
        let cluster = Cluster::start(&["a", "b"], by, Options { is_relayed: true, ..options });
        let registers = Arc::new(Registers::new(KEYS, 2, LARGE));
        cluster.wait_until_connected();
        cluster.order(0, &["weight", "a", "15"]);
        cluster.settle("the start");
        cluster.tell(&registers);
        store_all(&registers, "the start");
        let mut two = Two { cluster, registers, is_at_b: false, bytes: [0; 2] };
        let sessions = [two.measure(), two.measure()];
        // Some may have more messages: each end says from time to time that it lives.
        two.bytes = [0, 1].map(|direction| sessions[0][direction].min(sessions[1][direction]));
        two
    }

    /// Returns the numbers of the source and of the target of the next move.
    fn ends(&self) -> (usize, usize) {
        if self.is_at_b { (1, 0) } else { (0, 1) }
    }

    /// Begins the next move, of some 900 slots.
    fn begin(&mut self) {
        let (_, target) = self.ends();
        self.begin_by(target);
    }

    /// Begins the next move by a command at a node.
    fn begin_by(&mut self, node: usize) {
        self.cluster.order(node, &["weight", "b", if self.is_at_b { "1" } else { "2" }]);
        self.is_at_b = !self.is_at_b;
    }

    /// Lets something happen to the session of the next move.
    fn at(&self, step: Step, then: Then) -> Arc<Point> {
        let [there, _] = self.bytes;
        let (direction, counted, after) = match step {
            Step::Handshake => (TO_TARGET, TO_TARGET, 10),
            Step::Copying => (TO_TARGET, TO_TARGET, 3_000),
            Step::Ready => (TO_SOURCE, TO_SOURCE, there - COMMITTED - SEAL),
            Step::Sealed => (TO_TARGET, TO_SOURCE, there - COMMITTED),
            Step::Committed => (TO_SOURCE, TO_SOURCE, there - COMMITTED),
        };
        self.at_bytes(direction, counted, after, then)
    }

    /// Lets something happen to a direction of the next move's session, after a number of bytes.
    fn at_bytes(&self, direction: usize, counted: usize, after: u64, then: Then) -> Arc<Point> {
        let (source, _) = self.ends();
        let relay = self.cluster.nodes[source].relay.as_ref().expect("a relay");
        relay.at(direction, counted, after, then)
    }

    /// Waits until the session of the move is at its step. A source that learns from the registry that the
    /// target owns the slots ends the session, perhaps before COMMITTED comes: then the move is over.
    fn reach(&self, step: Step, point: &Point) {
        wait_for("a step of the move", || {
            let is_over = || step == Step::Committed && self.cluster.unsettled().is_none();
            (point.is_reached() || is_over()).then_some(())
        });
    }

    /// Moves the slots without a fault; returns the numbers of bytes in both directions of the session.
    fn measure(&mut self) -> [u64; 2] {
        let (source, _) = self.ends();
        self.begin();
        self.cluster.settle("an undisturbed move");
        let passed = self.cluster.nodes[source].relay.as_ref().expect("a relay").passed();
        let bytes = *passed.last().expect("a session");
        println!("{} bytes to the source, {} to the target", bytes[TO_SOURCE], bytes[TO_TARGET]);
        bytes
    }

    /// Changes keys of slots that do not move, at both nodes.
    fn others_are_served(&self, context: &str) {
        let reports = [0, 1].map(|node| self.cluster.report(node));
        let moving: Vec<std::ops::RangeInclusive<u16>> = reports
            .iter()
            .flat_map(|report| report["moves"][0]["slots"].as_str().unwrap_or_default().split(','))
            .filter_map(|run| {
                let (first, last) = run.split_once('-').unwrap_or((run, run));
                Some(first.parse().ok()?..=last.parse().ok()?)
            })
            .collect();
        let stays = |key: &String| !moving.iter().any(|run| run.contains(&slot_of(key)));
        for node in 0..2 {
            let mut conn = self.cluster.nodes[node].process.connect();
            for key in (0..).map(|number| format!("other-{number}")).filter(stays).take(20) {
                conn.send(format!("set {key} 0 0 1\r\nx\r\n").as_bytes());
                conn.expect(b"STORED\r\n", context);
            }
        }
    }

    /// Runs a load while slots move, as [`super::under_load`] does.
    fn under_load(&mut self, context: &str, meanwhile: impl FnOnce(&mut Two)) {
        let before = failures(&self.registers);
        let registers = Arc::clone(&self.registers);
        READS.run(&registers, || {
            registers.more(50, context);
            meanwhile(self);
            self.cluster.settle(context);
            registers.more(50, context);
        });
        registers.assert_right(context);
        read_all(&registers, context);
        assert_eq!(failures(&registers), before, "{context}");
    }
}

/// The session of a move breaks at each step and at its first bytes, or goes on with foreign bytes: the
/// move is begun anew, and nobody notices.
#[test]
fn a_session_breaks_at_each_step() {
    if !is_cached() {
        return;
    }
    let mut two = Two::start(By::Disk, Options::default());
    let mut cases = vec![(Step::Handshake, Then::End)];
    cases.extend(STEPS.map(|step| (step, Then::End)));
    cases.extend([Step::Copying, Step::Ready, Step::Sealed].map(|step| (step, Then::Garble)));
    for (step, then) in cases {
        let context = format!("{step:?}, {then:?}");
        let point = two.at(step, then);
        two.under_load(&context, |two| {
            two.begin();
            two.reach(step, &point);
        });
    }
    // The first byte that the target sends, and the last one of its first message.
    let handshake = two.bytes[TO_SOURCE] - COMMITTED - SEAL - COPY;
    for after in [0, handshake, handshake + COPY - 1] {
        let point = two.at_bytes(TO_SOURCE, TO_SOURCE, after, Then::End);
        two.under_load(&format!("{after} bytes to the source"), |two| {
            two.begin();
            point.wait();
        });
    }
    two.cluster.end();
}

/// The source or the target is killed at each step, and starts again: nothing older than acknowledged
/// is found, and every key can be changed. With memory files the source is killed at the even steps,
/// without them at the odd ones.
fn kill_at_each_step(has_memory: bool) {
    let options = Options { ring: "peer_timeout_ms = 1000", has_memory, ..Options::default() };
    let mut two = Two::start(By::Disk, options);
    for (number, step) in STEPS.into_iter().enumerate() {
        let kills_source = number.is_multiple_of(2) == has_memory;
        let context = format!("{step:?}, {}", if kills_source { "the source" } else { "the target" });
        two.registers.be_strict(true);
        store_all(&two.registers, &context);
        two.registers.be_strict(false);
        let (source, target) = two.ends();
        let victim = if kills_source { source } else { target };
        let point = two.at(step, Then::Hold);
        two.begin();
        two.reach(step, &point);
        two.cluster.kill(victim);
        point.release();
        two.cluster.tell(&two.registers);
        let registers = Arc::clone(&two.registers);
        READS.run(&registers, || {
            registers.more(20, &context);
            two.cluster.restart(victim);
            two.cluster.tell(&registers);
            two.cluster.settle(&context);
            two.cluster.wait_until_connected();
            registers.more(50, &context);
        });
        read_all(&registers, &context);
    }
    println!("{:?} {:?}", two.registers.counts, two.registers.errors());
    two.registers.be_strict(true);
    store_all(&two.registers, "the end");
    read_all(&two.registers, "the end");
    two.cluster.end();
}

#[test]
fn source_and_target_are_killed_at_each_step() {
    if is_cached() {
        kill_at_each_step(false);
    }
}

#[test]
#[ignore = "long: moves, because nodes start many times"]
fn source_and_target_with_memory_files_are_killed_at_each_step() {
    if is_cached() {
        kill_at_each_step(true);
    }
}

/// Source and target stand still at each step: requests wait, and none fails.
#[test]
fn source_and_target_stand_still() {
    if !is_cached() {
        return;
    }
    let mut two = Two::start(By::Disk, Options::default());
    for step in STEPS {
        for stops_source in [true, false] {
            let context = format!("{step:?}, {}", if stops_source { "the source" } else { "the target" });
            let point = two.at(step, Then::Hold);
            let (source, target) = two.ends();
            let (stopped, other) = if stops_source { (source, target) } else { (target, source) };
            two.under_load(&context, |two| {
                two.begin_by(other);
                two.reach(step, &point);
                two.cluster.nodes[stopped].process.signal(libc::SIGSTOP);
                point.release();
                // The other one goes on.
                for _ in 0..5 {
                    let _ = two.cluster.report(other);
                }
                two.cluster.nodes[stopped].process.signal(libc::SIGCONT);
            });
        }
    }
    two.cluster.end();
}

/// A flush of everything, or of a prefix, at the source or at the target, at each step of a move:
/// what it has removed does not come back.
#[test]
fn what_is_flushed_during_a_move_does_not_come_back() {
    if !is_cached() {
        return;
    }
    let mut two = Two::start(By::Disk, Options::default());
    for step in STEPS {
        for (node, all) in [(0, false), (1, true)] {
            let context = format!("{step:?}, a flush at node {node}, all: {all}");
            store_all(&two.registers, &context);
            let point = two.at(step, Then::Hold);
            two.begin();
            two.reach(step, &point);
            std::thread::scope(|scope| {
                let cluster = &two.cluster;
                let flush = scope.spawn(|| {
                    let line = if all { "flush_all" } else { "flush_prefix flushed/" };
                    two.registers.flush(all, || {
                        let said = cluster.say(node, line);
                        assert!(said == "OK" || said.starts_with("OK "), "{context}: {said}");
                        true
                    });
                });
                // While slots are sealed, it waits; otherwise it need not.
                for _ in 0..5 {
                    let _ = cluster.report(0);
                }
                point.release();
                flush.join().expect("a flush");
            });
            two.cluster.settle(&context);
            let found = read_all(&two.registers, &context);
            let kept = if all { 0 } else { KEYS as u64 };
            assert_eq!(found, kept, "{context}: {found} keys are found");
        }
    }
    two.cluster.end();
}

/// The registry is away at each step of a move: all goes on, and what waits is answered when it is
/// back. A target that has not learned what became of its commit is killed.
#[test]
fn the_registry_is_away_while_slots_move() {
    if !is_cached() {
        return;
    }
    let Some(by) = By::etcd("the_registry_is_away_while_slots_move") else { return };
    let mut two = Two::start(by, Options::default());
    let away = |two: &Two, is_away: bool| {
        let By::Etcd(_, relay) = &two.cluster.by else { panic!("no etcd") };
        if is_away { relay.cut(true, true) } else { relay.repair() }
    };
    for step in STEPS {
        let context = format!("{step:?}");
        let point = two.at(step, Then::Hold);
        two.under_load(&context, |two| {
            two.begin();
            two.reach(step, &point);
            away(two, true);
            point.release();
            two.others_are_served(&context);
            away(two, false);
        });
    }
    for kills_source in [true, false] {
        let context = format!("an unknown commit, source: {kills_source}");
        two.registers.be_strict(false);
        let (source, target) = two.ends();
        let victim = if kills_source { source } else { target };
        let point = two.at(Step::Sealed, Then::Hold);
        two.begin();
        point.wait();
        away(&two, true);
        point.release();
        two.cluster.kill(victim);
        two.cluster.tell(&two.registers);
        away(&two, false);
        let registers = Arc::clone(&two.registers);
        READS.run(&registers, || {
            two.cluster.restart(victim);
            two.cluster.tell(&registers);
            two.cluster.settle(&context);
            two.cluster.wait_until_connected();
            registers.more(100, &context);
        });
        registers.assert_right(&context);
        registers.be_strict(true);
        store_all(&registers, &context);
        read_all(&registers, &context);
    }
    two.cluster.end();
}

/// A source that is lost during a move: once its lease has ended, its slots go to the others, without
/// what it held.
#[test]
fn a_source_is_lost_during_a_move() {
    if !is_cached() {
        return;
    }
    let options = Options { ring: "peer_timeout_ms = 3000\nlease_secs = 6", ..Options::default() };
    let mut two = Two::start(By::Disk, options);
    let registers = Arc::clone(&two.registers);
    for step in [Step::Copying, Step::Sealed] {
        let context = format!("{step:?}, lost");
        if !two.is_at_b {
            two.begin();
            two.cluster.settle(&context);
        }
        // The slots move from `b` to `a`.
        registers.be_strict(false);
        let point = two.at(step, Then::Hold);
        two.begin();
        two.reach(step, &point);
        two.cluster.kill(1);
        point.release();
        two.cluster.tell(&registers);
        READS.run(&registers, || {
            registers.more(50, &context);
            wait_for("b is struck off", || {
                let is_whole = two.cluster.report(0)["own_slots"] == SLOTS;
                (is_whole && slots_of(&two.cluster, "b") == 0).then_some(())
            });
            registers.more(50, &context);
        });
        registers.assert_right(&context);
        registers.be_strict(true);
        store_all(&registers, &context);
        // It comes back, with nothing from before.
        two.cluster.restart(1);
        two.cluster.wait_until_connected();
        two.cluster.tell(&registers);
        two.under_load(&context, |_| {});
    }
    two.cluster.end();
}
