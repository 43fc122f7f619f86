//! The steward's thread: its tasks run until the server is about to end, and keep the node's lease until it
//! has ended, or another process has taken over.

#[cfg(test)]
mod tests;

use super::control::{Change, Request, RingControl, failure};
use super::documents::{BackOff, Documents, DocumentsError};
use super::join::Joined;
use cached_admin::AdminServer;
use cached_memcached::LiveServer;
use cached_process::{Drain, Exit, Failure};
use cached_registry::{Error, Registry, RegistryTable, Revision};
use cached_ring::{Map, Node};
use std::cell::Cell;
use std::pin::pin;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The minimum time between two reads because other nodes have a later map. It doubles while there
/// is none in the registry: this node may have been removed.
const REFRESH_MIN: Duration = Duration::from_millis(20);
/// The maximum of that time.
const REFRESH_MAX: Duration = Duration::from_secs(2);
/// The interval at which a hand-over looks whether moves have ended.
const LOOK: Duration = Duration::from_millis(10);
/// The interval of looks whether a map is in force.
const MAP_LOOK: Duration = Duration::from_millis(2);
/// The maximum time for closing the connection to the store.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread of the steward, which ends when this is dropped.
#[derive(Debug)]
pub struct Steward {
    control: RingControl,
    phase: watch::Sender<Phase>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Another process may still use the registry as this node.
    Waiting,
    Running,
    /// The tasks have ended but for that of the lease, because the server may still answer.
    Ending,
    /// The server has ended; if in order, and for no other process, the node signs off.
    Ended {
        signs_off: bool,
    },
}

impl Steward {
    /// Starts the thread for a node that has joined, and whose server is `server`, with its `drain`.
    /// The steward does nothing before [`begin`](Self::begin). Adds the routes of operators to the
    /// admin listener.
    ///
    /// # Errors
    /// Fails if the system refuses a thread.
    pub fn start(
        joined: Joined,
        server: (LiveServer, Drain),
        admin: Option<&AdminServer>,
    ) -> Result<Steward, Failure> {
        if let Some(own) = server.0.ring_lease() {
            joined.lease.register(&own);
        }
        let (control, requests) = RingControl::new(&joined.own.name);
        if let Some(admin) = admin {
            control.add_routes(admin.routes());
        }
        let (phase, now) = watch::channel(Phase::Waiting);
        let body = move || run(joined, server, requests, now);
        let thread = std::thread::Builder::new().name("ring-steward".into()).spawn(body);
        let thread = Some(thread.map_err(|error| Failure::new(Exit::Trouble, error))?);
        Ok(Steward { control, phase, thread })
    }

    /// Lets the steward work, because the server serves.
    pub fn begin(&self) {
        self.phase.send_replace(Phase::Running);
    }

    /// Lets the steward's tasks end soon, because the server ends.
    pub fn request_end(&self) {
        self.phase.send_modify(|phase| match phase {
            Phase::Waiting => *phase = Phase::Ended { signs_off: false },
            Phase::Running => *phase = Phase::Ending,
            Phase::Ending | Phase::Ended { .. } => {}
        });
    }

    /// Says that the server has ended, so that the steward ends soon. If the server has served, and ended
    /// `in_order` without another process that takes over, the registry learns that nobody answers as
    /// this node any more.
    pub fn server_ended(&self, in_order: bool) {
        self.request_end();
        self.phase.send_modify(|phase| {
            if *phase == Phase::Ending {
                *phase = Phase::Ended { signs_off: in_order };
            }
        });
    }

    /// Returns the handle for the hand-over to another process.
    pub fn control(&self) -> RingControl {
        self.control.clone()
    }
}

/// Waits for the end of the thread.
impl Drop for Steward {
    fn drop(&mut self) {
        self.server_ended(false);
        if let Some(thread) = self.thread.take() {
            // The process knows of a panic.
            let _ = thread.join();
        }
    }
}

/// What the tasks share, which are all on one thread.
pub(super) struct Shared {
    pub(super) documents: Documents,
    pub(super) live: LiveServer,
    /// This node, as its configuration describes it, and the host of this process.
    pub(super) own: Node,
    /// Whether no move may begin, because the node is handed over to another process.
    pub(super) is_held: watch::Sender<bool>,
    /// The number of changes of the documents that are under way, such as a move to this node.
    changes: watch::Sender<usize>,
    /// The revision of the document by which this node is alive, as this process has written it.
    pub(super) written: Cell<Option<Revision>>,
    /// Whether the processes of a hand-over share a number of the registry's disk, which only one of
    /// them may use at a time.
    shares_number: bool,
    hand_over_max: Duration,
}

