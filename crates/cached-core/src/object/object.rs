//! One object in the cache: what is known of it, what the store does not know yet, and every step from
//! one state to the next.
//!
//! All of this runs in the object's turn ([`super::serial`]): short, without waiting. What a step needs
//! and does not have (buckets, bytes of the store, room for dirty data) it names in [`Need`], having
//! changed nothing; its caller gets it and comes again.
//!
//! Where the bytes of an object are, seen from its end:
//! ```text
//!  0                         content_end                size
//!  ├─ slot known: the cache ───────┼────────────────────────┤
//!  ├─ slot absent: the store ──────┼─ slot absent: zeros ───┤
//! ```

use std::task::Waker;

use blocker::{Clock, OrderDomain, ReadReply, Result, Segment, Segments, Stamp, Timestamp, Version};

use super::gauges::Gauges;
use super::pool::{BUCKET, Meta, Pool, Reserved};
use super::queue::{Queues, bucket_hash};
use super::ranges::{Buckets, Ranges};
use super::slots::{SECTOR_BYTES, STATES, Slot, Slots, State};
use super::versions::Versions;
use super::waiter::FlushTicket;
use crate::sync::Arc;

const BUCKET_U64: u64 = BUCKET as u64;
const SECTORS: usize = BUCKET / SECTOR_BYTES;

/// What a step can reach beside the object itself.
#[derive(Clone, Copy)]
pub(crate) struct Env<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) queues: &'a Queues,
    pub(crate) gauges: &'a Gauges,
    pub(crate) versions: &'a Versions,
    /// The object's number and the hash of its name.
    pub(crate) node: u32,
    pub(crate) hash: u64,
    pub(crate) clock: &'a dyn Clock,
}

/// Whether an object is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Known {
    /// Nobody has asked.
    #[default]
    Unknown,
    Absent,
    Present,
}

/// What is known of an object as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Head {
    pub(crate) known: Known,
    pub(crate) size: u64,
    /// The version that callers see.
    pub(crate) version: u64,
    /// Whether `stamp` and `claimed` are known as well.
    pub(crate) is_full: bool,
    pub(crate) stamp: Option<Stamp>,
    /// The epoch the store said is in force for the object.
    pub(crate) claimed: u64,
    /// What the store has, as far as we know.
    pub(crate) store_size: u64,
    pub(crate) store_exists: bool,
    /// The store's version of what we know; `None` after changes that overlapped.
    pub(crate) store_version: Option<u64>,
    /// Changes of the store begun and ended, to tell ours from those of others.
    pub(crate) store_steps: u32,
    /// Changes on their way to the store now.
    pub(crate) store_changes: u32,
    /// The order domain whose epoch in force has been asked for.
    pub(crate) domain_asked: Option<OrderDomain>,
}

/// What the store does not know of the object as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    /// All its content is to be replaced; or, if it is absent, it is to be removed.
    pub(crate) replace: bool,
    /// The smallest end it had; `u64::MAX`: none.
    pub(crate) truncate_to: u64,
    /// Its end, or that it is there at all.
    pub(crate) size_dirty: bool,
    pub(crate) change_seq: u64,
    /// Changes up to this one are stored.
    pub(crate) stored_seq: u64,
    pub(crate) dirty_since: Timestamp,
    pub(crate) domain: Option<OrderDomain>,
    /// Changes of several domains, or of none and of one.
    pub(crate) domains_mixed: bool,
    /// Its place in the registry of what waits to be stored; 0: none.
    pub(crate) registered: u64,
    /// The store has refused changes that were acknowledged as cached: they are gone.
    pub(crate) is_lost: bool,
    /// Flushes that failed in a row.
    pub(crate) failures: u32,
}

impl Default for Pending {
    fn default() -> Self {
        Self {
            replace: false,
            truncate_to: u64::MAX,
            size_dirty: false,
            change_seq: 0,
            stored_seq: 0,
            dirty_since: Timestamp(0),
            domain: None,
            domains_mixed: false,
            registered: 0,
            is_lost: false,
            failures: 0,
        }
    }
}

/// The part of a flush under way that reads must know.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flushing {
    pub(crate) replace: bool,
    pub(crate) truncate_to: u64,
}

