//! Access to an item: borrowed under its hash bucket's lock, or pinned beyond it.

use super::inner::Inner;
use super::item::extent::List;
use super::item::{ItemPtr, state};
use crate::arena::RegionId;
use crate::clock::Expiry;
use crate::sync::Arc;

/// An item, borrowed for the duration of a closure. In the meantime, other threads that need its
/// hash bucket wait, so copy or [pin](ItemView::pin) the necessary parts, and return.
#[derive(Clone, Copy)]
pub struct ItemView<'a> {
    pub(super) kv: &'a Arc<Inner>,
    pub(super) item: ItemPtr,
    pub(super) location: u32,
    pub(super) now: u32,
}

impl<'a> ItemView<'a> {
    /// Returns the key.
    pub fn key(&self) -> &'a [u8] {
        self.item.key()
    }

    /// Returns whether the key was stored with the *binary* mark (base64 in meta commands).
    pub fn key_binary(&self) -> bool {
        self.item.shape().fields().key_binary
    }

    /// Returns the length of the value.
    #[inline]
    pub fn value_bytes(&self) -> usize {
        self.item.value_bytes()
    }

    /// Returns the value, if it is contiguous. Only very large values are not: those above a 16th
    /// of a region (at least 4 KiB) may consist of several pieces.
    #[inline]
    pub fn inline_value(&self) -> Option<&'a [u8]> {
        (!self.item.shape().fields().extents).then(|| self.item.payload())
    }

    /// Appends the value to `to`.
    pub fn copy_value_to(&self, to: &mut Vec<u8>) {
        if let Some(value) = self.inline_value() {
            to.extend_from_slice(value);
            return;
        }
        for piece in List::new(self.item.payload()).pieces() {
            let data = self.kv.piece_data(piece);
            // SAFETY: the piece belongs to this item, whose hash bucket is locked: its region is not
            // reused, and pieces never change once their item is published.
            to.extend_from_slice(unsafe { std::slice::from_raw_parts(data, piece.bytes as usize) });
        }
    }

    /// Returns a copy of the value.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.value_bytes());
        self.copy_value_to(&mut value);
        value
    }

    /// Keeps the value readable after the closure, without a copy. The memory of its region is not
    /// reused until the result is dropped, so hold it only briefly, for instance while a reply is
    /// written.
    pub fn pin(&self) -> PinnedValue {
        let pieces = match self.inline_value() {
            Some(_) => return self.pin_entry(),
            None => Pieces::Many(
                List::new(self.item.payload())
                    .pieces()
                    .map(|piece| {
                        let region = self.kv.log.pin(piece.location);
                        PinnedPiece { region, data: self.kv.piece_data(piece), bytes: piece.bytes as usize }
                    })
                    .collect(),
            ),
        };
        PinnedValue { kv: self.kv.clone(), pieces }
    }

    /// Pins the region of the item's own entry.
    pub(super) fn pin_entry(&self) -> PinnedValue {
        let payload = self.item.payload();
        let region = self.kv.log.pin(self.location);
        let piece = PinnedPiece { region, data: payload.as_ptr(), bytes: payload.len() };
        PinnedValue { kv: self.kv.clone(), pieces: Pieces::One(piece) }
    }

    /// Returns the client's flags.
    #[inline]
    pub fn client_flags(&self) -> u32 {
        self.item.client_flags()
    }

    /// Returns the CAS value; 0 if the store has no CAS values.
    #[inline]
    pub fn cas(&self) -> u64 {
        self.item.cas()
    }

    /// Returns the time at which the item expires.
    pub fn expiry(&self) -> Expiry {
        self.item.expiry()
    }

    /// Returns the time of this access, in the clock's seconds.
    pub fn now(&self) -> u32 {
        self.now
    }

    /// Returns the time of the last use, in the clock's seconds.
    pub fn last_access(&self) -> u32 {
        self.item.last_access(self.now)
    }

    /// Seconds since the item's region was opened, which is about when the item was stored or last
    /// kept by an eviction.
    pub(super) fn region_age_secs(&self) -> u32 {
        self.now.saturating_sub(self.kv.log.opened_at(self.location))
    }

    /// Returns whether the item has been read since it was stored.
    pub fn fetched(&self) -> bool {
        self.item.state() & state::FETCHED != 0
    }

    /// Returns whether the item is marked stale.
    pub fn stale(&self) -> bool {
        self.item.state() & state::STALE != 0
    }

    /// Returns whether a client has won the right to refresh the item.
    pub fn token_sent(&self) -> bool {
        self.item.state() & state::TOKEN_SENT != 0
    }

    /// Returns the size of the item: its entry, including padding, and its pieces.
    pub fn bytes(&self) -> u64 {
        self.kv.item_bytes(self.item)
    }
}

impl std::fmt::Debug for ItemView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ItemView")
            .field("key", &self.key().escape_ascii().to_string())
            .field("value_bytes", &self.value_bytes())
            .field("cas", &self.cas())
            .field("expiry", &self.expiry())
            .finish_non_exhaustive()
    }
}

struct PinnedPiece {
    region: RegionId,
    data: *const u8,
    bytes: usize,
}

impl PinnedPiece {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the piece's region is pinned for as long as the value that owns it lives, and what
        // lies in a pinned region is not written (see `ItemPtr`).
        unsafe { std::slice::from_raw_parts(self.data, self.bytes) }
    }
}

enum Pieces {
    One(PinnedPiece),
    Many(Box<[PinnedPiece]>),
}

/// A value that stays readable until this handle is dropped, even if its item is replaced or
/// removed.
///
/// ```
/// # use cached_core::kv::Kv;
/// let kv = Kv::with_capacity_bytes(64 << 20)?;
/// kv.set(b"k", b"before")?;
/// let pinned = kv.read(b"k", kv.hash(b"k"), |item| item.pin()).expect("just set");
/// kv.set(b"k", b"after")?;
/// assert_eq!(pinned.to_vec(), b"before");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a value is pinned until this is dropped"]
pub struct PinnedValue {
    kv: Arc<Inner>,
    pieces: Pieces,
}

// SAFETY: the pointers lead into regions that this value has pinned: until it is dropped they are neither
// written nor reused, and which thread reads or drops does not matter.
unsafe impl Send for PinnedValue {}
// SAFETY: as above; sharing it only reads.
unsafe impl Sync for PinnedValue {}

impl PinnedValue {
    fn pieces(&self) -> &[PinnedPiece] {
        match &self.pieces {
            Pieces::One(piece) => std::slice::from_ref(piece),
            Pieces::Many(pieces) => pieces,
        }
    }

    /// Returns the value's bytes in order.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.pieces().iter().map(PinnedPiece::bytes)
    }

    /// Returns the chunk at `index`; `None` beyond the last.
    #[must_use]
    pub fn chunk(&self, index: usize) -> Option<&[u8]> {
        self.pieces().get(index).map(PinnedPiece::bytes)
    }

    /// Returns the length of the value.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.pieces().iter().map(|piece| piece.bytes).sum()
    }

    /// Returns a copy of the value.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut value = Vec::with_capacity(self.bytes());
        self.chunks().for_each(|chunk| value.extend_from_slice(chunk));
        value
    }
}

impl Drop for PinnedValue {
    fn drop(&mut self) {
        for piece in self.pieces() {
            self.kv.log.unpin(piece.region);
        }
    }
}

impl std::fmt::Debug for PinnedValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PinnedValue({} bytes in {} pieces)", self.bytes(), self.pieces().len())
    }
}
