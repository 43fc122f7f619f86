//! Changing in the cache first: what each change lacks, and how it is made once it has it.

use blocker::{OrderDomain, Segments, Timestamp};

use super::super::pool::BUCKET;
use super::super::slots::{Slot, State};
use super::parts::{BUCKET_U64, Cursor, edges, parts, touched};
use super::{Env, Known, Means, Need, Object};

impl Object {
    /// What a write of a range lacks.
    pub(crate) fn need_of_write(&self, env: &Env<'_>, offset: u64, len: u64, means: &Means<'_>) -> Need {
        let mut need = Need::default();
        for (at, lo, hi) in parts(offset, len) {
            let slot = self.slots.get(at);
            let edges = edges(lo, hi) & !self.valid(env, at) & !self.beyond(at);
            if edges != 0 && !means.loaded.is_some_and(|loaded| loaded.covers(at)) {
                need.load_of(at);
            }
            need.buckets += u32::from(!Self::is_exclusive(env, slot));
            need.credits += u32::from(!matches!(slot.state(), State::Dirty | State::DirtyWhole));
        }
        need
    }

    /// Writes over what is newer than the store already, in its place: what most writes that find something are.
    /// False: nothing was done, and it takes more than that.
    #[inline]
    pub(crate) fn rewrite(&mut self, env: &Env<'_>, offset: u64, data: &Segments) -> bool {
        let (at, lo, len) = ((offset / BUCKET_U64) as u32, (offset % BUCKET_U64) as usize, data.len_bytes());
        let fits = len > 0 && lo + len <= BUCKET && offset + len as u64 <= self.head.size;
        let slot = self.slots.get(at);
        if !fits || slot.state() != State::Dirty || !Self::is_exclusive(env, slot) {
            return false;
        }
        let (hi, meta) = (lo + len, env.meta(slot.bucket()));
        if edges(lo, hi) & !meta.valid() != 0 {
            return false;
        }
        data.copy_to(&mut env.bytes_mut(slot.bucket())[lo..hi]);
        let touched = touched(lo, hi);
        meta.set_valid(meta.valid() | touched);
        meta.set_dirty(meta.dirty() | touched);
        true
    }

    /// Writes a range as newer than the store. `means` has what [`Self::need_of_write`] asked for.
    pub(crate) fn write(&mut self, env: &Env<'_>, offset: u64, data: &Segments, means: &mut Means<'_>) {
        let mut from = Cursor::new(data);
        let len = data.len_bytes() as u64;
        for (at, lo, hi) in parts(offset, len) {
            match self.to_adopt(env, at, lo, hi, &from) {
                Some(bucket) => {
                    from.skip(BUCKET);
                    self.adopt_dirty(env, at, bucket, means);
                }
                None => self.write_slot(env, at, lo, hi, means, |bytes| from.copy_to(bytes)),
            }
        }
        self.grow_to(offset + len, len > 0);
    }

    pub(super) fn grow_to(&mut self, end: u64, is_change: bool) {
        if is_change && end > self.head.size {
            self.head.size = end;
            self.pending.size_dirty = true;
        }
    }

    pub(super) fn write_slot(
        &mut self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        means: &mut Means<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let slot = self.slots.get(at);
        let was_dirty = matches!(slot.state(), State::Dirty | State::DirtyWhole);
        let is_whole = hi - lo == BUCKET;
        let bucket = if Self::is_exclusive(env, slot) {
            if slot.state() == State::DirtyWhole {
                env.meta(slot.bucket()).set_dirty(env.meta(slot.bucket()).valid());
                env.meta(slot.bucket()).set_owner(Some((env.node, at)));
            } else if slot.state() == State::Clean {
                env.meta(slot.bucket()).set_dirty(0);
            }
            slot.bucket()
        } else {
            self.copy_up(env, at, means, !is_whole).expect("buckets were reserved for all slots of the range")
        };
        let meta = env.meta(bucket);
        if !is_whole {
            self.fill_up(env, at, bucket, means.loaded);
        }
        fill(&mut env.bytes_mut(bucket)[lo..hi]);
        let touched = touched(lo, hi);
        meta.set_valid(meta.valid() | touched);
        meta.set_dirty(meta.dirty() | touched);
        if slot == Slot::of(State::Dirty, bucket) {
            return;
        }
        if was_dirty {
            // `put` gives the slot's credit back: it goes on with it.
            env.gauges.take_again(1);
        } else {
            means.credits -= 1;
        }
        self.put(env, at, Slot::of(State::Dirty, bucket));
    }

