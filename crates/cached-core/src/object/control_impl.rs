//! The control plane of a cache: attaching and removing namespaces, their settings, policies, metrics,
//! losses.

use blocker::metrics::{Collect, Families};
use blocker::{
    Attachment, Blocker, Control, DirtyData, Epoch, Error, Loss, LossPage, Namespace, NamespacePage,
    NamespaceSettings, NamespaceState, ObjectId, Pending, Policy, Quota, RemovedNamespace, Reply, Result,
    Scope, Timestamp, WriteMode, metrics_above,
};

use super::cache::ObjectCache;
use super::config::{OTHERS, Writer};
use super::control::records::NamespaceRecord;
use super::counters::NamespaceCounters;
use super::journal::ChangeLog;
use super::settings_in_force::{check_removal, remove_settings};
use super::shared::claim::{ask_epoch, drop_clean, own_stamp};
use super::shared::handle::Handle;
use super::shared::{Shared, log_waits};
use super::state::losses::LostWrites;
use super::tasks::deadline::until;
use super::tasks::wait_queue::Permits;
use super::write::{Settling, discard_left, end_sections, settle_in_background, store_and_mark};
use crate::sync::{Arc, Ordering};

/// The maximum number of losses on a page.
const LOSSES_PAGE_MAX: usize = 1000;
/// The maximum number of namespaces on a page.
const NAMESPACES_PAGE_MAX: usize = 256;

impl Collect for ObjectCache {
    fn collect(&self, into: &mut Families) {
        self.counters().collect(into);
        if let Some(log) = &self.shared().journal.log {
            log.collect(into);
        }
        let help = "The data that each flush request carried; a removal or a truncation carries none.";
        into.measure("cache_flush_request_bytes", help, &self.shared().metrics.flush_sizes);
    }
}

impl Control for ObjectCache {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        let shared = Arc::clone(self.shared());
        let can = self.capabilities();
        Reply::pending(async move {
            log_waits::recovery_begun(&shared).await?;
            let scope = Scope::Namespace(namespace.clone());
            let stamp = own_stamp(&shared, &namespace).await?;
            let is_logged = shared.journal.log.as_ref().is_some_and(|log| log.names.is_journaled(&namespace));
            if is_logged && shared.control.namespaces.write_mode(&namespace) == WriteMode::Back {
                // Done here, so that the first change need not wait for this.
                log_waits::store_forwarded(&shared, &namespace).await?;
            }
            let epoch = match stamp {
                Some(own) => own.epoch,
                None if can.fencing => ask_epoch(&shared.store, scope).await?,
                None => Epoch(0),
            };
            Ok(Attachment::new(can, epoch))
        })
    }

    fn detach(&self, namespace: Namespace) -> Reply<()> {
        let shared = Arc::clone(self.shared());
        Reply::pending(async move {
            let scope = Scope::Namespace(namespace.clone());
            store_and_mark(&shared, &namespace).await?;
            drop_clean(&shared, &scope).await?;
            let detached = shared.store.below.control().detach(namespace);
            match detached.await {
                Err(Error::Unsupported(_)) => Ok(()),
                answer => answer,
            }
        })
    }

    fn release(&self, namespace: Namespace) -> Reply<()> {
        let shared = Arc::clone(self.shared());
        Reply::pending(async move {
            let why = match shared.control.config.writer {
                Writer::Cache => None,
                Writer::Callers => Some("the callers of this cache are the writers"),
                Writer::Elected => Some("the writer is elected: a namespace belongs to the leader"),
            };
            if let Some(why) = why {
                return Err(Error::Unsupported(why.into()));
            }
            log_waits::recovery_begun(&shared).await?;
            store_and_mark(&shared, &namespace).await?;
            drop_clean(&shared, &Scope::Namespace(namespace.clone())).await?;
            forget_epoch(&shared, &namespace).await
        })
    }

    fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        let mut policy = Policy::default();
        policy.write = self.shared().control.namespaces.set_mode_of(&namespace);
        Reply::ok(policy)
    }

    fn set_policy(&self, namespace: Namespace, policy: Policy) -> Reply<()> {
        Reply::Pending(self.change_namespace(&namespace, &policy.write.into(), None))
    }

    /// Returns the quota of this cache, if it has one for the namespace; otherwise the store's.
    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        let number = self.shared().control.namespaces.known(&namespace);
        if let Some(own) = number.and_then(|number| self.shared().control.quotas.get(number)) {
            let mut quota = Quota::default();
            (quota.bytes_max, quota.used_bytes) = (Some(own.bytes_max), own.used_bytes);
            return Reply::ok(quota);
        }
        self.shared().store.below.control().quota(namespace)
    }

    fn set_quota(&self, namespace: Namespace, bytes_max: Option<u64>) -> Reply<()> {
        self.shared().store.below.control().set_quota(namespace, bytes_max)
    }

    fn metrics(&self) -> Reply<Families> {
        metrics_above(self.families(), self.shared().store.below.control())
    }

    fn losses(&self, after: Option<ObjectId>) -> Reply<LossPage> {
        Reply::ok(page(self.lost(), after.as_ref()))
    }

    fn namespace_state(&self, namespace: Namespace) -> Reply<NamespaceState> {
        let all = self.namespaces();
        let of = all.iter().find(|of| of.namespace.as_ref() == Some(&namespace));
        Reply::Ready(of.map(|of| state_of(self, &namespace, of)).ok_or(Error::Missing))
    }

    fn namespace_states(&self, after: Option<Namespace>) -> Reply<NamespacePage> {
        Reply::ok(states(self, after.as_ref()))
    }

    fn change_namespace(&self, namespace: Namespace, settings: NamespaceSettings) -> Reply<()> {
        if settings.is_empty() {
            return Reply::err(Error::Invalid("expected a write mode, settings, or both".into()));
        }
        Reply::Pending(self.change_namespace(&namespace, &settings, None))
    }

    fn set_volume(
        &self,
        namespace: Namespace,
        attachment: u64,
        settings: Option<NamespaceSettings>,
    ) -> Reply<()> {
        Reply::Pending(self.set_volume(&namespace, attachment, settings))
    }

    fn remove_namespace(&self, namespace: Namespace, dirty_data: DirtyData) -> Reply<RemovedNamespace> {
        Reply::Pending(self.remove_namespace(namespace, dirty_data, None))
    }

    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        self.shared().store.below.control().namespaces()
    }
}

