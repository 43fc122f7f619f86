//! The store's implementation of the [log's owner traits](super::log::EntryOwner), through which
//! the log finds out which entries are in use.

use super::index::{BucketGuard, BucketRef};
use super::inner::{Found, Inner};
use super::item::extent::{self, List};
use super::item::{ItemPtr, Shape, state};
use super::log::{Entry, EntryOwner, LiveEntry, Scanned};
use super::request::{Change, EvictedItem, EvictionHook, Miss};
use crate::sync::Ordering;
use crate::{KeyHash, stores};

/// The hash bucket and the hash by which an entry is found in the index.
#[derive(Clone, Copy)]
pub(super) struct Hint<'a> {
    bucket: BucketRef<'a>,
    hash: KeyHash,
}

/// An item, or a piece of its value, whose hash bucket is locked.
pub(super) struct Live<'a> {
    inner: &'a Inner,
    bucket: BucketGuard<'a>,
    found: Found<'a>,
    hash: KeyHash,
    /// The location of the entry itself.
    location: u32,
    /// The position of a piece in the item's list; `None` for an item.
    piece: Option<usize>,
}

impl EntryOwner for Inner {
    type Hint<'a> = Hint<'a>;
    type Live<'a> = Live<'a>;

    #[inline]
    unsafe fn scan<'a>(&'a self, entry: *mut u8) -> Scanned<Hint<'a>> {
        // SAFETY: the caller promises a complete entry.
        let shape = unsafe { Shape::read(entry) };
        let is_piece = shape.piece_bytes().is_some();
        let hash = if is_piece {
            // SAFETY: as above, and the shape says that it is a piece.
            unsafe { extent::piece_owner(entry) }
        } else {
            // SAFETY: as above; only the key is read, which never changes.
            self.hasher.hash(unsafe { ItemPtr::new(entry) }.key())
        };
        let bucket = self.index.shard(hash).locate(hash);
        bucket.prefetch();
        Scanned { hint: Hint { bucket, hash }, bytes: shape.entry_bytes() as u32, is_piece }
    }

    #[inline]
    fn lock<'a>(&'a self, scanned: &Scanned<Hint<'a>>, location: u32, now: u32) -> Option<Live<'a>> {
        let Hint { bucket, hash } = scanned.hint;
        let bucket = bucket.lock(hash);
        let (found, piece) = if scanned.is_piece {
            let (found, position) = self.item_of_piece(&bucket, hash, location)?;
            (found, Some(position))
        } else {
            let slot = bucket.find(hash, |entry| entry == location)?;
            (Found { slot, item: self.item_at(location), location }, None)
        };
        if (self.log.may_have_ended() || found.item.shape().fields().expiry)
            && self.remove_from_walk(&bucket, found, now)
        {
            return None;
        }
        Some(Live { inner: self, bucket, found, hash, location, piece })
    }

    fn change_stamp(&self) -> (u64, u64) {
        // Every store and every removal changes one of the two numbers.
        self.index.stored_and_items()
    }
}

impl Inner {
    /// Returns the item whose list contains the piece at a location, and the piece's position in
    /// the list.
    fn item_of_piece<'a>(
        &self,
        bucket: &BucketGuard<'a>,
        hash: KeyHash,
        piece: u32,
    ) -> Option<(Found<'a>, usize)> {
        let (slot, (item, location, position)) = bucket.find_map(hash, |location| {
            let item = self.item_at(location);
            if !item.shape().fields().extents {
                return None;
            }
            List::new(item.payload()).position(piece).map(|position| (item, location, position))
        })?;
        Some((Found { slot, item, location }, position))
    }

    /// Removes a flushed or expired item. Returns false if the item is neither.
    fn remove_from_walk(&self, bucket: &BucketGuard<'_>, found: Found<'_>, now: u32) -> bool {
        let ended = self.remove_if_ended(bucket, found, now);
        if ended == Err(Miss::Expired) {
            self.expirations.reclaimed.fetch_add(1, Ordering::Relaxed);
        }
        ended.is_err()
    }
}

impl LiveEntry for Live<'_> {
    #[inline]
    fn hash(&self) -> u64 {
        self.hash.0
    }

    #[inline]
    fn item(&self) -> ItemPtr {
        self.found.item
    }

    #[inline]
    fn item_bytes(&self, entry_bytes: u32) -> u64 {
        if self.found.item.shape().fields().extents {
            self.inner.item_bytes(self.found.item)
        } else {
            u64::from(entry_bytes)
        }
    }

    #[inline]
    fn relocate(&self, to: Entry) {
        let Found { slot, item, .. } = self.found;
        match self.piece {
            None => {
                // SAFETY: the new entry has the old one's size, and nothing refers to it yet; the lock of the
                // item's hash bucket is held.
                let moved = unsafe { item.copy_to(self.inner.log.ptr(to.location), to.bytes as usize) };
                // The checksum was copied with the entry.
                moved.make_live(item.usage());
                slot.set_location(to.location);
                self.inner.log.make_dead(item);
            }
            Some(position) => {
                self.inner.log.copy_entry(self.location, to);
                stores::fence();
                // SAFETY: the payload is the list in which the piece was found at this position, and the lock
                // of its hash bucket is held.
                unsafe { extent::set_piece_location(item.payload_ptr(), position, to.location) };
            }
        }
    }

    #[inline]
    fn evict(self, now: u32, entry_bytes: u32, mut other: impl FnMut(u32, u32)) -> bool {
        let bytes = self.item_bytes(entry_bytes);
        let Live { inner, bucket, found, location, .. } = self;
        let item = found.item;
        let was_fetched = item.state() & state::FETCHED != 0;
        if let Some(hook) = &inner.eviction_hook {
            notify_eviction(&**hook, item, now);
        }
        inner.notify(Change::Evicted, item.key(), item.cas());
        inner.log.make_dead(item);
        bucket.remove(found.slot, bytes);
        if item.shape().fields().extents {
            inner.each_entry(item, found.location, |entry, bytes| {
                if entry != location {
                    other(entry, bytes);
                }
            });
        }
        was_fetched
    }
}

#[cold]
fn notify_eviction(hook: &dyn EvictionHook, item: ItemPtr, now: u32) {
    hook.on_eviction(&EvictedItem {
        key: item.key(),
        value_bytes: item.value_bytes(),
        client_flags: item.client_flags(),
        expiry: item.expiry(),
        last_access: item.last_access(now),
        fetched: item.state() & state::FETCHED != 0,
        now,
    });
}
