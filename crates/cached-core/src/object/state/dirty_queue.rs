//! The objects with changes that wait to be stored, in the order in which they became dirty, and
//! the urgent ones.
//!
//! An object is in the queue from its first change until all of its changes are stored: in one of
//! four lines, see [`Place`]. The queue's lock is a leaf.
//!
//! In a journaled namespace the queue also holds the log from the oldest record of an object whose
//! data are not stored and, during a flush, from the first record that the flush does not include.
//! Holds that the queue releases are returned, to be dropped without the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use blocker::Timestamp;
use cached_journal::Position;

use crate::object::journal::KeptHold;
use crate::object::lock_ranks;
use crate::sync::{Mutex, lock};

/// The maximum number of objects examined in a search: some ten microseconds.
const WALKED_MAX: usize = 1024;

/// See the module.
pub(crate) struct DirtyQueue {
    lists: Mutex<Lists>,
}

impl Default for DirtyQueue {
    fn default() -> Self {
        Self { lists: Mutex::ranked(Lists::default(), &lock_ranks::DIRTY_QUEUE) }
    }
}

/// Objects by a time, in nanoseconds, or by a position in the log, then by their number in the queue.
type Order = BTreeSet<(u64, u64)>;

#[derive(Default)]
struct Lists {
    last_number: u64,
    objects: BTreeMap<u64, Queued>,
    /// A line for each [`Place`].
    lines: [Line; 4],
    /// The failed objects, by the time of their retry.
    retries: Order,
}

/// The line of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    /// A request waits for the object, or needs its memory.
    Urgent,
    /// The object's flush has failed, and will be retried at a given time.
    Failed,
    /// The object's flush is being sent.
    InFlight,
}

/// An object with pending changes.
struct Queued {
    node: u32,
    /// The number of the object's namespace.
    namespace: u16,
    /// The time since when the object has had pending changes.
    since: Timestamp,
    place: Place,
    /// The holds of an object whose changes are logged.
    holds: Option<Box<Holds>>,
}

/// The holds of an object on the log.
#[derive(Default)]
struct Holds {
    /// The hold of the object's oldest record that is not stored.
    oldest: Option<KeptHold>,
    /// The hold of the first record that the flush in flight does not include.
    newer: Option<KeptHold>,
}

impl Queued {
    /// Returns the position of the object's oldest record.
    fn position(&self) -> Option<u64> {
        Some(self.holds.as_ref()?.oldest.as_ref()?.position().0)
    }
}

/// The objects in the same place, with a separate order for each namespace, so that a namespace
/// that is not due does not delay any other.
#[derive(Default)]
struct Line {
    /// The objects of each namespace, by the time since when they have had pending changes.
    of_each: HashMap<u16, Order>,
    /// The oldest object of each namespace, by that time.
    firsts: Order,
    /// The objects that hold the log, by the position of their oldest record.
    held: Order,
}

impl Line {
    fn add(&mut self, number: u64, queued: &Queued) {
        self.held.extend(queued.position().map(|position| (position, number)));
        self.change(queued.namespace, |objects| objects.insert((queued.since.0, number)));
    }

    fn remove(&mut self, number: u64, queued: &Queued) {
        if let Some(position) = queued.position() {
            self.held.remove(&(position, number));
        }
        self.change(queued.namespace, |objects| objects.remove(&(queued.since.0, number)));
    }

    fn change(&mut self, namespace: u16, change: impl FnOnce(&mut Order) -> bool) {
        let objects = self.of_each.entry(namespace).or_default();
        let before = objects.first().copied();
        change(objects);
        let after = objects.first().copied();
        if before != after {
            if let Some(before) = before {
                self.firsts.remove(&before);
            }
            self.firsts.extend(after);
        }
    }
}

impl Lists {
    fn line(&self, place: Place) -> &Line {
        &self.lines[place as usize]
    }

    /// Returns the namespace, the time and the number of the oldest object of each namespace in a
    /// line, by time.
    fn firsts(&self, line: &Line) -> impl Iterator<Item = (u16, Timestamp, u64)> {
        line.firsts.iter().map(|(since, number)| (self.objects[number].namespace, Timestamp(*since), *number))
    }

    /// Among the oldest objects of each namespace in `place` for which `is_meant` returns true,
    /// returns the number of the oldest.
    fn first(&self, place: Place, is_meant: impl Fn(u16, Timestamp) -> bool) -> Option<u64> {
        let mut firsts = self.firsts(self.line(place));
        firsts.find(|(namespace, since, _)| is_meant(*namespace, *since)).map(|(.., number)| number)
    }

