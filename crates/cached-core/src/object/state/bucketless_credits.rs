//! Room in the dirty limit for what the store lacks and has no bucket: zeros, cuts, removals, ends. Counted
//! in buckets, against the same limit as dirty data, so that the limit bounds all that a crash can undo:
//! zeros by what they cover, the others as one for an object. Returned when the flush that sends them is
//! stored.

use blocker::{Run, RunContent};

use super::{Env, Known, Object, Resources};
use crate::object::memory::geometry::{BUCKET_U64, parts};
use crate::object::memory::pool::BUCKET;
use crate::object::memory::slots::{Slot, State};
use crate::object::mutation::Mutation;

impl Object {
    /// Returns the room that a change takes beside that of the buckets it makes dirty.
    pub(crate) fn bucketless_for(&self, mutation: &Mutation) -> u32 {
        let zeros = match mutation {
            Mutation::WriteZeroes { offset, len } => self.new_zeros(*offset, *len),
            Mutation::Discard { offset, len } => {
                self.new_zeros(*offset, self.head.size.saturating_sub(*offset).min(*len))
            }
            Mutation::WriteRuns { runs } => runs.iter().map(|run| self.new_zeros_of(run)).sum(),
            _ => 0,
        };
        let changes_the_whole = match mutation {
            Mutation::Truncate { size } => *size != self.head.size,
            Mutation::Delete => true,
            Mutation::WriteFull { data } => data.is_empty(),
            Mutation::WriteZeroes { offset, len } => offset + len > self.head.size,
            Mutation::Write { .. } | Mutation::WriteRuns { .. } => self.head.known == Known::Absent,
            Mutation::Discard { .. }
            | Mutation::CompareAndWrite { .. }
            | Mutation::Touch
            // Its room was taken with its content.
            | Mutation::Adopt(_) => false,
        };
        zeros.max(u32::from(changes_the_whole && self.pending.bucketless == 0))
    }

    fn new_zeros_of(&self, run: &Run) -> u32 {
        match run.content {
            RunContent::Zeroes(len) => self.new_zeros(run.offset, len),
            RunContent::Data(_) => 0,
        }
    }

    /// Returns the number of whole buckets of a range that become zeros by zeroing it.
    fn new_zeros(&self, offset: u64, len: u64) -> u32 {
        let is_new = |at: u32| match self.slots.get(at) {
            Slot::ABSENT => u64::from(at) * BUCKET_U64 >= self.head.size || !self.is_zero(at),
            slot => slot.state() != State::ZeroDirty,
        };
        parts(offset, len).filter(|(at, lo, hi)| hi - lo == BUCKET && is_new(*at)).count() as u32
    }

    /// Keeps `bucketless` of the credits of a change that has been made; none if nothing is left to be
    /// stored.
    pub(crate) fn hold_bucketless(&mut self, env: &Env<'_>, bucketless: u32, resources: &mut Resources<'_>) {
        resources.credits -= bucketless;
        env.metrics.hold_bucketless(env.namespace, bucketless);
        self.pending.bucketless += bucketless;
        if !self.has_pending() {
            env.metrics.return_bucketless(env.namespace, std::mem::take(&mut self.pending.bucketless));
        }
    }
}
