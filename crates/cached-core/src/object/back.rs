//! Changing in the cache first: applied in RAM, acknowledged as *cached*, stored later; or now, if the
//! caller wants it *stored*.
//!
//! The order in which a change gets what it needs: what the object is, then room for dirty data, then
//! buckets, then (only if the store must be asked, or has a change of its own under way) the range. So
//! nobody holds a range or a bucket while waiting for what another holder of one needs.

use blocker::admission::{Head as StoreHead, admit};
use blocker::{
    Call, Change, ChangeReply, Durability, Error, ObjectId, OrderDomain, Result, Run, RunContent, Scope,
    Segments, Timestamp, Version,
};

use super::copy::Adoption;
use super::handle::{Handle, OwnedMeans, RangeGuard};
use super::load::{load, load_head};
use super::pool::{BUCKET, Reserved};
use super::ranges::{Buckets, Kind, WHOLE};
use super::read::{LOADS_MAX, changes_too_fast};
use super::shared::Shared;
use super::state::{Env, Known, Means, Need, Object, buckets_of};
use super::through::store_pending;
use super::waiter::{FlushTicket, Stored};
use crate::sync::{Arc, AtomicU32, Ordering};

/// What is to become of an object.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    Write {
        offset: u64,
        data: Segments,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
    },
    /// At least one, in order, none empty.
    WriteRuns {
        runs: Vec<Run>,
    },
    Discard {
        offset: u64,
        len: u64,
    },
    CompareAndWrite {
        offset: u64,
        expected: Segments,
        data: Segments,
    },
    WriteFull {
        data: Segments,
    },
    Truncate {
        size: u64,
    },
    Delete,
    /// A change that leaves every byte as it is: copying onto itself.
    Touch,
    /// All content is replaced by that of another object; in the cache only.
    Adopt(Adoption),
}

impl Mutation {
    /// The buckets it is about.
    pub(crate) fn buckets(&self) -> Buckets {
        match self {
            Self::Write { offset, data } => buckets_of(*offset, data.len_bytes() as u64),
            Self::CompareAndWrite { offset, expected, data } => {
                buckets_of(*offset, data.len_bytes().max(expected.len_bytes()) as u64)
            }
            Self::WriteZeroes { offset, len } | Self::Discard { offset, len } => buckets_of(*offset, *len),
            Self::WriteRuns { runs } => {
                let from = runs.first().map_or(0, |run| run.offset);
                buckets_of(from, self.end().saturating_sub(from))
            }
            Self::WriteFull { .. } | Self::Truncate { .. } | Self::Delete | Self::Touch | Self::Adopt(_) => {
                WHOLE
            }
        }
    }

    /// The most buckets it can use.
    fn buckets_max(&self) -> u32 {
        match self {
            // Only its two ends are written, the rest becomes a state.
            Self::WriteZeroes { .. } | Self::Discard { .. } => 2,
            Self::WriteRuns { runs } => runs.iter().map(run_buckets_max).sum(),
            Self::WriteFull { data } => data.len_bytes().div_ceil(BUCKET) as u32,
            Self::Truncate { .. } => 1,
            Self::Delete | Self::Touch | Self::Adopt(_) => 0,
            Self::Write { .. } | Self::CompareAndWrite { .. } => {
                let buckets = self.buckets();
                buckets.end - buckets.start
            }
        }
    }

    /// The most buckets of the dirty limit that what it writes takes: zeros count where they reach.
    fn dirties_max(&self) -> u64 {
        let reach = |offset, len| {
            let buckets = buckets_of(offset, len);
            u64::from(buckets.end - buckets.start)
        };
        match self {
            Self::WriteZeroes { offset, len } | Self::Discard { offset, len } => reach(*offset, *len),
            Self::WriteRuns { runs } => runs.iter().map(|run| reach(run.offset, run.len_bytes())).sum(),
            // And that all there was before is cut off.
            Self::WriteFull { .. } => u64::from(self.buckets_max()) + 1,
            _ => u64::from(self.buckets_max()),
        }
    }

    /// Where the bytes that it writes end, for what moves the object's end by writing beyond; 0 if it writes
    /// none.
    pub(super) fn end(&self) -> u64 {
        let end = |offset: u64, len: u64| if len == 0 { 0 } else { offset + len };
        match self {
            Self::Write { offset, data } | Self::CompareAndWrite { offset, data, .. } => {
                end(*offset, data.len_bytes() as u64)
            }
            Self::WriteZeroes { offset, len } => end(*offset, *len),
            Self::WriteRuns { runs } => runs.last().map_or(0, |run| end(run.offset, run.len_bytes())),
            _ => 0,
        }
    }

