//! The daemon from start to shutdown: threads, listening, and the orderly end.

use std::cell::Cell;
use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use blocker::trace::Tracer;
use blocker::{Blocker, Error, SystemClock, Traced};
use cached_admin::insight::ObjectsInsight;
use cached_admin::insight::slow::SlowLog;
use cached_admin::insight::slow_store::SlowStore;
use cached_admin::sources::{ObjectsSource, StoreSource, SynapseSource, measured};
use cached_admin::{AdminConfig, AdminError, AdminServer, AdminTable, Health, control};
use cached_config::{
    ConfigFileError, LiveObjects, ObjectsTable, OpenError, OpenOptions, ShutdownError, Store, SynapseTable,
    begin_recovery, log_events, log_recovery, notify, raise_descriptor_limit, recovery_mistake,
};
use cached_process::drain::Drain;
use cached_process::log::Log;
use cached_process::panics;
use cached_process::reload::{LiveSecs, Reloader, Reloads};
use cached_process::signals::{Requested, Signals};
use cached_tracing::{Exporter, Origin};
use synapse::{Address, NodeRecord, Secret, Server, host_name};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::cache::Cache;
use crate::config::{Config, in_this_file};
use crate::failure::Failure;
use crate::reload::{self, Synapsed};

/// Serves a configuration, made of `text`, until a signal requests the shutdown. Then requests that have begun are answered, and a cache
/// stores its dirty data; nothing that was acknowledged is lost unless that fails.
///
/// # Errors
/// The failure, with its exit status.
pub(crate) fn run(
    (config, text): (&Config, &str),
    path: &Path,
    signals: &Signals,
    log: &Log,
) -> Result<(), Failure> {
    let of_file = |error| Failure::configuration(ConfigFileError::of_key(path, error));
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let (wanted, addresses) = (config.descriptors_max(), config.addresses().map_err(of_file)?);
    let descriptors = raise_descriptor_limit(wanted);
    if descriptors < wanted {
        tracing::warn!(descriptors, wanted, "fewer file descriptors than connections and files may need");
    }
    let (mut server_config, table) = (config.server().map_err(of_file)?, config.cache().map_err(of_file)?);
    let drain_times = config.drain().map_err(of_file)?;
    let (delay, timeout) = (LiveSecs::new(drain_times.delay_secs), LiveSecs::new(drain_times.timeout_secs));
    // A runtime per thread: a connection stays on its thread, without work stealing.
    let failed = |error: io::Error| Failure::refused(format!("cannot start a runtime: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    // First, so that it answers while the start waits for the store.
    let tokens = config.admin.as_ref().map_or(Ok(None), AdminTable::tokens).map_err(of_file)?;
    let tls = config.admin.as_ref().map_or(Ok(None), AdminTable::load_tls).map_err(of_file)?;
    let admin =
        config.admin.as_ref().map(|table| open_admin(table.config(tokens.clone(), tls))).transpose()?;
    let health = admin.as_ref().map(AdminServer::health);
    let origin = Origin { program: "synapsed", version: env!("CARGO_PKG_VERSION") };
    let exporter = config.tracing.as_ref().map(|table| Exporter::start(table, origin)).transpose();
    let exporter = exporter.map_err(failed)?;
    let tracer = exporter.as_ref().map(Exporter::tracer);
    let _metrics = admin.as_ref().zip(exporter.as_ref()).map(|(admin, exporter)| {
        admin.registry().register(exporter.metrics(), std::iter::empty::<(&str, &str)>())
    });
    let secrets = config.secrets().map_err(of_file)?;
    // Before the wait for the store: a journal that cannot be used ends the start at once.
    let journal = table.map_or(Ok(None), |table| table.open_journal());
    let journal = journal.map_err(|error| of_file(in_this_file(error)))?;
    let opened = runtime.block_on(open(config, secrets.store.clone(), tracer.as_ref(), signals, health));
    let opened = opened.map_err(|error| match error {
        OpenError::Config(error) => of_file(in_this_file(error)),
        OpenError::Store(error) => Failure::refused(format!("{}: {error}", config.backend)),
    });
    let Some(store) = opened? else { return Ok(()) };
    let (store, measurements) = match &admin {
        Some(_) => measured(store, config.backend.kind()),
        None => (store, None),
    };
    let workers: Vec<Worker> =
        (1..config.synapse.threads).map(Worker::start).collect::<io::Result<_>>().map_err(failed)?;
    server_config.workers = std::iter::once(runtime.handle().clone())
        .chain(workers.iter().map(|worker| worker.handle.clone()))
        .collect();
    let ended = runtime.block_on(async {
        let slow = Arc::new(SlowLog::new(config.insight.slow_threshold()));
        let below = || Arc::new(SlowStore::new(store.backend(), Arc::clone(&slow)));
        let over = |table| Cache::over(below(), table, config.insight.sampling(), journal);
        let cache = table.map(over).transpose().map_err(of_file)?;
        if let (Some(cache), Some(table)) = (&cache, table)
            && !recover(cache, table, config, path, signals).await?
        {
            return Ok(());
        }
        let backend = backend(&store, cache.as_ref(), tracer.as_ref());
        server_config.tracer = tracer.clone();
        server_config.name = host_name();
        server_config.receive_buffers = cache.as_ref().map(Cache::receive_buffers);
        let record = NodeRecord::open(&*store.backend(), &SystemClock, RECORD_TIMEOUT).await;
        let record = record.map_err(|error| Failure::refused(format!("{}: {error}", config.backend)))?;
        record.apply(&mut server_config);
        let cache_bytes_max = cache
            .as_ref()
            .map_or(0, |cache| cache.memory_bytes_max() + config.insight.objects_bytes_max());
        let insight = cache.as_ref().map(|cache| {
            ObjectsInsight::start(admin.as_ref(), &cache.cache(), Arc::clone(&slow))
        });
        let insight = insight.transpose().map_err(failed)?;
        let memory_bytes_max = server_config.memory_bytes_max() + cache_bytes_max + store.memory_bytes_max();
        let server = Server::new(backend, server_config);
        let server = Arc::new(server.map_err(|error| of_file(SynapseTable::error(&error)))?);
        let mut bound = Vec::new();
        for address in &addresses {
            let address = server.listen(address).await.map_err(Failure::refused)?;
            config.synapse.restrict(&address).map_err(Failure::refused)?;
            bound.push(address);
        }
        let _events = tokio::spawn(log_events(store.backend().subscribe(), config.backend.to_string()));
        let _repeats = tokio::spawn(report_repeats(log.clone()));
        let live_cache = cache.as_ref().map(|cache| (cache.cache().live_settings(), cache.flush_max()));
        let listener = Some(Arc::downgrade(&server));
        let program = Synapsed {
            path: path.to_owned(),
            log: log.clone(),
            drain: (delay.clone(), timeout.clone()),
            objects: LiveObjects::new(live_cache, listener, store.secret(), secrets),
            tokens,
            tracer,
            slow,
            in_force: Mutex::new(config.clone()),
        };
        let source = reload::source(config, path, text).map_err(Failure::refused)?;
        let (reloader, drain) = (Arc::new(Reloader::new(program, source)), Drain::default());
        announce(&bound, config, memory_bytes_max, admin.as_ref());
        let mut shown = Vec::new();
        if let Some(admin) = &admin {
            control::add_routes(admin.routes(), &reloader, &drain, log);
            let addresses = bound.iter().map(ToString::to_string).collect();
            shown.push(SynapseSource::show(admin, &server, addresses));
            shown.extend(cache.iter().map(|cache| ObjectsSource::show(admin, &cache.cache())));
            let measured = measurements.as_ref();
            let name = || config.backend.to_string();
            let show = |measurements| StoreSource::show(admin, name(), measurements, store.metrics());
            shown.extend(measured.map(show));
        }
        let watch = measurements.map(|measurements| {
            tokio::spawn(StoreSource::watch(Arc::downgrade(&store.backend()), measurements))
        });
        notify("READY=1");
        health.into_iter().for_each(Health::set_started);
        until_end(signals, &drain, &reloader).await;
        health.into_iter().for_each(|health| health.set_draining("the end was requested"));
        let flush_max = || cache.as_ref().map_or(Duration::ZERO, |cache| cache.flush_max().get());
        let most = delay.get() + timeout.get() + flush_max() + END_MARGIN;
        notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", most.as_micros()));
        tracing::info!(delay_secs = delay.get().as_secs(), "ending");
        // Clients are served for as long as load balancers may still send them here, or until a second signal.
        if panics::first().is_none() && !delay.get().is_zero() {
            tokio::select! {
                () = tokio::time::sleep(delay.get()) => {}
                () = signals.end_requested("while the process ends") => {}
            }
        }
        watch.into_iter().for_each(|watch| watch.abort());
        // For the line of a forced end; gone before the store closes, which waits for all handles.
        let observed = RefCell::new(cache.as_ref().map(Cache::cache));
        let stage = Stage::default();
        let end = async {
            let timeout = timeout.get();
            if !server.shutdown(timeout).await {
                tracing::warn!(timeout_secs = timeout.as_secs(), "some requests were aborted");
            }
            stage.set("storing dirty data");
            let instance = server.instance();
            // What is shown has handles of the server and the cache.
            drop((server, shown, insight));
            let stored = match cache {
                Some(cache) => cache.shut_down().await.map_err(Failure::not_stored),
                None => Ok(()),
            };
            if stored.is_ok()
                && let Err(error) =
                    NodeRecord::close(&*store.backend(), instance, &SystemClock, RECORD_TIMEOUT).await
            {
                tracing::warn!(
                    cause = %error,
                    "cannot record that everything is stored: clients count as lost what they have not flushed"
                );
            }
            stage.set("closing the store");
            drop(observed.take());
            let closed = tokio::task::spawn_blocking(move || store.close(timeout)).await;
            let closed = closed.map_err(|_| Failure::not_stored("closing the store has panicked"))?;
            stored.and(
                closed.map_err(|error| Failure::not_stored(format!("closing {}: {error}", config.backend))),
            )
        };
        tokio::select! {
            ended = end => ended,
            () = signals.end_requested("while the process ends") => {
                let line = match &*observed.borrow() {
                    Some(cache) => ShutdownError::of_cache(cache, "a second signal forced the end").to_string(),
                    None => format!("a second signal forced the end while {}", stage.get()),
                };
                let failure = Failure::not_stored(line);
                // Exits without waiting for threads, which may be what the end waits for.
                eprintln!("synapsed: {failure}");
                std::process::exit(i32::from(failure.status()));
            }
        }
    });
    drop(workers);
    runtime.shutdown_timeout(timeout.get());
    match (panics::first(), ended) {
        (Some(defect), Ok(())) => {
            Err(Failure::defect(format!("a defect of synapsed has ended it: {defect}")))
        }
        (Some(defect), Err(lost)) => Err(lost.after(format!("a defect of synapsed has ended it: {defect}"))),
        (None, ended) => ended,
    }
}

/// Waits until the end is requested, and reads the configuration again whenever that is requested.
async fn until_end(signals: &Signals, drain: &Drain, reloader: &Arc<Reloader>) {
    let mut reloads = Reloads::new(reloader);
    loop {
        let requested = tokio::select! {
            requested = signals.requested() => requested,
            () = drain.requested() => return,
            never = reloads.run() => never,
            () = panics::happened() => {
                tracing::error!("a thread has panicked: the server ends");
                Requested::End
            }
        };
        match requested {
            Requested::End => return drain.request(),
            Requested::Upgrade => {
                tracing::info!("SIGUSR2 has no effect: no other process can take over from synapsed");
            }
            Requested::Reload => reloads.request(),
        }
    }
}

/// Writes once a second how many lines of the log were held back.
async fn report_repeats(log: Log) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        log.report_repeats();
    }
}

