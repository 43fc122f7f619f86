//! The simulation of one cache at five sizes, on sampled names.
//!
//! Each sampled request is applied to all sizes. Clients are assumed to use the cache as
//! *cache-aside*: after a miss they store the entry. So
//!
//! - a name that was found by a read, but is missing at a size, is a miss there and is stored there
//!   immediately;
//! - a name that was not found by a read, but exists at a size, is a hit there, and the store that
//!   follows changes nothing there.
//!
//! *Sampling*: names whose hash is below a threshold (SHARDS, FAST'15). The threshold is lowered to
//! keep about [`ENTRIES_KEPT`] entries at the cache's own size. The number of misses is the number
//! of sampled misses times the number of names that each sampled name represents. It is divided by
//! the number of all requests rather than the extrapolated number of sampled requests (SHARDS-adj),
//! because a few hot names in the sample change the number of hits a lot and the number of misses
//! little. The remaining sampling error is measured and corrected: for the cache itself, both the
//! misses of all names and the misses of the sampled names are counted.

use super::miniature::{Miniature, Scale};
use super::names::{NAMESPACES_MAX, Names, Namespaces};
use super::sampler::{Event, Sample};
use super::{CurvePoint, FACTORS, MissRatioCurve, NamespaceShare, ONE, Present, SIZES, Sampling, Totals};
use crate::clock::Expiry;

/// The most entries in the simulated cache of the cache's own size.
pub(super) const ENTRIES_KEPT: usize = 16_384;
/// If a full cache has fewer entries than this, sampling restarts with four times as many names.
const ENTRIES_TOO_FEW: usize = ENTRIES_KEPT / 8;
/// The maximum number of names in caches of any size. With expiries and deletions, the contents of
/// the sizes may differ widely.
const NAMES_MAX: usize = 5 * ENTRIES_KEPT;
/// The length of a window of counting. Reports cover one to two windows.
const WINDOW_SECS: u32 = 600;
/// The assumed part of a full cache's memory that entries occupy, until it has been measured.
const UTILISATION_ASSUMED: f64 = 0.95;
/// The weight of one measurement of the utilisation.
const UTILISATION_STEP: f64 = 0.05;
/// The number of names checked for expired entries at a time.
const SWEPT_AT_ONCE: usize = 4096;
/// The number of consecutive drains with dropped samples after which the threshold is lowered.
const DROPPING_DRAINS: u32 = 3;
/// The number of sampled misses above which the sampling error is measured.
const MISSES_SURE: f64 = 100.0;
/// Dropped samples never lower the threshold below this number of entries.
const ENTRIES_AT_LEAST: usize = 1024;

/// The share of names at the start of adaptive sampling, which costs some instructions per request
/// on average.
const SHARE_AT_START: f64 = 1.0 / 256.0;
/// The approximate number of sampled requests at which adaptive sampling aims, a small part of one
/// core.
const SAMPLES_PER_SEC: u64 = 2000;
/// The interval at which adaptive sampling adapts.
const PACE_SECS: u32 = 10;
/// Adaptive sampling keeps at least this number of entries to limit the number of samples.
const PACED_ENTRIES_MIN: usize = 128;

/// Counts in which each sampled request is weighted with the number that it represents.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    requests: f64,
    misses: [f64; SIZES],
    /// The misses of the cache itself.
    missed: f64,
}

impl Counts {
    fn plus(self, other: &Counts) -> Counts {
        let mut misses = self.misses;
        misses.iter_mut().zip(other.misses).for_each(|(sum, more)| *sum += more);
        Counts { requests: self.requests + other.requests, misses, missed: self.missed + other.missed }
    }
}

/// The counts of some minutes.
#[derive(Default)]
struct Window {
    since_secs: u32,
    counts: Counts,
    namespaces: Vec<Counts>,
    /// The counters of the cache at the start of the window.
    totals: Option<Totals>,
}

impl Window {
    fn new(since_secs: u32, totals: Option<Totals>) -> Window {
        let namespaces = vec![Counts::default(); NAMESPACES_MAX + 1];
        Window { since_secs, counts: Counts::default(), namespaces, totals }
    }
}

