//! Changes of an object that are newer than the store: what each requires, and how it is applied.

use blocker::{Change, Error, Result, Segments};

use super::{Env, Known, Loaded, Missing, Object, Resources};
use crate::object::memory::pool::BUCKET;
use crate::object::memory::slots::{Slot, State};
use crate::object::memory::{BUCKET_U64, Cursor, WHOLE, edges, parts, touched};
use crate::object::mutation::{CopiedContent, Mutation, Piece};

/// The result of an attempt to overwrite data in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rewrite {
    /// The write requires more, and was not made.
    No,
    /// The overwritten data were already newer than the store.
    OfNewer,
    /// The overwritten data were the store's: the bucket has taken room for dirty data.
    OfClean,
}

impl Object {
    /// Returns the resources that a write of a range lacks.
    fn missing_for_write(&self, env: &Env<'_>, offset: u64, len: u64, loaded: Option<&Loaded>) -> Missing {
        let mut missing = Missing::default();
        for (at, lo, hi) in parts(offset, len) {
            let slot = self.slots.get(at);
            let edges = edges(lo, hi) & !self.valid(env, at) & !self.beyond(at);
            if edges != 0 && !loaded.is_some_and(|loaded| loaded.covers(at)) {
                missing.load_of(at);
            }
            missing.buckets += u32::from(!Self::is_exclusive(env, slot));
            missing.credits += u32::from(!matches!(slot.state(), State::Dirty | State::DirtyWhole));
        }
        missing
    }

    /// Returns the resources that a write of these bytes lacks. A slot that can take over its bucket
    /// needs none, provided that no other piece of the change writes to the slot: `runs_end` admits
    /// only disjoint runs.
    fn missing_for_data(
        &self,
        env: &Env<'_>,
        offset: u64,
        data: &Segments,
        loaded: Option<&Loaded>,
    ) -> Missing {
        let mut missing = self.missing_for_write(env, offset, data.len_bytes() as u64, loaded);
        let adopting = self.adopting(env, offset, data);
        missing.buckets -= adopting.filter(|at| !Self::is_exclusive(env, self.slots.get(*at))).count() as u32;
        missing
    }

