//! A cache over a controlled store, with a journal on a simulated disk; the test steps both.

#![allow(dead_code, reason = "each test target uses a part of it")]

use std::sync::Arc;

use blocker::*;
use cached_core::object::{
    JournalOptions, NamespaceConfig, ObjectCache, ObjectCacheConfig, OpenJournal, RecoveryError, Writer,
};
use cached_journal::disk::simulated::{Faults, SimulatedDisk};
use cached_journal::{Environment as JournalEnvironment, Journal, JournalConfig, Kind, Object, Position};
use test_kit::sim::{Handle, Sim};
use test_kit::steered::SteeredStore;
use test_kit::{id, namespace, pattern, small};

pub(crate) const SEGMENT_BYTES: u64 = 64 * 1024;

/// The kind of the record of an epoch.
const EPOCH: Kind = Kind(9);

pub(crate) struct Environment {
    pub(crate) sim: Sim,
    pub(crate) store: Arc<SteeredStore>,
    pub(crate) cache: ObjectCache,
    pub(crate) running: Handle<()>,
    pub(crate) disk: SimulatedDisk,
    pub(crate) journal: Arc<Journal>,
    pub(crate) clock: Arc<cached_journal::ManualClock>,
    config: JournalConfig,
    adjust: Adjust,
    /// The seed of the cache's hash. It differs each time, because the cache's versions are derived
    /// from it.
    seed: u64,
}

/// Changes the configuration of the cache.
type Adjust = fn(&mut ObjectCacheConfig);

pub(crate) fn options() -> JournalOptions {
    JournalOptions { journaled_bytes_max: 16 * 1024, ..JournalOptions::default() }
}

impl Environment {
    /// Creates a journal of `segments` segments over an empty store. The namespaces `ns` and
    /// `fresh` are journaled, `plain` is not. `ns` has been claimed.
    pub(crate) fn new(segments: u64) -> Self {
        Self::with(segments, options())
    }

    pub(crate) fn with(segments: u64, options: JournalOptions) -> Self {
        Self::unclaimed(segments, options).claimed()
    }

    /// Does the same as [`Self::new`] with a changed configuration.
    pub(crate) fn adjusted(segments: u64, adjust: Adjust) -> Self {
        Self::over(SteeredStore::new(), disk(), segments, options(), 1, adjust).claimed()
    }

    fn claimed(mut self) -> Self {
        for namespace in ["ns", "plain"].map(namespace) {
            let attach = self.sim.spawn(self.cache.control().attach(namespace));
            self.commit();
            attach.get().unwrap();
        }
        self.store.clear_log();
        self
    }

    pub(crate) fn unclaimed(segments: u64, options: JournalOptions) -> Self {
        let options =
            JournalOptions { journaled_bytes_max: options.journaled_bytes_max.min(16 * 1024), ..options };
        Self::over(SteeredStore::new(), disk(), segments, options, 1, |_| ())
    }

    /// Creates another cache over the same store, with the journal's state on the disk after a
    /// crash.
    pub(crate) fn restarted(&self) -> Self {
        let segments = self.config.limit_bytes / SEGMENT_BYTES;
        let store = Arc::clone(&self.store);
        Self::over(store, self.disk.copy(), segments, options(), self.seed + 1, self.adjust)
    }

    fn over(
        store: Arc<SteeredStore>,
        disk: SimulatedDisk,
        segments: u64,
        options: JournalOptions,
        seed: u64,
        adjust: Adjust,
    ) -> Self {
        let clock = Arc::<cached_journal::ManualClock>::default();
        let config = JournalConfig {
            segment_bytes: SEGMENT_BYTES,
            limit_bytes: segments * SEGMENT_BYTES,
            ..JournalConfig::new("simulated")
        };
        let environment =
            JournalEnvironment { clock: Arc::clone(&clock) as _, ..JournalEnvironment::new(disk.clone()) };
        let open = OpenJournal::open_stepped(&config, environment).unwrap();
        let journal = open.journal();
        while journal.step_prepare() {}
        let mut plain = NamespaceConfig::new(namespace("plain"), WriteMode::Back);
        plain.journal = Some(false);
        let mut cache_config = ObjectCacheConfig {
            writer: Writer::Cache,
            object_bytes_max: 64 * 1024,
            dirty_bytes_max: (segments - 4) * SEGMENT_BYTES / 2,
            namespaces: vec![plain],
            hash_seed: Some(seed),
            ..small(WriteMode::Back)
        };
        adjust(&mut cache_config);
        let mut sim = Sim::new(None);
        let builder = ObjectCache::builder(Arc::clone(&store) as _).config(cache_config);
        let builder = builder.clock(Arc::new(sim.clock.clone())).journal(open, options);
        let (cache, background) = builder.build().unwrap();
        let running = sim.spawn(background);
        Self { sim, store, cache, running, disk, journal, clock, config, adjust, seed }
    }

