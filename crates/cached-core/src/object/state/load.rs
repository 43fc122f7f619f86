//! Filling slots with what the store gave.

use blocker::Segment;

use super::{Env, Object, Resources};
use crate::object::geometry::BUCKET_U64;
use crate::object::slots::{Slot, State};

impl Object {
    /// Keeps what the store gave, as far as buckets were reserved for it.
    pub(crate) fn fill(&mut self, env: &Env<'_>, resources: &mut Resources<'_>) {
        let Some(loaded) = resources.loaded else { return };
        for (start, len, data) in &loaded.runs {
            let first = (start / BUCKET_U64) as u32;
            let is_hole = data.iter().all(Segment::is_hole) && self.content_end() >= start + len;
            for at in first..first + (len / BUCKET_U64) as u32 {
                let slot = self.slots.get(at);
                let from = u64::from(at) * BUCKET_U64;
                if from >= self.content_end() || from >= self.head.size {
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
                    env.queues.link(env.pool, bucket, env.bucket_name(at), true);
                } else if Self::is_exclusive(env, slot) {
                    self.fill_up(env, at, slot.bucket(), resources.loaded);
                }
            }
        }
    }
}
