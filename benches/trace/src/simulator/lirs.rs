//! LIRS (Jiang & Zhang, SIGMETRICS'02): what counts is the distance between an object's last two uses.
//! Nearly all of the memory holds those with the shortest (*low*); a hundredth is a queue of others.
//!
//! The stack has all objects by their last use, from the oldest low one on, also those that have
//! left; an object that is asked for again while still in it has been used twice within that time, and takes
//! the place of the oldest low object. Of those that have left, as many are remembered as fit twice.

use super::Simulator;
use super::lists::Lists;

pub(super) struct Lirs {
    stack: Lists<1>,
    /// Those that are there and not low, by when they entered.
    queue: Lists<1>,
    /// Those in the stack that have left, by when.
    gone: Lists<1>,
    is_low: Vec<bool>,
    low_bytes: u64,
    low_bytes_max: u64,
    capacity: u64,
}

/// The share of the memory for the queue: 1/100, as in the paper.
const QUEUE_SHARE: u64 = 100;
/// Capacities that may be remembered.
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

    /// Makes an object low that is there, at the stack's top; the oldest low ones give way.
    fn promote(&mut self, object: u32) {
        self.queue.remove(object);
        self.is_low[object as usize] = true;
        self.low_bytes += self.stack.size(object);
        self.stack.push(0, object);
        while self.low_bytes > self.low_bytes_max && self.demote_oldest() {}
    }

    /// The oldest low object goes to the queue; false if there is none.
    fn demote_oldest(&mut self) -> bool {
        self.prune();
        let Some(oldest) = self.stack.pop(0) else { return false };
        self.is_low[oldest as usize] = false;
        self.low_bytes -= self.stack.size(oldest);
        self.queue.push(0, oldest);
        self.prune();
        true
    }

    /// The stack ends with a low object: older entries carry no information.
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
        // On top, so that making room does not prune it.
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
        // Room for 99 low ones and a queue of one.
        let mut cache = Lirs::new(100, vec![1; 300]);
        assert!((0..99).all(|object| !cache.request(object)));
        assert!((0..99).all(|object| cache.is_low[object as usize]));
        // A scan goes through the queue and leaves the low ones alone.
        assert!((100..150).all(|object| !cache.request(object)));
        assert!((0..99).all(|object| cache.request(object)));
        // Used twice while the low ones were used once: it becomes low, the oldest of those does not stay.
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
