//! The ranges of an object for which requests to the store are in flight, and the requests that
//! wait for them, first come, first served.
//!
//! A *load* reads a range from the store into the cache; loads can share a range. A *change* is in
//! flight to the store and has exclusive use of its range. An entry is granted when no earlier
//! entry conflicts. Waiting entries conflict like granted ones, so no request can starve. No lock
//! is held across I/O: an entry is a note in the object's state, created and removed in its
//! exclusive section.
//!
//! Between the request to the store and the use of its response an entry is *asking*. Whatever
//! invalidates the response makes the entry *stale*. There is a rule for each kind of request.
//!
//! - Bytes that were read lie beneath newer content in the cache. They become void once the cache
//!   forgets any of the newer content (by eviction or invalidation), or once the store has
//!   truncated, replaced or removed the content that they may come from.
//! - Bytes that were written are the store's content, unless other clients are reported to have
//!   changed it in the meantime.

use crate::object::memory::Buckets;
use std::task::Waker;

/// The maximum number of entries for one object.
const ENTRIES_MAX: usize = 16 * 1024;

/// The purpose of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Reads the range.
    Load,
    /// Reads the range before any caller has asked for it.
    Ahead,
    /// Changes the range.
    Change,
    /// Forwards a change of the range to the store.
    Forward,
    /// Like [`Self::Forward`], with a stamp of the cache. Stamps must reach the store in order, so
    /// an object has only one such change in flight, whatever its range.
    Stamped,
}

impl Kind {
    fn changes(self) -> bool {
        matches!(self, Kind::Change | Kind::Forward | Kind::Stamped)
    }
}

/// The request of an entry whose response has not been used yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Nothing,
    Bytes,
    Change,
}

/// The ID of an entry within its object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Entry {
    ticket: Ticket,
    buckets: Buckets,
    kind: Kind,
    is_granted: bool,
    asked: Asked,
    is_stale: bool,
    /// The task that created the entry, while it waits.
    waker: Option<Waker>,
    /// The tasks that wait for the entry's end.
    followers: Vec<Waker>,
}

impl Entry {
    fn conflicts(&self, buckets: &Buckets, kind: Kind) -> bool {
        let are_stamped = kind == Kind::Stamped && self.kind == Kind::Stamped;
        let changes = kind.changes() || self.kind.changes();
        are_stamped || changes && overlap(&self.buckets, buckets)
    }
}

fn overlap(a: &Buckets, b: &Buckets) -> bool {
    a.start < b.end && b.start < a.end
}

/// The entries of an object.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    entries: Vec<Entry>,
    next: u64,
}

