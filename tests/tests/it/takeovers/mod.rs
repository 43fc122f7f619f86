//! A pair of hosts that elect the one that serves, under load and with faults: kills, stops beyond
//! the lease, cuts of one direction, a slow store, a registry that is away for longer than the
//! lease. After each fault, what was acknowledged as *stored* is there, no read is stale, and never
//! did two hosts answer.
//!
//! `CACHED_PAIR_ROUNDS` is the number of rounds of each fault (default: 20), `CACHED_PAIR_SEED` the
//! seed.

mod hosts;
mod load;
mod relay;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cached_tests::daemon::DEADLINE;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use hosts::{By, Hosts, LEASE, Store};
use load::Load;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// SIGKILL for the leader.
    Kill,
    /// SIGSTOP for the leader, beyond its lease.
    Stop,
    /// One direction between the leader and everything behind it.
    Cut,
    /// A slow store.
    Slow,
    /// No registry for longer than the lease.
    Away,
}

const FAULTS: [Fault; 5] = [Fault::Kill, Fault::Stop, Fault::Cut, Fault::Slow, Fault::Away];
/// The number of writes acknowledged as *stored* before and after each fault.
const STORED_MIN: u64 = 12;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Returns a time between two shares of the lease, in percent.
fn share(random: &mut SmallRng, percent: std::ops::Range<u32>) -> Duration {
    LEASE * random.random_range(percent) / 100
}

/// Waits for further writes acknowledged as *stored*.
fn progress(hosts: &Hosts, load: &Load, context: &str) {
    let (begun, stored) = (Instant::now(), &load.counts().stored);
    let before = stored.load(Ordering::Relaxed);
    while stored.load(Ordering::Relaxed) < before + STORED_MIN {
        load.assert_safe(context);
        assert!(begun.elapsed() < DEADLINE, "{context}: no progress\n{}", hosts.logs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks what clients have seen. Each change between the hosts takes a new leadership, with a new
/// epoch.
fn check(hosts: &Hosts, load: &Load, context: &str, first_epoch: u64) {
    load.assert_safe(context);
    let changes = load.changes();
    let (_, epoch) = hosts.leader();
    assert!(
        changes <= epoch - first_epoch,
        "{context}: answers changed {changes} times between the hosts, and epochs {first_epoch} to {epoch} led"
    );
}

/// Makes a fault at the leader. Returns false if this kind of store has no such fault.
fn inflict(fault: Fault, hosts: &mut Hosts, leader: usize, random: &mut SmallRng) -> bool {
    match fault {
        Fault::Kill => {
            // The next process of this host starts before or after the other one has taken over.
            hosts.pair.host(leader).signal(libc::SIGKILL);
            std::thread::sleep(share(random, 0..200));
            hosts.pair.restart(leader, libc::SIGKILL);
        }
        Fault::Stop => {
            hosts.pair.host(leader).signal(libc::SIGSTOP);
            std::thread::sleep(share(random, 110..300));
            hosts.pair.host(leader).signal(libc::SIGCONT);
        }
        Fault::Cut => {
            let relays = hosts.relays(leader);
            let is_up = random.random_range(0..2) == 0;
            relays.iter().for_each(|relay| relay.cut(is_up, !is_up));
            std::thread::sleep(share(random, 50..250));
            relays.iter().for_each(|relay| relay.repair());
            return !relays.is_empty();
        }
        Fault::Slow => match hosts.relay_to_store(leader) {
            Some(relay) => {
                relay.delay(share(random, 5..60));
                std::thread::sleep(share(random, 100..250));
                relay.repair();
            }
            None => hosts.pause_cluster(share(random, 20..80)),
        },
        Fault::Away => hosts.without_registry(share(random, 120..250)),
    }
    true
}

/// Plays `rounds` of each fault. Returns false if the test is skipped.
fn rounds(store: Store, by: By, faults: &[Fault], rounds: u64, test: &str) -> bool {
    let Some(mut hosts) = Hosts::start(store, by, test) else { return false };
    let seed = number("CACHED_PAIR_SEED", 1);
    let (_, first_epoch) = hosts.leader();
    let load = Load::start(hosts.pair.addresses.map(|address| address.to_string()), seed);
    let mut played = 0;
    for round in 0..rounds {
        for fault in faults {
            let mut random = SmallRng::seed_from_u64(seed ^ (round << 8) ^ *fault as u64);
            let (leader, _) = hosts.leader();
            let context =
                format!("{store:?}, {by:?}, seed {seed}, round {round}, {fault:?} of host {leader}");
            progress(&hosts, &load, &context);
            let begun = Instant::now();
            let is_possible = inflict(*fault, &mut hosts, leader, &mut random);
            let lasted = begun.elapsed();
            let (next, epoch) = hosts.leader();
            progress(&hosts, &load, &context);
            let took = begun.elapsed();
            check(&hosts, &load, &context, first_epoch);
            if is_possible {
                println!(
                    "{context}: {lasted:.1?}; host {next} leads, epoch {epoch}; {STORED_MIN} writes after {took:.1?}"
                );
            }
            played += u64::from(is_possible);
        }
    }
    check(&hosts, &load, "at the end", first_epoch);
    println!("{store:?}, {by:?}: {played} faults, {:?}", load.counts());
    load.end();
    true
}

fn long(store: Store, by: By, test: &str) {
    rounds(store, by, &FAULTS, number("CACHED_PAIR_ROUNDS", 20), test);
}

#[test]
#[ignore = "long: pair, because each round waits for leases"]
fn a_pair_over_synapsed_that_elects_by_the_store() {
    long(Store::Synapsed, By::Store, "a_pair_over_synapsed_that_elects_by_the_store");
}

#[test]
#[ignore = "long: pair, because each round waits for leases"]
fn a_pair_over_synapsed_that_elects_by_etcd() {
    long(Store::Synapsed, By::Etcd, "a_pair_over_synapsed_that_elects_by_etcd");
}

#[test]
#[ignore = "long: pair, because each round waits for leases"]
fn a_pair_over_rados_that_elects_by_the_store() {
    long(Store::Rados, By::Store, "a_pair_over_rados_that_elects_by_the_store");
}

#[test]
#[ignore = "long: pair, because each round waits for leases"]
fn a_pair_over_rados_that_elects_by_etcd() {
    long(Store::Rados, By::Etcd, "a_pair_over_rados_that_elects_by_etcd");
}

#[test]
#[ignore = "long: pair, because each round waits for leases"]
fn a_pair_over_versitygw_that_elects_by_the_store() {
    long(Store::Versitygw, By::Store, "a_pair_over_versitygw_that_elects_by_the_store");
}

#[test]
#[ignore = "long: pair, because each round waits for leases"]
fn a_pair_over_versitygw_that_elects_by_etcd() {
    long(Store::Versitygw, By::Etcd, "a_pair_over_versitygw_that_elects_by_etcd");
}

#[test]
fn a_pair_over_synapsed_survives_a_kill_of_its_leader() {
    let test = "a_pair_over_synapsed_survives_a_kill_of_its_leader";
    assert!(rounds(Store::Synapsed, By::Store, &[Fault::Kill], 1, test));
}
