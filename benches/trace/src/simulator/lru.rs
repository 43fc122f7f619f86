//! One queue: exact LRU, FIFO, and MRU, which evicts the most recently used object.

use super::Simulator;
use super::lists::Lists;

/// The queue. Its newest end has the object that was used or entered last.
pub(super) struct Queue {
    lists: Lists<1>,
    capacity: u64,
    moves_on_hit: bool,
    evicts_newest: bool,
}

impl Queue {
    pub(super) fn lru(capacity: u64, sizes: Vec<u64>) -> Queue {
        Queue { lists: Lists::new(sizes), capacity, moves_on_hit: true, evicts_newest: false }
    }

    pub(super) fn fifo(capacity: u64, sizes: Vec<u64>) -> Queue {
        Queue { lists: Lists::new(sizes), capacity, moves_on_hit: false, evicts_newest: false }
    }

    pub(super) fn mru(capacity: u64, sizes: Vec<u64>) -> Queue {
        Queue { lists: Lists::new(sizes), capacity, moves_on_hit: true, evicts_newest: true }
    }
}

impl Simulator for Queue {
    fn request(&mut self, object: u32) -> bool {
        let lists = &mut self.lists;
        if lists.list_of(object).is_some() {
            if self.moves_on_hit {
                lists.push(0, object);
            }
            return true;
        }
        let size = lists.size(object);
        if size > self.capacity {
            return false;
        }
        while lists.bytes(0) + size > self.capacity {
            let victim = if self.evicts_newest { lists.newest(0) } else { lists.oldest(0) };
            let Some(victim) = victim else { break };
            lists.remove(victim);
        }
        lists.push(0, object);
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.lists.bytes(0)
    }
}
