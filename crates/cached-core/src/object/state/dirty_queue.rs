//! The objects with changes that wait to be stored, in the order in which they became dirty, and
//! the urgent ones.
//!
//! An object is in the queue from its first change until all of it is stored. It is *waiting*;
//! *urgent*, because a request waits for it or needs its memory; *failed*, to be retried at a given
//! time; or *in flight*, while its flush is being sent. The queue's lock is a leaf.
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

/// See the module.
pub(crate) struct DirtyQueue {
    lists: Mutex<Lists>,
}

impl Default for DirtyQueue {
    fn default() -> Self {
        Self { lists: Mutex::ranked(Lists::default(), &lock_ranks::DIRTY_QUEUE) }
    }
}

#[derive(Default)]
struct Lists {
    next: u64,
    waiting: DirtyLine,
    urgent: DirtyLine,
    failed: BTreeSet<(Timestamp, u64)>,
    failed_nodes: BTreeMap<u64, Entry>,
    in_flight: BTreeMap<u64, Entry>,
    holds: BTreeMap<u64, Holds>,
    /// The objects whose flush has failed, by the position of their oldest record.
    failed_held: BTreeSet<(u64, u64)>,
}

/// An object that has been taken from the queue to be flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) number: u64,
    pub(crate) node: u32,
    /// Whether the object was urgent.
    pub(crate) is_urgent: bool,
}

/// The holds of an object on the log.
#[derive(Default)]
struct Holds {
    /// The hold of the object's oldest record that is not stored.
    oldest: Option<KeptHold>,
    /// The hold of the first record that the flush in flight does not include.
    newer: Option<KeptHold>,
}

/// Holds that the queue has released, to be dropped without locks.
pub(crate) type Released = [Option<KeptHold>; 2];

impl Lists {
    fn wait(&mut self, number: u64, entry: Entry) {
        let held = self.position(number);
        self.waiting.add(number, entry, held);
    }

    fn make_urgent(&mut self, number: u64, entry: Entry) {
        let held = self.position(number);
        self.urgent.add(number, entry, held);
    }

    /// Removes and returns a waiting object.
    fn take_waiting(&mut self, number: u64) -> Option<Entry> {
        let held = self.position(number);
        self.waiting.take(number, held)
    }

    /// Removes and returns the failed object with the earliest retry, if it is due.
    fn take_failed(&mut self, now: Timestamp) -> Option<(u64, Entry)> {
        let (at, number) = self.failed.first().copied().filter(|(at, _)| *at <= now)?;
        self.failed.remove(&(at, number));
        if let Some(position) = self.position(number) {
            self.failed_held.remove(&(position, number));
        }
        Some((number, self.failed_nodes.remove(&number)?))
    }

    fn position(&self, number: u64) -> Option<u64> {
        Some(self.holds.get(&number)?.oldest.as_ref()?.position().0)
    }

    fn set_oldest(&mut self, number: u64, hold: KeptHold) -> Option<KeptHold> {
        let position = hold.position().0;
        let before = self.position(number);
        let old = self.holds.entry(number).or_default().oldest.replace(hold);
        self.waiting.set_held(number, before, position);
        self.urgent.set_held(number, before, position);
        if self.failed_nodes.contains_key(&number) {
            before.map(|before| self.failed_held.remove(&(before, number)));
            self.failed_held.insert((position, number));
        }
        old
    }
}

impl DirtyQueue {
    /// Inserts an object of a namespace, which has had pending changes since `since`; returns its
    /// number in the queue.
    pub(crate) fn insert(&self, node: u32, namespace: u16, since: Timestamp) -> u64 {
        let mut lists = lock(&self.lists);
        lists.next += 1;
        let number = lists.next;
        lists.wait(number, Entry { node, since, namespace });
        number
    }

    /// Makes an object urgent.
    pub(crate) fn expedite(&self, number: u64) {
        let mut lists = lock(&self.lists);
        if let Some(entry) = lists.take_waiting(number) {
            lists.make_urgent(number, entry);
        }
    }

    /// Makes all waiting objects urgent that hold the log.
    pub(crate) fn expedite_held(&self) {
        let mut lists = lock(&self.lists);
        while let Some(number) = lists.waiting.first_held() {
            let Some(entry) = lists.take_waiting(number) else { return };
            lists.make_urgent(number, entry);
        }
    }

    /// Among the waiting objects of the namespaces for which `is_meant` returns true, makes the one
    /// with the oldest record urgent, if that record is before `end`.
    pub(crate) fn expedite_first_held(&self, end: Position, is_meant: impl Fn(u16) -> bool) {
        let mut lists = lock(&self.lists);
        if let Some((_, number)) = lists.waiting.first_held_before(end, is_meant)
            && let Some(entry) = lists.take_waiting(number)
        {
            lists.make_urgent(number, entry);
        }
    }

