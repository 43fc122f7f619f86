//! Heads as they were last seen, and the objects that a put may still land on.
//!
//! A remembered head may be old: what follows from it is put only on the condition that it still holds, so it
//! then costs a round trip, never correctness. An answer that says no (*missing*, *fenced* …) is given only
//! from a head that has just been read.

use std::collections::HashMap;
use std::sync::Arc;

use blocker::ObjectId;
use parking_lot::Mutex;

use crate::format::head::Head;

/// The memory that a remembered head takes beside its names and its content, about: it is in a map, which may be
/// twice as large as what it holds.
const HEAD_BYTES: usize = 600;
/// The most objects that are remembered as unsettled.
const UNSETTLED_MAX: usize = 16 * 1024;

/// A head and its ETag.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: Arc<Head>,
    pub(crate) etag: Arc<str>,
}

impl Seen {
    /// About the memory that it takes, remembered under its object's name.
    fn bytes(&self, object: &ObjectId) -> usize {
        let content = &self.head.content;
        let names = object.namespace.as_bytes().len() + object.name.as_bytes().len();
        let pieces = std::mem::size_of_val(&content.blobs[..]) + std::mem::size_of_val(&content.extents[..]);
        HEAD_BYTES + names + pieces + content.inline.len() + 16 * self.head.domains.len()
    }
}

/// Heads that are remembered, in two generations: when the young one is full it becomes the old one, whose
/// unused half is forgotten.
#[derive(Default)]
struct Generations {
    young: HashMap<ObjectId, Seen>,
    young_bytes: usize,
    old: HashMap<ObjectId, Seen>,
}

impl Generations {
    fn put(&mut self, object: &ObjectId, seen: Seen, young_bytes_max: usize) {
        let bytes = seen.bytes(object);
        if self.young_bytes + bytes > young_bytes_max && !self.young.is_empty() {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        let replaced = self.young.insert(object.clone(), seen);
        self.young_bytes += bytes;
        self.young_bytes -= replaced.map_or(0, |seen| seen.bytes(object));
    }

    fn forget(&mut self, object: &ObjectId) {
        let forgotten = self.young.remove(object);
        self.young_bytes -= forgotten.map_or(0, |seen| seen.bytes(object));
        self.old.remove(object);
    }
}

/// The memory of heads, and of the objects with a put that may still land.
pub(crate) struct Heads {
    remembered: Mutex<Generations>,
    young_bytes_max: usize,
    /// With the ETag that the put is waiting for; none where it is not known.
    unsettled: Mutex<HashMap<ObjectId, Option<Arc<str>>>>,
}

impl Heads {
    pub(crate) fn new(bytes_max: u64) -> Self {
        let young_bytes_max = usize::try_from(bytes_max / 2).unwrap_or(usize::MAX);
        Self { remembered: Mutex::default(), young_bytes_max, unsettled: Mutex::default() }
    }

    pub(crate) fn recall(&self, object: &ObjectId) -> Option<Seen> {
        let mut generations = self.remembered.lock();
        if let Some(seen) = generations.young.get(object) {
            return Some(seen.clone());
        }
        let seen = generations.old.remove(object)?;
        generations.put(object, seen.clone(), self.young_bytes_max);
        Some(seen)
    }

    pub(crate) fn remember(&self, object: &ObjectId, seen: Seen) {
        let mut generations = self.remembered.lock();
        generations.old.remove(object);
        generations.put(object, seen, self.young_bytes_max);
    }

    pub(crate) fn forget(&self, object: &ObjectId) {
        self.remembered.lock().forget(object);
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

#[cfg(test)]
mod tests {
    use blocker::{Name, Namespace};
    use bytes::Bytes;

    use super::*;

    fn object(number: usize) -> ObjectId {
        ObjectId::new(Namespace::new("vm").unwrap(), Name::new(format!("disk.{number}")).unwrap())
    }

    #[test]
    fn what_is_remembered_takes_no_more_than_its_memory() {
        let heads = Heads::new(1 << 20);
        let mut head = Head::ghost();
        head.content.inline = Bytes::from(vec![1; 30_000]);
        let large = Seen { head: Arc::new(head), etag: "large".into() };
        let small = Seen { head: Arc::new(Head::ghost()), etag: "small".into() };
        for number in 0..10_000 {
            let seen = if number % 10 == 0 { &large } else { &small };
            heads.remember(&object(number), seen.clone());
            heads.remember(&object(number / 2), small.clone());
            heads.forget(&object(number / 3));
            let generations = heads.remembered.lock();
            let sum = |all: &HashMap<ObjectId, Seen>| -> usize {
                all.iter().map(|(object, seen)| seen.bytes(object)).sum()
            };
            assert_eq!(generations.young_bytes, sum(&generations.young));
            assert!(sum(&generations.young) + sum(&generations.old) <= 1 << 20);
        }
        assert!(heads.recall(&object(9_999)).is_some() && heads.recall(&object(7_000)).is_none());
    }
}
