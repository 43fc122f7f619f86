//! Reads, copies and listings.
//!
//! A read gets the head, then the pieces of the range, with concurrent requests for their blobs. A
//! blob is removed some time after the head that named it was replaced. A reader that finds a blob
//! missing reads the head again.
//!
//! The server's listing has keys and ETags, but no sizes and versions: those are in the heads,
//! several of which are read at a time. A head remembered with the listed ETag is not read again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use blocker::admission::check_condition;
use blocker::conditional::Progress;
use blocker::conditional::copied;
use blocker::{
    ChangeTerms, Condition, Error, Info, InfoRequest, ListEntry, ListReply, ListRequest, Name, Namespace,
    ObjectId, ReadReply, ReadRequest, Result, Version,
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;

use super::swap::Seen;
use super::{CONCURRENT, Core, TRIES};
use crate::format::content::{Content, Extent, Source};
use crate::format::layout::{HEADS, RECORDS, Spelling};
use crate::server::requests::Listing;

/// Pieces of one blob are requested together if the gap between them is at most this long.
const GAP_BYTES: u64 = 64 * 1024;

/// Pieces of one blob that are requested together.
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

    /// Reads a range: bytes, size, and version.
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
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }

    /// Returns the bytes of a range of a content, or `None` if a blob is gone.
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
            .buffer_unordered(CONCURRENT)
            .try_collect()
            .await?;
        // All bytes are in one buffer, which is returned as received.
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

/// Returns the pieces that are in blobs, joined into few requests.
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

// ---- copies

impl Core {
    /// Copies through this client. The copied bytes are a consistent snapshot of the source.
    pub(crate) async fn copy(
        &self,
        (from, from_condition): (&ObjectId, Condition),
        (to, terms): (&ObjectId, ChangeTerms),
        progress: &Progress,
    ) -> Result<(Version, u64)> {
        let read = |len_bytes| async move {
            let (data, size_bytes, version) = self.read_range(from, 0, len_bytes, from_condition).await?;
            Ok::<_, Error>((data.into(), size_bytes, version))
        };
        let limit = self.object_bytes_max;
        let (change, terms) = copied((from, from_condition), (to, terms), limit, read).await?;
        self.change(to, &change, &terms, progress).await
    }
}

// ---- listings

/// The maximum number of names in one request.
const NAMES_AT_ONCE: usize = 1000;

/// A listed name, and the ETag of its head.
type Found = BTreeMap<Name, Option<String>>;

/// A walk over all heads of a namespace, including ghosts.
pub(crate) struct Walk<'a> {
    core: &'a Core,
    namespace: &'a Namespace,
    /// A listing for each spelling.
    listings: [Listing<'a>; 2],
}

impl Walk<'_> {
    /// Returns the next objects (possibly an empty page), or `None` at the end.
    ///
    /// # Errors
    /// Returns an error if the listing fails.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<ObjectId>>> {
        for listing in &mut self.listings {
            if let Some(found) = listing.next().await? {
                let names = found.iter().filter_map(|found| self.core.layout.name_of(&found.location));
                return Ok(Some(names.map(|name| ObjectId::new(self.namespace.clone(), name)).collect()));
            }
        }
        Ok(None)
    }
}

impl Core {
    /// Returns a walk over all heads of a namespace.
    pub(crate) fn walk<'a>(&'a self, namespace: &'a Namespace) -> Walk<'a> {
        let heads = |spelling| self.requests.pages(self.layout.heads(namespace, spelling));
        Walk { core: self, namespace, listings: Spelling::ALL.map(heads) }
    }

    pub(crate) async fn list(&self, request: ListRequest, entries_max: usize) -> Result<ListReply> {
        let mut after = request.after.clone();
        let mut entries = Vec::new();
        loop {
            // The request asks for one name more, which shows whether there are more.
            let wanted = (entries_max + 1 - entries.len()).min(NAMES_AT_ONCE);
            let found = self.names(&request.namespace, &request.prefix, after.as_ref(), wanted).await?;
            let is_last = found.len() < wanted;
            after = found.last_key_value().map(|(name, _)| name.clone()).or(after);
            let page: Vec<Option<ListEntry>> = futures_util::stream::iter(found)
                .map(|(name, etag)| self.entry(&request.namespace, name, etag))
                .buffered(CONCURRENT)
                .try_collect()
                .await?;
            entries.extend(page.into_iter().flatten());
            if is_last || entries.len() > entries_max {
                break;
            }
        }
        let has_more = entries.len() > entries_max;
        entries.truncate(entries_max);
        Ok(ListReply::new(entries, has_more))
    }

