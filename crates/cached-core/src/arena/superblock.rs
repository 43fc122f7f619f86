//! The first page of an arena in a file: the identity of the memory, and the other facts that a
//! restart needs besides the regions.
//!
//! ```text
//!  0          8         12            16        20         24    28      32        48          56
//! ┌──────────┬─────────┬─────────────┬─────────┬──────────┬─────┬───────┬─────────┬───────────┬─ …
//! │ magic    │ version │ region bytes│ regions │ granule  │ CAS │   0   │ policy  │ hash seed │
//! │ 8 bytes  │ u32     │ u32         │ u32     │ log2 u32 │ u32 │       │ 16 bytes│ u64       │
//! └──────────┴─────────┴─────────────┴─────────┴──────────┴─────┴───────┴─────────┴───────────┴─ …
//!  … 56            64           72         80         88      96      100        1024
//!   ┬─────────────┬────────────┬──────────┬──────────┬───────┬───────┬─ … ──────┬───────────────────┐
//!   │ shared seed │ hash check │ table at │ arena at │ bytes │ CRC-32│    0     │ notes: `Notes`     │
//!   │ u64         │ u64        │ u64      │ u64      │ u64   │ u32   │          │                   │
//!   ┴─────────────┴────────────┴──────────┴──────────┴───────┴───────┴─ … ──────┴───────────────────┘
//! ```
//! Integers are little-endian. The identity is written once, when the file is created; the CRC
//! (IEEE) covers the bytes before it. The notes change at run time, each by a single write. A store
//! without a file also has this page, in memory of its own.

use super::Memory;
use super::file::Cold;
use crate::stores;
// `crate::sync` is not used, because these words are in raw memory.
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The bytes of the superblock.
pub(super) const SUPERBLOCK_BYTES: usize = 4096;
const NOTES_AT: usize = 1024;
const IDENTITY_BYTES: usize = 100;
const MAGIC: [u8; 8] = *b"cachedMF";
/// The version of the file's layout, which covers the superblock, the table of regions, region
/// headers and entries.
pub(super) const VERSION: u32 = 2;
/// The version in which entries have no checksums. A file of this version keeps it.
pub(super) const VERSION_WITHOUT_CHECKSUMS: u32 = 1;
const POLICY_BYTES: usize = 16;

/// The identity of the memory. A process with another identity cannot use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Identity {
    pub(crate) region_bytes: u32,
    pub(crate) regions: u32,
    pub(crate) granule_shift: u32,
    pub(crate) has_cas: bool,
    /// Whether entries end with checksums.
    pub(crate) has_checksums: bool,
    pub(super) policy: [u8; POLICY_BYTES],
    /// The seeds of the key hash.
    pub(crate) hash_seed: u64,
    pub(crate) shared_seed: u64,
    /// A hash with these seeds, which shows whether this program hashes as the earlier one did.
    pub(crate) hash_check: u64,
    pub(super) table_at: u64,
    pub(super) arena_at: u64,
    /// The length of the file.
    pub(super) bytes: u64,
}

impl Identity {
    pub(crate) fn new(
        region_bytes: usize,
        regions: u32,
        granule_shift: u32,
        has_cas: bool,
        policy: &str,
    ) -> Identity {
        let mut name = [0; POLICY_BYTES];
        let bytes = policy.len().min(POLICY_BYTES);
        name[..bytes].copy_from_slice(&policy.as_bytes()[..bytes]);
        Identity {
            region_bytes: region_bytes as u32,
            regions,
            granule_shift,
            has_cas,
            has_checksums: true,
            policy: name,
            ..Identity::default()
        }
    }

    /// Returns the identity of a file whose entries have checksums or, as in earlier builds, have
    /// none.
    #[cfg(test)]
    pub(crate) fn with_checksums(self, has_checksums: bool) -> Identity {
        Identity { has_checksums, ..self }
    }