/// The sizes, and their common state.
#[derive(Default)]
pub(crate) struct Simulation {
    names: Names,
    sizes: Vec<Miniature>,
    pub(super) scale: Scale,
    /// The threshold below which names are sampled.
    pub(super) threshold: u64,
    namespaces: Namespaces,
    window: Window,
    before: Option<Window>,
    totals: Option<Totals>,
    flushes: u32,
    dropped: u64,
    dropping_drains: u32,
    /// Whether the simulated caches are still filling up. Requests are not counted until they are
    /// as full as the real one.
    is_warming: bool,
    sweep_from: usize,
    now: u32,
    is_adaptive: bool,
    /// The time at which the rate of samples was last checked, and the number of samples since.
    paced_at: u32,
    paced_samples: u64,
    /// The number of entries of the cache itself; 0 if unknown.
    real_entries: u64,
}

impl Simulation {
    /// Returns a simulation of a cache with `memory_bytes` and the policy called `policy`; `None`
    /// if no policy has that name, or if nothing is sampled.
    pub(crate) fn new(policy: &str, memory_bytes: u64, sampling: Sampling) -> Option<Simulation> {
        let share = match sampling {
            Sampling::Off => return None,
            Sampling::Adaptive => SHARE_AT_START,
            Sampling::Share(share) => share.clamp(1e-6, 1.0),
        };
        let scale = Scale { weight: 1.0 / share, memory_bytes, utilisation: UTILISATION_ASSUMED };
        let sizes = FACTORS.iter().map(|factor| Miniature::new(policy, *factor, &scale));
        Some(Simulation {
            sizes: sizes.collect::<Option<Vec<_>>>()?,
            scale,
            // Saturates.
            threshold: (u64::MAX as f64 * share) as u64,
            window: Window::new(0, None),
            is_adaptive: sampling == Sampling::Adaptive,
            ..Simulation::default()
        })
    }

    /// Applies one sample.
    pub(crate) fn apply(&mut self, sample: &Sample, namespace: &[u8]) {
        // The sample was queued before the threshold was lowered.
        if sample.hash >= self.threshold {
            return;
        }
        self.paced_samples += 1;
        match sample.event {
            Event::Hit | Event::Absent | Event::Expired | Event::Flushed => {
                let namespace = self.namespaces.number_of(namespace);
                self.read(sample, namespace);
            }
            Event::Store => {
                let namespace = self.namespaces.number_of(namespace);
                self.store(sample, namespace);
            }
            Event::Return => {
                let namespace = self.namespaces.number_of(namespace);
                let name = self.names.find_or_enter(sample.hash, sample.bytes, namespace);
                for at in 0..SIZES {
                    if !self.has(at, name) {
                        self.remove_at(at, name);
                        self.insert(at, name, 0, None);
                    }
                }
                self.names.release_if_absent(name);
            }
            Event::Touch => self.touch(sample),
            Event::Delete => {
                if let Some(name) = self.names.find(sample.hash) {
                    self.remove(name);
                }
            }
        }
    }

    fn has(&self, at: usize, name: u32) -> bool {
        self.names.place(name, at).is_present() && !self.names.is_expired(name, at, self.now)
    }

    fn read(&mut self, sample: &Sample, namespace: u8) {
        let is_hit = sample.event == Event::Hit;
        let found = self.names.find(sample.hash);
        let mut missed = [false; SIZES];
        for (at, missed) in missed.iter_mut().enumerate() {
            match found {
                Some(name) if self.has(at, name) => self.sizes[at].hit(self.names.place_mut(name, at)),
                Some(name) => {
                    *missed = true;
                    self.remove_at(at, name);
                }
                None => *missed = true,
            }
        }
        if !self.is_warming {
            let weight = self.scale.weight;
            for counts in [&mut self.window.counts, &mut self.window.namespaces[usize::from(namespace)]] {
                counts.requests += weight;
                counts.missed += if is_hit { 0.0 } else { weight };
                for (sum, missed) in counts.misses.iter_mut().zip(missed) {
                    *sum += if missed { weight } else { 0.0 };
                }
            }
        }
        if is_hit {
            let name = self.names.find_or_enter(sample.hash, sample.bytes, namespace);
            self.resize(name, sample.bytes);
            self.names.get_mut(name).awaits_fill = false;
            self.names.set_expiry(name, ONE, sample.expiry);
            for (at, missed) in missed.into_iter().enumerate() {
                if missed {
                    self.insert(at, name, sample.expiry, None);
                }
            }
            self.names.release_if_absent(name);
        } else if let Some(name) = found {
            self.names.get_mut(name).awaits_fill = true;
            self.names.release_if_absent(name);
        }
    }

