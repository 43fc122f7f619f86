//! Taking a volume: the right to write to it, then its head, then its map.

use blocker::{Blocker, ClaimRequest, Condition, Durability, Epoch, Policy, Scope, WriterId};

use crate::entry::{Kind, VolumeId};
use crate::error::{Error, Result};
use crate::format::{Head, Owner};
use crate::map::Map;
use crate::settings::{Fencing, Options};
use crate::space::{Pool, Space, load_node};
use crate::volume::{Inner, Opened, Promises, next_limit};

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
    let (head, _) = pool.head(volume).await?;
    check_owner(&head, options, take_over, deleted)?;
    let epoch = match options.fencing {
        Fencing::Stamps => Some(claim(pool, volume, writer).await?),
        Fencing::Below => {
            match pool.store.control().attach(pool.namespace(volume)).await {
                Ok(_) | Err(blocker::Error::Unsupported(_)) => {}
                Err(error) => return Err(error.into()),
            }
            None
        }
    };
    let space = Space::new(pool.clone(), volume, epoch);
    // The owner before may have written until the claim.
    let (mut head, version) = pool.head(volume).await?;
    check_owner(&head, options, take_over, deleted)?;
    let birth = head.birth_limit;
    head.birth_limit = next_limit(birth)?;
    head.owner = Some(Owner { epoch: epoch.unwrap_or(0), writer: writer.0, name: options.owner.clone() });
    head.sequence += 1;
    let head_version = put_head(&space, &head, version).await?;
    apply_settings(pool, volume, &head).await?;
    let live = pool.load(&head.root, None).await?;
    let (parent_root, parent) = match head.parent {
        0 => (Vec::new(), Map::default()),
        node => load_node(pool, volume, node, (&head.root, &live)).await?,
    };
    let promises =
        Promises { flush_durability: options.flush_durability, records_at_once: options.records_at_once };
    Ok(Inner::new(Opened { space, head, head_version, live, parent_root, parent, birth, promises }))
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
async fn claim(pool: &Pool, volume: VolumeId, writer: WriterId) -> Result<u64> {
    let scope = Scope::Namespace(pool.namespace(volume));
    let mut in_force = match pool.store.claim(ClaimRequest::ask(scope.clone())).await {
        Ok(reply) => reply.epoch,
        Err(blocker::Error::Fenced { epoch }) => epoch,
        Err(error) => return Err(error.into()),
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
pub(crate) async fn put_head(
    space: &Space,
    head: &Head,
    version: blocker::Version,
) -> Result<blocker::Version> {
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

async fn apply_settings(pool: &Pool, volume: VolumeId, head: &Head) -> Result<()> {
    let namespace = pool.namespace(volume);
    if let Some(write) = head.settings.write {
        let mut policy = Policy::default();
        policy.write = write;
        pool.store.control().set_policy(namespace.clone(), policy).await?;
    }
    if let Some(bytes_max) = head.settings.quota_bytes_max {
        pool.store.control().set_quota(namespace, Some(bytes_max)).await?;
    }
    Ok(())
}
