//! Flushes of a prefix: every item whose key begins with it ends immediately.
//!
//! A request only adds the prefix to a table. While the table is not empty, each operation checks
//! the item that it has found against the table. Whether the table is empty is part of a word that
//! operations read anyway ([`Log::may_have_ended`](super::log::Log)), so a store without prefix
//! flushes does no extra work. In the background, a *sweep* walks over the index, removes the ended
//! items, and then removes the prefixes from the table.
//!
//! An item does not record when it was stored. So a key that is stored while one of its prefixes is
//! in the table gets a *mark*: the number of the latest flush at that time. An item has ended if
//! the table contains a flush of one of its key's prefixes whose sweep has not passed the key yet
//! and whose number is above the key's mark. All of this is read and written under the lock of the
//! item's hash bucket. Marks are kept by key hash, which has 64 bits and a secret seed. Their
//! number is limited; a store that would exceed it is refused as out of memory.
//!
//! A sweep handles the prefixes that are in the table when it starts; others wait for the next
//! sweep. It proceeds by *units*: hash values modulo a power of two that does not change while a
//! shard is swept, even if the shard grows. A split moves items to a hash bucket of the same unit
//! with a higher number. So a sweep finds an item even if it moves, and a key's hash tells whether
//! the sweep has passed it.

use std::collections::HashMap;

use super::index::Index;
use super::lock_ranks;
use crate::KeyHash;
use crate::hash::SeededState;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, thread_number};
use blocker::metrics::counters;

/// The maximum number of prefixes in the table. Each operation compares its key with all of them.
pub(super) const PENDING_MAX: usize = 256;

/// The position of a sweep that has passed all keys.
const SWEPT: u64 = u64::MAX;
const SHARD_SHIFT: u32 = 48;
const UNITS_SHIFT: u32 = 40;
const UNIT_MASK: u64 = (1 << UNITS_SHIFT) - 1;

/// A prefix in the table.
pub(super) struct Pending {
    prefix: Box<[u8]>,
    /// The number of the prefix's flush; later flushes have higher numbers.
    number: u64,
}

/// The prefixes whose items have ended but may not have been removed yet.
#[derive(Default)]
pub(super) struct Table {
    entries: Vec<Arc<Pending>>,
    /// The first eight bytes of each prefix, and a mask of the valid bytes. A key is compared with
    /// these first.
    heads: Vec<(u64, u64)>,
    /// The number of entries, from the first on, that belong to the sweep in progress.
    sweeping: usize,
}

/// Returns the first eight bytes of a key or prefix, padded with zeros.
fn head(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let length = bytes.len().min(8);
    word[..length].copy_from_slice(&bytes[..length]);
    u64::from_le_bytes(word)
}

fn head_mask(prefix: &[u8]) -> u64 {
    let length = prefix.len().min(8);
    u64::MAX.checked_shr(64 - 8 * length as u32).unwrap_or(0)
}

impl Table {
    fn new(entries: Vec<Arc<Pending>>, sweeping: usize) -> Table {
        let heads = entries.iter().map(|one| (head(&one.prefix), head_mask(&one.prefix))).collect();
        Table { entries, heads, sweeping }
    }

    /// Returns the positions and entries of the prefixes of a key.
    fn matching<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = (usize, &'a Pending)> {
        let word = head(key);
        self.heads.iter().enumerate().filter_map(move |(at, (head, mask))| {
            let entry = &*self.entries[at];
            (word & mask == *head && key.starts_with(&entry.prefix)).then_some((at, entry))
        })
    }
}

/// One of several copies of the table, on a separate cache line.
#[repr(align(128))]
struct TableCopy(Mutex<Arc<Table>>);

/// The table, the marks, and the progress of the sweep.
pub(super) struct PrefixFlushes {
    /// The table itself.
    table: Mutex<Arc<Table>>,
    /// Copies of the table for operations, each of which chooses one by its thread.
    copies: Box<[TableCopy]>,
    /// The number of the last flush.
    number: AtomicU64,
    /// The progress of the sweep: the shard, the binary logarithm of its number of units, and the
    /// next unit.
    position: AtomicU64,
    /// The sweep in progress, which works in slices under this lock.
    pub(super) sweep: Mutex<Option<Sweep>>,
    marks: Marks,
    counts: Counts,
}

/// Counters, on a cache line that other operations do not read.
#[repr(align(128))]
#[derive(Default)]
struct Counts {
    refused: AtomicU64,
    items: AtomicU64,
    bytes: AtomicU64,
    sweeps: AtomicU64,
}

