//! Tables of limited size: the heads of remembered objects, and the endpoint's 404 responses for
//! objects that are known to be missing.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method};

use crate::http::read::{Place, is_never_stored};
use crate::http::target::ObjectKey;
use crate::memory::changes::Moment;
use crate::memory::generation::{GenerationId, Head, is_kept_apart, repeated_with_ids};
use crate::memory::table::Table;

/// The table of heads.
#[derive(Debug)]
pub(crate) struct Heads(Table<Known>);

/// An entry of the table.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) head: Arc<Head>,
    /// The time of the question to which this head was the response.
    pub(crate) asked: Moment,
}

impl Heads {
    /// Returns a table limited to this many heads and bytes.
    pub(crate) fn new(count_max: usize, bytes_max: usize) -> Self {
        Self(Table::new(count_max, bytes_max))
    }

    /// Returns an object's entry.
    pub(crate) fn get(&self, place: &Place) -> Option<Known> {
        self.0.get(place)
    }

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
        let known = self.0.enter(place, Known { head: Arc::clone(&head), asked }, bytes, keep);
        // The caller has the bytes of its own response, whatever the table contains.
        if known.head.generation == generation { known.head } else { head }
    }

    /// Removes a head, if it is still in the table.
    pub(crate) fn forget(&self, place: &Place, head: &Arc<Head>) {
        self.0.remove_if(place, |known| Arc::ptr_eq(&known.head, head));
    }

    /// Removes heads of other generations of an object.
    pub(crate) fn forget_others(&self, key: ObjectKey, generation: &GenerationId) {
        for has_checksums in [false, true] {
            self.0.remove_if(&(key, has_checksums), |known| known.head.generation != *generation);
        }
    }

    /// Removes an object.
    pub(crate) fn forget_all(&self, key: ObjectKey) {
        [false, true].iter().for_each(|has_checksums| self.0.remove_if(&(key, *has_checksums), |_| true));
    }

    /// Returns the number of heads, and their memory in bytes.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        self.0.sizes()
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
        if is_never_stored(headers) || is_kept_apart(headers) {
            return None;
        }
        Some(Answer { headers: repeated_with_ids(headers), body })
    }

    /// Returns whether the response suits a request with this method.
    pub(crate) fn suits(&self, method: &Method) -> bool {
        *method == Method::HEAD || self.body.is_some()
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Absents(Table<Absent>);

impl Absents {
    /// Returns a table limited to this many objects.
    pub(crate) fn new(count_max: usize) -> Self {
        Self(Table::new(count_max, count_max.saturating_mul(BYTES_EACH)))
    }

    pub(crate) fn get(&self, key: ObjectKey) -> Option<Absent> {
        self.0.get(&(key, false))
    }

    /// Records that an object is missing, under the identity used for invalidation.
    pub(crate) fn enter(&self, key: ObjectKey, object: ObjectKey, answer: Answer, asked: Moment) {
        let headers = answer.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        let body = answer.body.as_ref().map_or(0, Bytes::len);
        let bytes = size_of::<Absent>() + size_of::<Answer>() + 128 + headers.sum::<usize>() + body;
        let absent = Absent { object, answer: Arc::new(answer), asked };
        self.0.enter((key, false), absent, bytes, |known, _| known.asked.sequence > asked.sequence);
    }

    pub(crate) fn forget(&self, key: ObjectKey) {
        self.0.remove_if(&(key, false), |_| true);
    }

    /// Returns the number of entries, and their memory in bytes.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        self.0.sizes()
    }
}

/// The average memory of an entry in bytes. Longer entries leave less memory for others.
pub(crate) const BYTES_EACH: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::HeaderMap;
    use hyper::header::HeaderValue;
    use std::time::Instant;

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
        let heads = Heads::new(100, 1 << 20);
        heads.enter(PLACE, head(1, true), asked(1));
        assert!(heads.enter(PLACE, head(1, false), asked(2)).is_of_whole);
        // It is nevertheless as new as the response.
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
        let heads = Heads::new(100, 1 << 20);
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
        let heads = Heads::new(100, 1 << 20);
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
        let heads = Heads::new(100, 1 << 20);
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
        let heads = Heads::new(100, 1 << 20);
        let checked = ([1; 32], true);
        heads.enter(PLACE, head(1, true), asked(1));
        heads.enter(checked, head(2, true), asked(2));
        heads.forget_others([1; 32], &head(2, true).generation);
        assert_eq!((heads.get(&PLACE).is_none(), heads.get(&checked).is_some()), (true, true));
    }
}
