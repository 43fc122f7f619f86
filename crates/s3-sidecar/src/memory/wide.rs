//! Changes of a bucket, of a prefix, or of everything. Look-ups and changes are numbered in their
//! common order.
//!
//! Recording a change takes constant time, however many objects are remembered. Instead, each read
//! compares the number of its entry with the newest wide change, and only older entries are
//! compared with the changes of their bucket.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The end of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The endpoint has responded, and has completed the change.
    Settled,
    /// Unknown: the change may still be executed.
    Unsettled,
}

/// The scope of a wide change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    /// The objects of a bucket.
    Bucket(String),
    /// All objects.
    All,
}

/// The effect of wide changes on an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// No effect: the entry is valid.
    Current,
    /// The entry may be valid or not: a change is in progress, or unsettled.
    Uncertain,
    /// The question was asked before the end of a change.
    Void,
}

/// The maximum number of buckets that are distinguished.
const BUCKETS_MAX: usize = 4096;

/// The maximum number of prefixes of a bucket that are distinguished.
const PREFIXES_MAX: usize = 64;

/// The maximum number of individually unsettled changes.
const UNSETTLED_MAX: usize = 1024;

/// The wide changes.
#[derive(Debug)]
pub(crate) struct Wide {
    /// The number of the newest change, or the maximum value while a change is in progress or
    /// unsettled.
    newest: AtomicU64,
    table: Mutex<Table>,
    settle_time: Duration,
}

#[derive(Debug, Default)]
struct Table {
    /// The counter that numbers look-ups and changes in their order.
    sequence: Arc<AtomicU64>,
    all: Region,
    buckets: HashMap<String, Bucket>,
    newest: u64,
    under_way: usize,
    /// Changes with an unknown end, each with the time when the change counts as ended, ordered by
    /// time.
    unsettled: VecDeque<(Instant, Area)>,
}

#[derive(Debug, Default)]
struct Bucket {
    whole: Region,
    /// The changed prefixes, in the order of their numbers.
    prefixes: Vec<(u64, Vec<u8>)>,
}

#[derive(Debug, Default)]
struct Region {
    /// The number of changes in progress or unsettled.
    open: u32,
    /// The number of the end of the last change.
    changed: u64,
}

impl Wide {
    /// Returns a table without changes. A change with an unknown end counts as ended after
    /// `settle_time`.
    pub(crate) fn new(sequence: Arc<AtomicU64>, settle_time: Duration) -> Self {
        let table = Mutex::new(Table { sequence, ..Table::default() });
        Self { newest: AtomicU64::new(0), table, settle_time }
    }

    /// Begins a change.
    pub(crate) fn begin(&self, area: &Area) {
        let mut table = self.table.lock();
        table.under_way += 1;
        table.region(area).open += 1;
        self.publish(&table);
    }

    /// Ends a change that has begun.
    pub(crate) fn end(&self, area: &Area, end: End) {
        let mut table = self.table.lock();
        table.under_way = table.under_way.saturating_sub(1);
        if end == End::Unsettled {
            table.unsettled.push_back((Instant::now() + self.settle_time, area.clone()));
            if table.unsettled.len() > UNSETTLED_MAX {
                table.settle_first();
                table.all.open += 1;
                table.unsettled.push_back((Instant::now() + self.settle_time, Area::All));
                table.settle_first();
            }
        } else {
            table.close(area);
        }
        self.publish(&table);
    }

    /// Ends a change that has changed nothing.
    pub(crate) fn end_without_change(&self, area: &Area) {
        let mut table = self.table.lock();
        table.under_way = table.under_way.saturating_sub(1);
        let region = table.region(area);
        region.open = region.open.saturating_sub(1);
        self.publish(&table);
    }

    /// Records a completed change of everything, or of the keys of a bucket with a prefix.
    pub(crate) fn changed(&self, bucket: Option<&str>, prefix: &[u8]) {
        let mut table = self.table.lock();
        let place = table.place();
        match bucket {
            None => table.all.changed = place,
            Some(bucket) if prefix.is_empty() => table.bucket(bucket).whole.changed = place,
            Some(bucket) => table.bucket(bucket).add_prefix(place, prefix),
        }
        self.publish(&table);
    }

