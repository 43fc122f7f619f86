//! Taking over what the store has done already: bytes, zeros, an end.

use blocker::Segments;

use super::super::pool::BUCKET;
use super::super::ranges::Buckets;
use super::super::slots::{Slot, State};
use super::parts::{BUCKET_U64, Cursor, edges, parts, touched};
use super::{Env, Means, Object};

impl Object {
    /// Takes over what has been stored: bytes for a range. Never waits: what finds no bucket is forgotten.
    pub(crate) fn write_through(
        &mut self,
        env: &Env<'_>,
        offset: u64,
        data: &Segments,
        means: &mut Means<'_>,
    ) {
        let mut from = Cursor::new(data);
        for (at, lo, hi) in parts(offset, data.len_bytes() as u64) {
            match self.to_adopt(env, at, lo, hi, &from) {
                Some(bucket) if self.adopt_clean(env, at, bucket) => from.skip(BUCKET),
                _ => self.take_over(env, at, lo, hi, means, |bytes| from.copy_to(bytes)),
            }
        }
    }

    /// Takes over zeros that have been stored.
    pub(crate) fn zero_through(&mut self, env: &Env<'_>, offset: u64, len: u64, means: &mut Means<'_>) {
        for (at, lo, hi) in parts(offset, len) {
            let slot = self.slots.get(at);
            if hi - lo == BUCKET {
                self.put(env, at, Slot::bare(State::ZeroClean));
            } else if slot.state().has_bucket() {
                self.take_over(env, at, lo, hi, means, |bytes| bytes.fill(0));
            }
        }
    }

    pub(super) fn take_over(
        &mut self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        means: &mut Means<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let slot = self.slots.get(at);
        let is_whole = hi - lo == BUCKET;
        debug_assert!(!slot.state().is_dirty(), "the object was flushed before");
        let skipped = &mut [0; BUCKET][..hi - lo];
        let keeps = touched(lo, hi) & (!edges(lo, hi) | self.beyond(at));
        if slot == Slot::ABSENT && keeps == 0 {
            // Not one whole sector: nothing that could be kept. But what reaches beyond the content must be, or
            // another run of the same change would find zeros there.
            return fill(skipped);
        }
        let bucket = if Self::is_exclusive(env, slot) {
            slot.bucket()
        } else {
            match self.copy_up(env, at, means, !is_whole) {
                Some(bucket) => bucket,
                None => {
                    fill(skipped);
                    return self.clear(env, at);
                }
            }
        };
        let meta = env.meta(bucket);
        // A sector that is covered only in part stays as valid as it was.
        let valid = meta.valid() | touched(lo, hi) & !edges(lo, hi);
        fill(&mut env.bytes_mut(bucket)[lo..hi]);
        meta.set_valid(valid);
        meta.set_dirty(0);
        if slot == Slot::of(State::Clean, bucket) {
            env.queues.hit(meta, env.bucket_name(at));
        } else {
            let is_new = slot.state() != State::Clean;
            self.put(env, at, Slot::of(State::Clean, bucket));
            env.queues.link(env.pool, bucket, env.bucket_name(at), is_new);
        }
    }

    /// Forgets a range that has been changed below.
    pub(crate) fn forget(&mut self, env: &Env<'_>, buckets: Buckets) {
        let known = self.slots.known_from(buckets.start).map(|(at, _)| at);
        let known: Vec<u32> = known.take_while(|at| *at < buckets.end).collect();
        known.into_iter().for_each(|at| self.clear(env, at));
    }

    /// The end has been moved below.
    pub(crate) fn truncated(&mut self, env: &Env<'_>, size: u64) {
        self.clear_from(env, (size / BUCKET_U64) as u32);
    }
}
