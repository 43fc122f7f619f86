//! `impl Blocker` and `impl Control` for the store. Each call is checked against its deadline and
//! passed to the module that implements it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blocker::conditional::{Progress, ReportedClaims, stored};
use blocker::event::Event;
use blocker::metrics::{Collect, Families};
use blocker::*;
use object_store::ObjectStore;
use tokio::sync::Semaphore;

use crate::config::{COMPACTIONS_MAX, S3Config};
use crate::format::layout::Layout;
use crate::object::swap::{ObjectLocks, heads};
use crate::object::{Core, bounded};
use crate::server::limits::Credits;
use crate::server::requests::{Limits, Requests, Spawn};
use crate::server::{Connector, Pages, Remover};
use crate::sweep;
use crate::sweep::Swept;

/// The maximum length of a page of a listing.
const LIST_ENTRIES_MAX: u32 = 10_000;
/// The maximum number of runs of one change.
const RUNS_MAX: u32 = 128;
/// The number of threads that send requests.
const THREADS: usize = 2;

/// A backend that keeps objects in a bucket of S3 or an S3-compatible server.
///
/// The server's acknowledgement counts as stored, so every reply states *stored*, and a flush has
/// nothing to do. Several stores, in several processes, may use the same bucket and prefix: every
/// change is decided by the server.
pub struct S3Store {
    pub(crate) core: Arc<Core>,
    /// The runtime of requests, or `None` if requests run in the caller's poll.
    runtime: Option<tokio::runtime::Runtime>,
}

impl fmt::Debug for S3Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Store").finish_non_exhaustive()
    }
}

impl S3Store {
    /// Opens the store on the configured server, and probes the server's features. Blocks at most
    /// for the configured time of a call.
    ///
    /// # Errors
    /// Each error has a one-line message that names what is missing: `Invalid` for a wrong
    /// configuration, `Unsupported` for a server that ignores conditional puts, `Denied` if access
    /// is refused or the bucket does not exist, `Retryable` if the server does not respond.
    pub fn open(config: &S3Config) -> Result<Self> {
        Self::open_with(config, Arc::new(SystemClock))
    }

    /// Opens a store as [`Self::open`] does, with deadlines on `clock`.
    ///
    /// # Errors
    /// Returns the errors of [`Self::open`].
    pub fn open_with(config: &S3Config, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        let connector = Connector::new(config)?;
        let client = config.client(&clock, &connector)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("blocker-s3")
            .enable_all()
            .build()
            .map_err(|error| Error::from_io(&error, "starting the threads for requests"))?;
        let handle = runtime.handle().clone();
        let remover = Remover {
            signer: client.clone(),
            http: connector.client(),
            handle: handle.clone(),
            timeout: config.request_timeout,
        };
        let extras: (Pages, _) = (Some(Arc::new(client.clone())), Some(remover));
        let mut this = Self::start(config, Arc::new(client), Spawn::On(handle), clock, extras);
        match &mut this {
            Ok(this) => {
                if !config.sweep_interval.is_zero() {
                    let core = Arc::downgrade(&this.core);
                    runtime.spawn(sweep::run(core, config.sweep_interval, config.sweep_age));
                }
                this.runtime = Some(runtime);
            }
            Err(_) => runtime.shutdown_background(),
        }
        this
    }

    /// Opens a store over any implementation of [`ObjectStore`] that needs no runtime, such as
    /// [`object_store::memory::InMemory`]; requests run in the caller's poll. The configured bucket
    /// and server are ignored. Probes the store's features, and blocks until this is done.
    ///
    /// # Errors
    /// Each error has a one-line message that names what is missing: `Invalid` for a wrong
    /// configuration, `Unsupported` for a store that ignores conditional puts, `Denied` if access
    /// is refused, `Retryable` if the store does not respond.
    pub fn open_over(config: &S3Config, store: Arc<dyn ObjectStore>, clock: Arc<dyn Clock>) -> Result<Self> {
        config.check()?;
        Self::start(config, store, Spawn::Inline, clock, (None, None))
    }

    fn start(
        config: &S3Config,
        store: Arc<dyn ObjectStore>,
        spawn: Spawn,
        clock: Arc<dyn Clock>,
        (pages, remover): (Pages, Option<Remover>),
    ) -> Result<Self> {
        let limits = Limits {
            timeout: config.request_timeout,
            retries: config.retries,
            in_flight: config.requests_in_flight_max as usize,
        };
        let core = Core {
            layout: Layout::new(&config.prefix),
            requests: Arc::new(Requests::new(store, pages, spawn, Arc::clone(&clock), limits)),
            clock,
            heads: heads(config.heads_bytes_max),
            locks: ObjectLocks::default(),
            remover,
            events: EventHub::new(),
            reported: ReportedClaims::default(),
            credits: Credits::new(config.bytes_in_flight_max),
            compactions: Semaphore::new(COMPACTIONS_MAX),
            object_bytes_max: config.object_bytes_max,
            call_timeout: config.call_timeout,
        };
        let this = Self { core: Arc::new(core), runtime: None };
        let probed = this.run(Call::default(), None, |core, progress| async move {
            core.probe().await?;
            core.resolve_edition(&progress).await
        });
        executor::block_on(probed)?;
        Ok(this)
    }

