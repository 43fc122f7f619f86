//! A cache with a journal, a disk that loses power and a store that outlives both: after every
//! crash, all acknowledged changes are present, no write is torn, and no change survives an earlier
//! one that was lost. `README.md` lists the random choices and the checks.
//!
//! `POWER_PROFILE=name POWER_SEED=n` replays one run and prints it. `POWER_SEEDS=n` runs `n` seeds of each
//! profile, from `POWER_FIRST=n` on; `POWER_SECONDS=n` runs for `n` seconds; `POWER_SURVEY=1` counts what it finds.

#![allow(unreachable_pub, missing_docs)]

mod model;
mod operations;
mod profiles;
mod world;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;

use crate::object_explorer::store;
use profiles::Profile;
use test_kit::rng::Rng;
use world::{World, run};

/// The default number of seeds of each profile, which `CACHED_TEST_TIMES` multiplies.
const SEEDS: u64 = 15;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

fn selected() -> Vec<Profile> {
    let wanted = std::env::var("POWER_PROFILE").ok();
    let all = profiles::profiles().into_iter();
    let found: Vec<Profile> = all
        .filter(|it| wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|name| name == it.name)))
        .collect();
    assert!(!found.is_empty(), "there is no profile {wanted:?}");
    found
}

/// Runs one seed; a panic counts as a problem.
fn attempt(
    profile: &Profile,
    seed: u64,
    is_traced: bool,
    cut: impl Fn(&mut Rng) -> Option<u64>,
) -> (World, Result<(), String>) {
    let mut world = World::new(profile, seed, is_traced);
    let result = match std::panic::catch_unwind(AssertUnwindSafe(|| run(&mut world, seed, cut))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("?");
            Err(format!("panic: {text}"))
        }
    };
    (world, result)
}

fn fail(profile: &Profile, seed: u64, problem: &str, cut: impl Fn(&mut Rng) -> Option<u64>) -> ! {
    let (world, _) = attempt(profile, seed, true, cut);
    world.trace.iter().flatten().for_each(|line| println!("{line}"));
    panic!("POWER_PROFILE={} POWER_SEED={seed}: {problem}", profile.name);
}

/// Returns any step, but more often an early one, during the recovery.
fn any_step(rng: &mut Rng) -> Option<u64> {
    match rng.below(4) {
        0 => Some(1 + rng.below(12)),
        1 | 2 => Some(1 + rng.below(150)),
        _ => None,
    }
}

#[test]
fn a_crash_loses_nothing_that_was_acknowledged_as_journaled() {
    let profiles = selected();
    if let Some(seed) = number("POWER_SEED") {
        for profile in &profiles {
            if let (_, Err(problem)) = attempt(profile, seed, false, any_step) {
                fail(profile, seed, &problem, any_step);
            }
        }
        return;
    }
    let (first, seconds) = (number("POWER_FIRST").unwrap_or(0), number("POWER_SECONDS"));
    let count =
        number("POWER_SEEDS").unwrap_or(if seconds.is_some() { u64::MAX } else { SEEDS * test_kit::times() });
    let is_survey = number("POWER_SURVEY").is_some();
    let start = std::time::Instant::now();
    let mut found: BTreeMap<(usize, String), (u64, u64)> = BTreeMap::new();
    let (mut recovered, mut runs) = (0, 0);
    'all: for seed in first..first.saturating_add(count) {
        for (at, profile) in profiles.iter().enumerate() {
            if seconds.is_some_and(|most| start.elapsed().as_secs() >= most) {
                break 'all;
            }
            runs += 1;
            match attempt(profile, seed, false, any_step) {
                (world, Ok(())) => recovered += world.recovered,
                (_, Err(problem)) if is_survey => {
                    let kind: String = problem.chars().filter(|it| !it.is_ascii_digit()).take(90).collect();
                    found.entry((at, kind)).or_insert((0, seed)).0 += 1;
                }
                (_, Err(problem)) => fail(profile, seed, &problem, any_step),
            }
        }
    }
    println!("{runs} runs, {recovered} records recovered, {:?}", start.elapsed());
    for ((at, kind), (times, seed)) in found {
        println!("{:10} {times:5} times, first seed {seed:5}: {kind}", profiles[at].name);
    }
    assert!(is_survey || recovered > runs, "nothing was recovered");
}

#[test]
fn the_power_may_go_at_every_step_of_the_disk() {
    let sweeps = number("POWER_SWEEPS").unwrap_or(test_kit::times());
    for profile in selected().iter().filter(|it| !it.has_faults()) {
        let profile = Profile { lives: 2, operations: 40, ..profile.clone() };
        for seed in 0..sweeps {
            let (world, result) = attempt(&profile, seed, false, |_| None);
            if let Err(problem) = result {
                fail(&profile, seed, &problem, |_| None);
            }
            let steps = world.disk.steps();
            for at in 1..steps.min(number("POWER_STEPS").unwrap_or(80)) {
                let cut = |_: &mut Rng| Some(at);
                if let (_, Err(problem)) = attempt(&profile, seed, false, cut) {
                    fail(&profile, seed, &format!("power cut at step {at}: {problem}"), cut);
                }
            }
        }
    }
}
