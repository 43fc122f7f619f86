//! Listing: pages from the store, corrected by newer knowledge in the cache; and counting the usage
//! of namespaces with a quota by listing them.

use std::collections::BTreeMap;
use std::time::Duration;

use blocker::{Error, ListEntry, ListReply, ListRequest, Name, Namespace, ObjectId, Result, Scope, Version};

use crate::object::control::quotas::Counted;
use crate::object::shared::claim::claim_before_read;
use crate::object::shared::handle::Handle;
use crate::object::shared::{Shared, log_waits};
use crate::object::state::{Head, Known};
use crate::object::tasks::deadline::until;
use crate::sync::Arc;

/// Returns one page.
pub(crate) async fn list(shared: Arc<Shared>, request: ListRequest) -> Result<ListReply> {
    let deadline = request.call.deadline;
    until(&*shared.clock, deadline, || Error::DeadlinePassed, list_page(&shared, request)).await
}

async fn list_page(shared: &Arc<Shared>, mut request: ListRequest) -> Result<ListReply> {
    request.entries_max = request.entries_max.clamp(1, shared.store.can.list_entries_max);
    let most = request.entries_max as usize;
    log_waits::scope_recovered(shared, &Scope::Namespace(request.namespace.clone())).await?;
    claim_before_read(shared, &request.namespace).await?;
    loop {
        // The queue is read before the store is asked: an object that is stored in the meantime is
        // in one of the two.
        let ours = queued_of(shared, &request).await;
        let page = shared.store.below.list(request.clone()).await?;
        let last = page.entries.last().map(|entry| entry.name.clone());
        if page.has_more
            && last.as_ref().is_none_or(|last| request.after.as_ref().is_some_and(|it| last <= it))
        {
            let why = format!("the store's listing of {} makes no progress", request.namespace);
            return Err(Error::Corrupt(why.into()));
        }
        // Not collected, which would compile the code of a sort as well.
        let mut merged: BTreeMap<Name, ListEntry> = BTreeMap::new();
        merged.extend(page.entries.into_iter().map(|entry| (entry.name.clone(), entry)));
        for (name, head) in ours {
            let is_beyond = page.has_more && last.as_ref().is_some_and(|last| name > *last);
            // The page may be older than the cache's state before the request, and that state may
            // have been stored and forgotten by now.
            match head.known {
                _ if is_beyond => None,
                Known::Present => merged.insert(name.clone(), head.list_entry(name)),
                Known::Absent => merged.remove(&name),
                // The object has been stored and forgotten since it was queued: the page was
                // requested later, and is right about the object.
                Known::Unknown => None,
            };
        }
        let mut entries = Vec::with_capacity(merged.len());
        for (name, entry) in merged {
            entries.extend(corrected(shared, &request, name, entry).await);
        }
        let has_more = page.has_more || entries.len() > most;
        entries.truncate(most);
        if entries.is_empty() && has_more {
            // Everything on this page has been removed in the cache; the next page may have
            // entries.
            request.after = last;
            continue;
        }
        return Ok(ListReply::new(entries, has_more));
    }
}

/// Returns the objects in the dirty queue that match the request, whether or not the store knows
/// them.
async fn queued_of(shared: &Arc<Shared>, request: &ListRequest) -> Vec<(Name, Head)> {
    let mut ours = Vec::new();
    for node in shared.objects.dirty_queue.nodes() {
        let Some(handle) = Handle::of_node(shared, node) else { continue };
        let id = handle.id();
        let is_asked = id.namespace == request.namespace
            && id.name.as_bytes().starts_with(&request.prefix)
            && request.after.as_ref().is_none_or(|after| id.name > *after);
        if is_asked {
            ours.push((id.name.clone(), handle.enter(|object, _| object.head).await));
        }
    }
    ours
}