/// What exists only while the store is asked, or somebody waits.
#[derive(Default)]
pub(crate) struct Activity {
    pub(crate) ranges: Ranges,
    /// Who waits until changes up to a number are stored.
    pub(crate) flush_waiters: Vec<(u64, Arc<FlushTicket>)>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Object {
    pub(crate) head: Head,
    pub(crate) slots: Slots,
    pub(crate) pending: Pending,
    pub(crate) flushing: Option<Box<Flushing>>,
    activity: Option<Box<Activity>>,
}

/// What a step lacks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Need {
    pub(crate) buckets: u32,
    /// Buckets that will become dirty.
    pub(crate) credits: u32,
    /// The first and last bucket whose bytes the store must be asked for, the end excluded.
    pub(crate) load: Option<Buckets>,
}

impl Need {
    fn load_of(&mut self, at: u32) {
        let range = self.load.get_or_insert(at..at + 1);
        range.start = range.start.min(at);
        range.end = range.end.max(at + 1);
    }
}

/// Bytes that the store gave for a range.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Where each begins, how much was asked for, and what came; zeros after that.
    pub(crate) runs: Vec<(u64, u64, Segments)>,
}

impl Loaded {
    /// The bytes of a range that one run covers.
    fn slice(&self, from: u64, to: u64) -> Option<Segments> {
        let covers = |run: &&(u64, u64, Segments)| run.0 <= from && to <= run.0 + run.1;
        let (start, _, data) = self.runs.iter().find(covers)?;
        let len = data.len_bytes() as u64;
        let (low, high) = ((from - start).min(len), (to - start).min(len));
        let mut part = data.slice(low as usize..high as usize);
        let rest = (to - from) - (high - low);
        part.append(Segments::zeros(rest as usize));
        Some(part)
    }

    fn covers(&self, at: u32) -> bool {
        let from = u64::from(at) * BUCKET_U64;
        self.runs.iter().any(|run| run.0 <= from && from + BUCKET_U64 <= run.0 + run.1)
    }
}

/// What a step may use up.
pub(crate) struct Means<'a> {
    pub(crate) reserved: Reserved<'a>,
    /// Room for so many more dirty buckets, taken from the gauge already.
    pub(crate) credits: u32,
    pub(crate) loaded: Option<&'a Loaded>,
}

/// A mask with a bit for each sector from that of `lo` to that of `hi`, the end excluded.
fn touched(lo: usize, hi: usize) -> u8 {
    let (first, last) = (lo / SECTOR_BYTES, hi.div_ceil(SECTOR_BYTES));
    (((1u16 << last) - 1) & !((1u16 << first) - 1)) as u8
}

/// The sectors that `lo..hi` covers only in part.
fn edges(lo: usize, hi: usize) -> u8 {
    let (inner_lo, inner_hi) = (lo.next_multiple_of(SECTOR_BYTES), hi / SECTOR_BYTES * SECTOR_BYTES);
    let whole = if inner_lo < inner_hi { touched(inner_lo, inner_hi) } else { 0 };
    touched(lo, hi) & !whole
}

impl Env<'_> {
    pub(crate) fn meta(&self, bucket: u32) -> &Meta {
        self.pool.meta(bucket)
    }

    /// The name of a slot's content, for the eviction policy.
    pub(crate) fn bucket_name(&self, at: u32) -> u64 {
        bucket_hash(self.hash, at)
    }

    /// The bytes of a bucket that one slot alone points at, to be changed in its object's turn.
    #[allow(clippy::mut_from_ref)]
    fn bytes_mut(&self, bucket: u32) -> &mut [u8] {
        debug_assert_eq!(self.meta(bucket).refs(), 1, "others can see this bucket");
        // SAFETY: we are in the turn of the object whose slot alone points at the bucket (count of one,
        // checked with acquire by every caller), so nobody else has its bytes, and nobody can get
        // them before this turn ends. The bucket lies whole within the arena.
        unsafe { std::slice::from_raw_parts_mut(self.pool.at(bucket), BUCKET) }
    }
}

impl Object {
    // --- what is known -----------------------------------------------------------------------------

    /// Up to where an absent slot means "ask the store".
    pub(crate) fn content_end(&self) -> u64 {
        match self.head.known {
            Known::Unknown => return u64::MAX,
            Known::Absent => return 0,
            Known::Present => (),
        }
        let flushing = self.flushing.as_deref();
        if self.pending.replace || flushing.is_some_and(|flushing| flushing.replace) {
            return 0;
        }
        let cut_at = flushing.map_or(u64::MAX, |flushing| flushing.truncate_to);
        self.head.store_size.min(self.pending.truncate_to).min(cut_at)
    }

