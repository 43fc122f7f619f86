//! What is about whole objects, namespaces, everything: info, list, flush, claim, invalidate.

use std::collections::BTreeMap;

use blocker::{
    ClaimReply, ClaimRequest, Durability, Error, FlushReply, FlushRequest, Info, InfoRequest,
    InvalidateReply, InvalidateRequest, ListEntry, ListReply, ListRequest, Name, ObjectId, Result, Scope,
    Version,
};

use super::doubt::{doubt, doubt_rest};
use super::handle::Handle;
use super::load::load_head;
use super::pool::BUCKET;
use super::shared::Shared;
use super::state::{Known, Object};
use super::waiter::{FlushTicket, Stored};
use crate::sync::Arc;

impl Object {
    /// What is known of it, if all of it is.
    pub(crate) fn info(&self) -> Option<Result<Info>> {
        if !self.head.is_full {
            return None;
        }
        match self.head.known {
            Known::Unknown => None,
            Known::Absent => Some(Err(Error::Missing)),
            Known::Present => {
                Some(Ok(Info::new(self.head.size, Version(self.head.version), self.head.stamp)))
            }
        }
    }
}

/// Size, version and stamp, asked from the store.
pub(crate) async fn info(shared: Arc<Shared>, request: InfoRequest, hash: u64) -> Result<Info> {
    let call = request.call;
    let own = Arc::clone(&shared);
    let work = async move {
        let handle = Handle::acquire(&own, &request.object, hash).await?;
        loop {
            if let Some(info) = handle.enter(|object, _| object.info()).await {
                return info;
            }
            load_head(&handle, call).await?;
        }
    };
    shared.until(call.deadline, || Error::DeadlinePassed, work).await
}

/// One page: the store's, with what the cache knows better.
pub(crate) async fn list(shared: Arc<Shared>, request: ListRequest) -> Result<ListReply> {
    let deadline = request.call.deadline;
    let own = Arc::clone(&shared);
    shared.until(deadline, || Error::DeadlinePassed, list_page(own, request)).await
}

async fn list_page(shared: Arc<Shared>, mut request: ListRequest) -> Result<ListReply> {
    request.entries_max = request.entries_max.clamp(1, shared.can.list_entries_max);
    let most = request.entries_max as usize;
    loop {
        // Looked at before the store is: what is stored meanwhile is in one of the two.
        let ours = pending_of(&shared, &request).await;
        let page = shared.below.list(request.clone()).await?;
        let last = page.entries.last().map(|entry| entry.name.clone());
        let mut merged: BTreeMap<Name, ListEntry> =
            page.entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        for (name, entry) in ours {
            let is_beyond = page.has_more && last.as_ref().is_some_and(|last| name > *last);
            // The page may be older than what was here before it was asked for, and by now that may be
            // stored and forgotten.
            match entry {
                _ if is_beyond => None,
                Some(entry) => merged.insert(name, entry),
                None => merged.remove(&name),
            };
        }
        let mut entries = Vec::with_capacity(merged.len());
        for (name, entry) in merged {
            entries.extend(known_better(&shared, &request, name, entry).await);
        }
        let has_more = page.has_more || entries.len() > most;
        entries.truncate(most);
        if entries.is_empty() && has_more {
            // All of this page has been removed here; the next may have something.
            request.after = last;
            continue;
        }
        return Ok(ListReply::new(entries, has_more));
    }
}

/// Objects of the namespace that the store may not know, after the request's start.
async fn pending_of(shared: &Arc<Shared>, request: &ListRequest) -> Vec<(Name, Option<ListEntry>)> {
    let mut ours = Vec::new();
    for node in shared.registry.nodes() {
        let Some(handle) = Handle::of_node(shared, node) else { continue };
        let id = handle.id();
        let is_asked = id.namespace == request.namespace
            && id.name.as_bytes().starts_with(&request.prefix)
            && request.after.as_ref().is_none_or(|after| id.name > *after);
        if is_asked {
            let name = id.name.clone();
            let entry = handle.enter(move |object, _| object.entry(name)).await;
            ours.push((id.name.clone(), entry));
        }
    }
    ours
}

impl Object {
    fn entry(&self, name: Name) -> Option<ListEntry> {
        let is_present = self.head.known == Known::Present;
        is_present.then(|| ListEntry::new(name, self.head.size, Version(self.head.version)))
    }
}

/// An entry as the cache knows it; `None` if it has been removed.
async fn known_better(
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
    let Some(in_use) = shared.find(hash, &id) else { return Some(shown()) };
    let handle = Handle::of(shared, in_use);
    let known = handle.enter(move |object, _| (object.head.known, object.entry(name))).await;
    match known {
        (Known::Unknown, _) => Some(shown()),
        (_, known) => known,
    }
}

/// Makes everything acknowledged within the scope stored.
pub(crate) async fn flush(shared: Arc<Shared>, request: FlushRequest) -> Result<FlushReply> {
    let ticket = Arc::new(FlushTicket::default());
    let late = || Error::NotStored(ticket.why());
    let deadline = request.call.deadline;
    if deadline.is_some_and(|deadline| shared.clock.now() >= deadline) {
        return Err(Error::NotStored("the deadline passed before the flush began".into()));
    }
    let work = async {
        store_scope(&shared, &request.scope, &ticket).await?;
        // What was forwarded may not be stored below either.
        shared.below.flush(request.clone()).await?;
        shared.losses.check(&request.scope)
    };
    shared.until(deadline, late, work).await?;
    Ok(FlushReply::new(Durability::Stored))
}

