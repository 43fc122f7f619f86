//! Quotas: the usage and the limit of each namespace that has one.
//!
//! The usage of a namespace is the sum of its objects' sizes. A *count* lists the namespace page by
//! page, in the order of names. In addition, every change of a size is recorded at the moment that
//! decides it: in the object's exclusive section, or before the store is asked. A change of an
//! object that the count has already passed is added to the usage. For an object further on, the
//! new size is remembered and replaces the one on the page, which may be from before or after the
//! change. So everything that goes through this cache is counted exactly once.

use std::collections::HashMap;
use std::time::Duration;

use blocker::metrics::counters;
use blocker::{Error, ListEntry, Name, Namespace, ObjectId, Result, Timestamp};

use crate::object::lock_ranks;
use crate::sync::{AtomicBool, Mutex, Ordering, lock};

/// The maximum number of remembered sizes of objects that a count has not reached yet. If there are
/// more, the count is repeated.
const AHEAD_MAX: usize = 64 * 1024;
/// A refusal starts a count if the previous count ended longer ago than this.
const RECOUNT_AFTER: Duration = Duration::from_secs(60);
counters! {
    /// The quota of a namespace and its used part, in bytes.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct QuotaUse {
        /// The maximum total size of a namespace's objects.
        pub bytes_max: u64 => "cache_namespace_quota_bytes",
        /// The total size of the namespace's objects, as far as they have been counted.
        pub used_bytes: u64 => "cache_namespace_used_bytes",
        /// 1 if all objects of the namespace have been counted; until then the quota is compared
        /// with the part that has been.
        pub is_counted: bool => "cache_namespace_used_is_counted",
    }
}

/// The namespaces' quotas, by namespace number.
pub(crate) struct Quotas {
    is_any: AtomicBool,
    all: Mutex<HashMap<u16, State>>,
}

struct State {
    namespace: Namespace,
    bytes_max: u64,
    /// The usage: the result of the count, adjusted by all changes since.
    used: u64,
    /// Whether a count has ended.
    is_counted: bool,
    count: Count,
    /// The new sizes of objects whose changes are in flight to the store.
    asked_for: HashMap<Name, u64>,
}

enum Count {
    Wanted,
    Under(UnderWay),
    Ended(Timestamp),
}

/// A count in progress.
#[derive(Default)]
struct UnderWay {
    /// The total size of the objects up to `reached`.
    found: u64,
    /// The last name that has been counted.
    reached: Option<Name>,
    /// The sizes of objects after `reached` that have changed since the count began.
    ahead: HashMap<Name, u64>,
    is_overfull: bool,
}

impl State {
    /// Records a change of an object's size.
    fn note(&mut self, name: &Name, before: u64, after: u64) {
        let moved = |sum: u64| sum.saturating_add(after).saturating_sub(before);
        self.used = moved(self.used);
        let Count::Under(count) = &mut self.count else { return };
        if count.reached.as_ref().is_some_and(|reached| name <= reached) {
            count.found = moved(count.found);
        } else if count.ahead.len() < AHEAD_MAX || count.ahead.contains_key(name) {
            count.ahead.insert(name.clone(), after);
        } else {
            count.is_overfull = true;
        }
    }
}

impl Quotas {
    pub(crate) fn new(quotas: &[(u16, Namespace, u64)]) -> Self {
        let new =
            Self { is_any: AtomicBool::new(false), all: Mutex::ranked(HashMap::new(), &lock_ranks::QUOTAS) };
        new.set(quotas);
        new
    }

    /// Applies quotas. The usage of a namespace that already had a quota stays known.
    pub(crate) fn set(&self, quotas: &[(u16, Namespace, u64)]) {
        let mut all = lock(&self.all);
        all.retain(|number, _| quotas.iter().any(|(own, ..)| own == number));
        for (number, namespace, bytes_max) in quotas {
            let new = || State {
                namespace: namespace.clone(),
                bytes_max: *bytes_max,
                used: 0,
                is_counted: false,
                count: Count::Wanted,
                asked_for: HashMap::new(),
            };
            let state = all.entry(*number).or_insert_with(new);
            if state.bytes_max != *bytes_max && matches!(state.count, Count::Ended(_)) {
                state.count = Count::Wanted;
            }
            state.bytes_max = *bytes_max;
        }
        self.is_any.store(!all.is_empty(), Ordering::SeqCst);
    }

