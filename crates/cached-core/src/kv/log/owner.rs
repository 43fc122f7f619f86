//! The seam between the log and the store whose entries it holds.
//!
//! The log knows where an entry lies, how many bytes it takes and how much of each region is garbage. Whether
//! an entry is still in use, which item it belongs to, and how to record that it has moved is knowledge of
//! its owner. The log asks for it through two traits, one entry at a time:
//!
//! ```text
//!  scan ──> lock ──> None: garbage, or removed because it was flushed or has expired
//!              └────> LiveEntry ──> relocate(entry): it is moved there
//!                             └───> evict(…): the item is removed
//! ```
//! `scan` takes no lock and prefetches what `lock` reads, so the reclaimer scans a batch of entries before it
//! locks the first one. A [`LiveEntry`] holds the lock of its item: it stays alive, in its place, until it is
//! relocated, evicted or dropped.
//!
//! Everything that moves or removes entries by region belongs on this seam. The reclaimer is its only user in
//! this crate; an arbiter that takes regions away, a restart that finds regions of an earlier process, and a
//! second tier on flash need the same questions and no others. The traits are monomorphised: no call through
//! them is dynamic.

use super::Entry;
use crate::clock::Expiry;

/// A store that keeps its entries in a log.
pub(in crate::kv) trait EntryOwner {
    /// Where the owner expects to find an entry, worked out without a lock.
    type Hint<'a>: Copy
    where
        Self: 'a;

    /// An entry that is in use, with the lock that keeps it so.
    type Live<'a>: LiveEntry
    where
        Self: 'a;

    /// Reads the head of an entry, and prefetches what [`lock`](EntryOwner::lock) reads.
    ///
    /// # Safety
    /// `entry` points at a complete entry in a region that is not reused during the call.
    unsafe fn scan<'a>(&'a self, entry: *mut u8) -> Scanned<Self::Hint<'a>>;

    /// Locks the entry at `location`; `None` if it is garbage. An item that was flushed, or has expired at
    /// `now`, is removed, and its entry is garbage too.
    fn lock<'a>(
        &'a self,
        scanned: &Scanned<Self::Hint<'a>>,
        location: u32,
        now: u32,
    ) -> Option<Self::Live<'a>>;

    /// Returns numbers that differ after every change that made garbage.
    fn change_stamp(&self) -> (u64, u64);
}

/// What the head of an entry says.
#[derive(Clone, Copy)]
pub(in crate::kv) struct Scanned<H> {
    /// For [`EntryOwner::lock`].
    pub(in crate::kv) hint: H,
    /// Bytes of the entry before padding. They do not change while the region is not reused.
    pub(in crate::kv) bytes: u32,
    /// Whether the entry is a piece of a large value, not an item.
    pub(in crate::kv) is_piece: bool,
}

/// An entry that is in use and locked. For a piece of a large value, the properties are those of its item.
pub(in crate::kv) trait LiveEntry {
    /// The hash of the item's key.
    fn hash(&self) -> u64;

    /// When the item expires.
    fn expiry(&self) -> Expiry;

    /// Seconds since the item was last used.
    fn idle_secs(&self, now: u32) -> u32;

    /// The clock's second in which the item was last used.
    fn last_access(&self, now: u32) -> u32;

    /// The eviction policy's three bits.
    fn policy_bits(&self) -> u8;

    /// Replaces the eviction policy's three bits.
    fn set_policy_bits(&self, bits: u8);

    /// Bytes that evicting the item makes garbage; its own entry takes `entry_bytes` of them.
    fn item_bytes(&self, entry_bytes: u32) -> u64;

    /// Copies the entry to `to`, which has its size, and records that it lies there.
    fn relocate(&self, to: Entry);

    /// Removes the item to make room. The entry, of `entry_bytes` with its padding, is the caller's to
    /// account for; `other` is called with the location and the padded bytes of each of the item's other
    /// entries. Returns whether the item had been read since it was stored.
    fn evict(self, now: u32, entry_bytes: u32, other: impl FnMut(u32, u32)) -> bool;
}
