//! The command line of the two checkers.

use crate::configurations::{self, Configuration};
use crate::program::Program;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;

/// A run of a checker.
#[derive(Debug, Clone, clap::Args)]
pub struct Run {
    /// The total duration of all configurations, in seconds
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// The total number of operations of all configurations, instead of a duration
    #[arg(long)]
    pub operations: Option<u64>,
    /// The only configuration to run
    #[arg(long, value_parser = PossibleValuesParser::new(configurations::ALL.iter().map(|it| it.name)))]
    pub only: Option<String>,
    /// The seed of random choices
    #[arg(long, default_value_t = rand::random::<u32>().into())]
    pub seed: u64,
    /// The server to test; the default is this workspace's `cached`
    #[arg(long, value_parser = full_path)]
    pub server: Option<PathBuf>,
}

impl Run {
    /// Prints the seed; returns the server to test, which this call builds if necessary, and the
    /// configurations to run.
    pub fn begin(&self) -> (Program, Vec<&'static Configuration>) {
        let program = match &self.server {
            Some(path) => Program::at(path),
            None => Program::under_test().clone(),
        };
        println!("seed {}", self.seed);
        let is_wanted = |it: &&Configuration| self.only.as_ref().is_none_or(|only| only == it.name);
        (program, configurations::ALL.iter().filter(is_wanted).collect())
    }
}

/// Returns the full path of a program, because servers run in directories of their own.
///
/// # Errors
/// Fails if the program does not exist.
pub fn full_path(path: &str) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| error.to_string())
}