/// A sweep in progress.
pub(super) struct Sweep {
    table: Arc<Table>,
    pub(super) shard: usize,
    /// The number of units of the shard, a power of two.
    pub(super) units: u64,
    /// The next unit.
    pub(super) unit: u64,
}

counters! {
    /// The state of the prefix flushes.
    #[derive(Debug, Clone, Copy, PartialEq, Default)]
    #[non_exhaustive]
    pub struct PrefixFlushStats {
        /// Flushes of a prefix.
        pub flushes: u64 => "cached_prefix_flushes_total",
        /// Flushes of a prefix that were refused because too many were pending.
        pub refused: u64 => "cached_prefix_flushes_refused_total",
        /// Flushed prefixes whose items have not all been removed.
        pub pending: u64 => "cached_prefix_flushes_pending",
        /// The share of the store that the running sweep has passed, 0 to 1; 1 if none is pending.
        pub swept_share: f64,
        /// The number of sweeps completed.
        pub sweeps: u64,
        /// Items removed after the flush of a prefix.
        pub items_removed: u64 => "cached_prefix_flush_items_removed_total",
        /// The bytes of the removed items, including headers and padding.
        pub bytes_removed: u64,
        /// The number of keys that are marked as stored since.
        pub marks: u64,
        /// The most keys that may be marked.
        pub marks_max: u64,
    }
}

impl PrefixFlushes {
    /// Creates an empty table, with `copies` copies for operations.
    pub(super) fn new(copies: usize, marks_max: u64, state: &SeededState) -> PrefixFlushes {
        let copy = |number| TableCopy(Mutex::ranked_nth(Arc::default(), &lock_ranks::PREFIXES, number));
        PrefixFlushes {
            table: Mutex::ranked(Arc::default(), &lock_ranks::PREFIX_TABLE),
            copies: (0..copies.max(1) as u32).map(copy).collect(),
            number: AtomicU64::new(0),
            position: AtomicU64::new(SWEPT),
            sweep: Mutex::ranked(None, &lock_ranks::SWEEP),
            marks: Marks::new(marks_max, state),
            counts: Counts::default(),
        }
    }

    /// Returns the most bytes of the marks and of the table.
    pub(super) fn bytes_max(&self) -> usize {
        // There are three tables: the current one, the copy of a sweep, and one that is being
        // replaced.
        self.marks.max as usize * MARK_BYTES_MAX + 3 * PENDING_MAX * 512
    }

