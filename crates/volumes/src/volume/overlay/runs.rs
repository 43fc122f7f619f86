//! What one object's overlay has: runs of bytes that lie in the log, and of zeros.

use std::collections::BTreeMap;

use crate::format::{Place, SECTOR_BYTES};

/// A part of what was written by one record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) length: u64,
    /// The place of the record. Of two that meet, the later one counts, also after a crash.
    record: Place,
    /// How many bytes of the record are before these; `None` for zeros.
    skipped: Option<u64>,
    /// Rises with every run that is inserted.
    pub(super) serial: u64,
}

/// Where the bytes of a part are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::volume) enum Source {
    /// In the object below.
    Base,
    /// In the log, from this place on.
    Log(Place),
    Zeroes,
}

impl Run {
    pub(super) fn source(&self) -> Source {
        match self.skipped {
            None => Source::Zeroes,
            Some(skipped) => {
                // A record lies within a part of at most 4 MiB.
                let offset = self.record.offset + SECTOR_BYTES as u32 + skipped as u32;
                Source::Log(Place { offset, ..self.record })
            }
        }
    }
}

/// The runs of one object, by where they begin. They do not overlap.
#[derive(Clone, Default, Debug)]
pub(super) struct Runs(BTreeMap<u64, Run>);

impl Runs {
    /// Adds what a record has, under what records behind it have.
    pub(super) fn insert(&mut self, begin: u64, length: u64, record: Place, is_data: bool, serial: u64) {
        let end = begin + length;
        let before = self.0.range(..begin).next_back();
        let first = before.filter(|(at, run)| *at + run.length > begin).map_or(begin, |(at, _)| *at);
        let met: Vec<(u64, Run)> = self.0.range(first..end).map(|(at, run)| (*at, *run)).collect();
        let mut free = begin;
        for (at, run) in met {
            let run_end = at + run.length;
            if run.record > record {
                self.put(begin, free..at.max(free), record, is_data, serial);
                free = free.max(run_end);
                continue;
            }
            self.0.remove(&at);
            if at < begin {
                self.0.insert(at, Run { length: begin - at, ..run });
            }
            if run_end > end {
                let skipped = run.skipped.map(|skipped| skipped + (end - at));
                self.0.insert(end, Run { length: run_end - end, skipped, ..run });
            }
        }
        self.put(begin, free..end.max(free), record, is_data, serial);
    }

    fn put(&mut self, begin: u64, range: std::ops::Range<u64>, record: Place, is_data: bool, serial: u64) {
        if range.is_empty() {
            return;
        }
        let skipped = is_data.then_some(range.start - begin);
        self.0.insert(range.start, Run { length: range.end - range.start, record, skipped, serial });
    }

    /// Returns the runs that were inserted after the one with this serial number, with where they begin.
    pub(super) fn after(&self, serial: u64) -> Vec<(u64, Run)> {
        self.0.iter().filter(|(_, run)| run.serial > serial).map(|(at, run)| (*at, *run)).collect()
    }

    /// Returns where the bytes of a range are, in order: lengths and sources.
    pub(super) fn parts(&self, begin: u64, length: u64) -> Vec<(u64, Source)> {
        let end = begin + length;
        let before = self.0.range(..begin).next_back();
        let first = before.filter(|(at, run)| *at + run.length > begin).map_or(begin, |(at, _)| *at);
        let mut parts = Vec::new();
        let mut at = begin;
        for (from, run) in self.0.range(first..end) {
            if *from > at {
                parts.push((from - at, Source::Base));
                at = *from;
            }
            let to = (from + run.length).min(end);
            let source = match run.source() {
                Source::Log(place) => {
                    // Within the run, so within its part.
                    let skipped = (at - from) as u32;
                    Source::Log(Place { offset: place.offset + skipped, ..place })
                }
                other => other,
            };
            parts.push((to - at, source));
            at = to;
        }
        if at < end {
            parts.push((end - at, Source::Base));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use test_kit::rng::Rng;

    use super::*;

    const LENGTH: u64 = 64;

    /// For each byte of an object: what its content is, of which record.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Byte {
        Base,
        Zero,
        Data(u32, u64),
    }

    fn bytes(runs: &Runs, begin: u64, length: u64) -> Vec<Byte> {
        let mut all = Vec::new();
        for (length, source) in runs.parts(begin, length) {
            assert!(length > 0);
            all.extend((0..length).map(|at| match source {
                Source::Base => Byte::Base,
                Source::Zeroes => Byte::Zero,
                Source::Log(place) => Byte::Data(place.part, u64::from(place.offset) + at),
            }));
        }
        all
    }

    #[test]
    fn each_byte_is_that_of_the_last_record_in_the_log_that_has_it() {
        test_kit::each_seed(200, |seed, _| {
            let mut rng = Rng::new(seed);
            let (mut runs, mut model) = (Runs::default(), vec![(None, Byte::Base); LENGTH as usize]);
            let mut order: Vec<u32> = (0..20).collect();
            for at in 0..order.len() {
                // Nearly in order, as writes that are under way at once end.
                let other = (at + rng.below(4) as usize).min(order.len() - 1);
                order.swap(at, other);
            }
            for (serial, number) in (1..).zip(order) {
                let begin = rng.below(LENGTH);
                let length = 1 + rng.below(LENGTH - begin);
                let (record, is_data) = (Place { part: number, offset: 0 }, rng.below(3) > 0);
                runs.insert(begin, length, record, is_data, serial);
                for at in begin..begin + length {
                    let byte = &mut model[at as usize];
                    if byte.0.is_none_or(|before| before < number) {
                        let offset = SECTOR_BYTES as u64 + (at - begin);
                        *byte = (Some(number), if is_data { Byte::Data(number, offset) } else { Byte::Zero });
                    }
                }
                let wanted: Vec<Byte> = model.iter().map(|(_, byte)| *byte).collect();
                assert_eq!(bytes(&runs, 0, LENGTH), wanted);
                let from = rng.below(LENGTH);
                let length = 1 + rng.below(LENGTH - from);
                assert_eq!(bytes(&runs, from, length), wanted[from as usize..(from + length) as usize]);
                assert!(runs.after(serial).is_empty());
                assert!(runs.after(serial - 1).iter().all(|(_, run)| run.serial == serial));
            }
        });
    }
}
