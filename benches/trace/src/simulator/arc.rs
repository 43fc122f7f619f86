//! ARC (Megiddo & Modha, FAST'03): two LRU queues, one for objects requested once and one for
//! objects requested again. Their shares adapt to the objects that are requested again after their
//! eviction from each queue.

use super::Simulator;
use super::lists::Lists;

/// The lists: objects seen once, objects seen again, and the ghosts of both.
const ONCE: usize = 0;
const AGAIN: usize = 1;
const LEFT_ONCE: usize = 2;
const LEFT_AGAIN: usize = 3;

pub(super) struct Arc {
    lists: Lists<4>,
    capacity: u64,
    /// The target share of `ONCE`.
    wanted: f64,
}

impl Arc {
    pub(super) fn new(capacity: u64, sizes: Vec<u64>) -> Arc {
        Arc { lists: Lists::new(sizes), capacity, wanted: 0.0 }
    }

    fn make_room(&mut self, size: u64, from_left_again: bool) {
        let lists = &mut self.lists;
        while lists.bytes(ONCE) + lists.bytes(AGAIN) + size > self.capacity {
            let once = lists.bytes(ONCE) as f64;
            let list = if once > 0.0 && (once > self.wanted || from_left_again && once >= self.wanted)
                || lists.len(AGAIN) == 0
            {
                ONCE
            } else {
                AGAIN
            };
            let Some(victim) = lists.oldest(list) else { break };
            lists.push(if list == ONCE { LEFT_ONCE } else { LEFT_AGAIN }, victim);
        }
        // Ghosts are limited in two ways: those of one kind, together with the objects of that
        // kind, to the capacity; all lists together to twice the capacity.
        while lists.bytes(ONCE) + lists.bytes(LEFT_ONCE) > self.capacity && lists.pop(LEFT_ONCE).is_some() {}
        let all = |lists: &Lists<4>| (0..4).map(|list| lists.bytes(list)).sum::<u64>();
        while all(lists) > 2 * self.capacity && lists.pop(LEFT_AGAIN).is_some() {}
    }
}

impl Simulator for Arc {
    fn request(&mut self, object: u32) -> bool {
        let list = self.lists.list_of(object);
        if matches!(list, Some(ONCE | AGAIN)) {
            self.lists.push(AGAIN, object);
            return true;
        }
        let size = self.lists.size(object);
        if size > self.capacity {
            return false;
        }
        let (left_once, left_again) = (self.lists.len(LEFT_ONCE) as f64, self.lists.len(LEFT_AGAIN) as f64);
        match list {
            Some(LEFT_ONCE) => {
                let step = (left_again / left_once).max(1.0) * size as f64;
                self.wanted = (self.wanted + step).min(self.capacity as f64);
            }
            Some(LEFT_AGAIN) => {
                let step = (left_once / left_again).max(1.0) * size as f64;
                self.wanted = (self.wanted - step).max(0.0);
            }
            _ => {}
        }
        self.lists.remove(object);
        self.make_room(size, list == Some(LEFT_AGAIN));
        self.lists.push(if list.is_some() { AGAIN } else { ONCE }, object);
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.lists.bytes(ONCE) + self.lists.bytes(AGAIN)
    }
}
