//! Room for a value that is still arriving: it is written straight into its final place.

use super::store::{Linked, Over};
use crate::KeyHash;
use crate::kv::extent::{self, PIECE_HEADER_BYTES, Piece};
use crate::kv::item::{ItemPtr, KEY_BYTES_MAX, Shape};
use crate::kv::log::Entry;
use crate::kv::{Inner, Kv, StoreOptions, StoreOutcome};
use crate::sync::{Arc, Ordering};

/// Room for one value. Fill it with [`spare`](Reservation::spare) and [`advance`](Reservation::advance)
/// or [`write`](Reservation::write), then [`commit`](Reservation::commit); dropped before, it leaves no trace.
///
/// A large value takes memory only as it arrives, at most one region ahead. What waits for the rest of its value holds memory
/// that nothing can be reclaimed from, so all reservations together are bounded: see [`Kv::reserve`].
pub struct Reservation {
    inner: Arc<Inner>,
    hash: KeyHash,
    key: [u8; KEY_BYTES_MAX],
    key_bytes: u8,
    options: StoreOptions,
    value_bytes: usize,
    filled: usize,
    /// Bytes of the value that the pieces have room for.
    allocated: usize,
    /// Counted against the store's limit for values under way; `None`: the value is at hand, and nobody is waited for.
    arriving: Option<u64>,
    place: Place,
}

enum Place {
    /// The item's own entry; header and key are written.
    Inline(Entry),
    /// Pieces allocated so far; the last one may be partly filled.
    Pieces(Vec<(Entry, u32)>),
    /// Given away or given back.
    Gone,
}

// SAFETY: the entries are known to this reservation alone; which thread writes them does not matter.
unsafe impl Send for Reservation {}

impl Kv {
    /// Reserves room for a value of `value_bytes` bytes that is still to come. The mode of `options` is applied at
    /// [`Reservation::commit`]; append and prepend are not for here.
    ///
    /// Reservations may hold a quarter of the memory, the whole of each value counted, and lie in a quarter of the regions. The
    /// bound is theirs alone: it never keeps [`Kv::store`] from storing a value that is there.
    ///
    /// # Errors
    /// [`StoreOutcome::TooLarge`], or [`StoreOutcome::OutOfMemory`] when there is no room, or the bound is reached: then the
    /// caller collects the value elsewhere, and stores it when it is complete.
    pub fn reserve(
        &self,
        key: &[u8],
        hash: KeyHash,
        value_bytes: usize,
        options: &StoreOptions,
    ) -> Result<Reservation, StoreOutcome> {
        self.reserve_for(key, hash, value_bytes, options, true)
    }

    /// Room for a value that is at hand, and will be written at once.
    pub(super) fn reserve_at_once(
        &self,
        key: &[u8],
        hash: KeyHash,
        value_bytes: usize,
        options: &StoreOptions,
    ) -> Result<Reservation, StoreOutcome> {
        self.reserve_for(key, hash, value_bytes, options, false)
    }

    fn reserve_for(
        &self,
        key: &[u8],
        hash: KeyHash,
        value_bytes: usize,
        options: &StoreOptions,
        is_arriving: bool,
    ) -> Result<Reservation, StoreOutcome> {
        let inner = &self.inner;
        if !inner.fits(key.len(), value_bytes) {
            return Err(StoreOutcome::TooLarge);
        }
        let now = inner.now();
        let mut stored_key = [0; KEY_BYTES_MAX];
        stored_key[..key.len()].copy_from_slice(key);
        let mut reservation = Reservation {
            inner: inner.clone(),
            hash,
            key: stored_key,
            key_bytes: key.len() as u8,
            options: *options,
            value_bytes,
            filled: 0,
            allocated: 0,
            arriving: None,
            place: Place::Pieces(Vec::new()),
        };
        if is_arriving {
            reservation.count(value_bytes as u64)?;
        }
        if let Some(shape) = inner.inline_shape(key.len(), value_bytes, options) {
            let bytes = inner.padded(shape.entry_bytes());
            let stream = inner.stream_for(options.expiry, now);
            let entry = inner.alloc(stream, bytes, now).ok_or(StoreOutcome::OutOfMemory)?;
            inner.fill(entry, shape, key, b"", &inner.fresh_attributes(options, now));
            if is_arriving && !inner.hold_region(entry, inner.reserved_regions_max) {
                inner.abandon(entry);
                return Err(StoreOutcome::OutOfMemory);
            }
            reservation.place = Place::Inline(entry);
        } else if is_arriving {
            // The first piece at once: who is refused now can go another way.
            reservation
                .add_piece(value_bytes, inner.reserved_regions_max)
                .ok_or(StoreOutcome::OutOfMemory)?;
        }
        Ok(reservation)
    }
}

