//! Tables: one of limited size, for the heads of remembered objects and for the endpoint's 404
//! responses about objects that are known to be missing; and one of activities in progress.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::hash::Hash;
use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method};
use parking_lot::Mutex;

use crate::http::read::{Place, has_directive};
use crate::http::target::ObjectKey;
use crate::memory::changes::Moment;
use crate::memory::generation::{GenerationId, Head, is_kept_apart, repeated_with_ids};

/// The average memory use of an entry about a missing object, in bytes. Longer entries leave less
/// memory for others.
pub(crate) const ABSENT_BYTES_EACH: usize = 1024;

/// The number of shards, each with a lock.
const SHARDS: usize = 16;

/// A table limited in count and bytes, which evicts unused entries first.
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
    fn insert(
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
    fn remove_if(&self, place: &Place, which: impl FnOnce(&V) -> bool) {
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

/// An entry of the table of heads.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) head: Arc<Head>,
    /// The time of the question to which this head was the response.
    pub(crate) asked: Moment,
}

impl Table<Known> {
    /// Enters the head from a response. If the table already has a more complete head of the same
    /// bytes, that head stays and is renewed. Returns the resulting head.
    pub(crate) fn enter(&self, place: Place, head: Arc<Head>, asked: Moment) -> Arc<Head> {
        let bytes = head.bytes();
        let (generation, is_of_whole) = (head.generation, head.is_of_whole);
        let keep = |known: &mut Known, new: &mut Known| {
            let is_later = known.asked.sequence > asked.sequence;
            if known.head.generation != generation {
                // The table already has the response to a later question.
                return is_later;
            }
            // The more complete head stays. It counts as new as the newer head if both have the
            // same headers among those that can change without the bytes.
            let is_kept = known.head.is_of_whole && (!is_of_whole || is_later);
            let newer = if is_later { known.asked } else { asked };
            if known.head.has_same_unsettled_headers(&new.head) {
                if is_kept { known.asked = newer } else { new.asked = newer }
            }
            is_kept
        };
        let known = self.insert(place, Known { head: Arc::clone(&head), asked }, bytes, keep);
        // The caller has the bytes of its own response, whatever the table contains.
        if known.head.generation == generation { known.head } else { head }
    }

    /// Removes a head, if it is still in the table.
    pub(crate) fn forget(&self, place: &Place, head: &Arc<Head>) {
        self.remove_if(place, |known| Arc::ptr_eq(&known.head, head));
    }

    /// Removes heads of other generations of an object.
    pub(crate) fn forget_others(&self, key: ObjectKey, generation: &GenerationId) {
        for has_checksums in [false, true] {
            self.remove_if(&(key, has_checksums), |known| known.head.generation != *generation);
        }
    }

    /// Removes an object.
    pub(crate) fn forget_all(&self, key: ObjectKey) {
        [false, true].iter().for_each(|has_checksums| self.remove_if(&(key, *has_checksums), |_| true));
    }
}

/// The maximum length of a response that is kept, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 10;

/// The endpoint's response to a read of a missing object.
#[derive(Clone, Debug)]
pub(crate) struct Absent {
    /// The object, under the exact name that was requested.
    pub(crate) object: ObjectKey,
    pub(crate) answer: Arc<Answer>,
    /// The time of the question.
    pub(crate) asked: Moment,
}

/// A 404 response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    /// The body, or `None` for the response to a HEAD.
    pub(crate) body: Option<Bytes>,
}

impl Answer {
    /// Returns the response to keep, or `None` if it must not be kept.
    pub(crate) fn of(headers: &HeaderMap, body: Option<Bytes>) -> Option<Answer> {
        if has_directive(headers, "no-store") || is_kept_apart(headers) {
            return None;
        }
        Some(Answer { headers: repeated_with_ids(headers), body })
    }

    /// Returns whether the response suits a request with this method.
    pub(crate) fn suits(&self, method: &Method) -> bool {
        *method == Method::HEAD || self.body.is_some()
    }
}

impl Table<Absent> {
    /// Records that an object is missing, under the identity used for invalidation.
    pub(crate) fn enter(&self, key: ObjectKey, object: ObjectKey, answer: Answer, asked: Moment) {
        let headers = answer.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        let body = answer.body.as_ref().map_or(0, Bytes::len);
        let bytes = size_of::<Absent>() + size_of::<Answer>() + 128 + headers.sum::<usize>() + body;
        let absent = Absent { object, answer: Arc::new(answer), asked };
        self.insert((key, false), absent, bytes, |known, _| known.asked.sequence > asked.sequence);
    }

