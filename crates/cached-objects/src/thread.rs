//! The control thread of the object cache. It serves; releases the store for another process, and
//! reopens it if that fails; and ends with everything stored, or with an error that states what is
//! lost. [`ObjectsControl`] sends requests to the thread, and may be used by any thread.

pub use cached_config::ShutdownError;

use super::election::{Candidacy, Reported, Standing, Waited};
use super::http::HttpService;
use super::open::{ObjectListener, ObjectSockets, OpenObjects, Parts, ReloadObjects};
use super::volumes::VolumeService;
use super::wanted::{Wanted, ended, other_than};
use super::{ObjectsError, STEP_TIMEOUT, is_done_in_time};
use blocker::Epoch;
use blocker::executor::block_on;
use blocker::metrics::Collect;
use cached_admin::AdminServer;
use cached_admin::insight::ObjectStatistics;
use cached_admin::sources::{ObjectHttpSource, ObjectsSource, Shown, StoreSource, SynapseSource};
use cached_config::{Store, Waiting, close_stored_journal};
use cached_core::object::{ObjectCache, WeakObjectCache};
use cached_process::reload::LiveSecs;
use cached_registry::election::Release;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use synapse::codec::InstanceId;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The delay between two attempts to reopen the store.
pub(super) const REOPEN_DELAY: Duration = Duration::from_secs(1);

/// The interval between two log lines about failed attempts.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// The state of the thread, independent of the current cache.
#[derive(Clone)]
pub(super) struct ObjectThread {
    pub(super) control: ObjectsControl,
    pub(super) reload: ReloadObjects,
    pub(super) statistics: ObjectStatistics,
    pub(super) admin: Option<Weak<AdminServer>>,
    pub(super) flush_max: LiveSecs,
    pub(super) drain_timeout: LiveSecs,
    /// The election of the writer, if it is elected.
    pub(super) election: Option<Election>,
}

/// The election in which this process takes part, independent of the current candidacy.
#[derive(Clone)]
pub(super) struct Election {
    pub(super) standing: Arc<Standing>,
    pub(super) reported: Arc<Reported>,
}

/// The reason why a cache is no longer open.
pub(super) enum Closed {
    /// The end was requested.
    End(Result<(), ShutdownError>),
    /// Everything is stored, and another process can open the store.
    Released,
    /// This host does not lead, and may lead again.
    Left,
}

impl ObjectThread {
    /// Serves until the end is requested, or another process has taken over the store.
    ///
    /// # Errors
    /// The acknowledged data that is not stored.
    pub(super) fn run(self, mut open: OpenObjects, mut shown: Vec<Shown>) -> Result<(), ShutdownError> {
        let mut wanted = self.control.wanted();
        // Nothing runs before this, because another process may continue instead of this one.
        if block_on(other_than(Wanted::Hold, &mut wanted)) == Wanted::Serve {
            self.control.listening().own_files();
        }
        loop {
            if let Closed::End(result) = self.serve(open, shown, &mut wanted, None) {
                return result;
            }
            tracing::info!("the object cache has stored everything, and has released the store");
            self.control.set_released(Released::Done);
            let next = block_on(other_than(Wanted::Release, &mut wanted));
            let again = (next == Wanted::Serve).then(|| self.open_again(&wanted)).flatten();
            let Some(again) = again else {
                self.control.listening().close();
                return Ok(());
            };
            shown = self.show(&again.parts);
            open = again;
            self.control.set_released(Released::NotYet);
            tracing::info!("the object cache serves again");
        }
    }

    /// Retries to open the store and the journal until that succeeds; `None` if the end is
    /// requested first.
    fn open_again(&self, wanted: &watch::Receiver<Wanted>) -> Option<OpenObjects> {
        retry(wanted, "the store cannot be reopened yet; object clients wait", || {
            let open = self.reload.opening().open(pin!(ended(wanted.clone())))?;
            self.listen(&open)?;
            Ok(open)
        })
    }

    /// Makes the listeners accept connections once the cache's runtime runs.
    pub(super) fn listen(&self, open: &OpenObjects) -> Result<(), ObjectsError> {
        let _inside = open.control.enter();
        open.parts.http.as_ref().map_or(Ok(()), HttpService::listen)?;
        open.parts.listener.as_ref().map_or(Ok(()), |listener| listener.listen(self.control.listening()))
    }

