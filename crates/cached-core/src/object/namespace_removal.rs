//! Taking a namespace out of the cache: its data, and what commands have set for it.

use std::future::Future;

use blocker::{DirtyData, Error, Namespace, RemovedNamespace, Result, Scope, Timestamp};

use super::cache::ObjectCache;
use super::control::namespace_table::NamespaceRecord;
use super::journal::ChangeLog;
use super::settings_in_force::{check_removal, remove_settings};
use super::shared::Shared;
use super::shared::invalidate::drop_clean;
use super::shared::log_waits;
use super::shared::recovery_gate;
use super::tasks::deadline::until;
use super::write::modes::{Settling, discard_left, settle_in_background, store_and_mark};
use crate::sync::{Arc, Ordering};

impl ObjectCache {
    /// Drops what the cache has of a namespace, and what commands have set for it: it is treated as one that has never
    /// been used, until it is used again. Returns what was dropped. What the store has stays, and what the
    /// configuration has set for the namespace stays in force.
    ///
    /// `dirty_data` states what becomes of data that are not stored; they are dropped only with
    /// [`DirtyData::Discard`]. Then the namespace is read-only until that is done, a change that overlaps the
    /// removal may be dropped as well, and one that begins after it is kept. The store need not be there for it,
    /// unless a change is on its way to it, or the journal is in trouble.
    ///
    /// # Errors
    /// [`Error::Missing`](blocker::Error::Missing) if it has not been used;
    /// [`Error::Denied`](blocker::Error::Denied) if it has dirty data and they are to be refused, if a volume in it is
    /// attached, or if what is set for others does not work without its settings: then nothing has changed;
    /// [`Error::NotStored`](blocker::Error::NotStored) if the deadline passes before all is stored, and
    /// [`Error::Retryable`](blocker::Error::Retryable) if it was written to meanwhile: its data are still here
    /// then; those of a flush.
    pub fn remove_namespace(
        &self,
        namespace: Namespace,
        dirty_data: DirtyData,
        deadline: Option<Timestamp>,
    ) -> impl Future<Output = Result<RemovedNamespace>> + Send + use<> {
        let shared = Arc::clone(self.shared());
        async move { drop_namespace(&shared, &namespace, dirty_data, deadline).await }
    }
}

/// See [`ObjectCache::remove_namespace`].
pub(crate) async fn drop_namespace(
    shared: &Arc<Shared>,
    namespace: &Namespace,
    dirty_data: DirtyData,
    deadline: Option<Timestamp>,
) -> Result<RemovedNamespace> {
    let number = shared.namespaces.known(namespace).ok_or(Error::Missing)?;
    let record = shared.namespaces.record(number);
    let dirty = || record.dirty_taken.load(Ordering::SeqCst) * blocker::BUCKET_BYTES;
    check_removal(shared, namespace)?;
    // A change under way that is applied later is stored.
    if dirty_data == DirtyData::Refuse && dirty() > 0 {
        let why = format!("namespace {namespace} has {} bytes that are not stored", dirty());
        return Err(Error::Denied(why.into()));
    }
    let late = || Error::NotStored(format!("{} bytes of namespace {namespace} are left", dirty()).into());
    let mut removed = RemovedNamespace::default();
    if dirty_data == DirtyData::Discard {
        let discarding = discard(shared, namespace, record);
        removed.discarded_bytes = until(&*shared.clock, deadline, late, discarding).await?;
    }
    remove_settings(shared, namespace)?;
    Settling::begin(shared, number, deadline).end().await?;
    if dirty_data != DirtyData::Discard {
        until(&*shared.clock, deadline, late, store_and_mark(shared, namespace)).await?;
    }
    removed.dropped_bytes = drop_clean(shared, &Scope::Namespace(namespace.clone())).await?;
    match dirty() {
        0 => Ok(removed),
        left => {
            let why = format!("{left} bytes were written to namespace {namespace} meanwhile");
            Err(Error::Retryable(why.into()))
        }
    }
}

/// Drops what is not stored of a namespace; returns how much of it was acknowledged, in bytes. Meanwhile the
/// namespace is read-only: nothing is dropped that is acknowledged after the end. If this fails or is dropped, the
/// namespace has its mode again, and what is left is stored.
async fn discard(shared: &Arc<Shared>, namespace: &Namespace, record: &NamespaceRecord) -> Result<u64> {
    recovery_gate::scope_recovered(shared, &Scope::Namespace(namespace.clone())).await?;
    let discarding = Discarding::begin(shared, namespace, record)?;
    let before = record.discarded_bytes.load(Ordering::SeqCst);
    discard_left(shared, namespace, record.number).await?;
    if let Some(up_to) = shared.log.as_ref().map(ChangeLog::last_position) {
        // Before changes are logged again: nothing of what was dropped is replayed.
        log_waits::mark_namespace(shared, namespace, up_to).await?;
        // While the journal is in trouble there are no marks: what it has is replayed until it is void.
        log_waits::not_draining(shared, namespace).await?;
    }
    shared.losses.repair(&Scope::Namespace(namespace.clone()));
    shared.quotas.recount(record.number);
    drop(discarding);
    let bytes = record.discarded_bytes.load(Ordering::SeqCst) - before;
    if bytes > 0 {
        tracing::warn!(%namespace, bytes, "acknowledged data of a removed namespace are discarded");
    }
    Ok(bytes)
}

/// A namespace of which nothing is stored any more, until this is dropped.
struct Discarding<'a> {
    shared: &'a Shared,
    record: &'a NamespaceRecord,
}

impl<'a> Discarding<'a> {
    /// # Errors
    /// `Retryable` if it is one already.
    fn begin(shared: &'a Shared, namespace: &Namespace, record: &'a NamespaceRecord) -> Result<Self> {
        if record.discards_dirty.swap(true, Ordering::SeqCst) {
            return Err(Error::Retryable(format!("namespace {namespace} is being removed already").into()));
        }
        shared.namespaces.refresh(record);
        Ok(Self { shared, record })
    }
}

impl Drop for Discarding<'_> {
    fn drop(&mut self) {
        self.record.discards_dirty.store(false, Ordering::SeqCst);
        self.shared.namespaces.refresh(self.record);
        settle_in_background(self.shared);
    }
}
