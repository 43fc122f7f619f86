//! Compares a server with a memcached, request by request: see `cached_tests::lockstep`.
//!
//! ```text
//! lockstep [--seconds N | --operations N] [--only NAME] [--seed N] [--server PATH] [--reference PATH] [--password yes]
//! ```
//! Plays random sequences of text, meta and binary requests in every configuration in turn (the time or the
//! operations are shared among them), prints a line for each count, and exits with 1 if any reply differs.
//! Without `--server` the workspace's own `cached` is built and tested; without `--reference` it is compared
//! with the memcached that is installed. With `--password yes` clients of the server give a password first; the
//! configurations with load of other clients are left out.

use cached_tests::checkers::Run;
use cached_tests::lockstep::{self, Kind, Play};
use cached_tests::outside;
use cached_tests::program::Program;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of batches of a sequence, which begins with fresh servers; fewer in a short run, so that each
/// configuration runs.
const BATCHES: usize = 2000;
const BATCHES_SHORT: usize = 20;
const CONNECTIONS: usize = 3;

fn main() -> ExitCode {
    let Run { arguments, program, configurations } = match Run::read() {
        Ok(run) => run,
        Err(status) => return status,
    };
    let found = arguments.reference.clone().or_else(|| outside::find_program("memcached"));
    let Some(reference) = found.map(Program::at) else {
        eprintln!("no memcached is installed; --reference names one");
        return ExitCode::from(2);
    };
    let count = configurations.len().max(1) as u64;
    let mut good = !configurations.is_empty();
    for configuration in configurations {
        if arguments.password && !configuration.is_alone() {
            continue;
        }
        let play = Play {
            program: &program,
            reference: &reference,
            configuration,
            connections: CONNECTIONS,
            password: arguments.password,
            batches: if arguments.operations.is_none() && arguments.seconds < 60 {
                BATCHES_SHORT
            } else {
                BATCHES
            },
        };
        let (begun, mut requests, mut sequences, mut differences) = (Instant::now(), 0, 0, 0);
        let time = Duration::from_secs(arguments.seconds) / count as u32;
        // At least once each.
        while differences < 3
            && (sequences < Kind::ALL.len() as u64
                || match arguments.operations {
                    Some(operations) => requests < operations / count,
                    None => begun.elapsed() < time,
                })
        {
            let kind = Kind::ALL[sequences as usize % Kind::ALL.len()];
            match lockstep::play(&play, kind, arguments.seed.wrapping_add(sequences)) {
                Ok(played) => requests += played,
                Err(problem) => {
                    differences += 1;
                    println!("{} difference: {problem}", configuration.name);
                }
            }
            sequences += 1;
        }
        println!("{} seconds {:.1}", configuration.name, begun.elapsed().as_secs_f64());
        println!("{} sequences {sequences}", configuration.name);
        println!("{} requests {requests}", configuration.name);
        println!("{} differences {differences}", configuration.name);
        good &= differences == 0;
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