/// Returns an entry as the cache knows it; `None` if the object has been removed.
async fn corrected(
    shared: &Arc<Shared>,
    request: &ListRequest,
    name: Name,
    mut entry: ListEntry,
) -> Option<ListEntry> {
    let id = ObjectId::new(request.namespace.clone(), name.clone());
    let hash = shared.hash(&id);
    entry.version = Version(shared.objects.remembered.shown_for(hash, entry.version.0));
    if shared.control.attaching.is_direct() {
        return Some(entry);
    }
    let Some(in_use) = shared.find(hash, &id) else { return Some(entry) };
    let handle = Handle::of(shared, in_use);
    let head = handle.enter(|object, _| object.head).await;
    match head.known {
        Known::Unknown => Some(entry),
        Known::Absent => None,
        Known::Present => Some(head.list_entry(name)),
    }
}

/// The delay before a failed count is retried.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Counts the usage of a namespace page by page, and repeats the count as often as necessary.
pub(crate) async fn count(shared: Arc<Shared>, number: u16, namespace: Namespace) {
    while shared.control.quotas.begin_count(number) {
        match count_once(&shared, number, &namespace).await {
            Ok(Counted::Again) => (),
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%namespace, %error, "the usage of a namespace with a quota cannot be counted yet");
            }
        }
        shared.clock.sleep(RETRY_AFTER).await;
    }
}

async fn count_once(shared: &Arc<Shared>, number: u16, namespace: &Namespace) -> Result<Counted> {
    let mut request = ListRequest::new(namespace.clone());
    request.entries_max = shared.store.can.list_entries_max;
    loop {
        let page = list_page(shared, request.clone()).await?;
        let counted =
            shared.control.quotas.count_page(number, &page.entries, page.has_more, shared.clock.now());
        if counted != Counted::More {
            return Ok(counted);
        }
        request.after = page.entries.last().map(|entry| entry.name.clone());
    }
}

/// Checks and records a change of an object's size, from `sizes.0` to `sizes.1`.
///
/// # Errors
/// `OutOfSpace` if the namespace would exceed its quota, unless the change `settles` an
/// acknowledged one.
pub(crate) fn change_size(
    shared: &Shared,
    number: u16,
    id: &ObjectId,
    sizes: (u64, u64),
    settles: bool,
) -> Result<()> {
    if settles {
        shared.control.quotas.note(number, id, sizes);
        return Ok(());
    }
    let changed = shared.control.quotas.change(number, id, sizes);
    if changed.is_err() {
        shared.control.namespaces.record(number).metrics.quota_refusals.increment();
        if shared.control.quotas.refused(number, shared.clock.now()) {
            shared.background.wake();
        }
    }
    changed
}

/// A change of an object's size that is in flight to the store. Its owner holds the whole object.
/// If it is dropped before [`Self::end`], the change counts as not made.
pub(crate) struct Resize {
    handle: Handle,
    /// The sizes before and after the change.
    sizes: (u64, u64),
    outcome: Result<()>,
}

impl Resize {
    /// Counts the change.
    ///
    /// # Errors
    /// The same as for [`change_size`].
    pub(crate) fn begin(handle: &Handle, sizes: (u64, u64), settles: bool) -> Result<Self> {
        let (shared, namespace) = (&handle.shared, handle.namespace());
        change_size(shared, namespace, handle.id(), sizes, settles)?;
        shared.control.quotas.begin_forward(namespace, handle.id(), sizes.1);
        Ok(Self { handle: handle.clone(), sizes, outcome: Err(Error::DeadlinePassed) })
    }

    /// Records the store's response.
    pub(crate) fn end<T>(mut self, answer: &Result<T>) {
        self.outcome = answer.as_ref().map(drop).map_err(Clone::clone);
    }
}

impl Drop for Resize {
    fn drop(&mut self) {
        let (quotas, namespace) = (&self.handle.shared.control.quotas, self.handle.namespace());
        quotas.end_forward(namespace, self.handle.id(), self.sizes, &self.outcome);
    }
}