    /// Commits everything, and runs until nothing changes any more.
    pub(crate) fn commit(&mut self) {
        loop {
            self.sim.run_until_idle();
            let mut has_moved = self.journal.step_commit();
            has_moved |= self.journal.step_prepare();
            if !has_moved {
                return;
            }
        }
    }

    /// Starts the recovery of the journal's contents.
    pub(crate) fn begin_recovery(&mut self) -> Result<(), RecoveryError> {
        let cache = self.cache.clone();
        let begun = self.sim.spawn(async move { cache.begin_recovery().await });
        self.commit();
        begun.get()
    }

    pub(crate) fn write(
        &mut self,
        object: &ObjectId,
        offset: u64,
        bytes: Vec<u8>,
        durability: Durability,
    ) -> Handle<Result<ChangeReply>> {
        let request = WriteRequest::new(object.clone(), offset, bytes).durability(durability);
        let write = self.sim.spawn(self.cache.write(request));
        self.sim.run_until_idle();
        write
    }

    pub(crate) fn flush(&mut self, scope: Scope, durability: Durability) -> Handle<Result<FlushReply>> {
        let flush = self.sim.spawn(self.cache.flush(FlushRequest::new(scope).durability(durability)));
        self.sim.run_until_idle();
        flush
    }

    #[track_caller]
    pub(crate) fn flushed(&mut self, scope: Scope) {
        let flush = self.flush(scope, Durability::Stored);
        self.commit();
        assert_eq!(flush.get().unwrap().durability, Durability::Stored);
        self.commit();
    }

    /// Returns the number of changes requested from the store.
    pub(crate) fn changes(&self) -> usize {
        self.store.log().iter().filter(|call| call.op.is_change()).count()
    }

    pub(crate) fn oldest(&self) -> Position {
        self.journal.oldest().unwrap().start
    }

    /// Opens a copy of the disk as after a crash, and returns the records to be replayed.
    fn replay<T>(&self, each: impl Fn(cached_journal::Recovered) -> T) -> Vec<T> {
        let disk = self.disk.copy();
        let environment = JournalEnvironment::new(disk);
        let (_journal, replay) = Journal::open_stepped(&self.config, environment).unwrap();
        let changes =
            replay.records().map(|record| record.unwrap()).filter(|record| record.head.kind != EPOCH);
        changes.map(each).collect()
    }

    /// Returns the object names of all records that would be replayed after a crash, each with its
    /// record kind.
    pub(crate) fn records(&self) -> Vec<(String, u8)> {
        self.replay(|record| (name(&record), record.head.kind.0))
    }

    /// Returns the payloads of an object's records.
    pub(crate) fn payloads(&self, object: &str) -> Vec<Vec<u8>> {
        let all = self.replay(|record| (name(&record), record.payload().unwrap()));
        all.into_iter().filter(|(name, _)| name == object).map(|(_, payload)| payload).collect()
    }
}

fn disk() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    disk.set_faults(7, Faults::default());
    disk
}

fn name(record: &cached_journal::Recovered) -> String {
    let Object::Name(key) = &record.head.object else { panic!("{record:?}") };
    let (len, rest) = key.split_first().unwrap();
    String::from_utf8(rest[usize::from(*len)..].to_vec()).unwrap()
}

/// Makes every write and sync of the journal's disk fail from now on, or succeed again.
pub(crate) fn fail_disk(disk: &SimulatedDisk, fails: bool) {
    let sync = if fails { 1000 } else { 0 };
    disk.set_faults(1, Faults { sync, ..Faults::default() });
}

/// Returns an object, and some bytes as its content.
pub(crate) fn some(name: &str, tag: u64) -> (ObjectId, Vec<u8>) {
    (id(name), pattern(tag, 0, 5000))
}