    /// Returns the number and node of the object with the oldest record before `end`, among the
    /// waiting objects of namespaces for which `is_meant` returns true and the urgent objects of
    /// namespaces for which `is_meant_urgent` does.
    pub(crate) fn first_waiting_held(
        &self,
        end: Position,
        is_meant: impl Fn(u16) -> bool,
        is_meant_urgent: impl Fn(u16) -> bool,
    ) -> Option<(u64, u32)> {
        let lists = lock(&self.lists);
        let waiting = lists.waiting.first_held_before(end, is_meant);
        let urgent = lists.urgent.first_held_before(end, is_meant_urgent);
        let (_, number) = waiting.into_iter().chain(urgent).min()?;
        Some((number, lists.waiting.node(number).or_else(|| lists.urgent.node(number))?))
    }

    /// Returns the number and node of the object with the oldest record before `end`, among the
    /// objects whose flush has failed.
    pub(crate) fn first_failed_held(&self, end: Position) -> Option<(u64, u32)> {
        let lists = lock(&self.lists);
        let (_, number) = lists.failed_held.first().copied().filter(|(position, _)| *position < end.0)?;
        Some((number, lists.failed_nodes.get(&number)?.node))
    }

    /// Holds the log from an object's oldest record that is not stored.
    pub(crate) fn hold_oldest(&self, number: u64, hold: KeptHold) -> Released {
        [lock(&self.lists).set_oldest(number, hold), None]
    }

    /// Holds the log from the first record that the flush in flight does not include.
    pub(crate) fn hold_newer(&self, number: u64, hold: KeptHold) -> Released {
        let mut lists = lock(&self.lists);
        [lists.holds.entry(number).or_default().newer.replace(hold), None]
    }

    /// Replaces an object's oldest hold by that of a record which supersedes the older ones.
    /// Returns the hold to be dropped: `hold` itself, if the object no longer has an older one.
    pub(crate) fn hold_instead(&self, number: u64, hold: KeptHold) -> Released {
        let mut lists = lock(&self.lists);
        match lists.position(number) {
            Some(before) if before < hold.position().0 => [lists.set_oldest(number, hold), None],
            _ => [Some(hold), None],
        }
    }

    /// Records that the flush of an in-flight object has succeeded: releases its oldest hold and
    /// replaces it by the hold of newer records. Also returns whether there is one.
    pub(crate) fn release_stored(&self, number: u64) -> (Released, bool) {
        let mut lists = lock(&self.lists);
        let Some(holds) = lists.holds.get_mut(&number) else { return ([None, None], false) };
        let newer = holds.newer.take();
        let old = std::mem::replace(&mut holds.oldest, newer);
        let is_held = holds.oldest.is_some();
        if !is_held {
            lists.holds.remove(&number);
        }
        ([old, None], is_held)
    }

    /// Records that the flush of an in-flight object has failed: its older hold also covers newer
    /// records. Also returns whether there is one.
    pub(crate) fn release_newer(&self, number: u64) -> (Released, bool) {
        let mut lists = lock(&self.lists);
        let Some(holds) = lists.holds.get_mut(&number) else { return ([None, None], false) };
        let mut newer = holds.newer.take();
        if holds.oldest.is_none() {
            holds.oldest = newer.take();
        }
        let is_held = holds.oldest.is_some();
        if !is_held {
            lists.holds.remove(&number);
        }
        ([newer, None], is_held)
    }

    /// Releases all holds of an in-flight object.
    pub(crate) fn release_all(&self, number: u64) -> Released {
        let holds = lock(&self.lists).holds.remove(&number).unwrap_or_default();
        [holds.oldest, holds.newer]
    }

    /// Takes the next object to be flushed: an urgent object, a failed one whose retry is due, or,
    /// among the waiting objects that are due, the one that has waited longest. `can_begin` returns
    /// whether an urgent or failed object of a namespace may be taken; `is_due` returns whether an
    /// object of a namespace that has waited since the given time is due. The object is in flight
    /// from now on.
    pub(crate) fn take_next(
        &self,
        now: Timestamp,
        can_begin: impl Fn(u16) -> bool,
        is_due: impl Fn(u16, Timestamp) -> bool,
    ) -> Option<Taken> {
        let mut lists = lock(&self.lists);
        let lists = &mut *lists;
        let (number, entry, is_urgent) =
            if let Some(number) = lists.urgent.first(|namespace, _| can_begin(namespace)) {
                let held = lists.position(number);
                (number, lists.urgent.take(number, held)?, true)
            } else {
                loop {
                    let Some((number, entry)) = lists.take_failed(now) else {
                        let number = lists.waiting.first(&is_due)?;
                        break (number, lists.take_waiting(number)?, false);
                    };
                    if can_begin(entry.namespace) {
                        break (number, entry, true);
                    }
                    // The object is now due as soon as its namespace may begin a flush, no longer
                    // by time.
                    lists.make_urgent(number, entry);
                }
            };
        lists.in_flight.insert(number, entry);
        Some(Taken { number, node: entry.node, is_urgent })
    }

