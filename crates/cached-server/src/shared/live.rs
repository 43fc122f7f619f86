//! Settings and certificates that can change while the server runs.
//!
//! Each setting is a word that threads read without a lock, and that only a reload writes. All others are in
//! [`Settings`], which stay as they were at the start.

use super::Shared;
use crate::config::settings::Settings;
use cached_process::reload::LiveSecs;
use cached_tls::TlsError;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The keys of `cached` alone that can change while the server runs.
pub(crate) const SERVER_LIVE_KEYS: [&str; 15] = [
    "memcached.connections_max",
    "memcached.connections_excess",
    "memcached.connection_bytes_max",
    "memcached.idle_timeout_secs",
    "memcached.batches_per_wake",
    "memcached.requests_per_wake",
    "memcached.flush_command",
    "memcached.dump_commands",
    "memcached.watch_command",
    "memcached.shutdown_command",
    "insight.slow_request_ms",
    "s3.fresh_secs",
    "s3.stale_if_error_secs",
    "s3.negative_secs",
    "s3.buckets",
];

/// The settings in force. [`Settings`] explains each.
#[derive(Debug)]
pub(crate) struct Live {
    connections_max: AtomicUsize,
    refuses_excess: AtomicBool,
    connection_bytes_max: AtomicUsize,
    idle_timeout_secs: AtomicU32,
    batches_per_wake: AtomicU32,
    /// 0: no limit.
    requests_per_wake: AtomicU32,
    flush_command: AtomicBool,
    dump_commands: AtomicBool,
    watch_command: AtomicBool,
    shutdown_command: AtomicBool,
    /// How long the server is not ready before its listeners close.
    pub(crate) drain_delay: LiveSecs,
    /// How long clients have to take their replies.
    pub(crate) drain_timeout: LiveSecs,
}

impl Live {
    pub(crate) fn new(settings: &Settings) -> Live {
        Live {
            connections_max: AtomicUsize::new(settings.connections_max),
            refuses_excess: AtomicBool::new(settings.connections_max_fast),
            connection_bytes_max: AtomicUsize::new(settings.connection_bytes_max),
            idle_timeout_secs: AtomicU32::new(settings.idle_timeout_secs),
            batches_per_wake: AtomicU32::new(settings.batches_per_wake),
            requests_per_wake: AtomicU32::new(settings.requests_per_wake.unwrap_or(0)),
            flush_command: AtomicBool::new(settings.flush_enabled),
            dump_commands: AtomicBool::new(settings.dump_enabled),
            watch_command: AtomicBool::new(settings.watch_enabled),
            shutdown_command: AtomicBool::new(settings.shutdown_command),
            drain_delay: LiveSecs::new(settings.drain.delay_secs),
            drain_timeout: LiveSecs::new(settings.drain.timeout_secs),
        }
    }

    /// Applies the settings that can change.
    pub(crate) fn set(&self, settings: &Settings) {
        self.connections_max.store(settings.connections_max, Ordering::Relaxed);
        self.refuses_excess.store(settings.connections_max_fast, Ordering::Relaxed);
        self.connection_bytes_max.store(settings.connection_bytes_max, Ordering::Relaxed);
        self.idle_timeout_secs.store(settings.idle_timeout_secs, Ordering::Relaxed);
        self.batches_per_wake.store(settings.batches_per_wake, Ordering::Relaxed);
        self.requests_per_wake.store(settings.requests_per_wake.unwrap_or(0), Ordering::Relaxed);
        self.flush_command.store(settings.flush_enabled, Ordering::Relaxed);
        self.dump_commands.store(settings.dump_enabled, Ordering::Relaxed);
        self.watch_command.store(settings.watch_enabled, Ordering::Relaxed);
        self.shutdown_command.store(settings.shutdown_command, Ordering::Relaxed);
        self.drain_delay.set(settings.drain.delay_secs);
        self.drain_timeout.set(settings.drain.timeout_secs);
    }

    #[inline]
    pub(crate) fn connections_max(&self) -> usize {
        self.connections_max.load(Ordering::Relaxed)
    }

    /// Returns whether clients above [`connections_max`](Self::connections_max) are refused; otherwise they
    /// wait.
    pub(crate) fn refuses_excess(&self) -> bool {
        self.refuses_excess.load(Ordering::Relaxed)
    }

    pub(crate) fn connection_bytes_max(&self) -> usize {
        self.connection_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn idle_timeout_secs(&self) -> u32 {
        self.idle_timeout_secs.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn batches_per_wake(&self) -> u32 {
        self.batches_per_wake.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn requests_per_wake(&self) -> Option<u32> {
        Some(self.requests_per_wake.load(Ordering::Relaxed)).filter(|requests| *requests > 0)
    }

    pub(crate) fn flush_command(&self) -> bool {
        self.flush_command.load(Ordering::Relaxed)
    }

    pub(crate) fn dump_commands(&self) -> bool {
        self.dump_commands.load(Ordering::Relaxed)
    }

    pub(crate) fn watch_command(&self) -> bool {
        self.watch_command.load(Ordering::Relaxed)
    }

    pub(crate) fn shutdown_command(&self) -> bool {
        self.shutdown_command.load(Ordering::Relaxed)
    }
}

/// Reads the certificates again, and logs the outcome. After an error the old ones stay.
///
/// # Errors
/// What is wrong with them. `None` without TLS.
pub(crate) fn refresh_certificates(shared: &Shared) -> Option<Result<(), TlsError>> {
    let result = shared.tls.as_ref()?.reload();
    match &result {
        Ok(()) => tracing::info!("the certificates have been read again"),
        Err(error) => {
            tracing::error!(cause = %error, "the certificates cannot be replaced: the old ones stay in use");
        }
    }
    Some(result)
}

/// Reads the certificates again, runs `others`, and puts the certificates in force if that succeeds. Returns the
/// outcome of `others`, and whether there are certificates.
///
/// # Errors
/// One line: what is wrong with the certificates, or the error of `others`.
pub(crate) fn refresh_certificates_with<T>(
    shared: &Shared,
    others: impl FnOnce() -> Result<T, String>,
) -> Result<(T, bool), String> {
    let Some(tls) = &shared.tls else { return Ok((others()?, false)) };
    let outcome = tls.reload_with(others);
    let outcome = outcome.map_err(|error| format!("{error}; the old certificates stay in use"))?;
    Ok((outcome?, true))
}
