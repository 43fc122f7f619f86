//! The queues of sealed regions in age order: linked lists, one per queue of the policy and one for
//! pieces of large values. Also the table that gives the state of an item after a hit.
//!
//! Their lock is a leaf: no other lock is taken while it is held.

// `crate::sync` is not used: these are hints that order nothing between threads, and there are many
// of them.
use std::sync::atomic::AtomicU8;

use crate::arena::{Arena, RegionId};
use crate::kv::item::state;
use crate::policy;
use crate::policy::{Policy, QUEUES_MAX};
use crate::sync::{AtomicU64, Ordering};

/// The queue of regions that hold pieces of large values.
pub(crate) const LARGE: usize = QUEUES_MAX;
pub(crate) const QUEUES: usize = QUEUES_MAX + 1;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Link {
    older: u32,
    newer: u32,
    queue: u8,
}

#[derive(Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
    regions: usize,
}

/// All queues. Every sealed region is in exactly one.
pub(crate) struct Queues {
    links: Box<[Link]>,
    ends: [Ends; QUEUES],
}

impl Queues {
    pub(crate) fn new(regions: u32) -> Queues {
        Queues {
            links: (0..regions).map(|_| Link { older: NONE, newer: NONE, queue: u8::MAX }).collect(),
            ends: [Ends { oldest: NONE, newest: NONE, regions: 0 }; QUEUES],
        }
    }

    /// Adds a region at the position of its sequence number, which is almost always the newest end.
    pub(crate) fn insert(&mut self, arena: &Arena, queue: usize, id: RegionId) {
        debug_assert_eq!(self.links[id.0 as usize].queue, u8::MAX, "already in a queue");
        arena.region(id).set_queue(queue as u32);
        let sequence = arena.region(id).sequence();
        let mut older = self.ends[queue].newest;
        while older != NONE && arena.region(RegionId(older)).sequence() > sequence {
            older = self.links[older as usize].older;
        }
        let newer = if older == NONE { self.ends[queue].oldest } else { self.links[older as usize].newer };
        self.links[id.0 as usize] = Link { older, newer, queue: queue as u8 };
        match older {
            NONE => self.ends[queue].oldest = id.0,
            _ => self.links[older as usize].newer = id.0,
        }
        match newer {
            NONE => self.ends[queue].newest = id.0,
            _ => self.links[newer as usize].older = id.0,
        }
        self.ends[queue].regions += 1;
    }

    /// Removes a region. Returns the queue in which it was.
    pub(crate) fn remove(&mut self, id: RegionId) -> usize {
        let Link { older, newer, queue } = self.links[id.0 as usize];
        debug_assert_ne!(queue, u8::MAX, "not in a queue");
        let queue = queue as usize;
        match older {
            NONE => self.ends[queue].oldest = newer,
            _ => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.ends[queue].newest = older,
            _ => self.links[newer as usize].older = older,
        }
        self.links[id.0 as usize].queue = u8::MAX;
        self.ends[queue].regions -= 1;
        queue
    }

    /// Returns the queue of a region; `None` if the region is in no queue.
    pub(crate) fn queue_of(&self, id: RegionId) -> Option<usize> {
        let queue = self.links[id.0 as usize].queue;
        (queue != u8::MAX).then_some(queue as usize)
    }

    /// Returns the regions of a queue, oldest first.
    pub(crate) fn oldest_first(&self, queue: usize) -> impl Iterator<Item = RegionId> + '_ {
        let mut at = self.ends[queue].oldest;
        std::iter::from_fn(move || {
            let id = at;
            (id != NONE).then(|| {
                at = self.links[id as usize].newer;
                RegionId(id)
            })
        })
    }

    /// Returns the number of regions in a queue.
    pub(crate) fn regions(&self, queue: usize) -> usize {
        self.ends[queue].regions
    }
}

/// The state of an item after a hit, for each state before it. A hit reads one byte of this table
/// instead of calling the policy.
pub(in crate::kv) struct HitTable {
    states: [AtomicU8; state::COUNT],
    /// The policy's results for its eight bit patterns, one byte each, from which the states were
    /// computed.
    bits: AtomicU64,
}

impl HitTable {
    pub(super) fn new(policy: &dyn Policy) -> HitTable {
        let table = HitTable {
            states: std::array::from_fn(|_| AtomicU8::new(0)),
            // The policy never returns this value, because its bits are below 8.
            bits: AtomicU64::new(u64::MAX),
        };
        table.refresh(policy);
        table
    }

    /// Queries the policy again. Only one thread at a time may call this.
    pub(super) fn refresh(&self, policy: &dyn Policy) {
        let bits = policy::hits(policy);
        let word = u64::from_le_bytes(bits);
        if self.bits.load(Ordering::Relaxed) == word {
            return;
        }
        self.bits.store(word, Ordering::Relaxed);
        for (before, after) in self.states.iter().enumerate() {
            let before = before as u8;
            let bits = bits[usize::from((before & state::POLICY) >> state::POLICY_SHIFT)];
            let marks = before & !state::POLICY | state::FETCHED;
            after.store(marks | bits << state::POLICY_SHIFT, Ordering::Relaxed);
        }
    }

    /// Returns the state after a hit.
    #[inline]
    pub(in crate::kv) fn after(&self, state: u8) -> u8 {
        self.states[usize::from(state)].load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::arena::{ArenaConfig, Owner, REGION_BYTES_MIN};

    #[test]
    fn a_queue_is_in_age_order() {
        let arena = Arena::new(ArenaConfig {
            bytes: 5 * REGION_BYTES_MIN,
            region_bytes: REGION_BYTES_MIN,
            kv_regions_max: 5,
            objects_regions_max: 0,
            huge_pages: false,
        })
        .unwrap();
        let ids: Vec<_> = (0..5).map(|_| arena.take(Owner::Kv, 0).unwrap()).collect();
        let mut queues = Queues::new(5);
        for n in [3, 0, 4, 2, 1] {
            queues.insert(&arena, 0, ids[n]);
        }
        assert!(queues.oldest_first(0).eq(ids.iter().copied()));
        assert_eq!(queues.remove(ids[0]), 0);
        assert_eq!(queues.remove(ids[4]), 0);
        queues.remove(ids[2]);
        assert!(queues.oldest_first(0).eq([ids[1], ids[3]]));
        assert_eq!(queues.regions(0), 2);
        assert_eq!(queues.queue_of(ids[2]), None);
        queues.insert(&arena, LARGE, ids[2]);
        assert_eq!(queues.queue_of(ids[2]), Some(LARGE));
    }
}
