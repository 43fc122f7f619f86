//! What write-through changes and copies have in common when they ask the store.

use blocker::admission::check_condition;
use blocker::{Call, ChangeReply, Condition, Durability, Error, InfoRequest, Result, Version, WriteMode};

use super::handle::Handle;
use super::state::Known;

/// The durability to ask of the store. In write-back mode the cache keeps what it has acknowledged until it
/// is stored, but no copy of what it forwards: so that must be stored, or a crash of the store would lose it.
pub(crate) fn forwarded_durability(mode: WriteMode, asked: Durability) -> Durability {
    if mode == WriteMode::Back { Durability::Stored } else { asked }
}

/// The reply with another durability.
pub(crate) fn with_durability(mut reply: ChangeReply, durability: Durability) -> ChangeReply {
    reply.durability = durability;
    reply
}

/// Returns the condition as the store must check it: what callers see as one version can be another in the
/// store. The caller holds the object's whole range.
pub(crate) async fn store_condition(handle: &Handle, condition: Condition, call: Call) -> Result<Condition> {
    let Condition::Version(_) = condition else { return Ok(condition) };
    let known = handle.enter(|object, _| object.head.known).await;
    if known == Known::Unknown {
        ask_head(handle, call).await?;
    }
    let (checked, mut version) = handle
        .enter(move |object, _| {
            let version = (object.head.known == Known::Present).then_some(Version(object.head.version));
            (check_condition(version, condition), object.head.store_version)
        })
        .await;
    checked?;
    if version.is_none() {
        version = ask_head(handle, call).await?;
    }
    Ok(version.map_or(Condition::Present, |version| Condition::Version(Version(version))))
}

/// Asks the store for size and version while the caller holds the object's whole range; returns the store's
/// version, or `None` if there is no such object.
async fn ask_head(handle: &Handle, call: Call) -> Result<Option<u64>> {
    let mut request = InfoRequest::new(handle.id().clone());
    request.call = call;
    let info = match handle.shared.below.info(request).await {
        Ok(info) => Some(info),
        Err(Error::Missing) => None,
        Err(error) => return Err(error),
    };
    let version = info.as_ref().map(|info| info.version.0);
    handle
        .enter(move |object, env| {
            object.head.store_version = version;
            if object.head.known == Known::Unknown {
                object.set_head(info.as_ref().map(|info| (info.size_bytes, info.version.0)));
                object.head.version = version.map_or(0, |it| env.versions.shown_for(env.hash, it));
            }
        })
        .await;
    Ok(version)
}
