//! The election of the one host that writes to the store: what takes part in it for this process.
//! A host that leads has a cache, listeners and volumes; a standby has none of them, and its clients
//! are refused. Each leadership has a cache of its own.
//!
//! ```text
//!  election thread: registry ──► elector ──► part of this host ──► control thread: standby, or a cache
//!                   store ◄── journal settled, all namespaces claimed   │
//!                                                                       └─► gate ─► cache ─► store
//! ```
//!
//! | module | content |
//! |---|---|
//! | `gate` | the layer before the cache that answers only while the lease holds |
//! | `report` | metrics, status, log lines and routes |
//! | `settle` | what the journal of this host has is stored or set aside before this host leads |

pub(super) mod gate;
mod report;
mod settle;

use super::wanted::{Wanted, other_than};
use super::{ObjectsError, STEP_TIMEOUT, is_done_in_time};
use crate::config::{BackendTable, ConfigError, ServiceConfig, election_address, is_elected};
use blocker::{
    Blocker, BlockerExt, ClaimRequest, Clock, Epoch, Error, Namespace, Scope, SystemClock, WriterId,
};
use cached_admin::{AdminServer, Health};
use cached_config::{OpenOptions, Store, Waiting};
use cached_core::object::{Leadership, ObjectCache};
use cached_registry::election::{
    Candidate, Cause, Claimed, Claiming, Elector, Leadership as Now, Lease, Part, Release, elect,
};
use cached_registry::{Registry, RegistryTable};
pub(super) use report::Reported;
use settle::{OwnJournal, Unsettled};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use synapse::{Secret, SecretHandle};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

/// The maximum number of claims in flight.
const CLAIMS_MAX: usize = 16;
/// The maximum time for which the store answers no claim of a namespace; then the claims are repeated.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum number of requests to step down that wait.
const REQUESTS_MAX: usize = 4;
/// The maximum time for closing the connection to the store.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The parameters for taking part in an election.
#[derive(Clone)]
pub(super) struct Standing {
    registry: RegistryTable,
    backend: BackendTable,
    object_bytes_max: u64,
    journal: Option<OwnJournal>,
    lease: Duration,
    /// This host among the candidates.
    pub(super) node: String,
    pub(super) address: String,
    health: Option<Health>,
}

/// A request of an operator that the leader step down.
pub(super) struct StepDown {
    pub(super) to: Release,
    done: oneshot::Sender<Result<(), String>>,
}

impl StepDown {
    pub(super) fn answer(self, outcome: Result<(), String>) {
        // Fails if the operator no longer waits for the answer.
        let _ = self.done.send(outcome);
    }
}

/// The part of this process in an election, which its thread takes while this exists.
pub(super) struct Candidacy {
    standing: Standing,
    elector: Elector,
    pub(super) now: watch::Receiver<Now>,
    /// The epoch of the last leadership for which there was a cache.
    led: Epoch,
    /// The namespace of the registry, if the registry is in the store.
    records: Option<Namespace>,
    /// Whether a cache of an earlier leadership may still store something.
    pub(super) is_storing: watch::Sender<bool>,
    pub(super) reported: Arc<Reported>,
    requests: mpsc::Receiver<StepDown>,
    /// The election, until its thread is started.
    waiting: Option<(Runtime, Store, Running)>,
    thread: Option<JoinHandle<()>>,
}

type Running = Pin<Box<dyn Future<Output = cached_registry::Result<()>> + Send>>;

/// One leadership of this host.
pub(super) struct Tenure {
    pub(super) leadership: Leadership,
    pub(super) lease: Arc<Lease>,
    /// Whether the leader logs its changes in the journal of this host, if there is one.
    pub(super) has_journal: bool,
}

/// What a standby has waited for.
pub(super) enum Next {
    /// Another state is wanted.
    Wanted(Wanted),
    /// This host leads.
    Lead(Tenure),
    /// This process takes part no longer.
    Over,
}

