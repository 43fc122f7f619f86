//! Read-ahead and bypass: data that are read sequentially are fetched before they are requested,
//! and long sequential runs are not kept in the cache.
//!
//! This module decides; [`super::read::fetch_ahead`] asks the store. A miss is looked up in a table
//! of [progressions](progressions). A bucket that is read ahead has its own flags beside the
//! policy's bits, which its first read finds: so a hit on any other bucket costs nothing.

mod accuracy;
mod object_numbers;
mod progressions;
mod requests;

use std::ops::Range;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::Duration;

use accuracy::{Accuracy, StoreSpeed};
use blocker::metrics::{Counter, counters};
use blocker::{BUCKET_BYTES, Call, Hints, Name, NamespaceKey, ObjectId};
use object_numbers::ObjectNumber;
use progressions::{Access, Found, Plan, Progressions, Terms};
use requests::Requests;

pub(crate) use progressions::Pattern;
pub(crate) use requests::{Fetch, Marked, Request};

use super::config::{NAMESPACES_MAX, NamespaceConfig, OTHERS, ObjectCacheConfig};
use super::control::namespaces::Namespaces;
use super::lock_ranks;
use crate::hash::KeyHasher;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// The number of tables of progressions; each row of objects belongs to one of them.
const TABLES: usize = 8;
/// At most one in this many buckets may be read ahead and unread.
const UNREAD_SHARE: u32 = 8;
/// A window takes at most one in this many of the buckets that may still be read ahead.
///
/// So a single progression has long windows, and many have short ones, which stay until they are
/// read: each queue of a shared buffer is bounded by a fraction of its free space (Choudhury and
/// Hahne, "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
/// Transactions on Networking 6(2), 1998). This requires no count of the progressions, which could
/// not be known exactly.
const ROOM_SHARE: u32 = 2;

/// See the module.
pub(crate) struct ReadAhead {
    reads: [Mutex<Progressions>; TABLES],
    writes: [Mutex<Progressions>; TABLES],
    hasher: KeyHasher,
    requests: Requests,
    speed: StoreSpeed,
    /// Reads of the store that take at least this long are slow; 0: all are.
    slow_nanos: u64,
    defaults: FlowSettings,
    /// The state of each namespace, by its number, once it has some.
    flows: Box<[OnceLock<Box<Flow>>]>,
    /// Whether reads of any namespace must be observed.
    follows_reads: AtomicBool,
    /// Whether any namespace has a bypass threshold for writes.
    follows_writes: AtomicBool,
    /// The number of buckets that were read ahead and have not been read.
    unread: AtomicU32,
    /// The number of buckets that are being read ahead.
    coming: AtomicU32,
    /// The maximum of the two together.
    unread_max: u32,
    object_end_max: u32,
}

impl ReadAhead {
    /// Returns the read-ahead of a cache with `buckets` buckets.
    pub(crate) fn new(config: &ObjectCacheConfig, buckets: u32, numbers: &Namespaces) -> Self {
        let table = || Mutex::ranked(Progressions::default(), &lock_ranks::READ_AHEAD);
        let own = Self {
            reads: std::array::from_fn(|_| table()),
            writes: std::array::from_fn(|_| table()),
            hasher: KeyHasher::new(config.hash_seed),
            requests: Requests::default(),
            speed: StoreSpeed::default(),
            slow_nanos: nanos(config.read_ahead_latency_min),
            defaults: FlowSettings::default(),
            flows: (0..=NAMESPACES_MAX).map(|_| OnceLock::new()).collect(),
            follows_reads: AtomicBool::new(false),
            follows_writes: AtomicBool::new(false),
            unread: AtomicU32::new(0),
            coming: AtomicU32::new(0),
            unread_max: (buckets / UNREAD_SHARE).max(1),
            // A bucket's index in its object has 16 bits.
            object_end_max: (config.object_bytes_max / BUCKET_BYTES) as u32,
        };
        own.set(config, numbers);
        own
    }

