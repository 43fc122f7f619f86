//! Slots and their buckets: setting and releasing them, copying them before a change, filling them
//! from the store, and evicting them; and the resources that a step brings for this.

use blocker::{BUCKET_BYTES, Change, Segments};

use super::{Env, Known, Object, ReportedHead};
use crate::object::memory::pool::{BUCKET, Reserved};
use crate::object::memory::queue::{MARKED, PASSING, UNREAD};
use crate::object::memory::slots::{SECTOR_BYTES, Slot, State};
use crate::object::memory::{BUCKET_U64, Buckets, Cursor, SECTORS, WHOLE, parts, touched};
use crate::object::mutation::{Mutation, Piece};

impl Object {
    /// Returns whether the slot's bucket may be changed in place.
    #[inline]
    pub(super) fn is_exclusive(env: &Env<'_>, slot: Slot) -> bool {
        slot.state().has_bucket()
            && slot.state() != State::Writing
            && env.meta(slot.bucket()).refs() == 1
            && !env.pool.is_lent(slot.bucket())
    }

    /// Replaces a slot, and releases its bucket and its room for dirty data. Clearing a slot also
    /// invalidates bytes that were requested from the store earlier, because those bytes may be older
    /// than the cleared ones.
    pub(super) fn put(&mut self, env: &Env<'_>, at: u32, slot: Slot) {
        let (old, left) = self.exchange(env, at, slot);
        if is_dirty(old) {
            env.metrics.dirty_room.give_back(env.namespace, 1);
        }
        left.into_iter().for_each(|bucket| env.pool.release(bucket));
    }

    /// Replaces a slot by one whose bucket is newer than the store. The new slot keeps the old
    /// one's room for dirty data or takes some from `resources`, and `resources` receives the
    /// bucket that becomes free. So a write of many buckets takes the locks of the dirty room and
    /// of the free buckets once, not once per bucket.
    pub(super) fn put_dirty(&mut self, env: &Env<'_>, at: u32, slot: Slot, resources: &mut Resources<'_>) {
        let (old, left) = self.exchange(env, at, slot);
        resources.credits -= u32::from(!is_dirty(old));
        left.into_iter().for_each(|bucket| resources.reserved.release(bucket));
    }

    /// Replaces a slot. Returns the old slot, and the bucket that it no longer refers to; the
    /// caller then owns that reference.
    fn exchange(&mut self, env: &Env<'_>, at: u32, slot: Slot) -> (Slot, Option<u32>) {
        let old = self.slots.set(at, slot);
        if slot == Slot::ABSENT && old != Slot::ABSENT {
            self.invalidate_bytes(at..at + 1);
        }
        env.metrics.shift(env.namespace, old, slot);
        if !old.state().has_bucket() {
            return (old, None);
        }
        if old.state() == State::Clean && env.meta(old.bucket()).is_flagged() {
            Self::drop_flags(env, old.bucket());
        }
        // A bucket that is being evicted has already left its queue.
        let is_evicted =
            old.state() == State::Clean && !env.queues.unlink(env.pool, old.bucket(), env.bucket_name(at));
        if !slot.state().has_bucket() && !is_evicted {
            env.queues.removed(env.bucket_name(at), env.node);
        }
        if slot.state().has_bucket() && slot.bucket() == old.bucket() {
            return (old, None);
        }
        let meta = env.meta(old.bucket());
        if meta.owner() == Some((env.node, at)) {
            meta.set_owner(None);
        }
        (old, Some(old.bucket()))
    }

    /// Clears the flags of a bucket that is no longer the clean one that was read ahead or bypassed
    /// the cache.
    #[cold]
    pub(super) fn drop_flags(env: &Env<'_>, bucket: u32) {
        if env.meta(bucket).take_flags(UNREAD | MARKED | PASSING) & UNREAD != 0 {
            env.read_ahead.count_wasted(env.namespace);
        }
    }

    /// Makes an exclusive slot *dirty* that was *dirty as a whole*: from now on this object owns
    /// the bucket.
    pub(super) fn own_dirty(&mut self, env: &Env<'_>, at: u32, slot: Slot) -> Slot {
        let meta = env.meta(slot.bucket());
        meta.set_dirty(meta.valid());
        meta.set_owner(Some((env.node, at)));
        let own = Slot::of(State::Dirty, slot.bucket());
        self.set_state(env, at, own);
        own
    }

