//! Rebuilding the index from the items of an earlier process, by a walk over the entries of each
//! region.

use std::collections::{HashMap, HashSet};

use crate::KeyHash;
use crate::arena::{RegionId, RestartProgress};
use crate::kv::index::BucketGuard;
use crate::kv::inner::{Found, Inner};
use crate::kv::item::extent::List;
use crate::kv::item::{ItemPtr, KEY_BYTES_MAX, Shape, extent};
use crate::kv::log::Log;
use crate::kv::restart::Restart;
use crate::sync::{AtomicU32, Ordering, on_all_cores};

/// The number of items whose hash buckets are prefetched together.
const BATCH: usize = 32;

/// The findings of one thread.
#[derive(Default)]
struct Part {
    expired: u64,
    flushed: u64,
    replaced: u64,
    damaged: u64,
    damaged_regions: u64,
    /// Pieces of large values: their location, the length of their data, and the hash of their
    /// item's key.
    pieces: Vec<(u32, (u32, KeyHash))>,
    /// Live items whose values consist of pieces.
    large: Vec<u32>,
    /// Regions that contain items.
    with_items: Vec<RegionId>,
}

/// The entries that must match their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    Regions,
    /// Every entry that has a checksum.
    Entries,
    Nothing,
}

/// The result of linking an item.
enum Linked {
    Yes,
    /// The key had two items, of which one was left out.
    Replaced,
    NoRoom,
}

/// Rebuilds the index and the accounting of regions. No other thread may use the store.
pub(super) fn rebuild(inner: &Inner, now: u32, check: Check, progress: &RestartProgress) -> Restart {
    let (regions, damaged_regions) = inner.log.begin_restore(now);
    progress.regions_max.store(regions.len() as u32, Ordering::Relaxed);
    inner.index.reserve(inner.log.superblock.notes().items());
    let check_entries = check == Check::Entries && inner.log.has_checksums();
    let next = AtomicU32::new(0);
    let parts = on_all_cores(regions.len(), || {
        let mut part = Part::default();
        while let Some(region) = regions.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            let arena = &inner.log.arena;
            if check == Check::Regions && arena.crc_of(*region) != arena.region(*region).crc() {
                part.damaged_regions += 1;
                arena.region(*region).set_used_bytes(inner.log.first_entry());
            } else {
                scan_region(inner, *region, now, check_entries, &mut part);
            }
            progress.regions.fetch_add(1, Ordering::Relaxed);
            progress.items.store(inner.index.stored_and_items().1, Ordering::Relaxed);
        }
        part
    });
    let mut sum = Part::default();
    for part in parts {
        sum.expired += part.expired;
        sum.flushed += part.flushed;
        sum.replaced += part.replaced;
        sum.damaged += part.damaged;
        sum.damaged_regions += part.damaged_regions;
        sum.pieces.extend(part.pieces);
        sum.large.extend(part.large);
        sum.with_items.extend(part.with_items);
    }
    link_large(inner, &mut sum);
    let with_items: HashSet<u32> = sum.with_items.iter().map(|region| region.0).collect();
    inner.log.end_restore(regions, &|region| with_items.contains(&region.0));
    Restart {
        items: inner.index.stored_and_items().1,
        expired_items: sum.expired,
        flushed_items: sum.flushed,
        replaced_items: sum.replaced,
        damaged_items: sum.damaged,
        damaged_regions: damaged_regions + sum.damaged_regions,
        ..Restart::default()
    }
}

/// Links the live items of a region, except those with pieces.
fn scan_region(inner: &Inner, region: RegionId, now: u32, check: bool, part: &mut Part) {
    let is_flushed = inner.log.arena.region(region).sequence() < inner.log.superblock.notes().boundary();
    let mut scan = Scan::new(&inner.log, region);
    let mut batch: Vec<(Entry, ItemPtr, KeyHash)> = Vec::with_capacity(BATCH);
    let mut has_items = false;
    loop {
        for Entry { location, bytes, kind } in scan.by_ref() {
            let item = match kind {
                Kind::Piece { data_bytes, owner } => {
                    if !check || inner.log.matches_piece_checksum(location, data_bytes, bytes) {
                        part.pieces.push((location, (data_bytes, owner)));
                    }
                    continue;
                }
                Kind::Item(item) => item,
            };
            if !item.is_live() {
                continue;
            }
            has_items = true;
            let is_whole = (!check || item.matches_checksum(bytes)) && inner.may_hold(item);
            if is_flushed || item.expiry().is_past(now) || !is_whole {
                item.make_dead();
                *(if is_flushed {
                    &mut part.flushed
                } else if item.expiry().is_past(now) {
                    &mut part.expired
                } else {
                    &mut part.damaged
                }) += 1;
            } else if item.shape().fields().extents {
                part.large.push(location);
            } else {
                let hash = inner.hasher.hash(item.key());
                inner.index.shard(hash).locate(hash).prefetch();
                batch.push((Entry { location, bytes, kind }, item, hash));
                if batch.len() == BATCH {
                    break;
                }
            }
        }
        if batch.is_empty() {
            break;
        }
        for (entry, item, hash) in batch.drain(..) {
            part.count(inner.link_found(hash, item, entry.location));
        }
    }
    if !scan.is_complete() {
        part.damaged_regions += 1;
        // The walk ends here.
        inner.log.arena.region(region).set_used_bytes(scan.cursor);
    }
    if has_items {
        part.with_items.push(region);
    }
}

