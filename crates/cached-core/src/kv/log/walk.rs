//! A walk over the entries of one region, and the regions to which it copies what stays.

use super::Log;
use super::lanes::{Entry, Place, Stream};
use super::owner::{EntryOwner, Scanned};
use super::queues::QUEUES;
use super::reclaim::{BATCH, Purpose};
use crate::arena::{Owner, REGION_HEADER_BYTES, RegionId};

/// A region being walked.
pub(super) struct Job {
    pub(super) region: RegionId,
    pub(super) queue: usize,
    /// Where the next entry starts, and where the last one ends.
    cursor: u32,
    end: u32,
    pub(super) purpose: Purpose,
    /// Bytes in use when the walk began.
    pub(super) live_bytes_before: u32,
    /// The region stays as it is: nearly all of it is kept (pieces of large values).
    pub(super) requeues: bool,
}

/// An entry of the region, before it is locked.
#[derive(Clone, Copy)]
pub(super) struct Walked<H> {
    pub(super) scanned: Scanned<H>,
    pub(super) location: u32,
    /// Padded.
    pub(super) bytes: u32,
}

impl<H> Walked<H> {
    /// Where the entry lies, and its padded size.
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

    /// Whether every entry has been scanned.
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

    /// Calls `each` with the entries that are still to be walked, which stay to be walked.
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

/// Regions that stay open for the room left in them: at most this many, and one in 32 of all.
const ROOMY_MAX: usize = 16;
/// A region with less room than this share of it is sealed: 1/64, as for a last piece of a large value.
const ROOM_SHARE: u32 = 64;

/// The open regions of the reclaimer.
pub(super) struct Survivors {
    /// For items that the policy keeps: they go to the head of their queue.
    kept: [Stream; QUEUES],
    /// For entries moved by compaction: they keep their region's place in the age order.
    compacted: [Stream; QUEUES],
    /// Without eviction: further regions of compacted entries in which some room is left, and their queues.
    /// Without these every compaction would lose at the regions' ends what it gains.
    roomy: Vec<(usize, Stream)>,
}

/// There is no place for a survivor.
pub(super) struct NoPlace;

impl Survivors {
    pub(super) fn new() -> Survivors {
        Survivors {
            kept: [const { Stream::new() }; QUEUES],
            compacted: [const { Stream::new() }; QUEUES],
            roomy: Vec::new(),
        }
    }

    /// Allocates an entry for a survivor of the job, in the stream's open region or a new one from the
    /// reserve. It counts as published: only the reclaimer seals that region, so nothing has to wait for the
    /// writer.
    #[inline]
    pub(super) fn place(
        &mut self,
        log: &Log,
        job: &Job,
        queue: usize,
        bytes: u32,
        now: u32,
    ) -> Result<Entry, NoPlace> {
        let streams = if job.purpose == Purpose::Evict { &mut self.kept } else { &mut self.compacted };
        match streams[queue].append_published(log, bytes) {
            Some(entry) => Ok(entry),
            None => self.place_elsewhere(log, job, queue, bytes, now),
        }
    }

    /// As [`place`](Survivors::place), where another open region has room, or in a new one.
    #[cold]
    fn place_elsewhere(
        &mut self,
        log: &Log,
        job: &Job,
        queue: usize,
        bytes: u32,
        now: u32,
    ) -> Result<Entry, NoPlace> {
        let Survivors { kept, compacted, roomy } = self;
        let evicts = job.purpose == Purpose::Evict;
        let stream = if evicts { &mut kept[queue] } else { &mut compacted[queue] };
        if !log.evicts {
            let region_bytes = log.arena.region_bytes();
            let tightest = roomy
                .iter_mut()
                .filter(|(of, other)| *of == queue && other.room(region_bytes) >= bytes)
                .min_by_key(|(_, other)| other.room(region_bytes));
            if let Some((_, other)) = tightest {
                return other.append_published(log, bytes).ok_or(NoPlace);
            }
        }
        let region = log.arena.take(Owner::Kv, 0).ok_or(NoPlace)?;
        if log.evicts {
            stream.seal(log, queue, if evicts { Place::Newest } else { Place::Inherited });
        } else {
            set_aside(log, roomy, queue, std::mem::replace(stream, Stream::new()));
        }
        if !evicts {
            // The age order is about the items, and these are as old as the region they come from; but
            // what survives a flush (a piece older than its item) must not look flushed for ever.
            let inherited = log.arena.region(job.region).sequence();
            log.arena.region(region).set_sequence(inherited.max(log.boundary()));
        }
        stream.open(log, region, queue, now);
        stream.append_published(log, bytes).ok_or(NoPlace)
    }