    /// Shows the open cache in statistics and, until the result is dropped, on the admin listener.
    pub(super) fn show(&self, parts: &Parts) -> Vec<Shown> {
        let Parts { cache, store, listener, http, volumes, name, measurements, .. } = parts;
        parts.show_in(&self.statistics);
        self.reload.set(Some(parts.live(&self.flush_max)));
        let Some(admin) = self.admin.as_ref().and_then(Weak::upgrade) else { return Vec::new() };
        let mut shown = Vec::new();
        shown.extend(cache.as_ref().map(|cache| ObjectsSource::show(&admin, cache)));
        if let Some(measurements) = measurements {
            shown.push(StoreSource::show(&admin, name.clone(), measurements, store.metrics()));
        }
        if let Some(listener) = listener {
            let addresses = self.control.listening().addresses();
            shown.push(SynapseSource::show(&admin, &listener.server, addresses));
        }
        shown.extend(http.as_ref().map(|http| ObjectHttpSource::show(&admin, &http.server)));
        shown.extend(volumes.as_ref().map(|volumes| volumes.show(&admin)));
        shown
    }

    /// Serves until the end is requested, the store is released, or a leadership ends, which is
    /// identified by its epoch.
    pub(super) fn serve(
        &self,
        open: OpenObjects,
        mut shown: Vec<Shown>,
        wanted: &mut watch::Receiver<Wanted>,
        leads: Option<(&mut Candidacy, Epoch)>,
    ) -> Closed {
        let OpenObjects { mut parts, background, control } = open;
        let closed = control.block_on(async {
            let tasks = parts.run(background);
            let closed = self.until_closed(&mut parts, &mut shown, wanted, leads).await;
            tasks.iter().for_each(AbortHandle::abort);
            closed
        });
        let Parts { cache, store, listener, http, volumes, .. } = parts;
        let left = cache.as_ref().map(ObjectCache::downgrade);
        // The shown sources hold handles of the cache, and so do the aborted tasks until their
        // runtime ends.
        drop((cache, listener, http, volumes, shown));
        control.shutdown_timeout(STEP_TIMEOUT);
        if let Closed::End(result) = closed {
            return Closed::End(close_store(result, store));
        }
        let metrics = store.metrics();
        if let Err(error) = store.close(STEP_TIMEOUT) {
            tracing::warn!(cause = %error, "the store was not closed cleanly");
        }
        wait_until_unused(left.as_ref(), &metrics);
        closed
    }

    async fn until_closed(
        &self,
        parts: &mut Parts,
        shown: &mut Vec<Shown>,
        wanted: &mut watch::Receiver<Wanted>,
        mut leads: Option<(&mut Candidacy, Epoch)>,
    ) -> Closed {
        let mut now = *wanted.borrow_and_update();
        loop {
            let candidacy = leads.as_ref().map(|(candidacy, _)| &**candidacy);
            match now {
                Wanted::Hold | Wanted::Serve => {}
                Wanted::End | Wanted::HandedOver => {
                    return Closed::End(self.shut_down(parts, candidacy).await);
                }
                Wanted::Release => {
                    let successor = candidacy.map(|candidacy| (candidacy, None));
                    match self.store_everything(parts, shown, wanted, successor).await {
                        Ok(()) => {
                            self.reload.set(None);
                            return Closed::Released;
                        }
                        Err(why) => self.control.set_released(Released::Refused(why)),
                    }
                }
            }
            now = loop {
                // A leader has a cache.
                let (Some((candidacy, epoch)), Some(cache)) = (&mut leads, &parts.cache) else {
                    break other_than(now, wanted).await;
                };
                match candidacy.wait(*epoch, cache, now, wanted).await {
                    Waited::Wanted(next) => break next,
                    Waited::Lost => {
                        self.abandon(parts, candidacy).await;
                        return Closed::Left;
                    }
                    Waited::StepDown(request) => {
                        let successor = Some((&**candidacy, Some(request.to.clone())));
                        let outcome = self.store_everything(parts, shown, wanted, successor).await;
                        let has_left = outcome.is_ok();
                        request.answer(outcome);
                        if has_left {
                            // Clients go to the other host at once.
                            self.control.listening().close();
                            return Closed::Left;
                        }
                    }
                }
            };
        }
    }