    /// Whether it needs an object to be there.
    fn needs_present(&self) -> bool {
        !matches!(
            self,
            Self::Write { .. }
                | Self::WriteZeroes { .. }
                | Self::WriteRuns { .. }
                | Self::WriteFull { .. }
                | Self::Adopt(_)
        )
    }
}

/// The most buckets that one of several runs can use.
pub(super) fn run_buckets_max(run: &Run) -> u32 {
    match &run.content {
        RunContent::Data(_) => {
            let buckets = buckets_of(run.offset, run.len_bytes());
            buckets.end - buckets.start
        }
        RunContent::Zeroes(_) => 2,
    }
}

/// Why a change was not applied.
pub(crate) enum Blocked {
    /// It never will be.
    Failed(Error),
    /// The store must be asked what the object is.
    Head,
    /// The store must be asked for the epoch of the order domain.
    Domain(OrderDomain),
    /// The namespace's epoch must be claimed, or looked up.
    Owner,
    /// Changes of another order domain must be stored first: one flush is sent under one domain's epoch.
    OtherDomain,
    /// A change of the same range is on its way to the store.
    Changing,
    Need(Need),
}

/// A change to be applied.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    id: &'a ObjectId,
    mutation: &'a Mutation,
    change: &'a Change,
    /// Whether the caller speaks for the range.
    owns_range: bool,
}

/// A change that was applied.
pub(crate) struct Applied {
    pub(crate) reply: ChangeReply,
    /// The number to hurry the object's flush by, and whether anything is left to store.
    registered: u64,
    is_pending: bool,
}

impl Shared {
    /// Applies a change in the object's turn, or tells what it lacks.
    pub(crate) fn apply(
        &self,
        object: &mut Object,
        env: &Env<'_>,
        wanted: &Wanted<'_>,
        means: &mut Means<'_>,
    ) -> Result<Applied, Blocked> {
        let Wanted { id, mutation, change, owns_range } = *wanted;
        let fences = self.fences_callers();
        if !self.owns(object) {
            return Err(Blocked::Owner);
        }
        if object.head.known == Known::Unknown || fences && !object.head.is_full {
            return Err(Blocked::Head);
        }
        if fences && let Some(domain) = change.domain.filter(|it| object.head.domain_asked != Some(*it)) {
            return Err(Blocked::Domain(domain));
        }
        if !owns_range && object.is_changing(&mutation.buckets()) {
            return Err(Blocked::Changing);
        }
        if object.has_other_domain(change.domain) {
            return Err(Blocked::OtherDomain);
        }
        let is_present = object.head.known == Known::Present;
        let version = is_present.then_some(Version(object.head.version));
        let claimed = self.claimed(id, change.domain).0.max(object.head.claimed);
        let head = StoreHead { version, stamp: object.head.stamp };
        admit(head, blocker::Epoch(claimed), change).map_err(Blocked::Failed)?;
        if mutation.needs_present() && !is_present {
            return Err(Blocked::Failed(Error::Missing));
        }
        let credits = means.credits;
        let is_rewrite = is_present
            && matches!(mutation, Mutation::Write { offset, data } if object.rewrite(env, *offset, data));
        if !is_rewrite {
            let mut need = object.need_of(env, mutation, means)?;
            let room = object.room_for(mutation);
            need.credits += room;
            if need.load.is_some() || need.buckets > means.reserved.count() || need.credits > means.credits {
                return Err(Blocked::Need(need));
            }
            object.mutate(env, mutation, means);
            object.keep_room(env, room, means);
            self.repaired_by(id, mutation);
        }
        let now = if object.asks_for_time() { self.clock.now() } else { Timestamp(0) };
        let version = self.next_version(env.hash);
        object.note_change(now, version, change.domain);
        object.pending.is_acknowledged |= change.durability == Durability::Cached;
        let is_pending = self.register(object, env);
        if means.credits < credits && self.gauges.has_begun_to_press() {
            self.background.wake();
        }
        self.gauges.count_write(env.hash);
        let reply = ChangeReply::new(Version(version), object.head.size, Durability::Cached);
        Ok(Applied { reply, registered: object.pending.registered, is_pending })
    }

