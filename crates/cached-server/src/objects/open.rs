//! Opens an object cache over its store, with a listener, at the start and once more after a failed upgrade; and changes
//! its settings while it runs, whichever cache is open.

use super::ObjectsError;
use super::listener::ObjectListener;
use super::volumes::{Kept, VolumeService, VolumesOpening};
use crate::config::{BackendTable, ConfigError, ObjectsTable, Secrets, SynapseTable};
use blocker::trace::Tracer;
use blocker::{Blocker, Measurements};
use cached_admin::Health;
use cached_admin::insight::slow::{SlowLog, SlowStore};
use cached_admin::sources::{StoreSource, measured};
use cached_config::{LiveObjects, OpenOptions, Store, Waiting, begin_recovery, log_events, log_recovery};
use cached_core::insight::Sampling;
use cached_core::object::{Background, ObjectCache};
use cached_process::reload::LiveSecs;
use parking_lot::Mutex;
use std::sync::Arc;
use synapse::NodeRecord;
use synapse::codec::InstanceId;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::AbortHandle;

/// The parameters for opening an object cache.
#[derive(Clone)]
pub(super) struct Opening {
    pub(super) objects: ObjectsTable,
    pub(super) synapse: Option<SynapseTable>,
    pub(super) volumes: Option<VolumesOpening>,
    pub(super) secrets: Secrets,
    pub(super) sampling: Sampling,
    pub(super) tracer: Option<Tracer>,
    pub(super) slow: Arc<SlowLog>,
    /// Shows what the start waits for. If present, the store is measured.
    pub(super) health: Option<Health>,
}

/// An object cache that is open. Nothing runs yet.
pub(super) struct OpenObjects {
    pub(super) parts: Parts,
    pub(super) background: Background,
    pub(super) control: Runtime,
}

/// What clients, and those that look, get to see of it.
pub(super) struct Parts {
    pub(super) cache: ObjectCache,
    pub(super) store: Store,
    /// The store's name, for the log.
    pub(super) name: String,
    pub(super) listener: Option<ObjectListener>,
    pub(super) volumes: Option<VolumeService>,
    /// The store's record of servers, if there is a listener.
    pub(super) record: Option<NodeRecord>,
    /// The store's latencies, if it is measured.
    pub(super) measurements: Option<Arc<Measurements>>,
}

