//! `impl Blocker` and `impl Control` for the store: each call is checked against its deadline and
//! passed to the module that implements it.

use std::sync::Arc;
use std::time::Duration;

use blocker::clock::until;
use blocker::conditional::{Progress, stored};
use blocker::event::Event;
use blocker::metrics::{Collect, Families};
use blocker::*;

use crate::config::RadosConfig;
use crate::object::Core;
use crate::object::view::Objects;

/// The maximum number of entries in a page of a listing.
const LIST_ENTRIES_MAX: u32 = 10_000;

/// The maximum number of runs of one change, each a step of one RADOS operation. The OSD applies
/// the operation as a whole, so more steps would delay other operations in the same placement
/// group.
const RUNS_MAX: u32 = 1024;

/// A backend that keeps objects in a RADOS pool.
///
/// librados acknowledges a change when it is on stable storage of all replicas, so every reply
/// states *stored*, and a flush has nothing to do. Several stores, in several processes, may use
/// the same pool, root and prefix: every change is decided by the store itself.
pub struct RadosStore {
    core: Arc<Core>,
}

impl RadosStore {
    /// Connects. Blocks at most for the configured time.
    ///
    /// # Errors
    /// Each error has a one-line message: `Unsupported` if librados is missing, `Invalid` if the
    /// configuration is wrong, `Denied` if the keyring or the pool is missing, `Retryable` if no
    /// monitor responds.
    pub fn open(config: RadosConfig) -> Result<Self> {
        Self::open_with(config, Arc::new(SystemClock))
    }

    /// Opens a store as [`Self::open`] does, with deadlines on `clock`.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn open_with(config: RadosConfig, clock: Arc<dyn Clock>) -> Result<Self> {
        Core::open(config, clock).map(|core| Self { core })
    }

    /// Closes the connection after calls in progress have ended, and waits for at most `timeout`.
    /// Returns whether the connection was closed in time; otherwise it is closed later. Without
    /// this call, the connection is closed in the background after the store and all its replies
    /// have been dropped.
    pub fn close(self, timeout: Duration) -> bool {
        self.core.close();
        let closed = self.core.pool().cluster.closed();
        drop(self);
        closed.wait(timeout)
    }

    /// Runs a call until its deadline. `changed` is the object that the call may change.
    fn run<T: 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        call: Call,
        changed: Option<&ObjectId>,
        work: impl FnOnce(Arc<Core>, Progress) -> F,
    ) -> Reply<T> {
        let progress = Progress::default();
        let work = work(Arc::clone(&self.core), progress.clone());
        if let Err(error) = call.check(&*self.core.clock) {
            return Reply::err(error);
        }
        let objects = Arc::clone(&self.core.objects);
        let under_way = UnderWay { objects, progress, changed: changed.cloned() };
        Reply::pending(answer(Arc::clone(&self.core.clock), call.deadline, under_way, work))
    }
}

/// A call without an answer. If it ends without one, because of its deadline or because its reply is
/// dropped, a change that was sent may still be applied, and its object becomes unsettled.
struct UnderWay {
    objects: Arc<Objects>,
    progress: Progress,
    changed: Option<ObjectId>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(object) = self.changed.take().filter(|_| self.progress.has_begun()) {
            self.objects.unsettle(&object, ());
        }
    }
}

/// Returns the answer of the call whose `work` this is, at most until `deadline`.
async fn answer<T>(
    clock: Arc<dyn Clock>,
    deadline: Option<Timestamp>,
    mut under_way: UnderWay,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    if let Some(answer) = until(&*clock, deadline, work).await {
        under_way.changed = None;
        return answer;
    }
    if !under_way.progress.has_begun() {
        return Err(Error::DeadlinePassed);
    }
    Err(Error::OutcomeUnknown("the deadline passed before the OSD responded".into()))
}