    /// Returns the first relevant difference; `None` if this memory can be used as `wanted`.
    pub(super) fn differs(&self, wanted: &Identity) -> Option<String> {
        let arena = |identity: &Identity| u64::from(identity.region_bytes) * u64::from(identity.regions);
        let cas = |identity: &Identity| if identity.has_cas { "with" } else { "without" };
        // This check comes first, because the policy itself uses a part of the memory.
        if self.policy != wanted.policy {
            let name = |identity: &Identity| {
                String::from_utf8_lossy(&identity.policy).trim_end_matches('\0').escape_debug().to_string()
            };
            return Some(format!("its eviction policy is {}, not {}", name(self), name(wanted)));
        }
        if arena(self) != arena(wanted) || self.region_bytes != wanted.region_bytes {
            return Some(format!("it has {} bytes for items, not {}", arena(self), arena(wanted)));
        }
        if self.has_cas != wanted.has_cas {
            return Some(format!("its items are {} CAS values, not {}", cas(self), cas(wanted)));
        }
        let places = |identity: &Identity| {
            (identity.granule_shift, identity.table_at, identity.arena_at, identity.bytes)
        };
        (places(self) != places(wanted)).then(|| "its layout differs".to_owned())
    }

    pub(super) fn encode(&self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        let version = if self.has_checksums { VERSION } else { VERSION_WITHOUT_CHECKSUMS };
        let words =
            [version, self.region_bytes, self.regions, self.granule_shift, u32::from(self.has_cas), 0];
        words.iter().for_each(|word| put(&word.to_le_bytes()));
        put(&self.policy);
        let words =
            [self.hash_seed, self.shared_seed, self.hash_check, self.table_at, self.arena_at, self.bytes];
        words.iter().for_each(|word| put(&word.to_le_bytes()));
        let crc = crc32fast::hash(&bytes[..IDENTITY_BYTES - 4]);
        bytes[IDENTITY_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; SUPERBLOCK_BYTES]) -> Result<Identity, Cold> {
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if bytes[..8] != MAGIC {
            return Err(Cold::Foreign);
        }
        let version = u32_at(8);
        if ![VERSION_WITHOUT_CHECKSUMS, VERSION].contains(&version) {
            return Err(Cold::Version(version));
        }
        if u32_at(IDENTITY_BYTES - 4) != crc32fast::hash(&bytes[..IDENTITY_BYTES - 4]) {
            return Err(Cold::Damaged);
        }
        let mut policy = [0; POLICY_BYTES];
        policy.copy_from_slice(&bytes[32..32 + POLICY_BYTES]);
        Ok(Identity {
            region_bytes: u32_at(12),
            regions: u32_at(16),
            granule_shift: u32_at(20),
            has_cas: u32_at(24) != 0,
            has_checksums: version == VERSION,
            policy,
            hash_seed: u64_at(48),
            shared_seed: u64_at(56),
            hash_check: u64_at(64),
            table_at: u64_at(72),
            arena_at: u64_at(80),
            bytes: u64_at(88),
        })
    }
}

/// The part of the superblock that changes at run time. All zeros mean that a store has nothing to
/// record.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Notes {
    state: AtomicU32,
    /// The time at which a flush is due, in the clock's seconds; 0 means no flush.
    flush_due: AtomicU32,
    /// Entries in regions with a lower sequence number have been flushed.
    boundary: AtomicU64,
    /// The bound of CAS values: no value from this one on has been used.
    cas_bound: AtomicU64,
    /// Lower half: the last recorded second of the clock. Upper half: the lower 32 bits of the Unix
    /// time at that moment.
    time: AtomicU64,
    /// The number of items when the time was recorded.
    items: AtomicU64,
    /// The boot in which the memory was last written.
    boot: [AtomicU64; 2],
    /// CRC-32 of the identity, the notes and the table of regions, valid from a clean end to the
    /// next start.
    crc: AtomicU32,
    /// The mark of the store's owner; 0 in files of earlier versions.
    mark: AtomicU64,
}

/// Whether a process uses the memory, or how it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryState {
    None,
    Running,
    Clean,
}

impl Notes {
    pub(super) fn state(&self) -> MemoryState {
        match self.state.load(Ordering::Acquire) {
            1 => MemoryState::Running,
            2 => MemoryState::Clean,
            _ => MemoryState::None,
        }
    }

    pub(super) fn set_state(&self, state: MemoryState) {
        self.state.store(state as u32, Ordering::Release);
    }

    pub(super) fn boot(&self) -> u128 {
        let [low, high] = [0, 1].map(|n| u128::from(self.boot[n].load(Ordering::Relaxed)));
        low | high << 64
    }

