//! Code shared by the integration tests of several crates.
//!
//! - [`sim`]: a single-threaded scheduler on a manual clock; the order of polls is that of
//!   wake-ups, or drawn from a seed.
//! - [`rng`]: random numbers for a test, from one seed.
//! - [`steered`]: a controlled store, whose calls pass, fail or are held as a test decides.
//! - [`detached`]: a layer whose calls outlive their replies, as calls over a network do.
//! - [`history`]: a record of concurrent reads and writes, which checks what each read returns.
//! - [`framing`]: requests that two readers of HTTP could understand differently.
//! - [`cache_environment`]: an object cache over a controlled store in a simulator.
//!
//! [`memory_directory`] is for tests with processes. Nothing else here sleeps, starts a thread or reads
//! the system's clock: a run is determined by its test and its seed. A task that is not woken is not
//! polled, so a lost wake-up shows as a hang, which is reported.

pub mod cache_environment;
pub mod detached;
pub mod framing;
pub mod history;
pub mod rng;
pub mod sim;
pub mod steered;

use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blocker::{Blocker, BlockerExt, ManualClock, Memory, Name, Namespace, ObjectId, ReadRequest, WriteMode};
use cached_core::object::{Background, ObjectCache, ObjectCacheConfig};

/// The number of bytes in a KiB.
pub const KIB: u64 = 1024;
/// The size of a bucket of the object cache, in bytes.
pub const BUCKET: u64 = 4096;
/// The number of buckets of the smallest cache.
pub const SMALL_BUCKETS: u64 = 256;

/// Returns the namespace of this name.
pub fn namespace(name: &str) -> Namespace {
    Namespace::copy_from(name.as_bytes()).unwrap()
}

/// Returns the object of this name in the namespace that most tests use.
pub fn id(name: &str) -> ObjectId {
    ObjectId::new(namespace("ns"), Name::copy_from(name.as_bytes()).unwrap())
}

/// Returns an empty store that checks deadlines by `clock`.
pub fn memory(clock: &ManualClock) -> Memory {
    Memory::new(blocker::memory::MemoryConfig::default(), Arc::new(clock.clone()))
}

/// Returns the configuration of the smallest cache, with space for 16 objects.
pub fn small(write: WriteMode) -> ObjectCacheConfig {
    ObjectCacheConfig {
        memory_bytes_max: SMALL_BUCKETS * BUCKET,
        objects_count_max: 16,
        dirty_bytes_max: 512 * KIB,
        dirty_age_max: Duration::from_secs(3600),
        flush_requests_max: 8,
        load_requests_max: 16,
        retry_delay_min: Duration::from_millis(10),
        retry_delay_max: Duration::from_secs(1),
        write,
        // With a random seed, a run could not be repeated.
        hash_seed: Some(1),
        ..ObjectCacheConfig::default()
    }
}

/// Returns a cache over `inner`, and its background task, to be spawned in a simulator.
pub fn cache(
    inner: Arc<dyn Blocker>,
    config: ObjectCacheConfig,
    clock: &ManualClock,
) -> (ObjectCache, Background) {
    ObjectCache::new(inner, config, Arc::new(clock.clone())).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns bytes that depend on the write (`tag`) and on their offset.
pub fn pattern(tag: u64, offset: u64, len: usize) -> Vec<u8> {
    let first = offset / 8;
    let words = (offset as usize % 8 + len).div_ceil(8);
    let mut bytes = Vec::with_capacity(words * 8);
    for word in first..first + words as u64 {
        let mixed = (tag << 32 | word & 0xffff_ffff).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 29) | 1;
        bytes.extend_from_slice(&mixed.to_le_bytes());
    }
    bytes.drain(..offset as usize % 8);
    bytes.truncate(len);
    bytes
}

/// Returns the whole content of an object of a backend that answers immediately; `None` if the
/// object does not exist.
pub fn content(store: &dyn Blocker, object: &ObjectId) -> Option<Vec<u8>> {
    let request = ReadRequest::new(object.clone(), 0, store.capabilities().object_bytes_max);
    match blocker::executor::block_on(store.read(request)) {
        Ok(reply) => Some(reply.data.to_vec()),
        Err(blocker::Error::Missing) => None,
        Err(error) => panic!("{object}: {error}"),
    }
}

/// Writes a whole object to a backend that answers immediately.
pub fn fill(store: &Memory, object: &ObjectId, bytes: Vec<u8>) {
    let request = blocker::WriteFullRequest::new(object.clone(), bytes);
    blocker::executor::block_on(store.write_full(request)).unwrap();
}

/// Asserts that both are equal. Reports only the first difference, because they may be megabytes
/// long.
#[track_caller]
pub fn same(found: &[u8], wanted: &[u8], what: &str) {
    // The search is slow in tests' builds, and for the message only.
    if found == wanted {
        return;
    }
    assert_eq!(found.len(), wanted.len(), "{what}: length");
    let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    let end = (at + 16).min(found.len());
    let (found, wanted) = (&found[at..end], &wanted[at..end]);
    panic!("{what}: byte {at} (bucket {}): {found:02x?}, expected {wanted:02x?}", at as u64 / BUCKET);
}

/// Returns a temporary directory, in /dev/shm if there is one, of whatever size: for memory files, and for
/// files whose syncs a slow disk could delay beyond a lease or the time limit of a shutdown.
///
/// If `TMPDIR` lies in /dev/shm, the directory is there: `.ci/run` removes that one at its end, with
/// whatever killed tests have left.
///
/// # Panics
/// Panics if the directory cannot be created.
pub fn memory_directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let is_there = std::env::temp_dir().starts_with(memory);
    let fast = (!is_there).then(|| tempfile::tempdir_in(memory).ok()).flatten();
    fast.unwrap_or_else(|| tempfile::tempdir().expect("a directory"))
}

/// Returns the factor for the numbers of seeds: `CACHED_TEST_TIMES`, or 1 without it. `.ci/long`
/// sets it.
pub fn times() -> u64 {
    std::env::var("CACHED_TEST_TIMES").map_or(1, |text| text.parse().expect("a number"))
}

/// Returns the seeds of a test, and whether to print its steps. `OBJECT_SEED=n` runs only that seed
/// and prints the steps; `OBJECT_SEEDS=n` runs `n` seeds, from `OBJECT_FIRST=n` on.
pub fn seeds(default_count: u64) -> (std::ops::Range<u64>, bool) {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("OBJECT_SEED") {
        Some(seed) => (seed..seed + 1, true),
        None => {
            let first = number("OBJECT_FIRST").unwrap_or(0);
            (first..first + number("OBJECT_SEEDS").unwrap_or(default_count * times()), false)
        }
    }
}

/// Calls `run` for each seed. After a failure, prints the seed with which it can be repeated.
pub fn each_seed(default_count: u64, mut run: impl FnMut(u64, bool)) {
    let (seeds, is_told) = seeds(default_count);
    let told = std::env::var("OBJECT_TELL").ok().map(|text| text.parse::<u64>().expect("a number"));
    for seed in seeds {
        let is_told = is_told || told == Some(seed);
        let ran = std::panic::catch_unwind(AssertUnwindSafe(|| run(seed, is_told)));
        if let Err(panic) = ran {
            eprintln!("replay with OBJECT_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