    /// Changes the state of a slot, which keeps its bucket.
    pub(super) fn set_state(&mut self, env: &Env<'_>, at: u32, slot: Slot) {
        let old = self.slots.set(at, slot);
        env.metrics.shift(env.namespace, old, slot);
    }

    /// Forgets a slot.
    pub(super) fn clear(&mut self, env: &Env<'_>, at: u32) {
        self.put(env, at, Slot::ABSENT);
    }

    /// Forgets a range of slots.
    pub(crate) fn forget(&mut self, env: &Env<'_>, buckets: Buckets) {
        let known = self.slots.known_from(buckets.start).map(|(at, _)| at);
        let known: Vec<u32> = known.take_while(|at| *at < buckets.end).collect();
        known.into_iter().for_each(|at| self.clear(env, at));
    }

    /// Forgets everything, because the object leaves the index.
    pub(crate) fn clear_all(&mut self, env: &Env<'_>) {
        self.forget(env, WHOLE);
        self.forget_head(env);
        *self = Self::default();
    }

    /// Evicts a clean bucket, if the slot still has it, except while the slot's bytes are being
    /// requested from the store: they would have to be requested again.
    pub(crate) fn evict(&mut self, env: &Env<'_>, at: u32, bucket: u32) -> bool {
        let is_evictable = self.has_clean(at, bucket) && env.meta(bucket).refs() == 1;
        let goes = is_evictable && !self.ranges().is_loading(at);
        if goes {
            self.clear(env, at);
        }
        goes
    }

    /// Returns whether the slot has this bucket and is clean.
    pub(crate) fn has_clean(&self, at: u32, bucket: u32) -> bool {
        self.slots.get(at) == Slot::of(State::Clean, bucket)
    }

    /// Returns the valid sectors of a slot, including sectors beyond the content, which are zeros.
    pub(super) fn valid(&self, env: &Env<'_>, at: u32) -> u8 {
        let slot = self.slots.get(at);
        match slot.state() {
            State::Absent => self.beyond(at),
            state if state.has_bucket() => env.meta(slot.bucket()).valid(),
            _ => u8::MAX,
        }
    }

    /// Returns the sectors of a slot that wait for a flush.
    pub(super) fn dirty(env: &Env<'_>, slot: Slot) -> u8 {
        match slot.state() {
            State::Dirty => env.meta(slot.bucket()).dirty(),
            State::DirtyWhole => env.meta(slot.bucket()).valid(),
            State::ZeroDirty => u8::MAX,
            _ => 0,
        }
    }

    /// Returns the sectors of a slot that begin beyond the store's content.
    pub(super) fn beyond(&self, at: u32) -> u8 {
        let start = u64::from(at) * BUCKET_U64;
        let within = self.content_end().saturating_sub(start).min(BUCKET_U64) as usize;
        !touched(0, within)
    }

    /// Takes a bucket to be changed instead of the slot's bucket. If `keep`, it gets a copy of the
    /// slot's content. Returns `None` if no bucket is reserved.
    pub(super) fn copy_up(
        &mut self,
        env: &Env<'_>,
        at: u32,
        resources: &mut Resources<'_>,
        keep: bool,
    ) -> Option<u32> {
        let slot = self.slots.get(at);
        let old = slot.state().has_bucket().then(|| env.pool.bytes(slot.bucket()));
        let bucket = resources.reserved.take(|bytes| match old {
            Some(old) if keep => bytes.copy_from_slice(old),
            _ if keep => bytes.fill(0),
            _ => (),
        })?;
        let meta = env.meta(bucket);
        meta.set_valid(if keep { self.valid(env, at) } else { 0 });
        meta.set_dirty(Self::dirty(env, slot));
        meta.set_owner(Some((env.node, at)));
        Some(bucket)
    }

