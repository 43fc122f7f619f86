//! What of the object cache's configuration can change while it runs, whichever cache is open then.

use super::open::Opening;
use crate::config::{ConfigError, ObjectsTable, Secrets, SynapseTable};
use cached_config::LiveObjects;
use parking_lot::Mutex;
use std::sync::Arc;

/// Changes the settings of cache, listener and store while they run. Keeps none of them open. All clones change the
/// same.
#[derive(Clone)]
pub struct ReloadObjects {
    in_force: Arc<Mutex<InForce>>,
}

struct InForce {
    /// The tables in force: the next cache is opened with them.
    opening: Opening,
    /// What is open; `None` while the store is another process's.
    live: Option<LiveObjects>,
}

impl ReloadObjects {
    pub(super) fn new(opening: Opening) -> ReloadObjects {
        ReloadObjects { in_force: Arc::new(Mutex::new(InForce { opening, live: None })) }
    }

    /// Returns what a cache is opened with now.
    pub(super) fn opening(&self) -> Opening {
        self.in_force.lock().opening.clone()
    }

    /// Changes go to what is open from now on.
    pub(super) fn set(&self, live: Option<LiveObjects>) {
        self.in_force.lock().live = live;
    }

    /// Puts in force what can change of the table `after`, and of `listener`, the listener's.
    /// Returns the keys of the secrets that have changed.
    ///
    /// # Errors
    /// The key that cannot work with the others in force; then nothing has changed.
    pub(crate) fn change(
        &self,
        after: Option<&ObjectsTable>,
        listener: Option<&SynapseTable>,
        secrets: Secrets,
    ) -> Result<Vec<String>, ConfigError> {
        let mut in_force = self.in_force.lock();
        let InForce { opening, live } = &mut *in_force;
        let Some(live) = live else {
            let why = "cannot change while another process takes over; reload once it has, or has failed";
            return Err(ConfigError { key: "objects".into(), why: why.into() });
        };
        let changed = live.change(after, listener, secrets.clone(), "objects.backend.secret_file")?;
        if let Some(after) = after {
            opening.objects = after.clone();
        }
        opening.synapse = listener.cloned();
        opening.secrets = secrets;
        Ok(changed)
    }
}

impl std::fmt::Debug for ReloadObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReloadObjects")
    }
}