    /// Whether the store lacks something of it.
    pub(crate) fn has_pending(&self) -> bool {
        let pending = &self.pending;
        pending.replace
            || pending.truncate_to != u64::MAX
            || pending.size_dirty
            || self.slots.dirty_count() > 0
    }

    /// Whether it can be forgotten: nothing waits, nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_pending()
            && self.flushing.is_none()
            && self.head.store_changes == 0
            && self.activity.is_none()
            && self.pending.registered == 0
            && !self.pending.is_lost
    }

    pub(crate) fn activity(&mut self) -> &mut Activity {
        self.activity.get_or_insert_default()
    }

    pub(crate) fn activity_mut(&mut self) -> Option<&mut Activity> {
        self.activity.as_deref_mut()
    }

    pub(crate) fn activity_ref(&self) -> Option<&Activity> {
        self.activity.as_deref()
    }

    /// Drops what is empty.
    pub(crate) fn tidy(&mut self) {
        let idle = |activity: &Box<Activity>| activity.ranges.is_idle() && activity.flush_waiters.is_empty();
        if self.activity.as_ref().is_some_and(idle) {
            self.activity = None;
        }
    }

    /// Whether a change is on its way to, or waits for, a range.
    pub(crate) fn is_changing(&self, buckets: &Buckets) -> bool {
        self.activity.as_ref().is_some_and(|activity| activity.ranges.is_changing(buckets))
    }

    pub(crate) fn spoil_loads(&mut self, from: u32) {
        if let Some(activity) = &mut self.activity {
            activity.ranges.spoil_loads(from);
        }
    }

    // --- slots -------------------------------------------------------------------------------------

    /// Whether the slot's bucket may be changed in its place.
    fn is_exclusive(env: &Env<'_>, slot: Slot) -> bool {
        slot.state().has_bucket() && slot.state() != State::Writing && env.meta(slot.bucket()).refs() == 1
    }

    /// Puts another slot in a slot's place, and lets go of the bucket there was.
    fn put(&mut self, env: &Env<'_>, at: u32, slot: Slot) {
        let old = self.slots.set(at, slot);
        env.gauges.shift(old, slot);
        if matches!(old.state(), State::Dirty | State::DirtyWhole) {
            env.gauges.give_back(1);
        }
        if !old.state().has_bucket() {
            return;
        }
        if old.state() == State::Clean {
            env.queues.unlink(env.pool, old.bucket(), env.bucket_name(at));
        }
        if !slot.state().has_bucket() || slot.bucket() != old.bucket() {
            let meta = env.meta(old.bucket());
            if meta.owner() == Some((env.node, at)) {
                meta.set_owner(None);
            }
            env.pool.release(old.bucket());
        }
    }

    /// Forgets a slot.
    fn clear(&mut self, env: &Env<'_>, at: u32) {
        self.put(env, at, Slot::ABSENT);
    }

    /// Forgets the slots from `from` on.
    fn clear_from(&mut self, env: &Env<'_>, from: u32) {
        let known: Vec<u32> = self.slots.known_from(from).map(|(at, _)| at).collect();
        known.into_iter().for_each(|at| self.clear(env, at));
    }

    /// Forgets everything; what an object that leaves the cache does.
    pub(crate) fn clear_all(&mut self, env: &Env<'_>) {
        self.clear_from(env, 0);
        self.forget_head(env);
        *self = Self::default();
    }

    /// Forgets what is known of the object as a whole, all of which the store has.
    pub(crate) fn forget_head(&mut self, env: &Env<'_>) {
        let head = &mut self.head;
        if let Some(store) = head.store_version.filter(|store| *store != head.version) {
            env.versions.remember(env.hash, store, head.version);
        }
        (head.known, head.is_full, head.store_version) = (Known::Unknown, false, None);
    }

    /// Forgets what the store has as well; tells how many buckets went.
    pub(crate) fn drop_clean(&mut self, env: &Env<'_>) -> u64 {
        self.spoil_loads(0);
        let clean = self.slots.known_from(0);
        let clean = clean.filter(|(_, slot)| matches!(slot.state(), State::Clean | State::ZeroClean));
        let clean: Vec<u32> = clean.map(|(at, _)| at).collect();
        clean.iter().for_each(|at| self.clear(env, *at));
        clean.len() as u64
    }

    /// Evicts one clean bucket, if it still is what the evictor took it for.
    pub(crate) fn evict(&mut self, env: &Env<'_>, at: u32, bucket: u32) -> bool {
        let slot = self.slots.get(at);
        let is_loading = self.activity.as_ref().is_some_and(|activity| activity.ranges.is_loading(at));
        let goes = slot == Slot::of(State::Clean, bucket) && env.meta(bucket).refs() == 1 && !is_loading;
        if goes {
            self.clear(env, at);
        }
        goes
    }

    /// The valid sectors of a slot, with those that are zeros because nothing reaches so far.
    fn valid(&self, env: &Env<'_>, at: u32) -> u8 {
        let slot = self.slots.get(at);
        match slot.state() {
            State::Absent => self.beyond(at),
            state if state.has_bucket() => env.meta(slot.bucket()).valid(),
            _ => u8::MAX,
        }
    }

    /// The sectors of a slot that begin beyond the store's content.
    fn beyond(&self, at: u32) -> u8 {
        let start = u64::from(at) * BUCKET_U64;
        let within = self.content_end().saturating_sub(start).min(BUCKET_U64) as usize;
        !touched(0, within)
    }

    /// Takes a bucket that starts with what the slot has, and puts it in its place. Sectors that were not
    /// valid are taken from `loaded` where it has them.
    fn copy_up(&mut self, env: &Env<'_>, at: u32, means: &mut Means<'_>, keep: bool) -> Option<u32> {
        let slot = self.slots.get(at);
        let beyond = self.beyond(at);
        let has_old = slot.state().has_bucket();
        let old = has_old.then(|| env.pool.bytes(slot.bucket()));
        let bucket = means.reserved.take(|bytes| match old {
            Some(old) if keep => bytes.copy_from_slice(old),
            _ if keep => bytes.fill(0),
            _ => (),
        })?;
        let valid = match slot.state() {
            State::Absent => beyond,
            _ if has_old => env.meta(slot.bucket()).valid(),
            _ => u8::MAX,
        };
        let meta = env.meta(bucket);
        meta.set_valid(if keep { valid } else { 0 });
        meta.set_dirty(match slot.state() {
            State::Dirty => env.meta(slot.bucket()).dirty(),
            State::DirtyWhole => env.meta(slot.bucket()).valid(),
            State::ZeroDirty => u8::MAX,
            _ => 0,
        });
        meta.set_owner(Some((env.node, at)));
        Some(bucket)
    }

    /// Fills sectors of an exclusive bucket that are not valid with what the store gave.
    fn fill_up(&self, env: &Env<'_>, at: u32, bucket: u32, loaded: Option<&Loaded>) {
        let meta = env.meta(bucket);
        let missing = !meta.valid();
        if missing == 0 {
            return;
        }
        let start = u64::from(at) * BUCKET_U64;
        let beyond = self.beyond(at);
        let data = loaded.and_then(|loaded| loaded.slice(start, start + BUCKET_U64));
        if data.is_none() && missing & beyond == 0 {
            return;
        }
        let data = data.map(|data| data.to_bytes());
        let bytes = env.bytes_mut(bucket);
        let end = self.content_end().saturating_sub(start).min(BUCKET_U64) as usize;
        for sector in (0..SECTORS).filter(|sector| missing & 1 << sector != 0) {
            let (lo, hi) = (sector * SECTOR_BYTES, (sector + 1) * SECTOR_BYTES);
            if beyond & 1 << sector != 0 {
                bytes[lo..hi].fill(0);
            } else if let Some(data) = &data {
                let reach = end.clamp(lo, hi);
                bytes[lo..reach].copy_from_slice(&data[lo..reach]);
                bytes[reach..hi].fill(0);
            } else {
                continue;
            }
            meta.set_valid(meta.valid() | 1 << sector);
        }
    }

    // --- reading -----------------------------------------------------------------------------------

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
                        env.queues.hit(meta, env.bucket_name(at));
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

    /// A bucket's bytes with those of the store where it has none that are valid.
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

    // --- changing, in the cache first --------------------------------------------------------------

    /// What a write of a range lacks.
    pub(crate) fn need_of_write(&self, env: &Env<'_>, offset: u64, len: u64, means: &Means<'_>) -> Need {
        let mut need = Need::default();
        for (at, lo, hi) in parts(offset, len) {
            let slot = self.slots.get(at);
            let edges = edges(lo, hi) & !self.valid(env, at) & !self.beyond(at);
            if edges != 0 && !means.loaded.is_some_and(|loaded| loaded.covers(at)) {
                need.load_of(at);
            }
            need.buckets += u32::from(!Self::is_exclusive(env, slot));
            need.credits += u32::from(!matches!(slot.state(), State::Dirty | State::DirtyWhole));
        }
        need
    }

    /// Writes a range as newer than the store. `means` has what [`Self::need_of_write`] asked for.
    pub(crate) fn write(&mut self, env: &Env<'_>, offset: u64, data: &Segments, means: &mut Means<'_>) {
        let mut from = Cursor::new(data);
        let len = data.len_bytes() as u64;
        for (at, lo, hi) in parts(offset, len) {
            self.write_slot(env, at, lo, hi, means, |bytes| from.copy_to(bytes));
        }
        self.grow_to(offset + len, len > 0);
    }

    fn grow_to(&mut self, end: u64, is_change: bool) {
        if is_change && end > self.head.size {
            self.head.size = end;
            self.pending.size_dirty = true;
        }
    }

    fn write_slot(
        &mut self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        means: &mut Means<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let slot = self.slots.get(at);
        let was_dirty = matches!(slot.state(), State::Dirty | State::DirtyWhole);
        let is_whole = hi - lo == BUCKET;
        let bucket = if Self::is_exclusive(env, slot) {
            if slot.state() == State::DirtyWhole {
                env.meta(slot.bucket()).set_dirty(env.meta(slot.bucket()).valid());
                env.meta(slot.bucket()).set_owner(Some((env.node, at)));
            } else if slot.state() == State::Clean {
                env.meta(slot.bucket()).set_dirty(0);
            }
            slot.bucket()
        } else {
            self.copy_up(env, at, means, !is_whole).expect("buckets were reserved for all slots of the range")
        };
        let meta = env.meta(bucket);
        if !is_whole {
            self.fill_up(env, at, bucket, means.loaded);
        }
        fill(&mut env.bytes_mut(bucket)[lo..hi]);
        let touched = touched(lo, hi);
        meta.set_valid(meta.valid() | touched);
        meta.set_dirty(meta.dirty() | touched);
        if slot == Slot::of(State::Dirty, bucket) {
            return;
        }
        if was_dirty {
            // `put` gives the slot's credit back: it goes on with it.
            env.gauges.take_again(1);
        } else {
            means.credits -= 1;
        }
        self.put(env, at, Slot::of(State::Dirty, bucket));
    }

    /// What writing zeros lacks: whole buckets become a state, parts are written.
    pub(crate) fn need_of_zeroes(&self, env: &Env<'_>, offset: u64, len: u64, means: &Means<'_>) -> Need {
        let mut need = Need::default();
        for (at, lo, hi) in parts(offset, len).filter(|(_, lo, hi)| hi - lo < BUCKET) {
            if self.is_zero(at) {
                continue;
            }
            let part =
                self.need_of_write(env, u64::from(at) * BUCKET_U64 + lo as u64, (hi - lo) as u64, means);
            need.buckets += part.buckets;
            need.credits += part.credits;
            part.load.into_iter().for_each(|load| need.load_of(load.start));
        }
        need
    }

    /// Whether all of a slot is known to be zeros.
    fn is_zero(&self, at: u32) -> bool {
        match self.slots.get(at).state() {
            State::Absent => u64::from(at) * BUCKET_U64 >= self.content_end(),
            state => !state.has_bucket(),
        }
    }

    /// Zeroes a range, newer than the store. `extends`: moves the end, as a write does.
    pub(crate) fn write_zeroes(
        &mut self,
        env: &Env<'_>,
        offset: u64,
        len: u64,
        extends: bool,
        means: &mut Means<'_>,
    ) {
        for (at, lo, hi) in parts(offset, len) {
            if hi - lo == BUCKET {
                let is_new = !matches!(self.slots.get(at).state(), State::ZeroDirty)
                    && !(self.slots.get(at) == Slot::ABSENT && self.is_zero(at));
                if is_new {
                    self.put(env, at, Slot::bare(State::ZeroDirty));
                }
            } else if !self.is_zero(at) {
                self.write_slot(env, at, lo, hi, means, |bytes| bytes.fill(0));
            }
        }
        self.grow_to(offset + len, extends && len > 0);
    }

    /// What moving the end inwards lacks: a bucket, if others see that in which the new end lies.
    pub(crate) fn need_of_truncate(&self, env: &Env<'_>, size: u64) -> Need {
        let slot = self.slots.get((size / BUCKET_U64) as u32);
        let is_cut = size < self.head.size && !size.is_multiple_of(BUCKET_U64) && slot.state().has_bucket();
        let copies = is_cut && !Self::is_exclusive(env, slot);
        let writes = is_cut && !matches!(slot.state(), State::Dirty | State::DirtyWhole);
        Need { buckets: u32::from(copies), credits: u32::from(writes), load: None }
    }

    /// Moves the end, newer than the store.
    pub(crate) fn truncate(&mut self, env: &Env<'_>, size: u64, means: &mut Means<'_>) {
        if size < self.head.size {
            self.pending.truncate_to = self.pending.truncate_to.min(size);
            self.spoil_loads((size / BUCKET_U64) as u32);
            self.clear_from(env, size.div_ceil(BUCKET_U64) as u32);
            let (at, lo) = ((size / BUCKET_U64) as u32, (size % BUCKET_U64) as usize);
            if lo > 0 && self.slots.get(at).state().has_bucket() {
                self.cut_slot(env, at, lo, means);
            }
        }
        self.head.size = size;
        self.pending.size_dirty = true;
    }

    /// Zeroes a slot's bytes from `lo` on; they are zeros in the store too once it is cut there.
    fn cut_slot(&mut self, env: &Env<'_>, at: u32, lo: usize, means: &mut Means<'_>) {
        let valid_before = self.valid(env, at);
        self.write_slot(env, at, lo, BUCKET, means, |bytes| bytes.fill(0));
        // The sector in which the end lies is only as valid as it was.
        let meta = env.meta(self.slots.get(at).bucket());
        let edge = edges(lo, BUCKET) & !valid_before;
        meta.set_valid(meta.valid() & !edge);
        meta.set_dirty(meta.dirty() & !edge);
    }

    /// Forgets all content, to be replaced as a whole, or removed.
    pub(crate) fn replace(&mut self, env: &Env<'_>, known: Known) {
        self.spoil_loads(0);
        self.clear_from(env, 0);
        self.pending.replace = known == Known::Present || self.head.store_exists || self.flushing.is_some();
        self.pending.truncate_to = u64::MAX;
        self.pending.size_dirty = known == Known::Present;
        self.pending.is_lost = false;
        self.head.known = known;
        self.head.size = 0;
    }

    /// Notes a change that the store does not know of.
    pub(crate) fn note_change(&mut self, now: Timestamp, version: u64, domain: Option<OrderDomain>) {
        let was_pending = self.pending.change_seq > self.pending.stored_seq;
        let pending = &mut self.pending;
        if !was_pending {
            (pending.dirty_since, pending.domain, pending.domains_mixed) = (now, domain, false);
        } else if pending.domain != domain {
            pending.domains_mixed = true;
        }
        pending.change_seq += 1;
        self.head.version = version;
    }

    // --- changing, after the store has ------------------------------------------------------------

    /// Takes over what has been stored: bytes for a range. Never waits: what finds no bucket is forgotten.
    pub(crate) fn write_through(
        &mut self,
        env: &Env<'_>,
        offset: u64,
        data: &Segments,
        means: &mut Means<'_>,
    ) {
        let mut from = Cursor::new(data);
        for (at, lo, hi) in parts(offset, data.len_bytes() as u64) {
            self.take_over(env, at, lo, hi, means, |bytes| from.copy_to(bytes));
        }
    }

    /// Takes over zeros that have been stored.
    pub(crate) fn zero_through(&mut self, env: &Env<'_>, offset: u64, len: u64, means: &mut Means<'_>) {
        for (at, lo, hi) in parts(offset, len) {
            let slot = self.slots.get(at);
            if hi - lo == BUCKET {
                self.put(env, at, Slot::bare(State::ZeroClean));
            } else if slot.state().has_bucket() {
                self.take_over(env, at, lo, hi, means, |bytes| bytes.fill(0));
            }
        }
    }

    fn take_over(
        &mut self,
        env: &Env<'_>,
        at: u32,
        lo: usize,
        hi: usize,
        means: &mut Means<'_>,
        fill: impl FnOnce(&mut [u8]),
    ) {
        let slot = self.slots.get(at);
        let is_whole = hi - lo == BUCKET;
        debug_assert!(!slot.state().is_dirty(), "the object was flushed before");
        let skipped = &mut [0; BUCKET][..hi - lo];
        if slot == Slot::ABSENT && touched(lo, hi) & !edges(lo, hi) == 0 {
            // Not one whole sector: nothing that could be kept.
            return fill(skipped);
        }
        let bucket = if Self::is_exclusive(env, slot) {
            slot.bucket()
        } else {
            match self.copy_up(env, at, means, !is_whole) {
                Some(bucket) => bucket,
                None => {
                    fill(skipped);
                    return self.clear(env, at);
                }
            }
        };
        let meta = env.meta(bucket);
        // A sector that is covered only in part stays as valid as it was.
        let valid = meta.valid() | touched(lo, hi) & !edges(lo, hi);
        fill(&mut env.bytes_mut(bucket)[lo..hi]);
        meta.set_valid(valid);
        meta.set_dirty(0);
        if slot == Slot::of(State::Clean, bucket) {
            env.queues.hit(meta, env.bucket_name(at));
        } else {
            let is_new = slot.state() != State::Clean;
            self.put(env, at, Slot::of(State::Clean, bucket));
            env.queues.link(env.pool, bucket, env.bucket_name(at), is_new);
        }
    }

    /// Forgets a range that has been changed below.
    pub(crate) fn forget(&mut self, env: &Env<'_>, buckets: Buckets) {
        let known = self.slots.known_from(buckets.start).map(|(at, _)| at);
        let known: Vec<u32> = known.take_while(|at| *at < buckets.end).collect();
        known.into_iter().for_each(|at| self.clear(env, at));
    }

    /// The end has been moved below.
    pub(crate) fn truncated(&mut self, env: &Env<'_>, size: u64) {
        self.spoil_loads((size / BUCKET_U64) as u32);
        self.clear_from(env, (size / BUCKET_U64) as u32);
    }

    // --- sharing ------------------------------------------------------------------------------------

    /// The dirty slots, and one more count of each bucket among them: what a copy takes over.
    pub(crate) fn share(&self, env: &Env<'_>, all: bool) -> Vec<(u32, Slot)> {
        let is_shared = |slot: &Slot| match slot.state() {
            State::Absent => false,
            State::ZeroClean | State::Clean => all,
            _ => true,
        };
        let shared: Vec<_> = self.slots.known_from(0).filter(|(_, slot)| is_shared(slot)).collect();
        let buckets = shared.iter().filter(|(_, slot)| slot.state().has_bucket());
        buckets.for_each(|(_, slot)| env.pool.retain(slot.bucket()));
        let taken = shared.into_iter().map(|(at, slot)| {
            let has_bucket = slot.state().has_bucket();
            let slot = if has_bucket {
                Slot::of(State::DirtyWhole, slot.bucket())
            } else {
                Slot::bare(State::ZeroDirty)
            };
            (at, slot)
        });
        taken.collect()
    }

    /// Takes over what [`Self::share`] gave, with a credit for each bucket.
    pub(crate) fn adopt(&mut self, env: &Env<'_>, shared: Vec<(u32, Slot)>) {
        shared.into_iter().for_each(|(at, slot)| self.put(env, at, slot));
    }

    // --- for validate -------------------------------------------------------------------------------

    /// Every invariant that one object can tell by itself.
    pub(crate) fn validate(&self, env: &Env<'_>) -> Result<[u64; STATES], String> {
        let mut counts = [0; STATES];
        let end = self.head.size.div_ceil(BUCKET_U64);
        for (at, slot) in self.slots.known_from(0) {
            counts[slot.state() as usize] += 1;
            if self.head.known == Known::Present && u64::from(at) >= end {
                return Err(format!("slot {at} is {:?} beyond the end {}", slot.state(), self.head.size));
            }
            if slot.state().has_bucket() {
                let meta = env.meta(slot.bucket());
                if meta.refs() == 0 {
                    return Err(format!("slot {at} points at a free bucket"));
                }
                let is_own = meta.owner() == Some((env.node, at));
                if slot.state() == State::Clean && !is_own {
                    return Err(format!("clean slot {at} does not own its bucket"));
                }
                // None may be dirty: those that were can have been cut off.
                if slot.state() == State::Dirty && (!is_own || meta.dirty() & !meta.valid() != 0) {
                    return Err(format!(
                        "dirty slot {at}: dirty {:08b} valid {:08b}",
                        meta.dirty(),
                        meta.valid()
                    ));
                }
            }
        }
        for state in State::ALL.into_iter().skip(1) {
            if counts[state as usize] != u64::from(self.slots.count_of(state)) {
                return Err(format!(
                    "{} slots are {state:?}, counted {}",
                    counts[state as usize],
                    self.slots.count_of(state)
                ));
            }
        }
        if self.has_pending() != (self.pending.change_seq > self.pending.stored_seq)
            && self.flushing.is_none()
        {
            return Err(format!("pending {:?} with {} dirty slots", self.pending, self.slots.dirty_count()));
        }
        if self.has_pending() && self.pending.registered == 0 {
            return Err("something waits to be stored and nobody knows".into());
        }
        Ok(counts)
    }

    /// Who may go on after an entry is removed.
    pub(crate) fn leave_range(&mut self, ticket: super::ranges::Ticket) -> Vec<Waker> {
        let woken = self.activity.as_mut().map_or_else(Vec::new, |activity| activity.ranges.leave(ticket));
        self.tidy();
        woken
    }
}