impl Reservation {
    /// Bytes of the value that are still missing.
    pub fn remaining(&self) -> usize {
        self.value_bytes - self.filled
    }

    /// The next bytes to write: not empty unless nothing remains. `None` when there is no memory for
    /// more; then the value cannot be stored.
    pub fn spare(&mut self) -> Option<&mut [u8]> {
        let remaining = self.remaining();
        if remaining == 0 {
            return Some(&mut []);
        }
        let (at, room) = match &self.place {
            Place::Inline(entry) => {
                let item = self.inner.item_at(entry.location);
                (item.payload_ptr().wrapping_add(self.filled), remaining)
            }
            Place::Pieces(_) => {
                if self.allocated == self.filled {
                    // A value that has been let in may go on a little longer.
                    self.add_piece(remaining, self.inner.reserved_regions_max * 2)?;
                }
                self.last_piece()?
            }
            Place::Gone => return None,
        };
        // SAFETY: the bytes lie in an entry that nobody else knows of, behind its header, inside its
        // size; the borrow of `self` keeps it from being committed or dropped meanwhile.
        Some(unsafe { std::slice::from_raw_parts_mut(at, room) })
    }

    /// Where the unfilled part of the last piece lies.
    fn last_piece(&self) -> Option<(*mut u8, usize)> {
        let Place::Pieces(pieces) = &self.place else { return None };
        let (entry, bytes) = pieces.last()?;
        let left = self.allocated - self.filled;
        let data = self.inner.ptr(entry.location).wrapping_add(PIECE_HEADER_BYTES);
        Some((data.wrapping_add(*bytes as usize - left), left))
    }

    /// Takes memory for more of the value, unless values under way lie in more than `regions_max` regions.
    fn add_piece(&mut self, wanted: usize, regions_max: u32) -> Option<()> {
        let now = self.inner.clock.now_secs();
        let (entry, data) = self.inner.alloc_piece(wanted.min(self.inner.arena.region_bytes()), now)?;
        let at = self.inner.ptr(entry.location);
        // SAFETY: the entry is ours, has room for the header, and is aligned to a granule.
        unsafe {
            Shape::piece(data).write(at);
            extent::write_piece_owner(at, self.hash);
        }
        if self.arriving.is_some() && !self.inner.hold_region(entry, regions_max) {
            self.inner.abandon(entry);
            return None;
        }
        if let Place::Pieces(pieces) = &mut self.place {
            pieces.push((entry, data));
            self.allocated += data as usize;
        }
        Some(())
    }