impl Opening {
    /// Opens the journal and the store, creates the cache, and begins its recovery. Trouble of the journal's disk and of
    /// the store is waited for, until `end` is ready.
    ///
    /// # Errors
    /// [`ObjectsError`] for the first failure that does not go away by waiting; [`ObjectsError::Ended`].
    pub(super) fn open(&self, end: impl Future<Output = ()>) -> Result<OpenObjects, ObjectsError> {
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
                // An attempt to open the journal or the store may hang: nothing waits for it.
                control.shutdown_background();
                Err(error)
            }
        }
    }

    async fn open_in(&self, control: &Handle) -> Result<(Parts, Background), ObjectsError> {
        let Opening { objects, synapse, secrets, sampling, tracer, slow, health, .. } = self;
        let Some(table) = &objects.backend else {
            return Err(ConfigError { key: "objects.backend".into(), why: "is missing".into() }.into());
        };
        if matches!(table, BackendTable::Memory(_)) {
            tracing::warn!("objects are kept in memory: all of them are lost when this process ends");
        }
        let mut waiting = Waiting::new(|line| health.iter().for_each(|health| health.set_starting(line)));
        // Before the wait for the store: a journal that cannot be used ends the start at once.
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
        // Always there, because the threshold can change.
        let below: Arc<dyn Blocker> = Arc::new(SlowStore::new(store.backend(), slow.clone()));
        let (cache, background) = objects.open_cache(below, journal, *sampling)?;
        begin_recovery(&cache, objects, &mut waiting).await?;
        let record = match synapse {
            Some(_) => Some(store.node_record(&mut waiting).await?),
            None => None,
        };
        let listener = self.listener(record.as_ref(), &cache, None)?;
        let volumes = self.volumes(&cache, control, None).await?;
        let name = table.to_string();
        let parts = Parts { cache, store, name, listener, volumes, record, measurements };
        Ok((parts, background))
    }

    /// Returns the listener, if one is configured, which accepts nothing yet. `continues` is the instance of one that
    /// has ended before over the same cache.
    pub(super) fn listener(
        &self,
        record: Option<&NodeRecord>,
        cache: &ObjectCache,
        continues: Option<InstanceId>,
    ) -> Result<Option<ObjectListener>, ObjectsError> {
        let (Some(table), Some(record)) = (&self.synapse, record) else { return Ok(None) };
        let secrets = self.secrets.listener.clone();
        ObjectListener::new(table, secrets, record, cache, self.tracer.as_ref(), continues).map(Some)
    }

    /// Returns the volumes, if they are configured; their clients wait until they are served. `kept` is what a service
    /// had that has ended over the same cache.
    pub(super) async fn volumes(
        &self,
        cache: &ObjectCache,
        control: &Handle,
        kept: Option<Kept>,
    ) -> Result<Option<VolumeService>, ObjectsError> {
        match &self.volumes {
            Some(volumes) => volumes.open(&self.objects, cache, control, kept).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the means of changing the settings of the cache that was opened with this.
    pub(super) fn live(
        &self,
        cache: &ObjectCache,
        store: &Store,
        listener: Option<&ObjectListener>,
        flush_max: &LiveSecs,
    ) -> LiveObjects {
        let listener = listener.map(|listener| Arc::downgrade(listener.server()));
        let cache = (cache.live_settings(), flush_max.clone());
        LiveObjects::new(Some(cache), listener, store.secret(), self.secrets.clone())
    }
}

impl Parts {
    /// Starts what runs beside the requests of clients, in the runtime that is entered.
    pub(super) fn run(&self, background: Background) -> Vec<AbortHandle> {
        let mut tasks = vec![
            tokio::spawn(background).abort_handle(),
            tokio::spawn(log_events(self.store.backend().subscribe(), self.name.clone())).abort_handle(),
            tokio::spawn(log_recovery(self.cache.clone())).abort_handle(),
        ];
        if let Some(measurements) = &self.measurements {
            let watch = StoreSource::watch(Arc::downgrade(&self.store.backend()), measurements.clone());
            tasks.push(tokio::spawn(watch).abort_handle());
        }
        tasks.extend(self.volumes.as_ref().and_then(VolumeService::serve));
        tasks
    }
}

/// Changes the settings of cache, listener and store while they run. Keeps none of them open. All clones change the
/// same.
#[derive(Clone)]
pub struct ReloadObjects {
    in_force: Arc<Mutex<InForce>>,
}

struct InForce {
    /// The tables in force: the next cache is opened with them.
    opening: Opening,
    /// The open cache; `None` while the store belongs to another process.
    live: Option<LiveObjects>,
}

impl ReloadObjects {
    pub(super) fn new(opening: Opening) -> ReloadObjects {
        ReloadObjects { in_force: Arc::new(Mutex::new(InForce { opening, live: None })) }
    }

    /// Returns the current parameters for opening a cache.
    pub(super) fn opening(&self) -> Opening {
        self.in_force.lock().opening.clone()
    }

    /// Directs changes to this cache from now on.
    pub(super) fn set(&self, live: Option<LiveObjects>) {
        self.in_force.lock().live = live;
    }

    /// Applies the settings of the table `after`, and of the listener's, that can change.
    /// Returns the keys of the secrets that have changed.
    ///
    /// # Errors
    /// The key that cannot work with the others in force; then nothing has changed.
    pub(crate) fn change(
        &self,
        after: Option<&ObjectsTable>,
        listener: Option<&SynapseTable>,
        secrets: Secrets,
    ) -> Result<Vec<String>, ConfigError> {
        let mut in_force = self.in_force.lock();
        let InForce { opening, live } = &mut *in_force;
        let Some(live) = live else {
            let why = "cannot change while another process takes over; reload once it has, or has failed";
            return Err(ConfigError { key: "objects".into(), why: why.into() });
        };
        let changed = live.change(after, listener, secrets.clone(), "objects.backend.secret_file")?;
        if let Some(after) = after {
            opening.objects = after.clone();
        }
        opening.synapse = listener.cloned();
        opening.secrets = secrets;
        Ok(changed)
    }
}

impl std::fmt::Debug for ReloadObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReloadObjects")
    }
}