    /// Applies the settings that can change while the cache runs.
    pub(crate) fn set(&self, config: &ObjectCacheConfig, numbers: &Namespaces) {
        self.defaults.read_ahead_bytes_max.set(Some(config.read_ahead_bytes_max));
        self.defaults.bypass_read_bytes_min.set(Some(config.bypass_read_bytes_min));
        self.defaults.bypass_write_bytes_min.set(Some(config.bypass_write_bytes_min));
        let configured = |each: &NamespaceConfig| numbers.of(&each.namespace);
        let all: Vec<u16> = config.namespaces.iter().map(configured).collect();
        for (number, flow) in (0..).zip(&self.flows) {
            if let Some(flow) = flow.get().filter(|_| !all.contains(&number)) {
                set_own(&flow.own, None);
            }
        }
        for (each, number) in config.namespaces.iter().zip(&all).filter(|(_, number)| **number != OTHERS) {
            set_own(&self.flow(*number).own, Some(each));
        }
        let any = |default: u64, key: NamespaceKey| {
            default > 0 || config.namespaces.iter().any(|each| each.own(key).is_some_and(|bytes| bytes > 0))
        };
        let reads = any(config.read_ahead_bytes_max, NamespaceKey::ReadAheadBytesMax)
            || any(config.bypass_read_bytes_min, NamespaceKey::BypassReadBytesMin);
        self.follows_reads.store(reads, Ordering::Relaxed);
        let writes = any(config.bypass_write_bytes_min, NamespaceKey::BypassWriteBytesMin);
        self.follows_writes.store(writes, Ordering::Relaxed);
    }

    fn flow(&self, namespace: u16) -> &Flow {
        self.flows[usize::from(namespace)].get_or_init(Box::default)
    }

    /// Returns the counters of a namespace.
    pub(crate) fn of(&self, namespace: u16) -> FlowCounters {
        let flow = self.flows[usize::from(namespace)].get();
        flow.map_or_else(FlowCounters::default, |flow| flow.counters.map(Counter::get))
    }

    /// Returns the sums over all namespaces.
    pub(crate) fn total(&self) -> FlowCounters {
        let mut total = FlowCounters::default();
        for flow in self.flows.iter().filter_map(OnceLock::get) {
            flow.counters.zip(&mut total, |counter, sum| *sum += counter.get());
        }
        total
    }

    /// Records how long the store took to respond to a read for which a caller waited.
    pub(crate) fn note_answer(&self, took: Duration) {
        self.speed.note(took, Duration::from_nanos(self.slow_nanos));
    }

    /// Returns the same terms, with the window limited to the current room.
    fn within_room(&self, terms: Terms) -> Terms {
        let taken = self.unread.load(Ordering::Relaxed).saturating_add(self.coming.load(Ordering::Relaxed));
        let room = self.unread_max.saturating_sub(taken) / ROOM_SHARE;
        Terms { window_max: terms.window_max.min(room), ..terms }
    }

    /// Returns the terms of read-ahead in a namespace upon a miss or a mark.
    fn terms(&self, flow: &Flow, hints: Hints) -> Terms {
        let bytes = flow.own.read_ahead_bytes_max.or(&self.defaults.read_ahead_bytes_max);
        let is_of_use = self.slow_nanos == 0 || self.speed.is_slow();
        if !is_of_use || bytes < BUCKET_BYTES {
            return Terms::NONE;
        }
        let most = u32::try_from(bytes / BUCKET_BYTES).unwrap_or(u32::MAX).min(self.unread_max);
        let mut terms = flow.accuracy.terms(most);
        if hints.has(Hints::SEQUENTIAL) {
            terms.in_order_min = 1;
        }
        terms
    }

    fn place(&self, id: &ObjectId) -> Place {
        let name = id.name.as_bytes();
        let (number, digits) = ObjectNumber::of(name);
        let row = self.hasher.hash_pair(id.namespace.as_bytes(), &name[..digits.start]);
        Place { row, number, digits }
    }

