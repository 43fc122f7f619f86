//! Opens a listener and an object cache over its store, or the store alone: at startup, after a
//! failed upgrade, and for each leadership of an elected writer. Also changes the settings of the
//! current cache at run time.
//!
//! The listener is a synapse server with its own threads. Its sockets are opened once, or handed
//! over by another process, and stay open while one cache ends and the next begins: clients that
//! connect meanwhile wait instead of being refused. If the writer is elected, they are open only
//! while this host leads, and clients of a standby are refused.

use super::ObjectsError;
use super::election::gate::{Gate, Holds};
use super::http::HttpService;
use super::volumes::{Kept, VolumeService, VolumesOpening};
use crate::config::{
    BackendTable, ConfigError, ListenerFiles, ObjectsTable, Secrets, ServiceConfig, SynapseTable, is_elected,
};
use blocker::metrics::Collect;
use blocker::trace::Tracer;
use blocker::{Blocker, Measurements, Traced};
use cached_admin::Health;
use cached_admin::insight::ObjectStatistics;
use cached_admin::insight::slow::{SlowLog, SlowStore};
use cached_admin::sources::{StoreSource, measured};
use cached_config::{
    LiveObjects, OpenOptions, ShutdownError, Store, Waiting, begin_recovery, flush_all, log_events,
    log_recovery, store_all,
};
use cached_core::insight::Sampling;
use cached_core::object::{Background, Leadership, ObjectCache};
use cached_process::files::SocketFile;
use cached_process::reload::LiveSecs;
use connection::ListenerThreads;
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use synapse::codec::InstanceId;
use synapse::{Address, ListeningSocket, NodeRecord, SecretHandle, Server, host_name};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

/// The key of the store's secret.
const STORE_SECRET: &str = "objects.backend.secret_file";

/// The parameters for opening an object cache.
#[derive(Clone)]
pub(super) struct Opening {
    pub(super) objects: ObjectsTable,
    pub(super) has_cache: bool,
    pub(super) synapse: Option<SynapseTable>,
    pub(super) volumes: Option<VolumesOpening>,
    pub(super) files: ListenerFiles,
    pub(super) secrets: Secrets,
    pub(super) sampling: Sampling,
    pub(super) tracer: Option<Tracer>,
    pub(super) slow: Arc<SlowLog>,
    /// Shows what the startup waits for. If present, requests to the store are measured.
    pub(super) health: Option<Health>,
    /// Whether this host leads now, if the writer is elected.
    pub(super) leads: Option<Holds>,
    /// Whether the cache uses no journal although one is configured, because that journal could not
    /// be set aside.
    pub(super) without_journal: bool,
}

/// An open object cache, or an open store without a cache, none of whose threads run yet.
pub(super) struct OpenObjects {
    pub(super) parts: Parts,
    /// The background task of the cache, if there is one.
    pub(super) background: Option<Background>,
    pub(super) control: Runtime,
}

/// The parts that serve clients and appear in reports.
pub(super) struct Parts {
    /// The cache; without one, the store is served.
    pub(super) cache: Option<ObjectCache>,
    pub(super) store: Store,
    /// The store's name, for the log.
    pub(super) name: String,
    pub(super) listener: Option<ObjectListener>,
    pub(super) http: Option<HttpService>,
    pub(super) volumes: Option<VolumeService>,
    /// The record of servers in the store, if there is a listener.
    pub(super) record: Option<NodeRecord>,
    /// The latencies of the store, if they are measured.
    pub(super) measurements: Option<Arc<Measurements>>,
    /// The secrets of store and listener when the listener was opened.
    pub(super) secrets: Secrets,
}

