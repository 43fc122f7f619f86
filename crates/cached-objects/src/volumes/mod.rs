//! Volumes in the object cache, served over NBD and managed through the admin listener.
//!
//! ```text
//! NBD clients ──► nbd::Server (threads of its own) ──► Served ──► VolumeExports ──► Volumes ──► ObjectCache
//! admin listener ──► routes ──► Jobs (control thread) ─────────────────────────────────┘
//! ```
//!
//! The service is created with its cache and ends before the cache: it stops accepting connections,
//! answers the requests it has received, completes its jobs, and releases every volume with all
//! data stored. The addresses are bound again with each cache: a client that connects between two
//! caches is refused and reconnects, as it does when a connection ends.
//!
//! | module | content |
//! |---|---|
//! | `exports` | the exports that NBD clients see, and the counts of each volume |
//! | `routes`, `requests` | the routes of the admin listener and their jobs; the requests and descriptions |

mod exports;
mod requests;
mod routes;

use super::ObjectsError;
use crate::config::{BackendTable, NbdTable, ObjectsTable, VolumesTable, is_elected};
use blocker::{Blocker, WriteMode};
use cached_admin::AdminServer;
use cached_admin::sources::Shown;
use cached_admin::status::Document;
use cached_admin::status::document::{ListenerPart, VolumePart, VolumesPart};
use cached_core::object::ObjectCache;
use cached_metrics::{Collect, Families, LabelledMetric};
use cached_tls::ServerTls;
use connection::ListenerThreads;
use exports::{COMMANDS, Command, Counts, Served, Sums};
use nbd::Server;
use routes::Jobs;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use volumes::exports::VolumeExports;
use volumes::{Fencing, Options, Volumes};

/// The delay between two attempts to release volumes.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The maximum length of an owner's name, in bytes.
const OWNER_BYTES_MAX: usize = 200;

/// The parameters for opening volumes.
#[derive(Clone)]
pub(super) struct VolumesOpening {
    /// The location and the owner of the volumes.
    pub(super) volumes: VolumesTable,
    /// The NBD listener, if there is one.
    pub(super) nbd: Option<NbdTable>,
    /// The certificates of the NBD listener.
    pub(super) nbd_tls: Option<Arc<ServerTls>>,
}

/// The state that the routes use. The routes keep none of it open.
pub(super) struct Managed {
    volumes: Arc<Volumes>,
    served: Served,
    has_listener: bool,
    jobs: Jobs,
}

/// The state that outlives a service over the same cache: volumes that could not be released hold
/// unflushed data.
pub(super) struct Kept {
    volumes: Arc<Volumes>,
    exports: VolumeExports,
    counts: Arc<Counts>,
}

/// The volumes in a cache, and the listener that serves them.
pub(super) struct VolumeService {
    managed: Arc<Managed>,
    listener: Option<Listener>,
    is_serving: watch::Sender<bool>,
}

struct Listener {
    server: Arc<Server>,
    addresses: Vec<String>,
    tls: Option<Arc<ServerTls>>,
    _threads: ListenerThreads,
}

impl VolumesOpening {
    /// Returns the maximum memory of the listener, in bytes.
    pub(super) fn listener_bytes_max(&self) -> u64 {
        self.nbd.as_ref().map_or(0, |table| table.server(self.nbd_tls.clone()).memory_bytes_max())
    }

    /// Opens the volumes of a cache, and binds the addresses of the listener. Clients wait until
    /// [`VolumeService::serve`] is called. `control` is the runtime of the cache, which must have
    /// been entered. Requests go to `served`, the cache or a layer over it.
    pub(super) async fn open(
        &self,
        objects: &ObjectsTable,
        (cache, served): (&ObjectCache, Arc<dyn Blocker>),
        control: &Handle,
        kept: Option<Kept>,
    ) -> Result<VolumeService, ObjectsError> {
        let Kept { volumes, exports, counts } = match kept {
            Some(kept) => {
                kept.exports.reopen();
                kept
            }
            None => self.volumes(objects, cache, served)?,
        };
        let (is_serving, served) = watch::channel(false);
        let served = Served {
            volumes: exports,
            only: self.nbd.as_ref().and_then(|nbd| nbd.exports.clone()).map(Arc::from),
            counts,
            is_serving: served,
        };
        let listener = match &self.nbd {
            Some(table) => Some(Listener::open(table, self.nbd_tls.clone(), &served).await?),
            None => None,
        };
        let managed =
            Managed { volumes, served, has_listener: listener.is_some(), jobs: Jobs::new(control.clone()) };
        Ok(VolumeService { managed: Arc::new(managed), listener, is_serving })
    }

