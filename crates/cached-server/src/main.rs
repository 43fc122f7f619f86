//! `cached`: reads the command line, prints what it serves, and serves it.

use blocker::metrics::Registration;
use cached_admin::{AdminServer, Health, control};
use cached_memcached::{
    Logging, MemoryFileStart, ObjectHandOver, PreparedServer, Program, ServeError, Server, TakeOver,
    TakingOver, Upgrader, raise_descriptor_limit,
};
use cached_objects::{ObjectSockets, Objects, ObjectsControl, ObjectsError, RunningObjects};
use cached_process::log::{Format, Level, Log, print_err, print_out};
use cached_process::reload::{LiveSecs, Reloader, Reloads};
use cached_process::signals::{Requested, Signals};
use cached_process::{Drain, Exit, Failure, first_panic, log_start, memory, panicked, watch_panics};
use cached_server::cli::{self, Request};
use cached_server::config::{AdminTable, Loaded, Secrets, TracingTable};
use cached_server::hand_over::HandOver;
use cached_server::process::Parent;
use cached_server::reload::{self, Cached, LiveParts};
use cached_server::ring::{Joined, Steward};
use cached_server::sidecar::RunningSidecar;
use cached_server::{Config, process};
use cached_tracing::{Exporter, Origin};
use std::cell::Cell;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Builder;

/// The time requested from a service manager in addition to the time that storing may take.
const END_MARGIN: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    if let Some(code) = cached_manual::written_on_request(cli::command) {
        return code;
    }
    memory::configure_allocator();
    watch_panics();
    let parent = Cell::new(None);
    match run(&parent) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match parent.take() {
                Some(parent) => parent.failed(&failure),
                None => print_err(Level::Error, module_path!(), &failure.to_string()),
            }
            failure.exit().into()
        }
    }
}

/// Executes the command line. `parent` holds the process that waits for the outcome of a daemon's
/// startup.
fn run(parent: &Cell<Option<Parent>>) -> Result<(), Failure> {
    let take_over = TakeOver::from_environment().map_err(refused)?;
    let inherited = process::inherited_sockets();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match cli::read(&arguments, None)? {
        Request::Print(text) => {
            // This fails if the reader has closed the pipe, as `head` does.
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(())
        }
        Request::Serve(config) => serve(*config, arguments, inherited, take_over, parent),
    }
}

fn refused(cause: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Refused, cause)
}

/// Returns the failure for a temporary lack of threads, descriptors or memory in the system.
fn trouble(cause: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Trouble, cause)
}

