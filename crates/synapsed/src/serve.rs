//! The daemon from start to shutdown: the object service, the admin listener, and the orderly end.

use std::fmt;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cached_admin::insight::ObjectsInsight;
use cached_admin::{AdminServer, Health, control};
use cached_config::{ConfigError, DrainTimes, notify, raise_descriptor_limit};
use cached_objects::{Objects, ObjectsError, RunningObjects};
use cached_process::log::{Log, print_out};
use cached_process::reload::{LiveSecs, Reloader, Reloads};
use cached_process::signals::{Requested, Signals};
use cached_process::{Drain, Exit, Failure, first_panic, memory, panicked};
use cached_tracing::{Exporter, Origin};
use parking_lot::Mutex;
use tokio::runtime::Builder;

use crate::config::{Config, Loaded, in_this_file};
use crate::reload::{self, Synapsed};

/// The time requested from a service manager beyond the longest possible shutdown.
const END_MARGIN: Duration = Duration::from_secs(10);

/// Serves a configuration parsed from `text` until a signal requests the shutdown. Then the
/// requests in progress are completed, and a cache stores its dirty data. Acknowledged data are
/// lost only if that fails.
///
/// # Errors
/// Returns the failure, with its exit status.
pub(crate) fn run(
    (config, text): (&Config, &str),
    loaded: Loaded,
    path: &Path,
    signals: &Signals,
    log: &Log,
) -> Result<(), Failure> {
    let of_file = |error: ConfigError| Failure::from(in_this_file(error).in_file(path));
    let Loaded { secrets, tokens, admin_tls, listeners } = loaded;
    config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
    let wanted = config.descriptors_max();
    let descriptors = raise_descriptor_limit(wanted);
    if descriptors < wanted {
        tracing::warn!(descriptors, wanted, "fewer file descriptors than connections and files may need");
    }
    let service = config.service().map_err(of_file)?;
    let DrainTimes { delay_secs, timeout_secs } = config.process;
    let (delay, timeout) = (LiveSecs::new(delay_secs), LiveSecs::new(timeout_secs));
    let failed =
        |error: io::Error| Failure::new(Exit::Trouble, format_args!("cannot start a runtime: {error}"));
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    // The admin listener starts first, so that it responds while the start waits for the store.
    let admin = config.admin.as_ref().map(|table| {
        AdminServer::start(table.config(tokens.clone(), admin_tls), "synapsed", env!("CARGO_PKG_VERSION"))
    });
    let admin = admin.transpose()?.map(Arc::new);
    let origin = Origin { program: "synapsed", version: env!("CARGO_PKG_VERSION") };
    let exporter = config.tracing.as_ref().map(|table| Exporter::start(table, origin)).transpose();
    let exporter = exporter.map_err(failed)?;
    let tracer = exporter.as_ref().map(Exporter::tracer);
    let _metrics = admin.as_ref().zip(exporter.as_ref()).map(|(admin, exporter)| {
        admin.registry().register(exporter.metrics(), std::iter::empty::<(&str, &str)>())
    });
    let http_keys = listeners.http_keys.clone();
    let end = pin!(signals.end_requested("while the store is being opened"));
    let opened = Objects::open(service, listeners, secrets, None, end, admin.as_ref(), tracer.as_ref());
    let objects = match opened {
        Ok(objects) => objects,
        Err(ObjectsError::Ended) => {
            tracing::info!("ending before the store was available");
            return Ok(());
        }
        Err(ObjectsError::Config(error)) => return Err(of_file(error)),
        Err(ObjectsError::Store(error)) => {
            return Err(refused(format_args!("{}: {error}", config.backend)));
        }
        Err(error) => return Err(error.failure(None)),
    };
    let insight = config
        .objects
        .as_ref()
        .map(|_| ObjectsInsight::start(admin.as_deref(), &objects.statistics(), config.insight.enabled));
    let _insight = insight.transpose().map_err(failed)?;
    let program = Synapsed {
        path: path.to_owned(),
        log: log.clone(),
        drain: (delay.clone(), timeout.clone()),
        objects: objects.live(),
        http_keys,
        tokens,
        tracer,
        slow: Arc::clone(objects.statistics().slow()),
        in_force: Mutex::new(config.clone()),
    };
    let source = reload::source(config, path, text).map_err(refused)?;
    let (reloader, drain) = (Arc::new(Reloader::new(program, source)), Drain::default());
    announce(config, &objects, admin.as_deref());
    let objects = objects.serve(timeout).map_err(|error| error.failure(None))?;
    if let Some(admin) = &admin {
        control::add_routes(admin.routes(), &reloader, &drain, log);
    }
    objects.control().serve();
    let ended = runtime.block_on(async {
        let _repeats = tokio::spawn(report_repeats(log.clone()));
        let health = admin.as_deref().map(AdminServer::health);
        // The probes come first, because they may be asked as soon as READY=1 is sent.
        health.into_iter().for_each(Health::set_started);
        notify("READY=1");
        until_end(signals, &drain, &reloader).await;
        health.into_iter().for_each(|health| health.set_draining("the end was requested"));
        let most = delay.get() + objects.shutdown_time_max() + END_MARGIN;
        notify(&format!("STOPPING=1\nEXTEND_TIMEOUT_USEC={}", most.as_micros()));
        tracing::info!(delay_secs = delay.get().as_secs(), "ending");
        // Clients are still served while load balancers may send them here, or until a second
        // signal arrives.
        if first_panic().is_none() && !delay.get().is_zero() {
            tokio::select! {
                () = tokio::time::sleep(delay.get()) => {}
                () = signals.end_requested("while the process ends") => {}
            }
        }
        shut_down(config, objects, signals).await
    });
    match (first_panic(), ended) {
        (Some(defect), ended) => {
            let line = format!("a defect of synapsed has ended it: {defect}");
            Err(ended.map_or_else(|lost| lost.after(&line), |()| Failure::new(Exit::Defect, &line)))
        }
        (None, ended) => ended,
    }
}

