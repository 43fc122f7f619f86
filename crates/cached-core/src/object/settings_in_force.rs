//! Applies settings while the cache runs, as far as they can change at run time.

use std::sync::{Arc, Weak};

use blocker::{Durability, Error, Namespace, NamespaceSettings, Pending, Result, Timestamp};

use super::cache::ObjectCache;
use super::config::{ConfigError, MEMORY_SHARES_MAX, NamespaceConfig, ObjectCacheConfig, ensure};
use super::control::namespaces::too_many;
use super::control::settings::{Settings, SettingsInForce, dirty_limits, quotas, set_limited, store_terms};
use super::detach;
use super::shared::Shared;
use super::shared::resources::move_buckets;
use super::write::{Settling, settle_in_background};
use crate::sync::{Ordering, lock};

/// Changes the configuration of a running cache. This handle keeps neither the cache nor its store
/// alive.
///
/// ```
/// # use std::sync::Arc;
/// # use blocker::{Memory, SystemClock};
/// # use cached_core::object::{ObjectCache, ObjectCacheConfig};
/// let config = ObjectCacheConfig::default();
/// let (cache, _background) =
///     ObjectCache::new(Arc::new(Memory::default()), config.clone(), Arc::new(SystemClock))?;
/// let settings = cache.live_settings();
/// settings.change(&ObjectCacheConfig { dirty_bytes_max: 64 << 20, ..config })?;
/// # Ok::<_, cached_core::object::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LiveSettings(Weak<Shared>);

impl LiveSettings {
    /// Applies those values of `after` that can change: `dirty_bytes_max`, `dirty_age_max`,
    /// `flush_requests_max`, `flush_gap_bytes_max`, `load_requests_max`, `read_ahead_bytes_max`,
    /// the bypass thresholds, the retry delays, whether the cache is attached, and the namespaces'
    /// settings. A setting that a command has made for a namespace stays, unless `after` changes
    /// the same key from the configuration before it; if `attached` is unchanged, the cache stays
    /// in its state. Requests in flight and dirty data stay as they are: a lowered limit is reached
    /// as they end. Other fields have no effect. Does nothing once the cache is gone.
    ///
    /// # Errors
    /// The first key that is not valid with the rest of the cache's configuration, or a namespace
    /// whose journal or durability would change; in this case nothing has changed.
    pub fn change(&self, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
        let Some(shared) = self.0.upgrade() else { return Ok(()) };
        let mut settings = lock(&shared.control.settings);
        check_journal(&settings.file, after)?;
        let is_switched = settings.file.attached != after.attached;
        let new = settings.reconfigured(after);
        put_in_force(&shared, &mut settings, new)?;
        settle_in_background(&shared);
        // The settings stay locked, so that the last configuration decides.
        if is_switched {
            detach::put_in_force(&shared, after.attached);
        }
        Ok(())
    }
}

impl ObjectCache {
    /// Returns the means of changing the configuration while the cache runs.
    #[must_use]
    pub fn live_settings(&self) -> LiveSettings {
        LiveSettings(Arc::downgrade(self.shared()))
    }

    /// Changes the given settings of a namespace by a command. They are in force when this returns;
    /// a write mode applies to operations that begin from now on. Operations in flight end in the
    /// mode in which they began, and written-back data are stored in the background;
    /// [`change_namespace`](Self::change_namespace) waits for that.
    ///
    /// The settings hold until a configuration that changes the same key is applied
    /// ([`LiveSettings::change`]), or the namespace is removed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a setting is not valid with the others or the rest of the
    /// configuration; [`Error::OutOfSpace`] if 4096 other namespaces have been used or configured.
    /// In these cases nothing has changed.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use blocker::{Memory, Namespace};
    /// use blocker::{NamespaceKey, NamespaceSettings, WriteMode};
    /// use cached_core::object::{ObjectCache, SettingSource};
    /// # let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start()?;
    /// let scratch = Namespace::new("scratch")?;
    /// let settings = NamespaceSettings::from(WriteMode::Back).with(NamespaceKey::QuotaBytesMax, 1 << 30);
    /// cache.set_namespace(&scratch, &settings)?;
    /// let in_force = cache.namespace_settings(&scratch);
    /// assert_eq!(in_force.write, (WriteMode::Back, SettingSource::Command));
    /// let quota = (NamespaceKey::QuotaBytesMax, (Some(1 << 30), SettingSource::Command));
    /// assert!(in_force.values.contains(&quota));
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_namespace(&self, namespace: &Namespace, settings: &NamespaceSettings) -> Result<()> {
        self.set_by_command(namespace, settings)?;
        settle_in_background(self.shared());
        Ok(())
    }

