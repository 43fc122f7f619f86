//! The location of an object's bytes: pieces of blobs, or of the head itself, in the object's
//! order.
//!
//! A change cuts its range out of the existing pieces and inserts its own. This module does no I/O.
//!
//! ```text
//! object     0 ───────────── 4096 ───── 8192 ─ hole ─ 16384 ──── size
//! extents    [blob a, from 0 ] [blob b, 0 ]           [blob a, 16384]
//! ```

use std::ops::Range;

use bytes::{Bytes, BytesMut};

/// The maximum number of pieces of one object: as many as 4 MiB have buckets. A flush of 16
/// scattered ranges adds up to 32 pieces, each of which takes about 8 bytes in the head.
pub(crate) const EXTENTS_MAX: usize = 1024;
/// The maximum number of blobs of one object. A read of the whole object may have to request each
/// of them.
pub(crate) const BLOBS_MAX: usize = 96;
/// The maximum size of an object that is stored in its head.
pub(crate) const INLINE_BYTES_MAX: u64 = 32 * 1024;
/// The maximum size of any object in bytes, whatever the configuration.
pub(crate) const SIZE_BYTES_MAX: u64 = 1 << 30;
/// The maximum size of a blob in bytes: the bytes of a change, and of a small object that the
/// change moves out of its head.
const BLOB_BYTES_MAX: u64 = SIZE_BYTES_MAX + INLINE_BYTES_MAX;
/// The amount of garbage that is always allowed, in addition to half of all bytes.
const GARBAGE_BYTES_FREE: u64 = 256 * 1024;

/// A blob with bytes of the object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Blob {
    pub(crate) id: u128,
    pub(crate) len_bytes: u64,
}

/// The location of a piece's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// The bytes are in the head.
    Inline,
    /// The bytes are in a blob.
    Blob(u128),
}

/// A piece of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    /// The offset of the piece in the object.
    pub(crate) at: u64,
    pub(crate) len_bytes: u64,
    pub(crate) source: Source,
    /// The offset of the piece in its source.
    pub(crate) from: u64,
}

impl Extent {
    pub(crate) fn end(&self) -> u64 {
        self.at + self.len_bytes
    }

    /// Returns the part of the piece within `range`, or `None` if there is no such part.
    pub(crate) fn within(&self, range: &Range<u64>) -> Option<Self> {
        let (at, end) = (self.at.max(range.start), self.end().min(range.end));
        let moved = at.checked_sub(self.at)?;
        (at < end).then(|| Self { at, len_bytes: end - at, from: self.from + moved, ..*self })
    }
}

/// The bytes of an object, by their location. Pieces are in order, not empty, do not overlap, and
/// end within the size; uncovered ranges read as zeros.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Content {
    pub(crate) size_bytes: u64,
    pub(crate) inline: Bytes,
    pub(crate) blobs: Vec<Blob>,
    pub(crate) extents: Vec<Extent>,
}

/// A range with new content in a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Edit {
    pub(crate) at: u64,
    pub(crate) len_bytes: u64,
    /// The offset of the new bytes in the change's payload, or `None` for zeros.
    pub(crate) from: Option<u64>,
}