impl Blocker for RadosStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(self.core.config.object_bytes_max);
        capabilities.list_entries_max = LIST_ENTRIES_MAX;
        capabilities.runs_max = RUNS_MAX;
        capabilities.copy_native = false;
        capabilities.survives = Survives::PowerLoss;
        capabilities
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.run(request.call, None, |core, _| async move { core.read(request).await })
    }

    fn change(&self, request: ChangeRequest) -> Reply<ChangeReply> {
        if let Err(error) = request.change.check_runs(|| self.capabilities()) {
            return Reply::err(error);
        }
        let ChangeRequest { object, change, terms, call, .. } = request;
        let id = object.clone();
        self.run(call, Some(&id), |core, progress| async move {
            let (version, size_bytes) = match &change {
                Change::Copy { from, from_condition } => {
                    core.copy((from, *from_condition), (&object, terms), &progress).await?
                }
                change => core.change(&object, change, &terms, &progress).await?,
            };
            Ok(stored(&change, version, size_bytes))
        })
    }

    fn info(&self, request: InfoRequest) -> Reply<Info> {
        self.run(request.call, None, |core, _| async move { core.info(request).await })
    }

    fn list(&self, request: ListRequest) -> Reply<ListReply> {
        let entries_max = request.entries_max.clamp(1, LIST_ENTRIES_MAX) as usize;
        self.run(request.call, None, |core, _| async move { core.list(request, entries_max).await })
    }

    fn flush(&self, request: FlushRequest) -> Reply<FlushReply> {
        // All acknowledged changes are already stored.
        request.call.check(&*self.core.clock).map(|()| FlushReply::new(Durability::Stored)).into()
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        self.run(request.call, None, |core, progress| async move {
            // A claim may take effect from its first step on.
            progress.set_begun(true);
            core.claim(request).await
        })
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        self.run(request.call, None, |core, _| async move {
            // Every change compares remembered heads anyway; forgetting outdated ones saves a
            // round trip.
            core.objects.forget_all();
            let event = Event::Changed(request.scope);
            core.events.publish(&event);
            core.notify_others(&event).await;
            Ok(InvalidateReply::new(0))
        })
    }

    fn subscribe(&self) -> Subscription {
        self.core.events.subscribe()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Collect for RadosStore {
    fn collect(&self, into: &mut Families) {
        let stats = &self.core.limits.stats;
        stats.collect(into);
        let help = "Operations sent to the cluster and not answered yet.";
        into.gauge("rados_operations_in_flight", help, stats.begun.get().saturating_sub(stats.ended.get()));
        let help = "Objects with a change of unknown outcome that has not been read back yet.";
        into.gauge("rados_objects_unsettled", help, self.core.objects.unsettled_count() as u64);
    }
}

impl Control for RadosStore {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        let capabilities = self.capabilities();
        self.run(Call::default(), None, |core, _| async move {
            Ok(Attachment::new(capabilities, core.namespace_epoch(&namespace).await?))
        })
    }

    fn detach(&self, _namespace: Namespace) -> Reply<()> {
        Reply::ok(())
    }

    fn metrics(&self) -> Reply<Families> {
        Reply::ok(self.families())
    }

    fn namespaces(&self) -> Reply<Vec<Namespace>> {
        self.run(Call::default(), None, |core, _| async move { core.namespaces().await })
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::object::view::objects;

    #[test]
    fn a_change_whose_reply_is_dropped_leaves_its_object_unsettled() {
        let id = ObjectId::new(Namespace::new("vm").unwrap(), Name::new("disk").unwrap());
        for (has_begun, is_answered) in [(true, false), (false, false), (true, true)] {
            let (objects, progress) = (Arc::new(objects(1024)), Progress::default());
            let under_way = UnderWay {
                objects: Arc::clone(&objects),
                progress: progress.clone(),
                changed: Some(id.clone()),
            };
            let work = async move {
                progress.set_begun(has_begun);
                if !is_answered {
                    std::future::pending::<()>().await;
                }
                Ok::<_, Error>(())
            };
            let call = answer(Arc::new(SystemClock), None, under_way, work);
            assert_eq!(call.now_or_never().is_some(), is_answered);
            assert_eq!(objects.is_unsettled(&id), has_begun && !is_answered);
        }
    }
}