    /// Ends the listeners, then stores dirty data for at most `flush_max`.
    async fn shut_down(&self, parts: &mut Parts, candidacy: Option<&Candidacy>) -> Result<(), ShutdownError> {
        self.control.listening().close();
        let instance = parts.listener.as_ref().map(|listener| listener.server.instance());
        let released = self.end_listeners(parts, self.drain_timeout.get(), self.flush_max.get()).await;
        parts.store_all(self.flush_max.get()).await?;
        if let Some(instance) = instance {
            parts.store.record_end(instance, parts.cache.as_ref()).await;
        }
        if let Some(candidacy) = candidacy
            && let Err(cause) = candidacy.release(None).await
        {
            tracing::warn!(cause, "the lease of this host was not released, and lapses");
        }
        released.map_err(|why| ShutdownError { dirty_bytes: 0, why })
    }

    /// Ends the listeners concurrently, whose clients have `drain_timeout` to read their replies,
    /// and releases the volumes, for at most `flush_max`.
    ///
    /// # Errors
    /// The volumes that could not be released, as a part of a line.
    pub(super) async fn end_listeners(
        &self,
        parts: &mut Parts,
        drain_timeout: Duration,
        flush_max: Duration,
    ) -> Result<(), String> {
        let (listener, http, volumes) = (parts.listener.take(), parts.http.take(), parts.volumes.take());
        let objects = async {
            if let Some(listener) = listener {
                listener.end(drain_timeout).await;
            }
        };
        let http = async {
            if let Some(http) = http {
                http.end(drain_timeout).await;
            }
        };
        let volumes = async {
            match volumes {
                Some(volumes) => volumes.end(drain_timeout, flush_max).await,
                None => Ok(()),
            }
        };
        tokio::join!(objects, http, volumes).2
    }
}

/// Repeats `attempt` until it succeeds; `None` if the end is requested first. `message` is the log
/// line about failed attempts.
pub(super) fn retry<T>(
    wanted: &watch::Receiver<Wanted>,
    message: &str,
    attempt: impl Fn() -> Result<T, ObjectsError>,
) -> Option<T> {
    let mut logged: Option<Instant> = None;
    loop {
        let error = match attempt() {
            Ok(opened) => return Some(opened),
            Err(ObjectsError::Ended) => return None,
            Err(error) => error,
        };
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
            tracing::error!(cause = %error, "{message}");
            logged = Some(Instant::now());
        }
        thread::sleep(REOPEN_DELAY);
        if wanted.borrow().is_end() {
            return None;
        }
    }
}

/// Closes the store, whatever the outcome of the shutdown.
fn close_store(result: Result<(), ShutdownError>, store: Store) -> Result<(), ShutdownError> {
    let closed = store.close(STEP_TIMEOUT);
    result?;
    closed.map_err(|error| ShutdownError { dirty_bytes: 0, why: format!("closing the store: {error}") })
}

/// Waits until a dropped cache and its store are no longer in use: threads that are about to end
/// and reports in progress may still use them for a moment.
fn wait_until_unused(cache: Option<&WeakObjectCache>, store: &Weak<dyn Collect>) {
    let is_gone = || cache.is_none_or(WeakObjectCache::is_gone) && store.strong_count() == 0;
    if !is_done_in_time(is_gone) {
        tracing::warn!("the store is still in use; another process may be unable to open it");
    }
}

/// Reads the store's record of servers again, in which an instance of this process has ended with
/// everything stored. Clients that do not learn of that count what it had not stored when they last
/// flushed as lost.
async fn read_record_again(parts: &mut Parts) {
    let mut waiting = Waiting::new(|_| ());
    match tokio::time::timeout(STEP_TIMEOUT, parts.store.node_record(&mut waiting)).await {
        Ok(Ok(record)) => parts.record = Some(record),
        Ok(Err(error)) => {
            tracing::warn!(cause = %error, "the store's record of servers cannot be read again");
        }
        Err(_) => tracing::warn!("the store's record of servers cannot be read again in time"),
    }
}

