//! One change, from request to reply: read the head, decide, put the bytes, and put the head if the
//! observed state is unchanged.
//!
//! ```text
//! look (or recall) ── introduce? ── admit ── put blob ── put head ──┬─ applied: remember, reply, clean up
//!    ▲                                                              └─ lost: another was first; look again,
//!    └───────────────────────────────────────────────────────────────  the blob stays as it is
//! ```
//!
//! [`conditional::admit`] decides on the observed head; the new head is put on the condition that
//! the observed one is unchanged. So decision and change are one step. Until the head is put, no
//! one sees the blob.
//!
//! An object that was never larger than 32 KiB is stored in its head, so changing it takes one
//! request. A fragmented object ([`Content::is_fragmented`]) is compacted as part of the change
//! that fragmented it.

use std::ops::Range;
use std::time::Duration;

use blocker::conditional;
use blocker::conditional::Progress;
use blocker::conditional::claims::Scopes;
use blocker::{Change, ChangeTerms, Error, ObjectId, Result, RunContent, Segments, Timestamp, Version};
use bytes::{Bytes, BytesMut};

use super::swap::{Seen, Swap};
use super::{Core, TRIES};
use crate::format::content::{Blob, Content, Edit, INLINE_BYTES_MAX, Source};
use crate::format::head::Head;
use crate::random;

/// The maximum time that a blob may wait for its head. It is much shorter than the age at which a
/// sweep assumes that a blob is an orphan.
const BLOB_AGE_MAX: Duration = Duration::from_secs(15 * 60);

/// Returns the ranges with new content, and the new bytes in one buffer.
fn edits(change: &Change) -> (Vec<Edit>, Bytes) {
    let data_at = |at, data: &Segments| {
        let edit = Edit { at, len_bytes: data.len_bytes() as u64, from: Some(0) };
        (vec![edit], data.to_bytes())
    };
    match change {
        Change::Write { offset, data } | Change::CompareAndWrite { offset, data, .. } => {
            data_at(*offset, data)
        }
        Change::WriteFull { data } => data_at(0, data),
        Change::WriteZeroes { offset, len_bytes } | Change::Discard { offset, len_bytes } => {
            (vec![Edit { at: *offset, len_bytes: *len_bytes, from: None }], Bytes::new())
        }
        Change::WriteRuns { runs } => {
            let mut payload = BytesMut::new();
            let edits = runs.iter().map(|run| {
                let from = match &run.content {
                    RunContent::Data(data) => {
                        let from = payload.len() as u64;
                        data.iter().for_each(|segment| payload.extend_from_slice(segment.as_slice()));
                        Some(from)
                    }
                    RunContent::Zeroes(_) => None,
                };
                Edit { at: run.offset, len_bytes: run.len_bytes(), from }
            });
            (edits.collect(), payload.freeze())
        }
        Change::Truncate { .. } | Change::Delete | Change::Copy { .. } => (Vec::new(), Bytes::new()),
    }
}

/// The state of one change, kept between attempts.
struct Work<'a> {
    object: &'a ObjectId,
    change: &'a Change,
    terms: &'a ChangeTerms,
    progress: &'a Progress,
    edits: Vec<Edit>,
    payload: Bytes,
    /// The blob that holds only the payload, and the time when the blob was put.
    blob: Option<(Blob, Timestamp)>,
    /// Blobs that no head names, now or later.
    orphans: Vec<u128>,
}

impl Core {
    /// Applies one change. Returns the object's version and size afterwards.
    pub(crate) async fn change(
        &self,
        object: &ObjectId,
        change: &Change,
        terms: &ChangeTerms,
        progress: &Progress,
    ) -> Result<(Version, u64)> {
        conditional::check(change, self.object_bytes_max)?;
        self.settle_overdue().await?;
        let (edits, payload) = edits(change);
        let (blob, orphans) = Default::default();
        let mut work = Work { object, change, terms, progress, edits, payload, blob, orphans };
        let lock = self.locks.lock(object, &*self.clock).await;
        let done = self.try_all(&mut work).await;
        drop(lock);
        match &done {
            // The head that names the blob may have been stored, or may still be stored.
            Err(Error::OutcomeUnknown(_)) => {}
            Err(_) => work.orphans.extend(work.blob.map(|(blob, _)| blob.id)),
            Ok(_) => {}
        }
        self.remove_blobs(object, work.orphans).await;
        done
    }