    pub(super) fn set_boot(&self, boot: u128) {
        self.boot[0].store(boot as u64, Ordering::Relaxed);
        self.boot[1].store((boot >> 64) as u64, Ordering::Release);
    }

    pub(super) fn crc(&self) -> u32 {
        self.crc.load(Ordering::Relaxed)
    }

    pub(super) fn set_crc(&self, crc: u32) {
        self.crc.store(crc, Ordering::Relaxed);
    }

    /// Returns the words that the checksum of a clean end covers.
    pub(super) fn words(&self) -> [u64; 5] {
        [
            u64::from(self.flush_due()),
            self.boundary(),
            self.cas_bound(),
            self.time.load(Ordering::Relaxed),
            self.items(),
        ]
    }

    /// Returns the mark; `None` if it is 0, as in files of versions without marks, whose checksums
    /// do not cover one.
    pub(super) fn covered_mark(&self) -> Option<u64> {
        Some(self.mark()).filter(|mark| *mark != 0)
    }

    pub(crate) fn mark(&self) -> u64 {
        self.mark.load(Ordering::Acquire)
    }

    pub(crate) fn set_mark(&self, mark: u64) {
        self.mark.store(mark, Ordering::Release);
        stores::done();
    }

    pub(crate) fn flush_due(&self) -> u32 {
        self.flush_due.load(Ordering::Relaxed)
    }

    pub(crate) fn set_flush_due(&self, secs: u32) {
        self.flush_due.store(secs, Ordering::Release);
        stores::done();
    }

    pub(crate) fn boundary(&self) -> u64 {
        self.boundary.load(Ordering::Acquire)
    }

    pub(crate) fn raise_boundary(&self, boundary: u64) {
        self.boundary.fetch_max(boundary, Ordering::AcqRel);
        stores::done();
    }

    /// Removes the boundary, unless it has been raised in the meantime.
    pub(crate) fn clear_boundary(&self, boundary: u64) {
        // This fails if another flush has raised the boundary, which then stays.
        let _ = self.boundary.compare_exchange(boundary, 0, Ordering::AcqRel, Ordering::Relaxed);
        stores::done();
    }

    pub(crate) fn cas_bound(&self) -> u64 {
        self.cas_bound.load(Ordering::Acquire)
    }

    /// Raises the bound of CAS values to at least `bound`.
    pub(crate) fn raise_cas_bound(&self, bound: u64) {
        self.cas_bound.fetch_max(bound, Ordering::AcqRel);
        stores::done();
    }

    /// Lowers the bound to the values actually used, at a clean end.
    pub(crate) fn set_cas_bound(&self, bound: u64) {
        self.cas_bound.store(bound, Ordering::Release);
    }

    pub(crate) fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Records the time and the number of items.
    pub(crate) fn note_time(&self, now: u32, items: u64) {
        self.items.store(items, Ordering::Relaxed);
        self.time.store(u64::from(now) | u64::from(unix_secs() as u32) << 32, Ordering::Release);
    }

    /// Returns the last recorded second of the clock, and the seconds that have passed since then
    /// (0 if the system's clock went back).
    pub(super) fn time_since(&self) -> (u32, u32) {
        let time = self.time.load(Ordering::Acquire);
        // Unix times wrap after 136 years. A difference above half of that range is negative.
        let passed = (unix_secs() as u32).wrapping_sub((time >> 32) as u32).cast_signed();
        (time as u32, passed.max(0).cast_unsigned())
    }
}

/// The first page of an arena.
pub(crate) struct Superblock {
    memory: Memory,
}

impl Superblock {
    /// Creates the superblock of a store without a file.
    ///
    /// # Errors
    /// Returns the system's error if it refuses the memory.
    pub(crate) fn without_file() -> std::io::Result<Superblock> {
        Ok(Superblock::over(Memory::map(SUPERBLOCK_BYTES, false)?))
    }

    /// # Panics
    /// Panics if the memory is smaller than a superblock.
    pub(super) fn over(memory: Memory) -> Superblock {
        assert!(memory.len() >= SUPERBLOCK_BYTES && memory.base().addr().is_multiple_of(align_of::<Notes>()));
        Superblock { memory }
    }