/// Serves until the shutdown is requested. Mistakes are reported first, before anything is changed.
/// After that, the order is memcached's: operations that require root precede the drop of root's
/// privileges; sockets and files come afterwards.
fn serve(
    mut config: Config,
    arguments: Vec<OsString>,
    inherited: Vec<OwnedFd>,
    mut take_over: Option<TakeOver>,
    parent: &Cell<Option<Parent>>,
) -> Result<(), Failure> {
    let program = Program::of_this_process(&arguments);
    let signals = Signals::take_over().map_err(trouble)?;
    // The files are read before the user changes, because only root may be able to read them.
    let loaded = config.load()?;
    let Loaded { secrets, tokens, ring, tls, admin_tls, listeners, s3_tls, s3_secrets } = loaded;
    config.join(ring);
    let settings = &config.settings;
    let http_keys = listeners.http_keys.clone();
    let secret_warnings = config.secret_warnings();
    if settings.core_dumps {
        process::allow_core_dumps().map_err(refused)?;
    }
    let connections = config.descriptors_max();
    let descriptors = raise_descriptor_limit(connections, settings.threads);
    let without_user = process::is_root() && settings.user.is_none();
    if let Some(user) = settings.user.as_deref().filter(|_| process::is_root()) {
        process::become_user(user).map_err(refused)?;
    }
    // A process that takes over is a child of one that has already detached from the terminal.
    if settings.daemon && take_over.is_none() {
        let left = process::daemonize(settings.core_dumps, settings.verbosity > 0);
        let failed = |error| trouble(format_args!("failed to daemon() in order to daemonize: {error}"));
        parent.set(Some(left.map_err(failed)?));
    }
    let log = Log::install(settings.log);
    let logging = Logging::over(log.clone(), settings.log.level, settings.verbosity);
    log_start("cached", env!("CARGO_PKG_VERSION"), config.path.as_deref());
    settings.notes.iter().for_each(|note| tracing::warn!("{note}"));
    secret_warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if tls.as_ref().is_some_and(|tls| settings.refuses_all_clients(tls)) {
        tracing::warn!(
            "a listener requires client certificates (mtls:), but no certificate authority is configured \
             (ssl_ca_cert, ca_file): the listener serves no client"
        );
    }
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
    // The admin listener opens first, so that it responds while the startup waits for the store.
    let admin_sockets = take_over.as_mut().map_or_else(Vec::new, TakeOver::take_admin_sockets);
    let open_admin = |table: &AdminTable| {
        let mut config = table.config(tokens.clone(), admin_tls);
        config.inherited =
            admin_sockets.into_iter().map(|(name, socket)| (name, Arc::new(socket.into()))).collect();
        // The running process responds until this one serves.
        config.is_held = take_over.is_some();
        AdminServer::start(config, "cached", env!("CARGO_PKG_VERSION"))
    };
    let mut admin = config.file.admin.as_ref().map(open_admin).transpose()?;
    let admin_sockets = admin.as_mut().map_or_else(Vec::new, AdminServer::take_sockets);
    let admin = admin.map(Arc::new);
    let exporter =
        config.file.tracing.as_ref().map(|table| start_tracing(table, admin.as_deref())).transpose()?;
    let tracer = exporter.as_ref().map(|(exporter, _)| exporter.tracer());
    let open_objects = |config: &Config, secrets, sockets| {
        let Some(service) = config.service() else { return Ok(Some(None)) };
        let end = pin!(signals.end_requested("while the store is being opened"));
        match Objects::open(service, listeners, secrets, sockets, end, admin.as_ref(), tracer.as_ref()) {
            Err(ObjectsError::Ended) => Ok(None),
            Ok(objects) => Ok(Some(Some(objects))),
            Err(error) => Err(error.failure(config.path.as_deref())),
        }
    };
    let is_taking_over = take_over.is_some();
    let show = |line: &str| admin.iter().for_each(|admin| admin.health().set_starting(line));
    let join = |config: &Config, secrets: &Secrets| {
        let end = pin!(signals.end_requested("while the registry is being read"));
        Joined::join(config, secrets, !is_taking_over, end, show)
    };
    let start = MemoryFileStart::new(admin.as_deref());
    let on_taking_over = |now: &TakingOver| {
        if !is_taking_over {
            start.show(now);
        }
        if signals.is_end_requested("while the memory file is taken over") {
            // The file's content is left unchanged, so the next start is like one after a kill.
            tracing::info!("shut down before the memory file was taken over");
            std::process::exit(0);
        }
    };
    let (objects, mut server, joined) = match take_over {
        None => {
            let Some(mut joined) = join(&config, &secrets)? else { return Ok(()) };
            joined.iter().for_each(|joined| config.set_ring_map(joined.map()));
            let Some(objects) = open_objects(&config, secrets, None)? else { return Ok(()) };
            let settings = config.settings.clone();
            let mut server = Server::open_with(settings, logging, inherited, tls, &on_taking_over)?;
            if let Some(joined) = &mut joined {
                let end = pin!(signals.end_requested("while the registry is being read"));
                if !joined.join_again(&config, end, show)? {
                    return Ok(());
                }
                server.set_ring_map(joined.map());
            }
            (objects, server, joined)
        }
        Some(mut take_over) => {
            let sockets =
                ObjectSockets::take_over(config.service().as_ref(), take_over.take_object_sockets());
            let sockets = sockets.map_err(|error| error.failure(config.path.as_deref()))?;
            let mut server = PreparedServer::new(config.settings.clone(), logging, take_over, tls)?;
            server.wait_for_store()?;
            // From now on, the running process gives no slots to other nodes.
            let Some(joined) = join(&config, &secrets)? else { return Ok(()) };
            joined.iter().for_each(|joined| {
                config.set_ring_map(joined.map());
                server.set_ring_map(joined.map());
            });
            let Some(objects) = open_objects(&config, secrets, Some(sockets))? else { return Ok(()) };
            (objects, server.take_over(&on_taking_over)?, joined)
        }
    };
    let steward = joined
        .map(|joined| Steward::start(joined, (server.live(), server.drain()), admin.as_deref()))
        .transpose()?;
    let sidecar = RunningSidecar::start(&config, s3_tls, s3_secrets.clone(), admin.as_deref())?;
    let upgrades = if let Some(obstacle) = objects.as_ref().and_then(|objects| objects.control().obstacle()) {
        Err(obstacle)
    } else if sidecar.is_some() {
        Err("the listener of [s3] cannot be handed over; restart instead")
    } else if config.settings.shared_memory.is_some() {
        // After a failed upgrade, this process opens its object cache again, whose memory the items
        // may have taken.
        Err("items and objects share memory ([shared_memory]), which cannot be handed over; restart instead")
    } else if std::process::id() == 1 {
        Err("process 1 cannot hand over: its end is the end of the container")
    } else {
        let parts = HandOver {
            objects: objects.as_ref().map(Objects::control),
            ring: steward.as_ref().map(Steward::control),
        };
        let is_any = parts.objects.is_some() || parts.ring.is_some();
        server.allow_upgrades(
            program,
            admin_sockets,
            is_any.then(|| Arc::new(parts) as Arc<dyn ObjectHandOver>),
        );
        Ok(server.upgrader())
    };
    tracer.iter().for_each(|tracer| server.trace(tracer.clone()));
    let in_force = reload::source(&arguments, config.path.as_deref().zip(config.text.as_deref()))
        .map_err(|line| Failure::new(Exit::Configuration, line))?;
    let parts = LiveParts {
        server: server.live(),
        objects: objects.as_ref().map(Objects::live),
        http_keys,
        tokens,
        tracer,
        sidecar_secrets: s3_secrets,
        sidecar: sidecar.as_ref().map(RunningSidecar::live),
    };
    let reloader = Arc::new(Reloader::new(Cached::new(arguments, &config, parts), in_force));
    if let Some(admin) = &admin {
        control::add_routes(admin.routes(), &reloader, &server.drain(), &log);
    }
    let write_pid_file = || {
        let Some(path) = &pid_path else { return };
        if let Err(error) = process::write_pid_file(path, is_taking_over) {
            tracing::warn!(cause = %error, path = %path.display(), "cannot write the pid file");
        }
    };
    if !is_taking_over {
        write_pid_file();
    }
    let is_open = !config.settings.auth.is_required();
    if !activated && is_open && server.addresses().iter().any(|address| address.ip().is_unspecified()) {
        tracing::warn!("listening on all interfaces without access control; -l restricts the addresses");
    }
    let addresses = announce(&server, objects.as_ref(), sidecar.as_ref(), admin.as_deref());
    let upgrader = server.upgrader();
    let serving = || {
        if is_taking_over {
            write_pid_file();
        }
        steward.iter().for_each(Steward::begin);
        parent.take().into_iter().for_each(Parent::serves);
    };
    let requests = Requests { signals: &signals, reloader: &reloader, upgrades };
    let parts = (objects, sidecar, steward.as_ref());
    let result = until_served(server, parts, &requests, &addresses, admin.as_deref(), serving);
    // A node that signs off has a few seconds for it.
    drop(steward);
    if let Some(path) = pid_path.as_ref().filter(|_| daemon && !upgrader.is_done()) {
        process::remove_pid_file(path);
    }
    result
}

