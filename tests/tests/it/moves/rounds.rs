//! Random faults while slots move between five nodes, for any number of rounds.
//!
//! `CACHED_MOVES_ROUNDS` is their number (default: 150), `CACHED_MOVES_SEED` the seed.

use super::{failures, is_cached};
use cached_tests::daemon::wait_for;
use cached_tests::moves::clients::{Load, read_all, store_all};
use cached_tests::moves::registers::Registers;
use cached_tests::moves::{By, Cluster, Options};
use cached_tests::relay::{Relay, Then};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(super) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

/// What happens in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    None,
    Kill,
    KillAndStrike,
    Stop,
    Break,
    Upgrade,
    FlushAll,
    FlushPrefix,
    Registry,
}

const FAULTS: [Fault; 9] = [
    Fault::None,
    Fault::Kill,
    Fault::KillAndStrike,
    Fault::Stop,
    Fault::Break,
    Fault::Upgrade,
    Fault::FlushAll,
    Fault::FlushPrefix,
    Fault::Registry,
];

impl Fault {
    /// Whether keys may be missing, and requests fail. While a new process takes over, changes with
    /// large values fail; without a memory file it starts empty.
    fn costs(self, has_memory: bool) -> [bool; 2] {
        match self {
            Fault::Kill | Fault::KillAndStrike | Fault::Stop => [true, true],
            Fault::Upgrade => [!has_memory, true],
            _ => [false, false],
        }
    }
}

pub(super) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Changes the weights of nodes at random.
fn reweigh(cluster: &Cluster, random: &mut SmallRng) -> Vec<u32> {
    let mut weights: Vec<u32> = cluster.nodes.iter().map(|_| random.random_range(0..4)).collect();
    let one = random.random_range(0..weights.len());
    weights[one] = weights[one].max(1);
    for (node, weight) in cluster.nodes.iter().zip(&weights) {
        cluster.order(0, &["weight", &node.name, &weight.to_string()]);
    }
    weights
}

/// Plays one fault while slots move.
fn inflict(fault: Fault, cluster: &mut Cluster, registers: &Registers, random: &mut SmallRng) {
    let one = random.random_range(0..cluster.nodes.len());
    let other = (one + 1) % cluster.nodes.len();
    let delay = Duration::from_millis(random.random_range(0..150));
    match fault {
        Fault::None => {}
        Fault::Kill | Fault::KillAndStrike => {
            std::thread::sleep(delay);
            cluster.kill(one);
            cluster.tell(registers);
            registers.more(20, "a node is away");
            if fault == Fault::KillAndStrike {
                wait_for("a node is struck off", || {
                    let report = cluster.report(other);
                    let of = report["nodes"].as_array()?.iter().find(|of| of["node"] == NAMES[one])?;
                    (of["slots"] == 0).then_some(())
                });
                registers.more(20, "a node is struck off");
            }
            cluster.restart(one);
            cluster.tell(registers);
        }
        Fault::Stop => {
            std::thread::sleep(delay);
            cluster.nodes[one].process.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(random.random_range(0..3_000)));
            cluster.nodes[one].process.signal(libc::SIGCONT);
        }
        Fault::Break => {
            for node in &cluster.nodes {
                let relay = node.relay.as_ref().expect("a relay");
                let after = random.random_range(0..500_000) >> random.random_range(0..14);
                let direction = random.random_range(0..2);
                relay.at(direction, direction, after, Then::End);
            }
        }
        Fault::Upgrade => {
            std::thread::sleep(delay);
            cluster.nodes[one].process.upgrade();
            cluster.tell(registers);
        }
        Fault::FlushAll | Fault::FlushPrefix => {
            std::thread::sleep(delay);
            let all = fault == Fault::FlushAll;
            let line = if all { "flush_all" } else { "flush_prefix flushed/" };
            registers.flush(all, || cluster.say(one, line).starts_with("OK"));
        }
        Fault::Registry => {
            let By::Etcd(_, relay) = &cluster.by else { return };
            std::thread::sleep(delay);
            relay.cut(true, true);
            std::thread::sleep(Duration::from_millis(random.random_range(0..4_000)));
            relay.repair();
        }
    }
}

fn rounds(by: By, options: Options, rounds: u64) {
    let seed = number("CACHED_MOVES_SEED", 1);
    let registers = Registers::new(3_000, NAMES.len(), 300_000);
    let mut cluster = Cluster::start(&NAMES, by, Options { is_relayed: true, ..options });
    cluster.settle("the start");
    cluster.wait_until_connected();
    cluster.tell(&registers);
    store_all(&registers, "the start");
    registers.be_strict(false);
    let mut played: BTreeMap<Fault, (u64, Duration)> = BTreeMap::new();
    let load = Load { clients: 4, changes: 20, pause: Duration::ZERO, seed };
    load.run(&registers, || {
        for round in 0..rounds {
            let mut random = SmallRng::seed_from_u64(seed << 20 | round);
            let fault = FAULTS[random.random_range(0..FAULTS.len())];
            let weights = reweigh(&cluster, &mut random);
            let context = format!("seed {seed}, round {round}, {fault:?}, weights {weights:?}");
            let (begun, before) = (Instant::now(), failures(&registers));
            inflict(fault, &mut cluster, &registers, &mut random);
            cluster.wait_until_connected();
            cluster.settle(&context);
            cluster.nodes.iter().filter_map(|node| node.relay.as_ref()).for_each(Relay::disarm);
            registers.more(100, &context);
            let costs = fault.costs(options.has_memory);
            for ((is_allowed, before), now) in costs.into_iter().zip(before).zip(failures(&registers)) {
                let errors = registers.errors();
                assert!(is_allowed || now == before, "{context}: {before:?}, {now:?} {errors:#?}");
            }
            // What was lost is not missed again in the next round.
            registers.be_strict(false);
            println!("{context}: settled after {:.1?}; {:?}", begun.elapsed(), registers.counts);
            let of = played.entry(fault).or_default();
            *of = (of.0 + 1, of.1.max(begun.elapsed()));
        }
    });
    registers.assert_right("the end");
    read_all(&registers, "the end");
    registers.be_strict(true);
    store_all(&registers, "the end");
    let found = read_all(&registers, "the end");
    assert_eq!(found, 3_000 * NAMES.len() as u64);
    println!("{played:?}\n{:?}\n{:#?}", registers.counts, registers.errors());
    cluster.end();
}

fn options(has_memory: bool) -> Options {
    Options {
        args: "-m 64 -t 2",
        ring: "peer_timeout_ms = 3000\nlease_secs = 4",
        has_memory,
        is_relayed: true,
    }
}

#[test]
#[ignore = "long: moves, because each round waits for nodes"]
fn random_faults_while_slots_move() {
    if is_cached() {
        rounds(By::Disk, options(true), number("CACHED_MOVES_ROUNDS", 150));
    }
}

#[test]
#[ignore = "long: moves, because each round waits for nodes"]
fn random_faults_while_slots_move_by_etcd() {
    let Some(by) = By::etcd("random_faults_while_slots_move_by_etcd") else { return };
    if is_cached() {
        rounds(by, options(false), number("CACHED_MOVES_ROUNDS", 150));
    }
}