/// Forgets the epoch of a namespace that has nothing left to store or to replay. If there is more
/// by now, the next change confirms the epoch.
async fn forget_epoch(shared: &Arc<Shared>, namespace: &Namespace) -> Result<(), Error> {
    let _alone = Permits::acquire(&shared.store.epochs.claiming).await?;
    // Changes that have not been applied by now wait until the claim can be made.
    shared.store.epochs.unconfirm(Epoch(u64::MAX), |it| it == namespace);
    let number = shared.control.namespaces.known(namespace).unwrap_or(OTHERS);
    end_sections(shared, Some(number)).await;
    let mut dirty = shared.objects.dirty_queue.nodes().into_iter();
    let is_of_it = |node| Handle::of_node(shared, node).is_some_and(|it| it.id().namespace == *namespace);
    // Changes made in the meantime were acknowledged under the old epoch. Even if they are stored,
    // their records would be replayed over those of the next writer.
    if dirty.any(is_of_it) || log_waits::has_records(&shared.journal, namespace) {
        return Err(Error::Retryable(format!("namespace {namespace} was written to in the meantime").into()));
    }
    shared.store.epochs.forget(namespace);
    Ok(())
}

/// Returns the page of the losses after `after`.
fn page(lost: LostWrites, after: Option<&ObjectId>) -> LossPage {
    let mut page = LossPage::default();
    (page.unlisted_objects, page.unlisted_bytes) = (lost.unlisted_objects, lost.unlisted_bytes);
    let mut objects = lost.objects.into_iter().filter(|lost| after.is_none_or(|after| lost.object > *after));
    let losses = objects.by_ref().take(LOSSES_PAGE_MAX);
    page.losses = losses.map(|lost| Loss::new(lost.object, lost.changes, lost.bytes, lost.why)).collect();
    page.has_more = objects.next().is_some();
    page
}

/// Returns the page of the namespaces after `after`.
fn states(cache: &ObjectCache, after: Option<&Namespace>) -> NamespacePage {
    let all = cache.namespaces();
    let mut all: Vec<(&Namespace, &NamespaceCounters)> =
        all.iter().filter_map(|of| Some((of.namespace.as_ref()?, of))).collect();
    all.retain(|(name, _)| after.is_none_or(|after| *name > after));
    all.sort_unstable_by_key(|(name, _)| *name);
    let mut page = NamespacePage::default();
    page.has_more = all.len() > NAMESPACES_PAGE_MAX;
    page.states = all.iter().take(NAMESPACES_PAGE_MAX).map(|(name, of)| state_of(cache, name, of)).collect();
    page
}

fn state_of(cache: &ObjectCache, name: &Namespace, of: &NamespaceCounters) -> NamespaceState {
    let mut state = NamespaceState::new(name.clone(), of.write_mode);
    (state.is_changing, state.is_configured) = (of.is_mode_changing, of.is_configured);
    for (key, (value, _)) in cache.namespace_settings(name).values {
        state.settings.set(key, value);
    }
    let counts = [
        ("objects", of.objects),
        ("cached_bytes", of.cached_bytes),
        ("dirty_bytes", of.dirty_bytes),
        ("dirty_age_ms", u64::try_from(of.dirty_age.as_millis()).unwrap_or(u64::MAX)),
        ("writes_throttled", of.writes_throttled),
        ("read_hits", of.read_hits),
        ("read_misses", of.read_misses),
        ("writes", of.writes.iter().sum()),
    ];
    state.counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    state.counts.extend(of.dirty_bytes_max.map(|bytes| ("dirty_bytes_max".to_owned(), bytes)));
    state
}

