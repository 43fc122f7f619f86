//! A walk over the entries of one region, and the regions to which it copies the survivors.

use super::lanes::{Entry, Place, Stream};
use super::queues::QUEUES;
use super::reclaim::{BATCH, Purpose};
use super::{EntryOwner, Log, Scanned};
use crate::arena::{Owner, REGION_HEADER_BYTES, RegionId};

/// A region being walked.
pub(super) struct Job {
    pub(super) region: RegionId,
    pub(super) queue: usize,
    /// The positions of the next entry and of the end of the last one.
    cursor: u32,
    end: u32,
    pub(super) purpose: Purpose,
    /// The bytes in use at the start of the walk.
    pub(super) live_bytes_before: u32,
    /// Whether the region stays unchanged, because nearly all of its pieces of large values are
    /// kept.
    pub(super) requeues: bool,
}

/// An entry of the region that is not locked yet.
#[derive(Clone, Copy)]
pub(super) struct Walked<H> {
    pub(super) scanned: Scanned<H>,
    pub(super) location: u32,
    /// Including padding.
    pub(super) bytes: u32,
}

impl<H> Walked<H> {
    /// Returns the location and the padded size of the entry.
    pub(super) fn place(&self) -> (u32, u32) {
        (self.location, self.bytes)
    }
}

impl Job {
    pub(super) fn new(log: &Log, region: RegionId, queue: usize, purpose: Purpose) -> Job {
        let cursor = log.first_entry();
        let record = log.arena.region(region);
        Job {
            region,
            queue,
            cursor,
            end: record.used_bytes(),
            purpose,
            live_bytes_before: record.live_bytes(),
            requeues: false,
        }
    }

    /// Returns whether every entry has been scanned.
    pub(super) fn is_done(&self) -> bool {
        self.cursor >= self.end
    }

    /// Scans the next entries into `batch`, and prefetches their index lines. Returns their number.
    pub(super) fn scan<'a, O: EntryOwner>(
        &mut self,
        log: &Log,
        owner: &'a O,
        batch: &mut [Option<Walked<O::Hint<'a>>>],
    ) -> usize {
        let mut count = 0;
        while count < batch.len() && self.cursor < self.end {
            let location = log.location_in(self.region, self.cursor);
            // SAFETY: the cursor stands on an entry of a region that only this job can give away;
            // entries are complete, since the region had no writers when the job began.
            let scanned = unsafe { owner.scan(log.ptr(location)) };
            let bytes = log.padded(scanned.bytes as usize);
            batch[count] = Some(Walked { scanned, location, bytes });
            count += 1;
            self.cursor += bytes;
        }
        count
    }

    /// Calls `each` with the entries that have not been walked yet. They remain to be walked.
    pub(super) fn for_each_ahead<'a, O: EntryOwner>(
        &self,
        log: &Log,
        owner: &'a O,
        mut each: impl FnMut(&Walked<O::Hint<'a>>),
    ) {
        let mut ahead = Job { ..*self };
        while !ahead.is_done() {
            let mut batch = [None; BATCH];
            let count = ahead.scan(log, owner, &mut batch);
            batch[..count].iter().flatten().for_each(&mut each);
        }
    }
}

/// The maximum number of partly filled regions that stay open, which is also limited to one in 32
/// of all regions.
const PARTIAL_MAX: usize = 16;
/// A region is sealed if its free space is less than this part of it: 1/64, as for a last piece of
/// a large value.
const FREE_SHARE: u32 = 64;

/// The open regions of the reclaimer.
pub(super) struct Survivors {
    /// The streams of items that the policy keeps. Their regions go to the newest end of their
    /// queue.
    kept: [Stream; QUEUES],
    /// The streams of entries moved by compaction. Their regions keep the position in the age order
    /// of the compacted regions.
    compacted: [Stream; QUEUES],
    /// Without eviction: further, partly filled regions of compacted entries, and their queues.
    /// Without these, every compaction would waste as much at the regions' ends as it gains.
    partial: Vec<(usize, Stream)>,
}

/// The error that there is no space for a survivor.
pub(super) struct NoSpace;

impl Survivors {
    pub(super) fn new() -> Survivors {
        Survivors {
            kept: [const { Stream::new() }; QUEUES],
            compacted: [const { Stream::new() }; QUEUES],
            partial: Vec::new(),
        }
    }

    /// Allocates an entry for a survivor of the job in the stream's open region, or in a new one
    /// from the reserve. The entry counts as published: only the reclaimer seals that region, so no
    /// thread has to wait for the writer.
    #[inline]
    pub(super) fn place(
        &mut self,
        log: &Log,
        job: &Job,
        queue: usize,
        bytes: u32,
        now: u32,
    ) -> Result<Entry, NoSpace> {
        let streams = if job.purpose == Purpose::Evict { &mut self.kept } else { &mut self.compacted };
        match streams[queue].append_published(log, bytes) {
            Some(entry) => Ok(entry),
            None => self.place_elsewhere(log, job, queue, bytes, now),
        }
    }

