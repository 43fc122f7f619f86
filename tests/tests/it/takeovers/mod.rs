//! A pair of hosts that elect the one that serves, under load and with faults: kills, stops beyond the
//! lease, cuts of one direction, a slow store, a full one, a registry that is away for longer than the
//! lease, a time of day that jumps; and step-downs, during which no request fails. After each fault,
//! what was acknowledged as *stored* is there, no read is stale, and the hosts have never answered at
//! the same time.
//!
//! `CACHED_PAIR_ROUNDS` is the number of rounds of each fault (default: 20), `CACHED_PAIR_SEED` the
//! seed. In every fifth round the registry is away for a minute.

mod faults;
mod hosts;
mod load;
mod others;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cached_tests::daemon::DEADLINE;
use rand::SeedableRng;
use rand::rngs::SmallRng;

use faults::Fault;
use hosts::{By, Hosts, LEASE, LONG_LEASE, Store};
use load::Load;

/// The number of writes acknowledged as *stored* before and after each fault.
const STORED_MIN: u64 = 12;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// Waits for further writes acknowledged as *stored*, and then for a promise of each kind of client.
/// Returns the time until the writes.
fn progress(hosts: &Hosts, load: &Load, context: &str) -> Duration {
    let (begun, before) = (Instant::now(), load.counts().promises());
    let wait = |is_done: &dyn Fn([u64; 3]) -> bool| {
        while !is_done(load.counts().promises()) {
            load.assert_safe(context);
            assert!(begun.elapsed() < DEADLINE, "{context}: no progress\n{}", hosts.logs());
            std::thread::sleep(Duration::from_millis(5));
        }
        begun.elapsed()
    };
    let took = wait(&|now| now[0] >= before[0] + STORED_MIN);
    wait(&|now| now.iter().zip(before).all(|(now, before)| *now > before));
    took
}

/// Checks the clients' observations. Each change between the hosts requires a new leadership, with
/// a new epoch.
fn check(hosts: &Hosts, load: &Load, context: &str, first_epoch: u64) {
    load.assert_safe(context);
    let changes = load.changes();
    let (_, epoch) = hosts.leader();
    assert!(
        changes <= epoch - first_epoch,
        "{context}: answers changed {changes} times between the hosts, and epochs {first_epoch} to {epoch} led"
    );
}

/// Plays `rounds` of each fault, at hosts with this lease. Returns false if the test is skipped.
fn rounds(store: Store, by: By, lease: Duration, faults: &[Fault], rounds: u64, test: &str) -> bool {
    let Some(mut hosts) = Hosts::start(store, by, lease, test) else { return false };
    let seed = number("CACHED_PAIR_SEED", 1);
    let (_, first_epoch) = hosts.leader();
    let load = Load::start(hosts.ways(), lease, seed);
    // The times until clients were served again.
    let mut played: BTreeMap<Fault, Vec<Duration>> = BTreeMap::new();
    for round in 0..rounds {
        let minute = (round % 5 == 4).then_some(&Fault::Minute);
        for fault in faults.iter().chain(minute) {
            let mut random = SmallRng::seed_from_u64(seed ^ (round << 8) ^ *fault as u64);
            let (leader, _) = hosts.leader();
            let context =
                format!("{store:?}, {by:?}, seed {seed}, round {round}, {fault:?} of host {leader}");
            progress(&hosts, &load, &context);
            let begun = Instant::now();
            let is_possible = fault.inflict(&mut hosts, leader, load.counts(), &mut random);
            let lasted = begun.elapsed();
            let (next, epoch) = hosts.leader();
            let took = begun.elapsed() + progress(&hosts, &load, &context);
            check(&hosts, &load, &context, first_epoch);
            if is_possible {
                println!(
                    "{context}: {lasted:.1?}; host {next} leads, epoch {epoch}; {STORED_MIN} writes after {took:.1?}"
                );
                played.entry(*fault).or_default().push(took);
            }
        }
    }
    check(&hosts, &load, "at the end", first_epoch);
    for (fault, times) in &mut played {
        times.sort_unstable();
        let (first, last) = (times[0], times[times.len() - 1]);
        println!(
            "{store:?}, {by:?}: {} of {fault:?}, served again after {first:.1?} to {last:.1?}",
            times.len()
        );
    }
    println!("{store:?}, {by:?}: {:?}", load.counts());
    load.end();
    true
}

fn long(store: Store, by: By, test: &str) {
    rounds(store, by, LEASE, &Fault::OF_EACH_ROUND, number("CACHED_PAIR_ROUNDS", 20), test);
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
fn a_pair_over_synapsed_survives_a_kill() {
    let test = "a_pair_over_synapsed_survives_a_kill";
    assert!(rounds(Store::Synapsed, By::Store, LEASE, &[Fault::Kill], 1, test));
}

/// A leader that loses its lease fails requests.
#[test]
fn a_pair_over_synapsed_steps_down_without_a_failed_request() {
    let test = "a_pair_over_synapsed_steps_down_without_a_failed_request";
    assert!(rounds(Store::Synapsed, By::Store, LONG_LEASE, &[Fault::StepDown], 1, test));
}