    /// Fills the invalid sectors of an exclusive bucket with loaded data.
    pub(super) fn fill_up(&self, env: &Env<'_>, at: u32, bucket: u32, loaded: Option<&Loaded>) {
        let meta = env.meta(bucket);
        let missing = !meta.valid();
        if missing == 0 {
            return;
        }
        let start = u64::from(at) * BUCKET_U64;
        let beyond = self.beyond(at);
        let data = loaded.and_then(|loaded| loaded.slice(start, start + BUCKET_U64));
        if data.is_none() && missing & beyond == 0 {
            return;
        }
        let data = data.map(|data| data.to_bytes());
        let bytes = env.bytes_mut(bucket);
        let end = self.content_end().saturating_sub(start).min(BUCKET_U64) as usize;
        for sector in (0..SECTORS).filter(|sector| missing & 1 << sector != 0) {
            let (lo, hi) = (sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES);
            if beyond & 1 << sector != 0 {
                bytes[lo..hi].fill(0);
            } else if let Some(data) = &data {
                let reach = end.clamp(lo, hi);
                bytes[lo..reach].copy_from_slice(&data[lo..reach]);
                bytes[reach..hi].fill(0);
            } else {
                continue;
            }
            meta.set_valid(meta.valid() | 1 << sector);
        }
    }
}

/// Returns whether a slot has a bucket that takes up room for dirty data.
fn is_dirty(slot: Slot) -> bool {
    matches!(slot.state(), State::Dirty | State::DirtyWhole)
}

// The resources that a step needs apart from the object: buckets, room for dirty data, bytes of the
// store.

/// The resources that a step lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Missing {
    pub(crate) buckets: u32,
    /// The number of buckets that will become dirty.
    pub(crate) credits: u32,
    /// The buckets whose bytes must be loaded from the store.
    pub(crate) load: Option<Buckets>,
}

impl Missing {
    /// Returns the sum of the two.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.buckets += other.buckets;
        self.credits += other.credits;
        if let Some(load) = other.load {
            self.load_of(load.start);
            self.load_of(load.end - 1);
        }
        self
    }

    pub(super) fn load_of(&mut self, at: u32) {
        let range = self.load.get_or_insert(at..at + 1);
        range.start = range.start.min(at);
        range.end = range.end.max(at + 1);
    }
}

/// The requests to the store that fill a range.
pub(crate) struct Load {
    /// The start and length of each run of bytes.
    pub(crate) runs: Vec<(u64, u64)>,
    /// The maximum number of loaded buckets to keep.
    pub(crate) kept_max: u32,
    /// The value of `Head::store_steps` when the store is asked.
    pub(crate) steps: u32,
}

/// The store's response for a range.
#[derive(Default)]
pub(crate) struct Loaded {
    /// The start of each run, the requested length, and the bytes received; zeros follow them.
    pub(crate) runs: Vec<(u64, u64, Segments)>,
    /// The store's report about the object as a whole.
    pub(crate) reported: Option<ReportedHead>,
    /// Whether the response shows that bytes received earlier under the same entry are void.
    pub(crate) voids_earlier: bool,
}

impl Loaded {
    /// Returns the bytes of a range that a single run covers.
    pub(super) fn slice(&self, from: u64, to: u64) -> Option<Segments> {
        let covers = |run: &&(u64, u64, Segments)| run.0 <= from && to <= run.0 + run.1;
        let (start, _, data) = self.runs.iter().find(covers)?;
        let len = data.len_bytes() as u64;
        let (low, high) = ((from - start).min(len), (to - start).min(len));
        let mut part = data.slice(low as usize..high as usize);
        let rest = (to - from) - (high - low);
        part.append(Segments::zeros(rest as usize));
        Some(part)
    }

    pub(super) fn covers(&self, at: u32) -> bool {
        let from = u64::from(at) * BUCKET_U64;
        self.runs.iter().any(|run| run.0 <= from && from + BUCKET_U64 <= run.0 + run.1)
    }
}

/// The resources that a step may use up.
pub(crate) struct Resources<'a> {
    pub(crate) reserved: Reserved<'a>,
    /// Room for this number of dirty buckets, already taken from the dirty limit.
    pub(crate) credits: u32,
    pub(crate) loaded: Option<&'a Loaded>,
}

// Room in the dirty limit for changes that the store lacks and that have no bucket: zeros,
// truncations, removals, size changes. The room is counted in buckets, against the same limit as
// dirty data, so that the limit bounds everything that a crash can undo: zeros count by the buckets
// that they cover, all others as a single bucket per object. The room is returned when the flush
// that sends the changes is stored.

