//! Reading: an object's bytes from its slots, from what was loaded, from nothing where nothing reaches.

use blocker::{ReadReply, Result, Segment, Segments, Version};

use super::super::pool::BUCKET;
use super::super::ranges::Buckets;
use super::super::slots::{SECTOR_BYTES, Slot, State};
use super::parts::{BUCKET_U64, SECTORS, push_zeros, touched};
use super::{Env, Loaded, Means, Need, Object};
use crate::prefetch::prefetch;

/// Lines of a bucket that are asked for ahead: the processor goes on by itself once it sees them read.
pub(crate) const LINES_READ: usize = 2;
pub(crate) const LINES_WRITTEN: usize = 8;
const LINE_BYTES: usize = 64;

impl Object {
    /// Asks the memory for the bucket in which `offset` lies, and for what is kept beside it.
    #[inline]
    pub(crate) fn prefetch(&self, env: &Env<'_>, offset: u64, lines: usize) {
        let slot = self.slots.get((offset / BUCKET_U64) as u32);
        if slot.state().has_bucket() {
            prefetch(env.meta(slot.bucket()));
            let within = (offset % BUCKET_U64) as usize;
            let from = env.pool.at(slot.bucket()).wrapping_add(within);
            (0..lines).for_each(|line| prefetch(from.wrapping_add(line * LINE_BYTES)));
        }
    }

    /// The bytes of a range that lies in one bucket and is valid there: what most hits are. `None` is no answer.
    #[inline]
    pub(crate) fn read_within(&self, env: &Env<'_>, offset: u64, len: u64) -> Option<Segments> {
        let within = (offset % BUCKET_U64) as usize;
        let is_inside = offset <= self.head.size && len <= self.head.size - offset;
        let fits = is_inside && len > 0 && len <= BUCKET_U64 - within as u64;
        let slot = self.slots.get((offset / BUCKET_U64) as u32);
        if !fits || !slot.state().has_bucket() {
            return None;
        }
        let range = within..within + len as usize;
        let meta = env.meta(slot.bucket());
        if touched(range.start, range.end) & !meta.valid() != 0 {
            return None;
        }
        env.queues.hit(meta, env.bucket_name((offset / BUCKET_U64) as u32));
        env.pool.pin(slot.bucket(), range).map(Segments::from)
    }

    /// The bytes of a range, up to the object's end; `Err` names what the store must be asked for.
    pub(crate) fn read(
        &self,
        env: &Env<'_>,
        offset: u64,
        len: u64,
        loaded: Option<&Loaded>,
    ) -> Result<Segments, Need> {
        let end = offset.saturating_add(len).min(self.head.size);
        let mut data = Segments::new();
        let mut need = Need::default();
        if offset >= end {
            return Ok(data);
        }
        let mut zeros = 0;
        let content_end = self.content_end();
        let (first, last) = ((offset / BUCKET_U64) as u32, ((end - 1) / BUCKET_U64) as u32);
        for at in first..=last {
            let start = u64::from(at) * BUCKET_U64;
            let (lo, hi) = (offset.saturating_sub(start) as usize, (end - start).min(BUCKET_U64) as usize);
            let slot = self.slots.get(at);
            let part = match slot.state() {
                State::ZeroClean | State::ZeroDirty | State::ZeroWriting => None,
                State::Absent if start + lo as u64 >= content_end => None,
                State::Absent => match loaded.and_then(|it| it.slice(start + lo as u64, start + hi as u64)) {
                    Some(part) => Some(self.clip(part, start + lo as u64)),
                    None => {
                        need.load_of(at);
                        continue;
                    }
                },
                _ => {
                    let meta = env.meta(slot.bucket());
                    let missing = touched(lo, hi) & !meta.valid();
                    if missing == 0 {
                        // Whoever has just loaded it reads it for the first time: a scan must not look like use.
                        if loaded.is_none() {
                            env.queues.hit(meta, env.bucket_name(at));
                        }
                        let pinned = env.pool.pin(slot.bucket(), lo..hi);
                        let copied = || {
                            let bytes = env.pool.bytes(slot.bucket())[lo..hi].to_vec();
                            Segment::from(bytes::Bytes::from(bytes))
                        };
                        Some(Segments::from(pinned.unwrap_or_else(copied)))
                    } else if missing & !self.beyond(at) == 0 || loaded.is_some_and(|it| it.covers(at)) {
                        Some(self.merged(env, at, loaded, lo, hi))
                    } else {
                        need.load_of(at);
                        continue;
                    }
                }
            };
            match part {
                None => zeros += hi - lo,
                Some(part) => {
                    push_zeros(&mut data, &mut zeros);
                    data.append(part);
                }
            }
        }
        push_zeros(&mut data, &mut zeros);
        if need.load.is_some() { Err(need) } else { Ok(data) }
    }

