//! The content of one object's overlay: runs of bytes, and of zeros.

use std::collections::BTreeMap;

use blocker::Segments;

/// The approximate memory use of a run in addition to its bytes. It is counted so that many runs of
/// one byte are limited as well.
const RUN_BYTES: u64 = 256;

/// A part of one change's data.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) length: u64,
    /// The bytes, in memory that belongs only to the run, or `None` for zeros.
    data: Option<Segments>,
    /// The number of the change. If two changes overlap, the later one takes precedence.
    order: u64,
    /// A number that increases with every inserted run.
    serial: u64,
}

/// The source of a part's bytes.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// The object below.
    Base,
    Data(Segments),
    Zeroes,
}

impl Run {
    pub(super) fn source(&self) -> Source {
        self.data.clone().map_or(Source::Zeroes, Source::Data)
    }

    /// Returns the run's part from `from` to `to`, in memory of its own, so that the rest of the
    /// run's memory can be freed.
    fn part(&self, from: u64, to: u64) -> Self {
        // A run lies within one object, and changes in overlays are short.
        let range = from as usize..to as usize;
        let data = self.data.as_ref().map(|data| Segments::from(data.slice(range).to_vec()));
        Self { length: to - from, data, ..*self }
    }

    fn held_bytes(&self) -> u64 {
        RUN_BYTES + if self.data.is_some() { self.length } else { 0 }
    }
}

/// The runs of one object, by their offsets. They do not overlap.
#[derive(Clone, Default, Debug)]
pub(super) struct Runs {
    runs: BTreeMap<u64, Run>,
    held_bytes: u64,
}

impl Runs {
    /// Returns an upper bound of a change's memory.
    pub(super) fn needed_bytes(length: u64, is_data: bool) -> u64 {
        // A change may split a run in two.
        2 * RUN_BYTES + if is_data { length } else { 0 }
    }

    /// Returns the memory use of the runs.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Adds a change's data in the ranges where no later change has data.
    pub(super) fn insert(
        &mut self,
        begin: u64,
        length: u64,
        data: Option<&Segments>,
        (order, serial): (u64, u64),
    ) {
        let end = begin + length;
        let new = Run { length, data: data.cloned(), order, serial };
        let mut free = begin;
        for (at, run) in self.met(begin, end) {
            let run_end = at + run.length;
            if run.order > order {
                self.put(free, &new, (free - begin, at.max(free) - begin));
                free = free.max(run_end);
                continue;
            }
            self.take(at);
            self.put(at, &run, (0, begin.saturating_sub(at)));
            self.put(end, &run, (end.clamp(at, run_end) - at, run.length));
        }
        self.put(free, &new, (free.min(end) - begin, length));
    }

    /// Returns the runs that overlap a range.
    fn met(&self, begin: u64, end: u64) -> Vec<(u64, Run)> {
        let before = self.runs.range(..begin).next_back();
        let first = before.filter(|(at, run)| *at + run.length > begin).map_or(begin, |(at, _)| *at);
        self.runs.range(first..end).map(|(at, run)| (*at, run.clone())).collect()
    }

    /// Puts the run's part from `from` to `to`, if not empty, at an offset without a run.
    fn put(&mut self, at: u64, run: &Run, (from, to): (u64, u64)) {
        if from < to {
            let run = run.part(from, to);
            self.held_bytes += run.held_bytes();
            self.runs.insert(at, run);
        }
    }

    fn take(&mut self, at: u64) {
        if let Some(run) = self.runs.remove(&at) {
            self.held_bytes -= run.held_bytes();
        }
    }

    /// Returns the runs inserted after the one with this serial number, with their offsets.
    pub(super) fn after(&self, serial: u64) -> Vec<(u64, Run)> {
        let later = self.runs.iter().filter(|(_, run)| run.serial > serial);
        later.map(|(at, run)| (*at, run.clone())).collect()
    }

    /// Returns the length and the source of each part of a range, in order.
    pub(super) fn parts(&self, begin: u64, length: u64) -> Vec<(u64, Source)> {
        let end = begin + length;
        let mut parts = Vec::new();
        let mut at = begin;
        for (from, run) in self.met(begin, end) {
            if from > at {
                parts.push((from - at, Source::Base));
                at = from;
            }
            let to = (from + run.length).min(end);
            let source = match &run.data {
                None => Source::Zeroes,
                Some(data) => Source::Data(data.slice((at - from) as usize..(to - from) as usize)),
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

    /// Returns one byte for each byte of a range: 0 for zeros, 255 for the object below.
    fn bytes(runs: &Runs, begin: u64, length: u64) -> Vec<u8> {
        let mut all = Vec::new();
        for (length, source) in runs.parts(begin, length) {
            assert!(length > 0);
            all.extend(match source {
                Source::Base => vec![255; length as usize],
                Source::Zeroes => vec![0; length as usize],
                Source::Data(data) => data.to_vec(),
            });
        }
        all
    }

    #[test]
    fn each_byte_is_that_of_the_last_change_that_has_it() {
        test_kit::each_seed(200, |seed, _| {
            let mut rng = Rng::new(seed);
            let (mut runs, mut model) = (Runs::default(), vec![(None, 255_u8); LENGTH as usize]);
            let mut orders: Vec<u64> = (0..20).collect();
            for at in 0..orders.len() {
                // Nearly in order, as concurrent writes complete.
                let other = (at + rng.below(4) as usize).min(orders.len() - 1);
                orders.swap(at, other);
            }
            let mut copy = vec![255; LENGTH as usize];
            for (serial, order) in (1..).zip(orders) {
                let begin = rng.below(LENGTH);
                let length = 1 + rng.below(LENGTH - begin);
                let data: Option<Vec<u8>> =
                    (rng.below(3) > 0).then(|| (0..length).map(|_| rng.within(1, 254) as u8).collect());
                let segments = data.clone().map(Segments::from);
                runs.insert(begin, length, segments.as_ref(), (order, serial));
                for at in 0..length {
                    let byte = &mut model[(begin + at) as usize];
                    if byte.0.is_none_or(|before| before < order) {
                        *byte = (Some(order), data.as_ref().map_or(0, |data| data[at as usize]));
                    }
                }
                let wanted: Vec<u8> = model.iter().map(|(_, byte)| *byte).collect();
                assert_eq!(bytes(&runs, 0, LENGTH), wanted);
                let from = rng.below(LENGTH);
                let length = 1 + rng.below(LENGTH - from);
                assert_eq!(bytes(&runs, from, length), wanted[from as usize..(from + length) as usize]);
                // A copy that is updated run by run has the same content.
                for (at, run) in runs.after(serial - 1) {
                    let at = at as usize..(at + run.length) as usize;
                    match run.source() {
                        Source::Data(data) => copy[at].copy_from_slice(&data.to_vec()),
                        _ => copy[at].fill(0),
                    }
                }
                assert_eq!(copy, wanted);
                let held = runs.runs.values().map(Run::held_bytes).sum::<u64>();
                assert_eq!(runs.held_bytes(), held);
            }
        });
    }
}
