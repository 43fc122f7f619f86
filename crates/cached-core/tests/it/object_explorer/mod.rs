//! Random orders of events in an object cache, determined by seeds: the polled task, the moments at
//! which the store performs a request and responds, the failures, the callers that give up, the
//! writes of other clients. A model determines which values may be read and which must be stored;
//! `README.md` lists the defects found.
//!
//! `EXPLORE_PROFILE=name` and `EXPLORE_SEED=n` replay one run and print its events.
//! `EXPLORE_SEEDS=n` runs `n` seeds of each profile, from `EXPLORE_FIRST=n` on; `EXPLORE_SECONDS=n`
//! runs for `n` seconds; `EXPLORE_SURVEY=1` counts the problems instead of stopping at the first
//! one.

#![allow(unreachable_pub, missing_docs)]

mod claims;
mod clients;
mod oracle;
mod profiles;
mod scheduler;
pub(crate) mod store;

use std::cell::Cell;
use std::collections::BTreeMap;

use profiles::Profile;
use scheduler::{Outcome, Without, run};

/// The default number of seeds of each profile, which `CACHED_TEST_TIMES` multiplies.
const SEEDS: u64 = 25;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Returns the kind of a problem: its first words, without names and numbers.
fn kind_of(problem: &str) -> String {
    let line = problem.lines().next().unwrap_or_default();
    let words: Vec<&str> = line.split_whitespace().take(14).collect();
    let no_numbers = |word: &str| word.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let text: Vec<String> = words.iter().map(|word| no_numbers(word)).collect();
    text.join(" ").chars().take(90).collect()
}

/// Returns a smaller run that fails in the same way: with fewer operations.
fn shrink(profile: &Profile, seed: u64, first: &Outcome) -> Without {
    let wanted = |outcome: &Outcome| {
        let word = |text: &Option<String>| {
            text.as_ref().map(|it| {
                let it = it.split_once(": ").map_or(it.as_str(), |(first, rest)| {
                    // The text before the colon may be the name of an object.
                    if first.contains('/') { rest } else { it }
                });
                it.split(' ').next().unwrap_or_default().to_owned()
            })
        };
        outcome.problem.is_some() && word(&outcome.problem) == word(&first.problem)
    };
    let mut best = Without { operations: Vec::new(), from: Some(first.asked) };
    for number in (0..first.asked).rev() {
        let mut without = best.clone();
        without.operations.push(number);
        if wanted(&run(profile, seed, without.clone(), false)) {
            best = without;
        }
    }
    best
}

fn print_story(profile: &Profile, seed: u64, outcome: &Outcome) {
    let without = match number("EXPLORE_WHOLE") {
        Some(_) => Without::default(),
        None => shrink(profile, seed, outcome),
    };
    let replayed = run(profile, seed, without.clone(), true);
    replayed.trace.iter().for_each(|line| println!("{line}"));
    println!("left out: {without:?}");
    println!("in short: {}", replayed.problem.unwrap_or_default());
}

fn selected() -> Vec<Profile> {
    let wanted = std::env::var("EXPLORE_PROFILE").ok();
    let all = profiles::profiles();
    let found: Vec<Profile> = all
        .into_iter()
        .filter(|it| wanted.as_ref().is_none_or(|wanted| wanted.split(',').any(|name| name == it.name)))
        .collect();
    assert!(!found.is_empty(), "there is no profile {wanted:?}");
    found
}

thread_local! {
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Prints a problem once, instead of at each panic. Panics of other tests, which run concurrently,
/// are printed.
fn print_no_panics_of_this_thread() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !IS_QUIET.get() || std::env::var("EXPLORE_PANICS").is_ok() {
            print(panic);
        }
    }));
    IS_QUIET.set(true);
}

#[test]
fn every_order_of_events_keeps_the_guarantees() {
    print_no_panics_of_this_thread();
    let profiles = selected();
    if let Some(seed) = number("EXPLORE_SEED") {
        for profile in &profiles {
            let outcome = run(profile, seed, Without::default(), false);
            if let Some(problem) = &outcome.problem {
                print_story(profile, seed, &outcome);
                IS_QUIET.set(false);
                panic!("EXPLORE_PROFILE={} EXPLORE_SEED={seed}: {problem}", profile.name);
            }
        }
        return;
    }
    let first = number("EXPLORE_FIRST").unwrap_or(0);
    let survey = number("EXPLORE_SURVEY").is_some();
    let seconds = number("EXPLORE_SECONDS");
    let count = number("EXPLORE_SEEDS").unwrap_or(if seconds.is_some() {
        u64::MAX
    } else {
        SEEDS * test_kit::times()
    });
    let start = std::time::Instant::now();
    let is_over = || seconds.is_some_and(|most| start.elapsed().as_secs() >= most);
    let mut found: BTreeMap<(usize, String), (u64, u64)> = BTreeMap::new();
    let mut steps = vec![(0u64, std::time::Duration::ZERO); profiles.len()];
    'all: for seed in first..first.saturating_add(count) {
        for (at, profile) in profiles.iter().enumerate() {
            if is_over() {
                break 'all;
            }
            let begun = std::time::Instant::now();
            let outcome = run(profile, seed, Without::default(), false);
            steps[at].0 += outcome.steps;
            steps[at].1 += begun.elapsed();
            let Some(problem) = &outcome.problem else { continue };
            if survey {
                let entry = found.entry((at, kind_of(problem))).or_insert((0, seed));
                entry.0 += 1;
                continue;
            }
            print_story(profile, seed, &outcome);
            IS_QUIET.set(false);
            panic!("EXPLORE_PROFILE={} EXPLORE_SEED={seed}: {problem}", profile.name);
        }
    }
    if survey {
        for ((at, kind), (times, seed)) in found {
            println!("{:18} {times:5} times, first seed {seed:5}: {kind}", profiles[at].name);
        }
        for (profile, (steps, took)) in profiles.iter().zip(steps) {
            println!("{:18} {steps} steps, {took:?}", profile.name);
        }
    }
}
