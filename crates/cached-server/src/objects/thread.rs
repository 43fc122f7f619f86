//! The thread of the object cache: serves, lets the store go for another process, opens it again if that fails, and ends.

use super::ObjectsError;
use super::control::{ObjectsControl, Released, Wanted, ended, other_than};
use super::live::ReloadObjects;
use super::open::{OpenObjects, Parts};
use super::shutdown::{self, STEP_TIMEOUT, ShutdownError};
use super::statistics::ObjectStatistics;
use blocker::executor::block_on;
use cached_admin::AdminServer;
use cached_admin::sources::{ObjectsSource, Shown, StoreSource, SynapseSource};
use cached_process::reload::LiveSecs;
use std::sync::Weak;
use std::thread;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The time between two attempts to open the store again.
const REOPEN_DELAY: Duration = Duration::from_secs(1);

/// The time between two log lines about that.
const LOG_INTERVAL: Duration = Duration::from_secs(30);

/// What the thread works with, whichever cache is open.
pub(super) struct ObjectThread {
    pub(super) control: ObjectsControl,
    pub(super) reload: ReloadObjects,
    pub(super) statistics: ObjectStatistics,
    pub(super) admin: Option<Weak<AdminServer>>,
    pub(super) flush_max: LiveSecs,
    pub(super) drain_timeout: LiveSecs,
}

/// Why a cache is not open any more.
enum Closed {
    /// The end was requested.
    End(Result<(), ShutdownError>),
    /// Everything is stored, and another process can open the store.
    Released,
}

impl ObjectThread {
    /// Serves until the end is requested, or another process has the store.
    ///
    /// # Errors
    /// What was acknowledged and is not stored.
    pub(super) fn run(self, mut open: OpenObjects, mut shown: Vec<Shown>) -> Result<(), ShutdownError> {
        let mut wanted = self.control.wanted();
        // Nothing runs before: another process may go on instead of this one.
        if block_on(other_than(Wanted::Hold, &mut wanted)) == Wanted::Serve {
            self.control.listening().own_files();
        }
        loop {
            if let Closed::End(result) = self.serve(open, shown, &mut wanted) {
                return result;
            }
            tracing::info!("the object cache has stored everything, and has let the store go");
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

    /// Opens store and journal until that succeeds; `None` if the end is requested first.
    fn open_again(&self, wanted: &watch::Receiver<Wanted>) -> Option<OpenObjects> {
        let mut logged: Option<Instant> = None;
        loop {
            let opened = self.reload.opening().open(ended(wanted.clone())).and_then(|open| {
                self.listen(&open)?;
                Ok(open)
            });
            let error = match opened {
                Ok(open) => return Some(open),
                Err(ObjectsError::Ended) => return None,
                Err(error) => error,
            };
            if logged.is_none_or(|logged| logged.elapsed() >= LOG_INTERVAL) {
                tracing::error!(cause = %error, "the store cannot be opened again yet; object clients wait");
                logged = Some(Instant::now());
            }
            thread::sleep(REOPEN_DELAY);
            if wanted.borrow().is_end() {
                return None;
            }
        }
    }

    /// Has the listener accept once the cache's runtime runs.
    pub(super) fn listen(&self, open: &OpenObjects) -> Result<(), ObjectsError> {
        let _inside = open.control.enter();
        open.parts.listener.as_ref().map_or(Ok(()), |listener| listener.listen(self.control.listening()))
    }

    /// Shows what is open wherever it can be seen, on the admin listener until the result is dropped.
    pub(super) fn show(&self, parts: &Parts) -> Vec<Shown> {
        let Parts { cache, store, listener, volumes, name, measurements, .. } = parts;
        self.statistics.set(cache, listener.as_ref());
        let live = self.reload.opening().live(cache, store, listener.as_ref(), &self.flush_max);
        self.reload.set(Some(live));
        let Some(admin) = self.admin.as_ref().and_then(Weak::upgrade) else { return Vec::new() };
        let mut shown = vec![ObjectsSource::show(&admin, cache)];
        if let Some(measurements) = measurements {
            shown.push(StoreSource::show(&admin, name.clone(), measurements, store.metrics()));
        }
        if let Some(listener) = listener {
            let addresses = self.control.listening().addresses();
            shown.push(SynapseSource::show(&admin, listener.server(), addresses));
        }
        shown.extend(volumes.as_ref().map(|volumes| volumes.show(&admin)));
        shown
    }

    /// Serves until the end is requested, or the store is to be let go and that succeeds.
    fn serve(
        &self,
        open: OpenObjects,
        mut shown: Vec<Shown>,
        wanted: &mut watch::Receiver<Wanted>,
    ) -> Closed {
        let OpenObjects { mut parts, background, control } = open;
        let closed = control.block_on(async {
            let tasks = parts.run(background);
            let closed = self.until_closed(&mut parts, &mut shown, wanted).await;
            tasks.iter().for_each(AbortHandle::abort);
            closed
        });
        let Parts { cache, store, listener, volumes, .. } = parts;
        let left = cache.downgrade();
        // What is shown has handles of the cache, and so have the tasks that were stopped, until their runtime goes.
        drop((cache, listener, volumes, shown));
        control.shutdown_timeout(STEP_TIMEOUT);
        if let Closed::End(result) = closed {
            return Closed::End(shutdown::close(result, store));
        }
        let metrics = store.metrics();
        if let Err(error) = store.close(STEP_TIMEOUT) {
            tracing::warn!(cause = %error, "the store was not closed in order");
        }
        shutdown::wait_until_unused(&left, &metrics);
        Closed::Released
    }

    async fn until_closed(
        &self,
        parts: &mut Parts,
        shown: &mut Vec<Shown>,
        wanted: &mut watch::Receiver<Wanted>,
    ) -> Closed {
        let mut now = *wanted.borrow_and_update();
        loop {
            match now {
                Wanted::Hold | Wanted::Serve => {}
                Wanted::End | Wanted::HandedOver => {
                    self.control.listening().close();
                    let (listener, volumes) = (parts.listener.take(), parts.volumes.take());
                    let (drain, flush) = (&self.drain_timeout, &self.flush_max);
                    let (cache, store) = (&parts.cache, &parts.store);
                    let ended = shutdown::shut_down(cache, store, listener, volumes, drain, flush).await;
                    return Closed::End(ended);
                }
                Wanted::Release => match self.store_everything(parts, shown, wanted).await {
                    Ok(()) => {
                        self.reload.set(None);
                        return Closed::Released;
                    }
                    Err(why) => self.control.set_released(Released::Refused(why)),
                },
            }
            now = other_than(now, wanted).await;
        }
    }
}
