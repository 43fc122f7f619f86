//! 2Q (Johnson & Shasha, VLDB'94): a quarter of the memory is a FIFO of new objects; an object that
//! is requested again after leaving it enters an LRU queue. Half as many names as objects are
//! remembered.

use super::Simulator;
use super::lists::Lists;

const IN: usize = 0;
const MAIN: usize = 1;
const OUT: usize = 2;

pub(super) struct TwoQ {
    lists: Lists<3>,
    capacity: u64,
}

impl TwoQ {
    pub(super) fn new(capacity: u64, sizes: Vec<u64>) -> TwoQ {
        TwoQ { lists: Lists::new(sizes), capacity }
    }

    fn make_room(&mut self, size: u64) {
        while self.lists.bytes(IN) + self.lists.bytes(MAIN) + size > self.capacity {
            if self.lists.bytes(IN) > self.capacity / 4 || self.lists.len(MAIN) == 0 {
                let Some(victim) = self.lists.oldest(IN) else { break };
                self.lists.push(OUT, victim);
                while self.lists.bytes(OUT) > self.capacity / 2 {
                    self.lists.pop(OUT);
                }
            } else {
                self.lists.pop(MAIN);
            }
        }
    }
}

impl Simulator for TwoQ {
    fn request(&mut self, object: u32) -> bool {
        let list = self.lists.list_of(object);
        match list {
            Some(MAIN) => {
                self.lists.push(MAIN, object);
                return true;
            }
            Some(IN) => return true,
            _ => {}
        }
        let size = self.lists.size(object);
        if size > self.capacity {
            return false;
        }
        self.lists.remove(object);
        self.make_room(size);
        self.lists.push(if list == Some(OUT) { MAIN } else { IN }, object);
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.lists.bytes(IN) + self.lists.bytes(MAIN)
    }
}