    /// Seals those roomy regions in which there is more garbage than room: garbage can be reclaimed only from
    /// sealed ones.
    pub(super) fn seal_littered(&mut self, log: &Log) {
        let region_bytes = log.arena.region_bytes();
        for at in (0..self.roomy.len()).rev() {
            let (queue, stream) = &mut self.roomy[at];
            let Some(region) = stream.region() else { continue };
            let room = stream.room(region_bytes);
            let filled = (region_bytes - REGION_HEADER_BYTES) as u32 - room;
            if filled.saturating_sub(log.arena.region(region).live_bytes()) > room {
                stream.seal(log, *queue, Place::Inherited);
                self.roomy.swap_remove(at);
            }
        }
    }

    /// Keeps a region open for the room left in it. Returns false if that is little, or there are enough.
    pub(super) fn adopt(&mut self, log: &Log, queue: usize, region: RegionId) -> bool {
        let region_bytes = log.arena.region_bytes();
        let stream = Stream::adopted(log, region);
        let adopts = self.roomy.len() < roomy_max(log)
            && stream.room(region_bytes) >= region_bytes as u32 / ROOM_SHARE;
        if adopts {
            self.roomy.push((queue, stream));
        }
        adopts
    }

    /// Seals all open regions.
    pub(super) fn seal_all(&mut self, log: &Log) {
        let Survivors { kept, compacted, roomy } = self;
        for (queue, mut stream) in roomy.drain(..) {
            stream.seal(log, queue, Place::Inherited);
        }
        for (streams, place) in [(kept, Place::Newest), (compacted, Place::Inherited)] {
            for (queue, stream) in streams.iter_mut().enumerate() {
                stream.seal(log, queue, place);
            }
        }
    }

    /// Gives away the region of compacted entries that has the most room, if that is at least `bytes`.
    pub(super) fn give_room(&mut self, log: &Log, bytes: u32) -> Option<Stream> {
        let region_bytes = log.arena.region_bytes();
        let Survivors { compacted, roomy, .. } = self;
        let streams = compacted.iter_mut().chain(roomy.iter_mut().map(|(_, stream)| stream));
        let roomiest = streams.max_by_key(|stream| stream.room(region_bytes))?;
        (roomiest.room(region_bytes) >= bytes).then(|| std::mem::replace(roomiest, Stream::new()))
    }
}

/// Regions that may stay open for the room left in them.
fn roomy_max(log: &Log) -> usize {
    ROOMY_MAX.min(log.arena.region_count() as usize / 32)
}

/// Keeps a region open while there is room in it, and seals the one that has the least.
fn set_aside(log: &Log, roomy: &mut Vec<(usize, Stream)>, queue: usize, stream: Stream) {
    let region_bytes = log.arena.region_bytes();
    roomy.push((queue, stream));
    let room_of = |roomy: &[(usize, Stream)], at: usize| roomy[at].1.room(region_bytes);
    while let Some(tightest) = (0..roomy.len()).min_by_key(|at| room_of(roomy, *at))
        && (roomy.len() > roomy_max(log) || room_of(roomy, tightest) < region_bytes as u32 / ROOM_SHARE)
    {
        let (queue, mut stream) = roomy.swap_remove(tightest);
        stream.seal(log, queue, Place::Inherited);
    }
}
