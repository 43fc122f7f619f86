//! `cached`: reads the command line, prints what it serves, and serves it.

use cached_server::cli::{self, Request};
use cached_server::config::Secrets;
use cached_server::objects::{Objects, ObjectsError, RunningObjects};
use cached_server::signals::Signals;
use cached_server::{Config, Logging, ServeError, Server, panics, pid_file, process, systemd};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::time::Duration;
use tokio::runtime::Builder;

/// `EX_SOFTWARE`: a defect has ended the program.
const DEFECT: u8 = 70;
/// `EX_NOUSER`: there is no such user.
const NO_USER: u8 = 67;
/// `EX_OSERR`: the system refused something.
const REFUSED: u8 = 71;
/// `EX_IOERR`: acknowledged data could not be stored at the end.
const NOT_STORED: u8 = 74;
/// `EX_CONFIG`: the configuration is invalid, which only opening has shown.
const CONFIGURATION: u8 = 78;

/// The time requested from a service manager beyond the time that storing may take.
const END_MARGIN: Duration = Duration::from_secs(5);

/// Why the program ends: a line, and memcached's exit status.
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
            // Fails if the reader has closed the pipe, as `head` does.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Ok(Request::Serve(config)) => serve(*config, inherited),
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

/// Serves until the end is requested. The order of the first steps is memcached's: those that need root's
/// rights come before the rights are given up, sockets and files come after.
fn serve(config: Config, inherited: Vec<OwnedFd>) -> Result<(), Failure> {
    let signals = Signals::take_over().map_err(Failure::refused)?;
    let settings = &config.settings;
    if settings.core_dumps {
        process::allow_core_dumps().map_err(Failure::refused)?;
    }
    let connections = settings.connections_max + config.object_descriptors();
    let descriptors = process::raise_descriptor_limit(connections, settings.threads);
    // Before the user changes: the files may be readable by root only.
    let secret_warnings = config.secret_warnings();
    let secrets = config.secrets().map_err(|line| Failure { line, status: CONFIGURATION })?;
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
    panics::watch();
    settings.notes.iter().for_each(|note| tracing::warn!("{note}"));
    secret_warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if descriptors < connections as u64 {
        tracing::warn!(descriptors, "fewer file descriptors than connections and files may need");
    }
    if without_user {
        tracing::warn!("running as root; -u names another user to run as");
    }
    if settings.lock_memory
        && let Err(error) = process::lock_memory()
    {
        tracing::warn!(cause = %error, "-k: memory cannot be locked");
    }
    let activated = !inherited.is_empty();
    let (pid_path, daemon) = (settings.pid_file.clone(), settings.daemon);
    let objects = match open_objects(&config, secrets, &signals) {
        Err(ObjectsError::Ended) => return Ok(()),
        Err(ObjectsError::Config(line)) => return Err(Failure { line, status: CONFIGURATION }),
        objects => objects.map_err(Failure::refused)?,
    };
    let server = Server::open_with(config.settings, logging, inherited).map_err(Failure::refused)?;
    if let Some(path) = &pid_path
        && let Err(error) = pid_file::write(path)
    {
        tracing::warn!(cause = %error, path = %path.display(), "cannot write the pid file");
    }
    if !activated && server.addresses().iter().any(|address| address.ip().is_unspecified()) {
        tracing::warn!("listening on all interfaces without access control; -l restricts the addresses");
    }
    let addresses = announce(&server, objects.as_ref());
    let result = run(server, objects, &signals, &addresses);
    if let Some(path) = pid_path.filter(|_| daemon) {
        pid_file::remove(&path);
    }
    result
}

/// Opens the object cache, if one is configured; waits for a store that is away.
fn open_objects(
    config: &Config,
    secrets: Secrets,
    signals: &Signals,
) -> Result<Option<Objects>, ObjectsError> {
    let Some(table) = &config.objects else { return Ok(None) };
    Objects::open(table, config.synapse.as_ref(), secrets, signals.end_requested()).map(Some)
}

