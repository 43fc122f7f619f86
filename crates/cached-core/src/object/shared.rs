//! What all operations of one cache share, and how they get at it: a turn with an object, memory, room
//! for dirty data, the store.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Poll, Waker};

use blocker::admission::Claims;
use blocker::{
    Blocker, Capabilities, ClaimRequest, Clock, Epoch, Error, EventHub, Namespace, ObjectId, OrderDomain,
    Result, Scope, Timestamp, WriteMode,
};

use super::config::{ObjectCacheConfig, Writer};
use super::gauges::{Gauges, add};
use super::hooks::Hooks;
use super::index::{InUse, Index};
use super::losses::Losses;
use super::order;
use super::owner::Owner;
use super::pool::{Pool, Reserved};
use super::queue::{Queues, bucket_hash};
use super::registry::Registry;
use super::state::{Env, Object};
use super::versions::Versions;
use super::wait::{Permits, WaitQueue};
use crate::hash::KeyHasher;
use crate::sync::{Arc, AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// A task that goes on although nobody waits for it any more.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

const VERSION_STRIPES: usize = 8;
/// Buckets that are evicted beyond what is needed, so that the next few find some.
const EVICT_AHEAD: u32 = 4;

/// See the module.
pub(crate) struct Shared {
    pub(crate) below: Arc<dyn Blocker>,
    pub(crate) can: Capabilities,
    pub(crate) config: ObjectCacheConfig,
    policies: HashMap<Namespace, WriteMode>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) hooks: Arc<dyn Hooks>,
    pub(crate) pool: Pool,
    pub(crate) queues: Queues,
    pub(crate) gauges: Gauges,
    pub(crate) index: Index,
    pub(crate) registry: Registry,
    /// What was acknowledged here and can never be stored.
    pub(crate) losses: Losses,
    pub(crate) hub: EventHub,
    hasher: KeyHasher,
    /// Claims that went through here or were asked for; and how many, to be looked at first.
    pub(crate) claims: Mutex<Claims>,
    pub(crate) claims_count: AtomicU32,
    versions: [AtomicU64; VERSION_STRIPES],
    pub(crate) remembered: Versions,
    turn: AtomicU32,
    /// An evictor has been sent away by an object that was busy; looked at by whoever leaves an object's turn.
    has_missed_eviction: AtomicBool,
    pub(crate) node_waiters: WaitQueue,
    pub(crate) load_permits: Permits,
    pub(crate) flush_permits: Permits,
    pub(crate) background: Background,
    /// What this cache has claimed for itself, where it is the writer.
    pub(crate) owner: Owner,
    /// One object at a time is read back and written in full.
    pub(crate) restoring: Permits,
    /// For the one copy that may have one object's place while it waits for another's.
    pub(crate) pairing: Permits,
    /// Flushes that failed since one succeeded.
    pub(crate) failing: AtomicU32,
}

/// Work that the background takes over, and how to wake it.
pub(crate) struct Background {
    state: Mutex<BackgroundState>,
}

impl Default for Background {
    fn default() -> Self {
        Self { state: Mutex::ranked(BackgroundState::default(), &order::BACKGROUND) }
    }
}

#[derive(Default)]
struct BackgroundState {
    orphans: Vec<Task>,
    waker: Option<Waker>,
    is_closed: bool,
}