// Releasing the store, so that another process can open it, loses no acknowledged data and refuses
// no client:
// 1. Dirty data is stored while clients are served. If the store does not accept it, nothing
//    changes.
// 2. The listeners end: they answer the requests in flight, and volumes are released. The sockets
//    of the synapse listener stay open, and clients that connect wait. The sockets of volumes and of
//    the HTTP listener are closed, and clients retry until they can reconnect.
// 3. Data that has become dirty since is stored. If the store does not accept it, the cache
//    continues unchanged, with new listeners, which clients cannot distinguish from the old ones.
// 4. The store's record states that this instance ended in order, a leader releases the lease, and
//    the journal is closed with nothing to replay.
// 5. Cache and store are dropped, together with claims and locks.
//
// A process that has then opened the store, and fails before it serves, has acknowledged nothing: a
// new cache over the same store and journal has all data.

impl ObjectThread {
    /// Stores everything, ends the listeners and, as a leader, releases the lease, for a `successor`
    /// if one is named. The cache must not be used afterwards.
    ///
    /// # Errors
    /// The reason for the failure, as a part of a line; the cache is served as before.
    async fn store_everything(
        &self,
        parts: &mut Parts,
        shown: &mut Vec<Shown>,
        wanted: &watch::Receiver<Wanted>,
        successor: Option<(&Candidacy, Option<Release>)>,
    ) -> Result<(), String> {
        let unstored = |error: blocker::Error| format!("the store does not accept dirty data: {error}");
        let mut wanted = wanted.clone();
        let now = *wanted.borrow();
        // Before any client is disconnected.
        if let Some((candidacy, Some(to))) = &successor {
            candidacy.check(to).await?;
        }
        tokio::select! {
            flushed = parts.flush_all(self.flush_max.get()) => flushed.map_err(unstored)?,
            _ = other_than(now, &mut wanted) => return Err("this process ends".into()),
        }
        let mut instance = parts.listener.as_ref().map(|listener| listener.server.instance());
        let kept = parts.volumes.as_ref().map(VolumeService::kept);
        let mut stored = match self.end_listeners(parts, self.drain_timeout.get(), self.flush_max.get()).await
        {
            Ok(()) => parts.flush_all(self.flush_max.get()).await.map_err(unstored),
            Err(why) => Err(why),
        };
        if stored.is_ok() {
            // Recorded before the next leader reads the record. If the lease is then not released,
            // this host goes on to lead as another instance.
            if let Some(instance) = instance.take() {
                parts.store.record_end(instance, parts.cache.as_ref()).await;
            }
            if let Some((candidacy, to)) = successor {
                stored = candidacy.release(to).await;
            }
        }
        // Last, because a cache that goes on to serve needs its journal.
        if stored.is_ok()
            && let Some(cache) = &parts.cache
        {
            close_stored_journal(cache).await;
        }
        if let Err(why) = stored {
            shown.clear();
            // A reload may have changed them since the cache was opened.
            parts.secrets = self.reload.opening().secrets;
            if instance.is_none() && parts.record.is_some() {
                read_record_again(parts).await;
            }
            match self.listen_again(parts, instance) {
                Ok(listener) => parts.listener = listener,
                Err(error) => tracing::error!(cause = %error, "object clients are no longer served"),
            }
            match self.http_again(parts).await {
                Ok(http) => parts.http = http,
                Err(error) => tracing::error!(cause = %error, "HTTP clients are no longer served"),
            }
            match self.reload.opening().volumes(parts, &Handle::current(), kept).await {
                Ok(volumes) => parts.volumes = volumes,
                Err(error) => tracing::error!(cause = %error, "volumes are no longer served"),
            }
            // The returned tasks run as long as the runtime does.
            parts.http.iter().for_each(|http| drop(http.renew()));
            parts.volumes.iter().for_each(|volumes| drop(volumes.serve()));
            *shown = self.show(parts);
            return Err(why);
        }
        Ok(())
    }

    /// Returns an HTTP listener that accepts connections.
    async fn http_again(&self, parts: &Parts) -> Result<Option<HttpService>, ObjectsError> {
        let http = self.reload.opening().http(parts).await?;
        http.iter().try_for_each(HttpService::listen)?;
        Ok(http)
    }

