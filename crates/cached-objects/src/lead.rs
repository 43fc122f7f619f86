//! The control thread of a process that takes part in an election: standby without a cache, a
//! cache for each leadership, and the end of a leadership.
//!
//! A leadership ends in one of three ways. *In order*, by a request to step down, a live upgrade or
//! the end of the process: everything is stored while clients are served, the listeners end, the
//! rest is stored, and only then is the lease released. *Lapsed*, because the registry could not be
//! asked: the gate refuses everything at once, and what is dirty is stored as long as the store
//! accepts it. *Fenced*, because another host has taken over: changes that are not stored are lost,
//! and reported as lost; the journal, if there is one, keeps those that were logged
//! (`election/settle.rs`).

use super::election::{Candidacy, Next, Tenure, is_in_force};
use super::open::{OpenObjects, Parts};
use super::thread::{Closed, ObjectThread, REOPEN_DELAY, Released, retry};
use super::wanted::{Wanted, ended, other_than};
use super::{ObjectsError, ShutdownError};
use blocker::executor::block_on;
use cached_registry::election::Release;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The time that clients have to read their replies after a leadership has ended by itself: they
/// are to find the next leader.
const LOST_DRAIN: Duration = Duration::from_secs(1);

impl ObjectThread {
    /// Takes part in the election until the end is requested, or another process of this host has
    /// taken over.
    ///
    /// # Errors
    /// The acknowledged data that is not stored.
    pub(super) fn run_elected(self, candidacy: Candidacy) -> Result<(), ShutdownError> {
        let mut wanted = self.control.wanted();
        // Nothing runs before this, because another process may continue instead of this one.
        block_on(other_than(Wanted::Hold, &mut wanted));
        let mut present = Some(candidacy);
        loop {
            let closed = match present.take().or_else(|| self.stand_again(&wanted)) {
                Some(mut candidacy) => {
                    let closed = self.take_part(&mut candidacy, &mut wanted);
                    candidacy.leave();
                    closed
                }
                None if wanted.borrow().is_end() => Closed::End(Ok(())),
                // Nothing is open.
                None => Closed::Released,
            };
            match closed {
                Closed::End(result) => return result,
                // The election could not go on.
                Closed::Left => std::thread::sleep(REOPEN_DELAY),
                Closed::Released => {
                    tracing::info!("the object cache has stored everything, and has left the election");
                    self.control.set_released(Released::Done);
                    if block_on(other_than(Wanted::Release, &mut wanted)) != Wanted::Serve {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Retries to open the store and the registry until that succeeds; `None` if another state is
    /// wanted first.
    fn stand_again(&self, wanted: &watch::Receiver<Wanted>) -> Option<Candidacy> {
        let election = self.election.as_ref()?;
        retry(wanted, "this host cannot take part in the election yet", || {
            let mut wanted = wanted.clone();
            let other = async {
                other_than(Wanted::Serve, &mut wanted).await;
            };
            let secret = self.reload.opening().secrets.store;
            let candidacy = election.standing.open(&election.reported, secret, pin!(other))?;
            self.reload.set_election(candidacy.secret());
            self.control.set_released(Released::NotYet);
            Ok(candidacy)
        })
    }

    /// Takes part in the election until it is to be left.
    fn take_part(&self, candidacy: &mut Candidacy, wanted: &mut watch::Receiver<Wanted>) -> Closed {
        if let Err(error) = candidacy.start() {
            tracing::error!(cause = %error, "this host cannot take part in the election");
            return Closed::Left;
        }
        loop {
            match block_on(candidacy.next(wanted)) {
                Next::Over => return Closed::Left,
                Next::Wanted(Wanted::Release) => return Closed::Released,
                Next::Wanted(_) => return Closed::End(Ok(())),
                Next::Lead(tenure) => {
                    candidacy.is_storing.send_replace(true);
                    let closed = self.lead(candidacy, tenure, wanted);
                    candidacy.is_storing.send_replace(false);
                    match closed {
                        Closed::Left => tracing::info!("this host is a standby: it serves no objects"),
                        closed => return closed,
                    }
                }
            }
        }
    }

    /// Opens a cache and serves for one leadership.
    fn lead(
        &self,
        candidacy: &mut Candidacy,
        tenure: Tenure,
        wanted: &mut watch::Receiver<Wanted>,
    ) -> Closed {
        let began = Instant::now();
        let epoch = tenure.leadership.epoch;
        let opened = self.open_leader(candidacy, tenure, wanted);
        let closed = match opened {
            Ok(open) => {
                let shown = self.show(&open.parts);
                let took_ms = began.elapsed().as_millis();
                tracing::info!(%epoch, took_ms, "this host serves objects");
                let closed = self.serve(open, shown, wanted, Some((candidacy, epoch)));
                self.control.listening().close();
                closed
            }
            // The end is wanted, or the leadership has ended.
            Err(ObjectsError::Ended) => {
                // Nothing was served. This fails if the leadership has ended.
                let _ = in_runtime(candidacy.release(Some(Release::Anyone)));
                Closed::Left
            }
            Err(error) => {
                tracing::error!(cause = %error, %epoch, "this host cannot serve, and steps down");
                self.control.listening().close();
                if let Err(error) = in_runtime(candidacy.release(Some(Release::Anyone))) {
                    tracing::error!(cause = %error, %epoch, "this host cannot step down");
                }
                std::thread::sleep(REOPEN_DELAY);
                Closed::Left
            }
        };
        self.reload.set(None);
        closed
    }

    fn open_leader(
        &self,
        candidacy: &Candidacy,
        Tenure { leadership, lease, has_journal }: Tenure,
        wanted: &watch::Receiver<Wanted>,
    ) -> Result<OpenObjects, ObjectsError> {
        let epoch = leadership.epoch;
        let opening = self.reload.lead(leadership, Arc::new(move || lease.holds()), has_journal);
        let mut now = candidacy.now.clone();
        let end = async {
            tokio::select! {
                () = ended(wanted.clone()) => {}
                // Fails when the election has ended.
                _ = now.wait_for(|now| !is_in_force(&now.part, epoch)) => {}
            }
        };
        let open = opening.open(pin!(end))?;
        self.control.listening().open_again(opening.synapse.as_ref())?;
        self.listen(&open)?;
        Ok(open)
    }

    /// Ends a leadership that has ended by itself. The gate already refuses all requests.
    pub(super) async fn abandon(&self, parts: &mut Parts, candidacy: &Candidacy) {
        self.control.listening().close();
        let instance = parts.listener.as_ref().map(|listener| listener.server.instance());
        let released = self.end_listeners(parts, LOST_DRAIN, Duration::ZERO).await;
        if let Err(why) = released {
            tracing::warn!(cause = why, "volumes were not released in order");
        }
        // The store decides: it accepts nothing once the next leader has claimed it.
        let deposed = parts.cache.as_ref().and_then(|cache| Some((cache, cache.deposed_by()?)));
        let stored = match deposed {
            Some((cache, epoch)) if !cache.is_stored() => {
                Err(ShutdownError::of_cache(cache, format!("epoch {epoch} is in force")))
            }
            _ => parts.store_all(self.flush_max.get()).await,
        };
        match stored {
            Ok(()) => {
                if let Some(instance) = instance {
                    parts.store.record_end(instance, parts.cache.as_ref()).await;
                }
            }
            Err(ShutdownError { dirty_bytes, why }) => {
                candidacy.reported.add_lost(dirty_bytes);
                tracing::error!(
                    lost_bytes = dirty_bytes,
                    cause = why,
                    "the leadership of this host ended with acknowledged writes that are not stored"
                );
            }
        }
    }
}

/// Runs a short task that needs a runtime.
fn in_runtime(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(work)
}