    /// `bytes` of what [`spare`](Reservation::spare) gave have been written.
    ///
    /// # Panics
    /// If more is claimed than remains.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.remaining(), "more was written than there is room for");
        self.filled += bytes;
    }

    /// Writes some of the value; false when there is no memory for it.
    #[must_use]
    pub fn write(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let Some(spare) = self.spare() else { return false };
            let n = spare.len().min(bytes.len());
            if n == 0 {
                return false;
            }
            spare[..n].copy_from_slice(&bytes[..n]);
            self.advance(n);
            bytes = &bytes[n..];
        }
        true
    }

    /// Stores the value, as the options demand. An incomplete value is not stored.
    pub fn commit(self) -> StoreOutcome {
        self.finish(None).unwrap_or(StoreOutcome::NotStored)
    }

    /// Stores the value only if the key's item still lies at `location`, and adds these marks to its
    /// state; `None` if it does not. The caller makes sure that the same place means the same item.
    pub(super) fn commit_over(self, over: Over) -> Option<StoreOutcome> {
        self.finish(Some(over))
    }

    fn finish(mut self, over: Option<Over>) -> Option<StoreOutcome> {
        if self.remaining() != 0 {
            return Some(StoreOutcome::NotStored);
        }
        let inner = self.inner.clone();
        let now = inner.now();
        self.arrived();
        let key = self.key;
        let key = &key[..usize::from(self.key_bytes)];
        let outcome = match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Inline(entry) => {
                inner.decide_and_link(self.hash, key, entry, self.value_bytes, &self.options, over, now)
            }
            Place::Pieces(pieces) => {
                let Some(entry) = self.write_list(&pieces, key, now) else {
                    self.place = Place::Pieces(pieces);
                    return Some(StoreOutcome::OutOfMemory);
                };
                let linked =
                    inner.decide_and_link(self.hash, key, entry, self.value_bytes, &self.options, over, now);
                match linked {
                    Linked::Done(StoreOutcome::Stored { .. }) => {
                        pieces.iter().for_each(|(piece, _)| inner.publish(*piece));
                    }
                    _ => self.place = Place::Pieces(pieces),
                }
                linked
            }
            Place::Gone => return Some(StoreOutcome::NotStored),
        };
        inner.grow_index(self.hash);
        match outcome {
            Linked::Done(outcome) => Some(outcome),
            Linked::Refused(StoreOutcome::NotStored) if over.is_some() => None,
            Linked::Refused(outcome) => Some(outcome),
        }
    }

    /// Writes the item's own entry, with the list of its pieces.
    fn write_list(&self, pieces: &[(Entry, u32)], key: &[u8], now: u32) -> Option<Entry> {
        let inner = &self.inner;
        let shape = inner.large_shape(key.len(), pieces.len(), &self.options)?;
        let stream = inner.stream_for(self.options.expiry, now);
        let entry = inner.alloc(stream, inner.padded(shape.entry_bytes()), now)?;
        let attributes = inner.fresh_attributes(&self.options, now);
        // SAFETY: the entry has room for the shape, whose payload is the list's size.
        unsafe {
            let item = ItemPtr::write(inner.ptr(entry.location), shape, key, &attributes);
            let list = pieces.iter().map(|(piece, bytes)| Piece { location: piece.location, bytes: *bytes });
            extent::write_list(item.payload_ptr(), self.value_bytes as u32, list);
        }
        Some(entry)
    }

    fn count(&mut self, bytes: u64) -> Result<(), StoreOutcome> {
        self.arriving = Some(bytes);
        let before = self.inner.reserved_bytes.fetch_add(bytes, Ordering::Relaxed);
        // Dropped by the caller, it is not counted any more. One value alone always fits.
        if before + bytes > self.inner.reserved_bytes_max { Err(StoreOutcome::OutOfMemory) } else { Ok(()) }
    }

    /// Nothing is waited for any more, so nothing is held.
    fn arrived(&mut self) {
        let Some(bytes) = self.arriving.take() else { return };
        self.inner.reserved_bytes.fetch_sub(bytes, Ordering::Relaxed);
        match &self.place {
            Place::Inline(entry) => self.inner.let_region_go(*entry),
            Place::Pieces(pieces) => pieces.iter().for_each(|(piece, _)| self.inner.let_region_go(*piece)),
            Place::Gone => {}
        }
    }
}

impl Inner {
    /// Counts the entry's region as one that waits for a value; false, and nothing counted, if those were more than `regions_max`
    /// then.
    fn hold_region(&self, entry: Entry, regions_max: u32) -> bool {
        if !self.arena.region(entry.region).begin_arrival()
            || self.reserved_regions.fetch_add(1, Ordering::Relaxed) < regions_max
        {
            return true;
        }
        self.let_region_go(entry);
        false
    }

    fn let_region_go(&self, entry: Entry) {
        if self.arena.region(entry.region).end_arrival() {
            self.reserved_regions.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.arrived();
        match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Inline(entry) => self.inner.abandon(entry),
            Place::Pieces(pieces) => pieces.iter().for_each(|(piece, _)| self.inner.abandon(*piece)),
            Place::Gone => {}
        }
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({} of {} bytes)", self.filled, self.value_bytes)
    }
}