    /// Does the same as [`set_namespace`](Self::set_namespace), and returns a future that completes
    /// once the earlier mode has no effect: every change that began in that mode has ended, and
    /// all written-back data are stored.
    ///
    /// If the future fails or is dropped, the settings stay in force; the background retries the
    /// rest until it is stored, and a further call waits for it again.
    ///
    /// # Errors
    /// [`Error::NotStored`] if the deadline passes first; errors of a flush of the namespace.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use blocker::Memory;
    /// use blocker::{Namespace, WriteMode};
    /// # use blocker::executor::block_on;
    /// # use cached_core::object::ObjectCache;
    /// # let cache = ObjectCache::builder(Arc::new(Memory::default())).memory_bytes(64 << 20).start()?;
    /// let volume = Namespace::new("volume")?;
    /// block_on(cache.change_namespace(&volume, &WriteMode::Back.into(), None))?;
    /// // When this returns, the store has all that was written back.
    /// block_on(cache.change_namespace(&volume, &WriteMode::ReadOnly.into(), None))?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn change_namespace(
        &self,
        namespace: &Namespace,
        settings: &NamespaceSettings,
        deadline: Option<Timestamp>,
    ) -> Pending<()> {
        let set = self.set_by_command(namespace, settings);
        self.settled(namespace, set.map(|()| settings.write.is_some()), deadline)
    }

    /// Sets the settings of an attached volume for its namespace, or records that the volume is
    /// detached: see [`Control::set_volume`](blocker::Control::set_volume).
    pub(crate) fn set_volume(
        &self,
        namespace: &Namespace,
        attachment: u64,
        settings: Option<NamespaceSettings>,
    ) -> Pending<()> {
        // The volume's settings may set a mode, or remove the mode of earlier settings.
        let may_have_changed_mode = settings.is_some();
        let set = match settings {
            Some(settings) => self.attach_volume(namespace, attachment, settings),
            None => {
                lock(&self.shared().control.settings).detach(namespace, attachment);
                Ok(())
            }
        };
        self.settled(namespace, set.map(|()| may_have_changed_mode), None)
    }

    /// If a mode has been set, waits until all changes made in earlier modes are complete.
    fn settled(
        &self,
        namespace: &Namespace,
        has_mode: Result<bool>,
        deadline: Option<Timestamp>,
    ) -> Pending<()> {
        let shared = self.shared();
        let settling = has_mode.map(|has_mode| {
            has_mode.then(|| Settling::begin(shared, shared.control.namespaces.of(namespace), deadline))
        });
        Box::pin(async move {
            match settling? {
                Some(settling) => settling.end().await,
                None => Ok(()),
            }
        })
    }

    fn set_by_command(&self, namespace: &Namespace, settings: &NamespaceSettings) -> Result<()> {
        let shared = self.shared();
        let mut in_force = lock(&shared.control.settings);
        let new = in_force.with_command(namespace, settings);
        put_in_force(shared, &mut in_force, new).map_err(Refused::answer)
    }

    fn attach_volume(
        &self,
        namespace: &Namespace,
        attachment: u64,
        settings: NamespaceSettings,
    ) -> Result<()> {
        let shared = self.shared();
        let mut in_force = lock(&shared.control.settings);
        let record =
            shared.control.namespaces.known(namespace).map(|number| shared.control.namespaces.record(number));
        if record.is_some_and(|record| record.discards_dirty.load(Ordering::SeqCst)) {
            return Err(Error::Retryable(format!("namespace {namespace} is being removed").into()));
        }
        let new = in_force.with_volume(namespace, attachment, settings);
        put_in_force(shared, &mut in_force, new).map_err(Refused::answer)
    }

    /// Returns the effective settings of a namespace, with their sources.
    #[must_use]
    pub fn namespace_settings(&self, namespace: &Namespace) -> SettingsInForce {
        lock(&self.shared().control.settings).of(namespace)
    }
}

/// Resets the settings that commands, and a volume that is no longer attached, have made for a
/// namespace.
///
/// # Errors
/// The same as for [`check_removal`].
pub(crate) fn remove_settings(shared: &Arc<Shared>, namespace: &Namespace) -> Result<()> {
    let mut in_force = lock(&shared.control.settings);
    let new = removed(&in_force, namespace)?;
    put_in_force(shared, &mut in_force, new).map_err(|error| not_without(namespace, error))
}

/// Checks that the settings of a namespace can be reset.
///
/// # Errors
/// `Denied` if a volume in the namespace is attached, or if settings of other namespaces depend on
/// it.
pub(crate) fn check_removal(shared: &Shared, namespace: &Namespace) -> Result<()> {
    let new = removed(&lock(&shared.control.settings), namespace)?;
    check(shared, &new, &new.in_force()).map_err(|error| not_without(namespace, error.into()))
}

fn removed(in_force: &Settings, namespace: &Namespace) -> Result<Settings> {
    if in_force.has_volume(namespace) {
        let why = format!("namespace {namespace} belongs to an attached volume: detach the volume first");
        return Err(Error::Denied(why.into()));
    }
    Ok(in_force.without(namespace))
}