    fn store(&mut self, sample: &Sample, namespace: u8) {
        let name = self.names.find_or_enter(sample.hash, sample.bytes, namespace);
        let record = self.names.get_mut(name);
        record.namespace = namespace;
        let is_fill = std::mem::take(&mut record.awaits_fill);
        let is_same = u64::from(sample.bytes) == self.names.hash_and_bytes(name).1 && sample.expiry == 0;
        let present: [bool; SIZES] = std::array::from_fn(|at| self.has(at, name));
        self.resize(name, sample.bytes);
        for (at, is_present) in present.into_iter().enumerate() {
            let bits = self.names.place(name, at).bits();
            if is_present && is_fill {
                // At this size the entry was present, so the client would not have stored it.
                continue;
            }
            if is_present && is_same {
                // The entry is overwritten in place.
                self.sizes[at].hit(self.names.place_mut(name, at));
                self.names.set_expiry(name, at, 0);
                continue;
            }
            self.remove_at(at, name);
            self.insert(at, name, sample.expiry, is_present.then_some(bits));
        }
        self.names.release_if_absent(name);
    }

    fn touch(&mut self, sample: &Sample) {
        let Some(name) = self.names.find(sample.hash) else { return };
        for at in 0..SIZES {
            if self.has(at, name) {
                self.sizes[at].hit(self.names.place_mut(name, at));
                self.names.set_expiry(name, at, sample.expiry);
            }
        }
    }

    fn insert(&mut self, at: usize, name: u32, expiry: u32, replaces: Option<u8>) {
        if Expiry::from_secs(expiry).is_past(self.now) {
            return;
        }
        self.names.set_expiry(name, at, expiry);
        self.sizes[at].insert(&mut self.names, (at, name), replaces, &self.scale, self.now);
    }

    /// Removes a name from one size, if it exists there.
    fn remove_at(&mut self, at: usize, name: u32) {
        if self.names.place(name, at).is_present() {
            self.sizes[at].remove(&mut self.names, (at, name));
        }
    }

    fn remove(&mut self, name: u32) {
        (0..SIZES).for_each(|at| self.remove_at(at, name));
        self.names.release_if_absent(name);
    }

    /// Records the size of an entry in bytes, which is the same in all simulated sizes.
    fn resize(&mut self, name: u32, bytes: u32) {
        let (_, before) = self.names.hash_and_bytes(name);
        if before == u64::from(bytes) {
            return;
        }
        for at in 0..SIZES {
            let place = self.names.place(name, at);
            if place.is_present() {
                self.sizes[at].resize(place.queue(), before, u64::from(bytes));
            }
        }
        self.names.get_mut(name).bytes = bytes;
    }

    /// Prepares the simulation for new samples.
    pub(crate) fn begin(&mut self, present: &Present) {
        (self.now, self.real_entries) = (present.now, present.entries);
        if self.flushes != present.flushes {
            self.flushes = present.flushes;
            self.clear();
        }
        if let Some((memory, entries)) = present.used
            && memory > 0
        {
            let measured = (entries as f64 / memory as f64).min(1.0);
            self.scale.utilisation += (measured - self.scale.utilisation) * UTILISATION_STEP;
        }
    }

