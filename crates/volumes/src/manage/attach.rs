//! Attaches a volume: obtains the right to write to it, then reads its head, then its map.

use blocker::{
    Blocker, BlockerExt, Call, ClaimRequest, Condition, Durability, Epoch, Error as Store, Scope, Version,
    WriterId,
};

use crate::error::{Error, Result};
use crate::format::entry::{Entry, Kind, VolumeId};
use crate::format::map::Map;
use crate::format::{Head, LOGS_MAX, OverlayLog, Owner};
use crate::settings::{Fencing, Options};
use crate::space::{
    Pool, Space, apply_limits, if_supported, load_node, load_root, release_limits, unreadable,
};
use crate::volume::{Inner, Opened, Promises, has_log, load_logs, next_limit};

/// The maximum number of attempts, both for a claim that other owners overtake and for a page write
/// that the previous owner interferes with or whose outcome is unknown.
const TRIES: u32 = 32;

/// The options of attaching a volume.
#[derive(Clone, Copy, Default)]
pub(crate) struct Access {
    /// Whether to take the volume from an owner that has not released it.
    pub(crate) take_over: bool,
    /// Whether to attach a deleted volume that is kept for its clones.
    pub(crate) deleted: bool,
    /// Whether to apply the limits in the volume's settings, because the volume will be used and
    /// not only changed or deleted.
    pub(crate) is_limited: bool,
}

/// Attaches a volume for this owner.
pub(crate) async fn attach(
    pool: &Pool,
    options: &Options,
    writer: WriterId,
    volume: VolumeId,
    access: Access,
) -> Result<Inner> {
    let Access { take_over, deleted, is_limited } = access;
    let (head, is_as_left) = current_head(pool, options, volume).await?;
    // Caches below have correct copies of the snapshots up to this one.
    let newest = head.nodes.iter().map(|node| node.id).max();
    check_owner(&head, options, take_over, deleted)?;
    if !is_as_left {
        // Losses from before another owner had the volume are not this owner's.
        pool.take_as_is(Scope::Namespace(pool.namespace(volume))).await?;
    }
    let epoch = match options.fencing {
        Fencing::Stamps => Some(claim(pool, volume, writer, head.owner.as_ref()).await?),
        Fencing::Below => {
            attach_below(pool, volume, is_as_left).await?;
            None
        }
    };
    let space = Space::new(pool.clone(), volume, epoch);
    // The previous owner may have written until the claim.
    let (before, version) = pool.head(volume).await?;
    check_owner(&before, options, take_over, deleted)?;
    let mut head = before.clone();
    let allocation = head.allocation_limit;
    // A volume with no allocation IDs left can still be read and deleted.
    head.allocation_limit = next_limit(allocation).unwrap_or(allocation);
    head.owner = Some(Owner { epoch: epoch.unwrap_or(0), writer: writer.0, name: options.owner.clone() });
    head.sequence += 1;
    let promises =
        Promises { flush_durability: options.flush_durability, records_at_once: options.records_at_once };
    // The map does not contain the previous owner's logged data yet, so the logs stay.
    let has_allocations = head.allocation_limit > allocation;
    let is_logged =
        has_allocations && has_log(&space, &head.settings, promises) && head.logs.len() < LOGS_MAX;
    let log = is_logged.then_some(OverlayLog { allocation, key: writer.0 });
    head.logs.extend(log);
    let head_version = replace_head(&space, (&before, version), &head).await?;
    let loaded = async {
        if is_limited {
            apply_limits(pool, volume, head.sequence, &head.settings).await?;
        }
        if before.owner.as_ref().is_some_and(|owner| owner.writer != 0) {
            renew_pages(&space, &head).await?;
        }
        let (live, parent_root, parent) = load(pool, &head).await?;
        Ok((live, parent_root, parent, load_logs(pool, volume, &before.logs).await?))
    };
    let (live, parent_root, parent, logged) = match loaded.await {
        Ok(loaded) => loaded,
        Err(error) => {
            release_limits(pool, volume, head.sequence).await;
            // The volume is not open here, so the old head is restored under a new number. If that
            // fails too, a takeover helps.
            let _ = put_head(&space, &Head { sequence: head.sequence + 1, ..before }, head_version).await;
            return Err(error);
        }
    };
    if let Some(newest) = newest {
        pool.left.know(volume, newest);
    }
    let allocation = allocation + u64::from(log.is_some());
    let opened = Opened { space, head, head_version, live, parent_root, parent, allocation, promises };
    let inner = Inner::new(opened);
    inner.take_over_logs(logged, log);
    Ok(inner)
}