    async fn try_all(&self, work: &mut Work<'_>) -> Result<(Version, u64)> {
        let is_unsettled = self.heads.is_unsettled(work.object);
        let mut recalled = if is_unsettled { None } else { self.heads.recall(work.object) };
        for attempt in 0..TRIES {
            let is_fresh = recalled.is_none();
            let seen = match recalled.take() {
                Some(seen) => Some(seen),
                None => self.look(work.object).await?,
            };
            if let Some(done) = self.try_change(work, seen, is_fresh).await? {
                return Ok(done);
            }
            // Other callers also change the object, so this one lets them finish.
            self.give_way(attempt).await;
        }
        Err(Error::Retryable("too many concurrent changes to this object".into()))
    }

    /// Makes one attempt, based on the observed state. Returns `None` if that state has changed.
    async fn try_change(
        &self,
        work: &mut Work<'_>,
        seen: Option<Seen>,
        is_fresh: bool,
    ) -> Result<Option<(Version, u64)>> {
        let Work { object, change, terms, .. } = *work;
        let mut seen = seen;
        let lacks_fence = seen.as_ref().is_none_or(|seen| {
            seen.head.fence.is_none()
                || terms.domain.is_some_and(|domain| seen.head.domain_fence(domain).is_none())
        });
        let mut scopes = Scopes::default();
        if lacks_fence {
            if !is_fresh {
                return Ok(None);
            }
            if seen.is_none() && conditional::may_create(change, terms) {
                let Some(ghost) = self.introduce(object).await? else { return Ok(None) };
                seen = Some(ghost);
            }
            scopes = self.scopes(&object.namespace, terms.domain).await?;
        }
        let ghost;
        let head = match &seen {
            Some(seen) => &*seen.head,
            None => {
                ghost = Head::ghost();
                &ghost
            }
        };
        let decided_on = conditional::Seen {
            version: head.is_there.then_some(Version(head.version)),
            stamp: head.stamp,
            fence: head.fence,
            domain_fence: terms.domain.and_then(|domain| head.domain_fence(domain)),
        };
        if let Err(error) = conditional::admit(change, terms, decided_on, scopes) {
            return if is_fresh { Err(error) } else { Ok(None) };
        }
        let Some(base) = seen.clone() else {
            // The change was admitted although no head exists, but it does not create one.
            return Err(Error::Missing);
        };
        if let Change::CompareAndWrite { offset, expected, .. } = change {
            match self.compare(object, &base.head, *offset, expected).await? {
                None => return Ok(None),
                Some(Some(_)) if !is_fresh => return Ok(None),
                Some(Some(offset)) => return Err(Error::Mismatch { offset }),
                Some(None) => {}
            }
        }
        let Some((content, own)) = self.new_content(work, &base.head).await? else { return Ok(None) };
        let next = after(change, terms, &base.head, scopes, content)?;
        let (version, size_bytes) = (Version(next.version), next.content.size_bytes);
        let garbage = garbage(&base.head.content, &next.content);
        work.progress.set_begun(true);
        let swapped = self.swap(object, &base, next).await;
        // A completed change stays completed, even if the call still has to wait.
        if matches!(swapped, Swap::Lost | Swap::Failed(_)) {
            work.progress.set_begun(false);
        }
        match swapped {
            Swap::Done(_) => {
                // The blob was put for an earlier attempt, and is now unused.
                let unused = work.blob.filter(|(blob, _)| own != Some(blob.id));
                work.orphans.extend(unused.map(|(blob, _)| blob.id));
                work.orphans.extend(garbage);
                Ok(Some((version, size_bytes)))
            }
            Swap::Lost => {
                let other = own.filter(|own| work.blob.is_none_or(|(blob, _)| blob.id != *own));
                work.orphans.extend(other);
                Ok(None)
            }
            Swap::Failed(error) => {
                work.orphans.extend(own);
                work.blob = None;
                Err(error)
            }
            Swap::Unknown(error) => Err(Error::OutcomeUnknown(
                format!("{error}; the change may have been made, or be made later").into(),
            )),
        }
    }

