//! `cached`: reads the command line, says what it serves, serves it.

use cached_server::cli::{self, Request};
use cached_server::config::Secrets;
use cached_server::objects::{Objects, ObjectsError, Serving};
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

/// `EX_SOFTWARE`: a defect of the program has ended it.
const DEFECT: u8 = 70;
/// `EX_NOUSER`: there is no such user.
const NO_USER: u8 = 67;
/// `EX_OSERR`: the system refused something.
const REFUSED: u8 = 71;
/// `EX_IOERR`: something that was acknowledged could not be stored at the end.
const NOT_STORED: u8 = 74;
/// `EX_CONFIG`: the configuration cannot work, as it turned out late.
const CONFIGURATION: u8 = 78;

/// What a service manager is asked for beyond the time that storing may take.
const END_MARGIN: Duration = Duration::from_secs(5);

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

/// Serves until asked to end. The order of the first steps is memcached's: what needs root's rights comes
/// before they are given up, sockets and files come after.
fn serve(config: Config, inherited: Vec<OwnedFd>) -> Result<(), Failure> {
    let signals = Signals::take_over().map_err(Failure::refused)?;
    let settings = &config.settings;
    if settings.core_dumps {
        process::allow_core_dumps().map_err(Failure::refused)?;
    }
    let connections = settings.connections_max + config.object_descriptors();
    let descriptors = process::raise_descriptor_limit(connections, settings.threads);
    // Perhaps for root's eyes only.
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
        tracing::warn!("running as root; -u names a user to become");
    }
    if settings.lock_memory
        && let Err(error) = process::lock_memory()
    {
        tracing::warn!(cause = %error, "-k: memory cannot be locked");
    }
    let activated = !inherited.is_empty();
    let (pid_path, daemon) = (settings.pid_file.clone(), settings.daemon);
    let objects = open_objects(&config, secrets)?;
    let server = Server::open_with(config.settings, logging, inherited).map_err(Failure::refused)?;
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
    let places = greet(&server, objects.as_ref());
    let result = run(server, objects, &signals, &places);
    if let Some(path) = pid_path.filter(|_| daemon) {
        pid_file::remove(&path);
    }
    result
}

/// The object cache, if one is configured.
fn open_objects(config: &Config, secrets: Secrets) -> Result<Option<Objects>, Failure> {
    let Some(table) = &config.objects else { return Ok(None) };
    let objects = Objects::open(table, config.synapse.as_ref(), secrets);
    objects.map(Some).map_err(|error| match error {
        ObjectsError::Config(line) => Failure { line, status: CONFIGURATION },
        other => Failure::refused(other),
    })
}

/// Serves at all doors until asked to end, then ends in order: first nothing more comes in, then what is
/// dirty is stored.
fn run(server: Server, objects: Option<Objects>, signals: &Signals, places: &str) -> Result<(), Failure> {
    let objects = match objects {
        Some(objects) => {
            server.report_objects(objects.figures());
            Some(objects.serve().map_err(Failure::refused)?)
        }
        None => None,
    };
    let ender = objects.as_ref().map(|objects| (objects.ender(), objects.end_max()));
    systemd::notify(&format!("READY=1\nMAINPID={}\nSTATUS=Serving {places}", std::process::id()));
    let end = async {
        tokio::select! {
            () = signals.end_requested() => {}
            () = panics::happened() => tracing::error!("a thread has panicked: the server ends"),
        }
        match &ender {
            None => systemd::notify("STOPPING=1"),
            Some((objects, most)) => {
                objects.ask();
                ask_for_time(*most);
            }
        }
    };
    // A panic on this thread, too, is no reason to leave before objects are stored.
    let served = panic::catch_unwind(AssertUnwindSafe(|| server.run(end)));
    let stored = objects.map_or(Ok(()), |objects| store(objects, signals));
    let defect = match (served, panics::first()) {
        (_, Some(first)) => first.to_owned(),
        (Ok(Ok(())), None) => return stored,
        (Ok(Err(error @ ServeError::Thread(_))), None) => return stored.and(Err(Failure::refused(error))),
        (Ok(Err(error)), None) => error.to_string(),
        // The hook has seen it, unless another has taken its place.
        (Err(_), None) => "a panic".to_owned(),
    };
    let line = format!("a defect of cached has ended it: {defect}");
    match stored {
        Ok(()) => Err(Failure { line, status: DEFECT }),
        Err(Failure { line: lost, status }) => Err(Failure { line: format!("{line}\n{lost}"), status }),
    }
}

/// Stores what is dirty, unless a second signal forbids it.
fn store(objects: Serving, signals: &Signals) -> Result<(), Failure> {
    // Also when a client has asked for the end.
    ask_for_time(objects.end_max());
    let ended = Builder::new_current_thread().enable_all().build().map_err(Failure::refused)?;
    let forced = async {
        signals.end_requested().await;
        tracing::warn!("asked to end again");
    };
    let stored = ended.block_on(objects.end(forced));
    stored.map_err(|unfinished| Failure { line: unfinished.to_string(), status: NOT_STORED })
}

/// Tells the service manager how long the end may take.
fn ask_for_time(most: Duration) {
    let micros = (most + END_MARGIN).as_micros();
    systemd::notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS=Storing objects"));
}

/// Says what is served and how to try it; returns where.
fn greet(server: &Server, objects: Option<&Objects>) -> String {
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
    let mut limits = server.limits();
    if let Some(objects) = objects {
        limits = limits.with_objects(objects.memory_bytes_max(), objects.door_bytes_max());
        let doors = objects.places();
        let doors = if doors.is_empty() { "nowhere: there is no [synapse]".into() } else { doors.join(", ") };
        let _ = writeln!(text, "objects on {doors}");
    }
    let _ = writeln!(text, "memory: {limits}");
    // Whoever started us may not be listening; that is no reason to stop.
    let _ = std::io::stdout().write_all(text.as_bytes());
    places
}
