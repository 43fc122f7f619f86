//! Counting what a namespace with a quota has, and refusing what would be too much.

use std::time::Duration;

use blocker::{Error, ListRequest, Namespace, ObjectId, Result};

use super::list;
use crate::object::control::metrics::add;
use crate::object::control::quotas::Counted;
use crate::object::shared::Shared;
use crate::object::shared::handle::Handle;
use crate::sync::Arc;

/// A count that failed begins again after this long.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Counts a namespace: page after page, as often as it takes.
pub(crate) async fn count(shared: Arc<Shared>, number: u16, namespace: Namespace) {
    while shared.quotas.begin_count(number) {
        match count_once(&shared, number, &namespace).await {
            Ok(Counted::Again) => (),
            Ok(_) => return,
            Err(error) => {
                tracing::warn!(%namespace, %error, "what a namespace with a quota uses cannot be counted yet");
            }
        }
        shared.clock.sleep(RETRY_AFTER).await;
    }
}

async fn count_once(shared: &Arc<Shared>, number: u16, namespace: &Namespace) -> Result<Counted> {
    let mut request = ListRequest::new(namespace.clone());
    request.entries_max = shared.can.list_entries_max;
    loop {
        let page = list::list(Arc::clone(shared), request.clone()).await?;
        let counted = shared.quotas.count_page(number, &page.entries, page.has_more, shared.clock.now());
        if counted != Counted::More {
            return Ok(counted);
        }
        request.after = page.entries.last().map(|entry| entry.name.clone());
    }
}

/// Notes that the size of an object changes, before and after.
///
/// # Errors
/// `OutOfSpace` if the namespace would have more than its quota, unless the change `settles` what was acknowledged.
pub(crate) fn change_size(
    shared: &Shared,
    number: u16,
    id: &ObjectId,
    sizes: (u64, u64),
    settles: bool,
) -> Result<()> {
    if settles {
        shared.quotas.note(number, id, sizes);
        return Ok(());
    }
    let changed = shared.quotas.change(number, id, sizes);
    if changed.is_err() {
        add(&shared.namespaces.record(number).metrics.quota_refusals, 1);
        if shared.quotas.refused(number, shared.clock.now()) {
            shared.background.wake();
        }
    }
    changed
}

/// A change of an object's size that the store is asked for. The maker holds the object as a whole. Dropped
/// before its end, it counts as not made.
pub(crate) struct Resize {
    shared: Arc<Shared>,
    namespace: u16,
    id: ObjectId,
    /// Before and after.
    sizes: (u64, u64),
    has_ended: bool,
}

impl Resize {
    /// Counts the change.
    ///
    /// # Errors
    /// As [`change_size`].
    pub(crate) fn begin(
        shared: &Arc<Shared>,
        handle: &Handle,
        sizes: (u64, u64),
        settles: bool,
    ) -> Result<Self> {
        let (namespace, id) = (shared.index.namespace_of(handle.at()), handle.id().clone());
        change_size(shared, namespace, &id, sizes, settles)?;
        shared.quotas.begin_forward(namespace, &id, sizes.1);
        Ok(Self { shared: Arc::clone(shared), namespace, id, sizes, has_ended: false })
    }

    /// Takes the answer of the store into account.
    pub(crate) fn end<T>(mut self, answer: &Result<T>) {
        self.has_ended = true;
        self.shared.quotas.end_forward(self.namespace, &self.id, self.sizes, answer);
    }
}

impl Drop for Resize {
    fn drop(&mut self) {
        if !self.has_ended {
            let not_asked = Err::<(), _>(Error::DeadlinePassed);
            self.shared.quotas.end_forward(self.namespace, &self.id, self.sizes, &not_asked);
        }
    }
}
