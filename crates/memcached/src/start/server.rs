//! The server as a whole: opening sockets, starting threads, stopping in order.

use super::memory::{self, Limits, OnTakingOver};
use super::{LiveServer, ServeError, StartError};
use crate::connections::{Command, CommandQueue};
use crate::copy;
use crate::listen::{Handed, Listeners, acceptor, ring};
use crate::objects::ObjectHandOver;
use crate::process::{Logging, pin_thread};
use crate::settings::{RingSettings, Settings};
use crate::shared::clock::ServerClock;
use crate::shared::{Shared, Upgrader};
use crate::stats::admin::ServerSource;
use crate::telemetry::heartbeat::Activity;
use crate::telemetry::watch::{Evictions, Watch};
use crate::upgrade::give::{Prepared, Upgradable};
use crate::upgrade::{Program, Taking};
use crate::worker::{BackgroundThread, Worker, adopt_items};
use blocker::executor::block_on_for;
use blocker::trace::Tracer;
use cached_admin::AdminServer;
use cached_admin::insight::ObjectStatistics;
use cached_admin::sources::Shown;
use cached_core::arena::ArenaFile;
use cached_core::kv::{ITEM_BYTES_MIN, Kv, KvConfig, policy};
use cached_process::Drain;
use cached_process::files::SocketFile;
use cached_ring::Map;
use cached_tls::ServerTls;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// The time that workers may take to end in addition to the time that clients have.
const END_MARGIN: Duration = Duration::from_secs(5);

/// The minimum speed at which the shutdown writes a memory file, which is that of a slow disk.
const MEMORY_FILE_BYTES_PER_SEC: usize = 50 << 20;

/// A server whose sockets are open. Clients can connect, and are served once [`run`](Server::run)
/// is called.
#[derive(Debug)]
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    listeners: Listeners,
    /// The process that is being taken over from.
    pub(crate) taking: Option<Taking>,
    /// The number of connections taken over.
    pub(crate) taken: u32,
    /// The parameters with which this process can hand over to another one, if this is allowed.
    upgradable: Option<Upgradable>,
}

/// Stops a server from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    shared: Arc<Shared>,
}

impl Stopper {
    /// Requests that the server respond to the requests it has received, and shut down.
    pub fn stop(&self) {
        self.shared.stop.notify_one();
    }
}

impl Server {
    /// Creates the store and opens the sockets.
    ///
    /// # Errors
    /// Returns [`StartError`] if the store cannot be created or a socket cannot be opened.
    pub fn open(settings: Settings, logging: Logging) -> Result<Server, StartError> {
        let tls = settings.load_tls()?;
        Server::open_with(settings, logging, Vec::new(), tls, &|_| ())
    }

    /// Creates the store and opens the sockets, given sockets that are already open and
    /// certificates that [`Settings::load_tls`] has read. If there are such sockets, the addresses
    /// in the settings are ignored. While a memory file is being taken over, which is after the
    /// sockets have been opened, calls `on_taking_over`.
    ///
    /// # Errors
    /// Returns [`StartError`] if the store cannot be created or a socket cannot be opened.
    pub fn open_with(
        settings: Settings,
        logging: Logging,
        inherited: Vec<OwnedFd>,
        tls: Option<Arc<ServerTls>>,
        on_taking_over: &OnTakingOver<'_>,
    ) -> Result<Server, StartError> {
        settings.auth.load_missing()?;
        let file = settings.memory_file.as_ref().map(ArenaFile::open).transpose()?;
        let clock = file.as_ref().map_or_else(ServerClock::new, |file| {
            // Expiry times continue from the clock of the previous process.
            ServerClock::starting_at(file.resume_secs())
        });
        // The listeners open first, so that clients wait while a memory file is being taken over,
        // instead of being refused.
        let listeners = Listeners::open(&settings, inherited, &mut Handed::default())?;
        let store = open_store(&settings, &clock, file, on_taking_over)?;
        Server::assemble(settings, logging, tls, clock, store, listeners, None)
    }

