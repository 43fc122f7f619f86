//! What write-through changes and copies have in common when they ask the store.

use blocker::admission::check_condition;
use blocker::{Call, ChangeReply, Condition, Durability, Error, InfoRequest, Result, Version, WriteMode};

use super::load::ask_info;
use crate::object::shared::handle::Handle;
use crate::object::state::{Known, Object};

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

/// What was known of an object as a whole at one moment. What the object has of it may be forgotten any time after, as
/// upon a notice that another client has changed it.
#[derive(Clone, Copy)]
struct FoundHead {
    /// Size, and version as callers see it; `None`: there is no such object.
    shown: Option<(u64, Version)>,
    /// The version that the store has for it, if known.
    store_version: Option<u64>,
}

impl FoundHead {
    /// Returns what an object knows of itself, unless it must ask.
    fn of(object: &Object) -> Option<Self> {
        let head = &object.head;
        let shown = match head.known {
            Known::Unknown => return None,
            Known::Absent => None,
            Known::Present => Some((head.size, Version(head.version))),
        };
        Some(Self { shown, store_version: head.store_version })
    }
}

/// Returns the condition as the store must check it: what callers see as one version can be another in the
/// store. The caller holds the object's whole range.
pub(crate) async fn store_condition(handle: &Handle, condition: Condition, call: Call) -> Result<Condition> {
    let Condition::Version(_) = condition else { return Ok(condition) };
    let found = find_head(handle, call).await?;
    check_condition(found.shown.map(|(_, version)| version), condition)?;
    let version = match found.store_version {
        None => ask_head(handle, call).await?.store_version,
        known => known,
    };
    Ok(version.map_or(Condition::Present, |version| Condition::Version(Version(version))))
}

/// Returns what the object knows of itself; asks the store if it knows nothing.
async fn find_head(handle: &Handle, call: Call) -> Result<FoundHead> {
    match handle.enter(|object, _| FoundHead::of(object)).await {
        Some(found) => Ok(found),
        None => ask_head(handle, call).await,
    }
}

/// Asks the store for size and version while the caller holds the object's whole range.
async fn ask_head(handle: &Handle, call: Call) -> Result<FoundHead> {
    let mut request = InfoRequest::new(handle.id().clone());
    request.call = call;
    let info = match ask_info(handle, request).await {
        Ok(info) => Some(info),
        Err(Error::Missing) => None,
        Err(error) => return Err(error),
    };
    let version = info.as_ref().map(|info| info.version.0);
    let found = handle.enter(move |object, env| {
        object.head.store_version = version;
        if object.head.known == Known::Unknown {
            object.set_head(info.as_ref().map(|info| (info.size_bytes, info.version.0)));
            object.head.version = version.map_or(0, |it| env.versions.shown_for(env.hash, it));
        }
        let shown =
            (object.head.known == Known::Present).then_some((object.head.size, Version(object.head.version)));
        FoundHead { shown, store_version: version }
    });
    Ok(found.await)
}

/// Returns the sizes of an object before and after a change that gives it the size `after` of the one before;
/// asks the store for what is not known. The caller holds the object's whole range.
pub(crate) async fn sizes(
    handle: &Handle,
    call: Call,
    after: impl FnOnce(Option<u64>) -> u64,
) -> Result<(u64, u64)> {
    let before = find_head(handle, call).await?.shown.map(|(size, _)| size);
    Ok((before.unwrap_or(0), after(before)))
}
