//! The objects with changes that wait to be stored, in the order in which they became dirty, and those that
//! are urgent.
//!
//! An object is here from its first change until all of it is stored: *waiting*; *urgent*, because a request
//! waits for it or needs its memory; *failed*, to be tried again at a given time; or *in flight*, while its
//! flush is under way. A leaf lock.
//!
//! In a journaled namespace the queue also keeps the log from the oldest record on of which an object's data
//! are not stored, and, during a flush, from the first that the flush does not have. What it gives up it
//! returns, to be dropped without the lock.

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
    /// Objects whose flush has failed, by the position of their oldest record.
    failed_held: BTreeSet<(u64, u64)>,
}

/// An object that has been taken to be flushed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    pub(crate) number: u64,
    pub(crate) node: u32,
    /// Whether it was urgent.
    pub(crate) is_urgent: bool,
}

/// What an object keeps of the log.
#[derive(Default)]
struct Holds {
    /// Its oldest record that is not stored.
    oldest: Option<KeptHold>,
    /// The first record that the flush under way does not have.
    newer: Option<KeptHold>,
}

/// Holds that the queue has given up: to be dropped without locks.
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

    /// Takes a waiting object out.
    fn take_waiting(&mut self, number: u64) -> Option<Entry> {
        let held = self.position(number);
        self.waiting.take(number, held)
    }

    /// Takes the first object out whose flush has failed, if its retry is due.
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
    /// Inserts an object of a namespace that has had something pending since `since`; returns its number here.
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

    /// Makes all waiting objects urgent that keep something of the log.
    pub(crate) fn expedite_held(&self) {
        let mut lists = lock(&self.lists);
        while let Some(number) = lists.waiting.first_held() {
            let Some(entry) = lists.take_waiting(number) else { return };
            lists.make_urgent(number, entry);
        }
    }

    /// Makes the waiting object urgent whose oldest record is the oldest, if that is before `end`, of the
    /// namespaces for which `is_meant` returns true.
    pub(crate) fn expedite_first_held(&self, end: Position, is_meant: impl Fn(u16) -> bool) {
        let mut lists = lock(&self.lists);
        if let Some((_, number)) = lists.waiting.first_held_before(end, is_meant)
            && let Some(entry) = lists.take_waiting(number)
        {
            lists.make_urgent(number, entry);
        }
    }

    /// Returns the number and node of the object with the oldest record before `end` of those that wait and are
    /// of a namespace for which `is_meant` returns true, and of those that are urgent and are of one for which
    /// `is_meant_urgent` does.
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

    /// Returns the number and node of the object with the oldest record before `end` of those whose flush has
    /// failed.
    pub(crate) fn first_failed_held(&self, end: Position) -> Option<(u64, u32)> {
        let lists = lock(&self.lists);
        let (_, number) = lists.failed_held.first().copied().filter(|(position, _)| *position < end.0)?;
        Some((number, lists.failed_nodes.get(&number)?.node))
    }

    /// Keeps the log from an object's oldest record on that is not stored.
    pub(crate) fn hold_oldest(&self, number: u64, hold: KeptHold) -> Released {
        [lock(&self.lists).set_oldest(number, hold), None]
    }

    /// Keeps the log from the first record on that the flush under way does not have.
    pub(crate) fn hold_newer(&self, number: u64, hold: KeptHold) -> Released {
        let mut lists = lock(&self.lists);
        [lists.holds.entry(number).or_default().newer.replace(hold), None]
    }

    /// Replaces an object's oldest hold by one of a record that stands for all that the older ones state.
    /// Returns what is to be dropped: `hold` itself, if the object keeps nothing as old any more.
    pub(crate) fn hold_instead(&self, number: u64, hold: KeptHold) -> Released {
        let mut lists = lock(&self.lists);
        match lists.position(number) {
            Some(before) if before < hold.position().0 => [lists.set_oldest(number, hold), None],
            _ => [Some(hold), None],
        }
    }

    /// A flush has ended well, of an object that is in flight: gives up its oldest hold for the one of what
    /// is newer. Returns whether there is one.
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

    /// A flush has failed, of an object that is in flight: the older hold stands for what is newer too.
    /// Returns whether there is one.
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

    /// Gives up all that an object keeps, which is in flight.
    pub(crate) fn release_all(&self, number: u64) -> Released {
        let holds = lock(&self.lists).holds.remove(&number).unwrap_or_default();
        [holds.oldest, holds.newer]
    }

    /// Takes the next object to be flushed: an urgent one, one whose retry is due, or the one that has waited
    /// longest of those whose turn it is. `can_begin` returns whether an urgent object of the namespace with
    /// this number may be taken, or one whose flush has failed; `is_due` returns whether one has its turn that
    /// has waited since this time. The object is in flight from now on.
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
                    // It is due as soon as its namespace may begin a flush, and not by time any more.
                    lists.make_urgent(number, entry);
                }
            };
        lists.in_flight.insert(number, entry);
        Some(Taken { number, node: entry.node, is_urgent })
    }

    /// Returns when the next flush will be due: of an object that has waited for the time that `age_max`
    /// returns for its namespace, or of one whose flush has failed.
    pub(crate) fn next_due(&self, age_max: impl Fn(u16) -> Duration) -> Option<Timestamp> {
        let lists = lock(&self.lists);
        let aged = lists.waiting.firsts().map(|(namespace, since)| since + age_max(namespace));
        aged.chain(lists.failed.first().map(|(at, _)| *at)).min()
    }

    /// Removes an object whose flush is over and of which everything is stored.
    pub(crate) fn remove(&self, number: u64) -> Released {
        let mut lists = lock(&self.lists);
        lists.in_flight.remove(&number);
        let holds = lists.holds.remove(&number).unwrap_or_default();
        [holds.oldest, holds.newer]
    }

    /// Lets an object wait again whose flush is over and that has had something pending since `since`: it
    /// waits by that time, not by its former one.
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

    /// Its flush failed: the next try is at `at`.
    pub(crate) fn retry_at(&self, number: u64, at: Timestamp) {
        let mut lists = lock(&self.lists);
        let Some(entry) = lists.in_flight.remove(&number) else { return };
        lists.failed.insert((at, number));
        lists.failed_nodes.insert(number, entry);
        if let Some(position) = lists.position(number) {
            lists.failed_held.insert((position, number));
        }
    }

    /// Whether one object of a namespace alone waits: the background may be asleep until another one is due.
    pub(crate) fn has_one_of(&self, namespace: u16) -> bool {
        lock(&self.lists).waiting.count_of(namespace) == 1
    }

    /// All objects here.
    pub(crate) fn nodes(&self) -> Vec<u32> {
        let lists = lock(&self.lists);
        let others = lists.failed_nodes.values().chain(lists.in_flight.values());
        let nodes = lists.waiting.nodes().chain(lists.urgent.nodes());
        nodes.chain(others.map(|entry| entry.node)).collect()
    }

    /// Returns, for each namespace that has some, since when its object that has waited longest has had something pending.
    /// Of those that are in flight or failed, many are looked at and not all.
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

    /// Returns the time since when the object that has waited longest to be stored has had something pending,
    /// under way or not; `None` if there is none.
    pub(crate) fn oldest(&self) -> Option<Timestamp> {
        let lists = lock(&self.lists);
        let first = |line: &DirtyLine| line.firsts().next().map(|(_, since)| since);
        let others = lists.failed_nodes.values().chain(lists.in_flight.values()).map(|entry| entry.since);
        others.chain(first(&lists.waiting)).chain(first(&lists.urgent)).min()
    }
}