/// Reads a volume that has no owner, without attaching it. Nothing is written, and no changes are
/// allowed. Returns `None` if the volume has an owner, even one that has ended without releasing
/// it.
pub(crate) async fn look(pool: &Pool, options: &Options, volume: VolumeId) -> Result<Option<Inner>> {
    let (head, _) = current_head(pool, options, volume).await?;
    if head.owner.is_some() || !head.logs.is_empty() {
        return Ok(None);
    }
    let (head, head_version) = pool.head(volume).await?;
    let (live, parent_root, parent) = load(pool, &head).await?;
    let promises = Promises { flush_durability: Durability::Stored, records_at_once: false };
    let (space, allocation) = (Space::new(pool.clone(), volume, None), head.allocation_limit);
    let opened = Opened { space, head, head_version, live, parent_root, parent, allocation, promises };
    Ok(Some(Inner::new(opened)))
}

/// Returns a volume's map, and the pages and the map of its last snapshot.
async fn load(pool: &Pool, head: &Head) -> Result<(Map, Vec<Entry>, Map)> {
    pool.refresh(head.origin).await?;
    let live = pool.load(&head.root, None).await?;
    let (parent_root, parent) = match head.parent {
        0 => Default::default(),
        node => load_node(pool, head.volume, node, (&head.root, &live)).await?,
    };
    Ok((live, parent_root, parent))
}

/// Replaces the head that was read. If a cache below has re-read the head since (as it does when it
/// learns of the claim), the same head has a different version; another owner's head has a
/// different sequence number.
async fn replace_head(space: &Space, before: (&Head, Version), head: &Head) -> Result<Version> {
    let (before, mut version) = (before.0.encode(), before.1);
    for _ in 0..TRIES {
        match put_head(space, head, version).await {
            Err(error @ Error::InUse { .. }) => {
                let (found, newer) = space.pool.head(space.volume).await?;
                if newer == version || found.encode() != before {
                    return Err(error);
                }
                version = newer;
            }
            done => return done,
        }
    }
    put_head(space, head, version).await
}

/// Returns the stored head, and whether this owner was the last one to have the volume. If another
/// owner may have had it, caches below drop their copies of the volume.
async fn current_head(pool: &Pool, options: &Options, volume: VolumeId) -> Result<(Head, bool)> {
    pool.invalidate(Scope::Object(pool.object(volume, Kind::Head))).await?;
    let (head, _) = pool.head(volume).await?;
    let is_as_left = match &head.owner {
        // The volume was not released, perhaps by an earlier process whose logged changes may still
        // be in flight.
        Some(owner) if owner.name == options.owner && owner.writer != 0 => true,
        _ => pool.left.of(volume) == Some(head.sequence),
    };
    if !is_as_left {
        pool.invalidate(Scope::Namespace(pool.namespace(volume))).await?;
    }
    Ok((head, is_as_left))
}

/// Makes the layer below the volume's writer, if possible. If that layer was the writer before
/// another owner came, it has to claim the volume again.
pub(crate) async fn attach_below(pool: &Pool, volume: VolumeId, is_as_left: bool) -> Result<()> {
    let control = pool.store.control();
    if !is_as_left {
        if_supported(control.release(pool.namespace(volume)).await)?;
    }
    if_supported(control.attach(pool.namespace(volume)).await).map(drop)
}

/// Checks that the volume's owner permits attaching it.
pub(crate) fn check_owner(head: &Head, options: &Options, take_over: bool, deleted: bool) -> Result<()> {
    if head.is_deleted && !deleted {
        return Err(Error::NoSuchVolume(format!("number {}", head.volume)));
    }
    match &head.owner {
        Some(owner) if owner.name != options.owner && !take_over && !options.takes_over => {
            Err(Error::InUse { owner: owner.name.clone() })
        }
        _ => Ok(()),
    }
}

