//! The keys that have changed while the items of a move are being sent.

use crate::locks::{CHANGED_KEYS, Lock};
use cached_core::kv::{Change, ChangeHook};
use cached_ring::{SlotSet, slot_of};
use std::collections::HashSet;

/// The most bytes of keys that wait. As many may be taken out at the same time.
pub(super) const BYTES_MAX: usize = 16 << 20;
/// The memory that a key takes besides its bytes.
pub(super) const KEY_OVERHEAD_BYTES: usize = 64;

/// Keys, each once, in no order: what is sent is the item as it is then.
pub(super) type Keys = HashSet<Box<[u8]>>;

/// The changed keys of some slots, each of which waits once, however often it changes.
pub(super) struct Queue {
    slots: SlotSet,
    waiting: Lock<Waiting>,
}

#[derive(Default)]
struct Waiting {
    keys: Keys,
    bytes: usize,
    /// Whether keys were left out, because too many waited. Those that wait stay, so that they are taken
    /// out and this is seen.
    is_incomplete: bool,
}

/// More keys have changed than may wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooMany;

impl Queue {
    pub(super) fn new(slots: SlotSet) -> Queue {
        Queue { slots, waiting: Lock::ranked(Waiting::default(), &CHANGED_KEYS) }
    }

    /// Returns whether a key belongs to the slots.
    pub(super) fn has_slot_of(&self, key: &[u8]) -> bool {
        self.slots.contains(slot_of(key))
    }

    /// Returns the number of keys that wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.lock().keys.len()
    }

    /// Takes all keys that wait. A key that changes from now on waits again, so its item must be read
    /// after this call.
    ///
    /// # Errors
    /// Returns [`TooMany`] if keys were left out.
    pub(super) fn take(&self) -> Result<Keys, TooMany> {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        if waiting.is_incomplete { Err(TooMany) } else { Ok(waiting.keys) }
    }
}

impl ChangeHook for Queue {
    fn on_change(&self, change: Change, key: &[u8], _version: u64) {
        match change {
            // A node may keep what another one has evicted. A flush ends the session.
            Change::Evicted | Change::Flushed => return,
            // A client may have found that the item has expired, here and not by another node's clock.
            Change::Expired => {}
            Change::Stored | Change::Touched | Change::Deleted | Change::Absent => {}
        }
        if !self.has_slot_of(key) {
            return;
        }
        let waiting = &mut *self.waiting.lock();
        if waiting.is_incomplete || waiting.keys.contains(key) {
            return;
        }
        waiting.bytes += key.len() + KEY_OVERHEAD_BYTES;
        if waiting.bytes > BYTES_MAX {
            waiting.is_incomplete = true;
            return;
        }
        waiting.keys.insert(key.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_of_the_slots_wait_once_and_are_bounded() {
        let own = slot_of(b"k");
        let queue = Queue::new([own].into_iter().collect());
        let changes = [Change::Stored, Change::Touched, Change::Deleted, Change::Absent, Change::Expired];
        for change in changes {
            queue.on_change(change, b"k", 1);
            queue.on_change(change, b"another slot", 1);
            assert_eq!(queue.take().map(|keys| keys.len()), Ok(1), "{change:?}");
        }
        for change in [Change::Evicted, Change::Flushed] {
            queue.on_change(change, b"k", 1);
            assert_eq!(queue.len(), 0, "{change:?}");
        }
        let all = Queue::new(cached_ring::Slot::all().collect());
        let key = |number: usize| format!("{number:0250}").into_bytes();
        let fit = BYTES_MAX / (250 + KEY_OVERHEAD_BYTES);
        (0..fit).for_each(|number| all.on_change(Change::Stored, &key(number), 1));
        all.on_change(Change::Stored, &key(7), 1);
        assert_eq!(all.len(), fit);
        all.on_change(Change::Stored, &key(fit), 1);
        all.on_change(Change::Stored, &key(fit), 1);
        assert_eq!((all.len(), all.take()), (fit, Err(TooMany)));
    }
}