/// Starts the exporter of spans, and shows its metrics until the result is dropped.
fn start_tracing(
    table: &TracingTable,
    admin: Option<&AdminServer>,
) -> Result<(Exporter, Option<Registration>), Failure> {
    let origin = Origin { program: "cached", version: env!("CARGO_PKG_VERSION") };
    let exporter = Exporter::start(table, origin).map_err(trouble)?;
    let none = std::iter::empty::<(&str, &str)>;
    let shown = admin.map(|admin| admin.registry().register(exporter.metrics(), none()));
    Ok((exporter, shown))
}

/// Serves on all listeners until the shutdown is requested. Then shuts down in order: first,
/// requests are no longer accepted; then dirty objects are stored.
fn until_served(
    server: Server,
    (objects, sidecar, steward): (Option<Objects>, Option<RunningSidecar>, Option<&Steward>),
    requests: &Requests<'_>,
    addresses: &str,
    admin: Option<&AdminServer>,
    serving: impl FnOnce(),
) -> Result<(), Failure> {
    let signals = requests.signals;
    let shown = admin.map(|admin| server.show(admin));
    let objects = match objects {
        Some(objects) => {
            server.report_objects(objects.statistics());
            Some(objects.serve(server.live().drain_timeout).map_err(|error| error.failure(None))?)
        }
        None => None,
    };
    let shutdown = objects.as_ref().map(|objects| (objects.control(), objects.shutdown_time_max()));
    let (drain, delay, upgrader) = (server.drain(), server.live().drain_delay, server.upgrader());
    let memory_file_end = server.memory_file_end();
    let health = admin.map(AdminServer::health);
    let control = objects.as_ref().map(RunningObjects::control);
    let has_served = Cell::new(false);
    let serving = || {
        has_served.set(true);
        serving();
        control.iter().for_each(ObjectsControl::serve);
        // The probes come first, because they may be asked as soon as READY=1 is sent.
        health.into_iter().for_each(Health::set_started);
        admin.into_iter().for_each(AdminServer::accept);
        let pid = std::process::id();
        cached_config::notify(&format!("READY=1\nMAINPID={pid}\nSTATUS=Serving {addresses}"));
    };
    let draining = || health.into_iter().for_each(|health| health.set_draining("the end was requested"));
    let end = async {
        until_end(requests, &drain).await;
        draining();
        let time_max = shutdown.as_ref().map_or(Duration::ZERO, |(_, time_max)| *time_max);
        request_time(delay.get() + time_max + memory_file_end);
        if first_panic().is_none() {
            serve_on(signals, &delay).await;
        }
        steward.iter().for_each(|steward| steward.request_end());
        sidecar.iter().for_each(RunningSidecar::request_end);
        if let Some((objects, _)) = &shutdown {
            objects.end();
        }
    };
    // Even after a panic on this thread, objects are stored before the process exits.
    let served = panic::catch_unwind(AssertUnwindSafe(|| server.run_with(end, serving)));
    // Before objects are stored, which may take longer than the lease of the ring's node.
    let in_order = matches!(served, Ok(Ok(()))) && first_panic().is_none() && !upgrader.is_done();
    steward.iter().for_each(|steward| steward.server_ended(in_order));
    // This is also necessary if a client has requested the shutdown.
    draining();
    // The sources of the admin listener hold handles of the object cache, and the store closes only
    // after the last handle.
    drop(shown);
    // Dropping the sidecar waits for its clients, for as long as the drain may take.
    drop(sidecar);
    if let Some(successor) = upgrader.successor() {
        pass_on_end(signals, &drain, successor);
    }
    let stored = match objects {
        Some(objects) if has_served.get() && !upgrader.is_done() => store(objects, signals),
        // There is no object cache, the cache has acknowledged nothing, or another process has its
        // store.
        _ => Ok(()),
    };
    let defect = match (served, first_panic()) {
        (_, Some(first)) => first.to_owned(),
        (Ok(Ok(())), None) => return stored,
        (Ok(Err(error @ ServeError::Thread(_))), None) => return stored.and(Err(trouble(error))),
        (Ok(Err(error @ ServeError::TakeOver(_))), None) => return stored.and(Err(refused(error))),
        (Ok(Err(error)), None) => error.to_string(),
        // The panic hook has recorded the panic, unless another hook has replaced it.
        (Err(_), None) => "a panic".to_owned(),
    };
    let line = format!("cached has ended because of a defect: {defect}");
    match stored {
        Ok(()) => Err(Failure::new(Exit::Defect, line)),
        Err(lost) => Err(lost.after(&line)),
    }
}