    pub(crate) fn forget(&self, key: ObjectKey) {
        self.remove_if(&(key, false), |_| true);
    }
}

/// Activities in progress by key, each in the table until its [`Guard`] is dropped.
#[derive(Debug)]
pub(crate) struct InProgress<K: Eq + Hash, V>(Mutex<HashMap<K, Vec<Arc<V>>>>);

/// Keeps an activity in its table.
#[derive(Debug)]
pub(crate) struct Guard<K: Eq + Hash, V> {
    table: Arc<InProgress<K, V>>,
    key: K,
    pub(crate) value: Arc<V>,
}

impl<K: Eq + Hash, V> Default for InProgress<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash, V> InProgress<K, V> {
    /// Returns the first result of `find` for an activity with this key.
    pub(crate) fn find<T>(&self, key: &K, find: impl FnMut(&Arc<V>) -> Option<T>) -> Option<T> {
        self.0.lock().get(key)?.iter().find_map(find)
    }

    /// Enters an activity.
    pub(crate) fn enter(self: &Arc<Self>, key: K, value: V) -> Guard<K, V> {
        match self.enter_unless(key, || value, |_| None::<Infallible>) {
            Ok(guard) => guard,
            Err(never) => match never {},
        }
    }

    /// Enters the activity that `begin` returns, unless `find` finds another one with this key.
    ///
    /// # Errors
    /// The result of `find`.
    pub(crate) fn enter_unless<T>(
        self: &Arc<Self>,
        key: K,
        begin: impl FnOnce() -> V,
        find: impl FnMut(&Arc<V>) -> Option<T>,
    ) -> Result<Guard<K, V>, T> {
        let mut table = self.0.lock();
        let list = table.entry(key.clone()).or_default();
        if let Some(found) = list.iter().find_map(find) {
            return Err(found);
        }
        let value = Arc::new(begin());
        list.push(Arc::clone(&value));
        Ok(Guard { table: Arc::clone(self), key, value })
    }

