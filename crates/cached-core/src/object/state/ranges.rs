//! The ranges of an object that the store is working on, and the requests that wait for them, first come,
//! first served.
//!
//! A *load* reads a range of the store into the cache; loads share. A *change* is on its way to the store and
//! has its range alone. An entry is granted when no earlier one conflicts, so no request is overtaken for
//! ever; entries that wait conflict like those that are granted. No lock is held across I/O: an entry is a
//! note in the object's state, made and removed in its exclusive section.
//!
//! Between asking the store and using its answer an entry is *asking*, and whatever invalidates the answer
//! makes the entry *stale*. There is one rule for each kind of question.
//!
//! - Bytes that were read are the base under what the cache has that is newer. They are void once the cache
//!   forgets any of that (evicted, invalidated), or once the store has cut off, replaced or removed what they
//!   may come from.
//! - Bytes that were written are what the store has, unless other clients are reported to have changed it
//!   meanwhile.

use crate::object::memory::geometry::Buckets;
use std::task::Waker;

/// The most entries of one object.
pub(crate) const ENTRIES_MAX: usize = 16 * 1024;

/// What the store is asked to do with the range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Reads it.
    Load,
    /// Reads it before any caller has asked for it.
    Ahead,
    /// Changes it.
    Change,
    /// Changes it by way of the store.
    Forward,
    /// As [`Self::Forward`], with a stamp of the cache's own. Stamps must reach the store in their order, so
    /// of one object there is one such change at a time, whatever its range.
    Stamped,
}

impl Kind {
    fn changes(self) -> bool {
        matches!(self, Kind::Change | Kind::Forward | Kind::Stamped)
    }
}

/// What an entry has asked of the store whose answer it has not used yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asked {
    Nothing,
    Bytes,
    Change,
}

/// Names an entry of one object.
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
    /// The task that made it, while it waits.
    waker: Option<Waker>,
    /// The tasks that wait for its end.
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

/// The entries of one object.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    entries: Vec<Entry>,
    next: u64,
}

impl Ranges {
    pub(crate) fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= ENTRIES_MAX
    }

    /// Queues for `buckets`. Returns whether they are granted at once, because nothing earlier conflicts.
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

    /// Whether the entry is granted; if not, `waker` will be woken when it is.
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

    /// A granted load that covers `buckets`, to be waited for instead of loading again. What is being read
    /// ahead need only cover the first of them: the rest is read ahead as well, or asked for afterwards.
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

    /// Waits for the end of an entry; false if it has ended.
    pub(crate) fn follow(&mut self, ticket: Ticket, waker: &Waker) -> bool {
        let Some(entry) = self.find(ticket) else { return false };
        if !entry.followers.iter().any(|each| each.will_wake(waker)) {
            entry.followers.push(waker.clone());
        }
        true
    }

    /// Whether a change is on its way to, or waits for, any of `buckets`.
    pub(crate) fn is_changing(&self, buckets: &Buckets) -> bool {
        self.entries.iter().any(|entry| entry.kind.changes() && overlap(&entry.buckets, buckets))
    }

    /// Whether a load of `bucket` is under way, or waits.
    pub(crate) fn is_wanted(&self, bucket: u32) -> bool {
        let one = bucket..bucket + 1;
        self.entries.iter().any(|entry| !entry.kind.changes() && overlap(&entry.buckets, &one))
    }

    /// Whether a granted entry changes a range by way of the store. What is written back must not be mixed
    /// with that, in any range: a flush would set the object's end beside it.
    pub(crate) fn is_forwarding(&self) -> bool {
        let forwards = |entry: &Entry| matches!(entry.kind, Kind::Forward | Kind::Stamped);
        self.entries.iter().any(|entry| entry.is_granted && forwards(entry))
    }

    /// Notes that the store is about to be asked for bytes of the entry's range. Asked again before the first
    /// bytes are used, both are stale together.
    pub(crate) fn ask_bytes(&mut self, ticket: Ticket) {
        self.begin(ticket, Asked::Bytes);
    }

    /// Notes that the store is about to be asked for the entry's change.
    pub(crate) fn ask_change(&mut self, ticket: Ticket) {
        self.begin(ticket, Asked::Change);
    }

    fn begin(&mut self, ticket: Ticket, asked: Asked) {
        if let Some(entry) = self.find(ticket).filter(|entry| entry.asked == Asked::Nothing) {
            (entry.asked, entry.is_stale) = (asked, false);
        }
    }

    /// Whether bytes of `bucket` are being asked for, or wait to be used.
    pub(crate) fn is_loading(&self, bucket: u32) -> bool {
        let one = bucket..bucket + 1;
        self.entries.iter().any(|entry| entry.asked == Asked::Bytes && overlap(&entry.buckets, &one))
    }

    /// The bytes of `buckets` that are being asked for, or wait to be used, are void.
    pub(crate) fn invalidate_bytes(&mut self, buckets: &Buckets) {
        let entries = self.entries.iter_mut().filter(|entry| entry.asked == Asked::Bytes);
        entries.filter(|entry| overlap(&entry.buckets, buckets)).for_each(|entry| entry.is_stale = true);
    }

    /// Makes every answer under way void: other clients may have changed the object.
    pub(crate) fn invalidate_all(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.is_stale = entry.asked != Asked::Nothing);
    }

    /// Whether the answer to what the entry has asked is void.
    pub(crate) fn is_stale(&self, ticket: Ticket) -> bool {
        self.entries.iter().any(|entry| entry.ticket == ticket && entry.is_stale)
    }

    /// As [`Self::is_stale`]; if so, the maker of the entry drops what it has, and the entry asks for
    /// nothing.
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
    use crate::object::memory::geometry::WHOLE;

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
