//! Read-ahead and bypass: data that are read sequentially are fetched before they are requested,
//! and long sequential runs are not kept in the cache.
//!
//! This module decides which data to load; [`super::read::load`] requests them from the store. A
//! miss is looked up in a table of [progressions](progressions). A bucket that is read ahead has
//! its own flags next to the policy's bits, which its first read finds: so a hit on any other
//! bucket costs nothing.

mod accuracy;
mod object_numbers;
mod progressions;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::OnceLock;
use std::task::Waker;
use std::time::Duration;

use accuracy::{Accuracy, StoreSpeed};
use blocker::metrics::{Counter, counters};
use blocker::{BUCKET_BYTES, Call, Hints, Name, NamespaceKey, ObjectId};
use object_numbers::ObjectNumber;
use progressions::{Access, Found, Plan, Progressions, Terms};

pub(crate) use progressions::Pattern;

use super::config::{NAMESPACES_MAX, NamespaceConfig, OTHERS, ObjectCacheConfig};
use super::control::namespaces::Namespaces;
use super::control::records::nanos;
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
    /// Requests to the background.
    pub(crate) requests: Requests,
    speed: StoreSpeed,
    /// Reads of the store that take at least this long are slow; 0 if all count as slow.
    slow_nanos: u64,
    /// The settings of the whole cache.
    defaults: Settings,
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
            defaults: Settings::default(),
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
        let defaults =
            [config.read_ahead_bytes_max, config.bypass_read_bytes_min, config.bypass_write_bytes_min];
        self.defaults.set(|which| Some(defaults[which]));
        let namespaces = config.namespaces.iter().map(|each| (numbers.of(&each.namespace), each));
        let mut configured: HashMap<u16, &NamespaceConfig> = namespaces.collect();
        configured.remove(&OTHERS);
        for (number, flow) in (0..).zip(&self.flows) {
            let own = configured.get(&number);
            if own.is_some() || flow.get().is_some() {
                let settings = &flow.get_or_init(Box::default).own;
                settings.set(|which| own.and_then(|own| own.own(KEYS[which])));
            }
        }
        let follows = |which: usize| {
            let has_own = |each: &NamespaceConfig| each.own(KEYS[which]).is_some_and(|bytes| bytes > 0);
            defaults[which] > 0 || config.namespaces.iter().any(has_own)
        };
        self.follows_reads.store(follows(READ_AHEAD) || follows(BYPASS_READ), Ordering::Relaxed);
        self.follows_writes.store(follows(BYPASS_WRITE), Ordering::Relaxed);
    }

    /// Returns the setting in force for a namespace.
    fn setting(&self, flow: &Flow, which: usize) -> u64 {
        flow.own.get(which).or(self.defaults.get(which)).unwrap_or(0)
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
        let bytes = self.setting(flow, READ_AHEAD);
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
        let cut_off = self.setting(flow, BYPASS_READ);
        if terms.window_max == 0 && cut_off == 0 {
            return false;
        }
        let place = self.place(id);
        let access = place.access(&buckets, self.end_in_buckets(object_end));
        let found = lock(&self.reads[place.table()]).observe(&access, self.within_room(terms));
        let is_passing = passes(&found, cut_off);
        if let Some(fetch) = found.plan.and_then(|plan| place.fetch(id, plan, is_passing)) {
            self.requests.push(Request::Fetch(fetch));
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
        place.fetch(id, found.plan?, passes(&found, self.setting(flow, BYPASS_READ)))
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
        let cut_off = self.setting(flow, BYPASS_WRITE);
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

    /// Returns the request for a plan, whose object is `id` or the object after it.
    fn fetch(&self, id: &ObjectId, plan: Plan, is_passing: bool) -> Option<Fetch> {
        let mut id = id.clone();
        if plan.object != self.number {
            let name = plan.object.in_place_of(id.name.as_bytes(), self.digits.clone());
            id.name = Name::new(name).ok()?;
        }
        Some(Fetch { id, plan, is_passing })
    }
}

fn passes(found: &Found, cut_off_bytes: u64) -> bool {
    cut_off_bytes > 0 && found.buckets.saturating_mul(BUCKET_BYTES) >= cut_off_bytes
}

/// The settings of read-ahead and bypass.
const KEYS: [NamespaceKey; 3] =
    [NamespaceKey::ReadAheadBytesMax, NamespaceKey::BypassReadBytesMin, NamespaceKey::BypassWriteBytesMin];
const READ_AHEAD: usize = 0;
const BYPASS_READ: usize = 1;
const BYPASS_WRITE: usize = 2;

/// The settings of the whole cache, or those that a namespace has of its own, in the order of
/// [`KEYS`]: each value plus one; 0 if there is none.
#[derive(Debug, Default)]
struct Settings([AtomicU64; KEYS.len()]);

impl Settings {
    fn get(&self, which: usize) -> Option<u64> {
        self.0[which].load(Ordering::Relaxed).checked_sub(1)
    }

    fn set(&self, value: impl Fn(usize) -> Option<u64>) {
        for (which, setting) in self.0.iter().enumerate() {
            setting.store(value(which).map_or(0, |value| value.saturating_add(1)), Ordering::Relaxed);
        }
    }
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
struct Flow {
    own: Settings,
    counters: FlowCounters<Counter>,
    accuracy: Accuracy,
}

/// The maximum number of waiting read-ahead requests.
const REQUESTS_MAX: usize = 256;

/// A request to the background.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Read ahead.
    Fetch(Fetch),
    /// Continue after a marked bucket that has been read.
    Marked(Marked),
}

/// The data to be read ahead, and their object.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) id: ObjectId,
    pub(crate) plan: Plan,
    /// Whether the data bypass the cache: they are kept only until they have been read.
    pub(crate) is_passing: bool,
}

/// A bucket of the object in a node. The object with this hash may have left the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marked {
    pub(crate) node: u32,
    pub(crate) hash: u64,
    pub(crate) bucket: u32,
}

/// The bounded queue of read-ahead requests for the background. A request that finds the queue full
/// is dropped: the reads will load the data themselves.
pub(crate) struct Requests(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    queue: VecDeque<Request>,
    waker: Option<Waker>,
}

impl Default for Requests {
    fn default() -> Self {
        Self(Mutex::ranked(Queue::default(), &lock_ranks::READ_AHEAD))
    }
}

impl Requests {
    pub(crate) fn push(&self, request: Request) {
        let mut state = lock(&self.0);
        if state.queue.len() >= REQUESTS_MAX {
            return;
        }
        state.queue.push_back(request);
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Takes the oldest request; if there is none, `waker` is woken when there is.
    pub(crate) fn take(&self, waker: &Waker) -> Option<Request> {
        let mut state = lock(&self.0);
        let request = state.queue.pop_front();
        if request.is_none() {
            state.waker = Some(waker.clone());
        }
        request
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn requests_come_in_order_and_no_more_than_there_is_room_for() {
        let requests = Requests::default();
        let marked = |bucket| Request::Marked(Marked { node: 1, hash: 2, bucket });
        (0..REQUESTS_MAX as u32 + 3).for_each(|bucket| requests.push(marked(bucket)));
        let taken = std::iter::from_fn(|| requests.take(Waker::noop()));
        let buckets: Vec<u32> = taken
            .map(|request| match request {
                Request::Marked(marked) => marked.bucket,
                Request::Fetch(_) => unreachable!(),
            })
            .collect();
        assert_eq!(buckets, (0..REQUESTS_MAX as u32).collect::<Vec<_>>());
    }
}
