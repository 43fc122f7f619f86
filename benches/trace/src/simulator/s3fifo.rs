//! S3-FIFO (Yang et al., SOSP'23), as in libCacheSim: a tenth of the memory is a FIFO of new
//! objects; an object that was hit twice there, or returns soon, moves to a FIFO in which hits earn
//! more rounds.

use super::Simulator;
use super::lists::Lists;

const SMALL: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;

const HITS_TO_MOVE: u8 = 2;
const HITS_MAX: u8 = 3;

pub(super) struct S3Fifo {
    lists: Lists<3>,
    capacity: u64,
    small: u64,
    hits: Vec<u8>,
}

impl S3Fifo {
    pub(super) fn new(capacity: u64, sizes: Vec<u64>) -> S3Fifo {
        S3Fifo { hits: vec![0; sizes.len()], lists: Lists::new(sizes), capacity, small: capacity / 10 }
    }

    fn evict(&mut self) {
        let lists = &mut self.lists;
        if lists.bytes(SMALL) > self.small || lists.len(MAIN) == 0 {
            let Some(victim) = lists.oldest(SMALL) else { return };
            if self.hits[victim as usize] >= HITS_TO_MOVE {
                self.hits[victim as usize] = 0;
                lists.push(MAIN, victim);
                return;
            }
            lists.push(GHOSTS, victim);
            while lists.bytes(GHOSTS) > self.capacity - self.small {
                lists.pop(GHOSTS);
            }
        } else if let Some(victim) = lists.pop(MAIN)
            && let Some(fewer) = self.hits[victim as usize].checked_sub(1)
        {
            self.hits[victim as usize] = fewer;
            lists.push(MAIN, victim);
        }
    }
}

impl Simulator for S3Fifo {
    fn request(&mut self, object: u32) -> bool {
        let list = self.lists.list_of(object);
        if matches!(list, Some(SMALL | MAIN)) {
            let hits = &mut self.hits[object as usize];
            *hits = (*hits + 1).min(HITS_MAX);
            return true;
        }
        let size = self.lists.size(object);
        if size > self.capacity {
            return false;
        }
        self.lists.remove(object);
        while self.lists.bytes(SMALL) + self.lists.bytes(MAIN) + size > self.capacity {
            self.evict();
        }
        self.hits[object as usize] = 0;
        self.lists.push(if list.is_some() { MAIN } else { SMALL }, object);
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.lists.bytes(SMALL) + self.lists.bytes(MAIN)
    }
}