    fn volumes(
        &self,
        objects: &ObjectsTable,
        cache: &ObjectCache,
        served: Arc<dyn Blocker>,
    ) -> Result<Kept, ObjectsError> {
        let fua = self.volumes.fua(objects).into();
        let owner = match self.volumes.owner.as_str() {
            "" => short(synapse::host_name()),
            owner => owner.to_owned(),
        };
        let mut options = Options::new(&self.volumes.prefix);
        (options.owner, options.flush_durability) = (owner, fua);
        // A leader takes over the volumes that an earlier leader has not released.
        options.takes_over = is_elected(objects);
        options.fencing = fencing(objects, cache);
        // Clients reconnect after a kill without knowing that the process was killed.
        options.records_at_once = self.volumes.record_at_once(objects);
        // With write-through, no write is answered from memory.
        if !options.records_at_once && objects.write != WriteMode::Back {
            options.overlay_bytes_max = 0;
        }
        let volumes = Volumes::new(served, options);
        let volumes = Arc::new(volumes.map_err(|error| ObjectsError::Volumes(error.to_string()))?);
        let mut exports = VolumeExports::new(Arc::clone(&volumes));
        (exports.fua_durability, exports.receive_buffers) = (fua, Some(cache.receive_buffers()));
        Ok(Kept { volumes, exports, counts: Arc::default() })
    }
}

/// Returns how a single writer at a time is enforced: by the cache if it is the writer, by the
/// store's lock if only one process can open the store, and otherwise by the claims of each volume.
fn fencing(objects: &ObjectsTable, cache: &ObjectCache) -> Fencing {
    let is_own = matches!(objects.backend, Some(BackendTable::Memory(_) | BackendTable::File(_)));
    // A cache that is the writer does not accept the claims of others.
    if is_own || !cache.capabilities().fencing { Fencing::Below } else { Fencing::Stamps }
}

/// Returns as much of a host's name as fits into the name of an owner.
fn short(mut name: String) -> String {
    while name.len() > OWNER_BYTES_MAX {
        name.pop();
    }
    if name.is_empty() { "cached".into() } else { name }
}

impl Listener {
    async fn open(
        table: &NbdTable,
        tls: Option<Arc<ServerTls>>,
        served: &Served,
    ) -> Result<Listener, ObjectsError> {
        let mut config = table.server(tls.clone());
        let threads = ListenerThreads::start("cached-nbd", table.threads)?;
        config.workers = threads.runtimes.clone();
        let server = Server::new(Arc::new(served.clone()), config)
            .map_err(|error| ObjectsError::from(NbdTable::error(&error)))?;
        let mut addresses = Vec::new();
        for address in table.addresses()? {
            let bound = server.listen(&address).await;
            let bound = bound.map_err(|error| ObjectsError::Volumes(error.to_string()))?;
            table.restrict(&address).map_err(ObjectsError::Volumes)?;
            addresses.push(bound.to_string());
        }
        Ok(Listener { server: Arc::new(server), addresses, tls, _threads: threads })
    }
}

impl VolumeService {
    /// Serves clients from now on, including those that already wait. Returns the task that renews
    /// certificates, if there are any. Must be called in the runtime of the cache.
    pub(super) fn serve(&self) -> Option<AbortHandle> {
        self.is_serving.send_replace(true);
        let tls = self.listener.as_ref()?.tls.clone()?;
        Some(tokio::spawn(cached_tls::renew(tls, "nbd.tls")).abort_handle())
    }

    /// Returns the state with which another service over the same cache can continue.
    pub(super) fn kept(&self) -> Kept {
        let Managed { volumes, served, .. } = &*self.managed;
        let counts = Arc::clone(&served.counts);
        Kept { volumes: Arc::clone(volumes), exports: served.volumes.clone(), counts }
    }

    /// Returns the addresses of the listener.
    pub(super) fn addresses(&self) -> &[String] {
        self.listener.as_ref().map_or(&[], |listener| &listener.addresses)
    }

    /// Shows the volumes on the admin listener until the result is dropped, and adds the routes
    /// that manage volumes.
    pub(super) fn show(&self, admin: &AdminServer) -> Shown {
        routes::add(admin.routes(), &self.managed);
        let server = self.listener.as_ref().map(|listener| Arc::clone(&listener.server));
        let addresses = self.addresses().to_vec();
        Shown::new(admin, &Arc::new(VolumesSource { managed: Arc::clone(&self.managed), server, addresses }))
    }

