//! The first word of an entry: its composition and the offsets of its fields; and the checksum at
//! its end.

// `crate::sync` is not used: these words are in raw memory, and order nothing between threads.
use std::sync::atomic::{AtomicU32, Ordering};

use super::extent::{LIST_HEADER_BYTES, PIECE_HEADER_BYTES};
use super::{ItemPtr, KEY_BYTES_MAX};
use crate::stores;

/// The bytes before the optional fields: the shape and the usage.
pub(super) const FIXED_BYTES: usize = 8;

const KEY_BITS: u32 = 8;
const PAYLOAD_BITS: u32 = 19;
pub(crate) const PAYLOAD_BYTES_MAX: usize = (1 << PAYLOAD_BITS) - 1;
const HAS_CAS: u32 = 1 << 27;
const HAS_EXPIRY: u32 = 1 << 28;
const HAS_CLIENT_FLAGS: u32 = 1 << 29;
const EXTENTS: u32 = 1 << 30;
const KEY_BINARY: u32 = 1 << 31;
const _: () = assert!(KEY_BITS + PAYLOAD_BITS == 27, "the shape word is full");
const HAS_SHIFT: u32 = HAS_CAS.trailing_zeros();
const _: () = assert!(HAS_CAS >> 24 == 8 && HAS_EXPIRY >> 26 == 4);
const _: () = assert!(HAS_EXPIRY >> HAS_SHIFT == 2 && HAS_CLIENT_FLAGS >> HAS_SHIFT == 4);

/// The number of key bytes that marks the entry as a piece of a large value.
const PIECE: u32 = 255;
const _: () = assert!(KEY_BYTES_MAX < PIECE as usize);

/// The offset of the key for each set of optional fields. Every look-up needs it first.
static KEY_AT: [u8; 8] = {
    let mut table = [0; 8];
    let mut has = 0;
    while has < table.len() {
        table[has] =
            FIXED_BYTES as u8 + (has & 1) as u8 * 8 + (has >> 1 & 1) as u8 * 4 + (has >> 2) as u8 * 4;
        has += 1;
    }
    table
};

/// The first word of an entry, which describes its composition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape(u32);

impl Shape {
    /// Returns the shape of an item. The caller has checked that key and payload are within their
    /// limits.
    #[inline]
    pub(crate) fn item(key: usize, payload: usize, fields: Fields) -> Shape {
        debug_assert!((1..=KEY_BYTES_MAX).contains(&key) && payload <= PAYLOAD_BYTES_MAX);
        let mut word = key as u32 | (payload as u32) << KEY_BITS;
        for (on, bit) in [
            (fields.cas, HAS_CAS),
            (fields.expiry, HAS_EXPIRY),
            (fields.client_flags, HAS_CLIENT_FLAGS),
            (fields.extents, EXTENTS),
            (fields.key_binary, KEY_BINARY),
        ] {
            if on {
                word |= bit;
            }
        }
        Shape(word)
    }

    /// Returns the shape of a piece that holds `data` bytes of a large value.
    pub(crate) fn piece(data: u32) -> Shape {
        Shape(PIECE | data << KEY_BITS)
    }

    /// Returns the shape of an entry of `bytes` bytes, including padding, to which nothing refers
    /// yet, so that a walk skips it. It is a piece that is in no list or, if there is no space for
    /// a piece's header, an item; the second word of such an item must not say that it is live.
    #[inline]
    pub(crate) fn placeholder(bytes: u32) -> Shape {
        match (bytes as usize).checked_sub(PIECE_HEADER_BYTES) {
            Some(data) => Shape::piece(data as u32),
            None => Shape::item(1, bytes as usize - FIXED_BYTES - 1, Fields::default()),
        }
    }