/// What a leader has waited for.
pub(super) enum Waited {
    /// Another state is wanted.
    Wanted(Wanted),
    /// This host no longer leads.
    Lost,
    /// An operator asks this host to step down.
    StepDown(StepDown),
}

impl Standing {
    /// Returns the parameters if the writer is elected.
    ///
    /// # Errors
    /// The key that is wrong.
    pub(super) fn of(
        config: &ServiceConfig,
        admin: Option<&Arc<AdminServer>>,
    ) -> Result<Option<Standing>, ConfigError> {
        let objects = &config.objects;
        if !is_elected(objects) {
            return Ok(None);
        }
        // The configuration has been checked: both are there.
        let (Some(registry), Some(backend)) = (config.registry.clone(), objects.backend.clone()) else {
            return Err(ConfigError::new("objects.writer", "is \"elected\" without a registry or a backend"));
        };
        let election = objects.election.clone().unwrap_or_default();
        Ok(Some(Standing {
            registry,
            backend,
            object_bytes_max: objects.object_bytes_max.0,
            journal: OwnJournal::of(objects),
            lease: election.lease(),
            node: election.node(),
            address: election_address(objects, config.synapse.as_ref())?,
            health: admin.map(|admin| admin.health().clone()),
        }))
    }

    /// Opens the store, with this `secret` if it is another server, and the registry. Takes part only
    /// once [`Candidacy::start`] is called. If the store is unavailable, retries until `end` is ready.
    ///
    /// # Errors
    /// The first error that waiting cannot resolve; [`ObjectsError::Ended`].
    pub(super) fn open(
        &self,
        reported: &Arc<Reported>,
        secret: Option<Secret>,
        end: Pin<&mut dyn Future<Output = ()>>,
    ) -> Result<Candidacy, ObjectsError> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let opened = runtime.block_on(async {
            tokio::select! {
                opened = self.open_in(secret) => opened,
                () = end => Err(ObjectsError::Ended),
            }
        });
        let (store, registry) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // An attempt to open the store may hang, so nothing waits for it.
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let records = match &self.registry {
            RegistryTable::Store(keys) => Namespace::copy_from(keys.namespace.as_bytes()).ok(),
            _ => None,
        };
        let me =
            Candidate { node: self.node.clone(), address: self.address.clone(), writer: WriterId::random() };
        let (is_storing, storing) = watch::channel(false);
        let claims = Claims {
            store: store.backend(),
            records: records.clone(),
            candidate: me.writer,
            journal: self.journal.clone(),
            storing,
            timeout: CLAIM_TIMEOUT,
            lease: self.lease,
        };
        let claim = move |epoch| -> Claiming { Box::pin(claims.clone().claim(epoch)) };
        let inside = runtime.enter();
        let elected = elect(&registry, me, self.lease, claim);
        drop(inside);
        let (elector, running) = elected.map_err(|error| ObjectsError::Election(error.to_string()))?;
        let requests = reported.set(&elector, &registry);
        Ok(Candidacy {
            standing: self.clone(),
            now: elector.watch(),
            led: Epoch(0),
            elector,
            records,
            is_storing,
            reported: Arc::clone(reported),
            requests,
            waiting: Some((runtime, store, Box::pin(running))),
            thread: None,
        })
    }

    async fn open_in(&self, secret: Option<Secret>) -> Result<(Store, Registry), ObjectsError> {
        let mut waiting =
            Waiting::new(|line| self.health.iter().for_each(|health| health.set_starting(line)));
        let options = OpenOptions {
            object_bytes_max: self.object_bytes_max,
            secret,
            is_server: true,
            ..OpenOptions::default()
        };
        let store = Store::open_when_available(&self.backend, &options, &mut waiting).await?;
        let registry = Registry::open(&self.registry, Some(store.backend()));
        let registry = registry.map_err(|error| ObjectsError::Election(error.to_string()))?;
        Ok((store, registry))
    }
}

/// Returns the writer of a leadership. Each leadership has its own writer: when the disk of its
/// journal fails, the cache of a leadership claims further epochs, and the store must refuse these
/// epochs to the next leadership. Otherwise both would use the same stamps, and changes that the
/// earlier cache has sent could replace newer data.
fn writer_of(candidate: WriterId, epoch: Epoch) -> WriterId {
    WriterId(candidate.0.wrapping_add(epoch.0.into()))
}

