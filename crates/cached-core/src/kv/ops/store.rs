//! Storing a value, either complete or as it arrives, into a reservation at its final location.

use super::link::Replaces;
use crate::KeyHash;
use crate::kv::inner::Inner;
use crate::kv::item::extent::{PIECE_HEADER_BYTES, Piece};
use crate::kv::item::{ItemPtr, KEY_BYTES_MAX, Shape, extent};
use crate::kv::log::Entry;
use crate::kv::{ItemView, Kv, PinnedValue, StoreMode, StoreOptions, StoreOutcome};
use crate::sync::Arc;

impl Kv {
    /// Stores a value. A key has 1 to [`KEY_BYTES_MAX`] bytes; others are
    /// [`StoreOutcome::TooLarge`].
    ///
    /// ```
    /// use cached_core::kv::{Kv, StoreMode, StoreOptions, StoreOutcome};
    /// # let kv = Kv::with_capacity_bytes(64 << 20)?;
    /// let options = StoreOptions { mode: StoreMode::Add, client_flags: 7, ..StoreOptions::default() };
    /// let hash = kv.hash(b"k");
    /// assert!(matches!(kv.store(b"k", hash, b"v", &options), StoreOutcome::Stored { .. }));
    /// assert_eq!(kv.store(b"k", hash, b"w", &options), StoreOutcome::NotStored);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn store(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        if matches!(options.mode, StoreMode::Append | StoreMode::Prepend) {
            return self.join(key, hash, value, options);
        }
        let inner = &self.inner;
        if !inner.fits(key.len(), value.len()) {
            return StoreOutcome::TooLarge;
        }
        let Some(shape) = inner.inline_shape(key.len(), value.len(), options) else {
            return self.store_large(key, hash, value, options);
        };
        let now = inner.now();
        let bytes = inner.log.padded(shape.entry_bytes());
        let stream = inner.log.stream_for(options.expiry, now);
        let outcome = {
            let locked = inner.index.shard(hash).lock(hash);
            let old = inner.find(&locked, hash, key, now).ok();
            let attributes = match inner.decide(&locked, old, options, now) {
                Ok(attributes) => attributes,
                Err(outcome) => return outcome,
            };
            if let Some(old) = old
                && let Some(outcome) = inner.overwrite(&locked, hash, old, shape, value, &attributes)
            {
                return outcome;
            }
            inner.log.try_alloc(stream, bytes).map(|entry| {
                inner.fill(entry, shape, key, value, &attributes);
                inner.link(&locked, hash, key, entry, old, value.len(), &attributes, options)
            })
        };
        let outcome = outcome.unwrap_or_else(|| {
            // The open region is full. This reclaims memory, then applies the mode again, because
            // the item may have changed.
            let Some(entry) = inner.log.alloc(&**inner, stream, bytes, now) else {
                return StoreOutcome::OutOfMemory;
            };
            inner.fill(entry, shape, key, value, &inner.fresh_attributes(options, now));
            let linked = inner.decide_and_link(hash, key, entry, value.len(), options, None, now);
            linked.unwrap_or_else(|refused| refused)
        });
        inner.grow_index(hash);
        outcome
    }

    fn store_large(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        match self.reserve_for(key, hash, value.len(), options, Arrival::Complete) {
            Ok(mut reservation) => {
                if !reservation.write(value) {
                    return StoreOutcome::OutOfMemory;
                }
                reservation.commit()
            }
            Err(outcome) => outcome,
        }
    }

    /// Appends or prepends: writes the joined value to a new entry, which is linked if the item has
    /// not changed.
    fn join(&self, key: &[u8], hash: KeyHash, value: &[u8], options: &StoreOptions) -> StoreOutcome {
        let inner = &self.inner;
        loop {
            let now = inner.now();
            let snapshot = {
                let locked = inner.index.shard(hash).lock(hash);
                inner.find(&locked, hash, key, now).ok().map(|found| {
                    let view = ItemView { kv: inner, item: found.item, location: found.location, now };
                    // A large value's pieces are in other regions than the item's own entry.
                    let own = view.pin_entry();
                    (view.pin(), own, found.location, found.item.attributes(), view.key_binary())
                })
            };
            let Some((old, own, location, attributes, key_binary)) = snapshot else {
                let Some(expiry) = options.vivify else { return StoreOutcome::NotStored };
                let create = StoreOptions { mode: StoreMode::Add, expiry, compare: 0, ..*options };
                match self.store(key, hash, value, &create) {
                    StoreOutcome::NotStored => continue,
                    outcome => return outcome,
                }
            };
            if options.compare != 0 && options.compare != attributes.cas {
                return StoreOutcome::Exists;
            }
            let joined = StoreOptions {
                mode: StoreMode::Set,
                client_flags: attributes.client_flags,
                expiry: attributes.expiry,
                key_binary,
                ..*options
            };
            let mut reservation =
                match self.reserve_for(key, hash, old.bytes() + value.len(), &joined, Arrival::Complete) {
                    Ok(reservation) => reservation,
                    // memcached replies this if the joined item is too large.
                    Err(_) => return StoreOutcome::NotStored,
                };
            let written = match options.mode {
                StoreMode::Prepend => reservation.write(value) && write_pinned(&mut reservation, &old),
                _ => write_pinned(&mut reservation, &old) && reservation.write(value),
            };
            if !written {
                return StoreOutcome::NotStored;
            }
            // The old item is pinned until here, so its memory cannot have been reused: an item at
            // the same location is the same, unchanged one. Without CAS values, nothing else shows it.
            let inherited = Some(0);
            let replaces = Replaces { location, cas: attributes.cas, number: None, marks: 0, inherited };
            match reservation.commit_replacing(Some(replaces)) {
                Some(outcome) => return outcome,
                None => drop((old, own)),
            }
        }
    }
}