    /// Like [`place`](Survivors::place), in another open region with enough space, or in a new one.
    #[cold]
    fn place_elsewhere(
        &mut self,
        log: &Log,
        job: &Job,
        queue: usize,
        bytes: u32,
        now: u32,
    ) -> Result<Entry, NoSpace> {
        let Survivors { kept, compacted, partial } = self;
        let evicts = job.purpose == Purpose::Evict;
        let stream = if evicts { &mut kept[queue] } else { &mut compacted[queue] };
        if !log.evicts {
            let region_bytes = log.arena.region_bytes();
            let tightest = partial
                .iter_mut()
                .filter(|(of, other)| *of == queue && other.free_bytes(region_bytes) >= bytes)
                .min_by_key(|(_, other)| other.free_bytes(region_bytes));
            if let Some((_, other)) = tightest {
                return other.append_published(log, bytes).ok_or(NoSpace);
            }
        }
        let region = log.arena.take(Owner::Kv, 0).ok_or(NoSpace)?;
        if log.evicts {
            stream.seal(log, queue, if evicts { Place::Newest } else { Place::Inherited });
        } else {
            set_aside(log, partial, queue, std::mem::replace(stream, Stream::new()));
        }
        if !evicts {
            // The age order concerns the items, which are as old as the region that they come from.
            // But an entry that survives a flush (a piece older than its item) must not appear to
            // be flushed.
            let inherited = log.arena.region(job.region).sequence();
            log.arena.region(region).set_sequence(inherited.max(log.boundary()));
        }
        stream.open(log, region, queue, now);
        stream.append_published(log, bytes).ok_or(NoSpace)
    }

    /// Seals the partial regions that have more garbage than free space, because garbage can be
    /// reclaimed only from sealed regions.
    pub(super) fn seal_mostly_dead(&mut self, log: &Log) {
        let region_bytes = log.arena.region_bytes();
        for at in (0..self.partial.len()).rev() {
            let (queue, stream) = &mut self.partial[at];
            let Some(region) = stream.region() else { continue };
            let free = stream.free_bytes(region_bytes);
            let filled = (region_bytes - REGION_HEADER_BYTES) as u32 - free;
            if filled.saturating_sub(log.arena.region(region).live_bytes()) > free {
                stream.seal(log, *queue, Place::Inherited);
                self.partial.swap_remove(at);
            }
        }
    }

    /// Keeps a partly filled region open. Returns false if the region has little free space, or
    /// enough other regions are open.
    pub(super) fn adopt(&mut self, log: &Log, queue: usize, region: RegionId) -> bool {
        let region_bytes = log.arena.region_bytes();
        let stream = Stream::adopted(log, region);
        let adopts = self.partial.len() < partial_max(log)
            && stream.free_bytes(region_bytes) >= region_bytes as u32 / FREE_SHARE;
        if adopts {
            self.partial.push((queue, stream));
        }
        adopts
    }

    /// Seals all open regions.
    pub(super) fn seal_all(&mut self, log: &Log) {
        let Survivors { kept, compacted, partial } = self;
        for (queue, mut stream) in partial.drain(..) {
            stream.seal(log, queue, Place::Inherited);
        }
        for (streams, place) in [(kept, Place::Newest), (compacted, Place::Inherited)] {
            for (queue, stream) in streams.iter_mut().enumerate() {
                stream.seal(log, queue, place);
            }
        }
    }

    /// Takes the region of compacted entries with the most free space, if that is at least `bytes`.
    pub(super) fn take_emptiest(&mut self, log: &Log, bytes: u32) -> Option<Stream> {
        let region_bytes = log.arena.region_bytes();
        let Survivors { compacted, partial, .. } = self;
        let streams = compacted.iter_mut().chain(partial.iter_mut().map(|(_, stream)| stream));
        let emptiest = streams.max_by_key(|stream| stream.free_bytes(region_bytes))?;
        (emptiest.free_bytes(region_bytes) >= bytes).then(|| std::mem::replace(emptiest, Stream::new()))
    }
}

/// Returns the number of partly filled regions that may stay open.
fn partial_max(log: &Log) -> usize {
    PARTIAL_MAX.min(log.arena.region_count() as usize / 32)
}

/// Keeps a region open while it has free space, and seals the one with the least free space.
fn set_aside(log: &Log, partial: &mut Vec<(usize, Stream)>, queue: usize, stream: Stream) {
    let region_bytes = log.arena.region_bytes();
    partial.push((queue, stream));
    let free_of = |partial: &[(usize, Stream)], at: usize| partial[at].1.free_bytes(region_bytes);
    while let Some(tightest) = (0..partial.len()).min_by_key(|at| free_of(partial, *at))
        && (partial.len() > partial_max(log) || free_of(partial, tightest) < region_bytes as u32 / FREE_SHARE)
    {
        let (queue, mut stream) = partial.swap_remove(tightest);
        stream.seal(log, queue, Place::Inherited);
    }
}
