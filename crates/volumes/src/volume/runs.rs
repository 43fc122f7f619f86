//! What one object's overlay has: runs of bytes, and of zeros.

use std::collections::BTreeMap;

use blocker::Segments;

/// What a run takes beside its bytes, about: so many runs of a byte have a limit as well.
const RUN_BYTES: u64 = 256;

/// A part of what was written by one change.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) length: u64,
    /// The bytes, in memory that has nothing else; `None` for zeros.
    data: Option<Segments>,
    /// The number of the change. Of two that meet, the later one counts.
    order: u64,
    /// Rises with every run that is inserted.
    serial: u64,
}

/// Where the bytes of a part are.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// In the object below.
    Base,
    Data(Segments),
    Zeroes,
}

impl Run {
    pub(super) fn source(&self) -> Source {
        self.data.clone().map_or(Source::Zeroes, Source::Data)
    }

    /// Returns what the run has from `from` to `to`, in memory of its own: what the rest of it takes is free then.
    fn part(&self, from: u64, to: u64) -> Self {
        // A run lies within one object, and a change that has an overlay is short.
        let range = from as usize..to as usize;
        let data = self.data.as_ref().map(|data| Segments::from(data.slice(range).to_vec()));
        Self { length: to - from, data, ..*self }
    }

    fn held_bytes(&self) -> u64 {
        RUN_BYTES + if self.data.is_some() { self.length } else { 0 }
    }
}

/// The runs of one object, by where they begin. They do not overlap.
#[derive(Clone, Default, Debug)]
pub(super) struct Runs {
    runs: BTreeMap<u64, Run>,
    held_bytes: u64,
}

impl Runs {
    /// Returns the memory that a change takes, at most.
    pub(super) fn needed_bytes(length: u64, is_data: bool) -> u64 {
        // It may cut a run in two.
        2 * RUN_BYTES + if is_data { length } else { 0 }
    }

    /// Returns the memory that the runs take.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// Adds what a change has, under what later changes have.
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

    /// Returns the runs that have a part of a range.
    fn met(&self, begin: u64, end: u64) -> Vec<(u64, Run)> {
        let before = self.runs.range(..begin).next_back();
        let first = before.filter(|(at, run)| *at + run.length > begin).map_or(begin, |(at, _)| *at);
        self.runs.range(first..end).map(|(at, run)| (*at, run.clone())).collect()
    }

    /// Puts what a run has from `from` to `to`, if that is something, at a place where nothing is.
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

    /// Returns the runs that were inserted after the one with this serial number, with where they begin.
    pub(super) fn after(&self, serial: u64) -> Vec<(u64, Run)> {
        let later = self.runs.iter().filter(|(_, run)| run.serial > serial);
        later.map(|(at, run)| (*at, run.clone())).collect()
    }

    /// Returns where the bytes of a range are, in order: lengths and sources.
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

    /// Returns a byte for each of a range: 0 for zeros, 255 for the object below.
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
                // Nearly in order, as writes that are under way at once end.
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
                // A copy that is brought up to date run by run has the same.
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