fn write_pinned(reservation: &mut Reservation, value: &PinnedValue) -> bool {
    value.chunks().all(|chunk| reservation.write(chunk))
}

// A reservation is space for a value that has not arrived completely, and is written to its final
// location as it arrives.

/// Space for one value. Fill it with [`spare`](Reservation::spare) and
/// [`advance`](Reservation::advance) or [`write`](Reservation::write), then call
/// [`commit`](Reservation::commit). Dropping the reservation before that changes nothing.
///
/// A large value uses memory only as it arrives, at most one region ahead. The memory of an
/// incomplete value cannot be reclaimed, so all reservations together are limited (see
/// [`Kv::reserve`]).
///
/// ```
/// # use cached_core::kv::{Kv, KvConfig, StoreOptions, StoreOutcome};
/// # let kv = Kv::new(KvConfig::default())?;
/// let options = StoreOptions::default();
/// let mut reservation = kv.reserve(b"k", kv.hash(b"k"), 10, &options).expect("there is space");
/// assert!(reservation.write(b"01234"));
/// assert_eq!(kv.get(b"k"), None, "it is incomplete");
/// assert!(reservation.write(b"56789"));
/// assert!(matches!(reservation.commit(), StoreOutcome::Stored { .. }));
/// assert_eq!(kv.get(b"k").as_deref(), Some(&b"0123456789"[..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a reservation that is dropped stores nothing"]
pub struct Reservation {
    inner: Arc<Inner>,
    hash: KeyHash,
    key: [u8; KEY_BYTES_MAX],
    key_bytes: u8,
    options: StoreOptions,
    value_bytes: usize,
    filled: usize,
    /// The number of the value's bytes for which pieces have space.
    allocated: usize,
    /// The bytes counted against the limit for reservations; `None` if the value is complete, so
    /// that no sender is awaited.
    counted_bytes: Option<u64>,
    place: Place,
}

/// Whether the reserved value has already arrived.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    Complete,
    Awaited,
}

enum Place {
    /// The item's own entry, with its header and key already written.
    Inline(Entry),
    /// The pieces allocated so far; the last one may be partly filled.
    Pieces(Vec<(Entry, u32)>),
    /// The entries were published or abandoned.
    Gone,
}

// SAFETY: only this reservation knows of its entries, and any thread may write them.
unsafe impl Send for Reservation {}

impl Kv {
    /// Reserves space for a value of `value_bytes` bytes that has not arrived completely. The mode
    /// of `options` is applied by [`Reservation::commit`]; append and prepend are not supported.
    ///
    /// Reservations may hold a quarter of the memory, counting each value in full, and be in a
    /// quarter of the regions. The limit applies only to reservations: it never prevents
    /// [`Kv::store`] from storing a complete value.
    ///
    /// # Errors
    /// Returns [`StoreOutcome::TooLarge`], or [`StoreOutcome::OutOfMemory`] when there is no space
    /// or the limit is reached. Then the caller collects the value elsewhere, and stores it once it
    /// is complete.
    pub fn reserve(
        &self,
        key: &[u8],
        hash: KeyHash,
        value_bytes: usize,
        options: &StoreOptions,
    ) -> Result<Reservation, StoreOutcome> {
        self.reserve_for(key, hash, value_bytes, options, Arrival::Awaited)
    }

