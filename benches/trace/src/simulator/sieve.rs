//! SIEVE (Zhang et al., NSDI'24): a hand sweeps from old to new over a queue in which objects do
//! not move.

use super::Simulator;
use super::lists::Lists;

pub(super) struct Sieve {
    lists: Lists<1>,
    capacity: u64,
    visited: Vec<bool>,
    hand: Option<u32>,
}

impl Sieve {
    pub(super) fn new(capacity: u64, sizes: Vec<u64>) -> Sieve {
        Sieve { visited: vec![false; sizes.len()], lists: Lists::new(sizes), capacity, hand: None }
    }
}

impl Simulator for Sieve {
    fn request(&mut self, object: u32) -> bool {
        if self.lists.list_of(object).is_some() {
            self.visited[object as usize] = true;
            return true;
        }
        let size = self.lists.size(object);
        if size > self.capacity {
            return false;
        }
        while self.lists.bytes(0) + size > self.capacity {
            let Some(at) = self.hand.or(self.lists.oldest(0)) else { break };
            self.hand = self.lists.newer(at);
            if !std::mem::take(&mut self.visited[at as usize]) {
                self.lists.remove(at);
            }
        }
        self.visited[object as usize] = false;
        self.lists.push(0, object);
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.lists.bytes(0)
    }
}
