//! Values too large for one entry: pieces in several regions, and the list of them in the item.
//!
//! ```text
//!  the item's payload:                         a piece, an entry of its own in some region:
//! ┌──────────────┬─────────┬───────────────┐  ┌───────────┬──────────────┬──────────┬────────┐
//! │ value bytes  │ pieces  │ location, len │  │ shape u32 │ key hash u64 │ 0, u32   │ data … │
//! │ u32          │ u32     │ u32, u32  × n │  │ (255 tag) │              │          │        │
//! └──────────────┴─────────┴───────────────┘  └───────────┴──────────────┴──────────┴────────┘
//! ```
//! Pieces fill the rest of a region and continue in the next one, so no space is wasted and no
//! consecutive free regions are needed. A piece contains only the hash of its item's key: a walk
//! looks it up in the index, and the item's list shows whether the piece is in use.

use crate::{KeyHash, stores};

pub(crate) const PIECE_HEADER_BYTES: usize = 16;
pub(crate) const LIST_HEADER_BYTES: usize = 8;
const LIST_ENTRY_BYTES: usize = 8;

/// One piece in an item's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The location of the piece's entry, in granules.
    pub(crate) location: u32,
    /// The number of the value's bytes in the piece.
    pub(crate) bytes: u32,
}

/// Returns the size in bytes of a list of `pieces` pieces.
pub(crate) fn list_bytes(pieces: usize) -> usize {
    LIST_HEADER_BYTES + pieces * LIST_ENTRY_BYTES
}

/// Writes the list.
///
/// # Safety
/// `to` has room for [`list_bytes`]`(pieces.len())` bytes that no other thread uses.
pub(crate) unsafe fn write_list(to: *mut u8, value_bytes: u32, pieces: impl ExactSizeIterator<Item = Piece>) {
    let put = |at: usize, value: u32| {
        // SAFETY: `at` stays below `list_bytes`, as the caller promises; unaligned write.
        unsafe { to.add(at).cast::<u32>().write_unaligned(value.to_le()) };
        stores::done();
    };
    put(0, value_bytes);
    put(4, pieces.len() as u32);
    for (n, piece) in pieces.enumerate() {
        put(LIST_HEADER_BYTES + n * LIST_ENTRY_BYTES, piece.location);
        put(LIST_HEADER_BYTES + n * LIST_ENTRY_BYTES + 4, piece.bytes);
    }
}

/// The list in an item's payload.
#[derive(Clone, Copy)]
pub(crate) struct List<'a>(&'a [u8]);

impl<'a> List<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> List<'a> {
        List(payload)
    }

    fn u32_at(self, at: usize) -> u32 {
        self.0.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    pub(crate) fn value_bytes(self) -> usize {
        self.u32_at(0) as usize
    }

    pub(crate) fn len(self) -> usize {
        self.u32_at(4) as usize
    }

    pub(crate) fn pieces(self) -> impl ExactSizeIterator<Item = Piece> + 'a {
        (0..self.len()).map(move |n| {
            let at = LIST_HEADER_BYTES + n * LIST_ENTRY_BYTES;
            Piece { location: self.u32_at(at), bytes: self.u32_at(at + 4) }
        })
    }

    pub(crate) fn position(self, location: u32) -> Option<usize> {
        self.pieces().position(|piece| piece.location == location)
    }
}

/// Changes the location in the list's entry `n`.
///
/// # Safety
/// `list` points at a list of more than `n` pieces, and the caller holds the lock of its hash bucket.
pub(crate) unsafe fn set_piece_location(list: *mut u8, n: usize, location: u32) {
    // SAFETY: as the caller promises; unaligned write.
    unsafe {
        list.add(LIST_HEADER_BYTES + n * LIST_ENTRY_BYTES).cast::<u32>().write_unaligned(location.to_le());
    }
    stores::done();
}

/// Writes the header of a piece after its shape word.
///
/// # Safety
/// `entry` points at [`PIECE_HEADER_BYTES`] writable bytes that no other thread uses.
pub(crate) unsafe fn write_piece_owner(entry: *mut u8, hash: KeyHash) {
    // SAFETY: as the caller promises; unaligned writes.
    unsafe {
        entry.add(4).cast::<u64>().write_unaligned(hash.0.to_le());
        stores::done();
        entry.add(12).cast::<u32>().write_unaligned(0);
    }
}

/// Returns the hash of the key to which a piece belongs.
///
/// # Safety
/// `entry` points at a piece's entry in a region that is not reused during the call.
pub(crate) unsafe fn piece_owner(entry: *const u8) -> KeyHash {
    // SAFETY: as the caller promises; unaligned read.
    KeyHash(u64::from_le(unsafe { entry.add(4).cast::<u64>().read_unaligned() }))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_list_round_trips() {
        let pieces = [Piece { location: 7, bytes: 100 }, Piece { location: u32::MAX, bytes: 1 << 20 }];
        let mut memory = vec![0u8; list_bytes(2)];
        // SAFETY: the vector has exactly that room.
        unsafe { write_list(memory.as_mut_ptr(), 12345, pieces.into_iter()) };
        let list = List::new(&memory);
        assert_eq!((list.value_bytes(), list.len()), (12345, 2));
        assert!(list.pieces().eq(pieces));
        assert_eq!(list.position(7), Some(0));
        assert_eq!(list.position(8), None);
        // SAFETY: the list has two pieces and is ours.
        unsafe { set_piece_location(memory.as_mut_ptr(), 1, 8) };
        assert_eq!(List::new(&memory).position(8), Some(1));
    }
}