    /// Changes an object, and updates its place in the lines.
    fn update<R>(&mut self, number: u64, change: impl FnOnce(&mut Queued) -> R) -> Option<R> {
        let queued = self.objects.get_mut(&number)?;
        self.lines[queued.place as usize].remove(number, queued);
        let result = change(queued);
        self.lines[queued.place as usize].add(number, queued);
        Some(result)
    }

    /// Changes the holds of an object, and updates its line.
    fn change_holds<R>(
        &mut self,
        number: u64,
        change: impl FnOnce(&mut Option<Box<Holds>>) -> R,
    ) -> Option<R> {
        let queued = self.objects.get_mut(&number)?;
        let held = &mut self.lines[queued.place as usize].held;
        if let Some(position) = queued.position() {
            held.remove(&(position, number));
        }
        let result = change(&mut queued.holds);
        held.extend(queued.position().map(|position| (position, number)));
        Some(result)
    }

    fn expedite(&mut self, number: u64) {
        if self.objects.get(&number).is_some_and(|queued| queued.place == Place::Waiting) {
            self.update(number, |queued| queued.place = Place::Urgent);
        }
    }

    /// Makes failed objects urgent whose retry is due; returns the first one that `can_begin`.
    fn expedite_retries(&mut self, now: Timestamp, can_begin: impl Fn(u16) -> bool) -> Option<u64> {
        while let Some((at, number)) = self.retries.first().copied().filter(|(at, _)| *at <= now.0) {
            self.retries.remove(&(at, number));
            // From now on the object is due as soon as its namespace may begin a flush.
            let make_urgent = |queued: &mut Queued| {
                queued.place = Place::Urgent;
                queued.namespace
            };
            if self.update(number, make_urgent).is_some_and(&can_begin) {
                return Some(number);
            }
        }
        None
    }

    /// Returns the position and number of the object with the oldest record before `end`, among the
    /// objects in `place` of the namespaces for which `is_meant` returns true. The search is
    /// limited.
    fn first_held(&self, place: Place, end: Position, is_meant: impl Fn(u16) -> bool) -> Option<(u64, u64)> {
        let mut held = self.line(place).held.range(..(end.0, 0)).take(WALKED_MAX).copied();
        held.find(|(_, number)| self.objects.get(number).is_some_and(|queued| is_meant(queued.namespace)))
    }
}

/// An object that has been taken from the queue to be flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) number: u64,
    pub(crate) node: u32,
    /// Whether the object was urgent.
    pub(crate) is_urgent: bool,
}

impl DirtyQueue {
    /// Inserts an object of a namespace, which has had pending changes since `since`; returns its
    /// number in the queue.
    pub(crate) fn insert(&self, node: u32, namespace: u16, since: Timestamp) -> u64 {
        let mut lists = lock(&self.lists);
        lists.last_number += 1;
        let number = lists.last_number;
        let queued = Queued { node, namespace, since, place: Place::Waiting, holds: None };
        lists.lines[Place::Waiting as usize].add(number, &queued);
        lists.objects.insert(number, queued);
        number
    }

    /// Makes an object urgent, if it is waiting.
    pub(crate) fn expedite(&self, number: u64) {
        lock(&self.lists).expedite(number);
    }

    /// Makes all waiting objects urgent that hold the log.
    pub(crate) fn expedite_held(&self) {
        let mut lists = lock(&self.lists);
        while let Some((_, number)) = lists.line(Place::Waiting).held.first().copied() {
            lists.expedite(number);
        }
    }

    /// Among the waiting objects of the namespaces for which `is_meant` returns true, makes the one
    /// with the oldest record urgent, if that record is before `end`.
    pub(crate) fn expedite_first_held(&self, end: Position, is_meant: impl Fn(u16) -> bool) {
        let mut lists = lock(&self.lists);
        if let Some((_, number)) = lists.first_held(Place::Waiting, end, is_meant) {
            lists.expedite(number);
        }
    }

    /// Returns the number and node of the object with the oldest record before `end`: among the
    /// objects whose flush has failed, if any, otherwise among the waiting objects of namespaces for
    /// which `is_meant` returns true and the urgent objects of namespaces for which
    /// `is_meant_urgent` does.
    pub(crate) fn first_held_up(
        &self,
        end: Position,
        is_meant: impl Fn(u16) -> bool,
        is_meant_urgent: impl Fn(u16) -> bool,
    ) -> Option<(u64, u32)> {
        let lists = lock(&self.lists);
        let waiting = || {
            let waiting = lists.first_held(Place::Waiting, end, is_meant);
            waiting.into_iter().chain(lists.first_held(Place::Urgent, end, is_meant_urgent)).min()
        };
        let (_, number) = lists.first_held(Place::Failed, end, |_| true).or_else(waiting)?;
        Some((number, lists.objects.get(&number)?.node))
    }

