//! `cachectl`: a command-line tool for any backend.
//!
//! ```text
//! cachectl --backend file:DIR put NAME FILE
//! ```
//!
//! The subcommands are in `command/`; `backend` opens what `--backend` names. Output goes to
//! standard output, as text or with `--json` as one JSON value per line; progress and errors go to
//! standard error, an error as one line. The exit code is the kind of the error, see [`output`].

// They panic when the reader of the output has gone: see `Output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod backend;
mod command;
mod output;

use std::time::Duration;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};

use backend::BackendSpec;
use command::{Call, Command};
use output::Output;

/// Try a storage backend of cached: put, get, copy, list, flush, or test it against the contract.
///
/// Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such object, 4 refused (exists, condition,
/// fenced, denied), 5 try again later (busy, out of space, not stored), 6 corrupt or lost, 7
/// outcome unknown, 130 interrupted, 141 the reader of the output has gone. fsck and journal have
/// their own.
#[derive(Parser)]
#[command(name = "cachectl", version, max_term_width = 100)]
struct Arguments {
    /// file:DIR, memory:, rados:POOL[,KEY=VALUE]... (keys: conf, user, keyring, root, prefix,
    /// op_timeout_secs and more; a wrong one lists them), s3:BUCKET[,KEY=VALUE]... where it is
    /// built in (keys: endpoint, region, prefix, credentials_file and more) or
    /// faulty:seed=N,...:BACKEND (keys: delay_us, delay_permille, error_permille,
    /// unknown_permille), synapse:HOST:PORT or synapse:unix:PATH for a server
    #[arg(short, long, value_name = "BACKEND", env = "CACHECTL_BACKEND")]
    backend: Option<BackendSpec>,

    /// The file with the secret of a synapse: server.
    #[arg(long, value_name = "FILE", env = "CACHECTL_SECRET_FILE")]
    secret_file: Option<std::path::PathBuf>,

    /// The namespace of the objects.
    #[arg(short, long, default_value = "default")]
    namespace: String,

    /// How long a request may take, in seconds, with the way to the server and back; 0 is as long
    /// as it takes.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,

    #[command(flatten)]
    admin: admin::AdminArguments,

    /// Write one JSON value per line instead of text.
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

fn main() -> std::process::ExitCode {
    if let Some(code) = cached_manual::written_on_request(Arguments::command) {
        return code;
    }
    let matches = Arguments::command().get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // A server named by the environment serves objects; a running server is reached through its
    // admin listener.
    let is_named = |option| matches.value_source(option) == Some(ValueSource::CommandLine);
    let names_server = arguments.backend.as_ref().is_some_and(BackendSpec::is_server) && is_named("backend");
    arguments.command.run(&Call {
        backend: arguments.backend.as_ref(),
        secret_file: arguments.secret_file.as_deref(),
        namespace: &arguments.namespace,
        timeout: (arguments.timeout > 0).then(|| Duration::from_secs(arguments.timeout)),
        admin: &arguments.admin,
        over_synapse: names_server && !is_named("url"),
        output: &Output::new(arguments.json),
    })
}
