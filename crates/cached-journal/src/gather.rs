//! How long the commit thread waits for the writers that the last commit has woken.
//!
//! Writers that wait for each record before they append the next come back just after a commit. A commit that
//! begins at once takes the first few of them, and the others wait for two syncs: the writers fall into a small
//! and a large group that take turns. Waiting a little for those who were woken brings them into one batch. Writers
//! that do not come back gain nothing by it, so after a wait in vain some commits go without.

use std::time::Duration;

/// A wait is at most this part of the time that a commit takes.
const PART: u32 = 4;
/// A wait is at most this long, however slow the disk.
const WAIT_MAX: Duration = Duration::from_millis(2);
/// The most commits that go without a wait after waits in vain.
const SKIPS_MAX: u32 = 64;

/// What the last commits have shown.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    /// The records of the last commit.
    woken: u32,
    /// The records that waited for the next commit when the last one was done.
    waiting: u32,
    /// The time that a commit takes: a moving average.
    commit_time: Duration,
    /// The commits that go without a wait before the next.
    skips: u32,
    /// The skips after the next wait in vain.
    next_skips: u32,
}

/// What to wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// The number of records in the batch that ends the wait.
    pub(crate) records: u32,
    /// The number of them that do not come from writers just woken.
    waiting: u32,
    /// How long to wait at most.
    pub(crate) time: Duration,
}

impl Gather {
    /// Notes a commit that took the time `took`: the writers of its `woken` records are woken now, while `waiting`
    /// others wait for the next.
    pub(crate) fn committed(&mut self, woken: u32, waiting: u32, took: Duration) {
        (self.woken, self.waiting) = (woken, waiting);
        self.commit_time = if self.commit_time.is_zero() { took } else { (self.commit_time * 7 + took) / 8 };
    }

    /// Returns what the next commit waits for, if it should wait: `present` records are there.
    pub(crate) fn wanted(&mut self, present: u32) -> Option<Wanted> {
        let (woken, waiting) = (std::mem::take(&mut self.woken), self.waiting);
        let records = woken.saturating_add(waiting);
        // A writer alone: its next record ends an idle thread's sleep.
        if woken == 0 || records <= 1 {
            return None;
        }
        if present >= records {
            self.next_skips = 0;
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        let time = (self.commit_time / PART).min(WAIT_MAX);
        Some(Wanted { records, waiting, time })
    }

    /// Notes how a wait ended: with `records` records in the batch.
    pub(crate) fn waited(&mut self, wanted: Wanted, records: u32) {
        let came = records.saturating_sub(wanted.waiting);
        let woken = wanted.records - wanted.waiting;
        // Half of those woken make up for the wait.
        if came >= woken.div_ceil(2) {
            self.next_skips = 0;
        } else {
            self.next_skips = (2 * self.next_skips + 1).min(SKIPS_MAX);
            self.skips = self.next_skips;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: Duration = Duration::from_millis(1);

    #[test]
    fn two_groups_that_take_turns_become_one() {
        let mut gather = Gather::default();
        gather.committed(3, 13, COMMIT);
        let wanted = gather.wanted(14).expect("a wait");
        assert_eq!((wanted.records, wanted.time), (16, COMMIT / 4));
        gather.waited(wanted, 16);
        gather.committed(16, 0, COMMIT);
        assert_eq!(gather.wanted(0).map(|wanted| wanted.records), Some(16));
        gather.committed(16, 0, COMMIT);
        assert_eq!(gather.wanted(16), None, "all of them are there");
    }

    #[test]
    fn a_writer_alone_and_an_idle_journal_wait_for_nothing() {
        let mut gather = Gather::default();
        assert_eq!(gather.wanted(1), None);
        gather.committed(1, 0, COMMIT);
        assert_eq!(gather.wanted(0), None);
        gather.committed(0, 5, COMMIT);
        assert_eq!(gather.wanted(5), None);
    }

    #[test]
    fn writers_that_do_not_come_back_are_waited_for_less_and_less() {
        let mut gather = Gather::default();
        let mut waits = 0;
        for _ in 0..1000 {
            gather.committed(10, 10, COMMIT);
            if let Some(wanted) = gather.wanted(11) {
                waits += 1;
                gather.waited(wanted, 14);
            }
        }
        // 1, 3, 7, 15, 31, 63 and then 64 commits go without.
        assert_eq!(waits, 6 + (1000 - 126) / 65 + 1);
        while gather.skips > 0 {
            gather.committed(10, 10, COMMIT);
            assert_eq!(gather.wanted(10), None);
        }
        gather.committed(10, 10, COMMIT);
        let wanted = gather.wanted(10).expect("a wait");
        gather.waited(wanted, 15);
        gather.committed(15, 5, COMMIT);
        assert!(gather.wanted(5).is_some(), "half of them came");
    }

    #[test]
    fn a_slow_disk_does_not_make_the_wait_long() {
        let mut gather = Gather::default();
        gather.committed(2, 0, Duration::from_secs(1));
        assert_eq!(gather.wanted(1).map(|wanted| wanted.time), Some(WAIT_MAX));
    }
}
