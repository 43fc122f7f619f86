//! The same random commands are sent to the server under test and to a memcached: the replies are
//! the same.
//!
//! The reference is `CACHED_REFERENCE_MEMCACHED` or the installed memcached (1.6.18 in Debian 12;
//! requests with known differences are not generated). Seeds are fixed, so that a run can be
//! repeated; with `CACHED_DIFFERENTIAL_SECONDS=60` random seeds are used for a minute.
//! `CACHED_DIFFERENTIAL_SEED` selects one seed.

use cached_tests::configurations;
use cached_tests::lockstep::{self, Kind, Play};
use cached_tests::outside;
use cached_tests::program::Program;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const SEEDS: std::ops::Range<u64> = 1..5;
const BATCHES: usize = 80;

#[test]
fn text() {
    compare("text", Kind::Text);
}

#[test]
fn meta() {
    compare("meta", Kind::Meta);
}

#[test]
fn text_and_meta() {
    compare("text_and_meta", Kind::Mixed);
}

#[test]
fn binary() {
    compare("binary", Kind::Binary);
}

/// Authentication does not change the replies.
#[test]
fn behind_a_password() {
    let Some(reference) = reference() else {
        return outside::skip("behind_a_password", "memcached is not installed");
    };
    for kind in Kind::ALL {
        play(&reference, kind, SEEDS.start, true);
    }
}

fn reference() -> Option<Program> {
    match std::env::var_os("CACHED_REFERENCE_MEMCACHED") {
        Some(path) => Some(Program::at(PathBuf::from(path))),
        None => outside::find_program("memcached").map(Program::at),
    }
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn compare(test: &str, kind: Kind) {
    let Some(reference) = reference() else {
        return outside::skip(test, "memcached is not installed");
    };
    if let Some(seed) = number_from_environment("CACHED_DIFFERENTIAL_SEED") {
        return play(&reference, kind, seed, false);
    }
    for seed in SEEDS {
        play(&reference, kind, seed, false);
    }
    if let Some(seconds) = number_from_environment("CACHED_DIFFERENTIAL_SECONDS") {
        let end = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < end {
            play(&reference, kind, rand::random(), false);
        }
    }
}

fn play(reference: &Program, kind: Kind, seed: u64, password: bool) {
    let configuration = configurations::named("usual").expect("a configuration");
    let program = Program::under_test();
    let played = Play { program, reference, configuration, connections: 1, batches: BATCHES, password };
    if let Err(problem) = lockstep::play(&played, kind, seed) {
        panic!("{problem}");
    }
}