    /// A change of an object has been made: what was lost of it is made good if all of it was written, or removed.
    #[inline]
    pub(crate) fn repaired_by(&self, id: &ObjectId, mutation: &Mutation) {
        if self.losses.is_any()
            && matches!(mutation, Mutation::WriteFull { .. } | Mutation::Delete | Mutation::Adopt(_))
        {
            self.losses.repair(&Scope::Object(id.clone()));
        }
    }

    /// Tells the registry if something waits to be stored now; settles if nothing does.
    pub(crate) fn register(&self, object: &mut Object, env: &Env<'_>) -> bool {
        let is_pending = object.has_pending() || object.flushing.is_some();
        if object.has_pending() && object.pending.registered == 0 {
            object.pending.registered = self.registry.enter(env.node, object.pending.dirty_since);
            if self.is_under_pressure() || self.registry.is_first() {
                self.background.wake();
            }
        } else if !is_pending {
            object.settle().into_iter().for_each(|(ticket, result)| ticket.settle(result));
        }
        is_pending
    }

    /// Whether flushing should not wait for age.
    pub(crate) fn is_under_pressure(&self) -> bool {
        self.gauges.presses()
            || self.gauges.dirty_waiters.has_waiters()
            || self.pool.waiters().has_waiters()
            || self.node_waiters.has_waiters()
    }

    /// Applies a change right now, if everything for it is at hand.
    #[inline]
    pub(crate) fn apply_at_once(
        &self,
        id: &ObjectId,
        hash: u64,
        mutation: &Mutation,
        change: &Change,
    ) -> Option<Result<ChangeReply>> {
        let mut means = Means { reserved: Reserved::none(&self.pool), credits: 0, loaded: None };
        let wanted = Wanted { id, mutation, change, owns_range: false };
        let mut answer = None;
        for is_last in [false, true] {
            let ahead = |object: &Object, env: &Env<'_>| {
                if let Mutation::Write { offset, .. } = mutation {
                    object.prefetch(env, *offset, super::state::LINES_WRITTEN);
                }
            };
            let apply = |object: &mut Object, env: &Env<'_>| self.apply(object, env, &wanted, &mut means);
            match self.at_once(hash, id, ahead, apply) {
                Some(Ok(applied)) => answer = Some(Ok(applied.reply)),
                Some(Err(Blocked::Failed(error))) => answer = Some(Err(error)),
                Some(Err(Blocked::Need(need))) if !is_last && need.load.is_none() => {
                    let gauges = &self.gauges;
                    let has_room = || gauges.take_credits(need.credits).then_some(());
                    if gauges.dirty_waiters.try_take(has_room).is_some() {
                        means.credits = need.credits;
                        if let Some(reserved) = self.pool.waiters().try_take(|| self.reserve(need.buckets)) {
                            means.reserved = reserved;
                            continue;
                        }
                    }
                }
                _ => (),
            }
            break;
        }
        self.gauges.give_back(means.credits);
        answer
    }
}

impl Object {
    fn need_of(&self, env: &Env<'_>, mutation: &Mutation, means: &Means<'_>) -> Result<Need, Blocked> {
        Ok(match mutation {
            Mutation::Write { offset, data } => self.need_of_data(env, *offset, data, means),
            Mutation::WriteZeroes { offset, len } => self.need_of_zeroes(env, *offset, *len, means),
            // Two runs in one bucket count it twice: what is left over is given back.
            Mutation::WriteRuns { runs } => {
                runs.iter().fold(Need::default(), |sum, run| sum.and(self.need_of_run(env, run, means)))
            }
            Mutation::Discard { offset, len } => {
                self.need_of_zeroes(env, *offset, self.within(*offset, *len), means)
            }
            Mutation::CompareAndWrite { offset, expected, data } => {
                let len = expected.len_bytes() as u64;
                let need = self.need_of_write(env, *offset, data.len_bytes() as u64, means);
                let found = match self.read(env, *offset, len, means.loaded) {
                    Ok(found) => found,
                    Err(lacking) => return Ok(need.and(lacking)),
                };
                if let Some(at) = expected.first_difference(&found.to_bytes()) {
                    return Err(Blocked::Failed(Error::Mismatch { offset: offset + at as u64 }));
                }
                need
            }
            Mutation::WriteFull { data } => {
                let credits = data.len_bytes().div_ceil(BUCKET) as u32;
                Need { buckets: credits - self.adoptable(env, 0, data), credits, load: None }
            }
            Mutation::Truncate { size } => self.need_of_truncate(env, *size),
            Mutation::Delete | Mutation::Touch | Mutation::Adopt(_) => Need::default(),
        })
    }