impl Ranges {
    pub(crate) const NONE: Self = Self { entries: Vec::new(), next: 0 };

    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES_MAX
    }

    /// Queues an entry for `buckets`. Also returns whether it is granted at once, because no
    /// earlier entry conflicts.
    pub(crate) fn enter(&mut self, buckets: Buckets, kind: Kind) -> (Ticket, bool) {
        let is_granted = !self.entries.iter().any(|entry| entry.conflicts(&buckets, kind));
        let ticket = Ticket(self.next);
        self.next += 1;
        self.entries.push(Entry {
            ticket,
            buckets,
            kind,
            is_granted,
            asked: Asked::Nothing,
            is_stale: false,
            waker: None,
            followers: Vec::new(),
        });
        (ticket, is_granted)
    }

    /// Returns whether the entry is granted; if not, `waker` will be woken when it is.
    pub(crate) fn poll(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        let Some(entry) = self.find(ticket) else { return true };
        if !entry.is_granted {
            entry.waker = Some(waker.clone());
        }
        entry.is_granted
    }

    /// Removes the entry; returns the tasks that may continue.
    pub(crate) fn release(&mut self, ticket: Ticket) -> Vec<Waker> {
        let Some(at) = self.entries.iter().position(|entry| entry.ticket == ticket) else {
            return Vec::new();
        };
        let gone = self.entries.remove(at);
        let mut woken = gone.followers;
        for at in at..self.entries.len() {
            let (earlier, later) = self.entries.split_at_mut(at);
            let entry = &mut later[0];
            if !entry.is_granted && !earlier.iter().any(|other| other.conflicts(&entry.buckets, entry.kind)) {
                entry.is_granted = true;
                woken.extend(entry.waker.take());
            }
        }
        woken
    }

    /// Returns a granted load that covers `buckets`, to wait for instead of loading again. A
    /// read-ahead need only cover the first bucket: the rest will be read ahead too, or requested
    /// afterwards.
    pub(crate) fn load_of(&self, buckets: &Buckets) -> Option<Ticket> {
        let covers = |entry: &&Entry| {
            let last = if entry.kind == Kind::Ahead { buckets.start + 1 } else { buckets.end };
            !entry.kind.changes()
                && entry.is_granted
                && !entry.is_stale
                && entry.buckets.start <= buckets.start
                && entry.buckets.end >= last
        };
        self.entries.iter().find(covers).map(|entry| entry.ticket)
    }

    /// Registers `waker` for the end of an entry; returns false if the entry has ended.
    pub(crate) fn follow(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        let Some(entry) = self.find(ticket) else { return false };
        if !entry.followers.iter().any(|each| each.will_wake(waker)) {
            entry.followers.push(waker.clone());
        }
        true
    }

    /// Returns whether a change of any of `buckets` is in flight or waiting.
    pub(crate) fn is_changing(&self, buckets: &Buckets) -> bool {
        self.entries.iter().any(|entry| entry.kind.changes() && overlap(&entry.buckets, buckets))
    }

    /// Returns whether a load of `bucket` is in flight or waiting.
    pub(crate) fn is_wanted(&self, bucket: u32) -> bool {
        let one = bucket..bucket + 1;
        self.entries.iter().any(|entry| !entry.kind.changes() && overlap(&entry.buckets, &one))
    }

    /// Returns whether a granted entry forwards a change to the store. Such a change must not be
    /// mixed with write-back in any range, because a flush would set the object's size at the same
    /// time.
    pub(crate) fn is_forwarding(&self) -> bool {
        let forwards = |entry: &Entry| matches!(entry.kind, Kind::Forward | Kind::Stamped);
        self.entries.iter().any(|entry| entry.is_granted && forwards(entry))
    }

    /// Records that bytes of the entry's range are about to be requested from the store. If they
    /// are requested again before the first bytes are used, both become stale together.
    pub(crate) fn ask_bytes(&mut self, ticket: Ticket) {
        self.begin(ticket, Asked::Bytes);
    }

    /// Records that the entry's change is about to be sent to the store.
    pub(crate) fn ask_change(&mut self, ticket: Ticket) {
        self.begin(ticket, Asked::Change);
    }

    fn begin(&mut self, ticket: Ticket, asked: Asked) {
        if let Some(entry) = self.find(ticket).filter(|entry| entry.asked == Asked::Nothing) {
            (entry.asked, entry.is_stale) = (asked, false);
        }
    }

    /// Returns whether bytes of `bucket` are being requested, or wait to be used.
    pub(crate) fn is_loading(&self, bucket: u32) -> bool {
        let one = bucket..bucket + 1;
        self.entries.iter().any(|entry| entry.asked == Asked::Bytes && overlap(&entry.buckets, &one))
    }

    /// Invalidates bytes of `buckets` that are being requested, or wait to be used.
    pub(crate) fn invalidate_bytes(&mut self, buckets: &Buckets) {
        let entries = self.entries.iter_mut().filter(|entry| entry.asked == Asked::Bytes);
        entries.filter(|entry| overlap(&entry.buckets, buckets)).for_each(|entry| entry.is_stale = true);
    }

    /// Invalidates every pending response, because other clients may have changed the object.
    pub(crate) fn invalidate_all(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.is_stale = entry.asked != Asked::Nothing);
    }

    /// Returns whether the response to the entry's request is void.
    pub(crate) fn is_stale(&self, ticket: Ticket) -> bool {
        self.entries.iter().any(|entry| entry.ticket == ticket && entry.is_stale)
    }

    /// Like [`Self::is_stale`], but a stale entry is also reset: its owner must discard the
    /// response.
    pub(crate) fn take_stale(&mut self, ticket: Ticket) -> bool {
        let Some(entry) = self.find(ticket).filter(|entry| entry.is_stale) else { return false };
        (entry.asked, entry.is_stale) = (Asked::Nothing, false);
        true
    }

    fn find(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.iter_mut().find(|entry| entry.ticket == ticket)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::object::memory::WHOLE;

    #[test]
    fn loads_share_and_changes_do_not() {
        let mut ranges = Ranges::default();
        let (load, granted) = ranges.enter(0..8, Kind::Load);
        assert!(granted);
        assert!(ranges.enter(4..12, Kind::Load).1);
        let (change, granted) = ranges.enter(7..8, Kind::Change);
        assert!(!granted);
        assert!(ranges.enter(20..21, Kind::Change).1, "elsewhere");
        let (late, granted) = ranges.enter(7..8, Kind::Load);
        assert!(!granted, "it must not overtake the change");
        ranges.release(load);
        assert!(!ranges.poll(change, Waker::noop()), "the other load is still there");
        assert_eq!(ranges.load_of(&(5..6)), Some(Ticket(1)));
        assert_eq!(ranges.release(Ticket(1)).len(), 1, "the change's maker is woken");
        assert!(ranges.poll(change, Waker::noop()));
        assert!(!ranges.poll(late, Waker::noop()));
        ranges.release(change);
        assert!(ranges.poll(late, Waker::noop()));
    }

    #[test]
    fn a_read_waits_for_what_is_being_read_ahead_where_it_begins() {
        let mut ranges = Ranges::default();
        let (ahead, granted) = ranges.enter(8..16, Kind::Ahead);
        assert!(granted && ranges.enter(0..9, Kind::Load).1, "loads share");
        assert_eq!(ranges.load_of(&(15..20)), Some(ahead), "the rest may follow");
        assert_eq!(ranges.load_of(&(7..12)), None, "it does not begin there");
        assert!(ranges.is_wanted(8) && ranges.is_wanted(0) && !ranges.is_wanted(16));
        assert!(!ranges.is_changing(&(8..16)) && !ranges.enter(10..11, Kind::Change).1);
        ranges.ask_bytes(ahead);
        ranges.invalidate_bytes(&(10..11));
        assert_eq!(ranges.load_of(&(15..20)), None, "its answer is void");
    }

    #[test]
    fn a_request_that_gives_up_leaves_no_entry() {
        let mut ranges = Ranges::default();
        let (first, _) = ranges.enter(WHOLE, Kind::Change);
        let (second, granted) = ranges.enter(WHOLE, Kind::Change);
        assert!(!granted, "one change of a range at a time");
        let (third, _) = ranges.enter(3..4, Kind::Load);
        assert!(!ranges.poll(third, Waker::noop()));
        assert!(ranges.release(second).is_empty());
        assert_eq!(ranges.release(first).len(), 1);
        assert!(ranges.poll(third, Waker::noop()));
        ranges.release(third);
        assert!(ranges.is_idle());
    }

    #[test]
    fn followers_are_woken_at_the_end_and_see_staleness() {
        let mut ranges = Ranges::default();
        let (load, _) = ranges.enter(2..6, Kind::Load);
        assert!(ranges.follow(load, Waker::noop()));
        ranges.invalidate_bytes(&(0..9));
        assert!(!ranges.is_stale(load), "nothing was asked yet");
        ranges.ask_bytes(load);
        ranges.invalidate_bytes(&(6..9));
        assert!(!ranges.is_stale(load));
        ranges.invalidate_bytes(&(5..6));
        assert!(ranges.is_stale(load));
        assert_eq!(ranges.load_of(&(2..3)), None, "no request follows a stale load");
        assert_eq!(ranges.release(load).len(), 1);
        assert!(!ranges.follow(load, Waker::noop()));
    }

    #[test]
    fn void_bytes_stay_void_until_they_are_dropped() {
        let mut ranges = Ranges::default();
        let (change, _) = ranges.enter(2..6, Kind::Change);
        ranges.ask_bytes(change);
        assert!(ranges.is_loading(2) && !ranges.is_loading(6));
        ranges.invalidate_bytes(&(2..3));
        ranges.ask_bytes(change);
        assert!(ranges.take_stale(change), "the first bytes are still there");
        assert!(!ranges.is_loading(2) && !ranges.take_stale(change));
        ranges.ask_bytes(change);
        assert!(!ranges.is_stale(change));
    }

    #[test]
    fn an_answered_change_is_void_only_if_other_clients_may_have_changed_it() {
        let mut ranges = Ranges::default();
        let (change, _) = ranges.enter(2..6, Kind::Change);
        let (waits, _) = ranges.enter(2..6, Kind::Change);
        ranges.ask_change(change);
        ranges.invalidate_bytes(&WHOLE);
        assert!(!ranges.is_stale(change) && !ranges.is_loading(2));
        ranges.invalidate_all();
        assert!(ranges.is_stale(change) && !ranges.is_stale(waits));
    }

    #[test]
    fn stamped_changes_of_one_object_go_one_at_a_time() {
        let mut ranges = Ranges::default();
        let (first, _) = ranges.enter(0..1, Kind::Stamped);
        let (second, granted) = ranges.enter(5..6, Kind::Stamped);
        assert!(!granted);
        assert!(ranges.enter(7..8, Kind::Load).1, "loads of other ranges do not wait");
        assert!(!ranges.enter(5..6, Kind::Load).1);
        assert!(ranges.enter(8..9, Kind::Change).1);
        ranges.release(first);
        assert!(ranges.poll(second, Waker::noop()));
    }
}