    /// Returns a listener that continues the instance of an earlier listener.
    fn listen_again(
        &self,
        parts: &Parts,
        instance: Option<InstanceId>,
    ) -> Result<Option<ObjectListener>, ObjectsError> {
        let listener = self.reload.opening().listener(parts, instance)?;
        listener.iter().try_for_each(|own| own.listen(self.control.listening()))?;
        Ok(listener)
    }
}

/// The outcome of [`Wanted::Release`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Released {
    /// There is no outcome yet, or no release was requested.
    NotYet,
    /// The store is closed.
    Done,
    /// The store cannot be released for this reason, and the cache serves.
    Refused(String),
}

/// Sends requests to the thread of an object cache. All clones reach the same thread.
#[derive(Debug, Clone)]
pub struct ObjectsControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wanted: watch::Sender<Wanted>,
    released: watch::Sender<Released>,
    sockets: ObjectSockets,
    /// The reason why no other process can take over, if there is one.
    obstacle: Option<&'static str>,
    /// Whether the sockets are open only while this host leads.
    is_elected: bool,
}

impl ObjectsControl {
    pub(super) fn new(
        sockets: ObjectSockets,
        obstacle: Option<&'static str>,
        is_elected: bool,
    ) -> ObjectsControl {
        let (wanted, _) = watch::channel(Wanted::Hold);
        let (released, _) = watch::channel(Released::NotYet);
        ObjectsControl { shared: Arc::new(Shared { wanted, released, sockets, obstacle, is_elected }) }
    }

    /// Returns the reason why no other process can take over the store, if there is one.
    pub fn obstacle(&self) -> Option<&'static str> {
        self.shared.obstacle
    }

    /// Requests the end: the cache stops listening, answers the requests it has received, and
    /// stores dirty data. Calls after the first have no effect.
    pub fn end(&self) {
        self.want(Wanted::End);
    }

    pub(super) fn listening(&self) -> &ObjectSockets {
        &self.shared.sockets
    }

    pub(super) fn wanted(&self) -> watch::Receiver<Wanted> {
        self.shared.wanted.subscribe()
    }

    /// Returns whether the store is released, so that another process may open it.
    pub(super) fn is_released(&self) -> bool {
        *self.shared.released.borrow() == Released::Done
    }

    pub(super) fn set_released(&self, released: Released) {
        self.shared.released.send_replace(released);
    }

    fn want(&self, next: Wanted) {
        self.shared.wanted.send_if_modified(|now| {
            // The end is final.
            let is_changed = !now.is_end() && *now != next;
            if is_changed {
                *now = next;
            }
            is_changed
        });
    }
}

/// The steps of a hand-over to another process.
impl ObjectsControl {
    /// Returns copies of the listener's sockets for another process, each with its configured
    /// address.
    ///
    /// # Errors
    /// If the system has no descriptor.
    pub fn sockets(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        // Only the host that leads listens: whichever process that is opens the sockets itself.
        if self.shared.is_elected {
            return Ok(Vec::new());
        }
        self.shared.sockets.copies()
    }

    /// Makes the cache store everything and release the store. Blocks until that is done. Clients
    /// wait until [`serve`](Self::serve) is called.
    ///
    /// # Errors
    /// The reason why the cache continues to serve instead, as a part of a line.
    pub fn release(&self) -> Result<(), String> {
        let Shared { wanted, released, .. } = &*self.shared;
        released.send_replace(Released::NotYet);
        self.want(Wanted::Release);
        let (mut wanted, mut released) = (wanted.subscribe(), released.subscribe());
        let result = block_on(async {
            tokio::select! {
                biased;
                result = released.wait_for(|released| *released != Released::NotYet) => {
                    result.map_or(Released::NotYet, |released| released.clone())
                }
                _ = wanted.wait_for(|wanted| *wanted != Wanted::Release) => Released::NotYet,
            }
        });
        match result {
            Released::Done => Ok(()),
            Released::Refused(why) => Err(why),
            Released::NotYet => Err("this process ends".into()),
        }
    }

