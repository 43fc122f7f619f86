//! One change of any kind, applied in the cache first: what it lacks, and how it is applied.

use blocker::{Error, Result, Run, RunContent};

use super::{Env, Known, Missing, Object, Resources};
use crate::object::memory::pool::BUCKET;
use crate::object::mutation::Mutation;

impl Object {
    pub(crate) fn missing_for(
        &self,
        env: &Env<'_>,
        mutation: &Mutation,
        resources: &Resources<'_>,
    ) -> Result<Missing> {
        Ok(match mutation {
            Mutation::Write { offset, data } => self.missing_for_data(env, *offset, data, resources),
            Mutation::WriteZeroes { offset, len } => self.missing_for_zeroes(env, *offset, *len, resources),
            // Two runs in one bucket count it twice: the surplus is given back.
            Mutation::WriteRuns { runs } => runs
                .iter()
                .fold(Missing::default(), |sum, run| sum.and(self.missing_for_run(env, run, resources))),
            Mutation::Discard { offset, len } => {
                self.missing_for_zeroes(env, *offset, self.within(*offset, *len), resources)
            }
            Mutation::CompareAndWrite { offset, expected, data } => {
                let len = expected.len_bytes() as u64;
                let missing = self.missing_for_write(env, *offset, data.len_bytes() as u64, resources);
                let found = match self.read(env, *offset, len, resources.loaded) {
                    Ok(found) => found,
                    Err(lacking) => return Ok(missing.and(lacking)),
                };
                if let Some(at) = expected.first_difference(&found.to_bytes()) {
                    return Err(Error::Mismatch { offset: offset + at as u64 });
                }
                missing
            }
            Mutation::WriteFull { data } => {
                let credits = data.len_bytes().div_ceil(BUCKET) as u32;
                Missing { buckets: credits - self.adoptable(env, 0, data), credits, load: None }
            }
            Mutation::Truncate { size } => self.missing_for_truncate(env, *size),
            Mutation::Delete | Mutation::Touch | Mutation::Adopt(_) => Missing::default(),
        })
    }

    fn missing_for_run(&self, env: &Env<'_>, run: &Run, resources: &Resources<'_>) -> Missing {
        match &run.content {
            RunContent::Data(data) => {
                self.missing_for_write(env, run.offset, data.len_bytes() as u64, resources)
            }
            RunContent::Zeroes(len) => self.missing_for_zeroes(env, run.offset, *len, resources),
        }
    }

    /// Returns the length of the part of a range that lies within the object.
    fn within(&self, offset: u64, len: u64) -> u64 {
        self.head.size.saturating_sub(offset).min(len)
    }

    pub(crate) fn mutate(&mut self, env: &Env<'_>, mutation: &Mutation, resources: &mut Resources<'_>) {
        let creates = self.head.known == Known::Absent && !matches!(mutation, Mutation::Delete);
        if creates {
            self.head.known = Known::Present;
            self.head.size = 0;
            self.pending.size_dirty = true;
        }
        match mutation {
            Mutation::Write { offset, data } | Mutation::CompareAndWrite { offset, data, .. } => {
                self.write(env, *offset, data, resources);
            }
            Mutation::WriteZeroes { offset, len } => self.write_zeroes(env, *offset, *len, true, resources),
            Mutation::WriteRuns { runs } => runs.iter().for_each(|run| match &run.content {
                RunContent::Data(data) => self.write(env, run.offset, data, resources),
                RunContent::Zeroes(len) => self.write_zeroes(env, run.offset, *len, true, resources),
            }),
            Mutation::Discard { offset, len } => {
                self.write_zeroes(env, *offset, self.within(*offset, *len), false, resources);
            }
            Mutation::WriteFull { data } => {
                self.replace(env, Known::Present);
                self.write(env, 0, data, resources);
            }
            Mutation::Truncate { size } => self.truncate(env, *size, resources),
            Mutation::Delete => self.replace(env, Known::Absent),
            Mutation::Touch => (),
            Mutation::Adopt(content) => self.become_copy(env, content),
        }
    }
}