/// The most time for reading or writing the store's record of servers.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the store. Waits for one that is unavailable, and returns `None` if the shutdown is requested
/// meanwhile.
///
/// # Errors
/// Errors that waiting does not resolve.
async fn open(
    config: &Config,
    secret: Option<Secret>,
    tracer: Option<&Tracer>,
    signals: &Signals,
    health: Option<&Health>,
) -> Result<Option<Store>, OpenError> {
    let options = OpenOptions::default().object_bytes_max(config.object_bytes_max());
    let options = options.secret(secret).tracer(tracer.cloned());
    let mut last_cause = String::new();
    let starting = |line: String| health.into_iter().for_each(|health| health.set_starting(line.as_str()));
    starting(format!("opening the store {}", config.backend));
    let waiting = |error: &Error| {
        starting(format!("waiting for the store {}: {error}", config.backend));
        let cause = error.to_string();
        if cause != last_cause {
            tracing::warn!(cause, store = %config.backend, "waiting for the store");
            last_cause = cause;
        }
    };
    tokio::select! {
        opened = Store::open_when_available(&config.backend, &options, waiting) => opened.map(Some),
        () = signals.end_requested("while the store is being opened") => {
            tracing::info!("ending before the store was available");
            Ok(None)
        }
    }
}

/// Returns what is served: the cache if there is one, else the store.
fn backend(store: &Store, cache: Option<&Cache>, tracer: Option<&Tracer>) -> Arc<dyn Blocker> {
    match (cache, tracer) {
        (None, _) => store.backend(),
        (Some(cache), None) => cache.backend(),
        (Some(cache), Some(tracer)) => Arc::new(Traced::cache(cache.backend(), tracer.clone())),
    }
}