    fn need_of_run(&self, env: &Env<'_>, run: &Run, means: &Means<'_>) -> Need {
        match &run.content {
            RunContent::Data(data) => self.need_of_write(env, run.offset, data.len_bytes() as u64, means),
            RunContent::Zeroes(len) => self.need_of_zeroes(env, run.offset, *len, means),
        }
    }

    /// The part of a range that lies within the object.
    fn within(&self, offset: u64, len: u64) -> u64 {
        self.head.size.saturating_sub(offset).min(len)
    }

    fn mutate(&mut self, env: &Env<'_>, mutation: &Mutation, means: &mut Means<'_>) {
        let creates = self.head.known == Known::Absent && !matches!(mutation, Mutation::Delete);
        if creates {
            self.head.known = Known::Present;
            self.head.size = 0;
            self.pending.size_dirty = true;
        }
        match mutation {
            Mutation::Write { offset, data } | Mutation::CompareAndWrite { offset, data, .. } => {
                self.write(env, *offset, data, means);
            }
            Mutation::WriteZeroes { offset, len } => self.write_zeroes(env, *offset, *len, true, means),
            Mutation::WriteRuns { runs } => runs.iter().for_each(|run| match &run.content {
                RunContent::Data(data) => self.write(env, run.offset, data, means),
                RunContent::Zeroes(len) => self.write_zeroes(env, run.offset, *len, true, means),
            }),
            Mutation::Discard { offset, len } => {
                self.write_zeroes(env, *offset, self.within(*offset, *len), false, means);
            }
            Mutation::WriteFull { data } => {
                self.replace(env, Known::Present);
                self.write(env, 0, data, means);
            }
            Mutation::Truncate { size } => self.truncate(env, *size, means),
            Mutation::Delete => self.replace(env, Known::Absent),
            Mutation::Touch => (),
            Mutation::Adopt(adoption) => self.become_copy(env, adoption),
        }
    }
}

/// Whether a change is still to be made: it is made in the object's turn, perhaps on another thread, while whoever
/// asked for it watches the clock. Only one of the two has its way.
#[derive(Default)]
struct Fate(AtomicU32);

impl Fate {
    const OPEN: u32 = 0;
    const GIVEN_UP: u32 = 1;
    const MADE: u32 = 2;

