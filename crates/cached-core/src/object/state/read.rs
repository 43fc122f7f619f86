//! Reads an object's bytes from its slots and from loaded data, with zeros beyond the content, and
//! fills slots with loaded data.

use blocker::admission::check_condition;
use blocker::{Error, ReadReply, ReadRequest, Result, Segment, Segments, Version};

use super::flush::copied;
use super::ranges::Ticket;
use super::{Env, Known, Load, Loaded, Missing, Object, Resources};
use crate::arena::{prefetch, prefetch_to_l2};
use crate::object::memory::pool::{BUCKET, Run};
use crate::object::memory::queue::{MARKED, PASSING, UNREAD};
use crate::object::memory::slots::{SECTOR_BYTES, Slot, State};
use crate::object::memory::{BUCKET_U64, Buckets, SECTORS, buckets_of, parts, push_zeros, touched};
use crate::object::read_ahead::{Marked, Pattern, Request};

/// The most bytes of a bucket to prefetch for a read: about what arrives before the caller has the
/// reply. The processor prefetches the rest once it detects sequential access.
pub(crate) const PREFETCHED_BYTES_MAX: u64 = BUCKET_U64 / 2;
const LINE_BYTES: usize = 64;
/// The maximum number of present buckets between two missing ones that are read again rather than
/// split into two requests: a request costs the store as much as reading several times the data.
const BETWEEN_MAX: u32 = 4;

impl Object {
    /// Prefetches `bytes` bytes of the bucket that contains `offset`, from there on, and the bucket's
    /// metadata: the first line to the nearest cache, the others to that of the second level.
    ///
    /// All bytes that will be overwritten should be prefetched: far more loads than stores can wait
    /// for memory at the same time.
    #[inline]
    pub(crate) fn prefetch(&self, env: &Env<'_>, offset: u64, bytes: usize) {
        let slot = self.slots.get((offset / BUCKET_U64) as u32);
        if slot.state().has_bucket() {
            prefetch(env.meta(slot.bucket()));
            let within = (offset % BUCKET_U64) as usize;
            let bucket = env.pool.at(slot.bucket());
            prefetch(bucket.wrapping_add(within));
            let end = BUCKET.min(within.saturating_add(bytes));
            let others = (within + LINE_BYTES..end).step_by(LINE_BYTES);
            others.for_each(|at| prefetch_to_l2(bucket.wrapping_add(at)));
        }
    }

    /// Returns the bytes of a range that lies within a single bucket and is valid there, as for
    /// most hits. `None` means that the general path must decide.
    #[inline]
    fn read_within(&self, env: &Env<'_>, offset: u64, len: u64) -> Option<Segments> {
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
        let at = (offset / BUCKET_U64) as u32;
        if env.queues.hit(meta, env.bucket_name(at)) {
            self.read_first(env, at, range.end);
        }
        env.pool.pin(slot.bucket(), range).map(Segments::from)
    }

    /// Returns the reply, if all bytes that the reply needs are cached.
    #[inline]
    pub(crate) fn read_at_once(
        &self,
        env: &Env<'_>,
        request: &ReadRequest,
        loaded: Option<&Loaded>,
    ) -> Option<Result<ReadReply>> {
        match self.head.known {
            Known::Unknown => return None,
            Known::Absent => return Some(Err(Error::Missing)),
            Known::Present => (),
        }
        if let Err(error) = check_condition(Some(Version(self.head.version)), request.condition) {
            return Some(Err(error));
        }
        // This shortcut is not for a read after a load: bytes loaded for this very read would count
        // as read again.
        if loaded.is_none()
            && let Some(data) = self.read_within(env, request.offset, request.len_bytes)
        {
            return Some(Ok(self.reply(data)));
        }
        let data = self.read(env, request.offset, request.len_bytes, loaded).ok()?;
        Some(Ok(self.reply(data)))
    }

