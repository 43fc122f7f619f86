//! The marks: which keys have been stored while a prefix of them was in the table, and since which flush.

use crate::KeyHash;
use crate::hash::SeededState;
use crate::kv::lock_ranks;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use std::collections::HashMap;

/// Bytes of a mark, at most: a hash map doubles, and has two words and a byte for an entry.
pub(in crate::kv) const MARK_BYTES_MAX: usize = 40;

/// Maps, so that threads that mark keys seldom meet.
const MAPS: usize = 16;

/// A bounded map from a key's hash to the number of the last flush when it was stored.
pub(super) struct Marks {
    maps: [Mutex<HashMap<u64, u64, SeededState>>; MAPS],
    len: AtomicU64,
    max: u64,
    state: SeededState,
}

impl Marks {
    pub(super) fn new(max: u64, state: &SeededState) -> Marks {
        let map = |_| Mutex::ranked(HashMap::with_hasher(state.clone()), &lock_ranks::MARKS);
        Marks { maps: std::array::from_fn(map), len: AtomicU64::new(0), max, state: state.clone() }
    }

    fn map(&self, hash: KeyHash) -> &Mutex<HashMap<u64, u64, SeededState>> {
        &self.maps[(hash.0 >> 48) as usize % MAPS]
    }

    /// The mark of a key; 0 if it has none.
    pub(super) fn of(&self, hash: KeyHash) -> u64 {
        if self.len() == 0 {
            return 0;
        }
        lock(self.map(hash)).get(&hash.0).copied().unwrap_or(0)
    }

    /// Marks a key; returns false if there is no room for one more.
    #[must_use]
    pub(super) fn set(&self, hash: KeyHash, number: u64) -> bool {
        let mut map = lock(self.map(hash));
        if let Some(mark) = map.get_mut(&hash.0) {
            *mark = number;
            return true;
        }
        // A place first, then the entry: threads that mark keys at the same time keep the bound.
        let room = |len: u64| (len < self.max).then_some(len + 1);
        if self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return false;
        }
        map.insert(hash.0, number);
        true
    }

    /// Removes the marks up to `number`, and gives their memory back.
    pub(super) fn forget_up_to(&self, number: u64) {
        for map in &self.maps {
            let mut map = lock(map);
            let before = map.len();
            if before == 0 {
                continue;
            }
            map.retain(|_, mark| *mark > number);
            self.len.fetch_sub((before - map.len()) as u64, Ordering::Relaxed);
            if map.is_empty() {
                *map = HashMap::with_hasher(self.state.clone());
            }
        }
    }

    /// The number of marks.
    pub(super) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// The most marks.
    pub(super) fn max(&self) -> u64 {
        self.max
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::hash::KeyHasher;

    #[test]
    fn marks_are_bounded_and_forgotten_by_number() {
        let marks = Marks::new(3, &KeyHasher::new(Some(7)).seeded_state());
        let hash = |n: u64| KeyHash(n << 48 | n);
        assert!((1..=3).all(|n| marks.set(hash(n), n)));
        assert!(!marks.set(hash(4), 4), "no room");
        assert!(marks.set(hash(1), 5), "it has a mark");
        assert_eq!((marks.of(hash(1)), marks.of(hash(2)), marks.of(hash(4))), (5, 2, 0));
        marks.forget_up_to(2);
        assert_eq!((marks.len(), marks.of(hash(1)), marks.of(hash(2)), marks.of(hash(3))), (2, 5, 0, 3));
        assert!(marks.set(hash(4), 6));
        assert!(!marks.set(hash(2), 6));
    }
}