    async fn entry(
        &self,
        namespace: &Namespace,
        name: Name,
        etag: Option<String>,
    ) -> Result<Option<ListEntry>> {
        let object = ObjectId::new(namespace.clone(), name);
        let known = self.heads.recall(&object).filter(|seen| {
            // Different parts of a server may write an ETag with or without quotes.
            let bare = |etag: &str| etag.trim_matches('"').to_owned();
            etag.as_deref().is_some_and(|etag| bare(etag) == bare(&seen.etag))
        });
        let seen: Option<Seen> = match known {
            Some(seen) if !self.heads.is_unsettled(&object) => Some(seen),
            _ => self.look(&object).await?,
        };
        let there = seen.map(|seen| Arc::clone(&seen.head)).filter(|head| head.is_there);
        Ok(there.map(|head| ListEntry::new(object.name, head.content.size_bytes, Version(head.version))))
    }

    /// Returns the first `count` names after `after` with the prefix `prefix`, including ghosts.
    async fn names(
        &self,
        namespace: &Namespace,
        prefix: &[u8],
        after: Option<&Name>,
        count: usize,
    ) -> Result<Found> {
        let mut names = Found::new();
        for spelling in Spelling::ALL {
            names.extend(self.names_spelled(namespace, spelling, prefix, after, count).await?);
        }
        while names.len() > count {
            names.pop_last();
        }
        Ok(names)
    }

    async fn names_spelled(
        &self,
        namespace: &Namespace,
        spelling: Spelling,
        prefix: &[u8],
        after: Option<&Name>,
        count: usize,
    ) -> Result<Found> {
        let Some(prefix_key) = self.layout.head_from(namespace, spelling, prefix) else {
            return Ok(Found::new());
        };
        let under = self.layout.heads(namespace, spelling);
        let mut found = Found::new();
        // The server lists the keys after a given key, so the name that equals the prefix is
        // queried separately.
        let after = after.map(Name::as_bytes).filter(|after| *after >= prefix);
        if after.is_none()
            && let Ok(name) = Name::copy_from(prefix)
        {
            let object = ObjectId::new(namespace.clone(), name.clone());
            if self.layout.head(&object) == prefix_key && self.look(&object).await?.is_some() {
                found.insert(name, None);
            }
        }
        let mut from = match after {
            Some(after) => Some(self.key_after(namespace, spelling, after)),
            None => (!prefix.is_empty()).then_some(prefix_key),
        };
        while found.len() < count {
            let page = self.requests.list(&under, from.as_ref(), count).await?;
            let is_last = page.len() < count;
            from = page.last().map(|last| last.location.clone());
            for meta in page {
                let Some(name) = self.layout.name_of(&meta.location) else { continue };
                if !name.as_bytes().starts_with(prefix) {
                    return Ok(found);
                }
                if after.is_none_or(|after| name.as_bytes() > after) {
                    found.insert(name, meta.e_tag);
                }
            }
            if is_last {
                break;
            }
        }
        Ok(found)
    }

    /// Returns a key that precedes the keys of all names after `after`, and of few other names.
    fn key_after(&self, namespace: &Namespace, spelling: Spelling, after: &[u8]) -> Path {
        // The part from the first special byte on is cut off. The remaining part sorts before it,
        // and names in between are skipped later.
        let mut cut = after.len();
        loop {
            if let Some(key) = self.layout.head_from(namespace, spelling, &after[..cut])
                && (cut == after.len() || cut > 0)
            {
                return key;
            }
            if cut == 0 {
                return self.layout.heads(namespace, spelling);
            }
            cut -= 1;
        }
    }

    /// Returns the namespaces with heads or records, in order.
    pub(crate) async fn namespaces(&self) -> Result<Vec<Namespace>> {
        let mut namespaces = std::collections::BTreeSet::new();
        for under in [self.layout.path(HEADS), self.layout.path(RECORDS)] {
            for directory in self.requests.directories(&under).await? {
                if let Some(namespace) = self.namespace_at(&directory).await? {
                    namespaces.insert(namespace);
                }
            }
        }
        Ok(namespaces.into_iter().collect())
    }

    /// Returns the namespace of a directory below the directories of heads, blobs or records, or
    /// `None` for a foreign directory.
    pub(crate) async fn namespace_at(&self, directory: &Path) -> Result<Option<Namespace>> {
        let Some(segment) = self.layout.segment_of(directory) else { return Ok(None) };
        match self.layout.namespace_of(segment) {
            None => Ok(None),
            Some(Ok(namespace)) => Ok(Some(namespace)),
            Some(Err(record)) => {
                let (record, _) = self.record_at(&record).await?;
                let namespace = Namespace::new(record.namespace).ok();
                match namespace.filter(|namespace| self.layout.is_written_as(namespace, segment)) {
                    Some(namespace) => Ok(Some(namespace)),
                    None => {
                        let text = format!("the record of {segment} lacks the name of its namespace");
                        Err(Error::Corrupt(text.into()))
                    }
                }
            }
        }
    }
}
