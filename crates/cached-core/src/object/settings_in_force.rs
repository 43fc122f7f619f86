//! Putting a configuration in force while the cache runs, as far as it can change.

use std::sync::Arc;

use super::config::{ConfigError, NamespaceConfig, ObjectCacheConfig};
use super::live_values::{dirty_limits, quotas, set_limited, store_terms};
use super::namespace_numbers::OTHERS;
use super::namespace_settings::NamespaceSettings;
use super::namespaces::too_many;
use super::share::MEMORY_SHARES_MAX;
use super::share_moves::move_buckets;
use super::shared::Shared;
use super::write_modes::settle_in_background;
use crate::sync::lock;

use blocker::Namespace;

/// Takes back what has been set for a namespace beside the configuration.
pub(crate) fn forget_settings(shared: &Arc<Shared>, namespace: &Namespace) {
    let mut settings = lock(&shared.settings);
    let Some(new): Option<NamespaceSettings> = settings.without(namespace) else { return };
    match put_in_force(shared, &new.in_force(&shared.namespaces), None) {
        Ok(()) => *settings = new,
        Err(error) => {
            tracing::warn!(%namespace, key = error.key, why = %error.why, "the settings of a removed namespace stay");
        }
    }
}

/// Puts in force what can change of `after`, and the write modes that differ between two configurations, `modes`.
/// The caller holds the lock of the settings.
///
/// # Errors
/// The first key that cannot work with the rest of the cache's configuration; then nothing has changed.
pub(crate) fn put_in_force(
    shared: &Arc<Shared>,
    after: &ObjectCacheConfig,
    modes: Option<(&ObjectCacheConfig, &ObjectCacheConfig)>,
) -> Result<(), ConfigError> {
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
        ..shared.config.clone()
    };
    whole.check(&shared.can)?;
    check_numbers(shared, after)?;
    check_shares(shared, after)?;
    shared.log.iter().try_for_each(|log| log.check(&whole))?;
    if let Some((before, after)) = modes {
        shared.namespaces.change_modes(before, after);
        settle_in_background(shared);
    }
    shared.live.set(after, &shared.namespaces);
    shared.read_ahead.set(after, &shared.namespaces);
    let limits = dirty_limits(after, shared.pool.count_min(), &shared.namespaces);
    shared.metrics.dirty_room.set_limits(&limits);
    let new = shared.shares.set(after, &shared.namespaces, &shared.queues, shared.pool.count_max());
    new.into_iter().for_each(|namespace| move_buckets(shared, namespace));
    shared.gate.set_max(after.load_requests_max, after.flush_requests_max);
    let terms = store_terms(after, &shared.namespaces);
    shared.gate.set_terms(&terms);
    set_limited(&shared.namespaces, &terms);
    shared.quotas.set(&quotas(after, &shared.namespaces));
    shared.background.wake();
    Ok(())
}

/// Checks that every namespace with settings of its own is counted apart, or can be.
fn check_numbers(shared: &Shared, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
    let is_uncounted = |each: &&NamespaceConfig| shared.namespaces.of(&each.namespace) == OTHERS;
    match after.namespaces.iter().find(is_uncounted) {
        None => Ok(()),
        Some(each) => Err(ConfigError { key: "namespaces", why: too_many(&each.namespace) }),
    }
}

/// Checks that every namespace with a share of the memory has one, or can get one: they are not taken away
/// from those that had one since the start.
fn check_shares(shared: &Shared, after: &ObjectCacheConfig) -> Result<(), ConfigError> {
    let own = after.namespaces.iter().filter(|each| each.has_own_memory());
    let numbers: Vec<u16> = own.map(|each| shared.namespaces.of(&each.namespace)).collect();
    let new = numbers.iter().filter(|number| !shared.shares.has_own(**number)).count();
    if numbers.contains(&OTHERS) || new > shared.shares.free() {
        let why = format!(
            "no more namespaces can get a share of the memory while the cache runs: {MEMORY_SHARES_MAX} have had \
             one since the start; a restart takes it from those that have none any more"
        );
        return Err(ConfigError { key: "namespaces", why });
    }
    Ok(())
}