    /// Returns whether the namespace has a quota.
    #[inline]
    pub(crate) fn has(&self, namespace: u16) -> bool {
        self.is_any.load(Ordering::Relaxed) && lock(&self.all).contains_key(&namespace)
    }

    /// Returns whether any namespace has a quota.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    pub(crate) fn get(&self, namespace: u16) -> Option<QuotaUse> {
        let all = lock(&self.all);
        let state = all.get(&namespace)?;
        Some(QuotaUse { bytes_max: state.bytes_max, used_bytes: state.used, is_counted: state.is_counted })
    }

    /// Records a change of an object's size without checking the quota.
    pub(crate) fn note(&self, namespace: u16, id: &ObjectId, (before, after): (u64, u64)) {
        if before != after
            && self.is_any()
            && let Some(state) = lock(&self.all).get_mut(&namespace)
        {
            state.note(&id.name, before, after);
        }
    }

    /// Records that a size change, which [`Self::change`] has admitted, is about to be sent to the
    /// store. No other change of the object is in flight.
    pub(crate) fn begin_forward(&self, namespace: u16, id: &ObjectId, after: u64) {
        if let Some(state) = lock(&self.all).get_mut(&namespace) {
            state.asked_for.insert(id.name.clone(), after);
        }
    }

    /// Records the store's response to a size change.
    pub(crate) fn end_forward<T>(
        &self,
        namespace: u16,
        id: &ObjectId,
        (before, after): (u64, u64),
        answer: &Result<T>,
    ) {
        let mut all = lock(&self.all);
        let Some(state) = all.get_mut(&namespace) else { return };
        let is_known = state.asked_for.remove(&id.name).is_some();
        let is_made = match answer {
            Ok(_) => true,
            // The outcome is unknown: the larger size counts.
            Err(Error::OutcomeUnknown(_) | Error::NotStored(_) | Error::WritesLost(_)) => after > before,
            Err(_) => false,
        };
        // If the change is not known, the quota was set after it began, and the change was not
        // recorded.
        if !is_made && is_known {
            state.note(&id.name, after, before);
        }
    }

    /// Checks and records a change of an object's size. If the change is not made after all, the
    /// caller must record its reverse.
    ///
    /// # Errors
    /// `OutOfSpace` if the object grows and the namespace would exceed its quota.
    pub(crate) fn change(&self, namespace: u16, id: &ObjectId, (before, after): (u64, u64)) -> Result<()> {
        if before == after || !self.is_any() {
            return Ok(());
        }
        let mut all = lock(&self.all);
        let Some(state) = all.get_mut(&namespace) else { return Ok(()) };
        let more = after.saturating_sub(before);
        if more > 0 && state.used.saturating_add(more) > state.bytes_max {
            let State { namespace, bytes_max, used, .. } = state;
            return Err(Error::OutOfSpace(
                format!("namespace \"{namespace}\" has {used} of its quota of {bytes_max} bytes, and {more} more bytes would exceed it")
                    .into(),
            ));
        }
        state.note(&id.name, before, after);
        Ok(())
    }

    /// Records that a change was refused; returns whether a count must begin.
    pub(crate) fn refused(&self, namespace: u16, now: Timestamp) -> bool {
        let mut all = lock(&self.all);
        let Some(state) = all.get_mut(&namespace) else { return false };
        if matches!(state.count, Count::Ended(at) if now.since(at) >= RECOUNT_AFTER) {
            state.count = Count::Wanted;
        }
        matches!(state.count, Count::Wanted)
    }

    /// Requests a new count of a namespace whose earlier count is no longer valid.
    pub(crate) fn recount(&self, namespace: u16) {
        if let Some(state) = lock(&self.all).get_mut(&namespace) {
            (state.count, state.is_counted) = (Count::Wanted, false);
        }
    }

    /// Returns a namespace that needs a count.
    pub(crate) fn wanted(&self) -> Option<(u16, Namespace)> {
        if !self.is_any() {
            return None;
        }
        let all = lock(&self.all);
        let wanted = all.iter().filter(|(_, state)| matches!(state.count, Count::Wanted));
        wanted.min_by_key(|(number, _)| **number).map(|(number, state)| (*number, state.namespace.clone()))
    }

    /// Begins or restarts a count. Returns false if the namespace no longer has a quota.
    pub(crate) fn begin_count(&self, namespace: u16) -> bool {
        let mut all = lock(&self.all);
        let Some(state) = all.get_mut(&namespace) else { return false };
        let ahead = state.asked_for.clone();
        state.count = Count::Under(UnderWay { ahead, ..UnderWay::default() });
        if !state.is_counted {
            // The list includes the changes recorded before.
            state.used = 0;
        }
        true
    }

    /// Adds a page of the list to the count. Returns whether the count continues.
    pub(crate) fn count_page(
        &self,
        namespace: u16,
        entries: &[ListEntry],
        has_more: bool,
        now: Timestamp,
    ) -> Counted {
        let mut all = lock(&self.all);
        let Some(state) = all.get_mut(&namespace) else { return Counted::Ended };
        let Count::Under(count) = &mut state.count else { return Counted::Ended };
        let last = entries.last().map(|entry| &entry.name);
        // Objects up to the end of the page count with their remembered sizes, which are newer than
        // the page.
        let changed: HashMap<_, _> = match last.filter(|_| has_more) {
            Some(last) => count.ahead.extract_if(|name, _| name <= last).collect(),
            None => std::mem::take(&mut count.ahead),
        };
        let unchanged = entries.iter().filter(|entry| !changed.contains_key(&entry.name));
        let found: u64 = unchanged.map(|entry| entry.size_bytes).chain(changed.values().copied()).sum();
        count.found = count.found.saturating_add(found);
        count.reached = last.cloned().or(count.reached.take());
        if !state.is_counted {
            state.used = count.found;
        }
        if has_more {
            return Counted::More;
        }
        if count.is_overfull {
            return Counted::Again;
        }
        state.used = count.found;
        state.is_counted = true;
        state.count = Count::Ended(now);
        Counted::Ended
    }
}