    /// Returns the effect of wide changes on the response to a question with this number about an
    /// object.
    pub(crate) fn standing(&self, asked: u64, bucket: &str, key: &[u8]) -> Standing {
        if asked >= self.newest.load(Ordering::SeqCst) {
            return Standing::Current;
        }
        let mut table = self.table.lock();
        let now = Instant::now();
        while table.unsettled.front().is_some_and(|(until, _)| *until <= now) {
            table.settle_first();
        }
        self.publish(&table);
        let is_void = |(place, prefix): &(u64, Vec<u8>)| *place > asked && key.starts_with(prefix);
        let of_all = table.all.standing(asked);
        let of_bucket = table.buckets.get(bucket).map(|bucket| match bucket.prefixes.iter().any(is_void) {
            true => Standing::Void,
            false => bucket.whole.standing(asked),
        });
        of_bucket.map_or(of_all, |of_bucket| of_bucket.max(of_all))
    }

    fn publish(&self, table: &Table) {
        let is_open = table.under_way > 0 || !table.unsettled.is_empty();
        self.newest.store(if is_open { u64::MAX } else { table.newest }, Ordering::SeqCst);
    }
}

impl Table {
    fn place(&mut self) -> u64 {
        self.newest = self.sequence.fetch_add(1, Ordering::SeqCst) + 1;
        self.newest
    }

    fn bucket(&mut self, name: &str) -> &mut Bucket {
        self.make_space(name);
        self.buckets.entry(name.to_owned()).or_default()
    }

    fn region(&mut self, area: &Area) -> &mut Region {
        match area {
            Area::Bucket(name) => &mut self.bucket(name).whole,
            Area::All => &mut self.all,
        }
    }

    fn close(&mut self, area: &Area) {
        let place = self.place();
        let region = self.region(area);
        region.open = region.open.saturating_sub(1);
        region.changed = place;
    }

    /// Ends the unsettled change that began first.
    fn settle_first(&mut self) {
        if let Some((_, area)) = self.unsettled.pop_front() {
            self.close(&area);
        }
    }

    /// Makes space for a bucket, by merging buckets without a change in progress into the entry for
    /// everything.
    fn make_space(&mut self, name: &str) {
        if self.buckets.len() < BUCKETS_MAX || self.buckets.contains_key(name) {
            return;
        }
        let all = &mut self.all;
        self.buckets.retain(|_, bucket| {
            let is_open = bucket.whole.open > 0;
            if !is_open {
                let newest = bucket.prefixes.last().map_or(0, |(place, _)| *place);
                all.changed = all.changed.max(bucket.whole.changed).max(newest);
            }
            is_open
        });
    }
}

impl Bucket {
    fn add_prefix(&mut self, place: u64, prefix: &[u8]) {
        self.prefixes.retain(|(_, other)| !other.starts_with(prefix));
        self.prefixes.push((place, prefix.to_vec()));
        if self.prefixes.len() > PREFIXES_MAX {
            // The oldest prefix is extended to the whole bucket.
            let (place, _) = self.prefixes.remove(0);
            self.whole.changed = self.whole.changed.max(place);
        }
    }
}

