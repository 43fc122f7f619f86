//! The control plane of a cache: attaching namespaces, policies, metrics, losses.

use std::sync::Arc;

use blocker::metrics::{Collect, Families};
use blocker::{
    Attachment, Blocker, Control, Epoch, Error, FlushRequest, Loss, LossPage, Namespace, ObjectId, Policy,
    Quota, Reply, Scope, metrics_above,
};

use super::cache::ObjectCache;
use super::claim::{ask_epoch, own_stamp};
use super::invalidate::drop_clean;
use super::losses::LostWrites;
use super::scope_ops;

/// The largest number of losses on one page.
const LOSSES_PAGE_MAX: usize = 1000;

impl Collect for ObjectCache {
    fn collect(&self, into: &mut Families) {
        self.counters().collect(into);
    }
}

impl Control for ObjectCache {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        let shared = Arc::clone(self.shared());
        let can = self.capabilities();
        Reply::pending(async move {
            let scope = Scope::Namespace(namespace.clone());
            let epoch = match own_stamp(&shared, &namespace).await? {
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
            scope_ops::flush(Arc::clone(&shared), FlushRequest::new(scope.clone())).await?;
            drop_clean(&shared, &scope).await?;
            let detached = shared.below.control().detach(namespace);
            match detached.await {
                Err(Error::Unsupported(_)) => Ok(()),
                answer => answer,
            }
        })
    }

    fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        let mut policy = Policy::default();
        policy.write = self.shared().write_modes.of(&namespace);
        Reply::ok(policy)
    }

    fn set_policy(&self, namespace: Namespace, policy: Policy) -> Reply<()> {
        Reply::Ready(self.set_write_mode(namespace, policy.write))
    }

    fn quota(&self, namespace: Namespace) -> Reply<Quota> {
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

    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        self.shared().below.control().namespaces()
    }
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