impl Background {
    /// Something has changed that it should look at.
    pub(crate) fn wake(&self) {
        let waker = lock(&self.state).waker.take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes over a task that has lost its caller.
    pub(crate) fn adopt(&self, task: Task) {
        let waker = {
            let mut state = lock(&self.state);
            state.orphans.push(task);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// The tasks taken over since the last time; whether no handle is left.
    pub(crate) fn look(&self, waker: &Waker) -> (Vec<Task>, bool) {
        let mut state = lock(&self.state);
        state.waker = Some(waker.clone());
        (std::mem::take(&mut state.orphans), state.is_closed)
    }

    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.wake();
    }
}

impl Shared {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        below: Arc<dyn Blocker>,
        config: ObjectCacheConfig,
        clock: Arc<dyn Clock>,
        hooks: Arc<dyn Hooks>,
        pool: Pool,
        queues: Queues,
        index: Index,
    ) -> Self {
        let seed = config.hash_seed;
        let random = |stripe: usize| {
            let own = seed.map(|seed| seed.wrapping_add(1 + stripe as u64));
            KeyHasher::new(own).hash(b"versions").0
        };
        let dirty_max = config.dirty_bytes_max / blocker::BUCKET_BYTES;
        Self {
            can: below.capabilities(),
            policies: config.namespaces.iter().map(|each| (each.namespace.clone(), each.write)).collect(),
            gauges: Gauges::new(dirty_max.min(u64::from(pool.count()) / 4 * 3).max(1)),
            index,
            registry: Registry::default(),
            losses: Losses::default(),
            hub: EventHub::new(),
            hasher: KeyHasher::new(seed),
            claims: Mutex::ranked(Claims::default(), &order::CLAIMS),
            claims_count: AtomicU32::new(0),
            remembered: Versions::new(config.objects_count_max),
            versions: std::array::from_fn(|stripe| AtomicU64::new(random(stripe))),
            turn: AtomicU32::new(0),
            has_missed_eviction: AtomicBool::new(false),
            node_waiters: WaitQueue::default(),
            load_permits: Permits::new(config.load_requests_max),
            flush_permits: Permits::new(config.flush_requests_max),
            background: Background::default(),
            owner: Owner::new(),
            restoring: Permits::new(1),
            pairing: Permits::new(1),
            failing: AtomicU32::new(0),
            below,
            config,
            clock,
            hooks,
            pool,
            queues,
        }
    }

    // --- names, versions, policies ------------------------------------------------------------------

    #[inline]
    pub(crate) fn hash(&self, id: &ObjectId) -> u64 {
        self.hasher.hash_pair(id.namespace.as_bytes(), id.name.as_bytes())
    }

    /// A version never used before.
    pub(crate) fn next_version(&self, hash: u64) -> u64 {
        self.versions[hash as usize % VERSION_STRIPES].fetch_add(1, Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn write_policy(&self, namespace: &Namespace) -> WriteMode {
        if self.policies.is_empty() {
            return self.config.write;
        }
        self.policies.get(namespace).copied().unwrap_or(self.config.write)
    }

    /// Whether stamps and claims of callers mean anything here.
    pub(crate) fn fences_callers(&self) -> bool {
        self.can.fencing && self.config.writer == Writer::Callers
    }

    /// The epoch in force for a change, as far as claims that are known here go.
    pub(crate) fn claimed(&self, id: &ObjectId, domain: Option<OrderDomain>) -> Epoch {
        if self.claims_count.load(Ordering::Acquire) == 0 {
            return Epoch(0);
        }
        lock(&self.claims).in_force(id, domain)
    }

    /// Notes that a scope is claimed.
    pub(crate) fn note_claim(&self, scope: &Scope, epoch: Epoch) {
        // Older news of the same scope, or more scopes than can be remembered: the store decides.
        if matches!(lock(&self.claims).note(scope, epoch, None), Ok(true)) {
            self.claims_count.fetch_add(1, Ordering::Release);
        }
    }

    /// Raises the epoch of a scope here, before the store is asked to. Returns the scope's epoch before, for
    /// [`Self::take_back_claim`]; `None` where the store alone decides.
    ///
    /// # Errors
    /// `Fenced` if a newer one is known to be in force.
    pub(crate) fn try_claim(&self, scope: &Scope, epoch: Epoch) -> Result<Option<Epoch>> {
        if !self.fences_callers() {
            return Ok(None);
        }
        let mut claims = lock(&self.claims);
        let in_force = claims.scope_epoch(scope);
        if epoch < in_force {
            return Err(Error::Fenced { epoch: in_force });
        }
        // Of a claim that is in force already the store knows the writer; more scopes than can be remembered: the
        // store decides.
        let before = claims.own_epoch(scope);
        if epoch == in_force || !matches!(claims.note(scope, epoch, None), Ok(true)) {
            return Ok(None);
        }
        drop(claims);
        self.claims_count.fetch_add(1, Ordering::Release);
        Ok(Some(before))
    }

    /// Takes back a claim that the store has refused for good.
    pub(crate) fn take_back_claim(&self, scope: &Scope, epoch: Epoch, before: Epoch) {
        lock(&self.claims).take_back(scope, epoch, before);
    }

    /// The epoch in force for a scope: claiming with epoch 0 changes nothing, and tells.
    pub(crate) async fn ask_epoch(&self, scope: Scope) -> Result<Epoch> {
        match self.below.claim(ClaimRequest::ask(scope)).await {
            Ok(reply) => Ok(reply.epoch),
            Err(Error::Fenced { epoch }) => Ok(epoch),
            // A question changes nothing, whatever became of it.
            Err(Error::OutcomeUnknown(why)) => Err(Error::Retryable(why)),
            Err(error) => Err(error),
        }
    }

    // --- a turn with an object ----------------------------------------------------------------------

    pub(crate) fn env(&self, node: u32, hash: u64) -> Env<'_> {
        Env {
            pool: &self.pool,
            queues: &self.queues,
            gauges: &self.gauges,
            versions: &self.remembered,
            node,
            hash,
            clock: &*self.clock,
        }
    }

    /// The object if it is known, in use.
    #[inline]
    pub(crate) fn find(&self, hash: u64, id: &ObjectId) -> Option<InUse<'_>> {
        let (in_use, reinserted) = self.index.get(hash, id)?;
        if reinserted {
            self.hooks.on_reinsert(id);
        }
        Some(in_use)
    }

    /// Runs `job` in the turn of the object called `id`, if it is known and its turn is now. `ahead` comes before
    /// the name has been compared, and may ask for memory that `job` will want.
    #[inline]
    pub(crate) fn at_once<R>(
        &self,
        hash: u64,
        id: &ObjectId,
        ahead: impl FnOnce(&Object, &Env<'_>),
        job: impl FnOnce(&mut Object, &Env<'_>) -> R,
    ) -> Option<R> {
        let mut found = self.index.turn(hash)?;
        let env = self.env(found.at, hash);
        ahead(found.turn.value(), &env);
        if !found.is(id) {
            return None;
        }
        let reinserted = found.reinserted;
        let answer = job(found.turn.value(), &env);
        drop(found);
        if reinserted {
            self.hooks.on_reinsert(id);
        }
        // Who wanted to evict the object, or a bucket of it, may have found us inside.
        self.node_waiters.notify();
        self.left_turn();
        Some(answer)
    }

    /// An evictor is about to be sent away: those who leave a turn from now on wake whoever waits for buckets.
    pub(crate) fn note_missed_eviction(&self) {
        self.has_missed_eviction.store(true, Ordering::SeqCst);
    }

    /// A turn has been left, or something else has ended that keeps buckets.
    #[inline]
    pub(crate) fn left_turn(&self) {
        if self.has_missed_eviction.load(Ordering::SeqCst)
            && self.has_missed_eviction.swap(false, Ordering::SeqCst)
        {
            self.pool.waiters().notify();
        }
    }

    /// Runs `job` in the object's turn if that is now.
    #[inline]
    pub(crate) fn try_enter<R, F>(&self, in_use: InUse<'_>, job: F) -> Option<R>
    where
        F: FnOnce(&mut Object, &Env<'_>) -> R,
    {
        let env = self.env(in_use.at, in_use.node.hash());
        in_use.node.serial.try_run(|object| job(object, &env)).ok()
    }

    /// Empties an object that leaves, if it can.
    pub(crate) fn clear_to_leave(&self, at: u32, hash: u64, object: &mut Object) -> bool {
        let goes = object.is_idle();
        if goes {
            object.clear_all(&self.env(at, hash));
        }
        goes
    }

    /// An object that left was there.
    pub(crate) fn told_evicted(&self, id: &ObjectId, was_leaving: bool) {
        add(&self.gauges.object_evictions, 1);
        if !was_leaving {
            self.hooks.on_evict(id);
        }
        self.hooks.on_put(id);
        self.hooks.on_free();
    }

    /// The object `at` is done with what kept it.
    pub(crate) fn finalize(&self, at: u32) {
        if !self.index.is_leaving(at) {
            return;
        }
        if let Some(id) = self.index.finalize(at, |at, hash, object| self.clear_to_leave(at, hash, object)) {
            self.hooks.on_finalize(&id);
            self.told_evicted(&id, true);
            self.node_waiters.notify();
        }
    }

    // --- memory -------------------------------------------------------------------------------------

    /// Takes `count` buckets, evicting clean ones for them; fewer if there are none.
    pub(crate) fn reserve_up_to(&self, count: u32) -> Reserved<'_> {
        let mut reserved = self.pool.reserve_up_to(count);
        let mut tries = 0;
        while reserved.count() < count && tries < 2 * count + 64 {
            tries += 1;
            if !self.evict_one() {
                break;
            }
            if self.pool.free() > 0 {
                reserved.merge(self.pool.reserve_up_to(count - reserved.count()));
            }
        }
        if tries > 0 && reserved.count() == count && self.pool.free() < EVICT_AHEAD {
            (0..EVICT_AHEAD).all(|_| self.evict_one());
        }
        reserved
    }

    /// Takes exactly `count`, or none. Called by [`WaitQueue`] alone, which lets others look afterwards.
    pub(crate) fn reserve(&self, count: u32) -> Option<Reserved<'_>> {
        let reserved = self.reserve_up_to(count);
        if reserved.count() == count {
            return Some(reserved);
        }
        reserved.put_back();
        None
    }

    /// Evicts a clean bucket, or finds that the one in question cannot go now. False if there is none.
    fn evict_one(&self) -> bool {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        // A bucket in a queue has an owner; should that change this moment, any name will do.
        let hash_of = |bucket: u32| {
            let owner = self.pool.meta(bucket).owner();
            owner.map_or(0, |(node, at)| bucket_hash(self.index.node(node).hash(), at))
        };
        let Some(bucket) = self.queues.victim(&self.pool, turn, hash_of) else { return false };
        let Some((node, at)) = self.pool.meta(bucket).owner() else { return true };
        let owner = self.index.node(node);
        let env = self.env(node, owner.hash());
        // The owner is only tried: it may be busy, and whoever is inside may be waiting for us.
        let evict = |object: &mut Object| {
            let goes = object.evict(&env, at, bucket);
            if !goes {
                object.note_kept();
            }
            goes
        };
        let tried = match owner.serial.try_run(evict) {
            Ok(goes) => Some(goes),
            Err(evict) => {
                // Noted first, and tried once more: whoever was inside leaves before that, or sees the note.
                self.note_missed_eviction();
                owner.serial.try_run(evict).ok()
            }
        };
        if tried == Some(true) {
            add(&self.gauges.bucket_evictions, 1);
        } else {
            self.queues.put_back(&self.pool, bucket, hash_of);
        }
        if tried.is_some() {
            self.left_turn();
        }
        true
    }

    // --- waiting ------------------------------------------------------------------------------------

    /// Lets go of who waits for the store no more than until `deadline`.
    pub(crate) async fn until<T>(
        &self,
        deadline: Option<Timestamp>,
        late: impl FnOnce() -> Error,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.until_given_up(deadline, || true, late, work).await
    }

    /// As [`Self::until`], if at the deadline or later `give_up` says that the work can still be dropped without a
    /// trace; while it cannot, its answer is about to come.
    pub(crate) async fn until_given_up<T>(
        &self,
        deadline: Option<Timestamp>,
        give_up: impl Fn() -> bool,
        late: impl FnOnce() -> Error,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(deadline) = deadline else { return work.await };
        let mut sleep = self.clock.sleep_until(deadline);
        let mut is_late = false;
        let mut work = std::pin::pin!(work);
        let answer = poll_fn(|cx| {
            if let Poll::Ready(answer) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(answer));
            }
            if !is_late {
                std::task::ready!(sleep.as_mut().poll(cx));
                is_late = true;
            }
            if give_up() { Poll::Ready(None) } else { Poll::Pending }
        });
        answer.await.unwrap_or_else(|| Err(late()))
    }
}