/// The state of a count after a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    /// There are more pages.
    More,
    /// The count must be repeated, because too many sizes changed during it.
    Again,
    Ended,
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use blocker::Version;

    use super::*;

    fn quotas(bytes_max: u64) -> Quotas {
        Quotas::new(&[(1, Namespace::new("n").unwrap(), bytes_max)])
    }

    fn id(name: &str) -> ObjectId {
        ObjectId::new(Namespace::new("n").unwrap(), Name::copy_from(name.as_bytes()).unwrap())
    }

    fn page(entries: &[(&str, u64)]) -> Vec<ListEntry> {
        entries.iter().map(|(name, size)| ListEntry::new(id(name).name, *size, Version(1))).collect()
    }

    fn used(quotas: &Quotas) -> u64 {
        quotas.get(1).expect("it has a quota").used_bytes
    }

    #[test]
    fn a_count_and_the_changes_meanwhile_count_each_object_once() {
        let quotas = quotas(1000);
        let now = Timestamp(0);
        assert_eq!(quotas.wanted().map(|(number, _)| number), Some(1));
        assert!(quotas.begin_count(1) && quotas.wanted().is_none());
        // The page may have the size from before or after the change: the result is the same.
        quotas.change(1, &id("b"), (10, 30)).unwrap();
        quotas.change(1, &id("c"), (5, 0)).unwrap();
        quotas.change(1, &id("z"), (0, 7)).unwrap();
        assert_eq!(quotas.count_page(1, &page(&[("a", 1), ("b", 10), ("c", 5)]), true, now), Counted::More);
        assert_eq!(used(&quotas), 31);
        // An object that has been reached counts by its changes, one that has not by its size.
        quotas.change(1, &id("a"), (1, 2)).unwrap();
        quotas.change(1, &id("bb"), (0, 100)).unwrap();
        quotas.change(1, &id("d"), (40, 50)).unwrap();
        assert!(!quotas.get(1).unwrap().is_counted);
        assert_eq!(quotas.count_page(1, &page(&[("d", 40), ("e", 4)]), false, now), Counted::Ended);
        assert_eq!(used(&quotas), 2 + 30 + 100 + 50 + 4 + 7);
        assert!(quotas.get(1).unwrap().is_counted);
        quotas.note(1, &id("e"), (4, 0));
        assert_eq!(used(&quotas), 189);
    }

    #[test]
    fn growth_beyond_the_quota_is_refused_and_anything_else_is_not() {
        let quotas = quotas(100);
        assert!(quotas.begin_count(1));
        quotas.count_page(1, &page(&[("a", 90)]), false, Timestamp(0));
        let error = quotas.change(1, &id("b"), (0, 11)).unwrap_err();
        let wanted = "out of space: namespace \"n\" has 90 of its quota of 100 bytes, and 11 more bytes would exceed it";
        assert_eq!(error.to_string(), wanted);
        quotas.change(1, &id("b"), (0, 10)).unwrap();
        quotas.change(1, &id("a"), (90, 80)).unwrap();
        quotas.set(&[(1, Namespace::new("n").unwrap(), 50)]);
        quotas.change(1, &id("a"), (80, 70)).unwrap();
        assert!(quotas.change(1, &id("a"), (70, 71)).is_err(), "above the new quota");
        assert!(quotas.wanted().is_some(), "a new quota is a reason to count");
        quotas.set(&[]);
        assert!(!quotas.is_any() && !quotas.has(1) && quotas.get(1).is_none());
        quotas.change(1, &id("a"), (70, 700)).unwrap();
    }

    #[test]
    fn a_change_that_the_store_is_asked_for_counts_once_whatever_the_page_has_and_the_answer_is() {
        let unknown = || Err(Error::OutcomeUnknown("lost".into()));
        let refused = || Err(Error::Retryable("busy".into()));
        let answers: [(Result<()>, u64, u64); 3] =
            [(Ok(()), 60, 5), (refused(), 20, 20), (unknown(), 60, 20)];
        for (answer, grown, cut) in answers {
            for page_size in [20, 60] {
                let quotas = quotas(1000);
                quotas.change(1, &id("a"), (20, 60)).unwrap();
                quotas.begin_forward(1, &id("a"), 60);
                assert!(quotas.begin_count(1));
                quotas.count_page(1, &page(&[("a", page_size)]), false, Timestamp(0));
                quotas.end_forward(1, &id("a"), (20, 60), &answer);
                assert_eq!(used(&quotas), grown, "{answer:?}");
                quotas.note(1, &id("a"), (grown, 20));
                quotas.change(1, &id("a"), (20, 5)).unwrap();
                quotas.begin_forward(1, &id("a"), 5);
                quotas.end_forward(1, &id("a"), (20, 5), &answer);
                assert_eq!(used(&quotas), cut, "{answer:?}");
            }
        }
    }

    #[test]
    fn a_refusal_starts_a_count_at_most_once_a_minute() {
        let quotas = quotas(10);
        assert!(quotas.refused(1, Timestamp(0)), "the first has not been made");
        quotas.begin_count(1);
        assert!(!quotas.refused(1, Timestamp(0)));
        quotas.count_page(1, &[], false, Timestamp(0));
        assert!(!quotas.refused(1, Timestamp(59_000_000_000)));
        assert!(quotas.refused(1, Timestamp(60_000_000_000)));
    }
}
