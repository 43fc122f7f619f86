//! What a volume may use of what it shares with others: the write mode, quota and rates of its namespace, which the
//! cache below keeps.

use blocker::{Error as Store, NamespaceSetting, Policy, WriteMode};

use crate::entry::VolumeId;
use crate::error::Result;
use crate::settings::Settings;
use crate::space::Pool;

const QUOTA_KEY: &str = "quota_bytes_max";

/// Returns the settings that a namespace of a cache has, by their keys.
fn by_key(settings: &Settings) -> impl Iterator<Item = (&'static str, Option<u64>)> {
    let rates = settings.rates;
    std::iter::once((QUOTA_KEY, settings.quota_bytes_max)).chain(rates.by_key())
}

/// Sets what `settings` have for the namespace of a volume; what they do not have stays as it is.
///
/// # Errors
/// The store's; `Unsupported` where nothing below can keep a quota, or writes off a volume.
pub(crate) async fn apply(pool: &Pool, volume: VolumeId, settings: &Settings) -> Result<()> {
    let (namespace, control) = (pool.namespace(volume), pool.store.control());
    if let Some(write) = settings.write {
        let mut policy = Policy::default();
        policy.write = write;
        match control.set_policy(namespace.clone(), policy).await {
            // Nothing caches: every write goes through already.
            Err(Store::Unsupported(_)) if write != WriteMode::ReadOnly => {}
            answer => answer?,
        }
    }
    let own = |(key, value): (&str, Option<u64>)| Some(NamespaceSetting::new(key.into(), Some(value?)));
    let all: Vec<_> = by_key(settings).filter_map(own).collect();
    if all.is_empty() {
        return Ok(());
    }
    let is_denied = match control.change_namespace(namespace.clone(), None, all).await {
        // Nothing caches: there are no rates, and a quota is the store's.
        Err(Store::Unsupported(_)) => false,
        // By a server that lets no client set them. One that has volumes sets them itself.
        Err(Store::Denied(_)) => true,
        answer => return Ok(answer?),
    };
    let Some(bytes_max) = settings.quota_bytes_max else { return Ok(()) };
    match control.set_quota(namespace, Some(bytes_max)).await {
        Err(Store::Unsupported(_) | Store::Denied(_)) if is_denied => Ok(()),
        answer => Ok(answer?),
    }
}

/// Takes back what was set for the namespace of a volume by `before`, and is not in `after`: until the cache is started
/// again it would stay.
///
/// # Errors
/// The store's.
pub(crate) async fn clear(pool: &Pool, volume: VolumeId, before: &Settings, after: &Settings) -> Result<()> {
    let gone =
        by_key(before).zip(by_key(after)).filter(|((_, old), (_, new))| old.is_some() && new.is_none());
    let all: Vec<_> = gone.map(|((key, _), _)| NamespaceSetting::new(key.into(), None)).collect();
    if all.is_empty() {
        return Ok(());
    }
    match pool.store.control().change_namespace(pool.namespace(volume), None, all).await {
        Err(Store::Denied(_)) => Ok(()),
        Err(Store::Unsupported(_)) if before.quota_bytes_max.is_some() && after.quota_bytes_max.is_none() => {
            match pool.store.control().set_quota(pool.namespace(volume), None).await {
                // Nothing has kept it.
                Err(Store::Unsupported(_)) => Ok(()),
                answer => Ok(answer?),
            }
        }
        Err(Store::Unsupported(_)) => Ok(()),
        answer => Ok(answer?),
    }
}
