//! The daemon from start to shutdown: threads, listening, and the orderly end.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocker::trace::Tracer;
use blocker::{Blocker, Traced};
use cached_admin::insight::ObjectsInsight;
use cached_admin::insight::slow::{SlowLog, SlowStore};
use cached_admin::sources::{ObjectHttpSource, ObjectsSource, StoreSource, SynapseSource, measured};
use cached_admin::{AdminServer, Health, control};
use cached_config::{
    ConfigError, DrainTimes, ListenerThreads, LiveObjects, ObjectsTable, OpenOptions, Secrets, ShutdownError,
    StartError, Store, SynapseTable, Waiting, begin_recovery, log_events, log_recovery, notify,
    raise_descriptor_limit, store_all,
};
use cached_core::insight::Sampling;
use cached_core::object::{ObjectCache, OpenJournal};
use cached_process::log::{Level, Log, print_err, print_out};
use cached_process::reload::{LiveSecs, Reloader, Reloads};
use cached_process::signals::{Requested, Signals};
use cached_process::{Drain, Exit, Failure, first_panic, memory, panicked};
use cached_tracing::{Exporter, Origin};
use parking_lot::Mutex;
use synapse::{Address, Server, host_name};
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use crate::config::{Config, Loaded, in_this_file};
use crate::http::HttpListener;
use crate::reload::{self, Synapsed};