    /// Returns whether nothing is in progress.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<K: Eq + Hash, V> Drop for Guard<K, V> {
    fn drop(&mut self) {
        let mut table = self.table.0.lock();
        if let Some(list) = table.get_mut(&self.key) {
            list.retain(|each| !Arc::ptr_eq(each, &self.value));
            if list.is_empty() {
                table.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use std::time::Instant;

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
            table.insert(place(number), number, 7, |_, _| false);
            assert_eq!(table.get(&place(0)), Some(0), "{number}");
        }
        assert_eq!((table.sizes(), table.get(&place(1))), ((10, 70), None));
        let table = Table::new(1 << 20, 3 * SHARDS * 7);
        for number in 0..100 {
            table.insert(place(number), number, 7, |_, _| false);
        }
        assert_eq!(table.sizes().0, 3);
        table.insert(place(99), 1, 1000, |_, _| false);
        assert_eq!((table.sizes().0, table.get(&place(99))), (2, None));
    }

    #[test]
    fn what_leaves_and_returns_is_in_the_queue_once() {
        let table = Table::new(SHARDS * 4, 1 << 20);
        for _ in 0..10_000 {
            table.insert(place(1), 1, 1, |_, _| false);
            table.remove_if(&place(1), |_| true);
        }
        assert!(table.shards[0].lock().queue.len() <= QUEUE_SLACK + 1);
        assert_eq!(table.sizes(), (0, 0));
        for number in 0..4 {
            table.insert(place(number), number, 1, |_, _| false);
        }
        table.remove_if(&place(0), |_| true);
        table.insert(place(0), 0, 1, |_, _| false);
        // The old queue position of the entry no longer counts.
        table.insert(place(5), 5, 1, |_, _| false);
        assert_eq!((table.get(&place(0)), table.get(&place(1))), (Some(0), None));
    }

    #[test]
    fn values_are_kept_changed_and_removed_by_what_they_are() {
        let table = Table::new(100, 1 << 20);
        assert_eq!(table.insert(place(1), 1, 1, |_, _| true), 1);
        assert_eq!(table.insert(place(1), 2, 1, |_, _| true), 1);
        assert_eq!(table.insert(place(1), 2, 1, |_, _| false), 2);
        table.insert(place(1), 3, 1, |_, _| false);
        table.remove_if(&place(1), |value| *value == 2);
        assert_eq!(table.get(&place(1)), Some(3));
        table.remove_if(&place(1), |value| *value == 3);
        assert_eq!((table.get(&place(1)), table.sizes()), (None, (0, 0)));
    }

    fn head(generation: u8, is_of_whole: bool) -> Arc<Head> {
        Arc::new(Head {
            object: [1; 32],
            generation: [generation; size_of::<GenerationId>()],
            namespace: blocker::Namespace::new(&b"b"[..]).unwrap(),
            etag: HeaderValue::from_static("\"a\""),
            last_modified: None,
            size: 1,
            headers: HeaderMap::new(),
            is_of_whole,
            is_claimed_empty: false,
            is_always_verified: false,
        })
    }

    fn asked(sequence: u64) -> Moment {
        Moment { sequence, at: Instant::now() }
    }

    const PLACE: Place = ([1; 32], false);

    #[test]
    fn what_states_less_replaces_nothing_of_the_same_bytes() {
        let heads = Table::<Known>::new(100, 1 << 20);
        heads.enter(PLACE, head(1, true), asked(1));
        assert!(heads.enter(PLACE, head(1, false), asked(2)).is_of_whole);
        // The kept head is nevertheless as new as the response.
        assert_eq!(heads.get(&PLACE).unwrap().asked.sequence, 2);
        assert!(!heads.enter(PLACE, head(2, false), asked(3)).is_of_whole);
        assert_eq!(heads.get(&PLACE).unwrap().head.generation[0], 2);
        assert!(heads.get(&([1; 32], true)).is_none());
        let known = heads.enter(PLACE, head(2, true), asked(4));
        heads.enter(PLACE, head(3, true), asked(5));
        heads.forget(&PLACE, &known);
        let known = heads.get(&PLACE).unwrap().head;
        heads.forget(&PLACE, &known);
        assert_eq!((heads.get(&PLACE).is_none(), heads.sizes()), (true, (0, 0)));
    }

    #[test]
    fn headers_that_change_while_the_bytes_stay_are_as_new_as_the_answer_that_has_stated_them() {
        let tagged = |count: &'static str, is_of_whole| {
            let mut head = Arc::into_inner(head(1, is_of_whole)).unwrap();
            head.headers.insert("x-amz-tagging-count", HeaderValue::from_static(count));
            Arc::new(head)
        };
        let heads = Table::<Known>::new(100, 1 << 20);
        let known = || heads.get(&PLACE).map(|known| (known.asked.sequence, known.head.is_of_whole)).unwrap();
        heads.enter(PLACE, tagged("1", true), asked(1));
        heads.enter(PLACE, tagged("1", false), asked(2));
        assert_eq!(known(), (2, true));
        // A part of the object has arrived with other tags.
        heads.enter(PLACE, tagged("2", false), asked(3));
        assert_eq!(known(), (2, true));
        heads.enter(PLACE, tagged("2", true), asked(4));
        assert_eq!(known(), (4, true));
        heads.forget_all([1; 32]);
        heads.enter(PLACE, tagged("2", false), asked(6));
        heads.enter(PLACE, tagged("1", true), asked(5));
        assert_eq!(known(), (5, true));
    }

    #[test]
    fn the_answer_to_the_latest_question_counts() {
        let heads = Table::<Known>::new(100, 1 << 20);
        heads.enter(PLACE, head(2, true), asked(7));
        assert_eq!(heads.enter(PLACE, head(1, true), asked(6)).generation[0], 1);
        let known = heads.get(&PLACE).unwrap();
        assert_eq!((known.head.generation[0], known.asked.sequence), (2, 7));
        heads.enter(([1; 32], true), head(2, true), asked(1));
        heads.forget_all([1; 32]);
        assert_eq!(heads.sizes(), (0, 0));
    }

    #[test]
    fn an_older_answer_that_states_more_of_the_same_bytes_counts() {
        let heads = Table::<Known>::new(100, 1 << 20);
        heads.enter(PLACE, head(1, false), asked(7));
        assert!(heads.enter(PLACE, head(1, true), asked(6)).is_of_whole);
        let known = heads.get(&PLACE).unwrap();
        assert_eq!((known.head.is_of_whole, known.asked.sequence), (true, 7));
        // An equally complete head is not newer.
        let same = heads.enter(PLACE, head(1, true), asked(5));
        assert!(Arc::ptr_eq(&same, &known.head));
    }

    #[test]
    fn other_bytes_of_an_object_are_forgotten_with_and_without_checksums() {
        let heads = Table::<Known>::new(100, 1 << 20);
        let checked = ([1; 32], true);
        heads.enter(PLACE, head(1, true), asked(1));
        heads.enter(checked, head(2, true), asked(2));
        heads.forget_others([1; 32], &head(2, true).generation);
        assert_eq!((heads.get(&PLACE).is_none(), heads.get(&checked).is_some()), (true, true));
    }
}
