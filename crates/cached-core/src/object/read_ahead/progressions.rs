//! Progressions: accesses that continue where the last one ended, or advance by equal steps. A
//! bounded table of the current progressions predicts the next accesses of each.
//!
//! The table sees accesses that were not served from the cache, and *marks*: a mark is on a bucket
//! that was read ahead, and its first read shows how far the progression has advanced. Reads
//! between two marks cost nothing.
//!
//! ```text
//!  asked for        next                 mark                       ahead
//!  ────────────────>├────────────────────┼──────────────────────────┤
//!                   │ read ahead, unread │ read: the window after   │ the next window, twice as long
//!                   │                    │ `ahead` is planned       │
//! ```
//!
//! This is the read-ahead of Linux (Wu, Xi, Xu, "On the design of a new Linux readahead framework",
//! SIGOPS OSR 42(5), 2008): a window that doubles, with a mark in it that triggers the next window
//! before it is needed. The caller decides how long windows may become.
//!
//! Positions are bucket numbers of objects. A row of objects whose names differ only by a number is
//! treated as a single sequence: a progression that reaches the end of an object continues at the
//! start of the next.

use std::ops::Range;

use super::object_numbers::ObjectNumber;

/// The maximum number of progressions in a table. If there are as many random reads as sequential
/// ones, each progression must be remembered from its first miss to its second: this takes twice as
/// many as there are readers.
const PROGRESSIONS_MAX: usize = 64;
/// The maximum number of progressions that newcomers cannot displace until they have been idle for
/// long.
const ESTABLISHED_MAX: usize = 48;
/// The number of accesses to a table after which a progression without any can be displaced.
const IDLE_MAX: u64 = 4096;
/// The number of equal steps that triggers read-ahead.
const STEPS_MIN: u32 = 3;
/// The maximum number of ranges in a plan.
const RANGES_MAX: u32 = 8;

/// An access, in buckets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Access {
    /// The hash of the common part of the names in a row of objects.
    pub(crate) row: u64,
    pub(crate) object: ObjectNumber,
    pub(crate) first: u32,
    /// The bucket after the last one.
    pub(crate) end: u32,
    /// The end of the object, as far as known.
    pub(crate) object_end: u32,
}

/// The terms of read-ahead: when, and how far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    /// The first window of a progression, in buckets.
    pub(crate) window_min: u32,
    /// The longest window; 0 disables read-ahead.
    pub(crate) window_max: u32,
    /// The number of sequential accesses that triggers read-ahead.
    pub(crate) in_order_min: u32,
}

impl Terms {
    /// Terms that disable read-ahead.
    pub(crate) const NONE: Self = Self { window_min: 0, window_max: 0, in_order_min: u32::MAX };
}

/// The expected buckets: `len` of every `step`, from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pattern {
    first: u32,
    len: u32,
    step: u32,
}

impl Pattern {
    pub(crate) fn has(self, bucket: u32) -> bool {
        bucket >= self.first && (bucket - self.first) % self.step.max(1) < self.len
    }

    /// Returns the last bucket of the pattern before `end`.
    pub(crate) fn last_before(self, end: u32) -> Option<u32> {
        let from_first = end.checked_sub(1)?.checked_sub(self.first)?;
        let within = (from_first % self.step.max(1)).min(self.len.checked_sub(1)?);
        Some(self.first + from_first / self.step.max(1) * self.step + within)
    }
}

/// What to read ahead: `count` ranges of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    pub(crate) object: ObjectNumber,
    pub(crate) pattern: Pattern,
    count: u32,
    /// Whether the gaps between the ranges are read with them, in a single request; they are not
    /// kept.
    is_joined: bool,
    /// The bucket whose first read triggers the next plan.
    pub(crate) mark: u32,
}

impl Plan {
    /// Returns the ranges, cut at `end`.
    pub(crate) fn ranges(self, end: u32) -> impl Iterator<Item = Range<u32>> {
        let Pattern { first, len, step } = self.pattern;
        let (count, len) = match self.is_joined {
            true => (1, (self.count.max(1) - 1).saturating_mul(step).saturating_add(len)),
            false => (self.count, len),
        };
        let starts = (0..count).map(move |nth| first.saturating_add(nth.saturating_mul(step)));
        let ranges = starts.map(move |start| start..start.saturating_add(len).min(end));
        ranges.filter(|range| !range.is_empty())
    }
}

/// The result of looking up an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// The number of buckets that the access's progression has requested, including this access.
    pub(crate) buckets: u64,
    pub(crate) plan: Option<Plan>,
}