impl Content {
    /// Returns the pieces within `range`, cut to that range.
    pub(crate) fn pieces(&self, range: Range<u64>) -> impl Iterator<Item = Extent> + '_ {
        let first = self.extents.partition_point(|extent| extent.end() <= range.start);
        self.extents[first..].iter().map_while(move |extent| extent.within(&range))
    }

    /// Turns `range` into a hole.
    pub(crate) fn punch(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut kept = Vec::with_capacity(self.extents.len() + 1);
        for extent in &self.extents {
            kept.extend(extent.within(&(0..range.start)));
            kept.extend(extent.within(&(range.end..u64::MAX)));
        }
        self.extents = kept;
    }

    /// Inserts a piece, replacing existing pieces in its range.
    pub(crate) fn lay(&mut self, piece: Extent) {
        if piece.len_bytes == 0 {
            return;
        }
        self.punch(piece.at..piece.end());
        let index = self.extents.partition_point(|extent| extent.at < piece.at);
        self.extents.insert(index, piece);
    }

    /// Sets the size.
    pub(crate) fn resize(&mut self, size_bytes: u64) {
        self.punch(size_bytes..u64::MAX);
        self.size_bytes = size_bytes;
    }

    /// Applies edits whose bytes are in `source`, then the size.
    pub(crate) fn apply(&mut self, edits: &[Edit], size_bytes: u64, source: Source) {
        for edit in edits {
            let end = edit.at.saturating_add(edit.len_bytes);
            match edit.from {
                Some(from) => self.lay(Extent { at: edit.at, len_bytes: edit.len_bytes, source, from }),
                None => self.punch(edit.at..end),
            }
        }
        self.resize(size_bytes);
    }

    /// Joins adjacent pieces, and drops blobs and inline bytes to which no piece refers.
    pub(crate) fn tidy(&mut self) {
        let mut joined: Vec<Extent> = Vec::with_capacity(self.extents.len());
        for extent in self.extents.drain(..) {
            match joined.last_mut() {
                Some(last)
                    if last.end() == extent.at
                        && last.source == extent.source
                        && last.from + last.len_bytes == extent.from =>
                {
                    last.len_bytes += extent.len_bytes;
                }
                _ => joined.push(extent),
            }
        }
        self.extents = joined;
        let extents = &self.extents;
        self.blobs.retain(|blob| extents.iter().any(|extent| extent.source == Source::Blob(blob.id)));
        if !self.has_inline() {
            self.inline = Bytes::new();
        }
    }

    pub(crate) fn has_inline(&self) -> bool {
        self.extents.iter().any(|extent| extent.source == Source::Inline)
    }

    /// Returns the total number of bytes in pieces that are stored in blobs.
    pub(crate) fn live_blob_bytes(&self) -> u64 {
        let in_blob = |extent: &&Extent| extent.source != Source::Inline;
        self.extents.iter().filter(in_blob).map(|extent| extent.len_bytes).sum()
    }

    /// Returns whether the content is so fragmented that it should be compacted.
    pub(crate) fn is_fragmented(&self) -> bool {
        let (live, all) = (self.live_blob_bytes(), self.blobs.iter().map(|blob| blob.len_bytes).sum::<u64>());
        let garbage = all.saturating_sub(live);
        self.extents.len() > EXTENTS_MAX
            || self.blobs.len() > BLOBS_MAX
            || garbage > live.saturating_add(GARBAGE_BYTES_FREE)
    }

    /// Returns the ranges to write when the content is compacted: all ranges except holes. Ranges
    /// are joined over gaps until there are few.
    pub(crate) fn islands(&self) -> Vec<Range<u64>> {
        let mut gap = 0;
        loop {
            let mut islands: Vec<Range<u64>> = Vec::new();
            for extent in &self.extents {
                match islands.last_mut() {
                    Some(last) if extent.at - last.end <= gap => last.end = extent.end(),
                    _ => islands.push(extent.at..extent.end()),
                }
            }
            if islands.len() <= EXTENTS_MAX / 4 {
                return islands;
            }
            gap = (gap * 2).max(4096);
        }
    }

    /// Returns the bytes of a content of `size_bytes` that lies entirely in the head.
    pub(crate) fn inline_bytes(&self) -> BytesMut {
        let mut bytes = BytesMut::zeroed(usize::try_from(self.size_bytes).unwrap_or(usize::MAX));
        for extent in &self.extents {
            let (at, from, len) = (extent.at as usize, extent.from as usize, extent.len_bytes as usize);
            bytes[at..at + len].copy_from_slice(&self.inline[from..from + len]);
        }
        bytes
    }

    /// Returns whether decoded pieces satisfy the type's invariants, and lie within their sources.
    pub(crate) fn is_sound(&self) -> bool {
        if self.size_bytes > SIZE_BYTES_MAX || self.blobs.iter().any(|blob| blob.len_bytes > BLOB_BYTES_MAX) {
            return false;
        }
        let mut end = 0;
        for extent in &self.extents {
            let source_bytes = match extent.source {
                Source::Inline => self.inline.len() as u64,
                Source::Blob(id) => match self.blobs.iter().find(|blob| blob.id == id) {
                    Some(blob) => blob.len_bytes,
                    None => return false,
                },
            };
            let fits = |at: u64, limit: u64| {
                at.checked_add(extent.len_bytes).is_some_and(|extent_end| extent_end <= limit)
            };
            if extent.len_bytes == 0
                || extent.at < end
                || !fits(extent.at, self.size_bytes)
                || !fits(extent.from, source_bytes)
            {
                return false;
            }
            end = extent.end();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: usize = 96;

    /// Returns the bytes of the content, where byte `i` of the source `s` is `s + i`.
    fn read(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0; content.size_bytes as usize];
        for piece in content.pieces(0..content.size_bytes) {
            let base = match piece.source {
                Source::Inline => 0,
                Source::Blob(id) => id as u8,
            };
            for i in 0..piece.len_bytes {
                bytes[(piece.at + i) as usize] = base.wrapping_add((piece.from + i) as u8);
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn edits_do_what_they_do_to_an_array(
            changes in prop::collection::vec((0..SIZE, 0..24_usize, any::<bool>(), 0..SIZE), 1..24),
            cut in (0..SIZE, 0..SIZE),
        ) {
            let mut content = Content::default();
            let mut model: Vec<u8> = Vec::new();
            for (index, (at, len, is_hole, size)) in changes.into_iter().enumerate() {
                let id = (index as u128 + 1) * 7;
                let end = at + len;
                // A third of the changes are truncations.
                let size = if index % 3 == 2 { size } else { model.len().max(end) };
                content.blobs.push(Blob { id, len_bytes: len as u64 });
                let edit = Edit { at: at as u64, len_bytes: len as u64, from: (!is_hole).then_some(0) };
                content.apply(&[edit], size as u64, Source::Blob(id));
                content.tidy();
                model.resize(model.len().max(end), 0);
                for i in 0..len {
                    model[at + i] = if is_hole { 0 } else { (id as u8).wrapping_add(i as u8) };
                }
                model.resize(size, 0);
                prop_assert!(content.is_sound());
                prop_assert_eq!(read(&content), model.clone());
                let islands = content.islands();
                for extent in &content.extents {
                    prop_assert!(islands.iter().any(|island| island.start <= extent.at && extent.end() <= island.end));
                }
            }
            let (from, to) = (cut.0.min(cut.1) as u64, cut.0.max(cut.1) as u64);
            let pieces: Vec<_> = content.pieces(from..to).collect();
            let wanted: u64 = content.extents.iter().filter_map(|e| e.within(&(from..to))).map(|e| e.len_bytes).sum();
            prop_assert_eq!(pieces.iter().map(|piece| piece.len_bytes).sum::<u64>(), wanted);
        }
    }

    #[test]
    fn what_is_fragmented_is_written_in_few_pieces() {
        let mut content = Content { size_bytes: 16 << 20, ..Content::default() };
        content.blobs.push(Blob { id: 1, len_bytes: 16 << 20 });
        for i in 0..=EXTENTS_MAX as u64 {
            content.lay(Extent { at: i * 8192, len_bytes: 4096, source: Source::Blob(1), from: i * 4096 });
        }
        content.tidy();
        assert!(content.is_fragmented());
        assert!(content.islands().len() <= EXTENTS_MAX / 4);
        content.extents.truncate(1);
        assert!(content.is_fragmented(), "more than half of it is garbage");
        content.blobs[0].len_bytes = 4096 + GARBAGE_BYTES_FREE;
        assert!(!content.is_fragmented());
    }
}
