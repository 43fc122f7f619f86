//! The cache's metrics, and its control plane.

use std::sync::Arc;

use blocker::metrics::{Collect, Families};
use blocker::{
    Attachment, Blocker, Control, Epoch, Error, FlushRequest, Loss, LossPage, Namespace, ObjectId, Policy,
    Quota, Reply, Scope, metrics_above,
};

use super::gauges::Counters;
use super::{LostWrites, ObjectCache, whole};

/// The largest number of losses on one page.
const LOSSES_PAGE_MAX: usize = 1000;

impl Collect for Counters {
    fn collect(&self, into: &mut Families) {
        into.gauge("cache_objects", "Objects that the index knows.", self.objects);
        into.gauge("cache_memory_bytes", "Memory of all buckets.", self.memory_bytes);
        into.gauge("cache_free_bytes", "Memory of free buckets.", self.free_bytes);
        into.gauge("cache_clean_bytes", "Data that the store has as well.", self.clean_bytes);
        into.gauge("cache_dirty_bytes", "Data that the store does not have yet.", self.dirty_bytes);
        into.gauge("cache_writing_bytes", "Dirty data on their way to the store.", self.writing_bytes);
        into.gauge("cache_zero_bytes", "Known zeros, which take no memory.", self.zero_bytes);
        into.gauge("cache_loading_bytes", "Data being read from the store.", self.loading_bytes);
        let help = "Buckets claimed for payloads that arrive, or that no write has taken over yet.";
        into.gauge("cache_receive_buffer_bytes", help, self.landing_bytes);
        let help = "Payload that writes have taken over from receive buffers without a copy.";
        into.counter("cache_received_bytes_total", help, self.landed_bytes);
        into.counter("cache_read_hits_total", "Reads answered from the cache.", self.read_hits);
        into.counter("cache_read_misses_total", "Reads that had to read the store.", self.read_misses);
        into.counter("cache_writes_back_total", "Changes applied in the cache.", self.writes_back);
        into.counter("cache_writes_through_total", "Changes forwarded to the store.", self.writes_through);
        let help = "Changes that waited because the limit of dirty data was reached.";
        into.counter("cache_writes_throttled_total", help, self.writes_throttled);
        into.counter("cache_flushes_total", "Flushes of objects that succeeded.", self.flushes);
        let help = "Flushes of objects that failed and are tried again.";
        into.counter("cache_flush_failures_total", help, self.flush_failures);
        into.counter("cache_flush_requests_total", "Requests that flushes sent.", self.flush_requests);
        into.counter("cache_flush_bytes_total", "Bytes that flushes sent.", self.flush_bytes);
        let help = "Acknowledged data that the store refused for good.";
        into.counter("cache_lost_bytes_total", help, self.lost_bytes);
        let help = "Objects with losses that have not been repaired.";
        into.gauge("cache_lost_objects", help, self.lost_objects);
        into.counter("cache_bucket_evictions_total", "Buckets evicted.", self.bucket_evictions);
        into.counter("cache_object_evictions_total", "Objects evicted.", self.object_evictions);
    }
}

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
            let epoch = match shared.own_stamp(&namespace).await? {
                Some(own) => own.epoch,
                None if can.fencing => shared.ask_epoch(scope).await?,
                None => Epoch(0),
            };
            Ok(Attachment::new(can, epoch))
        })
    }

    fn detach(&self, namespace: Namespace) -> Reply<()> {
        let shared = Arc::clone(self.shared());
        Reply::pending(async move {
            let scope = Scope::Namespace(namespace.clone());
            whole::flush(Arc::clone(&shared), FlushRequest::new(scope.clone())).await?;
            whole::drop_clean(&shared, &scope).await?;
            let detached = shared.below.control().detach(namespace);
            match detached.await {
                Err(Error::Unsupported(_)) => Ok(()),
                answer => answer,
            }
        })
    }

    fn policy(&self, namespace: Namespace) -> Reply<Policy> {
        let mut policy = Policy::default();
        policy.write = self.shared().write_policy(&namespace);
        Reply::ok(policy)
    }

    fn set_policy(&self, _namespace: Namespace, _policy: Policy) -> Reply<()> {
        Reply::err(Error::Unsupported("policies are set in the configuration".into()))
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