/// Claims the epoch of a leadership in the whole store.
#[derive(Clone)]
struct Claims {
    store: Arc<dyn Blocker>,
    records: Option<Namespace>,
    /// This process among the candidates.
    candidate: WriterId,
    journal: Option<OwnJournal>,
    storing: watch::Receiver<bool>,
    /// The time after which the store has not answered.
    timeout: Duration,
    /// The time after which a claim that has failed leaves the lease to other hosts, which may reach the
    /// store.
    lease: Duration,
}

impl Claims {
    /// Settles the journal of this host, and claims every namespace in the store before anything is
    /// served, so that an epoch that another writer has left there is found.
    async fn claim(mut self, epoch: Epoch) -> Claimed {
        // Otherwise the claim would refuse what an earlier leadership of this host still stores.
        // Fails if the candidacy has ended, whose claims no longer matter.
        if self.storing.wait_for(|is_storing| !is_storing).await.is_err() {
            return Claimed::Failed;
        }
        if let Some(journal) = &self.journal {
            match journal.settle(Arc::clone(&self.store), self.storing.clone()).await {
                Ok(()) => {}
                Err(Unsettled::ForNow(cause)) => {
                    tracing::warn!(cause, "the journal of this host cannot be settled yet");
                    return Claimed::Failed;
                }
                Err(Unsettled::Stuck(cause)) => {
                    tracing::error!(
                        cause,
                        "this host cannot lead, because its journal cannot be settled: other hosts may take the lease"
                    );
                    return Claimed::Unable;
                }
            }
        }
        let began = Instant::now();
        match self.claim_all(epoch).await {
            Claimed::Failed if began.elapsed() >= self.lease.min(self.timeout) => {
                tracing::error!(
                    %epoch,
                    "this host cannot lead, because the store does not answer it in time: other hosts may take the lease"
                );
                Claimed::Unable
            }
            outcome => outcome,
        }
    }

    /// Claims every namespace in the store.
    async fn claim_all(&self, epoch: Epoch) -> Claimed {
        let listed = tokio::time::timeout(self.timeout, self.store.control().namespaces().into_future());
        let found = match listed.await.unwrap_or(Err(Error::DeadlinePassed)) {
            Ok(found) => found,
            // Each namespace is claimed before its first use in any case.
            Err(Error::Unsupported(_)) => Vec::new(),
            Err(error) => {
                tracing::warn!(cause = %error, "the store's namespaces cannot be listed yet");
                return Claimed::Failed;
            }
        };
        let is_claimed =
            |namespace: &Namespace| !namespace.is_reserved() && self.records.as_ref() != Some(namespace);
        let mut namespaces = found.into_iter().filter(is_claimed);
        let writer = writer_of(self.candidate, epoch);
        let (mut claims, mut highest, mut failure) = (JoinSet::new(), None, None);
        loop {
            while claims.len() < CLAIMS_MAX
                && let Some(namespace) = namespaces.next()
            {
                let mut request = ClaimRequest::new(Scope::Namespace(namespace), epoch, writer);
                request.call.deadline = Some(SystemClock.now() + self.timeout);
                let store = Arc::clone(&self.store);
                claims.spawn(async move { store.claim_in_steps(request).await });
            }
            // A store need not give up what it has begun.
            let Ok(claimed) = tokio::time::timeout(self.timeout, claims.join_next()).await else {
                tracing::warn!(%epoch, "the store does not answer the claims of its namespaces");
                return Claimed::Failed;
            };
            match claimed {
                None => break,
                Some(Ok(Ok(_))) => {}
                Some(Ok(Err(Error::Fenced { epoch }))) => highest = highest.max(Some(epoch)),
                Some(Ok(Err(error))) => failure = Some(error.to_string()),
                Some(Err(error)) => failure = Some(error.to_string()),
            }
        }
        match (highest, failure) {
            (Some(epoch), _) => Claimed::Fenced(epoch),
            (None, Some(cause)) => {
                tracing::warn!(cause, %epoch, "the store's namespaces cannot be claimed yet");
                Claimed::Failed
            }
            (None, None) => Claimed::Granted,
        }
    }
}

