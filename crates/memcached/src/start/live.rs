//! Changing the settings of a running server.

use crate::process;
use crate::settings::Settings;
use crate::shared::Shared;
use cached_process::reload::LiveSecs;
use std::sync::{Arc, Weak};

/// Changes the settings of a running server. Does not keep the server alive: the server's cache and
/// store can be closed while this still exists.
#[derive(Clone, Debug)]
pub struct LiveServer {
    shared: Weak<Shared>,
    /// The time for which the server reports that it is not ready before its listeners close.
    pub drain_delay: LiveSecs,
    /// The time that clients have to read their replies at shutdown.
    pub drain_timeout: LiveSecs,
}

impl LiveServer {
    pub(crate) fn new(shared: &Arc<Shared>) -> LiveServer {
        LiveServer {
            shared: Arc::downgrade(shared),
            drain_delay: shared.live.drain_delay.clone(),
            drain_timeout: shared.live.drain_timeout.clone(),
        }
    }

    /// Applies the settings that can change. Open connections stay open: a limit that has been
    /// lowered is reached as connections close. `more_descriptors` is the number of descriptors
    /// that the object cache needs in addition to those at startup. Does nothing once the server no
    /// longer exists.
    pub fn change(&self, settings: &Settings, more_descriptors: usize) {
        let Some(shared) = self.shared.upgrade() else { return };
        let reserved = shared.reserved_descriptors();
        let wanted = settings.connections_max + reserved + more_descriptors;
        if settings.connections_max > shared.live.connections_max() || more_descriptors > 0 {
            let descriptors = process::raise_descriptor_limit(wanted, shared.settings.threads);
            if descriptors < wanted as u64 {
                tracing::warn!(descriptors, wanted, "fewer file descriptors than connections may need");
            }
        }
        shared.live.set(settings);
        shared.insight.slow.set_threshold(settings.insight.slow_threshold());
        if let Some(objects) = shared.objects.get() {
            objects.set_slow_threshold(settings.insight.slow_threshold());
        }
        shared.logging.configure(settings.log);
    }

    /// Reloads the files of passwords and certificates, then runs `others`, and puts the loaded
    /// content in force if `others` succeeds. Returns the value of `others`, and the keys of the
    /// files whose new content is in force.
    ///
    /// # Errors
    /// The mistake in the files, or the error of `others`; then all earlier files stay in force.
    pub fn refresh_files(
        &self,
        others: impl FnOnce() -> Result<Vec<String>, String>,
    ) -> Result<Vec<String>, String> {
        let Some(shared) = self.shared.upgrade() else { return others() };
        let passwords = shared.settings.auth.read_again().map_err(|error| error.to_string())?;
        let mut files = match &shared.tls {
            None => others()?,
            Some(tls) => {
                let outcome = tls.reload_with(others);
                outcome.map_err(|error| format!("{error}; the old certificates stay in use"))??
            }
        };
        files.extend(shared.settings.auth.put_in_force(passwords).into_iter().map(String::from));
        if shared.tls.is_some() {
            files.push("memcached.tls".into());
        }
        Ok(files)
    }
}