    pub(crate) fn notes(&self) -> &Notes {
        // SAFETY: the notes lie inside the superblock, aligned (checked where the memory was taken); any bytes
        // are valid notes, which are shared and hold only atomics.
        unsafe { &*self.memory.base().add(NOTES_AT).cast::<Notes>() }
    }

    /// Writes the identity to memory that no other thread uses yet.
    pub(super) fn write_identity(&self, identity: &Identity) {
        let bytes = identity.encode();
        // SAFETY: the identity lies inside the superblock, before the notes, and the caller has the memory for
        // itself.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.memory.base(), bytes.len()) };
    }
}

const _: () = assert!(NOTES_AT + size_of::<Notes>() <= SUPERBLOCK_BYTES && IDENTITY_BYTES <= NOTES_AT);

/// Returns the system's Unix time in seconds; 0 before 1970.
fn unix_secs() -> u64 {
    #[cfg(test)]
    if let Some(secs) = test_time::get() {
        return secs;
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The wall clock in tests.
#[cfg(test)]
pub(crate) mod test_time {
    use std::cell::Cell;

    thread_local! {
        static SECS: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Sets this thread's wall clock.
    #[cfg(not(shuttle))]
    pub(crate) fn set(secs: u64) {
        SECS.with(|cell| cell.set(Some(secs)));
    }

    pub(super) fn get() -> Option<u64> {
        SECS.with(Cell::get)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity {
            hash_seed: 7,
            shared_seed: 8,
            hash_check: 9,
            table_at: 4096,
            arena_at: 8192,
            bytes: 1 << 21,
            ..Identity::new(1 << 16, 16, 2, true, "balanced")
        }
    }

    #[test]
    fn an_identity_round_trips_and_damage_is_noticed() {
        let mut page = [0; SUPERBLOCK_BYTES];
        page[..IDENTITY_BYTES].copy_from_slice(&identity().encode());
        assert_eq!(Identity::decode(&page), Ok(identity()));
        for bit in 0..IDENTITY_BYTES * 8 {
            let mut damaged = page;
            damaged[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..8 => Err(Cold::Foreign),
                8..12 => Err(Cold::Version(VERSION ^ 1 << (bit - 64))),
                _ => Err(Cold::Damaged),
            };
            assert_eq!(Identity::decode(&damaged), expected, "bit {bit}");
        }
    }

    #[test]
    fn the_version_tells_whether_entries_have_checksums() {
        let mut page = [0; SUPERBLOCK_BYTES];
        for has_checksums in [false, true] {
            let identity = Identity { has_checksums, ..identity() };
            page[..IDENTITY_BYTES].copy_from_slice(&identity.encode());
            assert_eq!((page[8], Identity::decode(&page)), (1 + u8::from(has_checksums), Ok(identity)));
            assert_eq!(identity.differs(&self::identity()), None, "both can be used");
        }
    }

    #[test]
    fn what_differs_is_named() {
        let other = |change: fn(&mut Identity)| {
            let mut other = identity();
            change(&mut other);
            identity().differs(&other)
        };
        assert_eq!(other(|_| ()), None);
        assert_eq!(other(|other| other.hash_seed += 1), None, "the seeds are the file's");
        let named = |change, words| assert!(other(change).unwrap().contains(words));
        named(|other| other.regions *= 2, "1048576 bytes for items, not 2097152");
        named(|other| other.has_cas = false, "with CAS values, not without");
        named(|other| other.policy = *b"lru\0\0\0\0\0\0\0\0\0\0\0\0\0", "balanced, not lru");
        named(|other| other.arena_at *= 2, "layout differs");
        named(|other| other.granule_shift += 1, "layout differs");
    }

    #[test]
    fn time_that_passed_counts_and_a_clock_that_went_back_stands_still() {
        let notes = Notes::default();
        test_time::set(1_000_000);
        notes.note_time(500, 3);
        assert_eq!((notes.time_since(), notes.items()), ((500, 0), 3));
        test_time::set(1_000_100);
        assert_eq!(notes.time_since(), (500, 100));
        test_time::set(900_000);
        assert_eq!(notes.time_since(), (500, 0));
        test_time::set((1 << 32) - 5);
        notes.note_time(500, 3);
        test_time::set((1 << 32) + 5);
        assert_eq!(notes.time_since(), (500, 10), "across the wrap of 32 bits");
    }
}