    /// Returns when the next flush will be due: of an object that has waited for the time that
    /// `age_max` returns for its namespace, or of a failed one.
    pub(crate) fn next_due(&self, age_max: impl Fn(u16) -> Duration) -> Option<Timestamp> {
        let lists = lock(&self.lists);
        let aged = lists.waiting.firsts().map(|(namespace, since)| since + age_max(namespace));
        aged.chain(lists.failed.first().map(|(at, _)| *at)).min()
    }

    /// Removes an object whose flush has ended and which has nothing left to store.
    pub(crate) fn remove(&self, number: u64) -> Released {
        let mut lists = lock(&self.lists);
        lists.in_flight.remove(&number);
        let holds = lists.holds.remove(&number).unwrap_or_default();
        [holds.oldest, holds.newer]
    }

    /// Requeues an object whose flush has ended and which has had pending changes since `since`:
    /// its position depends on this time, not on its former one.
    pub(crate) fn requeue(&self, number: u64, since: Timestamp, is_urgent: bool) {
        let mut lists = lock(&self.lists);
        let Some(entry) = lists.in_flight.remove(&number) else { return };
        let entry = Entry { since, ..entry };
        if is_urgent {
            lists.make_urgent(number, entry);
        } else {
            lists.wait(number, entry);
        }
    }

    /// Records that an object's flush failed, and will be retried at `at`.
    pub(crate) fn retry_at(&self, number: u64, at: Timestamp) {
        let mut lists = lock(&self.lists);
        let Some(entry) = lists.in_flight.remove(&number) else { return };
        lists.failed.insert((at, number));
        lists.failed_nodes.insert(number, entry);
        if let Some(position) = lists.position(number) {
            lists.failed_held.insert((position, number));
        }
    }

    /// Returns whether only a single object of a namespace waits: then the background may be asleep
    /// until another one is due.
    pub(crate) fn has_one_of(&self, namespace: u16) -> bool {
        lock(&self.lists).waiting.count_of(namespace) == 1
    }

    /// Returns the nodes of all objects in the queue.
    pub(crate) fn nodes(&self) -> Vec<u32> {
        let lists = lock(&self.lists);
        let others = lists.failed_nodes.values().chain(lists.in_flight.values());
        let nodes = lists.waiting.nodes().chain(lists.urgent.nodes());
        nodes.chain(others.map(|entry| entry.node)).collect()
    }

    /// Returns, for each namespace with objects in the queue, the time since when its oldest object
    /// has had pending changes. The search among in-flight and failed objects is limited.
    pub(crate) fn oldest_of_each(&self) -> HashMap<u16, Timestamp> {
        let mut oldest = HashMap::new();
        let lists = lock(&self.lists);
        let others = lists.failed_nodes.values().chain(lists.in_flight.values());
        let others = others.take(WALKED_MAX).map(|entry| (entry.namespace, entry.since));
        let firsts = lists.waiting.firsts().chain(lists.urgent.firsts());
        for (namespace, since) in firsts.chain(others) {
            let known: &mut Timestamp = oldest.entry(namespace).or_insert(since);
            *known = since.min(*known);
        }
        oldest
    }

    /// Returns the time since when the oldest object in the queue has had pending changes, in
    /// flight or not; `None` if the queue is empty.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let lists = lock(&self.lists);
        let first = |line: &DirtyLine| line.firsts().next().map(|(_, since)| since);
        let others = lists.failed_nodes.values().chain(lists.in_flight.values()).map(|entry| entry.since);
        others.chain(first(&lists.waiting)).chain(first(&lists.urgent)).min()
    }
}

/// The maximum number of objects examined in a search: some ten microseconds.
pub(crate) const WALKED_MAX: usize = 1024;

/// An object with pending changes.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) node: u32,
    /// The time since when the object has had pending changes.
    pub(crate) since: Timestamp,
    /// The number of the object's namespace.
    pub(crate) namespace: u16,
}