    /// Reserves space for a value. The limit does not apply to a complete value, for which no
    /// sender is awaited.
    pub(super) fn reserve_for(
        &self,
        key: &[u8],
        hash: KeyHash,
        value_bytes: usize,
        options: &StoreOptions,
        arrival: Arrival,
    ) -> Result<Reservation, StoreOutcome> {
        let is_incomplete = arrival == Arrival::Awaited;
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
            counted_bytes: None,
            place: Place::Pieces(Vec::new()),
        };
        if is_incomplete {
            reservation.count(value_bytes as u64)?;
        }
        if let Some(shape) = inner.inline_shape(key.len(), value_bytes, options) {
            let bytes = inner.log.padded(shape.entry_bytes());
            let stream = inner.log.stream_for(options.expiry, now);
            let entry = inner.log.alloc(&**inner, stream, bytes, now).ok_or(StoreOutcome::OutOfMemory)?;
            inner.fill(entry, shape, key, b"", &inner.fresh_attributes(options, now));
            if is_incomplete && !inner.log.hold_region(entry, inner.log.reserved.regions_max) {
                inner.log.abandon(entry);
                return Err(StoreOutcome::OutOfMemory);
            }
            reservation.place = Place::Inline(entry);
        } else if is_incomplete {
            // The first piece is allocated immediately, because a caller that is refused now can
            // still collect the value elsewhere.
            let regions_max = inner.log.reserved.regions_max;
            reservation.add_piece(value_bytes, regions_max).ok_or(StoreOutcome::OutOfMemory)?;
        }
        Ok(reservation)
    }
}

impl Reservation {
    /// Returns the number of bytes of the value that are still missing.
    #[must_use]
    pub fn remaining(&self) -> usize {
        self.value_bytes - self.filled
    }

    /// Returns space for the next bytes, which is not empty unless the value is complete. Returns
    /// `None` if there is no memory for more; then the value cannot be stored.
    pub fn spare(&mut self) -> Option<&mut [u8]> {
        let remaining = self.remaining();
        if remaining == 0 {
            return Some(&mut []);
        }
        let (at, bytes) = match &self.place {
            Place::Inline(entry) => {
                let item = self.inner.item_at(entry.location);
                (item.payload_ptr().wrapping_add(self.filled), remaining)
            }
            Place::Pieces(_) => {
                if self.allocated == self.filled {
                    // A value that has been accepted may exceed the limit slightly.
                    self.add_piece(remaining, self.inner.log.reserved.regions_max * 2)?;
                }
                self.last_piece()?
            }
            Place::Gone => return None,
        };
        // SAFETY: the bytes lie in an entry that only this reservation knows of, behind its header
        // and inside its size. The borrow of `self` prevents a concurrent commit or drop.
        Some(unsafe { std::slice::from_raw_parts_mut(at, bytes) })
    }

    /// Appends the bytes that have arrived to `to`.
    pub fn copy_to(&self, to: &mut Vec<u8>) {
        let inner = &*self.inner;
        let mut append = |at: *const u8, bytes| {
            // SAFETY: these bytes were written (`filled`) to entries that only this reservation knows
            // of, behind their headers and inside their sizes.
            to.extend_from_slice(unsafe { std::slice::from_raw_parts(at, bytes) });
        };
        match &self.place {
            Place::Inline(entry) => append(inner.item_at(entry.location).payload_ptr(), self.filled),
            Place::Pieces(pieces) => {
                let mut left = self.filled;
                for (entry, bytes) in pieces {
                    let count = left.min(*bytes as usize);
                    append(inner.log.ptr(entry.location).wrapping_add(PIECE_HEADER_BYTES), count);
                    left -= count;
                }
            }
            Place::Gone => {}
        }
    }

    /// Returns the unfilled part of the last piece.
    fn last_piece(&self) -> Option<(*mut u8, usize)> {
        let Place::Pieces(pieces) = &self.place else { return None };
        let (entry, bytes) = pieces.last()?;
        let left = self.allocated - self.filled;
        let data = self.inner.log.ptr(entry.location).wrapping_add(PIECE_HEADER_BYTES);
        Some((data.wrapping_add(*bytes as usize - left), left))
    }

    /// Allocates memory for more of the value, unless reservations are in more than `regions_max`
    /// regions.
    fn add_piece(&mut self, wanted: usize, regions_max: u32) -> Option<()> {
        let inner = &*self.inner;
        let now = inner.clock.now_secs();
        let region_bytes = inner.log.arena.region_bytes();
        let (entry, data) = inner.log.alloc_piece(inner, wanted.min(region_bytes), now)?;
        let at = inner.log.ptr(entry.location);
        // SAFETY: the entry is ours, has room for the header, and is aligned to a granule.
        unsafe {
            Shape::piece(data).write(at);
            extent::write_piece_owner(at, self.hash);
        }
        if self.counted_bytes.is_some() && !inner.log.hold_region(entry, regions_max) {
            inner.log.abandon(entry);
            return None;
        }
        if let Place::Pieces(pieces) = &mut self.place {
            pieces.push((entry, data));
            self.allocated += data as usize;
        }
        Some(())
    }