    /// What writing zeros lacks: whole buckets become a state, parts are written.
    pub(crate) fn need_of_zeroes(&self, env: &Env<'_>, offset: u64, len: u64, means: &Means<'_>) -> Need {
        let mut need = Need::default();
        for (at, lo, hi) in parts(offset, len).filter(|(_, lo, hi)| hi - lo < BUCKET) {
            if self.is_zero(at) {
                continue;
            }
            let part =
                self.need_of_write(env, u64::from(at) * BUCKET_U64 + lo as u64, (hi - lo) as u64, means);
            need.buckets += part.buckets;
            need.credits += part.credits;
            part.load.into_iter().for_each(|load| need.load_of(load.start));
        }
        need
    }

    /// Whether all of a slot is known to be zeros.
    pub(super) fn is_zero(&self, at: u32) -> bool {
        match self.slots.get(at).state() {
            State::Absent => u64::from(at) * BUCKET_U64 >= self.content_end(),
            state => !state.has_bucket(),
        }
    }

    /// Zeroes a range, newer than the store. `extends`: moves the end, as a write does.
    pub(crate) fn write_zeroes(
        &mut self,
        env: &Env<'_>,
        offset: u64,
        len: u64,
        extends: bool,
        means: &mut Means<'_>,
    ) {
        for (at, lo, hi) in parts(offset, len) {
            if hi - lo == BUCKET {
                let slot = self.slots.get(at);
                let is_zero_already =
                    slot.state() == State::ZeroDirty || slot == Slot::ABSENT && self.is_zero(at);
                if !is_zero_already {
                    self.put(env, at, Slot::bare(State::ZeroDirty));
                }
            } else if !self.is_zero(at) {
                self.write_slot(env, at, lo, hi, means, |bytes| bytes.fill(0));
            }
        }
        self.grow_to(offset + len, extends && len > 0);
    }

    /// What moving the end inwards lacks: a bucket, if others see that in which the new end lies.
    pub(crate) fn need_of_truncate(&self, env: &Env<'_>, size: u64) -> Need {
        let slot = self.slots.get((size / BUCKET_U64) as u32);
        let is_cut = size < self.head.size && !size.is_multiple_of(BUCKET_U64) && slot.state().has_bucket();
        let copies = is_cut && !Self::is_exclusive(env, slot);
        let writes = is_cut && !matches!(slot.state(), State::Dirty | State::DirtyWhole);
        Need { buckets: u32::from(copies), credits: u32::from(writes), load: None }
    }

    /// Moves the end, newer than the store.
    pub(crate) fn truncate(&mut self, env: &Env<'_>, size: u64, means: &mut Means<'_>) {
        if size < self.head.size {
            self.pending.truncate_to = self.pending.truncate_to.min(size);
            self.clear_from(env, size.div_ceil(BUCKET_U64) as u32);
            let (at, lo) = ((size / BUCKET_U64) as u32, (size % BUCKET_U64) as usize);
            if lo > 0 && self.slots.get(at).state().has_bucket() {
                self.cut_slot(env, at, lo, means);
            }
        }
        self.head.size = size;
        self.pending.size_dirty = true;
    }

    /// Zeroes a slot's bytes from `lo` on; they are zeros in the store too once it is cut there.
    pub(super) fn cut_slot(&mut self, env: &Env<'_>, at: u32, lo: usize, means: &mut Means<'_>) {
        let valid_before = self.valid(env, at);
        self.write_slot(env, at, lo, BUCKET, means, |bytes| bytes.fill(0));
        // The sector in which the end lies is only as valid as it was.
        let meta = env.meta(self.slots.get(at).bucket());
        let edge = edges(lo, BUCKET) & !valid_before;
        meta.set_valid(meta.valid() & !edge);
        meta.set_dirty(meta.dirty() & !edge);
    }

    /// Forgets all content, to be replaced as a whole, or removed.
    pub(crate) fn replace(&mut self, env: &Env<'_>, known: Known) {
        self.clear_from(env, 0);
        self.pending.replace = known == Known::Present || self.head.store_exists || self.flushing.is_some();
        self.pending.truncate_to = u64::MAX;
        self.pending.size_dirty = known == Known::Present;
        self.head.known = known;
        self.head.size = 0;
    }

    /// Whether the next change is the first of its kind, so that its time must be known.
    pub(crate) fn asks_for_time(&self) -> bool {
        self.pending.registered == 0 || self.flushing.as_ref().is_some_and(|it| it.newer_since.is_none())
    }

    /// Notes a change that the store does not know of, made `now` if [`Self::asks_for_time`].
    pub(crate) fn note_change(&mut self, now: Timestamp, version: u64, domain: Option<OrderDomain>) {
        let was_pending = self.pending.change_seq > self.pending.stored_seq;
        if let Some(flushing) = &mut self.flushing {
            flushing.newer_since.get_or_insert(now);
        }
        let pending = &mut self.pending;
        if !was_pending {
            (pending.dirty_since, pending.domain) = (now, domain);
        }
        debug_assert_eq!(pending.domain, domain, "changes of two domains wait for one flush");
        pending.change_seq += 1;
        self.head.version = version;
    }
}