    /// Runs a call; see [`bounded`]. `changed` is the object that the call may change.
    fn run<T: 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        call: Call,
        changed: Option<&ObjectId>,
        work: impl FnOnce(Arc<Core>, Progress) -> F,
    ) -> Reply<T> {
        let progress = Progress::default();
        let work = work(Arc::clone(&self.core), progress.clone());
        bounded(&self.core, &call, progress, changed, work)
    }

    /// Removes blobs that no head names and that are older than `age` (remains of writers that died
    /// during a change), and the heads of objects deleted that long ago, if nothing depends on
    /// these heads and the server supports conditional removals. An hour is a good age; 15 minutes
    /// is the minimum while there are other writers. Returns the counts. A store over HTTP also
    /// sweeps regularly by itself ([`S3Config::sweep_interval`]).
    ///
    /// # Errors
    /// Returns `Retryable`, `Denied`, `Corrupt`. Objects removed until then stay removed.
    pub fn sweep(&self, age: Duration) -> Reply<Swept> {
        self.sweep_with(age, false, |_| {})
    }

    /// Sweeps as [`Self::sweep`] does; a dry run counts objects without removing them, but puts and
    /// removes a small object that shows the server's time even then. `watch` is called with the
    /// counts so far, after each page of a listing and each object.
    ///
    /// # Errors
    /// Returns the errors of [`Self::sweep`].
    pub fn sweep_with(
        &self,
        age: Duration,
        dry_run: bool,
        watch: impl Fn(&Swept) + Send + Sync + 'static,
    ) -> Reply<Swept> {
        self.run(Call::default(), None, |core, progress| async move {
            core.sweep(age, dry_run, &progress, &watch).await
        })
    }

    /// Closes the store: waits until unused blobs have been removed, but at most for `timeout`.
    /// Blocks. A sweep removes the rest. If the store is dropped without this call, removals in
    /// progress may be left to a sweep.
    pub fn close(&self, timeout: Duration) {
        executor::block_on(Box::pin(self.core.requests.removed(timeout)));
    }
}

impl Drop for S3Store {
    /// Does not wait for requests in flight, because a runtime must not block when it is dropped
    /// within another runtime.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Blocker for S3Store {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::full(self.core.object_bytes_max);
        capabilities.list_entries_max = LIST_ENTRIES_MAX;
        capabilities.runs_max = RUNS_MAX;
        capabilities.copy_native = false;
        capabilities.survives = Survives::PowerLoss;
        capabilities
    }

    fn read(&self, request: ReadRequest) -> Reply<ReadReply> {
        self.run(request.call, None, |core, _| async move {
            let _credits = core.credits.take(request.len_bytes.min(core.object_bytes_max)).await;
            core.read(request).await
        })
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
                    let _credits = core.credits.take(core.object_bytes_max).await;
                    core.copy((from, *from_condition), (&object, terms), &progress).await?
                }
                change => {
                    let _credits = core.credits.take(change.payload_bytes()).await;
                    core.change(&object, change, &terms, &progress).await?
                }
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
        // Acknowledged changes are already stored.
        request.call.check(&*self.core.clock).map(|()| FlushReply::new(Durability::Stored)).into()
    }

    fn claim(&self, request: ClaimRequest) -> Reply<ClaimReply> {
        self.run(request.call, None, |core, progress| async move {
            // The call may have an effect from its first step on.
            progress.set_begun(true);
            core.claim(request, &progress).await
        })
    }

    fn invalidate(&self, request: InvalidateRequest) -> Reply<InvalidateReply> {
        // Only the memory of heads has to be dropped: every change compares remembered heads, and
        // every read revalidates them.
        self.core.heads.forget_all();
        self.core.events.publish(&Event::Changed(request.scope));
        Reply::ok(InvalidateReply::new(0))
    }

    fn subscribe(&self) -> Subscription {
        self.core.events.subscribe()
    }

    fn control(&self) -> &dyn Control {
        self
    }
}

impl Collect for S3Store {
    fn collect(&self, into: &mut Families) {
        self.core.requests.stats.collect(into);
        let help = "The maximum number of requests in flight; lower after the server has asked for fewer.";
        into.gauge("s3_requests_in_flight_max", help, self.core.requests.concurrency.now() as u64);
        let help = "Objects with a change of unknown outcome that has not been read back yet.";
        into.gauge("s3_objects_unsettled", help, self.core.heads.unsettled_count() as u64);
    }
}

impl Control for S3Store {
    fn attach(&self, namespace: Namespace) -> Reply<Attachment> {
        let capabilities = self.capabilities();
        self.run(Call::default(), None, |core, _| async move {
            let epoch = core.scopes(&namespace, None).await?.whole;
            Ok(Attachment::new(capabilities, Epoch(epoch)))
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