    /// Ends a round, given the cache's counters after its samples have been applied. Adapts the
    /// threshold, and starts a new window if this is due. Returns the threshold.
    pub(crate) fn end(&mut self, totals: Option<Totals>, dropped: u64) -> u64 {
        self.totals = totals;
        self.sweep();
        for (at, size) in self.sizes.iter_mut().enumerate() {
            size.compact(&mut self.names, at);
        }
        let is_dropping = dropped > self.dropped;
        self.dropping_drains = if is_dropping { self.dropping_drains + 1 } else { 0 };
        self.dropped = dropped;
        while self.sizes[ONE].entries > ENTRIES_KEPT || self.names.len() > NAMES_MAX {
            self.lower_threshold(0.75);
        }
        if self.dropping_drains >= DROPPING_DRAINS && self.sizes[ONE].entries >= 2 * ENTRIES_AT_LEAST {
            self.dropping_drains = 0;
            self.lower_threshold(0.5);
        }
        let is_full = self.sizes[ONE].evictions > 0;
        if self.window.totals.is_none() {
            // The first window starts when the counters are first known.
            self.window.totals = totals.map(|_| Totals::default());
        }
        let is_over = self.now.saturating_sub(self.window.since_secs) >= WINDOW_SECS;
        let filled = self.sizes[ONE].entries as f64 * self.scale.weight;
        let is_filled = self.real_entries > 0 && filled >= self.real_entries as f64 * 0.9;
        if self.is_warming && (is_full || is_filled || is_over) {
            self.is_warming = false;
            self.window = Window::new(self.now, self.totals);
            self.before = None;
        } else if is_over {
            self.rotate();
        }
        let has_few = self.sizes[ONE].entries < ENTRIES_TOO_FEW && self.threshold < u64::MAX;
        if self.is_adaptive {
            self.adapt();
        } else if is_full && has_few && !is_dropping {
            self.sample_more();
        }
        self.threshold
    }

    /// Samples fewer names if there are too many requests for them, and more names if there are
    /// few.
    fn adapt(&mut self) {
        let secs = self.now.saturating_sub(self.paced_at);
        if secs < PACE_SECS {
            return;
        }
        let per_sec = self.paced_samples / u64::from(secs);
        (self.paced_at, self.paced_samples) = (self.now, 0);
        let entries = self.sizes[ONE].entries;
        if per_sec > 2 * SAMPLES_PER_SEC && entries >= 2 * PACED_ENTRIES_MIN {
            self.lower_threshold(0.5);
        } else if per_sec < SAMPLES_PER_SEC / 4 && entries < ENTRIES_TOO_FEW && self.threshold < u64::MAX {
            self.sample_more();
        }
    }

    fn rotate(&mut self) {
        let next = Window::new(self.now, self.totals);
        let ended = std::mem::replace(&mut self.window, next);
        let requests: Vec<f64> = ended.namespaces.iter().map(|counts| counts.requests).collect();
        let freed = self.namespaces.free_rare(&requests);
        let mut before = ended;
        for number in freed {
            let counts = std::mem::take(&mut before.namespaces[usize::from(number)]);
            before.namespaces[0] = before.namespaces[0].plus(&counts);
            for name in self.names.all() {
                let name = self.names.get_mut(name);
                if name.namespace == number {
                    name.namespace = 0;
                }
            }
        }
        self.before = Some(before);
    }

    fn clear(&mut self) {
        self.sizes.iter_mut().for_each(Miniature::clear);
        self.names.clear();
        self.sweep_from = 0;
    }

    /// Samples fewer names, and removes the others.
    fn lower_threshold(&mut self, by: f64) {
        self.threshold = (self.threshold as f64 * by) as u64;
        for name in self.names.all() {
            if self.names.hash_and_bytes(name).0 >= self.threshold {
                self.remove(name);
            }
        }
        self.weigh();
    }

    /// Samples more names. All sizes start empty, because nothing is known about the names that
    /// were not sampled so far.
    fn sample_more(&mut self) {
        self.threshold = self.threshold.saturating_mul(4);
        self.clear();
        self.sizes.iter_mut().for_each(|size| size.evictions = 0);
        self.weigh();
        self.is_warming = true;
        self.window = Window::new(self.now, self.totals);
    }

    fn weigh(&mut self) {
        self.scale.weight = u64::MAX as f64 / self.threshold.max(1) as f64;
        let Simulation { sizes, scale, .. } = self;
        sizes.iter_mut().for_each(|size| size.attach(scale));
    }