    /// Observes a read that needs the store, and makes the background read ahead if necessary;
    /// returns whether the read bypasses the cache. `object_end` is the end of the object, as far
    /// as known.
    pub(crate) fn observe_read(
        &self,
        namespace: u16,
        id: &ObjectId,
        buckets: Range<u32>,
        object_end: u64,
        call: Call,
    ) -> bool {
        let hints = call.hints;
        if !self.follows_reads.load(Ordering::Relaxed)
            || hints.has(Hints::RANDOM)
            || hints.has(Hints::NO_CACHE)
        {
            return false;
        }
        let flow = self.flow(namespace);
        let terms = self.terms(flow, hints);
        let cut_off = flow.own.bypass_read_bytes_min.or(&self.defaults.bypass_read_bytes_min);
        if terms.window_max == 0 && cut_off == 0 {
            return false;
        }
        let place = self.place(id);
        let access = place.access(&buckets, self.end_in_buckets(object_end));
        let found = lock(&self.reads[place.table()]).observe(&access, self.within_room(terms));
        let is_passing = passes(&found, cut_off);
        if let Some(plan) = found.plan
            && let Some(id) = place.id_of(id, &plan)
        {
            self.requests.push(Request::Fetch(Fetch { id, plan, is_passing }));
        }
        if is_passing {
            let bytes = u64::from(access.end - access.first) * BUCKET_BYTES;
            flow.counters.bypassed_read_bytes.add(bytes);
        }
        is_passing
    }

    /// Observes the first read of a marked bucket, and returns what to read ahead next.
    pub(crate) fn reach_mark(
        &self,
        namespace: u16,
        id: &ObjectId,
        bucket: u32,
        object_end: u64,
    ) -> Option<Fetch> {
        let (flow, place) = (self.flow(namespace), self.place(id));
        let access = place.access(&(bucket..bucket + 1), self.end_in_buckets(object_end));
        let terms = self.within_room(self.terms(flow, Hints::NONE));
        let found = lock(&self.reads[place.table()]).reach_mark(&access, terms);
        let is_passing =
            passes(&found, flow.own.bypass_read_bytes_min.or(&self.defaults.bypass_read_bytes_min));
        let plan = found.plan?;
        Some(Fetch { id: place.id_of(id, &plan)?, plan, is_passing })
    }

    /// Returns whether any namespace has a bypass threshold for writes: then
    /// [`Self::observe_write`] must be called.
    #[inline]
    pub(crate) fn follows_writes(&self) -> bool {
        self.follows_writes.load(Ordering::Relaxed)
    }

    /// Observes a write; returns whether it bypasses the cache.
    pub(crate) fn observe_write(
        &self,
        namespace: u16,
        id: &ObjectId,
        buckets: Range<u32>,
        bytes: u64,
    ) -> bool {
        let flow = self.flow(namespace);
        let cut_off = flow.own.bypass_write_bytes_min.or(&self.defaults.bypass_write_bytes_min);
        if cut_off == 0 || buckets.is_empty() {
            return false;
        }
        let place = self.place(id);
        let access = place.access(&buckets, self.object_end_max);
        let found = lock(&self.writes[place.table()]).observe(&access, Terms::NONE);
        let is_passing = passes(&found, cut_off);
        if is_passing {
            flow.counters.bypassed_write_bytes.add(bytes);
        }
        is_passing
    }

    fn end_in_buckets(&self, bytes: u64) -> u32 {
        u32::try_from(bytes.div_ceil(BUCKET_BYTES)).unwrap_or(u32::MAX).min(self.object_end_max)
    }

    /// Takes the next request; if there is none, `waker` is woken when there is.
    pub(crate) fn next_request(&self, waker: &Waker) -> Option<Request> {
        self.requests.take(waker)
    }

    /// Makes the background continue after a marked bucket that has been read.
    pub(crate) fn mark_was_read(&self, marked: Marked) {
        self.requests.push(Request::Marked(marked));
    }

    /// Counts buckets that are about to be read ahead, as many of `count` as there is room for;
    /// returns how many.
    pub(crate) fn begin(&self, count: u32) -> u32 {
        let unread = self.unread.load(Ordering::Relaxed);
        let coming = self.coming.fetch_add(count, Ordering::Relaxed);
        let room = self.unread_max.saturating_sub(unread.saturating_add(coming)).min(count);
        self.coming.fetch_sub(count - room, Ordering::Relaxed);
        room
    }

