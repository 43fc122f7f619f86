//! `cachectl`: a command-line tool for any backend, and for running servers.
//!
//! ```text
//! cachectl --backend file:DIR put NAME FILE
//! ```
//!
//! The subcommands are in `command/`; `backend` opens what `--backend` names. Output goes to
//! standard output, as text or with `--json` as one JSON value per line; progress and errors go to
//! standard error, an error as one line. The exit code is the kind of the error, see [`output`].

// The print macros panic when the reader of the output has gone: see `Output`.
#![warn(clippy::print_stdout, clippy::print_stderr)]

mod admin;
mod backend;
mod command;
mod output;
mod servers;

use std::cell::OnceCell;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches, Parser};

use backend::BackendSpec;
use command::{Call, Command};
use output::Output;
use servers::{Given, Servers};

/// Access a storage backend of cached (put, get, copy, list, flush, test it against the contract), or
/// operate a running cached or synapsed.
///
/// Exit codes: 0 success, 1 failure, 2 invalid usage, 3 no such object, namespace or volume, 4
/// refused (exists, condition, fenced, denied), 5 try again later (busy, out of space, not stored),
/// 6 corrupt or lost, 7 unknown outcome, 130 interrupted, 141 the reader of the output has closed
/// it. fsck and journal have their own exit codes.
#[derive(Parser)]
#[command(name = "cachectl", version, max_term_width = 100)]
struct Arguments {
    /// The store: file:DIR; memory:; rados:POOL[,KEY=VALUE]... (keys: conf, user, keyring, root,
    /// prefix, op_timeout_secs, ...); s3:BUCKET[,KEY=VALUE]... if built with S3 support (keys:
    /// endpoint, region, prefix, credentials_file, ...); synapse:HOST:PORT or synapse:unix:PATH for a
    /// server; faulty:seed=N,...:BACKEND for fault injection (keys: delay_us, delay_permille,
    /// error_permille, unknown_permille). An unknown key prints the full list
    #[arg(short, long, value_name = "BACKEND", env = "CACHECTL_BACKEND")]
    backend: Option<BackendSpec>,

    /// The file with the secret that a synapse: server requires.
    #[arg(long, value_name = "FILE", env = "CACHECTL_SECRET_FILE")]
    secret_file: Option<std::path::PathBuf>,

    /// The namespace of the objects.
    #[arg(short, long, default_value = "default")]
    namespace: String,

    /// The maximum duration of a request, including the transfer: seconds, or with a unit, as in
    /// 5min; 0 for no limit.
    #[arg(long, value_name = "DURATION", default_value_t = 60, value_parser = command::seconds)]
    timeout: u64,

    #[command(flatten)]
    admin: admin::AdminArguments,

    /// The context, a server that has a name (see cachectl contexts). It names the server of
    /// commands for which neither --admin nor --backend does; cachectl use --help states the whole
    /// rule.
    #[arg(long, value_name = "NAME", env = "CACHECTL_CONTEXT", global = true)]
    context: Option<String>,

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
    let is_environment = |option| matches.value_source(option) == Some(ValueSource::EnvVariable);
    let admin = &arguments.admin;
    let servers = Servers {
        admin: Given::of(admin.url.as_deref(), is_environment("url")),
        token_file: Given::of(admin.token_file.as_deref(), is_environment("token_file")),
        ca_file: Given::of(admin.ca_file.as_deref(), is_environment("ca_file")),
        backend: Given::of(arguments.backend.as_ref(), is_environment("backend")),
        secret_file: Given::of(arguments.secret_file.as_deref(), is_environment("secret_file")),
        context: Given::of(arguments.context.as_deref(), is_environment("context")),
        contexts: OnceCell::new(),
    };
    arguments.command.run(&Call {
        servers: &servers,
        namespace: &arguments.namespace,
        timeout: (arguments.timeout > 0).then(|| Duration::from_secs(arguments.timeout)),
        output: &Output::new(arguments.json),
    })
}