/// Objects that wait for a flush, in a separate line for each namespace, so that a namespace that
/// is not due does not delay any other.
#[derive(Default)]
pub(crate) struct DirtyLine {
    /// The objects of each namespace, indexed by namespace number: ordered by the time since when
    /// they wait, then by their number in the queue.
    of_each: Vec<BTreeMap<(Timestamp, u64), u32>>,
    /// The waiting time and the namespace of each object.
    since: BTreeMap<u64, (Timestamp, u16)>,
    /// The oldest object of each namespace: its time, its number, its namespace.
    first_of_each: BTreeSet<(Timestamp, u64, u16)>,
    /// The objects that hold the log, by the position of their oldest record.
    held: BTreeSet<(u64, u64)>,
}

impl DirtyLine {
    /// Adds an object; `held` is the position of its oldest record, if it holds the log.
    pub(crate) fn add(&mut self, number: u64, entry: Entry, held: Option<u64>) {
        let Entry { node, since, namespace } = entry;
        let place = usize::from(namespace);
        if self.of_each.len() <= place {
            self.of_each.resize_with(place + 1, BTreeMap::new);
        }
        let line = &mut self.of_each[place];
        match line.first_key_value().map(|((since, number), _)| (*since, *number)) {
            Some(first) if first < (since, number) => {}
            first => {
                if let Some((since, number)) = first {
                    self.first_of_each.remove(&(since, number, namespace));
                }
                self.first_of_each.insert((since, number, namespace));
            }
        }
        line.insert((since, number), node);
        self.since.insert(number, (since, namespace));
        self.held.extend(held.map(|position| (position, number)));
    }

    /// Removes and returns an object; `held` must be the same as when it was added.
    pub(crate) fn take(&mut self, number: u64, held: Option<u64>) -> Option<Entry> {
        let (since, namespace) = self.since.remove(&number)?;
        held.map(|position| self.held.remove(&(position, number)));
        let line = &mut self.of_each[usize::from(namespace)];
        let node = line.remove(&(since, number))?;
        if self.first_of_each.remove(&(since, number, namespace))
            && let Some(((since, number), _)) = line.first_key_value()
        {
            self.first_of_each.insert((*since, *number, namespace));
        }
        Some(Entry { node, since, namespace })
    }

    /// Records that an object's oldest record is now at `position`, if the object is in a line.
    pub(crate) fn set_held(&mut self, number: u64, before: Option<u64>, position: u64) {
        if self.since.contains_key(&number) {
            before.map(|before| self.held.remove(&(before, number)));
            self.held.insert((position, number));
        }
    }

    /// Among the oldest objects of each namespace for which `is_meant` returns true, returns the
    /// number of the one that has waited longest.
    pub(crate) fn first(&self, is_meant: impl Fn(u16, Timestamp) -> bool) -> Option<u64> {
        let mut firsts = self.first_of_each.iter();
        firsts.find(|(since, _, namespace)| is_meant(*namespace, *since)).map(|(_, number, _)| *number)
    }

    /// Returns the number of the object with the oldest record.
    pub(crate) fn first_held(&self) -> Option<u64> {
        self.held.first().map(|(_, number)| *number)
    }

    /// Returns the position and number of the object with the oldest record before `end`, among the
    /// namespaces for which `is_meant` returns true. The search is limited.
    pub(crate) fn first_held_before(
        &self,
        end: Position,
        is_meant: impl Fn(u16) -> bool,
    ) -> Option<(u64, u64)> {
        let mut held = self.held.range(..(end.0, 0)).take(WALKED_MAX).copied();
        held.find(|(_, number)| self.since.get(number).is_some_and(|(_, namespace)| is_meant(*namespace)))
    }

    /// Returns the node of an object.
    pub(crate) fn node(&self, number: u64) -> Option<u32> {
        let (since, namespace) = *self.since.get(&number)?;
        self.of_each.get(usize::from(namespace))?.get(&(since, number)).copied()
    }

    /// Returns, for each namespace with objects, the time since when its oldest object waits; the
    /// earliest time first.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (u16, Timestamp)> {
        self.first_of_each.iter().map(|(since, _, namespace)| (*namespace, *since))
    }

    /// Returns the number of objects of a namespace.
    pub(crate) fn count_of(&self, namespace: u16) -> usize {
        self.of_each.get(usize::from(namespace)).map_or(0, BTreeMap::len)
    }

    /// Returns the nodes of all objects.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> {
        self.of_each.iter().flat_map(BTreeMap::values).copied()
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
        let _ = dirty_queue.remove(second);
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
        let _ = dirty_queue.remove(numbers[2]);
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