    /// Returns the bytes of a range, up to the object's end; `Err` has the buckets to be loaded
    /// from the store.
    pub(crate) fn read(
        &self,
        env: &Env<'_>,
        offset: u64,
        len: u64,
        loaded: Option<&Loaded>,
    ) -> Result<Segments, Missing> {
        let end = offset.saturating_add(len).min(self.head.size);
        let mut data = Segments::new();
        let mut missing = Missing::default();
        if offset >= end {
            return Ok(data);
        }
        let mut zeros = 0;
        let mut run = Run::none(env.pool);
        let content_end = self.content_end();
        for (at, lo, hi) in parts(offset, end - offset) {
            let start = u64::from(at) * BUCKET_U64;
            let slot = self.slots.get(at);
            let part = match slot.state() {
                State::ZeroClean | State::ZeroDirty | State::ZeroWriting => None,
                State::Absent if start + lo as u64 >= content_end => None,
                State::Absent => match loaded.and_then(|it| it.slice(start + lo as u64, start + hi as u64)) {
                    Some(part) => Some(self.clip(part, start + lo as u64)),
                    None => {
                        missing.load_of(at);
                        continue;
                    }
                },
                _ => {
                    let meta = env.meta(slot.bucket());
                    let absent_sectors = touched(lo, hi) & !meta.valid();
                    if absent_sectors == 0 {
                        // The request that has just loaded the bucket reads it for the first time:
                        // a scan must not look like reuse.
                        let counts = loaded.is_none() || meta.is_flagged();
                        if counts && env.queues.hit(meta, env.bucket_name(at)) {
                            self.read_first(env, at, hi);
                        }
                        push_zeros(&mut data, &mut zeros);
                        if run.add(slot.bucket(), lo..hi, &mut data) {
                            continue;
                        }
                        Some(copied(env, slot.bucket(), lo..hi).into())
                    } else if absent_sectors & !self.beyond(at) == 0 || loaded.is_some_and(|it| it.covers(at))
                    {
                        Some(self.merged(env, at, loaded, lo, hi))
                    } else {
                        missing.load_of(at);
                        continue;
                    }
                }
            };
            run.end(&mut data);
            match part {
                None => zeros += hi - lo,
                Some(part) => {
                    push_zeros(&mut data, &mut zeros);
                    data.append(part);
                }
            }
        }
        run.end(&mut data);
        push_zeros(&mut data, &mut zeros);
        if missing.load.is_some() { Err(missing) } else { Ok(data) }
    }

    /// Returns loaded bytes from the offset `from`, with zeros beyond the store's content.
    fn clip(&self, part: Segments, from: u64) -> Segments {
        let len = part.len_bytes();
        let within = self.content_end().saturating_sub(from).min(len as u64) as usize;
        if within == len {
            return part;
        }
        let mut clipped = part.slice(0..within);
        clipped.append(Segments::zeros(len - within));
        clipped
    }

