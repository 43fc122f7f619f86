//! A running program: the keys whose values can change, and file descriptors.

use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};

use cached_core::object::LiveSettings;
use cached_process::reload::LiveSecs;
use parking_lot::Mutex;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use synapse::{Secret, SecretHandle, Server};

use crate::backend::BackendTable;
use crate::config_file::ConfigError;
use crate::listeners::SynapseTable;
use crate::objects::ObjectsTable;

/// The keys, in the tables shared by `cached` and `synapsed`, whose values can change at run time.
pub const LIVE_KEYS: [&str; 32] = [
    "process.drain_delay_secs",
    "process.drain_timeout_secs",
    "log.level",
    "log.format",
    "objects.dirty_bytes_max",
    "objects.dirty_age_ms_max",
    "objects.flush_requests_max",
    "objects.load_requests_max",
    "objects.flush_gap_bytes_max",
    "objects.read_ahead_bytes_max",
    "objects.bypass_read_bytes_min",
    "objects.bypass_write_bytes_min",
    "objects.retry_delay_ms_min",
    "objects.retry_delay_ms_max",
    "objects.attached",
    "objects.write",
    "objects.namespaces",
    "objects.shutdown_flush_secs",
    "objects.backend.secret_file",
    "backend.secret_file",
    "synapse.secret_file",
    "synapse.secret_file_previous",
    "synapse.connections_max",
    "synapse.peer_connections_max",
    "synapse.sessions_max",
    "synapse.session_linger_secs",
    "synapse.session_requests_max",
    "synapse.session_bytes_max",
    "synapse.bytes_max",
    "synapse.peer_timeout_ms",
    "synapse.handshake_timeout_ms",
    "tracing.sample_ratio",
];

/// A running object cache, its listener and its store, for changes of their settings. This handle
/// does not keep them open.
#[derive(Debug)]
pub struct LiveObjects {
    /// The cache, and the time for storing dirty data at shutdown, if there is a cache.
    pub cache: Option<(LiveSettings, LiveSecs)>,
    /// The listener, if there is one.
    pub listener: Option<Weak<Server>>,
    /// The secret for a store that is another server.
    pub store: Option<SecretHandle>,
    /// The secrets in force, kept to find out which of them have changed.
    secrets: Mutex<Secrets>,
}

/// The secrets of a listener and of a store.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Secrets {
    /// The accepted secrets, one of which a client must present.
    pub listener: Vec<Secret>,
    /// The secret for the server behind the cache.
    pub store: Option<Secret>,
}

impl Secrets {
    /// Reads the secrets from the files that the tables of the listener and of the store name.
    ///
    /// # Errors
    /// Returns the problem with a file.
    pub fn read(
        listener: Option<&SynapseTable>,
        store: Option<&BackendTable>,
    ) -> Result<Secrets, ConfigError> {
        let listener = listener.map_or(Ok(Vec::new()), SynapseTable::secrets)?;
        let store = match store {
            Some(BackendTable::Synapse(table)) => table.secret()?,
            _ => None,
        };
        Ok(Secrets { listener, store })
    }
}

impl LiveObjects {
    /// Returns handles of a running cache, listener and store, with the secrets in force.
    pub fn new(
        cache: Option<(LiveSettings, LiveSecs)>,
        listener: Option<Weak<Server>>,
        store: Option<SecretHandle>,
        secrets: Secrets,
    ) -> LiveObjects {
        LiveObjects { cache, listener, store, secrets: Mutex::new(secrets) }
    }

    /// Applies the keys that can change, of the table `after` and of the listener's table
    /// `listener`. Returns the keys of the secrets that have changed; `store_key` is the key of the
    /// store's secret.
    ///
    /// # Errors
    /// Returns the key whose value is incompatible with other values in force. In that case nothing
    /// has changed.
    pub fn change(
        &self,
        after: Option<&ObjectsTable>,
        listener: Option<&SynapseTable>,
        secrets: Secrets,
        store_key: &str,
    ) -> Result<Vec<String>, ConfigError> {
        let mut in_force = self.secrets.lock();
        let change = after.map(|after| Ok::<_, ConfigError>((after.cache()?, after))).transpose()?;
        let mut changed = Vec::new();
        let server = self.listener.as_ref().and_then(Weak::upgrade);
        let limits_before = server.as_ref().map(|server| server.limits());
        if let (Some(server), Some(table)) = (&server, listener) {
            // These limits are applied first, because they can be refused: then nothing has
            // changed.
            server.set_limits(&table.server()).map_err(|error| SynapseTable::error(&error))?;
        }
        let undo_limits = || {
            if let (Some(server), Some(before)) = (&server, &limits_before) {
                // These limits were in force before. Connections opened since then may make them
                // too small.
                let _ = server.set_limits(before);
            }
        };
        if let Some(listener) = &server
            && in_force.listener != secrets.listener
        {
            let mut all = secrets.listener.iter().cloned();
            if let Err(error) = listener.set_secrets(all.next(), all.next()) {
                undo_limits();
                return Err(SynapseTable::error(&error));
            }
            let of = |secrets: &Secrets, index| secrets.listener.get(index).cloned();
            for (index, key) in ["synapse.secret_file", "synapse.secret_file_previous"].iter().enumerate() {
                if of(&in_force, index) != of(&secrets, index) {
                    changed.push((*key).to_owned());
                }
            }
        }
        if let (Some((cache, flush_max)), Some((after, table))) = (&self.cache, change) {
            if let Err(error) = cache.change(&after) {
                undo_limits();
                if let Some(listener) = &server {
                    let mut all = in_force.listener.iter().cloned();
                    // These secrets were in force before, so they are accepted.
                    let _ = listener.set_secrets(all.next(), all.next());
                }
                return Err(error.into());
            }
            flush_max.set(table.shutdown_flush_secs);
        }
        if let Some(store) = &self.store
            && in_force.store != secrets.store
        {
            store.set(secrets.store.clone());
            changed.push(store_key.to_owned());
        }
        *in_force = secrets;
        Ok(changed)
    }
}

/// The maximum number of descriptors for which [`raise_descriptor_limit`] was called.
static DESCRIPTORS_MAX: AtomicU64 = AtomicU64::new(0);

/// Returns the number of file descriptors that the process may need: the largest number for which
/// [`raise_descriptor_limit`] was called, or 0 before the first call.
#[must_use]
pub fn descriptors_max() -> u64 {
    DESCRIPTORS_MAX.load(Ordering::Relaxed)
}

/// Raises the limit of open files to `wanted`, which the process may need, or as far as the system
/// allows. Returns the new limit.
pub fn raise_descriptor_limit(wanted: u64) -> u64 {
    // A reload may determine the needs of one listener only.
    DESCRIPTORS_MAX.fetch_max(wanted, Ordering::Relaxed);
    let limit = getrlimit(Resource::Nofile);
    let current = limit.current.unwrap_or(u64::MAX);
    if current >= wanted {
        return current;
    }
    let maximum = limit.maximum.unwrap_or(u64::MAX).max(wanted);
    if setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(maximum) }).is_ok() {
        return wanted;
    }
    // Without root privileges, the limit is raised up to the hard limit.
    let maximum = limit.maximum.unwrap_or(u64::MAX);
    match setrlimit(Resource::Nofile, Rlimit { current: Some(maximum), maximum: limit.maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}