    fn decide(&self, to: u32) -> bool {
        self.0.compare_exchange(Self::OPEN, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Whether the change will never be made. If not, it is made, or found to be impossible yet, by now or in a moment.
    fn give_up(&self) -> bool {
        self.decide(Self::GIVEN_UP)
    }

    /// Makes the change, unless it was given up.
    fn make<T>(&self, make: impl FnOnce() -> Result<T, Blocked>) -> Result<T, Blocked> {
        if !self.decide(Self::MADE) {
            return Err(Blocked::Failed(Error::DeadlinePassed));
        }
        let made = make();
        if made.is_err() {
            self.0.store(Self::OPEN, Ordering::SeqCst);
        }
        made
    }
}

/// A change that could not be applied at once, or that is to be stored.
pub(crate) async fn change(
    shared: Arc<Shared>,
    id: ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
) -> Result<ChangeReply> {
    let deadline = call.deadline;
    let fate = Arc::new(Fate::default());
    let work = apply_when_possible(&shared, &id, hash, mutation, change, call, Arc::clone(&fate));
    let give_up = || fate.give_up();
    let (handle, applied) = shared.until_given_up(deadline, give_up, || Error::DeadlinePassed, work).await?;
    if change.durability == Durability::Cached || !applied.is_pending {
        let durability = if applied.is_pending { Durability::Cached } else { change.durability };
        return Ok(safe_as(applied.reply, durability));
    }
    let ticket = Arc::new(FlushTicket::default());
    shared.wait_stored(&handle, &ticket, applied.registered).await;
    let late = || Error::NotStored(ticket.why());
    shared.until(deadline, late, Stored(Arc::clone(&ticket))).await?;
    shared.losses.check(&Scope::Object(id))?;
    Ok(safe_as(applied.reply, Durability::Stored))
}

impl Shared {
    /// Adds to `ticket` that all of an object up to now is to be stored, and hurries it.
    pub(crate) async fn wait_stored(&self, handle: &Handle, ticket: &Arc<FlushTicket>, registered: u64) {
        let own = Arc::clone(ticket);
        let shared = Arc::clone(&handle.shared);
        handle
            .enter(move |object, _| {
                if object.flushing.is_none() && !object.has_pending() {
                    return;
                }
                own.add();
                let seq = object.pending.change_seq;
                object.activity().flush_waiters.push((seq, own));
                shared.registry.hurry(object.pending.registered);
            })
            .await;
        self.registry.hurry(registered);
        self.background.wake();
    }
}

async fn apply_when_possible(
    shared: &Arc<Shared>,
    id: &ObjectId,
    hash: u64,
    mutation: Mutation,
    change: Change,
    call: Call,
    fate: Arc<Fate>,
) -> Result<(Handle, Applied)> {
    let handle = Handle::acquire(shared, id, hash).await?;
    let mutation = Arc::new(mutation);
    let most = mutation.buckets_max();
    let mut means = None;
    let mut guard: Option<RangeGuard> = None;
    let mut loaded = None;
    let mut loads = 0;
    loop {
        let mut lent = means.take().unwrap_or_else(|| OwnedMeans::none(shared));
        let (own, wanted, bytes, fate) =
            (handle.clone(), Arc::clone(&mutation), loaded.take(), Arc::clone(&fate));
        let ticket = guard.as_ref().map(RangeGuard::ticket);
        let (applied, back, bytes) = handle
            .enter(move |object, env| {
                let is_void = ticket.is_some_and(|ticket| object.take_stale(ticket));
                let bytes = bytes.filter(|_| !is_void);
                let applied = lent.lend(bytes.as_ref(), |means| {
                    let owns_range = ticket.is_some();
                    let wanted = Wanted { id: own.id(), mutation: &wanted, change: &change, owns_range };
                    fate.make(|| own.shared.apply(object, env, &wanted, means))
                });
                (applied, lent, bytes)
            })
            .await;
        match applied {
            Ok(applied) => return Ok((handle, applied)),
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Head) => {
                (guard, means) = (None, Some(back));
                load_head(&handle, call).await?;
            }
            Err(Blocked::Owner) => {
                drop(back);
                (guard, means) = (None, None);
                let generation = shared.owner.generation();
                shared.own_epoch(&id.namespace).await?;
                handle.enter(move |object, _| object.head.owned = generation).await;
            }
            Err(Blocked::Domain(domain)) => {
                let scope = Scope::Domain(id.namespace.clone(), domain);
                let epoch = shared.ask_epoch(scope.clone()).await?;
                shared.note_claim(&scope, epoch);
                handle.enter(move |object, _| object.head.domain_asked = Some(domain)).await;
                means = Some(back);
            }
            Err(Blocked::OtherDomain) => {
                (guard, means) = (None, Some(back));
                match store_pending(&handle).await {
                    // What was lost is recorded, and nothing of it is left.
                    Ok(()) | Err(Error::WritesLost(_)) => (),
                    Err(error) => return Err(error),
                }
            }
            Err(Blocked::Changing) => {
                means = Some(back);
                guard = Some(handle.lock_range(mutation.buckets(), Kind::Change).await?);
            }
            // Before the store is asked: what it gives is good only as long as the range is ours.
            Err(Blocked::Need(need)) if back.lack(&need) => {
                drop(back);
                guard = None;
                means =
                    Some(OwnedMeans::acquire(shared, most.max(need.buckets), most.max(need.credits)).await?);
            }
            Err(Blocked::Need(need)) => {
                means = Some(back);
                let Some(guard) = &guard else {
                    guard = Some(handle.lock_range(mutation.buckets(), Kind::Change).await?);
                    continue;
                };
                loads += 1;
                if loads > LOADS_MAX {
                    return Err(changes_too_fast());
                }
                // The range is ours, so what comes stays true until it is used, or is void; so does what came
                // before.
                let (range, earlier) = (need.load.unwrap_or_default(), bytes.unwrap_or_default());
                loaded = load(&handle, guard, range, call, false, earlier).await?;
            }
        }
    }
}

/// The reply, for a change that is as safe as this.
pub(crate) fn safe_as(mut reply: ChangeReply, durability: Durability) -> ChangeReply {
    reply.durability = durability;
    reply
}

/// Whether a change is too large for the cache, and must go to the store at once.
pub(crate) fn is_too_large(shared: &Shared, mutation: &Mutation) -> bool {
    let (quarter, dirty_max) = (u64::from(shared.pool.count() / 4), shared.gauges.dirty_max());
    u64::from(mutation.buckets_max()) > quarter || mutation.dirties_max() > dirty_max
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use blocker::clock::Sleep;
    use blocker::executor::block_on;
    use blocker::{Clock, Memory, Name, Namespace, WriteMode};

    use super::super::config::{MEMORY_BYTES_MIN, ObjectCacheConfig};
    use super::super::{ObjectCache, read};
    use super::*;

    /// A clock whose alarms ring when they are first looked at, and do something else just before.
    #[derive(Default)]
    struct Ringing(Arc<Mutex<Option<Before>>>);

    /// What is done just before an alarm rings.
    type Before = Box<dyn FnOnce() + Send>;

    struct Alarm(Arc<Mutex<Option<Before>>>);

    impl Future for Alarm {
        type Output = ();
        fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
            let first = self.0.lock().unwrap().take();
            first.into_iter().for_each(|first| first());
            Poll::Ready(())
        }
    }