/// A progression.
#[derive(Clone, Copy, Debug)]
struct Progression {
    row: u64,
    object: ObjectNumber,
    /// The last access.
    first: u32,
    next: u32,
    object_end: u32,
    /// The number of sequential accesses.
    in_order: u32,
    /// The distance between accesses, if the progression goes by steps; and how often it has
    /// occurred.
    step: u32,
    steps: u32,
    buckets: u64,
    /// The last window, in buckets; 0 if there was none yet.
    window: u32,
    /// The start of the next window: in this object, and in the one after it.
    ahead: u32,
    ahead_in_next: u32,
    used_at: u64,
}

impl Progression {
    fn new(access: &Access, step: u32, now: u64) -> Self {
        Self {
            row: access.row,
            object: access.object,
            first: access.first,
            next: access.end,
            object_end: access.object_end,
            in_order: 1,
            step,
            steps: u32::from(step > 0),
            buckets: u64::from(access.end - access.first),
            window: 0,
            ahead: access.end,
            ahead_in_next: 0,
            used_at: now,
        }
    }

    fn goes_by_steps(&self) -> bool {
        self.steps >= STEPS_MIN
    }

    /// Returns whether an access continues where this progression has ended, or is within its
    /// read-ahead.
    fn is_followed_by(&self, access: &Access) -> bool {
        if self.row != access.row || self.goes_by_steps() {
            false
        } else if self.object == access.object {
            // The last bucket may be requested again: the access before may have ended within it.
            access.first + 1 >= self.next && access.first <= self.ahead
        } else {
            let is_at_end = self.next >= self.object_end || self.ahead_in_next > 0;
            is_at_end && self.object.precedes(access.object) && access.first <= self.ahead_in_next
        }
    }

    /// Returns whether an access is a number of steps ahead that is within the read-ahead.
    fn steps_to(&self, access: &Access) -> bool {
        let is_in_reach =
            access.first > self.first && access.first <= self.ahead.max(self.first.saturating_add(self.step));
        self.row == access.row
            && self.object == access.object
            && self.steps > 0
            && is_in_reach
            && (access.first - self.first).is_multiple_of(self.step)
    }

    /// Advances to an access that [follows](Self::is_followed_by).
    fn follow(&mut self, access: &Access, is_mark: bool) {
        if self.object != access.object {
            self.object = access.object;
            (self.next, self.ahead, self.ahead_in_next) = (0, self.ahead_in_next, 0);
        }
        if access.end > self.next {
            self.buckets += u64::from(access.end - self.next);
            self.next = access.end;
            self.in_order = self.in_order.saturating_add(u32::from(!is_mark));
        }
        (self.first, self.object_end, self.steps) = (access.first, access.object_end, 0);
        // The end of the object may not have been known before.
        self.ahead = self.ahead.min(self.object_end).max(self.next);
    }

    /// Advances by one or more steps.
    fn step_to(&mut self, access: &Access) {
        let steps = (access.first - self.first) / self.step;
        let len = self.next.saturating_sub(self.first).max(1);
        self.buckets += u64::from(steps) * u64::from(len);
        self.steps = self.steps.saturating_add(1);
        (self.first, self.next, self.object_end) =
            (access.first, access.end.max(access.first + len), access.object_end);
    }

    /// Returns the next window, if it is due.
    fn plan(&mut self, terms: Terms) -> Option<Plan> {
        let is_enough = self.in_order >= terms.in_order_min || self.goes_by_steps();
        let asked = self.next - self.first.min(self.next);
        let rest = self.ahead.saturating_sub(self.next);
        let has_more = match self.goes_by_steps() {
            true => rest.div_ceil(self.step) > self.ranges_max(asked) / 2,
            false => rest > self.window / 2,
        };
        let has_more = self.window > 0 && has_more;
        if terms.window_max == 0 || !is_enough || has_more || self.ahead_in_next > 0 {
            return None;
        }
        self.window = match self.window {
            0 => terms.window_min.max(asked.saturating_mul(2)),
            last => last.saturating_mul(2),
        };
        self.window = self.window.min(terms.window_max);
        if self.goes_by_steps() {
            return self.plan_steps(asked.max(1));
        }
        self.ahead = self.ahead.max(self.next);
        if self.ahead < self.object_end {
            let first = self.ahead;
            self.ahead = first.saturating_add(self.window).min(self.object_end);
            return Some(Plan::of_one(self.object, first, self.ahead));
        }
        let object = self.object.next()?;
        self.ahead_in_next = self.window;
        Some(Plan::of_one(object, 0, self.window))
    }

    /// Returns the number of ranges of `len` buckets that fit into a window.
    fn ranges_max(&self, len: u32) -> u32 {
        (self.window / len.max(1)).clamp(1, RANGES_MAX)
    }