    /// Adds a prefix, which replaces waiting prefixes that begin with it. Calls `entered` once all
    /// operations that start from now on find the prefix. Returns false, and does nothing, if the
    /// table is full.
    pub(super) fn request(&self, prefix: &[u8], entered: impl FnOnce()) -> bool {
        let mut table = lock(&self.table);
        let mut entries: Vec<Arc<Pending>> = table.entries[..table.sweeping].to_vec();
        let waiting = &table.entries[table.sweeping..];
        entries.extend(waiting.iter().filter(|one| !one.prefix.starts_with(prefix)).cloned());
        if entries.len() >= PENDING_MAX {
            self.counts.refused.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        // The number is increased before operations find the prefix, so that any later mark has at
        // least this number.
        let number = self.number.fetch_add(1, Ordering::AcqRel) + 1;
        entries.push(Arc::new(Pending { prefix: prefix.into(), number }));
        let next = Arc::new(Table::new(entries, table.sweeping));
        self.publish(&mut table, next);
        entered();
        true
    }

    /// Replaces the table and its copies.
    fn publish(&self, table: &mut Arc<Table>, next: Arc<Table>) {
        for copy in &self.copies {
            *lock(&copy.0) = next.clone();
        }
        *table = next;
    }

    fn own_copy(&self) -> &Mutex<Arc<Table>> {
        &self.copies[thread_number() % self.copies.len()].0
    }

    /// Returns whether a prefix flush has ended the item of a key. The caller holds the lock of its
    /// hash bucket.
    pub(super) fn is_ended(&self, index: &Index, hash: KeyHash, key: &[u8]) -> bool {
        let table = lock(self.own_copy());
        let mut mark = None;
        table.matching(key).any(|(at, pending)| {
            !(at < table.sweeping && self.is_swept(index, hash))
                && *mark.get_or_insert_with(|| self.marks.of(hash)) < pending.number
        })
    }

    /// Records that an item is being stored for a key that had none. The caller holds the lock of
    /// its hash bucket. Returns false if there is no space for the record; then the item must not
    /// be stored.
    #[must_use]
    pub(super) fn note_stored(&self, index: &Index, hash: KeyHash, key: &[u8]) -> bool {
        let table = lock(self.own_copy());
        let is_due = table.matching(key).any(|(at, _)| !(at < table.sweeping && self.is_swept(index, hash)));
        !is_due || self.marks.set(hash, self.number.load(Ordering::Acquire))
    }

    /// Returns whether the sweep has passed the key with this hash.
    fn is_swept(&self, index: &Index, hash: KeyHash) -> bool {
        let position = self.position.load(Ordering::Acquire);
        if position == SWEPT {
            return true;
        }
        let (at, shard) = (index.shard_number(hash) as u64, position >> SHARD_SHIFT);
        let units = 1u64 << (position >> UNITS_SHIFT & 0xff);
        at < shard || at == shard && u64::from(hash.low()) & (units - 1) < position & UNIT_MASK
    }

    /// Returns whether a prefix waits to be swept or is being swept.
    pub(super) fn is_pending(&self) -> bool {
        !lock(&self.table).entries.is_empty()
    }

    /// Starts a sweep for the prefixes in the table; `None` if the table is empty.
    pub(super) fn begin_sweep(&self) -> Option<Sweep> {
        let mut table = lock(&self.table);
        if table.entries.is_empty() {
            return None;
        }
        // No copy marks prefixes as being swept yet, so no operation reads the position.
        self.position.store(0, Ordering::Release);
        let entries = table.entries.clone();
        let sweeping = entries.len();
        let next = Arc::new(Table::new(entries, sweeping));
        self.publish(&mut table, next.clone());
        Some(Sweep { table: next, shard: 0, units: 1, unit: 0 })
    }

    /// Records the progress of the sweep.
    pub(super) fn advance(&self, sweep: &Sweep) {
        let units = u64::from(sweep.units.trailing_zeros());
        let position = (sweep.shard as u64) << SHARD_SHIFT | units << UNITS_SHIFT | sweep.unit;
        self.position.store(position, Ordering::Release);
    }

    /// Returns whether the sweep has to remove the item of a key. The caller holds the lock of its
    /// hash bucket.
    pub(super) fn is_due(
        &self,
        sweep: &Sweep,
        key: &[u8],
        hash: impl FnOnce() -> KeyHash,
    ) -> Option<KeyHash> {
        let number = sweep.table.matching(key).map(|(_, pending)| pending.number).max()?;
        let hash = hash();
        (self.marks.of(hash) < number).then_some(hash)
    }

    /// Ends a sweep that has passed all keys, and removes its prefixes from the table. Calls
    /// `emptied` if none remains.
    pub(super) fn end_sweep(&self, sweep: &Sweep, emptied: impl FnOnce()) {
        let mut table = lock(&self.table);
        self.position.store(SWEPT, Ordering::Release);
        let next = Arc::new(Table::new(table.entries[table.sweeping..].to_vec(), 0));
        let is_empty = next.entries.is_empty();
        self.publish(&mut table, next);
        self.counts.sweeps.fetch_add(1, Ordering::Relaxed);
        // Waiting flushes have higher numbers than the swept ones.
        let last = sweep.table.entries.iter().map(|one| one.number).max().unwrap_or(0);
        self.marks.forget_up_to(last);
        if is_empty {
            emptied();
        }
    }

    /// Counts a removed item.
    pub(super) fn count_removed(&self, bytes: u64) {
        self.counts.items.fetch_add(1, Ordering::Relaxed);
        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the metrics of a store with `shards` shards.
    pub(super) fn stats(&self, shards: usize) -> PrefixFlushStats {
        let table = lock(&self.table).clone();
        let position = self.position.load(Ordering::Relaxed);
        let swept_share = if table.entries.is_empty() {
            1.0
        } else if table.sweeping == 0 || position == SWEPT {
            0.0
        } else {
            let units = (1u64 << (position >> UNITS_SHIFT & 0xff)) as f64;
            ((position >> SHARD_SHIFT) as f64 + (position & UNIT_MASK) as f64 / units) / shards as f64
        };
        PrefixFlushStats {
            flushes: self.number.load(Ordering::Relaxed),
            refused: self.counts.refused.load(Ordering::Relaxed),
            pending: table.entries.len() as u64,
            swept_share,
            sweeps: self.counts.sweeps.load(Ordering::Relaxed),
            items_removed: self.counts.items.load(Ordering::Relaxed),
            bytes_removed: self.counts.bytes.load(Ordering::Relaxed),
            marks: self.marks.len(),
            marks_max: self.marks.max,
        }
    }
}

// A mark is a key stored while one of its prefixes was in the table, with the number of the latest
// flush at that time.

/// The maximum number of bytes per mark: a hash map doubles its size, and needs two words and a
/// byte per entry.
pub(in crate::kv) const MARK_BYTES_MAX: usize = 40;

/// The number of maps, so that threads which mark keys rarely contend.
const MAPS: usize = 16;

/// A map of limited size from a key's hash to the number of the latest flush when it was stored.
pub(crate) struct Marks {
    maps: [Mutex<HashMap<u64, u64, SeededState>>; MAPS],
    len: AtomicU64,
    max: u64,
    state: SeededState,
}

impl Marks {
    pub(crate) fn new(max: u64, state: &SeededState) -> Marks {
        let map = |_| Mutex::ranked(HashMap::with_hasher(state.clone()), &lock_ranks::MARKS);
        Marks { maps: std::array::from_fn(map), len: AtomicU64::new(0), max, state: state.clone() }
    }

    fn map(&self, hash: KeyHash) -> &Mutex<HashMap<u64, u64, SeededState>> {
        &self.maps[(hash.0 >> 48) as usize % MAPS]
    }

    /// Returns the mark of a key; 0 if it has none.
    pub(crate) fn of(&self, hash: KeyHash) -> u64 {
        if self.len() == 0 {
            return 0;
        }
        lock(self.map(hash)).get(&hash.0).copied().unwrap_or(0)
    }

    /// Marks a key. Returns false if there is no space for another mark.
    #[must_use]
    pub(crate) fn set(&self, hash: KeyHash, number: u64) -> bool {
        let mut map = lock(self.map(hash));
        if let Some(mark) = map.get_mut(&hash.0) {
            *mark = number;
            return true;
        }
        // The count is increased before the entry is created, so that threads that mark keys
        // simultaneously stay within the limit.
        let room = |len: u64| (len < self.max).then_some(len + 1);
        if self.len.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).is_err() {
            return false;
        }
        map.insert(hash.0, number);
        true
    }

    /// Removes the marks up to `number`, and frees their memory.
    pub(crate) fn forget_up_to(&self, number: u64) {
        for map in &self.maps {
            let mut map = lock(map);
            let before = map.len();
            if before == 0 {
                continue;
            }
            map.retain(|_, mark| *mark > number);
            self.len.fetch_sub((before - map.len()) as u64, Ordering::Relaxed);
            if map.is_empty() {
                *map = HashMap::with_hasher(self.state.clone());
            }
        }
    }

    /// Returns the number of marks.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(shuttle)))]
mod prefixes_tests {
    use super::*;

    #[test]
    fn a_key_is_compared_with_prefixes_of_any_length() {
        let prefixes: [&[u8]; 6] = [b"a", b"ab", b"abcdefgh", b"abcdefghi", b"\0", b"b"];
        let pending = |prefix: &[u8]| Arc::new(Pending { prefix: prefix.into(), number: 1 });
        let table = Table::new(prefixes.iter().map(|prefix| pending(prefix)).collect(), 0);
        let keys: [&[u8]; 9] =
            [b"a", b"ab", b"abc", b"abcdefgh", b"abcdefghi", b"abcdefghj", b"\0\0", b"c", b"b\0"];
        for key in keys {
            let found: Vec<&[u8]> = table.matching(key).map(|(_, one)| &*one.prefix).collect();
            let expected: Vec<&[u8]> =
                prefixes.into_iter().filter(|prefix| key.starts_with(prefix)).collect();
            assert_eq!(found, expected, "{key:?}");
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod marks_tests {
    use super::*;
    use crate::hash::KeyHasher;

    #[test]
    fn marks_are_bounded_and_forgotten_by_number() {
        let marks = Marks::new(3, &KeyHasher::new(Some(7)).seeded_state());
        let hash = |n: u64| KeyHash(n << 48 | n);
        assert!((1..=3).all(|n| marks.set(hash(n), n)));
        assert!(!marks.set(hash(4), 4), "no room");
        assert!(marks.set(hash(1), 5), "it has a mark");
        assert_eq!((marks.of(hash(1)), marks.of(hash(2)), marks.of(hash(4))), (5, 2, 0));
        marks.forget_up_to(2);
        assert_eq!((marks.len(), marks.of(hash(1)), marks.of(hash(2)), marks.of(hash(3))), (2, 5, 0, 3));
        assert!(marks.set(hash(4), 6));
        assert!(!marks.set(hash(2), 6));
    }
}