/// Begins the recovery of what an earlier process logged. Waits for a store that does not answer, and returns
/// false if the shutdown is requested meanwhile.
///
/// # Errors
/// What waiting does not resolve.
async fn recover(
    cache: &Cache,
    table: &ObjectsTable,
    config: &Config,
    path: &Path,
    signals: &Signals,
) -> Result<bool, Failure> {
    let mut last_cause = String::new();
    let waiting = |error: &Error| {
        let cause = error.to_string();
        if cause != last_cause {
            tracing::warn!(cause, store = %config.backend, "waiting for the store before the journal is recovered");
            last_cause = cause;
        }
    };
    let cache = cache.cache();
    tokio::select! {
        begun = begin_recovery(&cache, waiting) => {
            begun.map_err(|error| match recovery_mistake(table, error) {
                Ok(mistake) => Failure::configuration(ConfigFileError::of_key(path, in_this_file(mistake))),
                Err(error) => Failure::refused(format!("{}: {error}", config.backend)),
            })?;
            tokio::spawn(log_recovery(cache));
            Ok(true)
        }
        () = signals.end_requested("while the journal is being recovered") => {
            tracing::info!("ending before the store answered");
            Ok(false)
        }
    }
}

/// Opens the admin listener.
fn open_admin(config: AdminConfig) -> Result<AdminServer, Failure> {
    let opened = AdminServer::start(config, "synapsed", env!("CARGO_PKG_VERSION"));
    opened.map_err(|error| match error {
        AdminError::Exposed { .. } => Failure::configuration(error),
        error => Failure::refused(error),
    })
}