    /// Overwrites data of a single bucket in place, as most writes do. Calls `before` when the write
    /// is certain to be made. Returns [`Rewrite::No`], without any change, if the write requires
    /// more than room for one dirty bucket, or that room is not available at once.
    ///
    /// # Errors
    /// Errors of `before`; in this case nothing has changed.
    #[inline]
    pub(crate) fn rewrite<E>(
        &mut self,
        env: &Env<'_>,
        offset: u64,
        data: &Segments,
        resources: &mut Resources<'_>,
        before: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<Rewrite, E> {
        let (at, lo, len) = ((offset / BUCKET_U64) as u32, (offset % BUCKET_U64) as usize, data.len_bytes());
        let fits = len > 0 && lo + len <= BUCKET && offset + len as u64 <= self.head.size;
        let slot = self.slots.get(at);
        let is_newer = matches!(slot.state(), State::Dirty | State::DirtyWhole);
        if !fits || !is_newer && slot.state() != State::Clean || !Self::is_exclusive(env, slot) {
            return Ok(Rewrite::No);
        }
        let (hi, meta) = (lo + len, env.meta(slot.bucket()));
        let touched = touched(lo, hi);
        if edges(lo, hi) & !meta.valid() != 0 || !is_newer && touched | meta.valid() != u8::MAX {
            return Ok(Rewrite::No);
        }
        if !is_newer && self.to_adopt(env, at, lo, hi, &Cursor::new(data)).is_some() {
            // Taking over the payload's bucket is cheaper than a copy.
            return Ok(Rewrite::No);
        }
        let takes_room = !is_newer && resources.credits == 0;
        if takes_room {
            if !env.metrics.dirty_room.take_at_once(env.namespace, 1) {
                return Ok(Rewrite::No);
            }
            resources.credits = 1;
        }
        if let Err(error) = before(self) {
            if takes_room {
                resources.credits = 0;
                env.metrics.dirty_room.give_back(env.namespace, 1);
            }
            return Err(error);
        }
        match slot.state() {
            State::Clean => {
                env.queues.prefetch_neighbours(env.pool, meta);
                meta.set_dirty(0);
            }
            State::DirtyWhole => drop(self.own_dirty(env, at, slot)),
            _ => (),
        }
        data.copy_to(&mut env.bytes_mut(slot.bucket())[lo..hi]);
        meta.set_valid(meta.valid() | touched);
        meta.set_dirty(meta.dirty() | touched);
        if is_newer {
            return Ok(Rewrite::OfNewer);
        }
        self.put_dirty(env, at, Slot::of(State::Dirty, slot.bucket()), resources);
        Ok(Rewrite::OfClean)
    }

    /// Writes a range as newer than the store. `resources` has what [`Self::missing_for_write`]
    /// returned.
    fn write(&mut self, env: &Env<'_>, offset: u64, data: &Segments, resources: &mut Resources<'_>) {
        let mut from = Cursor::new(data);
        let len = data.len_bytes() as u64;
        for (at, lo, hi) in parts(offset, len) {
            match self.to_adopt(env, at, lo, hi, &from) {
                Some(bucket) => {
                    from.skip(BUCKET);
                    self.adopt_dirty(env, at, bucket, resources);
                }
                None => self.write_slot(env, at, lo, hi, resources, |bytes| from.copy_to(bytes)),
            }
        }
        self.grow_to(offset + len, len > 0);
    }

    fn grow_to(&mut self, end: u64, is_change: bool) {
        if is_change && end > self.head.size {
            self.head.size = end;
            self.pending.size_dirty = true;
        }
    }

    fn write_slot(
        &mut self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        resources: &mut Resources<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let mut slot = self.slots.get(at);
        let is_whole = hi - lo == BUCKET;
        let bucket = if Self::is_exclusive(env, slot) {
            if slot.state() == State::DirtyWhole {
                slot = self.own_dirty(env, at, slot);
            } else if slot.state() == State::Clean {
                env.meta(slot.bucket()).set_dirty(0);
            }
            slot.bucket()
        } else {
            self.copy_up(env, at, resources, !is_whole)
                .expect("buckets were reserved for all slots of the range")
        };
        let meta = env.meta(bucket);
        if !is_whole {
            self.fill_up(env, at, bucket, resources.loaded);
        }
        fill(&mut env.bytes_mut(bucket)[lo..hi]);
        let touched = touched(lo, hi);
        meta.set_valid(meta.valid() | touched);
        meta.set_dirty(meta.dirty() | touched);
        if slot == Slot::of(State::Dirty, bucket) {
            return;
        }
        self.put_dirty(env, at, Slot::of(State::Dirty, bucket), resources);
    }

    /// Returns the resources that writing zeros lacks: a whole bucket only changes its state, a
    /// partial bucket is written.
    fn missing_for_zeroes(&self, env: &Env<'_>, offset: u64, len: u64, loaded: Option<&Loaded>) -> Missing {
        let partial = parts(offset, len).filter(|(at, lo, hi)| hi - lo < BUCKET && !self.is_zero(*at));
        partial.fold(Missing::default(), |sum, (at, lo, hi)| {
            let from = u64::from(at) * BUCKET_U64 + lo as u64;
            sum.and(self.missing_for_write(env, from, (hi - lo) as u64, loaded))
        })
    }

    /// Returns whether all of a slot is known to be zeros.
    pub(super) fn is_zero(&self, at: u32) -> bool {
        match self.slots.get(at).state() {
            State::Absent => u64::from(at) * BUCKET_U64 >= self.content_end(),
            state => !state.has_bucket(),
        }
    }

    /// Zeroes a range as newer than the store.
    fn write_zeroes(&mut self, env: &Env<'_>, offset: u64, len: u64, resources: &mut Resources<'_>) {
        for (at, lo, hi) in parts(offset, len) {
            if hi - lo == BUCKET {
                let slot = self.slots.get(at);
                let is_zero_already =
                    slot.state() == State::ZeroDirty || slot == Slot::ABSENT && self.is_zero(at);
                if !is_zero_already {
                    self.put(env, at, Slot::bare(State::ZeroDirty));
                }
            } else if !self.is_zero(at) {
                self.write_slot(env, at, lo, hi, resources, |bytes| bytes.fill(0));
            }
        }
        self.grow_to(offset + len, len > 0);
    }

    /// Returns the resources that truncating the object lacks: a bucket, if others refer to the one
    /// that contains the new end.
    fn missing_for_truncate(&self, env: &Env<'_>, size: u64) -> Missing {
        let slot = self.slots.get((size / BUCKET_U64) as u32);
        let is_cut = size < self.head.size && !size.is_multiple_of(BUCKET_U64) && slot.state().has_bucket();
        let copies = is_cut && !Self::is_exclusive(env, slot);
        let writes = is_cut && !matches!(slot.state(), State::Dirty | State::DirtyWhole);
        Missing { buckets: u32::from(copies), credits: u32::from(writes), load: None }
    }

    /// Sets the object's size as newer than the store.
    fn truncate(&mut self, env: &Env<'_>, size: u64, resources: &mut Resources<'_>) {
        if size < self.head.size {
            self.pending.truncate_to = self.pending.truncate_to.min(size);
            self.forget(env, size.div_ceil(BUCKET_U64) as u32..u32::MAX);
            let (at, lo) = ((size / BUCKET_U64) as u32, (size % BUCKET_U64) as usize);
            if lo > 0 && self.slots.get(at).state().has_bucket() {
                self.cut_slot(env, at, lo, resources);
            }
        }
        self.head.size = size;
        self.pending.size_dirty = true;
    }

    /// Zeroes a slot's bytes from `lo` on; they will be zeros in the store too, once the object is
    /// truncated there.
    fn cut_slot(&mut self, env: &Env<'_>, at: u32, lo: usize, resources: &mut Resources<'_>) {
        let valid_before = self.valid(env, at);
        self.write_slot(env, at, lo, BUCKET, resources, |bytes| bytes.fill(0));
        // The sector that contains the end is only as valid as it was.
        let meta = env.meta(self.slots.get(at).bucket());
        let edge = edges(lo, BUCKET) & !valid_before;
        meta.set_valid(meta.valid() & !edge);
        meta.set_dirty(meta.dirty() & !edge);
    }

    /// Forgets all content, because the object is replaced as a whole or removed.
    fn replace(&mut self, env: &Env<'_>, known: Known) {
        self.forget(env, WHOLE);
        self.pending.replace = known == Known::Present || self.head.store_exists || self.flushing.is_some();
        self.pending.truncate_to = u64::MAX;
        self.pending.size_dirty = known == Known::Present;
        self.head.known = known;
        self.head.size = 0;
    }

    // A change of any kind, applied in the cache first: the resources that it lacks, and how it is
    // applied.

    /// Returns the resources that a change lacks.
    ///
    /// # Errors
    /// `Mismatch` if a compare-and-write finds other bytes.
    pub(crate) fn missing_for(
        &self,
        env: &Env<'_>,
        mutation: Mutation<'_>,
        loaded: Option<&Loaded>,
    ) -> Result<Missing> {
        match mutation.change {
            Change::WriteFull { data } => {
                let credits = data.len_bytes().div_ceil(BUCKET) as u32;
                let buckets = credits - self.adopting(env, 0, data).count() as u32;
                return Ok(Missing { buckets, credits, load: None });
            }
            Change::Truncate { size_bytes } => return Ok(self.missing_for_truncate(env, *size_bytes)),
            _ => (),
        }
        // Two pieces in the same bucket count it twice: the surplus is given back.
        let missing = mutation.pieces(self.head.size).fold(Missing::default(), |sum, piece| {
            sum.and(match piece {
                Piece::Data(offset, data) => self.missing_for_data(env, offset, data, loaded),
                Piece::Zeroes(offset, len) => self.missing_for_zeroes(env, offset, len, loaded),
            })
        });
        let Change::CompareAndWrite { offset, expected, .. } = mutation.change else { return Ok(missing) };
        match self.read(env, *offset, expected.len_bytes() as u64, loaded) {
            Ok(found) => match expected.first_difference(&found.to_bytes()) {
                Some(at) => Err(Error::Mismatch { offset: offset + at as u64 }),
                None => Ok(missing),
            },
            Err(lacking) => Ok(missing.and(lacking)),
        }
    }

    /// Applies a change as newer than the store. `resources` has what [`Self::missing_for`]
    /// returned.
    pub(crate) fn mutate(&mut self, env: &Env<'_>, mutation: Mutation<'_>, resources: &mut Resources<'_>) {
        if self.head.known == Known::Absent && !matches!(mutation.change, Change::Delete) {
            (self.head.known, self.head.size) = (Known::Present, 0);
            self.pending.size_dirty = true;
        }
        match mutation.change {
            Change::WriteFull { .. } => self.replace(env, Known::Present),
            Change::Delete => self.replace(env, Known::Absent),
            Change::Truncate { size_bytes } => self.truncate(env, *size_bytes, resources),
            Change::Copy { .. } => {
                mutation.copied.into_iter().for_each(|content| self.become_copy(env, content));
            }
            _ => (),
        }
        for piece in mutation.pieces(self.head.size) {
            match piece {
                Piece::Data(offset, data) => self.write(env, offset, data, resources),
                Piece::Zeroes(offset, len) => self.write_zeroes(env, offset, len, resources),
            }
        }
    }

    // Sharing an object's buckets with the target of a copy.

    /// Returns whether every byte of the object is cached.
    pub(crate) fn is_whole(&self, env: &Env<'_>) -> bool {
        let buckets = self.head.size.div_ceil(BUCKET_U64) as u32;
        (0..buckets).all(|at| self.valid(env, at) | self.beyond(at) == u8::MAX)
    }

    /// Returns the number of buckets of zeros that take no memory; every byte of the object must be
    /// known.
    pub(crate) fn zeros_known(&self) -> u32 {
        (self.head.size.div_ceil(BUCKET_U64) as u32).saturating_sub(self.slots.held_count())
    }

    /// Returns all known slots for a copy to take over, with an additional reference to each
    /// bucket.
    pub(crate) fn share(&self, env: &Env<'_>) -> Vec<(u32, Slot)> {
        let shared = self.slots.known_from(0).map(|(at, slot)| {
            if slot.state().has_bucket() {
                env.pool.retain(slot.bucket());
                (at, Slot::of(State::DirtyWhole, slot.bucket()))
            } else {
                (at, Slot::bare(State::ZeroDirty))
            }
        });
        shared.collect()
    }

    /// Takes over the content of another object; a second call has no effect.
    fn become_copy(&mut self, env: &Env<'_>, content: &CopiedContent) {
        let Some(content) = content.take() else { return };
        self.replace(env, Known::Present);
        self.head.size = content.size;
        env.metrics.hold_bucketless(env.namespace, content.bucketless);
        self.pending.bucketless += content.bucketless;
        content.into_slots().into_iter().for_each(|(at, slot)| self.put(env, at, slot));
    }
}
