//! The life of the daemon: threads, listening, and the end in order.

use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use blocker::SystemClock;
use synapse::{Address, NodeRecord, Server, host_name};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::cache::Cache;
use crate::config::Config;

/// Serves until SIGTERM or SIGINT. Nothing is lost then that was acknowledged as stored; requests that had
/// begun are answered, and what a cache has not stored yet is stored.
///
/// # Errors
/// One line that says what went wrong.
pub(crate) fn run(config: &Config) -> Result<(), String> {
    let (addresses, mut server_config, table) = (config.addresses()?, config.server()?, config.cache()?);
    let patience = Duration::from_secs(config.shutdown_patience_s);
    let opened = config.backend()?.open().map_err(|error| format!("{}: {error}", config.backend))?;
    // A runtime per thread: connections stay where they are, and nothing is stolen.
    let failed = |error: io::Error| format!("a runtime: {error}");
    let workers: Vec<Worker> =
        (1..config.threads).map(Worker::start).collect::<io::Result<_>>().map_err(failed)?;
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    server_config.workers = std::iter::once(runtime.handle().clone())
        .chain(workers.iter().map(|worker| worker.handle.clone()))
        .collect();
    let stored = runtime.block_on(async {
        let record = NodeRecord::open(&*opened.blocker, &SystemClock, RECORD_PATIENCE).await;
        record.map_err(|error| format!("{}: {error}", config.backend))?.apply(&mut server_config);
        server_config.name = host_name();
        let cache = table.map(|table| Cache::before(Arc::clone(&opened.blocker), table)).transpose()?;
        let faces = cache.as_ref().map(Cache::faces);
        let (blocker, control) = match faces {
            Some((blocker, control)) => (blocker, Some(control)),
            None => (Arc::clone(&opened.blocker), opened.control.clone()),
        };
        server_config.landing = cache.as_ref().map(Cache::landing);
        let cache_bytes_max = cache.as_ref().map_or(0, Cache::memory_bytes_max);
        let memory_bytes_max = server_config.memory_bytes_max() + cache_bytes_max;
        let server = Server::new(blocker, control, server_config)?;
        let mut places = Vec::new();
        for address in &addresses {
            places.push(server.listen(address).await?);
        }
        say(&places, config, memory_bytes_max);
        notify("READY=1");
        until_told().await.map_err(failed)?;
        let most = patience + cache.as_ref().map_or(Duration::ZERO, Cache::flush_max);
        notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", (most + END_MARGIN).as_micros()));
        tracing::info!("ending");
        if !server.shutdown(patience).await {
            tracing::warn!(patience_s = config.shutdown_patience_s, "some requests were broken off");
        }
        let instance = server.instance();
        drop(server);
        if let Some(cache) = cache {
            cache.end().await?;
        }
        let closed = NodeRecord::close(&*opened.blocker, instance, &SystemClock, CLOSE_PATIENCE).await;
        if let Err(error) = closed {
            tracing::warn!(cause = %error, "clients will take this end for a crash");
        }
        Ok(())
    });
    drop(workers);
    runtime.shutdown_timeout(patience);
    let closed = opened.close(patience).map_err(|error| format!("closing {}: {error}", config.backend));
    stored.and(closed)
}

/// How long reading the store's record of its servers may take.
const RECORD_PATIENCE: Duration = Duration::from_secs(30);

/// How long writing down an orderly end may take.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// What a service manager is asked for beyond the time that the end may take.
const END_MARGIN: Duration = Duration::from_secs(5).saturating_add(CLOSE_PATIENCE);

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
        backend = config.backend,
        threads = config.threads,
        "serving; at most {mib} MiB beside the backend"
    );
}

async fn until_told() -> io::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
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
