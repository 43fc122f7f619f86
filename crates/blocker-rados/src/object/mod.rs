//! The contract's objects, over atomic RADOS operations: reads, changes, listings, claims, and
//! their shared state: the current pool, the handles of namespaces, and the meaning of error
//! numbers. This module does not call librados itself.

pub(crate) mod change;
mod claims;
pub(crate) mod read;
pub(crate) mod view;

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use blocker::clock::until;
use blocker::conditional::ReportedClaims;
use blocker::event::{Event, EventHub};
use blocker::{Clock, Error, Name, Namespace, ObjectId, Result, Version};
use dashmap::DashMap;
use foldhash::fast::RandomState;
use parking_lot::RwLock;

use crate::config::RadosConfig;
use crate::format::{EVENTS, Layout};
use crate::librados::aio::{Limits, Outcome, ReadOp, WriteOp};
use crate::librados::ffi::errno;
use crate::librados::watch::{NOTIFY_TIMEOUT_MS, RETRY, Watch, encode, keep};
use crate::librados::{Cluster, IoCtx, Worker, describe};
use view::{Objects, View, objects};

/// The number of namespace handles at which all handles are dropped. Each thread that opens a
/// handle at the same moment may exceed it by one.
const SPACES_MAX: usize = 4096;
/// The number of bits of a version that hold RADOS's version; the other bits hold the pool's
/// number.
const VERSION_BITS: u32 = 48;
/// The maximum time that a call waits until other clients have received its event.
const NOTIFY_PATIENCE: Duration = Duration::from_secs(2);

/// State shared by the handle of a store and its calls.
pub(crate) struct Core {
    pub(crate) config: RadosConfig,
    pub(crate) layout: Layout,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) limits: Limits,
    pub(crate) objects: Arc<Objects>,
    pub(crate) events: Arc<EventHub>,
    pub(crate) reported: ReportedClaims,
    pub(crate) worker: Worker,
    pub(crate) watch: Arc<Watch>,
    /// Wakes the thread that establishes a lost watch again. The thread ends the watch, and itself, with
    /// the sender.
    watch_lost: SyncSender<()>,
    /// A unique number of each open store, which distinguishes the store's own events from those of
    /// others.
    pub(crate) mark: u64,
    pool: RwLock<Arc<Pool>>,
    is_full: AtomicBool,
    is_slow: AtomicBool,
    is_searching: AtomicBool,
    is_refreshing: AtomicBool,
    is_closed: AtomicBool,
}

/// A pool and its number: a pool that is deleted and created again gets another number.
pub(crate) struct Pool {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) number: i64,
    pub(crate) root: Arc<Space>,
    /// The handles of namespaces, read by every operation and written once for each namespace.
    spaces: DashMap<Namespace, Arc<Space>, RandomState>,
}

/// A RADOS namespace.
pub(crate) struct Space {
    pub(crate) ioctx: Arc<IoCtx>,
    /// Whether the namespace's `%scope` object is known to exist and to have the namespace's name.
    pub(crate) is_named: AtomicBool,
}

impl Pool {
    fn open(cluster: &Arc<Cluster>, config: &RadosConfig, layout: &Layout) -> Result<Arc<Self>> {
        let number = cluster.find_pool(&config.pool)?;
        let ioctx = cluster.open(number, &layout.root())?;
        let root = Arc::new(Space { ioctx, is_named: true.into() });
        Ok(Arc::new(Self { cluster: Arc::clone(cluster), number, root, spaces: DashMap::default() }))
    }
}

