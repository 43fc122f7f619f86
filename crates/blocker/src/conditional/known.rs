//! The knowledge of a conditional store about objects between their changes.
//!
//! A change is prepared from a remembered state, and applied only if the state is still correct. So
//! an outdated state costs a round trip, never correctness. A change without an answer may still be
//! applied later: until the store has made that impossible, its object is *unsettled*.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::ObjectId;

/// The last known states (`S`) of objects, and the unsettled objects, each with the state (`B`) on
/// which its late change is conditional. The default of `B` stands for any state.
pub struct Known<S, B> {
    generations: Mutex<Generations<S>>,
    young_weight_max: usize,
    weigh: fn(&ObjectId, &S) -> usize,
    unsettled: Mutex<HashMap<ObjectId, Doubt<B>>>,
    unsettled_max: usize,
    /// The number of doubts so far.
    doubts: AtomicU64,
    /// The number of objects that [`Known::overdue`] has returned.
    turns: AtomicUsize,
}

/// The late changes that an unsettled object had at some time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Doubt<B> {
    /// The state on which they are conditional.
    pub base: B,
    /// Rises with each late change, so that what settles one does not count for the next.
    number: u64,
}

/// When the young generation is full, it replaces the old generation. The states of the old
/// generation are forgotten unless they were used in the meantime.
struct Generations<S> {
    young: HashMap<ObjectId, S>,
    young_weight: usize,
    old: HashMap<ObjectId, S>,
}

impl<S> Default for Generations<S> {
    fn default() -> Self {
        Self { young: HashMap::new(), young_weight: 0, old: HashMap::new() }
    }
}

impl<S: Clone, B: Clone + Default + PartialEq> Known<S, B> {
    /// Returns a memory for states with a total weight of at most `weight_max`, measured by
    /// `weigh`, and for `unsettled_max` unsettled objects. No unsettled object is forgotten: a
    /// store begins no change while one is [overdue](Self::overdue), so that there are more only by
    /// the changes that had begun before.
    #[must_use]
    pub fn new(weight_max: usize, weigh: fn(&ObjectId, &S) -> usize, unsettled_max: usize) -> Self {
        let (generations, unsettled, doubts, turns) = Default::default();
        let young_weight_max = weight_max / 2;
        Self { generations, young_weight_max, weigh, unsettled, unsettled_max, doubts, turns }
    }

    /// Returns the last known state of an object.
    #[must_use]
    pub fn recall(&self, object: &ObjectId) -> Option<S> {
        let mut generations = self.generations.lock();
        if let Some(state) = generations.young.get(object) {
            return Some(state.clone());
        }
        let state = generations.old.remove(object)?;
        let outdated = self.put(&mut generations, object, state.clone());
        drop(generations);
        drop(outdated);
        Some(state)
    }

    /// Remembers the state of an object.
    pub fn remember(&self, object: &ObjectId, state: S) {
        let mut generations = self.generations.lock();
        generations.old.remove(object);
        let outdated = self.put(&mut generations, object, state);
        drop(generations);
        drop(outdated);
    }

    /// Puts a state into the young generation. Returns the outdated states, which may be many, so
    /// that the caller drops them after the lock.
    fn put(&self, generations: &mut Generations<S>, object: &ObjectId, state: S) -> HashMap<ObjectId, S> {
        let weight = (self.weigh)(object, &state);
        let replaced = generations.young.remove(object);
        generations.young_weight -= replaced.map_or(0, |state| (self.weigh)(object, &state));
        let mut outdated = HashMap::new();
        if generations.young_weight + weight > self.young_weight_max && !generations.young.is_empty() {
            let young = std::mem::take(&mut generations.young);
            outdated = std::mem::replace(&mut generations.old, young);
            generations.young_weight = 0;
        }
        generations.young.insert(object.clone(), state);
        generations.young_weight += weight;
        outdated
    }

    /// Forgets the state of an object.
    pub fn forget(&self, object: &ObjectId) {
        let mut generations = self.generations.lock();
        let forgotten = generations.young.remove(object);
        generations.young_weight -= forgotten.map_or(0, |state| (self.weigh)(object, &state));
        generations.old.remove(object);
    }

    /// Forgets all states.
    pub fn forget_all(&self) {
        let forgotten = std::mem::take(&mut *self.generations.lock());
        drop(forgotten);
    }

    /// Records that a change of the object, conditional on `base`, may still be applied.
    pub fn unsettle(&self, object: &ObjectId, base: B) {
        self.forget(object);
        let mut unsettled = self.unsettled.lock();
        let number = self.doubts.fetch_add(1, Ordering::Relaxed);
        if let Some(doubt) = unsettled.get_mut(object) {
            if doubt.base != base {
                doubt.base = B::default();
            }
            doubt.number = number;
        } else {
            unsettled.insert(object.clone(), Doubt { base, number });
        }
    }