    /// Loaded bytes from `from` on, without what lies beyond the store's content.
    pub(super) fn clip(&self, part: Segments, from: u64) -> Segments {
        let len = part.len_bytes();
        let within = self.content_end().saturating_sub(from).min(len as u64) as usize;
        if within == len {
            return part;
        }
        let mut clipped = part.slice(0..within);
        clipped.append(Segments::zeros(len - within));
        clipped
    }

    /// A bucket's bytes with those of the store where it has none that are valid.
    pub(super) fn merged(
        &self,
        env: &Env<'_>,
        at: u32,
        loaded: Option<&Loaded>,
        lo: usize,
        hi: usize,
    ) -> Segments {
        let slot = self.slots.get(at);
        let start = u64::from(at) * BUCKET_U64;
        let base = loaded.and_then(|loaded| loaded.slice(start, start + BUCKET_U64));
        let mut bytes = base.map_or_else(|| vec![0; BUCKET], |base| self.clip(base, start).to_vec());
        let (valid, own) = (env.meta(slot.bucket()).valid(), env.pool.bytes(slot.bucket()));
        for sector in (0..SECTORS).filter(|sector| valid & 1 << sector != 0) {
            let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
            bytes[range.clone()].copy_from_slice(&own[range]);
        }
        bytes::Bytes::from(bytes).slice(lo..hi).into()
    }

    /// A whole answer, of the version that is there now.
    pub(crate) fn reply(&self, data: Segments) -> ReadReply {
        ReadReply::new(data, self.head.size, Version(self.head.version))
    }

    /// The runs of buckets within `range` that the store must be asked for, as byte ranges.
    pub(crate) fn missing_runs(&self, env: &Env<'_>, range: &Buckets, run_max: u64) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for at in range.clone() {
            if self.valid(env, at) == u8::MAX {
                continue;
            }
            let start = u64::from(at) * BUCKET_U64;
            match runs.last_mut() {
                Some((from, len)) if *from + *len == start && *len + BUCKET_U64 <= run_max => {
                    *len += BUCKET_U64;
                }
                _ => runs.push((start, BUCKET_U64)),
            }
        }
        runs
    }

    /// Keeps what the store gave, as far as buckets were reserved for it.
    pub(crate) fn install(&mut self, env: &Env<'_>, means: &mut Means<'_>) {
        let Some(loaded) = means.loaded else { return };
        for (start, len, data) in &loaded.runs {
            let first = (start / BUCKET_U64) as u32;
            let is_hole = data.iter().all(Segment::is_hole) && self.content_end() >= start + len;
            for at in first..first + (len / BUCKET_U64) as u32 {
                let slot = self.slots.get(at);
                let from = u64::from(at) * BUCKET_U64;
                if from >= self.content_end() || from >= self.head.size {
                    continue;
                }
                if slot == Slot::ABSENT && is_hole {
                    self.put(env, at, Slot::bare(State::ZeroClean));
                } else if slot == Slot::ABSENT {
                    let Some(bucket) = means.reserved.take(|_| ()) else { continue };
                    env.meta(bucket).set_valid(0);
                    env.meta(bucket).set_owner(Some((env.node, at)));
                    self.fill_up(env, at, bucket, means.loaded);
                    self.put(env, at, Slot::of(State::Clean, bucket));
                    env.queues.link(env.pool, bucket, env.bucket_name(at), true);
                } else if Self::is_exclusive(env, slot) {
                    self.fill_up(env, at, slot.bucket(), means.loaded);
                }
            }
        }
    }
}