    /// Ends the service: stops accepting connections, and answers the requests received, for at
    /// most `drain_timeout`; then releases every volume with all data stored, retrying for at most
    /// `flush_max`.
    ///
    /// # Errors
    /// The volumes that could not be released, as a part of a line: data that their clients have
    /// written and not flushed may be lost.
    pub(super) async fn end(self, drain_timeout: Duration, flush_max: Duration) -> Result<(), String> {
        let VolumeService { managed, listener, is_serving } = self;
        // Clients that are still waiting are refused.
        drop(is_serving);
        if let Some(listener) = &listener
            && !listener.server.shutdown(drain_timeout).await
        {
            tracing::warn!("closing connections of NBD clients that did not read their replies");
        }
        let aborted = managed.jobs.close(drain_timeout).await;
        if aborted > 0 {
            tracing::warn!(
                jobs = aborted,
                "changes of volumes were aborted; `POST /volumes/check` finds their leftovers"
            );
        }
        let released = release(&managed.served.volumes, flush_max).await;
        // The threads of the listener no longer have connections.
        drop(listener);
        released
    }
}

/// Releases all volumes, retrying for at most `flush_max`.
async fn release(exports: &VolumeExports, flush_max: Duration) -> Result<(), String> {
    let deadline = Instant::now() + flush_max;
    let mut is_logged = false;
    loop {
        let closing =
            tokio::time::timeout(deadline.saturating_duration_since(Instant::now()), exports.close());
        let Ok(failed) = closing.await else {
            return Err("the volumes could not be released in time".into());
        };
        let Some((name, error)) = failed.first() else { return Ok(()) };
        let line = format!("{} volumes could not be released; the first is {name:?}: {error}", failed.len());
        let can_change = failed.iter().any(|(_, error)| matches!(error, volumes::Error::Io(_)));
        if !can_change || Instant::now() + RETRY_DELAY >= deadline {
            return Err(line);
        }
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(cause = line, "volumes cannot be released yet");
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// The maximum number of volumes that the status document shows.
const SHOWN_MAX: usize = 50;

const REQUESTS: LabelledMetric<1> = LabelledMetric::new(
    "volume_requests_total",
    ["command"],
    "Requests of NBD clients for a volume: read, write, flush, trim, write_zeroes, cache, block_status.",
);

/// The volumes and their listener, as the admin listener shows them.
struct VolumesSource {
    managed: Arc<Managed>,
    server: Option<Arc<Server>>,
    addresses: Vec<String>,
}

impl Collect for VolumesSource {
    fn collect(&self, into: &mut Families) {
        self.server.iter().for_each(|server| server.collect(into));
        let sums = self.managed.served.counts.sums();
        let connected = sums.iter().filter(|(_, sums)| sums.connections > 0).count();
        into.gauge("volumes_connected", "Volumes that NBD clients have selected.", connected as u64);
        let help = "Requests of the admin listener for volumes that are under way.";
        into.gauge("volumes_jobs", help, self.managed.jobs.running() as u64);
        for (name, sums) in sums {
            let mut own = sums.families();
            for (command, count) in COMMANDS.into_iter().zip(sums.requests) {
                own.measure(REQUESTS.of([command]), "", &count);
            }
            into.append_labelled(&[("volume", name).into()], own);
        }
    }
}

impl cached_admin::status::Source for VolumesSource {
    fn fill(&self, document: &mut Document) {
        if let Some(server) = &self.server {
            document.listeners.push(ListenerPart {
                listener: self.addresses.join(", "),
                protocol: "nbd",
                connections: server.metric("nbd_connections_open"),
                accepted: server.metric("nbd_connections_total"),
                refused: server.metric("nbd_connections_refused_total"),
            });
        }
        let mut sums = self.managed.served.counts.sums();
        sums.sort_by_key(|(_, sums)| Reverse((sums.connections, sums.written_bytes + sums.read_bytes)));
        let part = |(name, sums): &(String, Sums)| VolumePart {
            volume: name.clone(),
            connections: sums.connections,
            reads: sums.of(Command::Read),
            writes: sums.of(Command::Write),
            flushes: sums.of(Command::Flush),
            read_bytes: sums.read_bytes,
            written_bytes: sums.written_bytes,
        };
        document.volumes = Some(VolumesPart {
            connected: sums.iter().filter(|(_, sums)| sums.connections > 0).count() as u64,
            jobs: self.managed.jobs.running() as u64,
            volumes: sums.iter().take(SHOWN_MAX).map(part).collect(),
            volumes_other: sums.len().saturating_sub(SHOWN_MAX) as u64,
        });
    }
}