    /// Reads the first word of the entry at `ptr`.
    ///
    /// # Safety
    /// `ptr` points at an entry (4-byte aligned) whose first word has been written, in memory that
    /// stays mapped.
    #[inline]
    pub(crate) unsafe fn read(ptr: *const u8) -> Shape {
        // SAFETY: the caller promises an aligned, initialised word; an overwrite in place may write it at the
        // same time, hence the atomic access.
        Shape(unsafe { &*ptr.cast::<AtomicU32>() }.load(Ordering::Relaxed))
    }

    /// Writes the first word of an entry.
    ///
    /// # Safety
    /// `ptr` points at four writable bytes, 4-byte aligned, in memory that stays mapped.
    pub(crate) unsafe fn write(self, ptr: *mut u8) {
        // SAFETY: as the caller promises; atomic, since a walk may read the word at the same time.
        unsafe { &*ptr.cast::<AtomicU32>() }.store(self.0, Ordering::Relaxed);
        stores::done();
    }

    /// Returns the word itself.
    #[inline]
    pub(super) fn word(self) -> u32 {
        self.0
    }

    /// Returns the length of a piece's data; `None` for an item.
    #[inline]
    pub(crate) fn piece_bytes(self) -> Option<u32> {
        (self.0 & 0xff == PIECE).then_some(self.0 >> KEY_BITS)
    }

    #[inline]
    pub(crate) fn key_bytes(self) -> usize {
        (self.0 & 0xff) as usize
    }

    #[inline]
    pub(crate) fn payload_bytes(self) -> usize {
        ((self.0 >> KEY_BITS) & ((1 << PAYLOAD_BITS) - 1)) as usize
    }

    #[inline]
    pub(crate) fn fields(self) -> Fields {
        Fields {
            cas: self.has_cas(),
            expiry: self.has_expiry(),
            client_flags: self.has_client_flags(),
            extents: self.0 & EXTENTS != 0,
            key_binary: self.0 & KEY_BINARY != 0,
        }
    }

    #[inline]
    pub(super) fn has_cas(self) -> bool {
        self.0 & HAS_CAS != 0
    }

    #[inline]
    pub(super) fn has_expiry(self) -> bool {
        self.0 & HAS_EXPIRY != 0
    }

    #[inline]
    pub(super) fn has_client_flags(self) -> bool {
        self.0 & HAS_CLIENT_FLAGS != 0
    }

    #[inline]
    pub(super) fn key_at(self) -> usize {
        usize::from(KEY_AT[(self.0 >> HAS_SHIFT & 7) as usize])
    }

    // The code has no branches: each optional field's bit is shifted so that its value is the
    // field's length.
    #[inline]
    pub(super) fn expiry_at(self) -> usize {
        FIXED_BYTES + (self.0 >> 24 & 8) as usize
    }

    #[inline]
    pub(super) fn client_flags_at(self) -> usize {
        self.expiry_at() + (self.0 >> 26 & 4) as usize
    }

    /// Returns the size of the entry before padding.
    #[inline]
    pub(crate) fn entry_bytes(self) -> usize {
        match self.piece_bytes() {
            Some(data) => PIECE_HEADER_BYTES + data as usize,
            None => self.key_at() + self.key_bytes() + self.payload_bytes(),
        }
    }
}

/// The optional parts of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fields {
    pub(crate) cas: bool,
    pub(crate) expiry: bool,
    pub(crate) client_flags: bool,
    pub(crate) extents: bool,
    pub(crate) key_binary: bool,
}

/// Returns the size of the smallest entry: one byte of key, no value. It limits the number of
/// items.
pub(crate) fn entry_bytes_min(with_cas: bool) -> usize {
    FIXED_BYTES + if with_cas { 8 } else { 0 } + 1
}

// The checksum of an entry in a memory file: a CRC-32 in its last four bytes.
//
// The checksum covers what a client has stored. Of an item, that is the shape, key, client flags and
// value; of an item with a large value, the length and the number of pieces instead of the value,
// because pieces have checksums of their own and may move. Of a piece, it is the header and the data.
// It does not cover the entry's location, so a copy elsewhere has the same checksum, nor fields that a
// single store changes in place: usage, expiry and CAS value.

