//! `cached`: reads the command line, says what it serves, serves it.

use cached_server::cli::{self, Request};
use cached_server::signals::Signals;
use cached_server::{Logging, Server, Settings, pid_file, process, systemd};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

/// `EX_NOUSER`: there is no such user.
const NO_USER: u8 = 67;
/// `EX_OSERR`: the system refused something.
const REFUSED: u8 = 71;

/// Why there is no server: a line, and memcached's exit status.
struct Failure {
    line: String,
    status: u8,
}

impl Failure {
    fn refused(cause: impl std::fmt::Display) -> Failure {
        Failure { line: cause.to_string(), status: REFUSED }
    }
}

fn main() -> ExitCode {
    process::limit_allocator_arenas();
    let inherited = systemd::inherited_sockets();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let result = match cli::read(&arguments) {
        Ok(Request::Print(text)) => {
            // Whoever asked may have stopped listening, as `head` does.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Ok(Request::Serve(config)) => serve(config.settings, inherited),
        Err(error) => Err(Failure { line: error.to_string(), status: error.status }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { line, status }) => {
            eprintln!("{line}");
            ExitCode::from(status)
        }
    }
}

/// Serves until asked to end. The order of the first steps is memcached's: what needs root's rights comes before they
/// are given up, sockets and files come after.
fn serve(settings: Settings, inherited: Vec<OwnedFd>) -> Result<(), Failure> {
    let signals = Signals::take_over().map_err(Failure::refused)?;
    if settings.core_dumps {
        process::allow_core_dumps().map_err(Failure::refused)?;
    }
    let descriptors = process::raise_descriptor_limit(settings.connections_max, settings.threads);
    let without_user = process::is_root() && settings.user.is_none();
    if let Some(user) = settings.user.as_deref().filter(|_| process::is_root()) {
        process::become_user(user).map_err(|error| {
            let unknown = error.kind() == std::io::ErrorKind::NotFound;
            Failure { line: error.to_string(), status: if unknown { NO_USER } else { REFUSED } }
        })?;
    }
    if settings.daemon {
        process::daemonize(settings.core_dumps, settings.verbosity > 0).map_err(|error| Failure {
            line: format!("failed to daemon() in order to daemonize: {error}"),
            status: 1,
        })?;
    }
    let logging = Logging::install(settings.verbosity);
    settings.notes.iter().for_each(|note| tracing::warn!("{note}"));
    if descriptors < settings.connections_max as u64 {
        tracing::warn!(descriptors, "fewer file descriptors than connections (-c)");
    }
    if without_user {
        tracing::warn!("running as root; -u names a user to become");
    }
    if settings.lock_memory
        && let Err(error) = process::lock_memory()
    {
        tracing::warn!(cause = %error, "-k: memory cannot be locked");
    }
    let activated = !inherited.is_empty();
    let (pid_path, daemon) = (settings.pid_file.clone(), settings.daemon);
    let server = Server::open_with(settings, logging, inherited).map_err(Failure::refused)?;
    if let Some(path) = &pid_path
        && let Err(error) = pid_file::write(path)
    {
        tracing::warn!(cause = %error, path = %path.display(), "cannot write the pid file");
    }
    if !activated && server.addresses().iter().any(|address| address.ip().is_unspecified()) {
        tracing::warn!(
            "listening on all interfaces, and anyone who can connect may do anything; -l narrows that"
        );
    }
    let places = greet(&server);
    systemd::notify(&format!("READY=1\nMAINPID={}\nSTATUS=Serving {places}", std::process::id()));
    let end = async {
        signals.end_requested().await;
        systemd::notify("STOPPING=1");
    };
    let result = server.run(end).map_err(Failure::refused);
    if let Some(path) = pid_path.filter(|_| daemon) {
        pid_file::remove(&path);
    }
    result
}

/// Says what is served and how to try it; returns where.
fn greet(server: &Server) -> String {
    let mut text = String::from("cached serves memcached's protocols (text, meta, binary)");
    let addresses = server.addresses();
    let places: Vec<String> = (addresses.iter().map(ToString::to_string))
        .chain(server.unix_path().map(|path| path.display().to_string()))
        .collect();
    let places = places.join(", ");
    let _ = writeln!(text, " on {places}");
    if let Some(first) = addresses.first() {
        let host = if first.ip().is_unspecified() { "localhost".into() } else { first.ip().to_string() };
        let command = r"printf 'set greeting 0 0 5\r\nhello\r\nget greeting\r\nquit\r\n'";
        let _ = writeln!(text, "try:    {command} | nc {host} {}", first.port());
    }
    let _ = writeln!(text, "memory: {}", server.limits());
    // Whoever started us may not be listening; that is no reason to stop.
    let _ = std::io::stdout().write_all(text.as_bytes());
    places
}
