//! `cached`: reads the command line, says what it serves, serves it.

use cached_server::cli::{Cli, Request, version_text};
use cached_server::{Logging, Server, Settings, process, signals};
use clap::Parser;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

/// `EX_USAGE`: the command line was used wrongly.
const USAGE: u8 = 64;
/// `EX_OSERR`: the system refused something.
const REFUSED: u8 = 71;

fn main() -> ExitCode {
    process::limit_allocator_arenas();
    let bare = std::env::args_os().len() == 1;
    let settings = match Cli::parse().judge(bare) {
        Ok(Request::Version) => {
            println!("{}", version_text());
            return ExitCode::SUCCESS;
        }
        Ok(Request::Serve(settings)) => *settings,
        Err(line) => return fail(USAGE, &line),
    };
    match serve(settings, bare) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => fail(REFUSED, &line),
    }
}

fn fail(code: u8, line: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("cached: {line}");
    ExitCode::from(code)
}

fn serve(settings: Settings, bare: bool) -> Result<(), String> {
    let logging = Logging::install(settings.verbosity);
    let descriptors = process::raise_descriptor_limit(settings.connections_max, settings.threads);
    if descriptors < settings.connections_max as u64 {
        tracing::warn!(descriptors, "fewer file descriptors than connections (-c)");
    }
    let user = settings.user.clone();
    let server = Server::open(settings, logging).map_err(|error| error.to_string())?;
    match user {
        Some(user) if process::is_root() => process::become_user(&user).map_err(|error| error.to_string())?,
        None if process::is_root() => tracing::warn!("running as root; -u names a user to become"),
        _ => {}
    }
    if !bare && server.addresses().iter().any(|address| address.ip().is_unspecified()) {
        tracing::warn!(
            "listening on all interfaces, and anyone who can connect may do anything; -l narrows that"
        );
    }
    greet(&server);
    server.run(signals::end_requested()).map_err(|error| error.to_string())
}

/// Says what is served and how to try it.
fn greet(server: &Server) {
    let mut text = String::from("cached serves memcached's protocols (text, meta, binary)");
    let addresses = server.addresses();
    let places: Vec<String> = (addresses.iter().map(ToString::to_string))
        .chain(server.unix_path().map(|path| path.display().to_string()))
        .collect();
    let _ = writeln!(text, " on {}", places.join(", "));
    if let Some(first) = addresses.first() {
        let host = if first.ip().is_unspecified() { "localhost".into() } else { first.ip().to_string() };
        let command = r"printf 'set greeting 0 0 5\r\nhello\r\nget greeting\r\nquit\r\n'";
        let _ = writeln!(text, "try:    {command} | nc {host} {}", first.port());
    }
    let _ = writeln!(text, "memory: {}", server.limits());
    // Whoever started us may not be listening; that is no reason to stop.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