/// What the shutdown is doing, for log lines.
struct Stage(Cell<&'static str>);

impl Default for Stage {
    fn default() -> Self {
        Self(Cell::new("answering requests that have begun"))
    }
}

impl Stage {
    fn get(&self) -> &'static str {
        self.0.get()
    }

    fn set(&self, what: &'static str) {
        self.0.set(what);
    }
}

/// The time requested from a service manager beyond the most that the shutdown may take.
const END_MARGIN: Duration = RECORD_TIMEOUT.saturating_add(Duration::from_secs(5));

/// Writes the first lines on standard output: for people, and for a parent process that has configured port
/// 0.
fn announce(bound: &[Address], config: &Config, memory_bytes_max: u64, admin: Option<&AdminServer>) {
    let mut out = io::stdout().lock();
    for address in bound {
        // A closed standard output is no reason not to serve.
        let cache = if config.objects.is_some() { "a cache over " } else { "" };
        let _ = writeln!(out, "synapsed: {cache}{} at {address}", config.backend);
    }
    for url in admin.map(AdminServer::urls).unwrap_or_default() {
        let _ = writeln!(out, "synapsed: admin on {url}");
    }
    let mib = memory_bytes_max >> 20;
    tracing::info!(
        backend = %config.backend,
        threads = config.synapse.threads,
        "serving; at most {mib} MiB beside the backend"
    );
}

/// A thread with a runtime of its own. The thread ends when this is dropped.
struct Worker {
    handle: Handle,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Worker {
    fn start(index: usize) -> io::Result<Self> {
        let runtime: Runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let serve = move || {
            // A dropped sender ends the thread as well.
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name(format!("synapse-{index}")).spawn(serve)?;
        Ok(Self { handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a worker has panicked");
        }
    }
}