fn run(
    joined: Joined,
    (live, drain): (LiveServer, Drain),
    requests: mpsc::Receiver<Request>,
    mut phase: watch::Receiver<Phase>,
) {
    let Joined { runtime, table, store, documents, own, lease, hand_over_max } = joined;
    let shared = Shared {
        documents,
        live,
        own,
        is_held: watch::Sender::new(false),
        changes: watch::Sender::new(0),
        written: Cell::new(None),
        shares_number: matches!(table, RegistryTable::Disk(_)),
        hand_over_max,
    };
    let reopen = || Registry::open(&table, store.as_ref().map(|store| store.backend()));
    runtime.block_on(async {
        // Dropping the steward ends it first.
        if phase.wait_for(|phase| *phase != Phase::Waiting).await.is_err() {
            return;
        }
        shared.documents.follow(shared.live.clone(), shared.own.clone(), drain);
        shared.warn_of_no_weight();
        let signs_off = {
            let mut keeping = pin!(shared.keep_lease(lease));
            tokio::select! {
                () = shared.watch() => {}
                () = &mut keeping => {}
                () = shared.keep_wards() => {}
                () = shared.move_slots() => {}
                () = shared.abort_unfinished() => {}
                () = shared.serve(requests, &reopen) => {}
                _ = phase.wait_for(|phase| *phase != Phase::Running) => {}
            }
            // The server may answer its clients for longer than a lease, and signs off with the lease.
            tokio::select! {
                () = &mut keeping => false,
                // Fails only if the steward is gone.
                ended = phase.wait_for(|phase| matches!(phase, Phase::Ended { .. })) => {
                    ended.is_ok_and(|phase| *phase == Phase::Ended { signs_off: true })
                }
            }
        };
        // A process that takes over may have the number on a disk by now.
        if signs_off && !*shared.is_held.borrow() {
            shared.sign_off().await;
        }
    });
    drop(shared);
    // A disk may not respond, so nothing waits for it.
    runtime.shutdown_background();
    if let Some(Err(cause)) = store.map(|store| store.close(CLOSE_TIMEOUT)) {
        tracing::warn!(%cause, "the store of the registry was not closed cleanly");
    }
}

impl Shared {
    /// Puts each map in force that appears in the registry.
    async fn watch(&self) {
        let (events, mut latest) = (self.live.ring_events(), self.documents.latest());
        let (mut back_off, mut pause, mut not_before) = (BackOff::new(), REFRESH_MIN, Instant::now());
        loop {
            let mut watch = match self.documents.watch().await {
                Ok(watch) => watch,
                Err(error) => {
                    self.report(&error);
                    back_off.wait().await;
                    continue;
                }
            };
            back_off.reset();
            loop {
                let outdated = async {
                    sleep_until(not_before).await;
                    events.outdated.notified().await;
                };
                // A lease that has ended is removed by whoever notices it.
                let next = async {
                    loop {
                        self.wait_for_disk().await;
                        tokio::select! {
                            // Polled first: the watch may begin a write, which would go on.
                            biased;
                            () = self.wait_for_loan() => {}
                            changes = watch.next() => return changes,
                        }
                    }
                };
                tokio::select! {
                    changes = next => match self.documents.note(changes) {
                        Ok(_) => {}
                        // The next watch begins with the present state.
                        Err(Error::Compacted { .. }) => break,
                        Err(_) => {
                            back_off.wait().await;
                            break;
                        }
                    },
                    () = outdated => {}
                }
                if let Err(error) = self.documents.read().await {
                    self.report(&error);
                    back_off.wait().await;
                    break;
                }
                let is_later = latest.has_changed().unwrap_or(false);
                latest.mark_unchanged();
                pause = if is_later { REFRESH_MIN } else { (pause * 2).min(REFRESH_MAX) };
                not_before = Instant::now() + pause;
            }
        }
    }

    fn warn_of_no_weight(&self) {
        let latest = self.documents.latest().borrow().clone();
        let weight = latest.and_then(|map| Some(map.node(map.find(&self.own.name)?).weight));
        if weight == Some(0) {
            tracing::warn!(
                node = self.own.name,
                "this node has weight 0 and is given no slots, because it was drained, or given up by `cluster fail`: \
                 `cachectl cluster weight {} 1` gives it some",
                self.own.name
            );
        }
    }

    /// Logs a mistake in the documents; other errors were logged when they began.
    fn report(&self, error: &DocumentsError) {
        if !matches!(error, DocumentsError::Registry(_)) {
            tracing::error!(cause = %error, "the documents of the ring cannot be used; the earlier map stays in force");
        }
    }

