//! The values that concurrent readers may read: a history of intervals, with one register per
//! sector.
//!
//! Each change is recorded with the times of its request and its reply, and gives each of its
//! sectors a unique value (except zeros). A read may return a change unless another change,
//! acknowledged before the read was requested, started after the first was acknowledged. A change
//! that was cancelled, or whose outcome is unknown, may be made at any time, and is not certain to
//! overwrite anything. Moreover, of two consecutive reads, the second never returns older data, and
//! no bucket is a mix of two changes.

use std::ops::Range;

/// The size of a sector, the unit of a register, in bytes.
pub const SECTOR: usize = 512;
const SECTORS_PER_BUCKET: usize = 8;
/// The time of an answer that is missing.
const NEVER: u64 = u64::MAX;

/// A point in time of the test, unique for each event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(pub u64);

#[derive(Clone, Debug)]
struct Change {
    /// The number that fills the sectors; 0 for zeros.
    value: u64,
    sectors: Range<usize>,
    asked: u64,
    /// The time of the answer; [`NEVER`] if there is none yet, or if it is unknown.
    answered: u64,
    /// Whether the change has failed without effect.
    is_void: bool,
    /// Whether the change was acknowledged as *stored*.
    is_stored: bool,
    /// The number of the change's order domain.
    domain: u64,
    what: &'static str,
}

/// A value read from a sector, and the time of the read.
struct Seen {
    value: u64,
    answered: u64,
    asked: u64,
}

/// The history of one object of fixed size.
pub struct History {
    changes: Vec<Change>,
    seen: Vec<Vec<Seen>>,
}

/// Returns the bytes of a sector with this value.
pub fn sector(value: u64) -> Vec<u8> {
    value.to_le_bytes().repeat(SECTOR / 8)
}

/// Returns the value of a sector's bytes.
fn value_of(bytes: &[u8]) -> Result<u64, String> {
    let value = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    match bytes.chunks(8).all(|word| *word == value.to_le_bytes()) {
        true => Ok(value),
        false => Err("a sector holds a mix of two values".into()),
    }
}

impl History {
    /// Creates the history of an object with this many sectors, all zeros at first.
    pub fn new(sectors: usize) -> Self {
        let seen = (0..sectors).map(|_| Vec::new()).collect();
        let mut history = Self { changes: Vec::new(), seen };
        let first = history.asked(Moment(0), 0, 0..sectors, 0, "first");
        history.answered(first, Moment(0));
        history
    }

    /// Records the request of a change. `value` is new to this object, or 0. Returns the change's
    /// number.
    pub fn asked(
        &mut self,
        at: Moment,
        value: u64,
        sectors: Range<usize>,
        domain: u64,
        what: &'static str,
    ) -> usize {
        let change = Change {
            value,
            sectors,
            asked: at.0,
            answered: NEVER,
            is_void: false,
            is_stored: false,
            domain,
            what,
        };
        self.changes.push(change);
        self.changes.len() - 1
    }

    /// Records that a change was made and answered.
    pub fn answered(&mut self, change: usize, at: Moment) {
        self.changes[change].answered = at.0;
    }

    /// Records that a change was answered as *stored*.
    pub fn stored_at_once(&mut self, change: usize) {
        self.changes[change].is_stored = true;
    }

    /// Completes a change that is a copy of `source`, whose history is complete. Each sector has
    /// one of the values that could be read in the source during the copy.
    pub fn copied(&mut self, change: usize, source: &History) {
        let copy = self.changes[change].clone();
        if copy.is_void {
            return;
        }
        // The copy itself only represents the overwriting; its own value is never read.
        for sector in copy.sectors.clone() {
            let one = |value| Change { value, sectors: sector..sector + 1, ..copy.clone() };
            for from in source.allowed(sector, copy.answered, |each| each.answered < copy.asked) {
                self.changes.push(one(from.value));
            }
        }
    }

    /// Returns a description of a change.
    pub fn describe(&self, change: usize) -> String {
        let Change { value, sectors, asked, what, .. } = &self.changes[change];
        format!("{what} of {value} to {sectors:?}, asked at {asked}")
    }

    /// Records that a change has failed and changed nothing.
    pub fn failed(&mut self, change: usize) {
        self.changes[change].is_void = true;
    }

    /// Returns the changes that a read that ends at `until` may see in a sector, if all changes for
    /// which `settled` returns true have certainly been made.
    fn allowed(&self, sector: usize, until: u64, settled: impl Fn(&Change) -> bool) -> Vec<&Change> {
        let here = |change: &&Change| !change.is_void && change.sectors.contains(&sector);
        let begun: Vec<&Change> =
            self.changes.iter().filter(here).filter(|change| change.asked < until).collect();
        let newest = begun.iter().filter(|change| settled(change)).map(|change| change.asked).max();
        begun.into_iter().filter(|change| newest.is_none_or(|newest| change.answered >= newest)).collect()
    }

    /// Checks and records a read of these bytes, starting at sector `first`.
    ///
    /// # Errors
    /// Returns a description of the first sector with an impossible value.
    pub fn read(
        &mut self,
        asked: Moment,
        answered: Moment,
        first: usize,
        bytes: &[u8],
    ) -> Result<(), String> {
        let values = values_of(bytes, first)?;
        for (sector, value) in (first..).zip(&values) {
            let allowed = self.allowed(sector, answered.0, |change| change.answered < asked.0);
            self.check(sector, *value, &allowed)?;
            self.check_monotonic(sector, *value, asked.0)?;
        }
        self.check_untorn(first, &values)?;
        for (sector, value) in (first..).zip(values) {
            self.seen[sector].push(Seen { value, asked: asked.0, answered: answered.0 });
        }
        Ok(())
    }