/// A range cut at bucket boundaries: the slot, and where within it.
pub(crate) fn parts(offset: u64, len: u64) -> impl Iterator<Item = (u32, usize, usize)> {
    let end = offset + len;
    let slots = if len == 0 { 0..0 } else { offset / BUCKET_U64..end.div_ceil(BUCKET_U64) };
    slots.map(move |at| {
        let start = at * BUCKET_U64;
        let (lo, hi) = (offset.saturating_sub(start), (end - start).min(BUCKET_U64));
        (at as u32, lo as usize, hi as usize)
    })
}

/// The buckets that a range touches.
pub(crate) fn buckets_of(offset: u64, len: u64) -> Buckets {
    let first = (offset / BUCKET_U64) as u32;
    first..(offset.saturating_add(len).div_ceil(BUCKET_U64) as u32).max(first + 1)
}

fn push_zeros(data: &mut Segments, zeros: &mut usize) {
    if *zeros > 0 {
        data.append(Segments::zeros(std::mem::take(zeros)));
    }
}

/// Walks a payload.
struct Cursor<'a> {
    rest: &'a [Segment],
    within: usize,
}

impl<'a> Cursor<'a> {
    fn new(data: &'a Segments) -> Self {
        Self { rest: data.as_slice(), within: 0 }
    }

