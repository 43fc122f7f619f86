//! `synapsed`, the storage-node daemon. It serves a backend, or a cache over one, to clients of the
//! synapse protocol.
//!
//! ```text
//! synapsed --config /etc/synapsed/synapsed.toml
//! ```

mod config;
mod reload;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use cached_config::read_config;
use cached_process::log::{Format, Level, Log, print_err};
use cached_process::signals::Signals;
use cached_process::{Exit, Failure, log_start, memory, watch_panics};
use clap::{CommandFactory, Parser};

use config::Config;

/// Serve a storage backend over TCP and unix sockets.
#[derive(Parser)]
#[command(name = "synapsed", version, max_term_width = 100, after_long_help = Exit::summary())]
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
    memory::configure_allocator();
    watch_panics();
    // `Arguments::parse` would exit with status 2, after which the unit starts the program again.
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
            // This fails if the stream is closed; then nobody reads the message.
            let _ = error.print();
            return exit;
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            print_err(Level::Error, module_path!(), &format!("synapsed: {failure}"));
            failure.exit().into()
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = &arguments.config;
    let text = read_config(path)?;
    // The output of a check is meant for people, whatever the format of a server's log.
    if !arguments.check_config && !arguments.print_config {
        Format::of_file(&text).use_outside();
    }
    let config = Config::parse(path, &text)?;
    if arguments.print_config {
        print!("{}", config.effective());
        return Ok(());
    }
    // Mistakes are reported before anything is touched.
    let loaded = config.load().map_err(|error| error.in_file(path))?;
    if arguments.check_config {
        println!("{}: the configuration is valid", path.display());
        return Ok(());
    }
    let signals = Signals::take_over().map_err(|error| Failure::new(Exit::Trouble, error))?;
    let log = Log::install(config.log);
    log_start("synapsed", env!("CARGO_PKG_VERSION"), Some(path));
    serve::run((&config, &text), loaded, path, &signals, &log)
}