impl Region {
    fn standing(&self, asked: u64) -> Standing {
        match () {
            () if asked < self.changed => Standing::Void,
            () if self.open > 0 => Standing::Uncertain,
            () => Standing::Current,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        wide: Wide,
        sequence: Arc<AtomicU64>,
    }

    impl Rig {
        fn new(settle_time: Duration) -> Rig {
            let sequence = Arc::new(AtomicU64::new(1));
            Rig { wide: Wide::new(Arc::clone(&sequence), settle_time), sequence }
        }

        fn ask(&self) -> u64 {
            self.sequence.fetch_add(1, Ordering::SeqCst) + 1
        }

        fn holds(&self, asked: u64, bucket: &str, key: &str) -> bool {
            self.wide.standing(asked, bucket, key.as_bytes()) == Standing::Current
        }

        fn changed(&self, bucket: &str, prefix: &str) {
            self.wide.changed(Some(bucket), prefix.as_bytes());
        }
    }

    fn bucket(name: &str) -> Area {
        Area::Bucket(name.into())
    }

    #[test]
    fn a_change_voids_what_was_asked_before_its_end_in_its_area() {
        let rig = Rig::new(Duration::from_secs(3600));
        let before = rig.ask();
        rig.wide.begin(&bucket("a"));
        let within = rig.ask();
        assert!(!rig.holds(before, "a", "k") && !rig.holds(within, "a", "k") && rig.holds(before, "b", "k"));
        assert_eq!(rig.wide.standing(before, "a", b"k"), Standing::Uncertain);
        rig.wide.end(&bucket("a"), End::Settled);
        assert!(!rig.holds(before, "a", "k") && !rig.holds(within, "a", "k"));
        assert_eq!(rig.wide.standing(within, "a", b"k"), Standing::Void);
        assert!(rig.holds(rig.ask(), "a", "k") && rig.holds(before, "b", "k"));
        rig.wide.begin(&Area::All);
        assert!(!rig.holds(rig.ask(), "a", "k"));
        rig.wide.end_without_change(&Area::All);
        assert!(rig.holds(rig.ask(), "a", "k") && rig.holds(before, "b", "k"));
        rig.wide.changed(None, b"");
        assert!(!rig.holds(before, "b", "k") && rig.holds(rig.ask(), "b", "k"));
    }

    #[test]
    fn a_prefix_is_void_alone_and_the_oldest_of_too_many_counts_for_the_bucket() {
        let rig = Rig::new(Duration::from_secs(3600));
        let before = rig.ask();
        rig.changed("a", "x/");
        assert!(
            !rig.holds(before, "a", "x/1") && rig.holds(before, "a", "y/1") && rig.holds(before, "b", "x/1")
        );
        let later = rig.ask();
        assert!(rig.holds(later, "a", "x/1"));
        (0..PREFIXES_MAX).for_each(|number| rig.changed("a", &format!("p{number}/")));
        assert!(
            !rig.holds(before, "a", "y/1") && rig.holds(later, "a", "y/1") && !rig.holds(later, "a", "p0/")
        );
        // A wider prefix replaces narrower ones.
        rig.changed("a", "p");
        assert_eq!(rig.wide.table.lock().buckets["a"].prefixes.len(), 1);
        assert!(!rig.holds(later, "a", "p9/"));
    }

    #[test]
    fn an_unsettled_change_voids_its_area_until_its_time_is_over() {
        let rig = Rig::new(Duration::ZERO);
        rig.wide.begin(&bucket("a"));
        rig.wide.end(&bucket("a"), End::Unsettled);
        let asked = rig.ask();
        // The change expires immediately; answers to requests sent before the expiry was noticed
        // are void.
        assert!(!rig.holds(asked, "a", "k") && rig.holds(rig.ask(), "a", "k"));
        let rig = Rig::new(Duration::from_secs(3600));
        for number in 0..=UNSETTLED_MAX {
            assert!(rig.holds(rig.ask(), "other", "k"), "{number}");
            let area = bucket(&number.to_string());
            rig.wide.begin(&area);
            rig.wide.end(&area, End::Unsettled);
            assert!(!rig.holds(rig.ask(), &number.to_string(), "k"));
        }
        // Too many: everything is unsettled.
        assert!(!rig.holds(rig.ask(), "other", "k"));
        assert_eq!(rig.wide.table.lock().unsettled.len(), UNSETTLED_MAX);
    }

    #[test]
    fn buckets_beyond_the_limit_count_for_everything() {
        let rig = Rig::new(Duration::from_secs(3600));
        rig.wide.begin(&bucket("open"));
        let before = rig.ask();
        rig.changed("0", "");
        let after = rig.ask();
        (1..BUCKETS_MAX).for_each(|number| rig.changed(&number.to_string(), ""));
        assert!(!rig.holds(before, "other", "k") && !rig.holds(after, "other", "k"));
        assert!(!rig.holds(rig.ask(), "open", "k") && rig.holds(rig.ask(), "other", "k"));
        assert!(rig.wide.table.lock().buckets.len() <= BUCKETS_MAX);
    }
}
