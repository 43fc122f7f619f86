//! The kinds of requests to the store, the minimum share of each, and their places, which are taken
//! without a lock while nothing has to wait.

use blocker::Priority;

use crate::sync::{AtomicU32, Ordering};

/// The lane of a request to the store. Each lane has its own limit of requests in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// Reads of missing data.
    Load,
    /// Requests of flushes.
    Flush,
    /// Changes that are forwarded as they arrive. Limited only by the width of the gate.
    Change,
}

impl Lane {
    pub(super) const ALL: [Self; LANES] = [Self::Load, Self::Flush, Self::Change];
}

pub(super) const LANES: usize = 3;

/// The urgency of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Class {
    /// A caller waits until data are stored, or the log needs room; or a caller marked the request
    /// as urgent.
    Urgent,
    /// A caller waits.
    Demand,
    /// A flush of data that have been dirty for long enough.
    Age,
    /// No caller waits: read-ahead, and requests that a caller gave a low priority.
    Idle,
}

impl Class {
    pub(super) const ALL: [Self; CLASSES] = [Self::Urgent, Self::Demand, Self::Age, Self::Idle];

    /// Returns the class of a caller's request.
    pub(crate) fn of(priority: Priority) -> Self {
        match priority {
            Priority::Urgent => Self::Urgent,
            Priority::Normal => Self::Demand,
            Priority::Low => Self::Idle,
        }
    }
}

pub(super) const CLASSES: usize = 4;

/// The minimum fraction of all service that each class gets, if it has enough requests.
const LEAST: [f64; CLASSES] = [0.0, 0.125, 0.05, 0.01];
/// The maximum that can be owed to a class, in units of cost.
const OWED_MAX: f64 = 32.0;
/// The amount that must be owed to a class before it overtakes more urgent ones.
const OWED_DUE: f64 = 1.0;

/// The service owed to each class because more urgent ones were served.
#[derive(Clone, Debug, Default)]
pub(super) struct Shares {
    owed: [f64; CLASSES],
}

impl Shares {
    /// Returns the class that overtakes the more urgent ones, if any.
    pub(super) fn due(&self, is_waiting: [bool; CLASSES]) -> Option<Class> {
        let due = Class::ALL.into_iter().filter(|class| is_waiting[*class as usize] && self.is_due(*class));
        due.max_by(|one, other| self.owed[*one as usize].total_cmp(&self.owed[*other as usize]))
    }

    fn is_due(&self, class: Class) -> bool {
        self.owed[class as usize] >= OWED_DUE
    }

    /// Returns the class that is served next.
    pub(super) fn next(&self, is_waiting: [bool; CLASSES]) -> Option<Class> {
        let first = || Class::ALL.into_iter().find(|class| is_waiting[*class as usize]);
        self.due(is_waiting).or_else(first)
    }

    /// Records that a class was served while those of `is_waiting` waited.
    pub(super) fn charge(&mut self, class: Class, units: f64, is_waiting: [bool; CLASSES]) {
        let owed = &mut self.owed[class as usize];
        *owed = match *owed >= OWED_DUE {
            true => *owed - units,
            false => (*owed - units).max(owed.min(0.0)),
        };
        for each in Class::ALL.into_iter().filter(|each| is_waiting[*each as usize]) {
            let owed = &mut self.owed[each as usize];
            *owed = (*owed + units * LEAST[each as usize]).min(OWED_MAX);
        }
    }
}

// The places of the lanes, taken without a lock while nothing has to wait.

/// The number of requests in flight in each lane, and its maximum.
pub(super) struct Lanes {
    taken: [AtomicU32; LANES],
    max: [AtomicU32; LANES],
}

impl Lanes {
    pub(super) fn new(loads_max: u32, flushes_max: u32) -> Self {
        Self {
            taken: std::array::from_fn(|_| AtomicU32::new(0)),
            max: [loads_max, flushes_max, u32::MAX].map(AtomicU32::new),
        }
    }

    pub(super) fn set_max(&self, loads_max: u32, flushes_max: u32) {
        self.max[Lane::Load as usize].store(loads_max, Ordering::SeqCst);
        self.max[Lane::Flush as usize].store(flushes_max, Ordering::SeqCst);
    }

    fn taken(&self, lane: Lane) -> u32 {
        self.taken[lane as usize].load(Ordering::SeqCst)
    }

    pub(super) fn under_way(&self) -> u32 {
        Lane::ALL.into_iter().map(|lane| self.taken(lane)).sum()
    }

    pub(super) fn has_room(&self, lane: Lane) -> bool {
        self.taken(lane) < self.max[lane as usize].load(Ordering::SeqCst)
    }

    /// Returns whether another request would exceed three quarters of the lane's maximum.
    pub(super) fn is_crowded(&self, lane: Lane) -> bool {
        let max = self.max[lane as usize].load(Ordering::SeqCst);
        (u64::from(self.taken(lane)) + 1) * 4 > u64::from(max) * 3
    }

    pub(super) fn try_take(&self, lane: Lane) -> bool {
        let max = self.max[lane as usize].load(Ordering::SeqCst);
        let up = |taken: u32| (taken < max).then(|| taken + 1);
        self.taken[lane as usize].fetch_update(Ordering::SeqCst, Ordering::SeqCst, up).is_ok()
    }

    pub(super) fn give_back(&self, lane: Lane) {
        self.taken[lane as usize].fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn each_class_gets_its_least_share_and_the_most_urgent_the_rest() {
        let mut shares = Shares::default();
        let mut served = [0.0; CLASSES];
        for turn in 0..20_000 {
            let class = shares.next([true; CLASSES]).expect("all wait");
            let units = 1.0 + f64::from(turn % 3) * 8.0;
            shares.charge(class, units, [true; CLASSES]);
            served[class as usize] += units;
        }
        let total: f64 = served.iter().sum();
        for class in Class::ALL {
            let least = LEAST[class as usize];
            assert!(served[class as usize] >= total * least * 0.99, "{class:?}: {served:?}");
        }
        assert!(served[0] >= total * (1.0 - LEAST.iter().sum::<f64>()) * 0.99, "{served:?}");
    }

    #[test]
    fn a_class_that_was_not_waiting_is_owed_nothing() {
        let mut shares = Shares::default();
        let only_demand = [false, true, false, false];
        (0..1000).for_each(|_| shares.charge(Class::Demand, 1.0, only_demand));
        assert_eq!(shares.next([true, true, true, true]), Some(Class::Urgent));
        assert_eq!(shares.due([false, false, true, true]), None);
    }
}