/// Ends the object service, unless a second signal forces the end.
async fn shut_down(config: &Config, objects: RunningObjects, signals: &Signals) -> Result<(), Failure> {
    let ended = objects.shut_down(signals.end_requested("while the process ends")).await;
    ended.map_err(|error| match config.objects {
        Some(_) => Failure::new(Exit::NotStored, error),
        // Without a cache, nothing was acknowledged that the store does not have.
        None => Failure::new(Exit::NotStored, format_args!("{}: {}", config.backend, error.why)),
    })
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

fn refused(cause: impl fmt::Display) -> Failure {
    Failure::new(Exit::Refused, cause)
}

/// Writes the first lines to standard output, for people and for a parent process that has
/// configured port 0.
fn announce(config: &Config, objects: &Objects, admin: Option<&AdminServer>) {
    let cache = if config.objects.is_some() { "a cache over " } else { "" };
    let serves = format!("synapsed: {cache}{} at", config.backend);
    let mut lines: Vec<String> = Vec::new();
    if let Some((node, address)) = objects.candidate() {
        lines.push(format!("{serves} {address} while {node} leads: the writer is elected"));
    }
    lines.extend(objects.addresses().iter().map(|address| format!("{serves} {address}")));
    lines.extend(objects.http_addresses().iter().map(|url| format!("synapsed: objects over HTTP on {url}")));
    lines.extend(admin.iter().flat_map(|admin| admin.urls()).map(|url| format!("synapsed: admin on {url}")));
    print_out(module_path!(), &lines.into_iter().map(|line| line + "\n").collect::<String>());
    let insight_bytes_max = config.objects.as_ref().map_or(0, |_| config.insight.objects_bytes_max());
    let memory_bytes_max = objects.memory_bytes_max()
        + objects.listener_bytes_max()
        + insight_bytes_max
        + admin.map_or(0, AdminServer::memory_bytes_max);
    memory::set_bytes_max(memory_bytes_max);
    let mib = memory_bytes_max >> 20;
    tracing::info!(
        backend = %config.backend,
        threads = config.synapse.threads,
        "serving; at most {mib} MiB beside the backend"
    );
}
