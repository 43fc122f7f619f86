//! The life of the daemon: threads, listening, and the end in order.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use blocker::{Error, SystemClock};
use cached_config::{ConfigFileError, ShutdownError, Store, StoreError, log_events, raise_descriptor_limit};
use synapse::{Address, NodeRecord, Secret, Server, host_name};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::cache::Cache;
use crate::config::{Config, here, of_server};
use crate::failure::Failure;
use crate::signals::Signals;

/// Serves until a signal asks for the end. Nothing is lost then that was acknowledged as stored; requests that had
/// begun are answered, and what a cache has not stored yet is stored.
///
/// # Errors
/// What went wrong.
pub(crate) fn run(config: &Config, path: &Path) -> Result<(), Failure> {
    let of_file = |error| Failure::configuration(ConfigFileError::of_key(path, error));
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let (wanted, addresses) = (config.descriptors_max(), config.addresses().map_err(of_file)?);
    let descriptors = raise_descriptor_limit(wanted);
    if descriptors < wanted {
        tracing::warn!(descriptors, wanted, "fewer file descriptors than connections and files may need");
    }
    let (mut server_config, table) = (config.server().map_err(of_file)?, config.cache().map_err(of_file)?);
    let patience = Duration::from_secs(config.shutdown_patience_secs);
    // A runtime per thread: connections stay where they are, and nothing is stolen.
    let failed = |error: io::Error| Failure::refused(format!("a runtime: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::take_over().map_err(failed)?
    };
    let secret = config.backend_secret().map_err(of_file)?;
    let opened = runtime.block_on(open(config, secret, &mut signals)).map_err(|error| match error {
        StoreError::Config(error) => of_file(here(error)),
        StoreError::Store(error) => Failure::refused(format!("{}: {error}", config.backend)),
    });
    let Some(store) = opened? else { return Ok(()) };
    let workers: Vec<Worker> =
        (1..config.threads).map(Worker::start).collect::<io::Result<_>>().map_err(failed)?;
    server_config.workers = std::iter::once(runtime.handle().clone())
        .chain(workers.iter().map(|worker| worker.handle.clone()))
        .collect();
    let ended = runtime.block_on(async {
        let cache = table.map(|table| Cache::before(store.backend(), table)).transpose().map_err(of_file)?;
        let backend = cache.as_ref().map_or_else(|| store.backend(), Cache::backend);
        server_config.name = host_name();
        server_config.receive_buffers = cache.as_ref().map(Cache::receive_buffers);
        let record = NodeRecord::open(&*store.backend(), &SystemClock, RECORD_PATIENCE).await;
        let record = record.map_err(|error| Failure::refused(format!("{}: {error}", config.backend)))?;
        record.apply(&mut server_config);
        let cache_bytes_max = cache.as_ref().map_or(0, Cache::memory_bytes_max);
        let memory_bytes_max = server_config.memory_bytes_max() + cache_bytes_max + store.memory_bytes_max();
        let server =
            Server::new(backend, server_config).map_err(|error| of_file(of_server(&error)))?;
        let mut places = Vec::new();
        for address in &addresses {
            places.push(server.listen(address).await.map_err(Failure::refused)?);
        }
        let _news = tokio::spawn(log_events(store.backend().subscribe(), config.backend.to_string()));
        say(&places, config, memory_bytes_max);
        notify("READY=1");
        let signal = signals.end_requested().await;
        let most = patience + cache.as_ref().map_or(Duration::ZERO, Cache::flush_max);
        notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", (most + END_MARGIN).as_micros()));
        tracing::info!(signal, "ending");
        let figures = cache.as_ref().map(Cache::cache);
        let stage = Stage::default();
        let end = async {
            if !server.shutdown(patience).await {
                tracing::warn!(patience_secs = patience.as_secs(), "some requests were broken off");
            }
            stage.set("storing what is dirty");
            let instance = server.instance();
            drop(server);
            let stored = match cache {
                Some(cache) => cache.end().await.map_err(Failure::not_stored),
                None => Ok(()),
            };
            if stored.is_ok()
                && let Err(error) =
                    NodeRecord::close(&*store.backend(), instance, &SystemClock, RECORD_PATIENCE).await
            {
                tracing::warn!(
                    cause = %error,
                    "that all is stored cannot be written down: clients take for lost what they have not flushed"
                );
            }
            stage.set("closing the store");
            let closed = tokio::task::spawn_blocking(move || store.close(patience)).await;
            let closed = closed.map_err(|_| Failure::not_stored("closing the store has panicked"))?;
            stored.and(
                closed.map_err(|error| Failure::not_stored(format!("closing {}: {error}", config.backend))),
            )
        };
        let dirty_bytes = || figures.as_ref().map_or(0, |cache| cache.counters().dirty_bytes);
        let waiting_for = || match dirty_bytes() {
            0 => stage.get().to_owned(),
            dirty_bytes => format!("{}, {dirty_bytes} bytes not stored yet", stage.get()),
        };
        tokio::select! {
            ended = end => ended,
            () = signals.end_forced(waiting_for) => {
                let line = match &figures {
                    Some(cache) => ShutdownError::of_cache(cache, "a third signal forced the end").to_string(),
                    None => format!("a third signal forced the end while {}", stage.get()),
                };
                let failure = Failure::not_stored(line);
                // Nothing is waited for any more: not for threads that may be what holds the end up.
                eprintln!("synapsed: {failure}");
                std::process::exit(i32::from(failure.status()));
            }
        }
    });
    drop(workers);
    runtime.shutdown_timeout(patience);
    ended
}

/// How long the store may take to answer what its record of servers is.
const RECORD_PATIENCE: Duration = Duration::from_secs(10);
/// Between two attempts to open a store that is away.
const OPEN_DELAY: Duration = Duration::from_secs(1);

/// Opens the store; waits for one that is away until it is there, or the process is asked to end: then there is none.
///
/// # Errors
/// What waiting does not mend.
async fn open(
    config: &Config,
    secret: Option<Secret>,
    signals: &mut Signals,
) -> Result<Option<Store>, StoreError> {
    let mut said = String::new();
    loop {
        let (table, secret) = (config.backend.clone(), secret.clone());
        let object_bytes_max = config.object_bytes_max();
        let opening = tokio::task::spawn_blocking(move || Store::open(&table, object_bytes_max, secret));
        let opened = tokio::select! {
            opened = opening => opened,
            signal = signals.end_requested() => {
                tracing::info!(signal, "ending before the store was there");
                return Ok(None);
            }
        };
        let panicked = |_| Err(StoreError::Store(Error::Corrupt("opening the store has panicked".into())));
        match opened.unwrap_or_else(panicked) {
            Err(StoreError::Store(error)) if error.is_retryable() => {
                let cause = error.to_string();
                notify(&format!("STATUS=Waiting for {}\nEXTEND_TIMEOUT_USEC=60000000", config.backend));
                if cause != said {
                    tracing::warn!(cause, store = %config.backend, "waiting for the store");
                    said = cause;
                }
            }
            opened => return opened.map(Some),
        }
        tokio::select! {
            () = tokio::time::sleep(OPEN_DELAY) => {}
            signal = signals.end_requested() => {
                tracing::info!(signal, "ending before the store was there");
                return Ok(None);
            }
        }
    }
}

/// What the end is doing, for whoever asks.
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

/// What a service manager is asked for beyond the time that the end may take.
const END_MARGIN: Duration = RECORD_PATIENCE.saturating_add(Duration::from_secs(5));

/// The first lines on standard output, for people and for whoever started it with port 0.
fn say(places: &[Address], config: &Config, memory_bytes_max: u64) {
    let mut out = io::stdout().lock();
    for place in places {
        // Nobody may be reading any more: no reason not to serve.
        let cache = if config.cache.is_some() { "a cache over " } else { "" };
        let _ = writeln!(out, "synapsed: {cache}{} at {place}", config.backend);
    }
    let mib = memory_bytes_max >> 20;
    tracing::info!(
        backend = %config.backend,
        threads = config.threads,
        "serving; at most {mib} MiB beside the backend"
    );
}

/// A thread with a runtime of its own, which ends with this.
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
            // An error is the sender's end: the same.
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

/// Tells a service manager of a change of state, if there is one (systemd's `sd_notify`).
fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let send = |address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address);
    if let Err(error) = address.and_then(send) {
        tracing::warn!(cause = %error, "cannot notify the service manager");
    }
}
