//! `synapsed`: the storage-node daemon. Serves a backend, or a cache over one, to clients of the synapse
//! protocol.
//!
//! ```text
//! synapsed --config /etc/synapsed/synapsed.toml
//! ```

mod cache;
mod config;
mod failure;
mod reload;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use cached_process::log::Log;
use cached_process::panics;
use cached_process::signals::Signals;
use clap::{CommandFactory, Parser};

use config::Config;
use failure::Failure;

/// Serve a storage backend over TCP and unix sockets.
#[derive(Parser)]
#[command(name = "synapsed", version, max_term_width = 100)]
struct Arguments {
    /// The configuration file; deploy/synapsed.toml has every key with its comment.
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,

    /// Check the configuration and exit: 0 if it is valid, 78 if it is not.
    #[arg(long)]
    check_config: bool,

    /// Print the configuration with all defaults filled in, and exit.
    #[arg(long)]
    print_config: bool,
}

fn main() -> ExitCode {
    if let Some(code) = cached_manual::written_on_request(Arguments::command) {
        return code;
    }
    cached_process::allocator::configure();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("synapsed: {failure}");
            ExitCode::from(failure.status())
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let (config, text) = Config::read(&arguments.config).map_err(Failure::configuration)?;
    if arguments.print_config {
        print!("{}", config.effective());
        return Ok(());
    }
    if arguments.check_config {
        println!("{}: nothing is wrong with the configuration", arguments.config.display());
        return Ok(());
    }
    let signals = Signals::take_over().map_err(Failure::refused)?;
    let log = Log::install(config.log);
    panics::watch();
    serve::run((&config, &text), &arguments.config, &signals, &log)
}
