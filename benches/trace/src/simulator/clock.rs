//! CLOCK: a FIFO queue in which an object that was used since its last turn stays for another
//! round.

use super::Simulator;
use super::lists::Lists;

pub(super) struct Clock {
    lists: Lists<1>,
    capacity: u64,
    used: Vec<bool>,
}

impl Clock {
    pub(super) fn new(capacity: u64, sizes: Vec<u64>) -> Clock {
        Clock { used: vec![false; sizes.len()], lists: Lists::new(sizes), capacity }
    }
}

impl Simulator for Clock {
    fn request(&mut self, object: u32) -> bool {
        if self.lists.list_of(object).is_some() {
            self.used[object as usize] = true;
            return true;
        }
        let size = self.lists.size(object);
        if size > self.capacity {
            return false;
        }
        while self.lists.bytes(0) + size > self.capacity {
            let Some(victim) = self.lists.pop(0) else { break };
            if std::mem::take(&mut self.used[victim as usize]) {
                self.lists.push(0, victim);
            }
        }
        self.used[object as usize] = false;
        self.lists.push(0, object);
        false
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.lists.bytes(0)
    }
}
