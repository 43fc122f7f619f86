//! The control plane of a cache: attaching namespaces, policies, metrics, losses.

use std::sync::Arc;

use blocker::metrics::{Collect, Families};
use blocker::{
    Attachment, Blocker, Control, DirtyData, Epoch, Error, Loss, LossPage, Namespace, NamespacePage,
    NamespaceSettings, NamespaceState, ObjectId, Policy, Quota, RemovedNamespace, Reply, Scope, WriteMode,
    metrics_above,
};

use super::cache::ObjectCache;
use super::config::Writer;
use super::control::attach_state::AttachState;
use super::namespace_control;
use super::shared::Shared;
use super::shared::claim::{ask_epoch, own_stamp};
use super::shared::invalidate::drop_clean;
use super::shared::log_waits;
use super::shared::recovery_gate;
use super::state::losses::LostWrites;
use super::tasks::wait_queue::Permits;
use super::write::modes::store_and_mark;
use crate::sync::Ordering;

/// The largest number of losses on one page.
const LOSSES_PAGE_MAX: usize = 1000;

impl Collect for ObjectCache {
    fn collect(&self, into: &mut Families) {
        self.counters().collect(into);
        if let Some(log) = &self.shared().log {
            log.collect(into);
        }
        let is_attached = u64::from(self.attach_status().state != AttachState::Detached);
        let help = "1 if requests go to the cache, 0 while it is detached and they go to the store.";
        into.gauge("cache_attached", help, is_attached);
        let help = "Reads that went straight to the store while the cache was detached.";
        into.counter(
            "cache_direct_reads_total",
            help,
            self.shared().metrics.direct_reads.load(Ordering::Relaxed),
        );
        let gate = &self.shared().gate;
        let help = "The most requests to the store under way at once.";
        into.gauge("cache_gate_width", help, u64::from(gate.width()));
        let help = "Requests that wait before the store is asked.";
        into.gauge("cache_gate_waiting", help, u64::from(gate.waiting()));
        let sizes = self.shared().metrics.flush_sizes.value();
        into.sample(
            "cache_flush_request_bytes",
            "The sizes of the requests that flushes sent.",
            Vec::new(),
            sizes,
        );
    }
}

impl Control for ObjectCache {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        let shared = Arc::clone(self.shared());
        let can = self.capabilities();
        Reply::pending(async move {
            recovery_gate::recovery_begun(&shared).await?;
            let scope = Scope::Namespace(namespace.clone());
            let stamp = own_stamp(&shared, &namespace).await?;
            let is_logged = shared.log.as_ref().is_some_and(|log| log.names.is_journaled(&namespace));
            if is_logged && shared.namespaces.write_mode(&namespace) == WriteMode::Back {
                // The first change need not wait for it.
                log_waits::store_forwarded(&shared, &namespace).await?;
            }
            let epoch = match stamp {
                Some(own) => own.epoch,
                None if can.fencing => ask_epoch(&shared, scope).await?,
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
            let detached = shared.below.control().detach(namespace);
            match detached.await {
                Err(Error::Unsupported(_)) => Ok(()),
                answer => answer,
            }
        })
    }

    fn release(&self, namespace: Namespace) -> Reply<()> {
        let shared = Arc::clone(self.shared());
        Reply::pending(async move {
            if shared.config.writer == Writer::Callers {
                return Err(Error::Unsupported("the callers of this cache are the writers".into()));
            }
            recovery_gate::recovery_begun(&shared).await?;
            store_and_mark(&shared, &namespace).await?;
            drop_clean(&shared, &Scope::Namespace(namespace.clone())).await?;
            forget_epoch(&shared, &namespace).await
        })
    }

    fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        let mut policy = Policy::default();
        policy.write = self.shared().namespaces.set_mode_of(&namespace);
        Reply::ok(policy)
    }

    fn set_policy(&self, namespace: Namespace, policy: Policy) -> Reply<()> {
        Reply::pending(self.change_namespace(&namespace, &policy.write.into(), None))
    }

    /// That of this cache, if it has one for the namespace.
    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
        let number = self.shared().namespaces.known(&namespace);
        if let Some(own) = number.and_then(|number| self.shared().quotas.get(number)) {
            let mut quota = Quota::default();
            (quota.bytes_max, quota.used_bytes) = (Some(own.bytes_max), own.used_bytes);
            return Reply::ok(quota);
        }
        self.shared().below.control().quota(namespace)
    }

    fn set_quota(&self, namespace: Namespace, bytes_max: Option<u64>) -> Reply<()> {
        self.shared().below.control().set_quota(namespace, bytes_max)
    }

    fn metrics(&self) -> Reply<Families> {
        metrics_above(self.families(), self.shared().below.control())
    }

    fn losses(&self, after: Option<ObjectId>) -> Reply<LossPage> {
        Reply::ok(page(self.lost(), after.as_ref()))
    }

    fn namespace_state(&self, namespace: Namespace) -> Reply<NamespaceState> {
        match namespace_control::state(self, &namespace) {
            Ok(state) => Reply::ok(state),
            Err(error) => Reply::err(error),
        }
    }

    fn namespace_states(&self, after: Option<Namespace>) -> Reply<NamespacePage> {
        Reply::ok(namespace_control::states(self, after.as_ref()))
    }

    fn change_namespace(&self, namespace: Namespace, settings: NamespaceSettings) -> Reply<()> {
        namespace_control::change(self, &namespace, &settings)
    }

    fn set_volume(
        &self,
        namespace: Namespace,
        attachment: u64,
        settings: Option<NamespaceSettings>,
    ) -> Reply<()> {
        Reply::pending(self.set_volume(&namespace, attachment, settings))
    }

    fn remove_namespace(&self, namespace: Namespace, dirty_data: DirtyData) -> Reply<RemovedNamespace> {
        namespace_control::remove(self, namespace, dirty_data)
    }

    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        self.shared().below.control().namespaces()
    }
}

/// Forgets the epoch of a namespace of which nothing has to be stored.
async fn forget_epoch(shared: &Arc<Shared>, namespace: &Namespace) -> Result<(), Error> {
    let _alone = Permits::acquire(&shared.epochs.claiming).await?;
    let number = shared.namespaces.known(namespace);
    let dirty = number.map(|number| shared.namespaces.record(number).dirty_taken.load(Ordering::SeqCst));
    // What was written meanwhile was acknowledged under the epoch of before.
    if dirty.is_some_and(|dirty| dirty > 0) {
        return Err(Error::Retryable(format!("namespace {namespace} was written to meanwhile").into()));
    }
    shared.epochs.forget(namespace);
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