/// Claims the volume with a new epoch, after which no change under an older epoch is possible.
pub(crate) async fn claim(
    pool: &Pool,
    volume: VolumeId,
    writer: WriterId,
    last: Option<&Owner>,
) -> Result<u64> {
    let scope = Scope::Namespace(pool.namespace(volume));
    let mut in_force = match last.map(|owner| Epoch(owner.epoch)) {
        // If there is a newer epoch, the response to the claim names it.
        Some(last) if last > Epoch(0) => last,
        _ => pool.store.epoch_in_force(scope.clone(), Call::default()).await?,
    };
    for _ in 0..TRIES {
        let epoch = Epoch(in_force.0.saturating_add(1));
        match pool.store.claim(ClaimRequest::new(scope.clone(), epoch, writer)).await {
            Ok(_) => return Ok(epoch.0),
            Err(Store::Fenced { epoch: newer }) => in_force = newer.max(epoch),
            // The same claim can be retried.
            Err(Store::OutcomeUnknown(_) | Store::Retryable(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Io(Store::Retryable("other owners claim the volume at the same time".into())))
}

/// Writes a head on condition of its version. If the outcome is unknown, it is resolved before this
/// returns.
pub(crate) async fn put_head(space: &Space, head: &Head, version: Version) -> Result<Version> {
    let bytes = head.encode();
    let error = match space.put(Kind::Head, bytes.clone(), Condition::Version(version)).await {
        Ok(version) => return Ok(version),
        Err(error) => error,
    };
    if !matches!(error, Store::OutcomeUnknown(_) | Store::NotStored(_)) {
        return Err(match error {
            Store::ConditionFailed { .. } => Error::InUse { owner: "a more recent owner".into() },
            other => other.into(),
        });
    }
    let (found, version) = space.pool.get(space.object(Kind::Head)).await?;
    if found.to_vec() != bytes {
        return Err(error.into());
    }
    space.ensure_stored(Kind::Head, Durability::Cached).await?;
    Ok(version)
}

// ---- taking a volume from an owner that has not released it, where no layer refuses that owner's
// changes
//
// The previous owner may continue until it reads the head. Its in-place writes are then kept or
// lost, as in a crash. But a page of the map that it writes would name objects that only it knows,
// and it would remove objects that the next owner uses. So each page gets a new version, and the
// previous owner's conditional writes fail. A page that it wrote earlier is read by the next owner,
// and objects that it removes after writing a page are named by no page. When it asks for a page's
// version, it reads the head afterwards, which is already the next owner's before any page has a
// new version.

/// Gives new versions to the pages that the volume writes in place. The stored head is already this
/// owner's, so the previous owner allocates no more pages. The caller reads the pages after this.
async fn renew_pages(space: &Space, head: &Head) -> Result<()> {
    if space.is_stamped() {
        // With stamps, the store refuses the previous owner's changes.
        return Ok(());
    }
    let parent_root = match head.parent {
        0 => Vec::new(),
        node => load_root(&space.pool, head.volume, node).await?,
    };
    for (page, at) in head.root.iter().enumerate() {
        if at.volume() == head.volume && parent_root.get(page) != Some(at) {
            // A map has at most 65 536 pages.
            renew(space, Kind::Page(at.allocation(), page as u32)).await?;
        }
    }
    Ok(())
}

async fn renew(space: &Space, page: Kind) -> Result<()> {
    let object = space.object(page);
    for _ in 0..TRIES {
        let found = space.pool.get(object.clone()).await;
        let (bytes, version) =
            found.map_err(|error| unreadable(error, &format!("page {object} of a map")))?;
        match space.put(page, bytes.to_vec(), Condition::Version(version)).await {
            Ok(_) => return Ok(()),
            Err(Store::ConditionFailed { .. } | Store::OutcomeUnknown(_) | Store::NotStored(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Io(Store::Retryable("the previous owner is writing the map at the same time".into())))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blocker::Memory;
    use blocker::executor::block_on;

    use super::*;
    use crate::format::entry::ALLOCATION_MAX;
    use crate::manage::Volumes;
    use crate::settings::{OpenOptions, Settings};

    #[test]
    fn a_volume_whose_allocation_ids_are_used_up_can_be_read_and_deleted() {
        let volumes = Volumes::new(Arc::new(Memory::default()), Options::new("vol")).unwrap();
        block_on(async {
            volumes.create("a", 1 << 20, Settings::default()).await.unwrap();
            let disk = volumes.open("a", OpenOptions::default()).await.unwrap();
            disk.write(0, b"one".into(), Durability::Cached).await.unwrap();
            disk.close().await.unwrap();
            let volume = volumes.pool.find("a").await.unwrap();
            let space = Space::new(volumes.pool.clone(), volume, None);
            for left in [100, 0] {
                let (mut head, version) = volumes.pool.head(volume).await.unwrap();
                head.allocation_limit = ALLOCATION_MAX + 1 - left;
                put_head(&space, &head, version).await.unwrap();
                let disk = volumes.open("a", OpenOptions::default()).await.unwrap();
                assert_eq!(disk.read(0, 3).await.unwrap().to_vec(), b"one");
                let refused = disk.write(0, b"two".into(), Durability::Cached).await;
                assert!(matches!(refused, Err(Error::Limit(_))), "{refused:?}");
                disk.flush().await.unwrap();
                disk.close().await.unwrap();
                assert_eq!(volumes.check(true).await.unwrap().problems, []);
            }
            volumes.delete("a").await.unwrap();
        });
    }
}