/// The bytes of a checksum at the end of an entry.
pub(crate) const CHECKSUM_BYTES: usize = 4;
/// The checksum of an entry to which no index refers.
const VOID: u32 = 0;

impl ItemPtr {
    /// Writes the checksum of an item of `bytes` bytes, including padding, that is complete except
    /// for its mark.
    pub(crate) fn write_checksum(self, bytes: u32) {
        // SAFETY: the entry of a complete item has this size.
        unsafe { put(self.ptr, bytes, self.checksum()) };
    }

    /// Invalidates the checksum of an item that has ended, so that its mark alone cannot bring it
    /// back.
    pub(crate) fn void_checksum(self, bytes: u32) {
        // SAFETY: as above.
        unsafe { put(self.ptr, bytes, VOID) };
    }

    /// Returns whether an item from an earlier process is unchanged since it was stored.
    pub(crate) fn matches_checksum(self, bytes: u32) -> bool {
        // SAFETY: the caller has found an entry of this size.
        let found = unsafe { get(self.ptr, bytes) };
        found == self.checksum()
    }

    fn checksum(self) -> u32 {
        let shape = self.shape;
        let payload = match shape.fields().extents {
            true => LIST_HEADER_BYTES.min(shape.payload_bytes()),
            false => shape.payload_bytes(),
        };
        // SAFETY: key and payload are next to each other in the entry; the hash bucket's lock keeps writers away, or no
        // other thread uses the store.
        let stored = unsafe {
            std::slice::from_raw_parts(self.ptr.add(self.key_at as usize), shape.key_bytes() + payload)
        };
        nonzero(crc(shape.word() ^ self.client_flags().rotate_left(16), stored))
    }
}

/// Writes the checksum of a piece with `data` bytes that occupies `bytes` bytes, including padding.
///
/// # Safety
/// `piece` points at a complete piece of this size that no other thread writes.
pub(crate) unsafe fn write_piece_checksum(piece: *mut u8, data: u32, bytes: u32) {
    // SAFETY: as the caller promises.
    unsafe { put(piece, bytes, piece_checksum(piece, data)) };
}

/// Returns whether a piece from an earlier process is unchanged since it was stored.
///
/// # Safety
/// The same as for [`write_piece_checksum`].
pub(crate) unsafe fn piece_matches_checksum(piece: *mut u8, data: u32, bytes: u32) -> bool {
    // SAFETY: as the caller promises.
    unsafe { get(piece, bytes) == piece_checksum(piece, data) }
}

/// # Safety
/// Like [`write_piece_checksum`].
unsafe fn piece_checksum(piece: *mut u8, data: u32) -> u32 {
    // SAFETY: as the caller promises.
    let stored = unsafe { std::slice::from_raw_parts(piece, PIECE_HEADER_BYTES + data as usize) };
    nonzero(crc(0, stored))
}

fn crc(initial: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(initial);
    hasher.update(bytes);
    hasher.finalize()
}

fn nonzero(crc: u32) -> u32 {
    if crc == VOID { !VOID } else { crc }
}

/// # Safety
/// `entry` points at `bytes` bytes, padding included, that no other thread writes.
unsafe fn put(entry: *mut u8, bytes: u32, checksum: u32) {
    // SAFETY: as the caller promises; entries are multiples of four bytes.
    unsafe { entry.add(bytes as usize - CHECKSUM_BYTES).cast::<u32>().write_unaligned(checksum.to_le()) };
    stores::done();
}

/// # Safety
/// Like [`put`].
unsafe fn get(entry: *const u8, bytes: u32) -> u32 {
    // SAFETY: as the caller promises.
    u32::from_le(unsafe { entry.add(bytes as usize - CHECKSUM_BYTES).cast::<u32>().read_unaligned() })
}