    impl Clock for Ringing {
        fn now(&self) -> Timestamp {
            Timestamp(0)
        }
        fn sleep_until(&self, _: Timestamp) -> Sleep {
            Box::pin(Alarm(Arc::clone(&self.0)))
        }
    }

    /// The object's turn comes between the look at the answer and the look at the clock: the change is made, and that is
    /// what its caller is told. If the turn comes later, nothing is made.
    #[test]
    fn at_its_deadline_a_change_is_made_or_given_up_and_not_both() {
        for turn_comes_first in [true, false] {
            let clock = Arc::new(Ringing::default());
            let config = ObjectCacheConfig {
                memory_bytes_max: MEMORY_BYTES_MIN,
                dirty_bytes_max: MEMORY_BYTES_MIN / 2,
                write: WriteMode::Back,
                hash_seed: Some(1),
                ..ObjectCacheConfig::default()
            };
            let cache =
                ObjectCache::new(Arc::new(Memory::default()), config, Arc::clone(&clock) as _).unwrap();
            let id = ObjectId::new(Namespace::new("n").unwrap(), Name::new("o").unwrap());
            let write = |byte: u8| blocker::WriteRequest::new(id.clone(), 0, vec![byte; 4096]);
            block_on(blocker::Blocker::write(&cache, write(1))).unwrap();
            let shared = Arc::clone(cache.shared());
            let hash = shared.hash(&id);
            // Somebody else is inside, and stays there until it is let go.
            let handle = block_on(Handle::acquire(&shared, &id, hash)).unwrap();
            let (entered, inside) = std::sync::mpsc::channel();
            let (let_go, wait) = std::sync::mpsc::channel::<()>();
            let other = handle.clone();
            let thread = std::thread::spawn(move || {
                block_on(other.enter(move |_, _| {
                    entered.send(()).unwrap();
                    wait.recv().unwrap();
                }));
            });
            inside.recv().unwrap();
            let end = move || {
                let_go.send(()).unwrap();
                thread.join().unwrap();
            };
            let mut end = Some(end);
            if turn_comes_first {
                *clock.0.lock().unwrap() = Some(Box::new(end.take().unwrap()));
            }
            let late = blocker::Blocker::write(&cache, write(2).deadline(Timestamp(1)));
            let mut late = Box::pin(std::future::IntoFuture::into_future(late));
            let mut cx = Context::from_waker(Waker::noop());
            let mut answer = late.as_mut().poll(&mut cx);
            if answer.is_pending() {
                answer = late.as_mut().poll(&mut cx);
            }
            let Poll::Ready(answer) = answer else { panic!("an answer at the deadline") };
            drop(late);
            end.into_iter().for_each(|end| end());
            let request = Arc::new(blocker::ReadRequest::new(id.clone(), 0, 1));
            let found = block_on(read::read(Arc::clone(&shared), (*request).clone(), hash)).unwrap();
            let is_made = found.data.to_vec() == [2];
            assert_eq!(is_made, turn_comes_first);
            match is_made {
                true => assert!(answer.is_ok(), "{answer:?}"),
                false => assert_eq!(answer.unwrap_err(), Error::DeadlinePassed),
            }
        }
    }
}
