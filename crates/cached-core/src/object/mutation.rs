//! A change of one object, as the cache applies it or forwards it.

use blocker::{Run, RunContent, Segments};

use super::copied_content::CopiedContent;
use super::memory::geometry::{Buckets, WHOLE, buckets_of};
use super::memory::pool::{BUCKET, Pool};

/// A change of one object.
#[derive(Clone, Debug)]
pub(crate) enum Mutation {
    Write {
        offset: u64,
        data: Segments,
    },
    WriteZeroes {
        offset: u64,
        len: u64,
    },
    /// At least one, in order, none empty.
    WriteRuns {
        runs: Vec<Run>,
    },
    Discard {
        offset: u64,
        len: u64,
    },
    CompareAndWrite {
        offset: u64,
        expected: Segments,
        data: Segments,
    },
    WriteFull {
        data: Segments,
    },
    Truncate {
        size: u64,
    },
    Delete,
    /// A change that leaves every byte as it is: copying onto itself.
    Touch,
    /// All content is replaced by that of another object; in the cache only.
    Adopt(CopiedContent),
}

impl Mutation {
    /// The buckets it is about.
    pub(crate) fn buckets(&self) -> Buckets {
        match self {
            Self::Write { offset, data } => buckets_of(*offset, data.len_bytes() as u64),
            Self::CompareAndWrite { offset, expected, data } => {
                buckets_of(*offset, data.len_bytes().max(expected.len_bytes()) as u64)
            }
            Self::WriteZeroes { offset, len } | Self::Discard { offset, len } => buckets_of(*offset, *len),
            Self::WriteRuns { runs } => {
                let from = runs.first().map_or(0, |run| run.offset);
                buckets_of(from, self.end().saturating_sub(from))
            }
            Self::WriteFull { .. } | Self::Truncate { .. } | Self::Delete | Self::Touch | Self::Adopt(_) => {
                WHOLE
            }
        }
    }

    /// The most buckets it can use.
    pub(crate) fn buckets_max(&self) -> u32 {
        match self {
            // Only its two ends are written, the rest becomes a state.
            Self::WriteZeroes { .. } | Self::Discard { .. } => 2,
            Self::WriteRuns { runs } => runs.iter().map(run_buckets_max).sum(),
            Self::WriteFull { data } => data.len_bytes().div_ceil(BUCKET) as u32,
            Self::Truncate { .. } => 1,
            Self::Delete | Self::Touch | Self::Adopt(_) => 0,
            Self::Write { .. } | Self::CompareAndWrite { .. } => {
                let buckets = self.buckets();
                buckets.end - buckets.start
            }
        }
    }

    /// Returns the most buckets of the dirty limit that it takes: zeros count by what they cover.
    pub(crate) fn dirty_buckets_max(&self) -> u64 {
        let reach = |offset, len| {
            let buckets = buckets_of(offset, len);
            u64::from(buckets.end - buckets.start)
        };
        match self {
            Self::WriteZeroes { offset, len } | Self::Discard { offset, len } => reach(*offset, *len),
            Self::WriteRuns { runs } => runs.iter().map(|run| reach(run.offset, run.len_bytes())).sum(),
            // And that all there was before is cut off.
            Self::WriteFull { .. } => u64::from(self.buckets_max()) + 1,
            _ => u64::from(self.buckets_max()),
        }
    }

    /// Returns the size that it gives to an object that has had this one, or was not there.
    pub(crate) fn size_after(&self, before: Option<u64>) -> u64 {
        let size = before.unwrap_or(0);
        match self {
            Self::Write { .. }
            | Self::CompareAndWrite { .. }
            | Self::WriteZeroes { .. }
            | Self::WriteRuns { .. } => size.max(self.end()),
            Self::Discard { .. } | Self::Touch => size,
            Self::WriteFull { data } => data.len_bytes() as u64,
            Self::Truncate { size } => *size,
            Self::Delete => 0,
            Self::Adopt(content) => content.size(),
        }
    }

    /// Returns how many bytes a request carries that forwards it.
    pub(crate) fn sent_bytes(&self) -> u64 {
        let len = |data: &Segments| data.len_bytes() as u64;
        match self {
            Self::Write { data, .. } | Self::WriteFull { data } => len(data),
            Self::CompareAndWrite { expected, data, .. } => len(expected) + len(data),
            Self::WriteRuns { runs } => runs_bytes(runs),
            _ => 0,
        }
    }

    /// Where the bytes that it writes end, for what moves the object's end by writing beyond; 0 if it writes
    /// none.
    pub(crate) fn end(&self) -> u64 {
        let end = |offset: u64, len: u64| if len == 0 { 0 } else { offset + len };
        match self {
            Self::Write { offset, data } | Self::CompareAndWrite { offset, data, .. } => {
                end(*offset, data.len_bytes() as u64)
            }
            Self::WriteZeroes { offset, len } => end(*offset, *len),
            Self::WriteRuns { runs } => runs.last().map_or(0, |run| end(run.offset, run.len_bytes())),
            _ => 0,
        }
    }

    /// Whether it needs an object to be there.
    pub(crate) fn needs_present(&self) -> bool {
        !matches!(
            self,
            Self::Write { .. }
                | Self::WriteZeroes { .. }
                | Self::WriteRuns { .. }
                | Self::WriteFull { .. }
                | Self::Adopt(_)
        )
    }

    /// Whether it replaces or removes all content.
    pub(crate) fn replaces_content(&self) -> bool {
        matches!(self, Self::WriteFull { .. } | Self::Delete | Self::Adopt(_))
    }

    /// The most buckets that taking it over can use.
    pub(crate) fn buckets_kept(&self) -> u32 {
        match self {
            Self::Write { .. } | Self::CompareAndWrite { .. } => {
                let buckets = self.buckets();
                buckets.end - buckets.start
            }
            Self::WriteRuns { runs } => runs.iter().map(run_buckets_max).sum(),
            Self::WriteFull { data } => data.len_bytes().div_ceil(BUCKET) as u32,
            Self::WriteZeroes { .. } | Self::Discard { .. } => 2,
            Self::Truncate { .. } | Self::Delete | Self::Touch | Self::Adopt(_) => 0,
        }
    }

    /// Returns how many buckets of its payload can be taken over, at most.
    pub(crate) fn received_buckets(&self, pool: &Pool) -> u32 {
        let (Self::Write { data, .. } | Self::WriteFull { data }) = self else { return 0 };
        data.iter().filter(|segment| pool.whole_bucket(segment).is_some()).count() as u32
    }
}

/// The most buckets that one of several runs can use.
fn run_buckets_max(run: &Run) -> u32 {
    match &run.content {
        RunContent::Data(_) => {
            let buckets = buckets_of(run.offset, run.len_bytes());
            buckets.end - buckets.start
        }
        RunContent::Zeroes(_) => 2,
    }
}

/// Returns how many bytes runs carry: zeros take none.
pub(crate) fn runs_bytes(runs: &[Run]) -> u64 {
    let data = runs.iter().filter(|run| matches!(run.content, RunContent::Data(_)));
    data.map(Run::len_bytes).sum()
}
