//! A table limited in count and bytes, which evicts unused entries first.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use crate::http::read::Place;

/// The number of shards, each with a lock.
pub(crate) const SHARDS: usize = 16;

/// The table.
#[derive(Debug)]
pub(crate) struct Table<V> {
    shards: [Mutex<Shard<V>>; SHARDS],
    count_max: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Shard<V> {
    entries: HashMap<Place, Entry<V>>,
    /// Places in order of arrival, each with the number of its entry. If an entry has a different
    /// number, the queued one has left the table.
    queue: VecDeque<(Place, u64)>,
    number: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    bytes: usize,
    number: u64,
    /// Whether the entry was used since eviction last passed it.
    is_used: bool,
}

impl<V> Default for Shard<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), queue: VecDeque::new(), number: 0, bytes: 0 }
    }
}

impl<V: Clone> Table<V> {
    /// Returns a table limited to this many entries and bytes.
    pub(crate) fn new(count_max: usize, bytes_max: usize) -> Self {
        let share = |all: usize| all.div_ceil(SHARDS);
        Self { shards: Default::default(), count_max: share(count_max), bytes_max: share(bytes_max) }
    }

    fn shard(&self, place: &Place) -> &Mutex<Shard<V>> {
        &self.shards[usize::from(place.0[0]) % SHARDS]
    }

    /// Returns the value at a place.
    pub(crate) fn get(&self, place: &Place) -> Option<V> {
        let mut shard = self.shard(place).lock();
        let entry = shard.entries.get_mut(place)?;
        entry.is_used = true;
        Some(entry.value.clone())
    }

    /// Enters a value of `bytes`, unless `keep` decides that the existing value stays; `keep` gets
    /// both values, and may change them. A value that is too large is not entered. Returns the
    /// value in the table, or else the given one.
    pub(crate) fn enter(
        &self,
        place: Place,
        mut value: V,
        bytes: usize,
        keep: impl FnOnce(&mut V, &mut V) -> bool,
    ) -> V {
        let mut shard = self.shard(&place).lock();
        let shard = &mut *shard;
        if let Some(entry) = shard.entries.get_mut(&place) {
            if keep(&mut entry.value, &mut value) {
                return entry.value.clone();
            }
            if bytes > self.bytes_max {
                shard.remove(&place);
                return value;
            }
            shard.bytes = shard.bytes - entry.bytes + bytes;
            (entry.value, entry.bytes) = (value.clone(), bytes);
        } else {
            if bytes > self.bytes_max {
                return value;
            }
            shard.number += 1;
            let number = shard.number;
            shard.entries.insert(place, Entry { value: value.clone(), bytes, number, is_used: false });
            shard.queue.push_back((place, number));
            shard.bytes += bytes;
        }
        while shard.entries.len() > self.count_max || shard.bytes > self.bytes_max {
            shard.evict_one();
        }
        value
    }

    /// Removes an entry, if `which` returns true for its value.
    pub(crate) fn remove_if(&self, place: &Place, which: impl FnOnce(&V) -> bool) {
        let mut shard = self.shard(place).lock();
        if shard.entries.get(place).is_some_and(|entry| which(&entry.value)) {
            shard.remove(place);
        }
    }

    /// Returns the number of entries, and their bytes.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let each = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.entries.len(), shard.bytes)
        });
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

impl<V> Shard<V> {
    fn remove(&mut self, place: &Place) {
        if let Some(entry) = self.entries.remove(place) {
            self.bytes -= entry.bytes;
        }
        if self.queue.len() > 2 * self.entries.len() + QUEUE_SLACK {
            let entries = &self.entries;
            self.queue
                .retain(|(place, number)| entries.get(place).is_some_and(|entry| entry.number == *number));
        }
    }

    /// Removes the first entry of the queue that was not used since it was last passed.
    fn evict_one(&mut self) {
        while let Some((place, number)) = self.queue.pop_front() {
            match self.entries.get_mut(&place).filter(|entry| entry.number == number) {
                None => (),
                Some(entry) if entry.is_used => {
                    entry.is_used = false;
                    self.queue.push_back((place, number));
                }
                Some(_) => return self.remove(&place),
            }
        }
    }
}

/// The number of removed places that a queue may contain in addition to its entries.
const QUEUE_SLACK: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: usize) -> Place {
        let mut key = [0; 32];
        // All in one shard.
        key[8..16].copy_from_slice(&(number as u64).to_le_bytes());
        (key, false)
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_used() {
        let table = Table::new(10 * SHARDS, 1 << 30);
        for number in 0..100 {
            table.enter(place(number), number, 7, |_, _| false);
            assert_eq!(table.get(&place(0)), Some(0), "{number}");
        }
        assert_eq!((table.sizes(), table.get(&place(1))), ((10, 70), None));
        let table = Table::new(1 << 20, 3 * SHARDS * 7);
        for number in 0..100 {
            table.enter(place(number), number, 7, |_, _| false);
        }
        assert_eq!(table.sizes().0, 3);
        table.enter(place(99), 1, 1000, |_, _| false);
        assert_eq!((table.sizes().0, table.get(&place(99))), (2, None));
    }

    #[test]
    fn what_leaves_and_returns_is_in_the_queue_once() {
        let table = Table::new(SHARDS * 4, 1 << 20);
        for _ in 0..10_000 {
            table.enter(place(1), 1, 1, |_, _| false);
            table.remove_if(&place(1), |_| true);
        }
        assert!(table.shards[0].lock().queue.len() <= QUEUE_SLACK + 1);
        assert_eq!(table.sizes(), (0, 0));
        for number in 0..4 {
            table.enter(place(number), number, 1, |_, _| false);
        }
        table.remove_if(&place(0), |_| true);
        table.enter(place(0), 0, 1, |_, _| false);
        // Its old position in the queue no longer counts.
        table.enter(place(5), 5, 1, |_, _| false);
        assert_eq!((table.get(&place(0)), table.get(&place(1))), (Some(0), None));
    }

    #[test]
    fn values_are_kept_changed_and_removed_by_what_they_are() {
        let table = Table::new(100, 1 << 20);
        assert_eq!(table.enter(place(1), 1, 1, |_, _| true), 1);
        assert_eq!(table.enter(place(1), 2, 1, |_, _| true), 1);
        assert_eq!(table.enter(place(1), 2, 1, |_, _| false), 2);
        table.enter(place(1), 3, 1, |_, _| false);
        table.remove_if(&place(1), |value| *value == 2);
        assert_eq!(table.get(&place(1)), Some(3));
        table.remove_if(&place(1), |value| *value == 3);
        assert_eq!((table.get(&place(1)), table.sizes()), (None, (0, 0)));
    }
}
