//! A miniature cache of one size, which applies the policy's own code to the sampled names.
//!
//! ```text
//!  names: one table for all sizes                     rings of one size: order of insertion
//!  ┌──────┬───────┬────────┬────────────────────┐     ┌───────┬───────────────────────────┐
//!  │ hash │ bytes │ expiry │ a state for each   │ <── │ ENTRY │ name, generation … oldest │
//!  │      │       │        │ size: present, …   │     ├───────┼───────────────────────────┤
//!  └──────┴───────┴────────┴────────────────────┘     │ MAIN  │                           │
//!                                                     └───────┴───────────────────────────┘
//! ```
//! The policy gets the size of the whole memory, and each name counts for as many as it was sampled
//! from. A name that is removed stays in its ring, and is skipped there because its generation
//! differs from that in its state.

use super::names::{Names, Place};
use crate::policy::{self, Candidate, Insertion, Policy, QUEUES_MAX, QueueId, Verdict};
use std::collections::VecDeque;

/// Most entries have at least this size, as in the store itself.
const ENTRY_BYTES_USUAL: f64 = 256.0;
/// The maximum number of entries for which a policy keeps ghosts, at the cache's own size.
const GHOST_ENTRIES_MAX: f64 = 32_768.0;

/// A cache of one size.
pub(super) struct Miniature {
    policy: Box<dyn Policy>,
    /// The policy's new bits after a hit, for each value of the bits.
    hits: [u8; 8],
    rings: [VecDeque<u32>; QUEUES_MAX],
    /// Bytes of the sampled entries in each ring.
    ring_bytes: [u64; QUEUES_MAX],
    /// The number of sampled entries.
    pub(super) entries: usize,
    /// The memory, as a multiple of the cache's own memory.
    factor: f64,
    /// The number of entries evicted.
    pub(super) evictions: u64,
    policy_bytes: usize,
}

/// The extrapolation from the sampled entries to all entries.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scale {
    /// The number of names that a sampled name represents.
    pub(super) weight: f64,
    /// The cache's memory, in bytes.
    pub(super) memory_bytes: u64,
    /// The part of the memory that entries occupy when it is full.
    pub(super) utilisation: f64,
}

impl Scale {
    fn weigh(&self, bytes: u64) -> u64 {
        (bytes as f64 * self.weight) as u64
    }
}

impl Miniature {
    /// Creates a cache with `factor` times the memory; `None` if no policy has this name.
    pub(super) fn new(policy: &str, factor: f64, scale: &Scale) -> Option<Miniature> {
        let mut miniature = Miniature {
            policy: policy::by_name(policy)?,
            hits: [0; 8],
            rings: Default::default(),
            ring_bytes: [0; QUEUES_MAX],
            entries: 0,
            factor,
            evictions: 0,
            policy_bytes: 0,
        };
        miniature.attach(scale);
        Some(miniature)
    }

    /// Resizes the policy's records for another scale, which clears them.
    pub(super) fn attach(&mut self, scale: &Scale) {
        let entry_bytes =
            (ENTRY_BYTES_USUAL * scale.weight).max(scale.memory_bytes as f64 / GHOST_ENTRIES_MAX);
        let memory_bytes = scale.memory_bytes as f64 * self.factor;
        self.policy_bytes = self.policy.attach(memory_bytes as usize, entry_bytes as usize);
        self.hits = policy::hits(&*self.policy);
    }

    /// Returns the number of bytes of sampled entries that fit.
    fn capacity(&self, scale: &Scale) -> u64 {
        (scale.memory_bytes as f64 * self.factor * scale.utilisation / scale.weight) as u64
    }

    /// Returns the bytes of the sampled entries.
    pub(super) fn used(&self) -> u64 {
        self.ring_bytes.iter().sum()
    }

    /// Records a hit on a present entry.
    pub(super) fn hit(&self, place: &mut Place) {
        place.set_bits(self.hits[usize::from(place.bits())]);
    }

    /// Adds an entry to the cache, evicting others. `replaces` has the policy's bits of the entry
    /// with the same name that has just been removed for it. An entry larger than the memory is not
    /// kept.
    pub(super) fn insert(
        &mut self,
        names: &mut Names,
        (at, name): (usize, u32),
        replaces: Option<u8>,
        scale: &Scale,
        now: u32,
    ) {
        let (hash, bytes) = names.hash_and_bytes(name);
        let capacity = self.capacity(scale);
        if bytes > capacity {
            return;
        }
        while self.used() + bytes > capacity && self.judge_one(names, at, scale, now) {}
        if self.policy.advance(scale.weigh(bytes)) {
            self.hits = policy::hits(&*self.policy);
        }
        let bits = self.policy.insert(&Insertion { hash, bytes: scale.weigh(bytes), replaces }) & 7;
        let generation = names.place_mut(name, at).enter(QueueId::ENTRY, bits);
        self.push(QueueId::ENTRY, name, generation, bytes);
    }