impl Object {
    /// Returns the room that a change takes in addition to the room of the buckets that become dirty.
    pub(crate) fn bucketless_for(&self, mutation: Mutation<'_>) -> u32 {
        let zeros = |piece| match piece {
            Piece::Zeroes(offset, len) => self.new_zeros(offset, len),
            Piece::Data(..) => 0,
        };
        let zeros: u32 = mutation.pieces(self.head.size).map(zeros).sum();
        let changes_the_whole = match mutation.change {
            Change::Truncate { size_bytes } => *size_bytes != self.head.size,
            Change::Delete => true,
            Change::WriteFull { data } => data.is_empty(),
            Change::WriteZeroes { offset, len_bytes } => offset + len_bytes > self.head.size,
            Change::Write { .. } | Change::WriteRuns { .. } => self.head.known == Known::Absent,
            // The room of a copy was taken together with its content.
            Change::Discard { .. } | Change::CompareAndWrite { .. } | Change::Copy { .. } => false,
        };
        zeros.max(u32::from(changes_the_whole && self.pending.bucketless == 0))
    }

    /// Returns the number of whole buckets in a range that become zeros when the range is zeroed.
    fn new_zeros(&self, offset: u64, len: u64) -> u32 {
        let is_new = |at: u32| match self.slots.get(at) {
            Slot::ABSENT => u64::from(at) * BUCKET_U64 >= self.head.size || !self.is_zero(at),
            slot => slot.state() != State::ZeroDirty,
        };
        parts(offset, len).filter(|(at, lo, hi)| hi - lo == BUCKET && is_new(*at)).count() as u32
    }

    /// Keeps `bucketless` of the credits of a change that has been made, unless nothing is left to
    /// be stored.
    pub(crate) fn hold_bucketless(&mut self, env: &Env<'_>, bucketless: u32, resources: &mut Resources<'_>) {
        resources.credits -= bucketless;
        env.metrics.hold_bucketless(env.namespace, bucketless);
        self.pending.bucketless += bucketless;
        if !self.has_pending() {
            env.metrics.return_bucketless(env.namespace, std::mem::take(&mut self.pending.bucketless));
        }
    }

    // Taking over the buckets of a received payload, instead of copying it.

    /// Returns the slots that can take over their buckets from these bytes.
    pub(super) fn adopting(&self, env: &Env<'_>, offset: u64, data: &Segments) -> impl Iterator<Item = u32> {
        let mut from = Cursor::new(data);
        parts(offset, data.len_bytes() as u64)
            .filter(move |(at, lo, hi)| {
                let bucket = self.to_adopt(env, *at, *lo, *hi, &from);
                from.skip(hi - lo);
                bucket.is_some()
            })
            .map(|(at, ..)| at)
    }

    /// Returns the bucket that a slot can take over from the payload: a whole bucket of this pool
    /// that the slot does not have yet. The result stays true while the payload refers to the
    /// bucket.
    pub(super) fn to_adopt(
        &self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        from: &Cursor<'_>,
    ) -> Option<u32> {
        let segment = from.next_whole().filter(|_| hi - lo == BUCKET)?;
        let bucket = env.pool.whole_bucket(segment)?;
        let slot = self.slots.get(at);
        let has_it = slot.state().has_bucket() && slot.bucket() == bucket;
        (!has_it && env.meta(bucket).valid() == u8::MAX).then_some(bucket)
    }

    /// Takes over a bucket as newer than the store. Other slots may refer to the
    /// bucket, as after a copy.
    pub(super) fn adopt_dirty(&mut self, env: &Env<'_>, at: u32, bucket: u32, resources: &mut Resources<'_>) {
        env.pool.adopt(bucket);
        env.metrics.counts.zero_copy_bytes.add(BUCKET_BYTES);
        self.put_dirty(env, at, Slot::of(State::DirtyWhole, bucket), resources);
    }

    /// Takes over a bucket as the store's content, unless another slot has already taken over the
    /// bucket: a clean bucket has exactly one owner.
    pub(super) fn adopt_clean(&mut self, env: &Env<'_>, at: u32, bucket: u32) -> bool {
        if !env.pool.adopt(bucket) {
            env.pool.release(bucket);
            return false;
        }
        env.metrics.counts.zero_copy_bytes.add(BUCKET_BYTES);
        let is_new = self.slots.get(at).state() != State::Clean;
        env.meta(bucket).set_owner(Some((env.node, at)));
        self.put(env, at, Slot::of(State::Clean, bucket));
        env.queues.link(env.pool, bucket, env.bucket_name(at), is_new, env.namespace);
        true
    }
}
