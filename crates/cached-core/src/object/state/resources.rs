//! What a step needs beside the object: buckets, room for dirty data, bytes of the store.

use blocker::Segments;

use crate::object::memory::geometry::{BUCKET_U64, Buckets};
use crate::object::memory::pool::Reserved;

/// What a step lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Missing {
    pub(crate) buckets: u32,
    /// The number of buckets that will become dirty.
    pub(crate) credits: u32,
    /// The buckets whose bytes the store must be asked for.
    pub(crate) load: Option<Buckets>,
}

impl Missing {
    /// Adds both together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.buckets += other.buckets;
        self.credits += other.credits;
        if let Some(load) = other.load {
            self.load_of(load.start);
            self.load_of(load.end - 1);
        }
        self
    }

    pub(super) fn load_of(&mut self, at: u32) {
        let range = self.load.get_or_insert(at..at + 1);
        range.start = range.start.min(at);
        range.end = range.end.max(at + 1);
    }
}

/// Bytes that the store gave for a range.
#[derive(Default)]
pub(crate) struct Loaded {
    /// The start of each run, the length asked for, and the bytes that came; zeros follow them.
    pub(crate) runs: Vec<(u64, u64, Segments)>,
}

impl Loaded {
    /// Returns the bytes of a range that one run covers.
    pub(super) fn slice(&self, from: u64, to: u64) -> Option<Segments> {
        let covers = |run: &&(u64, u64, Segments)| run.0 <= from && to <= run.0 + run.1;
        let (start, _, data) = self.runs.iter().find(covers)?;
        let len = data.len_bytes() as u64;
        let (low, high) = ((from - start).min(len), (to - start).min(len));
        let mut part = data.slice(low as usize..high as usize);
        let rest = (to - from) - (high - low);
        part.append(Segments::zeros(rest as usize));
        Some(part)
    }

    pub(super) fn covers(&self, at: u32) -> bool {
        let from = u64::from(at) * BUCKET_U64;
        self.runs.iter().any(|run| run.0 <= from && from + BUCKET_U64 <= run.0 + run.1)
    }
}

/// What a step may use up.
pub(crate) struct Resources<'a> {
    pub(crate) reserved: Reserved<'a>,
    /// Room for this number of dirty buckets, taken from the dirty limit already.
    pub(crate) credits: u32,
    pub(crate) loaded: Option<&'a Loaded>,
}