    /// Removes `count` buckets from the count of those being read ahead.
    pub(crate) fn end(&self, count: u32) {
        self.coming.fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts a bucket that was read ahead.
    pub(crate) fn count_ahead(&self, namespace: u16) {
        self.unread.fetch_add(1, Ordering::Relaxed);
        self.flow(namespace).counters.ahead.increment();
    }

    /// Counts a bucket that was read only because it lies between others, and is not kept. This was
    /// known in advance, so it does not count as a wrong guess.
    pub(crate) fn count_between(&self, namespace: u16) {
        let counters = &self.flow(namespace).counters;
        counters.ahead.increment();
        counters.wasted.increment();
    }

    /// Counts the first read of a bucket that was read ahead.
    pub(crate) fn count_used(&self, namespace: u16) {
        self.unread.fetch_sub(1, Ordering::Relaxed);
        let flow = self.flow(namespace);
        flow.counters.used.increment();
        flow.accuracy.count(true);
    }

    /// Counts a bucket that was read ahead and has been evicted or overwritten unread.
    pub(crate) fn count_wasted(&self, namespace: u16) {
        self.unread.fetch_sub(1, Ordering::Relaxed);
        let flow = self.flow(namespace);
        flow.counters.wasted.increment();
        flow.accuracy.count(false);
    }

    /// Returns the number of buckets that were read ahead and have not been read.
    pub(crate) fn unread(&self) -> u32 {
        self.unread.load(Ordering::Relaxed)
    }
}

/// The place of an object: its row, and the position of its number in its name.
struct Place {
    row: u64,
    number: ObjectNumber,
    digits: Range<usize>,
}

impl Place {
    fn table(&self) -> usize {
        self.row as usize % TABLES
    }

    fn access(&self, buckets: &Range<u32>, object_end: u32) -> Access {
        let end = buckets.end.min(object_end.max(buckets.start + 1)).max(buckets.start + 1);
        Access { row: self.row, object: self.number, first: buckets.start, end, object_end }
    }

    /// Returns the name of a plan's object: that of `id`, or of the object after it.
    fn id_of(&self, id: &ObjectId, plan: &Plan) -> Option<ObjectId> {
        if plan.object == self.number {
            return Some(id.clone());
        }
        let name = plan.object.in_place_of(id.name.as_bytes(), self.digits.clone());
        Some(ObjectId::new(id.namespace.clone(), Name::new(name).ok()?))
    }
}

fn passes(found: &Found, cut_off_bytes: u64) -> bool {
    cut_off_bytes > 0 && found.buckets.saturating_mul(BUCKET_BYTES) >= cut_off_bytes
}

fn set_own(own: &FlowSettings, config: Option<&NamespaceConfig>) {
    let value = |key| config.and_then(|config| config.own(key));
    own.read_ahead_bytes_max.set(value(NamespaceKey::ReadAheadBytesMax));
    own.bypass_read_bytes_min.set(value(NamespaceKey::BypassReadBytesMin));
    own.bypass_write_bytes_min.set(value(NamespaceKey::BypassWriteBytesMin));
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Marks a setting for which a namespace has no value of its own.
const NO_OWN: u64 = u64::MAX;

/// A setting of the whole cache, or one that a namespace may have of its own.
#[derive(Debug)]
pub(crate) struct Setting(AtomicU64);

impl Default for Setting {
    fn default() -> Self {
        Self(AtomicU64::new(NO_OWN))
    }
}

impl Setting {
    pub(crate) fn set(&self, value: Option<u64>) {
        self.0.store(value.map_or(NO_OWN, |value| value.min(NO_OWN - 1)), Ordering::Relaxed);
    }

    /// Returns the value, or that of `default` if there is none.
    pub(crate) fn or(&self, default: &Setting) -> u64 {
        match self.0.load(Ordering::Relaxed) {
            NO_OWN => default.0.load(Ordering::Relaxed),
            own => own,
        }
    }
}

/// The settings of the whole cache, or the own settings of a namespace.
#[derive(Debug, Default)]
pub(crate) struct FlowSettings {
    pub(crate) read_ahead_bytes_max: Setting,
    pub(crate) bypass_read_bytes_min: Setting,
    pub(crate) bypass_write_bytes_min: Setting,
}

counters! {
    /// Buckets that were read ahead, and bytes that have bypassed the cache, since the start.
    #[derive(Debug, Default)]
    pub(crate) struct FlowCounters<C = u64> {
        ahead,
        used,
        wasted,
        bypassed_read_bytes,
        bypassed_write_bytes,
    }
}

/// The read-ahead and bypass state of a namespace: its settings, its counters, its accuracy.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    pub(crate) own: FlowSettings,
    pub(crate) counters: FlowCounters<Counter>,
    pub(crate) accuracy: Accuracy,
}