impl Candidacy {
    /// Returns a handle that changes the secret of the election's connection to the store, if that
    /// is another server.
    pub(super) fn secret(&self) -> Option<SecretHandle> {
        self.waiting.as_ref().and_then(|(_, store, _)| store.secret())
    }

    /// Returns the maximum memory of the election's connection to the store, in bytes.
    pub(super) fn store_bytes_max(&self) -> u64 {
        self.waiting.as_ref().map_or(0, |(_, store, _)| store.memory_bytes_max())
    }

    /// Takes part in the election from now on, on a thread of its own, until this is dropped.
    ///
    /// # Errors
    /// If the thread cannot be created.
    pub(super) fn start(&mut self) -> Result<(), ObjectsError> {
        let Some((runtime, store, running)) = self.waiting.take() else { return Ok(()) };
        let now = self.now.clone();
        let log = report::log_changes(now, self.standing.node.clone());
        let looked = report::look_for_overtaken(self.standing.journal.clone(), Arc::clone(&self.reported));
        let thread = std::thread::Builder::new().name("election".into()).spawn(move || {
            let ended = runtime.block_on(async {
                tokio::select! {
                    ended = running => ended,
                    () = log => Ok(()),
                    () = looked => Ok(()),
                }
            });
            if let Err(error) = ended {
                tracing::error!(cause = %error, "this host cannot take part in the election any more");
            }
            // Requests to a store that does not answer do not delay the end.
            runtime.shutdown_background();
            // Only a connection to a store that others have open as well.
            if let Err(error) = store.close(CLOSE_TIMEOUT) {
                tracing::warn!(cause = %error, "the election's store was not closed cleanly");
            }
        })?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Leaves the election, and waits for a while until its connections are closed.
    pub(super) fn leave(self) {
        let Candidacy { elector, reported, thread, requests, is_storing, .. } = self;
        reported.clear();
        // The election ends with its last handle, and the settling of the journal with `is_storing`.
        drop((elector, requests, is_storing));
        if !is_done_in_time(|| thread.as_ref().is_none_or(JoinHandle::is_finished)) {
            tracing::warn!("the election's store is still in use");
        }
    }

    /// Waits until this host leads, or another state is wanted.
    pub(super) async fn next(&mut self, wanted: &mut watch::Receiver<Wanted>) -> Next {
        loop {
            let state = *wanted.borrow_and_update();
            if !matches!(state, Wanted::Hold | Wanted::Serve) {
                return Next::Wanted(state);
            }
            let now = self.now.borrow_and_update().clone();
            match now.part {
                // A second cache with the stamps of an earlier one could store nothing.
                Part::Leading { epoch, .. } if epoch <= self.led => self.elector.fenced(epoch),
                Part::Leading { epoch, writer, lease } if lease.holds() => {
                    self.led = epoch;
                    let writer = writer_of(writer, epoch);
                    let leadership = Leadership { epoch, writer, records: self.records.clone() };
                    let has_journal = self.standing.journal.as_ref().is_some_and(OwnJournal::is_usable);
                    return Next::Lead(Tenure { leadership, lease, has_journal });
                }
                _ if now.cause == Cause::Ended => return Next::Over,
                _ => {}
            }
            tokio::select! {
                changed = wanted.changed() => if changed.is_err() {
                    return Next::Wanted(Wanted::End);
                },
                changed = self.now.changed() => if changed.is_err() {
                    return Next::Over;
                },
                Some(request) = self.requests.recv() => {
                    request.answer(Err(self.reported.not_leading()));
                }
            }
        }
    }
}

/// Returns whether this host leads with this epoch.
pub(super) fn is_in_force(part: &Part, of: Epoch) -> bool {
    matches!(part, Part::Leading { epoch, lease, .. } if *epoch == of && lease.holds())
}

impl Candidacy {
    /// Waits while this host leads with `epoch`; `state` is the wanted state.
    pub(super) async fn wait(
        &mut self,
        epoch: Epoch,
        cache: &ObjectCache,
        state: Wanted,
        wanted: &mut watch::Receiver<Wanted>,
    ) -> Waited {
        let mut events = cache.subscribe();
        loop {
            if let Some(newer) = cache.deposed_by() {
                self.elector.fenced(newer);
                return Waited::Lost;
            }
            let mut now = self.now.clone();
            tokio::select! {
                next = other_than(state, wanted) => return Waited::Wanted(next),
                // Fails when the election has ended.
                _ = now.wait_for(|now| !is_in_force(&now.part, epoch)) => return Waited::Lost,
                Some(request) = self.requests.recv() => return Waited::StepDown(request),
                // Perhaps the store has refused the epoch.
                event = events.recv() => if event.is_none() {
                    return Waited::Lost;
                },
            }
        }
    }