    /// Aborts the moves that only this node can abort: their slots are sealed here, and stay so until
    /// a map in force says whose they are.
    async fn abort_unfinished(&self) {
        let mut unfinished = self.live.ring_events().unfinished.subscribe();
        let mut back_off = BackOff::short();
        loop {
            let ids = unfinished.borrow_and_update().clone();
            let mut is_done = true;
            for id in ids {
                // If it has ended otherwise, the map without it is put in force.
                is_done &= self.changing(self.abort(id)).await;
            }
            match is_done {
                true if unfinished.changed().await.is_ok() => back_off.reset(),
                // The server is gone.
                true => return std::future::pending().await,
                false => back_off.wait().await,
            }
        }
    }

    /// Serves requests of operators and of the hand-over.
    async fn serve(
        &self,
        mut requests: mpsc::Receiver<Request>,
        reopen: &dyn Fn() -> Result<Registry, Error>,
    ) {
        let (mut must_reopen, mut back_off) = (false, BackOff::short());
        while let Some(request) = tokio::select! {
            request = requests.recv() => request,
            () = back_off.wait(), if must_reopen => Some(Request::Resume),
        } {
            match request {
                Request::Change(change, mut answer) => {
                    let is_held = *self.is_held.borrow();
                    let changed = match is_held {
                        true => Err((503, "another process takes over this node; ask again".into())),
                        // At most while the operator waits: a disk may never answer, and requests follow.
                        false => tokio::select! {
                            biased;
                            () = answer.closed() => continue,
                            changed = self.change(&change) => changed.map_err(failure),
                        },
                    };
                    // Fails if the operator no longer waits.
                    let _ = answer.send(changed);
                }
                Request::Hold(answer) => {
                    must_reopen = false;
                    let held = self.hold().await;
                    if held.is_err() {
                        self.resume();
                    }
                    let _ = answer.send(held);
                }
                Request::Resume => {
                    must_reopen = !self.may_resume(reopen);
                    if !must_reopen {
                        back_off.reset();
                        self.resume();
                    }
                }
            }
        }
        std::future::pending::<()>().await;
    }

    /// Returns whether this process may go on. If another one may have used this node's number of the disk,
    /// the disk must be read again: with what is known of the block there, nothing could be changed any more.
    fn may_resume(&self, reopen: &dyn Fn() -> Result<Registry, Error>) -> bool {
        let is_lent = *self.is_held.borrow() && self.shares_number;
        !is_lent || self.documents.note(reopen()).map(|registry| self.documents.reopen(registry)).is_ok()
    }

    /// Makes a change of an operator.
    async fn change(&self, change: &Change) -> Result<Map, DocumentsError> {
        let lost = match change {
            Change::Fail { node } if self.live.is_reachable(node) => {
                return Err(DocumentsError::Alive(node.clone()));
            }
            Change::Fail { node } => Some(node.as_str()),
            _ => None,
        };
        self.documents.change_without(lost, |map, alive| change.of(map, alive)).await
    }

    /// Ends moves to and from this node, and begins no other ones. From then on no slot becomes
    /// another node's, and this process does not change the documents.
    async fn hold(&self) -> Result<(), String> {
        self.is_held.send_replace(true);
        self.live.hold_moves(true);
        let mut changes = self.changes.subscribe();
        let idle = timeout(self.hand_over_max, async {
            // A map says whose these are: the move is committed, or aborted by this process.
            while self.live.sealed_slots() > 0 {
                sleep(LOOK).await;
            }
            // Fails only if the steward ends.
            let _ = changes.wait_for(|count| *count == 0).await;
            // Those that took too long, and were given up, may still be written to a disk.
            self.documents.finish().await;
        })
        .await;
        idle.map_err(|_| {
            "a move of slots, or another change, has not ended, because the registry does not answer".into()
        })
    }

    /// Runs a step that may change the documents, which the hand-over to another process awaits.
    pub(super) async fn changing<T>(&self, step: impl Future<Output = T>) -> T {
        self.changes.send_modify(|count| *count += 1);
        let result = step.await;
        self.changes.send_modify(|count| *count -= 1);
        result
    }

    /// Waits until a map of this version, or a later one, is in force: a thread of the server does that.
    pub(super) async fn until_in_force(&self, version: u64) {
        while self.live.map_version() < version {
            sleep(MAP_LOOK).await;
        }
    }

    /// Waits until another process may use this node's number of the registry's disk.
    async fn wait_for_loan(&self) {
        match self.shares_number {
            // Fails only if the steward ends.
            true => _ = self.is_held.subscribe().wait_for(|is_held| *is_held).await,
            false => std::future::pending().await,
        }
    }

    /// Waits while another process uses this node's number of the registry's disk.
    pub(super) async fn wait_for_disk(&self) {
        if self.shares_number {
            // Fails only if the steward ends.
            let _ = self.is_held.subscribe().wait_for(|is_held| !is_held).await;
        }
    }

    fn resume(&self) {
        self.live.hold_moves(false);
        self.is_held.send_replace(false);
    }
}