    pub(crate) fn assemble(
        settings: Settings,
        logging: Logging,
        tls: Option<Arc<ServerTls>>,
        clock: ServerClock,
        (watch, kv): (Arc<Watch>, Kv),
        mut listeners: Listeners,
        incarnation: Option<u64>,
    ) -> Result<Server, StartError> {
        let queues: Result<Arc<[_]>, _> = (0..settings.threads).map(|_| CommandQueue::new()).collect();
        let mut shared = Shared::new(kv, clock, settings, logging, watch, queues?);
        shared.tls = tls;
        if let (Some(ring), Some(incarnation)) = (&mut shared.ring, incarnation) {
            ring.incarnation = incarnation;
        }
        let shared = Arc::new(shared);
        // The list is set only here.
        let _ = shared.listeners.set(listeners.infos());
        let _ = shared.udp.set(std::mem::take(&mut listeners.udp).into());
        Ok(Server { shared, listeners, taking: None, taken: 0, upgradable: None })
    }

    /// Replaces the map of the ring, if the server belongs to a ring: opening may have taken long.
    ///
    /// # Panics
    /// Panics if there is a handle of the server already.
    pub fn set_ring_map(&mut self, map: Arc<Map>) {
        let shared = Arc::get_mut(&mut self.shared).expect("no handle of the server");
        let Some(ring) = &shared.settings.ring else { return };
        let ring = Arc::new(RingSettings { map, ..RingSettings::clone(ring) });
        shared.settings.ring = Some(ring.clone());
        shared.ring = Some(Shared::ring_of(&ring, &shared.settings));
    }