    /// Checks whether this host can step down for `to`.
    ///
    /// # Errors
    /// One line.
    pub(super) async fn check(&self, to: &Release) -> Result<(), String> {
        match tokio::time::timeout(STEP_TIMEOUT, self.elector.check(to)).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_) => Err("the registry does not answer in time".into()),
        }
    }

    /// Releases the lease: for the next process of this host, unless `to` names another successor.
    /// Everything must be stored.
    ///
    /// # Errors
    /// One line; this host leads as before then.
    pub(super) async fn release(&self, to: Option<Release>) -> Result<(), String> {
        let to = to.unwrap_or_else(|| Release::To(self.standing.node.clone()));
        match tokio::time::timeout(STEP_TIMEOUT, self.elector.step_down(to)).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_) if self.elector.lease().is_some() => Err("the registry does not answer in time".into()),
            // The lease has ended on this host, and lapses for the others.
            Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
impl Candidacy {
    /// Returns a candidacy whose election has ended, so that no lease can be released.
    pub(super) fn ended(standing: &Standing) -> Candidacy {
        let (reported, _) = Reported::new(standing, None);
        let end = std::pin::pin!(std::future::pending::<()>());
        let mut candidacy = standing.open(&reported, None, end).expect("the store opens");
        candidacy.waiting = None;
        candidacy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blocker::admission::EPOCH_STEP_MAX;
    use blocker::executor::block_on;
    use blocker::{Call, ClaimReply, Memory, Reply, WriteRequest};

    const OWN: WriterId = WriterId(1);

    fn claims(store: &Arc<Memory>) -> (Claims, watch::Sender<bool>) {
        let (is_storing, storing) = watch::channel(false);
        let records = Some(Namespace::copy_from(b"registry").unwrap());
        let claims = Claims {
            store: Arc::clone(store) as _,
            records,
            candidate: OWN,
            journal: None,
            storing,
            timeout: CLAIM_TIMEOUT,
            lease: CLAIM_TIMEOUT,
        };
        (claims, is_storing)
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    fn in_force(store: &Memory, name: &str) -> Epoch {
        let namespace = Namespace::copy_from(name.as_bytes()).unwrap();
        block_on(store.epoch_in_force(Scope::Namespace(namespace), Call::default())).unwrap()
    }

    fn store(names: &[&str]) -> Arc<Memory> {
        let store = Arc::new(Memory::default());
        for name in names {
            block_on(store.write(WriteRequest::new(format!("{name}/a").parse().unwrap(), 0, b"x"))).unwrap();
        }
        store
    }

    #[test]
    fn a_leadership_claims_every_namespace_but_that_of_the_registry() {
        let names: Vec<String> = (0..3 * CLAIMS_MAX).map(|number| format!("n{number}")).collect();
        let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
        all.push("registry");
        let store = store(&all);
        let (claims, _is_storing) = claims(&store);
        assert_eq!(run(claims.clone().claim(Epoch(7))), Claimed::Granted);
        assert!(names.iter().all(|name| in_force(&store, name) == Epoch(7)));
        assert_eq!(in_force(&store, "registry"), Epoch(0), "all hosts write there");
        assert_eq!(run(claims.claim(Epoch(7))), Claimed::Granted, "a claim can be repeated");
    }

    #[test]
    fn the_highest_epoch_that_another_writer_has_left_is_reported() {
        let store = store(&["a", "b", "c"]);
        for (name, epoch) in [("a", 3), ("b", 9), ("c", 7)] {
            let scope = Scope::Namespace(Namespace::copy_from(name.as_bytes()).unwrap());
            block_on(store.claim(ClaimRequest::new(scope, Epoch(epoch), WriterId(2)))).unwrap();
        }
        let (claims, _is_storing) = claims(&store);
        assert_eq!(run(claims.clone().claim(Epoch(7))), Claimed::Fenced(Epoch(9)));
        assert_eq!(run(claims.claim(Epoch(10))), Claimed::Granted);
    }

    #[test]
    fn an_epoch_that_the_cache_of_an_earlier_leadership_has_claimed_is_not_that_of_the_next_one() {
        let store = store(&["a"]);
        let (claims, _is_storing) = claims(&store);
        assert_eq!(run(claims.clone().claim(Epoch(4))), Claimed::Granted);
        let scope = Scope::Namespace(Namespace::copy_from(b"a").unwrap());
        let further = ClaimRequest::new(scope, Epoch(5), writer_of(OWN, Epoch(4)));
        block_on(store.claim(further)).unwrap();
        assert_eq!(run(claims.clone().claim(Epoch(5))), Claimed::Fenced(Epoch(5)));
        assert_eq!(run(claims.claim(Epoch(6))), Claimed::Granted);
    }

    /// In one of the namespaces, another program may have used the time as its epoch.
    #[test]
    fn an_epoch_far_above_those_of_other_namespaces_is_claimed_in_all_of_them() {
        let store = store(&["high", "low"]);
        let scope = Scope::Namespace(Namespace::copy_from(b"high").unwrap());
        let high = Epoch(2 * EPOCH_STEP_MAX + 5);
        run(store.claim_in_steps(ClaimRequest::new(scope, high, WriterId(2)))).unwrap();
        let (claims, _is_storing) = claims(&store);
        assert_eq!(run(claims.clone().claim(Epoch(1))), Claimed::Fenced(high));
        let next = Epoch(high.0 + 1);
        assert_eq!(run(claims.claim(next)), Claimed::Granted);
        assert!(["high", "low"].iter().all(|name| in_force(&store, name) == next));
    }

    #[test]
    fn a_claim_waits_until_an_earlier_leadership_has_stored_its_data() {
        let store = store(&["a"]);
        let (claims, is_storing) = claims(&store);
        is_storing.send_replace(true);
        run(async {
            let claiming = tokio::spawn(claims.claim(Epoch(4)));
            tokio::task::yield_now().await;
            assert_eq!(in_force(&store, "a"), Epoch(0));
            is_storing.send_replace(false);
            assert_eq!(claiming.await.unwrap(), Claimed::Granted);
        });
        assert_eq!(in_force(&store, "a"), Epoch(4));
    }

    /// A store that answers no claim.
    struct Hung(Arc<Memory>);

    impl Blocker for Hung {
        blocker::delegate!(|this| *this.0, except claim);

        fn claim(&self, _: ClaimRequest) -> Reply<ClaimReply> {
            Reply::pending(std::future::pending())
        }
    }

    #[test]
    fn a_host_whose_claims_are_not_answered_leaves_the_lease_to_others() {
        let (claims, _is_storing) = claims(&store(&["a"]));
        let hung = Arc::new(Hung(store(&["a"])));
        let claims = Claims { store: hung, timeout: Duration::from_millis(1), ..claims };
        let outcome = run(async { tokio::time::timeout(CLAIM_TIMEOUT, claims.claim(Epoch(4))).await });
        assert_eq!(outcome, Ok(Claimed::Unable));
    }
}