    /// Returns a bucket's bytes, with the store's bytes in sectors that are not valid.
    fn merged(&self, env: &Env<'_>, at: u32, loaded: Option<&Loaded>, lo: usize, hi: usize) -> Segments {
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

    /// Records that a bucket with flags has been read up to `end` within the bucket: it was read
    /// ahead, or bypasses the cache.
    #[cold]
    #[inline(never)]
    fn read_first(&self, env: &Env<'_>, at: u32, end: usize) {
        let bucket = self.slots.get(at).bucket();
        let flags = env.meta(bucket).take_flags(UNREAD | MARKED);
        if flags & UNREAD != 0 {
            // To the policy this is the same as a bucket that is loaded on demand.
            env.queues.read_first(env.meta(bucket), env.bucket_name(at));
            env.read_ahead.count_used(env.namespace);
        }
        if flags & MARKED != 0 {
            let marked = Marked { node: env.node, hash: env.hash, bucket: at };
            env.read_ahead.requests.push(Request::Marked(marked));
        }
        if flags & PASSING != 0 && end == BUCKET {
            env.queues.expire(env.pool, bucket, env.bucket_name(at));
        }
    }

    /// Returns the first run of buckets within a range that can be read ahead, and the bucket to be
    /// marked, if the mark falls into the run. A run begins and ends with a missing bucket of the
    /// pattern: one that is not cached, is not being loaded, and does not lie beyond the content. A
    /// run continues across buckets that the pattern leaves out, and across a few that are cached.
    ///
    /// `mark` is the desired position of the mark, unless an earlier run has it: the mark goes on
    /// the first missing bucket from there on; if there is none and `is_last`, on the last missing
    /// bucket before it.
    pub(crate) fn run_to_read_ahead(
        &self,
        within: Buckets,
        pattern: Pattern,
        mark: Option<u32>,
        is_last: bool,
    ) -> Option<(Buckets, Option<u32>)> {
        let ranges = self.ranges();
        if self.head.known == Known::Absent || ranges.is_full() || ranges.is_changing(&within) {
            return None;
        }
        let is_missing = |at: &u32| {
            self.slots.get(*at) == Slot::ABSENT && self.beyond(*at) != u8::MAX && !ranges.is_wanted(*at)
        };
        let missing = |range: Buckets| range.filter(|at| pattern.has(*at)).filter(is_missing);
        let start = missing(within.clone()).next()?;
        let mut end = start + 1;
        for at in start + 1..within.end {
            let between =
                || (end..=at).filter(|at| pattern.has(*at)).take(BETWEEN_MAX as usize + 1).count() as u32;
            if pattern.has(at) && is_missing(&at) {
                end = at + 1;
            } else if ranges.is_wanted(at) || self.beyond(at) == u8::MAX || between() > BETWEEN_MAX {
                break;
            }
        }
        let marked = mark.and_then(|mark| {
            let later = missing(mark.max(start)..within.end).next();
            match later {
                Some(at) => (at < end).then_some(at),
                None => Some(end - 1).filter(|_| is_last),
            }
        });
        Some((start..end, marked))
    }

    /// Returns a reply with the current version.
    pub(crate) fn reply(&self, data: Segments) -> ReadReply {
        ReadReply::new(data, self.head.size, Version(self.head.version))
    }

    /// Begins a load of `buckets` under an entry that covers them. It loads the missing buckets, or
    /// all of them if they are read ahead for a pattern, in requests of at most `run_max` bytes.
    pub(crate) fn begin_load(
        &mut self,
        env: &Env<'_>,
        ticket: Ticket,
        buckets: &Buckets,
        run_max: u64,
        ahead: Option<Pattern>,
    ) -> Load {
        self.activity().ranges.ask_bytes(ticket);
        let steps = self.head.store_steps;
        let is_asked_for = |at: &u32| ahead.is_some() || self.valid(env, *at) != u8::MAX;
        let runs = runs_of(buckets.clone().filter(is_asked_for), run_max);
        let is_kept = |at: &u32, pattern: Pattern| pattern.has(*at) && self.slots.get(*at) == Slot::ABSENT;
        let kept_max = match ahead {
            Some(pattern) => buckets.clone().filter(|at| is_kept(at, pattern)).count() as u32,
            None => u32::MAX,
        };
        Load { runs, kept_max, steps }
    }

    /// Returns whether the cache has all bytes of these buckets.
    pub(crate) fn has_all(&self, env: &Env<'_>, buckets: &Buckets) -> bool {
        buckets.clone().all(|at| self.valid(env, at) == u8::MAX)
    }
}

/// Returns buckets as byte ranges (offset and length) of at most `run_max` bytes.
fn runs_of(buckets: impl Iterator<Item = u32>, run_max: u64) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for at in buckets {
        let start = u64::from(at) * BUCKET_U64;
        match runs.last_mut() {
            Some((from, len)) if *from + *len == start && *len + BUCKET_U64 <= run_max => *len += BUCKET_U64,
            _ => runs.push((start, BUCKET_U64)),
        }
    }
    runs
}

// Filling slots with loaded data.

/// The part of a load to keep, and its purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Keep {
    All,
    Nothing,
    /// A single bucket, in which a read that bypasses the cache ends: the next read will request
    /// the rest of the bucket.
    Passing(u32),
    /// The buckets of a pattern, for expected reads. `mark` is the bucket whose first read triggers
    /// the next read-ahead.
    Ahead {
        pattern: Pattern,
        mark: Option<u32>,
        is_passing: bool,
    },
}