    /// Returns the TCP addresses on which the server listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.tcp_addresses()
    }

    /// Returns whether the first TCP listener has TLS.
    pub fn has_tls(&self) -> bool {
        self.listeners.sockets.first().is_some_and(|listener| listener.tls.is_some())
    }

    /// Returns the addresses at which the server receives datagrams.
    pub fn udp_addresses(&self) -> Vec<SocketAddr> {
        self.shared.udp.get().into_iter().flat_map(|sockets| sockets.iter()).map(|udp| udp.address).collect()
    }

    /// Returns the path of the unix socket on which the server listens.
    pub fn unix_path(&self) -> Option<PathBuf> {
        self.listeners.unix_path().map(PathBuf::from)
    }

    /// Returns the maximum memory that the server uses.
    pub fn limits(&self) -> Limits {
        Limits::new(&self.shared.settings, &self.shared.kv.limits())
    }

    /// Shows an object cache's statistics in `stats objects` and `stats objects_lost`. Calls after
    /// the first have no effect.
    pub fn report_objects(&self, statistics: ObjectStatistics) {
        // This fails after the first call.
        let _ = self.shared.objects.set(statistics);
    }

    /// Traces a sample of the requests, and the slow ones. Calls after the first have no effect.
    pub fn trace(&self, tracer: Tracer) {
        // This fails after the first call.
        let _ = self.shared.tracer.set(tracer);
    }

    /// Returns the maximum time that the shutdown takes after the threads have ended: for the
    /// checksums of a memory file, and for writing the file to disk. Returns zero without a memory
    /// file.
    pub fn memory_file_end(&self) -> Duration {
        let settings = &self.shared.settings;
        let bytes = settings.memory_file.as_ref().map_or(0, |_| settings.memory_bytes);
        Duration::from_secs((bytes / MEMORY_FILE_BYTES_PER_SEC) as u64)
    }

    /// Returns a handle that changes the server's settings at run time.
    pub fn live(&self) -> LiveServer {
        LiveServer::new(&self.shared)
    }

    /// Returns the request for an orderly shutdown, which clients can make as well.
    pub fn drain(&self) -> Drain {
        self.shared.drain.clone()
    }

    /// Shows the server's metrics, its part of the status and whether its threads make progress on
    /// an admin listener, until the result is dropped.
    pub fn show(&self, admin: &AdminServer) -> Shown {
        ServerSource::show(admin, &self.shared)
    }

    /// Allows `program` to take over when an [`Upgrader`] requests it. The new process also gets
    /// the sockets of the admin listener, each with its configured address, and the store of
    /// `objects` with its sockets.
    pub fn allow_upgrades(
        &mut self,
        program: Program,
        admin: Vec<(String, OwnedFd)>,
        objects: Option<Arc<dyn ObjectHandOver>>,
    ) {
        match Upgradable::new(program, &self.listeners, &self.shared, admin, objects) {
            Ok(upgradable) => self.upgradable = Some(upgradable),
            Err(error) => tracing::warn!(cause = %error, "an upgrade will not be possible"),
        }
    }

    /// Returns a handle that requests a takeover by another process.
    pub fn upgrader(&self) -> Upgrader {
        self.shared.upgrade.clone()
    }

    /// Returns a handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        Stopper { shared: self.shared.clone() }
    }

    /// Serves until the server is stopped: by a [`Stopper`], by a client's `shutdown`, or when
    /// `end` is ready. The server then ends within seconds, whatever clients do. `serving` is
    /// called once the server serves: immediately, unless it takes over from another process.
    ///
    /// # Errors
    /// Returns [`ServeError`] if a thread cannot be created, has panicked, or does not end.
    pub fn run_with(self, end: impl Future<Output = ()>, serving: impl FnOnce()) -> Result<(), ServeError> {
        self.run_until(pin!(end), Box::new(serving))
    }

    /// The function is not generic, so that it is compiled only in this crate.
    fn run_until(
        self,
        end: Pin<&mut dyn Future<Output = ()>>,
        serving: Box<dyn FnOnce() + '_>,
    ) -> Result<(), ServeError> {
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let Server { shared, mut listeners, taking, taken, upgradable } = self;
        // Once the outcome is certain, this lets the workers' threads begin, or end.
        let begin = Arc::new(OnceLock::new());
        let ended = start_workers(&shared, &begin)?;
        if let Some(taking) = &taking {
            let items = shared.kv.stats().items;
            if let Err(error) = taking.ready(items, taken) {
                let _ = begin.set(false);
                return Err(error.into());
            }
            shared.kv.confirm_hand_over();
        }
        adopt_items(&shared);
        listeners.unix_file.iter_mut().for_each(SocketFile::own);
        // This is set only once.
        let _ = begin.set(true);
        // The arbiter starts before the startup counts as complete, so that its metrics are
        // present.
        let arbiter = BackgroundThread::arbiter(&shared)?;
        serving();
        if let Some(taking) = taking
            && let Err(error) = taking.serving()
        {
            tracing::warn!(cause = %error, "the process that handed over has ended");
        }
        let background = [
            BackgroundThread::watchdog(shared.clone())?,
            BackgroundThread::insight(shared.clone())?,
            BackgroundThread::sweep(&shared)?,
        ];
        let ring = BackgroundThread::ring(&shared)?;
        let tasks = LocalSet::new();
        let next_worker = acceptor::RoundRobin::default();
        // Of one type, because tokio's code is compiled for each type of future that it runs as a task.
        let watched = |task: Pin<Box<dyn Future<Output = ()>>>| {
            let (shared, task) = (shared.clone(), tasks.spawn_local(task));
            // A task that panics does not end the others by itself.
            let watch: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
                if let Err(error) = task.await
                    && let Ok(payload) = error.try_into_panic()
                {
                    shared.fail_by_panic("the acceptor's thread", &*payload);
                }
            });
            tasks.spawn_local(watch);
        };
        for listener in listeners.sockets {
            watched(Box::pin(acceptor::accept(listener, shared.clone(), next_worker.clone())));
        }
        let accepted = Rc::<ring::Accepted>::default();
        for listener in listeners.ring {
            watched(Box::pin(ring::accept(listener, shared.clone(), accepted.clone())));
        }
        watched(Box::pin(ring::dial(shared.clone())));
        watched(Box::pin(tick(shared.clone())));
        if let Some(tls) = &shared.tls {
            watched(Box::pin(cached_tls::renew(tls.clone(), "memcached.tls")));
        }
        if let Some(tls) = shared.settings.ring.as_ref().and_then(|ring| ring.tls.clone()) {
            watched(Box::pin(cached_tls::renew(tls, "ring.tls")));
        }
        let is_handed_over = serve(&shared, &runtime, &tasks, upgradable.as_ref(), end);
        tracing::info!("stopping");
        // Requests that wait for a slot could not be answered otherwise.
        copy::end(&shared);
        if is_handed_over {
            // The socket now belongs to another process.
            std::mem::forget(listeners.unix_file);
        } else {
            // The file is dropped before the listeners: while the socket is open, no other file can
            // be mistaken for its file.
            drop(listeners.unix_file);
        }
        // This closes the listeners: from now on, the system refuses clients.
        drop(tasks);
        drop(upgradable);
        let failed = shared.defect.get().is_some();
        for queue in shared.connections.queues().iter() {
            queue.send(if failed { Command::Abort } else { Command::Drain });
        }
        let stuck = wait_for_workers(ended, &shared);
        drop((background, arbiter, ring));
        // A thread may be reading a file from a hung disk, so the shutdown does not wait for the
        // thread.
        runtime.shutdown_background();
        match shared.defect.get() {
            Some(text) => Err(ServeError::Defect(text.clone())),
            None if stuck.is_empty() => Ok(()),
            None => {
                let stuck: Vec<String> = stuck.iter().map(ToString::to_string).collect();
                Err(ServeError::Stuck(stuck.join(", ")))
            }
        }
    }

    /// Runs as [`run_with`](Self::run_with) does, without a callback.
    ///
    /// # Errors
    /// Returns the errors of [`run_with`](Self::run_with).
    pub fn run(self, end: impl Future<Output = ()>) -> Result<(), ServeError> {
        self.run_with(end, || {})
    }
}