    /// Holds the log from an object's oldest record that is not stored. Returns the hold to be
    /// dropped.
    pub(crate) fn hold_oldest(&self, number: u64, hold: KeptHold) -> Option<KeptHold> {
        let change = |holds: &mut Option<Box<Holds>>| holds.get_or_insert_default().oldest.replace(hold);
        lock(&self.lists).change_holds(number, change).flatten()
    }

    /// Holds the log from the first record that the flush in flight does not include. Returns the
    /// hold to be dropped.
    pub(crate) fn hold_newer(&self, number: u64, hold: KeptHold) -> Option<KeptHold> {
        let change = |holds: &mut Option<Box<Holds>>| holds.get_or_insert_default().newer.replace(hold);
        lock(&self.lists).change_holds(number, change).flatten()
    }

    /// Replaces an object's oldest hold by that of a record which supersedes the older ones.
    /// Returns the hold to be dropped: `hold` itself, if the object no longer has an older one.
    pub(crate) fn hold_instead(&self, number: u64, hold: KeptHold) -> Option<KeptHold> {
        let mut lists = lock(&self.lists);
        let before = lists.objects.get(&number).and_then(Queued::position);
        match before.is_some_and(|before| before < hold.position().0) {
            true => lists.change_holds(number, |holds| holds.as_mut()?.oldest.replace(hold)).flatten(),
            false => Some(hold),
        }
    }

    /// Records that an object's flush has ended. If the flush `is_stored`, the hold of the newer
    /// records replaces the oldest hold; otherwise the oldest hold also covers the newer records.
    /// Returns the hold to be dropped, and whether the object still has one.
    pub(crate) fn release(&self, number: u64, is_stored: bool) -> (Option<KeptHold>, bool) {
        let release = |holds: &mut Option<Box<Holds>>| {
            let Some(holds) = holds else { return (None, false) };
            if is_stored || holds.oldest.is_none() {
                std::mem::swap(&mut holds.oldest, &mut holds.newer);
            }
            (holds.newer.take(), holds.oldest.is_some())
        };
        lock(&self.lists).change_holds(number, release).unwrap_or_default()
    }

    /// Releases all holds of an in-flight object.
    pub(crate) fn release_all(&self, number: u64) -> [Option<KeptHold>; 2] {
        let holds = lock(&self.lists).change_holds(number, Option::take);
        holds.flatten().map_or([None, None], |holds| [holds.oldest, holds.newer])
    }

    /// Takes the next object to be flushed: an urgent object, a failed one whose retry is due, or,
    /// among the waiting objects that are due, the oldest. `can_begin` returns whether an urgent or
    /// failed object of a namespace may be taken; `is_due` returns whether an object of a namespace
    /// that has had pending changes since the given time is due. The object is in flight from now
    /// on.
    pub(crate) fn take_next(
        &self,
        now: Timestamp,
        can_begin: impl Fn(u16) -> bool,
        is_due: impl Fn(u16, Timestamp) -> bool,
    ) -> Option<Taken> {
        let mut lists = lock(&self.lists);
        let urgent = lists.first(Place::Urgent, |namespace, _| can_begin(namespace));
        let urgent = urgent.or_else(|| lists.expedite_retries(now, can_begin));
        let number = urgent.or_else(|| lists.first(Place::Waiting, is_due))?;
        let take = |queued: &mut Queued| {
            queued.place = Place::InFlight;
            queued.node
        };
        let node = lists.update(number, take)?;
        Some(Taken { number, node, is_urgent: urgent.is_some() })
    }

    /// Returns when the next flush will be due: of an object that has waited for the time that
    /// `age_max` returns for its namespace, or of a failed one.
    pub(crate) fn next_due(&self, age_max: impl Fn(u16) -> Duration) -> Option<Timestamp> {
        let lists = lock(&self.lists);
        let waiting = lists.firsts(lists.line(Place::Waiting));
        let aged = waiting.map(|(namespace, since, _)| since + age_max(namespace));
        aged.chain(lists.retries.first().map(|(at, _)| Timestamp(*at))).min()
    }

    /// Removes an object whose flush has ended and which has nothing left to store. Returns the
    /// holds to be dropped.
    pub(crate) fn remove(&self, number: u64) -> [Option<KeptHold>; 2] {
        let mut lists = lock(&self.lists);
        let Some(queued) = lists.objects.remove(&number) else { return [None, None] };
        lists.lines[queued.place as usize].remove(number, &queued);
        queued.holds.map_or([None, None], |holds| [holds.oldest, holds.newer])
    }