    /// Removes some expired entries at a time, because the cache itself also reclaims their memory.
    fn sweep(&mut self) {
        for _ in 0..SWEPT_AT_ONCE {
            let Some(name) = self.names.next_from(self.sweep_from) else {
                self.sweep_from = 0;
                return;
            };
            self.sweep_from = name as usize + 1;
            for at in 0..SIZES {
                if self.names.place(name, at).is_present() && self.names.is_expired(name, at, self.now) {
                    self.remove_at(at, name);
                }
            }
            self.names.release_if_absent(name);
        }
    }

    /// Returns the prediction, for all names and for each namespace.
    pub(crate) fn curve(&self) -> MissRatioCurve {
        let window = &self.window;
        let add = |counts: Counts, more: Option<&Counts>| more.map_or(counts, |more| counts.plus(more));
        let counts = add(window.counts, self.before.as_ref().map(|before| &before.counts));
        let first = self.before.as_ref().unwrap_or(window);
        let counted = match (self.totals, first.totals) {
            (Some(totals), Some(since)) if !self.is_warming => Some(totals.since(since)),
            _ => None,
        };
        let points = |counts: &Counts, requests: f64, correction: f64| -> Vec<CurvePoint> {
            let ratio = |misses: f64| match requests > 0.0 {
                true => (misses * correction / requests).min(1.0),
                false => 0.0,
            };
            let point = |(factor, misses): (&f64, f64)| CurvePoint {
                factor: *factor,
                memory_bytes: (self.scale.memory_bytes as f64 * factor) as u64,
                miss_ratio: ratio(misses),
            };
            FACTORS.iter().zip(counts.misses).map(point).collect()
        };
        let requests = counted.map_or(counts.requests, |totals| totals.requests as f64);
        let missed = counted.map_or(counts.missed, |totals| totals.misses as f64);
        // The sampled names' misses in the cache itself differ from those of all names only by the
        // sampling error.
        let is_sure = counts.missed >= MISSES_SURE * self.scale.weight && missed > 0.0;
        let correction = if is_sure { missed / counts.missed } else { 1.0 };
        let resident = self.resident_bytes();
        let namespaces = (0..=NAMESPACES_MAX).filter_map(|number| {
            let before = self.before.as_ref().map(|before| &before.namespaces[number]);
            let counts = add(window.namespaces[number], before);
            let name = self.namespaces.name_of(number as u8);
            (counts.requests > 0.0).then(|| NamespaceShare {
                namespace: name.map(|name| String::from_utf8_lossy(name).into_owned()),
                requests: counts.requests as u64,
                misses: counts.missed as u64,
                entry_bytes: (resident[number] as f64 * self.scale.weight) as u64,
                points: points(&counts, counts.requests, 1.0),
            })
        });
        let mut namespaces: Vec<NamespaceShare> = namespaces.collect();
        namespaces.sort_by_key(|share| std::cmp::Reverse(share.requests));
        MissRatioCurve {
            memory_bytes: self.scale.memory_bytes,
            since_secs: self.now.saturating_sub(first.since_secs),
            requests: requests as u64,
            counted_miss_ratio: if requests > 0.0 { missed / requests } else { 0.0 },
            sampled_requests: (counts.requests / self.scale.weight) as u64,
            sampled_share: 1.0 / self.scale.weight,
            dropped_samples: self.dropped,
            is_warm: !self.is_warming,
            points: points(&counts, requests, correction),
            namespaces,
        }
    }

    /// Returns the bytes of each namespace's entries in the cache of the real size.
    fn resident_bytes(&self) -> Vec<u64> {
        let mut bytes = vec![0; NAMESPACES_MAX + 1];
        for name in self.names.all() {
            if self.names.place(name, ONE).is_present() {
                bytes[usize::from(self.names.get(name).namespace)] += self.names.hash_and_bytes(name).1;
            }
        }
        bytes
    }

    /// Returns the memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.names.bytes() + self.sizes.iter().map(Miniature::bytes).sum::<usize>()
    }
}
