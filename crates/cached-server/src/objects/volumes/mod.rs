//! Volumes in the object cache, served over NBD and managed through the admin listener.
//!
//! ```text
//! NBD clients ──► nbd::Server (threads of its own) ──► Served ──► VolumeExports ──► Volumes ──► ObjectCache
//! admin listener ──► routes ──► Jobs (control thread) ─────────────────────────────────┘
//! ```
//!
//! It is made with its cache and ends before it: no connection is accepted any more, what has been received is answered,
//! jobs end, and every volume is given up with everything stored. The addresses are bound anew with each cache: clients
//! that connect between two of them are refused, and connect again, as they do when a connection ends.
//!
//! | module | content |
//! |---|---|
//! | `exports` | what NBD clients see |
//! | `counts` | what is counted of each volume |
//! | `routes`, `requests`, `describe` | the routes of the admin listener; what they do; what they show |
//! | `jobs`, `failure` | what is under way; errors |
//! | `source` | metrics, and the part of `/status.json` |

mod counts;
mod describe;
mod exports;
mod failure;
mod jobs;
mod receive;
mod requests;
mod routes;
mod source;

use super::{ObjectsError, spawn};
use crate::config::{BackendTable, NbdTable, ObjectsTable, VolumesTable};
use blocker::{Blocker, WriteMode};
use cached_admin::AdminServer;
use cached_admin::sources::Shown;
use cached_core::object::ObjectCache;
use cached_tls::ServerTls;
use counts::Counts;
use exports::Served;
use jobs::Jobs;
use nbd::Server;
use source::VolumesSource;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use volumes::exports::VolumeExports;
use volumes::{Fencing, Options, Volumes};

/// How often the files of the certificates are looked at.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(60);
/// Between two attempts to give volumes up.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// The longest name of an owner, in bytes.
const OWNER_BYTES_MAX: usize = 200;

/// What volumes are opened with.
#[derive(Clone, Debug)]
pub struct VolumesOpening {
    /// Where they lie.
    pub volumes: VolumesTable,
    /// What serves them, if anything does.
    pub nbd: Option<NbdTable>,
    /// The certificates of what serves them.
    pub nbd_tls: Option<Arc<ServerTls>>,
}

/// What the routes use. They keep none of it: it goes with its cache.
pub(super) struct Managed {
    volumes: Arc<Volumes>,
    served: Served,
    has_listener: bool,
    jobs: Jobs,
}

/// What outlives a service over the same cache: volumes that it could not give up have what was not flushed.
pub(super) struct Kept {
    volumes: Arc<Volumes>,
    exports: VolumeExports,
    counts: Arc<Counts>,
}

/// The volumes in a cache, and what serves them.
pub(super) struct VolumeService {
    managed: Arc<Managed>,
    listener: Option<Listener>,
    is_serving: watch::Sender<bool>,
}

struct Listener {
    server: Arc<Server>,
    addresses: Vec<String>,
    memory_bytes_max: u64,
    tls: Option<Arc<ServerTls>>,
    /// The threads end when these are dropped.
    _threads: Vec<oneshot::Sender<()>>,
}

impl VolumesOpening {
    /// Opens the volumes of a cache, and the addresses of what serves them. Clients wait until [`VolumeService::serve`].
    /// `control` is the runtime of the cache, which is entered.
    pub(super) async fn open(
        &self,
        objects: &ObjectsTable,
        cache: &ObjectCache,
        control: &Handle,
        kept: Option<Kept>,
    ) -> Result<VolumeService, ObjectsError> {
        let Kept { volumes, exports, counts } = match kept {
            Some(kept) => {
                kept.exports.reopen();
                kept
            }
            None => self.volumes(objects, cache)?,
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

    fn volumes(&self, objects: &ObjectsTable, cache: &ObjectCache) -> Result<Kept, ObjectsError> {
        let fua = self.volumes.fua(objects).into();
        let owner = match self.volumes.owner.as_str() {
            "" => short(synapse::host_name()),
            owner => owner.to_owned(),
        };
        let options = Options::new(&self.volumes.prefix).owner(&owner).flush_durability(fua);
        let options = options.fencing(fencing(objects, cache));
        // Clients connect again after a kill, and do not know that it was one.
        let records_at_once = self.volumes.record_at_once(objects);
        let options = options.records_at_once(records_at_once);
        // Where writes go through, none is answered from memory.
        let is_kept = records_at_once || objects.write == WriteMode::Back;
        let options = if is_kept { options } else { options.overlay_bytes_max(0) };
        let volumes = Volumes::new(Arc::new(cache.clone()), options);
        let volumes = Arc::new(volumes.map_err(|error| ObjectsError::Volumes(error.to_string()))?);
        let exports = VolumeExports::new(Arc::clone(&volumes)).fua_durability(fua);
        let exports = exports.receive_buffers(receive::buffers_of(cache));
        Ok(Kept { volumes, exports, counts: Arc::default() })
    }
}

/// Returns how one writer at a time is enforced: by the cache where it is the writer, by the store's lock where one process
/// opens it, and elsewhere by claims of each volume.
fn fencing(objects: &ObjectsTable, cache: &ObjectCache) -> Fencing {
    let is_own = matches!(objects.backend, Some(BackendTable::Memory(_) | BackendTable::File(_)));
    // A cache that is the writer takes no claims of others.
    if is_own || !cache.capabilities().fencing { Fencing::Below } else { Fencing::Stamps }
}

/// Returns as much of a host's name as an owner's can have.
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
        let mut threads = Vec::new();
        for index in 0..table.threads {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            config.workers.push(runtime.handle().clone());
            let (keep, end) = oneshot::channel::<()>();
            // Ends with an error, when the other half is dropped.
            spawn(&format!("cached-nbd-{index}"), move || drop(runtime.block_on(end)))?;
            threads.push(keep);
        }
        let memory_bytes_max = config.memory_bytes_max();
        let server = Server::new(Arc::new(served.clone()), config)
            .map_err(|error| ObjectsError::from(NbdTable::error(&error)))?;
        let mut addresses = Vec::new();
        for address in table.addresses()? {
            let bound = server.listen(&address).await;
            let bound = bound.map_err(|error| ObjectsError::Volumes(error.to_string()))?;
            table.restrict(&address).map_err(ObjectsError::Volumes)?;
            addresses.push(bound.to_string());
        }
        Ok(Listener { server: Arc::new(server), addresses, memory_bytes_max, tls, _threads: threads })
    }
}