    /// Requeues an object whose flush has ended and which has had pending changes since `since`:
    /// its position depends on this time, not on its former one.
    pub(crate) fn requeue(&self, number: u64, since: Timestamp, is_urgent: bool) {
        lock(&self.lists).update(number, |queued| {
            queued.since = since;
            queued.place = if is_urgent { Place::Urgent } else { Place::Waiting };
        });
    }

    /// Records that an object's flush failed, and will be retried at `at`.
    pub(crate) fn retry_at(&self, number: u64, at: Timestamp) {
        let mut lists = lock(&self.lists);
        lists.update(number, |queued| queued.place = Place::Failed);
        lists.retries.insert((at.0, number));
    }

    /// Returns whether only a single object of a namespace waits: then the background may be asleep
    /// until another one is due.
    pub(crate) fn has_one_of(&self, namespace: u16) -> bool {
        let lists = lock(&self.lists);
        lists.line(Place::Waiting).of_each.get(&namespace).is_some_and(|objects| objects.len() == 1)
    }

    /// Returns the nodes of all objects in the queue.
    pub(crate) fn nodes(&self) -> Vec<u32> {
        lock(&self.lists).objects.values().map(|queued| queued.node).collect()
    }

    /// Returns, for each namespace with objects in the queue, the time since when its oldest object
    /// has had pending changes.
    pub(crate) fn oldest_of_each(&self) -> HashMap<u16, Timestamp> {
        let lists = lock(&self.lists);
        let mut oldest = HashMap::new();
        for (namespace, since, _) in lists.lines.iter().flat_map(|line| lists.firsts(line)) {
            let known: &mut Timestamp = oldest.entry(namespace).or_insert(since);
            *known = (*known).min(since);
        }
        oldest
    }

    /// Returns the time since when the oldest object in the queue has had pending changes, in
    /// flight or not; `None` if the queue is empty.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let lists = lock(&self.lists);
        lists.lines.iter().filter_map(|line| line.firsts.first()).map(|(since, _)| Timestamp(*since)).min()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn never(_: u16, _: Timestamp) -> bool {
        false
    }

    fn always(_: u16, _: Timestamp) -> bool {
        true
    }

    /// Takes the next object; every namespace may begin a flush.
    fn take(
        dirty_queue: &DirtyQueue,
        now: Timestamp,
        is_due: impl Fn(u16, Timestamp) -> bool,
    ) -> Option<(u64, u32)> {
        let taken = dirty_queue.take_next(now, |_| true, is_due)?;
        Some((taken.number, taken.node))
    }

    fn before(time: u64) -> impl Fn(u16, Timestamp) -> bool {
        move |_, since| since <= Timestamp(time)
    }

    #[test]
    fn each_namespace_has_its_turn_by_its_own_terms() {
        let dirty_queue = DirtyQueue::default();
        let at = Timestamp;
        let old = dirty_queue.insert(0, 1, at(1));
        let young = dirty_queue.insert(1, 2, at(5));
        let due = |ages: [u64; 3]| {
            dirty_queue.next_due(move |namespace: u16| Duration::from_nanos(ages[usize::from(namespace)]))
        };
        assert_eq!(due([9, 9, 9]), Some(at(10)));
        assert_eq!(due([0, 9, 2]), Some(at(7)), "the younger one may wait less");
        assert_eq!(dirty_queue.oldest_of_each(), [(1, at(1)), (2, at(5))].into());
        let of = |due: u16| move |namespace: u16, _: Timestamp| namespace == due;
        assert_eq!(take(&dirty_queue, at(9), of(0)), None);
        assert_eq!(take(&dirty_queue, at(9), of(2)), Some((young, 1)));
        dirty_queue.requeue(young, at(6), false);
        assert_eq!(take(&dirty_queue, at(9), always), Some((old, 0)), "the one that has waited longest");
        assert_eq!(take(&dirty_queue, at(9), always), Some((young, 1)), "still of its namespace");
        let other = dirty_queue.insert(2, 2, at(8));
        assert_eq!(dirty_queue.oldest_of_each()[&2], at(6), "in flight, and older than what waits");
        dirty_queue.expedite(other);
        dirty_queue.insert(3, 1, at(9));
        assert_eq!(dirty_queue.oldest_of_each(), [(1, at(1)), (2, at(6))].into());
    }