    /// Checks the content of the store after the loss of the cache. For each domain, the changes
    /// answered before `flushed(domain)` must be stored.
    ///
    /// # Errors
    /// Returns a description of the first sector with an impossible value.
    pub fn stored(&self, flushed: impl Fn(u64) -> Moment, bytes: &[u8]) -> Result<(), String> {
        let values = values_of(bytes, 0)?;
        for (sector, value) in values.iter().enumerate() {
            let is_stored = |change: &Change| change.is_stored || change.answered < flushed(change.domain).0;
            let allowed = self.allowed(sector, NEVER, is_stored);
            self.check(sector, *value, &allowed)?;
        }
        Ok(())
    }

    fn check(&self, sector: usize, value: u64, allowed: &[&Change]) -> Result<(), String> {
        if allowed.iter().any(|change| change.value == value) {
            return Ok(());
        }
        let from = self.changes.iter().find(|c| c.value == value && c.sectors.contains(&sector));
        let wanted: Vec<_> = allowed.iter().map(|c| (c.what, c.value, c.asked, c.answered)).collect();
        Err(format!("sector {sector} holds {value} of {from:?}, allowed are {wanted:?}"))
    }

    /// Returns the only change that gave a sector its value.
    fn change_of(&self, sector: usize, value: u64) -> Option<&Change> {
        let writes = |change: &&Change| change.value == value && change.sectors.contains(&sector);
        let mut found = self.changes.iter().filter(writes);
        let first = found.next().filter(|_| value != 0)?;
        // Several copies have the value, so the change is unknown.
        found.next().is_none().then_some(first)
    }

    fn check_monotonic(&self, sector: usize, value: u64, asked: u64) -> Result<(), String> {
        let Some(now) = self.change_of(sector, value) else { return Ok(()) };
        for seen in self.seen[sector].iter().filter(|seen| seen.answered < asked) {
            if let Some(before) = self.change_of(sector, seen.value)
                && now.answered < before.asked
            {
                let at = (seen.asked, seen.answered);
                return Err(format!("sector {sector}: {now:?} is found after {before:?}, seen at {at:?}"));
            }
        }
        Ok(())
    }

    fn check_untorn(&self, first: usize, values: &[u64]) -> Result<(), String> {
        for (a, b) in (first..).zip(values).zip((first..).zip(values).skip(1)) {
            let ((sector_a, value_a), (sector_b, value_b)) = (a, b);
            if sector_a / SECTORS_PER_BUCKET != sector_b / SECTORS_PER_BUCKET || value_a == value_b {
                continue;
            }
            let both = |value| {
                let change = self.change_of(sector_a, value).or_else(|| self.change_of(sector_b, value))?;
                let covers = change.sectors.contains(&sector_a) && change.sectors.contains(&sector_b);
                covers.then_some(change)
            };
            if let (Some(a), Some(b)) = (both(*value_a), both(*value_b)) {
                return Err(format!("sectors {sector_a} and {sector_b} are a mix of {a:?} and {b:?}"));
            }
        }
        Ok(())
    }
}

fn values_of(bytes: &[u8], first: usize) -> Result<Vec<u64>, String> {
    let each = bytes.chunks(SECTOR).enumerate();
    each.map(|(at, bytes)| value_of(bytes).map_err(|why| format!("sector {}: {why}", first + at))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[u64]) -> Vec<u8> {
        values.iter().flat_map(|value| sector(*value)).collect()
    }

    #[test]
    fn a_history_knows_what_may_be_read() {
        let mut history = History::new(2);
        let first = history.asked(Moment(1), 7, 0..2, 0, "write");
        history.answered(first, Moment(2));
        let second = history.asked(Moment(3), 8, 0..1, 0, "write");
        // The second change is in progress, so the value is the old or the new one.
        history.read(Moment(4), Moment(5), 0, &bytes(&[7, 7])).unwrap();
        history.read(Moment(6), Moment(7), 0, &bytes(&[8, 7])).unwrap();
        assert!(history.read(Moment(8), Moment(9), 0, &bytes(&[0, 7])).is_err(), "overwritten zeros");
        assert!(history.read(Moment(8), Moment(9), 1, &bytes(&[8])).is_err(), "never written there");
        history.answered(second, Moment(10));
        assert!(history.read(Moment(11), Moment(12), 0, &bytes(&[7, 7])).is_err(), "overwritten");
        // Without a flush, any value may be stored; after a flush, only the newest one.
        history.stored(|_| Moment(0), &bytes(&[0, 7])).unwrap();
        assert!(history.stored(|_| Moment(3), &bytes(&[0, 7])).is_err());
        history.stored(|_| Moment(3), &bytes(&[8, 7])).unwrap();
        assert!(history.stored(|_| Moment(11), &bytes(&[7, 7])).is_err());
    }

    #[test]
    fn a_history_notices_time_going_back_and_torn_buckets() {
        let mut history = History::new(2);
        let first = history.asked(Moment(1), 7, 0..2, 0, "write");
        history.answered(first, Moment(2));
        history.asked(Moment(3), 8, 0..2, 0, "write");
        assert!(history.read(Moment(4), Moment(5), 0, &bytes(&[7, 8])).is_err(), "torn");
        history.read(Moment(4), Moment(5), 0, &bytes(&[8, 8])).unwrap();
        assert!(history.read(Moment(6), Moment(7), 0, &bytes(&[7, 7])).is_err(), "back in time");
    }
}