impl Opening {
    /// Opens the journal and the store, creates the cache, and begins its recovery. If the
    /// journal's disk or the store is unavailable, retries until `end` is ready.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first failure that waiting cannot resolve; [`ObjectsError::Ended`].
    pub(super) fn open(&self, end: Pin<&mut dyn Future<Output = ()>>) -> Result<OpenObjects, ObjectsError> {
        let control = Builder::new_current_thread().enable_all().build()?;
        let opened = control.block_on(async {
            tokio::select! {
                opened = self.open_in(control.handle()) => opened,
                () = end => Err(ObjectsError::Ended),
            }
        });
        match opened {
            Ok((parts, background)) => Ok(OpenObjects { parts, background, control }),
            Err(error) => {
                // An attempt to open the journal or the store may hang, so nothing waits for it.
                control.shutdown_background();
                Err(error)
            }
        }
    }

    /// Returns the tables as the cache uses them.
    fn used(&self, objects: &ObjectsTable) -> ObjectsTable {
        if self.without_journal { objects.clone().without_journal() } else { objects.clone() }
    }

    async fn open_in(&self, control: &Handle) -> Result<(Parts, Option<Background>), ObjectsError> {
        let Opening { synapse, secrets, sampling, tracer, slow, health, .. } = self;
        let objects = &self.used(&self.objects);
        let Some(table) = &objects.backend else {
            return Err(ConfigError::new("objects.backend", "is missing").into());
        };
        if matches!(table, BackendTable::Memory(_)) {
            tracing::warn!("objects are kept in memory: all of them are lost when this process ends");
        }
        let mut waiting = Waiting::new(|line| health.iter().for_each(|health| health.set_starting(line)));
        // Opened before the store, so that an unusable journal ends the startup immediately.
        let journal = objects.open_journal(&mut waiting).await?;
        let options = OpenOptions {
            object_bytes_max: objects.object_bytes_max.0,
            secret: secrets.store.clone(),
            tracer: tracer.clone(),
            is_server: true,
            ..OpenOptions::default()
        };
        let store = Store::open_when_available(table, &options, &mut waiting).await?;
        let (store, measurements) = match health {
            Some(_) => measured(store, table.kind()),
            None => (store, None),
        };
        let (cache, background) = match self.has_cache {
            true => {
                // Always present, because the threshold can change.
                let below: Arc<dyn Blocker> = Arc::new(SlowStore::new(store.backend(), slow.clone()));
                let (cache, background) = objects.open_cache(below, journal, *sampling)?;
                begin_recovery(&cache, objects, &mut waiting).await?;
                (Some(cache), Some(background))
            }
            false => (None, None),
        };
        let record = match synapse {
            Some(_) => Some(store.node_record(&mut waiting).await?),
            None => None,
        };
        let (name, secrets) = (table.to_string(), secrets.clone());
        let (listener, http, volumes) = (None, None, None);
        let mut parts = Parts { cache, store, name, listener, http, volumes, record, measurements, secrets };
        parts.listener = self.listener(&parts, None)?;
        parts.http = self.http(&parts).await?;
        parts.volumes = self.volumes(&parts, control, None).await?;
        Ok((parts, background))
    }

    /// Starts the threads of the listener, if one is configured; the listener accepts no connection
    /// yet. `continues` is the instance of an earlier listener that has ended over the same parts.
    pub(super) fn listener(
        &self,
        parts: &Parts,
        continues: Option<InstanceId>,
    ) -> Result<Option<ObjectListener>, ObjectsError> {
        let (Some(table), Some(record)) = (&self.synapse, &parts.record) else { return Ok(None) };
        let mut config = table.server();
        let mut secrets = self.secrets.listener.iter().cloned();
        (config.secret, config.secret_previous) = (secrets.next(), secrets.next());
        config.name = host_name();
        config.continues = continues;
        record.apply(&mut config);
        config.receive_buffers = parts.cache.as_ref().map(ObjectCache::receive_buffers);
        let threads = ListenerThreads::start("cached-synapse", table.threads)?;
        config.workers = threads.runtimes.clone();
        config.tracer = self.tracer.clone();
        let server = Server::new(self.served(parts), config);
        let server = Arc::new(server.map_err(|error| ObjectsError::from(SynapseTable::error(&error)))?);
        Ok(Some(ObjectListener { server, _threads: threads }))
    }