    /// Records that `bytes` of the space returned by [`spare`](Reservation::spare) have been
    /// written.
    ///
    /// # Panics
    /// Panics if `bytes` exceeds the remaining bytes.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.remaining(), "more was written than there is room for");
        self.filled += bytes;
    }

    /// Writes the next part of the value. Returns false if there is no memory for it.
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

    /// Stores the value according to the options. An incomplete value gives
    /// [`StoreOutcome::NotStored`].
    pub fn commit(self) -> StoreOutcome {
        self.commit_replacing(None).unwrap_or(StoreOutcome::NotStored)
    }

    /// Stores the value. With `replaces`, stores it only in place of the item described there;
    /// `None` if the key no longer has that item. The caller ensures that the same location means
    /// the same item.
    pub(super) fn commit_replacing(mut self, replaces: Option<Replaces>) -> Option<StoreOutcome> {
        if self.remaining() != 0 {
            return Some(StoreOutcome::NotStored);
        }
        let inner = self.inner.clone();
        let now = inner.now();
        self.uncount();
        let key = self.key;
        let key = &key[..usize::from(self.key_bytes)];
        let outcome = match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Inline(entry) => {
                inner.decide_and_link(self.hash, key, entry, self.value_bytes, &self.options, replaces, now)
            }
            Place::Pieces(pieces) => {
                pieces.iter().for_each(|(piece, data)| inner.log.end_piece(*piece, *data));
                let Some(entry) = self.write_list(&pieces, key, now) else {
                    self.place = Place::Pieces(pieces);
                    return Some(StoreOutcome::OutOfMemory);
                };
                let linked = inner.decide_and_link(
                    self.hash,
                    key,
                    entry,
                    self.value_bytes,
                    &self.options,
                    replaces,
                    now,
                );
                match linked {
                    Ok(StoreOutcome::Stored { .. }) => {
                        pieces.iter().for_each(|(piece, _)| inner.log.publish(*piece));
                    }
                    _ => self.place = Place::Pieces(pieces),
                }
                linked
            }
            Place::Gone => return Some(StoreOutcome::NotStored),
        };
        inner.grow_index(self.hash);
        match outcome {
            Err(StoreOutcome::NotStored) if replaces.is_some() => None,
            Ok(outcome) | Err(outcome) => Some(outcome),
        }
    }

    /// Writes the item's own entry, with the list of its pieces.
    fn write_list(&self, pieces: &[(Entry, u32)], key: &[u8], now: u32) -> Option<Entry> {
        let inner = &self.inner;
        let shape = inner.large_shape(key.len(), pieces.len(), &self.options)?;
        let stream = inner.log.stream_for(self.options.expiry, now);
        let entry = inner.log.alloc(&**inner, stream, inner.log.padded(shape.entry_bytes()), now)?;
        let attributes = inner.fresh_attributes(&self.options, now);
        // SAFETY: the entry has room for the shape, whose payload is the list's size.
        unsafe {
            let item = ItemPtr::write(inner.log.ptr(entry.location), shape, key, &attributes);
            let list = pieces.iter().map(|(piece, bytes)| Piece { location: piece.location, bytes: *bytes });
            extent::write_list(item.payload_ptr(), self.value_bytes as u32, list);
        }
        Some(entry)
    }

    fn count(&mut self, bytes: u64) -> Result<(), StoreOutcome> {
        self.counted_bytes = Some(bytes);
        // A single value is always accepted. A refused reservation is removed from the count when
        // the caller drops it.
        if self.inner.log.reserved.add_bytes(bytes) { Ok(()) } else { Err(StoreOutcome::OutOfMemory) }
    }

    /// Removes the reservation from the counts, because no sender is awaited any more.
    fn uncount(&mut self) {
        let Some(bytes) = self.counted_bytes.take() else { return };
        self.inner.log.reserved.remove_bytes(bytes);
        match &self.place {
            Place::Inline(entry) => self.inner.log.release_region(*entry),
            Place::Pieces(pieces) => {
                pieces.iter().for_each(|(piece, _)| self.inner.log.release_region(*piece));
            }
            Place::Gone => {}
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.uncount();
        match std::mem::replace(&mut self.place, Place::Gone) {
            Place::Inline(entry) => self.inner.log.abandon(entry),
            Place::Pieces(pieces) => pieces.iter().for_each(|(piece, _)| self.inner.log.abandon(*piece)),
            Place::Gone => {}
        }
    }
}

impl std::fmt::Debug for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reservation({} of {} bytes)", self.filled, self.value_bytes)
    }
}
