//! Filling slots with what the store gave.

use blocker::Segment;

use super::{Env, Loaded, Object, Resources};
use crate::object::memory::geometry::{BUCKET_U64, Buckets, buckets_of};
use crate::object::memory::queue::{MARKED, PASSING, UNREAD};
use crate::object::memory::slots::{Slot, State};
use crate::object::read_ahead::Pattern;

/// What of a load is kept, and as what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    All,
    Nothing,
    /// One bucket, in which a read ends that bypasses the cache: the next read will ask for the rest of it.
    Passing(u32),
    /// What a pattern has, for reads that are expected. `mark` is the bucket whose first read shows that it is
    /// time to read on.
    Ahead {
        pattern: Pattern,
        mark: Option<u32>,
        is_passing: bool,
    },
}

impl Keep {
    /// Returns how many of `count` buckets are kept at most.
    pub(crate) fn count_max(self, count: u32) -> u32 {
        match self {
            Keep::All | Keep::Ahead { .. } => count,
            Keep::Nothing => 0,
            Keep::Passing(_) => count.min(1),
        }
    }

    /// Whether a caller waits for it.
    pub(crate) fn is_asked_for(self) -> bool {
        !matches!(self, Keep::Ahead { .. })
    }

    /// Returns the same for an object that has content up to the bucket `end` alone: that is not known before
    /// the answer has come.
    fn within(self, end: u32) -> Self {
        match self {
            Keep::Ahead { pattern, mark: Some(mark), is_passing } => {
                let mark = if mark < end { Some(mark) } else { pattern.last_before(end) };
                Keep::Ahead { pattern, mark, is_passing }
            }
            other => other,
        }
    }

    fn takes(self, at: u32) -> bool {
        match self {
            Keep::Passing(one) => one == at,
            Keep::Ahead { pattern, .. } => pattern.has(at),
            _ => true,
        }
    }

    fn link(self, env: &Env<'_>, at: u32, bucket: u32) {
        let name = env.bucket_name(at);
        match self {
            Keep::Ahead { mark, is_passing, .. } => {
                let marked = if mark == Some(at) { MARKED } else { 0 };
                let passing = if is_passing { PASSING } else { 0 };
                env.queues.link_ahead(env.pool, bucket, name, UNREAD | marked | passing, env.namespace);
                env.read_ahead.count_ahead(env.namespace);
            }
            Keep::Passing(_) => {
                env.queues.link(env.pool, bucket, name, true, env.namespace);
                env.queues.flag(env.meta(bucket), name, PASSING);
            }
            Keep::All | Keep::Nothing => env.queues.link(env.pool, bucket, name, true, env.namespace),
        }
    }
}

impl Object {
    /// Returns how many buckets of a range that is read ahead will be kept, at most.
    pub(crate) fn count_ahead(&self, buckets: &Buckets, pattern: Pattern) -> u32 {
        let is_kept = |at: &u32| pattern.has(*at) && self.slots.get(*at) == Slot::ABSENT;
        buckets.clone().filter(is_kept).count() as u32
    }

    /// Samples the buckets that the store gave, each as one that was missed.
    pub(crate) fn sample_misses(&self, env: &Env<'_>, loaded: &Loaded) {
        for (start, _, data) in loaded.runs.iter().filter(|(_, _, data)| data.len_bytes() > 0) {
            for at in buckets_of(*start, data.len_bytes() as u64) {
                env.queues.missed(env.bucket_name(at), env.node);
            }
        }
    }

    /// Keeps what the store gave, as far as it is to be kept and buckets were reserved for it.
    pub(crate) fn fill(&mut self, env: &Env<'_>, resources: &mut Resources<'_>, keep: Keep) {
        let Some(loaded) = resources.loaded else { return };
        let end = self.content_end().min(self.head.size).div_ceil(BUCKET_U64);
        // A bucket's number in its object has 16 bits.
        let keep = keep.within(end as u32);
        for (start, len, data) in &loaded.runs {
            let first = (start / BUCKET_U64) as u32;
            let is_hole = data.iter().all(Segment::is_hole) && self.content_end() >= start + len;
            for at in first..first + (len / BUCKET_U64) as u32 {
                let slot = self.slots.get(at);
                let from = u64::from(at) * BUCKET_U64;
                if from >= self.content_end() || from >= self.head.size {
                    continue;
                }
                if !keep.takes(at) {
                    if !keep.is_asked_for() && slot == Slot::ABSENT {
                        env.read_ahead.count_between(env.namespace);
                    }
                    continue;
                }
                if slot == Slot::ABSENT && is_hole {
                    self.put(env, at, Slot::bare(State::ZeroClean));
                } else if slot == Slot::ABSENT {
                    let Some(bucket) = resources.reserved.take(|_| ()) else { continue };
                    env.meta(bucket).set_valid(0);
                    env.meta(bucket).set_owner(Some((env.node, at)));
                    self.fill_up(env, at, bucket, resources.loaded);
                    self.put(env, at, Slot::of(State::Clean, bucket));
                    keep.link(env, at, bucket);
                } else if Self::is_exclusive(env, slot) {
                    self.fill_up(env, at, slot.bucket(), resources.loaded);
                }
            }
        }
    }
}