    /// Returns the content after the change, with all its blobs stored, and the new blob. Returns
    /// `None` if the content before the change is gone.
    async fn new_content(&self, work: &mut Work<'_>, head: &Head) -> Result<Option<(Content, Option<u128>)>> {
        let size = head.content.size_bytes;
        let new_size = work.change.size_after(size);
        let mut content = match work.change.replaces_content() {
            true => Content::default(),
            false => head.content.clone(),
        };
        // Discarding beyond the end has no effect.
        let edits: Vec<Edit> = match work.change {
            Change::Discard { .. } => {
                let clipped = |edit: &Edit| Edit {
                    len_bytes: edit.len_bytes.min(size.saturating_sub(edit.at)),
                    ..*edit
                };
                work.edits.iter().map(clipped).collect()
            }
            _ => work.edits.clone(),
        };
        if content.blobs.is_empty() && new_size <= INLINE_BYTES_MAX {
            return Ok(Some((inline_content(&content, &edits, &work.payload, new_size), None)));
        }
        // The head only holds the bytes of small objects. If the object grows, they are moved out.
        let moves_out = content.has_inline();
        let mut own = None;
        if moves_out {
            let old = content.inline_bytes();
            let moved = old.len() as u64;
            let mut body = old;
            body.extend_from_slice(&work.payload);
            let (blob, source) = self.put(work.object, body.freeze()).await?;
            content.inline = Bytes::new();
            content.blobs.push(blob);
            for extent in &mut content.extents {
                (extent.from, extent.source) = (extent.at, source);
            }
            let shifted: Vec<Edit> =
                edits.iter().map(|edit| Edit { from: edit.from.map(|from| from + moved), ..*edit }).collect();
            content.apply(&shifted, new_size, source);
            own = Some(blob.id);
        } else {
            let source = if work.payload.is_empty() {
                Source::Inline
            } else {
                let now = self.clock.now();
                let is_old = match work.blob {
                    Some((_, since)) if now.since(since) > BLOB_AGE_MAX => true,
                    Some((blob, _)) => self.may_be_swept(work.object, blob.id).await?,
                    None => false,
                };
                if is_old {
                    work.orphans.extend(work.blob.take().map(|(old, _)| old.id));
                }
                let blob = match work.blob {
                    Some((blob, _)) => blob,
                    None => self.put(work.object, work.payload.clone()).await?.0,
                };
                work.blob.get_or_insert((blob, now));
                content.blobs.push(blob);
                own = Some(blob.id);
                Source::Blob(blob.id)
            };
            content.apply(&edits, new_size, source);
        }
        content.tidy();
        if content.is_fragmented() {
            let Some((compacted, blob)) = self.compact(work.object, &content).await? else {
                return Ok(None);
            };
            if moves_out {
                work.orphans.extend(own);
            }
            (content, own) = (compacted, Some(blob));
        }
        Ok(Some((content, own)))
    }

    /// Puts all bytes of `content` into one blob. Returns `None` if a blob is gone.
    async fn compact(&self, object: &ObjectId, content: &Content) -> Result<Option<(Content, u128)>> {
        // The semaphore is never closed, and those who hold a permit wait only for requests.
        let _place = self.compactions.acquire().await;
        self.requests.stats.compacted.increment();
        let mut body = BytesMut::new();
        let islands = content.islands();
        for island in &islands {
            let Some(bytes) = self.bytes(object, content, island.clone()).await? else { return Ok(None) };
            body.extend_from_slice(&bytes);
        }
        let (blob, source) = self.put(object, body.freeze()).await?;
        let mut compacted = Content { blobs: vec![blob], ..Content::default() };
        let mut from = 0;
        let edits: Vec<Edit> = islands
            .into_iter()
            .map(|Range { start, end }| {
                let edit = Edit { at: start, len_bytes: end - start, from: Some(from) };
                from += end - start;
                edit
            })
            .collect();
        compacted.apply(&edits, content.size_bytes, source);
        Ok(Some((compacted, blob.id)))
    }