impl Keep {
    /// Returns the maximum number of `count` buckets to keep.
    pub(crate) fn count_max(self, count: u32) -> u32 {
        match self {
            Keep::All | Keep::Ahead { .. } => count,
            Keep::Nothing => 0,
            Keep::Passing(_) => count.min(1),
        }
    }

    /// Returns whether a caller waits for the load.
    pub(crate) fn is_asked_for(self) -> bool {
        !matches!(self, Keep::Ahead { .. })
    }

    /// Returns the part to keep of an object whose content ends before the bucket `end`, which is not
    /// known until the response arrives.
    fn within(self, end: u32) -> Self {
        match self {
            Keep::Ahead { pattern, mark: Some(mark), is_passing } => {
                let mark = if mark < end { Some(mark) } else { pattern.last_before(end) };
                Keep::Ahead { pattern, mark, is_passing }
            }
            other => other,
        }
    }

    fn takes(self, at: u32) -> bool {
        match self {
            Keep::Passing(one) => one == at,
            Keep::Ahead { pattern, .. } => pattern.has(at),
            _ => true,
        }
    }

    fn link(self, env: &Env<'_>, at: u32, bucket: u32) {
        let name = env.bucket_name(at);
        match self {
            Keep::Ahead { mark, is_passing, .. } => {
                let marked = if mark == Some(at) { MARKED } else { 0 };
                let passing = if is_passing { PASSING } else { 0 };
                env.queues.link_ahead(env.pool, bucket, name, UNREAD | marked | passing, env.namespace);
                env.read_ahead.count_ahead(env.namespace);
            }
            Keep::Passing(_) => {
                env.queues.link(env.pool, bucket, name, true, env.namespace);
                env.queues.flag(env.meta(bucket), name, PASSING);
            }
            Keep::All | Keep::Nothing => env.queues.link(env.pool, bucket, name, true, env.namespace),
        }
    }
}

impl Object {
    /// Samples each loaded bucket as a miss.
    pub(crate) fn sample_misses(&self, env: &Env<'_>, loaded: &Loaded) {
        for (start, _, data) in loaded.runs.iter().filter(|(_, _, data)| data.len_bytes() > 0) {
            for at in buckets_of(*start, data.len_bytes() as u64) {
                env.queues.missed(env.bucket_name(at), env.node);
            }
        }
    }

    /// Fills slots with loaded data, as far as the data are to be kept and buckets were reserved
    /// for them.
    pub(crate) fn fill(&mut self, env: &Env<'_>, resources: &mut Resources<'_>, keep: Keep) {
        let Some(loaded) = resources.loaded else { return };
        let end = self.content_end().min(self.head.size).div_ceil(BUCKET_U64);
        // A bucket's index in its object has 16 bits.
        let keep = keep.within(end as u32);
        for (start, len, data) in &loaded.runs {
            let first = (start / BUCKET_U64) as u32;
            let is_hole = data.iter().all(Segment::is_hole) && self.content_end() >= start + len;
            for at in first..first + (len / BUCKET_U64) as u32 {
                let slot = self.slots.get(at);
                let from = u64::from(at) * BUCKET_U64;
                if from >= self.content_end() || from >= self.head.size {
                    continue;
                }
                if !keep.takes(at) {
                    if !keep.is_asked_for() && slot == Slot::ABSENT {
                        env.read_ahead.count_between(env.namespace);
                    }
                    continue;
                }
                if slot == Slot::ABSENT && is_hole {
                    self.put(env, at, Slot::bare(State::ZeroClean));
                } else if slot == Slot::ABSENT {
                    let Some(bucket) = resources.reserved.take(|_| ()) else { continue };
                    env.meta(bucket).set_valid(0);
                    env.meta(bucket).set_owner(Some((env.node, at)));
                    self.fill_up(env, at, bucket, resources.loaded);
                    self.put(env, at, Slot::of(State::Clean, bucket));
                    keep.link(env, at, bucket);
                } else if Self::is_exclusive(env, slot) {
                    self.fill_up(env, at, slot.bucket(), resources.loaded);
                }
            }
        }
    }
}