fn not_without(namespace: &Namespace, refused: Refused) -> Error {
    let why = refused.answer();
    Error::Denied(format!("other settings depend on those of namespace {namespace}: {why}").into())
}

/// The reason why settings cannot be applied.
enum Refused {
    Config(ConfigError),
    /// There is no number for this namespace.
    TooMany(Namespace),
}

impl From<ConfigError> for Refused {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl From<Refused> for ConfigError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Config(error) => error,
            Refused::TooMany(namespace) => Self { key: "namespaces", why: too_many(&namespace) },
        }
    }
}

impl Refused {
    /// Returns the error for the caller.
    fn answer(self) -> Error {
        match self {
            Self::Config(ConfigError { key, why }) => Error::Invalid(format!("{key}: {why}").into()),
            Self::TooMany(namespace) => Error::OutOfSpace(too_many(&namespace).into()),
        }
    }
}

/// Replaces the settings `in_force` by `new`, as far as they can change.
///
/// # Errors
/// The first key that is not valid with the rest of the cache's configuration; in this case nothing
/// has changed.
fn put_in_force(shared: &Arc<Shared>, in_force: &mut Settings, new: Settings) -> Result<(), Refused> {
    let after = &new.in_force();
    check(shared, &new, after)?;
    shared.control.namespaces.set_modes(after, &new.file.namespaces).map_err(Refused::TooMany)?;
    shared.control.live.set(after, &shared.control.namespaces);
    shared.read_ahead.set(after, &shared.control.namespaces);
    let limits = dirty_limits(after, shared.memory.pool.count_min(), &shared.control.namespaces);
    shared.metrics.dirty_room.set_limits(&limits);
    let shares = shared.memory.shares.set(
        after,
        &shared.control.namespaces,
        &shared.memory.queues,
        shared.memory.pool.count_max(),
    );
    shares.into_iter().for_each(|namespace| move_buckets(shared, namespace));
    shared.store.gate.set_max(after.load_requests_max, after.flush_requests_max);
    let terms = store_terms(after, &shared.control.namespaces);
    shared.store.gate.set_terms(&terms);
    set_limited(&shared.control.namespaces, &terms);
    shared.control.quotas.set(&quotas(after, &shared.control.namespaces));
    shared.background.wake();
    *in_force = new;
    Ok(())
}

/// Checks that the changeable values of `after`, which results from `new`, are valid together with
/// the rest of the cache's configuration.
///
/// # Errors
/// The first invalid key.
fn check(shared: &Shared, new: &Settings, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
    let whole = ObjectCacheConfig {
        dirty_bytes_max: after.dirty_bytes_max,
        dirty_age_max: after.dirty_age_max,
        flush_requests_max: after.flush_requests_max,
        flush_gap_bytes_max: after.flush_gap_bytes_max,
        load_requests_max: after.load_requests_max,
        read_ahead_bytes_max: after.read_ahead_bytes_max,
        bypass_read_bytes_min: after.bypass_read_bytes_min,
        bypass_write_bytes_min: after.bypass_write_bytes_min,
        retry_delay_min: after.retry_delay_min,
        retry_delay_max: after.retry_delay_max,
        write: after.write,
        namespaces: after.namespaces.clone(),
        ..shared.control.config.clone()
    };
    whole.check(&shared.store.can)?;
    check_shares(shared, after)?;
    // Whether a namespace is logged follows from the mode that the file has, whatever is in force.
    let logged = ObjectCacheConfig { namespaces: new.file.namespaces.clone(), ..whole };
    shared.journal.log.iter().try_for_each(|log| log.check(&logged))
}

/// Checks that every namespace with a share of the memory has one, or can get one: they are not taken away
/// from those that had one since the start.
fn check_shares(shared: &Shared, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
    let is_new = |each: &&NamespaceConfig| {
        let number = shared.control.namespaces.known(&each.namespace);
        each.has_own_memory() && !number.is_some_and(|number| shared.memory.shares.has_own(number))
    };
    let count = after.namespaces.iter().filter(is_new).count();
    ensure(count <= shared.memory.shares.free(), "namespaces", || {
        format!(
            "no more namespaces can get a share of the memory while the cache runs: {MEMORY_SHARES_MAX} have had \
             one since the start; a restart frees the shares that are no longer configured"
        )
    })
}

/// Checks that no namespace would be logged in another way than at the start.
fn check_journal(before: &ObjectCacheConfig, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
    for each in &after.namespaces {
        let (journal, durability) = match before.namespaces.iter().find(|old| old.namespace == each.namespace)
        {
            Some(old) => (old.journal, old.durability),
            None => (None, Durability::Cached),
        };
        ensure((journal, durability) == (each.journal, each.durability), "namespaces", || {
            format!("journal and durability of \"{}\" can change only at a restart", each.namespace)
        })?;
    }
    Ok(())
}