impl Core {
    /// Connects. Blocks.
    pub(crate) fn open(config: RadosConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        config.check()?;
        let layout = Layout::new(&config.root, &config.prefix);
        let cluster = Cluster::connect(&config)?;
        let pool = Pool::open(&cluster, &config, &layout).map_err(|error| match error {
            Error::Missing => Error::Denied(format!("the cluster has no pool {:?}", config.pool).into()),
            other => other,
        })?;
        let (watch_lost, lost) = sync_channel(1);
        let core = Arc::new(Self {
            layout,
            clock,
            limits: Limits::new(config.ops_in_flight_max, config.bytes_in_flight_max),
            objects: Arc::new(objects(config.heads_remembered_max)),
            events: Arc::default(),
            reported: ReportedClaims::default(),
            worker: Worker::start()?,
            watch: Arc::default(),
            watch_lost,
            mark: crate::format::nonce(),
            pool: RwLock::new(pool),
            is_full: false.into(),
            is_slow: false.into(),
            is_searching: false.into(),
            is_refreshing: false.into(),
            is_closed: false.into(),
            config,
        });
        if core.config.watch {
            core.keep_watch(lost)?;
            core.begin_watch()?;
        }
        Ok(core)
    }

    /// Starts the thread that establishes the watch again when it is lost.
    fn keep_watch(self: &Arc<Self>, lost: Receiver<()>) -> Result<()> {
        let (core, watch) = (Arc::downgrade(self), Arc::clone(&self.watch));
        let keep_it = move || {
            keep(&lost, RETRY, || {
                let core = core.upgrade().filter(|core| !core.is_closed.load(Ordering::Acquire))?;
                let begun = core.begin_watch();
                if begun.is_ok() {
                    // What was sent since the loss was reported has not arrived here.
                    core.events.publish(&Event::Missed);
                }
                Some(begun)
            });
            // The watch keeps the connection. Nothing else ends it, because that waits for the cluster.
            watch.end();
        };
        let spawned = std::thread::Builder::new().name("rados-watch".into()).spawn(keep_it);
        spawned.map(drop).map_err(|error| {
            Error::Retryable(format!("cannot start a thread for events of other clients: {error}").into())
        })
    }

    /// Lets the watch be established again.
    fn watch_is_lost(&self) {
        // If the queue is full, the thread has not begun with the last loss.
        let _ = self.watch_lost.try_send(());
    }

    /// Begins to receive other clients' events; ends an earlier watch. Blocks.
    fn begin_watch(self: &Arc<Self>) -> Result<()> {
        let pool = self.pool();
        let name = self.layout.internal(EVENTS);
        let op = WriteOp::new(&pool.cluster.api).create();
        let made = blocker::executor::block_on(Box::pin(self.change_own(&pool.root, &name, op)));
        if made.code < 0 && made.code != errno::EXIST {
            return Err(self.failed_read(&pool.root, made.code));
        }
        let core = Arc::downgrade(self);
        let on_broken = move || {
            if let Some(core) = core.upgrade() {
                core.watch_is_lost();
            }
        };
        self.watch.begin(&pool.root.ioctx, name, &self.events, self.mark, on_broken)
    }

    /// Sends an event to other clients. Events are hints: an event that cannot be sent is lost.
    pub(crate) async fn notify_others(self: &Arc<Self>, event: &Event) {
        if !self.config.watch {
            return;
        }
        let Some(message) = encode(event, self.mark) else { return };
        let pool = self.pool();
        let name = self.layout.internal(EVENTS);
        let sent = self.limits.notify(&pool.root.ioctx, &name, &message, NOTIFY_TIMEOUT_MS);
        until(&*self.clock, Some(self.clock.now() + NOTIFY_PATIENCE), sent).await;
    }