/// Waits until what the cache has within `scope` is stored, or recorded as lost.
async fn store_scope(shared: &Arc<Shared>, scope: &Scope, ticket: &Arc<FlushTicket>) -> Result<()> {
    match flush_scope(shared, scope, ticket).await {
        Err(Error::WritesLost(_)) => Ok(()),
        result => result,
    }
}

async fn flush_scope(shared: &Arc<Shared>, scope: &Scope, ticket: &Arc<FlushTicket>) -> Result<()> {
    if let Scope::Object(id) = scope {
        if let Some(in_use) = shared.find(shared.hash(id), id) {
            let handle = Handle::of(shared, in_use);
            shared.wait_stored(&handle, ticket, 0).await;
        }
    } else {
        for node in shared.registry.nodes() {
            let Some(handle) = Handle::of_node(shared, node) else { continue };
            let id = handle.id();
            let namespace = match scope {
                Scope::Domain(namespace, _) | Scope::Namespace(namespace) => Some(namespace),
                _ => None,
            };
            if namespace.is_some_and(|namespace| *namespace != id.namespace) {
                continue;
            }
            if let Scope::Domain(_, domain) = scope {
                let domain = *domain;
                let is_of_it = handle.enter(move |object, _| object.pending.domain == Some(domain));
                if !is_of_it.await {
                    continue;
                }
            }
            shared.wait_stored(&handle, ticket, 0).await;
        }
    }
    Stored(Arc::clone(ticket)).await
}

/// Takes over a scope: what was acknowledged under older epochs is stored first.
pub(crate) async fn claim(shared: Arc<Shared>, request: ClaimRequest) -> Result<ClaimReply> {
    let deadline = request.call.deadline;
    let work = async {
        let ticket = Arc::new(FlushTicket::default());
        store_scope(&shared, &request.scope, &ticket).await?;
        // From here on no older change is accepted here; what came during the flush is stored as well.
        let raised = shared.try_claim(&request.scope, request.epoch)?;
        if raised.is_some() {
            store_scope(&shared, &request.scope, &Arc::new(FlushTicket::default())).await?;
        }
        let claimed = shared.below.claim(request.clone()).await;
        match (&claimed, raised) {
            // Another claim of that epoch may have been taken back here meanwhile.
            (Ok(_), _) => shared.note_claim(&request.scope, request.epoch),
            (Err(Error::Invalid(_) | Error::OutOfSpace(_) | Error::Unsupported(_)), Some(before)) => {
                shared.take_back_claim(&request.scope, request.epoch, before);
            }
            _ => {}
        }
        claimed
    };
    let late = || Error::OutcomeUnknown("the deadline passed while the claim was made".into());
    shared.until(deadline, late, work).await
}

/// Drops what the scope has that is clean, here and below.
pub(crate) async fn invalidate(shared: Arc<Shared>, request: InvalidateRequest) -> Result<InvalidateReply> {
    let deadline = request.call.deadline;
    let losses = shared.losses.count();
    let work = async {
        let dropped = drop_clean(&shared, &request.scope).await?;
        let reply = shared.below.invalidate(request.clone()).await?;
        // The caller lets go of what was lost before it asked. News from below do not: no caller has read of the loss by
        // them.
        shared.losses.repair_first(&request.scope, losses);
        Ok(InvalidateReply::new(reply.dropped_bytes + dropped))
    };
    shared.until(deadline, || Error::DeadlinePassed, work).await
}

/// Drops clean copies within a scope; how many bytes.
///
/// # Errors
/// `Retryable` if that takes memory, and too many wait for it already.
pub(crate) async fn drop_clean(shared: &Arc<Shared>, scope: &Scope) -> Result<u64> {
    let mut dropped = 0;
    let mut rest = Vec::new();
    for handle in handles_of(shared, scope) {
        let doubted = doubt(&handle).await;
        dropped += u64::from(doubted.dropped) * BUCKET as u64;
        if doubted.left > 0 {
            rest.push((handle, doubted.left));
        }
    }
    for (handle, left) in rest {
        doubt_rest(handle, left).await?;
    }
    Ok(dropped)
}

/// The objects within a scope that are known here.
pub(crate) fn handles_of(shared: &Arc<Shared>, scope: &Scope) -> Vec<Handle> {
    let mut handles = Vec::new();
    match scope {
        Scope::Object(id) => {
            handles.extend(shared.find(shared.hash(id), id).map(|in_use| Handle::of(shared, in_use)));
        }
        _ => shared.index.for_each(|in_use| {
            let id = shared.index.id(in_use);
            let is_of_it = match scope {
                // An object does not know all the domains it ever belonged to.
                Scope::Domain(namespace, _) | Scope::Namespace(namespace) => id.namespace == *namespace,
                _ => true,
            };
            if is_of_it {
                handles.push(Handle::of(shared, shared.index.use_again(in_use.at)));
            }
        }),
    }
    handles
}
