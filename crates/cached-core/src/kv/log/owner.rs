//! The interface between the log and the store whose entries it holds.
//!
//! The log knows the location and size of an entry, and how much of each region is garbage. Whether
//! an entry is still in use, which item it belongs to, and how to record that it has moved is known
//! to its owner. The log asks the owner through two traits, one entry at a time:
//!
//! ```text
//!  scan ──> lock ──> None: garbage, or removed because it was flushed or has expired
//!              └────> LiveEntry ──> relocate(entry): moves it there
//!                             └───> evict(…): the item is removed
//! ```
//! `scan` takes no lock and prefetches what `lock` reads, so the reclaimer scans a batch of entries
//! before it locks the first one. A [`LiveEntry`] holds the lock of its item: it stays alive, in
//! its place, until it is relocated, evicted or dropped.
//!
//! Everything that moves or removes entries by region has to use this interface. The reclaimer is
//! its only user in this crate; an arbiter that removes regions, a restart that finds regions of an
//! earlier process, and a second tier on flash need the same questions and no others. The traits
//! are monomorphised: no call through them is dynamic.

use super::Entry;
use crate::kv::item::ItemPtr;

/// A store that keeps its entries in a log.
pub(in crate::kv) trait EntryOwner {
    /// How the owner expects to find an entry, computed without a lock.
    type Hint<'a>: Copy
    where
        Self: 'a;

    /// An entry in use, and the lock that keeps it so.
    type Live<'a>: LiveEntry
    where
        Self: 'a;

    /// Reads the head of an entry, and prefetches what [`lock`](EntryOwner::lock) reads.
    ///
    /// # Safety
    /// `entry` points at a complete entry in a region that is not reused during the call.
    unsafe fn scan<'a>(&'a self, entry: *mut u8) -> Scanned<Self::Hint<'a>>;

    /// Locks the entry at `location`; `None` if it is garbage. An item that was flushed or has
    /// expired at `now` is removed, so its entry is garbage too.
    fn lock<'a>(
        &'a self,
        scanned: &Scanned<Self::Hint<'a>>,
        location: u32,
        now: u32,
    ) -> Option<Self::Live<'a>>;

    /// Returns a pair of numbers that every garbage-creating change alters.
    fn change_stamp(&self) -> (u64, u64);
}

/// The information in the head of an entry.
#[derive(Clone, Copy)]
pub(in crate::kv) struct Scanned<H> {
    /// For [`EntryOwner::lock`].
    pub(in crate::kv) hint: H,
    /// The size of the entry before padding. It does not change until the region is reused.
    pub(in crate::kv) bytes: u32,
    /// Whether the entry is a piece of a large value, not an item.
    pub(in crate::kv) is_piece: bool,
}

/// A locked entry that is in use. For a piece of a large value, the properties are those of its
/// item.
pub(in crate::kv) trait LiveEntry {
    /// Returns the hash of the item's key.
    fn hash(&self) -> u64;

    /// Returns the item, which stays in place until the entry is relocated or evicted.
    fn item(&self) -> ItemPtr;

    /// Returns the number of bytes that evicting the item turns into garbage, including the
    /// `entry_bytes` of its own entry.
    fn item_bytes(&self, entry_bytes: u32) -> u64;

    /// Copies the entry to `to`, which has the same size, and records the new location.
    fn relocate(&self, to: Entry);

    /// Removes the item to free memory. The caller accounts for this entry, whose padded size is
    /// `entry_bytes`. `other` is called with the location and padded size of each of the item's
    /// other entries. Returns whether the item had been read since it was stored.
    fn evict(self, now: u32, entry_bytes: u32, other: impl FnMut(u32, u32)) -> bool;
}