    /// Refuses all calls from now on. Calls in progress continue. Does not block.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pool.read())
    }

    /// Returns the RADOS namespace of `namespace`.
    pub(crate) fn space(self: &Arc<Self>, namespace: &Namespace) -> Result<Arc<Space>> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Denied("the store was closed".into()));
        }
        let pool = self.pool();
        if let Some(space) = pool.spaces.get(namespace) {
            return Ok(Arc::clone(&space));
        }
        if !pool.cluster.has_pool(pool.number) {
            return Err(self.pool_is_gone());
        }
        let space = self.open_space(&pool, &self.layout.namespace(namespace), false)?;
        if pool.spaces.len() >= SPACES_MAX {
            // Operations in progress keep their handles alive; other handles are opened again when
            // needed.
            pool.spaces.clear();
        }
        // If two threads have each opened a handle, both use the first one.
        Ok(Arc::clone(&pool.spaces.entry(namespace.clone()).or_insert(space)))
    }

    /// Opens a RADOS namespace of a pool.
    pub(crate) fn open_space(
        self: &Arc<Self>,
        pool: &Pool,
        rados_namespace: &CStr,
        is_named: bool,
    ) -> Result<Arc<Space>> {
        let ioctx = pool.cluster.open(pool.number, rados_namespace).map_err(|error| match error {
            Error::Missing => self.pool_is_gone(),
            other => other,
        })?;
        Ok(Arc::new(Space { ioctx, is_named: is_named.into() }))
    }

    /// Converts a RADOS version to one of the contract. A pool that is deleted and created again
    /// numbers its versions from the beginning, so the result includes the pool's number: no
    /// version identifies two contents.
    pub(crate) fn version(&self, space: &Space, version: u64) -> Version {
        Version((space.ioctx.pool as u64) << VERSION_BITS | version & ((1 << VERSION_BITS) - 1))
    }

    /// Converts a version of the contract to a RADOS version, or returns `None` if it is not a
    /// version of this pool.
    pub(crate) fn rados_version(&self, space: &Space, version: Version) -> Option<u64> {
        let raw = version.0 & ((1 << VERSION_BITS) - 1);
        (raw > 0 && self.version(space, raw) == version).then_some(raw)
    }

    // ---- operations

    /// Makes a change of one object, in one step. An error that is not a result of the steps is
    /// returned separately.
    pub(crate) async fn change_object(
        self: &Arc<Self>,
        space: &Space,
        object: &ObjectId,
        op: WriteOp,
        begun: impl FnOnce(),
    ) -> Outcome {
        let (objects, id) = (Arc::clone(&self.objects), object.clone());
        let on_timeout: crate::librados::aio::OnTimeout = Box::new(move || objects.unsettle(&id, ()));
        let name = self.layout.object(&object.name);
        let outcome = self.limits.change(&space.ioctx, &name, op, Some(on_timeout), begun).await;
        self.observe(outcome.code, true);
        outcome
    }

    /// Changes an internal object of the store.
    pub(crate) async fn change_own(self: &Arc<Self>, space: &Space, name: &CStr, op: WriteOp) -> Outcome {
        let outcome = self.limits.change(&space.ioctx, name, op, None, || ()).await;
        self.observe(outcome.code, true);
        outcome
    }

    /// Reads one object.
    pub(crate) async fn read_object(
        self: &Arc<Self>,
        space: &Space,
        name: &CStr,
        op: ReadOp,
    ) -> (Outcome, crate::librados::aio::Found) {
        let read = self.limits.read(&space.ioctx, name, op).await;
        self.observe(read.0.code, false);
        read
    }

    /// Returns the state of an object, including attributes.
    ///
    /// # Errors
    /// Returns the errors of a read, except `Missing`.
    pub(crate) async fn look(self: &Arc<Self>, space: &Space, name: &Name, ordered: bool) -> Result<View> {
        let op = ReadOp { stat: true, attributes: true, ordered, ..ReadOp::default() };
        let (outcome, found) = self.read_object(space, &self.layout.object(name), op).await;
        match outcome.code {
            0.. => View::read(outcome, &found),
            code => match self.failed_read(space, code) {
                Error::Missing => Ok(View::ABSENT),
                error => Err(error),
            },
        }
    }

    // ---- errors

    /// Converts the error of a read, or of a change that changed nothing.
    pub(crate) fn failed_read(self: &Arc<Self>, space: &Space, code: i32) -> Error {
        let text = || describe(code).into();
        match code {
            // librados also returns this error after the pool has been deleted.
            errno::NOENT if !space.ioctx.cluster.has_pool(space.ioctx.pool) => self.pool_is_gone(),
            errno::NOENT => Error::Missing,
            errno::TIMEDOUT => {
                Error::Retryable(format!("no OSD has responded within {:?}", self.config.op_timeout).into())
            }
            errno::NOSPC => Error::OutOfSpace("the cluster or the pool is full".into()),
            errno::DQUOT => Error::OutOfSpace("the pool's quota is used up".into()),
            errno::PERM | errno::ACCES => Error::Denied(
                format!("client.{} may not do that in pool {}", self.config.user, self.config.pool).into(),
            ),
            errno::SHUTDOWN => Error::Denied("the cluster has put this client on its blocklist".into()),
            errno::IO => Error::Corrupt(text()),
            errno::FBIG | errno::MSGSIZE => Error::TooLarge { limit_bytes: self.config.object_bytes_max },
            errno::NAMETOOLONG => {
                Error::Unsupported("the name is too long for the OSDs (osd_max_object_name_len)".into())
            }
            errno::INVAL | errno::OPNOTSUPP => Error::Unsupported(
                format!("the pool does not support that operation: {}", describe(code)).into(),
            ),
            _ => Error::Retryable(text()),
        }
    }

    /// Converts the error of a change that had been passed to librados.
    pub(crate) fn failed_change(self: &Arc<Self>, space: &Space, code: i32) -> Error {
        match code {
            errno::TIMEDOUT => Error::OutcomeUnknown(
                format!(
                    "no OSD has responded within {:?}; the change may still be applied",
                    self.config.op_timeout
                )
                .into(),
            ),
            _ => self.failed_read(space, code),
        }
    }

    /// Observes the store's state, and publishes its changes.
    fn observe(self: &Arc<Self>, code: i32, is_change: bool) {
        if code == errno::TIMEDOUT {
            self.refresh();
        }
        match code {
            errno::NOSPC | errno::DQUOT if !self.is_full.swap(true, Ordering::Relaxed) => {
                self.events.publish(&Event::Full);
            }
            errno::TIMEDOUT if !self.is_slow.swap(true, Ordering::Relaxed) => {
                self.events.publish(&Event::Degraded("OSDs do not respond".into()));
            }
            0.. => {
                let was_slow =
                    self.is_slow.load(Ordering::Relaxed) && self.is_slow.swap(false, Ordering::Relaxed);
                let was_full = is_change
                    && self.is_full.load(Ordering::Relaxed)
                    && self.is_full.swap(false, Ordering::Relaxed);
                if was_slow || was_full {
                    self.events.publish(&Event::Recovered);
                }
            }
            _ => {}
        }
    }

    /// Fetches the newest map after a timeout, because the OSD may have moved. librados asks for
    /// the map by itself only when an operation is older than `objecter_timeout`, which operations
    /// with a shorter timeout never reach.
    fn refresh(self: &Arc<Self>) {
        self.run_once(|core| &core.is_refreshing, |core| core.pool().cluster.refresh());
    }

    /// Runs `job` on the worker, unless a job with this flag is in progress.
    fn run_once(
        self: &Arc<Self>,
        flag: fn(&Self) -> &AtomicBool,
        job: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        if flag(self).swap(true, Ordering::AcqRel) {
            return;
        }
        let core = Arc::clone(self);
        let run = move || {
            job(&core);
            flag(&core).store(false, Ordering::Release);
        };
        if self.worker.run(Box::new(run)).is_err() {
            flag(self).store(false, Ordering::Release);
        }
    }

    /// Lets the worker look for a new pool with the configured name after the current pool has
    /// disappeared.
    pub(crate) fn pool_is_gone(self: &Arc<Self>) -> Error {
        self.search_pool();
        Error::Retryable(
            format!("the pool {:?} is gone; waiting for a pool with this name", self.config.pool).into(),
        )
    }

    /// Looks for a pool with the configured name if the current pool has disappeared.
    fn search_pool(self: &Arc<Self>) {
        let old = self.pool();
        if old.cluster.has_pool(old.number) {
            return;
        }
        let search = move |core: &Arc<Self>| {
            if let Ok(pool) = Pool::open(&old.cluster, &core.config, &core.layout)
                && pool.number != old.number
            {
                *core.pool.write() = pool;
                core.objects.forget_all();
                core.reported.forget_all();
                // Another pool is another store, so everything remembered is invalid.
                core.events.publish(&Event::Missed);
                core.watch_is_lost();
            }
        };
        self.run_once(|core| &core.is_searching, search);
    }
}