    /// Returns an object that has to be settled before the next change begins, if as many are
    /// unsettled as may be. The next call returns another one, because an object that cannot be
    /// settled must not stop all changes.
    #[must_use]
    pub fn overdue(&self) -> Option<ObjectId> {
        let unsettled = self.unsettled.lock();
        if unsettled.len() < self.unsettled_max {
            return None;
        }
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        unsettled.keys().nth(turn % unsettled.len().max(1)).cloned()
    }

    /// Returns the doubt about an object, if it is unsettled. Only what the store does after this
    /// call can settle the object.
    #[must_use]
    pub fn unsettled(&self, object: &ObjectId) -> Option<Doubt<B>> {
        self.unsettled.lock().get(object).cloned()
    }

    /// Returns whether the object is unsettled.
    #[must_use]
    pub fn is_unsettled(&self, object: &ObjectId) -> bool {
        self.unsettled.lock().contains_key(object)
    }

    /// Records that the store can no longer apply the late changes of `doubt` to the object. The
    /// object stays unsettled if there has been another one in the meantime.
    pub fn settled(&self, object: &ObjectId, doubt: &Doubt<B>) {
        let mut unsettled = self.unsettled.lock();
        if unsettled.get(object).is_some_and(|last| last.number == doubt.number) {
            unsettled.remove(object);
        }
    }

    /// Returns the number of unsettled objects.
    #[must_use]
    pub fn unsettled_count(&self) -> usize {
        self.unsettled.lock().len()
    }
}

impl<S, B> fmt::Debug for Known<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Name, Namespace};

    fn object(number: usize) -> ObjectId {
        ObjectId::new(Namespace::new("vm").unwrap(), Name::new(format!("disk.{number}")).unwrap())
    }

    #[test]
    fn what_is_remembered_weighs_no_more_than_it_may() {
        let known: Known<usize, ()> = Known::new(1 << 20, |_, weight| *weight, 1);
        for number in 0..10_000 {
            known.remember(&object(number), if number % 10 == 0 { 30_000 } else { 600 });
            known.remember(&object(number / 2), 600);
            known.forget(&object(number / 3));
            let generations = known.generations.lock();
            let sum = |all: &HashMap<ObjectId, usize>| all.values().sum::<usize>();
            assert_eq!(generations.young_weight, sum(&generations.young));
            assert!(sum(&generations.young) + sum(&generations.old) <= 1 << 20);
        }
        assert!(known.recall(&object(9_999)).is_some() && known.recall(&object(7_000)).is_none());
    }

    #[test]
    fn as_many_are_remembered_as_may_be_and_the_used_ones_stay() {
        let known: Known<(), ()> = Known::new(1024, |_, ()| 1, 1);
        for number in 0..100_000 {
            known.remember(&object(number), ());
            assert!(known.recall(&object(0)).is_some(), "used all the time, forgotten at {number}");
        }
        let count = {
            let generations = known.generations.lock();
            generations.young.len() + generations.old.len()
        };
        assert!((512..=1024).contains(&count), "{count} are remembered");
        known.forget(&object(0));
        assert!(known.recall(&object(0)).is_none());
    }

    #[test]
    fn an_unsettled_object_is_known_until_it_is_settled() {
        let known = Known::new(1024, |_, ()| 1, usize::MAX);
        known.remember(&object(1), ());
        known.unsettle(&object(1), 7);
        assert!(known.is_unsettled(&object(1)) && !known.is_unsettled(&object(2)));
        let first = known.unsettled(&object(1)).unwrap();
        assert_eq!((first.base, known.unsettled_count()), (7, 1));
        assert!(known.recall(&object(1)).is_none(), "recall returned an unsettled object's state");
        // What settles the first late change does not settle the second.
        known.unsettle(&object(1), 7);
        known.settled(&object(1), &first);
        let second = known.unsettled(&object(1)).unwrap();
        assert_eq!(second.base, 7);
        known.settled(&object(1), &second);
        assert!(!known.is_unsettled(&object(1)));
        // Two late changes that are conditional on different states.
        known.unsettle(&object(1), 7);
        known.unsettle(&object(1), 8);
        assert_eq!(known.unsettled(&object(1)).unwrap().base, 0);
    }

    #[test]
    fn no_unsettled_object_is_forgotten_and_too_many_are_overdue_in_turn() {
        let known: Known<(), i32> = Known::new(1024, |_, ()| 1, 2);
        known.unsettle(&object(1), 7);
        assert_eq!(known.overdue(), None);
        known.unsettle(&object(2), 7);
        known.unsettle(&object(3), 7);
        assert_eq!(known.unsettled_count(), 3);
        let mut overdue = [(); 3].map(|()| known.overdue().unwrap());
        overdue.sort();
        assert_eq!(overdue, [object(1), object(2), object(3)]);
        for number in [1, 2] {
            let doubt = known.unsettled(&object(number)).unwrap();
            known.settled(&object(number), &doubt);
        }
        assert!(known.overdue().is_none() && known.is_unsettled(&object(3)));
    }
}