    fn copy_to(&mut self, mut target: &mut [u8]) {
        while let (Some(first), false) = (self.rest.first(), target.is_empty()) {
            let bytes = &first.as_slice()[self.within..];
            let count = bytes.len().min(target.len());
            let (now, later) = target.split_at_mut(count);
            now.copy_from_slice(&bytes[..count]);
            target = later;
            self.within += count;
            if self.within == first.len_bytes() {
                (self.rest, self.within) = (&self.rest[1..], 0);
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn masks_know_whole_and_partial_sectors() {
        assert_eq!((touched(0, 4096), edges(0, 4096)), (255, 0));
        assert_eq!((touched(512, 1024), edges(512, 1024)), (2, 0));
        assert_eq!((touched(100, 1000), edges(100, 1000)), (3, 3));
        assert_eq!((touched(0, 513), edges(0, 513)), (3, 2));
        assert_eq!((touched(4095, 4096), edges(4095, 4096)), (128, 128));
        assert_eq!(touched(0, 0), 0);
    }

    #[test]
    fn ranges_are_cut_at_buckets() {
        assert_eq!(parts(4000, 5000).collect::<Vec<_>>(), [(0, 4000, 4096), (1, 0, 4096), (2, 0, 808)]);
        assert_eq!(parts(4096, 4096).collect::<Vec<_>>(), [(1, 0, 4096)]);
        assert_eq!(parts(77, 0).count(), 0);
        assert_eq!((buckets_of(4096, 1), buckets_of(0, 0), buckets_of(1, 8192)), (1..2, 0..1, 0..3));
    }
}