    /// Ends the cache, because another process has the store and the sockets.
    pub fn hand_over(&self) {
        self.shared.sockets.forget();
        self.want(Wanted::HandedOver);
    }

    /// Makes the cache serve: at the start, and again after a hand-over that has failed. If the
    /// store was released, the cache reopens it.
    pub fn serve(&self) {
        self.want(Wanted::Serve);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BackendTable, ListenerFiles, ObjectsTable, Secrets, ServiceConfig, SynapseTable};
    use crate::open::Opening;
    use blocker::{BlockerExt, WriteMode, WriteRequest, WriterId};
    use cached_admin::insight::slow::SlowLog;
    use cached_config::{ElectionTable, InsightTable, JournalTable, MemoryTable, Size};
    use cached_core::insight::Sampling;
    use cached_core::object::{JournalState, Leadership, Writer};
    use cached_registry::{RegistryTable, StoreKeys};
    use std::future::pending;
    use std::path::Path;

    fn leader(directory: &Path) -> ObjectsTable {
        let journal = JournalTable {
            directory: directory.to_path_buf(),
            create: true,
            segment_bytes: Size(1 << 20),
            limit_bytes: Size(12 << 20),
            direct: false,
            ..JournalTable::default()
        };
        ObjectsTable {
            memory_bytes_max: Size(4 << 20),
            dirty_bytes_max: Some(Size(1 << 20)),
            object_bytes_max: Size(256 << 10),
            write: WriteMode::Back,
            writer: Writer::Elected,
            journal: Some(journal),
            backend: Some(BackendTable::Memory(MemoryTable::default())),
            election: Some(ElectionTable { address: "127.0.0.1:7000".into(), ..ElectionTable::default() }),
            leadership: Some(Leadership { epoch: Epoch(1), writer: WriterId(1), records: None }),
            ..ObjectsTable::default()
        }
    }

    #[test]
    fn a_leader_that_cannot_step_down_goes_on_as_another_instance_with_its_journal() {
        let directory = tempfile::tempdir().expect("a directory");
        let objects = leader(directory.path());
        let service = ServiceConfig {
            objects: objects.clone(),
            has_cache: true,
            synapse: None,
            registry: Some(RegistryTable::Store(StoreKeys::default())),
            volumes: None,
            nbd: None,
            insight: InsightTable::default(),
        };
        let standing = Standing::of(&service, None).expect("valid tables").expect("an election");
        let candidacy = Candidacy::ended(&standing);
        let opening = Opening {
            objects,
            has_cache: true,
            synapse: Some(SynapseTable { threads: 1, ..SynapseTable::default() }),
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
        let opened = opening.open(pin!(pending::<()>())).expect("a cache");
        let OpenObjects { mut parts, background, control } = opened;
        let thread = ObjectThread {
            control: ObjectsControl::new(ObjectSockets::default(), None, true),
            statistics: ObjectStatistics::new(Arc::clone(&opening.slow)),
            reload: ReloadObjects::new(opening),
            admin: None,
            flush_max: LiveSecs::new(60),
            drain_timeout: LiveSecs::new(0),
            election: None,
        };
        let (wanted, cache) = (thread.control.wanted(), parts.cache.clone().expect("a cache"));
        let instance = |parts: &Parts| parts.listener.as_ref().expect("a listener").server.instance();
        let before = instance(&parts);
        control.block_on(async {
            let tasks = parts.run(background);
            let (mut shown, successor) = (Vec::new(), Some((&candidacy, None)));
            let released = thread.store_everything(&mut parts, &mut shown, &wanted, successor).await;
            assert!(released.is_err(), "its election has ended");
            let write = WriteRequest::new("ns/a".parse().expect("an object"), 0, b"x");
            cache.write(write).await.expect("it is written");
            tasks.iter().for_each(AbortHandle::abort);
        });
        assert_eq!(cache.journal_health().map(|health| health.state), Some(JournalState::Ok));
        // Clients learn from the other instance that the earlier one had stored everything.
        assert_ne!(instance(&parts), before);
        let mut reported = synapse::ServerConfig::default();
        parts.record.as_ref().expect("a record").apply(&mut reported);
        assert!(reported.closed.contains(&before));
        drop(parts);
    }
}
