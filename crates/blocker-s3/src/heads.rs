//! Heads as they were last seen, and the objects that a put may still land on.
//!
//! A remembered head may be old: what follows from it is put only on the condition that it still holds, so it
//! then costs a round trip, never correctness. An answer that says no (*missing*, *fenced* …) is given only
//! from a head that has just been read.

use std::collections::HashMap;
use std::sync::Arc;

use blocker::ObjectId;
use parking_lot::Mutex;

use crate::head::Head;

/// The most objects that are remembered as unsettled.
const UNSETTLED_MAX: usize = 16 * 1024;

/// A head and its ETag.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: Arc<Head>,
    pub(crate) etag: Arc<str>,
}

/// Heads that are remembered, in two generations: when the young one is full it becomes the old one, whose
/// unused half is forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<ObjectId, Seen>,
    old: HashMap<ObjectId, Seen>,
}

/// The memory of heads, and of the objects with a put that may still land.
pub(crate) struct Heads {
    remembered: Mutex<Generations>,
    young_max: usize,
    /// With the ETag that the put is waiting for; none where it is not known.
    unsettled: Mutex<HashMap<ObjectId, Option<Arc<str>>>>,
}

impl Heads {
    pub(crate) fn new(remembered_max: usize) -> Self {
        let young_max = (remembered_max / 2).max(1);
        Self { remembered: Mutex::default(), young_max, unsettled: Mutex::default() }
    }

    pub(crate) fn recall(&self, object: &ObjectId) -> Option<Seen> {
        let mut generations = self.remembered.lock();
        if let Some(seen) = generations.young.get(object) {
            return Some(seen.clone());
        }
        let seen = generations.old.remove(object)?;
        self.put(&mut generations, object, seen.clone());
        Some(seen)
    }

    pub(crate) fn remember(&self, object: &ObjectId, seen: Seen) {
        let mut generations = self.remembered.lock();
        generations.old.remove(object);
        self.put(&mut generations, object, seen);
    }

    fn put(&self, generations: &mut Generations, object: &ObjectId, seen: Seen) {
        if generations.young.len() >= self.young_max && !generations.young.contains_key(object) {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(object.clone(), seen);
    }

    pub(crate) fn forget(&self, object: &ObjectId) {
        let mut generations = self.remembered.lock();
        generations.young.remove(object);
        generations.old.remove(object);
    }

    pub(crate) fn forget_all(&self) {
        *self.remembered.lock() = Generations::default();
    }

    /// A put that waits for `base` may still land.
    pub(crate) fn unsettle(&self, object: &ObjectId, base: Option<Arc<str>>) {
        self.forget(object);
        let mut unsettled = self.unsettled.lock();
        if unsettled.len() < UNSETTLED_MAX {
            unsettled.insert(object.clone(), base);
        }
    }

    /// The ETag that a put waits for which may still land on the object, if there is such a put.
    pub(crate) fn unsettled(&self, object: &ObjectId) -> Option<Option<Arc<str>>> {
        self.unsettled.lock().get(object).cloned()
    }

    pub(crate) fn is_unsettled(&self, object: &ObjectId) -> bool {
        let unsettled = self.unsettled.lock();
        !unsettled.is_empty() && unsettled.contains_key(object)
    }

    /// No put can land on it any more.
    pub(crate) fn settled(&self, object: &ObjectId) {
        self.unsettled.lock().remove(object);
    }

    pub(crate) fn unsettled_count(&self) -> usize {
        self.unsettled.lock().len()
    }
}