/// Links the items whose values consist of pieces, if all pieces were found.
fn link_large(inner: &Inner, part: &mut Part) {
    let mut pieces: HashMap<u32, (u32, KeyHash)> = part.pieces.drain(..).collect();
    for location in std::mem::take(&mut part.large) {
        let item = inner.item_at(location);
        let hash = inner.hasher.hash(item.key());
        let list = List::new(item.payload());
        let is_whole = extent::list_bytes(list.len()) == item.payload().len()
            && list.pieces().map(|piece| u64::from(piece.bytes)).sum::<u64>() == list.value_bytes() as u64
            && list.pieces().all(|piece| pieces.get(&piece.location) == Some(&(piece.bytes, hash)))
            && list.pieces().map(|piece| piece.location).collect::<HashSet<_>>().len() == list.len();
        if !is_whole {
            item.make_dead();
            // If an item was being moved, two entries list the same pieces.
            match inner.is_linked(hash, item) {
                true => part.replaced += 1,
                false => part.damaged += 1,
            }
            continue;
        }
        list.pieces().for_each(|piece| {
            pieces.remove(&piece.location);
        });
        part.count(inner.link_found(hash, item, location));
    }
}

impl Inner {
    /// Returns whether the store could have created such an item.
    fn may_hold(&self, item: ItemPtr) -> bool {
        let shape = item.shape();
        shape.fields().cas == self.has_cas && self.fits(shape.key_bytes(), item.value_bytes())
    }

    /// Returns whether the index refers to an item of the same key.
    fn is_linked(&self, hash: KeyHash, item: ItemPtr) -> bool {
        self.find_any(&self.index.shard(hash).lock(hash), hash, item.key()).is_some()
    }

    /// Links an item that was found live.
    fn link_found(&self, hash: KeyHash, item: ItemPtr, location: u32) -> Linked {
        let linked = {
            let bucket = self.index.shard(hash).lock(hash);
            match self.find_any(&bucket, hash, item.key()) {
                None if bucket.insert(hash, location, self.item_bytes(item)) => {
                    self.count_found(item, location);
                    Linked::Yes
                }
                None => {
                    item.make_dead();
                    Linked::NoRoom
                }
                Some(old) => {
                    self.keep_newer(&bucket, old, item, location);
                    Linked::Replaced
                }
            }
        };
        self.grow_index(hash);
        linked
    }

    /// Keeps one of two live items of a key. Either is correct, because the change from one to the
    /// other was not acknowledged.
    fn keep_newer(&self, bucket: &BucketGuard<'_>, old: Found<'_>, item: ItemPtr, location: u32) {
        if (old.item.cas(), old.location) > (item.cas(), location) {
            item.make_dead();
            return;
        }
        bucket.shard().adjust_bytes(self.item_bytes(item), self.item_bytes(old.item));
        old.slot.set_location(location);
        old.item.make_dead();
        let expiry = old.item.expiry();
        self.each_entry(old.item, old.location, |location, bytes| {
            self.log.entry_not_restored(location, bytes, expiry);
        });
        self.count_found(item, location);
    }

    /// Counts the bytes of an item to which the index now refers.
    fn count_found(&self, item: ItemPtr, location: u32) {
        let expiry = item.expiry();
        self.each_entry(item, location, |location, bytes| self.log.entry_restored(location, bytes, expiry));
    }
}

impl Part {
    fn count(&mut self, linked: Linked) {
        match linked {
            Linked::Yes => {}
            Linked::Replaced => self.replaced += 1,
            Linked::NoRoom => self.damaged += 1,
        }
    }
}

/// An entry that lies within its region.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) location: u32,
    /// Including padding.
    pub(super) bytes: u32,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// An item, which may be live.
    Item(ItemPtr),
    /// A piece, which may be in use: the list of its item decides.
    Piece { data_bytes: u32, owner: KeyHash },
}

/// A walk over the entries of a region, up to the end of the allocated part or to the first invalid
/// entry.
pub(super) struct Scan<'a> {
    log: &'a Log,
    region: RegionId,
    /// The position of the walk. After its end, this is where the invalid part starts.
    cursor: u32,
    end: u32,
}

impl<'a> Scan<'a> {
    pub(super) fn new(log: &'a Log, region: RegionId) -> Scan<'a> {
        // A region has at most 1 MiB.
        let end = log.arena.region(region).used_bytes().min(log.arena.region_bytes() as u32);
        Scan { log, region, cursor: log.first_entry(), end }
    }

    /// Returns whether the whole allocated part consisted of valid entries.
    pub(super) fn is_complete(&self) -> bool {
        self.cursor >= self.end
    }
}

impl Iterator for Scan<'_> {
    type Item = Entry;

    #[inline]
    fn next(&mut self) -> Option<Entry> {
        // The smallest entry consists of two words and one byte.
        let left = self.end.checked_sub(self.cursor).filter(|left| *left >= 12)?;
        let location = self.log.location_in(self.region, self.cursor);
        let ptr = self.log.ptr(location);
        // SAFETY: at least twelve bytes of the mapped region are left at the cursor, which is aligned to a
        // granule.
        let shape = unsafe { Shape::read(ptr) };
        let bytes = self.log.padded(shape.entry_bytes());
        if bytes > left {
            return None;
        }
        let kind = match shape.piece_bytes() {
            // SAFETY: the entry lies inside the region, and a piece has room for its header.
            Some(data_bytes) => Kind::Piece { data_bytes, owner: unsafe { extent::piece_owner(ptr) } },
            None if (1..=KEY_BYTES_MAX).contains(&shape.key_bytes()) => {
                // SAFETY: the entry lies inside the region, which no other thread changes during the restart.
                Kind::Item(unsafe { ItemPtr::new(ptr) })
            }
            None => return None,
        };
        self.cursor += bytes;
        Some(Entry { location, bytes, kind })
    }
}