    /// Returns the maximum memory of the listeners, in bytes.
    pub(super) fn listener_bytes_max(&self) -> u64 {
        let synapse = self.synapse.as_ref().map_or(0, |table| table.server().memory_bytes_max());
        let http = self.objects.http.as_ref().map_or(0, |table| {
            table.server(self.files.http_keys.clone(), self.files.http_tls.clone()).memory_bytes_max()
        });
        synapse + http + self.volumes.as_ref().map_or(0, VolumesOpening::listener_bytes_max)
    }

    /// Returns the cache, or the store without one, as clients use it.
    fn served(&self, parts: &Parts) -> Arc<dyn Blocker> {
        let Some(cache) = &parts.cache else { return parts.store.backend() };
        let cache = self.gated(cache);
        match &self.tracer {
            Some(tracer) => Arc::new(Traced::cache(cache, tracer.clone())),
            None => cache,
        }
    }

    /// Returns the cache, behind a gate if the writer is elected.
    fn gated(&self, cache: &ObjectCache) -> Arc<dyn Blocker> {
        let cache: Arc<dyn Blocker> = cache.clone().into();
        match &self.leads {
            Some(leads) => Arc::new(Gate::new(cache, Arc::clone(leads))),
            None => cache,
        }
    }

    /// Returns the HTTP listener, if one is configured; it accepts no connection yet.
    pub(super) async fn http(&self, parts: &Parts) -> Result<Option<HttpService>, ObjectsError> {
        match &self.objects.http {
            Some(table) => HttpService::open(table, self.files.clone(), self.served(parts)).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the volumes, if they are configured; their clients wait until the volumes are
    /// served. `kept` is the state of an earlier service that has ended over the same cache.
    pub(super) async fn volumes(
        &self,
        parts: &Parts,
        control: &Handle,
        kept: Option<Kept>,
    ) -> Result<Option<VolumeService>, ObjectsError> {
        match (&self.volumes, &parts.cache) {
            (Some(volumes), Some(cache)) => {
                volumes.open(&self.objects, (cache, self.gated(cache)), control, kept).await.map(Some)
            }
            _ => Ok(None),
        }
    }
}

impl Parts {
    /// Shows the cache, if there is one, in statistics.
    pub(super) fn show_in(&self, statistics: &ObjectStatistics) {
        if let Some(cache) = &self.cache {
            statistics.set(cache, self.listener.as_ref().map(ObjectListener::metrics));
        }
    }

    /// Returns a handle that changes the settings of cache, listener and store.
    pub(super) fn live(&self, flush_max: &LiveSecs) -> LiveObjects {
        let listener = self.listener.as_ref().map(|listener| Arc::downgrade(&listener.server));
        let cache = self.cache.as_ref().map(|cache| (cache.live_settings(), flush_max.clone()));
        LiveObjects::new(cache, listener, self.store.secret(), self.secrets.clone())
    }

    /// Stores the dirty data of the cache, if there is one, as [`store_all`] does.
    pub(super) async fn store_all(&self, flush_max: Duration) -> Result<(), ShutdownError> {
        match &self.cache {
            Some(cache) => store_all(cache, flush_max).await,
            None => Ok(()),
        }
    }

    /// Stores the present dirty data of the cache, if there is one, as [`flush_all`] does.
    pub(super) async fn flush_all(&self, flush_max: Duration) -> blocker::Result<()> {
        match &self.cache {
            Some(cache) => flush_all(cache, flush_max).await,
            None => Ok(()),
        }
    }

    /// Starts the background tasks, in the current runtime.
    pub(super) fn run(&self, background: Option<Background>) -> Vec<AbortHandle> {
        let events = log_events(self.store.backend().subscribe(), self.name.clone());
        let mut tasks = vec![tokio::spawn(events).abort_handle()];
        tasks.extend(background.map(|background| tokio::spawn(background).abort_handle()));
        let recovery = self.cache.clone().map(log_recovery);
        tasks.extend(recovery.map(|recovery| tokio::spawn(recovery).abort_handle()));
        if let Some(measurements) = &self.measurements {
            let watch = StoreSource::watch(Arc::downgrade(&self.store.backend()), measurements.clone());
            tasks.push(tokio::spawn(watch).abort_handle());
        }
        tasks.extend(self.http.as_ref().map(HttpService::renew));
        tasks.extend(self.volumes.as_ref().and_then(VolumeService::serve));
        tasks
    }
}

/// Changes the settings of cache, listener and store at run time, without keeping any of them open.
/// All clones act on the same cache.
#[derive(Clone)]
pub struct ReloadObjects {
    in_force: Arc<Mutex<InForce>>,
}

struct InForce {
    /// The configuration in force, with which the next cache is opened.
    opening: Opening,
    /// The open cache; `None` while the store belongs to another process, or another host leads.
    live: Option<LiveObjects>,
    /// The secret of the election's own connection to the store.
    election: Option<SecretHandle>,
}

impl ReloadObjects {
    pub(super) fn new(opening: Opening) -> ReloadObjects {
        ReloadObjects { in_force: Arc::new(Mutex::new(InForce { opening, live: None, election: None })) }
    }

    /// Returns the current parameters for opening a cache.
    pub(super) fn opening(&self) -> Opening {
        self.in_force.lock().opening.clone()
    }

    /// Returns the current parameters for opening the cache of a leadership, with which its listeners
    /// can be opened again; `leads` returns whether this host leads.
    pub(super) fn lead(&self, leadership: Leadership, leads: Holds, has_journal: bool) -> Opening {
        let mut in_force = self.in_force.lock();
        in_force.opening.without_journal = !has_journal;
        in_force.opening.objects.leadership = Some(leadership);
        in_force.opening.leads = Some(leads);
        in_force.opening.clone()
    }

    /// Changes the secret of this connection as well from now on.
    pub(super) fn set_election(&self, secret: Option<SecretHandle>) {
        self.in_force.lock().election = secret;
    }

    /// Applies further changes to this cache.
    pub(super) fn set(&self, live: Option<LiveObjects>) {
        let mut in_force = self.in_force.lock();
        let opening = &in_force.opening;
        let Opening { has_cache, synapse, secrets, .. } = opening;
        let objects = has_cache.then(|| opening.used(&opening.objects));
        // A reload may have changed the configuration while a leader's cache, or listeners after a
        // release that has failed, were being opened. Also sets the time for flushes at the end, which
        // outlives caches and may have changed before.
        if let Some(live) = &live
            && let Err(error) = live.change(objects.as_ref(), synapse.as_ref(), secrets.clone(), STORE_SECRET)
        {
            tracing::error!(cause = %error, "the last reload is not in force: reload again");
        }
        in_force.live = live;
    }

    /// Applies those settings of the tables `after` and of the listener that can change at run
    /// time. Returns the keys of the secrets that have changed.
    ///
    /// # Errors
    /// The key whose value is incompatible with the other settings in force; nothing has changed
    /// then.
    pub fn change(
        &self,
        after: Option<&ObjectsTable>,
        listener: Option<&SynapseTable>,
        secrets: Secrets,
    ) -> Result<Vec<String>, ConfigError> {
        let mut in_force = self.in_force.lock();
        let InForce { opening, live, election } = &mut *in_force;
        let changed = match live {
            Some(live) => {
                let used = after.map(|after| opening.used(after));
                live.change(used.as_ref(), listener, secrets.clone(), STORE_SECRET)?
            }
            // A standby has nothing to change: its next cache has the new values.
            None if is_elected(&opening.objects) => Vec::new(),
            None => {
                let why = "cannot change while another process is taking over; reload again afterwards";
                return Err(ConfigError::new("objects", why));
            }
        };
        if let Some(after) = after {
            let leadership = opening.objects.leadership.take();
            opening.objects = ObjectsTable { leadership, ..after.clone() };
        }
        opening.synapse = listener.cloned();
        election.iter().for_each(|secret| secret.set(secrets.store.clone()));
        opening.secrets = secrets;
        Ok(changed)
    }
}

/// A synapse server over an object cache, and the threads that serve its connections.
pub(super) struct ObjectListener {
    pub(super) server: Arc<Server>,
    _threads: ListenerThreads,
}

impl ObjectListener {
    /// Accepts connections, in the current runtime.
    pub(super) fn listen(&self, sockets: &ObjectSockets) -> Result<(), ObjectsError> {
        sockets.listen(&self.server).map_err(ObjectsError::Listener)
    }

    /// Returns the metrics of the server, without keeping the server open.
    fn metrics(&self) -> Weak<dyn Collect> {
        Arc::<Server>::downgrade(&self.server)
    }

    /// Answers the requests in flight, and ends. Connections whose clients do not read their
    /// replies within `timeout` are closed.
    pub(super) async fn end(self, timeout: Duration) {
        if !self.server.shutdown(timeout).await {
            tracing::warn!("closing connections of object clients that did not read their replies");
        }
    }
}

/// The listening sockets, for as long as this process owns them.
#[derive(Debug, Default)]
pub struct ObjectSockets {
    sockets: Mutex<Vec<ObjectSocket>>,
}

#[derive(Debug)]
struct ObjectSocket {
    /// The address as configured.
    name: String,
    /// The socket's file, removed before the socket is closed: until then, no other file can be
    /// mistaken for it.
    file: Option<SocketFile>,
    socket: ListeningSocket,
}

impl ObjectSockets {
    /// Opens the sockets that `table` names, or takes them from `handed`, the sockets of another
    /// process, each with its configured address.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first address that fails.
    pub fn open(
        table: Option<&SynapseTable>,
        mut handed: Vec<(String, OwnedFd)>,
    ) -> Result<ObjectSockets, ObjectsError> {
        let mut sockets = Vec::new();
        if let Some(table) = table {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            for (name, address) in table.listen.iter().zip(table.addresses()?) {
                let taken = handed.iter().position(|(own, _)| own == name).map(|at| handed.swap_remove(at).1);
                let (name, failed) = (name.clone(), ObjectsError::Listener);
                let (socket, file) = match taken {
                    Some(socket) => {
                        let socket = ListeningSocket::adopt(&address, socket);
                        let socket = socket.map_err(|error| failed(format!("{address}: {error}")))?;
                        (socket, address.path().map(SocketFile::of_another))
                    }
                    None => bind(table, &address, &runtime).map_err(failed)?,
                };
                sockets.push(ObjectSocket { name, file, socket });
            }
        }
        if !handed.is_empty() {
            tracing::warn!(
                sockets = handed.len(),
                "sockets of the object cache that the configuration no longer names are closed"
            );
        }
        Ok(ObjectSockets { sockets: Mutex::new(sockets) })
    }

    /// Opens the sockets of a process that takes over from one that has `handed` over these: none
    /// if the writer is elected, whose sockets are open only while it leads.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first address that fails.
    pub fn take_over(
        config: Option<&ServiceConfig>,
        handed: Vec<(String, OwnedFd)>,
    ) -> Result<ObjectSockets, ObjectsError> {
        match config {
            Some(config) if is_elected(&config.objects) => Ok(ObjectSockets::default()),
            config => ObjectSockets::open(config.and_then(|config| config.synapse.as_ref()), handed),
        }
    }

    /// Opens the sockets that `table` names, after [`close`](Self::close).
    ///
    /// # Errors
    /// [`ObjectsError`] for the first address that fails.
    pub(super) fn open_again(&self, table: Option<&SynapseTable>) -> Result<(), ObjectsError> {
        let opened = ObjectSockets::open(table, Vec::new())?;
        *self.sockets.lock() = opened.sockets.into_inner();
        Ok(())
    }

    /// Takes ownership of the files of sockets that another process has handed over: that process
    /// has ended, or is about to.
    pub(super) fn own_files(&self) {
        let mut sockets = self.sockets.lock();
        sockets.iter_mut().filter_map(|socket| socket.file.as_mut()).for_each(SocketFile::own);
    }

    /// Makes `server` accept connections from these sockets, in the current runtime.
    ///
    /// # Errors
    /// A one-line message for the first socket that fails.
    pub(super) fn listen(&self, server: &Server) -> Result<(), String> {
        self.sockets
            .lock()
            .iter()
            .try_for_each(|own| server.listen_on(&own.socket).map(drop).map_err(|error| error.to_string()))
    }

    /// Returns the addresses to which the sockets are bound.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.sockets.lock().iter().map(|own| own.socket.address().to_string()).collect()
    }

    /// Returns copies of the sockets for another process, each with its configured address.
    pub(super) fn copies(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let sockets = self.sockets.lock();
        let copy = |own: &ObjectSocket| -> io::Result<(String, OwnedFd)> {
            Ok((own.name.clone(), own.socket.as_fd().try_clone_to_owned()?))
        };
        sockets.iter().map(copy).collect()
    }

    /// Removes the files and closes the sockets: the system refuses clients once nothing accepts
    /// connections any more.
    pub(super) fn close(&self) {
        self.sockets.lock().clear();
    }

    /// Closes the sockets without removing their files, which belong to another process.
    pub(super) fn forget(&self) {
        for own in self.sockets.lock().drain(..) {
            // Prevents the removal of the file.
            std::mem::forget(own.file);
        }
    }
}

/// Opens a socket with the permissions that the table sets.
fn bind(
    table: &SynapseTable,
    address: &Address,
    runtime: &Runtime,
) -> Result<(ListeningSocket, Option<SocketFile>), String> {
    let socket = runtime.block_on(ListeningSocket::bind(address)).map_err(|error| error.to_string())?;
    let file = address.path().map(SocketFile::new);
    table.restrict(address)?;
    Ok((socket, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cached_config::{MemoryTable, Size};
    use std::future::pending;
    use std::pin::pin;

    fn objects() -> ObjectsTable {
        ObjectsTable {
            memory_bytes_max: Size(4 << 20),
            dirty_bytes_max: Some(Size(1 << 20)),
            object_bytes_max: Size(256 << 10),
            backend: Some(BackendTable::Memory(MemoryTable::default())),
            ..ObjectsTable::default()
        }
    }

    #[test]
    fn a_reload_while_a_listener_is_opened_again_is_in_force() {
        let synapse = SynapseTable { threads: 1, ..SynapseTable::default() };
        let opening = Opening {
            objects: objects(),
            has_cache: true,
            synapse: Some(synapse.clone()),
            volumes: None,
            files: ListenerFiles::default(),
            secrets: Secrets::default(),
            sampling: Sampling::Off,
            tracer: None,
            slow: Arc::new(SlowLog::new(Duration::ZERO)),
            health: None,
            leads: None,
            without_journal: false,
        };
        let OpenObjects { mut parts, control, .. } = opening.open(pin!(pending::<()>())).unwrap();
        let flush_max = LiveSecs::new(1);
        let reload = ReloadObjects::new(opening);
        reload.set(Some(parts.live(&flush_max)));
        // As after a release of the store that has failed.
        parts.listener = None;
        let inside = control.enter();
        let listener = reload.opening().listener(&parts, None).unwrap();
        let after = SynapseTable { session_linger_secs: 77, ..synapse };
        reload.change(Some(&objects()), Some(&after), Secrets::default()).unwrap();
        parts.listener = listener;
        reload.set(Some(parts.live(&flush_max)));
        let limits = parts.listener.as_ref().map(|listener| listener.server.limits());
        assert_eq!(limits.map(|limits| limits.session_linger), Some(Duration::from_secs(77)));
        drop(inside);
        drop(parts);
    }
}
