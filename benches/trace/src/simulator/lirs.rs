//! LIRS (Jiang & Zhang, SIGMETRICS'02): ranks objects by the distance between their last two uses.
//! Nearly all of the memory contains the objects with the shortest distance (*low*); a hundredth is
//! a queue of other objects.
//!
//! The stack contains all objects by their last use, from the oldest low one on, including evicted
//! ones; an object that is requested again while in the stack has been used twice within that time,
//! and replaces the oldest low object. The number of remembered evicted objects is limited to twice
//! the capacity.

use super::Simulator;
use super::lists::Lists;

pub(super) struct Lirs {
    stack: Lists<1>,
    /// The cached objects that are not low, by their time of entry.
    queue: Lists<1>,
    /// The evicted objects in the stack, by their time of eviction.
    gone: Lists<1>,
    is_low: Vec<bool>,
    low_bytes: u64,
    low_bytes_max: u64,
    capacity: u64,
}

/// The queue's share of the memory: 1/100, as in the paper.
const QUEUE_SHARE: u64 = 100;
/// The limit of remembered objects, as a multiple of the capacity.
const GONE_MAX: u64 = 2;

impl Lirs {
    pub(super) fn new(capacity: u64, sizes: Vec<u64>) -> Lirs {
        Lirs {
            is_low: vec![false; sizes.len()],
            stack: Lists::new(sizes.clone()),
            queue: Lists::new(sizes.clone()),
            gone: Lists::new(sizes),
            low_bytes: 0,
            low_bytes_max: capacity - (capacity / QUEUE_SHARE).max(1).min(capacity),
            capacity,
        }
    }

    fn bytes(&self) -> u64 {
        self.low_bytes + self.queue.bytes(0)
    }

    /// Makes a cached object low, at the top of the stack; the oldest low objects are demoted.
    fn promote(&mut self, object: u32) {
        self.queue.remove(object);
        self.is_low[object as usize] = true;
        self.low_bytes += self.stack.size(object);
        self.stack.push(0, object);
        while self.low_bytes > self.low_bytes_max && self.demote_oldest() {}
    }

    /// Moves the oldest low object to the queue; returns false if there is none.
    fn demote_oldest(&mut self) -> bool {
        self.prune();
        let Some(oldest) = self.stack.pop(0) else { return false };
        self.is_low[oldest as usize] = false;
        self.low_bytes -= self.stack.size(oldest);
        self.queue.push(0, oldest);
        self.prune();
        true
    }

    /// Removes entries below the oldest low object, which carry no information.
    fn prune(&mut self) {
        while let Some(oldest) = self.stack.oldest(0)
            && !self.is_low[oldest as usize]
        {
            self.stack.remove(oldest);
            self.gone.remove(oldest);
        }
    }

    fn make_room(&mut self, size: u64) {
        while self.bytes() + size > self.capacity {
            match self.queue.pop(0) {
                Some(victim) if self.stack.list_of(victim).is_some() => self.gone.push(0, victim),
                Some(_) => {}
                None if self.demote_oldest() => {}
                None => break,
            }
        }
        while self.gone.bytes(0) > GONE_MAX * self.capacity
            && let Some(forgotten) = self.gone.pop(0)
        {
            self.stack.remove(forgotten);
        }
    }
}

impl Simulator for Lirs {
    fn request(&mut self, object: u32) -> bool {
        if self.is_low[object as usize] {
            self.stack.push(0, object);
            self.prune();
            return true;
        }
        let in_stack = self.stack.list_of(object).is_some();
        if self.queue.list_of(object).is_some() {
            if in_stack {
                self.promote(object);
            } else {
                self.stack.push(0, object);
                self.queue.push(0, object);
            }
            return true;
        }
        let size = self.stack.size(object);
        if size > self.capacity {
            return false;
        }
        self.gone.remove(object);
        // The object is at the top of the stack, so evictions do not prune it.
        self.stack.push(0, object);
        self.make_room(size);
        if in_stack || self.low_bytes + size <= self.low_bytes_max {
            self.promote(object);
        } else {
            self.stack.push(0, object);
            self.queue.push(0, object);
        }
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_distance_takes_the_place_of_a_long_one() {
        // The cache has space for 99 low objects and a queue of one object.
        let mut cache = Lirs::new(100, vec![1; 300]);
        assert!((0..99).all(|object| !cache.request(object)));
        assert!((0..99).all(|object| cache.is_low[object as usize]));
        // A scan passes through the queue and does not affect the low objects.
        assert!((100..150).all(|object| !cache.request(object)));
        assert!((0..99).all(|object| cache.request(object)));
        // The object is used twice while the low objects are used once: it becomes low, and the
        // oldest low object is demoted.
        assert!(!cache.request(200) && !cache.request(201));
        assert!(!cache.request(200), "it had left");
        assert!(cache.is_low[200] && !cache.is_low[0]);
        assert_eq!(cache.used(), 100);
    }

    #[test]
    fn what_has_left_is_forgotten_in_time() {
        let mut cache = Lirs::new(100, vec![1; 10_000]);
        (0..99).for_each(|object| _ = cache.request(object));
        (100..5_000).for_each(|object| _ = cache.request(object));
        assert!(cache.gone.len(0) <= 201 && cache.stack.len(0) <= 302);
    }
}