    /// Removes a present entry.
    pub(super) fn remove(&mut self, names: &mut Names, (at, name): (usize, u32)) {
        let (_, bytes) = names.hash_and_bytes(name);
        let place = names.place_mut(name, at);
        let queue = place.queue();
        place.leave();
        self.ring_bytes[usize::from(queue.0)] -= bytes;
        self.entries -= 1;
    }

    /// Records a new size of a present entry.
    pub(super) fn resize(&mut self, queue: QueueId, before: u64, after: u64) {
        let bytes = &mut self.ring_bytes[usize::from(queue.0)];
        *bytes = *bytes - before + after;
    }

    /// Removes everything.
    pub(super) fn clear(&mut self) {
        self.rings.iter_mut().for_each(VecDeque::clear);
        (self.ring_bytes, self.entries) = ([0; QUEUES_MAX], 0);
    }

    /// Returns the memory use of the rings and of the policy, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.policy_bytes + self.rings.iter().map(|ring| ring.capacity() * size_of::<u32>()).sum::<usize>()
    }

    fn push(&mut self, queue: QueueId, name: u32, generation: u8, bytes: u64) {
        let ring = &mut self.rings[usize::from(queue.0)];
        ring.push_back(Place::ring_entry(name, generation));
        self.ring_bytes[usize::from(queue.0)] += bytes;
        self.entries += 1;
    }

    /// Lets the policy decide about the entry at a ring's tail. Returns false if there is no entry.
    fn judge_one(&mut self, names: &mut Names, at: usize, scale: &Scale, now: u32) -> bool {
        let named = self.policy.victim(self.ring_bytes.map(|bytes| scale.weigh(bytes)));
        self.hits = policy::hits(&*self.policy);
        let named = usize::from(named.0).min(QUEUES_MAX - 1);
        let Some((queue, name)) = [named, 1 - named]
            .into_iter()
            .find_map(|queue| self.next_of(queue, names, at).map(|name| (QueueId(queue as u8), name)))
        else {
            return false;
        };
        let (hash, bytes) = names.hash_and_bytes(name);
        if names.is_expired(name, at, now) {
            self.leave(names, (at, name), queue, bytes);
            return true;
        }
        let bits = names.place_mut(name, at).bits();
        let weighed = scale.weigh(bytes);
        match self.policy.decide(&Candidate { hash, bits, queue, idle_secs: 0, bytes: weighed }) {
            Verdict::Evict => {
                self.leave(names, (at, name), queue, bytes);
                self.evictions += 1;
                self.policy.record_evicted(queue, weighed, &[hash]);
            }
            Verdict::Keep { queue: to, bits } => {
                self.ring_bytes[usize::from(queue.0)] -= bytes;
                self.entries -= 1;
                let generation = names.place_mut(name, at).enter(to, bits & 7);
                self.push(to, name, generation, bytes);
            }
        }
        true
    }

    fn leave(&mut self, names: &mut Names, (at, name): (usize, u32), queue: QueueId, bytes: u64) {
        names.place_mut(name, at).leave();
        names.release_if_absent(name);
        self.ring_bytes[usize::from(queue.0)] -= bytes;
        self.entries -= 1;
    }

    /// Takes the oldest entry that is still in a ring.
    fn next_of(&mut self, queue: usize, names: &mut Names, at: usize) -> Option<u32> {
        while let Some(entry) = self.rings[queue].pop_front() {
            let name = Place::name_of(entry);
            if names.place_mut(name, at).is_at(queue, entry) {
                return Some(name);
            }
        }
        None
    }

    /// Removes obsolete entries from the rings if most of them are.
    pub(super) fn compact(&mut self, names: &mut Names, at: usize) {
        let length: usize = self.rings.iter().map(VecDeque::len).sum();
        if length > 2 * self.entries + 1024 {
            for (queue, ring) in self.rings.iter_mut().enumerate() {
                ring.retain(|entry| names.place_mut(Place::name_of(*entry), at).is_at(queue, *entry));
            }
        }
    }
}