/// The sources and targets of requests to the process.
struct Requests<'a> {
    signals: &'a Signals,
    reloader: &'a Arc<Reloader>,
    /// The means to request an upgrade, or the reason why no other process can take over.
    upgrades: Result<Upgrader, &'static str>,
}

/// Waits until the shutdown is requested. On request, reloads the configuration, or starts a new
/// process that takes over.
async fn until_end(requests: &Requests<'_>, drain: &Drain) {
    let mut reloads = Reloads::new(requests.reloader);
    loop {
        let requested = tokio::select! {
            requested = requests.signals.requested() => requested,
            () = drain.requested() => return,
            never = reloads.run() => never,
            () = panicked() => {
                tracing::error!("a thread has panicked: the server ends");
                Requested::End
            }
        };
        match (requested, &requests.upgrades) {
            (Requested::End, _) => return drain.request(),
            (Requested::Upgrade, Ok(upgrader)) => upgrader.request(),
            (Requested::Upgrade, Err(line)) => tracing::warn!("SIGUSR2: {line}"),
            (Requested::Reload, _) => reloads.request(),
        }
    }
}

/// Waits for as long as load balancers may still send clients here; a second signal ends the wait.
async fn serve_on(signals: &Signals, delay: &LiveSecs) {
    if delay.get().is_zero() {
        return;
    }
    tracing::info!(
        delay_secs = delay.get().as_secs(),
        "no longer ready; the listeners close after the delay"
    );
    tokio::select! {
        () = tokio::time::sleep(delay.get()) => {}
        () = signals.end_requested("while the process ends") => {}
    }
}

