//! Listing: the store's pages, corrected by what the cache knows better.

use std::collections::BTreeMap;

use blocker::{Error, ListEntry, ListReply, ListRequest, Name, ObjectId, Result, Scope, Version};

use crate::object::shared::Shared;
use crate::object::shared::handle::Handle;
use crate::object::shared::recovery_gate;
use crate::object::state::Listed;
use crate::sync::Arc;

/// Returns one page.
pub(crate) async fn list(shared: Arc<Shared>, mut request: ListRequest) -> Result<ListReply> {
    request.entries_max = request.entries_max.clamp(1, shared.can.list_entries_max);
    let most = request.entries_max as usize;
    recovery_gate::scope_recovered(&shared, &Scope::Namespace(request.namespace.clone())).await?;
    loop {
        // Collected before the store is asked: what is stored meanwhile is in one of the two.
        let ours = queued_of(&shared, &request).await;
        let page = shared.below.list(request.clone()).await?;
        let last = page.entries.last().map(|entry| entry.name.clone());
        if page.has_more
            && last.as_ref().is_none_or(|last| request.after.as_ref().is_some_and(|it| last <= it))
        {
            let why = format!("the store's listing of {} does not go on", request.namespace);
            return Err(Error::Corrupt(why.into()));
        }
        let mut merged: BTreeMap<Name, ListEntry> =
            page.entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for (name, entry) in ours {
            let is_beyond = page.has_more && last.as_ref().is_some_and(|last| name > *last);
            // The page may be older than what was here before it was asked for, and by now that may be
            // stored and forgotten.
            match entry {
                _ if is_beyond => None,
                Listed::Present(entry) => merged.insert(name, entry),
                Listed::Absent => merged.remove(&name),
                // It has been stored since it was queued, and forgotten: the page, which was asked for later, has it
                // or has it not.
                Listed::Unknown => None,
            };
        }
        let mut entries = Vec::with_capacity(merged.len());
        for (name, entry) in merged {
            entries.extend(corrected(&shared, &request, name, entry).await);
        }
        let has_more = page.has_more || entries.len() > most;
        entries.truncate(most);
        if entries.is_empty() && has_more {
            // Everything on this page has been removed here; the next page may have entries.
            request.after = last;
            continue;
        }
        return Ok(ListReply::new(entries, has_more));
    }
}

/// Returns the objects in the dirty queue that the request asks for, whether the store knows them or not.
async fn queued_of(shared: &Arc<Shared>, request: &ListRequest) -> Vec<(Name, Listed)> {
    let mut ours = Vec::new();
    for node in shared.dirty_queue.nodes() {
        let Some(handle) = Handle::of_node(shared, node) else { continue };
        let id = handle.id();
        let is_asked = id.namespace == request.namespace
            && id.name.as_bytes().starts_with(&request.prefix)
            && request.after.as_ref().is_none_or(|after| id.name > *after);
        if is_asked {
            let name = id.name.clone();
            let entry = handle.enter(move |object, _| object.listed(name)).await;
            ours.push((id.name.clone(), entry));
        }
    }
    ours
}

/// Returns an entry as the cache knows it; `None` if the object has been removed.
async fn corrected(
    shared: &Arc<Shared>,
    request: &ListRequest,
    name: Name,
    entry: ListEntry,
) -> Option<ListEntry> {
    let id = ObjectId::new(request.namespace.clone(), name.clone());
    let hash = shared.hash(&id);
    let shown = || {
        let version = Version(shared.remembered.shown_for(hash, entry.version.0));
        ListEntry::new(entry.name.clone(), entry.size_bytes, version)
    };
    if shared.attaching.is_direct() {
        return Some(shown());
    }
    let Some(in_use) = shared.find(hash, &id) else { return Some(shown()) };
    let handle = Handle::of(shared, in_use);
    match handle.enter(move |object, _| object.listed(name)).await {
        Listed::Unknown => Some(shown()),
        Listed::Absent => None,
        Listed::Present(entry) => Some(entry),
    }
}
