//! Objects that are known not to be there: the endpoint's answers 404, in a table of limited size.

use std::sync::Arc;

use bytes::Bytes;
use hyper::{HeaderMap, Method};

use crate::http::read::is_never_stored;
use crate::http::target::ObjectKey;
use crate::memory::changes::Moment;
use crate::memory::generation::{is_kept_apart, repeated_with_ids};
use crate::memory::table::Table;

/// The longest answer that is kept, in bytes.
pub(crate) const BODY_BYTES_MAX: usize = 8 << 10;

/// What the endpoint has answered to a read of an object that is not there.
#[derive(Clone, Debug)]
pub(crate) struct Absent {
    /// The object, by the very name that it was asked for by.
    pub(crate) object: ObjectKey,
    pub(crate) answer: Arc<Answer>,
    /// When it was asked.
    pub(crate) asked: Moment,
}

/// An answer 404.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    /// `None` if it was the answer to a HEAD.
    pub(crate) body: Option<Bytes>,
}

impl Answer {
    /// Returns the answer to keep; `None` if it must not be kept.
    pub(crate) fn of(headers: &HeaderMap, body: Option<Bytes>) -> Option<Answer> {
        if is_never_stored(headers) || is_kept_apart(headers) {
            return None;
        }
        Some(Answer { headers: repeated_with_ids(headers), body })
    }

    /// Returns whether it answers a request with this method.
    pub(crate) fn suits(&self, method: &Method) -> bool {
        *method == Method::HEAD || self.body.is_some()
    }
}

/// The table.
#[derive(Debug)]
pub(crate) struct Absents(Table<Absent>);

impl Absents {
    /// Returns a table of at most so many objects.
    pub(crate) fn new(count_max: usize) -> Self {
        Self(Table::new(count_max, count_max.saturating_mul(BYTES_EACH)))
    }

    pub(crate) fn get(&self, key: ObjectKey) -> Option<Absent> {
        self.0.get(&(key, false))
    }

    /// Enters that an object is not there, by the identity that it is kept by.
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

    /// Returns how many there are, and how many bytes they take.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        self.0.sizes()
    }
}

/// The memory for each of them in bytes, on average: what longer ones take beyond it, others leave for.
pub(crate) const BYTES_EACH: usize = 1024;
