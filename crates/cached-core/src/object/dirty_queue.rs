//! The objects with changes that wait to be stored, in the order in which they became dirty, and those that
//! are urgent.
//!
//! An object is here from its first change until all of it is stored: *waiting*; *urgent*, because a request
//! waits for it or needs its memory; *failed*, to be tried again at a given time; or *in flight*, while its
//! flush is under way. A leaf lock.

use std::collections::{BTreeMap, BTreeSet};

use blocker::Timestamp;

use super::lock_ranks;
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
    /// By the time since when they wait, then by the number that the object got when it was inserted.
    waiting: BTreeMap<(Timestamp, u64), u32>,
    /// The time since when each of them waits.
    waiting_since: BTreeMap<u64, Timestamp>,
    urgent: BTreeMap<u64, u32>,
    failed: BTreeSet<(Timestamp, u64)>,
    failed_nodes: BTreeMap<u64, u32>,
    in_flight: BTreeMap<u64, u32>,
}

impl Lists {
    fn wait(&mut self, number: u64, node: u32, since: Timestamp) {
        self.waiting.insert((since, number), node);
        self.waiting_since.insert(number, since);
    }
}

impl DirtyQueue {
    /// Inserts an object that has had something pending since `since`; returns its number here.
    pub(crate) fn insert(&self, node: u32, since: Timestamp) -> u64 {
        let mut lists = lock(&self.lists);
        lists.next += 1;
        let number = lists.next;
        lists.wait(number, node, since);
        number
    }

    /// Makes an object urgent.
    pub(crate) fn expedite(&self, number: u64) {
        let mut lists = lock(&self.lists);
        let Some(since) = lists.waiting_since.remove(&number) else { return };
        if let Some(node) = lists.waiting.remove(&(since, number)) {
            lists.urgent.insert(number, node);
        }
    }

    /// Takes the next object to be flushed: an urgent one, one whose retry is due, one that has waited since
    /// before `since`, or, under `pressure`, the one that has waited longest. It is in flight from now on.
    pub(crate) fn take_next(
        &self,
        now: Timestamp,
        since: Option<Timestamp>,
        pressure: bool,
    ) -> Option<(u64, u32)> {
        let mut lists = lock(&self.lists);
        let lists = &mut *lists;
        let due = lists.failed.first().copied().filter(|(at, _)| *at <= now);
        let (number, node) = if let Some((number, node)) = lists.urgent.pop_first() {
            (number, node)
        } else if let Some((at, number)) = due {
            lists.failed.remove(&(at, number));
            (number, lists.failed_nodes.remove(&number)?)
        } else {
            let first = lists.waiting.first_entry()?;
            if !pressure && since.is_none_or(|since| first.key().0 > since) {
                return None;
            }
            let ((_, number), node) = first.remove_entry();
            lists.waiting_since.remove(&number);
            (number, node)
        };
        lists.in_flight.insert(number, node);
        Some((number, node))
    }

    /// Returns when the next flush will be due: the oldest change, and the first retry.
    pub(crate) fn next_due(&self) -> (Option<Timestamp>, Option<Timestamp>) {
        let lists = lock(&self.lists);
        let oldest = lists.waiting.first_key_value().map(|((since, _), _)| *since);
        (oldest, lists.failed.first().map(|(at, _)| *at))
    }

    /// Removes an object whose flush is over and of which everything is stored.
    pub(crate) fn remove(&self, number: u64) {
        lock(&self.lists).in_flight.remove(&number);
    }

    /// Lets an object wait again whose flush is over and that has had something pending since `since`: it
    /// waits by that time, not by its former one.
    pub(crate) fn requeue(&self, number: u64, since: Timestamp, is_urgent: bool) {
        let mut lists = lock(&self.lists);
        let Some(node) = lists.in_flight.remove(&number) else { return };
        if is_urgent {
            lists.urgent.insert(number, node);
        } else {
            lists.wait(number, node, since);
        }
    }

    /// Its flush failed: the next try is at `at`.
    pub(crate) fn retry_at(&self, number: u64, at: Timestamp) {
        let mut lists = lock(&self.lists);
        let Some(node) = lists.in_flight.remove(&number) else { return };
        lists.failed.insert((at, number));
        lists.failed_nodes.insert(number, node);
    }

    /// Whether one object alone waits: the background may be asleep.
    pub(crate) fn has_one(&self) -> bool {
        lock(&self.lists).waiting.len() == 1
    }

    /// All objects here.
    pub(crate) fn nodes(&self) -> Vec<u32> {
        let lists = lock(&self.lists);
        let waiting = lists.waiting.values().copied();
        let others = lists.urgent.values().chain(lists.failed_nodes.values()).chain(lists.in_flight.values());
        waiting.chain(others.copied()).collect()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn changes_during_a_flush_wait_by_their_own_age() {
        let dirty_queue = DirtyQueue::default();
        let at = Timestamp;
        let (first, second) = (dirty_queue.insert(0, at(1)), dirty_queue.insert(1, at(5)));
        assert_eq!(dirty_queue.take_next(at(9), None, true), Some((first, 0)));
        dirty_queue.requeue(first, at(7), false);
        // The one that has waited longer has its turn, however many there are before it by number.
        assert_eq!(dirty_queue.take_next(at(9), None, true), Some((second, 1)));
        dirty_queue.remove(second);
        assert_eq!(dirty_queue.next_due().0, Some(at(7)));
        dirty_queue.expedite(first);
        assert_eq!(dirty_queue.take_next(at(9), None, false), Some((first, 0)));
    }

    #[test]
    fn the_oldest_goes_first_and_the_urgent_before_it() {
        let dirty_queue = DirtyQueue::default();
        let at = Timestamp;
        let numbers: Vec<u64> = (0..4).map(|node| dirty_queue.insert(node, at(u64::from(node)))).collect();
        assert_eq!(dirty_queue.take_next(at(9), None, false), None, "nothing is old enough");
        assert_eq!(dirty_queue.take_next(at(9), Some(at(0)), false), Some((numbers[0], 0)));
        assert_eq!(dirty_queue.take_next(at(9), Some(at(0)), false), None, "the next is younger");
        dirty_queue.expedite(numbers[2]);
        assert_eq!(dirty_queue.take_next(at(9), Some(at(0)), false), Some((numbers[2], 2)));
        dirty_queue.retry_at(numbers[0], at(20));
        assert_eq!(dirty_queue.next_due(), (Some(at(1)), Some(at(20))));
        assert_eq!(dirty_queue.take_next(at(19), Some(at(0)), true), Some((numbers[1], 1)));
        assert_eq!(dirty_queue.take_next(at(20), Some(at(0)), true), Some((numbers[0], 0)));
        dirty_queue.requeue(numbers[0], at(7), false);
        dirty_queue.remove(numbers[2]);
        let mut nodes = dirty_queue.nodes();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 3]);
    }
}
