//! The order in which a session sends items: those that were used last come first, if that matters.
//!
//! Hash buckets have no such order, and a list of all items has no limit. So the buckets are walked
//! twice: for the quarter of the items that was used last, by a sample, and then for all others.
//! A source whose memory is not full does without: another node has room for its share, too.

use super::queue::Queue;
use cached_core::kv::{ItemView, Kv, ScanCursor};

/// The number of hash buckets whose items are the sample. Keys are hashed, so the first buckets are as
/// good as any.
const SAMPLE_BUCKETS: usize = 1024;
/// One of so many items comes first.
const SHARE: usize = 4;

/// A walk over the items of some slots. Each item that exists throughout is visited at least once.
pub(super) struct Walk {
    /// The next hash bucket; `None` at the end.
    at: Option<ScanCursor>,
    pass: Pass,
}

/// The items that are visited, by the time of their last use, in the store's seconds.
#[derive(Debug, Clone, Copy)]
enum Pass {
    All,
    /// Those used after `after`.
    Recent {
        after: u32,
        begun: u32,
    },
    /// Those that the pass before has not visited, and those that may have been used since: it may have
    /// met them earlier, when they were not recent.
    Others {
        after: u32,
        begun: u32,
    },
}

impl Walk {
    /// Returns a walk over the items of the queue's slots, in the order of their use if `begun` is a time:
    /// each use of an item from now on counts as one at this second or later.
    pub(super) fn new(kv: &Kv, queue: &Queue, begun: Option<u32>) -> Walk {
        let start = Some(ScanCursor::default());
        let Some(begun) = begun else { return Walk { at: start, pass: Pass::All } };
        let (mut uses, mut at) = (Vec::new(), start);
        for _ in 0..SAMPLE_BUCKETS {
            let Some(bucket) = at else { break };
            at = kv.scan(bucket, |item| {
                if queue.has_slot_of(item.key()) {
                    uses.push(item.last_access());
                }
            });
        }
        uses.sort_unstable_by(|one, other| other.cmp(one));
        let after = uses.get(uses.len() / SHARE).copied().unwrap_or(u32::MAX);
        let pass = match uses.first() {
            Some(last) if *last > after => Pass::Recent { after, begun },
            // None of them is ahead of the others.
            _ => Pass::All,
        };
        Walk { at: start, pass }
    }

    pub(super) fn is_over(&self) -> bool {
        self.at.is_none()
    }

    /// Visits the items of the next hash bucket, which is locked meanwhile.
    pub(super) fn step(&mut self, kv: &Kv, queue: &Queue, mut visit: impl FnMut(&ItemView<'_>)) {
        let (pass, Some(at)) = (self.pass, self.at) else { return };
        let next = kv.scan(at, |item| {
            let used = item.last_access();
            let is_due = match pass {
                Pass::All => true,
                Pass::Recent { after, .. } => used > after,
                Pass::Others { after, begun } => used <= after || used >= begun,
            };
            if is_due && queue.has_slot_of(item.key()) {
                visit(item);
            }
        });
        self.at = match (next, pass) {
            (None, Pass::Recent { after, begun }) => {
                self.pass = Pass::Others { after, begun };
                Some(ScanCursor::default())
            }
            _ => next,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cached_core::clock::TickClock;
    use cached_core::kv::{ImportOptions, KvConfig};
    use cached_ring::{Slot, slot_of};
    use std::collections::HashMap;
    use std::sync::Arc;

    const ITEMS: u32 = 4000;

    /// Visits all items, and executes `between` between the passes. Returns how often each item was
    /// visited, and the items of the first pass.
    fn walked(kv: &Kv, slots: impl Fn(Slot) -> bool, between: impl FnOnce()) -> [HashMap<u32, u32>; 2] {
        let queue = Queue::new(Slot::all().filter(|slot| slots(*slot)).collect());
        let mut walk = Walk::new(kv, &queue, Some(kv.now_secs()));
        let mut visits = HashMap::new();
        let number = |item: &ItemView<'_>| u32::from_le_bytes(item.key().try_into().unwrap());
        let mut go = |walk: &mut Walk| {
            walk.step(kv, &queue, |item| *visits.entry(number(item)).or_default() += 1);
            visits.clone()
        };
        let mut first = HashMap::new();
        while matches!(walk.pass, Pass::Recent { .. }) {
            first = go(&mut walk);
        }
        between();
        while !walk.is_over() {
            go(&mut walk);
        }
        [visits, first]
    }

    /// Returns a store with items that were last used some time ago.
    fn store_with(idle_secs: impl Fn(u32) -> u32) -> Kv {
        let clock = Arc::new(TickClock::new());
        clock.advance(1 << 20);
        let kv = Kv::new(KvConfig { clock, ..KvConfig::default() }).unwrap();
        for number in 0..ITEMS {
            let (key, idle_secs) = (number.to_le_bytes(), idle_secs(number));
            let options = ImportOptions { idle_secs, ..ImportOptions::default() };
            kv.import(&key, kv.hash(&key), b"v", &options).unwrap();
        }
        kv
    }

    #[test]
    fn what_was_used_last_comes_first_and_nothing_twice() {
        let is_hot = |number: u32| number.is_multiple_of(10);
        let kv = store_with(|number| if is_hot(number) { 10 } else { 1000 + number });
        let slots = |slot: Slot| slot.number().is_multiple_of(2);
        let is_moved = |number: u32| slots(slot_of(&number.to_le_bytes()));
        let [visits, first] = walked(&kv, slots, || ());
        assert!((0..ITEMS).all(|number| visits.get(&number) == is_moved(number).then_some(&1)));
        let mut hot = (0..ITEMS).filter(|number| is_hot(*number) && is_moved(*number));
        assert!(hot.all(|number| first.contains_key(&number)));
        assert!(first.len() * 3 < visits.len(), "{} of {}", first.len(), visits.len());
    }

    #[test]
    fn an_item_that_is_used_between_the_passes_is_not_left_out() {
        let kv = store_with(|number| 100 + number);
        let [visits, first] = walked(
            &kv,
            |_| true,
            || {
                (0..ITEMS).step_by(2).for_each(|number| drop(kv.get(&number.to_le_bytes())));
            },
        );
        let expected = |number: u32| 1 + u32::from(number.is_multiple_of(2) && first.contains_key(&number));
        assert!((0..ITEMS).all(|number| visits.get(&number) == Some(&expected(number))));
        assert!(first.len() * 5 > visits.len());
    }

    #[test]
    fn one_pass_is_enough_for_items_that_were_used_at_the_same_time() {
        let [visits, first] = walked(&store_with(|_| 7), |_| true, || ());
        assert!(visits.len() == ITEMS as usize && visits.values().all(|count| *count == 1));
        assert!(first.is_empty());
    }
}
