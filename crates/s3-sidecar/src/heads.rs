//! The heads of objects that are known: a bounded table, from which the least used leave first.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::generation::Head;
use crate::target::ObjectKey;

/// A head's place: the object, and whether the endpoint was asked for its checksums.
type Place = (ObjectKey, bool);

/// The number of parts with a lock each.
const SHARDS: usize = 16;

/// The table.
#[derive(Debug)]
pub(crate) struct Heads {
    shards: [Mutex<Shard>; SHARDS],
    count_max: usize,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    entries: HashMap<Place, Entry>,
    /// In order of arrival; each entry once.
    queue: VecDeque<Place>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    head: Arc<Head>,
    /// Whether it was used since it was last looked at for eviction.
    is_used: bool,
}

impl Heads {
    /// Returns a table of at most so many heads and bytes.
    pub(crate) fn new(count_max: usize, bytes_max: usize) -> Self {
        let share = |all: usize| all.div_ceil(SHARDS);
        Self { shards: Default::default(), count_max: share(count_max), bytes_max: share(bytes_max) }
    }

    fn shard(&self, place: &Place) -> &Mutex<Shard> {
        &self.shards[usize::from(place.0[0]) % SHARDS]
    }

    /// Returns the head of an object.
    pub(crate) fn get(&self, key: ObjectKey, has_checksums: bool) -> Option<Arc<Head>> {
        let place = (key, has_checksums);
        let mut shard = self.shard(&place).lock();
        let entry = shard.entries.get_mut(&place)?;
        entry.is_used = true;
        Some(Arc::clone(&entry.head))
    }

    /// Enters what an answer has stated, unless what is known of the same bytes states more. Returns what is known then.
    pub(crate) fn enter(&self, key: ObjectKey, has_checksums: bool, head: Head) -> Arc<Head> {
        let place = (key, has_checksums);
        let head = Arc::new(head);
        let bytes = head.bytes();
        if bytes > self.bytes_max {
            return head;
        }
        let mut shard = self.shard(&place).lock();
        let shard = &mut *shard;
        if let Some(entry) = shard.entries.get_mut(&place) {
            if entry.head.generation == head.generation && entry.head.is_of_whole && !head.is_of_whole {
                return Arc::clone(&entry.head);
            }
            shard.bytes = shard.bytes - entry.head.bytes() + bytes;
            entry.head = Arc::clone(&head);
        } else {
            shard.entries.insert(place, Entry { head: Arc::clone(&head), is_used: false });
            shard.queue.push_back(place);
            shard.bytes += bytes;
        }
        while shard.entries.len() > self.count_max || shard.bytes > self.bytes_max {
            shard.evict_one();
        }
        head
    }

    /// Forgets a head, if it is still the one that is known.
    pub(crate) fn forget(&self, key: ObjectKey, has_checksums: bool, head: &Arc<Head>) {
        let place = (key, has_checksums);
        let mut shard = self.shard(&place).lock();
        if shard.entries.get(&place).is_some_and(|entry| Arc::ptr_eq(&entry.head, head)) {
            shard.remove(&place);
            shard.queue.retain(|each| *each != place);
        }
    }

    /// Returns how many heads are known, and how many bytes they take.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        let each = self.shards.iter().map(|shard| {
            let shard = shard.lock();
            (shard.entries.len(), shard.bytes)
        });
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }
}

impl Shard {
    fn remove(&mut self, place: &Place) {
        if let Some(entry) = self.entries.remove(place) {
            self.bytes -= entry.head.bytes();
        }
    }

    /// Removes the first of the queue that was not used since it was last passed.
    fn evict_one(&mut self) {
        while let Some(place) = self.queue.pop_front() {
            match self.entries.get_mut(&place) {
                Some(entry) if entry.is_used => {
                    entry.is_used = false;
                    self.queue.push_back(place);
                }
                _ => return self.remove(&place),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::GenerationId;
    use hyper::HeaderMap;
    use hyper::header::HeaderValue;

    fn head(generation: u8, is_of_whole: bool) -> Head {
        Head {
            generation: [generation; size_of::<GenerationId>()],
            etag: HeaderValue::from_static("\"a\""),
            last_modified: None,
            size: 1,
            headers: HeaderMap::new(),
            is_of_whole,
        }
    }

    fn key(number: usize) -> ObjectKey {
        let mut key = [0; 32];
        // All in one part of the table.
        key[8..16].copy_from_slice(&(number as u64).to_le_bytes());
        key
    }

    #[test]
    fn the_table_is_bounded_and_keeps_what_is_used() {
        let heads = Heads::new(10 * SHARDS, 1 << 30);
        for number in 0..100 {
            heads.enter(key(number), false, head(1, true));
            assert!(heads.get(key(0), false).is_some(), "{number}");
        }
        let (count, bytes) = heads.sizes();
        assert_eq!((count, bytes), (10, 10 * head(1, true).bytes()));
        assert!(heads.get(key(1), false).is_none());
        let heads = Heads::new(1 << 20, 3 * SHARDS * head(1, true).bytes());
        (0..100).for_each(|number| drop(heads.enter(key(number), false, head(1, true))));
        assert_eq!(heads.sizes().0, 3);
    }

    #[test]
    fn what_states_less_replaces_nothing_of_the_same_bytes() {
        let heads = Heads::new(100, 1 << 20);
        heads.enter(key(1), false, head(1, true));
        assert!(heads.enter(key(1), false, head(1, false)).is_of_whole);
        assert!(!heads.enter(key(1), false, head(2, false)).is_of_whole);
        assert_eq!(heads.get(key(1), false).unwrap().generation[0], 2);
        assert!(heads.get(key(1), true).is_none());
        let known = heads.enter(key(1), false, head(2, true));
        heads.enter(key(1), false, head(3, true));
        heads.forget(key(1), false, &known);
        let known = heads.get(key(1), false).unwrap();
        heads.forget(key(1), false, &known);
        assert_eq!((heads.get(key(1), false).is_none(), heads.sizes()), (true, (0, 0)));
    }
}
