//! Reading: the head, then the pieces of the range, as many requests at once as they lie in blobs.
//!
//! A blob is removed some time after the head that named it was replaced. A reader that misses one looks at
//! the head again.

use std::ops::Range;

use blocker::admission::check_condition;
use blocker::{Condition, Error, Info, InfoRequest, ObjectId, ReadReply, ReadRequest, Result, Version};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};

use crate::format::content::{Content, Extent, Source};
use crate::object::{AT_ONCE, Core, TRIES};

/// Pieces of one blob with a gap up to this between them are asked for together.
const GAP_BYTES: u64 = 64 * 1024;

/// Pieces of one blob that are asked for together.
struct Part {
    blob: u128,
    range: Range<u64>,
    pieces: Vec<Extent>,
}

impl Core {
    pub(crate) async fn read(&self, request: ReadRequest) -> Result<ReadReply> {
        let limit_bytes = self.object_bytes_max;
        if request.len_bytes > limit_bytes {
            return Err(Error::TooLarge { limit_bytes });
        }
        let (data, size_bytes, version) =
            self.read_range(&request.object, request.offset, request.len_bytes, request.condition).await?;
        Ok(ReadReply::new(data.into(), size_bytes, version))
    }

    /// Bytes of a range, the size, and the version.
    pub(crate) async fn read_range(
        &self,
        object: &ObjectId,
        offset: u64,
        len_bytes: u64,
        condition: Condition,
    ) -> Result<(Bytes, u64, Version)> {
        let mut missed = None;
        for _ in 0..TRIES {
            let seen = self.look(object).await?.filter(|seen| seen.head.is_there).ok_or(Error::Missing)?;
            let version = Version(seen.head.version);
            check_condition(Some(version), condition)?;
            let content = &seen.head.content;
            let begin = offset.min(content.size_bytes);
            let end = offset.saturating_add(len_bytes).min(content.size_bytes);
            if let Some(bytes) = self.bytes(object, content, begin..end).await? {
                return Ok((bytes, content.size_bytes, version));
            }
            if missed.as_ref() == Some(&seen.etag) {
                let text = "a blob that the head of the object names is not in the bucket";
                return Err(Error::Corrupt(text.into()));
            }
            missed = Some(seen.etag);
        }
        Err(Error::Retryable("the object is changed by others all the time".into()))
    }

    /// The bytes of a range of a content; `None` if a blob is not there any more.
    pub(crate) async fn bytes(
        &self,
        object: &ObjectId,
        content: &Content,
        range: Range<u64>,
    ) -> Result<Option<Bytes>> {
        let pieces: Vec<Extent> = content.pieces(range.clone()).collect();
        let len = (range.end - range.start) as usize;
        let parts = parts(&pieces);
        let fetched: Vec<(Part, Option<Bytes>)> = futures_util::stream::iter(parts)
            .map(|part| async {
                let path = self.layout.blob(object, part.blob);
                let bytes = self.requests.get_range(&path, part.range.clone()).await?;
                Ok::<_, Error>((part, bytes))
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        // All of it in one piece, as it came.
        if let [(part, Some(bytes))] = &fetched[..]
            && let [piece] = &pieces[..]
            && piece.len_bytes as usize == len
            && part.pieces.len() == 1
        {
            return Ok(Some(bytes.clone()));
        }
        let mut all = BytesMut::zeroed(len);
        let mut lay = |piece: &Extent, from: &[u8]| {
            let at = (piece.at - range.start) as usize;
            all[at..at + piece.len_bytes as usize].copy_from_slice(from);
        };
        for piece in pieces.iter().filter(|piece| piece.source == Source::Inline) {
            lay(piece, &content.inline[piece.from as usize..(piece.from + piece.len_bytes) as usize]);
        }
        for (part, bytes) in &fetched {
            let Some(bytes) = bytes else { return Ok(None) };
            for piece in &part.pieces {
                let from = (piece.from - part.range.start) as usize;
                lay(piece, &bytes[from..from + piece.len_bytes as usize]);
            }
        }
        Ok(Some(all.freeze()))
    }

    pub(crate) async fn info(&self, request: InfoRequest) -> Result<Info> {
        let seen = self.look(&request.object).await?.filter(|seen| seen.head.is_there);
        let seen = seen.ok_or(Error::Missing)?;
        Ok(Info::new(seen.head.content.size_bytes, Version(seen.head.version), seen.head.stamp))
    }
}

/// The pieces that lie in blobs, joined to few requests.
fn parts(pieces: &[Extent]) -> Vec<Part> {
    let mut in_blobs: Vec<(u128, Extent)> = pieces
        .iter()
        .filter_map(|piece| match piece.source {
            Source::Blob(id) => Some((id, *piece)),
            Source::Inline => None,
        })
        .collect();
    in_blobs.sort_by_key(|(id, piece)| (*id, piece.from));
    let mut parts: Vec<Part> = Vec::new();
    for (blob, piece) in in_blobs {
        let end = piece.from + piece.len_bytes;
        match parts.last_mut() {
            Some(part) if part.blob == blob && piece.from <= part.range.end.saturating_add(GAP_BYTES) => {
                part.range.end = part.range.end.max(end);
                part.pieces.push(piece);
            }
            _ => parts.push(Part { blob, range: piece.from..end, pieces: vec![piece] }),
        }
    }
    parts
}
