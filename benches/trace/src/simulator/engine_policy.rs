//! A policy of `cached-core` at object granularity, with queues that move one object at a time.
//! Compared with the replay through the engine, it shows the cost of regions.

use std::collections::VecDeque;

use cached_core::kv::policy::{Candidate, Insertion, Policy, QUEUES_MAX, QueueId, Verdict};

use super::Simulator;
use crate::engine::hash;

/// In object-count mode, the size of an object for the calculation of the policy's own memory.
const OBJECT_BYTES: u64 = 1024;

/// The engine's usual value.
const ENTRY_BYTES_USUAL: usize = 256;

pub(crate) struct EnginePolicy {
    policy: Box<dyn Policy>,
    queues: [VecDeque<u32>; QUEUES_MAX],
    queue_bytes: [u64; QUEUES_MAX],
    /// The policy's bits of every cached object.
    bits: Vec<Option<u8>>,
    sizes: Vec<u64>,
    capacity: u64,
}

impl EnginePolicy {
    pub(crate) fn new(mut policy: Box<dyn Policy>, capacity: u64, mut sizes: Vec<u64>) -> EnginePolicy {
        let mut capacity = capacity;
        if sizes.iter().all(|bytes| *bytes == 1) {
            sizes.iter_mut().for_each(|bytes| *bytes = OBJECT_BYTES);
            capacity *= OBJECT_BYTES;
        }
        capacity -= policy.attach(capacity as usize, ENTRY_BYTES_USUAL) as u64;
        EnginePolicy {
            policy,
            queues: Default::default(),
            queue_bytes: [0; QUEUES_MAX],
            bits: vec![None; sizes.len()],
            sizes,
            capacity,
        }
    }

    fn push(&mut self, queue: QueueId, object: u32) {
        let queue = usize::from(queue.0);
        self.queues[queue].push_back(object);
        self.queue_bytes[queue] += self.sizes[object as usize];
    }

    /// Judges one object.
    fn judge_one(&mut self) {
        let named = self.policy.victim(self.queue_bytes);
        let queue = if self.queues[usize::from(named.0)].is_empty() { QueueId(1 - named.0) } else { named };
        let Some(object) = self.queues[usize::from(queue.0)].pop_front() else { return };
        let bytes = self.sizes[object as usize];
        self.queue_bytes[usize::from(queue.0)] -= bytes;
        let bits = self.bits[object as usize].unwrap_or(0);
        let candidate = Candidate { hash: hash(object), bits, queue, idle_secs: 0, bytes };
        match self.policy.decide(&candidate) {
            Verdict::Evict => {
                self.policy.record_evicted(queue, bytes, &[candidate.hash]);
                self.bits[object as usize] = None;
            }
            Verdict::Keep { queue, bits } => {
                self.bits[object as usize] = Some(bits);
                self.push(queue, object);
            }
        }
    }
}

impl Simulator for EnginePolicy {
    fn request(&mut self, object: u32) -> bool {
        if let Some(bits) = &mut self.bits[object as usize] {
            *bits = self.policy.hit(*bits);
            return true;
        }
        let bytes = self.sizes[object as usize];
        if bytes > self.capacity {
            return false;
        }
        while self.queue_bytes.iter().sum::<u64>() + bytes > self.capacity {
            self.judge_one();
        }
        self.policy.advance(bytes);
        let bits = self.policy.insert(&Insertion { hash: hash(object), bytes, replaces: None });
        self.bits[object as usize] = Some(bits);
        self.push(QueueId::ENTRY, object);
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.queue_bytes.iter().sum()
    }
}
