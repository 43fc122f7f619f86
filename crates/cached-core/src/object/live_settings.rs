//! The part of a cache's configuration that can change while it runs.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Weak;

use blocker::{Durability, Namespace};

use super::cache::ObjectCache;
use super::config::{ConfigError, ObjectCacheConfig};
use super::detach;
use super::namespace_settings::{NamespaceKey, invalid};
use super::settings_in_force::put_in_force;
use super::shared::Shared;
use crate::sync::lock;

/// Changes the configuration of a running cache. It keeps neither the cache nor its store open.
///
/// ```
/// # use std::sync::Arc;
/// # use blocker::{Memory, SystemClock};
/// # use cached_core::object::{ObjectCache, ObjectCacheConfig};
/// let config = ObjectCacheConfig::default();
/// let (cache, _background) =
///     ObjectCache::new(Arc::new(Memory::default()), config.clone(), Arc::new(SystemClock))?;
/// let settings = cache.live_settings();
/// settings.change(&config, &ObjectCacheConfig { dirty_bytes_max: 64 << 20, ..config.clone() })?;
/// # Ok::<_, cached_core::object::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct LiveSettings(Weak<Shared>);

impl ObjectCache {
    /// Returns the means of changing the configuration while the cache runs.
    #[must_use]
    pub fn live_settings(&self) -> LiveSettings {
        LiveSettings(std::sync::Arc::downgrade(self.shared()))
    }
}

impl LiveSettings {
    /// Puts in force what can change of `after`: `dirty_bytes_max`, `dirty_age_max`, `flush_requests_max`,
    /// `flush_gap_bytes_max`, `load_requests_max`, `read_ahead_bytes_max`, the cut-offs of bypassing, the retry
    /// delays, whether the cache is attached, and the namespaces' write modes, dirty limits, terms at the store, quotas, reading ahead and
    /// bypassing. A namespace whose mode, or other setting, is the same in `before` keeps the one that it has,
    /// which may have been set since; so does a cache with the same `attached`. Requests that are under way, and what is dirty, stay as they are: a limit that has become lower is reached as they
    /// end. Other fields have no effect. Does nothing once the cache is gone.
    ///
    /// # Errors
    /// The first key that cannot work with the rest of the cache's configuration, or a namespace whose journal
    /// or durability would change; then nothing has changed.
    pub fn change(&self, before: &ObjectCacheConfig, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
        let Some(shared) = self.0.upgrade() else { return Ok(()) };
        check_journal(before, after)?;
        let mut settings = lock(&shared.settings);
        let new = settings.reconfigured(before, after);
        put_in_force(&shared, &new.in_force(&shared.namespaces), Some((before, after)))?;
        *settings = new;
        drop(settings);
        if before.attached != after.attached {
            detach::put_in_force(&shared, after.attached);
        }
        Ok(())
    }
}

impl ObjectCache {
    /// Changes settings of a namespace, `None` for none of its own. They hold until a configuration is put in force
    /// ([`LiveSettings::change`]) that has another value than the one before it, or the namespace is removed.
    ///
    /// # Errors
    /// [`Error::Invalid`](blocker::Error::Invalid) if one cannot work with the others or the rest of the
    /// configuration: then nothing has changed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use blocker::{Memory, Namespace};
    /// # use cached_core::object::{NamespaceKey, ObjectCache};
    /// # let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start()?;
    /// let volume = Namespace::new("volume")?;
    /// cache.set_namespace(&volume, &[(NamespaceKey::QuotaBytesMax, Some(1 << 30))])?;
    /// assert_eq!(cache.namespace_settings(&volume)[&NamespaceKey::QuotaBytesMax], Some(1 << 30));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_namespace(
        &self,
        namespace: &Namespace,
        values: &[(NamespaceKey, Option<u64>)],
    ) -> blocker::Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let shared = self.shared();
        let mut settings = lock(&shared.settings);
        let new = settings.with(namespace, values);
        put_in_force(shared, &new.in_force(&shared.namespaces), None).map_err(|error| invalid(&error))?;
        *settings = new;
        Ok(())
    }

    /// Returns the settings that are in force for a namespace, by key; `None` where it has none of its own.
    #[must_use]
    pub fn namespace_settings(&self, namespace: &Namespace) -> BTreeMap<NamespaceKey, Option<u64>> {
        lock(&self.shared().settings).values(namespace, &self.shared().namespaces)
    }
}

/// Checks that no namespace would be logged in another way than at the start.
fn check_journal(before: &ObjectCacheConfig, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
    for each in &after.namespaces {
        let (journal, durability) = match before.namespaces.iter().find(|old| old.namespace == each.namespace)
        {
            Some(old) => (old.journal, old.durability),
            None => (None, Durability::Cached),
        };
        if (journal, durability) != (each.journal, each.durability) {
            let why =
                format!("journal and durability of \"{}\" can change at a restart only", each.namespace);
            return Err(ConfigError { key: "namespaces", why });
        }
    }
    Ok(())
}

impl fmt::Debug for LiveSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveSettings")
    }
}