/// Serves until the shutdown is requested, or another process has taken over. Returns whether
/// another process has taken over.
fn serve(
    shared: &Arc<Shared>,
    runtime: &Runtime,
    tasks: &LocalSet,
    upgradable: Option<&Upgradable>,
    mut end: Pin<&mut dyn Future<Output = ()>>,
) -> bool {
    enum Next {
        End,
        Upgrade,
        Finish(Prepared),
    }
    let mut preparing: Option<oneshot::Receiver<Prepared>> = None;
    loop {
        let prepared = async {
            match &mut preparing {
                Some(preparing) => preparing.await.unwrap_or_else(|_| Err("no thread can be created".into())),
                None => std::future::pending().await,
            }
        };
        let next = tasks.block_on(runtime, async {
            tokio::select! {
                biased;
                () = &mut end => Next::End,
                () = shared.stop.notified() => Next::End,
                () = shared.drained() => Next::End,
                prepared = prepared => Next::Finish(prepared),
                () = shared.upgrade.requested() => Next::Upgrade,
            }
        });
        match (next, upgradable) {
            (Next::End, _) => return false,
            (Next::Upgrade, None) => tracing::warn!("no other process can take over from this one"),
            (Next::Upgrade, Some(_)) if preparing.is_some() => {
                tracing::warn!("a new process is already being started");
            }
            (Next::Upgrade, Some(upgradable)) => preparing = Some(upgradable.start(shared)),
            (Next::Finish(prepared), Some(upgradable)) => {
                preparing = None;
                // A shutdown request takes precedence, even while it waits for load balancers: the
                // new process would not know of the request.
                let prepared = match shared.drain.is_requested() {
                    true => {
                        drop(prepared);
                        Err("the end has been requested".into())
                    }
                    false => prepared,
                };
                if upgradable.finish(shared, prepared) {
                    return true;
                }
            }
            (Next::Finish(_), None) => {}
        }
    }
}

/// Creates the store, in `file` if there is one, and the observer of its evictions.
pub(crate) fn open_store(
    settings: &Settings,
    clock: &ServerClock,
    file: Option<ArenaFile>,
    on_taking_over: &OnTakingOver<'_>,
) -> Result<(Arc<Watch>, Kv), StartError> {
    let pending_bytes = settings.worker_buffer_bytes.saturating_mul(settings.threads);
    let watch = Watch::new(pending_bytes, settings.watcher_buffer_bytes)?;
    let watch = Arc::new(watch);
    let config = KvConfig {
        arena_bytes: settings.memory_bytes,
        memory_range: settings.shared_memory.map(|memory| memory.items_range()),
        item_bytes_max: settings.joined_bytes_max().max(ITEM_BYTES_MIN),
        lanes: settings.threads,
        cas: settings.cas,
        evict: settings.evict,
        policy: policy::by_name(settings.eviction_policy).unwrap_or_else(|| KvConfig::default().policy),
        huge_pages: settings.huge_pages,
        clock: clock.ticks(),
        insight: settings.insight.sampling(),
        eviction_hook: Some(Arc::new(Evictions::new(watch.clone(), settings))),
        ..KvConfig::default()
    };
    let kv = memory::make_store(config, file, on_taking_over)?;
    Ok((watch, kv))
}

