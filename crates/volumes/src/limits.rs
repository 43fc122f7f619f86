//! What a volume may use of what it shares with others: the write mode, quota and rates of its namespace, which the
//! cache below keeps. A cache in this process knows them as the volume's, and whether it is attached; one that is reached
//! over a server takes them as commands.

use blocker::{Error as Store, NamespaceKey, NamespaceSettings, Policy, WriteMode};

use crate::error::Result;
use crate::format::entry::VolumeId;
use crate::settings::Settings;
use crate::space::Pool;

/// Returns the settings of a volume's namespace.
fn of_namespace(settings: &Settings) -> NamespaceSettings {
    let quota = (NamespaceKey::QuotaBytesMax, settings.quota_bytes_max);
    let all = std::iter::once(quota).chain(settings.rates.by_key());
    let mut own = NamespaceSettings::default();
    own.write = settings.write;
    all.filter(|(_, value)| value.is_some()).fold(own, |own, (key, value)| own.with(key, value))
}

/// Sets what `settings` have for the namespace of a volume; what they do not have stays as it is. `attachment` is a
/// number that no other attachment of the volume has.
///
/// # Errors
/// The store's; `Unsupported` where nothing below can keep a quota, or writes off a volume.
pub(crate) async fn apply(pool: &Pool, volume: VolumeId, attachment: u64, settings: &Settings) -> Result<()> {
    let (namespace, control) = (pool.namespace(volume), pool.store.control());
    let mut all = of_namespace(settings);
    match control.set_volume(namespace.clone(), attachment, Some(all.clone())).await {
        Err(Store::Unsupported(_)) => {}
        answer => return Ok(answer?),
    }
    if let Some(write) = all.write.take() {
        let mut policy = Policy::default();
        policy.write = write;
        match control.set_policy(namespace.clone(), policy).await {
            // Nothing caches: every write goes through already.
            Err(Store::Unsupported(_)) if write != WriteMode::ReadOnly => {}
            answer => answer?,
        }
    }
    if all.is_empty() {
        return Ok(());
    }
    let is_denied = match control.change_namespace(namespace.clone(), all).await {
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

/// Lets the namespace of a volume be taken out of the cache again, once the attachment of this number has ended.
pub(crate) async fn release(pool: &Pool, volume: VolumeId, attachment: u64) {
    match pool.store.control().set_volume(pool.namespace(volume), attachment, None).await {
        Ok(()) | Err(Store::Unsupported(_)) => {}
        // A cache in this process does not fail; whatever does, the next attachment takes the place of this one.
        Err(_) => {}
    }
}

/// Replaces what was set by `before` for the namespace of a volume that is not attached, as far as it is not in `after`.
/// The caller has the turn of the volume.
///
/// # Errors
/// The store's.
pub(crate) async fn replace(
    pool: &Pool,
    volume: VolumeId,
    before: &Settings,
    after: &Settings,
) -> Result<()> {
    let (namespace, control) = (pool.namespace(volume), pool.store.control());
    let (before, after) = (of_namespace(before), of_namespace(after));
    // Attachments have higher numbers.
    match control.set_volume(namespace.clone(), 0, Some(after.clone())).await {
        Err(Store::Unsupported(_)) => {}
        answer => {
            answer?;
            release(pool, volume, 0).await;
            return Ok(());
        }
    }
    let gone = before.values().filter(|(key, _)| after.get(*key).is_none());
    let gone = gone.fold(NamespaceSettings::default(), |gone, (key, _)| gone.with(key, None));
    if gone.is_empty() {
        return Ok(());
    }
    let has_quota = gone.get(NamespaceKey::QuotaBytesMax).is_some();
    match control.change_namespace(namespace.clone(), gone).await {
        Err(Store::Denied(_)) => Ok(()),
        Err(Store::Unsupported(_)) if has_quota => match control.set_quota(namespace, None).await {
            // Nothing has kept it.
            Err(Store::Unsupported(_)) => Ok(()),
            answer => Ok(answer?),
        },
        Err(Store::Unsupported(_)) => Ok(()),
        answer => Ok(answer?),
    }
}
