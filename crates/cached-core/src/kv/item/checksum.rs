//! The checksum of an entry in a memory file: a CRC-32 in its last four bytes.
//!
//! It covers what a client has stored, and what tells where that lies: an item's shape, key, client flags and value (of a
//! large value the number of its bytes and pieces, since pieces have checksums of their own and may move), and all of a
//! piece. It does not cover what changes in place by one store: usage, expiry and CAS value.

#![cfg_attr(any(miri, shuttle), allow(dead_code, reason = "memory files are left out of these builds"))]

use super::ItemPtr;
use crate::kv::extent::{LIST_HEADER_BYTES, PIECE_HEADER_BYTES};
use crate::stores;

/// The bytes of a checksum at the end of an entry.
pub(crate) const CHECKSUM_BYTES: usize = 4;
/// Marks an entry that no index leads to.
const VOID: u32 = 0;

impl ItemPtr {
    /// Writes the checksum of an item that is complete except for its mark, and takes `bytes` bytes with its padding.
    pub(crate) fn write_checksum(self, bytes: u32) {
        // SAFETY: the entry of a complete item has this size.
        unsafe { put(self.ptr, bytes, self.checksum()) };
    }

    /// Makes the checksum of an item that has ended wrong, so that its mark alone does not bring it back.
    pub(crate) fn void_checksum(self, bytes: u32) {
        // SAFETY: as above.
        unsafe { put(self.ptr, bytes, VOID) };
    }

    /// Returns whether an item that an earlier process has left is as it was stored.
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

/// Writes the checksum of a piece of `data` bytes, which takes `bytes` bytes with its padding.
///
/// # Safety
/// `piece` points at a complete piece of this size that no other thread writes.
pub(crate) unsafe fn write_piece_checksum(piece: *mut u8, data: u32, bytes: u32) {
    // SAFETY: as the caller promises.
    unsafe { put(piece, bytes, piece_checksum(piece, data)) };
}

/// Returns whether a piece that an earlier process has left is as it was stored.
///
/// # Safety
/// As [`write_piece_checksum`].
pub(crate) unsafe fn piece_matches_checksum(piece: *mut u8, data: u32, bytes: u32) -> bool {
    // SAFETY: as the caller promises.
    unsafe { get(piece, bytes) == piece_checksum(piece, data) }
}

/// # Safety
/// As [`write_piece_checksum`].
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
/// As [`put`].
unsafe fn get(entry: *const u8, bytes: u32) -> u32 {
    // SAFETY: as the caller promises.
    u32::from_le(unsafe { entry.add(bytes as usize - CHECKSUM_BYTES).cast::<u32>().read_unaligned() })
}