    /// Returns the next ranges of `len` buckets, as many as fit into a window.
    fn plan_steps(&mut self, len: u32) -> Option<Plan> {
        // If steps are longer than a window, there is only a single range at a time.
        let ahead_of = self.ahead.saturating_sub(1).max(self.first) - self.first;
        let first = self.first + (ahead_of / self.step + 1) * self.step;
        let room = self.object_end.saturating_sub(first).div_ceil(self.step);
        let count = self.ranges_max(len).min(room);
        let last = first.saturating_add(count.saturating_sub(1).saturating_mul(self.step));
        if count == 0 || len >= self.step {
            return None;
        }
        self.ahead = last.saturating_add(len);
        // If the gaps between the ranges are small, they are read as well, which saves requests.
        let is_joined = len * 4 >= self.step * 3;
        let mark = first + count / 2 * self.step;
        let pattern = Pattern { first, len, step: self.step };
        Some(Plan { object: self.object, pattern, count, is_joined, mark })
    }
}

impl Plan {
    fn of_one(object: ObjectNumber, first: u32, end: u32) -> Self {
        let len = end - first;
        let pattern = Pattern { first, len, step: len };
        Self { object, pattern, count: 1, is_joined: false, mark: first + len / 2 }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Progressions {
    all: Vec<Progression>,
    /// The number of accesses so far.
    now: u64,
}

impl Progressions {
    /// Observes an access that the cache could not serve.
    pub(crate) fn observe(&mut self, access: &Access, terms: Terms) -> Found {
        self.now += 1;
        if let Some(it) = self.all.iter_mut().find(|it| it.is_followed_by(access)) {
            it.used_at = self.now;
            it.follow(access, false);
            return Found { buckets: it.buckets, plan: it.plan(terms) };
        }
        if let Some(it) = self.all.iter_mut().find(|it| it.steps_to(access)) {
            it.used_at = self.now;
            it.step_to(access);
            return Found { buckets: it.buckets, plan: it.plan(terms) };
        }
        // The access may be the second of a series of steps.
        let same = self.all.iter().filter(|it| it.row == access.row && it.object == access.object);
        let last =
            same.max_by_key(|it| it.used_at).filter(|last| last.window == 0 && last.first < access.first);
        let mut new = Progression::new(access, last.map_or(0, |last| access.first - last.first), self.now);
        let found = Found { buckets: new.buckets, plan: new.plan(terms) };
        self.insert(new);
        found
    }

    /// Observes the first read of a marked bucket.
    pub(crate) fn reach_mark(&mut self, access: &Access, terms: Terms) -> Found {
        self.now += 1;
        let reached = |it: &&mut Progression| {
            let is_here = it.row == access.row && it.window > 0;
            is_here && (it.is_followed_by(access) || it.steps_to(access))
        };
        let Some(it) = self.all.iter_mut().find(reached) else { return Found::default() };
        it.used_at = self.now;
        if it.goes_by_steps() {
            it.step_to(access);
        } else {
            it.follow(access, true);
        }
        Found { buckets: it.buckets, plan: it.plan(terms) }
    }

    fn insert(&mut self, new: Progression) {
        if self.all.len() < PROGRESSIONS_MAX {
            self.all.push(new);
            return;
        }
        let now = self.now;
        let is_established = |it: &Progression| it.window > 0 && now - it.used_at < IDLE_MAX;
        let is_crowded = self.all.iter().filter(|it| is_established(it)).count() > ESTABLISHED_MAX;
        let displaced = self.all.iter_mut().filter(|it| is_crowded || !is_established(it));
        if let Some(displaced) = displaced.min_by_key(|it| it.used_at) {
            *displaced = new;
        }
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::single_range_in_vec_init, reason = "a range of buckets is meant, not its numbers")]
mod tests {
    use super::*;

    const TERMS: Terms = Terms { window_min: 4, window_max: 64, in_order_min: 2 };
    const END: u32 = 1024;

    fn number(nth: u64) -> ObjectNumber {
        ObjectNumber::of(format!("disk.{nth:08}").as_bytes()).0
    }

    fn access(object: u64, first: u32, len: u32) -> Access {
        Access { row: 7, object: number(object), first, end: first + len, object_end: END }
    }

    fn observe(table: &mut Progressions, object: u64, first: u32, len: u32) -> Option<Plan> {
        table.observe(&access(object, first, len), TERMS).plan
    }

    fn ranges(plan: Option<Plan>) -> Vec<Range<u32>> {
        plan.map_or(Vec::new(), |plan| plan.ranges(END).collect())
    }

    #[test]
    fn the_second_access_in_order_opens_a_window_and_marks_double_it() {
        let mut table = Progressions::default();
        assert_eq!(observe(&mut table, 1, 10, 2), None);
        let plan = observe(&mut table, 1, 12, 2).unwrap();
        assert_eq!((ranges(Some(plan)), plan.mark), (vec![14..18], 16));
        let plan = table.reach_mark(&access(1, 16, 1), TERMS).plan.unwrap();
        assert_eq!((ranges(Some(plan)), plan.mark), (vec![18..26], 22));
        assert_eq!(table.reach_mark(&access(1, 17, 1), TERMS).plan, None, "more than half is ahead");
        let mut mark = 22;
        for len in [16, 32, 64, 64] {
            let plan = table.reach_mark(&access(1, mark, 1), TERMS).plan.unwrap();
            assert_eq!(plan.ranges(END).map(|range| range.len()).sum::<usize>(), len);
            mark = plan.mark;
        }
        assert_eq!(table.reach_mark(&access(2, mark, 1), TERMS), Found::default(), "no mark of that object");
    }

    #[test]
    fn what_was_lost_of_a_window_is_not_asked_for_again_and_again() {
        let mut table = Progressions::default();
        observe(&mut table, 1, 0, 4);
        assert_eq!(ranges(observe(&mut table, 1, 4, 4)), [8..16]);
        assert_eq!(observe(&mut table, 1, 8, 2), None, "it may be under way");
        assert_eq!(ranges(observe(&mut table, 1, 10, 2)), [16..32], "half of it is gone by");
        assert_eq!(ranges(observe(&mut table, 1, 32, 1)), [33..65], "all of it");
    }

    #[test]
    fn a_progression_crosses_to_the_next_object_and_ends_with_the_last() {
        let mut table = Progressions::default();
        observe(&mut table, 1, END - 6, 2);
        assert_eq!(ranges(observe(&mut table, 1, END - 4, 2)), [END - 2..END]);
        let plan = table.reach_mark(&access(1, END - 1, 1), TERMS).plan.unwrap();
        assert_eq!((plan.object, ranges(Some(plan))), (number(2), vec![0..8]));
        assert_eq!(table.reach_mark(&access(1, END - 1, 1), TERMS).plan, None, "not twice");
        let found = table.reach_mark(&access(2, 4, 1), TERMS);
        assert_eq!((found.buckets, ranges(found.plan)), (11, vec![8..24]));
        // With read-ahead off there is no plan either, however long the progression continues.
        let off = Terms { window_max: 0, ..TERMS };
        let mut table = Progressions::default();
        (0..4).for_each(|nth| assert_eq!(table.observe(&access(9, END - 8 + 2 * nth, 2), off).plan, None));
        assert_eq!(table.observe(&access(10, 0, 2), off), Found { buckets: 10, plan: None });
        assert_eq!(table.observe(&access(12, 0, 2), off).buckets, 2, "one object is left out");
        assert_eq!(table.observe(&access(11, 0, 2), off).buckets, 2, "10 was not read to its end");
        // The last object of a row, and one without a number.
        let last = ObjectNumber::of(b"x.ffffffffffffffff").0;
        for object in [last, ObjectNumber::default()] {
            let at = |first| Access { object, first, end: first + 1, ..access(0, 0, 1) };
            table.observe(&at(END - 2), TERMS);
            assert_eq!(table.observe(&at(END - 1), TERMS).plan, None);
        }
    }

    #[test]
    fn equal_steps_are_followed_one_by_one_or_as_one_where_little_lies_between() {
        let mut table = Progressions::default();
        for nth in 0..3 {
            assert_eq!(observe(&mut table, 1, nth * 16, 2), None, "three equal steps are needed");
        }
        assert_eq!(ranges(observe(&mut table, 1, 48, 2)), [64..66, 80..82]);
        let plan = table.reach_mark(&access(1, 80, 1), TERMS).plan.unwrap();
        assert_eq!((ranges(Some(plan)), plan.mark), ([96, 112, 128, 144].map(|at| at..at + 2).to_vec(), 128));
        let found = table.observe(&access(1, 96, 2), TERMS);
        assert_eq!((found.buckets, found.plan), (12, None), "it is under way");
        let mut mark = 128;
        while mark < 600 {
            mark =
                table.reach_mark(&access(1, mark, 1), TERMS).plan.expect("each mark leads to the next").mark;
        }
        assert_eq!(observe(&mut table, 1, mark + 1, 2), None, "no step");
        let mut dense = Progressions::default();
        (0..3).for_each(|nth| assert_eq!(observe(&mut dense, 1, nth * 4, 3), None));
        let plan = observe(&mut dense, 1, 12, 3).unwrap();
        assert_eq!(ranges(Some(plan)), [16..23], "two steps, and what lies between");
        assert_eq!(
            [15, 16, 18, 19, 20, 22].map(|at| plan.pattern.has(at)),
            [false, true, true, false, true, true]
        );
        assert_eq!(
            [16, 17, 19, 20, 21].map(|at| plan.pattern.last_before(at)),
            [None, Some(16), Some(18), Some(18), Some(20)]
        );
        let mut near_end = Progressions::default();
        (0..3).for_each(|nth| assert_eq!(observe(&mut near_end, 1, 700 + nth * 100, 1), None));
        assert_eq!(observe(&mut near_end, 1, 1000, 1), None, "the object ends");
    }

    #[test]
    fn a_hint_opens_a_window_at_once() {
        let mut table = Progressions::default();
        let found = table.observe(&access(1, 10, 3), Terms { in_order_min: 1, ..TERMS });
        assert_eq!(ranges(found.plan), [13..19]);
    }

    #[test]
    fn a_crowd_of_single_accesses_displaces_no_progression() {
        let mut table = Progressions::default();
        observe(&mut table, 1, 0, 1);
        observe(&mut table, 1, 1, 1);
        (0..1000).for_each(|nth| assert_eq!(observe(&mut table, 10 + 2 * nth, 500, 1), None));
        assert!(table.reach_mark(&access(1, 4, 1), TERMS).plan.is_some());
        assert_eq!(table.all.len(), PROGRESSIONS_MAX);
        (0..IDLE_MAX + 100).for_each(|nth| assert_eq!(observe(&mut table, 10 + 2 * nth, 500, 1), None));
        assert_eq!(table.reach_mark(&access(1, 8, 1), TERMS), Found::default(), "idle for too long");
        for nth in 0..2 * PROGRESSIONS_MAX as u64 {
            for at in 0..2 {
                observe(&mut table, 2 * nth, at, 1);
            }
        }
        observe(&mut table, 100_001, 0, 1);
        assert!(observe(&mut table, 100_001, 1, 1).is_some(), "newcomers find a place");
    }

    /// Whatever is observed, a plan is within its object, is no longer than a window, and marks one
    /// of its own buckets.
    #[test]
    fn every_plan_is_within_bounds() {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % below
        };
        let mut table = Progressions::default();
        let (mut last, mut plans, mut previous) = (access(0, 0, 1), 0, None);
        for _ in 0..200_000 {
            let object_end = [END, END, 17, 65_536][random(4) as usize];
            let (object, first) = match random(5) {
                0 => (random(4), random(u64::from(object_end.min(END))) as u32),
                1 => (random(4), 65_535 - random(100) as u32),
                2 => (random(4), last.first.saturating_add(random(3) as u32 * 8)),
                _ => (random(4), last.end),
            };
            let same = if random(10) > 0 { last.object } else { number(object) };
            let end = first.saturating_add(1 + random(6) as u32);
            let first = first.min(end - 1);
            last = Access { row: random(20) / 19, object: same, first, end, object_end };
            let terms = Terms {
                window_min: 1 + random(8) as u32,
                window_max: random(3) as u32 * 100,
                in_order_min: 1 + random(3) as u32,
            };
            let found = match previous {
                Some(Plan { mark, object, .. }) if random(2) == 0 => {
                    let at = Access { object, first: mark, end: mark.saturating_add(1), ..last };
                    if at.end > at.first { table.reach_mark(&at, terms) } else { continue }
                }
                _ => table.observe(&last, terms),
            };
            assert!(table.all.len() <= PROGRESSIONS_MAX);
            if let Some(plan) = found.plan {
                plans += 1;
                let pattern = plan.pattern;
                assert!(pattern.has(plan.mark) && pattern.has(pattern.first), "{plan:?}");
                assert!(pattern.first.checked_sub(1).is_none_or(|before| !pattern.has(before)), "{plan:?}");
                assert!(terms.window_max > 0 && plan.count >= 1 && plan.count <= RANGES_MAX, "{plan:?}");
                let ranges: Vec<_> = plan.ranges(u32::MAX).collect();
                let covered: u64 = ranges.iter().map(|range| u64::from(range.end - range.start)).sum();
                assert!(covered <= u64::from(terms.window_max) * 2 + 64, "{plan:?} {terms:?}");
                assert!(ranges.iter().any(|range| range.contains(&plan.mark)), "{plan:?}");
                previous = Some(plan);
            }
        }
        assert!(plans > 1000, "{plans}");
    }
}