/// If the shutdown of this process was requested while the other process took over, requests the
/// shutdown of that process.
fn pass_on_end(signals: &Signals, drain: &Drain, successor: u32) {
    if !drain.is_requested() && !signals.is_end_requested("after another process has taken over") {
        return;
    }
    tracing::info!(pid = successor, "the shutdown request is forwarded to the process that has taken over");
    if let Err(error) = process::request_end(successor) {
        tracing::error!(cause = %error, pid = successor, "the shutdown request cannot be forwarded");
    }
}

/// Stores dirty objects, unless a second signal forces the end.
fn store(objects: RunningObjects, signals: &Signals) -> Result<(), Failure> {
    // This is also necessary if a client has requested the shutdown.
    request_time(objects.shutdown_time_max());
    let runtime = Builder::new_current_thread().enable_all().build().map_err(trouble)?;
    let forced = async {
        signals.end_requested("while the process ends").await;
        tracing::warn!("a second signal forces the end");
    };
    let stored = runtime.block_on(objects.shut_down(forced));
    stored.map_err(|error| Failure::new(Exit::NotStored, error))
}

/// Requests time for the shutdown from the service manager.
fn request_time(time_max: Duration) {
    let micros = (time_max + END_MARGIN).as_micros();
    cached_config::notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS=Ending"));
}

/// Prints the served addresses and how to try them. Returns the memcached addresses.
fn announce(
    server: &Server,
    objects: Option<&Objects>,
    sidecar: Option<&RunningSidecar>,
    admin: Option<&AdminServer>,
) -> String {
    let mut text = String::from("cached serves memcached's protocols (text, meta, binary)");
    let addresses = server.addresses();
    let all: Vec<String> = (addresses.iter().map(ToString::to_string))
        .chain(server.unix_path().map(|path| path.display().to_string()))
        .chain(server.udp_addresses().iter().map(|address| format!("udp:{address}")))
        .collect();
    let all = all.join(", ");
    let _ = writeln!(text, " on {all}");
    // This example is for people, and of no use among the lines of a JSON log.
    if let Some(first) = addresses.first().filter(|_| Format::outside() == Format::Text) {
        let host = if first.ip().is_unspecified() { "localhost".into() } else { first.ip().to_string() };
        let command = r"printf 'set greeting 0 0 5\r\nhello\r\nget greeting\r\nquit\r\n'";
        let _ = match server.has_tls() {
            false => writeln!(text, "try:    {command} | nc {host} {}", first.port()),
            true => {
                writeln!(text, "try:    {command} | openssl s_client -quiet -connect {host}:{}", first.port())
            }
        };
    }
    let mut limits = server.limits();
    if let Some(objects) = objects {
        limits.objects = objects.memory_bytes_max() as usize;
        limits.object_listener = objects.listener_bytes_max() as usize;
        let (listeners, http) = (objects.addresses(), objects.http_addresses());
        if let Some((node, address)) = objects.candidate() {
            let _ = writeln!(text, "objects on {address} while {node} leads: the writer is elected");
        } else if listeners.is_empty() && http.is_empty() {
            let _ = writeln!(text, "objects on nowhere: there is neither [synapse] nor [objects.http]");
        }
        for (how, listeners) in [("", listeners), (" over HTTP", http)] {
            if !listeners.is_empty() {
                let _ = writeln!(text, "objects{how} on {}", listeners.join(", "));
            }
        }
        if !objects.volume_addresses().is_empty() {
            let _ = writeln!(text, "volumes on {} (NBD)", objects.volume_addresses().join(", "));
        }
    }
    if let Some((line, bytes)) = sidecar.map(RunningSidecar::announcement) {
        limits.s3 = bytes as usize;
        let _ = writeln!(text, "{line}");
    }
    if let Some(admin) = admin {
        limits.admin = admin.memory_bytes_max() as usize;
        for url in admin.urls() {
            let _ = writeln!(text, "admin on {url}");
        }
    }
    let _ = writeln!(text, "memory: {limits}");
    memory::set_bytes_max(limits.sum() as u64);
    print_out(module_path!(), &text);
    all
}