impl VolumeService {
    /// Serves clients from now on, those that wait among them. Returns the task that renews certificates, if there are
    /// any. In the runtime of the cache.
    pub(super) fn serve(&self) -> Option<AbortHandle> {
        self.is_serving.send_replace(true);
        let tls = self.listener.as_ref()?.tls.clone()?;
        Some(tokio::spawn(renew(tls)).abort_handle())
    }

    /// Returns what another service over the same cache goes on with.
    pub(super) fn kept(&self) -> Kept {
        let Managed { volumes, served, .. } = &*self.managed;
        let counts = Arc::clone(&served.counts);
        Kept { volumes: Arc::clone(volumes), exports: served.volumes.clone(), counts }
    }

    /// Returns the addresses of the listener.
    pub(super) fn addresses(&self) -> &[String] {
        self.listener.as_ref().map_or(&[], |listener| &listener.addresses)
    }

    /// Returns the most memory that the listener takes, in bytes.
    pub(super) fn memory_bytes_max(&self) -> u64 {
        self.listener.as_ref().map_or(0, |listener| listener.memory_bytes_max)
    }

    /// Shows the volumes on the admin listener until the result is dropped, and adds the routes that manage them.
    pub(super) fn show(&self, admin: &AdminServer) -> Shown {
        routes::add(admin.routes(), &self.managed);
        let server = self.listener.as_ref().map(|listener| Arc::clone(&listener.server));
        let addresses = self.addresses().to_vec();
        Shown::new(admin, &Arc::new(VolumesSource { managed: Arc::clone(&self.managed), server, addresses }))
    }

    /// Ends it: no connection is accepted any more, and what has been received is answered, for at most `drain_timeout`;
    /// then every volume is given up with everything stored, which is tried for at most `flush_max`.
    ///
    /// # Errors
    /// The volumes that could not be given up, as a part of a line: what their clients have written and not flushed may be
    /// lost.
    pub(super) async fn end(self, drain_timeout: Duration, flush_max: Duration) -> Result<(), String> {
        let VolumeService { managed, listener, is_serving } = self;
        // Clients that still wait are refused.
        drop(is_serving);
        if let Some(listener) = &listener
            && !listener.server.shutdown(drain_timeout).await
        {
            tracing::warn!("connections of NBD clients that did not take their replies are closed");
        }
        let aborted = managed.jobs.close(drain_timeout).await;
        if aborted > 0 {
            tracing::warn!(
                jobs = aborted,
                "changes of volumes were cut short: `POST /volumes/check` finds what they left"
            );
        }
        let given_up = give_up(&managed.served.volumes, flush_max).await;
        // Its threads have connections no more.
        drop(listener);
        given_up
    }
}

/// Gives all volumes up, and tries again for at most `flush_max`.
async fn give_up(exports: &VolumeExports, flush_max: Duration) -> Result<(), String> {
    let deadline = Instant::now() + flush_max;
    let mut is_logged = false;
    loop {
        let closing =
            tokio::time::timeout(deadline.saturating_duration_since(Instant::now()), exports.close());
        let Ok(failed) = closing.await else {
            return Err("the volumes could not be given up in time".into());
        };
        let Some((name, error)) = failed.first() else { return Ok(()) };
        let line = format!("{} volumes could not be given up, first {name:?}: {error}", failed.len());
        let can_change = failed.iter().any(|(_, error)| matches!(error, volumes::Error::Io(_)));
        if !can_change || Instant::now() + RETRY_DELAY >= deadline {
            return Err(line);
        }
        if !std::mem::replace(&mut is_logged, true) {
            tracing::warn!(cause = line, "volumes cannot be given up yet");
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Replaces the certificates whenever their files change, until it is dropped.
async fn renew(tls: Arc<ServerTls>) {
    let mut times = tokio::time::interval(RENEWAL_INTERVAL);
    // At once: they have just been read.
    times.tick().await;
    loop {
        times.tick().await;
        let tls = Arc::clone(&tls);
        // Reading files may block.
        match tokio::task::spawn_blocking(move || tls.reload_if_changed()).await {
            Ok(Ok(true)) => tracing::info!("the files of nbd.tls have changed: they are in use"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                tracing::error!(cause = %error, "nbd.tls cannot be replaced: the old certificates stay in use");
            }
            Err(_) => tracing::error!("reading the certificates of nbd.tls has panicked"),
        }
    }
}