/// Starts the worker threads, which end or begin their work once `begin` is set. Returns a channel
/// for each worker, which closes when the worker has ended.
fn start_workers(
    shared: &Arc<Shared>,
    begin: &Arc<OnceLock<bool>>,
) -> Result<Vec<oneshot::Receiver<()>>, ServeError> {
    let mut all_ended = Vec::new();
    for index in 0..shared.settings.threads {
        let worker = Worker::new(index, shared.clone())?;
        let (end, ended) = oneshot::channel::<()>();
        all_ended.push(ended);
        let (shared, begin) = (shared.clone(), begin.clone());
        let body = move || {
            if !*begin.wait() {
                return;
            }
            if shared.settings.pin_workers {
                pin_thread(index, shared.settings.threads);
            }
            run_worker(index, worker, &shared);
            // This reference is dropped first: the last owner of the store completes its memory
            // file, and the process may exit once the workers have ended.
            drop(shared);
            drop(end);
        };
        let thread = thread::Builder::new().name(format!("cached-{index}"));
        thread.spawn(body)?;
    }
    Ok(all_ended)
}

/// The main function of a worker's thread: runs the worker and records a panic.
fn run_worker(index: usize, worker: Worker, shared: &Shared) {
    // After a panic, no part of the worker is used again, not even to drop it.
    let mut worker = ManuallyDrop::new(worker);
    match panic::catch_unwind(AssertUnwindSafe(|| worker.run())) {
        Ok(()) => drop(ManuallyDrop::into_inner(worker)),
        Err(payload) => {
            shared.fail_by_panic(&format!("worker {index}"), &*payload);
            worker.shut_down_sockets();
        }
    }
}

/// Waits for a bounded time until all workers have ended. Returns the workers that have not.
fn wait_for_workers(ended: Vec<oneshot::Receiver<()>>, shared: &Shared) -> Vec<usize> {
    let end = Instant::now() + shared.live.drain_timeout.get() + END_MARGIN;
    let mut running = Vec::new();
    for (index, ended) in ended.into_iter().enumerate() {
        if block_on_for(ended, end.saturating_duration_since(Instant::now())).is_none() {
            let state = shared.counters(index).heartbeat.read();
            tracing::error!("worker {index} does not end; its current activity is {}", state.activity());
            running.push(index);
        }
    }
    running
}

/// Advances the clock once a second, closes idle connections, and runs the store's maintenance.
async fn tick(shared: Arc<Shared>) {
    /// The number of maintenance steps per second. It is limited, so that the steps never delay the
    /// acceptor for long.
    const UPKEEP_STEPS: usize = 16;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    for second in 1.. {
        seconds.tick().await;
        shared.acceptor_heartbeat.begin(second, -1, Activity::Upkeep);
        shared.faults.check_acceptor();
        shared.clock.tick();
        shared.request_timings();
        shared.close_idle();
        shared.logging.report_repeats();
        if shared.connections.has_freed_much() {
            // This thread accepts connections.
            cached_process::memory::trim_on_thread();
        }
        for _ in 0..UPKEEP_STEPS {
            if !shared.kv.maintain() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The last owner of the store completes its memory file. A thread that the shutdown does not
    /// wait for would do so while the process exits, or not at all.
    #[test]
    fn no_thread_has_the_store_after_the_end() {
        for _ in 0..50 {
            let mut settings = Settings { listen: Vec::new(), threads: 4, ..Settings::default() };
            // The time that threads may take to end, on a machine on which they stand still.
            settings.drain.timeout_secs = 60;
            let server = Server::open(settings, Logging::embedded(0)).unwrap();
            let shared = Arc::downgrade(&server.shared);
            server.run(std::future::ready(())).unwrap();
            assert!(shared.upgrade().is_none());
        }
    }
}