    /// Returns whether a sweep may have removed a blob that an earlier attempt has put. A sweep first
    /// replaces the head, at a time at which the blob is old. Both times are the server's: this host's
    /// clock stands still while the host is suspended.
    async fn may_be_swept(&self, object: &ObjectId, blob: u128) -> Result<bool> {
        let (head, blob) = (self.layout.head(object), self.layout.blob(object, blob));
        let metas = (self.requests.meta_if_there(&head), self.requests.meta_if_there(&blob));
        let (head, blob) = futures_util::future::try_join(metas.0, metas.1).await?;
        Ok(head.zip(blob).is_none_or(|(head, blob)| {
            let age_secs = head.last_modified.timestamp().saturating_sub(blob.last_modified.timestamp());
            // The half, because the server's parts may have different clocks.
            u64::try_from(age_secs).is_ok_and(|age_secs| age_secs >= BLOB_AGE_MAX.as_secs() / 2)
        }))
    }

    async fn put(&self, object: &ObjectId, body: Bytes) -> Result<(Blob, Source)> {
        let blob = Blob { id: random::unique(), len_bytes: body.len() as u64 };
        self.requests.put_blob(&self.layout.blob(object, blob.id), body).await?;
        Ok((blob, Source::Blob(blob.id)))
    }

    async fn remove_blobs(&self, object: &ObjectId, blobs: Vec<u128>) {
        if !blobs.is_empty() {
            let paths = blobs.into_iter().map(|blob| self.layout.blob(object, blob)).collect();
            self.requests.remove_later(paths).await;
        }
    }

    /// Returns the first difference from the expected bytes at `offset`. Returns `None` if the
    /// bytes can no longer be read.
    async fn compare(
        &self,
        object: &ObjectId,
        head: &Head,
        offset: u64,
        expected: &Segments,
    ) -> Result<Option<Option<u64>>> {
        let len = expected.len_bytes() as u64;
        let end = offset.saturating_add(len).min(head.content.size_bytes).max(offset);
        let Some(found) = self.bytes(object, &head.content, offset..end).await? else { return Ok(None) };
        // A byte beyond the end differs from any expected byte.
        let differs = expected.first_difference(&found).map(|at| offset + at as u64);
        Ok(Some(differs))
    }
}

/// Returns the head after the change.
fn after(
    change: &Change,
    terms: &ChangeTerms,
    head: &Head,
    scopes: Scopes,
    content: Content,
) -> Result<Head> {
    let mut next = head.next();
    next.is_there = !matches!(change, Change::Delete);
    next.version = head.version.wrapping_add(1);
    next.stamp = terms.stamp.or(head.stamp);
    let epoch = terms.stamp.map_or(0, |stamp| stamp.epoch.0);
    next.fence = Some(head.fence.unwrap_or(scopes.whole).max(epoch));
    if let Some(domain) = terms.domain
        && head.domain_fence(domain).is_none()
        && !next.set_domain_fence(domain, scopes.domain)
    {
        return Err(Error::Unsupported("an object can have changes of at most 64 order domains".into()));
    }
    next.content = content;
    Ok(next)
}

/// Returns the blobs that the content before a change names, but not the content after it.
fn garbage(before: &Content, after: &Content) -> Vec<u128> {
    let gone = |blob: &&Blob| after.blobs.iter().all(|kept| kept.id != blob.id);
    before.blobs.iter().filter(gone).map(|blob| blob.id).collect()
}

/// Returns a content that is stored in the head.
fn inline_content(before: &Content, edits: &[Edit], payload: &[u8], new_size: u64) -> Content {
    let mut bytes = before.inline_bytes();
    let end = edits.iter().map(|edit| edit.at + edit.len_bytes).max().unwrap_or(0);
    bytes.resize(bytes.len().max(end.min(INLINE_BYTES_MAX) as usize), 0);
    for edit in edits {
        let range = edit.at as usize..(edit.at + edit.len_bytes) as usize;
        let Some(target) = bytes.get_mut(range) else { continue };
        match edit.from {
            Some(from) => target.copy_from_slice(&payload[from as usize..][..target.len()]),
            None => target.fill(0),
        }
    }
    bytes.resize(new_size as usize, 0);
    // Trailing zeros become a hole.
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes.truncate(len);
    let mut content = Content { size_bytes: new_size, inline: bytes.freeze(), ..Content::default() };
    let edit = Edit { at: 0, len_bytes: len as u64, from: Some(0) };
    content.apply(&[edit], new_size, Source::Inline);
    content
}