/// How many objects are looked at to find one of many: some ten microseconds.
pub(crate) const WALKED_MAX: usize = 1024;

/// An object with something pending.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) node: u32,
    /// The time since when it has had something pending.
    pub(crate) since: Timestamp,
    /// The number of its namespace.
    pub(crate) namespace: u16,
}

/// Objects that wait for a flush, a line for each namespace: so a namespace whose turn it is not holds up no other.
#[derive(Default)]
pub(crate) struct DirtyLine {
    /// Those of each namespace, by the number of which the line has its place: by the time since when they
    /// wait, then by the number that the object got when it was inserted.
    of_each: Vec<BTreeMap<(Timestamp, u64), u32>>,
    /// The time since when each of them waits, and its namespace.
    since: BTreeMap<u64, (Timestamp, u16)>,
    /// The one of each namespace that has waited longest: since when, its number, its namespace.
    first_of_each: BTreeSet<(Timestamp, u64, u16)>,
    /// Those that keep something of the log, by the position of their oldest record.
    held: BTreeSet<(u64, u64)>,
}

impl DirtyLine {
    /// Adds an object; `held` is the position of its oldest record, if it keeps something of the log.
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

    /// Takes an object out, with the same `held`.
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

    /// Notes that an object's oldest record is at `position` now, if it is in a line.
    pub(crate) fn set_held(&mut self, number: u64, before: Option<u64>, position: u64) {
        if self.since.contains_key(&number) {
            before.map(|before| self.held.remove(&(before, number)));
            self.held.insert((position, number));
        }
    }

    /// Returns the number of the object that has waited longest of those that are the first of their
    /// namespace and for which `is_meant` returns true.
    pub(crate) fn first(&self, is_meant: impl Fn(u16, Timestamp) -> bool) -> Option<u64> {
        let mut firsts = self.first_of_each.iter();
        firsts.find(|(since, _, namespace)| is_meant(*namespace, *since)).map(|(_, number, _)| *number)
    }

    /// Returns the number of the object with the oldest record.
    pub(crate) fn first_held(&self) -> Option<u64> {
        self.held.first().map(|(_, number)| *number)
    }

    /// Returns the position and number of the object with the oldest record before `end`, of the namespaces
    /// for which `is_meant` returns true. Many are looked at and not all.
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

    /// Returns, for each namespace that has some, since when the one waits that has waited longest; the
    /// longest time first.
    pub(crate) fn firsts(&self) -> impl Iterator<Item = (u16, Timestamp)> {
        self.first_of_each.iter().map(|(since, _, namespace)| (*namespace, *since))
    }

    /// Returns the number of objects of a namespace.
    pub(crate) fn count_of(&self, namespace: u16) -> usize {
        self.of_each.get(usize::from(namespace)).map_or(0, BTreeMap::len)
    }

    /// Returns the nodes of all of them.
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

    /// Takes the next object, where every namespace may begin a flush.
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
        // The one that has waited longer has its turn, however many there are before it by number.
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