    #[test]
    fn the_oldest_is_found_wherever_it_is() {
        let dirty_queue = DirtyQueue::default();
        let at = Timestamp;
        assert_eq!(dirty_queue.oldest(), None);
        let (first, second) = (dirty_queue.insert(0, 0, at(1)), dirty_queue.insert(1, 0, at(5)));
        assert_eq!(dirty_queue.oldest(), Some(at(1)), "waiting");
        dirty_queue.expedite(first);
        assert_eq!(dirty_queue.oldest(), Some(at(1)), "urgent");
        take(&dirty_queue, at(9), never);
        assert_eq!(dirty_queue.oldest(), Some(at(1)), "in flight");
        dirty_queue.retry_at(first, at(20));
        assert_eq!(dirty_queue.oldest(), Some(at(1)), "failed");
        take(&dirty_queue, at(20), never);
        dirty_queue.requeue(first, at(7), true);
        assert_eq!(dirty_queue.oldest(), Some(at(5)), "the rest of the first is younger");
        dirty_queue.expedite(second);
        for number in [second, first] {
            assert_eq!(
                take(&dirty_queue, at(20), never).map(|(taken, _)| taken),
                Some(number),
                "the older one first"
            );
            dirty_queue.remove(number);
        }
        assert_eq!(dirty_queue.oldest(), None);
    }

    #[test]
    fn changes_during_a_flush_wait_by_their_own_age() {
        let dirty_queue = DirtyQueue::default();
        let at = Timestamp;
        let (first, second) = (dirty_queue.insert(0, 0, at(1)), dirty_queue.insert(1, 0, at(5)));
        assert_eq!(take(&dirty_queue, at(9), always), Some((first, 0)));
        dirty_queue.requeue(first, at(7), false);
        // The object that has waited longer comes first, however many objects have a lower number.
        assert_eq!(take(&dirty_queue, at(9), always), Some((second, 1)));
        dirty_queue.remove(second);
        assert_eq!(dirty_queue.next_due(|_| Duration::ZERO), Some(at(7)));
        dirty_queue.expedite(first);
        assert_eq!(take(&dirty_queue, at(9), never), Some((first, 0)));
    }

    #[test]
    fn the_oldest_goes_first_and_the_urgent_before_it() {
        let dirty_queue = DirtyQueue::default();
        let at = Timestamp;
        let numbers: Vec<u64> = (0..4).map(|node| dirty_queue.insert(node, 0, at(u64::from(node)))).collect();
        assert_eq!(take(&dirty_queue, at(9), never), None, "nothing is old enough");
        assert_eq!(take(&dirty_queue, at(9), before(0)), Some((numbers[0], 0)));
        assert_eq!(take(&dirty_queue, at(9), before(0)), None, "the next is younger");
        dirty_queue.expedite(numbers[2]);
        assert_eq!(take(&dirty_queue, at(9), before(0)), Some((numbers[2], 2)));
        dirty_queue.retry_at(numbers[0], at(20));
        assert_eq!(dirty_queue.next_due(|_| Duration::ZERO), Some(at(1)));
        assert_eq!(take(&dirty_queue, at(19), always), Some((numbers[1], 1)));
        assert_eq!(take(&dirty_queue, at(20), always), Some((numbers[0], 0)));
        dirty_queue.requeue(numbers[0], at(7), false);
        dirty_queue.remove(numbers[2]);
        let mut nodes = dirty_queue.nodes();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 3]);
    }

    #[test]
    fn what_may_not_begin_holds_up_no_other_namespace() {
        let dirty_queue = DirtyQueue::default();
        let at = Timestamp;
        let numbers: Vec<u64> =
            [1, 1, 2].into_iter().zip(0..).map(|(of, node)| dirty_queue.insert(node, of, at(1))).collect();
        numbers.iter().for_each(|number| dirty_queue.expedite(*number));
        let next = |now: u64, full: u16| {
            let taken = dirty_queue.take_next(at(now), |namespace| namespace != full, never)?;
            assert!(taken.is_urgent);
            Some(taken.node)
        };
        assert_eq!((next(1, 1), next(1, 1)), (Some(2), None));
        assert_eq!((next(1, 0), next(1, 0)), (Some(0), Some(1)));
        dirty_queue.retry_at(numbers[0], at(5));
        dirty_queue.retry_at(numbers[2], at(5));
        assert_eq!(next(5, 1), Some(2), "the one behind it whose retry is due as well");
        assert_eq!(
            (next(5, 1), dirty_queue.next_due(|_| Duration::ZERO)),
            (None, None),
            "it waits for no time"
        );
        assert_eq!(next(5, 0), Some(0));
    }
}
