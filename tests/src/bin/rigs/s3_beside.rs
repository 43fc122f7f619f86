//! Compares the S3 sidecar with the endpoint behind it, request by request: see `cached_tests::s3::beside`.

use cached_tests::program::repository;
use cached_tests::s3::beside::{Before, Both, Played, Way};
use clap::builder::PossibleValuesParser;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The number of requests in a sequence, which starts with an empty bucket.
const STEPS: usize = 200;

/// Sends the same random S3 requests to an endpoint and through the sidecar, with each
/// authentication mode in turn
///
/// Prints a line for each count, and exits with status 1 if two responses differ and no clause
/// allows the difference.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The duration in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// The number of requests, instead of a duration
    #[arg(long)]
    operations: Option<u64>,
    /// The only authentication mode to test
    #[arg(long, value_parser = PossibleValuesParser::new(Way::ALL.map(Way::name)))]
    only: Option<String>,
    /// The endpoint: a program, or the rig's own endpoint that folds names as file systems do
    #[arg(long, default_value = "versitygw", value_parser = PossibleValuesParser::new(Before::ALL.map(Before::name)))]
    endpoint: String,
    /// The seed of random choices
    #[arg(long, default_value_t = rand::random::<u32>().into())]
    seed: u64,
}

pub(crate) fn run(Arguments { seconds, operations, only, endpoint, seed }: &Arguments) -> ExitCode {
    println!("seed {seed}");
    let is_wanted = |way: &Way| only.as_ref().is_none_or(|only| only == way.name());
    let ways: Vec<Way> = Way::ALL.into_iter().filter(is_wanted).collect();
    let before =
        Before::ALL.into_iter().find(|before| before.name() == endpoint).expect("one that clap allows");
    let place = repository().join("target/tmp");
    let Some(both) = Both::start(before, &ways, before.names(), "s3-beside", &place) else {
        return ExitCode::from(2);
    };
    let (begun, mut played, mut differences) = (Instant::now(), Played::default(), 0);
    let is_over = |played: &Played| match operations {
        Some(operations) => played.requests >= *operations,
        None => begun.elapsed() >= Duration::from_secs(*seconds),
    };
    let sequences = (0..).zip(ways.iter().cycle());
    for (sequence, way) in sequences {
        if differences == 3 || is_over(&played) {
            break;
        }
        if let Err(what) = both.play(*way, seed.wrapping_add(sequence), STEPS, &mut played) {
            differences += 1;
            println!("difference: {what}");
        }
    }
    println!("requests {}", played.requests);
    for (excuse, count) in &played.excused {
        println!("allowed by {excuse} {count}");
    }
    println!("differences {differences}");
    if differences == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
