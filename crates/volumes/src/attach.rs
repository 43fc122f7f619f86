//! Taking a volume: the right to write to it, then its head, then its map.

use std::sync::Arc;

use blocker::{
    Blocker, ClaimRequest, Condition, Durability, Epoch, InvalidateRequest, Scope, Version, WriterId,
};

use crate::entry::{Kind, VolumeId};
use crate::error::{Error, Result};
use crate::format::{Head, LOGS_MAX, OverlayLog, Owner};
use crate::limits;
use crate::map::Map;
use crate::settings::{Fencing, Options};
use crate::space::{Pool, Space, load_node};
use crate::volume::{Inner, Opened, Promises, has_log, next_limit};

/// Claims in a row that other owners may overtake.
const TRIES: u32 = 32;

/// Attaches a volume for this owner; one that was deleted and is kept for its clones only if `deleted`.
pub(crate) async fn attach(
    pool: &Pool,
    options: &Options,
    writer: WriterId,
    volume: VolumeId,
    take_over: bool,
    deleted: bool,
) -> Result<Inner> {
    let (head, is_as_left) = current_head(pool, options, volume).await?;
    check_owner(&head, options, take_over, deleted)?;
    let epoch = match options.fencing {
        Fencing::Stamps => Some(claim(pool, volume, writer, &head).await?),
        Fencing::Below => {
            attach_below(pool, volume, is_as_left).await?;
            None
        }
    };
    let space = Space::new(pool.clone(), volume, epoch);
    // The owner before may have written until the claim.
    let (before, version) = pool.head(volume).await?;
    check_owner(&before, options, take_over, deleted)?;
    let mut head = before.clone();
    let birth = head.birth_limit;
    head.birth_limit = next_limit(birth)?;
    head.owner = Some(Owner { epoch: epoch.unwrap_or(0), writer: writer.0, name: options.owner.clone() });
    head.sequence += 1;
    let promises =
        Promises { flush_durability: options.flush_durability, records_at_once: options.records_at_once };
    // What the owner before has left in its logs is not in the map yet: they stay.
    let is_logged = has_log(&space, &head.settings, promises) && head.logs.len() < LOGS_MAX;
    let log = is_logged.then_some(OverlayLog { birth, key: writer.0 });
    head.logs.extend(log);
    let head_version = replace_head(&space, (&before, version), &head).await?;
    limits::apply(pool, volume, &head.settings).await?;
    let live = pool.load(&head.root, None).await?;
    let (parent_root, parent) = match head.parent {
        0 => (Vec::new(), Map::default()),
        node => load_node(pool, volume, node, (&head.root, &live)).await?,
    };
    let (birth, room) = (birth + 1, Arc::clone(&pool.room));
    let opened = Opened { space, head, head_version, live, parent_root, parent, birth, promises, room };
    let inner = Inner::new(opened);
    inner.take_over_logs(&before.logs, log).await?;
    Ok(inner)
}

/// Puts a head in place of the one that was read. A cache below that has dropped that one since, as it does when it learns of
/// the claim, has the same under another version; one of another owner has another sequence number.
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

/// Returns the head as the store has it, and whether no other owner has had the volume since this one. If one may have,
/// what caches below have of it is dropped.
async fn current_head(pool: &Pool, options: &Options, volume: VolumeId) -> Result<(Head, bool)> {
    invalidate(pool, Scope::Object(pool.object(volume, Kind::Head))).await?;
    let (head, _) = pool.head(volume).await?;
    let is_as_left = match &head.owner {
        // It was not given up, perhaps by an earlier process: what that has logged may still be on its way.
        Some(owner) if owner.name == options.owner && owner.writer != 0 => true,
        _ => pool.left.of(volume) == Some(head.sequence),
    };
    if !is_as_left {
        invalidate(pool, Scope::Namespace(pool.namespace(volume))).await?;
    }
    Ok((head, is_as_left))
}

/// Lets the caches below read anew what they have of a scope and need not store.
pub(crate) async fn invalidate(pool: &Pool, scope: Scope) -> Result<()> {
    match pool.store.invalidate(InvalidateRequest::new(scope)).await {
        Ok(_) | Err(blocker::Error::Unsupported(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes the layer below the writer of the volume, where it can be. One that was the writer before another owner came
/// has to become it again.
async fn attach_below(pool: &Pool, volume: VolumeId, is_as_left: bool) -> Result<()> {
    let control = pool.store.control();
    if !is_as_left {
        match control.release(pool.namespace(volume)).await {
            Ok(()) | Err(blocker::Error::Unsupported(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match control.attach(pool.namespace(volume)).await {
        Ok(_) | Err(blocker::Error::Unsupported(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn check_owner(head: &Head, options: &Options, take_over: bool, deleted: bool) -> Result<()> {
    if head.is_deleted && !deleted {
        return Err(Error::NoSuchVolume(format!("number {}", head.volume)));
    }
    match &head.owner {
        Some(owner) if owner.name != options.owner && !take_over => {
            Err(Error::InUse { owner: owner.name.clone() })
        }
        _ => Ok(()),
    }
}

/// Claims the volume with an epoch of its own: no older change can be made after this.
async fn claim(pool: &Pool, volume: VolumeId, writer: WriterId, head: &Head) -> Result<u64> {
    let scope = Scope::Namespace(pool.namespace(volume));
    let mut in_force = match head.owner.as_ref().map(|owner| Epoch(owner.epoch)) {
        // If there is a newer one, the answer to the claim has it.
        Some(last) if last > Epoch(0) => last,
        _ => match pool.store.claim(ClaimRequest::ask(scope.clone())).await {
            Ok(reply) => reply.epoch,
            Err(blocker::Error::Fenced { epoch }) => epoch,
            Err(error) => return Err(error.into()),
        },
    };
    for _ in 0..TRIES {
        let epoch = Epoch(in_force.0.saturating_add(1));
        match pool.store.claim(ClaimRequest::new(scope.clone(), epoch, writer)).await {
            Ok(_) => return Ok(epoch.0),
            Err(blocker::Error::Fenced { epoch: newer }) => in_force = newer.max(epoch),
            // The same claim may be made again.
            Err(blocker::Error::OutcomeUnknown(_) | blocker::Error::Retryable(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Io(blocker::Error::Retryable("other owners claim the volume at the same time".into())))
}

/// Writes a head on condition of its version; finds out what became of it.
pub(crate) async fn put_head(space: &Space, head: &Head, version: Version) -> Result<Version> {
    let bytes = head.encode();
    let error = match space.put(Kind::Head, bytes.clone(), Condition::Version(version)).await {
        Ok(version) => return Ok(version),
        Err(error) => error,
    };
    if !matches!(error, blocker::Error::OutcomeUnknown(_) | blocker::Error::NotStored(_)) {
        return Err(match error {
            blocker::Error::ConditionFailed { .. } => {
                Error::InUse { owner: "another owner, since a moment".into() }
            }
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
