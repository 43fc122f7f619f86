//! Room for what the store lacks and no bucket stands for: zeros, cuts, removals, ends. Counted in buckets, against the
//! same limit as dirty data, so that the limit bounds all that a crash can take back: zeros by what they cover, the
//! others one for an object. Given back when the flush that sends them is stored.

use blocker::{Run, RunContent};

use super::super::back::Mutation;
use super::super::pool::BUCKET;
use super::super::slots::{Slot, State};
use super::parts::{BUCKET_U64, parts};
use super::{Env, Known, Means, Object};

impl Object {
    /// The room that a change takes beside that of the buckets it makes dirty.
    pub(crate) fn room_for(&self, mutation: &Mutation) -> u32 {
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
            // Taken with its content.
            | Mutation::Adopt(_) => false,
        };
        zeros.max(u32::from(changes_the_whole && self.pending.room == 0))
    }

    fn new_zeros_of(&self, run: &Run) -> u32 {
        match run.content {
            RunContent::Zeroes(len) => self.new_zeros(run.offset, len),
            RunContent::Data(_) => 0,
        }
    }

    /// The whole buckets of a range that are zeros only once it has been zeroed.
    fn new_zeros(&self, offset: u64, len: u64) -> u32 {
        let is_new = |at: u32| match self.slots.get(at) {
            Slot::ABSENT => u64::from(at) * BUCKET_U64 >= self.head.size || !self.is_zero(at),
            slot => slot.state() != State::ZeroDirty,
        };
        parts(offset, len).filter(|(at, lo, hi)| hi - lo == BUCKET && is_new(*at)).count() as u32
    }

    /// Keeps `room` of what a change had, now that it has been made; nothing if it has left nothing to be stored.
    pub(crate) fn keep_room(&mut self, env: &Env<'_>, room: u32, means: &mut Means<'_>) {
        means.credits -= room;
        env.gauges.hold_room(room);
        self.pending.room += room;
        if !self.has_pending() {
            env.gauges.give_room_back(std::mem::take(&mut self.pending.room));
        }
    }
}