impl ObjectCache {
    /// Drops a namespace's data from the cache, and the namespace's settings that came from
    /// commands: until the next use, the namespace is treated as never used. Returns the amount of
    /// dropped data. The data in the store stay, and the configured settings stay in force.
    ///
    /// `dirty_data` determines the fate of dirty data: they are dropped only with
    /// [`DirtyData::Discard`]. In this case the namespace is read-only until the removal has ended;
    /// a change that overlaps the removal may be dropped as well, and a later change is kept. The
    /// store need not be reachable, unless a change is in flight to the store or the journal has
    /// failed.
    ///
    /// # Errors
    /// - [`Error::Missing`](blocker::Error::Missing) if the namespace has not been used;
    /// - [`Error::Denied`](blocker::Error::Denied), and nothing has changed, if the namespace has
    ///   dirty data and `dirty_data` is [`DirtyData::Refuse`], if a volume in the namespace is
    ///   attached, or if the settings of other namespaces are invalid without those of this one;
    /// - [`Error::NotStored`](blocker::Error::NotStored) if the deadline passes before all data are
    ///   stored; the cache keeps the data;
    /// - [`Error::Retryable`](blocker::Error::Retryable) if the namespace was written to in the
    ///   meantime; the cache keeps the data;
    /// - errors of a flush.
    pub fn remove_namespace(
        &self,
        namespace: Namespace,
        dirty_data: DirtyData,
        deadline: Option<Timestamp>,
    ) -> Pending<RemovedNamespace> {
        let shared = Arc::clone(self.shared());
        Box::pin(async move { drop_namespace(&shared, &namespace, dirty_data, deadline).await })
    }
}

/// Implements [`ObjectCache::remove_namespace`].
async fn drop_namespace(
    shared: &Arc<Shared>,
    namespace: &Namespace,
    dirty_data: DirtyData,
    deadline: Option<Timestamp>,
) -> Result<RemovedNamespace> {
    let number = shared.control.namespaces.known(namespace).ok_or(Error::Missing)?;
    let record = shared.control.namespaces.record(number);
    let dirty = || record.dirty_taken.load(Ordering::SeqCst) * blocker::BUCKET_BYTES;
    check_removal(shared, namespace)?;
    // A change in flight that is applied later is stored.
    if dirty_data == DirtyData::Refuse && dirty() > 0 {
        let why = format!("namespace {namespace} has {} bytes that are not stored", dirty());
        return Err(Error::Denied(why.into()));
    }
    let late =
        || Error::NotStored(format!("{} bytes of namespace {namespace} are not stored yet", dirty()).into());
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
            let why = format!("{left} bytes were written to namespace {namespace} in the meantime");
            Err(Error::Retryable(why.into()))
        }
    }
}

/// Drops the dirty data of a namespace; returns how much of them was acknowledged, in bytes.
/// Meanwhile the namespace is read-only: data acknowledged after the end are never dropped. If this
/// fails or is dropped, the namespace gets its mode back, and the rest is stored.
async fn discard(shared: &Arc<Shared>, namespace: &Namespace, record: &NamespaceRecord) -> Result<u64> {
    log_waits::scope_recovered(shared, &Scope::Namespace(namespace.clone())).await?;
    if record.discards_dirty.swap(true, Ordering::SeqCst) {
        return Err(Error::Retryable(format!("namespace {namespace} is already being removed").into()));
    }
    let discarding = scopeguard::guard((), |()| {
        record.discards_dirty.store(false, Ordering::SeqCst);
        shared.control.namespaces.refresh(record);
        settle_in_background(shared);
    });
    shared.control.namespaces.refresh(record);
    let before = record.discarded_bytes.load(Ordering::SeqCst);
    discard_left(shared, namespace, record.number).await?;
    if let Some(up_to) = shared.journal.log.as_ref().map(ChangeLog::last_position) {
        // The mark comes before changes are logged again, so that no dropped change is replayed.
        log_waits::mark_namespace(shared, namespace, up_to).await?;
        // While the journal has failed, there are no marks: its records could be replayed until it
        // is void.
        log_waits::not_draining(&shared.journal, Some(namespace)).await?;
    }
    shared.objects.losses.repair(&Scope::Namespace(namespace.clone()));
    shared.control.quotas.recount(record.number);
    drop(discarding);
    let bytes = record.discarded_bytes.load(Ordering::SeqCst) - before;
    if bytes > 0 {
        tracing::warn!(%namespace, bytes, "acknowledged data of a removed namespace are discarded");
    }
    Ok(bytes)
}
