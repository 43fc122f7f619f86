//! The daemon from start to shutdown: threads, listening, and the orderly end.

use std::cell::Cell;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

use blocker::{Error, SystemClock};
use cached_config::{
    ConfigFileError, OpenError, OpenOptions, ShutdownError, Store, log_events, raise_descriptor_limit,
};
use synapse::{Address, NodeRecord, Secret, Server, host_name};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::cache::Cache;
use crate::config::{Config, in_this_file, of_server};
use crate::failure::Failure;
use crate::signals::Signals;

/// Serves until a signal requests the shutdown. Then requests that have begun are answered, and a cache
/// stores its dirty data; nothing that was acknowledged is lost unless that fails.
///
/// # Errors
/// The failure, with its exit status.
pub(crate) fn run(config: &Config, path: &Path) -> Result<(), Failure> {
    let of_file = |error| Failure::configuration(ConfigFileError::of_key(path, error));
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let (wanted, addresses) = (config.descriptors_max(), config.addresses().map_err(of_file)?);
    let descriptors = raise_descriptor_limit(wanted);
    if descriptors < wanted {
        tracing::warn!(descriptors, wanted, "fewer file descriptors than connections and files may need");
    }
    let (mut server_config, table) = (config.server().map_err(of_file)?, config.cache().map_err(of_file)?);
    let timeout = Duration::from_secs(config.shutdown_timeout_secs);
    // A runtime per thread: a connection stays on its thread, without work stealing.
    let failed = |error: io::Error| Failure::refused(format!("cannot start a runtime: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let mut signals = {
        let _inside = runtime.enter();
        Signals::install().map_err(failed)?
    };
    let secret = config.backend_secret().map_err(of_file)?;
    let opened = runtime.block_on(open(config, secret, &mut signals)).map_err(|error| match error {
        OpenError::Config(error) => of_file(in_this_file(error)),
        OpenError::Store(error) => Failure::refused(format!("{}: {error}", config.backend)),
    });
    let Some(store) = opened? else { return Ok(()) };
    let workers: Vec<Worker> =
        (1..config.threads).map(Worker::start).collect::<io::Result<_>>().map_err(failed)?;
    server_config.workers = std::iter::once(runtime.handle().clone())
        .chain(workers.iter().map(|worker| worker.handle.clone()))
        .collect();
    let ended = runtime.block_on(async {
        let cache = table.map(|table| Cache::over(store.backend(), table)).transpose().map_err(of_file)?;
        let backend = cache.as_ref().map_or_else(|| store.backend(), Cache::backend);
        server_config.name = host_name();
        server_config.receive_buffers = cache.as_ref().map(Cache::receive_buffers);
        let record = NodeRecord::open(&*store.backend(), &SystemClock, RECORD_TIMEOUT).await;
        let record = record.map_err(|error| Failure::refused(format!("{}: {error}", config.backend)))?;
        record.apply(&mut server_config);
        let cache_bytes_max = cache.as_ref().map_or(0, Cache::memory_bytes_max);
        let memory_bytes_max = server_config.memory_bytes_max() + cache_bytes_max + store.memory_bytes_max();
        let server =
            Server::new(backend, server_config).map_err(|error| of_file(of_server(&error)))?;
        let mut bound = Vec::new();
        for address in &addresses {
            bound.push(server.listen(address).await.map_err(Failure::refused)?);
        }
        let _events = tokio::spawn(log_events(store.backend().subscribe(), config.backend.to_string()));
        announce(&bound, config, memory_bytes_max);
        notify("READY=1");
        let signal = signals.shutdown_requested().await;
        let most = timeout + cache.as_ref().map_or(Duration::ZERO, Cache::flush_max);
        notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", (most + END_MARGIN).as_micros()));
        tracing::info!(signal, "ending");
        let observed = cache.as_ref().map(Cache::cache);
        let stage = Stage::default();
        let end = async {
            if !server.shutdown(timeout).await {
                tracing::warn!(timeout_secs = timeout.as_secs(), "some requests were aborted");
            }
            stage.set("storing dirty data");
            let instance = server.instance();
            drop(server);
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
            let closed = tokio::task::spawn_blocking(move || store.close(timeout)).await;
            let closed = closed.map_err(|_| Failure::not_stored("closing the store has panicked"))?;
            stored.and(
                closed.map_err(|error| Failure::not_stored(format!("closing {}: {error}", config.backend))),
            )
        };
        let dirty_bytes = || observed.as_ref().map_or(0, |cache| cache.counters().dirty_bytes);
        let waiting_for = || match dirty_bytes() {
            0 => stage.get().to_owned(),
            dirty_bytes => format!("{}, {dirty_bytes} bytes not stored yet", stage.get()),
        };
        tokio::select! {
            ended = end => ended,
            () = signals.shutdown_forced(waiting_for) => {
                let line = match &observed {
                    Some(cache) => ShutdownError::of_cache(cache, "a third signal forced the end").to_string(),
                    None => format!("a third signal forced the end while {}", stage.get()),
                };
                let failure = Failure::not_stored(line);
                // Exits without waiting for threads, which may be what the shutdown waits for.
                eprintln!("synapsed: {failure}");
                std::process::exit(i32::from(failure.status()));
            }
        }
    });
    drop(workers);
    runtime.shutdown_timeout(timeout);
    ended
}

/// The most time for reading or writing the store's record of servers.
const RECORD_TIMEOUT: Duration = Duration::from_secs(10);
/// The pause between two attempts to open a store that is unavailable.
const OPEN_DELAY: Duration = Duration::from_secs(1);

/// Opens the store. Waits for one that is unavailable, and returns `None` if the shutdown is requested
/// meanwhile.
///
/// # Errors
/// Errors that waiting does not resolve.
async fn open(
    config: &Config,
    secret: Option<Secret>,
    signals: &mut Signals,
) -> Result<Option<Store>, OpenError> {
    let mut last_cause = String::new();
    loop {
        let table = config.backend.clone();
        let options =
            OpenOptions::default().object_bytes_max(config.object_bytes_max()).secret(secret.clone());
        let opening = tokio::task::spawn_blocking(move || Store::open(&table, &options));
        let opened = tokio::select! {
            opened = opening => opened,
            signal = signals.shutdown_requested() => {
                tracing::info!(signal, "ending before the store was available");
                return Ok(None);
            }
        };
        let panicked = |_| Err(OpenError::Store(Error::Corrupt("opening the store has panicked".into())));
        match opened.unwrap_or_else(panicked) {
            Err(OpenError::Store(error)) if error.is_retryable() => {
                let cause = error.to_string();
                notify(&format!("STATUS=Waiting for {}\nEXTEND_TIMEOUT_USEC=60000000", config.backend));
                if cause != last_cause {
                    tracing::warn!(cause, store = %config.backend, "waiting for the store");
                    last_cause = cause;
                }
            }
            opened => return opened.map(Some),
        }
        tokio::select! {
            () = tokio::time::sleep(OPEN_DELAY) => {}
            signal = signals.shutdown_requested() => {
                tracing::info!(signal, "ending before the store was available");
                return Ok(None);
            }
        }
    }
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
fn announce(bound: &[Address], config: &Config, memory_bytes_max: u64) {
    let mut out = io::stdout().lock();
    for address in bound {
        // A closed standard output is no reason not to serve.
        let cache = if config.cache.is_some() { "a cache over " } else { "" };
        let _ = writeln!(out, "synapsed: {cache}{} at {address}", config.backend);
    }
    let mib = memory_bytes_max >> 20;
    tracing::info!(
        backend = %config.backend,
        threads = config.threads,
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

/// Notifies the service manager of a change of state, if there is one (systemd's `sd_notify`).
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