/// Serves a configuration parsed from `text` until a signal requests the shutdown. Then the
/// requests in progress are answered, and a cache stores its dirty data; no acknowledged data are
/// lost unless that fails.
///
/// # Errors
/// The failure, with its exit status.
pub(crate) fn run(
    (config, text): (&Config, &str),
    loaded: Loaded,
    path: &Path,
    signals: &Signals,
    log: &Log,
) -> Result<(), Failure> {
    let of_file = |error: ConfigError| Failure::from(error.in_file(path));
    let Loaded { server: mut server_config, secrets, tokens, admin_tls, http_keys, http_tls } = loaded;
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let (wanted, addresses) = (config.descriptors_max(), config.synapse.addresses().map_err(of_file)?);
    let descriptors = raise_descriptor_limit(wanted);
    if descriptors < wanted {
        tracing::warn!(descriptors, wanted, "fewer file descriptors than connections and files may need");
    }
    let table = config.cache().map_err(of_file)?;
    let DrainTimes { delay_secs, timeout_secs } = config.process;
    let (delay, timeout) = (LiveSecs::new(delay_secs), LiveSecs::new(timeout_secs));
    // Each thread has a runtime, so a connection stays on its thread, without work stealing.
    let failed =
        |error: io::Error| Failure::new(Exit::Trouble, format_args!("cannot start a runtime: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    // The admin listener starts first, so that it answers while the start waits for the store.
    let admin = config.admin.as_ref().map(|table| {
        AdminServer::start(table.config(tokens.clone(), admin_tls), "synapsed", env!("CARGO_PKG_VERSION"))
    });
    let admin = admin.transpose()?;
    let health = admin.as_ref().map(AdminServer::health);
    let origin = Origin { program: "synapsed", version: env!("CARGO_PKG_VERSION") };
    let exporter = config.tracing.as_ref().map(|table| Exporter::start(table, origin)).transpose();
    let exporter = exporter.map_err(failed)?;
    let tracer = exporter.as_ref().map(Exporter::tracer);
    let _metrics = admin.as_ref().zip(exporter.as_ref()).map(|(admin, exporter)| {
        admin.registry().register(exporter.metrics(), std::iter::empty::<(&str, &str)>())
    });
    let mut waiting = Waiting::new(|line| health.into_iter().for_each(|health| health.set_starting(line)));
    let cannot_start = |error: StartError| match error {
        StartError::Config(error) => of_file(in_this_file(error)),
        StartError::Store(error) => refused(format_args!("{}: {error}", config.backend)),
    };
    let opened = runtime.block_on(async {
        tokio::select! {
            opened = open(config, table, &secrets, tracer.as_ref(), &mut waiting) => opened.map(Some),
            () = signals.end_requested("while the store is being opened") => Ok(None),
        }
    });
    let Some((store, journal)) = opened.map_err(cannot_start)? else {
        tracing::info!("ending before the store was available");
        // An attempt to open the journal or the store may hang, so this does not wait for it.
        runtime.shutdown_background();
        return Ok(());
    };
    let (store, measurements) = match &admin {
        Some(_) => measured(store, config.backend.kind()),
        None => (store, None),
    };
    // This thread serves connections as well.
    let threads = ListenerThreads::start("synapse", config.synapse.threads - 1).map_err(failed)?;
    server_config.workers = std::iter::once(runtime.handle()).chain(&threads.runtimes).cloned().collect();
    let ended = runtime.block_on(async {
        let slow = Arc::new(SlowLog::new(config.insight.slow_threshold()));
        let below = || Arc::new(SlowStore::new(store.backend(), Arc::clone(&slow)));
        let over = |table| Cache::over(below(), table, config.insight.sampling(), journal);
        let cache = table.map(over).transpose().map_err(of_file)?;
        let begun = async {
            if let (Some(cache), Some(table)) = (&cache, table) {
                begin_recovery(&cache.cache, table, &mut waiting).await?;
                tokio::spawn(log_recovery(cache.cache.clone()));
            }
            store.node_record(&mut waiting).await
        };
        let record = tokio::select! {
            record = begun => record.map_err(cannot_start)?,
            () = signals.end_requested("while the journal is being recovered") => {
                tracing::info!("ending before the store answered");
                return Ok(());
            }
        };
        let backend = backend(&store, cache.as_ref(), tracer.as_ref());
        server_config.tracer = tracer.clone();
        server_config.name = host_name();
        server_config.receive_buffers = cache.as_ref().map(|cache| cache.cache.receive_buffers());
        record.apply(&mut server_config);
        let cache_bytes_max = cache
            .as_ref()
            .map_or(0, |cache| cache.memory_bytes_max + config.insight.objects_bytes_max());
        let insight = cache.as_ref().map(|cache| {
            ObjectsInsight::start(admin.as_ref(), &cache.cache, Arc::clone(&slow))
        });
        let insight = insight.transpose().map_err(failed)?;
        let admin_bytes_max = admin.as_ref().map_or(0, AdminServer::memory_bytes_max);
        let http = match config.http() {
            Some(table) => {
                let files = (http_keys.clone(), http_tls);
                Some(HttpListener::open(table, files, Arc::clone(&backend), of_file, failed).await?)
            }
            None => None,
        };
        let http_bytes_max = http.as_ref().map_or(0, |http| http.server.memory_bytes_max());
        let memory_bytes_max = server_config.memory_bytes_max()
            + http_bytes_max
            + cache_bytes_max
            + store.memory_bytes_max()
            + admin_bytes_max;
        let server = Server::new(backend, server_config);
        let server = Arc::new(server.map_err(|error| of_file(SynapseTable::error(&error)))?);
        let mut bound = Vec::new();
        for address in &addresses {
            let address = server.listen(address).await.map_err(refused)?;
            config.synapse.restrict(&address).map_err(refused)?;
            bound.push(address);
        }
        // Only now, so that a start that fails because an address is in use serves no HTTP client.
        http.as_ref().map_or(Ok(()), HttpListener::listen)?;
        let _events = tokio::spawn(log_events(store.backend().subscribe(), config.backend.to_string()));
        let _repeats = tokio::spawn(report_repeats(log.clone()));
        let live_cache = cache.as_ref().map(|cache| (cache.cache.live_settings(), cache.flush_max.clone()));
        let listener = Some(Arc::downgrade(&server));
        let program = Synapsed {
            path: path.to_owned(),
            log: log.clone(),
            drain: (delay.clone(), timeout.clone()),
            objects: LiveObjects::new(live_cache, listener, store.secret(), secrets),
            http_keys,
            tokens,
            tracer,
            slow,
            in_force: Mutex::new(config.clone()),
        };
        let source = reload::source(config, path, text).map_err(refused)?;
        let (reloader, drain) = (Arc::new(Reloader::new(program, source)), Drain::default());
        announce(&bound, config, memory_bytes_max, http.as_ref(), admin.as_ref());
        let mut shown = Vec::new();
        if let Some(admin) = &admin {
            control::add_routes(admin.routes(), &reloader, &drain, log);
            let addresses = bound.iter().map(ToString::to_string).collect();
            shown.push(SynapseSource::show(admin, &server, addresses));
            shown.extend(http.iter().map(|http| ObjectHttpSource::show(admin, &http.server)));
            shown.extend(cache.iter().map(|cache| ObjectsSource::show(admin, &cache.cache)));
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
        let flush_max = || cache.as_ref().map_or(Duration::ZERO, |cache| cache.flush_max.get());
        let most = delay.get() + timeout.get() + flush_max() + END_MARGIN;
        notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", most.as_micros()));
        tracing::info!(delay_secs = delay.get().as_secs(), "ending");
        // Clients are still served while load balancers may send them here, or until a second
        // signal.
        if first_panic().is_none() && !delay.get().is_zero() {
            tokio::select! {
                () = tokio::time::sleep(delay.get()) => {}
                () = signals.end_requested("while the process ends") => {}
            }
        }
        watch.into_iter().for_each(|watch| watch.abort());
        // For the log line of a forced end. It is dropped before the store closes, which waits for
        // all handles.
        let observed = RefCell::new(cache.as_ref().map(|cache| cache.cache.clone()));
        // The present stage of the shutdown, for log lines.
        let stage = Cell::new("answering requests that have begun");
        let end = async {
            let timeout = timeout.get();
            let http_ended = async {
                match &http {
                    Some(http) => http.server.shutdown(timeout).await,
                    None => true,
                }
            };
            let (synapse_ended, http_ended) = tokio::join!(server.shutdown(timeout), http_ended);
            if !(synapse_ended && http_ended) {
                tracing::warn!(timeout_secs = timeout.as_secs(), "some requests were aborted");
            }
            stage.set("storing dirty data");
            let instance = server.instance();
            // The admin listener's data hold handles of the server and the cache.
            drop((server, http, shown, insight));
            let stored = match cache {
                Some(cache) => cache.shut_down().await.map_err(not_stored),
                None => Ok(()),
            };
            let cache = observed.take();
            if stored.is_ok() {
                store.record_end(instance, cache.as_ref()).await;
            }
            stage.set("closing the store");
            drop(cache);
            let closed = tokio::task::spawn_blocking(move || store.close(timeout)).await;
            let closed = closed.map_err(|_| not_stored("closing the store has panicked"))?;
            stored.and(
                closed.map_err(|error| not_stored(format_args!("closing {}: {error}", config.backend))),
            )
        };
        tokio::select! {
            ended = end => ended,
            () = signals.end_requested("while the process ends") => {
                let line = match &*observed.borrow() {
                    Some(cache) => ShutdownError::of_cache(cache, "a second signal forced the end").to_string(),
                    None => format!("a second signal forced the end while {}", stage.get()),
                };
                let failure = not_stored(line);
                // Exits without waiting for threads, because these may be what blocks the shutdown.
                print_err(Level::Error, module_path!(), &format!("synapsed: {failure}"));
                std::process::exit(i32::from(failure.exit().status()));
            }
        }
    });
    drop(threads);
    runtime.shutdown_timeout(timeout.get());
    match (first_panic(), ended) {
        (Some(defect), ended) => {
            let line = format!("a defect of synapsed has ended it: {defect}");
            Err(ended.map_or_else(|lost| lost.after(&line), |()| Failure::new(Exit::Defect, &line)))
        }
        (None, ended) => ended,
    }
}

/// Waits until the shutdown is requested. Meanwhile, reloads the configuration on request.
async fn until_end(signals: &Signals, drain: &Drain, reloader: &Arc<Reloader>) {
    let mut reloads = Reloads::new(reloader);
    loop {
        let requested = tokio::select! {
            requested = signals.requested() => requested,
            () = drain.requested() => return,
            never = reloads.run() => never,
            () = panicked() => {
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

/// Once a second, logs how many log lines were suppressed.
async fn report_repeats(log: Log) {
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    loop {
        seconds.tick().await;
        log.report_repeats();
    }
}

/// Opens the journal of a cache, and the store. If the journal's disk or the store is unavailable,
/// waits for it.
///
/// # Errors
/// Errors that waiting cannot resolve.
async fn open(
    config: &Config,
    table: Option<&ObjectsTable>,
    secrets: &Secrets,
    tracer: Option<&Tracer>,
    waiting: &mut Waiting<'_>,
) -> Result<(Store, Option<OpenJournal>), StartError> {
    // This comes before waiting for the store, so that an unusable journal ends the start at once.
    let journal = match table {
        Some(table) => table.open_journal(waiting).await?,
        None => None,
    };
    let options = OpenOptions {
        object_bytes_max: config.object_bytes_max(),
        secret: secrets.store.clone(),
        tracer: tracer.cloned(),
        is_server: true,
        ..OpenOptions::default()
    };
    Ok((Store::open_when_available(&config.backend, &options, waiting).await?, journal))
}

pub(crate) fn refused(cause: impl fmt::Display) -> Failure {
    Failure::new(Exit::Refused, cause)
}

fn not_stored(cause: impl fmt::Display) -> Failure {
    Failure::new(Exit::NotStored, cause)
}

/// Returns the backend to serve: the cache if there is one, otherwise the store.
fn backend(store: &Store, cache: Option<&Cache>, tracer: Option<&Tracer>) -> Arc<dyn Blocker> {
    let Some(cache) = cache else { return store.backend() };
    let cache: Arc<dyn Blocker> = Arc::new(cache.cache.clone());
    match tracer {
        None => cache,
        Some(tracer) => Arc::new(Traced::cache(cache, tracer.clone())),
    }
}

/// The time requested from a service manager beyond the longest possible shutdown.
const END_MARGIN: Duration = Duration::from_secs(10);

/// Writes the first lines to standard output, for people and for a parent process that has
/// configured port 0.
fn announce(
    bound: &[Address],
    config: &Config,
    memory_bytes_max: u64,
    http: Option<&HttpListener>,
    admin: Option<&AdminServer>,
) {
    let cache = if config.objects.is_some() { "a cache over " } else { "" };
    let listeners = bound.iter().map(|address| format!("synapsed: {cache}{} at {address}\n", config.backend));
    let http = http.map(|http| http.server.urls()).unwrap_or_default();
    let http = http.iter().map(|url| format!("synapsed: objects over HTTP on {url}\n"));
    let admin = admin.map(AdminServer::urls).unwrap_or_default();
    let admin = admin.iter().map(|url| format!("synapsed: admin on {url}\n"));
    print_out(module_path!(), &listeners.chain(http).chain(admin).collect::<String>());
    memory::set_bytes_max(memory_bytes_max);
    let mib = memory_bytes_max >> 20;
    tracing::info!(
        backend = %config.backend,
        threads = config.synapse.threads,
        "serving; at most {mib} MiB beside the backend"
    );
}

/// A running cache in front of the backend, as configured by `[objects]`.
struct Cache {
    cache: ObjectCache,
    background: JoinHandle<()>,
    /// The time limit for storing the cache's dirty data, which can change at run time.
    flush_max: LiveSecs,
    memory_bytes_max: u64,
}

impl Cache {
    /// Starts a cache over `below`, with requests sampled according to `insight`. Its background
    /// task runs on the current runtime.
    ///
    /// # Errors
    /// The invalid setting.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    fn over(
        below: Arc<dyn Blocker>,
        table: &ObjectsTable,
        insight: Sampling,
        journal: Option<OpenJournal>,
    ) -> Result<Self, ConfigError> {
        let (cache, background) = table.open_cache(below, journal, insight).map_err(in_this_file)?;
        Ok(Self {
            background: tokio::spawn(background),
            flush_max: LiveSecs::new(table.shutdown_flush_secs),
            memory_bytes_max: table.cache_bytes_max(),
            cache,
        })
    }

    /// Stores dirty data, and stops the background task. The cache must no longer be changed.
    ///
    /// # Errors
    /// The acknowledged data that could not be stored.
    async fn shut_down(self) -> Result<(), ShutdownError> {
        let stored = store_all(&self.cache, self.flush_max.get()).await;
        self.background.abort();
        // When the task ends, it releases the store.
        let _ = self.background.await;
        stored
    }
}
