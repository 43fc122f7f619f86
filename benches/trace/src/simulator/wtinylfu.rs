//! W-TinyLFU (Einziger et al., TOS'17): a hundredth of the memory is an LRU window; an object that
//! leaves the window is admitted only if it was recently requested more often than the object that
//! it would evict. The rest is a segmented LRU.

use super::Simulator;
use super::lists::Lists;

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;

pub(super) struct WTinyLfu {
    lists: Lists<3>,
    window: u64,
    main: u64,
    sketch: Sketch,
}

impl WTinyLfu {
    pub(super) fn new(capacity: u64, sizes: Vec<u64>) -> WTinyLfu {
        let window = (capacity / 100).max(1).min(capacity);
        let mean = (sizes.iter().sum::<u64>() / sizes.len().max(1) as u64).max(1);
        let sketch = Sketch::new((capacity / mean).max(16));
        WTinyLfu { lists: Lists::new(sizes), window, main: capacity - window, sketch }
    }

    /// Admits the object that leaves the window if it is more frequent than the objects that its
    /// admission would evict.
    fn admit(&mut self, candidate: u32) {
        let (size, lists) = (self.lists.size(candidate), &mut self.lists);
        lists.remove(candidate);
        if size > self.main {
            return;
        }
        while lists.bytes(PROBATION) + lists.bytes(PROTECTED) + size > self.main {
            let Some(victim) = lists.oldest(PROBATION).or(lists.oldest(PROTECTED)) else { return };
            if self.sketch.count(candidate) <= self.sketch.count(victim) {
                return;
            }
            lists.remove(victim);
        }
        lists.push(PROBATION, candidate);
    }
}

impl Simulator for WTinyLfu {
    fn request(&mut self, object: u32) -> bool {
        self.sketch.add(object);
        let lists = &mut self.lists;
        match lists.list_of(object) {
            Some(WINDOW) => lists.push(WINDOW, object),
            Some(_) => {
                lists.push(PROTECTED, object);
                while lists.bytes(PROTECTED) > self.main / 5 * 4
                    && let Some(oldest) = lists.oldest(PROTECTED)
                {
                    lists.push(PROBATION, oldest);
                }
            }
            None => {
                if lists.size(object) > self.window + self.main {
                    return false;
                }
                lists.push(WINDOW, object);
                while self.lists.bytes(WINDOW) > self.window
                    && let Some(oldest) = self.lists.oldest(WINDOW)
                {
                    self.admit(oldest);
                }
                return false;
            }
        }
        true
    }

    #[cfg(test)]
    fn used(&self) -> u64 {
        self.lists.bytes(WINDOW) + self.lists.bytes(PROBATION) + self.lists.bytes(PROTECTED)
    }
}

/// A count-min sketch: four rows of counters up to 15, which are halved after ten times as many
/// requests as objects fit.
struct Sketch {
    counters: Vec<u8>,
    mask: u64,
    additions: u64,
    additions_max: u64,
}

impl Sketch {
    fn new(objects: u64) -> Sketch {
        let counters = (objects * 4).next_power_of_two();
        Sketch {
            counters: vec![0; counters as usize * 4],
            mask: counters - 1,
            additions: 0,
            additions_max: objects * 10,
        }
    }

    fn places(&self, object: u32) -> [usize; 4] {
        std::array::from_fn(|row| {
            let hash =
                (u64::from(object) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (row as u64) << 17 << row);
            ((hash >> 29) & self.mask) as usize * 4 + row
        })
    }

    fn count(&self, object: u32) -> u8 {
        self.places(object).map(|place| self.counters[place]).into_iter().min().unwrap_or(0)
    }

    fn add(&mut self, object: u32) {
        for place in self.places(object) {
            self.counters[place] = (self.counters[place] + 1).min(15);
        }
        self.additions += 1;
        if self.additions == self.additions_max {
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
            self.additions /= 2;
        }
    }
}
