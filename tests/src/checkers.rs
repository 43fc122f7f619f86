//! The command line of the two checkers.

use crate::configurations::{self, Configuration};
use crate::program::Program;
use std::path::PathBuf;
use std::process::ExitCode;

/// The arguments of a checker.
#[derive(Debug, Clone)]
pub struct Arguments {
    /// How long all configurations together run, unless `operations` is set.
    pub seconds: u64,
    /// The number of operations of all configurations together.
    pub operations: Option<u64>,
    /// The only configuration to run.
    pub only: Option<String>,
    /// The seed of random choices.
    pub seed: u64,
    /// The server to test.
    pub server: Option<PathBuf>,
    /// The memcached to compare with.
    pub reference: Option<PathBuf>,
    /// Whether clients of the server give a password first.
    pub password: bool,
}

/// A run of a checker, as its command line describes it.
#[derive(Debug)]
pub struct Run {
    /// The arguments.
    pub arguments: Arguments,
    /// The server to test.
    pub program: Program,
    /// The configurations to run.
    pub configurations: Vec<&'static Configuration>,
}

impl Run {
    /// Reads the command line of this process, and prints the seed.
    ///
    /// # Errors
    /// The exit status for an invalid argument, which has been printed.
    pub fn read() -> Result<Run, ExitCode> {
        let arguments = Arguments::read().map_err(|line| {
            eprintln!("{line}");
            ExitCode::from(2)
        })?;
        let program = match &arguments.server {
            Some(path) => Program::at(path),
            None => Program::under_test().clone(),
        };
        let configurations = configurations::ALL.iter().filter(|it| arguments.plays(it.name)).collect();
        println!("seed {}", arguments.seed);
        Ok(Run { arguments, program, configurations })
    }
}

impl Arguments {
    /// Returns the arguments of this process.
    ///
    /// # Errors
    /// A line that names the invalid argument.
    pub fn read() -> Result<Arguments, String> {
        Arguments::of(std::env::args().skip(1))
    }

    fn of(mut words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments {
            seconds: 60,
            operations: None,
            only: None,
            seed: rand::random::<u32>().into(),
            server: None,
            reference: None,
            password: false,
        };
        while let Some(flag) = words.next() {
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|_| format!("{flag} {value}: must be a number"));
            match flag.as_str() {
                "--seconds" => arguments.seconds = number()?,
                "--operations" => arguments.operations = Some(number()?),
                "--seed" => arguments.seed = number()?,
                "--only" => arguments.only = Some(value),
                "--server" => arguments.server = Some(program(&value)?),
                "--password" if matches!(value.as_str(), "yes" | "no") => arguments.password = value == "yes",
                "--password" => return Err(format!("--password {value}: must be yes or no")),
                "--reference" => arguments.reference = Some(program(&value)?),
                _ => {
                    let known = "--seconds, --operations, --seed, --only, --server, --reference, --password";
                    return Err(format!("{flag} is unknown; there are {known}"));
                }
            }
        }
        if let Some(only) = &arguments.only
            && crate::configurations::named(only).is_none()
        {
            let names: Vec<&str> = crate::configurations::ALL.iter().map(|it| it.name).collect();
            return Err(format!("--only {only}: must be one of {}", names.join(", ")));
        }
        Ok(arguments)
    }

    /// Returns whether a configuration is to run.
    pub fn plays(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only == name)
    }
}

/// Returns the full path of a program: servers run in directories of their own.
fn program(path: &str) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Arguments, String> {
        Arguments::of(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments_are_read_or_refused_with_a_reason() {
        let read = of("--seconds 5 --seed 7 --only full").expect("good arguments");
        assert_eq!((read.seconds, read.seed, read.plays("full"), read.plays("small")), (5, 7, true, false));
        for bad in ["--seconds", "--seconds x", "--only nothing", "--what 5"] {
            assert!(of(bad).is_err(), "{bad}");
        }
    }
}