/// Serves on all listeners until the end is requested, then ends in order: first no more requests are
/// accepted, then dirty objects are stored.
fn run(server: Server, objects: Option<Objects>, signals: &Signals, addresses: &str) -> Result<(), Failure> {
    let objects = match objects {
        Some(objects) => {
            server.report_objects(objects.statistics());
            Some(objects.serve().map_err(Failure::refused)?)
        }
        None => None,
    };
    let shutdown = objects.as_ref().map(|objects| (objects.shutdown_handle(), objects.shutdown_time_max()));
    systemd::notify(&format!("READY=1\nMAINPID={}\nSTATUS=Serving {addresses}", std::process::id()));
    let end = async {
        tokio::select! {
            () = signals.end_requested() => {}
            () = panics::happened() => tracing::error!("a thread has panicked: the server ends"),
        }
        match &shutdown {
            None => systemd::notify("STOPPING=1"),
            Some((objects, time_max)) => {
                objects.request();
                request_time(*time_max);
            }
        }
    };
    // After a panic on this thread, too, objects are stored before the end.
    let served = panic::catch_unwind(AssertUnwindSafe(|| server.run(end)));
    let stored = objects.map_or(Ok(()), |objects| store(objects, signals));
    let defect = match (served, panics::first()) {
        (_, Some(first)) => first.to_owned(),
        (Ok(Ok(())), None) => return stored,
        (Ok(Err(error @ ServeError::Thread(_))), None) => return stored.and(Err(Failure::refused(error))),
        (Ok(Err(error)), None) => error.to_string(),
        // The panic hook has recorded it, unless another hook has replaced it.
        (Err(_), None) => "a panic".to_owned(),
    };
    let line = format!("a defect of cached has ended it: {defect}");
    match stored {
        Ok(()) => Err(Failure { line, status: DEFECT }),
        Err(Failure { line: lost, status }) => Err(Failure { line: format!("{line}\n{lost}"), status }),
    }
}

/// Stores dirty objects, unless a second signal forces the end.
fn store(objects: RunningObjects, signals: &Signals) -> Result<(), Failure> {
    // Also when a client has requested the end.
    request_time(objects.shutdown_time_max());
    let runtime = Builder::new_current_thread().enable_all().build().map_err(Failure::refused)?;
    let forced = async {
        signals.end_requested().await;
        tracing::warn!("a second signal forces the end");
    };
    let stored = runtime.block_on(objects.shut_down(forced));
    stored.map_err(|error| Failure { line: error.to_string(), status: NOT_STORED })
}

/// Requests time for the end from the service manager.
fn request_time(time_max: Duration) {
    let micros = (time_max + END_MARGIN).as_micros();
    systemd::notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS=Storing objects"));
}

/// Prints what is served and how to try it; returns the memcached addresses.
fn announce(server: &Server, objects: Option<&Objects>) -> String {
    let mut text = String::from("cached serves memcached's protocols (text, meta, binary)");
    let addresses = server.addresses();
    let all: Vec<String> = (addresses.iter().map(ToString::to_string))
        .chain(server.unix_path().map(|path| path.display().to_string()))
        .collect();
    let all = all.join(", ");
    let _ = writeln!(text, " on {all}");
    if let Some(first) = addresses.first() {
        let host = if first.ip().is_unspecified() { "localhost".into() } else { first.ip().to_string() };
        let command = r"printf 'set greeting 0 0 5\r\nhello\r\nget greeting\r\nquit\r\n'";
        let _ = writeln!(text, "try:    {command} | nc {host} {}", first.port());
    }
    let mut limits = server.limits();
    if let Some(objects) = objects {
        limits = limits.with_objects(objects.memory_bytes_max(), objects.listener_bytes_max());
        let listeners = objects.addresses();
        let listeners = match listeners.is_empty() {
            true => "nowhere: there is no [synapse]".into(),
            false => listeners.join(", "),
        };
        let _ = writeln!(text, "objects on {listeners}");
    }
    let _ = writeln!(text, "memory: {limits}");
    // Fails if standard output is closed, which is no reason to stop.
    let _ = std::io::stdout().write_all(text.as_bytes());
    all
}
